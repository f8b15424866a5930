"""Producer sessions: what every replica remembers of producers, so that a retry is appended once.

Every replica derives the same table from the session entries of producers' blocks (`entries`), in
the order of the log (`table_set`).

A session needs no opening and no closing. Its producer makes up a random id, and the first block
that names it creates the session; each block states the sequence of its first entry. A block that
continues the sequence is appended. One that is remembered was sent again because its answer was
lost: it gets the same answer, and nothing is appended. A gap, or a block that was forgotten, is an
error, since it is not known whether it was appended.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import msgspec

from quorumlog.model.block import Block
from quorumlog.model.codes import ResponseCode
from quorumlog.model.record_sum import RecordSum
from quorumlog.sessions.entries import SessionEntry, SystemEntry

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


@dataclass(frozen=True, slots=True)
class SessionCheck:
    """The check of a producer's block: `appended` already, refused with a code, or to be added."""

    code: ResponseCode = ResponseCode.SUCCESS
    text: str = ""
    appended: AppendedBlock | None = None


TO_BE_APPENDED: Final = SessionCheck()
"""The check of a block that is new, and in order."""


@dataclass(slots=True)
class SessionTable:
    """All sessions by producer id; the one idle longest comes first. See `DerivedTable`."""

    name: ClassVar[str] = "sessions.1"
    reads_users: ClassVar[bool] = False
    sessions: dict[int, Session] = field(default_factory=dict)
    _sum: RecordSum = field(default_factory=RecordSum, init=False, compare=False, repr=False)

    def found_in(
        self, block: Block, first_index: int, entries: Sequence[tuple[int, SystemEntry]]
    ) -> Sequence[tuple[int, SessionEntry]]:
        """See `DerivedTable`."""
        return [(index, entry) for index, entry in entries if isinstance(entry, SessionEntry)]

    def apply(self, index: int, what: SessionEntry) -> None:
        """Take a session entry of the log."""
        before = self.sessions.get(what.producer_id)
        block = AppendedBlock(what.first_sequence, what.count, what.crc, index)
        following = what.first_sequence + what.count
        if before is None or what.epoch > before.epoch:
            session = Session(what.epoch, following, (block,))
        elif what.epoch == before.epoch and what.first_sequence == before.next_sequence:
            blocks = (*before.blocks, block)[-BLOCKS_REMEMBERED:]
            session = Session(what.epoch, following, blocks)
        else:
            return  # no leader appends such a block
        self.sessions.pop(what.producer_id, None)
        self.sessions[what.producer_id] = session
        self._sum.changed(what.producer_id)
        while len(self.sessions) > SESSIONS_MAX:
            oldest = next(iter(self.sessions))
            del self.sessions[oldest]
            self._sum.changed(oldest)

    def removed(self, before_begin_index: int) -> None:
        """See `DerivedTable`: sessions outlive the entries that they name."""

    def copy(self) -> "SessionTable":
        """Return an independent copy."""
        return SessionTable(dict(self.sessions))

    def fields(self) -> tuple[Any, ...]:
        """See `DerivedTable`."""
        return (list(self.sessions.items()),)

    def digest(self, since: int) -> bytes:
        """See `DerivedTable`. The index of a session's newest block shows how long it is idle."""
        return self._sum.of(self.sessions)

    def check(self, entry: SessionEntry) -> SessionCheck:
        """Decide on a block that a leader is asked to append after those that were applied."""
        session = self.sessions.get(entry.producer_id)
        who = f"producer {entry.producer_id}"
        if session is None or entry.epoch > session.epoch:
            if not entry.first_sequence:
                return SessionCheck()
            if session is None:
                text = f"{who} is not known (any more), but goes on at {entry.first_sequence}"
                return SessionCheck(ResponseCode.UNKNOWN_PRODUCER, text)
            text = f"{who} begins its epoch {entry.epoch} at {entry.first_sequence}, not at 0"
            return SessionCheck(ResponseCode.SEQUENCE_GAP, text)
        if entry.epoch < session.epoch:
            text = f"{who} of epoch {entry.epoch} was succeeded by epoch {session.epoch}"
            return SessionCheck(ResponseCode.PRODUCER_FENCED, text)
        if entry.first_sequence == session.next_sequence:
            return SessionCheck()
        if entry.first_sequence > session.next_sequence:
            text = f"{who} must go on at {session.next_sequence}, not at {entry.first_sequence}"
            return SessionCheck(ResponseCode.SEQUENCE_GAP, text)
        return _repeated(entry, session.block_at(entry.first_sequence), who)


def _repeated(entry: SessionEntry, appended: AppendedBlock | None, who: str) -> SessionCheck:
    sequence = entry.first_sequence
    if appended is None:
        text = (
            f"{who}: entries from {sequence} on were appended so long ago that nobody knows where"
        )
        return SessionCheck(ResponseCode.SEQUENCE_MISMATCH, text)
    if (appended.count, appended.crc) != (entry.count, entry.crc):
        text = f"{who} had other entries appended as {sequence} and following"
        return SessionCheck(ResponseCode.SEQUENCE_MISMATCH, text)
    return SessionCheck(appended=appended)
