"""What a replica does for the partitions that its group holds."""

from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.partition_reads import PartitionReads
from quorumlog.node.replica.partition_times import PartitionTimes
from quorumlog.node.replica.tables import Tables


class Partitions:
    """The parts of a replica that serve its partitions; all run on the event loop's thread."""

    def __init__(self, context: ReplicaContext, tables: Tables) -> None:
        self.reads = PartitionReads(context, tables)
        self.times = PartitionTimes(context, tables, self.reads)

    def committed(self) -> None:
        """The committed index rose."""
        self.reads.committed()

    def role_changed(self) -> None:
        """The role of the replica is another than before."""
        self.reads.role_changed()
