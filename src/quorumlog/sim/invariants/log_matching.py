"""Log matching: entries of equal index and term are equal, and so is all before them (Raft 5.3)."""

from quorumlog.model.codes import PushType
from quorumlog.model.messages.peer import PeerMessage, PushRequest
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.views import NodeView


class LogMatching(Invariant):
    """Compares chain CRCs, which cover all that came before, at ends of logs and at compares."""

    name = "log_matching"

    def __init__(self) -> None:
        self._chains: dict[tuple[int, int], tuple[int, str]] = {}
        self._ends: dict[str, tuple[int, int]] = {}

    def after_event(self, node: NodeView) -> None:
        """See `Invariant`."""
        log = node.log
        end = (log.end_index, log.end_chain_crc)
        if self._ends.get(node.node_id) != end:
            self._ends[node.node_id] = end
            runs = log.term_runs()
            if runs and end[1]:
                self._record(node.node_id, end[0], runs[-1][0], end[1])

    def sent(self, node: NodeView, message: PeerMessage) -> None:
        """See `Invariant`."""
        if not isinstance(message, PushRequest) or message.prev_term < 0:
            return
        if message.prev_chain_crc and message.type in (PushType.COMPARE, PushType.APPEND):
            chain = message.prev_chain_crc
            self._record(node.node_id, message.prev_index, message.prev_term, chain)

    def _record(self, node_id: str, index: int, term: int, chain_crc: int) -> None:
        known, where = self._chains.setdefault((index, term), (chain_crc, node_id))
        self.require(
            known == chain_crc,
            f"{where} and {node_id} have different entries of index {index} and term {term}",
        )
