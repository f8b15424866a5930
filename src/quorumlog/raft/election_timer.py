"""The election timer: how long a replica waits for a leader before it campaigns (Raft 5.2)."""

from typing import Protocol

from quorumlog.raft.config import RaftConfig


class RandomSource(Protocol):
    """What the core needs of a `random.Random`, which it is given and never makes itself."""

    def randrange(self, start: int, stop: int | None = None, /) -> int:
        """Return a random integer from `start`, or 0, to before `stop`."""
        ...


class ElectionTimer:
    """When to campaign, and when the leader was last heard from.

    While the group is quiescent the timer stands still: node heartbeats stand for the leader's, and
    `wake_up` says when the leader's node was last heard from. Times are in milliseconds of the
    clock that the core is given.
    """

    def __init__(self, config: RaftConfig, random: RandomSource, now_ms: int) -> None:
        self.deadline_ms = now_ms
        self.is_quiescent = False
        self.yields = False
        """Whether others campaign first: this replica waits longer by an election time-out."""
        self._config = config
        self._random = random
        self._last_contact_ms = now_ms
        self._timeout_ms = 0

    def configure(self, config: RaftConfig, now_ms: int) -> None:
        """Wait as another configuration says from now on."""
        before, self._config = self._config, config
        times = "election_timeout_min_ms", "election_timeout_max_ms"
        if self._timeout_ms and any(getattr(before, it) != getattr(config, it) for it in times):
            self.restart(now_ms)

    def restart(self, now_ms: int) -> None:
        """Draw a new time-out and start to wait; a new one each round breaks split votes."""
        self._timeout_ms = self._random.randrange(
            self._config.election_timeout_min_ms, self._config.election_timeout_max_ms
        )
        self.deadline_ms = now_ms + self._timeout_ms + self._yielded_ms()

    def leader_seen(self, now_ms: int) -> None:
        """The leader gave a sign of life: wait for the same time-out again."""
        self._last_contact_ms = now_ms
        self.deadline_ms = now_ms + self._timeout_ms

    def leader_is_live(self, now_ms: int) -> bool:
        """Whether the leader was heard from within the shortest election time-out."""
        if self.is_quiescent:
            return True
        return now_ms - self._last_contact_ms < self._config.election_timeout_min_ms

    def campaign_soon(self, now_ms: int) -> None:
        """Campaign after one or two heartbeat intervals, each replica at another moment."""
        self.deadline_ms = self._soon_ms(now_ms)

    def campaign_earlier(self, now_ms: int) -> None:
        """The same, unless the deadline comes earlier anyway."""
        self.deadline_ms = min(self.deadline_ms, self._soon_ms(now_ms))

    def _soon_ms(self, now_ms: int) -> int:
        pause_ms = self._config.heartbeat_ms
        return now_ms + pause_ms + self._random.randrange(pause_ms) + self._yielded_ms()

    def _yielded_ms(self) -> int:
        return self._config.election_timeout_max_ms if self.yields else 0

    def leader_lost(self, now_ms: int) -> None:
        """The leader's process seems to have ended: campaign within half a heartbeat interval.

        The pause differs between replicas, so that one of them asks for votes before the others do.
        """
        self.wake_up(now_ms)
        self._last_contact_ms = now_ms - self._config.election_timeout_max_ms
        pause_ms = 1 + self._random.randrange(max(1, self._config.heartbeat_ms // 2))
        self.deadline_ms = min(self.deadline_ms, now_ms + pause_ms)

    def yield_to_candidate(self, now_ms: int) -> None:
        """Wait for a heartbeat interval first: another candidate that may win campaigns already."""
        self.deadline_ms = max(self.deadline_ms, now_ms + self._config.heartbeat_ms)

    def wake_up(self, last_contact_ms: int) -> None:
        """Wait for heartbeats again, from the moment at which the leader was last heard from."""
        if self.is_quiescent:
            self.is_quiescent = False
            self._last_contact_ms = max(self._last_contact_ms, last_contact_ms)
            self.deadline_ms = self._last_contact_ms + self._timeout_ms
