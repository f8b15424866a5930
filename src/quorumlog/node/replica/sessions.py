"""The producer sessions and transactions of one replica, as of the end of its log and as of the
committed index.

When a new leader truncates entries that are not committed, the table at the end is derived again
from the committed one. The committed one is saved before each checkpoint, and is sent along with
offers to followers that need removed entries.
"""

import logging
from collections import deque
from dataclasses import dataclass

from quorumlog.log_events import log_event
from quorumlog.model.block import Block
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.time_marks import TimeMarks
from quorumlog.sessions.entries import SessionEntry, SystemEntry, TimeMark, system_entries_in
from quorumlog.sessions.producer_table import AppendedBlock, SessionTable
from quorumlog.sessions.transaction_table import Range, TransactionalProducer, TransactionTable
from quorumlog.storage.log.interface import Log
from quorumlog.storage.log.session_entries import system_entries

logger = logging.getLogger(__name__)

UNCHANGED_ENTRIES = 100_000
"""A table is saved again after this many entries although no producer added to it."""
UNCHANGED_BYTES = 64 * 1024 * 1024
"""Or once the log has grown by this much: the next start reads what lies after the table."""
EVERYTHING = 1 << 62


@dataclass(frozen=True, slots=True)
class SessionCheck:
    """The check of a producer's block: `appended` already, refused with a code, or to be added."""

    code: ResponseCode = ResponseCode.SUCCESS
    text: str = ""
    appended: AppendedBlock | None = None


class Sessions:
    """The tables of producers and transactions of one replica.

    `saved` is what the last checkpoint left, if any. All methods run on the event loop's thread.
    """

    def __init__(
        self, log: Log, committed_index: int, saved: bytes | None, *, is_lost: bool = False
    ) -> None:
        self._log = log
        self.is_lost = is_lost
        """Whether what was appended before the log begins is not known; a peer's table tells."""
        base = SessionTable(committed_index) if saved is None else SessionTable.decode(saved)
        self._base = base
        self._current = base.copy()
        self._tail: deque[tuple[int, SystemEntry]] = deque()
        self._saved_as_of = base.as_of if saved is not None else -1
        # how much follows the saved table is not known, so the next checkpoint saves it again
        self._saved_bytes = -UNCHANGED_BYTES
        self._is_changed = False
        self.is_incomplete = False
        self.scan(committed_index)

    @property
    def as_of(self) -> int:
        """Index up to which the committed table is complete."""
        return self._base.as_of

    @property
    def known_until(self) -> int:
        """Index up to which entries may be removed without losing sessions that were not read."""
        return self._base.as_of if self.is_incomplete else EVERYTHING

    @property
    def count(self) -> int:
        """How many producers are known."""
        return len(self._current.sessions)

    def scan(self, committed_index: int) -> int | None:
        """Read the session entries after the table from the log, up to the first damaged one.

        Returns the index of that entry: until it is repaired, the table is incomplete.
        """
        found, unread = system_entries(self._log, self._base.as_of + 1)
        self._tail, self.is_incomplete = deque(found), unread is not None or self.is_lost
        self._derive()
        self.committed(committed_index)
        return unread

    def _derive(self) -> None:
        self._current = self._base.copy()
        for index, entry in self._tail:
            self._current.apply(index, entry)

    # -- the log goes on ----------------------------------------------------------------------

    def appended(self, block: Block, first_index: int) -> None:
        """Entries were added to the log."""
        for index, entry in system_entries_in(block, first_index):
            self._tail.append((index, entry))
            self._current.apply(index, entry)

    def truncated(self, from_index: int) -> None:
        """from_index and everything after it was removed."""
        if self._tail and self._tail[-1][0] >= from_index:
            while self._tail and self._tail[-1][0] >= from_index:
                self._tail.pop()
            self._derive()

    def committed(self, index: int) -> None:
        """Everything up to index is committed, and will not be truncated."""
        if self.is_incomplete:
            return  # damaged entries must be repaired and read first
        while self._tail and self._tail[0][0] <= index:
            self._base.apply(*self._tail.popleft())
            self._is_changed = True
        self._base.as_of = max(self._base.as_of, index)

    def log_reset(self, before_begin_index: int) -> None:
        """The log was reset to start after before_begin_index.

        The sessions of the removed entries came with the offer (`learned`). Entries after the new
        start may still be unreadable; the next `scan` finds out.
        """
        if self._base.as_of < before_begin_index:
            log_event(
                logger,
                logging.ERROR,
                "producer sessions not known",
                after_index=self._base.as_of,
                last_index=before_begin_index,
            )
            self._base.as_of = before_begin_index
        self._tail = deque(item for item in self._tail if item[0] > self._base.as_of)
        self._base.removed(before_begin_index)
        self._derive()

    def removed(self, before_begin_index: int) -> None:
        """Everything up to there is not in the log any more."""
        self._base.removed(before_begin_index)
        self._current.removed(before_begin_index)

    def learned(self, raw: bytes | memoryview) -> None:
        """Take the committed table of a leader, or of a snapshot.

        It is right whatever this log holds: what it counts is committed.
        """
        try:
            table = SessionTable.decode(raw)
        except UnexpectedArgumentError as error:
            log_event(logger, logging.ERROR, "producer sessions cannot be read", text=str(error))
            return
        is_found = self.is_lost and table.as_of >= self._log.before_begin_index
        if table.as_of > self._base.as_of or is_found:
            self._base, self._is_changed = table, True
            self.is_lost = self.is_lost and not is_found
            self._tail = deque(item for item in self._tail if item[0] > table.as_of)
            self._derive()

    def give_up(self) -> None:
        """Continue with what the log holds: no replica knows what was appended before it starts.

        Producers that started before it are refused from now on, unless they start again with a
        first block. The outcome of transactions that started before it is lost, so readers of
        committed transactions start after them.
        """
        table = SessionTable(self._base.as_of)
        transactions, unknown_until = table.transactions, self._base.as_of
        for index, entry in self._tail:
            is_part = isinstance(entry, SessionEntry) and entry.part is not None
            if is_part and transactions.check(entry).code is not ResponseCode.SUCCESS:
                unknown_until = index + entry.count if isinstance(entry, SessionEntry) else index
            table.apply(index, entry)
        self._base.transactions.complete_from = unknown_until + 1
        self.is_lost, self._is_changed = False, True

    # -- for readers --------------------------------------------------------------------------

    @property
    def stable_index(self) -> int:
        """Index up to which every transaction has ended."""
        return self._base.transactions.stable_index(self._base.as_of)

    @property
    def complete_from(self) -> int:
        """First index from which rejected entries are known.

        A table from another replica knows nothing of the entries that had been removed there.
        """
        return self._base.transactions.complete_from

    def rejected_within(self, first: int, last: int, most: int) -> list[Range]:
        """See `TransactionTable.rejected_within`; of what is committed."""
        return self._base.transactions.rejected_within(first, last, most)

    def transactional(self, found_id: bytes) -> TransactionalProducer | None:
        """Return the committed state of a transactional id."""
        return self._base.transactions.producers.get(found_id)

    @property
    def at_end(self) -> TransactionTable:
        """Transactions as of the end of the log."""
        return self._current.transactions

    @property
    def marks(self) -> TimeMarks:
        """Time marks as of the end of the log (do not change).

        Even a mark that is not committed yet was appended after the entries that it follows.
        """
        return self._current.marks

    # -- keeping it ---------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Return the committed table."""
        return self._base.encode()

    def committed_table(self) -> SessionTable:
        """Return a copy of it."""
        return self._base.copy()

    def to_save(self) -> bytes | None:
        """Return the committed table for the next checkpoint; None if the saved one is enough."""
        if self.is_lost:
            return None
        size_bytes = self._log.size_bytes
        is_old = self._base.as_of - self._saved_as_of >= UNCHANGED_ENTRIES
        is_old |= abs(size_bytes - self._saved_bytes) >= UNCHANGED_BYTES
        if not self._is_changed and not (is_old and not self._base.is_empty):
            return None
        self._is_changed, self._saved_as_of = False, self._base.as_of
        self._saved_bytes = size_bytes
        return self._base.encode()

    # -- checks ------------------------------------------------------------------------------

    def check(self, entry: SystemEntry) -> SessionCheck:
        """Decide on a block that a leader is asked to append."""
        if isinstance(entry, TimeMark):
            return SessionCheck()
        result = self._check_session(entry) if isinstance(entry, SessionEntry) else SessionCheck()
        if result.appended is not None or result.code is not ResponseCode.SUCCESS:
            return result
        found = self._current.transactions.check(entry)
        appended = AppendedBlock(0, 0, 0, found.end_index) if found.end_index >= 0 else None
        return SessionCheck(found.code, found.text, appended)

    def _check_session(self, entry: SessionEntry) -> SessionCheck:
        session = self._current.sessions.get(entry.producer_id)
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
