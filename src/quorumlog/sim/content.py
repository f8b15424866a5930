"""A file's bytes twice: as the page cache shows them, and as the disk holds them."""

from random import Random
from typing import Any, Final, Literal

from quorumlog.model.block import Buffer

SECTOR_BYTES: Final = 512
PAGE_BYTES: Final = 4_096
SHARES: Final = (0.0, 0.1, 0.5, 0.9, 1.0)
"""Chances of a sector to survive, drawn per file, so that extremes are as likely as mixtures."""
_PAGE_SECTORS: Final = PAGE_BYTES // SECTOR_BYTES

Survival = Literal["random", "none", "all"]


def room_of(size: int) -> int:
    """Return what a file of a size takes on disk."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


class Survivors:
    """Chooses what outlives a loss of power."""

    def __init__(self, random: Random, survival: Survival) -> None:
        self._random = random
        self._survival = survival

    def count(self, total: int) -> int:
        """Return how many of the first changes in a row."""
        if not total or self._survival == "none":
            return 0
        return total if self._survival == "all" else self._random.randint(0, total)

    def sectors(self, sectors: set[int]) -> list[int]:
        """Return those of the sectors, ascending."""
        if not sectors or self._survival == "none":
            return []
        share = 1.0 if self._survival == "all" else self._random.choice(SHARES)
        return [sector for sector in sorted(sectors) if self._random.random() < share]


class Content:
    """Bytes of a file, cached and durable; the name is kept elsewhere."""

    def __init__(self, now_ms: int) -> None:
        self.cached = bytearray()
        self.durable = bytearray()
        self.sizes: list[int] = []  # changes of the size since the last sync, oldest first
        self.dirty: set[int] = set()
        self.lost: set[int] = set()  # sectors that a failed sync marked clean
        self.allocated = 0
        self.modified_ms = now_ms

    def __deepcopy__(self, memo: dict[int, Any]) -> "Content":
        twin = Content(self.modified_ms)
        twin.cached, twin.durable = self.cached[:], self.durable[:]
        twin.sizes, twin.dirty, twin.lost = self.sizes[:], set(self.dirty), set(self.lost)
        twin.allocated = self.allocated
        return twin

    def write(self, data: Buffer, offset: int) -> None:
        """Change bytes in place: maps show it."""
        end = offset + len(data)
        if end == offset:
            return
        if end > len(self.cached):
            self._extend(end)
        self.cached[offset:end] = data
        sectors = range(offset // SECTOR_BYTES, (end - 1) // SECTOR_BYTES + 1)
        self.dirty.update(sectors)
        if self.lost:
            self.lost.difference_update(sectors)

    def resize(self, size: int) -> None:
        """Cut, or extend with zeros that have no room reserved yet."""
        if size > len(self.cached):
            self._extend(size)
        elif size < len(self.cached):
            self._record_size(size)
            self.cached = self.cached[:size]
            self.dirty = {sector for sector in self.dirty if sector * SECTOR_BYTES < size}
            self.lost = {sector for sector in self.lost if sector * SECTOR_BYTES < size}
            self.allocated = min(self.allocated, room_of(size))

    def _extend(self, size: int) -> None:
        self._record_size(size)
        zeros = bytes(size - len(self.cached))
        try:
            self.cached.extend(zeros)
        except BufferError:  # mapped: the map keeps the old memory
            self.cached = self.cached + zeros

    def _record_size(self, size: int) -> None:
        """Remember a change of the size; changes in the same direction are one."""
        before = [len(self.durable), *self.sizes]
        if len(before) > 1 and (before[-1] > before[-2]) == (size > before[-1]):
            self.sizes[-1] = size
        else:
            self.sizes.append(size)

    def sync(self) -> None:
        """Make size and bytes durable."""
        if self.sizes:
            self._persist_sizes(len(self.sizes))
        if self.dirty:
            self._persist_sectors(sorted(self.dirty))
            self.dirty.clear()

    def fail_sync(self, random: Random) -> None:
        """Forget that some sectors wait to be written, though the cache goes on to show them."""
        waiting = sorted(self.dirty)
        gone = [sector for sector in waiting if random.random() < 0.5]
        if waiting:
            gone = gone or [random.choice(waiting)]
        self.dirty.difference_update(gone)
        self.lost.update(gone)

    def _persist_sizes(self, count: int) -> None:
        for size in self.sizes[:count]:
            if size < len(self.durable):
                del self.durable[size:]
            else:
                self.durable.extend(bytes(size - len(self.durable)))
        self.sizes = []

    def _persist_sectors(self, sectors: list[int]) -> None:
        cached, durable = self.cached, self.durable
        size = min(len(cached), len(durable))
        for sector in sectors:
            start = sector * SECTOR_BYTES
            end = min(start + SECTOR_BYTES, size)
            if start < end:
                durable[start:end] = cached[start:end]

    def drop_cache(self, first: int, end: int) -> None:
        """Show what the disk holds of lost sectors in whole clean pages, from first to end."""
        on_disk = min([len(self.durable), *self.sizes])
        busy = {sector // _PAGE_SECTORS for sector in self.dirty}
        for sector in sorted(self.lost):
            page = sector // _PAGE_SECTORS
            if page * PAGE_BYTES < first or (page + 1) * PAGE_BYTES > end or page in busy:
                continue
            start = sector * SECTOR_BYTES
            stop = min(start + SECTOR_BYTES, len(self.cached))
            held = self.durable[start : min(stop, on_disk)]
            self.cached[start:stop] = held.ljust(stop - start, b"\0")
            self.lost.remove(sector)

    def lose_power(self, survivors: Survivors) -> None:
        """Become what the disk holds."""
        if not (self.sizes or self.dirty or self.lost):
            return
        sizes = survivors.count(len(self.sizes))
        if sizes < len(self.sizes):  # room goes with the size
            self.allocated = room_of([len(self.durable), *self.sizes][sizes])
        self._persist_sizes(sizes)
        self._persist_sectors(survivors.sectors(self.dirty))
        self.cached = self.durable[:]
        self.dirty, self.lost = set(), set()
