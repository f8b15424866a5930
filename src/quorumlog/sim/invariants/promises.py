"""Promise after persist: a vote or acknowledgement leaves once a loss of power would keep it.

A sample of promises is checked by losing the power of a copy of the machine's disk and opening it.
"""

from random import Random
from typing import TypeGuard

from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.peer import PeerMessage, PushResponse, VoteResponse
from quorumlog.model.wording import entries_text
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.views import NodeView

ENTRIES_ONE_IN = 150
VOTES_ONE_IN = 7


def _is_vote(message: PeerMessage) -> TypeGuard[VoteResponse]:
    if not isinstance(message, VoteResponse) or message.pre_vote:
        return False
    return message.vote_result.accepts


class Promises(Invariant):
    """Opening a store costs a thousand times what a promise costs; so only some are checked."""

    name = "promises"

    def __init__(self, random: Random) -> None:
        self._random = random

    def sent(self, node: NodeView, message: PeerMessage) -> None:
        """See `Invariant`."""
        if isinstance(message, PushResponse) and message.code is ResponseCode.SUCCESS:
            if message.match_index >= 0 and not self._random.randrange(ENTRIES_ONE_IN):
                self._check_entries(node, message)
        elif _is_vote(message) and (
            # a disk that has just refused something may not have kept it
            node.files.refused or not self._random.randrange(VOTES_ONE_IN)
        ):
            self._check_vote(node, message)

    def _check_entries(self, node: NodeView, message: PushResponse) -> None:
        found = node.after_power_loss(self._random)
        if found is None:
            return  # damaged: flipped bits say nothing about promises
        term, end_index = found.term, found.end_index
        self.require(
            end_index >= message.match_index and term >= message.term,
            f"{node.node_id} acknowledged index {message.match_index} in term {message.term}, but "
            f"without power it would hold {entries_text(end_index)} in term {term}",
        )

    def _check_vote(self, node: NodeView, message: VoteResponse) -> None:
        found = node.after_power_loss(self._random)
        if found is None:
            return
        term, vote = found.term, found.vote
        kept = term > message.request_term or (
            term == message.request_term and vote == message.remote_id
        )
        self.require(
            kept,
            f"{node.node_id} voted for {message.remote_id} in term {message.request_term}, but "
            f"without power it would know term {term} and vote {vote}",
        )
