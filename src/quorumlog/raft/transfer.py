"""Leadership transfer (spec 10 section 8): the target catches up, then campaigns at once.

The leader refuses appends meanwhile, for a bounded time; if the target does not take over, it goes
on as before (R10). A transfer outlives the leadership that it ends, so that the requester learns
who leads then.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.messages.peer import TimeoutNowRequest
from quorumlog.model.wording import entries_text
from quorumlog.raft.dispatcher import Dispatcher
from quorumlog.raft.effects import Finished, MeasureLag
from quorumlog.raft.envelope import request_to
from quorumlog.raft.events import LagMeasured, TransferRequested
from quorumlog.raft.quorum import has_quorum
from quorumlog.raft.state import RaftState

PREFERRED_INTERVAL_MS = 1_000
"""How often a leader checks whether another should take over (spec 10 section 9)."""
PREFERRED_PAUSE_MS = 10_000
"""Pause after another did not take over, since appends were refused for nothing.

The pause doubles each time, until one takes over or a preferred leader connects again."""
PREFERRED_PAUSE_MAX_MS = 600_000


@dataclass(frozen=True, slots=True)
class _Running:
    """`request_id` is None where the leader started the transfer itself."""

    request_id: int | None
    target: str
    term: int
    deadline_ms: int


class Transfer:
    """The transfer that is under way, if any; one at a time.

    The core owns it. While this replica leads, its leadership lends the dispatchers, which say how
    far each peer's log goes.
    """

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self.knows_full_disks = False
        self._dispatchers: Mapping[str, Dispatcher] = {}
        self._running: _Running | None = None
        self.is_awaited = False
        """Whether the end of a transfer is not known yet, also if this replica leads no more."""
        self._timeout_now_sent = False
        self._tried: set[str] = set()
        self._next_check_ms = 0
        self._pause_ms = PREFERRED_PAUSE_MS

    def leadership_started(self, dispatchers: Mapping[str, Dispatcher]) -> None:
        """This replica leads: after a heartbeat interval it may know what the others have."""
        self._dispatchers = dispatchers
        self.room_changed()
        earliest_ms = self._state.now_ms + self._state.config.heartbeat_ms
        self._next_check_ms = max(self._next_check_ms, earliest_ms)

    def leadership_ended(self) -> None:
        """This replica does not lead any more."""
        self._dispatchers = {}

    @property
    def is_running(self) -> bool:
        """Whether this leader refuses appends because of a transfer."""
        return self._running is not None and self._state.role is Role.LEADER

    def request(self, event: TransferRequested) -> None:
        """Start the transfer that was asked for, or say why not."""
        target = event.transferee_id or self._best()
        refused = self._refusal(event, target)
        if refused is not None:
            self._state.emit(Finished(event.request_id, *refused))
        elif target == self._state.config.self_id:  # it leads already
            self._state.emit(Finished(event.request_id, ResponseCode.SUCCESS, ""))
        else:
            self._start(event.request_id, target)

    def _best(self) -> str:
        """Return the live voter that has most of the log; "": none is known to have any."""
        matches = {name: self._dispatchers[name].match_index for name in self._live_voters()}
        known = [name for name, match_index in matches.items() if match_index >= 0]
        return max(known, key=matches.__getitem__, default="")

    def _live_voters(self) -> list[str]:
        """Return the other voters that answer, and whose process has not ended."""
        voters = self._state.memberships.current.voters
        contacts = {name: found.contact for name, found in self._dispatchers.items()}
        return [
            name
            for name, contact in contacts.items()
            if name in voters and contact.is_live and not contact.is_lost
        ]

    def _refusal(self, event: TransferRequested, target: str) -> tuple[ResponseCode, str] | None:
        """Return why leadership is not transferred; checked in the order of spec 10 section 8."""
        state = self._state
        membership = state.memberships.current
        dispatcher = self._dispatchers.get(target)
        if not target and self._live_voters():
            text = "it is not known yet how far the logs of the others go"
            return ResponseCode.LEADER_NOT_READY, text
        if not target:
            return ResponseCode.TAKE_LEADERSHIP_FAILED, "no other voter answers"
        is_self = target == state.config.self_id
        if target not in membership.voters or (dispatcher is None and not is_self):
            return ResponseCode.UNKNOWN_MEMBER, f"{target} is no voter of the group"
        if event.term not in (-1, state.term):
            text = f"the term is {state.term}, not {event.term}"
            return ResponseCode.INCONSISTENT_TERM, text
        if self._running is not None:
            text = f"leadership is being transferred to {self._running.target}"
            return ResponseCode.LEADER_TRANSFERRING, text
        if dispatcher is None:  # it is this replica, which leads
            return None
        lag, lag_max = state.log.end_index - dispatcher.match_index, state.config.transfer_lag_max
        is_unknown = dispatcher.match_index < 0
        if is_unknown and target in self._live_voters():
            text = f"it is not known yet how far the log of {target} goes"
            return ResponseCode.LEADER_NOT_READY, text
        if not is_unknown and lag >= lag_max:
            text = f"{target} is {entries_text(lag)} behind; the limit is {lag_max}"
            return ResponseCode.FALL_BEHIND_TOO_MUCH, text
        if is_unknown or not dispatcher.contact.is_live:
            return ResponseCode.TAKE_LEADERSHIP_FAILED, f"{target} does not answer"
        return None

    def _start(self, request_id: int | None, target: str) -> None:
        state = self._state
        deadline_ms = state.now_ms + state.config.transfer_timeout_ms
        self._running = _Running(request_id, target, state.term, deadline_ms)
        self._timeout_now_sent = False
        self.is_awaited = True
        state.signals.changes += 1
        state.due_by(deadline_ms)
        state.record(f"transfers leadership to {target}")
        self.advance()

    def advance(self, *, again: bool = False) -> None:
        """Tell the target to campaign once it has every entry and all of them are committed.

        If some were not, their clients would be left without an answer. `again`: tell it once more,
        because the first message may be lost.
        """
        running, end_index = self._running, self._state.log.end_index
        if running is None or (self._timeout_now_sent and not again):
            return
        dispatcher = self._dispatchers.get(running.target)
        has_all = dispatcher is not None and dispatcher.match_index == end_index
        if has_all and self._state.committed_index == end_index:
            self._timeout_now_sent = True
            self._state.send(timeout_now(self._state, running.target, end_index))

    def peer_connected(self, peer_id: str) -> None:
        """A peer may have restarted: if it is a preferred leader, try it again soon."""
        if peer_id in self._state.config.preferred_leader_ids:
            earliest_ms = self._state.now_ms + PREFERRED_INTERVAL_MS
            self._next_check_ms = min(self._next_check_ms, earliest_ms)
            self._pause_ms = PREFERRED_PAUSE_MS

    def consider_other_leader(self) -> None:
        """Transfer to the voter that lags least of those that should lead, if it lags little."""
        state = self._state
        if self._running is not None or state.now_ms < self._next_check_ms:
            return
        wanted = self._wanted()
        if wanted:
            self._next_check_ms = state.now_ms + PREFERRED_INTERVAL_MS
            # of several that lag equally, the one that is configured first
            name = max(wanted, key=lambda name: self._dispatchers[name].match_index)
            match_index = self._dispatchers[name].match_index
            lag = state.log.end_index - match_index
            if not lag:
                self._start(None, name)
            elif lag < state.config.transfer_lag_max and match_index >= 0:
                state.emit(MeasureLag(name, match_index))

    def lag_measured(self, event: LagMeasured) -> None:
        """Transfer to who should lead, if it lags by few bytes as well as by few entries.

        Entries may be of any size: what it lacks must reach it within the time of a transfer.
        """
        is_wanted = self._running is None and event.peer_id in self._wanted()
        if is_wanted and event.size_bytes <= self._state.config.transfer_lag_bytes_max:
            self._start(None, event.peer_id)

    def successors(self) -> list[str]:
        """Return the voters that could lead once this node has stopped."""
        return [name for name in self._live_voters() if name not in self._tried]

    def consider_successor(self) -> None:
        """Transfer to the voter that lags least, because this node is about to stop.

        A voter that did not take over is not asked again. It may not be known yet how far the logs
        of the others go.
        """
        if self._running is None:
            known = [name for name in self.successors() if self._dispatchers[name].match_index >= 0]
            if known:
                name = max(known, key=lambda name: self._dispatchers[name].match_index)
                self._tried.add(name)
                self._start(None, name)

    def peer_lost(self, peer_id: str) -> None:
        """A peer's process seems to have ended: if it was the target, it will not take over."""
        if self._running is not None and self._running.target == peer_id:
            self._end(ResponseCode.TAKE_LEADERSHIP_FAILED, f"{peer_id} has ended")

    @property
    def needs_heartbeats(self) -> bool:
        """Whether it matters what the others say: another should lead, or has no room."""
        lacks_room = self.knows_full_disks and (
            self._state.writes.lacks_room or bool(self.no_room_text())
        )
        return lacks_room or bool(self._live_preferred())

    def room_changed(self) -> None:
        """A disk of the group became full, or has room again, as far as is known here."""
        lacking = (found.contact.lacks_room for found in self._dispatchers.values())
        self.knows_full_disks = self._state.writes.lacks_room or any(lacking)

    def no_room_text(self) -> str:
        """Say why no majority takes entries, if full disks are among the reasons; else nothing."""
        state, members = self._state, self._dispatchers.items()
        full = [name for name, found in members if found.contact.lacks_room]
        if state.writes.lacks_room:
            full.append(state.config.self_id)
        if not full:
            return ""
        current = state.memberships.current
        silent = [name for name, found in members if not found.contact.is_live and name not in full]
        roomy = [name for name in current.ids if name not in full and name not in silent]
        if has_quorum(current, roomy):
            return ""
        full, silent = (sorted(filter(current.is_voter, names)) for names in (full, silent))
        text = f"no majority has room: {_disks_of(full)} full"
        does = "does" if len(silent) == 1 else "do"
        return f"{text}, {', '.join(silent)} {does} not answer" if silent else text

    def _live_preferred(self) -> list[str]:
        """Return the preferred leaders that are live; none if this replica is one itself."""
        preferred = self._state.config.preferred_leader_ids
        if not preferred or self._state.config.self_id in preferred:
            return []
        live = self._live_voters()
        return [name for name in preferred if name in live]

    def _wanted(self) -> list[str]:
        """Return the live voters that should lead rather than this replica; preferred ones first.

        One whose disk is full takes no entries: any voter with room is better, and no preferred
        leader without room is. If all disks are full, the group keeps its leader.
        """
        wanted = self._live_preferred()
        if self._state.writes.lacks_room:
            preferred = self._state.config.preferred_leader_ids
            wanted = sorted(self._live_voters(), key=lambda name: name not in preferred)
        return [name for name in wanted if not self._dispatchers[name].contact.lacks_room]

    def check_end(self) -> None:
        """Check whether the transfer has ended: another replica leads, or its time is over."""
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
        self.is_awaited = False
        self._state.signals.changes += 1
        self._state.record(f"transfer ended: {code.name} {text}")
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
    """Return the message that has a peer campaign at once, if its log goes up to end_index."""
    return TimeoutNowRequest(**request_to(state, target), end_index=end_index)


def _disks_of(names: list[str]) -> str:
    if len(names) == 1:
        return f"the disk of {names[0]} is"
    return f"the disks of {', '.join(names)} are"
