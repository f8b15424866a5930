"""Voting: answers to candidates that ask for a vote or a pre-vote (spec 10 section 5)."""

from quorumlog.model.codes import Role, VoteResult
from quorumlog.model.messages.peer import VoteRequest, VoteResponse
from quorumlog.raft.envelope import response_to
from quorumlog.raft.plausibility import is_known_peer
from quorumlog.raft.state import RaftState


def answer_vote_request(state: RaftState, request: VoteRequest) -> None:
    """Decide, save the decision, and answer once it is durable.

    A higher term is adopted, with two exceptions: a pre-vote, and a candidate that is refused
    because a leader is live. A replica that was cut off for a while, and raised its term meanwhile,
    must not unseat a leader that works (thesis sections 4.2.3 and 9.6).
    """
    result = _refuse_outright(state, request)
    if result is None:
        result = _decide(state, request)
        adopts = request.term > state.term and not request.pre_vote
        granted = result.accepts and not request.pre_vote
        if adopts or granted:
            vote = request.local_id if granted else None
            term = max(request.term, state.term)
            state.enter(Role.FOLLOWER, None, term=term, vote=vote)
        if granted:
            state.election_timer.restart(state.now_ms)
        elif result.accepts and state.role is not Role.LEADER:
            state.election_timer.yield_to_candidate(state.now_ms)
    asked = "would vote" if request.pre_vote else "votes"
    state.record(f"asked by {request.local_id}: {asked} in term {request.term}: {result.name}")
    is_outdated = result is VoteResult.REJECT_TERM_SMALL_THAN_LEDGER
    state.send(
        VoteResponse(
            **response_to(state, request, is_outdated=is_outdated),
            vote_result=result,
            request_term=request.term,
            pre_vote=request.pre_vote,
        )
    )


def _refuse_outright(state: RaftState, request: VoteRequest) -> VoteResult | None:
    """Refuse a request that changes nothing here, whatever its term."""
    if not is_known_peer(state, request.local_id, request.membership_index):
        return VoteResult.REJECT_UNKNOWN_LEADER
    if _has_other_incarnation(state, request):
        return VoteResult.REJECT_UNKNOWN_LEADER
    if request.local_id == state.config.self_id:
        return VoteResult.REJECT_UNEXPECTED_LEADER
    if state.has_live_leader() and not request.transfer:
        return VoteResult.REJECT_ALREADY_HAS_LEADER
    return None


def _has_other_incarnation(state: RaftState, request: VoteRequest) -> bool:
    """Whether the candidate's disk was emptied, so that it is not the voter known here.

    A candidate that knows a newer membership than this replica may have been readmitted since.
    """
    member = state.memberships.current.member(request.local_id)
    if member is None or member.may_be(request.incarnation):
        return False
    return request.membership_index <= state.committed_membership_index


def _decide(state: RaftState, request: VoteRequest) -> VoteResult:
    """Return the answer of a voter that knows of no live leader."""
    log, candidate, accepted = state.log, request.local_id, VoteResult.ACCEPT
    own_end = (log.end_term, log.end_index)
    if (request.ledger_end_term, request.ledger_end_index) < own_end:
        if request.ledger_end_term < log.end_term:
            refusal = VoteResult.REJECT_EXPIRED_LEDGER_TERM
        else:
            refusal = VoteResult.REJECT_SMALL_LEDGER_END_INDEX
        if not _may_give_up_entries(state, request):
            return refusal
        accepted = VoteResult.ACCEPT_GIVING_UP_ENTRIES
    if request.term < state.term:
        return VoteResult.REJECT_EXPIRED_VOTE_TERM
    if request.term == state.term:
        if state.leader_id not in (None, candidate):
            return VoteResult.REJECT_ALREADY_HAS_LEADER
        if state.vote not in (None, candidate):
            taking = state.election is not None and state.election.transfer
            refusal = VoteResult.REJECT_TAKING_LEADERSHIP
            return refusal if taking else VoteResult.REJECT_ALREADY_VOTED
    if request.term < log.end_term:
        return VoteResult.REJECT_TERM_SMALL_THAN_LEDGER
    return accepted


def _may_give_up_entries(state: RaftState, request: VoteRequest) -> bool:
    """Whether this voter lets a candidate win whose log ends before its own.

    Raft says no: the entries that the candidate lacks may be committed. But take a group in which
    the longest log is damaged after the committed index. That replica may not lead, and if it
    refuses everybody with a shorter log, the others may be too few. The group would have no leader
    permanently, and no member has the entries that would repair the damage. So a voter that is not
    eligible gives up the entries that the candidate lacks, unless it knows them to be committed.
    The candidate makes sure that none of them can be, because it sees how all others voted
    (`_gave_up_nothing_committed` in `campaign.py`).
    """
    return not state.is_eligible and state.committed_index <= request.ledger_end_index
