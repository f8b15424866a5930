"""What every invariant is told. Each file states one; none knows how the others do it."""

from typing import TYPE_CHECKING

from quorumlog.model.messages.peer import PeerMessage
from quorumlog.sim.finding import Finding

if TYPE_CHECKING:
    from quorumlog.sim.clients import Append, Read
    from quorumlog.sim.cluster import SimulatedCluster
    from quorumlog.sim.node import SimulatedNode


class Invariant:
    """Something that must always hold. Raises `Finding` when it does not."""

    name = "invariant"

    def require(self, condition: object, text: str) -> None:
        """Raise `Finding` unless the condition holds."""
        if not condition:
            raise Finding(self.name, text)

    def looked_at(self, node: "SimulatedNode") -> None:
        """A node that runs has just handled something."""

    def sent(self, node: "SimulatedNode", message: PeerMessage) -> None:
        """A node sends a message to a peer."""

    def acknowledged(self, append: "Append") -> None:
        """A client was told that its append is kept."""

    def read(self, read: "Read") -> None:
        """A client's read was answered."""

    def ended(self, cluster: "SimulatedCluster") -> None:
        """Everything has come to rest."""
