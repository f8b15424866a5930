"""Checks that what is accepted for a peer in a turn leaves when the turn ends."""

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from quorumlog.model.block import Buffer
from quorumlog.model.limits import Limits
from quorumlog.model.messages.peer import (
    HeartBeatRequest,
    HeartBeatResponse,
    NodeMessage,
    PeerMessage,
)
from quorumlog.node.peer_turns import PeerTurns
from quorumlog.sim.finding import Finding
from quorumlog.sim.links import SimulatedLinks


class _Accepted(NamedTuple):
    """A message that has not left, and the connection over which it is to leave."""

    peer_id: str
    bulk: bool
    message: PeerMessage | NodeMessage
    connection: Hashable


class CheckedTurns(PeerTurns):
    """Raises `Finding` at the end of a turn if a message was accepted and dropped.

    It may be dropped if its connection has ended, or if it is a heartbeat to an earlier version.
    """

    def __init__(
        self,
        self_id: str,
        links: SimulatedLinks,
        at_end: Callable[[Callable[[], None]], object],
        limits: Limits,
    ) -> None:
        super().__init__(self_id, links, at_end, limits)
        self._checked_id = self_id
        self._checked_links = links
        self._accepted: list[_Accepted] = []
        links.on_sent = self._sent

    def send(
        self,
        peer_id: str,
        message: PeerMessage | NodeMessage,
        attachments: Sequence[Buffer] = (),
        *,
        bulk: bool = False,
    ) -> bool:
        """See `Network`."""
        links = self._checked_links
        accepted = _Accepted(peer_id, bulk, message, links.connection(peer_id))
        is_beat = isinstance(message, HeartBeatRequest | HeartBeatResponse)
        if is_beat and not links.takes_joined(peer_id):
            return super().send(peer_id, message, attachments, bulk=bulk)
        self._accepted.append(accepted)
        if super().send(peer_id, message, attachments, bulk=bulk):
            return True
        self._accepted.remove(accepted)
        return False

    def _sent(self, peer_id: str, bulk: bool, parts: Sequence[PeerMessage]) -> None:
        """A link has accepted messages: those of a turn, or others."""
        for part in parts:
            for place, accepted in enumerate(self._accepted):
                if (accepted.peer_id, accepted.bulk, accepted.message) == (peer_id, bulk, part):
                    del self._accepted[place]
                    break

    def _send_all(self) -> None:
        super()._send_all()
        missing, self._accepted = self._accepted, []
        for peer_id, _, message, connection in missing:
            if connection is not None and connection == self._checked_links.connection(peer_id):
                text = f"{self._checked_id} accepted {message} for {peer_id}, and dropped it"
                raise Finding("accepted_leaves", text)
