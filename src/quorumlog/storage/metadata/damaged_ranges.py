"""Which entries are damaged: kept on disk until they are whole again.

A damaged entry keeps its identity (index, term, size, position) in the index, is never served, and
is asked for from peers (RELIABILITY 2.3).
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from quorumlog.model.errors import CorruptionError
from quorumlog.storage.files.os_files import FileSystem
from quorumlog.storage.metadata.dual_slot_file import DualSlotFile

FILE_NAME = "quorumlog.damaged"
RANGES_MAX = 100
"""At most this many ranges; beyond, the two nearest become one, with good entries between them."""


_PAIRS: Final = msgspec.msgpack.Decoder(list[tuple[int, int]])


class DamagedRanges:
    """Ranges (first index, last index) of damaged entries; ascending, apart, never changed."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        merged: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            elif first <= last:
                merged.append((first, last))
        while len(merged) > RANGES_MAX:
            distances = [merged[i + 1][0] - merged[i][1] for i in range(len(merged) - 1)]
            nearest = distances.index(min(distances))
            merged[nearest : nearest + 2] = [(merged[nearest][0], merged[nearest + 1][1])]
        self.ranges = tuple(merged)
        self._firsts = [first for first, _ in merged]

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DamagedRanges) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)

    @property
    def count(self) -> int:
        """Number of damaged entries."""
        return sum(last - first + 1 for first, last in self.ranges)

    def range_at(self, index: int) -> tuple[int, int] | None:
        """Return the range that holds an index, or None."""
        place = bisect_right(self._firsts, index) - 1
        if place >= 0 and index <= self.ranges[place][1]:
            return self.ranges[place]
        return None

    def next_from(self, index: int) -> int | None:
        """Return the first damaged index at or after an index, or None."""
        if self.range_at(index) is not None:
            return index
        place = bisect_right(self._firsts, index)
        return self._firsts[place] if place < len(self._firsts) else None

    def plus(self, first: int, last: int) -> "DamagedRanges":
        """Return these and one range more."""
        return DamagedRanges([*self.ranges, (first, last)])

    def minus(self, first: int, last: int) -> "DamagedRanges":
        """Return these without the entries first … last."""
        kept = []
        for start, end in self.ranges:
            kept += [(start, min(end, first - 1)), (max(start, last + 1), end)]
        return DamagedRanges((start, end) for start, end in kept if start <= end)

    def within(self, first: int, last: int) -> "DamagedRanges":
        """Return what of these lies among the entries first … last."""
        return DamagedRanges((max(start, first), min(end, last)) for start, end in self.ranges)


class DamageFile:
    """The damaged ranges of one group on disk; not made before the first damage is found."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._slots = DualSlotFile(files, directory, FILE_NAME, mirrored=True)
        self.saved = DamagedRanges()

    def load(self, *, read_only: bool = False) -> DamagedRanges:
        """Return what was saved last; nothing, and `is_lost`, when no copy of it is whole.

        Raises `CorruptionError` when another version wrote it.
        """
        raw = self._slots.read_or_lose(read_only=read_only)
        if raw is not None:
            try:
                pairs = _PAIRS.decode(raw)
            except msgspec.MsgspecError as error:
                path = self._slots.path
                raise CorruptionError(f"{path}: {error}", path, 0) from error
            self.saved = DamagedRanges(pairs)
        return self.saved

    @property
    def is_lost(self) -> bool:
        """Whether what was saved could not be read."""
        return self._slots.is_lost

    def exists(self) -> bool:
        """Whether anything was ever saved."""
        return self._slots.exists()

    def save(self, damaged: DamagedRanges) -> None:
        """Replace it, durably, if it differs."""
        if damaged != self.saved or self.is_lost:
            self._slots.write(msgspec.msgpack.encode(damaged.ranges))
            self.saved = damaged
