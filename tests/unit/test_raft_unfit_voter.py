"""A longer log that is damaged behind what is committed: it may not lead, and must not block."""

import pytest

from quorumlog.model.codes import ResponseCode, VoteResult
from quorumlog.raft import events as ev
from raft_members import Group, begun
from raft_messages import vote_request


def with_a_longer_damaged_log(count):
    """A group whose leader appended what nobody else has, and then was found to be damaged."""
    group = Group(count).start()
    leader = group.elect()
    numbers = [group.propose() for _ in range(3)]
    group.settle()
    assert {group.finished[number] for number in numbers} == {ResponseCode.SUCCESS}
    group.isolate(leader)
    group.propose(leader, count=4)
    group.run_for(10)
    group.step(group.nodes[leader], ev.FitnessChanged(is_fit=False))
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

    group.step(group.nodes[damaged], ev.FitnessChanged(is_fit=True))
    group.settle()
    assert group.core(damaged).committed_index > committed
    assert group.core(damaged).end_index == group.core(other).end_index


def test_of_three_it_waits_for_the_third_which_may_have_what_is_committed():
    group, damaged = with_a_longer_damaged_log(3)
    other, third = [name for name in group.nodes if name != damaged]
    group.heal()
    group.isolate(third)
    group.run_for(10_000)
    assert group.leaders() == []
    refusal = VoteResult.REJECT_SMALL_LEDGER_END_INDEX
    assert asked_by(group, other, damaged, pre_vote=True) is refusal

    group.heal()
    group.run_until(lambda: group.leader in (other, third) and group.commits(), 10_000)


@pytest.mark.parametrize("pre_vote", [True, False])
def test_who_is_fit_keeps_its_longer_log(pre_vote):
    group, longer = with_a_longer_damaged_log(2)
    group.step(group.nodes[longer], ev.FitnessChanged(is_fit=True))
    (other,) = [name for name in group.nodes if name != longer]
    refusal = VoteResult.REJECT_SMALL_LEDGER_END_INDEX
    assert asked_by(group, other, longer, pre_vote=pre_vote) is refusal


def test_two_voters_that_are_not_committed_prove_nothing():
    """The third does not know yet that it left: with the other it may have decided without me."""
    group, leader = begun(3)
    other, third = group.followers()
    group.isolate(leader)
    group.remove(third, at=leader)
    group.step(group.nodes[leader], ev.FitnessChanged(is_fit=False))
    assert set(group.core(leader).membership.voters) == {leader, other}
    refusal = VoteResult.REJECT_SMALL_LEDGER_END_INDEX
    assert asked_by(group, other, leader, pre_vote=True) is refusal


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
