"""Answers to those who ask for a vote, or whether they would get one (spec 10 section 5)."""

from quorumlog.model.codes import Role, VoteResult
from quorumlog.model.messages.peer import VoteRequest, VoteResponse
from quorumlog.raft.state import RaftState


def answer_vote_request(state: RaftState, request: VoteRequest) -> None:
    """Decide, save what was decided, and answer once that is durable.

    A higher term is adopted and decided upon at once, except when the question is a pre-vote or
    the candidate is refused because a leader is alive: whoever was cut off for a while must not
    unseat it (thesis sections 4.2.3 and 9.6).
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
            state.restart_election_timer()
        elif result.accepts and state.role is not Role.LEADER:
            state.yield_to_candidate()
    asked = "would vote" if request.pre_vote else "votes"
    state.record(f"asked by {request.local_id}: {asked} in term {request.term}: {result.name}")
    small = result is VoteResult.REJECT_TERM_SMALL_THAN_LEDGER
    state.send(
        VoteResponse(
            group=request.group,
            local_id=state.config.self_id,
            remote_id=request.local_id,
            incarnation=state.config.incarnation,
            remote_incarnation=request.incarnation,
            term=state.known_term if small else state.term,
            vote_result=result,
            request_term=request.term,
            pre_vote=request.pre_vote,
        )
    )


def _refuse_outright(state: RaftState, request: VoteRequest) -> VoteResult | None:
    """Refuse those whose question changes nothing here, whatever its term."""
    if not state.is_known_peer(request.local_id, request.membership_index):
        return VoteResult.REJECT_UNKNOWN_LEADER
    if _has_other_incarnation(state, request):
        return VoteResult.REJECT_UNKNOWN_LEADER
    if request.local_id == state.config.self_id:
        return VoteResult.REJECT_UNEXPECTED_LEADER
    if state.has_live_leader() and not request.transfer:
        return VoteResult.REJECT_ALREADY_HAS_LEADER
    return None


def _has_other_incarnation(state: RaftState, request: VoteRequest) -> bool:
    """Whether the candidate's disk was emptied, so that it is not the voter that I know.

    One that knows a newer membership than I was readmitted since.
    """
    member = state.memberships.current.member(request.local_id)
    if member is None or member.may_be(request.incarnation):
        return False
    return request.membership_index <= state.committed_membership_index


def _decide(state: RaftState, request: VoteRequest) -> VoteResult:
    """Return what a voter answers that hears of no leader."""
    log, candidate, accepted = state.log, request.local_id, VoteResult.ACCEPT
    mine = (log.end_term, log.end_index)
    if (request.ledger_end_term, request.ledger_end_index) < mine:
        if request.ledger_end_term < log.end_term:
            refusal = VoteResult.REJECT_EXPIRED_LEDGER_TERM
        else:
            refusal = VoteResult.REJECT_SMALL_LEDGER_END_INDEX
        if not _may_surrender_entries(state, request):
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


def _may_surrender_entries(state: RaftState, request: VoteRequest) -> bool:
    """Whether a voter that is not fit to lead lets a log win that lacks what its own ends with.

    Else a group would have no leader for good whose longest log is damaged behind what is
    committed, and whose others are too few without it: the one with the damage may not lead, and
    nobody has the entries that would make it good. That nothing committed goes is for the candidate
    to see to, who knows how the others voted (`campaign.py`).
    """
    return not state.is_eligible and state.committed_index <= request.ledger_end_index
