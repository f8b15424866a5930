"""Files as wholes: which can be removed, how much room they have, which must be made next."""

from quorumlog.model.block import INDEX_RECORD_SIZE
from quorumlog.storage.entries.index_records import first_after
from quorumlog.storage.entries.placement import BLANK_RESERVE
from quorumlog.storage.files.file_sequence import FileSequence
from quorumlog.storage.files.write_plans import Preparable
from quorumlog.storage.log.interface import FreeSpace, Segment
from quorumlog.storage.metadata.checkpoint import LogPoint, LogStart

SEGMENTS_MAX = 10
"""Oldest files considered in one pass (spec 20 section 13: at most 10 files a run)."""


def closed_segments(
    data: FileSequence, index: FileSequence, log_start: LogStart, end: LogPoint
) -> list[Segment]:
    """Return the oldest files that no append touches any more, never the newest with entries."""
    segments: list[Segment] = []
    first = log_start.before_begin_index + 1
    newest = data.start_of(end.position)
    for start in data.starts[:SEGMENTS_MAX]:
        if start >= newest:
            break
        file = data.file_starting(start)
        first = first_after(index, file.end, first, end.index)
        size = file.end - max(start, log_start.position)
        segments.append(Segment(first - 1, size, file.path))
    return segments


def closed_index(
    data: FileSequence, index: FileSequence, log_start: LogStart, end: LogPoint
) -> int:
    """Return the last index in files that no append touches any more."""
    newest = data.start_of(end.position)
    if newest <= log_start.position:
        return log_start.before_begin_index
    return first_after(index, newest, log_start.before_begin_index + 1, end.index) - 1


def free_space_after(data: FileSequence, index: FileSequence, end: LogPoint) -> FreeSpace:
    """Return what fits into files that are made, after the end of the log."""
    size = _made_after(data, end.position)
    records = _made_after(index, (end.index + 1) * INDEX_RECORD_SIZE)
    return FreeSpace(max(0, size - BLANK_RESERVE), records // INDEX_RECORD_SIZE)


def _made_after(sequence: FileSequence, position: int) -> int:
    size = 0
    for file in sequence.files_over(position, 1 << 62):
        if not file.is_made or file.start > position + size:
            break
        size = file.end - position
    return size


def upcoming_files(data: FileSequence, index: FileSequence, end: LogPoint) -> list[Preparable]:
    """Return files not yet made: the one that is written next, and once it is half full the next.

    They join their sequence here; a thread makes them later, while appends go on.
    """
    wanted: list[Preparable] = []
    for sequence, position in ((data, end.position), (index, (end.index + 1) * INDEX_RECORD_SIZE)):
        file = sequence.file_at(position)
        if not file.is_made:
            wanted.append(file)
        if position - file.start > sequence.file_size // 2:
            following = sequence.file_starting(file.end)
            if not following.is_made:
                wanted.append(following)
    return wanted
