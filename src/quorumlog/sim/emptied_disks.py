"""Disks that a simulation empties: one at a time, while all other voters hold what they held."""

from quorumlog.model.membership import Membership
from quorumlog.sim.cluster import SimulatedCluster
from quorumlog.sim.node import SimulatedNode

VOTERS_MIN = 2
"""Members are removed only from groups with more voters."""


class EmptiedDisks:
    """Remembers whose disk was emptied; `victim`: the only node whose bits are flipped, if any."""

    def __init__(self, cluster: SimulatedCluster, victim: str | None) -> None:
        self._cluster = cluster
        self._victim = victim
        self._node_id: str | None = None

    def check_return(self) -> None:
        """Forget the emptied node once a membership names its new disk: from then on it counts."""
        if self._node_id is None:
            return
        emptied = self._cluster.nodes[self._node_id]
        named = [
            node.core.membership.member(self._node_id)
            for node in self._cluster.nodes.values()
            if node.is_up
        ]
        if any(
            member is not None and member.incarnation == emptied.incarnation for member in named
        ):
            self._node_id = None

    def may_empty(self, node: SimulatedNode) -> bool:
        """Whether all other voters hold what they should, so that this disk may be lost.

        Flipped bits count as well: then only the node that has them may be emptied.
        """
        cluster = self._cluster
        self.check_return()
        if self._victim not in (None, node.node_id):
            return False
        leader = cluster.leader()
        if self._node_id not in (None, node.node_id) or leader is None:
            return self._node_id == node.node_id
        current = leader.core.membership
        if leader.core.membership_index > leader.core.committed_index or current.is_joint:
            return False
        if leader.is_paused:  # it may have been asked for a change that it does not know of yet
            return False
        if not leader.core.is_ready or len(current.voters) <= VOTERS_MIN or current.learners:
            return False
        return all(
            cluster.nodes[member.node_id].is_up
            and member.incarnation == cluster.nodes[member.node_id].incarnation
            for member in current.members
            if member.node_id != node.node_id
        )

    def may_remove(self, node_id: str, current: Membership) -> bool:
        """Whether a voter may be removed: a leader may not know yet whose disk was emptied."""
        self.check_return()
        return len(current.voters) > VOTERS_MIN and self._node_id in (None, node_id)

    def empty(self, node: SimulatedNode) -> None:
        """Put an empty disk into a node that is down."""
        self._node_id = node.node_id
        node.wipe()
