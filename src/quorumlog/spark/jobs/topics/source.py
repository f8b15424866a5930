"""Where jobs on topics read: topics of a cluster, by ranges of offsets."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from quorumlog.client.results import Isolation
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.spark.access import AnyAccess, options_of
from quorumlog.spark.jobs.log_source import TIMEOUT_MS
from quorumlog.spark.source.clusters import PLAN_TIMEOUT_MS
from quorumlog.spark.topics.brokers import FETCH_BYTES, Brokers, Connect
from quorumlog.spark.topics.confirm import batches_there, confirmed_bounds
from quorumlog.spark.topics.options import TopicOptions, parse_topic_options
from quorumlog.spark.topics.part import Part
from quorumlog.spark.topics.planning import (
    FEW_OFFSETS,
    Bounds,
    OffsetRange,
    OffsetRanges,
    cut,
    parts_to_read,
)
from quorumlog.spark.topics.remote_brokers import brokers_for
from quorumlog.spark.topics.schema import COLUMNS
from quorumlog.spark.topics.tasks import arrow_batches

RECORD_COLUMNS = tuple(name for name in COLUMNS if name != "topic")
CLIENT_ID = "quorumlog-pipeline"
_ALL = ".*"
_NOWHERE: Final[Mapping[Part, int]] = {}


@dataclass(frozen=True, slots=True)
class TopicSource:
    """Topics as their brokers have them; an object of this kind travels to tasks."""

    options: TopicOptions
    connect: Connect = brokers_for

    @property
    def isolation(self) -> Isolation:
        """What is seen of transactions."""
        return "read_committed" if self.options.reads_committed else "read_uncommitted"

    def brokers(self) -> Brokers:
        """Return this process's connections."""
        options = self.options
        return self.connect(options.servers, options.fetch_timeout_ms, options.client_id)

    def parts(self) -> list[Part]:
        """Return the partitions; no broker is waited for as long as for those that have answered.

        Raises `NetworkError`, `UnknownTopicError`, `UnexpectedArgumentError`.
        """
        options = self.options
        timeout_ms = min(PLAN_TIMEOUT_MS, options.fetch_timeout_ms)
        return parts_to_read(self.connect(options.servers, timeout_ms, options.client_id), options)

    def bounds(
        self, parts: Iterable[Part], read_to: Mapping[Part, int] = _NOWHERE
    ) -> dict[Part, Bounds]:
        """Return which offsets of partitions can be read now; those that are gone are left out.

        Their leaders are asked, as a majority knows them: a broker that has not noticed that it was
        deposed is not believed. `read_to`: ends that partitions had (see `confirmed_bounds`).
        """
        return confirmed_bounds(
            self.brokers(), parts, read_to, reads_committed=self.options.reads_committed
        )

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of topics, "" for one that has none; those that are gone are left out.

        A majority of the brokers names them. What this process reads then is of these topics, or
        of such as were made later.
        """
        return self.brokers().topic_ids(sorted(set(topics)))

    def records(
        self, one: OffsetRange, columns: tuple[str, ...] = RECORD_COLUMNS
    ) -> Iterator[tuple[list[pa.RecordBatch], int]]:
        """Yield the records of a range bit by bit, with the offset up to which it was read.

        Raises `OffsetsLostError` when retention was first, `UnknownTopicError`, `CorruptionError`,
        `RecordBatchError`, `NetworkError`.
        """
        fetched = batches_there(
            self.brokers(),
            one,
            reads_committed=self.options.reads_committed,
            bytes_max=FETCH_BYTES,
            local_reads=self.options.local_reads,
        )
        for found in fetched:
            rows = list(arrow_batches(found, one, self.options, columns))
            yield rows, min(found.next_offset, one.beyond)

    def cut(self, ranges: Sequence[OffsetRange], cores: int) -> list[OffsetRanges]:
        """Return ranges as tasks read them, in their order, none of them empty."""
        total = sum(one.count for one in ranges)
        if not total:
            return []
        shared = min(cores, total // FEW_OFFSETS) or None
        found = cut(ranges, replace(self.options, min_partitions=shared))
        return [one for one in found if isinstance(one, OffsetRanges)]


def topic_source(
    servers: AnyAccess,
    topics: str | Sequence[str] | None,
    *,
    pattern: str | None = None,
    isolation: Isolation = "read_committed",
    timeout_ms: int = TIMEOUT_MS,
    connect: Connect = brokers_for,
) -> TopicSource:
    """Return topics by their names or by a regular expression for whole names; all if neither.

    Raises `UnexpectedArgumentError` for what cannot be.
    """
    if topics is not None and pattern is not None:
        raise UnexpectedArgumentError("give either topics or a pattern for their names")
    names = topics if topics is None or isinstance(topics, str) else ",".join(topics)
    chosen = {"subscribePattern": pattern or _ALL} if names is None else {"subscribe": names}
    options = parse_topic_options(
        {
            **options_of(servers, "kafka.bootstrap.servers"),
            "isolationLevel": isolation,
            "fetchTimeoutMs": str(timeout_ms),
            "kafka.client.id": CLIENT_ID,
            **chosen,
        }
    )
    return TopicSource(options, connect)
