"""How far streaming queries are behind: printed, as metrics, and in the status of the log."""

import json
import logging
import sys
from dataclasses import dataclass
from typing import IO, Any

from prometheus_client import REGISTRY, CollectorRegistry, Gauge
from pyspark.sql.streaming.listener import StreamingQueryListener

from quorumlog.model.errors import QuorumlogError
from quorumlog.spark.clients import RemoteCluster
from quorumlog.spark.offsets import parse_offset

logger = logging.getLogger(__name__)

_LABELS = ("query", "group")


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How a query stands with one group: it has done with everything before `index`."""

    query: str
    group: str
    index: int
    entries_behind: int


class LagListener(StreamingQueryListener):
    """Tells of every query that reads from the log how far it has come; driver only.

    spark.streams.addListener(LagListener())

    It prints a line a progress to `output` (None: nothing), keeps the gauges
    `quorumlog_query_position` and `quorumlog_query_entries_behind` (labels query and group) in
    `registry`, which `prometheus_client.start_http_server` serves, and with `servers` reports the
    position to the cluster, where `quorumlog status` shows it.
    """

    def __init__(
        self,
        *,
        servers: str | None = None,
        output: IO[str] | None = sys.stderr,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self._servers = servers
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

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  (names of Spark, here and below)
        """A query began; its first progress says where."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Tell how far a query has come."""
        progress = event.progress
        query = progress.name or str(progress.id)
        for source in progress.sources:
            for lag in lags_of(query, source.endOffset, source.latestOffset):
                self._tell(str(progress.runId), lag, progress.batchId)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """There is nothing new."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """A query ended: its gauges go."""
        for labels in self._names.pop(str(event.runId), set()):
            self._position.remove(*labels)
            self._behind.remove(*labels)

    def _tell(self, run_id: str, lag: GroupLag, batch_id: int) -> None:
        labels = (lag.query, lag.group)
        self._names.setdefault(run_id, set()).add(labels)
        self._position.labels(*labels).set(lag.index)
        self._behind.labels(*labels).set(lag.entries_behind)
        if self._output is not None:
            print(
                f"{lag.query}: batch {batch_id}, {lag.group} read up to {lag.index - 1}, "
                f"{lag.entries_behind} entries behind",
                file=self._output,
                flush=True,
            )
        if self._servers is not None:
            try:
                RemoteCluster(self._servers, 0).report(lag.group, lag.query, lag.index)
            except QuorumlogError as error:
                logger.warning("the position of %s could not be reported: %s", lag.query, error)


def lags_of(query: str, end_offset: str | None, latest_offset: str | None) -> list[GroupLag]:
    """Return how a query stands, from a source's offsets in its progress; nothing if not ours."""
    try:
        end = parse_offset(json.loads(end_offset or ""))
        latest = parse_offset(json.loads(latest_offset or ""))
    except (ValueError, TypeError, KeyError, AttributeError, QuorumlogError):
        return []
    return [
        GroupLag(query, group, place.index, max(0, latest[group].index - place.index))
        for group, place in end.items()
        if group in latest
    ]
