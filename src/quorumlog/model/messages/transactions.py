"""What writers of transactions ask besides appending, and readers report."""

from quorumlog.model.bounds import AskedIndex, Batch, Label, LabelBytes, Number
from quorumlog.model.messages.base import Request, Response


class TransactionalRequest(Request, frozen=True, kw_only=True):
    """What became of a transactional id, and of a run of it?"""

    transactional_id: LabelBytes
    run_id: LabelBytes


class TransactionalResponse(Response, frozen=True, kw_only=True):
    """`epoch` is that of the newest run (0: the id is not known), which is the run asked about if
    `is_current`; `is_fenced`: that one was succeeded by another. `last_batch` was the last to end
    (-1: none has).
    """

    epoch: Number = 0
    is_current: bool = False
    is_fenced: bool = False
    last_batch: Batch = -1


class PositionReport(Request, frozen=True, kw_only=True):
    """A reader (a name of its own) has done with everything before an index; shown in status."""

    reader: Label
    index: AskedIndex
