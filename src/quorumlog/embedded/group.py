"""A group of a node inside a program: appends, reads and leadership, without a socket."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, suppress
from itertools import compress
from typing import Any, Literal

from quorumlog.client.arguments import (
    CHANNEL,
    INDEX,
    INDEX_OR_NONE,
    ISOLATION,
    LABEL,
    LEVEL,
    flag,
    optional,
    seconds,
    start,
    takes,
)
from quorumlog.client.buffers import as_bodies, as_bytes, batch_sizes
from quorumlog.client.reader import BlockReader
from quorumlog.client.results import (
    Appended,
    AppendedBatch,
    Executed,
    FetchedBlock,
    Isolation,
    Level,
    Queried,
    positions_of,
)
from quorumlog.embedded.calls import Calls
from quorumlog.model.block import (
    Buffer,
    data_mask,
    decode_entries,
    encode_block,
    parse_block,
)
from quorumlog.model.codes import ResponseCode, Role, WriteLevel
from quorumlog.model.config import open_to_clients
from quorumlog.model.entry import Entry
from quorumlog.model.errors import NoLeaderError, QuorumlogError, UnsupportedError, error_for
from quorumlog.model.limits import Limits
from quorumlog.model.messages.client import (
    AppendResponse,
    FetchRequest,
    FetchResponse,
    StatusResponse,
)
from quorumlog.model.messages.machine import QueryRequest
from quorumlog.node.replica.position_reads import read_at
from quorumlog.node.replica.replica import Replica
from quorumlog.node.replica.status import status_of
from quorumlog.raft.events import TransferRequested

READ_BYTES = 1024 * 1024
"""Bytes of entries that a reader is given at a time; it has two blocks of them at most."""
BEYOND = 1 << 62
UNKNOWN_TERM = -1


class EmbeddedGroup:
    """One group of a `Node`, as the replica there sees it.

    Appends, commands and linearizable questions need a leader: what this replica cannot do it
    refuses with a `RequestError` (`NotLeaderError` names the leader, if it is known). Nothing is
    sent again; an error's `outcome` says whether the append happened. A call that is cancelled may
    still take place. Everything but the properties must be called in the event loop of the node.

    Attributes:
        name: name of the group.
    """

    def __init__(
        self, name: str, replica: Callable[[], Replica], calls: Calls, limits: Limits
    ) -> None:
        self.name = name
        # not part of the public interface
        self._find_replica = replica
        self._calls = calls
        self._limits = limits

    def _replica(self) -> Replica:
        self._calls.check()
        return self._find_replica()

    # -- its state --------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        """What the replica is at present."""
        return self._find_replica().core.role

    @property
    def term(self) -> int:
        """The present term."""
        return self._find_replica().core.term

    @property
    def leader_id(self) -> str | None:
        """The leader of the term, None if it is not known here."""
        return self._find_replica().core.leader_id

    @property
    def committed_index(self) -> int:
        """Index of the last entry known here to be committed; -1: none."""
        return self._find_replica().core.committed_index

    @property
    def applied_index(self) -> int:
        """Index of the last entry applied by the machine here; of a plain log committed."""
        return self._find_replica().applied_index

    def status(self) -> StatusResponse:
        """Return everything that `quorumlog status` shows of this replica."""
        replica = self._replica()
        return status_of(replica, replica.core.self_id)

    # -- append -----------------------------------------------------------------------------

    @takes(channel=CHANNEL, level=LEVEL)
    def append(
        self, body: Buffer, *, channel: int = 0, level: Level = "replication"
    ) -> Coroutine[Any, Any, Appended]:
        """Append one entry; return where it is, once a majority has it on disk.

        Args:
            body: its bytes, which are copied before the call returns.
            channel: a number that readers can select entries by.
            level: what must be proved before the call returns (see `Level`); here "one_way" waits
                for the entry's place, as "receive" does.

        Raises:
            HookRefusedError: the append hook of this replica raised.
            RequestError: it is not the leader, or too many appends wait.
        """
        return self._append(as_bytes("body", body), channel, level)

    async def _append(self, body: bytes, channel: int, level: Level) -> Appended:
        response, _ = await self._appended([body], channel, level)
        place = response.first_index, response.term, response.positions[0][1]
        return Appended(*place, response.level.word)

    @takes(channel=CHANNEL, level=LEVEL)
    def append_batch(
        self, bodies: Iterable[Buffer], *, channel: int = 0, level: Level = "replication"
    ) -> Coroutine[Any, Any, AppendedBatch]:
        """Append several entries, all or none, with consecutive indexes, on one channel."""
        return self._append_batch(as_bodies("body", bodies, "append"), channel, level)

    async def _append_batch(
        self, bodies: Sequence[bytes], channel: int, level: Level
    ) -> AppendedBatch:
        response, _ = await self._appended(bodies, channel, level)
        positions = positions_of(response, [len(body) for body in bodies])
        place = response.first_index, response.last_index, response.term, positions
        return AppendedBatch(*place, response.level.word)

    async def _appended(
        self, bodies: Sequence[bytes], channel: int = 0, level: Level = "replication"
    ) -> tuple[AppendResponse, Sequence[bytes]]:
        replica, limits = self._replica(), self._limits
        open_to_clients(self.name)
        batch_sizes(bodies, limits)
        data = memoryview(bytearray(encode_block(bodies, channel=channel)))
        block = parse_block(data, count=len(bodies), entry_bytes_max=limits.entry_bytes_max)
        answered: asyncio.Future[tuple[AppendResponse, Sequence[bytes]]] = self._calls.new()

        def answer(response: AppendResponse, results: Sequence[bytes]) -> None:
            if not answered.done():
                answered.set_result((response, results))

        replica.propose(block, answer, level=WriteLevel[level.upper()])
        response, results = await answered
        if response.code != ResponseCode.SUCCESS:
            raise error_for(response.code, response.text, response.leader_id)
        return response, results

    # -- state machine ----------------------------------------------------------------------

    def execute(self, command: Buffer) -> Coroutine[Any, Any, Executed]:
        """Append a command; return the machine's result once it is applied here.

        Raises:
            UnsupportedError: the group has no state machine.
            RequestError: as for `append`.
        """
        return self._execute(as_bytes("command", command))

    async def _execute(self, command: bytes) -> Executed:
        if self._replica().applier.state.machine is None:
            raise UnsupportedError(f"group {self.name} has no state machine")
        response, results = await self._appended([command])
        return Executed(response.first_index, response.term, results[0])

    @takes(linearizable=flag)
    def query(self, question: Buffer, *, linearizable: bool = True) -> Coroutine[Any, Any, Queried]:
        """Ask the machine of this replica, without changing it.

        A linearizable answer sees everything acknowledged before the call; a follower asks the
        leader up to where that is. Otherwise it sees what is applied here.

        Raises:
            RequestError: there is no machine, it failed, or no leader confirmed the question.
        """
        return self._query(as_bytes("question", question), linearizable)

    async def _query(self, question: bytes, linearizable: bool) -> Queried:
        replica = self._replica()
        open_to_clients(self.name)
        answered: asyncio.Future[tuple[ResponseCode, str, int, bytes]] = self._calls.new()

        def answer(code: ResponseCode, text: str, applied_index: int, found: bytes) -> None:
            if not answered.done():
                answered.set_result((code, text, applied_index, found))

        request = QueryRequest(group=self.name, linearizable=linearizable)
        replica.query(request, question, answer, self)
        code, text, applied_index, found = await answered
        if code is not ResponseCode.SUCCESS:
            raise error_for(code, text, replica.core.leader_id)
        return Queried(applied_index, found)

    # -- read -------------------------------------------------------------------------------

    @takes(index=INDEX, linearizable=flag)
    async def get(self, index: int, *, linearizable: bool = False) -> Entry:
        """Return one committed entry of this replica's log.

        Raises:
            IndexOutOfRangeError: it is beyond what is known here to be committed.
            IndexRemovedError: it is below the first entry that is kept.
            RequestError: it is damaged, or (`linearizable`) no leader confirmed the read.
        """
        fetched = await self._fetch(index, index, linearizable=linearizable, bytes_max=1)
        return next(decode_entries(fetched.block(self._limits.entry_bytes_max)))

    @takes(linearizable=flag, isolation=ISOLATION)
    async def bounds(
        self, *, linearizable: bool = False, isolation: Isolation = "read_committed"
    ) -> tuple[int, int]:
        """Return the first index that is kept here and the last one that can be read.

        With `linearizable` that covers every entry that was acknowledged before the call: a leader
        that has just been elected waits here until it knows all that is committed.
        """
        fetched = await self._fetch(BEYOND, linearizable=linearizable, isolation=isolation)
        return fetched.begin_index, fetched.committed_index

    @takes(
        start=start,
        end=optional(INDEX_OR_NONE),
        follow=flag,
        include_all=flag,
        isolation=ISOLATION,
        channel=optional(CHANNEL),
    )
    async def read(
        self,
        start: int | Literal["earliest", "latest"] = "earliest",
        *,
        end: int | None = None,
        follow: bool = True,
        include_all: bool = False,
        isolation: Isolation = "read_committed",
        channel: int | None = None,
    ) -> AsyncGenerator[Entry, None]:
        """Yield committed entries in order from `start` on; with `follow`, wait for new ones.

        Every entry comes once and in order, whoever leads: what is committed does not change. The
        log is read as fast as entries are taken, at most two blocks of 1 MiB ahead.

        Args:
            start: an index, "earliest" (the first one kept) or "latest" (what is committed after
                the iteration has started).
            end: the last index to yield; None: there is no end.
            follow: whether to wait for new entries at the end of the log.
            include_all: whether to yield NOOPs and entries of the system channel too, and entries
                of transactions that were not committed.
            isolation: which entries of transactions are seen (see `Isolation`).
            channel: only users' entries on this channel; None: all.

        Raises:
            IndexRemovedError: the next entry is not kept any more.
            RequestError: an entry is damaged, or the node has ended.
        """
        reader = object()  # whoever is forgotten when the iteration ends

        async def fetch(begin: int, last: int, wait_ms: int) -> FetchedBlock:
            return await self._fetch(
                begin, last, wait_ms=wait_ms, isolation=isolation, channel=channel, reader=reader
            )

        index = start if isinstance(start, int) else await self._start(start, isolation)
        blocks = BlockReader(fetch, index, end, follow=follow).blocks()
        try:
            async with aclosing(blocks):
                async for fetched in blocks:
                    is_all = include_all and channel is None
                    for entry in self._entries(fetched, is_all=is_all):
                        yield entry
        finally:
            with suppress(QuorumlogError):  # the group may have been deleted
                self._find_replica().fetches.forget(reader)

    async def _start(self, start: str, isolation: Isolation) -> int:
        begin, committed = await self.bounds(isolation=isolation)
        return begin if start == "earliest" else committed + 1

    def _entries(self, fetched: FetchedBlock, *, is_all: bool) -> Iterable[Entry]:
        block = fetched.block(self._limits.entry_bytes_max)
        entries = decode_entries(block)
        if is_all:
            return (entry for entry in entries if not fetched.is_rejected(entry.index))
        return compress(entries, data_mask(block, fetched.rejected).tolist())

    async def _fetch(  # noqa: PLR0913  (one argument an option of the request)
        self,
        begin: int,
        end: int = -1,
        *,
        wait_ms: int = 0,
        linearizable: bool = False,
        isolation: Isolation = "read_uncommitted",
        channel: int | None = None,
        bytes_max: int = READ_BYTES,
        reader: object = None,
    ) -> FetchedBlock:
        replica = self._replica()
        answered: asyncio.Future[tuple[FetchResponse, list[Buffer]]] = self._calls.new()

        def answer(response: FetchResponse, attachments: list[Buffer]) -> None:
            if not answered.done():
                answered.set_result((response, attachments))

        request = FetchRequest(
            group=self.name,
            begin_index=begin,
            end_index=end,
            bytes_max=bytes_max,
            wait_ms=wait_ms,
            leader_only=False,
            linearizable=linearizable,
            read_committed=isolation == "read_committed",
            channel=-1 if channel is None else channel,
        )
        replica.fetch(request, answer, reader or self)
        found, attachments = await answered
        if found.code != ResponseCode.SUCCESS:
            raise error_for(found.code, found.text, found.leader_id)
        return FetchedBlock(
            found.first_index,
            found.count,
            memoryview(b"".join(attachments)),
            memoryview(b""),
            found.begin_index,
            found.committed_index,
            found.rejected,
            looked_until=found.looked_until,
        )

    @takes(position=INDEX)
    async def get_at(self, position: int) -> Entry:
        """Return the committed entry that starts at a physical position of this replica's files.

        That is the `pos` of an entry, which `append` returns and an append hook is told. All
        replicas place entries alike, unless one had to start its log again after entries that the
        others have removed: its positions differ from then on, and are refused.

        Raises:
            UnexpectedArgumentError: no entry starts there, or its leader placed it elsewhere.
            IndexOutOfRangeError: what starts there, if anything, is not known to be committed.
            IndexRemovedError: what was there is not kept any more.
            RequestError: it is damaged.
        """
        replica = self._replica()
        answered: asyncio.Future[Entry] = self._calls.new()

        def done(entry: Entry) -> None:
            if not answered.done():
                answered.set_result(entry)

        def failed(code: ResponseCode, text: str) -> None:
            if not answered.done():
                answered.set_exception(error_for(code, text))

        read_at(replica.context, position, done, failed, self)
        return await answered

    # -- leadership -------------------------------------------------------------------------

    @takes(timeout_s=seconds)
    async def wait_leader(self, timeout_s: float = 30.0) -> str:
        """Wait until the leader is known here, and takes appends if it is this replica.

        Args:
            timeout_s: how long to wait, in seconds.

        Returns:
            The id of the node that leads.

        Raises:
            NoLeaderError: none is known in time.
        """
        replica = self._replica()
        known: asyncio.Future[None] = self._calls.new()

        def answer() -> None:
            if not known.done():
                known.set_result(None)

        wait_ms = round(timeout_s * 1_000)
        replica.pending_requests.leaders.wait(UNKNOWN_TERM, wait_ms, answer, self)
        await known
        leader_id = replica.core.leader_id
        if leader_id is None:
            raise NoLeaderError(f"group {self.name} has no leader after {timeout_s:g} s")
        if leader_id == replica.core.self_id:
            await self.bounds(linearizable=True)
        return leader_id

    @takes(node_id=LABEL)
    async def transfer(self, node_id: str = "") -> str:
        """Transfer leadership from this replica; return who leads now.

        Args:
            node_id: a voter; "": the live one that has most of the log.

        Raises:
            RequestError: this replica does not lead, or goes on leading; its code says why.
                `LeaderNotReadyError`: it was just elected; try again in a moment.
        """
        replica = self._replica()
        answered: asyncio.Future[tuple[ResponseCode, str]] = self._calls.new()

        def done(code: ResponseCode, text: str, index: int) -> None:
            if not answered.done():
                answered.set_result((code, text))

        replica.pending_requests.ask(lambda number: TransferRequested(number, node_id), done)
        code, text = await answered
        if code is not ResponseCode.SUCCESS:
            raise error_for(code, text, replica.core.leader_id)
        return replica.core.leader_id or ""
