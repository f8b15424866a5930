"""Becoming leader: a pre-vote round, then a vote round in the next term (thesis section 9.6).

A group that has not begun yet begins with the votes of all its founders. Afterwards the log says
who they were, data directories included, so that an emptied one never makes a majority (R14).
"""

from collections.abc import Collection, Container

from quorumlog.model.codes import Role, VoteResult
from quorumlog.model.messages.peer import TimeoutNowRequest, VoteRequest, VoteResponse
from quorumlog.raft.quorum import has_quorum, majority
from quorumlog.raft.state import Election, RaftState


def start_campaign(state: RaftState) -> None:
    """No leader was heard in time: ask whether an election would be won, raising no term yet."""
    state.restart_election_timer()
    if state.election is not None and state.election.own_vote_token > state.writes.stored_token:
        return  # the disk is slower than the time-out; more writes would make it slower still
    if not state.may_campaign or state.disk_is_stalled():
        if state.leader_id is not None or state.role is not Role.FOLLOWER:
            state.enter(Role.FOLLOWER, None)
        return  # others lead, until I am fit to
    state.enter(Role.CANDIDATE, None)
    if state.is_sole_voter:
        _start_vote_round(state)
        return
    # Always a new term, even after a restart: nobody leads twice in one (spec 95.1).
    own = {state.config.self_id: state.config.incarnation}
    state.election = Election(state.known_term + 1, pre_vote=True, granted=own)
    state.record(f"asks whether it would win term {state.election.term}")
    _request_votes(state, state.election)


def take_leadership(state: RaftState, request: TimeoutNowRequest) -> None:
    """The leader asks me to take over: campaign at once, unless that word is out of date."""
    current = (state.term, state.leader_id, Role.FOLLOWER)
    if (request.term, request.local_id, state.role) != current or not state.may_campaign:
        return
    if state.log.end_index < request.end_index or state.disk_is_stalled():
        return
    state.record(f"takes leadership over from {request.local_id}")
    _start_vote_round(state, transfer=True)


def _start_vote_round(
    state: RaftState, *, expected: Container[str] | None = None, transfer: bool = False
) -> None:
    """Raise the term and vote for myself; the questions leave once both are durable.

    `expected`: who said that they would vote for me; None: anybody may.
    """
    state.restart_election_timer()
    own_id, term = state.config.self_id, state.known_term + 1
    state.enter(Role.CANDIDATE, None, term=term, vote=own_id)
    state.election = Election(
        term,
        pre_vote=False,
        own_vote_token=state.hard_state_token,
        transfer=transfer,
        expected={voter for voter in _voters(state) if expected is None or voter in expected},
    )
    _request_votes(state, state.election)


def _voters(state: RaftState) -> list[str]:
    current = state.memberships.current
    return list(dict.fromkeys([*current.voters, *current.outgoing]))


def _request_votes(state: RaftState, asked: Election) -> None:
    for peer_id in _voters(state):
        if peer_id == state.config.self_id:
            continue
        state.send(
            VoteRequest(
                group=state.config.group,
                local_id=state.config.self_id,
                remote_id=peer_id,
                incarnation=state.config.incarnation,
                term=asked.term,
                ledger_end_index=state.log.end_index,
                ledger_end_term=state.log.end_term,
                pre_vote=asked.pre_vote,
                membership_index=state.memberships.index,
                transfer=asked.transfer,
            )
        )


def count_vote(state: RaftState, response: VoteResponse) -> None:
    """Count an answer, unless it belongs to a round that is over.

    A higher term is adopted, with one exception: a granted pre-vote, whose voter may well be in
    the term that was asked for already.
    """
    accepted = response.vote_result.accepts
    if response.term > state.term and not (response.pre_vote and accepted):
        state.enter(Role.FOLLOWER, None, term=response.term)
        state.last_vote_result = response.vote_result
        return
    asked = state.election
    answers_it = asked is not None and (asked.term, asked.pre_vote) == (
        response.request_term,
        response.pre_vote,
    )
    if asked is None or not answers_it:
        return
    state.record(f"{response.local_id} answers term {asked.term}: {response.vote_result.name}")
    state.last_vote_result = response.vote_result
    if accepted and _is_known_voter(state, response):
        asked.granted[response.local_id] = response.incarnation
        if response.vote_result is VoteResult.ACCEPT_GIVING_UP_ENTRIES:
            asked.surrendered.add(response.local_id)
        _finish_if_won(state, asked)
    elif not asked.pre_vote and response.local_id in asked.expected:
        # votes were split: who is alive was asked, and others take no time-out to find that out
        asked.expected.discard(response.local_id)
        if not _is_enough(state, asked.expected):
            state.campaign_again_soon()


def _is_known_voter(state: RaftState, response: VoteResponse) -> bool:
    """Whether the voter is the one the membership names, not another data directory."""
    member = state.memberships.current.member(response.local_id)
    return member is not None and member.may_be(response.incarnation)


def count_own_vote(state: RaftState) -> None:
    """Count the vote for myself once it is durable."""
    asked = state.election
    if asked is None or asked.pre_vote or asked.own_vote_token > state.writes.stored_token:
        return
    asked.granted[state.config.self_id] = state.config.incarnation
    _finish_if_won(state, asked)


def _finish_if_won(state: RaftState, asked: Election) -> None:
    if not _is_enough(state, asked.granted):
        return
    if not _surrendered_nothing_committed(state, asked):
        state.record(f"too few compared logs to win term {asked.term}")
        return
    if asked.pre_vote:
        _start_vote_round(state, expected=asked.granted)
    else:
        state.last_vote_result = VoteResult.ACCEPT
        state.voter_incarnations = dict(asked.granted)
        state.enter(Role.LEADER, state.config.self_id)


def _is_enough(state: RaftState, voters: Collection[str]) -> bool:
    """Whether the votes of these would make a leader."""
    memberships = state.memberships
    if memberships.is_founded:
        return has_quorum(memberships.current, voters)
    return set(memberships.current.voters) <= set(voters)


def _surrendered_nothing_committed(state: RaftState, asked: Election) -> bool:
    """Whether what some gave up for me can't be committed, as far as the other voters tell.

    The first committed entry that I lack would be on a majority of the voters of a membership that
    is my newest or the one before: both sets of my newest hold it then, or one of them is it. So
    the voters whose logs were not compared with mine must be a majority of neither set. Founders
    prove nothing: an emptied disk is not told from a new one before the group began.
    """
    if not asked.surrendered:
        return True
    current = state.memberships.current
    not_compared = set(_voters(state)) - (asked.granted.keys() - asked.surrendered)
    return state.memberships.is_founded and not any(
        len(not_compared.intersection(voters)) >= majority(len(voters))
        for voters in (current.voters, current.outgoing)
    )
