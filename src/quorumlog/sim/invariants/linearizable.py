"""What clients saw of the state machine is as if each operation had happened at one moment."""

from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.linearizability import RegisterModel, check
from quorumlog.sim.views import ClusterView


class Linearizable(Invariant):
    """Checked once, at the end, over the whole history."""

    name = "linearizable"

    def ended(self, cluster: ClusterView) -> None:
        """See `Invariant`."""
        violation = check(cluster.clients.operations, RegisterModel())
        self.require(violation is None, "" if violation is None else violation.reason)
