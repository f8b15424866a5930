"""How far streaming queries are: printed, as metrics, and reported to the log for its status."""

import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from prometheus_client import REGISTRY, CollectorRegistry, Gauge
from pyspark.sql.streaming.listener import StreamingQueryListener

from quorumlog.model.errors import QuorumlogError
from quorumlog.spark.access import AnyAccess, of_text
from quorumlog.spark.source.clusters import Connect, RemoteCluster
from quorumlog.spark.source.offsets import READER, SERVERS, parse_offset
from quorumlog.spark.source.options import NAME_LENGTH_MAX
from quorumlog.spark.topics import offsets as topics

logger = logging.getLogger(__name__)

REPORT_PAUSE_S = 30.0
"""Pause after a failed report before the next one of that query, as Spark waits for each."""
_LABELS = ("query", "group")


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of a query in one group: it has processed everything before `index`.

    `servers` are those of the cluster; `reader` is the name under which the position is reported
    there. Either is empty if it is not known. A partition of a topic is a group here, too, by the
    name topic-partition; of it nothing is reported.
    """

    query: str
    group: str
    index: int
    entries_behind: int
    servers: str = ""
    reader: str = ""
    is_of_topic: bool = False


class PositionListener(StreamingQueryListener):
    """Reports to the log how far each query that reads it has come; driver only.

    Spark calls a listener when a batch has ended, so positions are exact, even that of the last
    batch. Each is reported under the option `readerName`, else the query's name, else its id. The
    id is in the checkpoint, so a query that is started again keeps its name.
    `quorumlog.spark.session` adds such a listener. Over Spark Connect, PySpark's `removeListener`
    can wait forever unless `onQueryTerminated` was called before (SPARK-59623).
    `servers`: where to report instead of to the servers that the query reads from.
    """

    def __init__(
        self,
        *,
        servers: AnyAccess | None = None,
        connect: Connect = RemoteCluster,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report_to = servers
        self._connect = connect
        self._now_s = now_s
        self._unreported: dict[str, dict[tuple[str, str], GroupLag]] = {}
        """By run, servers and group: what could not be reported yet."""
        self._not_before_s: dict[str, float] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  (names of Spark, here and below)
        """A query started; its first progress says where."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Report how far a query has come."""
        progress, run_id = event.progress, str(event.progress.runId)
        query = progress.name or str(progress.id)
        for source in progress.sources:
            for lag in lags_of(query, source.endOffset, source.latestOffset):
                self._publish(run_id, lag, progress.batchId)
                if not lag.is_of_topic and (lag.servers or self._report_to):
                    self._unreported.setdefault(run_id, {})[lag.servers, lag.group] = lag
        if self._now_s() >= self._not_before_s.get(run_id, 0.0):
            self._report(run_id)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """There is nothing new."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """A query ended: what was not reported yet is tried once more."""
        run_id = str(event.runId)
        self._report(run_id)
        self._unreported.pop(run_id, None)
        self._not_before_s.pop(run_id, None)

    def _publish(self, run_id: str, lag: GroupLag, batch_id: int) -> None:
        """Publish a query's lag elsewhere than in the log."""

    def _report(self, run_id: str) -> None:
        waiting = self._unreported.get(run_id, {})
        for key, lag in list(waiting.items()):
            name = (lag.reader or lag.query)[:NAME_LENGTH_MAX]
            where = self._report_to or of_text(lag.servers)
            del waiting[key]
            try:
                self._connect(where, 0).report(lag.group, name, lag.index)
            except QuorumlogError as error:
                waiting[key] = lag  # the last one now: it must not hold up the others
                self._not_before_s[run_id] = self._now_s() + REPORT_PAUSE_S
                logger.warning("the position of %s could not be reported: %s", lag.query, error)
                return


class LagListener(PositionListener):
    """Reports the lag of every query that reads from the log; driver only.

    spark.streams.addListener(LagListener())

    It prints a line for each progress event to `output` (None: nothing). The lag is in entries, or
    of a topic in offsets. It keeps the gauges `quorumlog_query_position` and
    `quorumlog_query_entries_behind` (labels query and group) in `registry`, which
    `prometheus_client.start_http_server` serves, and reports the position to the cluster, where
    `quorumlog status` shows it (see `PositionListener`, also for `servers`).
    """

    def __init__(
        self,
        *,
        servers: AnyAccess | None = None,
        output: IO[str] | None = sys.stderr,
        registry: CollectorRegistry = REGISTRY,
        connect: Connect = RemoteCluster,
    ) -> None:
        super().__init__(servers=servers, connect=connect)
        self._output = output
        self._position = Gauge(
            "quorumlog_query_position",
            "Index of the first entry not read",
            _LABELS,
            registry=registry,
        )
        self._behind = Gauge(
            "quorumlog_query_entries_behind", "Entries not read yet", _LABELS, registry=registry
        )
        self._names: dict[str, set[tuple[str, str]]] = {}

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802  (name of Spark)
        """A query ended: remove its gauges."""
        for labels in self._names.pop(str(event.runId), set()):
            self._position.remove(*labels)
            self._behind.remove(*labels)
        super().onQueryTerminated(event)

    def _publish(self, run_id: str, lag: GroupLag, batch_id: int) -> None:
        labels = (lag.query, lag.group)
        self._names.setdefault(run_id, set()).add(labels)
        self._position.labels(*labels).set(lag.index)
        self._behind.labels(*labels).set(lag.entries_behind)
        if self._output is not None:
            read = f"{lag.group} read up to {lag.index - 1}"
            if not lag.index:
                read = f"nothing of {lag.group} read yet"
            print(
                f"{lag.query}: batch {batch_id}, {read}, lag {lag.entries_behind:,}",
                file=self._output,
                flush=True,
            )


def lags_of(query: str, end_offset: str | None, latest_offset: str | None) -> list[GroupLag]:
    """Return the lag of a query, from a source's offsets in its progress; nothing if not ours."""
    try:
        end, latest = json.loads(end_offset or ""), json.loads(latest_offset or "")
        return _lags_in_groups(query, end, latest)
    except (ValueError, TypeError, KeyError, AttributeError):
        return []
    except QuorumlogError:
        return _lags_in_topics(query, end, latest)


def _lags_in_groups(query: str, end: Any, latest: Any) -> list[GroupLag]:
    ends = parse_offset(latest)
    return [
        GroupLag(
            query,
            group,
            position.index,
            max(0, ends[group].index - position.index),
            str(latest[group].get(SERVERS, "")),
            str(latest[group].get(READER, "")),
        )
        for group, position in parse_offset(end).items()
        if group in ends
    ]


def _lags_in_topics(query: str, end: Any, latest: Any) -> list[GroupLag]:
    try:
        ends = topics.parse_offset(latest)
        return [
            GroupLag(query, str(part), at, max(0, ends[part] - at), is_of_topic=True)
            for part, at in topics.parse_offset(end).items()
            if part in ends
        ]
    except QuorumlogError:
        return []
