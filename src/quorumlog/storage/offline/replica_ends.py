"""Where the log in a replica's files begins and ends, from what was noted and from the entries."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from quorumlog.model.block import HEADER_SIZE
from quorumlog.model.codes import Magic
from quorumlog.model.errors import CorruptionError
from quorumlog.storage.entries.index_records import last_record, record_at
from quorumlog.storage.entries.scanner import BLANK_SIZE_MIN, ScannedRun, looks_torn
from quorumlog.storage.files.file_sequence import FileSequence
from quorumlog.storage.metadata.checkpoint import UNKNOWN_CRC, Mark
from quorumlog.storage.offline.store_files import StoreFiles
from quorumlog.storage.recovery.damage_scan import DamageScan

FILES_LOOKED_AT = 3
"""Newest data files in which the end of a log is looked for that left no note of it."""
KNOWN_MAGICS = frozenset(int(magic) for magic in (Magic.NORMAL, Magic.NOOP, Magic.CONFIG_CHANGE))
_HEADER = struct.Struct(">iiqqqIIIi")


@dataclass(frozen=True, slots=True)
class Tail:
    """What follows the last entry, if it is not empty; opening the store would cut it."""

    path: str
    offset: int
    reason: str


def entry_header(view: memoryview, offset: int, limit: int) -> tuple[int, int] | None:
    """Return (index, size) of the entry whose header lies at an offset, None if none does.

    It has to end at or before `limit`.
    """
    if offset + HEADER_SIZE > limit:
        return None
    magic, size, index, term, _, _, _, _, body_size = _HEADER.unpack_from(view, offset)
    is_entry = (
        magic in KNOWN_MAGICS
        and body_size >= 0
        and size == HEADER_SIZE + body_size
        and offset + size <= limit
        and index >= 0
        and term >= 0
    )
    return (index, size) if is_entry else None


def entry_at(data: FileSequence, position: int) -> tuple[int, int] | None:
    """Return (index, size) of the entry at a position, or behind a blank record there."""
    start, view = data.map_at(position)
    offset, limit = position - start, min(len(view), data.file_size - BLANK_SIZE_MIN)
    if len(view) >= offset + BLANK_SIZE_MIN:
        magic, size = struct.unpack_from(">ii", view, offset)
        if magic == Magic.BLANK and size >= BLANK_SIZE_MIN:
            offset += size
    return entry_header(view, offset, limit)


def begin_of(opened: StoreFiles, firsts: Sequence[tuple[int, int]]) -> int:
    """Return the first entry of a log, also where it is damaged but the index tells which it is."""
    if opened.known.boundary is not None:
        return opened.known.boundary.before_begin_index + 1
    known = [first for _, first in firsts if first >= 0]
    if firsts and firsts[0][1] < 0:
        survey = opened.survey()
        try:
            stretch = next(iter(survey), None)
        except CorruptionError:
            stretch = None
        known += [damage.first_index for damage in survey.damages]
        known += [] if stretch is None else [stretch.first_index]
    return min(known, default=0)


def end_of(opened: StoreFiles) -> tuple[Mark, Tail | None]:
    """Return where a log ends, as opening it would find, and what lies behind."""
    known = opened.known
    durable = known.durable or Mark()
    if known.checkpoint is not None and known.checkpoint.is_end:
        return known.checkpoint.mark, None
    last: ScannedRun | None = None
    survey, broken = _late_survey(opened), None
    try:
        for stretch in survey:
            last = stretch
    except CorruptionError as error:
        broken = Tail(error.file, error.position, error.reason)
    end = survey.end if survey.end.index >= durable.index else durable
    if broken is not None:
        indexed = last_indexed(opened)
        return (indexed, None) if indexed.index > end.index else (end, broken)
    if last is not None and not last.checked and last.last_index == end.index:
        torn = _before_torn(opened, last)
        if torn is not None:
            return torn, _tail_at(opened, torn.position, "the last entry ends in zeros: torn")
    if survey.stop.reason and not survey.damages:
        return end, _tail_at(opened, survey.stop.position, survey.stop.reason)
    return end, None


def _tail_at(opened: StoreFiles, position: int, reason: str) -> Tail:
    offset = position - opened.data.start_of(position)
    return Tail(opened.data.path_at(position), offset, reason)


def _late_survey(opened: StoreFiles) -> DamageScan:
    """Return a walk to the end of the log from the last point that is known to be in it."""
    known, data = opened.known, opened.data
    start = known.checkpoint.mark if known.checkpoint is not None else None
    if start is None:
        written = [file for file in data.starts if entry_at(data, file) is not None]
        if known.boundary is not None or len(written) <= FILES_LOOKED_AT:
            return opened.survey()
        position = written[-FILES_LOOKED_AT]
        found = entry_at(data, position)
        if found is not None:
            start = Mark(found[0] - 1, position, UNKNOWN_CRC, -1)
    return DamageScan(data, opened.index, start, known.durable, is_recent=known.is_recent)


def last_indexed(opened: StoreFiles) -> Mark:
    """Return the last entry that has an index record, if its header agrees, else no entry."""
    return indexed_entry(opened, last_record(opened.index)) or Mark()


def indexed_entry(opened: StoreFiles, index: int) -> Mark | None:
    """Return an entry and where it ends; None unless index record and header agree on it."""
    record = record_at(opened.index, index)
    position = -1 if record is None else int(record["pos"])
    if record is None or not opened.data.has(position):
        return None
    found = entry_at(opened.data, position)
    if found != (int(record["index"]), int(record["size"])) or found[0] != index:
        return None
    return Mark(index, position + found[1], UNKNOWN_CRC, int(record["term"]))


def _before_torn(opened: StoreFiles, last: ScannedRun) -> Mark | None:
    """Return the end without an unchecked last entry that looks torn; None if it does not."""
    start, view = opened.data.map_at(last.position)
    offset, size = int(last.block.offsets[-1]), int(last.block.sizes[-1])
    position = last.position + offset
    return Mark(last.last_index - 1, position) if looks_torn(view, position - start, size) else None
