"""Removed members: followers, the leader itself, and members that do not know of it yet."""

import pytest

from quorumlog.model.codes import ResponseCode, Role, VoteResult
from raft_members import carries_entries, entries_but_to, no_message, started_group

OK = ResponseCode.SUCCESS


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_a_follower_is_removed(count):
    group, leader = started_group(count)
    gone = group.followers()[0]
    assert group.outcome(group.remove(gone)) is OK
    group.run_for(500)

    assert group.core(gone).membership == group.core(leader).membership
    assert group.voters() == set(group.ids) - {gone}
    group.crash(gone)
    group.converge()
    assert group.commits()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [2, 3, 4])
def test_r17_a_leader_that_is_removed_commits_that_transfers_leadership_and_steps_down(count, seed):
    group, leader = started_group(count, seed)
    number = group.remove(leader)
    asked = group.now
    assert group.outcome(number) is OK
    group.run_until(lambda: group.leader not in (None, leader), 2_000)

    assert group.now - asked < 200, "nobody waited for an election time-out"
    assert group.core(leader).role is Role.FOLLOWER
    assert group.voters() == set(group.ids) - {leader}
    group.crash(leader)
    group.converge()
    assert group.commits()


@pytest.mark.parametrize("seed", range(5))
def test_r17_a_busy_leader_that_is_removed_hands_over_all_the_same(seed):
    """Entries behind the end of the change are on their way all the time."""
    group, leader = started_group(3, seed)
    number = group.remove(leader)
    asked = group.now
    while group.core(leader).role is Role.LEADER:
        group.propose(leader)
        group.run_for(1)
    assert group.outcome(number) is OK
    group.run_until(lambda: group.leader not in (None, leader), 2_000)

    assert group.now - asked < 200, "nobody waited for an election time-out"


def test_r17_a_removed_leader_counts_itself_for_nothing():
    """The leader of four is removed: its copy does not count for the majority of the others."""
    group, leader = started_group(4)
    one = group.followers()[0]
    committed = group.core(leader).committed_index
    group.drop = entries_but_to(one)
    group.remove(leader)
    group.run_for(300)

    assert group.core(leader).membership.is_joint
    assert group.core(leader).committed_index == committed


def test_r17_the_last_voter_is_not_removed():
    group, _ = started_group(1)
    assert group.answers[group.remove("n0")] is ResponseCode.UNEXPECTED_ARGUMENT


def test_r16_nobody_is_removed_if_no_majority_would_be_left():
    group, leader = started_group(3)
    dead, alive = group.followers()
    group.crash(dead)
    group.run_for(600)
    assert group.answers[group.remove(alive)] is ResponseCode.MEMBER_NOT_READY

    assert group.outcome(group.remove(dead)) is OK
    assert group.voters() == {leader, alive}
    assert group.commits()


@pytest.mark.parametrize("seed", range(5))
def test_r9_one_that_was_removed_and_does_not_know_it_disturbs_nobody(seed):
    group, leader = started_group(3, seed)
    gone = group.followers()[0]
    group.isolate(gone)
    assert group.outcome(group.remove(gone)) is OK
    term = group.core(leader).term
    group.run_for(15_000)
    group.heal()
    group.run_for(15_000)

    assert group.core(gone).role is Role.CANDIDATE
    assert group.core(gone).last_vote_result is VoteResult.REJECT_UNKNOWN_LEADER
    assert (group.leader, group.core(leader).term) == (leader, term)
    assert group.commits()


@pytest.mark.parametrize("seed", range(5))
def test_r9_one_that_was_removed_does_not_win_when_the_leader_dies(seed):
    group, leader = started_group(5, seed)
    gone = group.followers()[0]
    group.isolate(gone)
    assert group.outcome(group.remove(gone)) is OK
    group.run_for(200)
    group.crash(leader)
    group.heal()
    group.run_until(lambda: group.leader is not None, 5_000)

    assert group.leader not in (gone, leader)


def test_one_that_was_removed_can_be_added_again():
    group, leader = started_group(3)
    gone = group.followers()[0]
    assert group.outcome(group.remove(gone)) is OK
    group.run_for(500)
    assert group.outcome(group.add(gone, joining=True)) is OK
    group.run_until(lambda: gone in group.voters())
    group.converge()

    assert group.leader == leader
    assert group.voters(gone) == {"n0", "n1", "n2"}


@pytest.mark.parametrize(("count", "dead"), [(2, 0), (4, 1)])
def test_a_removed_leader_that_alone_has_the_final_entry_still_campaigns(count, dead):
    """Thesis 4.2.2: its vote is needed, its log is the longest, so it must lead once more."""
    group, leader = started_group(count)
    last = group.core(leader).end_index
    others = group.followers()
    group.drop = lambda m: carries_entries(m) and m.last_index > last + 1
    group.remove(leader)
    group.run_until(lambda: group.core(leader).end_index == last + 2)
    group.shut_down(*others[:dead])
    group.isolate(leader)
    group.run_until(lambda: group.core(leader).role is not Role.LEADER)
    group.drop = no_message
    group.heal()
    group.run_until(lambda: group.leader is not None, 20_000)

    group.run_until(lambda: group.leader in others and not group.core(leader).membership.is_joint)
    assert group.commits()
