"""Requests of clients to a group's state machine, besides appended commands."""

from quorumlog.model.bounds import AskedIndex, Index, Milliseconds
from quorumlog.model.messages.base import Request, Response


class QueryRequest(Request, frozen=True, kw_only=True):
    """Send the attached query to the group's state machine.

    A `linearizable` answer sees everything that was acknowledged before the query was sent; any
    other sees what this replica has applied. The machine gets the query once `after_index` is
    applied, or after `wait_ms`.
    """

    linearizable: bool = True
    after_index: AskedIndex = -1
    wait_ms: Milliseconds = 0


class QueryResponse(Response, frozen=True, kw_only=True):
    """The machine's answer is attached; it is of the state after `applied_index`."""

    applied_index: Index = -1


class SnapshotRequest(Request, frozen=True, kw_only=True):
    """Save a snapshot of the state machine of this replica now."""


class SnapshotResponse(Response, frozen=True, kw_only=True):
    """A snapshot is durable, and holds everything up to last_included_index."""

    last_included_index: Index = -1
