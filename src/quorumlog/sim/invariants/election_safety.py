"""Election safety: at most one leader in a term (Raft 5.2)."""

from quorumlog.model.codes import Role
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.views import NodeView


class ElectionSafety(Invariant):
    """Remembers who led each term; one life of a process, since nobody leads a term twice."""

    name = "election_safety"

    def __init__(self) -> None:
        self._leaders: dict[int, tuple[str, int]] = {}

    def after_event(self, node: NodeView) -> None:
        """See `Invariant`."""
        core = node.core
        if core.role is Role.LEADER:
            leader = (node.node_id, node.life)
            known = self._leaders.setdefault(core.term, leader)
            self.require(known == leader, f"{known} and {leader} both lead term {core.term}")
