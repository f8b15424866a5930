"""Reading a part of the log in one job: planned once, fetched by tasks from the cluster."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from quorumlog.model.errors import IndexOutOfRangeError, UnexpectedArgumentError
from quorumlog.spark.source.clusters import PLAN_TIMEOUT_MS, Bounds, Cluster, Connect, RemoteCluster
from quorumlog.spark.source.offsets import DataLossPolicy
from quorumlog.spark.source.options import Position, Positions, ReadOptions, check_names
from quorumlog.spark.source.planning import IndexRange, cut, first_of_term
from quorumlog.spark.source.pushdown import PushedFilters
from quorumlog.spark.source.tasks import read_range
from quorumlog.spark.worker import freeze_gc


def groups_to_read(cluster: Cluster, options: ReadOptions) -> list[str]:
    """Return the groups asked for. Raises `UnexpectedArgumentError` if a pattern matches none."""
    if options.group_pattern is None:
        return list(options.groups)
    hosted = cluster.groups()
    found = matching(options.group_pattern, hosted)
    if not found:
        raise UnexpectedArgumentError(
            f"option groupPattern={options.group_pattern!r} matches none of the groups that the "
            f"cluster hosts: {', '.join(sorted(hosted)) or 'it hosts none'}"
        )
    return sorted(found)


def matching(pattern: str, groups: Iterable[str]) -> set[str]:
    """Return the groups whose whole name a regular expression matches."""
    return {name for name in groups if re.fullmatch(pattern, name)}


def position_of(
    name: str, positions: Positions | None, default: Position, group: str, bounds: Bounds
) -> int:
    """Return the index that an option gives for a group.

    Raises `IndexOutOfRangeError` when it is beyond the end of the log.
    """
    position = positions[group] if isinstance(positions, dict) else positions
    position = default if position is None else position
    if position == "earliest":
        return bounds.begin
    if position == "latest":
        return bounds.beyond
    if position > bounds.beyond:
        raise IndexOutOfRangeError(
            f"{name} {position} is beyond the end: group {group} has "
            f"{_span_text(bounds.begin, bounds.beyond)}"
        )
    return position


def _span_text(begin: int, beyond: int) -> str:
    return f"entries {begin} to {beyond - 1}" if beyond > begin else "no entries"


class LogReader(DataSourceReader):
    """Plans with the committed index as it is when the job starts.

    Travels to tasks, so it opens nothing before it is used; `connect` gives the cluster.
    """

    def __init__(
        self, options: ReadOptions, columns: tuple[str, ...], connect: Connect = RemoteCluster
    ) -> None:
        self._options = options
        self._columns = columns
        self._connect = connect

    def partitions(self) -> list[InputPartition]:
        """Return the index ranges of the tasks.

        Raises `DataLossError`, `IndexOutOfRangeError`, `UnexpectedArgumentError` or `RequestError`
        when what was asked for is not there.
        """
        freeze_gc()
        options = self._options
        cluster = self._connect(options.servers, min(PLAN_TIMEOUT_MS, options.fetch_timeout_ms))
        groups = groups_to_read(cluster, options)
        for name, given in (("startingIndex", options.starting), ("endingIndex", options.ending)):
            if isinstance(given, dict):
                check_names(name, given, tuple(groups))
        parts = [self._narrowed(cluster, self._part(cluster, group)) for group in groups]
        return list(cut(parts, options, cluster.record))

    def _part(self, cluster: Cluster, group: str) -> IndexRange:
        """Return what the options ask for of one group."""
        options = self._options
        bounds = cluster.bounds(group, options.isolation)
        first = position_of("startingIndex", options.starting, "earliest", group, bounds)
        beyond = position_of("endingIndex", options.ending, "latest", group, bounds)
        if first > beyond:
            raise IndexOutOfRangeError(
                f"group {group}: startingIndex {first} is above endingIndex {beyond}"
            )
        first = DataLossPolicy(options.fail_on_data_loss).first_kept(
            group, first, beyond - 1, bounds.begin
        )
        return IndexRange(group, first, beyond - 1)

    def _narrowed(self, cluster: Cluster, part: IndexRange) -> IndexRange:
        """Return what a job needs of a range."""
        return part

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the entries of one range as Arrow batches."""
        freeze_gc()
        if not isinstance(partition, IndexRange):
            return iter(())
        options = self._options
        cluster = self._connect(options.servers, options.fetch_timeout_ms)
        return read_range(cluster, partition, options, self._columns)


class FilteringLogReader(LogReader):
    """Takes conditions on index and term from Spark, and reads only the range that meets them."""

    def __init__(
        self, options: ReadOptions, columns: tuple[str, ...], connect: Connect = RemoteCluster
    ) -> None:
        super().__init__(options, columns, connect)
        self._conditions = PushedFilters("index", "term", nullable=False)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  (Spark's name)
        """Return the conditions that Spark must check itself."""
        return self._conditions.take(filters)

    def _narrowed(self, cluster: Cluster, part: IndexRange) -> IndexRange:
        index, term = self._conditions.on("index"), self._conditions.on("term")
        first, last = index.within(part.first, part.last)
        part = replace(part, first=first, last=last)
        if term.beyond is not None and part.count > 0:
            part = replace(part, last=first_of_term(cluster.record, part, term.beyond) - 1)
        if term.least is not None and part.count > 0:
            part = replace(part, first=first_of_term(cluster.record, part, term.least))
        return part
