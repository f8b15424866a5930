"""Producer sessions: what every replica remembers of producers, so that a retry is appended once.

Every replica derives the same table from the session entries of producers' blocks (`entries`), in
the order of the log. The table of transactions is part of it, and so are the time marks.

A session needs no opening and no closing. Its producer makes up a random id, and the first block
that names it creates the session; each block states the sequence of its first entry. A block that
continues the sequence is appended. One that is remembered was sent again because its answer was
lost: it gets the same answer, and nothing is appended. A gap, or a block that was forgotten, is an
error, since it is not known whether it was appended.
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec

from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.time_marks import TimeMarks
from quorumlog.sessions.entries import SessionEntry, SystemEntry, TimeMark, is_transactional
from quorumlog.sessions.transaction_table import TransactionalProducer, TransactionTable

SESSIONS_MAX: Final = 10_000
"""Number of producers that a group remembers; the one idle longest is forgotten first.

The bound is part of the rule: all replicas must forget the same producer at the same entry."""
BLOCKS_REMEMBERED: Final = 16
"""Number of newest blocks of each producer whose answers can be given again."""


class AppendedBlock(msgspec.Struct, frozen=True, array_like=True):
    """A block that a producer appended; its session entry is at `index`."""

    first_sequence: int
    count: int
    crc: int
    index: int

    @property
    def last_index(self) -> int:
        """Index of its last entry."""
        return self.index + self.count


class Session(msgspec.Struct, frozen=True, array_like=True):
    """One producer: its epoch, the sequence that must come next, and its newest blocks."""

    epoch: int
    next_sequence: int
    blocks: tuple[AppendedBlock, ...] = ()

    def block_at(self, first_sequence: int) -> AppendedBlock | None:
        """Return the block whose first entry has this sequence, if it is remembered."""
        found = (block for block in self.blocks if block.first_sequence == first_sequence)
        return next(found, None)


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    as_of: int
    sessions: list[tuple[int, Session]]
    producers: list[tuple[bytes, TransactionalProducer]] = []
    rejected: list[tuple[int, int]] = []
    complete_from: int = 0
    time_marks: list[tuple[int, int]] = []


@dataclass(slots=True)
class SessionTable:
    """All sessions, as of the entry at index `as_of`; the one idle longest comes first."""

    as_of: int = -1
    sessions: dict[int, Session] = field(default_factory=dict)
    transactions: TransactionTable = field(default_factory=TransactionTable)
    marks: TimeMarks = field(default_factory=TimeMarks)

    @property
    def is_empty(self) -> bool:
        """Whether the table equals one of a log without entries."""
        return not (self.sessions or self.transactions.producers or self.marks.pairs)

    def apply(self, index: int, entry: SystemEntry) -> None:
        """Take an entry of the log; one at or before `as_of` was taken already."""
        if index <= self.as_of:
            return
        if is_transactional(entry):
            self.transactions.apply(index, entry)
        if isinstance(entry, SessionEntry):
            self._apply_session(index, entry)
        elif isinstance(entry, TimeMark):
            self.marks.add(index, entry.time_ms)

    def removed(self, before_begin_index: int) -> None:
        """Forget what matters only for entries that the log does not hold any more."""
        self.transactions.removed(before_begin_index)
        self.marks.removed(before_begin_index)

    def _apply_session(self, index: int, entry: SessionEntry) -> None:
        before = self.sessions.get(entry.producer_id)
        block = AppendedBlock(entry.first_sequence, entry.count, entry.crc, index)
        following = entry.first_sequence + entry.count
        if before is None or entry.epoch > before.epoch:
            session = Session(entry.epoch, following, (block,))
        elif entry.epoch == before.epoch and entry.first_sequence == before.next_sequence:
            blocks = (*before.blocks, block)[-BLOCKS_REMEMBERED:]
            session = Session(entry.epoch, following, blocks)
        else:
            return  # no leader appends such a block
        self.sessions.pop(entry.producer_id, None)
        self.sessions[entry.producer_id] = session
        while len(self.sessions) > SESSIONS_MAX:
            del self.sessions[next(iter(self.sessions))]

    def copy(self) -> "SessionTable":
        """Return an independent copy."""
        transactions, marks = self.transactions.copy(), self.marks.copy()
        return SessionTable(self.as_of, dict(self.sessions), transactions, marks)

    def encode(self) -> bytes:
        """Return the table as bytes."""
        saved = _Saved(
            self.as_of,
            list(self.sessions.items()),
            list(self.transactions.producers.items()),
            self.transactions.rejected,
            self.transactions.complete_from,
            self.marks.pairs,
        )
        return msgspec.msgpack.encode(saved)

    @classmethod
    def decode(cls, raw: bytes | memoryview) -> "SessionTable":
        """Read what `encode` returned. Raises `UnexpectedArgumentError`."""
        try:
            saved = msgspec.msgpack.decode(raw, type=_Saved)
        except msgspec.MsgspecError as error:
            raise UnexpectedArgumentError(f"no table of producer sessions: {error}") from error
        transactions = TransactionTable(dict(saved.producers), saved.rejected, saved.complete_from)
        marks = TimeMarks(saved.time_marks)
        return cls(saved.as_of, dict(saved.sessions), transactions, marks)
