"""Proposals that are made ready when the core is about to take them, with no event in between.

So what an entry is told of its place, or is given by it, is true of the entry in the log (decision
0038).
"""

from abc import ABC, abstractmethod
from functools import partial

from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.proposals import Batch, Refuse, Register
from quorumlog.raft.events import Proposed


class PreparedProposals(ABC):
    """Prepares each batch of appends when it is the proposal's turn.

    `register` makes the proposal of what is left of a batch; `refuse` answers an append that is
    left out.
    """

    def __init__(self, context: ReplicaContext, register: Register, refuse: Refuse) -> None:
        self._context = context
        self._register = register
        self._refuse = refuse

    def propose(self, batch: Batch) -> None:
        """Propose a batch; it is prepared when its turn has come."""
        self._context.shell.step(None, prepare=partial(self._proposal_of, batch))

    def _proposal_of(self, batch: Batch) -> Proposed | None:
        """Return the proposal, None if every append of the batch was refused."""
        if not self._context.core.takes_proposals:
            return self._register(batch)  # the core refuses it: nothing gets a place
        left = self._prepared(batch)
        return None if left is None else self._register(left)

    @abstractmethod
    def _prepared(self, batch: Batch) -> Batch | None:
        """Return what is left of a batch, made ready; None: every append of it was refused."""
