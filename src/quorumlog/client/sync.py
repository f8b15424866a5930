"""`Client` for code without an event loop, such as scripts and tasks of Spark."""

from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Literal, TypeVar, Unpack

from quorumlog.client.admin import ReplicaHistory
from quorumlog.client.client import FETCH_BYTES, Client, ClientOptions
from quorumlog.client.contexts import Servers
from quorumlog.client.deprecation import warn_renamed
from quorumlog.client.loop_thread import LoopThread
from quorumlog.client.results import (
    Appended,
    AppendedBatch,
    Executed,
    FetchedBlock,
    Isolation,
    LeaderChange,
    Level,
    Queried,
)
from quorumlog.client.sync_admin import SyncGroupAdmin
from quorumlog.client.sync_machine import SyncMachineCalls
from quorumlog.client.sync_security import SyncSecurityAdmin
from quorumlog.model.block import Buffer
from quorumlog.model.entry import Entry
from quorumlog.model.errors import QuorumlogError
from quorumlog.model.limits import Limits
from quorumlog.model.messages.client import MetadataResponse, StatusResponse

T = TypeVar("T")


class SyncClient:
    """`Client` for code without an event loop; see there for arguments, results and errors.

    It has the same methods: each waits for its result, and what yields there is an iterator here.
    An event loop runs in a daemon thread of its own. Raises `RequestError` if the process has no
    file descriptors left for it. Calls during or after `close` raise `QuorumlogError`.

    Attributes:
        group: the name of the group.
        admin: administration of the group (`SyncGroupAdmin`).
        machine: its state machine (`SyncMachineCalls`).
        security: users, ACLs and quotas of the cluster (`SyncSecurityAdmin`).
    """

    def __init__(
        self, servers: Servers, group: str = "default", **options: Unpack[ClientOptions]
    ) -> None:
        self._client = Client(servers, group, **options)
        self._thread = LoopThread()
        self.group = group
        self.admin = SyncGroupAdmin(self._client.admin, self._thread)
        self.machine = SyncMachineCalls(self._client.machine, self._thread)
        self.security = SyncSecurityAdmin(self._client.security, self._thread)
        self._closed = False

    @property
    def timeout_ms(self) -> float:
        """See `Client.timeout_ms`."""
        return self._client.timeout_ms

    @property
    def limits(self) -> Limits:
        """See `Client.limits`."""
        return self._client.limits

    @property
    def retry_unknown(self) -> bool:
        """See `Client.retry_unknown`."""
        return self._client.retry_unknown

    @property
    def asynchronous(self) -> Client:
        """The `Client` in the thread; only `wait` and `each` may run what its methods return."""
        return self._client

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the client's thread and return what it returns."""
        return self._thread.wait(work)

    def each(self, found: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield what an asynchronous generator yields in the client's thread, then close it."""
        return self._thread.each(found, lambda: self._closed)

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
            if not self._thread.is_running:
                return
            try:
                self._thread.wait(self._client.close())
            except QuorumlogError:  # in the client's own thread, which cannot wait for its end
                self._closed = False
                raise
            except BaseException:  # also after Ctrl-C
                self._thread.stop()
                raise
            self._thread.stop()

    # -- append and read --------------------------------------------------------------------

    def append(
        self,
        body: Buffer,
        *,
        channel: int = 0,
        timeout_ms: float | None = None,
        level: Level = "replication",
    ) -> Appended:
        """See `Client.append`."""
        return self._thread.wait(
            self._client.append(body, channel=channel, timeout_ms=timeout_ms, level=level)
        )

    def append_batch(
        self,
        bodies: Iterable[Buffer],
        *,
        channel: int = 0,
        timeout_ms: float | None = None,
        level: Level = "replication",
    ) -> AppendedBatch:
        """See `Client.append_batch`."""
        return self._thread.wait(
            self._client.append_batch(bodies, channel=channel, timeout_ms=timeout_ms, level=level)
        )

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
        self,
        index: int,
        *,
        leader_only: bool = True,
        linearizable: bool = False,
        timeout_ms: float | None = None,
    ) -> Entry:
        """See `Client.get`."""
        return self._thread.wait(
            self._client.get(
                index, leader_only=leader_only, linearizable=linearizable, timeout_ms=timeout_ms
            )
        )

    def read(  # noqa: PLR0913  (one argument an option)
        self,
        start: int | Literal["earliest", "latest"] = "earliest",
        *,
        end: int | None = None,
        follow: bool = True,
        include_all: bool = False,
        leader_only: bool = True,
        linearizable: bool = False,
        isolation: Isolation = "read_committed",
        channel: int | None = None,
    ) -> Iterator[Entry]:
        """See `Client.read`."""
        blocks = self.read_blocks(
            start,
            end=end,
            follow=follow,
            include_all=include_all,
            leader_only=leader_only,
            linearizable=linearizable,
            isolation=isolation,
            channel=channel,
        )
        return _flat(blocks)

    def read_blocks(  # noqa: PLR0913  (one argument an option)
        self,
        start: int | Literal["earliest", "latest"] = "earliest",
        *,
        end: int | None = None,
        follow: bool = True,
        include_all: bool = False,
        leader_only: bool = True,
        linearizable: bool = False,
        isolation: Isolation = "read_committed",
        channel: int | None = None,
    ) -> Iterator[list[Entry]]:
        """See `Client.read_blocks`."""
        return self.each(
            self._client.read_blocks(
                start,
                end=end,
                follow=follow,
                include_all=include_all,
                leader_only=leader_only,
                linearizable=linearizable,
                isolation=isolation,
                channel=channel,
            )
        )

    def bounds(
        self,
        *,
        leader_only: bool = True,
        linearizable: bool = False,
        isolation: Isolation = "read_committed",
    ) -> tuple[int, int]:
        """See `Client.bounds`."""
        return self._thread.wait(
            self._client.bounds(
                leader_only=leader_only, linearizable=linearizable, isolation=isolation
            )
        )

    def fetch(  # noqa: PLR0913  (one argument an option of the request)
        self,
        begin_index: int,
        end_index: int = -1,
        *,
        bytes_max: int = FETCH_BYTES,
        wait_ms: int = 0,
        index_records: bool = False,
        leader_only: bool = True,
        linearizable: bool = False,
        isolation: Isolation = "read_committed",
        headers_only: bool = False,
        machine: str = "",
        channel: int | None = None,
        timeout_ms: float | None = None,
    ) -> FetchedBlock:
        """See `Client.fetch`."""
        return self._thread.wait(
            self._client.fetch(
                begin_index,
                end_index,
                bytes_max=bytes_max,
                wait_ms=wait_ms,
                index_records=index_records,
                leader_only=leader_only,
                linearizable=linearizable,
                isolation=isolation,
                headers_only=headers_only,
                machine=machine,
                channel=channel,
                timeout_ms=timeout_ms,
            )
        )

    def status(self) -> list[StatusResponse]:
        """See `Client.status`."""
        return self._thread.wait(self._client.status())

    def metadata(self, address: str | None = None, group: str = "") -> MetadataResponse:
        """See `Client.metadata`."""
        return self._thread.wait(self._client.metadata(address, group))

    def watch_leader(self) -> Iterator[LeaderChange]:
        """See `Client.watch_leader`; the iterator waits for the next leader."""
        return self.each(self._client.watch_leader())

    def servers(self) -> list[str]:
        """See `Client.servers`."""
        return self._client.servers()

    # -- deprecated: these are methods of `admin` -----------------------------------------------

    def save_snapshot(self) -> int:
        """Deprecated: use `admin.save_snapshot`."""
        warn_renamed("SyncClient.save_snapshot", "SyncClient.admin.save_snapshot")
        return self.admin.save_snapshot()

    def transfer(self, node_id: str, *, term: int = -1) -> None:
        """Deprecated: use `admin.transfer`."""
        warn_renamed("SyncClient.transfer", "SyncClient.admin.transfer")
        self.admin.transfer(node_id, term=term)

    def add_member(self, node_id: str, address: str, *, learner: bool = False) -> None:
        """Deprecated: use `admin.add_member`."""
        warn_renamed("SyncClient.add_member", "SyncClient.admin.add_member")
        self.admin.add_member(node_id, address, learner=learner)

    def promote_member(self, node_id: str) -> None:
        """Deprecated: use `admin.promote_member`."""
        warn_renamed("SyncClient.promote_member", "SyncClient.admin.promote_member")
        self.admin.promote_member(node_id)

    def remove_member(self, node_id: str) -> None:
        """Deprecated: use `admin.remove_member`."""
        warn_renamed("SyncClient.remove_member", "SyncClient.admin.remove_member")
        self.admin.remove_member(node_id)

    def wait_until_voter(self, node_id: str, *, timeout_s: float) -> None:
        """Deprecated: use `admin.wait_until_voter`."""
        warn_renamed("SyncClient.wait_until_voter", "SyncClient.admin.wait_until_voter")
        self.admin.wait_until_voter(node_id, timeout_s=timeout_s)

    def stories(self) -> list[ReplicaHistory]:
        """Deprecated: use `admin.history`."""
        warn_renamed("SyncClient.stories", "SyncClient.admin.history")
        return self.admin.history()


def _flat(found: Iterator[list[Entry]]) -> Iterator[Entry]:
    for entries in found:
        yield from entries
