"""A log line of each group's watermarks every 3 s, while they move (scenario 134)."""

import logging
from collections.abc import Callable, Mapping

from quorumlog.log_events import log_event
from quorumlog.node.replica.replica import Replica

logger = logging.getLogger(__name__)

LINE_INTERVAL_MS = 3_000
"""From one look at the watermarks to the next (DLedger's interval)."""
LINES_MAX = 64
"""Groups with a line at a time; if more have moved, one line says how many more."""


class WatermarkLines:
    """Logs how far each replica of a node has come, if that is another place than 3 s ago.

    `wake_at` has `tick` called at a time of `now_ms`. All methods run on the event loop's thread.
    """

    def __init__(
        self,
        replicas: Mapping[str, Replica],
        now_ms: Callable[[], int],
        wake_at: Callable[[int], None],
    ) -> None:
        self._replicas = replicas
        self._now_ms = now_ms
        self._wake_at = wake_at
        self._seen: dict[str, tuple[object, ...]] = {}
        wake_at(now_ms() + LINE_INTERVAL_MS)

    def tick(self) -> None:
        """Write the lines that are due."""
        self._wake_at(self._now_ms() + LINE_INTERVAL_MS)
        if not logger.isEnabledFor(logging.INFO):
            return
        present = {group: _watermarks(replica) for group, replica in self._replicas.items()}
        moved = [group for group, found in present.items() if self._seen.get(group) != found]
        self._seen = present
        for group in moved[:LINES_MAX]:
            _log(self._replicas[group])
        if len(moved) > LINES_MAX:
            more = len(moved) - LINES_MAX
            log_event(logger, logging.INFO, "watermarks of more groups moved", groups=more)


def _watermarks(replica: Replica) -> tuple[object, ...]:
    core, log = replica.core, replica.log
    return (
        core.role,
        core.term,
        log.before_begin_index,
        log.end_index,
        core.durable_index,
        core.committed_index,
        replica.applied_index,
    )


def _log(replica: Replica) -> None:
    core, log = replica.core, replica.log
    # of a leader's peers; empty on other replicas
    matches = {peer.peer_id: peer.match_index for peer in core.peer_progress()}
    log_event(
        logger,
        logging.INFO,
        "watermarks",
        group=replica.config.group,
        role=core.role.value,
        term=core.term,
        leader=core.leader_id,
        begin_index=log.before_begin_index + 1,
        end_index=log.end_index,
        durable_index=core.durable_index,
        committed_index=core.committed_index,
        applied_index=replica.applied_index,
        match_index=matches,
    )
