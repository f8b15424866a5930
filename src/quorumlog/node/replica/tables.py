"""The tables that one replica derives from its log, as of its end and as of the committed index.

Whatever happens to the log is reported here, once for all tables (`TableSet`). When a new leader
truncates entries that are not committed, the tables at the end are derived again from the committed
ones. Those are saved before each checkpoint, sent along with offers to followers that need removed
entries, and compared with those of other replicas (`table_comparisons`).
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence

from quorumlog.log_events import log_event
from quorumlog.model.block import Block
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.node.replica.comparison_points import NOWHERE, Points
from quorumlog.sessions.entries import LEADERS_ENTRIES, SessionEntry, SystemEntry
from quorumlog.sessions.producer_table import TO_BE_APPENDED, AppendedBlock, SessionCheck
from quorumlog.sessions.table_set import Change, TableSet
from quorumlog.sessions.time_marks import TimeMarks
from quorumlog.sessions.transaction_table import Range, TransactionalProducer, TransactionTable
from quorumlog.storage.log.entry_scan import scan_entries
from quorumlog.storage.log.interface import Log
from quorumlog.topics.batch_columns import SealedBatches
from quorumlog.topics.batch_index import DEFAULT_SEAL_LIMITS, BatchIndex, SealLimits
from quorumlog.topics.partition_table import AppendedBatch, PartitionTable
from quorumlog.topics.produced_batch import ProducedBatch

logger = logging.getLogger(__name__)

UNCHANGED_ENTRIES = 100_000
"""Tables are saved again after this many entries although nothing was added to them."""
UNCHANGED_BYTES = 64 * 1024 * 1024
"""Or once the log has grown by this much: the next start reads what lies after the tables."""
EVERYTHING = 1 << 62


class Tables:
    """What the log says of producers, transactions and time, as a replica derives it.

    `saved` is what the last checkpoint left, if any; `digest_entries` the entries between two
    points at which replicas compare their tables (0: never), `sealed` what is known already of
    where batches are, `seal_limits` when more of them are sealed. All methods run on the event
    loop's thread.
    """

    def __init__(
        self,
        log: Log,
        committed_index: int,
        saved: bytes | None,
        *,
        is_lost: bool = False,
        digest_entries: int = 0,
        sealed: Sequence[SealedBatches] = (),
        seal_limits: SealLimits = DEFAULT_SEAL_LIMITS,
    ) -> None:
        self._log = log
        if sealed and sealed[0].first_index > log.before_begin_index + 1:
            # the first were damaged, or removed with entries that a loss of power brought back
            sealed = ()
        self.batches = BatchIndex(sealed, seal_limits)
        """Where the record batches of partitions are."""
        self.grown: set[int] = set()
        """Channels of partitions whose committed end has risen; whoever takes it empties it."""
        self.is_lost = is_lost
        """Whether what was appended before the log begins is not known; a peer's tables tell."""
        base = TableSet(committed_index) if saved is None else TableSet.decode(saved)
        self._base = base
        self._current = base.copy()
        self._tail: deque[Change] = deque()
        self._saved_as_of = base.as_of if saved is not None else -1
        # how much follows the saved tables is not known, so the next checkpoint saves them again
        self._saved_bytes = -UNCHANGED_BYTES
        self._is_changed = False
        self.is_incomplete = False
        self._trusted_until = EVERYTHING
        self.replacements = 0
        """How often tables, or batches, came from somewhere else than from entries appended."""
        self._points = Points(digest_entries)
        self._next_point = NOWHERE
        self.reached: Callable[[int, dict[str, bytes]], None] = lambda point, digests: None
        """Called with the digests of the committed tables after an entry at which replicas compare
        them."""
        self.scan(committed_index)
        self._next_point = self._points.after(self._base.as_of)

    @property
    def as_of(self) -> int:
        """Index up to which the committed tables are complete, and not in doubt."""
        return min(self._base.as_of, self._trusted_until)

    @property
    def known_until(self) -> int:
        """Index up to which entries may be removed without losing what they say."""
        return self.as_of if self.is_incomplete or self.is_doubted else EVERYTHING

    @property
    def is_doubted(self) -> bool:
        """Whether they differ from those of a majority; see `doubt`."""
        return self._trusted_until != EVERYTHING

    @property
    def is_trusted(self) -> bool:
        """Whether peers may be given these tables."""
        return not self.is_lost and not self.is_doubted

    @property
    def count(self) -> int:
        """How many producers are known."""
        return len(self._current.sessions.sessions)

    def scan(self, committed_index: int) -> int | None:
        """Read from the log what comes after the tables, and where batches are that are not sealed.

        Returns the index of the first damaged entry: until it is repaired, the tables are
        incomplete.
        """
        self.replacements += 1
        self._current, as_of = self._base.copy(), self._base.as_of
        self.batches.truncate(self.batches.sealed_index + 1)
        first = as_of + 1
        if self._base.partitions.reads_users:
            first = min(first, self.batches.sealed_index + 1)

        def take(block: Block, first_index: int) -> list[Change]:
            # what an entry says may depend on entries before it
            changes = self._current.changes_in(block, first_index)
            for change in changes:
                self._apply(change)
            return [change for change in changes if change[0] > as_of]

        found, unread = scan_entries(self._log, first, take)
        self._tail, self.is_incomplete = deque(found), unread is not None or self.is_lost
        # what is committed may not be in the log yet: its entries are about to be appended
        self.committed(min(committed_index, self._log.end_index))
        return unread

    def _apply(self, change: Change) -> None:
        """Take what comes after the end of the log."""
        index, _, what = change
        self._current.apply(change)
        if isinstance(what, AppendedBatch):
            channel, header = what.channel, what.header
            partition = self._current.partitions.partitions.get(channel)
            if partition is None:
                return
            # the tables of a leader count batches that come only now, after the log was reset
            is_counted = index <= self._base.as_of
            if is_counted or partition.next_offset == header.last_offset + 1:
                self.batches.add(channel, index, header)

    def _derive(self) -> None:
        self._current = self._base.copy()
        for change in self._tail:
            self._current.apply(change)

    # -- the log goes on ----------------------------------------------------------------------

    def appended(self, block: Block, first_index: int, *, has_system_entries: bool = True) -> None:
        """Entries were added to the log."""
        current = self._current
        for change in current.changes_in(block, first_index, has_system_entries=has_system_entries):
            self._tail.append(change)
            self._apply(change)

    def truncated(self, from_index: int) -> None:
        """from_index and everything after it was removed."""
        self.batches.truncate(from_index)
        if self._tail and self._tail[-1][0] >= from_index:
            while self._tail and self._tail[-1][0] >= from_index:
                self._tail.pop()
            self._derive()

    def committed(self, index: int) -> None:
        """Everything up to index is committed, and will not be truncated."""
        if self.is_incomplete:
            return  # damaged entries must be repaired and read first
        if self._next_point <= index:
            for point in self._points.newest(self._next_point, index):
                self._advance(point)
                self.reached(point, self.digests(point - self._points.entries))
            self._next_point = self._points.after(index)
        self._advance(index)

    def _advance(self, index: int) -> None:
        while self._tail and self._tail[0][0] <= index:
            change = self._tail.popleft()
            self._base.apply(change)
            self._is_changed = True
            if isinstance(change[2], AppendedBatch):
                self.grown.add(change[2].channel)
        self._base.as_of = max(self._base.as_of, index)

    def log_reset(self, before_begin_index: int) -> None:
        """The log was reset to start after before_begin_index.

        What the removed entries said came with the offer (`learned`). Entries after the new start
        may still be unreadable; the next `scan` finds out.
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
        self._base.removed(before_begin_index)
        self.batches.removed(before_begin_index)
        self._begin_after_base()

    def removed(self, before_begin_index: int) -> None:
        """Everything up to there is not in the log any more."""
        self._base.removed(before_begin_index)
        self._current.removed(before_begin_index)
        self.batches.removed(before_begin_index)

    def learned(self, raw: bytes | memoryview) -> None:
        """Take the committed tables of a leader, or of a snapshot, if they are newer.

        They are right whatever this log holds: what they count is committed.
        """
        tables = _decoded(raw)
        if tables is None:
            return
        is_found = self.is_lost and tables.as_of >= self._log.before_begin_index
        if tables.as_of > self._base.as_of or is_found:
            self._base, self._is_changed = tables, True
            self.is_lost = self.is_lost and not is_found
            self._begin_after_base()

    def _begin_after_base(self) -> None:
        """Keep of the tail only what comes after the committed tables, which jumped ahead."""
        self.replacements += 1
        self._tail = deque(change for change in self._tail if change[0] > self._base.as_of)
        self._next_point = max(self._next_point, self._points.after(self._base.as_of))
        self._derive()

    def give_up(self) -> None:
        """Continue with what the log holds: no replica knows what was appended before it starts.

        Producers that started before it are refused from now on, unless they start again with a
        first block. The outcome of transactions that started before it is lost, so readers of
        committed transactions start after them.
        """
        tables = TableSet(self._base.as_of)
        transactions, unknown_until = tables.transactions, self._base.as_of
        for change in self._tail:
            index, _, entry = change
            is_part = isinstance(entry, SessionEntry) and entry.part is not None
            if is_part and transactions.check(entry).code is not ResponseCode.SUCCESS:
                unknown_until = index + entry.count
            tables.apply(change)
        self._base.transactions.complete_from = unknown_until + 1
        self.is_lost, self._is_changed = False, True

    # -- compared with others -----------------------------------------------------------------

    def doubt(self, agreed_index: int) -> None:
        """They differ from those of a majority; they were equal last after `agreed_index`.

        Until they are `replaced`, nothing after that index is believed, given away or saved.
        """
        self._trusted_until = min(self._trusted_until, agreed_index)

    def replaced(self, raw: bytes | memoryview, committed_index: int) -> bool:
        """Take a peer's tables in the place of doubted ones; return False if they cannot be used.

        What the log says after them is read again.
        """
        tables = _decoded(raw)
        if tables is None or tables.as_of < self._log.before_begin_index:
            return False
        self._base, self._is_changed = tables, True
        self._next_point = max(self._next_point, self._points.after(tables.as_of))
        self._trusted_until = EVERYTHING
        self.scan(committed_index)
        return True

    # -- for readers --------------------------------------------------------------------------

    @property
    def stable_index(self) -> int:
        """Index up to which every transaction has ended."""
        return self._base.transactions.stable_index(self.as_of)

    @property
    def complete_from(self) -> int:
        """First index from which rejected entries are known.

        Tables from another replica know nothing of the entries that had been removed there.
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
    def partitions(self) -> PartitionTable:
        """Partitions as of the committed index: what may be read of them (do not change)."""
        return self._base.partitions

    @property
    def partitions_at_end(self) -> PartitionTable:
        """Partitions as of the end of the log: where they go on (do not change)."""
        return self._current.partitions

    @property
    def marks(self) -> TimeMarks:
        """Time marks as of the end of the log (do not change).

        Even a mark that is not committed yet was appended after the entries that it follows.
        """
        return self._current.marks

    # -- keeping them -------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Return the committed tables."""
        return self._base.encode()

    def digests(self, since: int) -> dict[str, bytes]:
        """Return those of the committed tables; see `TableSet.digests`."""
        return self._base.digests(since)

    def committed_tables(self) -> TableSet:
        """Return a copy of them."""
        return self._base.copy()

    def to_save(self) -> bytes | None:
        """Return the committed tables for the next checkpoint; None if the saved ones will do."""
        if not self.is_trusted:
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

    def check(self, entry: SystemEntry | ProducedBatch) -> SessionCheck:
        """Decide on a block that a leader is asked to append."""
        if isinstance(entry, ProducedBatch):
            judged = self._current.partitions.check(entry)
            before = judged.appended
            if before is not None:
                appended = AppendedBlock(before.first_sequence, 0, 0, before.index)
                return SessionCheck(judged.code, judged.text, appended)
            is_taken = judged.code is ResponseCode.SUCCESS
            return TO_BE_APPENDED if is_taken else SessionCheck(judged.code, judged.text)
        if isinstance(entry, LEADERS_ENTRIES):
            return TO_BE_APPENDED
        current, result = self._current, TO_BE_APPENDED
        if isinstance(entry, SessionEntry):
            result = current.sessions.check(entry)
        if result.appended is not None or result.code is not ResponseCode.SUCCESS:
            return result
        found = current.transactions.check(entry)
        is_repeated = found.end_index >= 0
        return SessionCheck(
            found.code,
            found.text,
            AppendedBlock(0, 0, 0, found.end_index) if is_repeated else None,
        )


def _decoded(raw: bytes | memoryview) -> TableSet | None:
    try:
        return TableSet.decode(raw)
    except UnexpectedArgumentError as error:
        log_event(logger, logging.ERROR, "producer sessions cannot be read", text=str(error))
        return None
