"""Where messages of peers arrive: checked against the connection's identity, then routed."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from quorumlog.log_events import log_event
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import CLUSTER_GROUP, is_written_alike
from quorumlog.model.membership import Membership
from quorumlog.model.messages.base import Hello, Response
from quorumlog.model.messages.cluster import ClusterMessage
from quorumlog.model.messages.groups import GroupInvitation, GroupsAnswer, GroupsQuery
from quorumlog.model.messages.peer import (
    HeartBeats,
    Introduction,
    NodeMessage,
    PeerMessage,
    PeerTurn,
)
from quorumlog.node.liveness import NodeLiveness
from quorumlog.node.replica.replica import Replica
from quorumlog.raft.view import CoreView
from quorumlog.transport.connection import Connection
from quorumlog.wire.frame import Frame, RefusedFrame
from quorumlog.wire.joined import split

logger = logging.getLogger(__name__)

STATED_MAX = 8_192
"""Groups of one peer that are remembered although they are not here; then half of them go."""


@dataclass(slots=True)
class PeerHandlerCounters:
    """Peer messages that were not for us, by reason."""

    unknown_group: int = 0
    unknown_member: int = 0
    not_a_peer_message: int = 0
    malformed_part: int = 0


class _PeerGroup(NamedTuple):
    """What a peer stated about one of its groups."""

    identity: bytes
    membership_index: int
    address: str


@dataclass(frozen=True, slots=True)
class ConnectionEvents:
    """Callbacks for connections of peers that open and close, and the check of who is a member."""

    opened: Callable[[str, Connection], None] = field(default=lambda peer_id, connection: None)
    closed: Callable[[str, Connection], None] = field(default=lambda peer_id, connection: None)
    is_known: Callable[[str], bool] = field(default=lambda peer_id: True)
    may_invite: Callable[[str], bool] = field(default=lambda peer_id: True)
    """Whether a node may have this one make a replica: it needs a group in common, if there is any.
    Its certificate says only that it is of this cluster, as that of a removed node does, too."""
    groups_received: Callable[[NodeMessage], None] = field(default=lambda message: None)
    """For what nodes tell each other about the groups that they have."""
    cluster_received: Callable[[ClusterMessage, memoryview], None] = field(
        default=lambda message, attachment: None
    )
    """For what brokers tell each other."""


class PeerHandler:
    """Handles one connection of a peer. The peer's identity comes from its handshake, never from a
    message (RELIABILITY 8.2 rule 3).

    In an introduction the peer states of which founding its groups are, and at which address it
    believes itself to be: a replica of another founding, or one that was copied, is refused.
    """

    def __init__(
        self,
        self_id: str,
        replicas: Mapping[str, Replica],
        liveness: NodeLiveness,
        hello: Hello,
        counters: PeerHandlerCounters,
        events: ConnectionEvents | None = None,
    ) -> None:
        self._self_id = self_id
        self._replicas = replicas
        self._liveness = liveness
        self._peer_id = hello.node_id
        self._counters = counters
        self._events = events or ConnectionEvents()
        self._groups: dict[str, _PeerGroup] = {}
        """What it stated, the newest last."""
        self._has_forgotten = self._has_warned = False
        self._accepted: dict[str, Membership] = {}
        """By group: while it has this membership, the peer's replica need not be checked again."""

    def opened(self, connection: Connection, hello: Hello) -> None:
        """See `ConnectionHandler`."""
        self._events.opened(self._peer_id, connection)

    def frame_received(self, connection: Connection, frame: Frame) -> None:
        """Pass a message to its group's replica, or answer why not."""
        message = frame.message
        if isinstance(message, NodeMessage):
            if self._is_addressed(connection, frame, message):
                self._take(connection, frame, message)
        elif isinstance(message, PeerMessage):
            self._route(connection, frame, message)
        elif isinstance(message, Response):  # to what was answered on this connection
            log_event(logger, logging.DEBUG, "peer refused", peer=self._peer_id, text=message.text)
        else:
            self._counters.not_a_peer_message += 1
            text = f"{type(message).__name__} is no message between peers"
            self._refuse(connection, frame, ResponseCode.UNSUPPORTED, text)

    def _take(self, connection: Connection, frame: Frame, message: NodeMessage) -> None:
        """Handle a message that concerns all groups or several."""
        if isinstance(message, PeerTurn):
            self._take_parts(connection, message, frame.attachment)
            return
        if isinstance(message, Introduction):
            for group, identity, index in message.groups:
                self._groups.pop(group, None)
                self._groups[group] = _PeerGroup(identity, index, message.address)
                self._accepted.pop(group, None)
            self._bound_tables()
            return
        if isinstance(message, GroupInvitation) and not self._events.may_invite(self._peer_id):
            self._refuse_invitation(connection, frame, message)
            return
        if isinstance(message, GroupsQuery | GroupsAnswer | GroupInvitation):
            self._events.groups_received(message)
            return
        if isinstance(message, ClusterMessage):
            if self._is_member(CLUSTER_GROUP):
                self._events.cluster_received(message, frame.attachment)
            return
        if not isinstance(message, HeartBeats):
            # no group here has a node as its leader that is no member
            if self._events.is_known(self._peer_id):
                self._liveness.received(message)
            return
        for part in (*message.requests, *message.responses):
            self._route(connection, frame, part)

    def _is_member(self, group: str) -> bool:
        replica = self._replicas.get(group)
        return replica is not None and replica.core.membership.member(self._peer_id) is not None

    def _refuse_invitation(
        self, connection: Connection, frame: Frame, invitation: GroupInvitation
    ) -> None:
        self._counters.unknown_member += 1
        text = (
            f"{self._peer_id} is a member of no group of {self._self_id}, so it cannot invite "
            f"{self._self_id} to group {invitation.record.group}: add {self._peer_id} to a group "
            "here, or name the group and its peers in the configuration file"
        )
        if not self._has_warned:
            self._has_warned = True
            log_event(logger, logging.WARNING, "refuses an invitation", text=text)
        self._refuse(connection, frame, ResponseCode.UNKNOWN_MEMBER, text)

    def _bound_tables(self) -> None:
        """Forget groups that are not here, the oldest first, if they are too many.

        One that the peer stated a moment ago may come to this node a moment later.
        """
        most = STATED_MAX + len(self._replicas)
        if len(self._accepted) > most:
            self._accepted = {
                group: known for group, known in self._accepted.items() if group in self._replicas
            }
        if len(self._groups) > most:
            absent = [group for group in self._groups if group not in self._replicas]
            for group in absent[: len(absent) - STATED_MAX // 2]:
                del self._groups[group]
            self._has_forgotten = True

    def _take_parts(self, connection: Connection, turn: PeerTurn, attachment: memoryview) -> None:
        """Handle each part as if it had come by itself; one that is malformed is dropped alone."""
        for part in split(turn, attachment):
            if isinstance(part, RefusedFrame):
                self._counters.malformed_part += 1
                self._refuse(connection, part, part.code, part.text)
            elif isinstance(part.message, PeerMessage):
                self._route(connection, part, part.message)

    def _route(self, connection: Connection, frame: Frame, message: PeerMessage) -> None:
        replica = self._replicas.get(message.group)
        if replica is None:
            self._counters.unknown_group += 1
            text = f"{self._self_id} does not host group {message.group!r}"
            self._refuse(connection, frame, ResponseCode.UNKNOWN_GROUP, text)
        elif self._is_addressed(connection, frame, message) and (
            self._accepted.get(message.group) is replica.core.membership
            or self._accepts(connection, frame, replica)
        ):
            replica.receive(message, frame.attachment)

    def _is_addressed(
        self, connection: Connection, frame: Frame, message: PeerMessage | NodeMessage
    ) -> bool:
        """Whether a message is from the connection's peer and for this node; if not, answer so."""
        if message.remote_id == self._self_id and message.local_id == self._peer_id:
            return True
        self._counters.unknown_member += 1
        text = (
            f"a message from {message.local_id!r} to {message.remote_id!r} came to "
            f"{self._self_id} over a connection of {self._peer_id}"
        )
        self._refuse(connection, frame, ResponseCode.UNKNOWN_MEMBER, text)
        return False

    def _accepts(self, connection: Connection, frame: Frame, replica: Replica) -> bool:
        """Whether the peer's replica is of our founding and no copy; if not, answer so.

        A peer that is no member here may have become one while this node was down. It is believed
        only if it knows the identity of the group (R18).
        """
        core, group, peer = replica.core, replica.config.group, self._peer_id
        own, stated = core.identity, self._groups.get(group)
        if stated is None and self._has_forgotten:
            connection.close(
                f"what {peer} said of group {group} is forgotten: it has to say it again"
            )
            return False
        member = core.membership.member(peer)
        # members of a group that was given its identity know it from the beginning: one that does
        # not is a predecessor of the same name
        alike = (own,) if core.given_identity else (b"", own)
        if own and stated is not None and stated.identity not in alike:
            code = ResponseCode.WRONG_CLUSTER
            theirs = stated.identity.hex() or "none"
            text = (
                f"group {group} of {self._self_id} has the identity {own.hex()}, that of {peer} "
                f"{theirs}: they were founded apart. One of the two has the other's data "
                "directory, or its addresses, or was away while the group was made anew"
            )
        elif member is None and own and (stated is None or stated.identity != own):
            self._counters.unknown_member += 1
            code = ResponseCode.UNKNOWN_MEMBER
            text = f"{peer} is no member of group {group} here: add it (quorumlog members add)"
        elif (
            member is not None
            and stated is not None
            and stated.membership_index <= core.committed_membership_index
            and _differ(stated.address, member.address)
        ):
            code = ResponseCode.UNEXPECTED_MEMBER
            text = (
                f"{peer} is at {member.address} according to the log of group {group}; this one "
                f"says that it is at {stated.address}: it is a copy, or was moved"
            )
        else:
            if member is not None and _is_final(core, stated):
                self._accepted[group] = core.membership
                self._bound_tables()
            return True
        self._refuse(connection, frame, code, text)
        return False

    def _refuse(
        self, connection: Connection, frame: Frame | RefusedFrame, code: ResponseCode, text: str
    ) -> None:
        connection.send(Response(code=code, text=text), correlation_id=frame.correlation_id)

    def closed(self, connection: Connection, reason: str) -> None:
        """See `ConnectionHandler`."""
        self._events.closed(self._peer_id, connection)
        log_event(logger, logging.DEBUG, "peer disconnected", peer=self._peer_id, reason=reason)


def _is_final(core: CoreView, stated: _PeerGroup | None) -> bool:
    """Whether the present membership is committed, and what the peer stated is not newer.

    Then the peer need not be checked again before the membership changes.
    """
    index = core.committed_membership_index
    return 0 <= index == core.membership_index and (
        stated is None or stated.membership_index <= index
    )


def _differ(one: str, other: str) -> bool:
    """Whether two addresses are both known and differ."""
    return bool(one and other) and not is_written_alike(one, other)
