"""Simulated brokers: nodes with the group `__cluster`, and the partition groups that it makes."""

from collections.abc import Mapping
from random import Random
from typing import Final

from quorumlog.model.codes import Role
from quorumlog.model.config import CLUSTER_GROUP, GroupConfig, NodeConfig
from quorumlog.sim.broker_node import BrokerNode
from quorumlog.sim.cluster import DATA_FILE_BYTES, INDEX_FILE_BYTES
from quorumlog.sim.group_checks import CheckedGroup
from quorumlog.sim.group_cluster import LIMITS, GroupCluster
from quorumlog.sim.invariants.coordination import Coordination
from quorumlog.sim.invariants.partitions import Partitions
from quorumlog.sim.partition_batches import SentBatch
from quorumlog.sim.process import DIRECTORY

FIRST_KAFKA_PORT: Final = 9_101
SNAPSHOT_ENTRIES: Final = (20, 100, 400)
"""After this number of commands the state of `__cluster` is saved."""
HEARTBEAT_MS, ELECTION_MS = 50, (200, 400)
"""So short that clients can go on soon."""
PARTITION_GROUPS: Final[dict[str, str | int | float | bool]] = {
    "mappedFileSizeForEntryData": DATA_FILE_BYTES,
    "mappedFileSizeForEntryIndex": INDEX_FILE_BYTES,
    "maxPushTimeOutMs": 500,
    "heartBeatTimeIntervalMs": HEARTBEAT_MS,
    "electionTimeoutMinMs": ELECTION_MS[0],
    "electionTimeoutMaxMs": ELECTION_MS[1],
}
CLUSTER_FILE_BYTES: Final = 4 * DATA_FILE_BYTES


class BrokerCluster(GroupCluster):
    """Brokers n0, n1 …; `batches` are all record batches that clients have made, by number.

    `parted` are nodes that reach no other one, but that clients reach.
    """

    def __init__(self, seed: int, count: int = 3) -> None:
        self.batches: dict[int, SentBatch] = {}
        self.parted: set[str] = set()
        self._chance = Random(f"brokers {seed}")  # noqa: S311  (nothing secret)
        self.coordination = Coordination()
        self.partitions: dict[str, Partitions] = {}
        """What is known of the logs of partition groups, by their names."""
        super().__init__(seed, count)

    @property
    def brokers(self) -> dict[str, BrokerNode]:
        """The nodes, as brokers."""
        return self._brokers

    def _make_nodes(self, addresses: Mapping[str, str]) -> Mapping[str, BrokerNode]:
        group = GroupConfig(
            group=CLUSTER_GROUP,
            kind="cluster",
            peers=self.peers,
            snapshot_threshold=self._chance.choice(SNAPSHOT_ENTRIES),
            mapped_file_size_for_entry_data=CLUSTER_FILE_BYTES,
            mapped_file_size_for_entry_index=INDEX_FILE_BYTES,
            digest_entries=self._chance.choice((8, 64)),
            max_push_time_out_ms=500,
            heart_beat_time_interval_ms=HEARTBEAT_MS,
            election_timeout_min_ms=ELECTION_MS[0],
            election_timeout_max_ms=ELECTION_MS[1],
        )
        self._brokers = {
            node_id: BrokerNode(
                self,
                NodeConfig(
                    self_id=node_id,
                    store_base_dir=DIRECTORY,
                    listen=address,
                    limits=LIMITS,
                    groups=[group],
                    kafka_listen=f"127.0.0.1:{FIRST_KAFKA_PORT + at}",
                    partition_groups=PARTITION_GROUPS,
                    deleted_group_reserved_hours=0.001,
                ),
            )
            for at, (node_id, address) in enumerate(addresses.items())
        }
        return self._brokers

    def _prepare(self, group: CheckedGroup) -> None:
        group.batches = self.batches if group.kind == "partitions" else {}
        if group.kind == "cluster":
            group.invariants.append(self.coordination)
        else:
            found = next(one for one in group.invariants if isinstance(one, Partitions))
            found.heard_marker = lambda *marker: self.coordination.marker(group.name, *marker)
            self.partitions[group.name] = found
            self.coordination.histories[group.name] = found.history

    def _reach(self, one: str, other: str) -> bool:
        return super()._reach(one, other) and not {one, other} & self.parted

    def coordinator(self) -> BrokerNode | None:
        """Return the node that leads `__cluster` in the highest term, if one does."""
        found = [
            (replica.core.term, node.node_id)
            for node in self._brokers.values()
            if node.is_up and (replica := node.replicas.get(CLUSTER_GROUP)) is not None
            if replica.core.role is Role.LEADER
        ]
        return self._brokers[max(found)[1]] if found else None

    def node_at(self, port: int) -> str:
        """Return the node whose clients connect to a port."""
        return self.ids[port - FIRST_KAFKA_PORT]
