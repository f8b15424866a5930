"""Counting the records of ranges of offsets, many at a time: what tasks of the topics' stats do."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.model.block import Int64s
from quorumlog.spark.jobs.topics.files import offsets_in
from quorumlog.spark.jobs.topics.source import TopicSource
from quorumlog.spark.topics.confirm import OffsetsLostError
from quorumlog.spark.topics.part import Part
from quorumlog.spark.topics.planning import OffsetRange, remaining

PERIODS_MAX: Final = 240
"""Periods of time in which records are counted; they become twice as long before there are more."""
PERIOD_MS_MIN: Final = 1_000
"""Periods are as long at least: in a shorter one, a batch of records looks like a high rate."""
COLUMNS: Final = ("key", "value", "offset", "timestamp")


class Periods(msgspec.Struct, array_like=True):
    """Records and bytes by period, of which number n has the milliseconds from n · `length_ms` on.

    Only periods with records are there, so that one record from long ago costs one period.
    """

    length_ms: int = PERIOD_MS_MIN
    records: dict[int, int] = {}
    bytes: dict[int, int] = {}

    def take(self, times_ms: Int64s, sizes: Int64s) -> None:
        """Count records."""
        few = np.unique(times_ms // self.length_ms)
        while len(few) > PERIODS_MAX:
            self._lengthen()
            few = np.unique(few // 2)
        numbers, places = np.unique(times_ms // self.length_ms, return_inverse=True)
        counts = np.bincount(places).tolist()
        totals = np.bincount(places, sizes).tolist()
        for number, count, total in zip(numbers.tolist(), counts, totals, strict=True):
            self.records[number] = self.records.get(number, 0) + count
            self.bytes[number] = self.bytes.get(number, 0) + int(total)
        self._bound()

    def add(self, other: "Periods") -> None:
        """Add what another task counted; `other` may become coarser."""
        while self.length_ms < other.length_ms:
            self._lengthen()
        while other.length_ms < self.length_ms:
            other._lengthen()
        for mine, theirs in ((self.records, other.records), (self.bytes, other.bytes)):
            for number, count in theirs.items():
                mine[number] = mine.get(number, 0) + count
        self._bound()

    def _bound(self) -> None:
        while len(self.records) > PERIODS_MAX:
            self._lengthen()

    def _lengthen(self) -> None:
        """Make periods twice as long."""
        self.length_ms *= 2
        self.records, self.bytes = _joined(self.records), _joined(self.bytes)


def _joined(found: dict[int, int]) -> dict[int, int]:
    joined: dict[int, int] = {}
    for number, count in found.items():
        joined[number // 2] = joined.get(number // 2, 0) + count
    return joined


class Largest(msgspec.Struct, array_like=True, frozen=True):
    """The largest record: bytes of its key and value."""

    bytes: int
    offset: int


class RecordCounts(msgspec.Struct, array_like=True):
    """What was counted of one partition. Times are milliseconds since 1970; None: there is none."""

    topic: str
    partition: int
    records: int = 0
    key_bytes: int = 0
    value_bytes: int = 0
    null_keys: int = 0
    null_values: int = 0
    largest: Largest | None = None
    min_ms: int | None = None
    max_ms: int | None = None
    periods: Periods = msgspec.field(default_factory=Periods)

    @property
    def part(self) -> Part:
        """The partition."""
        return Part(self.topic, self.partition)

    def take(self, rows: pa.RecordBatch) -> None:
        """Count records, at least one."""
        keys, values = (_sizes(rows.column(name)) for name in ("key", "value"))
        sizes = np.maximum(keys, 0) + np.maximum(values, 0)
        self.records += rows.num_rows
        self.key_bytes += int(np.maximum(keys, 0).sum())
        self.value_bytes += int(np.maximum(values, 0).sum())
        self.null_keys += int((keys < 0).sum())
        self.null_values += int((values < 0).sum())
        place = int(np.argmax(sizes))
        self._note_largest(Largest(int(sizes[place]), int(offsets_in(rows)[place])))
        times = rows.column("timestamp").cast(pa.int64())
        is_known = pc.is_valid(times).to_numpy(zero_copy_only=False)
        milliseconds = pc.fill_null(times, 0).to_numpy()[is_known] // 1_000
        if len(milliseconds):
            self._note_times(int(milliseconds.min()), int(milliseconds.max()))
            self.periods.take(milliseconds, sizes[is_known])

    def add(self, other: "RecordCounts") -> None:
        """Add what was counted of another range of the same partition."""
        self.records += other.records
        self.key_bytes += other.key_bytes
        self.value_bytes += other.value_bytes
        self.null_keys += other.null_keys
        self.null_values += other.null_values
        if other.largest is not None:
            self._note_largest(other.largest)
        if other.min_ms is not None and other.max_ms is not None:
            self._note_times(other.min_ms, other.max_ms)
        self.periods.add(other.periods)

    def _note_largest(self, found: Largest) -> None:
        if self.largest is None or found.bytes > self.largest.bytes:
            self.largest = found

    def _note_times(self, least: int, most: int) -> None:
        self.min_ms = least if self.min_ms is None else min(self.min_ms, least)
        self.max_ms = most if self.max_ms is None else max(self.max_ms, most)


def _sizes(values: pa.Array) -> Int64s:
    """Return the length of each byte string; -1 for null."""
    sizes: Int64s = pc.fill_null(pc.binary_length(values), -1).to_numpy().astype(np.int64)
    return sizes


COUNTED: Final = msgspec.msgpack.Decoder(list[RecordCounts])


@dataclass(frozen=True, slots=True)
class CountRanges:
    """Count the records of ranges of offsets; what retention removes is left out."""

    source: TopicSource
    ranges: tuple[OffsetRange, ...]

    def __call__(self) -> bytes:
        """Return `RecordCounts`, one a range."""
        return msgspec.msgpack.encode(list(self._counted()))

    def _counted(self) -> Iterable[RecordCounts]:
        for one in self.ranges:
            counts, left = RecordCounts(*one.part), one
            while left.count:
                try:
                    for batches, beyond in self.source.records(left, COLUMNS):
                        for rows in batches:
                            if rows.num_rows:
                                counts.take(rows)
                        left = OffsetRange(one.part, beyond, one.beyond)
                except OffsetsLostError as error:
                    left = remaining(left, error.bounds)
            yield counts
