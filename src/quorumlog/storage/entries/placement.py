"""Where entries go: none spans files, and a blank record fills what is left.

See spec 20 section 3.1.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from quorumlog.model.block import INDEX_RECORD_SIZE, Block, Int64s
from quorumlog.model.codes import Magic
from quorumlog.model.errors import check
from quorumlog.storage.files.file_sequence import FileSequence
from quorumlog.storage.files.write_plans import Step, Write

BLANK_RESERVE = 8
"""Bytes that stay free after the last entry of a data file, for a blank record."""


def blank_record(length: int) -> bytes:
    """Return the start of a blank record over this many bytes; the rest of it is zeros."""
    return int(Magic.BLANK).to_bytes(4, "big", signed=True) + length.to_bytes(4, "big")


class PlacedRun(msgspec.Struct, frozen=True):
    """Entries start … stop - 1 of a block that lie together in one file."""

    start: int
    stop: int
    position: int


def place(data: FileSequence, position: int, sizes: Int64s) -> tuple[list[PlacedRun], Int64s]:
    """Decide where entries of these sizes go after a position; return runs and positions."""
    ends = sizes.cumsum()  # the method: `np.cumsum` takes three calls to get there
    positions = ends - sizes
    size = int(ends[-1])
    if position + size <= data.start_of(position) + data.file_size - BLANK_RESERVE:
        positions += position
        return [PlacedRun(0, len(sizes), position)], positions
    runs: list[PlacedRun] = []
    start = 0
    while start < len(sizes):
        file_start = data.start_of(position)
        room = file_start + data.file_size - BLANK_RESERVE - position
        used = int(positions[start])
        stop = int(np.searchsorted(ends, used + room, side="right"))
        if stop > start:
            runs.append(PlacedRun(start, stop, position))
            position += int(ends[stop - 1]) - used
            start = stop
        else:
            check(position > file_start, "an entry fits into a file", int(sizes[start]))
            position = file_start + data.file_size
    for run in runs:
        shift = run.position - int(positions[run.start])
        positions[run.start : run.stop] += shift
    return runs, positions


def data_steps(
    data: FileSequence, runs: Sequence[PlacedRun], parts: Sequence[Block], end_position: int
) -> list[Step]:
    """Write the entries of each run after a log that ends at `end_position`.

    Where a run starts in another file than the one before ends in, a blank record fills that one.
    """
    steps: list[Step] = []
    for run, part in zip(runs, parts, strict=True):
        if run.position != end_position:
            target = data.file_at(end_position)
            blank = blank_record(target.end - end_position)
            steps.append(Write(target, end_position - target.start, [blank], durable=True))
        target = data.file_at(run.position)
        steps.append(Write(target, run.position - target.start, [part.data], durable=True))
        end_position = run.position + len(part.data)
    return steps


def index_steps(index: FileSequence, first_index: int, records: memoryview) -> list[Step]:
    """Index records are written but not fsynced: they can be made again from the data."""
    steps: list[Step] = []
    begin, done = first_index * INDEX_RECORD_SIZE, 0
    while done < len(records):
        target = index.file_at(begin + done)
        offset = begin + done - target.start
        part = records[done : done + index.file_size - offset]
        steps.append(Write(target, offset, [part], durable=False))
        done += len(part)
    return steps
