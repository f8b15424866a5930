"""Which of the entries that were read are on one channel, and how far they were looked through."""

from collections.abc import Sequence

import numpy as np

from quorumlog.model.block import INDEX_RECORD_SIZE, data_rows, headers
from quorumlog.storage.entries.entry_runs import EntryRun

SCAN_BYTES = 4 * 1024 * 1024
"""Bytes that are looked through for one answer; a reader asks again for what comes after them."""
CHANNEL_ENTRIES_MAX = 4_096
"""Entries of one channel in an answer: they are copied, one after the other."""


def entries_on_channel(
    runs: Sequence[EntryRun], channel: int, rejected: Sequence[tuple[int, int]], bytes_max: int
) -> tuple[list[EntryRun], int]:
    """Return the users' entries on a channel, packed, and the last index that was looked at.

    At most `bytes_max` bytes of them, but at least one; those in a (first, last) of `rejected` are
    left out. The runs that are returned have no indexes without gaps: `first_index` is that of the
    first entry, `count` their number. May be called on any thread.
    """
    found: list[EntryRun] = []
    room, left, looked_until = bytes_max, CHANNEL_ENTRIES_MAX, -1
    for run in runs:
        block = run.block()
        table = headers(block)
        ordinals = np.flatnonzero(data_rows(table, rejected) & (table["channel"] == channel))
        sizes = block.sizes[ordinals]
        fitting = int(np.searchsorted(sizes.cumsum(), room, side="right"))
        taken = min(len(ordinals), left, max(fitting, 0 if found else 1))
        if taken:
            found.append(_packed(run, ordinals[:taken].tolist()))
            room -= len(found[-1].data)
            left -= taken
        if taken < len(ordinals):
            return found, run.first_index + int(ordinals[taken]) - 1
        looked_until = run.last_index
    return found, looked_until


def _packed(run: EntryRun, ordinals: list[int]) -> EntryRun:
    """Return some entries of a run, one after the other."""
    if len(ordinals) == run.count:
        return run
    block, size = run.block(), INDEX_RECORD_SIZE
    places = [(int(block.offsets[at]), int(block.sizes[at])) for at in ordinals]
    data = b"".join([run.data[start : start + length] for start, length in places])
    records = b"".join([run.records[at * size : (at + 1) * size] for at in ordinals])
    first = run.first_index + ordinals[0]
    return EntryRun(first, len(ordinals), memoryview(data), memoryview(records), run.from_memory)
