"""The base classes of all messages, and the message that a connection starts with.

Peers exchange one-way messages; clients send requests and get responses paired by the frame's
correlation id. Index and term are -1 where there is none.
"""

import msgspec

from quorumlog.model.bounds import (
    AddressText,
    Code,
    IdentityBytes,
    Name,
    Term,
    Text,
)
from quorumlog.model.codes import ResponseCode


class Message(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Base of everything on the wire; encoded as an array, so field order is the format."""


class Hello(Message, frozen=True, kw_only=True):
    """First message on a connection, in both directions.

    `role` is "client", or the channel a peer will use: "control" (votes, heartbeats, replies) or
    "bulk" (pushes). Clients have an empty `node_id`. `address` is where a peer listens. A client
    that knows the `identity` of the `group` that it uses names both: requests to another are
    refused.
    """

    cluster: Name
    node_id: Name
    role: Name
    code: Code = ResponseCode.SUCCESS
    text: Text = ""
    address: AddressText = ""
    group: Name = ""
    identity: IdentityBytes = b""


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
