"""State machines agree: at equal applied indexes all replicas' states are equal (Raft 5.4.3).

The simulated machine's digest is a hash over all entries it applied, in order, so an entry applied
twice, or skipped, or out of order shows as well.
"""

from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.node import SimulatedNode


class MachineAgreement(Invariant):
    """Looks at every state that a replica comes to."""

    name = "machine_agreement"

    def __init__(self) -> None:
        self._digests: dict[int, tuple[bytes, str]] = {}
        self._seen: dict[str, tuple[int, int]] = {}

    def looked_at(self, node: SimulatedNode) -> None:
        """See `Invariant`."""
        applier, core = node.running.applier, node.core
        if applier.machine is None or applier.failed_text:
            self.require(not applier.failed_text, f"{node.node_id}: {applier.failed_text}")
            return
        applied = applier.applied_index
        life, before = self._seen.get(node.node_id, (-1, -1))
        if (life, before) == (node.life, applied):
            return
        fell = life == node.life and applied < before
        self.require(not fell, f"{node.node_id} has applied {applied}, and {before} earlier")
        self._seen[node.node_id] = (node.life, applied)
        known = max(core.committed_index, applier.saves.newest_index)
        self.require(applied <= known, f"{node.node_id} has applied {applied}, committed {known}")
        digest = applier.machine.digest()
        first, who = self._digests.setdefault(applied, (digest, node.node_id))
        self.require(
            first == digest,
            f"{node.node_id} and {who} have other states after the entry {applied}",
        )
