"""Reading topics in one job: planned once, fetched by tasks from the brokers."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
)

from quorumlog.model.errors import IndexOutOfRangeError
from quorumlog.spark.source.clusters import PLAN_TIMEOUT_MS
from quorumlog.spark.source.offsets import DataLossPolicy
from quorumlog.spark.source.pushdown import PushedFilters
from quorumlog.spark.topics.brokers import Brokers, Connect
from quorumlog.spark.topics.options import TopicOptions
from quorumlog.spark.topics.part import EARLIEST, Part
from quorumlog.spark.topics.planning import (
    OffsetRange,
    OffsetRanges,
    bounds_of,
    cut,
    ends_of,
    first_kept,
    parts_to_read,
    starts_of,
)
from quorumlog.spark.topics.remote_brokers import brokers_for
from quorumlog.spark.topics.tasks import read_ranges
from quorumlog.spark.worker import freeze_gc


class TopicReader(DataSourceReader):
    """Plans with what is committed when the job starts.

    Travels to tasks, so it opens nothing before it is used; `connect` gives the brokers.
    """

    def __init__(
        self, options: TopicOptions, columns: tuple[str, ...], connect: Connect = brokers_for
    ) -> None:
        self._options = options
        self._columns = columns
        self._connect = connect

    def partitions(self) -> list[InputPartition]:
        """Return the ranges of offsets of the tasks.

        Raises `DataLossError`, `IndexOutOfRangeError`, `UnknownTopicError`,
        `UnexpectedArgumentError` or `NetworkError` when what was asked for is not there.
        """
        freeze_gc()
        options = self._options
        timeout_ms = min(PLAN_TIMEOUT_MS, options.fetch_timeout_ms)
        brokers = self._connect(options.servers, timeout_ms, options.client_id)
        parts = parts_to_read(brokers, options)
        bounds = bounds_of(brokers, parts, reads_committed=options.reads_committed)
        starts = starts_of(brokers, options, bounds, EARLIEST)
        ends = ends_of(brokers, options, bounds)
        losses = DataLossPolicy(options.fail_on_data_loss)
        ranges = []
        for part in parts:
            first, beyond = starts[part], ends[part]
            if first > beyond:
                raise IndexOutOfRangeError(
                    f"partition {part}: the start, offset {first}, is after the end, {beyond}"
                )
            first = first_kept(losses, part, first, beyond, bounds[part].begin)
            ranges.append(OffsetRange(part, first, beyond))
        return cut(self._narrowed(brokers, ranges), options)

    def _narrowed(self, brokers: Brokers, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """Return what a job needs of ranges."""
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task as Arrow batches."""
        freeze_gc()
        if not isinstance(partition, OffsetRanges):
            return iter(())
        options = self._options
        brokers = self._connect(options.servers, options.fetch_timeout_ms, options.client_id)
        return read_ranges(brokers, partition.ranges, options, self._columns)


class FilteringTopicReader(TopicReader):
    """Takes conditions on partition, offset and timestamp from Spark, and reads less by them.

    Of those on the timestamp only the least time is used, by which brokers find offsets.
    """

    def __init__(
        self, options: TopicOptions, columns: tuple[str, ...], connect: Connect = brokers_for
    ) -> None:
        super().__init__(options, columns, connect)
        self._conditions = PushedFilters("partition", "offset", nullable=True)
        self._since_ms: int | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  (Spark's name)
        """Return the conditions that Spark must check itself."""
        filters = list(filters)
        times = [time for time in map(_least_time, filters) if time is not None]
        self._since_ms = max(times, default=None)
        return self._conditions.take(filters)

    def _narrowed(self, brokers: Brokers, ranges: list[OffsetRange]) -> list[OffsetRange]:
        partition, offset = self._conditions.on("partition"), self._conditions.on("offset")
        found = []
        for one in ranges:
            number = one.part.partition
            if partition.within(number, number) != (number, number):
                continue
            first, last = offset.within(one.first, one.beyond - 1)
            found.append(replace(one, first=first, beyond=last + 1))
        if self._since_ms is None:
            return found
        times: dict[Part, int] = dict.fromkeys((one.part for one in found), self._since_ms)
        since = brokers.offsets(times, reads_committed=self._options.reads_committed)
        return [replace(one, first=_later(one, since[one.part])) for one in found]


def _later(one: OffsetRange, offset: int | None) -> int:
    """Return where a range begins if nothing before an offset is of interest; None: nothing is."""
    return one.beyond if offset is None else max(one.first, offset)


def _least_time(pushed: Filter) -> int | None:
    """Return the milliseconds since 1970 before which a filter lets no record pass."""
    value: Any = getattr(pushed, "value", None)
    if getattr(pushed, "attribute", None) != ("timestamp",) or not isinstance(value, datetime):
        return None
    if not isinstance(pushed, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
        return None
    return int(value.timestamp() * 1_000) if value.timestamp() >= 0 else None
