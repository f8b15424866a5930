"""Handing leadership over (spec 10 section 8): the target catches up, then campaigns at once.

Appends are refused meanwhile, for a bounded time; if the target does not take over, the leader goes
on as before (R10). This outlives the leadership it ends, to see who leads then.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.messages.peer import TimeoutNowRequest
from quorumlog.raft.dispatcher import Dispatcher
from quorumlog.raft.effects import Finished
from quorumlog.raft.events import TransferRequested
from quorumlog.raft.state import RaftState

PREFERRED_INTERVAL_MS = 1_000
"""How often a leader looks whether a preferred one could take over (spec 10 section 9)."""
PREFERRED_PAUSE_MS = 10_000
"""Pause after a preferred leader did not take over: appends were refused for nothing. Twice as long
each time, until it did or its connection was made anew."""
PREFERRED_PAUSE_MAX_MS = 600_000


@dataclass(frozen=True, slots=True)
class _Running:
    request_id: int | None
    target: str
    term: int
    deadline_ms: int


class Transfer:
    """The hand-over that is under way, if any; one at a time."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self._running: _Running | None = None
        self._timeout_now_sent = False
        self._tried: set[str] = set()
        self._next_check_ms = 0
        self._pause_ms = PREFERRED_PAUSE_MS

    @property
    def is_running(self) -> bool:
        """Whether appends are refused for it."""
        return self._running is not None and self._state.role is Role.LEADER

    @property
    def is_awaited(self) -> bool:
        """Whether one is under way whose end is not known, also if this replica leads no more."""
        return self._running is not None

    def request(self, event: TransferRequested, dispatchers: Mapping[str, Dispatcher]) -> None:
        """Begin what was asked for, or say why not."""
        refused = self._refusal(event, dispatchers)
        if refused is not None:
            self._state.emit(Finished(event.request_id, *refused))
        else:
            self._start(event.request_id, event.transferee_id, dispatchers)

    def _refusal(
        self, event: TransferRequested, dispatchers: Mapping[str, Dispatcher]
    ) -> tuple[ResponseCode, str] | None:
        """Return why leadership is not handed over, in the order of spec 10 section 8."""
        state, target = self._state, event.transferee_id
        membership = state.memberships.current
        dispatcher = dispatchers.get(target)
        if target == state.config.self_id and target in membership.voters:
            return ResponseCode.UNEXPECTED_ARGUMENT, f"{target} leads already"
        if target not in membership.voters or dispatcher is None:
            return ResponseCode.UNKNOWN_MEMBER, f"{target} is no voter of the group"
        if event.term not in (-1, state.term):
            text = f"the term is {state.term}, not {event.term}"
            return ResponseCode.INCONSISTENT_TERM, text
        if self._running is not None:
            text = f"leadership is being handed to {self._running.target}"
            return ResponseCode.LEADER_TRANSFERRING, text
        lag, lag_max = state.log.end_index - dispatcher.match_index, state.config.transfer_lag_max
        if dispatcher.match_index < 0:
            text = f"it is not known yet how far the log of {target} goes"
            return ResponseCode.FALL_BEHIND_TOO_MUCH, text
        if lag >= lag_max:
            text = f"{target} is {lag} entries behind; the limit is {lag_max}"
            return ResponseCode.FALL_BEHIND_TOO_MUCH, text
        if not dispatcher.is_live:
            return ResponseCode.TAKE_LEADERSHIP_FAILED, f"{target} does not answer"
        return None

    def _start(
        self, request_id: int | None, target: str, dispatchers: Mapping[str, Dispatcher]
    ) -> None:
        state = self._state
        deadline_ms = state.now_ms + state.config.transfer_timeout_ms
        self._running = _Running(request_id, target, state.term, deadline_ms)
        self._timeout_now_sent = False
        state.record(f"hands leadership over to {target}")
        self.advance(dispatchers)

    def advance(self, dispatchers: Mapping[str, Dispatcher], *, again: bool = False) -> None:
        """Tell the target to campaign once it has everything; `again`: the word may be lost.

        Everything is committed by then, so that nobody who appended is left without an answer.
        """
        running, end_index = self._running, self._state.log.end_index
        if running is None or (self._timeout_now_sent and not again):
            return
        dispatcher = dispatchers.get(running.target)
        has_all = dispatcher is not None and dispatcher.match_index == end_index
        if has_all and self._state.committed_index == end_index:
            self._timeout_now_sent = True
            self._state.send(timeout_now(self._state, running.target, end_index))

    def leads(self) -> None:
        """Leadership began: what the others have is known after an interval at the earliest."""
        begin_ms = self._state.now_ms + self._state.config.heartbeat_ms
        self._next_check_ms = max(self._next_check_ms, begin_ms)

    def peer_connected(self, peer_id: str) -> None:
        """A peer may have started again: if it is preferred, it is tried again."""
        if peer_id in self._state.config.preferred_leader_ids:
            begin_ms = self._state.now_ms + PREFERRED_INTERVAL_MS
            self._next_check_ms = min(self._next_check_ms, begin_ms)
            self._pause_ms = PREFERRED_PAUSE_MS

    def consider_preferred(self, dispatchers: Mapping[str, Dispatcher]) -> None:
        """Hand over to the preferred leader that lags least, if it is alive and near."""
        state = self._state
        if self._running is not None or state.now_ms < self._next_check_ms:
            return
        alive = self.live_preferred(dispatchers)
        if alive:
            self._next_check_ms = state.now_ms + PREFERRED_INTERVAL_MS
            # of those that lag alike the first named
            name = max(alive, key=lambda name: dispatchers[name].match_index)
            lag = state.log.end_index - dispatchers[name].match_index
            if lag < state.config.transfer_lag_max and dispatchers[name].match_index >= 0:
                self._start(None, name, dispatchers)

    def successors(self, dispatchers: Mapping[str, Dispatcher]) -> list[str]:
        """Return who could lead in place of one that is about to stop."""
        voters = self._state.memberships.current.voters
        return [
            name
            for name, dispatcher in dispatchers.items()
            if name in voters
            and name not in self._tried
            and dispatcher.is_live
            and not dispatcher.is_lost
        ]

    def consider_successor(self, dispatchers: Mapping[str, Dispatcher]) -> None:
        """Hand over to the one that lags least, as this node is about to stop.

        Who did not take over is not asked again. Of the others it may not be known yet how far
        their logs go.
        """
        if self._running is None:
            known = [
                name for name in self.successors(dispatchers) if dispatchers[name].match_index >= 0
            ]
            if known:
                name = max(known, key=lambda name: dispatchers[name].match_index)
                self._tried.add(name)
                self._start(None, name, dispatchers)

    def peer_lost(self, peer_id: str) -> None:
        """A peer's process has ended, it seems: if it was to take over, it will not."""
        if self._running is not None and self._running.target == peer_id:
            self._end(ResponseCode.TAKE_LEADERSHIP_FAILED, f"{peer_id} has ended")

    def live_preferred(self, dispatchers: Mapping[str, Dispatcher]) -> list[str]:
        """Return the preferred leaders that could lead instead of this one."""
        preferred = self._state.config.preferred_leader_ids
        if not preferred or self._state.config.self_id in preferred:
            return []
        voters = self._state.memberships.current.voters
        known = [name for name in preferred if name in voters and name in dispatchers]
        return [name for name in known if dispatchers[name].is_live]

    def check_end(self) -> None:
        """See whether it has ended: somebody else leads, or time has passed."""
        running, state = self._running, self._state
        if running is None:
            return
        if state.term > running.term and state.leader_id == running.target:
            self._end(ResponseCode.SUCCESS, "")
        elif state.term > running.term and state.leader_id is not None:
            self._end(ResponseCode.TAKE_LEADERSHIP_FAILED, f"{state.leader_id} leads now")
        elif state.now_ms >= running.deadline_ms:
            kept = "kept leadership" if state.role is Role.LEADER else "leads no more"
            text = f"{running.target} did not take over in time; {state.config.self_id} {kept}"
            self._end(ResponseCode.TAKE_LEADERSHIP_FAILED, text)

    def _end(self, code: ResponseCode, text: str) -> None:
        running, self._running = self._running, None
        self._state.record(f"hand-over ended: {code.name} {text}")
        if code is ResponseCode.SUCCESS:
            self._pause_ms = PREFERRED_PAUSE_MS
        else:
            self._next_check_ms = self._state.now_ms + self._pause_ms
            self._pause_ms = min(PREFERRED_PAUSE_MAX_MS, 2 * self._pause_ms)
        if running is not None and running.request_id is not None:
            self._state.emit(Finished(running.request_id, code, text))

    def deadline_ms(self) -> int:
        """When `check_end` has something to do."""
        return self._running.deadline_ms if self._running is not None else NEVER_MS


def timeout_now(state: RaftState, target: str, end_index: int) -> TimeoutNowRequest:
    """Return the word to take over, for one whose log goes so far."""
    return TimeoutNowRequest(
        group=state.config.group,
        local_id=state.config.self_id,
        remote_id=target,
        incarnation=state.config.incarnation,
        term=state.term,
        end_index=end_index,
    )
