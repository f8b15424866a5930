"""What a replica does for the partitions that its group holds."""

from quorumlog.model.messages.client import StoreLocation
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.group_time import GroupTime
from quorumlog.node.replica.partition_locations import PartitionLocations
from quorumlog.node.replica.partition_reads import PartitionReads
from quorumlog.node.replica.partition_retention import PartitionRetention
from quorumlog.node.replica.partition_times import PartitionTimes
from quorumlog.node.replica.pending_requests import PendingRequests
from quorumlog.node.replica.proposals import Propose
from quorumlog.node.replica.tables import Tables


class Partitions:
    """The parts of a replica that serve its partitions; all run on the event loop's thread."""

    def __init__(
        self,
        context: ReplicaContext,
        tables: Tables,
        requests: PendingRequests,
        propose: Propose,
        group_time: GroupTime,
        location: StoreLocation | None,
    ) -> None:
        self.reads = reads = PartitionReads(context, tables, requests)
        self.locations = PartitionLocations(context, tables, reads, location)
        self.times = PartitionTimes(context, tables, reads)
        self.retention = PartitionRetention(context, tables, reads, propose, group_time)

    def committed(self) -> None:
        """The committed index rose."""
        self.reads.committed()

    def role_changed(self) -> None:
        """The role of the replica is another than before."""
        self.reads.role_changed()
