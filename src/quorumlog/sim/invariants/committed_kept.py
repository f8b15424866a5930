"""What was committed is never lost: at the end every member holds all of it, unchanged."""

from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.invariants.committed import READ_BYTES, Committed, entries_of
from quorumlog.sim.views import ClusterView


class CommittedKept(Invariant):
    """Reads the whole log of every member."""

    name = "committed_kept"

    def __init__(self, committed: Committed) -> None:
        self._committed = committed

    def ended(self, cluster: ClusterView) -> None:
        """See `Invariant`."""
        for node in cluster.members():
            log = node.log
            first, held = log.before_begin_index + 1, dict[int, tuple[int, int]]()
            while first <= log.end_index:
                run = log.read(first, log.end_index, READ_BYTES)
                held.update(entries_of(run))
                first = run.last_index + 1
            for index, identity in self._committed.entries.items():
                if index > log.before_begin_index:
                    self.require(
                        held.get(index) == identity,
                        f"{node.node_id} holds {held.get(index)} at {index}, not {identity}",
                    )
