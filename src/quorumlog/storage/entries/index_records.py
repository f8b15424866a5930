"""Index records: where each entry lies (spec 20 section 2); derived from the entries."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from quorumlog.model.block import HEADER_SIZE, INDEX_RECORD_DTYPE, INDEX_RECORD_SIZE
from quorumlog.storage.files.file_sequence import FileSequence

Records: TypeAlias = npt.NDArray[Any]
"""Rows of INDEX_RECORD_DTYPE."""


def record_at(index: FileSequence, entry_index: int) -> np.void | None:
    """Return the record of an entry, or None where no file has it."""
    place = entry_index * INDEX_RECORD_SIZE
    if place < 0 or not index.has(place):
        return None
    start, view = index.map_at(place)
    if place - start + INDEX_RECORD_SIZE > len(view):
        return None
    record: np.void = np.frombuffer(view, INDEX_RECORD_DTYPE, 1, place - start)[0]
    return record


def records_of(index: FileSequence, first: int, last: int) -> Records:
    """Return the records of entries first … last; zeros where no file has them."""
    found = np.zeros(last - first + 1, dtype=INDEX_RECORD_DTYPE)
    row = 0
    while row < len(found):
        place = (first + row) * INDEX_RECORD_SIZE
        start = index.start_of(place)
        count = min(len(found) - row, (start + index.file_size - place) // INDEX_RECORD_SIZE)
        if index.has(place):
            _, view = index.map_at(place)
            held = max(0, min(count, (len(view) - (place - start)) // INDEX_RECORD_SIZE))
            if held:
                part = np.frombuffer(view, INDEX_RECORD_DTYPE, held, place - start)
                found[row : row + held] = part
        row += count
    return found


def last_record(index: FileSequence) -> int:
    """Return the last entry that has an index record, -1 if none has."""
    for start in reversed(index.made_starts):
        first = start // INDEX_RECORD_SIZE
        last = first + index.file_size // INDEX_RECORD_SIZE - 1
        there = np.flatnonzero(
            records_of(index, first, last)["index"] == np.arange(first, last + 1)
        )
        there = there[there + first > 0] if len(there) > 1 else there  # zeros look like entry 0
        if len(there):
            return first + int(there[-1])
    return -1


def following_records(index: FileSequence, first: int) -> Records:
    """Return the records of entries from `first` on, as far as each follows the one before."""
    last = last_record(index)
    records = records_of(index, first, max(last, first - 1))
    fits = (records["index"] == np.arange(first, first + len(records))) & (
        records["size"] >= HEADER_SIZE
    )
    ends = records["pos"].astype(np.int64) + records["size"]
    fits[1:] &= (records["pos"][1:] >= ends[:-1]) & (records["term"][1:] >= records["term"][:-1])
    wrong = np.flatnonzero(~fits)
    return records[: wrong[0]] if len(wrong) else records


def write_records(index: FileSequence, first: int, records: Records) -> None:
    """Write records of entries from `first` on, durably; for recovery only."""
    row = 0
    while row < len(records):
        place = (first + row) * INDEX_RECORD_SIZE
        file = index.file_at(place)
        count = min(len(records) - row, (file.end - place) // INDEX_RECORD_SIZE)
        opened = file.writable()
        if opened.size() != file.size:
            opened.resize(file.size)
            index.forget_maps([file])
        opened.write_at([records[row : row + count].tobytes()], place - file.start)
        opened.sync()
        row += count


def differs(stored: Records, derived: Records) -> npt.NDArray[np.bool_]:
    """Return where records differ; DLedger's magic may say NORMAL for a NOOP."""
    found: npt.NDArray[np.bool_] = np.zeros(len(derived), dtype=bool)
    for name in ("pos", "size", "index", "term"):
        found |= stored[name] != derived[name]
    return found


def first_after(index: FileSequence, position: int, first: int, last: int) -> int:
    """Return the first of the entries first … last that starts at or after a position.

    If none does, last + 1 is returned.
    """
    low, high = first, last + 1
    while low < high:
        middle = (low + high) // 2
        record = record_at(index, middle)
        if record is not None and int(record["pos"]) < position:
            low = middle + 1
        else:
            high = middle
    return low
