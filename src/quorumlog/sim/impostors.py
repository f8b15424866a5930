"""Messages in a member's name that it never sent: what a confused node, or anybody, could say.

They carry what no member can mean here and now, so nothing durable may come of them: offers to
restart the log elsewhere that the leader did not make, answers to questions that nobody asked,
digests that nobody asked for, and terms that no group reaches. Forgeries of what a member could
mean cannot be distinguished without authentication. The impostors have a random source and times of
their own, so that they do not change what else happens in a run.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import msgspec

from quorumlog.model.bounds import TERM_JUMP_MAX
from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.peer import (
    HeartBeatRequest,
    InstallSnapshotRequest,
    OfferResponse,
    PeerMessage,
    StateDigest,
    TableDigest,
    VoteRequest,
)
from quorumlog.sessions.table_set import TABLE_NAMES, TableSet

if TYPE_CHECKING:
    from quorumlog.sim.cluster import SimulatedCluster
    from quorumlog.sim.node import SimulatedNode

PAUSE_MS = (50, 1_500)
"""From one message to the next."""
BEYOND = (-20, 1_000)
"""Where an offered log would start, relative to the end of the receiver's own."""


class Impostors:
    """Send messages in members' names from `start` to `end`."""

    def __init__(self, cluster: "SimulatedCluster", random: Random) -> None:
        self._cluster = cluster
        self._random = random
        self.is_on = False
        self.happened: list[str] = []

    def start(self) -> None:
        """Start to send."""
        self.is_on = True
        self._forge_later()

    def end(self) -> None:
        """Send no more."""
        self.is_on = False

    def _forge_later(self) -> None:
        pause_ms = self._random.uniform(*PAUSE_MS)
        self._cluster.clock.after_ms(pause_ms, lambda: self._forge() if self.is_on else None)

    def _forge(self) -> None:
        node = self._random.choice(list(self._cluster.nodes.values()))
        kinds = (self._offer, self._answer, self._beat, self._vote, self._digest, self._table)
        make = self._random.choice(kinds)
        sender = self._random.choice([one for one in self._cluster.nodes if one != node.node_id])
        # a node that knows no term yet accepts any as the group's
        if node.is_up and not node.running.is_broken and node.core.term > 0:
            self._send(node, sender, make)
        self._forge_later()

    def _send(
        self,
        node: "SimulatedNode",
        sender: str,
        make: "Callable[[SimulatedNode, str], tuple[PeerMessage, bytes] | None]",
    ) -> None:
        made = make(node, sender)
        if made is not None:
            message, data = made
            now_ms = self._cluster.clock.now_ms
            text = f"{type(message).__name__} to {node.node_id} in the name of {message.local_id}"
            self.happened.append(f"{now_ms} ms: {text}")
            node.enter(lambda: node.receive(message, memoryview(bytearray(data))))

    def _offer(self, node: "SimulatedNode", sender: str) -> tuple[PeerMessage, bytes] | None:
        """An offer of the leader that this replica follows, which has made none like it."""
        core = node.core
        leader = core.leader_id
        if leader in (None, node.node_id):
            return None
        index = max(0, node.log.end_index + self._random.randint(*BEYOND))
        has_machine = bool(self._cluster.state_machine)
        offer = InstallSnapshotRequest(
            group="g",
            local_id=str(leader),
            remote_id=node.node_id,
            term=core.term,
            request_id=self._random.randrange(1 << 32),
            last_included_index=index,
            last_included_term=core.term,
            size_bytes=100 * has_machine,
            sha256=bytes(32) if has_machine else b"",
        )
        return offer, TableSet(index).encode()

    def _answer(self, node: "SimulatedNode", sender: str) -> tuple[PeerMessage, bytes] | None:
        answer = OfferResponse(
            group="g",
            local_id=sender,
            remote_id=node.node_id,
            term=node.core.term,
            request_id=self._random.getrandbits(62),
            code=ResponseCode.SUCCESS,
        )
        return answer, b""

    def _beat(self, node: "SimulatedNode", sender: str) -> tuple[PeerMessage, bytes] | None:
        heartbeat = HeartBeatRequest(
            group="g", local_id=sender, remote_id=node.node_id, term=self._far(node), round=1
        )
        return heartbeat, b""

    def _vote(self, node: "SimulatedNode", sender: str) -> tuple[PeerMessage, bytes] | None:
        term = self._far(node)
        request = VoteRequest(
            group="g",
            local_id=sender,
            remote_id=node.node_id,
            term=term,
            ledger_end_index=node.log.end_index + 1_000,
            ledger_end_term=term - 1,
        )
        return request, b""

    def _digest(self, node: "SimulatedNode", sender: str) -> tuple[PeerMessage, bytes] | None:
        """A verdict of the leader, or to it a follower's report; of what is applied or to come."""
        core, entries = node.core, node.running.config.digest_entries
        is_leader = core.leader_id == node.node_id
        if core.leader_id is None or not entries:
            return None
        points = max(0, node.running.applied_index // entries + self._random.randint(-1, 1))
        digest = StateDigest(
            group="g",
            local_id=sender if is_leader else core.leader_id,
            remote_id=node.node_id,
            term=core.term,
            index=(points + 1) * entries - 1,
            digest=b"of no state",
            is_verdict=not is_leader,
            is_majority=not is_leader,
            request_id=self._random.choice((0, self._random.getrandbits(62))),
        )
        return digest, b""

    def _table(self, node: "SimulatedNode", sender: str) -> tuple[PeerMessage, bytes] | None:
        """The same of a table that is derived from the log."""
        made = self._digest(node, sender)
        if made is None:
            return None
        lie = msgspec.structs.asdict(made[0])
        return TableDigest(**lie, table=self._random.choice(TABLE_NAMES)), b""

    def _far(self, node: "SimulatedNode") -> int:
        """Return a term that no group reaches."""
        return node.core.term + TERM_JUMP_MAX + self._random.randint(1_000, TERM_JUMP_MAX)
