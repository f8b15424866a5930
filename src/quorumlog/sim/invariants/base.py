"""The base of all invariants. Each file states one; none knows how the others do it."""

from typing import ClassVar

from quorumlog.model.messages.peer import PeerMessage
from quorumlog.sim.client_requests import Append, Read
from quorumlog.sim.finding import Finding
from quorumlog.sim.partition_answers import BatchAcknowledged, PartitionServed
from quorumlog.sim.views import ClusterView, NodeView


class Invariant:
    """A rule that must always hold; its methods raise `Finding` when it does not."""

    name = "invariant"
    watches_time: ClassVar[bool] = False
    """Whether `after_event` is asked also when nothing of the replica has changed."""

    def require(self, condition: object, text: str) -> None:
        """Raise `Finding` unless the condition holds."""
        if not condition:
            raise Finding(self.name, text)

    def after_event(self, node: NodeView) -> None:
        """A node that runs has just handled something, and its replica has changed (mostly)."""

    def sent(self, node: NodeView, message: PeerMessage) -> None:
        """A node sends a message to a peer."""

    def acknowledged(self, append: Append) -> None:
        """A client's append was acknowledged."""

    def read(self, read: Read) -> None:
        """A client's read was answered."""

    def acknowledged_batch(self, answer: BatchAcknowledged) -> None:
        """A node acknowledges a record batch: note it only, as the node is in the midst of it."""

    def served(self, answer: PartitionServed) -> None:
        """A node has read a partition for a client: note it only, as above."""

    def ended(self, cluster: ClusterView) -> None:
        """The run is over and nothing happens any more."""
