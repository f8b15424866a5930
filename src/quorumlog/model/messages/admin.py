"""Requests of operators to a group: leadership transfer, change of members, history."""

from enum import IntEnum

import msgspec

from quorumlog.model.bounds import AddressText, Milliseconds, Name, Term
from quorumlog.model.messages.base import Request, Response


class TransferRequest(Request, frozen=True, kw_only=True):
    """Transfer leadership to transferee_id; with `term` (not -1) only in that term.

    An empty transferee_id stands for the live voter that has most of the log; a server of before
    knows no such voter. The answer names who leads then.
    """

    transferee_id: Name
    term: Term = -1


class MemberAction(IntEnum):
    """What to do with a member."""

    ADD = 1
    PROMOTE = 2
    REMOVE = 3


class ChangeMembersRequest(Request, frozen=True, kw_only=True):
    """Add (at `address`; unless `learner` it votes once caught up), promote or remove a member."""

    action: MemberAction
    node_id: Name
    address: AddressText = ""
    learner: bool = False


class HistoryRequest(Request, frozen=True, kw_only=True):
    """What happened to this replica lately?"""


class HistoryResponse(Response, frozen=True, kw_only=True):
    """Recent events as (milliseconds ago, sentence), oldest first."""

    lines: list[tuple[Milliseconds, str]] = msgspec.field(default_factory=list)
