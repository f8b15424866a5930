"""Readers see committed entries only, and linearizable reads see all acknowledged before them."""

from quorumlog.sim.client_requests import Read
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.invariants.committed import Committed


class CommittedReads(Invariant):
    """Compares what was read with what was committed."""

    name = "committed_reads"

    def __init__(self, committed: Committed) -> None:
        self._committed = committed

    def read(self, read: Read) -> None:
        """See `Invariant`."""
        for index, identity in read.entries:
            known = self._committed.entries.get(index)
            self.require(
                known == identity,
                f"{read.node_id} served {identity} at {index}; committed there is {known}",
            )
        if read.linearizable:
            self.require(
                read.committed_index >= read.floor,
                f"{read.node_id} answered a linearizable read with {read.committed_index}, but "
                f"{read.floor} was acknowledged before it was asked",
            )
