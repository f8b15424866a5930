"""Raft paper section 8: client interaction; thesis section 6.4: reads without the log."""

import pytest

from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.peer import HeartBeatRequest, HeartBeatResponse
from raft_members import carries_entries, no_message, started_group


def test_a_server_that_is_not_the_leader_rejects_the_request_and_names_the_leader():
    group, leader = started_group()
    follower = group.followers()[0]
    append, read = group.propose(follower), group.read(follower)

    assert group.finished[append] is ResponseCode.NOT_LEADER
    assert group.answers[read] is ResponseCode.NOT_LEADER
    assert group.core(follower).leader_id == leader


def test_a_client_of_a_crashed_leader_finds_another_that_serves():
    group, leader = started_group()
    group.crash(leader)
    group.elect()

    assert group.commits()
    assert group.outcome(group.read()) == group.core(group.leader).committed_index


def test_a_read_only_request_writes_nothing():
    group, leader = started_group()
    before = group.core(leader).end_index
    for _ in range(20):
        group.outcome(group.read())
    group.converge()

    assert {node.log.end for node in group.live()} == {before}


def test_each_leader_has_a_no_op_committed_before_it_serves_reads():
    group, leader = started_group()
    group.propose(leader, count=3)
    group.converge()
    group.crash(leader)
    group.drop = carries_entries
    group.run_until(lambda: group.leader is not None)
    new, begins = group.leader, group.core(group.leader).end_index
    number = group.read()
    group.run_for(300)
    assert number not in group.answers

    group.drop = no_message
    assert group.outcome(number) >= begins
    assert group.nodes[new].log.at(begins).term == group.core(new).term


def test_a_leader_exchanges_heartbeats_with_a_majority_before_it_answers_a_read():
    group, _ = started_group(5)
    group.drop = lambda m: isinstance(m, HeartBeatResponse)
    number = group.read()
    group.run_for(300)
    assert number not in group.answers

    group.drop = no_message
    assert group.outcome(number) == 0


def test_a_leader_deposed_without_knowing_it_answers_no_read():
    group, old = started_group(5)
    one = group.followers()[0]
    group.split([old, one], [node_id for node_id in group.ids if node_id not in (old, one)])
    number = group.read(old)
    group.run_until(lambda: len(set(group.leaders()) - {old}) == 1)
    (new,) = set(group.leaders()) - {old}
    assert group.commits(new)
    group.run_for(2_000)

    assert group.answers[number] is ResponseCode.TERM_CHANGED
    assert group.outcome(group.read(new)) == group.core(new).committed_index


# -- thesis 6.4 -----------------------------------------------------------------------------------


def test_thesis_6_4_the_read_index_is_the_commit_index_when_the_read_was_asked():
    """Entries committed between the question and the proof may be seen; none before is missed."""
    group, leader = started_group()
    group.propose(leader, count=4)
    group.converge()
    group.drop = lambda m: isinstance(m, HeartBeatResponse)
    number = group.read()
    later = group.propose(leader, count=3)
    group.run_until(lambda: later in group.finished)
    group.drop = no_message

    assert 4 <= group.outcome(number) <= 7


@pytest.mark.parametrize("reads", [1, 10, 500])
def test_thesis_6_4_one_round_of_heartbeats_serves_all_reads_that_have_accumulated(reads):
    group, _ = started_group()
    group.drop = lambda m: isinstance(m, HeartBeatResponse)
    numbers = [group.read() for _ in range(reads)]
    group.sent.clear()
    group.drop = no_message
    group.run_until(lambda: all(number in group.answers for number in numbers))

    rounds = {m.round for m in group.sent if isinstance(m, HeartBeatRequest)}
    assert len(rounds) <= 3
