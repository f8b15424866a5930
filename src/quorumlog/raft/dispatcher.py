"""The dispatcher: how a leader brings one peer's log in step with its own (spec 30 section 4).

    COMPARE   find the last index at which both logs are equal, stepping back a term at a time
    TRUNCATE  have the peer remove the entries after it that conflict
    APPEND    push entries, several requests at a time; COMMIT when there is nothing to push
    INSTALL_SNAPSHOT  the peer needs entries that were removed: offer it a snapshot

It falls back to COMPARE whenever it is not sure where the peer is: no answer in time, a new
connection, an answer that does not match. Only answers to outstanding requests are believed (R8).
In terms of other implementations, a dispatcher is a leader's Progress of one follower, COMPARE is
the probing state and APPEND the replicating one.
"""

from collections.abc import Callable
from enum import Enum

from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import PushType, ResponseCode
from quorumlog.model.errors import check
from quorumlog.model.messages.client import PeerStatus
from quorumlog.model.messages.peer import InstallSnapshotResponse, PushRequest, PushResponse
from quorumlog.raft.effects import OfferSnapshot, PushEntries, ReadEntries
from quorumlog.raft.envelope import request_to
from quorumlog.raft.events import EntriesRead, EntriesUnreadable
from quorumlog.raft.in_flight import InFlight, Push
from quorumlog.raft.log_index import LogIndex
from quorumlog.raft.rate_limiter import RateLimiter
from quorumlog.raft.state import RaftState

RATE_LIMIT_LAG_ENTRIES = 1_000
"""A peer that lags further is sent entries from disk at a bounded rate (spec 30 section 7)."""
COMMIT_DELAY_MS = 2
"""How long to wait before a COMMIT: the next entries carry the commit index too, and may come."""
ONE_BLOCK, ONE_BLOCK_AGAIN = 2, 1
"""Bytes of a push that has one block, as it has one at least: the first such, and the next ones."""
SECOND_PROBE_BYTES = 4 * 1024
"""Bytes of the push after one block was taken; later ones have twice as many each."""


class Phase(Enum):
    """What a dispatcher is doing."""

    COMPARE = "COMPARE"
    TRUNCATE = "TRUNCATE"
    APPEND = "APPEND"
    INSTALL_SNAPSHOT = "INSTALL_SNAPSHOT"


class PeerContact:
    """What a leader knows of a peer apart from its log.

    `incarnation` is the number of the data directory that the peer's answers speak for; 0: no
    answer has named one. `is_confirmed`: the group is quiescent, and node heartbeats confirm that
    the peer follows this leader. `is_lost`: the peer's process seems to have ended, and nothing was
    heard from it since. `lacks_room`: its disk is full, as it says.
    """

    def __init__(self, state: RaftState) -> None:
        self.last_contact_ms = state.now_ms
        self.incarnation = 0
        self.is_confirmed = False
        self.is_lost = False
        self.lacks_room = False
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
        if incarnation not in (0, self.incarnation):
            self.incarnation = incarnation
            self._state.due_by(self._state.now_ms)  # another majority may count
        self.last_contact_ms = self._state.now_ms
        self.is_lost = False

    def end_confirmation(self, now_ms: int) -> None:
        """The group is not quiescent any more: the peer has a time-out from now on to answer."""
        if self.is_confirmed:
            self.is_confirmed = False
            self.last_contact_ms = now_ms


class CommitNotices:
    """Sends the commit index to a peer that has all entries, and knows what it has acknowledged.

    `known_index` is the committed index that the peer acknowledged, `sent_index` the one that it
    was sent; -1: none. Pushes carry the
    commit index too, so a COMMIT is sent only when there is nothing to push.
    """

    def __init__(self, state: RaftState, peer_id: str) -> None:
        self.known_index = -1
        self.due_ms = NEVER_MS
        self._state = state
        self._peer_id = peer_id
        self.sent_index = -1
        self._request: PushRequest | None = None

    @property
    def is_acknowledged(self) -> bool:
        """Whether the peer knows everything that is committed."""
        return self.known_index >= self._state.committed_index

    def schedule(self) -> None:
        """Send a COMMIT soon, unless entries come first, if the peer was not sent the index."""
        if self.sent_index < self._state.committed_index:
            self.due_ms = self._state.now_ms + COMMIT_DELAY_MS
            self._state.due_by(self.due_ms)

    def send(self, match_index: int) -> None:
        """Send a COMMIT now; one that was not answered yet is sent again, with the same number."""
        state = self._state
        if self._request is None or self._request.commit_index != state.committed_index:
            request_id = state.next_request_id()
            self._request = push_request(
                state, self._peer_id, PushType.COMMIT, request_id, match_index
            )
        self.sent_index = state.committed_index
        self.due_ms = NEVER_MS
        state.send(self._request)

    def carried_by_push(self, last_index: int) -> None:
        """A push up to last_index leaves, and carries the commit index."""
        self.sent_index = min(self._state.committed_index, last_index)
        self.due_ms = NEVER_MS

    def acknowledged(self, index: int) -> None:
        """The peer knows that entries up to index are committed."""
        self.known_index = max(self.known_index, index)

    def reported(self, committed_index: int) -> None:
        """The peer says what it knows to be committed: less than before after a restart."""
        self.known_index = min(self.known_index, committed_index)

    def answered(self, response: PushResponse) -> bool:
        """Take the answer to a COMMIT; return whether the peer must be compared with again."""
        if self._request is None or response.request_id != self._request.request_id:
            return False
        if response.code is ResponseCode.SUCCESS:
            self.acknowledged(self._request.commit_index)
            self._request = None
            return False
        return response.code is ResponseCode.INCONSISTENT_STATE

    def cancel(self) -> None:
        """Do not wait for the answer to a COMMIT any longer."""
        self._request = None

    def forget(self) -> None:
        """The peer may know nothing any more."""
        self.known_index = self.sent_index = -1


class RoomProbe:
    """How much a peer whose disk was full is sent at a time: one push of `bytes`, 0: as usual.

    That begins with one block, as a NOOP is taken then, and grows with each push that is taken:
    most of what is refused is sent in vain.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max

    def taken(self) -> None:
        """The peer took a push."""
        if self.bytes:
            grown = max(2 * self.bytes, SECOND_PROBE_BYTES)
            self.bytes = grown if grown < self._bytes_max else 0

    def refused(self) -> bool:
        """The peer refused a push; return whether that was one block: nothing less can be sent."""
        was_one = self.bytes in (ONE_BLOCK, ONE_BLOCK_AGAIN)
        self.bytes = ONE_BLOCK_AGAIN if was_one else ONE_BLOCK
        return was_one


class Dispatcher:
    """One peer, one term. `match_index`: its log is durable and equal to ours up to here.

    Invariants: match_index < write_index <= end_index + 1; pushes are in flight, and a read is
    under way, only in APPEND; at most one COMPARE or TRUNCATE is outstanding.
    """

    def __init__(self, state: RaftState, peer_id: str) -> None:
        self.phase = Phase.COMPARE
        self.match_index = -1
        self.write_index = state.log.end_index + 1
        self.contact = PeerContact(state)
        self.commits = CommitNotices(state, peer_id)
        self._state = state
        self._peer_id = peer_id
        self._in_flight = InFlight(state.config)
        self._outstanding: PushRequest | None = None
        self._read_id: int | None = None
        self._offer_id: int | None = None
        self._retry_ms = NEVER_MS
        self._is_blocked = False
        self._probe = RoomProbe(state.config.push_bytes_max)
        self._rate_limiter = RateLimiter(lambda: state.config.push_quota_bytes)
        self._is_reading_disk = False
        self._answer_handlers: dict[PushType, Callable[[PushResponse], None]] = {
            PushType.COMPARE: self._compare_answered,
            PushType.TRUNCATE: self._truncate_answered,
            PushType.APPEND: self._append_answered,
            PushType.COMMIT: self._commit_answered,
        }

    def peer_seen(self, incarnation: int) -> None:
        """The peer answered: forget what another data directory under its name had.

        An emptied disk holds nothing of what the old one acknowledged. To go on counting that would
        commit entries that no majority holds any more (R14).
        """
        if self.contact.is_other(incarnation):
            self.match_index = -1
            self.commits.forget()
            self.write_index = self._state.log.end_index + 1
            self.compare()
        self.contact.seen(incarnation)

    # -- what the leader tells it -------------------------------------------------------------

    def compare(self) -> None:
        """Ask whether the peer holds our entry at write_index - 1.

        If that entry was removed here, there is nothing to compare with: the peer must start its
        log after the removed entries.
        """
        compared = self.write_index - 1
        needs_removed = compared < self._state.log.before_begin_index
        self._enter(Phase.INSTALL_SNAPSHOT if needs_removed else Phase.COMPARE)
        self._in_flight.clear()
        self._outstanding = self._read_id = self._offer_id = None
        self.commits.cancel()
        if needs_removed:
            self._offer_id = self._state.next_request_id()
            self._offer_snapshot()
        else:
            self._ask(PushType.COMPARE, compared)

    def _offer_snapshot(self) -> None:
        self._retry_after(self._state.config.push_timeout_ms)
        if self._offer_id is not None:
            self._state.emit(OfferSnapshot(self._peer_id, self._offer_id))

    def restart(self) -> None:
        """Whatever was on its way may be lost: find out where the peer is."""
        if self.match_index >= 0:
            self.write_index = self.match_index + 1
        self.compare()

    def match_regressed(self, end_index: int) -> None:
        """The peer's log ends before what it had acknowledged (R13): compare again from there.

        Raft assumes that what is durable stays. Where it did not, the entries that the peer lost
        must not be counted any longer.
        """
        self._forget_match(end_index)
        self.write_index = end_index + 1
        self.compare()

    def diverged(self) -> None:
        """The peer's log differs at an index that both call committed: find out where."""
        if self.phase is Phase.APPEND:
            self._state.alarm(f"{self._peer_id} has other committed entries than this leader")
            self.restart()

    def log_compacted(self) -> None:
        """Entries were removed here: start over if what was asked, or comes next, is gone."""
        compared = self.write_index - 1
        if self._outstanding is not None:
            compared = min(compared, self._outstanding.prev_index)
        if compared < self._state.log.before_begin_index:
            self.write_index = self._state.log.end_index + 1
            self.compare()

    def tick(self) -> None:
        """Send again what was not answered in time."""
        now_ms, timeout_ms = self._state.now_ms, self._state.config.push_timeout_ms
        if now_ms >= self.commits.due_ms:
            self.commits.due_ms = NEVER_MS
            if self._is_idle and self.commits.sent_index < self._state.committed_index:
                self.commits.send(self.match_index)
        oldest = self._in_flight.oldest_sent_ms
        if oldest is not None and now_ms >= oldest + timeout_ms:
            self.restart()
        elif now_ms >= self._retry_ms:
            self._retry_ms = NEVER_MS
            if self._outstanding is not None:
                # The same request: whichever of the two answers comes first is as good.
                self._retry_after(timeout_ms)
                self._state.send(self._outstanding)
            elif self.phase is Phase.APPEND:
                self.push_entries()
            elif self.phase is Phase.INSTALL_SNAPSHOT:
                self._offer_snapshot()
            else:
                self.compare()

    def repeat_commit(self) -> None:
        """Repeat the commit index to an idle peer that has not acknowledged it."""
        if self._is_idle and not self.commits.is_acknowledged:
            self.commits.send(self.match_index)

    def push_proposed(self, first: int, last: int, size_bytes: int) -> None:
        """Push entries that were just appended, and so are in memory, if they come next."""
        come_next = self.phase is Phase.APPEND and self.write_index == first
        fit = size_bytes <= self._state.config.push_bytes_max and self._retry_ms == NEVER_MS
        if come_next and fit and self._in_flight.has_room and not self._probe.bytes:
            self._is_reading_disk = False
            self._push(self._state.next_request_id(), last, size_bytes)
        else:
            self.push_entries()

    def push_entries(self) -> None:
        """In APPEND: push the entries that the peer lacks, or tell it what is committed."""
        state = self._state
        if self.phase is not Phase.APPEND or self._read_id or self._retry_ms != NEVER_MS:
            return
        if self.write_index <= state.log.end_index:
            if self._is_rate_limited():
                self._retry_after(self._rate_limiter.left_ms(state.now_ms))
            elif self._in_flight.has_room and not (self._probe.bytes and self._in_flight.count):
                first, self._read_id = self.write_index, state.next_request_id()
                bytes_max = self._probe.bytes or state.config.push_bytes_max
                last = state.log.end_index
                state.emit(ReadEntries(self._peer_id, self._read_id, first, last, bytes_max))
        elif not self._in_flight.count and self.commits.due_ms == NEVER_MS:
            self.commits.schedule()

    def entries_read(self, event: EntriesRead) -> None:
        """Push the entries that were asked for."""
        state = self._state
        if event.request_id != self._read_id:
            return
        first, last = self.write_index, event.last_index
        check(first <= last <= state.log.end_index, "entries were read as asked", first, last)
        self._read_id, self._is_blocked = None, False
        self._is_reading_disk = not event.from_memory
        if self._is_reading_disk:
            self._rate_limiter.sample(event.size_bytes, state.now_ms)
        self._push(event.request_id, last, event.size_bytes)
        self.push_entries()

    def _push(self, request_id: int, last: int, size_bytes: int) -> None:
        """Send the entries from the next one up to `last`."""
        state, in_flight, first = self._state, self._in_flight, self.write_index
        message = push_request(
            state, self._peer_id, PushType.APPEND, request_id, first - 1, entries=(first, last)
        )
        self.write_index = last + 1
        self.commits.carried_by_push(last)
        state.due_by(state.now_ms + state.config.push_timeout_ms)
        in_flight.add(Push(request_id, last, size_bytes, state.now_ms, message.commit_index))
        state.effects.append(PushEntries(message))

    def entries_unreadable(self, event: EntriesUnreadable) -> None:
        """Try again a little later."""
        if event.request_id == self._read_id:
            self._read_id = None
            self._pause(
                f"entries from {self.write_index} on cannot be read for {self._peer_id}: "
                f"{event.reason}"
            )
        elif event.request_id == self._offer_id:
            self._pause(f"{self._peer_id} needs removed entries: {event.reason}")

    def offer_answered(self, response: InstallSnapshotResponse) -> None:
        """The peer installed the snapshot, or has committed that much already."""
        known, log = response.committed_index, self._state.log
        final = (ResponseCode.SUCCESS, ResponseCode.INSTALL_SNAPSHOT_ERROR)
        if response.request_id != self._offer_id or response.code not in final:
            return
        self._is_blocked = False
        if known >= log.before_begin_index:
            self.write_index = min(known, log.end_index) + 1
            self.compare()

    def push_answered(self, response: PushResponse) -> None:
        """Take an answer of the present term."""
        self._answer_handlers[response.type](response)

    # -- answers ------------------------------------------------------------------------------

    def _asked_for(self, response: PushResponse) -> PushRequest | None:
        """Return the outstanding COMPARE or TRUNCATE if this answers it."""
        asked = self._outstanding
        if asked is None or (asked.type, asked.request_id) != (response.type, response.request_id):
            return None
        return asked

    def _compare_answered(self, response: PushResponse) -> None:
        asked = self._asked_for(response)
        if asked is None:
            return
        if response.code is ResponseCode.SUCCESS:
            self.match_index = asked.prev_index
            self._enter(Phase.TRUNCATE)
            self._is_blocked = False
            self._ask(PushType.TRUNCATE, self.match_index)
        elif response.code is ResponseCode.INCONSISTENT_STATE:
            differs = 0 <= asked.prev_index <= self.match_index
            if differs or response.end_index < self.match_index:
                self._forget_match(response.end_index)
            if response.x_term < 0 and response.end_index >= asked.prev_index:
                # A follower names no conflicting term where the difference lies among its committed
                # entries. Stepping back would not repair that: both logs cannot be right.
                self._outstanding = None
                self._pause(f"{self._peer_id} committed something else at index {asked.prev_index}")
                return
            self.write_index = step_back(self._state.log, asked.prev_index, response)
            self.compare()

    def _truncate_answered(self, response: PushResponse) -> None:
        if self._asked_for(response) is None:
            return
        self._outstanding = None
        self._retry_ms = NEVER_MS
        if response.code is ResponseCode.SUCCESS:
            self._enter(Phase.APPEND)
            self.write_index = self.match_index + 1
            self.push_entries()
        else:
            # The peer refuses to remove committed entries: compare again, but not in a busy loop.
            self._retry_after(self._state.config.push_timeout_ms)

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
            self._probe.taken()
            self.match_index = max(self.match_index, response.match_index)
            self.commits.acknowledged(min(push.commit_index, response.match_index))
            self._in_flight.acknowledge(self.match_index)
        elif response.code is ResponseCode.DISK_FULL:
            self._in_flight.clear()
            self._read_id = None  # the entries that are being read come later
            self.write_index = self.match_index + 1
            if self._probe.bytes == ONE_BLOCK:
                self._state.record(f"{self._peer_id} has no room for more entries")
            if self._probe.refused():
                self._retry_after(self._state.config.push_timeout_ms)
        elif response.code is ResponseCode.INCONSISTENT_STATE:
            # A later answer may have overtaken this one, so match_index stands.
            self.write_index = max(
                self.match_index + 1, min(self.write_index, response.end_index + 1)
            )
            self.compare()

    def _commit_answered(self, response: PushResponse) -> None:
        if self.commits.answered(response):
            self.restart()

    # -- inside -------------------------------------------------------------------------------

    @property
    def is_caught_up(self) -> bool:
        """Whether the peer has everything, knows what is committed, and nothing is to be done."""
        return (
            self._is_idle
            and self._read_id is None
            and self._retry_ms == NEVER_MS
            and self.match_index == self._state.log.end_index
            and self.commits.is_acknowledged
        )

    @property
    def _is_idle(self) -> bool:
        """Whether the peer has everything, and has acknowledged it."""
        return (
            self.phase is Phase.APPEND
            and self.write_index > self._state.log.end_index
            and not self._in_flight.count
        )

    def _is_rate_limited(self) -> bool:
        """Whether to wait: only peers that lag far and read from our disk are limited."""
        lag = self._state.log.end_index - self.match_index
        return (
            self._is_reading_disk
            and lag > RATE_LIMIT_LAG_ENTRIES
            and self._rate_limiter.is_used_up(self._state.now_ms)
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
        self.commits.forget()

    def _pause(self, text: str) -> None:
        """Wait for one push time-out; raise the alarm once, not at each attempt."""
        self._retry_after(self._state.config.push_timeout_ms)
        if not self._is_blocked:
            self._is_blocked = True
            self._state.alarm(text)

    def _ask(self, kind: PushType, prev_index: int) -> None:
        """Send a COMPARE or TRUNCATE, which is repeated until it is answered.

        TRUNCATE names the term of our next entry. A peer whose next entry has that term holds our
        own entries, which an earlier push brought, and keeps them (spec 95.61).
        """
        state = self._state
        next_term = -1
        if kind is PushType.TRUNCATE and prev_index < state.log.end_index:
            next_term = state.log.term_at(prev_index + 1)
        self._outstanding = push_request(
            state, self._peer_id, kind, state.next_request_id(), prev_index, next_term=next_term
        )
        self._retry_after(state.config.push_timeout_ms)
        state.send(self._outstanding)

    def _retry_after(self, pause_ms: int) -> None:
        self._retry_ms = self._state.now_ms + pause_ms
        self._state.due_by(self._retry_ms)

    # -- views --------------------------------------------------------------------------------

    def deadline_ms(self) -> int:
        """When `tick` has something to do."""
        deadline_ms = min(self._retry_ms, self.commits.due_ms)
        oldest = self._in_flight.oldest_sent_ms
        if oldest is None:
            return deadline_ms
        return min(deadline_ms, oldest + self._state.config.push_timeout_ms)

    def status(self) -> PeerStatus:
        """Return a view for people."""
        state, known = self._state, self.match_index >= 0
        return PeerStatus(
            peer_id=self._peer_id,
            dispatcher=self.phase.value,
            match_index=self.match_index,
            write_index=self.write_index,
            lag=state.log.end_index - self.match_index if known else -1,
            in_flight_requests=self._in_flight.count,
            in_flight_bytes=self._in_flight.size_bytes,
            live=self.contact.is_live,
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
        check(appends or not self._in_flight.count, "pushes are in flight only in APPEND")
        check(appends or self._read_id is None, "entries are read only in APPEND")
        check(not appends or self._outstanding is None, "in APPEND no compare is outstanding")


def push_request(
    state: RaftState,
    peer_id: str,
    kind: PushType,
    request_id: int,
    prev_index: int,
    *,
    next_term: int = -1,
    entries: tuple[int, int] = (-1, -1),
) -> PushRequest:
    """Return a push of any type; `entries`, of an APPEND only, are its first and last index."""
    first_index, last_index = entries
    runs = state.log.runs_between(first_index, last_index) if first_index >= 0 else []
    return PushRequest(
        **request_to(state, peer_id),
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


def step_back(log: LogIndex, compared: int, response: PushResponse) -> int:
    """Return the next write index after a COMPARE at `compared` failed; at most `compared`.

    The peer's entry there has term x_term, which starts at x_index in its log. If we have that
    term too, our last entry of it may be common; else no entry of that term is (Raft 5.3).
    """
    back = response.end_index + 1
    if response.x_term >= 0:
        back = response.x_index
        own_last = log.last_index_of_term(response.x_term)
        if own_last is not None and back <= own_last < compared:
            back = own_last + 1
        # The term may start before our first entry and reach beyond it. So compare at our first
        # entry once before we offer a snapshot, which is expensive.
        before_first = log.before_begin_index
        back = before_first + 1 if back <= before_first < compared else back
    return max(0, min(back, compared))
