"""Writing the journal: which appends go into it, its records, and when its room is used again.

A segment that is full is used again only once every file that its records were written to has been
fsynced after the last of them (it is *settled* then). That is done beside the writing; nobody waits
for it: while no segment is free, appends are written to the groups' own files, as they are without
a journal. Segments are used again in the order in which they were used, and the header of one says
so durably before its first record is written: so a crash leaves one run of records without a gap.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

import msgspec

from quorumlog.model.errors import StorageError
from quorumlog.model.limits import KIB, MIB
from quorumlog.storage.files.os_files import FileSystem, Lock
from quorumlog.storage.files.write_plans import JournaledGroup, JournalItem, Plan
from quorumlog.storage.journal.records import (
    BLOCK_BYTES,
    ITEMS_MAX,
    Item,
    SegmentHeader,
    packed_header,
    packed_record,
    record_size,
)
from quorumlog.storage.journal.segments import (
    Segment,
    SegmentList,
    SegmentMaker,
    load_list,
    remove_segments,
    sync_path,
)

logger = logging.getLogger(__name__)

LOCK_NAME: Final = "lock"
_BLANK_BYTES: Final = 8


class JournalLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What goes through a journal, and how large it is."""

    segment_bytes: int = 32 * MIB
    segments_first: int = 2
    segments_max: int = 4
    groups_min: int = 2
    """Fewer groups in one commit gain nothing: each file is one fsync, as the journal is."""
    commit_bytes_max: int = 1 * MIB
    """More bytes in one commit are written once, to the groups' own files."""
    group_bytes_max: int = 64 * KIB
    """So are more bytes for each group on average."""
    enters_max: int = 4
    """Groups that begin to use the journal in one commit: each has to note it durably."""
    group_wanted_min: int = 8
    """A group begins to use it in the commit that is the so-many-th in which it would have been of
    use: noting that, and that it is over, takes as many fsyncs. Leaders begin with one append."""
    wanted_min: int = 64
    """The journal is made after so many commits that it would have been of use to."""
    wanted_again: int = 4_096
    """After so many more it is tried again, if there was no room for it, or for a group in it."""


class Settler(Protocol):
    """Settles segments, and makes them, beside the disk thread."""

    def run(self, step: Callable[[], bool]) -> None:
        """Call `step` until it returns False; what it raises fails the data directory."""
        ...

    def finish(self) -> None:
        """Wait until the step that is under way has ended; no further one is begun."""
        ...


class NodeJournal:
    """The journal of one node. Used on the disk thread; only steps run beside it.

    `path` is its directory. No segment is made that would leave fewer bytes free than
    `free_bytes_min` returns.
    """

    def __init__(
        self,
        files: FileSystem,
        path: str,
        settler: Settler,
        *,
        limits: JournalLimits | None = None,
        free_bytes_min: Callable[[], int] = lambda: 0,
    ) -> None:
        self._files = files
        self._path = path
        self._settler = settler
        self._limits = limits or JournalLimits()
        self._free_bytes_min = free_bytes_min
        self._lock: Lock | None = None
        self._number = 0
        self._next_sequence = 1
        self._entered: dict[JournaledGroup, None] = {}
        self._asked: Counter[JournaledGroup] = Counter()
        self._current: Segment | None = None
        self._free: deque[Segment] = deque()
        self._settling: list[Segment] = []
        self._ready: deque[Segment] = deque()  # from the steps: made or settled
        self._made = 0
        self._maker: SegmentMaker | None = None
        self._wanted = 0
        self._wanted_min = self._limits.wanted_min
        self._has_settled = False
        self._failure: StorageError | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Number of the journal, and sequence of the next record; (0, 0): it has none."""
        return (self._number, self._next_sequence) if self._number else (0, 0)

    # -- which way ----------------------------------------------------------------------------

    def choose(self, appends: Sequence[Sequence[Plan]]) -> list[Sequence[Plan]]:
        """Return those of the appends, one list for each group, that go through the journal."""
        limits = self._limits
        if len(appends) < limits.groups_min:
            return []
        size_bytes = sum(plan.size_bytes for of_group in appends for plan in of_group)
        if size_bytes > min(limits.commit_bytes_max, limits.group_bytes_max * len(appends)):
            return []
        appends = [of_group for of_group in appends if self._is_busy(of_group)]
        if len(appends) < limits.groups_min:
            return []
        items = sum(len(plan.steps) for of_group in appends for plan in of_group)
        if items > ITEMS_MAX:
            return []
        if not self._has_room(record_size(items, size_bytes + items * _BLANK_BYTES)):
            return []
        chosen, enters = [], 0
        for of_group in appends:
            group = of_group[0].appended.group if of_group[0].appended else None
            if group is None:
                continue
            if group not in self._entered and enters < limits.enters_max:
                enters += 1
                group.enter(self._path, self._number)
                if group.is_in:
                    self._entered[group] = None
                else:  # the disk is full, or it has no checkpoint yet: it is tried again later
                    self._asked[group] = -limits.wanted_again
            if group.is_in:
                chosen.append(of_group)
        return chosen if len(chosen) >= limits.groups_min else []

    def _is_busy(self, of_group: Sequence[Plan]) -> bool:
        """Count that the journal would be of use to a group; whether it was often enough by now."""
        group = of_group[0].appended.group if of_group[0].appended else None
        if group is None or group in self._entered:
            return group is not None
        self._asked[group] += 1
        return self._asked[group] >= self._limits.group_wanted_min

    def _has_room(self, size: int) -> bool:
        """Whether a record of this size can be written now; if not, see that later ones can."""
        limits = self._limits
        if BLOCK_BYTES + size > limits.segment_bytes:
            return False
        self._take_ready()
        current = self._current
        if current is not None and (current.offset or BLOCK_BYTES) + size > limits.segment_bytes:
            self._settle(current)
            self._current = None
        if self._current is None and self._free:
            self._current = self._free.popleft()
            if not self._free and self._made < limits.segments_first:
                self._make()
        if self._current is not None:
            return True
        self._wanted += 1
        if self._made < limits.segments_max and self._wanted >= self._wanted_min:
            self._make()
        return False

    def _take_ready(self) -> None:
        """Take over segments that were made or settled."""
        if self._failure is not None:
            raise self._failure
        while self._ready:
            segment = self._ready.popleft()
            if segment in self._settling:
                self._settling.remove(segment)
                segment.offset, segment.covers = 0, {}
                self._has_settled = True
            self._free.append(segment)

    def has_settled(self) -> bool:
        """Whether a segment was settled since the last call."""
        self._take_ready()
        has_settled, self._has_settled = self._has_settled, False
        return has_settled

    # -- writing ------------------------------------------------------------------------------

    def append(self, items: Sequence[JournalItem]) -> None:
        """Write one record and make it durable; what it holds was written to the files before."""
        segment = self._current
        if segment is None:
            raise StorageError(f"{self._path}: no segment was chosen")
        parts = []
        for one in items:
            to, length = one.appended, sum(map(len, one.buffers))
            position = one.target.start + one.offset
            end = (to.index, to.position, to.chain_crc, to.term)
            parts.append((Item(to.group.incarnation, position, length, *end), one.buffers))
            segment.covers[one.target.path] = None
        if not segment.offset:
            header = packed_header(SegmentHeader(self._number, self._next_sequence))
            segment.file.write_at([header], 0)
            segment.file.sync()
            segment.offset = len(header)
        record = packed_record(self._number, self._next_sequence, parts)
        segment.file.write_at(record, segment.offset)
        segment.file.sync()
        segment.offset += sum(map(len, record))
        self._next_sequence += 1

    def forget(self, group: JournaledGroup) -> None:
        """See `Journal`."""
        self._entered.pop(group, None)
        self._asked.pop(group, None)

    # -- beside the writing -------------------------------------------------------------------

    def _settle(self, segment: Segment) -> None:
        """Have the files fsynced that a full segment covers; it is free afterwards."""
        self._settling.append(segment)
        waiting = list(segment.covers)

        def step() -> bool:
            if waiting:
                try:
                    sync_path(self._files, waiting[-1])
                except StorageError as error:
                    self._failure = error
                    raise
                waiting.pop()
            if not waiting:
                self._ready.append(segment)
            return bool(waiting)

        self._settler.run(step)

    def _make(self) -> None:
        """Have another segment made, unless one is being made."""
        if self._maker is not None or not self._begin():
            return
        made = SegmentList(self._number, self._made + 1, self._limits.segment_bytes)
        maker = self._maker = SegmentMaker(self._files, self._path, made)

        def step() -> bool:
            try:
                segment = maker.step()
            except StorageError as error:  # nothing relies on it yet
                logger.warning("the journal does without another segment: %s", error)
                maker.abandon()
                self._maker = None
                return False
            if segment is not None:
                self._made += 1
                self._ready.append(segment)
                self._maker = None
            return segment is None

        self._settler.run(step)

    def _begin(self) -> bool:
        """Whether a segment may be made; the first one makes the directory."""
        self._wanted, self._wanted_min = 0, self._limits.wanted_again
        try:
            if not self._number:
                self._claim()
            free_bytes = self._files.space(self._path).free_bytes
        except StorageError as error:  # nothing relies on it yet
            logger.warning("there is no journal, groups write to their own files: %s", error)
            return False
        if free_bytes - self._limits.segment_bytes < self._free_bytes_min():
            text = "%s gets no segment: only %s bytes are free; groups write to their own files"
            logger.warning(text, self._path, free_bytes)
            return False
        return True

    def _claim(self) -> None:
        """Make the directory. Raises `StorageError` if it is in use, or may not be used."""
        self._files.make_directory(self._path)
        if self._lock is None:
            self._lock = self._files.lock(f"{self._path}/{LOCK_NAME}")
        if load_list(self._files, self._path) is not None:
            self._lock.release()
            self._lock = None
            raise StorageError(f"{self._path} holds entries of groups that cannot be opened")
        remove_segments(self._files, self._path)  # what a crash left half made
        self._number = 1 + (int.from_bytes(self._files.random_bytes(8), "big") >> 2)

    # -- the end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable in the groups' files, and remove the journal.

        Raises `StorageError`: then the journal stays, for the next start.
        """
        try:
            self._settler.finish()
            if self._failure is not None:
                raise self._failure
            used = [*self._settling, *([self._current] if self._current is not None else [])]
            for path in dict.fromkeys(path for segment in used for path in segment.covers):
                sync_path(self._files, path)
            for group in self._entered:
                if group.is_in:
                    group.leave()
            self._close_segments()
            if self._number:
                remove_segments(self._files, self._path)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close all files and release the lock; what is on the disk stays, for the next start."""
        self._settler.finish()
        self._close_segments()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _close_segments(self) -> None:
        if self._maker is not None:
            self._maker.abandon()
        current = [] if self._current is None else [self._current]
        for segment in (*current, *self._settling, *self._free, *self._ready):
            if segment.file.is_open:
                with suppress(StorageError):  # what matters in it was fsynced
                    segment.file.close()
