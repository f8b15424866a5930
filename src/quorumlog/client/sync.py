"""The synchronous face of the client, for scripts and Spark tasks."""

from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar, Unpack

from quorumlog.client.admin import ReplicaHistory
from quorumlog.client.client import Client, ClientOptions, FetchOptions
from quorumlog.client.loop_thread import LoopThread
from quorumlog.client.results import (
    Appended,
    AppendedBatch,
    Executed,
    FetchedBlock,
    Isolation,
    Queried,
)
from quorumlog.model.block import Buffer
from quorumlog.model.entry import Entry
from quorumlog.model.messages.client import MetadataResponse, StatusResponse

T = TypeVar("T")


class SyncClient:
    """`Client` for code without an event loop; see there for arguments, results and errors.

    An event loop of its own runs in a daemon thread; calls wait for it. Raises `RequestError` if
    the process has no file descriptors left for it.

    Whoever calls while another thread closes it, or later, is told so by a `QuorumlogError`.
    """

    def __init__(
        self, servers: str | Sequence[str], group: str = "default", **options: Unpack[ClientOptions]
    ) -> None:
        self._client = Client(servers, group, **options)
        self._thread = LoopThread()
        self.group = group
        self._closed = False

    @property
    def asynchronous(self) -> Client:
        """The client behind it; only `wait` may run what it returns."""
        return self._client

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the client's thread and return what it returns."""
        return self._thread.wait(work)

    def each(self, found: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield what an asynchronous generator yields in the client's thread; close it then."""

        async def following() -> list[T]:
            try:
                return [await anext(found)]
            except StopAsyncIteration:
                return []

        try:
            while item := self._thread.wait(following()):
                yield item[0]
        finally:
            if not self._closed and self._thread.is_there:
                self._thread.wait(found.aclose())

    def __enter__(self) -> "SyncClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all connections and the thread; in a forked child, which has neither, do nothing."""
        if not self._closed:
            self._closed = True
            if not self._thread.is_there:
                return
            self._thread.wait(self._client.close())
            self._thread.stop()

    # -- for operators ----------------------------------------------------------------------

    def save_snapshot(self) -> int:
        """See `GroupAdmin.save_snapshot`."""
        return self._thread.wait(self._client.admin.save_snapshot())

    def transfer(self, node_id: str, *, term: int = -1) -> None:
        """See `GroupAdmin.transfer`."""
        self._thread.wait(self._client.admin.transfer(node_id, term=term))

    def add_member(self, node_id: str, address: str, *, learner: bool = False) -> None:
        """See `GroupAdmin.add_member`."""
        self._thread.wait(self._client.admin.add_member(node_id, address, learner=learner))

    def promote_member(self, node_id: str) -> None:
        """See `GroupAdmin.promote_member`."""
        self._thread.wait(self._client.admin.promote_member(node_id))

    def remove_member(self, node_id: str) -> None:
        """See `GroupAdmin.remove_member`."""
        self._thread.wait(self._client.admin.remove_member(node_id))

    def wait_until_voter(self, node_id: str, *, timeout_s: float) -> None:
        """See `GroupAdmin.wait_until_voter`."""
        self._thread.wait(self._client.admin.wait_until_voter(node_id, timeout_s=timeout_s))

    def report_position(self, reader: str, index: int) -> None:
        """See `GroupAdmin.report_position`."""
        self._thread.wait(self._client.admin.report_position(reader, index))

    def stories(self) -> list[ReplicaHistory]:
        """See `GroupAdmin.stories`."""
        return self._thread.wait(self._client.admin.stories())

    # -- append and read --------------------------------------------------------------------

    def append(self, body: Buffer, *, timeout_ms: float | None = None) -> Appended:
        """See `Client.append`."""
        return self._thread.wait(self._client.append(body, timeout_ms=timeout_ms))

    def append_batch(
        self, bodies: Iterable[Buffer], *, timeout_ms: float | None = None
    ) -> AppendedBatch:
        """See `Client.append_batch`."""
        return self._thread.wait(self._client.append_batch(bodies, timeout_ms=timeout_ms))

    def execute(self, command: Buffer, *, timeout_ms: float | None = None) -> Executed:
        """See `Client.execute`."""
        return self._thread.wait(self._client.execute(command, timeout_ms=timeout_ms))

    def query(
        self, question: Buffer, *, linearizable: bool = True, timeout_ms: float | None = None
    ) -> Queried:
        """See `Client.query`."""
        return self._thread.wait(
            self._client.query(question, linearizable=linearizable, timeout_ms=timeout_ms)
        )

    def get(
        self, index: int, *, leader_only: bool = True, timeout_ms: float | None = None
    ) -> Entry:
        """See `Client.get`."""
        return self._thread.wait(
            self._client.get(index, leader_only=leader_only, timeout_ms=timeout_ms)
        )

    def read(
        self,
        start: int | Literal["earliest", "latest"] = "earliest",
        *,
        end: int | None = None,
        follow: bool = True,
        include_all: bool = False,
        leader_only: bool = True,
        isolation: Isolation = "read_committed",
    ) -> Iterator[Entry]:
        """See `Client.read`."""
        blocks = self._client.read_blocks(
            start,
            end=end,
            follow=follow,
            include_all=include_all,
            leader_only=leader_only,
            isolation=isolation,
        )
        return _flat(self.each(blocks))

    def bounds(
        self, *, leader_only: bool = True, isolation: Isolation = "read_committed"
    ) -> tuple[int, int]:
        """See `Client.bounds`."""
        return self._thread.wait(self._client.bounds(leader_only=leader_only, isolation=isolation))

    def fetch(
        self, begin_index: int, end_index: int = -1, **options: Unpack[FetchOptions]
    ) -> FetchedBlock:
        """See `Client.fetch`."""
        return self._thread.wait(self._client.fetch(begin_index, end_index, **options))

    def status(self) -> list[StatusResponse]:
        """See `Client.status`."""
        return self._thread.wait(self._client.status())

    def metadata(self) -> MetadataResponse:
        """See `Client.metadata`."""
        return self._thread.wait(self._client.metadata())


def _flat(found: Iterator[list[Entry]]) -> Iterator[Entry]:
    for entries in found:
        yield from entries
