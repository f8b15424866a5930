"""What clients saw of the state machine is as if each operation had happened at one moment."""

from typing import TYPE_CHECKING

from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.linearizability import RegisterModel, check

if TYPE_CHECKING:
    from quorumlog.sim.cluster import SimulatedCluster


class Linearizable(Invariant):
    """Judged once, at the end, over the whole history."""

    name = "linearizable"

    def ended(self, cluster: "SimulatedCluster") -> None:
        """See `Invariant`."""
        commands = cluster.clients.commands
        violation = check([*commands.history, *commands.unknown()], RegisterModel())
        self.require(violation is None, "" if violation is None else violation.reason)
