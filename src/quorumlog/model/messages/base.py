"""The base classes of all messages, the message that a connection starts with, and joined ones.

Peers exchange one-way messages; clients send requests and get responses paired by the frame's
correlation id. Index and term are -1 where there is none.
"""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from quorumlog.model.bounds import (
    AddressText,
    ClientText,
    Code,
    FeatureBits,
    IdentityBytes,
    Kind,
    Name,
    Number,
    ReleaseText,
    Size,
    Term,
    Text,
    WireVersion,
)
from quorumlog.model.codes import ResponseCode

MECHANISMS_MAX = 16
"""Ways to log in that one Hello names."""
JOINED_MAX = 512
"""Messages in one joined frame; more go into another."""
JoinedPart: TypeAlias = tuple[Kind, Number, bytes, Size]
"""One message of a joined frame: its kind, its correlation id, the encoded message, and how many of
the attached bytes are its own."""
JoinedParts: TypeAlias = Annotated[list[JoinedPart], Meta(max_length=JOINED_MAX)]


class Message(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Base of everything on the wire; encoded as an array, so field order is the format.

    A field may be added at the end of a message that has no subclasses, with a default: earlier
    releases ignore it, and what they send has the default. The fields of a base come before those
    of its subclasses, so a base never gets another one.
    """


class Hello(Message, frozen=True, kw_only=True):
    """First message on a connection, in both directions.

    `role` is "client", or the channel a peer will use: "control" (votes, heartbeats, replies) or
    "bulk" (pushes). Clients have an empty `node_id`. `address` is where a peer listens. A client
    that knows the `identity` of the `group` that it uses names both: requests to another are
    refused. `takes_joined`: several messages may be sent to this side in one frame, a `PeerTurn` to
    a node or `Responses` to a client; earlier versions do not say so, and get each alone.

    It always goes in a frame of version 1. `wire_min` … `wire_max` are the versions of the wire
    that this side speaks, and `features` what else it takes (`quorumlog.model.features`); from both
    Hellos follows what the two use (`quorumlog.wire.versions`). `cluster_id` is the id of the
    cluster that this side is of, empty if it has none: two that differ refuse each other.
    `mechanisms` are the ways to log in that a node offers. `release` is the version of quorumlog,
    and `client` what a client calls itself, both for people. Releases up to 0.1.0 at a293495a have
    none of these fields.
    """

    cluster: Name
    node_id: Name
    role: Name
    code: Code = ResponseCode.SUCCESS
    text: Text = ""
    address: AddressText = ""
    group: Name = ""
    identity: IdentityBytes = b""
    takes_joined: bool = False
    wire_min: WireVersion = 1
    wire_max: WireVersion = 1
    features: FeatureBits = 0
    cluster_id: Name = ""
    mechanisms: Annotated[list[Name], Meta(max_length=MECHANISMS_MAX)] = []
    release: ReleaseText = ""
    client: ClientText = ""


class Request(Message, frozen=True, kw_only=True):
    """From a client. It has no unneeded long fields, as a node may keep it for a long time."""

    group: Name


class Response(Message, frozen=True, kw_only=True):
    """To a client; `leader_id` and `term` are what the replica knows at present.

    A response with NODE_STOPPING and correlation id 0 answers no request. It says that the node
    takes no more requests; those under way are answered, and then the client disconnects.
    """

    code: Code = ResponseCode.SUCCESS
    text: str = ""
    leader_id: str | None = None
    term: Term = -1


class Responses(Message, frozen=True, kw_only=True):
    """Answers to several requests of one client, as if each had arrived by itself.

    The attachment holds those of the parts, in their order.
    """

    parts: JoinedParts
