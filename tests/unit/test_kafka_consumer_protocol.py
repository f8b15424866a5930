"""A group by the consumer protocol: epochs, revocation before assignment, time-outs, static
members, changes of protocol, and a coordinator that goes on from what was saved.
"""

import pytest
from msgspec.structs import replace

from consumer_protocol_world import REBALANCE_MS, A, B, World, numbers
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups import consumer_protocol, group_saves, memory_use
from quorumlog.kafka.groups.consumer_protocol import PATTERNS_MAX, ProtocolGroup, ProtocolGroupState
from quorumlog.kafka.groups.consumers import AWAY, JOINING, LEAVING, ConsumerHeartbeat
from quorumlog.kafka.groups.coordinator import SAVE_AGAIN_MS
from quorumlog.kafka.groups.group import ConsumerGroup
from quorumlog.kafka.groups.members import GroupProtocol, JoinRequest
from quorumlog.machine.cluster.commands import ForgetGroups, GroupsChanged, SaveConsumers, SaveGroup
from quorumlog.machine.cluster.consumer_groups import ConsumerGroupRecord, ConsumerGroups
from quorumlog.model.codes import ResponseCode

SESSION_MS = 45_000
SHORT_MS = 10_000


def of(*some):
    return {(A, number) for number in some}


@pytest.fixture
def world():
    return World()


# -- joining and reconciling ----------------------------------------------------------------------


def test_b4_the_first_member_has_everything_at_once(world):
    answer = world.join("m1")
    assert (answer.error, answer.member_id, answer.epoch) == (ErrorCode.NONE, "m1", 1)
    assert numbers(answer.assigned) == [0, 1, 2, 3]
    assert world.group.state is ProtocolGroupState.STABLE
    assert world.beat("m1", 1, of(0, 1, 2, 3)).assigned is None, "it has what it was told"
    assert world.beat("m1", 1).assigned is None, "nothing has changed"


def test_b4_a_newcomer_gets_what_another_has_given_up_and_not_before(world):
    world.join("m1")
    joined = world.join("m2")
    assert (joined.epoch, numbers(joined.assigned)) == (2, [])
    asked = world.beat("m1", 1)
    assert (asked.epoch, numbers(asked.assigned)) == (1, [0, 1])
    assert world.group.state is ProtocolGroupState.RECONCILING
    assert world.beat("m2", 2).assigned is None, "the other has not said that it has given up any"
    assert world.beat("m1", 1, of(0, 1, 2)).epoch == 1, "it still uses one of them"
    assert world.beat("m1", 1, of(0, 1)).epoch == 2
    assert numbers(world.beat("m2", 2).assigned) == [2, 3]
    assert world.group.state is ProtocolGroupState.STABLE


def test_b4_who_gives_up_part_after_part_has_a_higher_epoch_each_time(world):
    world.join("m1")
    world.join("m2")
    world.beat("m1", 1)
    for name in ("m3", "m4"):
        world.join(name)
    answer = world.beat("m1", 1, of(0, 1))
    assert (answer.epoch, len(answer.assigned)) == (2, 1), "a commit of before is known by epoch 1"
    assert world.group.may_commit("m1", None, 1, 0) is ErrorCode.STALE_MEMBER_EPOCH
    world.settle("m1", "m2", "m3", "m4")
    assert [len(world.has(name)) for name in ("m1", "m2", "m3", "m4")] == [1] * 4


def test_b4_who_asks_for_range_gets_consecutive_numbers(world):
    world.join("m1", assignor="range")
    world.join("m2", assignor="range")
    world.settle("m1", "m2")
    assert (world.has("m1"), world.has("m2")) == ([0, 1], [2, 3])
    assert world.group.target.assignor == "range"


def test_b4_without_an_assignor_in_a_config_of_before_the_default_assigns(world):
    world.defaults["group.consumer.assignors"] = ""
    assert world.join("m1").error is ErrorCode.NONE
    assert world.group.target.assignor == "uniform"


def test_b4_the_cluster_says_which_assignors_there_are_and_which_is_the_default(world):
    world.defaults["group.consumer.assignors"] = "range"
    assert world.join("m1", assignor="uniform").error is ErrorCode.UNSUPPORTED_ASSIGNOR
    world.join("m1")
    assert world.group.target.assignor == "range"


def test_b4_who_joins_again_with_its_id_has_what_it_had(world):
    world.join("m1")
    again = world.join("m1")
    assert (again.epoch, numbers(again.assigned)) == (1, [0, 1, 2, 3])
    assert len(world.group.members) == 1


def test_c4_so_many_members_and_no_more(world):
    world.defaults["group.consumer.max.size"] = "1"
    world.join("m1")
    assert world.join("m2").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.join("m1").error is ErrorCode.NONE


def test_c4_members_say_so_much_and_no_more(world, monkeypatch):
    monkeypatch.setattr(consumer_protocol, "SAID_MAX", 100)
    assert world.join("m1", "t" * 60).error is ErrorCode.NONE
    assert world.join("m2", "t" * 60).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    answer = world.beat("m1", 1, topics=("t" * 99,))
    assert answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.coordinator.names() == ["g"]
    assert world.group.is_unused


# -- epochs ---------------------------------------------------------------------------------------


def test_b4_an_epoch_that_the_group_has_not_given_is_fenced(world):
    world.join("m1")
    assert world.beat("m1", 2).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert world.beat("m2", 1).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_b4_who_was_not_told_its_new_epoch_is_told_again_if_it_uses_only_what_is_its_own(world):
    world.join("m1")
    world.join("m2")
    world.beat("m1", 1)
    world.beat("m1", 1, of(0, 1))
    assert world.beat("m1", 1).error is ErrorCode.FENCED_MEMBER_EPOCH, "it does not say"
    assert world.beat("m1", 1, of(0, 3)).error is ErrorCode.FENCED_MEMBER_EPOCH
    again = world.beat("m1", 1, of(0, 1))
    assert (again.error, again.epoch, numbers(again.assigned)) == (ErrorCode.NONE, 2, [0, 1])


def test_b4_who_does_not_confirm_what_it_was_told_is_told_again(world):
    """The answer may have got lost: librdkafka waits for one twice its heartbeat interval."""
    world.join("m1")
    world.beat("m1", 1, of(0, 1, 2, 3))
    world.join("m2")
    for _ in range(2):
        assert numbers(world.beat("m1", 1).assigned) == [0, 1], "it is to give up 2 and 3"
    assert numbers(world.beat("m1", 1, of(0, 1, 2, 3)).assigned) == [0, 1]
    world.beat("m2", 2, of())
    world.beat("m1", 1, of(0, 1))
    for _ in range(2):
        assert numbers(world.beat("m2", 2).assigned) == [2, 3], "the other has given them up"
    assert world.beat("m2", 2, of(2, 3)).assigned is None
    assert world.beat("m2", 2).assigned is None


def test_b4_what_comes_late_is_no_answer_to_what_was_asked_since(world):
    world.join("m1")
    world.join("m2")
    world.settle("m1", "m2")
    epoch = world.group.epoch
    world.put("a", A, 6)
    assert numbers(world.beat("m1", epoch).assigned) == [0, 1, 4]
    world.join("m3")
    assert numbers(world.beat("m1", epoch + 1).assigned) == [0, 1]
    assert world.beat("m1", epoch, of(0, 1)).epoch == epoch + 1, "sent before it was given 4"
    assert numbers(world.group.members.by_id["m1"].held.revoking) == [4]


def test_b4_offsets_are_committed_with_the_present_epoch_alone(world):
    assert world.group is None
    world.join("m1")
    commit = world.group.may_commit
    assert commit("m1", None, 1, 0) is ErrorCode.NONE
    assert commit("m1", None, 0, 0) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit("m2", None, 1, 0) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit("", None, -1, 0) is ErrorCode.UNKNOWN_MEMBER_ID, "the group has members"
    fetch = world.group.may_fetch
    assert fetch(None, -1) is ErrorCode.NONE
    assert fetch("m1", 1) is ErrorCode.NONE
    assert fetch("m1", 2) is ErrorCode.STALE_MEMBER_EPOCH
    assert fetch("m2", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    world.beat("m1", LEAVING)
    assert world.group.may_commit("", None, -1, 0) is ErrorCode.NONE
    assert world.group.may_commit("id-of-before-joining", None, -1, 0) is ErrorCode.NONE


# -- subscriptions and topics ---------------------------------------------------------------------


def test_b4_partitions_and_topics_that_come_and_go_are_picked_up(world):
    world.join("m1", "a", "b")
    world.put("a", A, 5)
    assert numbers(world.beat("m1", 1).assigned) == [0, 1, 2, 3, 4]
    world.put("b", B, 1)
    answer = world.beat("m1", 2)
    assert (answer.epoch, (B, 0) in answer.assigned) == (3, True)
    world.topics = {"b": world.topics["b"]}
    world.version += 1
    assert world.beat("m1", 3).assigned == {(B, 0)}
    assert world.beat("m1", 3, {(B, 0)}).epoch == 4
    world.put("c", bytes(16), 1)
    assert world.beat("m1", 4).epoch == 4, "nobody is subscribed to it"


def test_b4_a_member_that_changes_its_subscription_gets_other_partitions(world):
    world.put("b", B, 2)
    world.join("m1")
    answer = world.beat("m1", 1, topics=("b",))
    assert answer.assigned == frozenset()
    assert world.beat("m1", 1, set()).assigned == {(B, 0), (B, 1)}


def test_b4_a_regular_expression_subscribes_to_topics_of_now_and_later(world):
    answer = world.join("m1", pattern="[ab]")
    assert numbers(answer.assigned) == [0, 1, 2, 3]
    world.put("b", B, 1)
    assert (B, 0) in world.beat("m1", 1).assigned
    assert world.group.subscribed == {"a", "b"}
    refused = world.join("m2", pattern="(")
    assert refused.error is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "missing )" in refused.text


def test_c4_a_group_has_few_different_regular_expressions(world):
    for number in range(PATTERNS_MAX):
        assert world.join(f"m{number}", pattern=f"a{number}").error is ErrorCode.NONE
    refused = world.join("more", pattern="b")
    assert refused.error is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "at most 10 different regular expressions" in refused.text
    assert world.join("same", pattern="a0").error is ErrorCode.NONE


def test_b4_a_large_group_is_not_assigned_again_at_each_heartbeat(world):
    world.put("a", A, 12_000)
    world.join("m1")
    world.join("m2")
    assert world.group.state is ProtocolGroupState.ASSIGNING
    world.now_ms += 1_100
    world.beat("m2", 1)
    assert world.group.target.epoch == world.group.epoch


# -- time, and members that go --------------------------------------------------------------------


def test_b4_who_says_nothing_for_the_session_time_out_is_removed(world):
    world.join("m1")
    world.join("m2")
    world.settle("m1", "m2")
    world.wait(SESSION_MS - 1)
    world.beat("m1", world.group.epoch)
    world.wait(1)
    assert list(world.group.members.by_id) == ["m1"]
    assert numbers(world.beat("m1", world.group.epoch - 1).assigned) == [0, 1, 2, 3]
    assert world.groups.records["g"].consumers.keys() == {"m1"}


@pytest.mark.parametrize("is_new_coordinator", [False, True])
def test_b4_a_member_is_not_removed_before_the_time_that_it_was_told(world, is_new_coordinator):
    """It uses its partitions until then, whatever the session time-out is by now."""
    assert world.join("m1").session_ms == SESSION_MS
    world.set_session(SHORT_MS)
    if is_new_coordinator:
        world.take_over()
    world.wait(SESSION_MS - 1)
    assert world.join("m2").assigned == frozenset()
    world.wait(1)
    assert list(world.group.members.by_id) == ["m2"]


def test_b4_an_answer_that_was_lost_makes_the_time_of_a_member_no_shorter(world):
    """It does not know that the session time-out is shorter, and counts from an earlier one."""
    world.join("m1")
    world.set_session(SHORT_MS)
    world.wait(1_000)
    assert world.beat("m1", 1).session_ms == SHORT_MS
    world.take_over()
    world.wait(SESSION_MS - 1_001)
    assert list(world.group.members.by_id) == ["m1"]


def test_b4_a_shorter_session_time_out_counts_once_members_know_it(world):
    world.join("m1")
    world.set_session(SHORT_MS)
    world.wait(SESSION_MS - SHORT_MS)
    world.beat("m1", 1)
    world.wait(SHORT_MS)
    assert not world.group.members.by_id


def test_b4_a_longer_session_time_out_is_saved_before_a_member_is_told(world):
    world.set_session(SHORT_MS)
    world.join("m1")
    world.set_session(SESSION_MS)
    world.outcome = None
    assert world.beat("m1", 1) is None
    world.end_held()
    assert world.beat("m1", 1).session_ms == SESSION_MS
    world.set_session(SHORT_MS)
    world.take_over()
    world.wait(SESSION_MS - 1)
    assert list(world.group.members.by_id) == ["m1"]


def test_b4_a_member_that_an_earlier_version_saved_has_the_present_session_time_out(world):
    world.join("m1")
    record = world.groups.records["g"]
    before = replace(record.consumers["m1"], session_ms=0)
    world.groups.records["g"] = replace(record, consumers={"m1": before})
    world.set_session(SESSION_MS + 5_000)
    world.take_over()
    world.wait(SESSION_MS + 4_999)
    assert list(world.group.members.by_id) == ["m1"]


def test_b4_who_does_not_give_up_what_it_is_asked_to_is_removed(world):
    world.join("m1")
    world.join("m2")
    world.beat("m1", 1)
    for _ in range(4):
        world.wait(REBALANCE_MS // 4 - 1)
        world.beat("m1", 1)
        world.beat("m2", 2)
    world.wait(4)
    assert list(world.group.members.by_id) == ["m2"]
    assert world.beat("m1", 1).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert numbers(world.beat("m2", 2).assigned) == [0, 1, 2, 3]


def test_b4_what_a_member_had_is_free_once_it_leaves(world):
    world.join("m1")
    world.join("m2")
    answer = world.beat("m1", LEAVING)
    assert (answer.error, answer.epoch) == (ErrorCode.NONE, LEAVING)
    assert numbers(world.beat("m2", 2).assigned) == [0, 1, 2, 3]
    assert world.beat("m2", LEAVING).error is ErrorCode.NONE
    assert world.group.state is ProtocolGroupState.EMPTY
    assert world.groups.records["g"].generation >= 3, "epochs go on"


# -- static members -------------------------------------------------------------------------------


def test_b4_a_static_member_that_comes_back_has_what_it_had_and_nobody_else_notices(world):
    world.join("m1", instance_id="i1")
    world.join("m2")
    world.settle("m1", "m2")
    epoch, had = world.group.epoch, world.has("m1")
    assert world.beat("m1", AWAY, instance_id="i1").epoch == AWAY
    assert world.beat("m2", epoch).epoch == epoch
    again = world.join("m3", instance_id="i1")
    assert (again.epoch, numbers(again.assigned)) == (epoch, had)
    assert world.beat("m1", epoch, instance_id="i1").error is ErrorCode.FENCED_INSTANCE_ID
    assert world.group.may_commit("m1", "i1", epoch, 0) is ErrorCode.FENCED_INSTANCE_ID
    assert world.group.epoch == epoch


def test_b4_a_static_member_that_has_left_for_a_moment_and_keeps_its_id_has_an_epoch_again(world):
    world.join("m1", instance_id="i1")
    world.beat("m1", AWAY, instance_id="i1")
    assert world.beat("m1", 1, set(), instance_id="i1").error is ErrorCode.FENCED_MEMBER_EPOCH
    again = world.join("m1", instance_id="i1")
    assert (again.epoch, numbers(again.assigned)) == (1, [0, 1, 2, 3])


def test_b4_a_static_member_that_does_not_come_back_is_removed_after_its_session(world):
    world.join("m1", instance_id="i1")
    world.join("m2")
    world.beat("m1", AWAY, instance_id="i1")
    world.wait(SESSION_MS - 1)
    assert len(world.group.members) == 2
    world.beat("m2", 2)
    world.wait(1)
    assert list(world.group.members.by_id) == ["m2"]


def test_b4_an_instance_id_that_is_in_use_is_not_taken_over(world):
    world.join("m1", instance_id="i1")
    assert world.join("m2", instance_id="i1").error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert world.join("m1", instance_id="i2").error is ErrorCode.INVALID_REQUEST
    assert world.beat("m1", LEAVING, instance_id="i1").error is ErrorCode.NONE
    assert world.join("m2", instance_id="i1").error is ErrorCode.NONE


# -- saving, and other coordinators ---------------------------------------------------------------


def test_b4_nobody_is_told_anything_before_it_is_saved(world):
    world.outcome = None
    assert world.join("m1") is None
    assert world.beat("m1", JOINING, set(), topics=("a",), rebalance_timeout_ms=1) is None
    assert world.join("m2") is None
    assert [len(one.changed) for one in world.saves] == [1]
    world.end_held()
    assert [len(one.changed) for one in world.saves] == [1, 2], "what came meanwhile comes together"


def test_c4_without_room_for_an_answer_nobody_is_fenced(world, monkeypatch):
    world.join("m1")
    world.join("m2")
    world.settle("m1", "m2")
    world.outcome = None
    monkeypatch.setattr(group_saves, "WAITING_BYTES_MAX", 0)
    for name in ("m3", "m4", "m5"):  # each time there would be another epoch
        assert world.join(name).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        answer = world.beat("m1", 2, of(0, 1))
        assert answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    monkeypatch.undo()
    world.outcome = ResponseCode.SUCCESS
    world.end_held()
    assert world.beat("m1", 2, of(0, 1)).error is ErrorCode.NONE
    for name in ("m3", "m4", "m5"):
        world.join(name)
    world.settle("m1", "m2", "m3", "m4", "m5")
    assert world.group.state is ProtocolGroupState.STABLE


def test_b4_a_heartbeat_that_changes_nothing_is_not_saved(world):
    world.join("m1")
    count = len(world.saves)
    for _ in range(10):
        assert world.beat("m1", 1).error is ErrorCode.NONE
    assert len(world.saves) == count


def test_b4_another_coordinator_goes_on_with_all_epochs(world):
    world.join("m1")
    world.join("m2")
    world.settle("m1", "m2")
    epoch = world.group.epoch
    world.now_ms += SESSION_MS - 1
    world.term += 1
    world.coordinate()
    world.wait(SESSION_MS - 1)
    assert len(world.group.members) == 2, "each has a whole session time-out"
    count = len(world.saves)
    for name in ("m1", "m2"):
        assert world.beat(name, epoch).epoch == epoch
    assert world.group.state is ProtocolGroupState.STABLE
    assert len(world.saves) == count


def test_b4_another_coordinator_goes_on_in_the_middle_of_a_rebalance(world):
    world.join("m1")
    world.join("m2")
    world.beat("m1", 1)
    world.term += 1
    world.coordinate()
    assert not world.beat("m2", 2).assigned, "the other has not given up anything yet"
    assert world.beat("m1", 1, of(0, 1)).epoch > 2
    world.settle("m1", "m2")
    assert (world.has("m1"), world.has("m2")) == ([0, 1], [2, 3])


def test_b4_what_could_not_be_saved_never_was(world):
    world.join("m1")
    for outcome in (ResponseCode.TIMEOUT, ResponseCode.NODE_STOPPING):
        world.outcome = outcome
        assert world.join("m2").error in (
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.NOT_COORDINATOR,
        )
        assert list(world.group.members.by_id) == ["m1"]
    world.outcome = ResponseCode.SUCCESS
    assert world.join("m2").error is ErrorCode.NONE


def test_b4_a_save_that_came_late_is_seen_and_the_group_goes_on_from_it(world):
    world.join("m1")
    world.outcome = None
    world.join("m2")
    ((late, done),) = world.held
    done(ResponseCode.TIMEOUT, "", None)
    assert list(world.group.members.by_id) == ["m1"]
    world.groups.save_consumers(late, 0)
    world.outcome = ResponseCode.SUCCESS
    assert world.join("m3").error is ErrorCode.NOT_COORDINATOR
    assert list(world.group.members.by_id) == ["m1", "m2"]
    assert world.join("m3").error is ErrorCode.NONE


def test_c4_members_are_told_that_the_cluster_has_no_room_and_others_go_on(world):
    world.join("m1")
    world.outcome = None
    answers = []
    world.coordinator.heartbeat(
        "g", ConsumerHeartbeat("m2", JOINING, None, None, 1, ("a",)), answers.append
    )
    ((_, done),) = world.held
    done(ResponseCode.SUCCESS, "", GroupsChanged(ResponseCode.CLUSTER_FULL))
    assert [one.error for one in answers] == [ErrorCode.GROUP_MAX_SIZE_REACHED]
    world.outcome = ResponseCode.SUCCESS
    assert world.beat("m1", 1).error is ErrorCode.NONE


def test_on_full_disks_members_go_on_and_are_saved_once_there_is_room(world):
    world.join("m1")
    world.outcome = ResponseCode.DISK_FULL
    assert world.join("m2").error is ErrorCode.COORDINATOR_NOT_AVAILABLE, "the epoch rises first"
    assert world.join("m2").error is ErrorCode.NONE
    world.settle("m1", "m2")
    assert (world.has("m1"), world.has("m2")) == ([0, 1], [2, 3])
    saved = world.groups.records["g"].consumers
    assert list(saved) == ["m1"]
    epochs = [one.held.epoch for one in world.group.members]
    assert min(epochs) > saved["m1"].epoch, "another coordinator would fence all who were told"
    world.outcome = ResponseCode.SUCCESS
    world.wait(SAVE_AGAIN_MS)
    saved = world.groups.records["g"].consumers
    assert [one.epoch for one in saved.values()] == epochs
    count = len(world.saves)
    world.wait(SAVE_AGAIN_MS)
    assert len(world.saves) == count


def test_on_full_disks_members_of_large_groups_get_partitions_with_an_unsaved_epoch(world):
    world.put("a", A, 12_000)
    world.join("m1")
    world.now_ms += 1_100
    epoch = world.join("m2").epoch
    kept = world.beat("m1", 1, of(*range(12_000))).assigned
    world.outcome = ResponseCode.DISK_FULL
    assert world.beat("m1", 1, kept).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.beat("m1", 1, kept).error is ErrorCode.NONE
    told = world.beat("m2", epoch, ())
    assert told.assigned
    assert told.epoch > world.groups.records["g"].consumers["m2"].epoch


def test_on_full_disks_who_came_and_went_leaves_nothing(world):
    world.outcome = ResponseCode.DISK_FULL
    for number in range(20):
        world.join(f"m{number}")
        world.beat(f"m{number}", LEAVING)
    assert world.groups.records == {}
    assert all(not one.removed for one in world.saves)


# -- two protocols --------------------------------------------------------------------------------


def classic(world, name="c"):
    answers = []
    protocols = (GroupProtocol("range", b""),)
    request = JoinRequest(name, "h", "", None, 10_000, 10_000, "consumer", protocols, False)
    world.coordinator.join("g", request, answers.append)
    return answers


def test_b4_a_group_with_members_is_of_their_protocol(world):
    world.join("m1")
    (refused,) = classic(world)
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    world.beat("m1", LEAVING)
    assert classic(world) == []
    answer = world.join("m1")
    assert answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert "group.protocol=classic" in answer.text


def test_b4_an_empty_group_changes_its_protocol_and_its_epochs_go_on(world):
    world.join("m1")
    world.beat("m1", LEAVING)
    epoch = world.groups.records["g"].generation
    assert isinstance(world.group, ProtocolGroup)
    classic(world)
    world.wait(4_000)
    assert isinstance(world.group, ConsumerGroup)
    assert world.group.generation == epoch + 1
    (member,) = world.group.members
    assert world.group.leave(member.member_id, None, world.now_ms) is ErrorCode.NONE
    world.wait(1)
    generation = world.groups.records["g"].generation
    assert (generation, world.groups.records["g"].consumers) == (epoch + 2, None)
    assert world.join("m2").epoch == generation + 1
    assert isinstance(world.group, ProtocolGroup)


def test_b4_a_group_does_not_change_its_protocol_while_it_is_saved_that_it_is_empty(world):
    world.join("m1")
    world.outcome = None
    world.beat("m1", LEAVING)
    (refused,) = classic(world)
    assert refused.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.end_held()
    assert classic(world) == []


def test_b4_a_late_save_of_the_other_protocol_counts_no_more(world):
    record = ConsumerGroupRecord("g", 5)
    world.groups.records["g"] = record
    late = SaveGroup(1, "g", 5, "consumer", "range", "", [])
    world.join("m1")
    assert world.groups.save_group(late, 0).code is ResponseCode.INCONSISTENT_TERM
    world.beat("m1", LEAVING)
    stale = replace_version(world.saves[0], world.groups.records["g"].version)
    assert world.groups.save_consumers(stale, 0).code is ResponseCode.SUCCESS
    world.groups.save_group(SaveGroup(1, "g", 50, "consumer", "range", "", []), 0)
    again = replace_version(world.saves[0], world.groups.records["g"].version)
    assert world.groups.save_consumers(again, 0).code is ResponseCode.INCONSISTENT_TERM


def replace_version(command, version):
    return SaveConsumers(
        command.term, command.group, version, command.epoch + 10, command.changed, command.removed
    )


def test_b4_who_heartbeats_to_no_group_joins_again(world):
    assert world.beat("m1", 3).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.group is None


def test_b4_a_deleted_group_has_no_members_and_nobody_waits(world):
    world.join("m1")
    world.beat("m1", LEAVING)
    assert world.groups.forget(ForgetGroups(1, ["g"])).codes == [ResponseCode.SUCCESS]
    world.coordinator.forget("g")
    assert world.coordinator.names() == []
    assert (world.groups.size_bytes, world.groups.offset_count) == (0, 0)


def test_b4_a_node_that_coordinates_no_more_says_so_to_all_who_wait(world):
    world.outcome = None
    answers = []
    asked = ConsumerHeartbeat("m1", JOINING, None, None, 1, ("a",))
    world.coordinator.heartbeat("g", asked, answers.append)
    world.term = -1
    assert not world.coordinator.is_current()
    assert [one.error for one in answers] == [ErrorCode.NOT_COORDINATOR]
    world.end_held()
    assert len(answers) == 1


def test_the_size_of_a_group_is_what_its_record_says(world):
    world.join("m1", "a", "x", instance_id="i")
    world.join("m2", pattern="a.*")
    world.settle("m1", "m2")
    assert world.groups.size_bytes == world.groups.records["g"].size_bytes
    world.beat("m1", LEAVING, instance_id="i")
    assert world.groups.size_bytes == world.groups.records["g"].size_bytes
    restored = ConsumerGroups.restored(world.groups.records.values())
    assert restored.size_bytes == world.groups.size_bytes


# -- bounds ---------------------------------------------------------------------------------------


def test_c4_groups_that_full_disks_keep_from_being_saved_do_not_fill_memory(world, monkeypatch):
    monkeypatch.setattr(memory_use, "BYTES_MAX", 10_000)
    world.outcome = ResponseCode.DISK_FULL
    told = [world.join(f"m{number}", "a" * 1_000, "b" * 1_000) for number in range(10)]
    full = ErrorCode.GROUP_MAX_SIZE_REACHED
    refused = [one.error is full for one in told]
    assert (refused[0], refused[-1]) == (False, True)
    assert "MiB" in told[-1].text
    larger = world.beat("m0", 1, topics=("a" * 1_000, "b" * 5_000))
    assert larger.error is ErrorCode.COORDINATOR_NOT_AVAILABLE, "a member tries again"
    world.wait(SESSION_MS)
    assert world.join("n", "a" * 1_000).error is not full
