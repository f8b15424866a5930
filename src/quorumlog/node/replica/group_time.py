"""The group's time as one replica knows it, and the marks that a leader writes of it.

Marks are written only where retention needs them: about a minute after the log went on to a new
data file (one mark bounds the age of all files closed until then), and about once an hour while
there are closed files whose age still counts, so that little is lost when all members restart. Time
during which no replica that saw the newest mark is running is not counted. So entries may be kept
longer than configured, never shorter. Partitions of topics are retained by the batch, so marks of
their groups follow batches (`partition_retention`).
"""

from collections.abc import Callable, Sequence

import msgspec

from quorumlog.model.block import parse_block
from quorumlog.model.codes import Role
from quorumlog.model.messages.client import AppendResponse
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.proposals import Propose
from quorumlog.node.replica.tables import Tables
from quorumlog.sessions.entries import TIME_MS_MAX, TimeMark
from quorumlog.sessions.time_marks import STEP_MS_MAX
from quorumlog.storage.log.retention import mark_pause_ms

DELAYS_A_PAUSE = 60
"""A closed file gets its mark after this share of the pause between marks: a minute of an hour."""


class Aging(msgspec.Struct, frozen=True):
    """What grows old: entries up to `last_index`, the youngest kept for at most `longest_ms`.

    While their age is not proven, time is recorded every `pause_ms`; `delay_ms` after there are
    entries that no mark follows, one is written.
    """

    last_index: int
    longest_ms: int
    pause_ms: int
    delay_ms: int


class GroupTime:
    """The part of a replica that knows its group's time.

    All methods run on the event loop's thread.
    """

    def __init__(self, context: ReplicaContext, tables: Tables, propose: Propose) -> None:
        self._context = context
        self._environment = context.environment
        self._tables = tables
        self._propose = propose
        self.aging: Callable[[], Aging | None] = self._closed_files
        """Returns what grows old; None: nothing does, and time need not be recorded."""
        self._seen: tuple[int, int] | None = None
        self._since_ms = 0
        self._unmarked_since_ms: int | None = None
        self._is_writing = False

    def now_ms(self) -> int | None:
        """Return a lower bound of the group's time; None: there is no mark.

        It is at most STEP_MS_MAX after the newest mark, as the leader writes another before that.
        Time since an older mark was seen does not count: the leader that wrote the newest mark may
        have counted less, and time goes on from its mark.
        """
        newest, now_ms = self._tables.marks.newest, self._environment.now_ms()
        if newest != self._seen:
            self._seen, self._since_ms = newest, now_ms
        passed_ms = min(now_ms - self._since_ms, STEP_MS_MAX)
        return None if newest is None else newest[1] + passed_ms

    def age_ms(self, index: int) -> int | None:
        """Return the minimum age of all entries up to an index; None: it is not known."""
        now_ms, marked_ms = self.now_ms(), self._tables.marks.first_since(index)
        return None if now_ms is None or marked_ms is None else now_ms - marked_ms

    def old_until(self, age_ms: int) -> int:
        """Return the last index up to which entries are known to be older; -1: there is none."""
        now_ms = self.now_ms()
        return -1 if now_ms is None else self._tables.marks.last_before(now_ms - age_ms)

    def check(self) -> None:
        """Write a mark if this replica leads and one is due."""
        time_ms = self.now_ms()
        if self._is_due(time_ms) and not self._is_writing:
            self._write(TimeMark(min(TIME_MS_MAX, time_ms or 0)))

    def _closed_files(self) -> Aging | None:
        """Return the entries in data files that no append touches any more."""
        log, config = self._context.log, self._context.config
        closed, pause_ms = log.closed_index(), mark_pause_ms(config)
        if closed <= log.before_begin_index:
            return None
        return Aging(closed, config.reserved_ms, pause_ms, pause_ms // DELAYS_A_PAUSE)

    def _is_due(self, time_ms: int | None) -> bool:
        now_ms, core = self._environment.now_ms(), self._context.core
        leads = core.role is Role.LEADER and core.is_ready
        aging = self.aging() if leads else None
        if aging is None:
            self._unmarked_since_ms = None
            return False
        marked_ms = self._tables.marks.first_since(aging.last_index)
        if marked_ms is None or time_ms is None:
            if self._unmarked_since_ms is None:
                self._unmarked_since_ms = now_ms
            return now_ms - self._unmarked_since_ms >= aging.delay_ms
        self._unmarked_since_ms = None
        if self._seen is not None and self._seen[1] - marked_ms > aging.longest_ms:
            return False  # by the marks alone all of it is old enough, also after restarts
        return now_ms - self._since_ms >= aging.pause_ms

    def _write(self, mark: TimeMark) -> None:
        self._is_writing = True
        data = mark.encode()
        block = parse_block(memoryview(bytearray(data)), count=1, entry_bytes_max=len(data))
        self._propose(block, self._written, mark)

    def _written(self, response: AppendResponse, results: Sequence[bytes]) -> None:
        """Record that a mark was answered; if it was refused, the next check tries again."""
        self._is_writing = False
        self.now_ms()
