"""A longer log that is damaged after the committed index may not lead, and must not block."""

import pytest

from quorumlog.model.codes import ResponseCode, Role, VoteResult
from quorumlog.raft import events as ev
from raft_cluster import Cluster
from raft_members import Group, started_group
from raft_messages import vote_request, vote_response


def append_alone_and_rot(group, leader):
    """Cut a leader off; it appends what nobody else has, and then is found to be damaged."""
    group.isolate(leader)
    group.propose(leader, count=4)
    group.run_for(10)
    group.step(group.nodes[leader], ev.EligibilityChanged(is_eligible=False))


def with_a_longer_damaged_log(count):
    """A group whose leader appended what nobody else has, and then was found to be damaged."""
    group = Group(count).start()
    leader = group.elect()
    numbers = [group.propose() for _ in range(3)]
    group.converge()
    assert {group.finished[number] for number in numbers} == {ResponseCode.SUCCESS}
    append_alone_and_rot(group, leader)
    return group, leader


def asked_by(group, candidate, voter, *, pre_vote=False):
    """What the voter says to a candidate that has everything committed, and no more."""
    core = group.core(candidate)
    end = (core.end_index, core.term_at(core.end_index))
    term = group.core(voter).term + 1
    return group.ask(vote_request(candidate, voter, term, end, pre_vote=pre_vote)).vote_result


def test_of_two_the_one_with_the_shorter_log_leads_and_the_damage_goes():
    group, damaged = with_a_longer_damaged_log(2)
    committed = group.core(damaged).committed_index
    (other,) = [name for name in group.nodes if name != damaged]
    assert group.core(damaged).end_index == group.core(other).end_index + 4

    group.heal()
    group.run_until(lambda: group.leader == other and group.commits(other), 10_000)

    group.step(group.nodes[damaged], ev.EligibilityChanged(is_eligible=True))
    group.converge()
    assert group.core(damaged).committed_index > committed
    assert group.core(damaged).end_index == group.core(other).end_index


def test_of_three_it_waits_for_the_third_which_may_have_what_is_committed():
    group, damaged = with_a_longer_damaged_log(3)
    other, third = [name for name in group.nodes if name != damaged]
    group.heal()
    group.isolate(third)
    group.run_for(10_000)
    assert group.leaders() == []
    giving_up = VoteResult.ACCEPT_GIVING_UP_ENTRIES
    assert asked_by(group, other, damaged, pre_vote=True) is giving_up

    group.heal()
    group.run_until(lambda: group.leader in (other, third) and group.commits(), 10_000)


@pytest.mark.parametrize("pre_vote", [True, False])
def test_who_is_fit_keeps_its_longer_log(pre_vote):
    group, longer = with_a_longer_damaged_log(2)
    group.step(group.nodes[longer], ev.EligibilityChanged(is_eligible=True))
    (other,) = [name for name in group.nodes if name != longer]
    refusal = VoteResult.REJECT_SMALL_LEDGER_END_INDEX
    assert asked_by(group, other, longer, pre_vote=pre_vote) is refusal


def test_of_four_with_one_down_another_leads_and_the_damage_goes():
    group, damaged = with_a_longer_damaged_log(4)
    *others, down = [name for name in group.nodes if name != damaged]
    group.heal()
    group.isolate(down)
    group.run_until(lambda: group.leader in others and group.commits(), 10_000)
    end = group.core(group.leader).end_index
    group.run_until(lambda: group.core(damaged).end_index == end, 10_000)


def test_those_who_give_up_entries_elect_nobody_without_one_who_compared_logs():
    """They may be all who have what is committed: a voter that compared logs must agree."""
    cluster = Cluster(4).start("n0")
    cluster.run_until(lambda: cluster.sent)
    giving_up, comparing = VoteResult.ACCEPT_GIVING_UP_ENTRIES, VoteResult.ACCEPT
    for pre_vote in (True, False):
        term = cluster.core("n0").term
        asked = term + 1 if pre_vote else term

        def answer(voter, result, asked=asked, pre_vote=pre_vote):
            cluster.deliver(vote_response(voter, "n0", 0, result, asked, pre_vote=pre_vote))

        for voter in ("n1", "n2", "n1"):
            answer(voter, giving_up)
        cluster.run_for(20)
        assert cluster.core("n0").term == term
        assert cluster.core("n0").role is Role.CANDIDATE
        answer("n3", comparing)
        cluster.run_for(20)
    assert cluster.core("n0").role is Role.LEADER


def test_while_one_of_three_leaves_it_leads_though_it_has_less_than_the_damaged_one():
    """The one that stays knows of no change; both are needed to decide on what is behind it."""
    group, damaged = started_group(3)
    stays, leaves = group.followers()
    group.isolate(stays)
    group.remove(leaves, at=damaged)
    group.run_until(lambda: group.core(leaves).membership.is_joint, 2_000)
    append_alone_and_rot(group, damaged)
    core = group.core(leaves)
    assert core.membership_index > group.core(stays).end_index
    assert core.end_index < group.core(damaged).end_index

    group.heal()
    group.run_until(lambda: group.leader in (stays, leaves) and group.commits(), 10_000)


def test_while_a_third_joins_it_must_compare_logs_too():
    """What the damaged one and the third decided alone, once they were three, the second lacks."""
    group, damaged = started_group(2)
    (second,) = group.followers()
    group.start_stranger("n9")
    assert group.outcome(group.add("n9", at=damaged)) is ResponseCode.SUCCESS
    group.converge()
    group.run_for(200)
    for name in (second, "n9"):
        group.cut(name, damaged, both=False)
    group.promote("n9", at=damaged)
    both = (group.core(second), group.core("n9"))
    group.run_until(lambda: all(core.membership.is_joint for core in both), 5_000)
    append_alone_and_rot(group, damaged)

    group.heal()
    group.isolate("n9")
    group.run_for(10_000)
    assert group.leaders() == []

    group.heal()
    group.run_until(lambda: group.leader in (second, "n9") and group.commits(), 10_000)


def after_two_led_alone(count, change=None):
    """Who led first, and appended what no other has; who led then likewise, and is damaged."""
    group, first = started_group(count)
    group.isolate(first)
    if change is not None:
        change(group, first)
    group.propose(first, count=2)
    group.run_for(10)
    others = [name for name in group.nodes if name != first]
    group.run_until(lambda: group.leader in others)
    damaged = group.leader
    group.isolate(damaged)
    group.step(group.nodes[damaged], ev.EligibilityChanged(is_eligible=False))
    return group, first, damaged, [name for name in others if name != damaged]


def test_of_two_ends_that_differ_the_damaged_one_goes():
    """The third leaves as far as the first knows, who needs the damaged one's vote therefore."""

    def change(group, first):
        group.remove(max(set(group.nodes) - {first}), at=first)

    group, first, damaged, _ = after_two_led_alone(3, change)
    assert damaged in group.core(first).membership.voters
    group.heal()
    group.run_until(lambda: group.leader not in (None, damaged) and group.commits(), 20_000)


def test_of_four_with_one_down_and_two_ends_that_differ_the_damaged_one_goes():
    group, first, _, (down, *_) = after_two_led_alone(4)
    group.heal()
    group.isolate(down)
    group.run_until(lambda: group.leader == first and group.commits(first), 20_000)


def test_of_three_the_two_that_will_be_left_prove_nothing():
    """The third does not know yet that it left: with the other it may have decided without me."""
    group, leader = started_group(3)
    other, third = group.followers()
    group.isolate(leader)
    group.remove(third, at=leader)
    group.step(group.nodes[leader], ev.EligibilityChanged(is_eligible=False))
    assert set(group.core(leader).membership.voters) == {leader, other}
    group.heal()
    group.isolate(third)
    group.run_for(10_000)
    assert group.leaders() == []


@pytest.mark.parametrize("pre_vote", [True, False])
def test_who_has_less_than_is_committed_does_not_win(pre_vote):
    group, damaged = with_a_longer_damaged_log(2)
    (other,) = [name for name in group.nodes if name != damaged]
    core = group.core(damaged)
    request = vote_request(
        other, damaged, core.term + 1, (core.committed_index - 1, core.term), pre_vote=pre_vote
    )
    answer = group.ask(request).vote_result
    assert answer is VoteResult.REJECT_SMALL_LEDGER_END_INDEX
