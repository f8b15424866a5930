"""Reading topics as a stream: offsets from the brokers, limits on a batch, tasks as in a batch.

Only Spark's checkpoint says how far the stream has come.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from quorumlog.model.errors import QuorumlogError
from quorumlog.spark.source.carrying import carried_by, carrying
from quorumlog.spark.source.clusters import PLAN_TIMEOUT_MS
from quorumlog.spark.source.first_batch import FirstBatch, no_limit
from quorumlog.spark.source.inline_rows import ENTRIES_MAX, InlineRows
from quorumlog.spark.source.offsets import DataLossPolicy
from quorumlog.spark.source.planning import shares
from quorumlog.spark.source.stream import (
    BOUNDS_MS,
    DISCOVERY_MS,
    are_ends_asked_again,
    monotonic_ms,
)
from quorumlog.spark.topics.brokers import Brokers, Connect
from quorumlog.spark.topics.confirm import confirmed_bounds
from quorumlog.spark.topics.offsets import Offset, OffsetJson, format_offset, parse_offset
from quorumlog.spark.topics.options import TopicOptions
from quorumlog.spark.topics.part import LATEST, Part
from quorumlog.spark.topics.planning import (
    Bounds,
    OffsetRange,
    OffsetRanges,
    bounds_of,
    cut,
    first_kept,
    matches,
    offsets_text,
    parts_matching,
    parts_to_read,
    starts_of,
)
from quorumlog.spark.topics.remote_brokers import brokers_for
from quorumlog.spark.topics.tasks import read_few, read_ranges
from quorumlog.spark.worker import freeze_gc


class TopicStreamReader(InlineRows, SupportsTriggerAvailableNow):
    """Plans batches in one process for as long as a query runs; its copies in tasks only read.

    Travels to tasks, so it opens nothing before it is used; `connect` gives the brokers.
    """

    def __init__(
        self,
        options: TopicOptions,
        columns: tuple[str, ...],
        connect: Connect = brokers_for,
        now_ms: Callable[[], float] = monotonic_ms,
    ) -> None:
        self._options = options
        self._columns = columns
        self._connect = connect
        self._now_ms = now_ms
        self._losses = DataLossPolicy(options.fail_on_data_loss)
        self._parts: frozenset[Part] = frozenset()
        self._parts_at: float | None = None
        self._bounds: dict[Part, Bounds] = {}
        self._bounds_for: frozenset[Part] = frozenset()
        self._bounds_at = 0.0
        self._pinned: dict[Part, int] | None = None
        self._offered_at: float | None = None
        self._has_answered = False
        self._first_batch = FirstBatch()

    def _brokers(self) -> Brokers:
        options = self._options
        return self._connect(options.servers, options.fetch_timeout_ms, options.client_id)

    def _planning_brokers(self) -> Brokers:
        """Return the brokers: an outage is ridden out once they have answered this run."""
        if self._has_answered:
            return self._brokers()
        options = self._options
        timeout_ms = min(PLAN_TIMEOUT_MS, options.fetch_timeout_ms)
        brokers = self._connect(options.servers, timeout_ms, options.client_id)
        some = options.topics[:1]  # what it means that one is not there depends
        brokers.partitions(some, unconfirmed=True)
        self._has_answered = True
        return brokers

    # -- where to start ----------------------------------------------------------------------

    def initialOffset(self) -> OffsetJson:  # noqa: N802  (names of Spark, here and below)
        """Return where a new query starts.

        Raises `DataLossError`, `IndexOutOfRangeError`, `UnexpectedArgumentError`,
        `UnknownTopicError` or `NetworkError` when what was asked for is not there.
        """
        self._first_batch.begin()
        options = self._options
        brokers = self._planning_brokers()
        parts = parts_to_read(brokers, options)
        bounds = bounds_of(brokers, parts, reads_committed=options.reads_committed)
        starts = starts_of(brokers, options, bounds, LATEST)
        return format_offset(
            {
                part: first_kept(self._losses, part, start, bounds[part].beyond, bounds[part].begin)
                for part, start in starts.items()
            }
        )

    # -- how far a batch goes ----------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one limit of the options; `latestOffset` applies the other along with it."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return no_limit()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query: what can be read now."""
        brokers = self._planning_brokers()
        bounds = bounds_of(
            brokers,
            self._wanted(brokers, {}, unconfirmed=False),
            reads_committed=self._options.reads_committed,
        )
        self._pinned = {part: at.beyond for part, at in bounds.items()}

    def latestOffset(self, start: OffsetJson, limit: ReadLimit) -> OffsetJson:  # noqa: N802
        """Return where the batch after `start` ends: `start` if it is to be empty.

        The first batch of a new query is empty, so that the checkpoint says where it started.
        So a partition that is new is put in at its first offset, and read from the next batch on.
        Raises `DataLossError` when records after `start` are gone, unless the options say to skip
        them.
        """
        brokers, start_offset = self._planning_brokers(), parse_offset(start)
        unconfirmed = are_ends_asked_again(self._pinned, start_offset, limit)
        known = self._ask_bounds(brokers, start_offset, unconfirmed=unconfirmed)
        if self._first_batch.is_left_empty(limit):
            return start
        end: Offset = {}
        ranges: dict[Part, OffsetRange] = {}
        for part, offset in start_offset.items():
            if part not in known:
                self._losses.lose(
                    f"partition {part} was {_read_up_to(offset)}, but the cluster does "
                    "not have it any more, or the options do not name it"
                )
                continue
            end[part], ranges[part] = self._unread(part, offset, known[part])
        new = known.keys() - start_offset.keys()
        if self._pinned is not None:
            new &= self._pinned.keys()
        if new:
            begins = self._confirmed(brokers, new, {})
            end |= {part: one.begin for part, one in begins.items()}
        for part, one in self._limited(ranges, limit).items():
            end[part] = one.beyond
        return start if end == start_offset else format_offset(end)

    def reportLatestOffset(self) -> OffsetJson | None:  # noqa: N802
        """Return the ends of the partitions as last seen, for the progress of the query.

        An end less the offset that a batch ended with is how many offsets the query lags.
        """
        if not self._bounds:
            return None
        return format_offset({part: at.beyond for part, at in self._bounds.items()})

    def _ask_bounds(
        self, brokers: Brokers, start_offset: Offset, *, unconfirmed: bool
    ) -> Mapping[Part, Bounds]:
        """Return what can be read of the partitions wanted, without those that are gone."""
        wanted = self._wanted(brokers, start_offset, unconfirmed=unconfirmed)
        if wanted == self._bounds_for and self._now_ms() - self._bounds_at < BOUNDS_MS:
            return self._bounds
        read_to = start_offset
        if self._pinned is not None:  # an end below these is not believed of one leader
            pinned = self._pinned
            read_to = {part: max(start_offset.get(part, 0), pinned.get(part, 0)) for part in wanted}
        self._bounds = self._confirmed(brokers, wanted, read_to, unconfirmed=unconfirmed)
        self._bounds_for, self._bounds_at = wanted, self._now_ms()
        return self._bounds

    def _confirmed(
        self, brokers: Brokers, parts: Iterable[Part], known: Offset, *, unconfirmed: bool = False
    ) -> dict[Part, Bounds]:
        reads_committed = self._options.reads_committed
        return confirmed_bounds(
            brokers, parts, known, reads_committed=reads_committed, unconfirmed=unconfirmed
        )

    def _wanted(
        self, brokers: Brokers, start_offset: Offset, *, unconfirmed: bool
    ) -> frozenset[Part]:
        """Return the partitions to read, new ones too.

        `unconfirmed`: whether they are there is asked seldom, and of one broker.
        """
        options, now = self._options, self._now_ms()
        if options.assigned is not None:
            return frozenset(options.assigned)
        is_due = self._parts_at is None or now - self._parts_at >= DISCOVERY_MS
        if is_due or not unconfirmed:
            if options.pattern is not None:
                topics = brokers.topics(unconfirmed=unconfirmed)
                found = parts_matching(options.pattern, topics)
            else:
                topics = brokers.partitions(options.topics, unconfirmed=unconfirmed)
                found = [Part(name, one) for name, parts in topics.items() for one in parts]
            self._parts, self._parts_at = frozenset(found), self._now_ms()
        known = {*start_offset, *(self._pinned or ())}
        missing = {part for part in known if self._names(part)} - self._parts
        if missing:  # perhaps only at the broker that was asked
            self._parts |= brokers.existing(missing)
        return self._parts

    def _names(self, part: Part) -> bool:
        """Whether the options name the topic of a partition."""
        pattern = self._options.pattern
        if pattern is None:
            return part.topic in self._options.topics
        return matches(pattern, part.topic)

    def _unread(self, part: Part, offset: int, bounds: Bounds) -> tuple[int, OffsetRange]:
        """Return where a partition is if nothing more is read of it, and what could be read."""
        if bounds.beyond < offset:
            self._lose_end(part, offset, bounds)
            return bounds.beyond, OffsetRange(part, bounds.beyond, bounds.beyond)
        beyond = bounds.beyond
        if self._pinned is not None:
            beyond = min(beyond, self._pinned.setdefault(part, beyond))
        if self._options.fail_on_data_loss:  # else it is logged when the batch is planned
            first_kept(self._losses, part, offset, bounds.beyond, bounds.begin)
        if bounds.begin == bounds.beyond > offset:  # all unread records are gone
            return bounds.begin, OffsetRange(part, bounds.begin, bounds.begin)
        return offset, OffsetRange(part, max(offset, bounds.begin), beyond)

    def _lose_end(self, part: Part, offset: int, bounds: Bounds) -> None:
        self._losses.lose(
            f"partition {part} was {_read_up_to(offset)}, but has {offsets_text(bounds)} "
            "now: was the topic deleted and made again, or the cluster restored from an older copy?"
        )

    def _limited(
        self, ranges: Mapping[Part, OffsetRange], limit: ReadLimit
    ) -> dict[Part, OffsetRange]:
        """Return the ranges of one batch: nothing, if it is to wait for more."""
        options, now = self._options, self._now_ms()
        wanted = {part: one for part, one in ranges.items() if one.count}
        if self._offered_at is None:
            self._offered_at = now
        if isinstance(limit, ReadAllAvailable):
            return wanted
        total = sum(one.count for one in wanted.values())
        is_due = now - self._offered_at >= options.max_trigger_delay_ms
        if total < (options.min_offsets_per_trigger or 1) and self._pinned is None and not is_due:
            return {}
        if total:
            self._offered_at = now
        if options.max_offsets_per_trigger is None:
            return wanted
        counts = {part: one.count for part, one in wanted.items()}
        given = shares(options.max_offsets_per_trigger, counts)
        return {
            part: OffsetRange(part, one.first, one.first + given[part])
            for part, one in wanted.items()
            if given[part]
        }

    # -- the batch ---------------------------------------------------------------------------

    def partitions(self, start: OffsetJson, end: OffsetJson) -> list[InputPartition]:
        """Return the ranges of a batch's tasks, also of a batch that is planned again.

        When records are gone, it raises `DataLossError`, or skips them with a warning that says how
        many, as the options say.
        """
        self._first_batch.end()
        brokers = self._planning_brokers()
        start_offset, end_offset = parse_offset(start), parse_offset(end)
        wanted = {
            part: OffsetRange(part, start_offset[part], beyond)
            for part, beyond in end_offset.items()
            if part in start_offset and start_offset[part] < beyond
        }
        bounds = self._confirmed(brokers, wanted, end_offset, unconfirmed=True)
        ranges = [self._kept(one, bounds.get(part)) for part, one in wanted.items()]
        tasks = cut(ranges, self._options)
        total = sum(one.count for one in ranges)
        if self.takes_rows and 0 < total <= ENTRIES_MAX and len(tasks) == 1:
            self._read_inline(brokers, ranges)
        return carrying(tasks, self._options.servers)

    def _kept(self, one: OffsetRange, bounds: Bounds | None) -> OffsetRange:
        """Return what is there of a range that was planned."""
        part, beyond = one.part, one.beyond
        if bounds is None:
            self._losses.lose(f"partition {part}: the cluster does not have it any more")
            return OffsetRange(part, 0, 0)
        if bounds.beyond < beyond:
            self._lose_end(part, beyond, bounds)
            beyond = bounds.beyond
        return OffsetRange(
            part, first_kept(self._losses, part, one.first, beyond, bounds.begin), beyond
        )

    def _read_inline(self, brokers: Brokers, ranges: list[OffsetRange]) -> None:
        """Read a small batch on the driver; if that fails, a task tries, and reports the error."""
        with suppress(QuorumlogError):
            rows = read_few(
                brokers, [one for one in ranges if one.count], self._options, self._columns
            )
            if rows is not None:
                self.attach_rows(rows)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task as Arrow batches."""
        freeze_gc()
        options = self._options
        partition, servers = carried_by(partition, options.servers)
        if not isinstance(partition, OffsetRanges):
            return iter(())
        brokers = self._connect(servers, options.fetch_timeout_ms, options.client_id)
        return read_ranges(brokers, partition.ranges, options, self._columns)


def _read_up_to(offset: int) -> str:
    return f"read up to offset {offset - 1}" if offset else "to be read from its first record on"
