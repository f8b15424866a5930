"""Raft paper section 5.1: terms."""

import pytest

from quorumlog.model.codes import PushType, ResponseCode, Role, VoteResult
from quorumlog.model.hard_state import HardState
from raft_cluster import Cluster
from raft_messages import heartbeat, push, push_response, vote_request, vote_response

OTHER, ME = "n1", "n0"


def in_role(role):
    """n0 of three in the given role, at term 3."""
    states = {node_id: HardState(2, None) for node_id in ("n0", "n1", "n2")}
    states[ME] = HardState(3 if role is Role.FOLLOWER else 2, None)
    cluster = Cluster(3, states=states)
    if role is Role.FOLLOWER:
        cluster.start(ME).ask(heartbeat(OTHER, ME, 3))
    elif role is Role.CANDIDATE:
        cluster.start(ME)
        cluster.run_until(lambda: cluster.sent)
        cluster.deliver(vote_response(OTHER, ME, 2, VoteResult.ACCEPT, 3, pre_vote=True))
        cluster.run_for(10)
    else:
        cluster.start(ME, OTHER)
        cluster.drop = lambda message: (
            getattr(message, "pre_vote", None)
            and (message.remote_id == ME and hasattr(message, "ledger_end_term"))
        )
        cluster.nodes[OTHER].core._state.election_deadline_ms = 1 << 40
        cluster.run_until(lambda: cluster.leader == ME)
    assert (cluster.core(ME).role, cluster.core(ME).term) == (role, 3)
    return cluster


def newer(term):
    """One of every kind of message that carries the sender's term."""
    yield vote_request("n2", ME, term, (99, 99))
    yield vote_response("n2", ME, term, VoteResult.REJECT_EXPIRED_VOTE_TERM, 3)
    yield heartbeat("n2", ME, term)
    yield push(PushType.COMPARE, "n2", ME, term, (-1, -1))
    yield push(PushType.COMMIT, "n2", ME, term, (-1, -1))
    yield push_response(PushType.APPEND, "n2", ME, term, 1, ResponseCode.EXPIRED_TERM)


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("number", range(6))
def test_a_larger_term_is_adopted_and_ends_candidacy_and_leadership(role, number):
    cluster = in_role(role)
    cluster.now += 400 if role is not Role.FOLLOWER else 600  # the follower's leader is silent
    message = list(newer(9))[number]
    cluster.deliver(message)

    protected = role is Role.LEADER and number == 0  # stickiness, thesis section 4.2.3
    assert cluster.core(ME).term == (3 if protected else 9)
    assert cluster.core(ME).role is (Role.LEADER if protected else Role.FOLLOWER)


@pytest.mark.parametrize("role", list(Role))
def test_requests_with_a_stale_term_are_rejected(role):
    cluster = in_role(role)
    cluster.now += 400 if role is not Role.FOLLOWER else 600

    answer = cluster.deliver(heartbeat("n2", ME, 2))[0]
    assert (answer.code, answer.term) == (ResponseCode.EXPIRED_TERM, 3)
    answer = cluster.deliver(push(PushType.COMPARE, "n2", ME, 2, (-1, -1)))[0]
    assert (answer.code, answer.term) == (ResponseCode.EXPIRED_TERM, 3)
    answer = cluster.deliver(vote_request("n2", ME, 2, (99, 99)))[0]
    assert answer.vote_result is not VoteResult.ACCEPT
    assert cluster.core(ME).role is role


def test_a_term_survives_a_restart():
    cluster = in_role(Role.FOLLOWER)
    cluster.ask(heartbeat("n2", ME, 9))
    cluster.crash(ME)
    cluster.start(ME)

    assert cluster.core(ME).term == 9
