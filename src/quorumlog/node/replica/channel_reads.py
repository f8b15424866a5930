"""Which of the entries that were read are on one channel, and how far they were looked through."""

from collections.abc import Sequence

import numpy as np

from quorumlog.model.block import INDEX_RECORD_SIZE, data_rows, headers
from quorumlog.storage.entries.entry_runs import EntryRun

SCAN_BYTES = 4 * 1024 * 1024
"""Bytes that are looked through for one answer; a reader asks again for what comes after them."""
SCAN_BYTES_IN_MEMORY = 256 * 1024
"""The same of entries in memory, which the event loop looks through: 0.1 to 0.3 ms."""
CHANNEL_ENTRIES_MAX = 4_096
"""Entries of one channel in an answer: they are copied, one after the other."""


def entries_on_channel(
    runs: Sequence[EntryRun], channel: int, rejected: Sequence[tuple[int, int]], bytes_max: int
) -> tuple[list[EntryRun], int]:
    """Return the users' entries on a channel, packed, and the last index that was looked at.

    At most `bytes_max` bytes of them, but at least one; those in a (first, last) of `rejected` are
    left out. The run that is returned has no indexes without gaps: `first_index` is that of the
    first entry, `count` their number. `runs` follow one another. May be called on any thread.
    """
    if not runs:
        return [], -1
    run = _joined(runs)
    block = run.block()
    table = headers(block)
    ordinals = np.flatnonzero(data_rows(table, rejected) & (table["channel"] == channel))
    sizes = block.sizes[ordinals]
    fitting = int(np.searchsorted(sizes.cumsum(), bytes_max, side="right"))
    taken = min(len(ordinals), CHANNEL_ENTRIES_MAX, max(fitting, 1))
    is_all = taken == len(ordinals)
    looked_until = run.last_index if is_all else run.first_index + int(ordinals[taken]) - 1
    return [_packed(run, ordinals[:taken].tolist())] if taken else [], looked_until


def last_on_channels(runs: Sequence[EntryRun]) -> dict[int, int]:
    """Return the index of the last entry of users on each channel."""
    run = _joined(runs)
    table = headers(run.block())
    ordinals = np.flatnonzero(data_rows(table))
    indexes = (ordinals + run.first_index).tolist()
    return dict(zip(table["channel"][ordinals].tolist(), indexes, strict=True))


def _joined(runs: Sequence[EntryRun]) -> EntryRun:
    """Return runs as one: each step of numpy costs as much for one entry as for a thousand."""
    if len(runs) == 1:
        return runs[0]
    data = b"".join([run.data for run in runs])
    records = b"".join([run.records for run in runs])
    count = runs[-1].last_index - runs[0].first_index + 1
    is_in_memory = all(run.from_memory for run in runs)
    return EntryRun(runs[0].first_index, count, memoryview(data), memoryview(records), is_in_memory)


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
