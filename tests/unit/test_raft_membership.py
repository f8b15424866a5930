"""Who belongs to a group: its founding, learners, joint consensus (Raft 6; R14 to R18)."""

import msgspec
import pytest

from quorumlog.model.codes import ResponseCode, Role, VoteResult
from quorumlog.model.membership import MEMBERS_MAX, Member
from quorumlog.model.messages.peer import VoteRequest
from quorumlog.raft import events as ev
from raft_members import (
    Group,
    carries_entries,
    entries_but_to,
    entries_to,
    no_message,
    started_group,
)
from raft_messages import vote_request

OK = ResponseCode.SUCCESS


def grown(*strangers, count=3, seed=0, **options):
    """A group that has started, and nodes that run but do not belong to it."""
    group, leader = started_group(count, seed, **options)
    for node_id in strangers:
        group.start_stranger(node_id)
    return group, leader


def with_learner(seed=0, **options):
    group, leader = grown("n3", seed=seed, **options)
    assert group.outcome(group.add("n3")) is OK
    group.converge()
    group.run_for(200)
    return group, leader


# -- a group begins -------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_group_begins_only_when_all_its_founders_vote(count):
    group = Group(count)
    group.start(*group.ids[:-1])
    group.run_for(30_000)
    assert group.leader is None
    assert all(node.core.end_index == -1 for node in group.live())

    group.start(group.ids[-1])
    group.elect()
    group.converge()
    assert {node.core.membership_index for node in group.live()} == {0}


def test_the_first_entry_names_the_founders_and_their_data_directories():
    group = Group(3)
    for number, replica in enumerate(group.nodes.values(), 7):
        replica.directory = number
    group.start()
    group.elect()
    group.converge()
    for node in group.live():
        members = {member.node_id: member.incarnation for member in node.core.membership.members}
        assert members == {"n0": 7, "n1": 8, "n2": 9}
        assert node.core.committed_index == node.core.membership_index == 0


def test_a_group_that_has_begun_needs_a_majority_only():
    group, leader = started_group(3)
    group.crash(leader)

    assert group.elect() != leader
    assert group.commits()


def test_a_founder_emptied_before_the_group_began_is_no_obstacle():
    group = Group(3)
    group.start("n0", "n1")
    group.run_for(3_000)
    group.wipe("n1")
    group.start("n1", "n2")
    group.elect()
    group.converge()

    assert group.core("n0").membership.member("n1").incarnation == 2


def test_the_first_entry_survives_the_leader_that_wrote_it_on_a_minority():
    """The next begins the group again: no majority believed the first beginning."""
    group = Group(3)
    group.drop = carries_entries
    group.start()
    group.run_until(lambda: group.leader is not None)
    first = group.leader
    group.run_for(200)
    group.crash(first)
    group.run_for(5_000)
    assert group.leader is None  # one founder is missing

    group.drop = no_message
    group.start(first)
    group.elect()
    group.converge()
    assert len({tuple(node.log.entries) for node in group.live()}) == 1


# -- learners -------------------------------------------------------------------------------------


def test_179_a_learner_receives_everything():
    group, _ = with_learner()
    group.propose(count=30)
    group.converge()

    assert group.learners("n3") == {"n3"}
    assert group.nodes["n3"].log.entries == group.nodes["n0"].log.entries


def test_179_a_learner_does_not_count():
    group, leader = with_learner()
    group.shut_down(*group.followers()[:1])
    (other,) = set(group.followers()) - {"n3"}
    group.crash(other)
    number = group.propose(leader)
    group.run_for(400)
    assert group.core("n3").end_index == group.core(leader).end_index
    assert number not in group.finished

    group.run_for(1_000)
    assert group.leader is None, "a learner's answers keep no leader"


def test_179_a_learner_never_campaigns():
    group, _ = with_learner()
    for node_id in ("n0", "n1", "n2"):
        group.crash(node_id)
    group.sent.clear()
    group.run_for(20_000)

    assert group.core("n3").role is not Role.LEADER
    assert not [message for message in group.sent if isinstance(message, VoteRequest)]


def test_a_learner_does_not_slow_the_group_down():
    group, _ = with_learner()
    group.isolate("n3")
    for _ in range(5):
        assert group.commits(limit_ms=50)


def test_a_learner_is_removed_with_one_entry():
    group, leader = with_learner()
    before = group.core(leader).end_index
    assert group.outcome(group.remove("n3")) is OK

    assert group.core(leader).end_index == before + 1
    assert "n3" not in group.core(leader).membership.ids


def test_a_member_is_added_once():
    group, _ = with_learner()
    assert group.answers[group.add("n3")] is ResponseCode.REPEATED_REQUEST
    assert group.answers[group.add("n0")] is ResponseCode.REPEATED_REQUEST
    assert group.answers[group.promote("n0")] is ResponseCode.REPEATED_REQUEST
    assert group.answers[group.promote("n9")] is ResponseCode.UNKNOWN_MEMBER
    assert group.answers[group.remove("n9")] is ResponseCode.UNKNOWN_MEMBER


def test_a_group_has_a_bounded_number_of_members():
    group, _ = started_group(3)
    for number in range(3, MEMBERS_MAX):
        assert group.outcome(group.add(f"n{number}")) is OK

    assert group.answers[group.add("one-more")] is ResponseCode.UNEXPECTED_ARGUMENT


# -- promotion ------------------------------------------------------------------------------------


def test_a_learner_that_has_caught_up_becomes_a_voter():
    group, _ = with_learner()
    assert group.outcome(group.promote("n3")) is OK
    group.converge()

    assert group.voters("n3") == {"n0", "n1", "n2", "n3"}
    assert not group.core("n3").membership.is_joint
    followers = [node_id for node_id in group.followers() if node_id != "n3"]
    group.crash(followers[0])
    assert group.commits()
    group.crash(followers[1])
    group.run_for(3_000)
    assert group.leader is None, "two of four are no majority"


def test_a_learner_that_lags_is_not_promoted():
    """R16: an empty voter would weaken the majority."""
    group, leader = with_learner()
    group.isolate("n3")
    group.propose(leader, count=1_500)
    group.run_for(300)
    group.heal()
    group.drop = entries_to("n3")
    group.run_for(300)
    number = group.promote("n3")

    assert group.answers[number] is ResponseCode.MEMBER_NOT_READY
    assert "1,500 entries behind" in group.texts[number]
    group.drop = no_message
    group.converge()
    assert group.outcome(group.promote("n3")) is OK


def test_a_learner_that_does_not_answer_is_not_promoted():
    group, _ = with_learner()
    group.crash("n3")
    group.run_for(600)

    assert group.answers[group.promote("n3")] is ResponseCode.MEMBER_NOT_READY


def test_one_that_was_never_there_is_not_promoted():
    group, _ = started_group()
    assert group.outcome(group.add("n3")) is OK
    number = group.promote("n3")

    assert group.answers[number] is ResponseCode.MEMBER_NOT_READY
    assert group.texts[number] == "it is not known yet that n3 has any entry of this log"


def test_one_that_joins_becomes_a_voter_by_itself_once_it_has_caught_up():
    group, leader = started_group()
    group.propose(leader, count=2_000)
    group.converge()
    assert group.outcome(group.add("n3", joining=True)) is OK
    group.run_for(2_000)
    assert group.learners() == {"n3"}

    group.start_stranger("n3")
    group.run_until(lambda: group.voters() == {"n0", "n1", "n2", "n3"})
    group.converge()
    member = group.core("n3").membership.member("n3")
    assert (member.incarnation, member.joining) == (1, False)
    assert group.core("n3").end_index >= 2_000


# -- joint consensus ------------------------------------------------------------------------------


def joint_stuck(seed=0, *, reaching=()):
    """Two learners; n3's promotion is under way and its joint entry reaches only `reaching`."""
    group, leader = with_learner(seed)
    group.drop = entries_but_to(*reaching)
    number = group.promote("n3")
    return group, leader, number


def test_a_joint_entry_counts_at_once_and_needs_both_majorities():
    """Of n0 n1 n2 two are needed, and of n0 n1 n2 n3 three: one follower and n3, or both."""
    group, leader = with_learner()
    one, other = (node_id for node_id in group.followers() if node_id != "n3")
    committed = group.core(leader).committed_index
    group.drop = entries_but_to("n3")
    number = group.promote("n3")
    group.run_for(300)
    assert group.core(leader).membership.is_joint
    assert group.core("n3").membership.is_joint, "it counts as soon as it is in a log"
    assert group.core(leader).committed_index == committed, "n0 and n3: no majority of n0 n1 n2"

    group.drop = entries_but_to("n3", one)
    group.reconnect(leader, one)
    assert group.outcome(number) is OK
    assert group.core(other).membership_index < group.core(leader).membership_index


def test_voters_of_before_alone_commit_nothing_in_a_joint_membership():
    """Removing two of five one by one: {n0 n1 n2 n3} joint with {n0 … n4}."""
    group, leader = started_group(4)
    target = group.followers()[0]
    others = [node_id for node_id in group.followers() if node_id != target]
    committed = group.core(leader).committed_index
    group.drop = entries_but_to(target)
    group.remove(target)
    group.run_for(300)
    assert group.core(leader).committed_index == committed, "two of four"

    group.drop = entries_but_to(target, others[0])
    group.reconnect(leader, others[0])
    group.run_until(lambda: group.core(leader).committed_index > committed, 2_000)


def test_one_change_at_a_time():
    group, _, number = joint_stuck()
    for other in (
        ev.AddMember(Member("n4")),
        ev.RemoveMember("n1"),
        ev.PromoteMember("n3"),
    ):
        assert group.answers[group.change(other)] is ResponseCode.CHANGE_IN_PROGRESS

    group.drop = no_message
    assert group.outcome(number) is OK
    assert group.outcome(group.add("n4")) is OK


def test_a_member_is_not_added_at_the_address_of_another():
    group, leader = started_group(3)
    assert group.outcome(group.change(ev.AddMember(Member("n3", "h:9")))) is OK
    number = group.change(ev.AddMember(Member("n4", "h:9")))
    assert group.answers[number] is ResponseCode.UNEXPECTED_ARGUMENT
    assert group.core(leader).membership.member("n4") is None
    assert group.outcome(group.change(ev.AddMember(Member("n3", "h:8")))) is OK, "it moved"


@pytest.mark.parametrize("seed", range(6))
def test_r16_a_new_leader_finishes_a_joint_change(seed):
    group, leader = with_learner(seed)
    one = next(node_id for node_id in group.followers() if node_id != "n3")
    index = group.core(leader).end_index + 1
    group.drop = lambda m: (
        carries_entries(m) and (m.last_index > index or m.remote_id not in (one, "n3"))
    )
    number = group.promote("n3")
    group.run_until(lambda: group.core(leader).end_index == index + 1)  # the final entry
    group.crash(leader)
    group.drop = no_message
    group.elect()
    group.converge()

    assert group.leader in (one, "n3")
    assert group.voters() == {"n0", "n1", "n2", "n3"}
    assert not group.core(group.leader).membership.is_joint
    assert number not in group.answers, "who asked died with the leader"


def test_a_leader_that_is_deposed_says_that_the_change_may_still_come_about():
    group, leader, number = joint_stuck()
    group.isolate(leader)

    assert group.outcome(number) is ResponseCode.TERM_CHANGED


def test_truncating_an_uncommitted_joint_entry_restores_the_membership_before():
    group, leader, _ = joint_stuck()
    before = group.core("n3").membership
    group.run_for(50)
    assert group.core(leader).membership.is_joint
    group.isolate(leader)
    group.drop = no_message
    group.run_until(lambda: len(set(group.leaders()) - {leader}) == 1)
    assert group.commits()
    group.heal()
    group.converge()

    assert group.core(leader).membership == before
    assert {node.core.membership_index for node in group.live()} == {1}


def test_truncating_the_addition_of_a_learner_lets_it_go():
    group, leader = grown("n3")
    group.isolate(leader)
    group.add("n3", at=leader)
    assert "n3" in group.core(leader).membership.ids
    group.run_until(lambda: len(set(group.leaders()) - {leader}) == 1)
    assert group.commits()
    group.heal()
    group.run_until(lambda: group.core(leader).end_index == group.core(group.leader).end_index)

    assert "n3" not in group.core(leader).membership.ids
    assert group.core(leader).membership_index == 0


def test_r15_no_change_before_an_entry_of_the_own_term_is_committed():
    """The single-server change bug of 2015: else two majorities might not meet."""
    group, leader = started_group()
    group.crash(leader)
    group.drop = carries_entries
    group.run_until(lambda: group.leader is not None)
    number = group.remove(leader)
    assert group.answers[number] is ResponseCode.LEADER_NOT_READY

    group.drop = no_message
    group.converge()
    assert group.outcome(group.remove(leader)) is OK


def test_a_follower_changes_nothing():
    group, leader = started_group()
    number = group.remove(leader, at=group.followers()[0])

    assert group.answers[number] is ResponseCode.NOT_LEADER


# -- a voter the others do not know of yet --------------------------------------------------------


def with_late_voter(seed=0):
    """n3 joined and votes; one voter, cut off since before, has not heard of n3 at all."""
    group, leader = grown("n3", seed=seed)
    late = group.followers()[0]
    group.isolate(late)
    assert group.outcome(group.add("n3", joining=True)) is OK
    group.run_until(lambda: group.voters() == {"n0", "n1", "n2", "n3"})
    group.run_for(1_000)
    assert "n3" not in group.core(late).membership.ids
    return group, leader, late


def test_r18_a_voter_answers_a_candidate_whose_membership_is_newer():
    group, _, late = with_late_voter()
    core = group.core("n3")
    request = vote_request("n3", late, core.term + 5, (core.end_index, core.term))
    assert group.ask(request).vote_result is VoteResult.REJECT_UNKNOWN_LEADER

    known = msgspec.structs.replace(request, membership_index=core.membership_index)
    assert group.ask(known).vote_result is VoteResult.ACCEPT


@pytest.mark.parametrize("seed", range(5))
def test_r18_a_member_the_others_do_not_know_of_yet_can_be_elected_by_them(seed):
    """Four voters, one of them dead: n3, the only one allowed to ask, needs both others."""
    group, leader, late = with_late_voter(seed)
    group.crash(leader)
    group.drop = lambda m: isinstance(m, VoteRequest) and m.local_id != "n3"
    group.heal()
    group.elect()
    group.converge()

    assert group.leader == "n3"
    assert "n3" in group.voters(late)


@pytest.mark.parametrize("seed", range(3))
def test_r18_an_old_leader_whose_own_change_never_was_follows_a_member_it_never_met(seed):
    group, old = grown("n3", seed=seed)
    group.isolate(old)
    group.propose(old, count=100)
    group.add("n9", at=old)
    assert group.core(old).membership_index > 100
    group.run_until(lambda: group.leader not in (None, old))
    assert group.commits()
    assert group.outcome(group.add("n3", joining=True)) is OK
    group.run_until(lambda: group.voters() == {"n0", "n1", "n2", "n3"})
    group.run_for(500)
    assert group.outcome(group.transfer("n3")) is OK
    assert group.core("n3").membership_index < group.core(old).membership_index

    group.heal()
    group.run_until(group.in_step, 5_000)
    assert (group.leader, group.core(old).leader_id) == ("n3", "n3")
    assert group.voters(old) == {"n0", "n1", "n2", "n3"}


def test_r18_a_stranger_without_a_membership_is_not_answered():
    group, leader = started_group()
    follower = group.followers()[0]
    group.run_for(5_000)
    group.crash(leader)
    group.run_for(600)
    request = vote_request("n9", follower, 9, (99, 9))
    assert group.ask(request).vote_result is VoteResult.REJECT_UNKNOWN_LEADER

    assert group.core(follower).term < 9
