"""No entry is removed for its age before the retention time has truly passed.

The true time is that of the simulation; the nodes' clocks may show another. Replicas may count only
elapsed time, and their clocks run wrong by up to a tenth.
"""

from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.views import NodeView

RATE_MAX = 1.1
"""How fast a simulated clock can run (`faults.CLOCK_RATES`)."""


class NoEarlyRemoval(Invariant):
    """Records when each entry was seen first, anywhere, and checks what retention removes."""

    name = "no_early_removal"

    def __init__(self) -> None:
        self._since_ms: dict[tuple[int, int], int] = {}
        self._seen: dict[str, tuple[int, list[tuple[int, int]], int]] = {}
        self._removed: dict[str, tuple[int, int, int]] = {}
        self.removals = 0

    def after_event(self, node: NodeView) -> None:
        """See `Invariant`."""
        self._record_entries(node)
        log, name = node.log, node.node_id
        files = node.running.counters.segments_removed
        life, before, begin = self._removed.get(name, (-1, 0, -1))
        self._removed[name] = (node.life, files, log.before_begin_index)
        if life != node.life:
            before, begin = 0, -1
        config = node.config.groups[0]
        if files == before or log.before_begin_index <= begin or config.retention_bytes:
            return
        if config.kind == "partitions":
            return  # see `offered_kept`: what no partition offers has no age to reach
        self.removals += 1
        now_ms = node.cluster.clock.now_ms
        index, term = log.before_begin_index, log.before_begin_term
        age_ms = now_ms - self._since_ms.get((index, term), now_ms)
        self.require(
            age_ms * RATE_MAX >= config.reserved_ms,
            f"{name} removed entries up to {index}, of term {term}, which is {age_ms} ms old, not "
            f"{config.reserved_ms}",
        )

    def _record_entries(self, node: NodeView) -> None:
        """Remember when entries came to be: whoever leads is the first to hold them."""
        log = node.log
        runs, end = log.term_runs(), log.end_index
        life, known_runs, known_end = self._seen.get(node.node_id, (-1, [], -1))
        is_same = life == node.life and end >= known_end and runs[: len(known_runs)] == known_runs
        first = known_end + 1 if is_same else log.before_begin_index + 1
        if first > end:
            return
        self._seen[node.node_id] = (node.life, runs, end)
        now_ms = node.cluster.clock.now_ms
        lasts = [*(begin - 1 for _, begin in runs[1:]), end]
        for (term, begin), last in zip(runs, lasts, strict=True):
            for index in range(max(first, begin), last + 1):
                self._since_ms.setdefault((index, term), now_ms)
