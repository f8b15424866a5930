"""Appends on their way: those waiting to be staged together, and those waiting for a majority."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from quorumlog.model.block import Block
from quorumlog.model.codes import ResponseCode
from quorumlog.model.limits import Limits
from quorumlog.model.messages.client import AppendResponse
from quorumlog.sessions.entries import SessionEntry, SystemEntry, is_transactional

Answer: TypeAlias = Callable[[AppendResponse, Sequence[bytes]], None]
"""Is told where a block went, and what the state machine made of its entries."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """One client's block, and who wants to hear of it."""

    block: Block
    answer: Answer
    accepted_us: int
    entry: SystemEntry | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Proposals that are staged as one block."""

    block: Block
    members: list[Proposal]


@dataclass(frozen=True, slots=True)
class PendingAppend:
    """A staged proposal: answered once `last_index` is committed, or when leadership ends."""

    first_index: int
    last_index: int
    term: int
    spans: list[tuple[int, int]]
    proposal: Proposal


class ProposalQueue:
    """Proposals of one loop turn; small ones are joined so that they share one write and push."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: list[Proposal] = []
        self._producers: set[int] = set()
        self._is_transactional = False
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, proposal: Proposal) -> bool:
        """Queue a proposal; return whether it is the first since the last `take`."""
        self._waiting.append(proposal)
        entry = proposal.entry
        if entry is not None:
            self._is_transactional |= is_transactional(entry)
            if isinstance(entry, SessionEntry):
                self._producers.add(entry.producer_id)
        self.size_bytes += len(proposal.block.data)
        return len(self._waiting) == 1

    def holds(self, entry: SystemEntry) -> bool:
        """Whether something is queued on which it depends what becomes of this entry's block."""
        if is_transactional(entry):
            return self._is_transactional
        return isinstance(entry, SessionEntry) and entry.producer_id in self._producers

    def take(self) -> list[Batch]:
        """Return everything queued, in order, as batches of at most push_bytes_max bytes."""
        batches: list[Batch] = []
        members: list[Proposal] = []
        size = entries = 0
        for proposal in self._waiting:
            length = len(proposal.block.data)
            too_long = size + length > self._limits.push_bytes_max
            too_many = entries + proposal.block.count > self._limits.block_entries_max
            if members and (too_long or too_many):
                batches.append(_joined(members))
                members, size, entries = [], 0, 0
            members.append(proposal)
            size += length
            entries += proposal.block.count
        if members:
            batches.append(_joined(members))
        self._waiting = []
        self._producers = set()
        self._is_transactional = False
        self.size_bytes = 0
        return batches


def _joined(members: list[Proposal]) -> Batch:
    """Make one block of the members' blocks; a single one is used as it is."""
    if len(members) == 1:
        return Batch(members[0].block, members)
    data = memoryview(bytearray().join([member.block.data for member in members]))
    sizes = np.concatenate([member.block.sizes for member in members])
    return Batch(Block(data, np.cumsum(sizes) - sizes, sizes), members)


class PendingAppends:
    """Staged appends in index order. All share one time-out, so they also expire in order."""

    def __init__(self, wait_ack_ms: int) -> None:
        self._wait_ack_ms = wait_ack_ms
        self._pending: deque[PendingAppend] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def first_index(self) -> int | None:
        """Index of the first entry that somebody waits for."""
        return self._pending[0].first_index if self._pending else None

    def add(self, batch: Batch, first_index: int, term: int, spans: list[tuple[int, int]]) -> None:
        """Register every member of a staged batch; `spans` are those of the whole batch."""
        ordinal = 0
        for proposal in batch.members:
            count = proposal.block.count
            first, last = first_index + ordinal, first_index + ordinal + count - 1
            own_spans = _spans_within(spans, batch.block, first_index, first, last)
            self._pending.append(PendingAppend(first, last, term, own_spans, proposal))
            self.size_bytes += len(proposal.block.data)
            ordinal += count

    def pop_committed(self, index: int) -> list[PendingAppend]:
        """Remove and return those that lie at or below a committed index."""
        return self._pop_while(lambda pending: pending.last_index <= index)

    def pop_expired(self, now_ms: int) -> list[PendingAppend]:
        """Remove and return those whose majority did not answer in time."""
        return self._pop_while(lambda pending: self._deadline_ms(pending) <= now_ms)

    def pop_beyond(self, index: int) -> list[PendingAppend]:
        """Remove and return those that do not lie at or below an index."""
        kept = self._pop_while(lambda pending: pending.last_index <= index)
        popped = self._pop_while(lambda pending: True)
        self._pending.extend(kept)
        self.size_bytes += sum(len(pending.proposal.block.data) for pending in kept)
        return popped

    def _pop_while(self, condition: Callable[[PendingAppend], bool]) -> list[PendingAppend]:
        popped = []
        while self._pending and condition(self._pending[0]):
            pending = self._pending.popleft()
            self.size_bytes -= len(pending.proposal.block.data)
            popped.append(pending)
        return popped

    def next_deadline_ms(self) -> int | None:
        """When the oldest expires."""
        return self._deadline_ms(self._pending[0]) if self._pending else None

    def _deadline_ms(self, pending: PendingAppend) -> int:
        return pending.proposal.accepted_us // 1000 + self._wait_ack_ms


def _spans_within(
    spans: list[tuple[int, int]], block: Block, block_first: int, first: int, last: int
) -> list[tuple[int, int]]:
    """Return the part of a block's spans that covers entries first … last."""
    if first == block_first and len(spans) == 1:
        return spans
    found: list[tuple[int, int]] = []
    for number, (span_first, position) in enumerate(spans):
        span_last = spans[number + 1][0] - 1 if number + 1 < len(spans) else last
        start = max(first, span_first)
        if start <= min(last, span_last):
            shift = block.offsets[start - block_first] - block.offsets[span_first - block_first]
            found.append((start, position + int(shift)))
    return found


def refusal(code: ResponseCode, text: str, leader_id: str | None, term: int) -> AppendResponse:
    """Return the answer to an append that was not stored, or whose fate is unknown."""
    return AppendResponse(code=code, text=text, leader_id=leader_id, term=term)
