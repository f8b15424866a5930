"""Becoming leader: a pre-vote round, then a vote round in the next term (thesis section 9.6)."""

from quorumlog.model.codes import Role, VoteResult
from quorumlog.model.message import VoteRequest, VoteResponse
from quorumlog.raft.quorum import majority
from quorumlog.raft.state import RaftState, Round


def start_campaign(state: RaftState) -> None:
    """No leader was heard in time: ask whether an election would be won, raising no term yet."""
    state.restart_election_timer()
    if state.damaged:
        return  # what is damaged here could not be served; others lead until it is repaired
    if state.round is not None and state.round.own_vote_token > state.writes.stored_token:
        return  # the disk is slower than the time-out; more writes would make it slower still
    state.enter(Role.CANDIDATE, None)
    if not state.config.peers:
        _start_vote_round(state)
        return
    # Always a new term, even after a restart: nobody leads twice in one (spec 95.1).
    state.round = Round(state.known_term + 1, pre_vote=True, granted={state.config.self_id})
    _ask_peers(state, state.round)


def _start_vote_round(state: RaftState) -> None:
    """Raise the term and vote for myself; the questions leave once both are durable."""
    state.restart_election_timer()
    own_id, term = state.config.self_id, state.known_term + 1
    state.enter(Role.CANDIDATE, None, term=term, vote=own_id)
    state.round = Round(term, pre_vote=False, own_vote_token=state.hard_state_token)
    _ask_peers(state, state.round)


def _ask_peers(state: RaftState, asked: Round) -> None:
    for peer_id in state.config.peers:
        state.send(
            VoteRequest(
                group=state.config.group,
                local_id=state.config.self_id,
                remote_id=peer_id,
                term=asked.term,
                ledger_end_index=state.log.end_index,
                ledger_end_term=state.log.end_term,
                pre_vote=asked.pre_vote,
            )
        )


def count_vote(state: RaftState, response: VoteResponse) -> None:
    """Count an answer, unless it belongs to a round that is over.

    A higher term is adopted, with one exception: a granted pre-vote, whose voter may well be in
    the term that was asked for already.
    """
    accepted = response.vote_result is VoteResult.ACCEPT
    if response.term > state.term and not (response.pre_vote and accepted):
        state.enter(Role.FOLLOWER, None, term=response.term)
        state.last_vote_result = response.vote_result
        return
    asked = state.round
    answers_it = asked is not None and (asked.term, asked.pre_vote) == (
        response.request_term,
        response.pre_vote,
    )
    if asked is None or not answers_it:
        return
    state.last_vote_result = response.vote_result
    if accepted:
        asked.granted.add(response.local_id)
        _finish_if_won(state, asked)


def count_own_vote(state: RaftState) -> None:
    """Count the vote for myself once it is durable."""
    asked = state.round
    if asked is None or asked.pre_vote or asked.own_vote_token > state.writes.stored_token:
        return
    asked.granted.add(state.config.self_id)
    _finish_if_won(state, asked)


def _finish_if_won(state: RaftState, asked: Round) -> None:
    if len(asked.granted) < majority(len(state.config.members)):
        return
    if asked.pre_vote:
        _start_vote_round(state)
    else:
        state.last_vote_result = VoteResult.ACCEPT
        state.enter(Role.LEADER, state.config.self_id)
