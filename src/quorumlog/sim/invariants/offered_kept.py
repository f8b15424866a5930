"""No entry is removed while a partition offers its records."""

from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.views import NodeView


class OfferedKept(Invariant):
    """Checks after each removal that every partition has the batch with its log start offset."""

    name = "offered_kept"

    def __init__(self) -> None:
        self._begins: dict[str, int] = {}

    def after_event(self, node: NodeView) -> None:
        """See `Invariant`."""
        begin, tables = node.log.before_begin_index, node.running.tables
        if self._begins.get(node.node_id) == begin:
            return
        self._begins[node.node_id] = begin
        if tables.is_incomplete or tables.as_of > node.log.end_index:
            return
        for channel, partition in tables.partitions.partitions.items():
            start = partition.log_start
            if start < partition.next_offset:
                first = next(tables.batches.batches_from(channel, start), None)
                has_it = first is not None and first.base_offset <= start
                self.require(
                    has_it and first is not None and first.index > begin,
                    f"{node.node_id} removed entries up to {begin}; offset {start} on channel "
                    f"{channel} was offered",
                )
