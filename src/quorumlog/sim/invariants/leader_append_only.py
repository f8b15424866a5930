"""A leader never removes or overwrites entries of its own log (Raft 5.3)."""

from quorumlog.model.codes import Role
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.views import NodeView


class LeaderAppendOnly(Invariant):
    """Follows the end of each leader's log through its term."""

    name = "leader_append_only"

    def __init__(self) -> None:
        self._ends: dict[tuple[str, int, int], int] = {}

    def after_event(self, node: NodeView) -> None:
        """See `Invariant`."""
        core = node.core
        if core.role is not Role.LEADER:
            return
        key = (node.node_id, node.life, core.term)
        before, now = self._ends.get(key, -1), node.log.end_index
        self.require(now >= before, f"leader {node.node_id} went from {before} back to {now}")
        self._ends[key] = now
