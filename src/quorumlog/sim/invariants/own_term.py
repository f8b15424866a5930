"""A leader commits by entries of its own term; older ones go with them (Raft 5.4.2, R4)."""

from quorumlog.model.codes import Role
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.views import NodeView


class OwnTerm(Invariant):
    """Looks at the entry up to which a leader has committed, each time that rises."""

    name = "own_term"

    def __init__(self) -> None:
        self._committed: dict[tuple[str, int, int], int] = {}

    def after_event(self, node: NodeView) -> None:
        """See `Invariant`."""
        core = node.core
        if core.role is not Role.LEADER:
            return
        key, index = (node.node_id, node.life, core.term), core.committed_index
        if index > self._committed.setdefault(key, index):
            self._committed[key] = index
            term = max(term for term, first in node.log.term_runs() if first <= index)
            self.require(
                term == core.term,
                f"{node.node_id} leads term {core.term} and committed {index}, of term {term}",
            )
