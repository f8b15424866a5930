"""Following: what a leader's heartbeats and pushes do here (spec 30 section 5)."""

from itertools import pairwise

from quorumlog.model.bounds import INDEX_JUMP_MAX
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
from quorumlog.raft.state import RaftState

BEYOND_EVERY_LOG = 1 << 62
"""An index beyond every log."""


class Follower:
    """Answers a leader. Every kind of push passes the same check of term and leader (spec 95.5)."""

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self._verified_term = -1
        self.verified_index = -1
        """Highest index known to equal the present leader's; starts again with each term."""
        self._differs_from = BEYOND_EVERY_LOG
        self._diverged_term = -1
        self._memberships: tuple[tuple[int, Membership], ...] = ()

    def heartbeat(self, request: HeartBeatRequest, *, chain_fits: bool) -> None:
        """Answer at once: a heartbeat waits for no entries, only for a term just adopted."""
        state = self._state
        code = self._admit(request)
        if code is ResponseCode.SUCCESS:
            state.retention_floor = request.retention_floor
            if not chain_fits:
                code = ResponseCode.INCONSISTENT_STATE
                self._report_divergence(request)
        state.send(
            HeartBeatResponse(
                group=request.group,
                local_id=state.config.self_id,
                remote_id=request.local_id,
                incarnation=state.config.incarnation,
                remote_incarnation=request.incarnation,
                term=state.known_term if code is ResponseCode.EXPIRED_TERM else state.term,
                code=code,
                round=request.round,
                end_index=state.log.end_index,
                committed_index=state.committed_index,
            )
        )

    def _report_divergence(self, request: HeartBeatRequest) -> None:
        """Say once a term that committed entries differ, which must never be."""
        state = self._state
        if self._diverged_term != state.term:
            self._diverged_term = state.term
            state.alarm(
                f"committed entries up to {request.committed_index} differ from those of the "
                f"leader {request.local_id}"
            )

    def push(
        self,
        request: PushRequest,
        *,
        chain_fits: bool,
        disk_full: bool = False,
        memberships: tuple[tuple[int, Membership], ...] = (),
    ) -> None:
        """Carry out one step of the leader's dispatcher."""
        self._memberships = memberships
        code = self._admit(request)
        if code is not ResponseCode.SUCCESS:
            self._reply(request, code)
        elif request.type is PushType.COMMIT:
            self._commit(request)
        elif self._fits(request, chain_fits=chain_fits):
            new = request.type is PushType.APPEND and request.last_index > self._state.log.end_index
            if new and disk_full:
                self._reply(request, ResponseCode.DISK_FULL)
            elif request.type is PushType.APPEND:
                self._append(request)
            elif request.type is PushType.TRUNCATE:
                self._truncate(request)
            else:
                self._succeed(request, request.prev_index)
        else:
            self._refuse(request)

    # -- who may speak ------------------------------------------------------------------------

    def _admit(
        self, request: HeartBeatRequest | PushRequest | InstallSnapshotRequest
    ) -> ResponseCode:
        """Follow the sender if it is the leader of my term or a newer one; else say why not."""
        state, leader_id = self._state, request.local_id
        if not state.is_known_peer(leader_id, request.membership_index):
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
        state.leader_seen()
        if self._verified_term != state.term:
            self._verified_term, self.verified_index = state.term, -1
            self._differs_from = BEYOND_EVERY_LOG
        return ResponseCode.SUCCESS

    # -- does it fit --------------------------------------------------------------------------

    def _fits(self, request: PushRequest, *, chain_fits: bool) -> bool:
        """Whether my log equals the leader's at prev_index, and so up to there (log matching).

        What is at or below before_begin_index was committed: a leader has it too.
        """
        log, index = self._state.log, request.prev_index
        if index < log.before_begin_index or index < 0:
            return True
        if index > log.end_index or not chain_fits:
            return False
        own_term = log.term_at(index)
        unknown = min(own_term, request.prev_term) < 0
        return own_term == request.prev_term or (unknown and index <= self._state.committed_index)

    def _refuse(self, request: PushRequest) -> None:
        """Say where the logs part, so that the leader steps back far enough."""
        state, index = self._state, request.prev_index
        if index <= state.committed_index:
            state.alarm(
                f"the log differs from {request.local_id}'s at index {index}, which is committed "
                f"(up to {state.committed_index}); nothing was changed"
            )
        if index > state.log.end_index or index <= state.committed_index:
            self._reply(request, ResponseCode.INCONSISTENT_STATE)
        elif state.log.term_at(index) == request.prev_term:
            # Equal terms, different bytes: no term to jump over, so one step back, and terms can
            # not tell later which of these entries must go.
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

    def _append(self, request: PushRequest) -> None:
        """Store what is not stored yet; entries already here are left alone (R7, R22)."""
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
        """Whether terms and indexes are such as a leader could have."""
        runs = request.term_runs
        if request.first_index != request.prev_index + 1 or not runs:
            return False
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
        check(first == log.end_index + 1, "entries are stored without a gap", first, log.end_index)
        for position, (term, _) in enumerate(runs):
            run_last = runs[position + 1][1] - 1 if position + 1 < len(runs) else last
            if run_last > log.end_index:
                log.append(run_last, term)
        for index, membership in self._memberships:
            if first <= index <= last:
                self._state.take_membership(index, membership)
        self._state.emit(AppendReceived(first, last, self._state.issue(last)))

    def _truncate(self, request: PushRequest) -> None:
        """Remove what conflicts behind prev_index.

        Never for a mere shorter compare (spec 95.61), and never what this leader is known to have:
        a repeated request may arrive after entries that it knew nothing of. Entries of the
        leader's own term are its own, also when a restart has made me forget that.
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
        """Learn what is committed; after a restart I must first be compared again."""
        if request.prev_index > self.verified_index:
            self._reply(request, ResponseCode.INCONSISTENT_STATE)
        else:
            self._succeed(request, request.prev_index)

    # -- beginning anew -----------------------------------------------------------------------

    def install(self, offer: InstallSnapshotRequest, *, is_confirmed: bool = False) -> None:
        """The leader has no entries any more that I need (spec 40 section 5).

        Taking the offer removes what this log holds, acknowledged entries too, and whatever comes
        before the offer's end is never asked for again: that is right only if the leader has
        removed it as well. So the leader must confirm it, asked where the membership says it is;
        whoever merely speaks in its name is not there to answer. That an empty log has nothing to
        lose is no reason to believe: it would count as holding what it has never seen.
        """
        code = self._admit(offer)
        if code is not ResponseCode.SUCCESS:
            self._answer_offer(offer, code)
        elif offer.last_included_index <= self._state.committed_index:
            self._answer_offer(offer, ResponseCode.INSTALL_SNAPSHOT_ERROR)
        elif self._contradicts(offer):
            self._answer_offer(offer, ResponseCode.INCONSISTENT_STATE)
        elif not is_confirmed:
            self._state.emit(ConfirmOffer(offer))
        elif offer.sha256:
            self._state.emit(FetchSnapshot(offer))
        else:
            self.fetched(offer)

    def _contradicts(self, offer: InstallSnapshotRequest) -> bool:
        """Whether no leader of my log could make this offer; said in an alarm."""
        state, index, term = self._state, offer.last_included_index, offer.last_included_term
        committed_term = state.log.term_at(state.committed_index)
        reason = ""
        if term > offer.term:
            reason = f"its end is of term {term}, after the leader's own {offer.term}"
        elif 0 <= term < committed_term:
            reason = f"its end is of term {term}, but index {state.committed_index}, which is "
            reason += f"committed and comes before it, of term {committed_term}"
        elif offer.config is not None and offer.config[0] > index:
            reason = f"it names a membership of index {offer.config[0]}, which comes after it"
        elif index > state.log.end_index + INDEX_JUMP_MAX:
            reason = f"it ends more than {INDEX_JUMP_MAX} entries after this log"
        if reason:
            state.alarm_once(
                f"{offer.local_id} offers a log that begins after index {index} and cannot be "
                f"this group's: {reason}; nothing was removed"
            )
        return bool(reason)

    def fetched(self, offer: InstallSnapshotRequest) -> None:
        """Begin the log behind what was offered, which a majority has committed.

        Entries behind it stay only if the one at its end is the leader's (spec 95.8).
        """
        state, log = self._state, self._state.log
        index, term = offer.last_included_index, offer.last_included_term
        if index <= state.committed_index or self._contradicts(offer):
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
                f"begins anew behind index {index}, as {offer.local_id} has removed entries that "
                f"were needed; the log ended at {ended}"
            )
            log.restart(index, term)
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
                group=offer.group,
                local_id=state.config.self_id,
                remote_id=offer.local_id,
                incarnation=state.config.incarnation,
                remote_incarnation=offer.incarnation,
                term=state.known_term if code is ResponseCode.EXPIRED_TERM else state.term,
                request_id=offer.request_id,
                code=code,
                committed_index=state.committed_index,
            ),
            0 if refused else state.writes.last_token,
        )

    # -- answers ------------------------------------------------------------------------------

    def _succeed(self, request: PushRequest, match_index: int) -> None:
        """Answer, once it is durable, that the logs are equal up to match_index."""
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
                group=request.group,
                local_id=state.config.self_id,
                remote_id=request.local_id,
                incarnation=state.config.incarnation,
                remote_incarnation=request.incarnation,
                term=state.known_term if code is ResponseCode.EXPIRED_TERM else state.term,
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
