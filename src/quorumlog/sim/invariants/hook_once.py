"""The append hook ran exactly once for each entry, and was told where it is."""

import numpy as np

from quorumlog.model.block import INDEX_RECORD_DTYPE, decode_entries
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
                records = np.frombuffer(run.records, INDEX_RECORD_DTYPE)["pos"].tolist()
                for entry, recorded in zip(decode_entries(run.block()), records, strict=True):
                    if entry.is_data and has_room(entry.body):
                        stated = stamp_of(entry.body)
                        # a disk may flip a bit of either position: no CRC covers them
                        expected = [Stamp(entry.index, at, ONCE) for at in (entry.pos, recorded)]
                        self.require(
                            stated in expected, f"{node.node_id} has {stated}, not {expected[0]}"
                        )
                first = run.last_index + 1
