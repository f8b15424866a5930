"""Bodies of given entries of a log, which need not lie side by side."""

from collections.abc import Sequence

from quorumlog.model.block import HEADER_SIZE
from quorumlog.storage.log.interface import Log

READ_BYTES = 64 * 1024
"""Bytes that one read takes at most, unless an entry is larger: so far apart may entries lie that
are read together."""


def read_bodies(log: Log, indexes: Sequence[int], bytes_max: int) -> list[memoryview]:
    """Return the bodies of entries by index, in rising order, from memory or checked from disk.

    As many of the first as have `bytes_max` bytes together, but at least one; none of none. May
    be called from another thread, as `Log.read`, and raises what that raises.
    """
    bodies: list[memoryview] = []
    room, last = bytes_max, -1
    for index in indexes:
        if index > last:
            run = log.read(index, indexes[-1], READ_BYTES)
            first, last = run.first_index, run.last_index
            data, start, size = run.data, 0, len(run.data)
            block = run.block() if last > first else None
        if block is not None:
            start, size = int(block.offsets[index - first]), int(block.sizes[index - first])
        body = data[start + HEADER_SIZE : start + size]
        room -= len(body)
        if room < 0 and bodies:
            break
        bodies.append(body)
    return bodies
