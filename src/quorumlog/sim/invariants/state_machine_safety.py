"""State machine safety: nobody ever calls another entry committed at an index (Raft 5.4.3)."""

from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.invariants.committed import Committed
from quorumlog.sim.views import NodeView


class StateMachineSafety(Invariant):
    """Compares every entry that becomes committed anywhere with what was committed there before."""

    name = "state_machine_safety"

    def __init__(self, committed: Committed) -> None:
        self._committed = committed

    def after_event(self, node: NodeView) -> None:
        """See `Invariant`."""
        for index, identity in self._committed.news_of(node):
            known = self._committed.add(index, identity)
            self.require(
                known == identity,
                f"{node.node_id} has {identity} (term, chain CRC) committed at {index}, "
                f"where {known} was committed before",
            )
