"""Nodes that are about to stop transfer leadership first, if another member can take it."""

import pytest

from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.messages.peer import PushResponse, TimeoutNowRequest
from quorumlog.raft import events as ev
from raft_members import Group, started_group

LIMIT_MS = 2_500
"""A node that stops waits so long for its replicas."""


def prepare_stop(group, *node_ids):
    for node_id in node_ids:
        group.step(group.nodes[node_id], ev.Stopping())


def may_stop(group, *node_ids):
    return all(group.core(node_id).may_stop for node_id in node_ids)


def words(group):
    return [message for message in group.sent if isinstance(message, TimeoutNowRequest)]


def story(group, node_id):
    return [text for _, text in group.core(node_id).history.lines()]


@pytest.mark.parametrize("seed", range(5))
def test_a_leader_that_stops_has_another_one_lead_at_once(seed):
    group, leader = started_group(3, seed)
    term, started_ms = group.core(leader).term, group.now
    append = group.propose(leader)
    prepare_stop(group, leader)
    group.run_until(lambda: may_stop(group, leader))

    assert group.now - started_ms < 100
    assert group.finished[append] is ResponseCode.SUCCESS
    successor = group.leader
    assert successor not in (None, leader)
    assert group.core(leader).leader_id == successor
    assert group.core(successor).term == term + 1
    assert f"takes leadership over from {leader}" in story(group, successor)
    assert group.commits(successor)


def test_what_was_appended_is_committed_before_anybody_is_told_to_take_over():
    group, leader = started_group()
    follower, other = group.followers()
    group.drop = lambda message: isinstance(message, PushResponse)
    append = group.propose(leader)
    prepare_stop(group, leader)
    group.run_for(100)
    assert not words(group)
    group.drop = lambda message: False
    group.step(group.nodes[leader], ev.PeerConnected(follower))
    group.step(group.nodes[leader], ev.PeerConnected(other))
    group.run_until(lambda: bool(words(group)))
    assert group.finished[append] is ResponseCode.SUCCESS


def test_the_one_that_lags_least_takes_over():
    group, leader = started_group()
    behind, near = group.followers()
    group.cut(leader, behind)
    group.propose(leader, count=50)
    group.run_for(100)
    prepare_stop(group, leader)
    group.run_until(lambda: may_stop(group, leader))
    assert {word.remote_id for word in words(group)} == {near}
    assert group.leader == near


def test_a_leader_whom_nobody_answers_is_not_waited_for():
    group, leader = started_group()
    group.isolate(leader)
    group.run_until(lambda: group.core(leader).role is not Role.LEADER)
    group.heal()
    group.run_until(lambda: group.leader is not None)
    leader = group.leader
    for follower in group.followers():
        group.crash(follower)
        group.step(group.nodes[leader], ev.PeerLost(follower))
    prepare_stop(group, leader)
    assert group.core(leader).role is Role.LEADER
    assert may_stop(group, leader)
    assert not group.core(leader).may_commit


def test_a_sole_voter_is_not_waited_for():
    group, leader = started_group(1)
    prepare_stop(group, leader)
    assert may_stop(group, leader)
    assert group.core(leader).role is Role.LEADER


def test_if_one_does_not_take_over_another_is_asked():
    group, leader = started_group()
    first = []

    def is_to_the_first(message):
        if isinstance(message, TimeoutNowRequest) and not first:
            first.append(message.remote_id)
        return isinstance(message, TimeoutNowRequest) and message.remote_id in first

    group.drop = is_to_the_first
    prepare_stop(group, leader)
    group.run_until(lambda: may_stop(group, leader), LIMIT_MS)
    assert group.leader not in (None, leader, *first)


def test_one_that_has_ended_is_not_waited_for():
    group, leader = started_group()
    group.drop = lambda message: isinstance(message, TimeoutNowRequest)
    prepare_stop(group, leader)
    target = words(group)[0].remote_id
    other = next(one for one in group.followers() if one != target)
    group.drop = lambda message: False
    asked_ms = group.now
    group.crash(target)
    group.step(group.nodes[leader], ev.PeerLost(target))
    group.run_until(lambda: may_stop(group, leader))
    assert group.now - asked_ms < 100
    assert group.leader == other


def test_a_hand_over_that_is_under_way_is_waited_for():
    group, leader = started_group()
    target = group.followers()[0]
    number = group.transfer(target)
    prepare_stop(group, leader)
    assert not may_stop(group, leader)
    group.run_until(lambda: may_stop(group, leader))
    assert group.answers[number] is ResponseCode.SUCCESS
    assert group.leader == target


def test_a_follower_that_stops_disturbs_nobody_and_does_not_campaign():
    group, leader = started_group()
    stopping, other = group.followers()
    term = group.core(leader).term
    prepare_stop(group, stopping)
    assert may_stop(group, stopping)
    group.run_for(3_000)
    assert (group.leader, group.core(leader).term) == (leader, term)

    group.crash(leader)
    group.run_until(lambda: group.leader is not None)
    assert group.leader == other  # with the vote of the one that stops


def test_one_that_stops_does_not_take_leadership_over():
    group, leader = started_group()
    target = group.followers()[0]
    prepare_stop(group, target)
    assert group.outcome(group.transfer(target)) is ResponseCode.TAKE_LEADERSHIP_FAILED
    assert group.leader == leader


def test_votes_that_are_given_are_counted_before_the_candidate_stops():
    group, _ = started_group()
    target = group.followers()[0]
    group.transfer(target)
    group.run_until(lambda: group.core(target).role is Role.CANDIDATE)
    prepare_stop(group, target)
    assert not may_stop(group, target)
    group.run_until(lambda: may_stop(group, target))
    assert group.leader not in (None, target)  # it led, and handed over again
    assert f"takes leadership over from {target}" in story(group, group.leader)


def test_one_that_only_asks_whether_it_would_win_gives_that_up():
    group = Group()
    group.start("n0")
    group.run_until(lambda: group.core("n0").role is Role.CANDIDATE)
    prepare_stop(group, "n0")
    assert may_stop(group, "n0")
    group.start("n1", "n2")
    group.run_until(lambda: group.leader is not None)
    assert group.leader != "n0"  # which votes


@pytest.mark.parametrize("seed", range(5))
def test_when_all_stop_at_once_nobody_waits_for_long(seed):
    group, _ = started_group(3, seed)
    prepare_stop(group, *group.ids)
    group.run_until(lambda: may_stop(group, *group.ids), LIMIT_MS)
