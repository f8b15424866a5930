"""Where the batches of each partition are in the log: the newest in memory, others sealed.

The index follows the log: batches are added as they are appended, and removed with it. What is
committed and durable is sealed from time to time into columns (`batch_columns`), which are kept in
files, so that memory is bounded and a start need not read the whole log.
"""

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from quorumlog.records.batch import BatchHeader
from quorumlog.topics.batch_columns import (
    ChannelRows,
    PlacedBatch,
    SealedBatches,
    SealedRows,
    next_since,
    row_at_bytes,
)


class SealLimits(msgspec.Struct, frozen=True):
    """When batches in memory are sealed.

    `batches`: this many are sealed together, and full columns have at least this many.
    `size_bytes`: this many bytes of record batches are sealed, however few they are: a start reads
    what is not.
    """

    batches: int = 65_536
    size_bytes: int = 256 * 1024 * 1024


DEFAULT_SEAL_LIMITS: Final = SealLimits()


class _NewestRows:
    """See `ChannelRows`: the batches of one partition that are not sealed."""

    def __init__(self) -> None:
        self._base_offsets = array("q")
        self._indexes = array("q")
        self._times = array("q")
        self._counts = array("I")
        self._sizes = array("I")
        self._columns = (
            self._base_offsets,
            self._indexes,
            self._times,
            self._counts,
            self._sizes,
        )

    @property
    def first_offset(self) -> int:
        """See `ChannelRows`."""
        return self._base_offsets[0]

    @property
    def newest_time(self) -> int:
        """See `ChannelRows`."""
        return int(np.frombuffer(self._times, dtype=np.int64).max())

    def __len__(self) -> int:
        """See `ChannelRows`."""
        return len(self._indexes)

    def add(self, index: int, header: BatchHeader) -> int:
        """Add a batch after the others; return its bytes."""
        size_bytes = header.size_bytes
        self._base_offsets.append(header.base_offset)
        self._indexes.append(index)
        self._times.append(header.max_timestamp)
        self._counts.append(header.count)
        self._sizes.append(size_bytes)
        return size_bytes

    def pop(self) -> int:
        """Remove the last batch; return its bytes."""
        size_bytes = self._sizes[-1]
        for column in self._columns:
            column.pop()
        return size_bytes

    def drop(self, count: int) -> int:
        """Remove the first batches; return their bytes."""
        size_bytes = sum(self._sizes[:count])
        for column in self._columns:
            del column[:count]
        return size_bytes

    def row_of(self, offset: int) -> int:
        """See `ChannelRows`."""
        return bisect_right(self._base_offsets, offset) - 1

    def batch(self, row: int) -> PlacedBatch:
        """See `ChannelRows`."""
        base_offset = self._base_offsets[row]
        return PlacedBatch(
            base_offset,
            base_offset + self._counts[row] - 1,
            self._indexes[row],
            self._sizes[row],
            self._times[row],
        )

    def next_since(self, row: int, time_ms: int) -> int | None:
        """See `ChannelRows`."""
        return next_since(np.frombuffer(self._times, dtype=np.int64), row, time_ms)

    def newest_within(self, row: int, stop: int) -> int:
        """See `ChannelRows`."""
        return row + int(np.frombuffer(self._times, dtype=np.int64)[row:stop].argmax())

    def row_after(self, index: int) -> int:
        """See `ChannelRows`."""
        return bisect_right(self._indexes, index)

    def sum_bytes(self, row: int, stop: int) -> int:
        """See `ChannelRows`."""
        return sum(self._sizes[row:stop])

    def row_at_bytes(self, row: int, size_bytes: int) -> int:
        """See `ChannelRows`."""
        return row_at_bytes(np.frombuffer(self._sizes, dtype=np.uint32), row, size_bytes)

    def until(self, last_index: int) -> SealedRows | None:
        """Return a copy of the batches up to an index of the log; None: there are none."""
        stop = bisect_right(self._indexes, last_index)
        if not stop:
            return None
        columns = [np.array(column[:stop]) for column in self._columns]
        return SealedRows(max(self._times[:stop]), *columns)


class BatchIndex:
    """The batches of all partitions of one log.

    `sealed` are the columns there are, in order; `limits` say when others are due.

    All methods run on the event loop's thread; columns never change, so any thread may read them.
    """

    def __init__(
        self, sealed: Sequence[SealedBatches] = (), limits: SealLimits = DEFAULT_SEAL_LIMITS
    ) -> None:
        self.sealed = list(sealed)
        self._limits = limits
        self._newest: dict[int, _NewestRows] = {}
        self._order: deque[tuple[int, int]] = deque()
        self.unsealed_bytes = 0
        """Bytes of the batches that are in memory only."""

    @property
    def sealed_index(self) -> int:
        """Index up to which batches are sealed; -1: none is."""
        return self.sealed[-1].last_index if self.sealed else -1

    @property
    def newest_index(self) -> int:
        """Index of the newest batch; -1: there is none."""
        if self._order:
            return self._order[-1][0]
        return max((columns.newest_index for columns in self.sealed[-1:]), default=-1)

    @property
    def unsealed(self) -> int:
        """How many batches are in memory only."""
        return len(self._order)

    # -- the log goes on ----------------------------------------------------------------------

    def add(self, channel: int, index: int, header: BatchHeader) -> None:
        """A batch was appended to the partition on a channel. One that is sealed is known."""
        sealed = self.sealed
        if sealed and index <= sealed[-1].last_index:
            return
        rows = self._newest.get(channel)
        if rows is None:
            rows = self._newest[channel] = _NewestRows()
        self.unsealed_bytes += rows.add(index, header)
        self._order.append((index, channel))

    def truncate(self, from_index: int) -> None:
        """from_index and everything after it was removed; nothing of it is sealed."""
        while self._order and self._order[-1][0] >= from_index:
            _, channel = self._order.pop()
            rows = self._newest[channel]
            self.unsealed_bytes -= rows.pop()
            if not len(rows):
                del self._newest[channel]

    def removed(self, before_begin_index: int) -> list[SealedBatches]:
        """Everything up to there is not in the log any more; return the columns that go with it."""
        gone = [one for one in self.sealed if one.last_index <= before_begin_index]
        self.sealed = self.sealed[len(gone) :]
        self._forget_newest(before_begin_index)
        return gone

    def _forget_newest(self, last_index: int) -> None:
        """Forget the batches in memory up to an index."""
        counts: dict[int, int] = {}
        while self._order and self._order[0][0] <= last_index:
            _, channel = self._order.popleft()
            counts[channel] = counts.get(channel, 0) + 1
        for channel, count in counts.items():
            rows = self._newest[channel]
            self.unsealed_bytes -= rows.drop(count)
            if not len(rows):
                del self._newest[channel]

    def clear(self) -> list[SealedBatches]:
        """Forget everything, since the log starts anew; return all columns."""
        gone, self.sealed = self.sealed, []
        self._newest.clear()
        self._order.clear()
        self.unsealed_bytes = 0
        return gone

    # -- sealing ------------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether so much is in memory only that it should be sealed."""
        limits = self._limits
        return self.unsealed >= limits.batches or self.unsealed_bytes >= limits.size_bytes

    def to_seal(self, last_index: int) -> SealedBatches:
        """Return columns of what comes after the sealed ones, up to a committed, durable index.

        If the last columns are not full, those returned begin with them, and take their place.
        """
        first, rows = self.sealed_index + 1, dict[int, list[SealedRows]]()
        last = self.sealed[-1] if self.sealed else None
        merged = last if last is not None and last.count < self._limits.batches else None
        if merged is not None:
            first = merged.first_index
            for channel in merged.channels:
                if (found := merged.rows_of(channel)) is not None:
                    rows[channel] = [found]
        for channel, newest in self._newest.items():
            if (found := newest.until(last_index)) is not None:
                rows.setdefault(channel, []).append(found)
        return SealedBatches.of(first, last_index, rows)

    def seal(self, columns: SealedBatches) -> list[SealedBatches]:
        """Columns that `to_seal` returned are kept now; return those that they take the place of.

        They may have been removed with the log meanwhile; the caller then drops them again.
        """
        replaced = [one for one in self.sealed if one.first_index >= columns.first_index]
        self.sealed = [*self.sealed[: len(self.sealed) - len(replaced)], columns]
        self._forget_newest(columns.last_index)
        return replaced

    # -- looked up ----------------------------------------------------------------------------

    def _parts(self, channel: int, offset: int) -> list[ChannelRows]:
        """Return the batches of a partition in parts, from that with an offset on."""
        parts = list[ChannelRows]()
        newest = self._newest.get(channel)
        if newest is not None:
            parts.append(newest)
        for columns in reversed(self.sealed):
            if parts and parts[-1].first_offset <= offset:
                break
            rows = columns.rows_of(channel)
            if rows is not None:
                parts.append(rows)
        return parts[::-1]

    def batches_from(self, channel: int, offset: int) -> Iterator[PlacedBatch]:
        """Yield the batches of a partition, from the one that holds an offset on.

        If none holds it, they begin with the first one after it.
        """
        for rows in self._parts(channel, offset):
            for row in range(max(0, rows.row_of(offset)), len(rows)):
                batch = rows.batch(row)
                if batch.last_offset >= offset:
                    yield batch

    def batches_within(
        self,
        channel: int,
        offset: int,
        end: int,
        bytes_max: int,
        *,
        count_max: int,
        at_least: bool,
    ) -> list[PlacedBatch]:
        """Return the same batches as far as they lie before offset `end`, and fit.

        They are at most `count_max`, and have at most `bytes_max` bytes together; if `at_least`,
        the first one fits always.
        """
        found: list[PlacedBatch] = []
        for rows in self._parts(channel, offset):
            for row in range(max(0, rows.row_of(offset)), len(rows)):
                batch = rows.batch(row)
                if batch.last_offset < offset:
                    continue
                bytes_max -= batch.size_bytes
                if bytes_max < 0 and (found or not at_least):
                    return found
                if batch.last_offset >= end:
                    return found
                found.append(batch)
                if len(found) == count_max or bytes_max <= 0:
                    return found
        return found

    def batches_since(self, channel: int, offset: int, time_ms: int) -> Iterator[PlacedBatch]:
        """Yield those of the same batches that have a record not older than a time."""
        for rows in self._parts(channel, offset):
            if rows.newest_time < time_ms:
                continue
            row = rows.next_since(max(0, rows.row_of(offset)), time_ms)
            while row is not None:
                batch = rows.batch(row)
                if batch.last_offset >= offset:
                    yield batch
                row = rows.next_since(row + 1, time_ms)

    def newest_within(self, channel: int, offset: int, end: int) -> PlacedBatch | None:
        """Return the first of the same batches, before offset `end`, that have the newest time.

        None: there are none.
        """
        found: PlacedBatch | None = None
        for rows in self._parts(channel, offset):
            row, stop = self._from(rows, offset), rows.row_of(end - 1) + 1
            if row < stop and (found is None or rows.newest_time > found.newest_time):
                batch = rows.batch(rows.newest_within(row, stop))
                if found is None or batch.newest_time > found.newest_time:
                    found = batch
        return found

    # -- what may go --------------------------------------------------------------------------

    def extent_of(self, channel: int, begin: int, end: int) -> tuple[int | None, int]:
        """Return the index of the batch that holds the first of some offsets, and all their bytes.

        They are `begin` to `end` - 1; the index is None if there is no batch.
        """
        first_index, size_bytes = None, 0
        for rows in self._parts(channel, begin):
            row, stop = self._from(rows, begin), rows.row_of(end - 1) + 1
            if row < stop:
                if first_index is None:
                    first_index = rows.batch(row).index
                size_bytes += rows.sum_bytes(row, stop)
        return first_index, size_bytes

    def _from(self, rows: ChannelRows, offset: int) -> int:
        """Return the row with an offset, or the first one after it."""
        row = rows.row_of(offset)
        return row + 1 if row < 0 or rows.batch(row).last_offset < offset else row

    def offset_after(self, channel: int, begin: int, index: int) -> int | None:
        """Return the base offset of the first batch after an index, from an offset on."""
        for rows in self._parts(channel, begin):
            row = max(self._from(rows, begin), rows.row_after(index))
            if row < len(rows):
                return rows.batch(row).base_offset
        return None

    def offset_at_bytes(self, channel: int, begin: int, size_bytes: int) -> int | None:
        """Return the base offset of the batch that has the byte after some, from an offset on.

        The batches before it, from that with the offset on, have at most `size_bytes`.
        """
        room = size_bytes
        for rows in self._parts(channel, begin):
            first = self._from(rows, begin)
            row = rows.row_at_bytes(first, room)
            if row < len(rows):
                return rows.batch(row).base_offset
            room -= rows.sum_bytes(first, row)
        return None

    def first_needed(self, starts: Mapping[int, int], begin_index: int) -> int | None:
        """Return the index of the first batch that has records of a partition from its start on.

        `starts` are offsets by channel; partitions that are not in it need nothing. Batches before
        `begin_index` are not in the log any more. None: no batch is needed.
        """
        for columns in self.sealed:
            if (found := columns.first_needed(starts, begin_index)) is not None:
                return found
        first = None
        for channel, rows in self._newest.items():
            begin = starts.get(channel)
            if begin is not None and (row := self._from(rows, begin)) < len(rows):
                index = rows.batch(row).index
                first = index if first is None else min(first, index)
        return first
