"""What a follower acknowledged to a leader stays in its log for as long as that leader leads (R7).

And what a replica calls durable is: after entries were removed, the disk is checked (R20).
"""

from random import Random

from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.peer import PeerMessage, PushResponse
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.views import NodeView

CHECKS_AFTER_REMOVAL = 12
CHECK_ONE_IN = 2_000
"""Events between which a replica that calls everything durable is checked."""


class NoRetraction(Invariant):
    """Remembers for each node the highest index acknowledged in its present term."""

    name = "no_retraction"
    watches_time = True

    def __init__(self, random: Random) -> None:
        self._random = random
        self._acknowledged: dict[tuple[str, int], tuple[int, int]] = {}
        self._ends: dict[tuple[str, int], tuple[int, int]] = {}
        self._checks_left: dict[tuple[str, int], int] = {}

    def sent(self, node: NodeView, message: PeerMessage) -> None:
        """See `Invariant`."""
        if isinstance(message, PushResponse) and message.code is ResponseCode.SUCCESS:
            key = (node.node_id, node.life)
            term, index = self._acknowledged.get(key, (-1, -1))
            index = max(index, message.match_index) if term == message.term else message.match_index
            self._acknowledged[key] = (message.term, index)

    def after_event(self, node: NodeView) -> None:
        """See `Invariant`."""
        key, end = (node.node_id, node.life), node.log.end_index
        term, index = self._acknowledged.get(key, (-1, -1))
        if node.core.term == term:
            self.require(
                end >= index,
                f"{node.node_id} acknowledged {index} in term {term}, and now ends at {end}",
            )
        if self._removed(node, *self._ends.get(key, (-1, 0))):
            self._checks_left[key] = CHECKS_AFTER_REMOVAL
        self._ends[key] = (end, node.log.end_chain_crc)
        if self._checks_left.get(key, 0) > 0:
            self._checks_left[key] -= 1
            self._check_disk(node)
        elif node.core.durable_index == end and not self._random.randrange(CHECK_ONE_IN):
            self._check_disk(node)

    def _removed(self, node: NodeView, end: int, chain_crc: int) -> bool:
        """Whether entries that were there at the last check are gone, or others in their place."""
        log = node.log
        if not log.before_begin_index < end <= log.end_index or log.end_chain_crc == chain_crc:
            return end > log.end_index
        return log.is_in_memory(end) and log.chain_crc_at(end) != chain_crc

    def _check_disk(self, node: NodeView) -> None:
        durable, log = node.core.durable_index, node.log
        found = node.after_power_loss(self._random, durable)
        if found is None:
            return
        self.require(
            found.end_index >= durable,
            f"{node.node_id} calls {durable} durable, but without power it would end at "
            f"{found.end_index}",
        )
        if durable > log.before_begin_index and log.is_in_memory(durable):
            self.require(
                found.chain_crc in (None, log.chain_crc_at(durable)),
                f"{node.node_id} calls {durable} durable, but without power it would hold "
                "another entry there",
            )
