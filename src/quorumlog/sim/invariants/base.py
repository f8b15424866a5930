"""The base of all invariants. Each file states one; none knows how the others do it."""

from quorumlog.model.messages.peer import PeerMessage
from quorumlog.sim.client_requests import Append, Read
from quorumlog.sim.finding import Finding
from quorumlog.sim.views import ClusterView, NodeView


class Invariant:
    """A rule that must always hold; its methods raise `Finding` when it does not."""

    name = "invariant"

    def require(self, condition: object, text: str) -> None:
        """Raise `Finding` unless the condition holds."""
        if not condition:
            raise Finding(self.name, text)

    def after_event(self, node: NodeView) -> None:
        """A node that runs has just handled something."""

    def sent(self, node: NodeView, message: PeerMessage) -> None:
        """A node sends a message to a peer."""

    def acknowledged(self, append: Append) -> None:
        """A client's append was acknowledged."""

    def read(self, read: Read) -> None:
        """A client's read was answered."""

    def ended(self, cluster: ClusterView) -> None:
        """The run is over and nothing happens any more."""
