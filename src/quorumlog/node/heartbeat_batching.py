"""Heartbeats of all groups between two nodes, joined: those of one moment share one message.

The leaders of a node send heartbeats at the same moments (multiples of the interval,
`raft/leadership.py`), and the timers of all its replicas fire together (`node/timers.py`), so their
messages can be gathered.
"""

from collections.abc import Callable, Mapping, Sequence

from quorumlog.model.block import Buffer
from quorumlog.model.messages.peer import (
    HEART_BEATS_MAX,
    HeartBeatRequest,
    HeartBeatResponse,
    HeartBeats,
    NodeMessage,
    PeerMessage,
)
from quorumlog.node.environment import Network


class HeartBeatCoalescer:
    """A `Network` that sends heartbeats and their answers a moment later, in one message.

    `defer` calls a function soon, after what is being handled now.
    """

    def __init__(
        self, self_id: str, network: Network, defer: Callable[[Callable[[], None]], object]
    ) -> None:
        self._self_id = self_id
        self._network = network
        self._defer = defer
        self._gathered: dict[str, list[HeartBeatRequest | HeartBeatResponse]] = {}

    def send(
        self,
        peer_id: str,
        message: PeerMessage | NodeMessage,
        attachments: Sequence[Buffer] = (),
        *,
        bulk: bool = False,
    ) -> bool:
        """See `Network`."""
        if not isinstance(message, HeartBeatRequest | HeartBeatResponse):
            return self._network.send(peer_id, message, attachments, bulk=bulk)
        if not self._gathered:
            self._defer(self._send_all)
        gathered = self._gathered.setdefault(peer_id, [])
        gathered.append(message)
        if len(gathered) >= HEART_BEATS_MAX:
            self._send_gathered(peer_id, gathered)
            self._gathered[peer_id] = []
        return True

    def update_members(self, group: str, addresses: Mapping[str, str]) -> None:
        """See `Network`."""
        self._network.update_members(group, addresses)

    def _send_all(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for peer_id, messages in gathered.items():
            self._send_gathered(peer_id, messages)

    def _send_gathered(
        self, peer_id: str, messages: list[HeartBeatRequest | HeartBeatResponse]
    ) -> None:
        if len(messages) == 1:
            self._network.send(peer_id, messages[0])
        elif messages:
            self._network.send(
                peer_id,
                HeartBeats(
                    local_id=self._self_id,
                    remote_id=peer_id,
                    requests=[m for m in messages if isinstance(m, HeartBeatRequest)],
                    responses=[m for m in messages if isinstance(m, HeartBeatResponse)],
                ),
            )
