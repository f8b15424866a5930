"""Reading the log as a stream: offsets from the cluster, limits on a batch, tasks as in a batch.

Only Spark's checkpoint says how far the stream has come. Every plan asks the cluster again what
there is, and whether it is still the log that was read.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from quorumlog.model.errors import (
    QuorumlogError,
    UnexpectedArgumentError,
    UnknownGroupError,
)
from quorumlog.spark.access import text_of
from quorumlog.spark.source.batch import groups_to_read, matching, position_of
from quorumlog.spark.source.carrying import carried_by, carrying
from quorumlog.spark.source.clusters import PLAN_TIMEOUT_MS, Bounds, Cluster, Connect, RemoteCluster
from quorumlog.spark.source.first_batch import FirstBatch, no_limit
from quorumlog.spark.source.inline_rows import BYTES_MAX, ENTRIES_MAX, InlineRows
from quorumlog.spark.source.offsets import (
    READER,
    SERVERS,
    UNKNOWN_TERM,
    DataLossPolicy,
    Offset,
    OffsetPosition,
    format_offset,
    parse_offset,
    position_at,
)
from quorumlog.spark.source.options import ReadOptions, check_names
from quorumlog.spark.source.planning import (
    RECORDS_MAX,
    IndexRange,
    bytes_of,
    cut,
    last_within,
    shares,
)
from quorumlog.spark.source.tasks import read_range
from quorumlog.spark.worker import freeze_gc

logger = logging.getLogger(__name__)

BOUNDS_MS = 100
"""Idle, Spark wants the latest offset 90 times a second; the cluster is asked this often."""
DISCOVERY_MS = 5_000
"""How often all nodes are asked for groups that match groupPattern."""

OffsetJson: TypeAlias = dict[str, dict[str, int]]
"""An offset as Spark keeps it."""
Latest: TypeAlias = dict[str, dict[str, int | str]]
"""The end of the log in progress, with the servers and the name of the reader."""


def monotonic_ms() -> float:
    """Return milliseconds that only go up."""
    return time.monotonic() * 1_000


class LogStreamReader(InlineRows, SupportsTriggerAvailableNow):
    """Plans batches in one process for as long as a query runs; its copies in tasks only read.

    Travels to tasks, so it opens nothing before it is used; `connect` gives the cluster.
    """

    def __init__(
        self,
        options: ReadOptions,
        columns: tuple[str, ...],
        connect: Connect = RemoteCluster,
        now_ms: Callable[[], float] = monotonic_ms,
    ) -> None:
        self._options = options
        self._columns = columns
        self._connect = connect
        self._now_ms = now_ms
        self._losses = DataLossPolicy(options.fail_on_data_loss)
        self._discovered: set[str] = set()
        self._discovered_at: float | None = None
        self._bounds: dict[str, Bounds] = {}
        self._bounds_for: frozenset[str] = frozenset()
        self._bounds_at = 0.0
        self._pinned: dict[str, int] | None = None
        self._offered_at: float | None = None
        self._has_answered = False
        self._first_batch = FirstBatch()

    def _cluster(self) -> Cluster:
        return self._connect(self._options.servers, self._options.fetch_timeout_ms)

    def _planning_cluster(self) -> Cluster:
        """Return the cluster: an outage is ridden out once it has answered this run of a query."""
        if self._has_answered:
            return self._cluster()
        options = self._options
        cluster = self._connect(options.servers, min(PLAN_TIMEOUT_MS, options.fetch_timeout_ms))
        for group in options.groups[:1]:
            with suppress(UnknownGroupError):  # what that means depends on the offset
                cluster.bounds(group, options.isolation, unconfirmed=True)
        if not options.groups:
            cluster.groups()
        self._has_answered = True
        return cluster

    # -- where to start ----------------------------------------------------------------------

    def initialOffset(self) -> OffsetJson:  # noqa: N802  (names of Spark, here and below)
        """Return where a new query starts.

        Raises `DataLossError`, `IndexOutOfRangeError`, `UnexpectedArgumentError` or `RequestError`
        when what was asked for is not there.
        """
        self._first_batch.begin()
        options = self._options
        cluster = self._planning_cluster()
        groups = groups_to_read(cluster, options)
        starting = options.starting
        if isinstance(starting, dict):
            check_names("startingIndex", starting, tuple(groups))
        offset: Offset = {}
        for group in groups:
            bounds = cluster.bounds(group, options.isolation)
            index = position_of("startingIndex", starting, "latest", group, bounds)
            index = self._losses.first_kept(group, index, bounds.beyond - 1, bounds.begin)
            offset[group] = position_at(cluster, group, index, bounds)
        return format_offset(offset)

    # -- how far a batch goes ----------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one limit of the options; `latestOffset` applies the others along with it."""
        options = self._options
        if options.max_entries_per_trigger is not None:
            return ReadMaxRows(options.max_entries_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_entries_per_trigger is not None:
            return ReadMinRows(options.min_entries_per_trigger)
        return no_limit()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query: what can be read now."""
        cluster = self._planning_cluster()
        isolation = self._options.isolation
        self._pinned = {
            group: cluster.bounds(group, isolation).beyond for group in self._wanted(cluster, {})
        }

    def latestOffset(self, start: OffsetJson, limit: ReadLimit) -> OffsetJson:  # noqa: N802
        """Return where the batch after `start` ends: `start` if it is to be empty.

        The first batch of a new query is empty, so that the checkpoint says where it started.
        So a group that is new is put in at its first entry, and read from the next batch on. Raises
        `DataLossError` when entries after `start` are gone, unless the options say to skip them.
        """
        cluster, start_offset = self._planning_cluster(), parse_offset(start)
        unconfirmed = are_ends_asked_again(self._pinned, start_offset, limit)
        known = self._ask_bounds(cluster, start_offset, unconfirmed=unconfirmed)
        if self._first_batch.is_left_empty(limit):
            return start
        end: Offset = {}
        parts: dict[str, IndexRange] = {}
        for group, position in start_offset.items():
            if group not in known:
                self._losses.lose(
                    f"group {group} was read up to entry {position.index - 1}, but the cluster "
                    "does not host it any more, or the options do not name it"
                )
                continue
            end[group], parts[group] = self._unread(cluster, group, position, known[group])
        for group in known.keys() - start_offset.keys():
            if self._pinned is None or group in self._pinned:
                begin = cluster.bounds(group, self._options.isolation).begin
                end[group] = OffsetPosition(begin, UNKNOWN_TERM)
        parts = self._limited(cluster, parts, limit)
        for group, part in parts.items():
            if part.count > 0:
                self._losses.check_position(cluster, group, start_offset[group], known[group])
                end[group] = position_at(cluster, group, part.last + 1, known[group])
        return start if end == start_offset else format_offset(end)

    def reportLatestOffset(self) -> Latest | None:  # noqa: N802
        """Return the end of the log as last seen, for the progress of the query.

        Its index less that of the end of the batch is how many entries the query lags. A listener
        sees nothing but progress, so the offset also says where and by which name to report.
        """
        if not self._bounds:
            return None
        options = self._options
        ends = {
            group: OffsetPosition(at.beyond, UNKNOWN_TERM) for group, at in self._bounds.items()
        }
        source = {SERVERS: text_of(options.servers), READER: options.reader_name}
        return {group: {**position, **source} for group, position in format_offset(ends).items()}

    def _ask_bounds(
        self, cluster: Cluster, start_offset: Offset, *, unconfirmed: bool
    ) -> Mapping[str, Bounds]:
        """Return what can be read of the groups wanted, without those that no longer exist."""
        wanted = self._wanted(cluster, start_offset)
        if wanted == self._bounds_for and self._now_ms() - self._bounds_at < BOUNDS_MS:
            return self._bounds
        found: dict[str, Bounds] = {}
        for group in sorted(wanted):
            try:
                read_to = start_offset[group].index if group in start_offset else 0
                if self._pinned is not None:
                    read_to = max(read_to, self._pinned.get(group, 0))
                found[group] = self._bounds_of(cluster, group, read_to, unconfirmed=unconfirmed)
            except UnknownGroupError:
                if group not in start_offset:
                    raise
        self._bounds, self._bounds_for, self._bounds_at = found, wanted, self._now_ms()
        return found

    def _bounds_of(
        self, cluster: Cluster, group: str, read_to: int, *, unconfirmed: bool
    ) -> Bounds:
        """Return what can be read; an answer that ends before `read_to` is made sure of."""
        isolation = self._options.isolation
        found = cluster.bounds(group, isolation, unconfirmed=unconfirmed)
        return cluster.bounds(group, isolation) if unconfirmed and found.beyond < read_to else found

    def _wanted(self, cluster: Cluster, start_offset: Offset) -> frozenset[str]:
        """Return the groups to read; one that was read may be on nodes that do not answer now."""
        pattern = self._options.group_pattern
        if pattern is None:
            return frozenset(self._options.groups)
        now = self._now_ms()
        if self._discovered_at is None or now - self._discovered_at >= DISCOVERY_MS:
            self._discovered = matching(pattern, cluster.groups())
            self._discovered_at = self._now_ms()
        return frozenset(self._discovered | matching(pattern, start_offset))

    def _unread(
        self, cluster: Cluster, group: str, position: OffsetPosition, bounds: Bounds
    ) -> tuple[OffsetPosition, IndexRange]:
        """Return where a group is if nothing more is read of it, and what could be read."""
        if self._losses.end_below(cluster, group, position, bounds, self._options.isolation):
            return position_at(cluster, group, bounds.beyond, bounds), IndexRange(group, 0, -1)
        beyond = bounds.beyond
        if self._pinned is not None:
            beyond = min(beyond, self._pinned.setdefault(group, beyond))
        first = max(position.index, bounds.begin)
        if self._options.fail_on_data_loss:  # else it is logged when the batch is planned
            self._losses.first_kept(group, position.index, bounds.beyond - 1, bounds.begin)
        if bounds.begin == bounds.beyond > position.index:  # all unread entries are gone
            return OffsetPosition(bounds.begin, UNKNOWN_TERM), IndexRange(group, 0, -1)
        return position, IndexRange(group, first, beyond - 1)

    def _limited(
        self, cluster: Cluster, parts: Mapping[str, IndexRange], limit: ReadLimit
    ) -> dict[str, IndexRange]:
        """Return the ranges of one batch: nothing, if it is to wait for more."""
        options, now = self._options, self._now_ms()
        parts = {group: part for group, part in parts.items() if part.count > 0}
        if self._offered_at is None:
            self._offered_at = now
        if isinstance(limit, ReadAllAvailable):
            return parts
        total = sum(part.count for part in parts.values())
        is_due = now - self._offered_at >= options.max_trigger_delay_ms
        if total < (options.min_entries_per_trigger or 1) and self._pinned is None and not is_due:
            return {}
        if total:
            self._offered_at = now
        if options.max_entries_per_trigger is not None:
            counts = {group: part.count for group, part in parts.items()}
            given = shares(options.max_entries_per_trigger, counts)
            parts = {
                group: replace(part, last=part.first + given[group] - 1)
                for group, part in parts.items()
            }
        if options.max_bytes_per_trigger is not None:
            parts = _limited_by_bytes(cluster, parts, options.max_bytes_per_trigger)
        return parts

    # -- the batch ---------------------------------------------------------------------------

    def partitions(self, start: OffsetJson, end: OffsetJson) -> list[InputPartition]:
        """Return the index ranges of a batch's tasks, also of a batch that is planned again.

        When entries are gone or differ from before, it raises `DataLossError`, or skips them with a
        warning that says how many, as the options say.
        """
        self._first_batch.end()
        cluster = self._planning_cluster()
        start_offset, end_offset = parse_offset(start), parse_offset(end)
        parts = [
            self._part(cluster, group, start_offset[group], end_offset[group])
            for group in end_offset
            if group in start_offset and start_offset[group].index < end_offset[group].index
        ]
        partitions = cut(parts, self._options, cluster.record)
        if self.takes_rows and len(partitions) == 1 and 0 < partitions[0].count <= ENTRIES_MAX:
            self._read_inline(cluster, partitions[0])
        return carrying(partitions, self._options.servers)

    def _read_inline(self, cluster: Cluster, part: IndexRange) -> None:
        """Read a small batch on the driver; if that fails, a task tries, and reports the error."""
        try:
            if bytes_of(cluster.record, part) <= BYTES_MAX:
                options = replace(self._options, local_reads=False)  # not worth opening files for
                self.attach_rows(list(read_range(cluster, part, options, self._columns)))
        except QuorumlogError as error:
            logger.warning("a small batch of %s is read by a task: %s", part.group, error)

    def _part(
        self, cluster: Cluster, group: str, since: OffsetPosition, until: OffsetPosition
    ) -> IndexRange:
        losses, last = self._losses, until.index - 1
        try:
            bounds = self._bounds_of(cluster, group, until.index, unconfirmed=True)
        except UnknownGroupError:
            losses.lose(f"group {group}: the cluster does not host it any more")
            return IndexRange(group, 0, -1)
        for position in (since, until):
            losses.check_position(cluster, group, position, bounds)
        if losses.end_below(cluster, group, until, bounds, self._options.isolation):
            last = bounds.beyond - 1
        return IndexRange(group, losses.first_kept(group, since.index, last, bounds.begin), last)

    def commit(self, end: OffsetJson) -> None:
        """Report how far the query has come, if `readerName` is set: no other name is known here.

        Spark commits a batch when it plans the next one, and never the last one; a `LagListener`
        reports exact positions.
        """
        name = self._options.reader_name
        if not name:
            return
        cluster = self._cluster()
        for group, position in parse_offset(end).items():
            try:
                cluster.report(group, name, position.index)
            except QuorumlogError as error:
                logger.warning("the position in %s could not be reported: %s", group, error)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the entries of one range as Arrow batches."""
        freeze_gc()
        partition, servers = carried_by(partition, self._options.servers)
        if not isinstance(partition, IndexRange):
            return iter(())
        cluster = self._connect(servers, self._options.fetch_timeout_ms)
        return read_range(cluster, partition, self._options, self._columns)


def _limited_by_bytes(
    cluster: Cluster, parts: Mapping[str, IndexRange], bytes_max: int
) -> dict[str, IndexRange]:
    """Return the ranges that fit, at least one entry of each that has a share."""
    record_of = lru_cache(maxsize=RECORDS_MAX)(cluster.record)
    sizes = {group: bytes_of(record_of, part) for group, part in parts.items() if part.count > 0}
    if sum(sizes.values()) <= bytes_max:
        return dict(parts)
    given = shares(bytes_max, sizes)
    return {
        group: replace(parts[group], last=last_within(record_of, parts[group], share))
        for group, share in given.items()
        if share > 0
    }


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stands for a reader with wrong options: the first method that Spark calls raises their error.

    If making the reader raised it, PySpark would hide it: it stops the reader that it does not
    have, and fails with an `UnboundLocalError`.
    """

    def __init__(self, error: UnexpectedArgumentError) -> None:
        self._error = error

    def initialOffset(self) -> OffsetJson:  # noqa: N802
        """Raise the error."""
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Raise the error."""
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Raise the error."""
        raise self._error

    def latestOffset(self, start: OffsetJson, limit: ReadLimit) -> OffsetJson:  # noqa: N802
        """Raise the error."""
        raise self._error

    def partitions(self, start: OffsetJson, end: OffsetJson) -> Sequence[InputPartition]:
        """Raise the error."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        raise self._error


def are_ends_asked_again(
    pinned: Mapping[Any, int] | None, start_offset: Mapping[Any, Any], limit: ReadLimit
) -> bool:
    """Whether what an answer about the ends lacks is read by a later batch of this run.

    `pinned`: where the run ends; None: it goes on.
    """
    if isinstance(limit, ReadAllAvailable):
        return False
    return pinned is None or start_offset.keys() <= pinned.keys()
