"""Leader completeness: each new leader holds every entry that was ever committed (Raft 5.4)."""

from quorumlog.model.codes import Role
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.invariants.committed import Committed
from quorumlog.sim.views import NodeView


class LeaderCompleteness(Invariant):
    """Looks once at each new leader: the chain CRC at the last committed index covers all."""

    name = "leader_completeness"

    def __init__(self, committed: Committed) -> None:
        self._committed = committed
        self._checked: dict[str, tuple[int, int]] = {}

    def after_event(self, node: NodeView) -> None:
        """See `Invariant`."""
        core = node.core
        if core.role is not Role.LEADER or self._checked.get(node.node_id) == (
            core.term,
            node.life,
        ):
            return
        self._checked[node.node_id] = (core.term, node.life)
        index = self._committed.last_index
        if index < 0:
            return
        term, chain_crc = self._committed.entries[index]
        log = node.log
        self.require(
            log.end_index >= index,
            f"{node.node_id} leads term {core.term} with entries up to {log.end_index}, "
            f"but {index} (term {term}) was committed",
        )
        held = log.chain_crc_at(index)
        self.require(
            held in (None, chain_crc),
            f"{node.node_id} leads term {core.term} with another entry at {index}, committed",
        )
