"""Queries of transactional writers."""

from quorumlog.model.bounds import Batch, Index, LabelBytes, Number
from quorumlog.model.messages.base import Request, Response


class TransactionalRequest(Request, frozen=True, kw_only=True):
    """What is the state of a transactional id, and of a run of it?"""

    transactional_id: LabelBytes
    run_id: LabelBytes


class TransactionalResponse(Response, frozen=True, kw_only=True):
    """The state of a transactional id. `epoch` is that of the newest run (0: the id is not known).

    `is_current`: the newest run is the one asked about; `is_fenced`: another run has followed that
    one. `last_batch` was the last to end (-1: none has), at `end_index` (-1: it is not known).
    """

    epoch: Number = 0
    is_current: bool = False
    is_fenced: bool = False
    last_batch: Batch = -1
    end_index: Index = -1
