"""What clients ask of a group's state machine besides appending commands."""

from quorumlog.model.bounds import AskedIndex, Index, Milliseconds
from quorumlog.model.messages.base import Request, Response


class QueryRequest(Request, frozen=True, kw_only=True):
    """Ask the group's state machine the attached question.

    A `linearizable` answer sees everything acknowledged before the question was sent; else it is of
    whatever this replica has applied. The machine is asked once `after_index` is applied, or when
    `wait_ms` are over.
    """

    linearizable: bool = True
    after_index: AskedIndex = -1
    wait_ms: Milliseconds = 0


class QueryResponse(Response, frozen=True, kw_only=True):
    """The machine's answer, attached, of the state after `applied_index`."""

    applied_index: Index = -1


class SnapshotRequest(Request, frozen=True, kw_only=True):
    """Save a snapshot of the state machine of this replica now."""


class SnapshotResponse(Response, frozen=True, kw_only=True):
    """It is durable, and holds everything up to last_included_index."""

    last_included_index: Index = -1
