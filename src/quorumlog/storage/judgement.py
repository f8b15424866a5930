"""Is what lies behind the last good entry a torn tail, or damage to what was promised?"""

import numpy as np

from quorumlog.model.block import INDEX_RECORD_DTYPE, INDEX_RECORD_SIZE
from quorumlog.model.errors import CorruptionError
from quorumlog.storage.advice import EMPTYING_IS_SAFE_WHEN
from quorumlog.storage.file_sequence import FileSequence
from quorumlog.storage.scan import Scanner, Stop

LOOK_AHEAD_BYTES = 64 * 1024 * 1024
"""How far behind a bad record of an unchecked store a later entry is looked for."""
LOOK_AHEAD_ENTRIES = 4


def judge(
    data: FileSequence, index: FileSequence, last_good: int, stop: Stop, durable_index: int
) -> None:
    """Raise `CorruptionError` unless what lies behind entry `last_good` may be cut.

    `durable_index` is the last index once reported durable. Where it is not known (-1, stores of
    the original), a whole entry found further on is the sign of damage.
    """
    damaged = durable_index > last_good
    if durable_index < 0 and stop.reason:
        damaged = _later_entry(data, index, last_good, stop)
    if not damaged:
        return
    start = data.start_of(stop.position)
    path = f"{data.directory}/{start:020d}"
    offset = stop.position - start
    raise CorruptionError(
        f"{path}: byte {offset}, entry {last_good + 1}: {stop.reason or 'entries are missing'}; "
        f"entries up to {max(durable_index, last_good + 1)} were durable. Nothing was changed. "
        f"Restore this replica's files. {EMPTYING_IS_SAFE_WHEN}",
        path,
        offset,
        last_good + 1,
    )


def index_record(index: FileSequence, entry_index: int) -> np.void | None:
    """Return the index record of an entry, or None where no file has it."""
    place = entry_index * INDEX_RECORD_SIZE
    if not len(index) or index.start_of(place) not in index.starts:
        return None
    start, view = index.map_at(place)
    if place - start + INDEX_RECORD_SIZE > len(view):
        return None
    record: np.void = np.frombuffer(view, INDEX_RECORD_DTYPE, 1, place - start)[0]
    return record


def _later_entry(data: FileSequence, index: FileSequence, last_good: int, stop: Stop) -> bool:
    """Whether a whole entry with a higher index lies behind a bad one."""
    for entry_index in range(last_good + 2, last_good + 2 + LOOK_AHEAD_ENTRIES):
        record = index_record(index, entry_index)
        if record is None or int(record["index"]) != entry_index or int(record["size"]) <= 0:
            continue
        position = int(record["pos"])
        close = stop.position < position < stop.position + LOOK_AHEAD_BYTES
        if close and data.start_of(position) in data.starts:
            found = next(iter(Scanner(data, position, index=entry_index - 1)), None)
            if found is not None and found.position == position:
                return True
    return False
