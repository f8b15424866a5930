"""Messages between brokers: commands on their way to the leader of `__cluster`, and who leads."""

from typing import Annotated

import msgspec
from msgspec import Meta

from quorumlog.model.bounds import Index, Milliseconds, Name, Number, Term, Text
from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.peer import NodeMessage

LED_MAX = 64
"""Partition groups that one message can name: a cluster has no more."""
REPLICAS_MAX = 50
"""Replicas of one group that are in sync."""


class ClusterMessage(NodeMessage, frozen=True, kw_only=True):
    """Base of what brokers send each other."""


class LedGroup(msgspec.Struct, frozen=True, array_like=True):
    """A partition group that the sender leads in a term, with the members that are in sync."""

    group: Name
    term: Term
    in_sync: Annotated[list[Name], Meta(max_length=REPLICAS_MAX)]


class Leading(ClusterMessage, frozen=True, kw_only=True):
    """All partition groups that the sender leads at present; it is sent again each second.

    `not_made`: those that it should have a replica of and could not make, and why.
    """

    groups: Annotated[list[LedGroup], Meta(max_length=LED_MAX)]
    not_made: Annotated[dict[Name, Text], Meta(max_length=LED_MAX)] = msgspec.field(
        default_factory=dict
    )


class ClusterCommand(ClusterMessage, frozen=True, kw_only=True):
    """Have `__cluster` execute the attached command; the answer has the same number."""

    number: Number
    timeout_ms: Milliseconds


class ClusterAnswer(ClusterMessage, frozen=True, kw_only=True):
    """What became of a command: with SUCCESS, its result is attached; `index` is its entry's."""

    number: Number
    code: ResponseCode
    text: Text = ""
    index: Index = -1
