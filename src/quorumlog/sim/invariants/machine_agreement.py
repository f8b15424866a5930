"""State machines agree: at equal applied indexes all replicas' states are equal (Raft 5.4.3).

The digest of registers is a hash over all entries that were applied, in order, so an entry applied
twice, or skipped, or out of order shows as well; that of keys and values is of their state. No
machine is rebuilt where nothing was damaged.
"""

from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.views import NodeView


class MachineAgreement(Invariant):
    """Looks at every state that a replica comes to."""

    name = "machine_agreement"

    def __init__(self) -> None:
        self._digests: dict[int, tuple[bytes, str]] = {}
        self._seen: dict[str, tuple[tuple[int, int], int]] = {}
        self._committed = -1

    def after_event(self, node: NodeView) -> None:
        """See `Invariant`."""
        applier = node.running.applier
        self._committed = max(self._committed, node.core.committed_index)
        state = applier.state
        if state.machine is None or state.failed_text:
            self.require(not state.failed_text, f"{node.node_id}: {state.failed_text}")
            return
        rebuilds = node.running.counters.machine_rebuilds
        is_damaged = node.node_id in node.cluster.damaged_machines
        self.require(is_damaged or not rebuilds, f"{node.node_id} rebuilds its machine")
        if applier.condition or applier.is_loading:
            return
        applied = state.applied_index
        life, before = self._seen.get(node.node_id, ((-1, -1), -1))
        now = (node.life, rebuilds)
        if (life, before) == (now, applied):
            return
        fell = life == now and applied < before
        self.require(not fell, f"{node.node_id} has applied {applied}, and {before} earlier")
        self._seen[node.node_id] = (now, applied)
        # a machine that keeps its state may open with more than its replica knows to be committed
        known = max(self._committed, state.newest_index)
        self.require(applied <= known, f"{node.node_id} has applied {applied}, committed {known}")
        digest = state.machine.digest()
        first, who = self._digests.setdefault(applied, (digest, node.node_id))
        self.require(
            first == digest,
            f"{node.node_id} and {who} have other states after the entry {applied}",
        )
