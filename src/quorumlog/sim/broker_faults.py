"""What goes wrong around brokers: more often to the one that coordinates than to others."""

from collections.abc import Callable
from typing import Final

from quorumlog.sim.broker_cluster import BrokerCluster
from quorumlog.sim.group_faults import CUT_MS, GroupFaults
from quorumlog.sim.group_node import GroupNode

PAUSE_MS: Final = (100, 3_000)
OF_THE_COORDINATOR: Final = 0.4
"""Share of faults that are of the broker that coordinates, whoever that is."""


class BrokerFaults(GroupFaults):
    """The faults of groups, and nodes that only clients reach."""

    def __init__(self, cluster: BrokerCluster, say: Callable[[str], None]) -> None:
        super().__init__(cluster, say)
        self._pause_ms = PAUSE_MS
        self._brokers = cluster

    def _every(self) -> list[Callable[[GroupNode], None]]:
        return [*super()._every(), self.part_from_peers]

    def _victim(self) -> GroupNode:
        found = self._brokers.coordinator()
        if found is not None and self._random.random() < OF_THE_COORDINATOR:
            return found
        return super()._victim()

    def end(self) -> None:
        """See `GroupFaults`."""
        super().end()
        self._brokers.parted.clear()

    def part_from_peers(self, node: GroupNode) -> None:
        """Let nothing through between a node and the others for a while; clients reach it."""
        self._brokers.parted.add(node.node_id)
        self._after(CUT_MS, lambda: self._brokers.parted.discard(node.node_id))
