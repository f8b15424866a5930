"""The asynchronous client: append, get, read, status."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from itertools import compress
from types import TracebackType
from typing import Any, Literal, TypedDict

from isal.isal_zlib import crc32

from quorumlog.client import options
from quorumlog.client.admin import GroupAdmin
from quorumlog.client.append_batcher import AppendBatcher
from quorumlog.client.arguments import (
    BYTES,
    CHANNEL,
    INDEX,
    INDEX_OR_NONE,
    ISOLATION,
    LABEL,
    LEVEL,
    MILLISECONDS,
    address,
    flag,
    optional,
    start,
    takes,
)
from quorumlog.client.buffers import as_bodies, as_bytes, batch_sizes
from quorumlog.client.connection import ServerConnection
from quorumlog.client.contexts import Servers, to_dial
from quorumlog.client.leader_watch import watch_leader
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
    LeaderChange,
    Level,
    Queried,
    positions_of,
)
from quorumlog.client.security import Security
from quorumlog.client.security_admin import SecurityAdmin
from quorumlog.model.block import Buffer, data_mask, decode_entries, encode_block
from quorumlog.model.codes import WriteLevel
from quorumlog.model.config import check_name
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
"""A server that says nothing is given this share (1/3) of a fetch's time, then another is asked."""


_reads = takes(
    start=start,
    end=optional(INDEX_OR_NONE),
    follow=flag,
    include_all=flag,
    leader_only=flag,
    linearizable=flag,
    isolation=ISOLATION,
    channel=optional(CHANNEL),
)


class ClientOptions(TypedDict, total=False):
    """The options of a `Client`; see there."""

    timeout_ms: float
    cluster: str
    retry_unknown: bool
    limits: Limits
    security: Security | None


class Client:
    """A client of one group.

    Bodies, commands and questions are `bytes` or any other buffer of plain data (`bytearray`,
    `memoryview`, an array), which is copied before a call returns. A call itself raises
    `UnexpectedArgumentError` for an argument of a wrong type or value. In a forked child every use
    of a client raises `RequestError`. Use it as `async with Client(...) as log`.

    Args:
        servers: some addresses of the cluster, as `host:port` joined by commas or as a sequence;
            the client learns the others. Or a `Context`, which has these and the security.
        group: name of the group.
        timeout_ms: bounds every call without a time of its own, retries included, in milliseconds.
        cluster: name of the cluster; a server of another cluster is refused. "": any.
        retry_unknown: whether appends of unknown outcome are sent again, and may be appended twice.
        limits: the limits of the cluster, if they are not the default ones.
        security: how to know the cluster, and who the user is; None: it is spoken to without TLS.

    Attributes:
        group, limits, retry_unknown: what was given.
        admin: administration of the group (`GroupAdmin`).
        machine: its state machine (`MachineCalls`).
        security: users, ACLs and quotas of the cluster (`SecurityAdmin`).

    Raises:
        ConfigError: an option has a wrong type or value.
        RequestError: this process has no free file descriptor.
    """

    def __init__(
        self,
        servers: Servers,
        group: str = "default",
        *,
        timeout_ms: float = 10_000,
        cluster: str = "",
        retry_unknown: bool = False,
        limits: Limits = DEFAULT_LIMITS,
        security: Security | None = None,
    ) -> None:
        open_standard_streams()
        addresses, checked = to_dial(servers, security)
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
            security=checked,
        )
        self.admin = GroupAdmin(self._requester)
        self.machine = MachineCalls(self._requester)
        self.security = SecurityAdmin(self._requester)
        self._batcher = AppendBatcher(limits, partial(_append_block, self))

    @property
    def timeout_ms(self) -> float:
        """How many milliseconds a call may take if it has no time-out of its own."""
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
        """End all connections permanently.

        Calls that wait for an answer fail with outcome unknown. Later calls, and calls that would
        have to ask again, raise a `RequestError` that is not retriable.
        """
        await self._batcher.close()
        await self._requester.metadata.close()

    # -- append -----------------------------------------------------------------------------

    @takes(channel=CHANNEL, level=LEVEL)
    def append(
        self,
        body: Buffer,
        *,
        channel: int = 0,
        timeout_ms: float | None = None,
        level: Level = "replication",
    ) -> Coroutine[Any, Any, Appended]:
        """Append one entry; return where it is, once a majority has it on disk.

        Entries that several tasks append at the same time travel together.

        Args:
            body: at most 4 MiB less 48 bytes with default limits.
            channel: a number that readers can select entries by, below 4294967295.
            timeout_ms: how long the call may take, in milliseconds; None: the client's.
            level: what must be proved before the call returns (see `Level`).

        Raises:
            RequestError: its `outcome` says whether the append did not happen or is unknown.
        """
        given = as_bytes("body", body), channel, timeout_ms, level
        return _append_joined(self._requester, self._batcher, *given)

    @takes(channel=CHANNEL, level=LEVEL)
    def append_batch(
        self,
        bodies: Iterable[Buffer],
        *,
        channel: int = 0,
        timeout_ms: float | None = None,
        level: Level = "replication",
    ) -> Coroutine[Any, Any, AppendedBatch]:
        """Append several entries, all or none, with consecutive indexes, on one channel.

        Raises:
            EmptyBatchError: there are no bodies.
            UnexpectedArgumentError: they are too many or too large to be appended together.
            RequestError: as for `append`.
        """
        given = as_bodies("body", bodies, "append")
        append = _append_block_one_way if level == "one_way" else _append_block
        return append(self, given, channel, timeout_ms, level)

    # -- state machine ------------------------------------------------------------------------

    def execute(
        self, command: Buffer, *, timeout_ms: float | None = None
    ) -> Coroutine[Any, Any, Executed]:
        """Append a command; return the result of the state machine (`MachineCalls.execute`)."""
        return self.machine.execute(command, timeout_ms=timeout_ms)

    def query(
        self, question: Buffer, *, linearizable: bool = True, timeout_ms: float | None = None
    ) -> Coroutine[Any, Any, Queried]:
        """Ask the state machine a question, which changes nothing (`MachineCalls.query`)."""
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
        """Return one committed entry, also one of a transaction that was not committed.

        Args:
            index: index of the entry.
            leader_only: False if any replica may answer, which may not know the newest entries.
            linearizable: whether everything acknowledged before the call must be seen.
            timeout_ms: how long the call may take, in milliseconds; None: the client's.

        Raises:
            IndexOutOfRangeError: the index is beyond the last committed entry.
            IndexRemovedError: the index is below the first entry that is kept.
            RequestError: no server answered in time.
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
        return _decoded(self.group, self.limits, fetched, include_all=True)[0]

    @_reads
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
    ) -> AsyncGenerator[Entry, None]:
        """Yield committed entries in order from `start` on; with `follow`, wait for new ones.

        Reading goes on through changes of leader, restarts, and outages of up to the client's
        `timeout_ms`: no entry is missing or comes twice.

        Args:
            start: an index, "earliest" (the first one kept) or "latest" (what is committed after
                the call).
            end: the last index to yield; None: there is no end.
            follow: whether to wait for new entries at the end of the log.
            include_all: whether to yield NOOPs and entries of the system channel too, and entries
                of transactions that were not committed.
            leader_only: False if any replica may answer, which may not know the newest entries.
            linearizable: whether everything acknowledged before the call must be seen, whoever
                answers.
            isolation: which entries of transactions are seen (see `Isolation`).
            channel: only users' entries on this channel, which the server selects; None: all.

        Raises:
            IndexRemovedError: the next entry is not kept any more.
            RequestError: an outage was longer than `timeout_ms`. A reader that waits may notice it
                up to 10 s later, a busy one when it goes on, unless it is over by then.
        """
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

    @_reads
    async def read_blocks(  # noqa: PLR0913  (one argument an option)
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
                channel=channel,
            )

        index = await _start_index(self, start, leader_only, linearizable, isolation)
        blocks = BlockReader(fetch, index, end, follow=follow).blocks()
        async with aclosing(blocks):
            async for fetched in blocks:
                if entries := seen_entries(self.group, self.limits, fetched, include_all, channel):
                    yield entries

    @takes(leader_only=flag, linearizable=flag, isolation=ISOLATION)
    async def bounds(
        self,
        *,
        leader_only: bool = True,
        linearizable: bool = False,
        isolation: Isolation = "read_committed",
    ) -> tuple[int, int]:
        """Return the first index that is kept and the last index that can be read.

        The last one is the committed index, and with `isolation="read_committed"` at most the last
        stable one (see `Isolation`). With `linearizable` it covers every entry that was
        acknowledged before the call.
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
        channel=optional(CHANNEL),
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
        channel: int | None = None,
        timeout_ms: float | None = None,
    ) -> FetchedBlock:
        """Return one block of committed entries in their on-disk form.

        Args:
            begin_index: index of the first entry.
            end_index: index of the last one; -1: as far as entries are committed.
            bytes_max: at most this many bytes of entries, also if only their headers are sent; one
                entry is always returned.
            wait_ms: how long the server waits for the first entry to be committed; after that the
                block is empty.
            index_records: whether index records (32 bytes an entry) are sent along.
            leader_only: False if any replica may answer.
            linearizable: whether everything acknowledged before the call must be seen.
            isolation: which entries of transactions are seen (see `Isolation`).
            headers_only: whether to return headers without bodies.
            machine: identity of this machine: a replica on the same one may answer with the places
                of its files instead of data (see `FetchRequest`).
            channel: only the entries on this channel, up to where the answer says that it looked
                (`looked_until`); None: all. A server of an earlier version sends all.
            timeout_ms: how long the call may take, in milliseconds, besides `wait_ms`.

        Raises:
            IndexOutOfRangeError: the only entry that is wanted is not committed.
            IndexRemovedError: `begin_index` is below the first entry that is kept.
            RequestError: no server answered in time.
        """
        loop, requester = asyncio.get_running_loop(), self._requester
        limit_ms = requester.limit_ms(timeout_ms)
        started = loop.time()

        async def ask(connection: ServerConnection) -> FetchedBlock:
            left_ms = max(0, wait_ms - int((loop.time() - started) * 1000))
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
                channel=-1 if channel is None else channel,
            )
            return await _fetch_once(
                requester, connection, request, left_ms + limit_ms / READ_ATTEMPTS
            )

        locate = requester.metadata.leader if leader_only else requester.any_server
        return await requester.retrying(locate, ask, limit_ms + wait_ms, repeat_unknown=True)

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
            group: the group to describe; "": all that the server hosts.

        Raises:
            RequestError: no server answered within `timeout_ms`, or the one at `address` did not.
        """
        return await self._requester.describe(address, group)

    def watch_leader(self) -> AsyncGenerator[LeaderChange, None]:
        """Yield the present leader, and each later one as soon as a server knows of it.

        While nobody leads nothing is yielded. Raises `RequestError` after an outage of `timeout_ms`
        (see `read`).
        """
        return watch_leader(self._requester)

    def servers(self) -> list[str]:
        """Return the addresses of all servers known: those given, and the members learnt since."""
        return self._requester.metadata.addresses()


async def _append_joined(
    requester: Requester,
    batcher: AppendBatcher,
    body: bytes,
    channel: int,
    timeout_ms: float | None,
    level: Level,
) -> Appended:
    """Append one body together with those of other tasks."""
    requester.metadata.check_process()
    requester.limit_ms(timeout_ms)
    if level != "one_way":
        return await batcher.append(body, channel, timeout_ms, level)
    await batcher.begin(partial(batcher.append, body, channel, timeout_ms, "receive"))
    return Appended(-1, -1, -1, level)


async def _append_block(
    client: Client,
    bodies: Sequence[bytes],
    channel: int,
    timeout_ms: float | None,
    level: Level,
) -> AppendedBatch:
    """Append bodies as one block."""
    requester = client._requester
    requester.metadata.check_process()
    sizes = batch_sizes(bodies, requester.limits)
    request = AppendRequest(
        group=requester.group, count=len(bodies), level=WriteLevel[level.upper()]
    )
    response = await requester.ask_leader(
        request,
        AppendResponse,
        [encode_block(bodies, channel=channel)],
        timeout_ms=timeout_ms,
        repeat_unknown=client.retry_unknown,
    )
    positions = positions_of(response, sizes)
    place = (response.first_index, response.last_index, response.term, positions)
    return AppendedBatch(*place, response.level.word)


async def _append_block_one_way(
    client: Client,
    bodies: Sequence[bytes],
    channel: int,
    timeout_ms: float | None,
    level: Level,
) -> AppendedBatch:
    """Start to append bodies as one block; what cannot be sent raises all the same."""
    batch_sizes(bodies, client.limits)
    append = partial(_append_block, client, bodies, channel, timeout_ms, "receive")
    await client._batcher.begin(append)
    return AppendedBatch(-1, -1, -1, [-1] * len(bodies), level)


async def _flat(blocks: AsyncGenerator[list[Entry], None]) -> AsyncGenerator[Entry, None]:
    async with aclosing(blocks):
        async for entries in blocks:
            for entry in entries:
                yield entry


async def _start_index(
    client: Client,
    start: int | Literal["earliest", "latest"],
    leader_only: bool,
    linearizable: bool,
    isolation: Isolation,
) -> int:
    if isinstance(start, int):
        return start
    begin, committed = await client.bounds(
        leader_only=leader_only, linearizable=linearizable, isolation=isolation
    )
    return begin if start == "earliest" else committed + 1


async def _fetch_once(
    requester: Requester, connection: ServerConnection, request: FetchRequest, limit_ms: float
) -> FetchedBlock:
    answer = await requester.answer_within(connection, request, (), limit_ms)
    response = requester.expect(connection, answer, FetchResponse)
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
        looked_until=response.looked_until,
    )


def seen_entries(
    group: str,
    limits: Limits,
    fetched: FetchedBlock,
    include_all: bool = False,
    channel: int | None = None,
) -> list[Entry]:
    """Return the entries of a block that a reader sees."""
    if channel is None:
        return _decoded(group, limits, fetched, include_all=include_all)
    entries = _decoded(group, limits, fetched, include_all=False)
    return [one for one in entries if one.channel == channel]  # an earlier server sends all


def _decoded(
    group: str, limits: Limits, fetched: FetchedBlock, *, include_all: bool
) -> list[Entry]:
    """Return the entries of a block that are to be seen, checked against their body CRCs."""
    block = fetched.block(limits.entry_bytes_max)
    entries = list(decode_entries(block))
    for entry in entries:
        crc, index = entry.body_crc, entry.index
        if crc32(entry.body) != crc and (crc or entry.chain_crc):  # DLedger's have neither
            raise CorruptionError(
                f"entry {index} of {group} does not fit its body CRC", "", 0, index
            )
    if include_all:
        return [entry for entry in entries if not fetched.is_rejected(entry.index)]
    mask = data_mask(block, fetched.rejected)
    return entries if mask.all() else list(compress(entries, mask.tolist()))
