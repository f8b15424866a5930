"""The asynchronous client: append, get, read, status."""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from itertools import compress
from types import TracebackType
from typing import Any, Literal, TypedDict, TypeVar

from isal.isal_zlib import crc32

from quorumlog.client import arguments
from quorumlog.client.admin import GroupAdmin
from quorumlog.client.append_batcher import AppendBatcher
from quorumlog.client.arguments import as_bodies, as_bytes
from quorumlog.client.checked import (
    BYTES,
    INDEX,
    INDEX_OR_NONE,
    ISOLATION,
    LABEL,
    MILLISECONDS,
    flag,
    optional,
    start,
    takes,
)
from quorumlog.client.connection import Answer, ServerConnection
from quorumlog.client.machine_calls import MachineCalls
from quorumlog.client.metadata import Metadata
from quorumlog.client.process import open_standard_streams
from quorumlog.client.reader import BlockReader
from quorumlog.client.results import (
    Appended,
    AppendedBatch,
    Executed,
    FetchedBlock,
    Isolation,
    Queried,
    positions_of,
)
from quorumlog.client.retry import Backoff
from quorumlog.model.block import HEADER_SIZE, Buffer, data_mask, decode_entries, encode_block
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import check_name, parse_address
from quorumlog.model.entry import Entry
from quorumlog.model.errors import (
    ConfigError,
    CorruptionError,
    DeadlineExceededError,
    EmptyBatchError,
    IndexOutOfRangeError,
    NetworkError,
    NoLeaderError,
    Outcome,
    RequestError,
    UnexpectedArgumentError,
    error_for,
)
from quorumlog.model.limits import DEFAULT_LIMITS, Limits
from quorumlog.model.messages.base import Request
from quorumlog.model.messages.client import (
    AppendRequest,
    AppendResponse,
    FetchRequest,
    FetchResponse,
    MetadataResponse,
    StatusResponse,
)

T = TypeVar("T")

FETCH_BYTES = 1024 * 1024
ATTEMPT_MIN_S = 0.1
"""With less time left, a refusal is reported rather than another attempt of unknown fate begun."""
READ_ATTEMPTS = 3
"""A fetch gives a server that says nothing this share of its time, then asks again elsewhere."""


_reads = takes(
    start=start,
    end=optional(INDEX_OR_NONE),
    follow=flag,
    include_all=flag,
    leader_only=flag,
    linearizable=flag,
    isolation=ISOLATION,
)


class ClientOptions(TypedDict, total=False):
    """What a `Client` may be told besides servers and group; see there."""

    timeout_ms: float
    cluster: str
    retry_unknown: bool
    limits: Limits


class FetchOptions(TypedDict, total=False):
    """What `Client.fetch` may be told besides the range; see there."""

    bytes_max: int
    wait_ms: int
    index_records: bool
    leader_only: bool
    linearizable: bool
    isolation: Isolation
    headers_only: bool
    machine: str
    timeout_ms: float | None


class Client:
    """A client of one group.

    `servers`: some of the cluster's addresses, `host:port` joined by commas or as a sequence; the
    others are learnt. `timeout_ms` bounds every call that is not given its own, retries included.
    Appends whose fate is unknown are raised, never repeated, unless `retry_unknown` is set (they
    may then be stored twice). Use it as `async with Client(...) as log`.

    Bodies, commands and questions are `bytes` or any other buffer of plain data (`bytearray`,
    `memoryview`, an array), which is copied before a call returns: the caller may use it again at
    once. `UnexpectedArgumentError` is raised by the call itself for anything else, and for every
    other argument of a wrong type or value. A client belongs
    to the process that made it: in a forked child every use of it raises `RequestError`.
    Raises `ConfigError` for an option of a wrong type or value.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        group: str = "default",
        *,
        timeout_ms: float = 10_000,
        cluster: str = "",
        retry_unknown: bool = False,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        open_standard_streams()
        addresses = arguments.addresses_of(servers)
        for address in addresses:
            parse_address(address)
        check_name("group", arguments.text("group", group))
        if not isinstance(limits, Limits):
            raise ConfigError(f"limits is a Limits, not {limits!r}")
        self.group = group
        self.timeout_ms = arguments.milliseconds("timeout_ms", timeout_ms, least=1)
        self.limits = limits
        self.retry_unknown = arguments.flag("retry_unknown", retry_unknown)
        arguments.text("cluster", cluster)
        self._generator = random.Random()  # noqa: S311  (spreads retries; nothing secret)
        self.view = Metadata(addresses, group, cluster, limits, self._generator)
        self.admin = GroupAdmin(self)
        self.machine = MachineCalls(self)
        self._joined = AppendBatcher(limits, self.append_batch)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections, for good.

        Whatever waits for an answer fails as unknown, and what is asked for later or would be asked
        again raises a `RequestError` that is not retriable.
        """
        await self.view.close()

    # -- append -----------------------------------------------------------------------------

    def append(
        self, body: Buffer, *, timeout_ms: float | None = None
    ) -> Coroutine[Any, Any, Appended]:
        """Append one entry; return where it went, once a majority has it on disk.

        What several tasks append at the same time travels together. Raises `RequestError`; its
        `outcome` says whether the append did not happen or is unknown.
        """
        return self._append(as_bytes("body", body), timeout_ms)

    async def _append(self, body: bytes, timeout_ms: float | None) -> Appended:
        self.view.check_process()
        self.limit_ms(timeout_ms)
        self.checked_sizes([body])
        return await self._joined.append(body, timeout_ms)

    def append_batch(
        self, bodies: Iterable[Buffer], *, timeout_ms: float | None = None
    ) -> Coroutine[Any, Any, AppendedBatch]:
        """Append several entries, all or none, with consecutive indexes.

        Raises `EmptyBatchError`, `UnexpectedArgumentError` (too large; nothing was sent), or what
        `append` raises.
        """
        return self._append_batch(as_bodies("body", bodies), timeout_ms)

    async def _append_batch(
        self, bodies: Sequence[bytes], timeout_ms: float | None
    ) -> AppendedBatch:
        self.view.check_process()
        sizes = self.checked_sizes(bodies)
        block = encode_block(bodies)
        request = AppendRequest(group=self.group, count=len(bodies))

        async def ask(connection: ServerConnection) -> AppendResponse:
            answer = await connection.request(request, [block])
            return self.expect(connection, answer, AppendResponse)

        response = await self.retrying(
            self.view.leader, ask, timeout_ms, repeat_unknown=self.retry_unknown
        )
        return AppendedBatch(
            response.first_index,
            response.last_index,
            response.term,
            positions_of(response, sizes),
        )

    def checked_sizes(self, bodies: Sequence[Buffer]) -> list[int]:
        """Return the sizes of bodies, or raise if they cannot be appended together."""
        if not bodies:
            raise EmptyBatchError("a batch needs at least one body")
        sizes = [len(body) for body in bodies]
        limits = self.limits
        largest = limits.entry_bytes_max - HEADER_SIZE
        if max(sizes) > largest:
            raise UnexpectedArgumentError(f"a body of {max(sizes)} bytes is above {largest}")
        total = sum(sizes) + HEADER_SIZE * len(sizes)
        if total > limits.block_bytes_max or len(sizes) > limits.block_entries_max:
            raise UnexpectedArgumentError(
                f"a batch of {len(sizes)} entries and {total} bytes is above "
                f"{limits.block_entries_max} entries or {limits.block_bytes_max} bytes; append "
                "several batches, or use Producer"
            )
        return sizes

    # -- state machine ------------------------------------------------------------------------

    def execute(
        self, command: Buffer, *, timeout_ms: float | None = None
    ) -> Coroutine[Any, Any, Executed]:
        """Append a command; return what the state machine made of it (see `MachineCalls`)."""
        return self.machine.execute(command, timeout_ms=timeout_ms)

    def query(
        self, question: Buffer, *, linearizable: bool = True, timeout_ms: float | None = None
    ) -> Coroutine[Any, Any, Queried]:
        """Ask the state machine; everything acknowledged before is seen (see `MachineCalls`)."""
        return self.machine.query(question, linearizable=linearizable, timeout_ms=timeout_ms)

    # -- read -------------------------------------------------------------------------------

    @takes(index=INDEX, leader_only=flag, linearizable=flag)
    async def get(
        self,
        index: int,
        *,
        leader_only: bool = True,
        linearizable: bool = False,
        timeout_ms: float | None = None,
    ) -> Entry:
        """Return one committed entry, whatever became of a transaction it belongs to.

        With `leader_only=False` any replica may answer, which may be a little behind. Raises
        `IndexOutOfRangeError` beyond the committed end, `IndexRemovedError` below the first entry
        kept.
        """
        fetched = await self.fetch(
            index,
            index,
            bytes_max=1,
            leader_only=leader_only,
            linearizable=linearizable,
            isolation="read_uncommitted",
            timeout_ms=timeout_ms,
        )
        if not fetched.count:
            raise IndexOutOfRangeError(
                f"index {index} is beyond the last committed index, {fetched.committed_index}"
            )
        return self._decoded(fetched, include_all=True)[0]

    @_reads
    def read(
        self,
        start: int | Literal["earliest", "latest"] = "earliest",
        *,
        end: int | None = None,
        follow: bool = True,
        include_all: bool = False,
        leader_only: bool = True,
        linearizable: bool = False,
        isolation: Isolation = "read_committed",
    ) -> AsyncGenerator[Entry, None]:
        """Yield committed entries in order from `start` on; with `follow`, wait for new ones.

        `start`: an index, "earliest" (first kept) or "latest" (what is committed from now on).
        `end` is the last index to yield. NOOPs and bookkeeping are skipped unless `include_all`.
        With `leader_only=False` any replica may answer, which may be a little behind; a
        `linearizable` read sees everything acknowledged before it began, whoever answers. Of
        transactions it sees what `isolation` says (see `Isolation`).

        Leader changes, restarts and outages of up to the client's `timeout_ms` are ridden out: no
        entry is missing or comes twice. A longer outage raises `RequestError`; a reader that waits
        for new entries may notice it up to 10 s later, one that is busy only when it goes on, and
        not if it is over by then. Raises `IndexRemovedError` when the next entry is not kept any
        more.
        """
        blocks = self.read_blocks(
            start,
            end=end,
            follow=follow,
            include_all=include_all,
            leader_only=leader_only,
            linearizable=linearizable,
            isolation=isolation,
        )
        return _flat(blocks)

    @_reads
    async def read_blocks(
        self,
        start: int | Literal["earliest", "latest"] = "earliest",
        *,
        end: int | None = None,
        follow: bool = True,
        include_all: bool = False,
        leader_only: bool = True,
        linearizable: bool = False,
        isolation: Isolation = "read_committed",
    ) -> AsyncGenerator[list[Entry], None]:
        """Like `read`, but yield the entries of one answer of a server at a time, at least one."""

        async def fetch(begin: int, last: int, wait_ms: int) -> FetchedBlock:
            return await self.fetch(
                begin,
                last,
                wait_ms=wait_ms,
                leader_only=leader_only,
                linearizable=linearizable,
                isolation=isolation,
            )

        index = await self._start_index(start, leader_only, linearizable, isolation)
        blocks = BlockReader(fetch, index, end, follow=follow).blocks()
        async with aclosing(blocks):
            async for fetched in blocks:
                entries = self._decoded(fetched, include_all=include_all)
                if entries:
                    yield entries

    async def _start_index(
        self,
        start: int | Literal["earliest", "latest"],
        leader_only: bool,
        linearizable: bool,
        isolation: Isolation,
    ) -> int:
        if isinstance(start, int):
            return start
        begin, committed = await self.bounds(
            leader_only=leader_only, linearizable=linearizable, isolation=isolation
        )
        return begin if start == "earliest" else committed + 1

    @takes(leader_only=flag, linearizable=flag, isolation=ISOLATION)
    async def bounds(
        self,
        *,
        leader_only: bool = True,
        linearizable: bool = False,
        isolation: Isolation = "read_committed",
    ) -> tuple[int, int]:
        """Return the first index kept and the last committed (and stable, see `Isolation`) index.

        With `linearizable`, of a moment after this was called: nothing acknowledged is missing.
        """
        beyond = (1 << 62) + 1
        fetched = await self.fetch(
            beyond, leader_only=leader_only, linearizable=linearizable, isolation=isolation
        )
        return fetched.begin_index, fetched.committed_index

    @takes(
        begin_index=INDEX,
        end_index=INDEX_OR_NONE,
        bytes_max=BYTES,
        wait_ms=MILLISECONDS,
        index_records=flag,
        leader_only=flag,
        linearizable=flag,
        isolation=ISOLATION,
        headers_only=flag,
        machine=LABEL,
    )
    async def fetch(  # noqa: PLR0913  (one argument an option of the request)
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
        timeout_ms: float | None = None,
    ) -> FetchedBlock:
        """Return one block of committed entries from begin_index on, as stored.

        end_index -1: as far as committed. When begin_index is not committed yet the server waits
        up to wait_ms, then the block is empty. Retried until `timeout_ms` (plus wait_ms).
        `bytes_max` bounds the entries that are looked at, also if only their headers are sent. A
        replica on `machine` (see `FetchRequest`) rather says in which files they all are.
        """
        loop = asyncio.get_running_loop()
        limit_ms = self.limit_ms(timeout_ms)
        begun = loop.time()

        async def ask(connection: ServerConnection) -> FetchedBlock:
            left_ms = max(0, wait_ms - int((loop.time() - begun) * 1000))
            request = FetchRequest(
                group=self.group,
                begin_index=begin_index,
                end_index=end_index,
                bytes_max=bytes_max,
                wait_ms=left_ms,
                index_records=index_records,
                leader_only=leader_only,
                linearizable=linearizable,
                read_committed=isolation == "read_committed",
                headers_only=headers_only,
                machine=machine,
            )
            return await self._fetch_once(connection, request, left_ms + limit_ms / READ_ATTEMPTS)

        locate = self.view.leader if leader_only else self.any_server
        return await self.retrying(locate, ask, limit_ms + wait_ms, repeat_unknown=True)

    async def _fetch_once(
        self, connection: ServerConnection, request: FetchRequest, limit_ms: float
    ) -> FetchedBlock:
        answer = await self.answer_within(connection, request, (), limit_ms)
        response = self.expect(connection, answer, FetchResponse)
        records = answer.attachment[: response.index_bytes]
        data = answer.attachment[response.index_bytes :]
        return FetchedBlock(
            response.first_index,
            response.count,
            data,
            records,
            response.begin_index,
            response.committed_index,
            response.rejected,
            request.headers_only,
            response.location,
        )

    async def answer_within(
        self,
        connection: ServerConnection,
        request: Request,
        attachments: Sequence[Buffer],
        limit_ms: float,
    ) -> Answer:
        """Return a server's answer; one that takes longer raises `NetworkError`: ask another."""
        try:
            async with asyncio.timeout(limit_ms / 1000):
                return await connection.request(request, attachments)
        except TimeoutError:
            what = type(request).__name__
            raise NetworkError(
                f"{connection.address} did not answer a {what} within {limit_ms:.0f} ms"
            ) from None

    async def any_server(self) -> ServerConnection:
        """Return a connection to one of the servers, by chance; raise if none can be reached."""
        error: RequestError | None = None
        for address in self.view.candidates():
            try:
                return await self.view.connection(address)
            except RequestError as failed:  # one that may answer later says more than a refusal
                error = failed if error is None or failed.retriable else error
        raise error or ConfigError("no servers")

    def _decoded(self, fetched: FetchedBlock, *, include_all: bool) -> list[Entry]:
        """Return the entries of a block that are to be seen, checked against their body CRCs."""
        block = fetched.block(self.limits.entry_bytes_max)
        entries = list(decode_entries(block))
        for entry in entries:
            crc, index = entry.body_crc, entry.index
            if crc32(entry.body) != crc and (crc or entry.chain_crc):  # DLedger's have neither
                raise CorruptionError(
                    f"entry {index} of {self.group} does not fit its body CRC", "", 0, index
                )
        if include_all:
            return [entry for entry in entries if not fetched.is_rejected(entry.index)]
        mask = data_mask(block, fetched.rejected)
        return entries if mask.all() else list(compress(entries, mask.tolist()))

    # -- status -----------------------------------------------------------------------------

    async def status(self) -> list[StatusResponse]:
        """Ask every known server for its replica (see `GroupAdmin.status`)."""
        self.view.check_open()  # else it would say that of every server
        return await self.admin.status()

    async def metadata(self) -> MetadataResponse:
        """Return what the first server that answers says of all its groups."""

        async def ask(connection: ServerConnection) -> MetadataResponse:
            return await self.view.metadata(connection.address)

        return await self.retrying(self.any_server, ask, None, repeat_unknown=True)

    # -- retries ----------------------------------------------------------------------------

    def expect(self, connection: ServerConnection, answer: Answer, kind: type[T]) -> T:
        """Return the answer if it is the one hoped for, else raise the error it stands for."""
        response = answer.response
        if response.code == ResponseCode.SUCCESS and isinstance(response, kind):
            return response
        error = error_for(response.code, response.text, response.leader_id)
        if error.refresh_leader:
            self.view.redirect(response.leader_id, away_from=connection.address)
        raise error

    async def retrying(
        self,
        locate: Callable[[], Awaitable[ServerConnection]],
        ask: Callable[[ServerConnection], Awaitable[T]],
        timeout_ms: float | None,
        *,
        repeat_unknown: bool,
    ) -> T:
        """Find a server and ask it, until that succeeds, cannot succeed, or the deadline passes.

        The errors' attributes decide which; only asking can leave an unknown fate, and what comes
        after that does not make it known again. A leader that is named is asked at once, unless
        it was itself named just now.
        """
        self.view.check_process()
        loop = asyncio.get_running_loop()
        limit_ms = self.limit_ms(timeout_ms)
        deadline = loop.time() + limit_ms / 1000
        attempt_s = min(ATTEMPT_MIN_S, limit_ms / 4_000)
        backoff = Backoff(self._generator)
        last: RequestError | None = None
        in_doubt = was_sent_on = False
        while True:
            connection: ServerConnection | None = None
            try:
                async with asyncio.timeout_at(deadline):
                    found = await locate()
                    if loop.time() >= deadline:
                        raise _not_sent_in_time(self.group, limit_ms)
                    connection = found
                    return await ask(connection)
            except TimeoutError:
                late = self._out_of_time(last, limit_ms, connection)
                raise _downgrade_outcome(late, in_doubt=in_doubt) from None
            except RequestError as error:
                last = error
                if error.refresh_leader and error.leader_id is None and connection is not None:
                    self.view.forget_leader(connection.address)
                unknown = error.outcome is Outcome.UNKNOWN
                if not error.retriable or (unknown and not repeat_unknown):
                    _downgrade_outcome(error, in_doubt=in_doubt)
                    raise
                in_doubt = in_doubt or (unknown and connection is not None)
                was_sent_on = not was_sent_on and _names_another(error, connection)
            pause = 0.0 if was_sent_on else backoff.next_pause_s()
            if loop.time() + pause + attempt_s > deadline:
                raise _downgrade_outcome(last, in_doubt=in_doubt)
            await asyncio.sleep(pause)

    def limit_ms(self, timeout_ms: float | None) -> float:
        """Return how long a call may take, in milliseconds; None: as long as any of the client's.

        Raises `UnexpectedArgumentError` for what is no such time.
        """
        if timeout_ms is None:
            return self.timeout_ms
        return arguments.milliseconds("timeout_ms", timeout_ms, kind=UnexpectedArgumentError)

    def _out_of_time(
        self, last: RequestError | None, limit_ms: float, asked: ServerConnection | None
    ) -> RequestError:
        """The deadline passed: if a server had been asked, the fate of the request is unknown."""
        self.view.forget_leader(asked.address if asked is not None else None)
        said = f"; before that: {last}" if last is not None else ""
        if asked is None:
            servers = ", ".join(self.view.addresses())
            return NoLeaderError(
                f"found no leader of {self.group} among {servers} within {limit_ms:g} ms{said}"
            )
        return DeadlineExceededError(f"no answer from {self.group} within {limit_ms:g} ms{said}")


async def _flat(blocks: AsyncGenerator[list[Entry], None]) -> AsyncGenerator[Entry, None]:
    async with aclosing(blocks):
        async for entries in blocks:
            for entry in entries:
                yield entry


def _not_sent_in_time(group: str, limit_ms: float) -> RequestError:
    error = DeadlineExceededError(f"{limit_ms:g} ms are over; nothing was sent to {group}")
    error.outcome = Outcome.DID_NOT_HAPPEN
    return error


def _names_another(error: RequestError, asked: ServerConnection | None) -> bool:
    """Whether a server that does not lead says who does."""
    return (
        error.refresh_leader and asked is not None and error.leader_id not in (None, asked.node_id)
    )


def _downgrade_outcome(error: RequestError, *, in_doubt: bool) -> RequestError:
    """Return the last error of several attempts; an earlier one may have been executed."""
    if in_doubt and error.outcome is Outcome.DID_NOT_HAPPEN:
        error.outcome = Outcome.UNKNOWN
    return error
