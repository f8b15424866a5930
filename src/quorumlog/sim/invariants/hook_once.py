"""The append hook ran exactly once for each entry, and was told where it is."""

from quorumlog.model.block import decode_entries
from quorumlog.sim.hook import ONCE, Stamp, has_room, stamp_of
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.invariants.committed import READ_BYTES
from quorumlog.sim.views import ClusterView


class HookOnce(Invariant):
    """Looks at all values with reserved bytes that the members hold in the end."""

    name = "hook_once"

    def ended(self, cluster: ClusterView) -> None:
        """See `Invariant`."""
        for node in cluster.members() if cluster.has_hook else ():
            log = node.log
            first = log.before_begin_index + 1
            while first <= log.end_index:
                run = log.read(first, log.end_index, READ_BYTES)
                for entry in decode_entries(run.block()):
                    if entry.is_data and has_room(entry.body):
                        stated, expected = stamp_of(entry.body), Stamp(entry.index, entry.pos, ONCE)
                        self.require(
                            stated == expected, f"{node.node_id} has {stated}, not {expected}"
                        )
                first = run.last_index + 1
