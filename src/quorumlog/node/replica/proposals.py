"""Appends under way: those that wait to be staged together, and those that wait for a majority."""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from typing import TypeAlias

import msgspec
import numpy as np

from quorumlog.model.block import Block
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode
from quorumlog.model.limits import Limits
from quorumlog.model.messages.client import AppendResponse
from quorumlog.model.turn_batcher import Defer, TurnBatcher
from quorumlog.raft.events import Proposed
from quorumlog.sessions.entries import SessionEntry, SystemEntry, is_transactional
from quorumlog.topics.entries import PartitionClosed
from quorumlog.topics.produced_batch import ProducedBatch

Answer: TypeAlias = Callable[[AppendResponse, Sequence[bytes]], None]
"""Called with where a block was appended, and the state machine's results of its entries."""
Propose: TypeAlias = Callable[[Block, Answer, SystemEntry], None]
"""Appends a block that starts with an entry of the system channel; see `Appends.propose`."""
Checked: TypeAlias = SystemEntry | ProducedBatch
"""What decides whether a block may be appended: the entry it starts with, or its record batch."""


class Proposal(msgspec.Struct, frozen=True):
    """One client's block, and the callback for its answer."""

    block: Block
    answer: Answer
    accepted_us: int
    entry: Checked | None = None


class Batch(msgspec.Struct, frozen=True):
    """Proposals that are staged as one block."""

    block: Block
    members: list[Proposal]


class PendingAppend(msgspec.Struct, frozen=True):
    """A staged proposal: answered once `last_index` is committed, or when leadership ends."""

    first_index: int
    last_index: int
    term: int
    positions: list[tuple[int, int]]
    proposal: Proposal


Refuse: TypeAlias = Callable[[Answer, ResponseCode, str], None]
"""Answers an append that is not proposed, and says why."""
Register: TypeAlias = Callable[[Batch], Proposed]
"""Keeps a batch until the core has decided; returns its proposal."""


class ProposalQueue:
    """Proposals of one loop turn; small ones are joined so that they share one write and push.

    `propose` is called with each batch of at most push_bytes_max bytes, in order. `queued` are
    those of this turn.
    """

    def __init__(self, limits: Limits, defer: Defer, propose: Callable[[Batch], None]) -> None:
        self._propose = propose
        self.queued: TurnBatcher[None, Proposal] = TurnBatcher(
            defer,
            self._deliver,
            bytes_max=limits.push_bytes_max,
            entries_max=limits.block_entries_max,
        )
        self._producers: set[Hashable] = set()
        self._is_transactional = False
        self._closes = False
        """Whether a queued block closes partitions."""

    def add(self, proposal: Proposal) -> None:
        """Queue a proposal until the present turn of the loop is over."""
        entry = proposal.entry
        if isinstance(entry, ProducedBatch):
            self._producers.add(entry.affects)
        elif entry is not None:
            self._is_transactional |= is_transactional(entry)
            self._closes |= isinstance(entry, PartitionClosed)
            if isinstance(entry, SessionEntry):
                self._producers.add(entry.producer_id)
        self.queued.add(None, proposal, len(proposal.block.data), len(proposal.block.sizes))

    def holds(self, entry: Checked) -> bool:
        """Whether it depends on a queued proposal if the block of this entry may be appended."""
        if isinstance(entry, ProducedBatch):
            producer = entry.producer
            return self._closes or (producer is not None and self.holds_producer(producer))
        if is_transactional(entry):
            return self._is_transactional
        return isinstance(entry, SessionEntry) and entry.producer_id in self._producers

    def holds_producer(self, producer: tuple[int, int]) -> bool:
        """Whether batches of a producer (channel and id) depend on a queued batch or marker."""
        return producer in self._producers

    def flush(self) -> None:
        """Propose what is queued now, before the turn is over."""
        self.queued.flush()

    def _deliver(self, batches: list[tuple[None, list[Proposal]]]) -> None:
        self._producers = set()
        self._is_transactional = self._closes = False
        for batch in [joined(members) for _, members in batches]:
            self._propose(batch)


def joined(members: list[Proposal]) -> Batch:
    """Make one block of the members' blocks; a single one is used as it is."""
    if len(members) == 1:
        return Batch(members[0].block, members)
    data = memoryview(bytearray().join([member.block.data for member in members]))
    sizes = np.concatenate([member.block.sizes for member in members])
    return Batch(Block(data, np.cumsum(sizes) - sizes, sizes), members)


def parts_of(batch: Batch) -> deque[Proposal]:
    """Return the appends of a batch; the block of each is its part of the batch's block."""
    parts = deque[Proposal]()
    start = 0
    for member in batch.members:
        stop = start + member.block.count
        block = batch.block.slice(start, stop)
        parts.append(Proposal(block, member.answer, member.accepted_us, member.entry))
        start = stop
    return parts


class PendingAppends:
    """Staged appends, `waiting` in index order.

    All share one time-out, so they also expire in order.
    """

    def __init__(self, wait_ack_ms: int) -> None:
        self._wait_ack_ms = wait_ack_ms
        self.waiting: deque[PendingAppend] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.waiting)

    def set_time_out(self, wait_ack_ms: int) -> None:
        """Let all of them wait for so long."""
        self._wait_ack_ms = wait_ack_ms

    @property
    def first_index(self) -> int | None:
        """Index of the first entry that a client waits for."""
        return self.waiting[0].first_index if self.waiting else None

    def add(
        self, batch: Batch, first_index: int, term: int, positions: list[tuple[int, int]]
    ) -> None:
        """Register every member of a staged batch; `positions` are those of the whole batch."""
        ordinal = 0
        for proposal in batch.members:
            count = len(proposal.block.sizes)
            first, last = first_index + ordinal, first_index + ordinal + count - 1
            own_positions = _positions_within(positions, batch.block, first_index, first, last)
            self.waiting.append(PendingAppend(first, last, term, own_positions, proposal))
            self.size_bytes += len(proposal.block.data)
            ordinal += count

    def newest(self, count: int) -> list[PendingAppend]:
        """Return those that were registered last, in order."""
        return list(islice(reversed(self.waiting), count))[::-1]

    def pop_committed(self, index: int) -> list[PendingAppend]:
        """Remove and return the appends that lie at or below a committed index."""
        pending, popped = self.waiting, []
        while pending and pending[0].last_index <= index:
            popped.append(one := pending.popleft())
            self.size_bytes -= len(one.proposal.block.data)
        return popped

    def pop_expired(self, now_ms: int) -> list[PendingAppend]:
        """Remove and return the appends that no majority acknowledged in time."""
        return self._pop_while(lambda pending: self._deadline_ms(pending) <= now_ms)

    def pop_beyond(self, index: int) -> list[PendingAppend]:
        """Remove and return the appends that lie after an index."""
        kept = self.pop_committed(index)
        popped = self._pop_while(lambda pending: True)
        self.waiting.extend(kept)
        self.size_bytes += sum(len(pending.proposal.block.data) for pending in kept)
        return popped

    def _pop_while(self, condition: Callable[[PendingAppend], bool]) -> list[PendingAppend]:
        popped = []
        while self.waiting and condition(self.waiting[0]):
            pending = self.waiting.popleft()
            self.size_bytes -= len(pending.proposal.block.data)
            popped.append(pending)
        return popped

    def next_deadline_ms(self) -> int:
        """When the oldest append expires."""
        return self._deadline_ms(self.waiting[0]) if self.waiting else NEVER_MS

    def _deadline_ms(self, pending: PendingAppend) -> int:
        return pending.proposal.accepted_us // 1000 + self._wait_ack_ms


def _positions_within(
    positions: list[tuple[int, int]], block: Block, block_first: int, first: int, last: int
) -> list[tuple[int, int]]:
    """Return the part of a block's positions that covers entries first … last."""
    if first == block_first and len(positions) == 1:
        return positions
    found: list[tuple[int, int]] = []
    for number, (run_first, position) in enumerate(positions):
        run_last = positions[number + 1][0] - 1 if number + 1 < len(positions) else last
        start = max(first, run_first)
        if start <= min(last, run_last):
            shift = block.offsets[start - block_first] - block.offsets[run_first - block_first]
            found.append((start, position + int(shift)))
    return found


def refusal(code: ResponseCode, text: str, leader_id: str | None, term: int) -> AppendResponse:
    """Return the answer to an append that did not happen, or whose outcome is unknown."""
    return AppendResponse(code=code, text=text, leader_id=leader_id, term=term)
