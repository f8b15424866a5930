"""Raft paper section 6: cluster membership changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.membership import Member, Membership
from quorumlog.raft.quorum import has_quorum, majority
from raft_members import carries_entries, entries_but_to, no_message, started_group

IDS = [f"n{number}" for number in range(7)]
SOME = st.lists(st.sampled_from(IDS), min_size=1, unique=True)


def joint(before, after):
    members = tuple(Member(node_id) for node_id in dict.fromkeys([*before, *after]))
    return Membership(members, tuple(after), tuple(before))


@given(SOME, SOME, SOME, SOME)
def test_separate_majorities_from_both_are_required(before, after, one, other):
    """So neither the old nor the new voters decide alone, and two decisions always meet."""
    both = joint(before, after)
    for deciding in (one, other):
        expected = all(
            len(set(deciding) & set(voters)) >= majority(len(voters)) for voters in (before, after)
        )
        assert has_quorum(both, deciding) == expected
    if has_quorum(both, one) and has_quorum(both, other):
        assert set(one) & set(other)


@given(SOME, SOME, SOME)
def test_who_decides_in_the_joint_membership_meets_who_decides_before_and_after(
    before, after, deciding
):
    if not has_quorum(joint(before, after), deciding):
        return
    for voters in (before, after):
        alone = joint(voters, voters).final()
        assert not has_quorum(alone, sorted(set(voters) - set(deciding)))


def promoting():
    """n3 caught up as a learner; its promotion is asked for and reaches nobody yet."""
    group, leader = started_group(3)
    group.start_stranger("n3")
    assert group.outcome(group.add("n3")) is ResponseCode.SUCCESS
    group.converge()
    group.run_for(200)
    group.drop = carries_entries
    number = group.promote("n3")
    return group, leader, number


def test_a_server_uses_the_latest_configuration_in_its_log_committed_or_not():
    group, leader, _ = promoting()
    assert group.core(leader).membership.is_joint
    one = next(node_id for node_id in group.followers() if node_id != "n3")
    group.drop = entries_but_to(one)
    group.reconnect(leader, one)
    group.run_for(200)

    core = group.core(one)
    assert core.membership.is_joint
    assert core.membership_index > core.committed_index


def test_entries_are_replicated_to_all_servers_in_both_configurations():
    group, leader = started_group(3)
    gone = group.followers()[0]
    before = group.core(leader).end_index
    group.drop = lambda m: carries_entries(m) and m.remote_id not in (leader, gone)
    group.remove(gone)
    number = group.propose(leader)
    group.run_for(300)

    assert group.core(leader).membership.is_joint
    assert group.core(gone).end_index == before + 2
    assert number not in group.finished


@pytest.mark.parametrize("elected", ["n3", "old"])
def test_any_server_from_either_configuration_may_lead(elected):
    group, leader, _ = promoting()
    one = next(node_id for node_id in group.followers() if node_id != "n3")
    group.drop = entries_but_to(one, "n3")
    group.reconnect(leader, one)
    group.reconnect(leader, "n3")
    group.run_for(100)
    group.crash(leader)
    chosen = "n3" if elected == "n3" else one
    group.drop = lambda m: hasattr(m, "ledger_end_index") and m.local_id != chosen
    group.elect()
    group.drop = no_message
    group.converge()

    assert group.leader == chosen
    assert group.voters() == {"n0", "n1", "n2", "n3"}


def test_client_requests_are_served_throughout_the_change():
    group, _ = started_group(3)
    group.start_stranger("n3")
    answers = []
    number = group.add("n3", joining=True)
    while number not in group.answers or group.voters() != {"n0", "n1", "n2", "n3"}:
        append = group.propose()
        group.run_for(20)
        answers.append(group.finished[append])

    assert set(answers) == {ResponseCode.SUCCESS}


def test_the_change_is_over_when_the_new_configuration_is_committed_by_its_own_rules():
    """Two of three removed one by one: the last is alone and commits alone."""
    group, leader = started_group(3)
    for follower in group.followers():
        assert group.outcome(group.remove(follower)) is ResponseCode.SUCCESS
        group.run_for(200)
        group.crash(follower)

    assert group.voters() == {leader}
    assert group.commits()


def test_new_servers_first_join_as_non_voting_members():
    group, leader = started_group(3)
    group.propose(leader, count=1_500)
    group.converge()
    group.start_stranger("n3")
    group.read_ms = (20, 20)
    group.add("n3", joining=True)
    group.run_until(lambda: 0 < group.core("n3").end_index < 400)
    assert group.learners() == {"n3"}
    for _ in range(3):
        assert group.commits()

    group.run_until(lambda: "n3" in group.voters())
    assert group.core("n3").end_index > 400


def test_a_leader_that_is_not_part_of_the_new_configuration_steps_down_once_it_is_committed():
    group, leader = started_group(3)
    others = group.followers()
    committed = group.core(leader).committed_index
    group.drop = lambda m: carries_entries(m) and m.last_index > committed + 1
    group.remove(leader)
    group.run_for(300)
    assert group.core(leader).role is Role.LEADER, "it manages a group it is no part of"
    assert group.voters(leader) == set(others)

    group.drop = no_message
    group.run_until(lambda: group.core(leader).role is Role.FOLLOWER)
    assert group.core(leader).committed_index >= committed + 2


def test_while_it_does_it_does_not_count_itself():
    group, leader = started_group(3)
    one = group.followers()[0]
    committed = group.core(leader).committed_index
    group.drop = lambda m: (
        carries_entries(m) and (m.last_index > committed + 1 and m.remote_id != one)
    )
    group.remove(leader)
    group.run_until(lambda: group.core(leader).committed_index == committed + 1)
    group.run_for(300)

    assert group.core(leader).committed_index == committed + 1, "one of two new voters has it"


def test_removed_servers_do_not_disrupt_the_cluster():
    group, leader = started_group(4)
    gone = group.followers()[0]
    group.cut(leader, gone, both=False)
    assert group.outcome(group.remove(gone)) is ResponseCode.SUCCESS
    term = group.core(leader).term
    group.run_for(20_000)

    assert (group.leader, group.core(leader).term) == (leader, term)
