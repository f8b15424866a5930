"""One vote a term: nobody votes for two in a term, not after a restart either (Raft 5.2)."""

from quorumlog.model.messages.peer import PeerMessage, VoteRequest, VoteResponse
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.views import NodeView


class OneVotePerTerm(Invariant):
    """Remembers every vote that left a node; an emptied disk is another voter."""

    name = "one_vote_per_term"

    def __init__(self) -> None:
        self._votes: dict[tuple[str, int, int], str] = {}

    def sent(self, node: NodeView, message: PeerMessage) -> None:
        """See `Invariant`."""
        if isinstance(message, VoteRequest) and not message.pre_vote:
            self._record(node, message.term, node.node_id)
            return
        if not isinstance(message, VoteResponse) or message.pre_vote:
            return
        if message.vote_result.accepts:
            self._record(node, message.request_term, message.remote_id)

    def _record(self, node: NodeView, term: int, candidate: str) -> None:
        known = self._votes.setdefault((node.node_id, node.incarnation, term), candidate)
        self.require(
            known == candidate, f"{node.node_id} voted for {known} and {candidate} in term {term}"
        )
