"""The dispatcher: how a leader brings one peer's log in step with its own (spec 30 section 4).

    COMPARE   find the last index at which both logs are equal, stepping back a term at a time
    TRUNCATE  have the peer remove what conflicts behind it
    APPEND    push entries, many requests at a time; COMMIT when there is nothing to push
    INSTALL_SNAPSHOT  the peer needs entries that were removed: have it begin behind them

It falls back to COMPARE whenever it is not sure where the peer is: no answer in time, a new
connection, an answer that does not fit. Only answers to what is outstanding are believed (R8).
"""

from enum import Enum

from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import PushType, ResponseCode
from quorumlog.model.errors import check
from quorumlog.model.messages.client import PeerStatus
from quorumlog.model.messages.peer import InstallSnapshotResponse, PushRequest, PushResponse
from quorumlog.raft.effects import OfferSnapshot, PushEntries, ReadEntries
from quorumlog.raft.events import EntriesRead, EntriesUnreadable
from quorumlog.raft.in_flight import InFlight, Push
from quorumlog.raft.rate_limiter import RateLimiter
from quorumlog.raft.state import RaftState

QUOTA_LAG_ENTRIES = 1_000
"""A peer further behind is sent what lies on disk at a bounded rate (spec 30 section 7)."""
COMMIT_DELAY_MS = 2
"""An idle peer is told what is committed so late: the next entries may be first, and say it."""


class Phase(Enum):
    """What a dispatcher is doing."""

    COMPARE = "COMPARE"
    TRUNCATE = "TRUNCATE"
    APPEND = "APPEND"
    INSTALL_SNAPSHOT = "INSTALL_SNAPSHOT"


class Dispatcher:
    """One peer, one term. `match_index`: its log is durable and equal to ours up to here.

    Invariants: match_index < write_index <= end_index + 1; pushes are in flight, and a read is
    under way, only in APPEND; at most one COMPARE or TRUNCATE is outstanding.
    """

    def __init__(self, state: RaftState, peer_id: str) -> None:
        self.phase = Phase.COMPARE
        self.match_index = -1
        self.write_index = state.log.end_index + 1
        self.last_contact_ms = state.now_ms
        self.is_confirmed = False
        self.is_lost = False
        """Whether its process has ended, it seems, and nothing was heard of it since."""
        self._state = state
        self._peer_id = peer_id
        self._in_flight = InFlight(state.config)
        self._outstanding: PushRequest | None = None
        self._commit: PushRequest | None = None
        self._reading: int | None = None
        self._offer_id: int | None = None
        self._retry_ms = NEVER_MS
        self._stuck = False
        self._commit_sent = -1
        self._commit_due_ms = NEVER_MS
        self.known_commit = -1
        self.incarnation = 0
        self._quota = RateLimiter(state.config.push_quota_bytes)
        self._from_disk = False

    # -- who the peer is ----------------------------------------------------------------------

    def is_other(self, incarnation: int) -> bool:
        """Whether an answer is of another data directory than the answers before."""
        return 0 not in (incarnation, self.incarnation) and incarnation != self.incarnation

    def peer_seen(self, incarnation: int) -> None:
        """The peer answered: forget what another data directory under its name had."""
        if self.is_other(incarnation):
            self.match_index = -1
            self.known_commit = self._commit_sent = -1
            self.write_index = self._state.log.end_index + 1
            self.compare()
        self.incarnation = incarnation or self.incarnation

    @property
    def is_live(self) -> bool:
        """Whether the peer answered within an election time-out, or the nodes vouch for it."""
        return (
            self.is_confirmed
            or self._state.now_ms - self.last_contact_ms
            < self._state.config.election_timeout_min_ms
        )

    # -- what the leader tells it -------------------------------------------------------------

    def compare(self) -> None:
        """Ask whether the peer holds our entry at write_index - 1.

        If that was removed, and what is before it, the peer must begin behind what was removed.
        """
        compared = self.write_index - 1
        needs_removed = compared < self._state.log.before_begin_index
        self._enter(Phase.INSTALL_SNAPSHOT if needs_removed else Phase.COMPARE)
        self._in_flight.clear()
        self._outstanding = self._commit = self._reading = self._offer_id = None
        if needs_removed:
            self._offer_id = self._state.next_request_id()
            self._offer()
        else:
            self._ask(PushType.COMPARE, compared)

    def _offer(self) -> None:
        self._retry_ms = self._state.now_ms + self._state.config.push_timeout_ms
        if self._offer_id is not None:
            self._state.emit(OfferSnapshot(self._peer_id, self._offer_id))

    def restart(self) -> None:
        """Whatever was on its way may be lost: find out where the peer is."""
        if self.match_index >= 0:
            self.write_index = self.match_index + 1
        self.compare()

    def match_regressed(self, end_index: int) -> None:
        """The peer's log ends before what it had acknowledged (R13): look again from there."""
        self._forget_match(end_index)
        self.write_index = end_index + 1
        self.compare()

    def diverged(self) -> None:
        """The peer's log differs at an index that both call committed: look where, and say so."""
        if self.phase is Phase.APPEND:
            self._state.alarm(f"{self._peer_id} has other committed entries than this leader")
            self.restart()

    def log_compacted(self) -> None:
        """Entries were removed: what is asked, or comes next, must not lie among them."""
        compared = self.write_index - 1
        if self._outstanding is not None:
            compared = min(compared, self._outstanding.prev_index)
        if compared < self._state.log.before_begin_index:
            self.write_index = self._state.log.end_index + 1
            self.compare()

    def tick(self) -> None:
        """Send again what was not answered in time."""
        now_ms, timeout_ms = self._state.now_ms, self._state.config.push_timeout_ms
        if now_ms >= self._commit_due_ms:
            self._commit_due_ms = NEVER_MS
            if self._is_idle and self._commit_sent < self._state.committed_index:
                self._send_commit()
        oldest = self._in_flight.oldest_sent_ms
        if oldest is not None and now_ms >= oldest + timeout_ms:
            self.restart()
        elif now_ms >= self._retry_ms:
            self._retry_ms = NEVER_MS
            if self._outstanding is not None:
                # The same request: whichever of the two answers comes first is as good.
                self._retry_ms = now_ms + timeout_ms
                self._state.send(self._outstanding)
            elif self.phase is Phase.APPEND:
                self.push_entries()
            elif self.phase is Phase.INSTALL_SNAPSHOT:
                self._offer()
            else:
                self.compare()

    def commit_reported(self, committed_index: int) -> None:
        """The peer says what it knows to be committed: less than before after a restart."""
        self.known_commit = min(self.known_commit, committed_index)

    def repeat_commit(self) -> None:
        """Repeat the commit index to an idle peer that has not acknowledged it."""
        if self._is_idle and self.known_commit < self._state.committed_index:
            self._send_commit()

    def push_entries(self) -> None:
        """In APPEND: push what the peer has not yet, or tell it what is committed."""
        state = self._state
        if self.phase is not Phase.APPEND or self._reading or self._retry_ms != NEVER_MS:
            return
        if self.write_index <= state.log.end_index:
            if self._is_over_quota():
                self._retry_ms = state.now_ms + self._quota.left_ms(state.now_ms)
            elif self._in_flight.has_room:
                self._reading = state.next_request_id()
                state.emit(
                    ReadEntries(
                        self._peer_id,
                        self._reading,
                        self.write_index,
                        state.log.end_index,
                        state.config.push_bytes_max,
                    )
                )
        elif self._commit_sent < state.committed_index and self._is_idle:
            self._commit_due_ms = min(self._commit_due_ms, state.now_ms + COMMIT_DELAY_MS)

    def entries_read(self, event: EntriesRead) -> None:
        """Push the entries that were asked for."""
        state = self._state
        if event.request_id != self._reading:
            return
        first, last = self.write_index, event.last_index
        check(first <= last <= state.log.end_index, "entries were read as asked", first, last)
        self._reading = None
        self._stuck = False
        self._from_disk = not event.from_memory
        if self._from_disk:
            self._quota.sample(event.size_bytes, state.now_ms)
        message = self._request(
            PushType.APPEND, event.request_id, first - 1, first_index=first, last_index=last
        )
        self.write_index = last + 1
        self._commit_sent = min(state.committed_index, last)
        self._commit_due_ms = NEVER_MS
        self._in_flight.add(
            Push(event.request_id, last, event.size_bytes, state.now_ms, message.commit_index)
        )
        state.emit(PushEntries(message))
        self.push_entries()

    def entries_unreadable(self, event: EntriesUnreadable) -> None:
        """Try again a little later."""
        if event.request_id == self._reading:
            self._reading = None
            self._pause(
                f"entries from {self.write_index} on cannot be read for {self._peer_id}: "
                f"{event.reason}"
            )
        elif event.request_id == self._offer_id:
            self._pause(f"{self._peer_id} needs removed entries: {event.reason}")

    def offer_answered(self, response: InstallSnapshotResponse) -> None:
        """The peer begins behind what was removed, or has committed that much already."""
        known, log = response.committed_index, self._state.log
        settled = (ResponseCode.SUCCESS, ResponseCode.INSTALL_SNAPSHOT_ERROR)
        if response.request_id != self._offer_id or response.code not in settled:
            return
        self._stuck = False
        if known >= log.before_begin_index:
            self.write_index = min(known, log.end_index) + 1
            self.compare()

    def push_answered(self, response: PushResponse) -> None:
        """Take an answer of the present term."""
        asked = self._outstanding
        if response.type is PushType.APPEND:
            self._append_answered(response)
        elif response.type is PushType.COMMIT:
            self._commit_answered(response)
        elif asked is None or (asked.type, asked.request_id) != (
            response.type,
            response.request_id,
        ):
            return
        elif response.type is PushType.COMPARE:
            self._compare_answered(asked, response)
        else:
            self._truncate_answered(response)

    # -- answers ------------------------------------------------------------------------------

    def _compare_answered(self, asked: PushRequest, response: PushResponse) -> None:
        if response.code is ResponseCode.SUCCESS:
            self.match_index = asked.prev_index
            self._enter(Phase.TRUNCATE)
            self._stuck = False
            self._ask(PushType.TRUNCATE, self.match_index)
        elif response.code is ResponseCode.INCONSISTENT_STATE:
            differs = 0 <= asked.prev_index <= self.match_index
            if differs or response.end_index < self.match_index:
                self._forget_match(response.end_index)
            if response.x_term < 0 and response.end_index >= asked.prev_index:
                self._outstanding = None
                self._pause(f"{self._peer_id} committed something else at index {asked.prev_index}")
                return
            self.write_index = self._step_back(asked.prev_index, response)
            self.compare()

    def _step_back(self, compared: int, response: PushResponse) -> int:
        """Return the next write index after a failed compare; always below the last one.

        The peer's entry there has term x_term, which begins at x_index in its log. If we have that
        term too, our last entry of it may be common; else nothing of that term is (Raft 5.3).
        """
        back = response.end_index + 1
        if response.x_term >= 0:
            back = response.x_index
            own_last = self._state.log.last_index_of_term(response.x_term)
            if own_last is not None and back <= own_last < compared:
                back = own_last + 1
            # an entry is where its term begins or behind it: compare at the begin before giving up
            begin = self._state.log.before_begin_index
            back = begin + 1 if back <= begin < compared else back
        return max(0, min(back, compared))

    def _truncate_answered(self, response: PushResponse) -> None:
        self._outstanding = None
        self._retry_ms = NEVER_MS
        if response.code is ResponseCode.SUCCESS:
            self._enter(Phase.APPEND)
            self.write_index = self.match_index + 1
            self.push_entries()
        else:
            # It refuses to remove committed entries: compare again, but not in a busy loop.
            self._retry_ms = self._state.now_ms + self._state.config.push_timeout_ms

    def _append_answered(self, response: PushResponse) -> None:
        push = self._in_flight.find(response.request_id)
        if push is None:
            return
        if response.code is ResponseCode.SUCCESS:
            if response.match_index > push.last_index:
                self._state.alarm(
                    f"{self._peer_id} acknowledged index {response.match_index}, "
                    f"but was only sent entries up to {push.last_index}"
                )
                return
            self.match_index = max(self.match_index, response.match_index)
            self.known_commit = max(self.known_commit, min(push.commit_index, response.match_index))
            self._in_flight.acknowledge(self.match_index)
        elif response.code is ResponseCode.DISK_FULL:
            self._in_flight.clear()
            self._reading = None  # it was of entries further on
            self.write_index = self.match_index + 1
            self._pause(f"{self._peer_id} has no room for more entries")
        elif response.code is ResponseCode.INCONSISTENT_STATE:
            # An answer may be overtaken by a later one, so match_index stands.
            self.write_index = max(
                self.match_index + 1, min(self.write_index, response.end_index + 1)
            )
            self.compare()

    def _commit_answered(self, response: PushResponse) -> None:
        if self._commit is None or response.request_id != self._commit.request_id:
            return
        if response.code is ResponseCode.SUCCESS:
            self.known_commit = max(self.known_commit, self._commit.commit_index)
            self._commit = None
        elif response.code is ResponseCode.INCONSISTENT_STATE:
            self.restart()

    # -- inside -------------------------------------------------------------------------------

    @property
    def is_caught_up(self) -> bool:
        """Whether the peer has everything, knows what is committed, and nothing is to be done."""
        return (
            self._is_idle
            and self._reading is None
            and self._retry_ms == NEVER_MS
            and self.match_index == self._state.log.end_index
            and self.known_commit >= self._state.committed_index
        )

    @property
    def _is_idle(self) -> bool:
        """Whether the peer has everything, and has acknowledged it."""
        return (
            self.phase is Phase.APPEND
            and self.write_index > self._state.log.end_index
            and not len(self._in_flight)
        )

    def _is_over_quota(self) -> bool:
        """Whether to wait: only what is far behind and comes from disk is limited."""
        lag = self._state.log.end_index - self.match_index
        return (
            self._from_disk
            and lag > QUOTA_LAG_ENTRIES
            and self._quota.is_used_up(self._state.now_ms)
        )

    def _enter(self, phase: Phase) -> None:
        if phase is not self.phase:
            state = self._state
            state.record(
                f"{self._peer_id}: {self.phase.value} → {phase.value}, "
                f"match {self.match_index}, next {self.write_index}"
            )
            self.phase = phase

    def _forget_match(self, end_index: int) -> None:
        self._state.alarm(
            f"{self._peer_id} had acknowledged index {self.match_index}, but its log, which "
            f"ends at {end_index}, is not equal to ours up to there any more: it lost data"
        )
        self.match_index = -1
        self.known_commit = self._commit_sent = -1

    def _pause(self, text: str) -> None:
        """Wait one push time-out; raise the alarm once, not at each attempt."""
        self._retry_ms = self._state.now_ms + self._state.config.push_timeout_ms
        if not self._stuck:
            self._stuck = True
            self._state.alarm(text)

    def _ask(self, kind: PushType, prev_index: int) -> None:
        """Send a COMPARE or TRUNCATE; repeated until it is answered."""
        state = self._state
        next_term = -1
        if kind is PushType.TRUNCATE and prev_index < state.log.end_index:
            next_term = state.log.term_at(prev_index + 1)
        self._outstanding = self._request(
            kind, state.next_request_id(), prev_index, next_term=next_term
        )
        self._retry_ms = state.now_ms + state.config.push_timeout_ms
        state.send(self._outstanding)

    def _send_commit(self) -> None:
        state = self._state
        if self._commit is None or self._commit.commit_index != state.committed_index:
            self._commit = self._request(PushType.COMMIT, state.next_request_id(), self.match_index)
        self._commit_sent = state.committed_index
        self._commit_due_ms = NEVER_MS
        state.send(self._commit)

    def _request(
        self,
        kind: PushType,
        request_id: int,
        prev_index: int,
        *,
        next_term: int = -1,
        first_index: int = -1,
        last_index: int = -1,
    ) -> PushRequest:
        state = self._state
        runs = state.log.runs_between(first_index, last_index) if first_index >= 0 else []
        return PushRequest(
            group=state.config.group,
            local_id=state.config.self_id,
            remote_id=self._peer_id,
            incarnation=state.config.incarnation,
            term=state.term,
            type=kind,
            request_id=request_id,
            prev_index=prev_index,
            prev_term=state.log.term_at(prev_index),
            commit_index=state.committed_index,
            next_term=next_term,
            first_index=first_index,
            last_index=last_index,
            term_runs=runs,
            membership_index=state.memberships.index,
        )

    # -- views --------------------------------------------------------------------------------

    def deadline_ms(self) -> int:
        """When `tick` has something to do."""
        deadline_ms = min(self._retry_ms, self._commit_due_ms)
        oldest = self._in_flight.oldest_sent_ms
        if oldest is None:
            return deadline_ms
        return min(deadline_ms, oldest + self._state.config.push_timeout_ms)

    def status(self) -> PeerStatus:
        """Return a view for people."""
        state = self._state
        known = self.match_index >= 0
        return PeerStatus(
            peer_id=self._peer_id,
            dispatcher=self.phase.value,
            match_index=self.match_index,
            write_index=self.write_index,
            lag=state.log.end_index - self.match_index if known else -1,
            in_flight_requests=len(self._in_flight),
            in_flight_bytes=self._in_flight.size_bytes,
            live=self.is_live,
        )

    def validate(self) -> None:
        """Raise `InvariantViolation` if something that must always hold does not."""
        end_index = self._state.log.end_index
        check(
            self.match_index < self.write_index <= end_index + 1,
            "match_index < write_index <= end_index + 1",
            self._peer_id,
            self.match_index,
            self.write_index,
            end_index,
        )
        self._in_flight.validate(self.match_index, end_index)
        appends = self.phase is Phase.APPEND
        check(appends or not len(self._in_flight), "pushes are in flight only in APPEND")
        check(appends or self._reading is None, "entries are read only in APPEND")
        check(not appends or self._outstanding is None, "in APPEND no compare is outstanding")
