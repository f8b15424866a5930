"""Rounds of heartbeats: which round each peer answered last, and what that shows of its data.

Every round has a number, which answers repeat. So a leader knows that an answer was given after the
round left, and not at some earlier time: a read may be answered after a majority answered a round
that started later than the read (Raft 8).
"""

from collections.abc import Iterable, Mapping

from quorumlog.model.messages.peer import (
    HeartBeatRequest,
    HeartBeatResponse,
    InstallSnapshotResponse,
    PushResponse,
)
from quorumlog.raft.dispatcher import Dispatcher
from quorumlog.raft.envelope import request_to
from quorumlog.raft.state import RaftState


class HeartbeatRounds:
    """The rounds of one leader's term; `number` is that of the newest round."""

    def __init__(self, state: RaftState, dispatchers: Mapping[str, Dispatcher]) -> None:
        self.number = 0
        self._state = state
        self._dispatchers = dispatchers
        self._answered: dict[str, int] = {}
        self._match_when_sent: dict[str, int] = {}

    def send(self, retention_floor: int) -> None:
        """Start a round: send a heartbeat to every peer."""
        state = self._state
        self.number += 1
        for peer_id, dispatcher in self._dispatchers.items():
            self._match_when_sent[peer_id] = dispatcher.match_index
            state.send(
                HeartBeatRequest(
                    **request_to(state, peer_id),
                    round=self.number,
                    retention_floor=retention_floor,
                    membership_index=state.memberships.index,
                    committed_index=state.committed_index,
                )
            )

    def record_answer(self, response: HeartBeatResponse) -> bool:
        """Record which round a peer answered; return False if no such round was sent."""
        if response.round > self.number:
            return False
        peer_id = response.local_id
        self._answered[peer_id] = max(self._answered.get(peer_id, 0), response.round)
        return True

    def answered_by(self, peers: Iterable[str]) -> dict[str, int]:
        """Return the round that each of these peers, and this leader itself, answered last."""
        answered = {peer_id: self._answered.get(peer_id, 0) for peer_id in peers}
        answered[self._state.config.self_id] = self.number
        return answered

    def is_newest(
        self, response: HeartBeatResponse | PushResponse | InstallSnapshotResponse
    ) -> bool:
        """Whether the peer said this after everything that it said before.

        An answer to an earlier round may be that of a data directory that was emptied since. So a
        new incarnation is believed only if it answers a round that the old one did not.
        """
        known = self._answered.get(response.local_id, 0)
        return isinstance(response, HeartBeatResponse) and known < response.round <= self.number

    def shows_lost_data(self, response: HeartBeatResponse, match_index: int) -> bool:
        """Whether the peer's log ends before what it acknowledged.

        Only an answer to the newest round counts, compared with what the peer had acknowledged when
        that round left: a late answer would make a peer look as if it had lost data.
        """
        return response.round == self.number and (
            response.end_index < self._match_when_sent.get(response.local_id, -1) <= match_index
        )

    def forget(self, peer_id: str) -> None:
        """The peer is no member any more."""
        self._answered.pop(peer_id, None)
        self._match_when_sent.pop(peer_id, None)
