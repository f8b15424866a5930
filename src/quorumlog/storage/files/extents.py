"""Which parts of a file were ever written, as the file system says (Linux' FIEMAP).

A file of a log has its room reserved from the start, and reads as zeros where nothing was written.
To look for other bytes there by reading would take longer than all else in opening a group.
"""

import fcntl
import struct

_FIEMAP = 0xC020_660B
_FLAG_SYNC = 1
"""Write what is only in the cache first: it counts as written, too."""
_EXTENT_LAST = 0x1
_EXTENT_UNWRITTEN = 0x800
_HEADER = struct.Struct("=QQIIII")
_EXTENT = struct.Struct("=QQQ16xI12x")
_EXTENTS_MAX = 64
"""If a range has more extents, what follows counts as written."""


def written_ranges(descriptor: int, begin: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of begin … end - 1 that may hold other bytes than zeros, in order.

    A file system that keeps no such account: all of it.
    """
    room = bytearray(_HEADER.size + _EXTENTS_MAX * _EXTENT.size)
    _HEADER.pack_into(room, 0, begin, end - begin, _FLAG_SYNC, 0, _EXTENTS_MAX, 0)
    try:
        fcntl.ioctl(descriptor, _FIEMAP, room)
    except OSError:
        return [(begin, end)]
    count = _HEADER.unpack_from(room)[3]
    ranges: list[tuple[int, int]] = []
    for number in range(count):
        place = _HEADER.size + number * _EXTENT.size
        logical, _, length, flags = _EXTENT.unpack_from(room, place)
        first, after = max(begin, logical), min(end, logical + length)
        is_cut_off = number == _EXTENTS_MAX - 1 and not flags & _EXTENT_LAST
        if is_cut_off:
            after = end
        if first < after and (is_cut_off or not flags & _EXTENT_UNWRITTEN):
            ranges.append((first, after))
    return ranges
