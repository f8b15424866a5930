"""Opening a log after a crash or damage (spec 20 section 10, with its requirements).

Reads from the last checkpoint on. What lies after the last group commit that was reported durable
and is no whole entry is a torn tail and is cut; the same at or below it is damage: it keeps its
place and its identity, to be repaired. Index records are derived from the entries and written again
where they differ. A truncation or a reset that a crash interrupted is finished.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from quorumlog.model.block import (
    HEADER_DTYPE,
    HEADER_SIZE,
    INDEX_RECORD_DTYPE,
    INDEX_RECORD_SIZE,
    config_entries_of,
    headers,
)
from quorumlog.model.codes import Magic
from quorumlog.model.errors import CorruptionError
from quorumlog.storage.entries.index_records import (
    Records,
    differs,
    first_after,
    following_records,
    record_at,
    records_of,
    write_records,
)
from quorumlog.storage.entries.placement import blank_record
from quorumlog.storage.entries.scanner import ScannedRun, Stop, looks_torn
from quorumlog.storage.files.file_sequence import FileSequence
from quorumlog.storage.files.sequence_file import SequenceFile
from quorumlog.storage.metadata.advice import EMPTYING_IS_SAFE_WHEN, REPAIR
from quorumlog.storage.metadata.checkpoint import UNKNOWN_CRC, LogMetadata, LogPoint, LogStart
from quorumlog.storage.metadata.damaged_ranges import DamagedRanges
from quorumlog.storage.recovery.damage_scan import Damage, DamageScan

logger = logging.getLogger(__name__)

NO_END = 1 << 62
_MAGICS = frozenset(map(int, Magic)) - {int(Magic.BLANK)}
FILES_MADE_AT_ONCE = 2
"""How many files before one may be missing: they are made ahead by two threads."""
STALE_BYTES_SEARCHED = 8 * 1024 * 1024
"""Stale bytes are searched for this far after the end. The limit bounds the time of opening and
does not weaken safety: stale entries further on do not continue the chain CRC of what is written
before them, so no later opening takes them for entries of this log."""


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening did."""

    scanned_entries: int = 0
    from_checkpoint: bool = False
    cut_bytes: int = 0
    cut_reason: str = ""
    repaired_index_records: int = 0
    damaged_entries: int = 0


@dataclass(frozen=True, slots=True)
class Recovered:
    """A log that can be used: where it starts and ends, and what of it is damaged.

    `config_entries`: (index, body) of the CONFIG_CHANGE entries among those that were read.
    """

    log_start: LogStart
    end: LogPoint
    damaged: DamagedRanges
    report: RecoveryReport
    config_entries: list[tuple[int, bytes]] = field(default_factory=list)


def _stale_bytes(sequence: FileSequence, position: int) -> int:
    """Return up to where a rest of a file that should be zero has non-zero bytes, as a length.

    Only what was written is read: reading zeros takes longer than all else, with many groups.
    """
    start, view = sequence.map_at(position)
    for first, after in reversed(sequence.written_ranges(position, STALE_BYTES_SEARCHED)):
        used = np.flatnonzero(np.frombuffer(view[first - start : after - start], dtype=np.uint8))
        if len(used):
            return first + int(used[-1]) + 1 - position
    return 0


def derived_records(run: ScannedRun) -> Records:
    """Return the index records that the entries of a run should have."""
    table = headers(run.block)
    rows = np.zeros(run.block.count, dtype=INDEX_RECORD_DTYPE)
    for name in ("magic", "size", "index", "term"):
        rows[name] = table[name]
    rows["pos"] = run.position + run.block.offsets
    return rows


class Recovery:
    """One opening of a log of which `metadata` was saved before.

    With `drops_foreign`, entries that another program wrote after ours are cut like a torn tail.
    With `reads_all` the whole log is read, not only what lies after the checkpoint.
    """

    def __init__(
        self,
        data: FileSequence,
        index: FileSequence,
        metadata: LogMetadata,
        *,
        drops_foreign: bool = False,
        reads_all: bool = False,
    ) -> None:
        self._drops_foreign = drops_foreign
        self._reads_all = reads_all
        self._data = data
        self._index = index
        self._metadata = metadata
        self._first: tuple[int, int] | None = None
        self._damages: list[tuple[int, int]] = []
        self._scanned = 0
        self._config_entries: list[tuple[int, bytes]] = []
        self._repaired = 0
        self._end_index = -1

    def run(self) -> Recovered:
        """Return the usable log; repairs and cuts on disk.

        Raises `CorruptionError` when entries are damaged whose identity is not known either.
        """
        metadata, checkpoint = self._metadata, self._metadata.checkpoint
        if metadata.log_start is not None:
            self._ignore_unconnected(metadata)
            self._finish_reset(metadata.log_start)
            if not len(self._data):
                self._data.set_origin(metadata.log_start.position)
        start = checkpoint.point if checkpoint is not None else None
        if self._restore_files() or self._reads_all:
            start = self._start_of_log()
        if checkpoint is not None and checkpoint.is_end:
            end, stop = checkpoint.point, Stop(checkpoint.point.position, "a truncation")
            self._reload_from_disk(end.position, end.index)
        else:
            end, stop = self._scan(start)
        if metadata.durable is None:
            end, stop = self._with_lost_end(end, stop)
        log_start = metadata.log_start or self._found_start()
        self._end_index = end.index
        cut = self._cut(end.position, stop)
        self._cut_index((end.index + 1) * INDEX_RECORD_SIZE)
        damaged = DamagedRanges(self._damages).within(log_start.before_begin_index + 1, end.index)
        report = RecoveryReport(
            self._scanned,
            start is not None,
            cut,
            stop.reason,
            self._repaired,
            damaged.count,
        )
        configs = [pair for pair in self._config_entries if pair[0] <= end.index]
        return Recovered(log_start, end, damaged, report, configs)

    # -- finishing what a crash interrupted -----------------------------------------------------

    def _ignore_unconnected(self, metadata: LogMetadata) -> None:
        """Ignore files at positions where this program never has any.

        Files are made in order, and removed in an order that leaves no hole after the end. Before
        the log's first file there are others only if a removal did not end. Files of zeros are ours
        wherever they lie: they are made ahead of what is staged, which a crash may have undone,
        such as a reset to a later place.
        """
        log_start, durable = metadata.log_start, metadata.durable
        if log_start is None or durable is None:
            return
        is_removing = metadata.checkpoint is None or metadata.checkpoint.is_end
        first = (log_start.before_begin_index + 1) * INDEX_RECORD_SIZE
        end = max(first, (durable.index + 1) * INDEX_RECORD_SIZE)
        data_end = max(log_start.position, durable.position)
        for sequence, begin, last in (
            (self._data, log_start.position, data_end),
            (self._index, first, end),
        ):
            size, starts = sequence.file_size, sequence.starts
            lowest, highest = sequence.start_of(begin), sequence.start_of(last)
            for start in starts:
                is_far = start > highest + (FILES_MADE_AT_ONCE + 1) * size
                if is_far or (start < lowest and not is_removing):
                    if not self._is_made_ahead(sequence, start):
                        sequence.ignore(start)
                else:
                    highest = max(highest, start)

    def _is_made_ahead(self, sequence: FileSequence, start: int) -> bool:
        """Whether a file has the size of ours and starts with zeros: nothing was written to it."""
        _, view = sequence.map_at(start)
        return len(view) == sequence.file_size and not any(view[:HEADER_SIZE])

    def _finish_reset(self, log_start: LogStart) -> None:
        """Remove what lies before the first entry, as a recorded reset was about to."""
        for file in self._data.drop_before(log_start.position):
            file.remove()
        index_position = (log_start.before_begin_index + 1) * INDEX_RECORD_SIZE
        for file in self._index.drop_before(index_position):
            file.remove()
        if len(self._data) and self._data.has(log_start.position):
            write_leading_blank(self._data.file_at(log_start.position), log_start.position)

    def _restore_files(self) -> bool:
        """Make files again that are gone or too short; return whether index files are gone."""
        metadata = self._metadata
        durable, log_start = metadata.durable, metadata.log_start
        if durable is None or log_start is None:
            index_gaps, data_gaps = self._gaps_between(self._index), self._gaps_between(self._data)
            if data_gaps and (index_gaps or not len(self._index)):
                raise self._unrecoverable(self._data.path_at(data_gaps[0]))
            for start in data_gaps:  # the index still names the gap's entries: they are quarantined
                self._restore(self._data, start)
            return bool(index_gaps)
        lost: list[tuple[int, int]] = []
        if durable.position > log_start.position:
            for start in self._data.gaps(log_start.position, durable.position - 1):
                held = self._restore(self._data, start)
                lost.append((start + held, start + self._data.file_size))
        first = log_start.before_begin_index + 1
        index_lost = False
        if durable.index >= first:
            positions = (first * INDEX_RECORD_SIZE, durable.index * INDEX_RECORD_SIZE)
            gaps = self._index.gaps(*positions)
            # the last index file is derived from the entries after the checkpoint anyway
            index_lost = bool(gaps)
            if index_lost and lost:
                raise self._unrecoverable(self._data.path_at(lost[0][0]))
        self._record_lost(lost, first, durable.index)
        return index_lost

    def _restore(self, sequence: FileSequence, start: int) -> int:
        """Give a file its size; return how many bytes of it are there."""
        sequence.require_no_obstacle(start)
        file = sequence.file_starting(start)
        opened = file.writable()
        held = opened.size()
        if held == file.size:
            return 0  # it was not there at all, and is zeros now
        opened.resize(file.size)
        opened.sync()
        sequence.forget_maps([file])
        return held

    def _record_lost(self, lost: list[tuple[int, int]], first: int, last: int) -> None:
        """Record the entries in lost bytes as damaged; the index names them."""
        for begin, end in lost:
            low = first_after(self._index, begin, first, last)
            record = record_at(self._index, low - 1) if low > first else None
            if record is not None and int(record["pos"]) + int(record["size"]) > begin:
                low -= 1
            high = first_after(self._index, end, first, last) - 1
            if low <= high:
                self._damages.append((low, high))

    def _with_lost_end(self, end: LogPoint, stop: Stop) -> tuple[LogPoint, Stop]:
        """Quarantine entries that only the index names, since the last data files are gone.

        DLedger records nowhere how far its log reached. It makes files at full size, so a short
        one is damage, too; but a single entry that is cut short is a torn tail.
        """
        named = self._named_after(end)
        if not len(named) or (stop.reason and len(named) == 1):
            self._require_no_later_index(end)
            return end, stop
        position, last = int(named["pos"][0]), named[-1]
        after = int(last["pos"]) + int(last["size"])
        lost = self._data.gaps(position, position + int(named["size"][0]) - 1)
        if not lost:  # a torn tail, or DLedger truncated its log
            return end, stop
        path, first = self._data.path_at(lost[0]), end.index + 1
        if end.chain_crc > 0:  # written by us, and all metadata files are gone as well
            raise self._unrecoverable(path)
        for start in self._data.gaps(position, after - 1):
            self._restore(self._data, start)
        self._damages.append((first, int(last["index"])))
        if self._first is None:
            self._first = (first, position)
        logger.error(
            "%s is missing or cut short: entries %s to %s, which the index names, are quarantined. "
            "%s. If DLedger truncated its log there, as a follower: quorumlog store truncate DIR "
            "--from %s",
            path,
            first,
            int(last["index"]),
            REPAIR,
            first,
        )
        return LogPoint(int(last["index"]), after, 0, int(last["term"])), Stop(after, "")

    def _named_after(self, end: LogPoint) -> Records:
        """Return the index records after the end, as far as each starts where it may."""
        named = following_records(self._index, end.index + 1)
        ends = np.concatenate(([end.position], named["pos"].astype(np.int64) + named["size"]))
        for row, position in enumerate(named["pos"].tolist()):
            if position not in self._data.positions_after(int(ends[row])):
                return named[:row]
        return named

    def _require_no_later_index(self, end: LogPoint) -> None:
        """Raise `CorruptionError` if a log that seems empty has an index that starts later."""
        begins = next(iter(self._index.starts), 0) // INDEX_RECORD_SIZE
        is_empty = end.index < 0 and not len(self._data)
        if is_empty and begins and len(following_records(self._index, begins)):
            raise self._unrecoverable(self._data.path_at(0))

    def _gaps_between(self, sequence: FileSequence) -> list[int]:
        """Return the starts of lost files before the last whole one."""
        first, *others = sequence.starts or [0]
        whole = [start for start in others if not sequence.gaps(start, start)]
        return sequence.gaps(first, whole[-1] - 1) if whole else []

    def _unrecoverable(self, path: str) -> CorruptionError:
        return CorruptionError(
            f"{path} is missing or cut short, and it is not known which entries it held. Nothing "
            f"was changed. Restore it. {REPAIR}. {EMPTYING_IS_SAFE_WHEN}",
            path,
            0,
        )

    def _start_of_log(self) -> LogPoint | None:
        """Read everything: without its index files a log is known by its entries only."""
        log_start = self._metadata.log_start
        if log_start is None:
            return None
        return log_start.point

    # -- reading ----------------------------------------------------------------------------

    def _scan(self, start: LogPoint | None) -> tuple[LogPoint, Stop]:
        """Read from `start` on, repair index records; return where the log ends and why."""
        position = start.position if start is not None else 0
        self._reload_from_disk(position, start.index if start is not None else 0)
        metadata = self._metadata
        scan = DamageScan(self._data, self._index, start, metadata)
        torn: ScannedRun | None = None
        scan.drops_foreign = self._drops_foreign
        for run in scan:
            if self._first is None:
                self._first = (run.first_index, run.position)
            self._scanned += run.block.count
            self._config_entries += config_entries_of(run.block)
            self._repair_records(run.first_index, derived_records(run))
            torn = None if run.checked else run
        for damage in scan.damages:
            self._quarantine(damage)
            if self._first is None or damage.first_index < self._first[0]:
                self._first = (damage.first_index, damage.position)
        if torn is not None and torn.end == scan.end.position:
            without = self._without_torn_entry(torn)
            if without is not None:
                return without
        return scan.end, scan.stop

    def _reload_from_disk(self, position: int, index: int) -> None:
        """Make later reads return what the disk holds, which the page cache may not."""
        index_position = max(0, index) * INDEX_RECORD_SIZE
        for file in (
            *self._data.files_over(position, NO_END),
            *self._index.files_over(index_position, NO_END),
        ):
            file.reload_from_disk()

    def _repair_records(self, first: int, derived: Records) -> None:
        """Write index records again that differ from their entries."""
        on_disk = records_of(self._index, first, first + len(derived) - 1)
        wrong = int(differs(on_disk, derived).sum())
        if wrong:
            write_records(self._index, first, derived)
            self._repaired += wrong

    def _quarantine(self, damage: Damage) -> None:
        """Record damage; its index records keep what is known of the entries."""
        if damage.last_index >= damage.first_index:
            self._damages.append((damage.first_index, damage.last_index))
            write_records(self._index, damage.first_index, damage.identities)
        else:
            write_blank(self._data, damage.position)

    def _without_torn_entry(self, run: ScannedRun) -> tuple[LogPoint, Stop] | None:
        """Drop an unchecked last entry that ends in zeros; None if it does not."""
        start, view = self._data.map_at(run.position)
        offset, size = int(run.block.offsets[-1]), int(run.block.sizes[-1])
        position = run.position + offset
        if not looks_torn(view, position - start, size):
            return None
        before = record_at(self._index, run.last_index - 1)
        is_first = self._first is not None and run.last_index == self._first[0]
        term = -1 if before is None or is_first else int(before["term"])
        stop = Stop(position, "the last entry ends in zeros")
        return LogPoint(run.last_index - 1, position, 0, term), stop

    def _found_start(self) -> LogStart:
        """Return where a log without metadata starts: at its first entry."""
        if self._first is None:
            return LogStart()
        index, position = self._first
        return LogStart(index - 1, -1, position, 0 if not index else UNKNOWN_CRC)

    # -- cutting ----------------------------------------------------------------------------

    def _cut(self, position: int, stop: Stop) -> int:
        """Remove what lies after the last good entry; return how many bytes were not blank."""
        dirty = 0
        self._ignore_foreign(self._data, position, self._may_follow)
        for later in self._data.drop_from(max(position, 1)):
            dirty += later.size if stop.reason else 0
            later.remove()
        if not self._data.has(position):
            return dirty
        start, view = self._data.map_at(position)
        stale = _stale_bytes(self._data, position)
        if stale or len(view) != self._data.file_size:
            file = self._data.file_starting(start)
            self._data.forget_maps([file])
            file.cut(position)
        return dirty + stale

    def _ignore_foreign(
        self, sequence: FileSequence, end: int, may_follow: Callable[[int, memoryview], bool]
    ) -> None:
        """Ignore files after the end whose size or content shows that we did not make them."""
        checkpoint = self._metadata.checkpoint
        if checkpoint is not None and checkpoint.is_end:
            return  # what is being removed may be anything that was written
        for start in sequence.made_starts:
            if start >= max(end, 1):
                _, view = sequence.map_at(start)
                if len(view) != sequence.file_size or not may_follow(start, view):
                    sequence.ignore(start)

    def _may_follow(self, _: int, view: memoryview) -> bool:
        """Whether a data file starts with zeros, or with an entry that comes after the last one.

        A crash leaves any sectors of a write that it cut short, or the first bytes of a header.
        """
        head = np.frombuffer(view, HEADER_DTYPE, 1)[0]
        if not any(view[8:HEADER_SIZE]):
            return int(head["magic"]) in {0, *_MAGICS}
        return int(head["magic"]) in _MAGICS and int(head["index"]) > self._end_index

    def _may_follow_in_index(self, start: int, view: memoryview) -> bool:
        """Whether an index file starts with zeros, or with the record that belongs there."""
        record = np.frombuffer(view, INDEX_RECORD_DTYPE, 1)[0]
        if not record["index"] and not record["term"]:
            return int(record["magic"]) in {0, *_MAGICS}
        is_there = int(record["index"]) == start // INDEX_RECORD_SIZE
        return int(record["magic"]) in _MAGICS and is_there

    def _cut_index(self, position: int) -> None:
        self._ignore_foreign(self._index, position, self._may_follow_in_index)
        for file in self._index.drop_from(max(position, 1)):
            file.remove()
        if self._index.has(position):
            start, view = self._index.map_at(position)
            if len(view) < self._index.file_size or _stale_bytes(self._index, position):
                file = self._index.file_starting(start)
                self._index.forget_maps([file])
                file.cut(position)


def write_blank(data: FileSequence, position: int) -> None:
    """Fill the rest of a file with a blank record, durably."""
    file = data.file_at(position)
    file.write_through(blank_record(file.end - position), position)


def write_leading_blank(file: SequenceFile, position: int) -> None:
    """Cover stale bytes of a reset before the first entry of a file (spec 20 section 12)."""
    length = position - file.start
    blank = blank_record(length)
    if length and file.read(len(blank), file.start) != blank:
        file.write_through(blank, file.start)
