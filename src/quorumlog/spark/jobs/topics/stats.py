"""Describes what topics hold: records, bytes, null values, times and rates, by partition.

topic_stats(spark, "h:p,h:p,h:p", "flights").text()
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from quorumlog.client.results import Isolation
from quorumlog.model.wording import counted
from quorumlog.spark.access import AnyAccess
from quorumlog.spark.jobs.audit.report import size_text, table
from quorumlog.spark.jobs.log_source import TIMEOUT_MS
from quorumlog.spark.jobs.progress import run_with_progress
from quorumlog.spark.jobs.tasks import Progress, RunTasks, Task, cores_of, no_progress
from quorumlog.spark.jobs.topics.count import (
    COUNTED,
    PERIOD_MS_MIN,
    CountRanges,
    Periods,
    RecordCounts,
)
from quorumlog.spark.jobs.topics.source import TopicSource, topic_source
from quorumlog.spark.topics.part import Part
from quorumlog.spark.topics.planning import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_YEARS_MS = 253_402_300_800_000
"""The end of the year 9999, which is the last one that has a text."""


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """One partition: offsets begin … end - 1, of which some have no record (markers, aborted).

    Bytes are those of keys and values. `largest_bytes` is the size of the largest record, which is
    at `largest_offset` (None: there are no records). Times are timestamps of records, in
    milliseconds since 1970; None: there is none.
    """

    topic: str
    partition: int
    begin: int
    end: int
    records: int
    key_bytes: int
    value_bytes: int
    null_keys: int
    null_values: int
    largest_bytes: int
    largest_offset: int | None
    first_ms: int | None
    last_ms: int | None
    records_per_second: float | None
    """Over the time from the first to the last timestamp; None: that is less than a second."""


@dataclass(frozen=True, slots=True)
class TopicPeriod:
    """Records with timestamps from `from_ms` on, before `to_ms`."""

    topic: str
    from_ms: int
    to_ms: int
    records: int
    bytes: int


@dataclass(slots=True)
class TopicStats:
    """A description of topics; `periods` have records and bytes of each topic over time."""

    source: str
    records: int = 0
    bytes: int = 0
    partitions: list[PartitionStats] = field(default_factory=list)
    periods: list[TopicPeriod] = field(default_factory=list)

    def to_object(self) -> dict[str, object]:
        """Return it as `--json` shows it."""
        return asdict(self)

    def text(self) -> str:
        """Return it for a person to read."""
        topics = len({one.topic for one in self.partitions})
        lines = [
            f"{self.source}: {counted(topics, 'topic')}, "
            f"{counted(len(self.partitions), 'partition')}, {counted(self.records, 'record')}, "
            f"keys and values {size_text(self.bytes)}",
            "",
            *table(
                (
                    "PARTITION",
                    ">OFFSETS",
                    ">RECORDS",
                    ">KEYS",
                    ">VALUES",
                    ">NULL KEYS",
                    ">NULL VALUES",
                    ">LARGEST",
                    "FIRST (UTC)",
                    "LAST (UTC)",
                    ">RECORDS/S",
                ),
                [_row(one) for one in self.partitions],
            ),
        ]
        return "\n".join([*lines, *self._fastest_lines()])

    def _fastest_lines(self) -> list[str]:
        """Say of each topic when most came."""
        fastest: dict[str, TopicPeriod] = {}
        for one in self.periods:
            known = fastest.get(one.topic)
            if known is None or one.records > known.records:
                fastest[one.topic] = one
        return [
            f"{one.topic}: busiest period ({_length(one)}): {counted(one.records, 'record')}, "
            f"from {time_text(one.from_ms)}"
            for one in fastest.values()
        ]


def _length(one: TopicPeriod) -> str:
    return f"{(one.to_ms - one.from_ms) / 1_000:,g} s"


def _largest_text(one: PartitionStats) -> str:
    return f"{counted(one.largest_bytes, 'byte')} at {one.largest_offset}"


def _row(one: PartitionStats) -> tuple[str, ...]:
    return (
        str(Part(one.topic, one.partition)),
        f"{one.begin} to {one.end - 1}" if one.begin < one.end else "none",
        f"{one.records:,}",
        size_text(one.key_bytes),
        size_text(one.value_bytes),
        f"{one.null_keys:,}",
        f"{one.null_values:,}",
        "" if one.largest_offset is None else _largest_text(one),
        time_text(one.first_ms),
        time_text(one.last_ms),
        "" if one.records_per_second is None else f"{one.records_per_second:,.1f}",
    )


def time_text(milliseconds: int | None) -> str:
    """Return a timestamp in UTC, or in milliseconds if no calendar has it."""
    if milliseconds is None:
        return ""
    if not 0 <= milliseconds < _YEARS_MS:
        return f"{milliseconds} ms"
    moment = datetime.fromtimestamp(milliseconds / 1_000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def topic_stats(
    spark: "SparkSession",
    servers: AnyAccess,
    topics: str | Sequence[str] | None = None,
    *,
    pattern: str | None = None,
    isolation: Isolation = "read_committed",
    timeout_ms: int = TIMEOUT_MS,
    progress: Progress = no_progress,
) -> TopicStats:
    """Count what topics hold up to their ends as they are now; all topics if none is named.

    `pattern` is a regular expression for whole names. Raises `PipelineError` when a task fails,
    `UnknownTopicError`, `NetworkError`.
    """
    source = topic_source(
        servers, topics, pattern=pattern, isolation=isolation, timeout_ms=timeout_ms
    )

    def run(tasks: Sequence[Task]) -> list[bytes]:
        return run_with_progress(spark, tasks, progress)

    return stats_of_topics(source, run, cores_of(spark))


def stats_of_topics(source: TopicSource, run: RunTasks, cores: int) -> TopicStats:
    """Count topics, with `run` to carry out the tasks."""
    bounds = source.bounds(source.parts())
    ranges = [OffsetRange(part, one.begin, one.beyond) for part, one in bounds.items()]
    counts = {part: RecordCounts(*part) for part in bounds}
    tasks = [CountRanges(source, one.ranges) for one in source.cut(ranges, cores)]
    for raw in run(tasks):
        for found in COUNTED.decode(raw):
            counts[found.part].add(found)
    partitions = [
        _partition(found, bounds[part].begin, bounds[part].beyond) for part, found in counts.items()
    ]
    return TopicStats(
        source=f"topics at {source.options.servers}",
        records=sum(one.records for one in partitions),
        bytes=sum(one.key_bytes + one.value_bytes for one in partitions),
        partitions=partitions,
        periods=_periods(counts.values()),
    )


def _partition(found: RecordCounts, begin: int, end: int) -> PartitionStats:
    rate = None
    if found.min_ms is not None and found.max_ms is not None:
        length_ms = found.max_ms - found.min_ms
        rate = found.records * 1_000 / length_ms if length_ms >= PERIOD_MS_MIN else None
    return PartitionStats(
        topic=found.topic,
        partition=found.partition,
        begin=begin,
        end=end,
        records=found.records,
        key_bytes=found.key_bytes,
        value_bytes=found.value_bytes,
        null_keys=found.null_keys,
        null_values=found.null_values,
        largest_bytes=0 if found.largest is None else found.largest.bytes,
        largest_offset=None if found.largest is None else found.largest.offset,
        first_ms=found.min_ms,
        last_ms=found.max_ms,
        records_per_second=rate,
    )


def _periods(counts: Iterable[RecordCounts]) -> list[TopicPeriod]:
    """Return the periods of topics, those of one after those of the other, in order."""
    by_topic: dict[str, Periods] = {}
    for one in counts:
        by_topic.setdefault(one.topic, Periods()).add(one.periods)
    return [
        TopicPeriod(
            topic,
            number * found.length_ms,
            (number + 1) * found.length_ms,
            found.records[number],
            found.bytes[number],
        )
        for topic, found in by_topic.items()
        for number in sorted(found.records)
    ]
