"""Which messages a node accepts from a connection that claims to be a peer's."""

import pytest

from quorumlog.model.messages.base import Hello
from quorumlog.model.messages.peer import NodeHeartBeat
from quorumlog.node.peer_handler import ConnectionEvents, PeerHandler, PeerHandlerCounters
from quorumlog.wire.frame import Frame


class NodeLiveness:
    def __init__(self):
        self.heard = []

    def received(self, message):
        self.heard.append(message)


@pytest.mark.parametrize("is_member", [False, True])
def test_beats_are_taken_from_members_only(is_member):
    """A stranger could have a node remember groups without end under names without end."""
    beats = NodeLiveness()
    hello = Hello(cluster="c", node_id="n9", role="control", address="127.0.0.1:1")
    events = ConnectionEvents(is_known=lambda peer_id: is_member and peer_id == "n9")
    inbox = PeerHandler("n0", {}, beats, hello, PeerHandlerCounters(), events)
    beat = NodeHeartBeat(
        local_id="n9",
        remote_id="n0",
        run=1,
        number=1,
        base=0,
        version=1,
        interval_ms=100,
        changes=[("x", 1)],
    )
    inbox.frame_received(None, Frame(1, beat, memoryview(b"")))
    assert beats.heard == ([beat] if is_member else [])
