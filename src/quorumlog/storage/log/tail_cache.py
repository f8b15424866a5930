"""The newest blocks of a log in memory: what is pushed, what readers at the tail get, and all that
is not yet on disk.
"""

from bisect import bisect_right
from collections.abc import Sequence

import msgspec
import numpy as np

from quorumlog.model.block import HEADER_SIZE, INDEX_RECORD_DTYPE, INDEX_RECORD_SIZE, Block
from quorumlog.storage.entries.entry_runs import EntryRun
from quorumlog.storage.metadata.checkpoint import UNKNOWN_CRC, LogPoint

RUNS_MAX = 16_384
"""Blocks kept at most (beside those not yet durable), however small they are."""


class CachedRun(msgspec.Struct, frozen=True, gc=False):
    """A staged block: its entries are final, first_index … last_index.

    There are thousands of these, so the garbage collector should have little to visit
    (`service/garbage.py`): they are not tracked, and `records` are bytes.
    """

    first_index: int
    block: Block
    records: bytes

    @property
    def last_index(self) -> int:
        """Index of the last entry."""
        return self.first_index + len(self.block.sizes) - 1

    def place_of(self, index: int) -> tuple[int, int]:
        """Return where an entry starts on disk, and its size."""
        ordinal = index - self.first_index
        record = np.frombuffer(self.records, INDEX_RECORD_DTYPE, 1, ordinal * INDEX_RECORD_SIZE)[0]
        return int(record["pos"]), int(record["size"])

    def cut(self, first_index: int, last_index: int, bytes_max: int) -> EntryRun:
        """Return the entries from first_index on that fit, at least one."""
        start = first_index - self.first_index
        offsets, sizes = self.block.offsets, self.block.sizes
        stop = min(last_index - self.first_index + 1, len(sizes))
        begin = int(offsets[start])
        end = int(offsets[stop - 1] + sizes[stop - 1])
        if end - begin > bytes_max and stop - start > 1:
            ends = offsets[start:stop] + sizes[start:stop]
            fitting = int(np.searchsorted(ends, begin + bytes_max, side="right"))
            stop = start + max(1, fitting)
            end = int(offsets[stop - 1] + sizes[stop - 1])
        records = memoryview(self.records)[start * INDEX_RECORD_SIZE : stop * INDEX_RECORD_SIZE]
        return EntryRun(first_index, stop - start, self.block.data[begin:end], records, True)


class TailCache:
    """Consecutive runs, oldest evicted first; the caller holds the log's lock.

    On the thread on which runs are added, `find` and `bodies` need no lock.

    `opened` is the end of the log when it was opened: what is appended first is compared there, by
    leaders and followers.
    """

    def __init__(self, bytes_max: int | None, opened: LogPoint | None = None) -> None:
        self._opened = opened
        self._bytes_max = bytes_max
        self._runs: list[CachedRun] = []
        self._firsts: list[int] = []
        self._evicted = 0
        self._begin = 0
        self.size_bytes = 0

    def find(self, index: int) -> CachedRun | None:
        """Return the run with the entry at an index; None if it is not cached."""
        place = bisect_right(self._firsts, index, self._evicted) - 1
        if place < self._evicted:
            return None
        run = self._runs[place]
        return run if index < run.first_index + len(run.block.sizes) else None

    def bodies(self, indexes: Sequence[int]) -> list[memoryview] | None:
        """Return the bodies of entries by index, in rising order, as they lie here.

        None if any of them is not cached, or was dropped.
        """
        if indexes and indexes[0] < self._begin:
            return None
        found: list[memoryview] = []
        place, last, firsts = self._evicted, -1, self._firsts
        for index in indexes:
            if index > last:
                place = bisect_right(firsts, index, place) - 1
                if place < self._evicted:
                    return None
                run = self._runs[place]
                block, first = run.block, run.first_index
                data, offsets, sizes = block.data, block.offsets, block.sizes
                last = first + len(sizes) - 1
                if index > last:
                    return None
            start = int(offsets[index - first])
            found.append(data[start + HEADER_SIZE : start + int(sizes[index - first])])
        return found

    def opened_chain(self, index: int) -> int | None:
        """Return the chain CRC of an entry if the log ended with it when it was opened."""
        opened = self._opened
        is_known = opened is not None and opened.index == index and opened.chain_crc != UNKNOWN_CRC
        return opened.chain_crc if opened is not None and is_known else None

    def before_first(self, end_index: int) -> int:
        """Return the last index that is only on disk, given the log's end."""
        if self._evicted == len(self._runs):
            return end_index
        return self._firsts[self._evicted] - 1

    def run_at(self, index: int) -> CachedRun:
        """Return the run with an index that is cached."""
        return self._runs[bisect_right(self._firsts, index, self._evicted) - 1]

    def oldest(self, count: int) -> list[CachedRun]:
        """Return up to `count` runs, oldest first."""
        return self._runs[self._evicted : self._evicted + count]

    def add(self, run: CachedRun) -> None:
        """Add the next run."""
        self._runs.append(run)
        self._firsts.append(run.first_index)
        self.size_bytes += len(run.block.data)

    def evict(self, durable_index: int) -> None:
        """Drop the oldest durable runs beyond the bounds."""
        if self._bytes_max is None:
            return
        while self._evicted < len(self._runs):
            run = self._runs[self._evicted]
            count = len(self._runs) - self._evicted
            beyond = self.size_bytes > self._bytes_max or count > RUNS_MAX
            if not beyond or run.last_index > durable_index:
                break
            self.size_bytes -= len(run.block.data)
            self._evicted += 1
        self._compact()

    def _compact(self) -> None:
        if self._evicted > RUNS_MAX or self._evicted * 2 > len(self._runs):
            del self._runs[: self._evicted]
            del self._firsts[: self._evicted]
            self._evicted = 0

    def drop_before(self, index: int) -> None:
        """Drop all entries before an index; runs that lie only partly before it stay."""
        self._begin = max(self._begin, index)
        while self._evicted < len(self._runs):
            run = self._runs[self._evicted]
            if run.last_index >= index:
                break
            self.size_bytes -= len(run.block.data)
            self._evicted += 1
        self._compact()

    def truncate(self, from_index: int) -> None:
        """Drop from_index and everything after it."""
        if self._opened is not None and from_index <= self._opened.index:
            self._opened = None
        while len(self._runs) > self._evicted and self._runs[-1].last_index >= from_index:
            run = self._runs.pop()
            self._firsts.pop()
            self.size_bytes -= len(run.block.data)
            kept = from_index - run.first_index
            if kept > 0:
                records = run.records[: kept * INDEX_RECORD_SIZE]
                self.add(CachedRun(run.first_index, run.block.slice(0, kept), records))
