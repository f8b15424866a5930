"""Following: how heartbeats and pushes of a leader are answered (spec 30 section 5).

Every request passes the same check of term and leader first (`Follower._admit`). A push is carried
out only where this log matches the leader's at the entry before it (log matching, Raft 5.3).
"""

from collections.abc import Callable
from itertools import pairwise

from quorumlog.model.codes import PushType, ResponseCode, Role
from quorumlog.model.errors import check
from quorumlog.model.membership import Membership
from quorumlog.model.messages.peer import (
    HeartBeatRequest,
    HeartBeatResponse,
    InstallSnapshotRequest,
    InstallSnapshotResponse,
    PushRequest,
    PushResponse,
)
from quorumlog.raft.effects import (
    AppendReceived,
    ConfirmOffer,
    FetchSnapshot,
    ResetLog,
    TruncateLog,
)
from quorumlog.raft.envelope import response_to
from quorumlog.raft.events import Received
from quorumlog.raft.plausibility import contradicts_log, is_known_peer
from quorumlog.raft.state import RaftState

BEYOND_EVERY_LOG = 1 << 62
"""An index after the last entry of any log."""


class Follower:
    """Answers a leader.

    `verified_index` is the highest index up to which this log is known to equal the present
    leader's; it starts again with each term. `_differs_from` is the lowest index at which an entry
    here has the leader's term but other bytes. Raft excludes that, since a leader makes one entry
    for an index and term. It can still happen after a disk returned wrong data, or lost writes and
    made a leader reuse their indexes. Terms cannot tell such entries apart, so the index is
    remembered until they were removed.
    """

    def __init__(self, state: RaftState) -> None:
        self.verified_index = -1
        self.retention_floor = -1
        """Up to this index every live member has the entries, as the leader says."""
        self._state = state
        self._verified_term = -1
        self._differs_from = BEYOND_EVERY_LOG
        self._diverged_term = -1
        self._memberships: tuple[tuple[int, Membership], ...] = ()
        self._steps: dict[PushType, Callable[[PushRequest], None]] = {
            PushType.COMPARE: self._compare,
            PushType.TRUNCATE: self._truncate,
            PushType.APPEND: self._append,
        }

    def heartbeat(self, request: HeartBeatRequest, event: Received) -> None:
        """Answer once a term that was just adopted is durable; entries need not be."""
        state = self._state
        code = self._admit(request)
        if code is ResponseCode.SUCCESS:
            self.retention_floor = request.retention_floor
            if not event.chain_matches:
                code = ResponseCode.INCONSISTENT_STATE
                self._report_divergence(request)
        state.send(
            HeartBeatResponse(
                **response_to(state, request, is_outdated=code is ResponseCode.EXPIRED_TERM),
                code=code,
                round=request.round,
                end_index=state.log.end_index,
                committed_index=state.committed_index,
                lacks_room=state.writes.lacks_room,
            )
        )

    def _report_divergence(self, request: HeartBeatRequest) -> None:
        """Raise the alarm, once a term: committed entries differ, which must never happen."""
        state = self._state
        if self._diverged_term != state.term:
            self._diverged_term = state.term
            state.alarm(
                f"committed entries up to {request.committed_index} differ from those of the "
                f"leader {request.local_id}"
            )

    def push(self, request: PushRequest, event: Received) -> None:
        """Carry out one step of the leader's dispatcher."""
        self._memberships = event.memberships
        code = self._admit(request)
        if code is not ResponseCode.SUCCESS:
            self._reply(request, code)
        elif request.type is PushType.COMMIT:
            self._commit(request)
        elif not self._matches(request, chain_matches=event.chain_matches):
            self._refuse(request)
        elif event.disk_full and self._brings_entries(request):
            self._reply(request, ResponseCode.DISK_FULL)
        else:
            self._steps[request.type](request)

    def _brings_entries(self, request: PushRequest) -> bool:
        return request.type is PushType.APPEND and request.last_index > self._state.log.end_index

    # -- who may speak ------------------------------------------------------------------------

    def _admit(
        self, request: HeartBeatRequest | PushRequest | InstallSnapshotRequest
    ) -> ResponseCode:
        """Follow the sender if it leads this term or a newer one; else return why not."""
        state, leader_id = self._state, request.local_id
        if not is_known_peer(state, leader_id, request.membership_index):
            return ResponseCode.UNKNOWN_MEMBER
        if leader_id == state.config.self_id:
            return ResponseCode.UNEXPECTED_MEMBER
        if request.term < state.known_term:
            return ResponseCode.EXPIRED_TERM
        if request.term == state.term and state.leader_id not in (None, leader_id):
            state.alarm(f"{leader_id} claims to lead, but the leader is {state.leader_id}")
            return ResponseCode.INCONSISTENT_LEADER
        if request.term > state.term or state.leader_id is None:
            state.enter(Role.FOLLOWER, leader_id, term=request.term)
            state.last_vote_result = None
        state.election_timer.leader_seen(state.now_ms)
        state.due_by(state.election_timer.deadline_ms)
        if self._verified_term != state.term:
            self._verified_term, self.verified_index = state.term, -1
            self._differs_from = BEYOND_EVERY_LOG
        return ResponseCode.SUCCESS

    # -- do the logs match --------------------------------------------------------------------

    def _matches(self, request: PushRequest, *, chain_matches: bool) -> bool:
        """Whether this log equals the leader's at prev_index, and so up to there (log matching).

        Whatever is at or below before_begin_index was committed, so every leader has it too.
        """
        log, index = self._state.log, request.prev_index
        if index < log.before_begin_index or index < 0:
            return True
        if index > log.end_index or not chain_matches:
            return False
        own_term = log.term_at(index)
        # The term just before the first entry is unknown in a store that DLedger wrote. What is
        # committed is equal on both sides, so there the term need not be compared.
        unknown = min(own_term, request.prev_term) < 0
        return own_term == request.prev_term or (unknown and index <= self._state.committed_index)

    def _refuse(self, request: PushRequest) -> None:
        """Say where the logs differ, so that the leader steps back far enough."""
        state, index = self._state, request.prev_index
        if index <= state.committed_index:
            state.alarm(
                f"the log differs from {request.local_id}'s at index {index}, which is committed "
                f"(up to {state.committed_index}); nothing was changed"
            )
        if index > state.log.end_index or index <= state.committed_index:
            self._reply(request, ResponseCode.INCONSISTENT_STATE)
        elif state.log.term_at(index) == request.prev_term:
            # Equal terms but different bytes: there is no term to jump over, so the leader goes one
            # step back. Terms cannot tell later which entries must go, so remember from where on.
            self._differs_from = min(self._differs_from, index)
            self._reply(request, ResponseCode.INCONSISTENT_STATE, end_index=index - 1)
        else:
            self._reply(
                request,
                ResponseCode.INCONSISTENT_STATE,
                x_term=state.log.term_at(index),
                x_index=state.log.run_start(index),
            )

    # -- the steps ----------------------------------------------------------------------------

    def _compare(self, request: PushRequest) -> None:
        self._succeed(request, request.prev_index)

    def _append(self, request: PushRequest) -> None:
        """Append what the log does not have yet; entries that are equal stay as they are (R7, R22).

        Removing everything after prev_index and storing the block would be wrong: a late APPEND
        would take away entries that a later one brought and that were acknowledged since.
        """
        state, last = self._state, request.last_index
        if not self._is_well_formed(request):
            self._reply(request, ResponseCode.UNEXPECTED_ARGUMENT)
            return
        first = state.log.first_conflict(request.term_runs, last)
        first = min(first, max(self._differs_from, request.first_index))
        if first <= state.log.end_index and first <= last and not self._remove(request, first):
            return
        if first <= last:
            self._store(request, first)
        self._succeed(request, last)

    def _is_well_formed(self, request: PushRequest) -> bool:
        """Whether a leader could have sent these terms and indexes."""
        runs = request.term_runs
        if request.first_index != request.prev_index + 1 or not runs:
            return False
        if len(runs) == 1:
            ((term, first),) = runs
            fits = first == request.first_index <= request.last_index
            return fits and request.prev_term <= term <= request.term
        firsts = [first for _, first in runs]
        terms = [request.prev_term, *(term for term, _ in runs)]
        return (
            firsts[0] == request.first_index
            and firsts[-1] <= request.last_index
            and all(a < b for a, b in pairwise(firsts))
            and all(a <= b for a, b in pairwise(terms))
            and terms[-1] <= request.term
        )

    def _store(self, request: PushRequest, first: int) -> None:
        log, last, runs = self._state.log, request.last_index, request.term_runs
        check(
            first == log.end_index + 1, "entries are appended without a gap", first, log.end_index
        )
        for position, (term, _) in enumerate(runs):
            run_last = runs[position + 1][1] - 1 if position + 1 < len(runs) else last
            if run_last > log.end_index:
                log.append(run_last, term)
        for index, membership in self._memberships:
            if first <= index <= last:
                self._state.take_membership(index, membership)
        self._state.emit(AppendReceived(first, last, self._state.issue(last)))

    def _truncate(self, request: PushRequest) -> None:
        """Remove the entries after prev_index that conflict with the leader's.

        Not whatever comes after prev_index: a COMPARE that succeeded at a lower index than the end
        proves nothing about later entries (spec 95.61), and this request may be a repetition that
        arrives after entries which the leader pushed since. So the next entry goes only if its term
        is neither the one that the leader has there (`next_term`) nor the leader's own: entries of
        its own term came from it, also if that was forgotten in a restart.
        """
        log, first = self._state.log, request.prev_index + 1
        inside = max(self.verified_index, log.before_begin_index) < first <= log.end_index
        conflicts = inside and (
            first >= self._differs_from or request.next_term != log.term_at(first) < request.term
        )
        if not conflicts or self._remove(request, first):
            self._succeed(request, request.prev_index)

    def _remove(self, request: PushRequest, first: int) -> bool:
        """Remove entries from `first` on; refuse, and say so, if one of them is committed."""
        state = self._state
        kept = max(state.committed_index, self.verified_index)
        if first <= kept:
            state.alarm(
                f"{request.local_id} would have entries from {first} on removed, but those up to "
                f"{kept} are committed or its own; nothing was removed"
            )
            self._reply(request, ResponseCode.INCONSISTENT_STATE)
            return False
        if first <= self._differs_from:
            self._differs_from = BEYOND_EVERY_LOG
        state.log.truncate(first)
        state.writes.truncated(first)
        state.record(f"removes entries from {first} on for {request.local_id}")
        state.emit(TruncateLog(first, state.issue(state.log.end_index)))
        state.drop_memberships(first)
        return True

    def _commit(self, request: PushRequest) -> None:
        """Learn what is committed; after a restart the logs must first be compared again."""
        if request.prev_index > self.verified_index:
            self._reply(request, ResponseCode.INCONSISTENT_STATE)
        else:
            self._succeed(request, request.prev_index)

    # -- snapshots ----------------------------------------------------------------------------

    def offered(self, offer: InstallSnapshotRequest, event: Received) -> None:
        """The leader offers a snapshot."""
        self.install(offer)

    def install(self, offer: InstallSnapshotRequest, *, is_confirmed: bool = False) -> None:
        """The leader does not have the entries any more that are needed here (spec 40 section 5).

        To take the offer removes what this log holds, acknowledged entries too, and whatever comes
        before the offer's end is never asked for again. That is right only if the leader has
        removed those entries as well. So the leader must confirm the offer, asked at the address
        that the membership names: a sender that merely uses its name does not answer there. An
        empty log asks, too. It has nothing to lose, but would count as holding entries that it
        never saw.
        """
        code = self._admit(offer)
        if code is not ResponseCode.SUCCESS:
            self._answer_offer(offer, code)
        elif offer.last_included_index <= self._state.committed_index:
            self._answer_offer(offer, ResponseCode.INSTALL_SNAPSHOT_ERROR)
        elif contradicts_log(self._state, offer):
            self._answer_offer(offer, ResponseCode.INCONSISTENT_STATE)
        elif not is_confirmed:
            self._state.emit(ConfirmOffer(offer))
        elif offer.sha256:
            self._state.emit(FetchSnapshot(offer))
        else:
            self.fetched(offer)

    def fetched(self, offer: InstallSnapshotRequest) -> None:
        """Start the log after the end of the offer, up to which a majority has committed.

        Entries after that stay only if the one at the end is the leader's (spec 95.8).
        """
        state, log = self._state, self._state.log
        index, term = offer.last_included_index, offer.last_included_term
        if index <= state.committed_index or contradicts_log(self._state, offer):
            return
        is_ours = log.before_begin_index < index <= log.end_index and log.term_at(index) == term
        conflict = -1
        if is_ours:
            state.commit_to(index)
            log.compact(index, term)
        else:
            ended = log.end_index
            if ended > state.committed_index:
                conflict = state.committed_index + 1
                log.truncate(conflict)
                state.writes.truncated(conflict)
                state.drop_memberships(conflict)
            state.record(
                f"starts its log after index {index}, as {offer.local_id} has removed entries that "
                f"were needed; the log ended at {ended}"
            )
            log.reset(index, term)
        self._differs_from = BEYOND_EVERY_LOG
        self.verified_index = max(self.verified_index, index)
        token = state.issue(log.end_index)
        state.emit(ResetLog(index, term, offer.chain_crc, conflict, offer.config, token))
        state.install_membership(offer.config)
        state.commit_to(index)
        self._answer_offer(offer, ResponseCode.SUCCESS)

    def _answer_offer(self, offer: InstallSnapshotRequest, code: ResponseCode) -> None:
        state = self._state
        refused = code not in (ResponseCode.SUCCESS, ResponseCode.INSTALL_SNAPSHOT_ERROR)
        state.send(
            InstallSnapshotResponse(
                **response_to(state, offer, is_outdated=code is ResponseCode.EXPIRED_TERM),
                request_id=offer.request_id,
                code=code,
                committed_index=state.committed_index,
            ),
            0 if refused else state.writes.last_token,
        )

    # -- answers ------------------------------------------------------------------------------

    def _succeed(self, request: PushRequest, match_index: int) -> None:
        """Answer that the logs are equal up to match_index, once that is durable."""
        state = self._state
        self.verified_index = max(self.verified_index, match_index)
        self._reply(request, ResponseCode.SUCCESS, match_index=match_index)
        state.commit_to(min(request.commit_index, self.verified_index))

    def _reply(
        self,
        request: PushRequest,
        code: ResponseCode,
        *,
        match_index: int = -1,
        end_index: int | None = None,
        x_term: int = -1,
        x_index: int = -1,
    ) -> None:
        state = self._state
        durable = state.writes.last_token if code is ResponseCode.SUCCESS else 0
        state.send(
            PushResponse(
                **response_to(state, request, is_outdated=code is ResponseCode.EXPIRED_TERM),
                type=request.type,
                request_id=request.request_id,
                code=code,
                match_index=match_index,
                end_index=state.log.end_index if end_index is None else end_index,
                x_term=x_term,
                x_index=x_index,
            ),
            durable,
        )
