"""Idle groups quiesce: node heartbeats stand for the heartbeats of their leaders (decision 0012).

A node may have thousands of groups, most of them idle. If each leader went on sending heartbeats,
two nodes would exchange thousands of messages a second that say nothing new. So a group in which
nothing happens becomes quiescent:

1. Two nodes exchange one heartbeat for all groups (`node/liveness.py`). It names each group whose
   leader has committed an entry of its term; the replicas of these groups that follow get the event
   `Quiesced` and expect no other heartbeats, whether the group is idle or not.
2. A leader that has had nothing to do for some heartbeat intervals names the peers that have to
   confirm that they follow it (`Quiescence.confirming_peers`). Once they have, it gets `Quiesced`.
3. A quiescent leader sends a heartbeat only every `QUIESCENT_HEARTBEAT_MS`, and counts the
   confirming peers as live. Its followers' election timers stand still (`ElectionTimer`).
4. Any activity (whatever is not `HAPPENS_WHEN_IDLE`) wakes the leader up, and so does a missing
   answer to a node heartbeat (the event `Unquiesced`). Followers wake up when their leader's node
   is not heard from any more, or when they enter another term.

Quiescence is never needed for safety. A leader that woke up too late still needs a majority to
commit or to answer a read, and a follower that woke up too late only campaigns later.
"""

from collections.abc import Callable, Mapping
from typing import Any

from quorumlog.model.messages.peer import HeartBeatResponse
from quorumlog.raft.dispatcher import Dispatcher
from quorumlog.raft.events import Event, Quiesced, Received, Ticked, Unquiesced
from quorumlog.raft.quorum import has_quorum
from quorumlog.raft.state import RaftState

QUIESCE_AFTER_HEARTBEATS = 3
"""A leader may quiesce once nothing has happened for this number of heartbeat intervals."""
QUIESCENT_HEARTBEAT_MS = 30_000
"""Pause between heartbeats of a quiescent leader: only they can reveal lost data, for example."""


HAPPENS_WHEN_IDLE: frozenset[type[Any]] = frozenset(
    (HeartBeatResponse, Ticked, Quiesced, Unquiesced)
)
"""Events, and messages received, that happen to an idle leader all the time."""


class Quiescence:
    """Whether one leader's group is quiescent, and when its next heartbeat is due.

    `counted_peers` returns the peers that count towards a majority. `has_work` says whether the
    leader itself has something under way, such as a transfer or a read.
    """

    def __init__(
        self,
        state: RaftState,
        dispatchers: Mapping[str, Dispatcher],
        counted_peers: Callable[[], list[str]],
        has_work: Callable[[], bool],
    ) -> None:
        self.is_quiescent = False
        self.next_heartbeat_ms = 0
        self._state = state
        self._dispatchers = dispatchers
        self._counted_peers = counted_peers
        self._has_work = has_work
        self._active_ms = state.now_ms

    def schedule_heartbeat(self) -> None:
        """Set when the next heartbeat is due.

        It is a multiple of the interval, so that all leaders of a node send theirs at the same
        moments and the node joins them into one message for each peer.
        """
        now_ms, interval_ms = self._state.now_ms, self._state.config.heartbeat_ms
        if self.is_quiescent:
            self.next_heartbeat_ms = now_ms + QUIESCENT_HEARTBEAT_MS
        else:
            self.next_heartbeat_ms = (now_ms // interval_ms + 1) * interval_ms
        self._state.due_by(self.next_heartbeat_ms)

    def confirming_peers(self) -> tuple[str, ...]:
        """Return the peers that must follow this leader for the group to quiesce now.

        None are returned unless nothing has happened for a while and all live peers have, and know,
        everything. Absent peers are no obstacle: they announce themselves when they are back.
        """
        state, dispatchers = self._state, self._dispatchers
        idle_ms = state.now_ms - self._active_ms
        if idle_ms < QUIESCE_AFTER_HEARTBEATS * state.config.heartbeat_ms or not self._is_idle():
            return ()
        live = tuple(peer for peer, found in dispatchers.items() if found.contact.is_live)
        counted = [peer for peer in self._counted_peers() if peer in live]
        enough = has_quorum(state.memberships.current, [state.config.self_id, *counted])
        caught_up = all(dispatchers[peer].is_caught_up for peer in live)
        return live if enough and caught_up and len(counted) == len(live) else ()

    def quiesce(self) -> None:
        """The nodes confirmed all live peers: leave the heartbeats to the nodes."""
        if not self.is_quiescent and (peers := self.confirming_peers()):
            self.is_quiescent = True
            self._state.signals.changes += 1
            for peer_id in peers:
                self._dispatchers[peer_id].contact.is_confirmed = True
            self.schedule_heartbeat()

    def active(self, event: Event) -> None:
        """Something happened that is none of `HAPPENS_WHEN_IDLE`: wake up.

        A message of a node that is no member, or no longer one, does not count: it may come again
        and again for ever.
        """
        state = self._state
        if type(event) is Received and event.message.local_id not in state.memberships.ids:
            return
        if self.is_quiescent:
            self.wake_up()
        else:
            self._active_ms = state.now_ms

    def wake_up(self) -> None:
        """Something happened: send heartbeats as usual, the first at once.

        A confirmed peer has an election time-out from now on to answer, as if it had just been
        heard from. All groups of a node may wake up at once, and their answers take a while:
        leaders that gave them no time would step down by the thousand.
        """
        now_ms = self._active_ms = self._state.now_ms
        if not self.is_quiescent:
            return
        self.is_quiescent = False
        self._state.signals.changes += 1
        self.next_heartbeat_ms = now_ms
        self._state.due_by(now_ms)
        for dispatcher in self._dispatchers.values():
            dispatcher.contact.end_confirmation(now_ms)

    def review(self) -> None:
        """Wake up if a peer turns out to need something, or is back."""
        if self.is_quiescent and not (
            self._is_idle()
            and all(
                dispatcher.is_caught_up
                if dispatcher.contact.is_confirmed
                else not dispatcher.contact.is_live
                for dispatcher in self._dispatchers.values()
            )
        ):
            self.wake_up()

    def _is_idle(self) -> bool:
        """Whether everything is committed and durable here, and nothing is under way."""
        state = self._state
        end_index = state.log.end_index
        return (
            state.committed_index == end_index == state.writes.durable_index
            and state.writes.oldest_ms is None
            and not self._has_work()
        )
