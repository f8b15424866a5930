"""Synchronous faces of the client and the producer, for scripts and Spark tasks.

One event loop runs in a daemon thread; calls wait for it.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal, TypeVar

import uvloop

from quorumlog.client.admin import ReplicaStory
from quorumlog.client.client import Client
from quorumlog.client.delivery import ProducerStats
from quorumlog.client.producer import Producer
from quorumlog.client.values import (
    Appended,
    AppendedBatch,
    Executed,
    FetchedBlock,
    Isolation,
    Queried,
)
from quorumlog.model.block import HEADER_SIZE, Buffer
from quorumlog.model.entry import Entry
from quorumlog.model.errors import QuorumlogError
from quorumlog.model.message import MetadataResponse, StatusResponse
from quorumlog.model.system_entry import AcceptedAttempt

T = TypeVar("T")

CLOSED = "this client is closed; make a new one"
CANCEL_SECONDS = 5.0
"""How long an interrupted call may take to end."""


class _LoopThread:
    """An event loop in a thread of its own.

    It runs what it is given in order, so whatever was given before `stop` has begun, and is ended,
    before the loop stops; nothing is given after that.
    """

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._lock = threading.Lock()  # guards the next one, and giving the loop anything
        self._is_stopping = False
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="quorumlog-client", daemon=True
        )
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and return what it returns; Ctrl-C first lets it end.

        Raises `QuorumlogError` if it did not end before `stop`.
        """
        tasks: list[asyncio.Task[T]] = []
        ended: Future[None] = Future()

        def begin() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(lambda _: ended.set_result(None))

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # interrupted before it was begun
                work.close()
                ended.set_result(None)

        try:
            if not self._give(begin):
                work.close()
                ended.set_result(None)
            ended.result()
        except BaseException:
            if self._give(cancel):  # else `stop` cancels it
                ended.result(CANCEL_SECONDS)
            raise
        if not tasks or (self._is_stopping and tasks[0].cancelled()):
            raise QuorumlogError(CLOSED)
        return tasks[0].result()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine there; nobody waits for it or hears of its errors.

        Raises `QuorumlogError` after `stop`.
        """
        with self._lock:
            if not self._is_stopping:
                asyncio.run_coroutine_threadsafe(work, self._loop)
                return
        work.close()
        raise QuorumlogError(CLOSED)

    def _give(self, callback: Callable[[], object]) -> bool:
        """Have the loop call something; return False, with nothing done, after `stop`."""
        with self._lock:
            if not self._is_stopping:
                self._loop.call_soon_threadsafe(callback)
            return not self._is_stopping

    def stop(self) -> None:
        """End whatever still runs there, the loop and the thread."""
        with self._lock:
            if self._is_stopping or not self._thread.is_alive():  # a forked process has no thread
                return
            self._is_stopping = True
        asyncio.run_coroutine_threadsafe(_cancel_the_rest(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_the_rest() -> None:
    """Cancel all other tasks of the running loop and wait for their end."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


class SyncClient:
    """`Client` for code without an event loop; see there for arguments, results and errors.

    Whoever calls while another thread closes it, or later, is told so by a `QuorumlogError`.
    """

    def __init__(
        self, servers: str | Sequence[str], group: str = "default", **options: Any
    ) -> None:
        self._client = Client(servers, group, **options)
        self._thread = _LoopThread()
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
            if not self._closed:
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
        """End all connections and the thread."""
        if not self._closed:
            self._closed = True
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

    def stories(self) -> list[ReplicaStory]:
        """See `GroupAdmin.stories`."""
        return self._thread.wait(self._client.admin.stories())

    # -- append and read --------------------------------------------------------------------

    def append(self, body: Buffer, *, timeout_ms: int | None = None) -> Appended:
        """See `Client.append`."""
        return self._thread.wait(self._client.append(body, timeout_ms=timeout_ms))

    def append_batch(
        self, bodies: Sequence[Buffer], *, timeout_ms: int | None = None
    ) -> AppendedBatch:
        """See `Client.append_batch`."""
        return self._thread.wait(self._client.append_batch(bodies, timeout_ms=timeout_ms))

    def execute(self, command: Buffer, *, timeout_ms: int | None = None) -> Executed:
        """See `Client.execute`."""
        return self._thread.wait(self._client.execute(command, timeout_ms=timeout_ms))

    def query(
        self, question: Buffer, *, linearizable: bool = True, timeout_ms: int | None = None
    ) -> Queried:
        """See `Client.query`."""
        return self._thread.wait(
            self._client.query(question, linearizable=linearizable, timeout_ms=timeout_ms)
        )

    def get(self, index: int, *, timeout_ms: int | None = None) -> Entry:
        """See `Client.get`."""
        return self._thread.wait(self._client.get(index, timeout_ms=timeout_ms))

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
        for entries in self.each(blocks):
            yield from entries

    def bounds(
        self, *, leader_only: bool = True, isolation: Isolation = "read_committed"
    ) -> tuple[int, int]:
        """See `Client.bounds`."""
        return self._thread.wait(self._client.bounds(leader_only=leader_only, isolation=isolation))

    def fetch(self, begin_index: int, end_index: int = -1, **options: Any) -> FetchedBlock:
        """See `Client.fetch`."""
        return self._thread.wait(self._client.fetch(begin_index, end_index, **options))

    def status(self) -> list[StatusResponse]:
        """See `Client.status`."""
        return self._thread.wait(self._client.status())

    def metadata(self) -> MetadataResponse:
        """See `Client.metadata`."""
        return self._thread.wait(self._client.metadata())


SEND_BYTES = 128 * 1024
"""Bytes that may wait for the loop's thread before `SyncProducer.send` waits as well."""


class SyncProducer:
    """`Producer` for code without an event loop; one thread at a time may use it.

    Entries leave by themselves, as with `Producer`. `flush` (or leaving the `with` block) waits
    until all are acknowledged; it raises the error that ended the producer, as does `send`.
    """

    def __init__(
        self, servers: str | Sequence[str], group: str = "default", **options: Any
    ) -> None:
        self._producer = Producer(servers, group, **options)
        self._thread = _LoopThread()
        self._lock = threading.Lock()  # guards the next two
        self._bodies: list[Buffer] = []
        self._size = 0
        self._taking = asyncio.Lock()
        self._closed = False

    def __enter__(self) -> "SyncProducer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(flush=kind is None)

    @property
    def stats(self) -> ProducerStats:
        """See `Producer.stats`."""
        return self._producer.stats

    def attempt(self) -> AcceptedAttempt | None:
        """See `Producer.attempt`."""
        return self._producer.attempt()

    def send_batch(self, bodies: Sequence[Buffer], channels: Sequence[int] | None = None) -> None:
        """See `Producer.send_batch`."""
        for body in bodies:
            self._producer.check(body)
        self._thread.wait(self._take())
        self._thread.wait(self._producer.send_batch(bodies, channels))

    def send(self, body: Buffer) -> None:
        """Take one entry; waits while the producer's buffer is full. Raises as `Producer.send`."""
        self._producer.check(body)
        with self._lock:
            is_first = not self._bodies
            self._bodies.append(body)
            self._size += HEADER_SIZE + len(body)
        if self._size >= SEND_BYTES:
            self._thread.wait(self._take())
        elif is_first:
            self._thread.begin(self._take())

    async def _take(self) -> None:
        """Give the producer all that waits, in order."""
        async with self._taking:
            with self._lock:
                bodies, self._bodies, self._size = self._bodies, [], 0
            await self._producer.send_batch(bodies)

    def flush(self) -> None:
        """See `Producer.flush`."""
        self._thread.wait(self._take())
        self._thread.wait(self._producer.flush())

    def close(self, *, flush: bool = True) -> None:
        """See `Producer.close`."""
        if self._closed:
            return
        self._closed = True
        try:
            if flush:
                self._thread.wait(self._take())
            self._thread.wait(self._producer.close(flush=flush))
        finally:
            self._thread.stop()
