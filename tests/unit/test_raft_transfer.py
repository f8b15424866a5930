"""Leadership transfer and preferred leaders (spec 10 sections 8 and 9; spec 90 9, 37-42)."""

import msgspec
import pytest

from quorumlog.model.codes import PushType, ResponseCode, Role, VoteResult
from quorumlog.model.messages.peer import PushResponse, TimeoutNowRequest, VoteRequest
from quorumlog.raft import events as ev
from raft_cluster import ENTRY_BYTES, TIMING
from raft_members import Group, no_message, started_group
from raft_messages import Contents, log_of, vote_request

APPEND = PushType.APPEND
PROPOSALS = 1_200
"""That somebody appends, one after the other, while no transfer succeeds."""


def is_append_to(node_id):
    return lambda message: (
        getattr(message, "type", None) is APPEND and (message.remote_id == node_id)
    )


def words(group):
    return [message for message in group.sent if isinstance(message, TimeoutNowRequest)]


# -- a hand-over that succeeds --------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_37_a_caught_up_follower_leads_in_a_higher_term_and_appends_resume(seed):
    group, leader = started_group(3, seed)
    target, term = group.followers()[0], group.core(leader).term
    number = group.transfer(target)
    asked = group.now

    assert group.outcome(number) is ResponseCode.SUCCESS
    assert group.now - asked < 100
    assert (group.leader, group.core(target).term) == (target, term + 1)
    assert group.core(leader).role is Role.FOLLOWER
    assert group.commits(target)
    group.converge()


def test_a_target_that_lags_a_little_is_caught_up_before_it_is_told():
    group, leader = started_group()
    target = group.followers()[0]
    group.drop = is_append_to(target)
    group.propose(leader, count=50)
    group.run_for(100)
    number = group.transfer(target)
    assert not words(group)
    group.drop = lambda message: False

    group.step(group.nodes[leader], ev.PeerConnected(target))
    assert group.outcome(number) is ResponseCode.SUCCESS
    assert {word.end_index for word in words(group)} == {50}
    assert group.leader == target


def test_an_append_pending_at_a_hand_over_is_not_lost():
    group, leader = started_group()
    target = group.followers()[0]
    number = group.propose(leader)
    handed = group.transfer(target)
    assert group.outcome(handed) is ResponseCode.SUCCESS
    group.converge()

    assert group.finished[number] is ResponseCode.SUCCESS
    group.checker.finished()


def test_a_lost_word_is_repeated():
    group, _ = started_group()
    target = group.followers()[0]
    group.drop = lambda message: isinstance(message, TimeoutNowRequest) and len(words(group)) < 3

    assert group.outcome(group.transfer(target)) is ResponseCode.SUCCESS
    assert group.leader == target


# -- a hand-over that is refused ------------------------------------------------------------------


def test_38_a_follower_a_thousand_entries_behind_is_not_handed_leadership():
    group, leader = started_group(transfer_lag_max=1_000)
    target = group.followers()[0]
    group.drop = is_append_to(target)
    group.propose(leader, count=999)
    group.run_for(500)
    near = group.transfer(target)
    assert near not in group.answers  # 999 behind: it is started
    assert group.outcome(near) is ResponseCode.TAKE_LEADERSHIP_FAILED
    group.propose(leader)
    group.run_for(500)
    number = group.transfer(target)

    assert group.answers[number] is ResponseCode.FALL_BEHIND_TOO_MUCH
    assert group.commits(leader)


@pytest.mark.parametrize("names_target", [True, False])
def test_a_leader_just_elected_says_that_it_does_not_know_yet_how_far_the_others_are(names_target):
    """Not that they lag: whoever asks again has what it wants a moment later."""
    group, leader = started_group()
    group.drop = lambda message: isinstance(message, PushResponse)
    group.crash(leader)
    group.run_until(lambda: group.leader not in (None, leader))
    target = group.followers()[0] if names_target else BEST
    assert group.answers[group.transfer(target)] is ResponseCode.LEADER_NOT_READY
    group.drop = lambda message: False
    former, asked = group.leader, group.now
    while group.outcome(group.transfer(target)) is ResponseCode.LEADER_NOT_READY:
        group.run_for(10)
        assert group.now - asked < 1_000
    assert group.leader not in (leader, former)


def test_a_leader_just_elected_says_that_a_dead_member_does_not_answer():
    group, leader = started_group()
    group.crash(leader)
    group.run_until(lambda: group.leader not in (None, leader))
    asked = group.now
    while group.outcome(group.transfer(leader)) is ResponseCode.LEADER_NOT_READY:
        group.run_for(50)
        assert group.now - asked < 2_000
    assert group.outcome(group.transfer(leader)) is ResponseCode.TAKE_LEADERSHIP_FAILED


def test_39_appends_and_other_changes_are_refused_while_leadership_is_handed_over():
    group, leader = started_group()
    one, other = group.followers()
    group.drop = lambda message: isinstance(message, TimeoutNowRequest)
    first = group.transfer(one)
    append = group.propose(leader)
    second = group.transfer(other)
    removal = group.remove(other)

    assert group.core(leader).is_transferring
    assert group.finished[append] is ResponseCode.LEADER_TRANSFERRING
    assert group.answers[second] is ResponseCode.LEADER_TRANSFERRING
    assert group.answers[removal] is ResponseCode.LEADER_TRANSFERRING
    assert group.outcome(first) is ResponseCode.TAKE_LEADERSHIP_FAILED
    assert group.commits(leader)


def test_40_a_hand_over_in_another_term_is_refused():
    group, leader = started_group()
    target, term = group.followers()[0], group.core(leader).term
    for wrong in (term - 1, term + 1):
        number = group.transfer(target, term=wrong)
        assert group.answers[number] is ResponseCode.INCONSISTENT_TERM

    assert group.outcome(group.transfer(target, term=term)) is ResponseCode.SUCCESS


def test_40_a_hand_over_to_a_stranger_or_a_learner_is_refused_and_to_whoever_leads_is_done():
    group, leader = started_group()
    group.start_stranger("n3")
    assert group.outcome(group.add("n3")) is ResponseCode.SUCCESS
    group.run_for(500)

    assert group.answers[group.transfer("n9")] is ResponseCode.UNKNOWN_MEMBER
    assert group.answers[group.transfer("n3")] is ResponseCode.UNKNOWN_MEMBER
    assert group.answers[group.transfer(leader)] is ResponseCode.SUCCESS
    other_term = group.transfer(leader, term=group.core(leader).term + 1)
    assert group.answers[other_term] is ResponseCode.INCONSISTENT_TERM
    assert group.commits(leader)


@pytest.mark.parametrize("silent_ms", [0, 450, 3_000])
def test_40_a_hand_over_to_a_dead_member_fails_and_the_leader_goes_on(silent_ms):
    group, leader = started_group()
    target, term = group.followers()[0], group.core(leader).term
    group.crash(target)
    group.run_for(silent_ms)
    asked = group.now
    number = group.transfer(target)

    assert group.outcome(number) is ResponseCode.TAKE_LEADERSHIP_FAILED
    assert group.now - asked <= 1_000
    assert (group.leader, group.core(leader).term) == (leader, term)
    assert group.commits(leader)


BEST = ""


def test_176_without_a_target_the_voter_that_has_most_of_the_log_leads():
    """The best: of those that answer, whoever has the highest matching position."""
    group, leader = started_group(5)
    laggards, (best, dead) = group.followers()[:2], group.followers()[2:]
    group.drop = lambda m: is_append_to(laggards[0])(m) or is_append_to(laggards[1])(m)
    group.propose(leader, count=50)
    group.run_for(300)
    group.crash(dead)
    group.run_for(1_000)
    number = group.transfer(BEST)
    assert group.outcome(number) is ResponseCode.SUCCESS
    assert group.leader == best


def test_without_a_target_and_without_a_live_voter_the_leader_goes_on():
    group, leader = started_group(2)
    group.crash(group.followers()[0])
    number = group.transfer(BEST)
    group.run_for(10)
    assert group.answers.get(number) in (None, ResponseCode.TAKE_LEADERSHIP_FAILED)
    assert group.outcome(number) is ResponseCode.TAKE_LEADERSHIP_FAILED
    assert group.core(leader).term == 1
    sole, leader = started_group(1)
    assert sole.answers[sole.transfer(BEST)] is ResponseCode.TAKE_LEADERSHIP_FAILED
    assert sole.commits(leader)


def test_a_follower_does_not_hand_over_what_it_does_not_have():
    group, leader = started_group()
    one, other = group.followers()

    assert group.answers[group.transfer(other, at=one)] is ResponseCode.NOT_LEADER
    assert group.leader == leader


# -- a hand-over that fails -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_41_a_target_that_does_not_win_in_time_is_given_up(seed):
    """It raised the term in vain: the group elects again, and the asker is not kept waiting."""
    group, _ = started_group(3, seed)
    target, asked = group.followers()[0], group.now
    group.drop = lambda m: isinstance(m, VoteRequest) and m.local_id == target
    number = group.transfer(target)

    assert group.outcome(number) is ResponseCode.TAKE_LEADERSHIP_FAILED
    assert group.now - asked <= 1_000
    group.elect()
    assert group.leader != target
    assert group.commits()


def test_41_a_leader_that_loses_its_majority_meanwhile_reports_the_failure():
    group, leader = started_group()
    group.isolate(leader)
    number = group.transfer(group.followers()[0], at=leader)

    assert group.outcome(number) is ResponseCode.TAKE_LEADERSHIP_FAILED
    assert group.core(leader).role is not Role.LEADER


# -- the target -----------------------------------------------------------------------------------


def word_to(group, target, **fields):
    leader = group.leader
    word = TimeoutNowRequest(
        group="g",
        local_id=leader,
        remote_id=target,
        term=group.core(leader).term,
        end_index=group.core(leader).end_index,
    )
    return msgspec.structs.replace(word, **fields)


def test_a_word_that_is_out_of_date_is_ignored():
    group, leader = started_group()
    target, other = group.followers()
    term = group.core(leader).term
    for fields in (
        {"term": term - 1},
        {"term": term + 1},
        {"local_id": other},
        {"end_index": 99},
        {"remote_incarnation": 8},
    ):
        assert group.deliver(word_to(group, target, **fields)) == []
        assert group.core(target).term == term

    group.deliver(word_to(group, target))
    assert group.core(target).term == term + 1


def test_voters_with_a_living_leader_vote_for_whom_it_chose_and_for_nobody_else():
    group, leader = started_group()
    target, voter = group.followers()
    end = (group.core(leader).end_index, group.core(leader).term)
    term = group.core(leader).term
    request = vote_request(target, voter, term + 1, end)
    assert group.ask(request).vote_result is VoteResult.REJECT_ALREADY_HAS_LEADER

    chosen = msgspec.structs.replace(request, transfer=True)
    assert group.ask(chosen).vote_result is VoteResult.ACCEPT


def test_a_target_that_campaigns_says_so_to_others_who_ask_in_its_term():
    """Spec 10 section 5, check 10; for every hand-over (REQ), not only to preferred leaders."""
    group, leader = started_group()
    target, other = group.followers()
    end, term = (group.core(leader).end_index, group.core(leader).term), group.core(leader).term
    group.drop = lambda message: message.remote_id != target
    group.deliver(word_to(group, target))

    answer = group.ask(vote_request(other, target, term + 1, end))
    assert answer.vote_result is VoteResult.REJECT_TAKING_LEADERSHIP


def test_a_damaged_target_does_not_take_over():
    group, leader = started_group()
    target = group.followers()[0]
    group.step(group.nodes[target], ev.EligibilityChanged(is_eligible=False))

    assert group.outcome(group.transfer(target)) is ResponseCode.TAKE_LEADERSHIP_FAILED
    assert group.leader == leader


# -- preferred leaders ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_9_a_preferred_leader_leads_and_retakes_leadership_after_its_restart(seed):
    group = Group(3, seed, preferred_leader_ids=("n2",)).start()
    group.run_until(lambda: group.leader == "n2" and group.agreed(), 5_000)
    group.converge()

    group.crash("n2")
    group.elect()
    assert group.leader != "n2"
    assert group.commits()
    group.start("n2")
    group.run_until(lambda: group.leader == "n2" and group.agreed(), 5_000)
    assert group.commits()


def preferring(*preferred, count=4, **timing):
    """n0 leads; all have five entries; nothing after them reaches n1, whose lag so is 1."""
    logs = {f"n{number}": log_of((1, 5)) for number in range(count)}
    group = Group(count, founded=True, logs=logs, preferred_leader_ids=preferred, **timing).start()
    group.drop = lambda m: (
        is_append_to("n1")(m)
        or (isinstance(m, VoteRequest) and m.local_id != "n0" and not m.transfer)
    )
    group.elect("n0")
    return group


@pytest.mark.parametrize("preferred", [("n1", "n2"), ("n2", "n1")])
def test_42_of_two_preferred_leaders_the_one_with_the_smaller_lag_is_chosen(preferred):
    group = preferring(*preferred)
    group.run_until(lambda: group.leader == "n2", 5_000)

    assert {word.remote_id for word in words(group)} == {"n2"}


@pytest.mark.parametrize("preferred", [("n3", "n2"), ("n2", "n3")])
def test_42_of_two_that_lag_alike_the_first_named_is_chosen(preferred):
    group = preferring(*preferred)
    group.run_until(lambda: group.leader != "n0" and group.agreed(), 5_000)

    assert group.leader == preferred[0]


@pytest.mark.parametrize(("bytes_max", "is_tried"), [(ENTRY_BYTES, True), (ENTRY_BYTES - 1, False)])
def test_a_preferred_leader_that_lags_by_more_bytes_than_allowed_is_left_alone(bytes_max, is_tried):
    """JoyQueue's rule: few entries may be many bytes, and appends are refused meanwhile."""
    group = preferring("n1", transfer_lag_bytes_max=bytes_max)
    tried = []
    for _ in range(300):
        group.run_for(10)
        tried.append(group.core("n0").is_transferring)
    assert any(tried) is is_tried
    assert group.leader == "n0"


def test_a_preferred_leader_far_behind_or_dead_is_left_alone():
    group = Group(3, preferred_leader_ids=("n2",), transfer_lag_max=10).start()
    group.run_until(lambda: group.leader == "n2" and group.agreed(), 5_000)
    group.converge()
    group.crash("n2")
    leader = group.elect()
    group.run_for(20_000)
    assert group.leader == leader

    group.sent.clear()
    group.drop = is_append_to("n2")
    group.propose(leader, count=50)
    group.start("n2")
    group.run_for(20_000)
    assert not words(group)
    assert group.leader == leader


def test_a_preferred_leader_that_cannot_take_over_does_not_keep_stopping_appends():
    group = Group(3, preferred_leader_ids=("n2",)).start()
    group.drop = lambda message: (
        isinstance(message, TimeoutNowRequest)
        or (isinstance(message, VoteRequest) and message.local_id == "n2")
    )
    leader = group.elect()
    group.run_for(1_000)
    refused = 0
    for _ in range(PROPOSALS):
        number = group.propose(leader)
        group.run_for(50)
        refused += group.finished[number] is ResponseCode.LEADER_TRANSFERRING

    assert 0 < refused <= 0.04 * PROPOSALS
    assert group.leader == leader
    group.sent.clear()
    group.drop = no_message
    group.step(group.nodes[leader], ev.PeerConnected("n2"))
    group.run_until(lambda: group.leader == "n2", 2_000)


@pytest.mark.parametrize("seed", range(10))
def test_a_preferred_leader_founds_its_group(seed):
    group = Group(3, seed, preferred_leader_ids=("n1",)).start()
    group.run_until(lambda: group.leader is not None, 2_000)
    assert group.leader == "n1"
    assert group.core("n1").term == 1
    group.converge()
    group.crash("n1")
    group.run_until(lambda: group.leader not in (None, "n1"), 3 * TIMING["election_timeout_max_ms"])


def test_a_group_is_founded_by_another_if_the_preferred_leader_may_not_lead():
    group = Group(3, preferred_leader_ids=("n1",)).start()
    group.step(group.nodes["n1"], ev.EligibilityChanged(False))
    group.run_until(lambda: group.leader in ("n0", "n2"), 5_000)


def test_a_preferred_leader_with_an_empty_log_catches_up_before_it_is_told():
    logs = {"n0": log_of((1, 50)), "n1": log_of((1, 50)), "n2": Contents()}
    group = Group(3, founded=True, logs=logs, preferred_leader_ids=("n2",)).start()
    group.run_until(lambda: group.leader == "n2", 10_000)

    assert {word.end_index for word in words(group)} == {50}
    assert group.core("n2").end_index >= 50


# -- full disks -----------------------------------------------------------------------------------


def set_room(group, name, *, lacks_room):
    group.step(group.nodes[name], ev.RoomChanged(lacks_room))


def test_a_leader_whose_disk_is_full_hands_over_to_a_voter_with_room():
    group, leader = started_group()
    full, roomy = group.followers()
    set_room(group, full, lacks_room=True)
    group.run_for(1_000)
    assert group.leader == leader, "it has room itself"
    set_room(group, leader, lacks_room=True)
    group.run_until(lambda: group.leader == roomy, 3_000)
    assert group.commits(roomy)
    group.converge()


def test_a_leader_stays_while_all_disks_are_full_and_goes_once_one_has_room():
    group, leader = started_group()
    for name in group.ids:
        set_room(group, name, lacks_room=True)
    group.run_for(10_000)
    assert group.leader == leader
    assert not words(group)
    other = group.followers()[1]
    set_room(group, other, lacks_room=False)
    group.run_until(lambda: group.leader == other, 3_000)


def test_a_preferred_leader_whose_disk_is_full_is_not_preferred_until_it_has_room():
    group = Group(3, preferred_leader_ids=("n2",)).start()
    group.run_until(lambda: group.leader == "n2" and group.agreed(), 10_000)
    set_room(group, "n2", lacks_room=True)
    group.run_until(lambda: group.leader in ("n0", "n1"), 3_000)
    other = group.leader
    group.run_for(20_000)
    assert group.leader == other
    set_room(group, "n2", lacks_room=False)
    group.run_until(lambda: group.leader == "n2", 3_000)


@pytest.mark.parametrize("name", ["n0", "n1"])
def test_of_voters_with_room_a_preferred_one_takes_over(name):
    group = Group(3, preferred_leader_ids=("n2", name)).start()
    group.run_until(lambda: group.leader in ("n2", name) and group.agreed(), 10_000)
    number = group.transfer("n2")
    assert group.outcome(number) is ResponseCode.SUCCESS
    group.converge()
    set_room(group, "n2", lacks_room=True)
    group.run_until(lambda: group.leader not in (None, "n2"), 3_000)
    assert group.leader == name


def fill(group, *names):
    for name in names:
        group.nodes[name].is_full = True
        set_room(group, name, lacks_room=True)


def test_a_leader_is_elected_and_reads_while_all_disks_are_full_though_more_was_appended():
    """Its NOOP is taken, although the entries after it are not and came together with it."""
    group, leader = started_group()
    group.isolate(leader)
    group.run_until(lambda: group.leader not in (None, leader), 5_000)
    new = group.leader
    group.nodes[leader].is_full = True
    for name in group.ids:
        group.nodes[name].is_full = True
    group.heal()
    group.propose(new, count=30)
    group.run_for(5_000)
    assert group.leader == new
    core = group.core(new)
    assert core.term_at(core.committed_index) == core.term
    assert core.committed_index < core.end_index
    for replica in group.nodes.values():
        replica.is_full = False
    group.converge()
    assert group.core(new).committed_index == group.core(new).end_index


def test_a_peer_without_room_is_sent_one_entry_at_a_time():
    group, leader = started_group()
    full = group.followers()[0]
    group.nodes[full].is_full = True
    group.sent.clear()
    group.propose(leader, count=30)
    group.run_for(10_000)
    pushes = [m for m in group.sent if is_append_to(full)(m)]
    refused_whole = [m for m in pushes if m.last_index > m.first_index]
    alone = [m for m in pushes if m.last_index == m.first_index]
    assert len(refused_whole) <= 4, "those that were under way when the first was refused"
    assert 5 <= len(alone) <= 12, "one for each push time-out"
    assert not group.alarms, "a full disk may happen"
    told = [text for _, text in group.core(leader).history.lines()]
    assert any(text.startswith(f"{full} has no room for more entries") for text in told)
    group.nodes[full].is_full = False
    group.converge()


def test_a_leader_knows_that_no_majority_has_room():
    group, leader = started_group()
    one, other = group.followers()
    core = group.core(leader)
    fill(group, one)
    group.run_for(500)
    assert core.no_room_text == ""
    group.crash(other)
    group.run_for(1_000)
    text = f"no majority has room: the disk of {one} is full"
    assert core.no_room_text == f"{text}, {other} does not answer"
    group.start(other)
    group.run_for(1_000)
    assert core.no_room_text == ""
    fill(group, other)
    group.run_for(500)
    names = ", ".join(sorted([one, other]))
    assert core.no_room_text == f"no majority has room: the disks of {names} are full"
    fill(group, leader)
    names = ", ".join(sorted(group.ids))
    assert core.no_room_text == f"no majority has room: the disks of {names} are full"
    set_room(group, leader, lacks_room=False)
    set_room(group, one, lacks_room=False)
    group.run_for(60_000)
    assert core.no_room_text == "", "it is asked, however long nothing else happens"
