"""Emptied disks: a replica that comes back under its old name counts as another one (R14)."""

import msgspec
import pytest

from quorumlog.model.codes import PushType, ResponseCode, VoteResult
from quorumlog.model.messages.peer import HeartBeatResponse
from raft_members import entries_but_to, no_message, started_group
from raft_messages import push_response, vote_request, vote_response

OK = ResponseCode.SUCCESS


def wiped_and_back(group, *node_ids):
    for node_id in node_ids:
        group.wipe(node_id)
        group.start(node_id)


def test_an_emptied_voter_is_not_counted():
    """Two of five are down and one is emptied: the two that remember are no majority."""
    group, leader = started_group(5)
    emptied, *down = group.followers()[:3]
    group.propose(leader, count=5)
    group.converge()
    group.shut_down(*down)
    group.wipe(emptied)
    number = group.propose(leader)
    group.start(emptied)
    group.run_for(450)

    assert number not in group.finished
    group.run_for(1_000)
    assert group.leader is None
    group.run_for(10_000)
    assert group.leader is None


def test_the_vote_of_an_emptied_voter_does_not_count():
    group, leader = started_group(3)
    one, other = group.followers()
    group.shut_down(leader, one)
    core = group.core(other)
    group.run_until(lambda: core.role.name == "CANDIDATE")
    ask, term = {"incarnation": 2, "remote_incarnation": 1}, core.term
    for pre_vote in (True, False):
        answer = vote_response(one, other, term, VoteResult.ACCEPT, term + 1, pre_vote=pre_vote)
        assert group.deliver(msgspec.structs.replace(answer, **ask)) == []
    assert core.term == term

    answer = vote_response(one, other, term, VoteResult.ACCEPT, term + 1, pre_vote=True)
    group.deliver(msgspec.structs.replace(answer, incarnation=1, remote_incarnation=1))
    assert core.term == term + 1


def test_an_emptied_voter_neither_campaigns_nor_is_voted_for():
    group, leader = started_group(3)
    one, other = group.followers()
    group.crash(leader)
    group.wipe(one)
    group.start(one)
    group.run_for(30_000)
    assert group.leader is None

    end = (99, 99)
    request = vote_request(one, other, 9, end)
    claimed = msgspec.structs.replace(request, incarnation=2)
    assert group.ask(claimed).vote_result is VoteResult.REJECT_UNKNOWN_LEADER


@pytest.mark.parametrize("seed", range(5))
def test_an_emptied_voter_is_readmitted_as_a_learner_and_then_as_a_voter(seed):
    group, leader = started_group(3, seed)
    emptied = group.followers()[0]
    group.propose(leader, count=1_200)
    group.converge()
    kinds = []
    group.checker.durable = watching(group, leader, emptied, kinds, group.checker.durable)
    wiped_and_back(group, emptied)
    group.run_until(lambda: kinds[-1:] == ["voter"] and len(kinds) > 1)
    group.converge()

    assert list(dict.fromkeys(kinds)) == ["voter", "learner"]
    assert kinds == ["voter", "learner", "voter"]
    member = group.core(emptied).membership.member(emptied)
    assert (member.incarnation, member.joining) == (2, False)
    assert group.core(emptied).end_index == group.core(leader).end_index
    texts = [text for _, text in group.alarms if "another data directory" in text]
    assert len(texts) == 1


def watching(group, leader, node_id, kinds, then):
    """Note what node_id is for its leader, whenever that changes."""

    def note(replica):
        membership = group.core(leader).membership
        kind = "voter" if node_id in membership.voters else "learner"
        if kinds[-1:] != [kind]:
            kinds.append(kind)
        then(replica)

    return note


def test_the_one_it_was_stays_counted_as_absent_until_a_majority_without_it_agreed():
    group, leader = started_group(3)
    emptied, other = group.followers()
    group.crash(other)
    wiped_and_back(group, emptied)
    number = group.propose(leader)
    group.run_for(450)
    assert number not in group.finished

    group.start(other)
    group.run_until(lambda: emptied in group.voters() and group.in_step())
    assert group.core(leader).membership.member(emptied).incarnation == 2


def test_two_emptied_at_once_are_readmitted_one_after_the_other():
    group, _ = started_group(5)
    group.propose(count=20)
    group.converge()
    emptied = group.followers()[:2]
    wiped_and_back(group, *emptied)
    group.run_until(
        lambda: all(
            (found := group.core(group.leader).membership.member(node_id)).incarnation == 2
            and found.node_id in group.voters()
            for node_id in emptied
        )
    )
    group.converge()

    assert group.commits()
    group.checker.finished()


def test_a_learner_that_was_emptied_stays_a_learner():
    group, leader = started_group(3)
    group.start_stranger("n3")
    assert group.outcome(group.add("n3")) is OK
    group.converge()
    group.wipe("n3")
    group.start("n3")
    group.converge()
    group.run_for(3_000)

    assert group.learners(leader) == {"n3"}
    group.converge()


def test_an_emptied_joiner_is_counted_only_with_its_new_directory():
    """Emptied between its promotion and the end of it."""
    group, leader = started_group(3)
    group.start_stranger("n3")
    assert group.outcome(group.add("n3")) is OK
    group.converge()
    group.run_for(200)
    group.drop = entries_but_to()
    number = group.promote("n3")
    group.wipe("n3")
    group.drop = no_message
    group.start("n3")
    assert group.outcome(number) is OK
    group.run_until(lambda: group.core(leader).membership.member("n3").incarnation == 2)
    group.run_until(lambda: "n3" in group.voters() and group.in_step())


def test_answers_of_an_earlier_directory_are_not_believed():
    """A late acknowledgement says nothing of what the emptied disk holds."""
    group, leader = started_group(3)
    emptied, other = group.followers()
    group.crash(other)
    wiped_and_back(group, emptied)
    group.run_for(150)
    number = group.propose(leader)
    group.run_for(0)
    sent = group.pushes(PushType.APPEND, emptied)[-1]
    assert sent.last_index == group.core(leader).end_index
    answer = push_response(
        PushType.APPEND,
        emptied,
        leader,
        sent.term,
        sent.request_id,
        OK,
        match_index=sent.last_index,
        end_index=sent.last_index,
    )
    group.deliver(msgspec.structs.replace(answer, incarnation=1, remote_incarnation=1))
    group.run_for(150)

    assert number not in group.finished


def test_late_answers_of_an_earlier_directory_do_not_drive_out_the_new_one():
    """They were under way when the disk was emptied; the one that took its place answers, too."""
    group, leader = started_group(3)
    emptied = group.followers()[0]
    wiped_and_back(group, emptied)
    group.run_until(lambda: group.core(leader).membership.member(emptied).incarnation == 2)
    group.converge()
    members = group.core(leader).membership
    term, end_index = group.core(leader).term, group.core(leader).end_index
    of_before = {"local_id": emptied, "remote_id": leader, "term": term, "group": "g"}
    of_before |= {"incarnation": 1, "remote_incarnation": 1, "end_index": end_index}
    assert group.deliver(HeartBeatResponse(**of_before, code=OK, round=1)) == []
    push = push_response(PushType.COMPARE, emptied, leader, term, 1, OK, end_index=end_index)
    push = msgspec.structs.replace(push, incarnation=1, remote_incarnation=1)
    assert group.deliver(push) == []
    group.run_for(2_000)

    assert group.core(leader).membership == members
    assert group.leader == leader


def test_a_message_meant_for_the_earlier_directory_changes_nothing():
    group, leader = started_group(3)
    emptied = group.followers()[0]
    group.wipe(emptied)
    group.isolate(emptied)
    group.start(emptied)
    answer = vote_response("n0", emptied, 99, VoteResult.REJECT_EXPIRED_VOTE_TERM, 1)
    stale = msgspec.structs.replace(answer, local_id=leader, remote_incarnation=1)

    assert group.deliver(stale) == []
    assert group.core(emptied).term == 0


@pytest.mark.parametrize("seed", range(5))
def test_emptied_under_load_nothing_acknowledged_is_lost(seed):
    group, _ = started_group(3, seed)
    for round_number in range(6):
        group.random.seed(f"{seed} {round_number}")
        group.propose(count=3)
        group.run_for(group.random.randint(1, 40))
        victim = group.random.choice(group.ids)
        group.wipe(victim)
        group.run_for(group.random.choice([0, 100, 1_500]))
        group.start(victim)
        group.run_until(
            lambda victim=victim: (
                group.leader is not None
                and victim in group.voters()
                and group.core(group.leader).membership.member(victim).incarnation
                == group.nodes[victim].directory
                and group.in_step()
            )
        )
    group.checker.finished()
