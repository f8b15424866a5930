"""Who answers a leader under a peer's name, and when it did so last."""

from quorumlog.raft.state import RaftState


class PeerContact:
    """What a leader knows of a peer apart from its log.

    `incarnation` is the number of the data directory that the peer's answers speak for; 0: no
    answer has named one. `is_confirmed`: the group is quiescent, and node heartbeats confirm that
    the peer follows this leader. `is_lost`: the peer's process seems to have ended, and nothing was
    heard of it since.
    """

    def __init__(self, state: RaftState) -> None:
        self.last_contact_ms = state.now_ms
        self.incarnation = 0
        self.is_confirmed = False
        self.is_lost = False
        self._state = state

    @property
    def is_live(self) -> bool:
        """Whether the peer answered within an election time-out, or node heartbeats confirm it."""
        return (
            self.is_confirmed
            or self._state.now_ms - self.last_contact_ms
            < self._state.config.election_timeout_min_ms
        )

    def is_other(self, incarnation: int) -> bool:
        """Whether an answer speaks for another data directory than the answers before.

        Incarnations are random numbers without an order. 0 stands for one that was not named, and
        may be any.
        """
        return 0 not in (incarnation, self.incarnation) and incarnation != self.incarnation

    def seen(self, incarnation: int) -> None:
        """The peer answered."""
        self.incarnation = incarnation or self.incarnation
        self.last_contact_ms = self._state.now_ms
        self.is_lost = False

    def end_confirmation(self, now_ms: int) -> None:
        """The group is not quiescent any more: the peer has a time-out from now on to answer."""
        if self.is_confirmed:
            self.is_confirmed = False
            self.last_contact_ms = now_ms
