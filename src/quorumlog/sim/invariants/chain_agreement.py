"""Chain CRCs agree: what leaders state of their committed logs is what was committed."""

from quorumlog.model.messages.peer import HeartBeatRequest, PeerMessage
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.invariants.committed import Committed
from quorumlog.sim.views import NodeView


class ChainAgreement(Invariant):
    """Looks at heartbeats, and at what replicas report of their own accord."""

    name = "chain_agreement"

    def __init__(self, committed: Committed) -> None:
        self._committed = committed

    def sent(self, node: NodeView, message: PeerMessage) -> None:
        """See `Invariant`."""
        if not isinstance(message, HeartBeatRequest) or not message.committed_chain_crc:
            return
        known = self._committed.entries.get(message.committed_index)
        if known is not None:
            self.require(
                known[1] == message.committed_chain_crc,
                f"{node.node_id} has another chain CRC at {message.committed_index}, committed",
            )

    def after_event(self, node: NodeView) -> None:
        """See `Invariant`."""
        reports = [
            text for text in node.alarms if "differ from" in text or "other committed" in text
        ]
        self.require(not reports, f"{node.node_id} reports: {reports[:1]}")
