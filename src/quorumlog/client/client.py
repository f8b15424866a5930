"""The asynchronous client: append, get, read, status."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from contextlib import aclosing
from itertools import compress
from types import TracebackType
from typing import Any, Literal, TypedDict

from isal.isal_zlib import crc32

from quorumlog.client import options
from quorumlog.client.admin import GroupAdmin
from quorumlog.client.append_batcher import AppendBatcher
from quorumlog.client.arguments import (
    BYTES,
    INDEX,
    INDEX_OR_NONE,
    ISOLATION,
    LABEL,
    MILLISECONDS,
    address,
    flag,
    optional,
    start,
    takes,
)
from quorumlog.client.buffers import as_bodies, as_bytes, batch_sizes
from quorumlog.client.connection import ServerConnection
from quorumlog.client.machine_calls import MachineCalls
from quorumlog.client.process import open_standard_streams
from quorumlog.client.reader import BlockReader
from quorumlog.client.requester import Requester
from quorumlog.client.results import (
    Appended,
    AppendedBatch,
    Executed,
    FetchedBlock,
    Isolation,
    Queried,
    positions_of,
)
from quorumlog.model.block import Buffer, data_mask, decode_entries, encode_block
from quorumlog.model.config import check_name, parse_address
from quorumlog.model.entry import Entry
from quorumlog.model.errors import (
    ConfigError,
    CorruptionError,
    IndexOutOfRangeError,
)
from quorumlog.model.limits import DEFAULT_LIMITS, Limits
from quorumlog.model.messages.client import (
    AppendRequest,
    AppendResponse,
    FetchRequest,
    FetchResponse,
    MetadataResponse,
    StatusResponse,
)

FETCH_BYTES = 1024 * 1024
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
        addresses = options.addresses_of(servers)
        for each in addresses:
            parse_address(each)
        check_name("group", options.text("group", group))
        if not isinstance(limits, Limits):
            raise ConfigError(f"limits is a Limits, not {limits!r}")
        self.group = group
        self.limits = limits
        self.retry_unknown = options.flag("retry_unknown", retry_unknown)
        # the other classes of this package share it; it is no part of the public interface
        self._requester = Requester(
            addresses,
            group,
            timeout_ms=options.milliseconds("timeout_ms", timeout_ms, least=1),
            cluster=options.text("cluster", cluster),
            limits=limits,
        )
        self.admin = GroupAdmin(self._requester)
        self.machine = MachineCalls(self._requester)
        self._batcher = AppendBatcher(limits, self.append_batch)

    @property
    def timeout_ms(self) -> float:
        """How many milliseconds a call may take that is not given a time of its own."""
        return self._requester.timeout_ms

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
        await self._requester.metadata.close()

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
        self._requester.metadata.check_process()
        self._requester.limit_ms(timeout_ms)
        batch_sizes([body], self.limits)
        return await self._batcher.append(body, timeout_ms)

    def append_batch(
        self, bodies: Iterable[Buffer], *, timeout_ms: float | None = None
    ) -> Coroutine[Any, Any, AppendedBatch]:
        """Append several entries, all or none, with consecutive indexes.

        Raises `EmptyBatchError`, `UnexpectedArgumentError` (too large; nothing was sent), or what
        `append` raises.
        """
        return self._append_batch(as_bodies("body", bodies, "append"), timeout_ms)

    async def _append_batch(
        self, bodies: Sequence[bytes], timeout_ms: float | None
    ) -> AppendedBatch:
        self._requester.metadata.check_process()
        sizes = batch_sizes(bodies, self.limits)
        block = encode_block(bodies)
        request = AppendRequest(group=self.group, count=len(bodies))

        response = await self._requester.ask_leader(
            request,
            AppendResponse,
            [block],
            timeout_ms=timeout_ms,
            repeat_unknown=self.retry_unknown,
        )
        return AppendedBatch(
            response.first_index,
            response.last_index,
            response.term,
            positions_of(response, sizes),
        )

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
        limit_ms = self._requester.limit_ms(timeout_ms)
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

        requester = self._requester
        locate = requester.metadata.leader if leader_only else requester.any_server
        return await requester.retrying(locate, ask, limit_ms + wait_ms, repeat_unknown=True)

    async def _fetch_once(
        self, connection: ServerConnection, request: FetchRequest, limit_ms: float
    ) -> FetchedBlock:
        answer = await self._requester.answer_within(connection, request, (), limit_ms)
        response = self._requester.expect(connection, answer, FetchResponse)
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
        """Return what every known server says of its replica (see `GroupAdmin.status`)."""
        self._requester.metadata.check_open()  # else it would say that of every server
        return await self.admin.status()

    @takes(address=optional(address), group=LABEL)
    async def metadata(self, address: str | None = None, group: str = "") -> MetadataResponse:
        """Return what a server says of its groups: members, leader and term of each.

        Args:
            address: the server to ask, once; None: the first one that answers.
            group: the only group to tell of; "": all that the server hosts.

        Raises:
            RequestError: no server answered within `timeout_ms`, or the one at `address` did not.
        """
        requester = self._requester
        if address is not None:
            return await requester.metadata.ask(address, group)

        async def ask(connection: ServerConnection) -> MetadataResponse:
            return await requester.metadata.ask(connection.address, group)

        return await requester.retrying(requester.any_server, ask, None, repeat_unknown=True)

    def servers(self) -> list[str]:
        """Return the addresses of all servers known: those given, and the members learnt since."""
        return self._requester.metadata.addresses()


async def _flat(blocks: AsyncGenerator[list[Entry], None]) -> AsyncGenerator[Entry, None]:
    async with aclosing(blocks):
        async for entries in blocks:
            for entry in entries:
                yield entry
