"""Where the log in a replica's files starts and ends, by its metadata and its entries."""

from collections.abc import Sequence
from dataclasses import dataclass

from quorumlog.model.errors import CorruptionError
from quorumlog.storage.entries.index_records import last_record, record_at
from quorumlog.storage.entries.run_scanner import BLANK_SIZE_MIN, blank_length, entry_header
from quorumlog.storage.entries.scanner import ScannedRun, looks_torn
from quorumlog.storage.files.file_sequence import FileSequence
from quorumlog.storage.metadata.checkpoint import UNKNOWN_CRC, LogPoint
from quorumlog.storage.offline.store_files import StoreFiles
from quorumlog.storage.recovery.damage_scan import DamageScan

FILES_SEARCHED = 3
"""Newest data files that are searched for the end of a log without metadata."""


@dataclass(frozen=True, slots=True)
class Tail:
    """Bytes that follow the last entry; opening the store would cut them."""

    path: str
    offset: int
    reason: str


def entry_at(data: FileSequence, position: int) -> tuple[int, int] | None:
    """Return (index, size) of the entry at a position, or after a blank record there."""
    start, view = data.map_at(position)
    offset, limit = position - start, min(len(view), data.file_size - BLANK_SIZE_MIN)
    header = entry_header(view, offset + blank_length(view, offset), limit)
    return (header.index, header.size) if header is not None else None


def begin_of(opened: StoreFiles, firsts: Sequence[tuple[int, int]]) -> int:
    """Return the first entry of a log, even a damaged one that only the index identifies."""
    if opened.metadata.log_start is not None:
        return opened.metadata.log_start.before_begin_index + 1
    known = [first for _, first in firsts if first >= 0]
    if firsts and firsts[0][1] < 0:
        scan = opened.scan()
        try:
            run = next(iter(scan), None)
        except CorruptionError:
            run = None
        known += [damage.first_index for damage in scan.damages]
        known += [] if run is None else [run.first_index]
    return min(known, default=0)


def end_of(opened: StoreFiles) -> tuple[LogPoint, Tail | None]:
    """Return where a log ends, as opening it would find, and what lies after."""
    metadata = opened.metadata
    durable = metadata.durable or LogPoint()
    if metadata.checkpoint is not None and metadata.checkpoint.is_end:
        return metadata.checkpoint.point, None
    last: ScannedRun | None = None
    scan, broken = _late_scan(opened), None
    try:
        for run in scan:
            last = run
    except CorruptionError as error:
        broken = Tail(error.file, error.position, error.reason)
    end = scan.end if scan.end.index >= durable.index else durable
    if broken is not None:
        indexed = last_indexed(opened)
        return (indexed, None) if indexed.index > end.index else (end, broken)
    if last is not None and not last.checked and last.last_index == end.index:
        torn = _before_torn(opened, last)
        if torn is not None:
            return torn, _tail_at(opened, torn.position, "the last entry ends in zeros: torn")
    if scan.stop.reason and not scan.damages:
        return end, _tail_at(opened, scan.stop.position, scan.stop.reason)
    return end, None


def _tail_at(opened: StoreFiles, position: int, reason: str) -> Tail:
    offset = position - opened.data.start_of(position)
    return Tail(opened.data.path_at(position), offset, reason)


def _late_scan(opened: StoreFiles) -> DamageScan:
    """Return a scan to the end of the log from the last point that is known to be in it."""
    metadata, data = opened.metadata, opened.data
    start = metadata.checkpoint.point if metadata.checkpoint is not None else None
    if start is None:
        written = [file for file in data.starts if entry_at(data, file) is not None]
        if metadata.log_start is not None or len(written) <= FILES_SEARCHED:
            return opened.scan()
        position = written[-FILES_SEARCHED]
        found = entry_at(data, position)
        if found is not None:
            start = LogPoint(found[0] - 1, position, UNKNOWN_CRC, -1)
    return opened.scan_after(start)


def last_indexed(opened: StoreFiles) -> LogPoint:
    """Return the last entry that has an index record, if its header agrees, else no entry."""
    return indexed_entry(opened, last_record(opened.index)) or LogPoint()


def indexed_entry(opened: StoreFiles, index: int) -> LogPoint | None:
    """Return an entry and where it ends; None unless index record and header agree on it."""
    record = record_at(opened.index, index)
    position = -1 if record is None else int(record["pos"])
    if record is None or not opened.data.has(position):
        return None
    found = entry_at(opened.data, position)
    if found != (int(record["index"]), int(record["size"])) or found[0] != index:
        return None
    return LogPoint(index, position + found[1], UNKNOWN_CRC, int(record["term"]))


def _before_torn(opened: StoreFiles, last: ScannedRun) -> LogPoint | None:
    """Return the end without an unchecked last entry that looks torn; None if it does not."""
    start, view = opened.data.map_at(last.position)
    offset, size = int(last.block.offsets[-1]), int(last.block.sizes[-1])
    position = last.position + offset
    return (
        LogPoint(last.last_index - 1, position)
        if looks_torn(view, position - start, size)
        else None
    )
