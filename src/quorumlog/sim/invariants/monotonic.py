"""Terms never fall, nor does what is committed while a process runs; pointers are in order."""

from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.peer import PeerMessage, PushResponse, VoteRequest, VoteResponse
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.views import NodeView


class Monotonic(Invariant):
    """Compares each node with how it was before."""

    name = "monotonic"

    def __init__(self) -> None:
        self._terms: dict[tuple[str, int], int] = {}
        self._committed: dict[tuple[str, int], int] = {}

    def sent(self, node: NodeView, message: PeerMessage) -> None:
        """See `Invariant`."""
        asks = isinstance(message, VoteRequest) and not message.pre_vote
        grants = isinstance(message, VoteResponse) and message.vote_result.accepts
        stores = isinstance(message, PushResponse) and message.code is ResponseCode.SUCCESS
        if asks or (grants and not getattr(message, "pre_vote", False)) or stores:
            identity = (node.node_id, node.incarnation)
            self._terms[identity] = max(self._terms.get(identity, -1), message.term)

    def after_event(self, node: NodeView) -> None:
        """See `Invariant`."""
        core, log, name = node.core, node.log, node.node_id
        identity, life = (name, node.incarnation), (name, node.life)
        promised = self._terms.get(identity, -1)
        self.require(core.term >= promised, f"{name} fell from term {promised} to {core.term}")
        before = self._committed.get(life, -1)
        now = core.committed_index
        self.require(now >= before, f"{name} committed {before} before, {now} now")
        self._committed[life] = now
        ends = (log.before_begin_index, now, log.end_index)
        self.require(ends[0] <= now <= ends[2], f"{name}: begin, committed, end are {ends}")
        durable = core.durable_index
        self.require(durable <= log.end_index, f"{name}: durable {durable} of {log.end_index}")
