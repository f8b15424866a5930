"""Raft thesis section 3.10: leadership transfer."""

import pytest

from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.messages.peer import TimeoutNowRequest, VoteRequest
from raft_members import carries_entries, entries_to, no_message, started_group


def is_word(message):
    return isinstance(message, TimeoutNowRequest)


def test_the_prior_leader_stops_accepting_new_client_requests():
    group, leader = started_group()
    group.drop = is_word
    group.transfer(group.followers()[0])
    number = group.propose(leader)

    assert group.finished[number] is ResponseCode.LEADER_TRANSFERRING


def test_it_fully_updates_the_targets_log_before_it_sends_the_word():
    group, leader = started_group()
    target = group.followers()[0]
    group.drop = entries_to(target)
    group.propose(leader, count=20)
    group.run_for(50)
    group.transfer(target)
    group.run_for(300)
    assert not [message for message in group.sent if is_word(message)]

    group.drop = no_message
    group.reconnect(leader, target)
    group.run_until(lambda: [message for message in group.sent if is_word(message)])
    assert group.core(target).durable_index == group.core(leader).end_index


def test_the_target_starts_an_election_at_once_without_a_pre_vote():
    group, leader = started_group()
    target, term = group.followers()[0], group.core(leader).term
    group.sent.clear()
    group.transfer(target)
    group.run_until(lambda: group.core(target).role is Role.CANDIDATE, 20)
    group.run_for(20)
    asked = [m for m in group.sent if isinstance(m, VoteRequest) and m.local_id == target]

    assert {(m.pre_vote, m.transfer, m.term) for m in asked} == {(False, True, term + 1)}
    assert group.core(leader).role is not Role.LEADER


@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_target_is_very_likely_to_lead_before_any_other_times_out(count):
    for seed in range(5):
        group, _ = started_group(count, seed)
        target, asked = group.followers()[-1], group.now
        assert group.outcome(group.transfer(target)) is ResponseCode.SUCCESS
        assert group.leader == target
        assert group.now - asked < 100


def test_the_prior_leader_steps_down_when_it_hears_of_the_new_term():
    group, leader = started_group()
    target = group.followers()[0]
    assert group.outcome(group.transfer(target)) is ResponseCode.SUCCESS

    assert group.core(leader).role is Role.FOLLOWER
    assert group.core(leader).term == group.core(target).term


def test_without_success_within_the_time_out_it_resumes_accepting_requests():
    group, leader = started_group()
    group.drop = is_word
    number, asked = group.transfer(group.followers()[0]), group.now
    assert group.outcome(number) is ResponseCode.TAKE_LEADERSHIP_FAILED
    assert group.now - asked <= 1_000

    assert group.leader == leader
    assert group.commits()


def test_a_word_that_arrives_after_the_leader_gave_up_unseats_it_but_loses_nothing():
    """At worst there is one more election."""
    group, leader = started_group()
    target = group.followers()[0]
    words = []
    group.drop = lambda m: is_word(m) and (words.append(m) or True)
    group.outcome(group.transfer(target))
    group.drop = no_message
    numbers = [group.propose(leader) for _ in range(3)]
    group.run_until(lambda: set(numbers) <= set(group.finished))
    group.converge()
    group.deliver(words[0])
    group.converge()

    assert group.commits()
    group.checker.finished()


def test_entries_sent_before_the_hand_over_are_kept():
    group, leader = started_group()
    target, other = group.followers()
    numbers = [group.propose(leader, count=3) for _ in range(4)]
    group.drop = lambda m: carries_entries(m) and m.remote_id == other
    assert group.outcome(group.transfer(target)) is ResponseCode.SUCCESS
    group.drop = no_message
    group.converge()

    assert {group.finished[number] for number in numbers} <= {
        ResponseCode.SUCCESS,
        ResponseCode.TERM_CHANGED,
    }
    assert group.core(other).end_index >= 12
    group.checker.finished()
