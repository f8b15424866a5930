"""Where messages of peers arrive: checked against the connection's identity, then routed."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from quorumlog.model.codes import ResponseCode
from quorumlog.model.log_lines import say
from quorumlog.model.message import HeartBeats, Hello, NodeMessage, PeerMessage, Response
from quorumlog.node.beats import Beats
from quorumlog.node.replica import Replica
from quorumlog.transport.connection import Connection
from quorumlog.wire.frame import Frame

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class InboxCounters:
    """Peer messages that were not for us, by reason."""

    unknown_group: int = 0
    unknown_member: int = 0
    not_a_peer_message: int = 0


class PeerInbox:
    """Handles one accepted connection of a peer; identity comes from its handshake, never from
    a message (RELIABILITY 8.2 rule 3).
    """

    def __init__(
        self,
        self_id: str,
        replicas: Mapping[str, Replica],
        beats: Beats,
        hello: Hello,
        counters: InboxCounters,
    ) -> None:
        self._self_id = self_id
        self._replicas = replicas
        self._beats = beats
        self._peer_id = hello.node_id
        self._counters = counters

    def opened(self, connection: Connection, hello: Hello) -> None:
        """See `ConnectionHandler`."""

    def frame_received(self, connection: Connection, frame: Frame) -> None:
        """Hand a message to its group's replica, or say why not."""
        message = frame.message
        if isinstance(message, NodeMessage):
            if self._is_addressed(connection, frame, message):
                self._take(connection, frame, message)
        elif isinstance(message, PeerMessage):
            self._route(connection, frame, message)
        else:
            self._counters.not_a_peer_message += 1
            text = f"{type(message).__name__} is no message between peers"
            self._refuse(connection, frame, ResponseCode.UNSUPPORTED, text)

    def _take(self, connection: Connection, frame: Frame, message: NodeMessage) -> None:
        """Take what is for all groups, or for several."""
        if not isinstance(message, HeartBeats):
            self._beats.received(message)
            return
        for part in (*message.requests, *message.responses):
            self._route(connection, frame, part)

    def _route(self, connection: Connection, frame: Frame, message: PeerMessage) -> None:
        replica = self._replicas.get(message.group)
        if replica is None:
            self._counters.unknown_group += 1
            text = f"{self._self_id} does not host group {message.group!r}"
            self._refuse(connection, frame, ResponseCode.UNKNOWN_GROUP, text)
        elif self._is_addressed(connection, frame, message):
            replica.receive(message, frame.attachment)

    def _is_addressed(
        self, connection: Connection, frame: Frame, message: PeerMessage | NodeMessage
    ) -> bool:
        """Whether a message is from the connection's peer and for this node; else say so."""
        if message.remote_id == self._self_id and message.local_id == self._peer_id:
            return True
        self._counters.unknown_member += 1
        text = (
            f"a message from {message.local_id!r} to {message.remote_id!r} came to "
            f"{self._self_id} over a connection of {self._peer_id}"
        )
        self._refuse(connection, frame, ResponseCode.UNKNOWN_MEMBER, text)
        return False

    def _refuse(self, connection: Connection, frame: Frame, code: ResponseCode, text: str) -> None:
        connection.send(Response(code=code, text=text), correlation_id=frame.correlation_id)

    def closed(self, connection: Connection, reason: str) -> None:
        """See `ConnectionHandler`."""
        say(logger, logging.DEBUG, "peer disconnected", peer=self._peer_id, reason=reason)
