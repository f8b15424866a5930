"""Linearizable reads: answered once a later round proves leadership (thesis 6.4)."""

import pytest

from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.messages.peer import HeartBeatRequest, HeartBeatResponse
from quorumlog.raft import read_index
from raft_members import Group, carries_entries, no_message, started_group


def answers(message):
    return isinstance(message, HeartBeatResponse)


def beats(group):
    return [message for message in group.sent if isinstance(message, HeartBeatRequest)]


def test_a_read_is_answered_with_what_was_committed_when_it_was_asked():
    group, leader = started_group()
    group.propose(leader, count=7)
    group.converge()
    number = group.read()

    assert group.outcome(number, 10) == 7


def test_a_round_begins_at_once_for_a_read():
    group, _ = started_group()
    group.run_for(30)
    group.sent.clear()
    group.read()
    assert len(beats(group)) == 2

    group.run_for(4)
    assert set(group.answers) == {1}


def test_a_read_waits_for_a_majority():
    group, leader = started_group(5)
    near, *far = group.followers()
    group.drop = lambda m: answers(m) and m.local_id in far
    number = group.read()
    group.run_for(300)
    assert number not in group.answers

    group.drop = lambda m: answers(m) and m.local_id in far[1:]
    assert group.outcome(number, 200) == 0
    assert group.leader == leader
    assert near != leader


def test_a_round_begun_before_the_read_proves_nothing():
    """Its answers may have been given before somebody else was elected."""
    group, leader = started_group()
    group.drop = answers
    group.sent.clear()
    first = group.read()
    (round_before,) = {beat.round for beat in beats(group)}
    second = group.read()
    for follower in group.followers():
        answer_to(group, leader, follower, round_before)

    assert group.answers == {first: 0}
    group.drop = no_message
    assert group.outcome(second, 10) == 0


def answer_to(group, leader, follower, number):
    answer = HeartBeatResponse(
        group="g",
        local_id=follower,
        remote_id=leader,
        term=group.core(leader).term,
        incarnation=1,
        code=ResponseCode.SUCCESS,
        round=number,
        end_index=group.core(follower).end_index,
    )
    group.deliver(answer)


@pytest.mark.parametrize("behind", [1, 2, 5])
def test_late_answers_to_older_rounds_do_not_confirm(behind):
    group, leader = started_group()
    group.run_for(1_000)
    group.drop = answers
    number = group.read()
    newest = beats(group)[-1].round
    for follower in group.followers():
        answer_to(group, leader, follower, newest - behind)
    assert number not in group.answers

    answer_to(group, leader, group.followers()[0], newest)
    assert group.answers == {number: 0}


def test_answers_to_rounds_that_never_were_do_not_confirm():
    group, leader = started_group()
    group.drop = answers
    number = group.read()
    for follower in group.followers():
        answer_to(group, leader, follower, beats(group)[-1].round + 1)

    assert number not in group.answers


def test_an_answer_of_an_older_term_does_not_confirm():
    group, leader = started_group()
    group.drop = answers
    number = group.read()
    for follower in group.followers():
        answer = HeartBeatResponse(
            group="g",
            local_id=follower,
            remote_id=leader,
            term=group.core(leader).term - 1,
            code=ResponseCode.SUCCESS,
            round=beats(group)[-1].round,
            end_index=0,
        )
        group.deliver(answer)

    assert number not in group.answers


def test_nothing_is_answered_before_an_entry_of_the_own_term_is_committed():
    """Raft 8: until then a leader does not know what is committed."""
    group, leader = started_group()
    group.propose(leader, count=5)
    group.converge()
    group.crash(leader)
    group.drop = carries_entries
    group.run_until(lambda: group.leader is not None)
    number = group.read()
    group.run_for(400)
    assert number not in group.answers

    group.drop = no_message
    assert group.outcome(number, 2_000) >= 6


def test_a_deposed_leader_fails_its_reads():
    group, leader = started_group()
    group.isolate(leader)
    numbers = [group.read(leader) for _ in range(3)]
    group.run_until(lambda: group.core(leader).role is not Role.LEADER)

    assert {group.answers[number] for number in numbers} == {ResponseCode.TERM_CHANGED}


def test_140_a_leader_that_was_cut_off_never_answers():
    group, leader = started_group()
    group.isolate(leader)
    numbers = []
    for _ in range(100):
        numbers.append(group.read(leader))
        others = [node_id for node_id in group.leaders() if node_id != leader]
        if others:
            group.propose(others[0])
        group.run_for(40)
    group.heal()
    group.converge()

    assert {group.answers[number] for number in numbers} <= {
        ResponseCode.TERM_CHANGED,
        ResponseCode.NOT_LEADER,
    }
    assert group.core(group.leader).committed_index > 10


def test_140_one_way_deafness_is_no_proof():
    """The followers hear the old leader; it does not hear that they elected another."""
    group, leader = started_group()
    for follower in group.followers():
        group.cut(follower, leader, both=False)
    number = group.read(leader)

    assert group.outcome(number) is ResponseCode.TERM_CHANGED


@pytest.mark.parametrize("seed", range(5))
def test_140_no_read_is_stale_under_changing_leaders(seed):
    """The group compares each answer with what was committed anywhere when it was asked."""
    group, _ = started_group(3, seed)
    group.delay_ms = (1, 60)
    for _ in range(60):
        for leader in group.leaders():
            group.propose(leader)
            group.read(leader)
        group.run_for(group.random.choice([5, 50, 300]))
        if group.random.random() < 0.2:
            group.heal()
            group.isolate(group.random.choice(group.ids))
    group.heal()
    group.converge()

    indexes = [answer for answer in group.answers.values() if not isinstance(answer, ResponseCode)]
    assert len(indexes) > 20


def test_141_a_follower_refuses():
    group, _ = started_group()
    number = group.read(group.followers()[0])

    assert group.answers[number] is ResponseCode.NOT_LEADER


def test_a_single_voter_answers_at_once():
    group, _ = started_group(1)
    group.propose(count=3)
    group.converge()
    number = group.read()

    assert group.answers == {number: 3}


def test_a_single_voter_with_a_learner_answers_at_once():
    group, _ = started_group(1)
    assert group.outcome(group.add("n1")) is ResponseCode.SUCCESS
    number = group.read()

    assert group.answers[number] == 1


def test_a_learners_answers_confirm_nothing():
    group, leader = started_group(3)
    group.start_stranger("n3")
    assert group.outcome(group.add("n3")) is ResponseCode.SUCCESS
    group.converge()
    group.drop = lambda m: answers(m) and m.local_id != "n3"
    number = group.read(leader)
    group.run_for(300)

    assert number not in group.answers


def test_a_joint_membership_needs_both_majorities():
    group, leader = started_group(3)
    group.start_stranger("n3")
    assert group.outcome(group.add("n3")) is ResponseCode.SUCCESS
    group.converge()
    group.run_for(200)
    group.drop = carries_entries
    group.promote("n3")
    one, other = (node_id for node_id in group.followers() if node_id != "n3")
    group.drop = lambda m: carries_entries(m) or (answers(m) and m.local_id == one)
    group.run_for(20)
    assert group.core(leader).membership.is_joint
    number = group.read(leader)
    group.run_for(20)
    assert group.answers[number] == group.core(leader).committed_index

    group.drop = lambda m: carries_entries(m) or (answers(m) and m.local_id in (one, other))
    number = group.read(leader)
    group.run_for(300)
    assert number not in group.answers, "n0 and n3 are no majority of the voters of before"


def test_reads_asked_during_a_round_share_the_next():
    group, _ = started_group()
    group.run_for(110 - group.now % 100)  # the next heartbeat is not due meanwhile
    group.sent.clear()
    numbers = [group.read() for _ in range(1_000)]
    group.run_for(20)

    assert {group.answers[number] for number in numbers} == {0}
    assert len({beat.round for beat in beats(group)}) <= 2


def test_more_reads_than_can_wait_are_refused(monkeypatch):
    monkeypatch.setattr(read_index, "READS_MAX", 10)
    group, leader = started_group()
    group.drop = answers
    numbers = [group.read(leader) for _ in range(13)]
    refused = [number for number in numbers if number in group.answers]
    assert refused == numbers[10:]
    assert {group.answers[number] for number in refused} == {ResponseCode.LEADER_PENDING_FULL}

    group.drop = no_message
    group.run_for(250)
    assert {group.answers[number] for number in numbers[:10]} == {0}
    assert group.outcome(group.read(), 10) == 0


def test_a_read_during_a_hand_over_is_answered_or_failed():
    group, leader = started_group()
    target = group.followers()[0]
    number = group.read(leader)
    handed = group.transfer(target)

    assert group.outcome(handed) is ResponseCode.SUCCESS
    assert group.answers[number] in (0, ResponseCode.TERM_CHANGED)


def test_an_emptied_voter_confirms_nothing():
    """Who it was may have promised another leader something that it has forgotten."""
    group, leader = started_group(3)
    emptied, other = group.followers()
    group.crash(other)
    group.wipe(emptied)
    group.start(emptied)
    group.run_for(20)
    number = group.read(leader)
    group.run_for(300)

    assert number not in group.answers
    assert group.outcome(number) is ResponseCode.TERM_CHANGED


def test_a_leader_that_starts_up_has_confirmed_nothing():
    group = Group(3).start()
    group.run_until(lambda: group.leader is not None)
    leader = group.leader
    group.drop = lambda m: not isinstance(m, HeartBeatRequest | HeartBeatResponse)
    number = group.read(leader)
    group.run_for(450)

    assert number not in group.answers
    assert group.core(leader).committed_index == -1
