"""Becoming leader: a pre-vote round, then a vote round in the next term (thesis section 9.6).

A new group is founded by an election that all founders vote in. Afterwards its log names them and
their data directories, so that an emptied disk never makes a majority (R14).
"""

from collections.abc import Collection, Container

from quorumlog.model.codes import Role, VoteResult
from quorumlog.model.messages.peer import TimeoutNowRequest, VoteRequest, VoteResponse
from quorumlog.raft.envelope import request_to
from quorumlog.raft.quorum import has_quorum, majority
from quorumlog.raft.state import Election, RaftState


def start_campaign(state: RaftState) -> None:
    """No leader was heard from in time: ask for pre-votes, without raising the term."""
    state.election_timer.restart(state.now_ms)
    if state.election is not None and state.election.own_vote_token > state.writes.durable_token:
        return  # the disk is slower than the time-out, and more writes would make it slower still
    if state.leader_id is not None:
        state.record(f"no longer waits for {state.leader_id}, which led")
    if not state.may_campaign or state.disk_is_stalled():
        if state.leader_id is not None or state.role is not Role.FOLLOWER:
            why = "its disk does not answer" if state.may_campaign else "it must not lead now"
            state.record(f"does not campaign: {why}")
            state.enter(Role.FOLLOWER, None)
        return  # others campaign until this replica may
    state.enter(Role.CANDIDATE, None)
    if state.is_sole_voter:
        _start_vote_round(state)
        return
    # Always a new term, even after a restart: no replica leads twice in one (spec 95.1).
    own = {state.config.self_id: state.config.incarnation}
    state.election = Election(state.known_term + 1, pre_vote=True, granted=own)
    state.record(f"asks whether it would win term {state.election.term}")
    _request_votes(state, state.election)


def take_leadership(state: RaftState, request: TimeoutNowRequest) -> None:
    """The leader asks this replica to take over: campaign, unless the request is outdated."""
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
    """Raise the term and vote for this replica; requests are sent once both are durable.

    `expected` are the voters that granted a pre-vote; None: any voter may vote for it.
    """
    state.election_timer.restart(state.now_ms)
    own_id, term = state.config.self_id, state.known_term + 1
    state.enter(Role.CANDIDATE, None, term=term, vote=own_id)
    state.election = Election(
        term,
        pre_vote=False,
        own_vote_token=state.writes.hard_state_token,
        transfer=transfer,
        expected={voter for voter in _voters(state) if expected is None or voter in expected},
    )
    _request_votes(state, state.election)


def _voters(state: RaftState) -> list[str]:
    current = state.memberships.current
    return list(dict.fromkeys([*current.voters, *current.outgoing]))


def _request_votes(state: RaftState, election: Election) -> None:
    for peer_id in _voters(state):
        if peer_id == state.config.self_id:
            continue
        state.send(
            VoteRequest(
                **request_to(state, peer_id, election.term),
                ledger_end_index=state.log.end_index,
                ledger_end_term=state.log.end_term,
                pre_vote=election.pre_vote,
                membership_index=state.memberships.index,
                transfer=election.transfer,
            )
        )


def count_vote(state: RaftState, response: VoteResponse) -> None:
    """Count an answer, unless it belongs to a round that is over.

    A higher term is adopted, except that of a granted pre-vote: its voter may have reached the term
    that was asked for already.
    """
    accepted = response.vote_result.accepts
    if response.term > state.term and not (response.pre_vote and accepted):
        state.enter(Role.FOLLOWER, None, term=response.term)
        state.last_vote_result = response.vote_result
        return
    election = state.election
    answers_it = election is not None and (election.term, election.pre_vote) == (
        response.request_term,
        response.pre_vote,
    )
    if election is None or not answers_it:
        return
    state.record(f"{response.local_id} answers term {election.term}: {response.vote_result.name}")
    state.last_vote_result = response.vote_result
    if accepted and _is_known_voter(state, response):
        election.granted[response.local_id] = response.incarnation
        if response.vote_result is VoteResult.ACCEPT_GIVING_UP_ENTRIES:
            election.gave_up.add(response.local_id)
        _finish_if_won(state, election)
    elif not election.pre_vote and response.local_id in election.expected:
        # A live peer refused. If too few are left to win, the votes are split: do not wait for the
        # time-out, since all voters that can answer have been asked.
        election.expected.discard(response.local_id)
        if not _is_enough(state, election.expected):
            state.election_timer.campaign_soon(state.now_ms)


def _is_known_voter(state: RaftState, response: VoteResponse) -> bool:
    """Whether the voter has the data directory that the membership names, not another one."""
    member = state.memberships.current.member(response.local_id)
    return member is not None and member.may_be(response.incarnation)


def count_own_vote(state: RaftState) -> None:
    """Count the own vote once it is durable."""
    election = state.election
    if (
        election is None
        or election.pre_vote
        or election.own_vote_token > state.writes.durable_token
    ):
        return
    election.granted[state.config.self_id] = state.config.incarnation
    _finish_if_won(state, election)


def _finish_if_won(state: RaftState, election: Election) -> None:
    if not _is_enough(state, election.granted):
        return
    if not _gave_up_nothing_committed(state, election):
        state.record(f"too few compared logs to win term {election.term}")
        return
    if election.pre_vote:
        _start_vote_round(state, expected=election.granted)
    else:
        state.last_vote_result = VoteResult.ACCEPT
        state.voter_incarnations = dict(election.granted)
        state.enter(Role.LEADER, state.config.self_id)


def _is_enough(state: RaftState, voters: Collection[str]) -> bool:
    """Whether the votes of these members make a leader."""
    memberships = state.memberships
    if memberships.is_founded:
        return has_quorum(memberships.current, voters)
    return set(memberships.current.voters) <= set(voters)


def _gave_up_nothing_committed(state: RaftState, election: Election) -> bool:
    """Whether the entries that voters gave up for this replica cannot be committed.

    Suppose that one of them is, and that this replica lacks it. Then it is on a majority of the
    voters of a membership, which is the newest one here or the one before that. The newest may be
    joint, with two sets of voters; a majority of one of these sets holds the entry in either case.
    No voter in that majority can have voted for this replica after comparing logs. So the entry is
    not committed if the voters that did not compare (they gave up entries, or have not voted) are a
    majority of neither set.

    Founders of a group prove nothing: before the group is founded, an emptied disk cannot be told
    from a new one.
    """
    if not election.gave_up:
        return True
    current = state.memberships.current
    not_compared = set(_voters(state)) - (election.granted.keys() - election.gave_up)
    return state.memberships.is_founded and not any(
        len(not_compared.intersection(voters)) >= majority(len(voters))
        for voters in (current.voters, current.outgoing)
    )
