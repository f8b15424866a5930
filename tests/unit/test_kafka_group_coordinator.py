"""The coordinator of consumer groups: which groups it has in memory, and which it forgets."""

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from quorumlog.kafka.counters import KafkaCounters
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.expiry import GRACE_MS
from quorumlog.kafka.groups import coordinator as module
from quorumlog.kafka.groups import memory_use
from quorumlog.kafka.groups.coordinator import (
    EXPIRE_EVERY_MS,
    SAVE_AGAIN_MS,
    TAKEN_PER_TICK,
    GroupCoordinator,
)
from quorumlog.kafka.groups.group import GroupState
from quorumlog.kafka.groups.group_saves import SAVE_MS
from quorumlog.kafka.groups.members import GroupProtocol, JoinRequest, SyncRequest
from quorumlog.machine.cluster.commands import ForgetGroups, GroupsChanged, SavedMember, SaveGroup
from quorumlog.machine.cluster.consumer_groups import ConsumerGroupRecord
from quorumlog.model.codes import ResponseCode

DAY_MS = 86_400_000
RETENTION_DAYS = 7


class World:
    """A broker that coordinates, and the time, which is the wall clock's, too."""

    wrong_ms = 0
    """By how much the wall clock is ahead."""

    def __init__(self, *records):
        self.now_ms, self.due, self.ordered, self.done = 30 * DAY_MS, [], [], []
        self.is_leader = True
        self.broker = SimpleNamespace(
            coordinator_term=1,
            consumer_groups={one.name: one for one in records},
            consumer_group_bytes=0,
            defaults={},
            order=self.order,
            ask_barrier=lambda timeout_ms, done: done(self.is_leader),
        )
        self.coordinator = GroupCoordinator(
            self.broker,
            lambda: self.now_ms,
            lambda: self.now_ms + self.wrong_ms,
            lambda: "unique",
            lambda seconds, call: self.due.append(call),
            KafkaCounters(),
        )
        assert self.coordinator.is_current()

    def order(self, command, timeout_ms, done):
        self.ordered.append(command)
        self.done.append(done)

    def join(self, name, session_ms, *, knows_ids=True, answers=None, said=b""):
        answers = [] if answers is None else answers
        protocols = (GroupProtocol("range", said),)
        request = JoinRequest(
            "c", "h", "", None, session_ms, session_ms, "consumer", protocols, knows_ids
        )
        self.coordinator.join(name, request, answers.append)
        return answers[0].error if answers else None

    def forgotten(self):
        return [one.groups for one in self.ordered if isinstance(one, ForgetGroups)]

    def wait(self, time_ms):
        self.now_ms += time_ms
        due, self.due = self.due, []
        for call in due:
            call()


def test_c4_groups_that_nobody_could_join_take_no_place(monkeypatch):
    monkeypatch.setattr(module, "GROUPS_MAX", 3)
    world = World()
    for number in range(5):
        assert world.join(f"refused-{number}", 1) is ErrorCode.INVALID_SESSION_TIMEOUT
    assert world.join("g", 10_000) is ErrorCode.MEMBER_ID_REQUIRED


@pytest.mark.parametrize(("age_days", "is_old"), [(RETENTION_DAYS - 1, False), (8, True)])
def test_b5_a_group_without_members_is_forgotten_after_its_time_also_if_it_was_looked_at(
    age_days, is_old
):
    world = World(ConsumerGroupRecord("g", changed_ms=(30 - age_days) * DAY_MS))
    assert world.coordinator.find("g").is_unused
    world.wait(GRACE_MS)
    assert world.forgotten() == ([["g"]] if is_old else [])


def test_a_coordinator_forgets_no_group_before_it_has_seen_that_nobody_uses_it():
    world = World(ConsumerGroupRecord("g", changed_ms=0))  # by a clock that was never set
    world.wait(GRACE_MS - 1)
    assert world.forgotten() == []
    world.wait(EXPIRE_EVERY_MS)
    assert world.forgotten() == [["g"]]


def test_a_coordinator_whose_wall_clock_is_set_forgets_no_group_until_it_has_gone_evenly():
    world = World(ConsumerGroupRecord("g", changed_ms=30 * DAY_MS))
    world.wait(GRACE_MS)
    world.wrong_ms = 8 * DAY_MS
    world.wait(EXPIRE_EVERY_MS)
    world.wait(GRACE_MS - 1)
    assert world.forgotten() == []
    world.wait(EXPIRE_EVERY_MS)
    assert world.forgotten() == [["g"]]


MEMBER = SavedMember("m", None, "client", "host", 10_000, 60_000, b"topics", b"part")


def of_a_member(name="g"):
    return ConsumerGroupRecord(name, 1, "consumer", "range", "m", (MEMBER,))


def test_c4_a_new_group_is_refused_when_as_many_are_saved_or_about_to_be(monkeypatch):
    monkeypatch.setattr(module, "GROUPS_MAX", 3)
    world = World(ConsumerGroupRecord("a"), ConsumerGroupRecord("b"))
    assert world.join("a", 10_000) is ErrorCode.MEMBER_ID_REQUIRED
    assert world.join("c", 10_000) is ErrorCode.MEMBER_ID_REQUIRED
    assert world.join("d", 10_000) is ErrorCode.GROUP_MAX_SIZE_REACHED


SAID = bytes(1_000)
"""What a member says; with the rest it takes a good deal less than twice as much."""


@pytest.fixture
def small(monkeypatch):
    """A coordinator whose groups may take 10,000 bytes together."""
    monkeypatch.setattr(memory_use, "BYTES_MAX", 10_000)
    return World()


def joined_until_refused(world):
    """Have members join groups of their own until one is refused; return how many were not."""
    for number in range(20):
        if world.join(f"g{number}", 10_000, knows_ids=False, said=SAID) is not None:
            return number
    return None


def test_c4_groups_that_are_never_saved_do_not_fill_the_memory_of_a_coordinator(small):
    assert 5 <= joined_until_refused(small) < 10
    assert small.join("h", 10_000, knows_ids=False, said=SAID) is ErrorCode.GROUP_MAX_SIZE_REACHED
    small.wait(3_000)
    assert small.coordinator.find("g0").state is GroupState.COMPLETING, "nobody syncs"
    assert small.join("h", 10_000, knows_ids=False, said=SAID) is ErrorCode.GROUP_MAX_SIZE_REACHED
    small.wait(10_000)
    small.wait(10_000)
    assert 5 <= joined_until_refused(small) < 10, "they are gone, and leave their room to others"


def test_c4_what_groups_take_in_memory_counts_beside_what_is_saved(small):
    small.broker.consumer_group_bytes = 10_000 - 2 * len(SAID)
    assert joined_until_refused(small) == 1


def test_c4_what_is_saved_of_a_group_does_not_count_twice(small):
    member = replace(MEMBER, metadata=SAID)
    record = replace(of_a_member(), members=(member,))
    small.broker.consumer_groups["g"] = record
    small.broker.consumer_group_bytes = 10_000 - 2 * len(SAID)
    group = small.coordinator.find("g")
    assert group.unsaved_bytes(record) < 100
    assert joined_until_refused(small) == 1


def test_c4_a_member_that_says_no_more_than_before_joins_again_though_there_is_no_room(small):
    record = replace(of_a_member(), members=(replace(MEMBER, metadata=SAID),))
    small.broker.consumer_groups["g"] = record
    small.broker.consumer_group_bytes = 10_000
    protocols, answers = (GroupProtocol("range", SAID),), []
    again = JoinRequest("client", "host", "m", None, 10_000, 60_000, "consumer", protocols)
    small.coordinator.join("g", again, answers.append)
    assert [one.error for one in answers] in ([], [ErrorCode.NONE])


def test_c4_ids_that_were_given_to_members_take_room_until_their_time_is_over(small):
    def invited():
        return [small.join("g", 10_000) for _ in range(200)].count(ErrorCode.MEMBER_ID_REQUIRED)

    small.coordinator._unique = iter(range(1_000)).__next__
    assert 50 <= invited() < 100
    assert invited() == 0
    small.wait(10_000)
    assert 50 <= invited() < 100


def test_c4_members_are_told_that_the_cluster_has_no_room_for_their_group():
    world, told = World(), []
    world.coordinator.save(SaveGroup(1, "g", 1, "consumer", "range", "", []), told.append)
    world.done[-1](ResponseCode.SUCCESS, "", GroupsChanged(ResponseCode.CLUSTER_FULL))
    world.coordinator.save(SaveGroup(1, "g", 1, "consumer", "range", "", []), told.append)
    world.done[-1](ResponseCode.TIMEOUT, "", None)
    world.coordinator.save(SaveGroup(1, "g", 1, "consumer", "range", "", []), told.append)
    world.done[-1](ResponseCode.NODE_STOPPING, "", None)
    assert told == [
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    ]


def test_on_a_full_disk_a_group_goes_on_and_is_saved_once_there_is_room():
    world, told = World(), []
    world.coordinator.is_current()
    assert world.join("g", 10_000, knows_ids=False) is None
    world.wait(3_000)  # the group has gathered
    group = world.coordinator.find("g")
    (member,) = group.members
    sync = SyncRequest(member.member_id, None, 1, "consumer", "range", {member.member_id: b"0"})
    group.sync(sync, world.now_ms, told.append)
    world.done[-1](ResponseCode.DISK_FULL, "", None)
    assert [(one.error, one.assignment) for one in told] == [(ErrorCode.NONE, b"0")]
    assert group.state is GroupState.STABLE
    for _ in range(5):
        world.wait(1_000)
        assert group.heartbeat(member.member_id, None, 1, world.now_ms) is ErrorCode.NONE
        world.done[-1](ResponseCode.DISK_FULL, "", None)
    assert 4 <= len(world.ordered) <= 6, "it is tried each second"
    world.wait(1_000)
    assert [one.assignment for one in world.ordered[-1].members] == [b"0"]
    world.done[-1](ResponseCode.SUCCESS, "", GroupsChanged(ResponseCode.SUCCESS))
    count = len(world.ordered)
    group.heartbeat(member.member_id, None, 1, world.now_ms)
    world.wait(3_000)
    assert len(world.ordered) == count


@pytest.mark.parametrize(
    "outcome",
    [
        (ResponseCode.TIMEOUT, "", None),
        (ResponseCode.SUCCESS, "", GroupsChanged(ResponseCode.CLUSTER_FULL)),
    ],
)
def test_a_group_that_went_on_unsaved_is_saved_again_until_it_is(outcome):
    world = World(of_a_member())
    world.wait(0)
    group = world.coordinator.find("g")
    world.coordinator.save(group.saved(), lambda error: None)
    world.done[-1](ResponseCode.DISK_FULL, "", None)
    for _ in range(3):
        count = len(world.ordered)
        world.wait(SAVE_AGAIN_MS)
        assert len(world.ordered) == count + 1
        world.done[-1](*outcome)
    world.wait(SAVE_AGAIN_MS)
    world.done[-1](ResponseCode.SUCCESS, "", GroupsChanged(ResponseCode.SUCCESS))
    count = len(world.ordered)
    world.wait(SAVE_AGAIN_MS)
    assert len(world.ordered) == count


def test_groups_that_rebalance_do_not_keep_others_from_being_saved(monkeypatch):
    monkeypatch.setattr(module, "TAKEN_PER_TICK", 2)
    records = [of_a_member(f"g{number}") for number in range(4)]
    world = World(*records)
    for _ in range(3):
        world.wait(0)
    for record in records:
        group = world.coordinator.find(record.name)
        world.coordinator.save(group.saved(), lambda error: None)
        world.done[-1](ResponseCode.DISK_FULL, "", None)
    for record in records[:2]:
        world.coordinator.find(record.name).state = GroupState.COMPLETING
    count = len(world.ordered)
    for _ in range(2):
        world.wait(SAVE_AGAIN_MS)
    assert [one.group for one in world.ordered[count:]] == ["g2", "g3"]


@pytest.mark.parametrize("change", [{"is_leader": False}, {"term": 2}])
def test_on_a_full_disk_a_node_that_may_not_coordinate_any_more_lets_no_group_go_on(change):
    world, told = World(), []
    world.coordinator.is_current()
    world.coordinator.save(SaveGroup(1, "g", 1, "consumer", "range", "", []), told.append)
    world.is_leader = change.get("is_leader", True)
    world.broker.coordinator_term = change.get("term", 1)
    world.done[-1](ResponseCode.DISK_FULL, "", None)
    assert told == [ErrorCode.COORDINATOR_NOT_AVAILABLE]


def test_b4_a_group_that_became_empty_does_not_come_back_with_its_members_before_that_is_saved():
    world = World(of_a_member())
    world.wait(0)
    for _ in range(12):
        world.wait(1_000)
    assert [one.members for one in world.ordered] == [[]]
    assert world.coordinator.find("g").is_unused
    world.wait(SAVE_MS)
    assert world.coordinator.find("g").is_unused, "the record still has the member"
    world.broker.consumer_groups["g"] = ConsumerGroupRecord("g", 2)
    world.done[-1](ResponseCode.SUCCESS, "", GroupsChanged(ResponseCode.SUCCESS))
    world.broker.consumer_groups.clear()
    assert world.coordinator.names() == [], "it is in memory no more"


def test_b4_many_groups_are_taken_over_in_turns_and_at_once_when_asked_for():
    names = [f"g{number}" for number in range(2 * TAKEN_PER_TICK + 1)]
    world = World(*map(of_a_member, names))
    assert len(world.coordinator.find(names[-1]).members) == 1
    for _ in range(3):
        world.wait(0)
    world.broker.consumer_groups.clear()
    assert sorted(world.coordinator.names()) == sorted(names)


def test_b4_who_joins_while_the_group_is_deleted_is_told_to_join_again():
    world, answers = World(ConsumerGroupRecord("g", 1)), []
    assert world.join("g", 10_000, knows_ids=False, answers=answers) is None
    world.coordinator.forget("g")
    assert [one.error for one in answers] == [ErrorCode.UNKNOWN_MEMBER_ID]


def saved_by(world, number=-1, code=ResponseCode.SUCCESS):
    """Have a save end; the record has what was saved if that succeeded."""
    command = world.ordered[number]
    if code is ResponseCode.SUCCESS:
        world.broker.consumer_groups[command.group] = ConsumerGroupRecord(
            command.group, command.generation, members=tuple(command.members)
        )
        world.done[number](code, "", GroupsChanged(code))
    else:
        world.done[number](code, "", None)


def test_b4_that_a_group_is_empty_is_saved_again_until_it_is():
    world = World(of_a_member())
    world.wait(0)
    world.wait(10_000)
    for failures in range(1, 4):
        saved_by(world, code=ResponseCode.TIMEOUT)
        assert world.coordinator.find("g").is_unused, "its record still has the member"
        world.wait(SAVE_AGAIN_MS)
        assert len(world.ordered) == failures + 1
    saved_by(world)
    world.wait(SAVE_AGAIN_MS)
    assert len(world.ordered) == 4
    world.broker.consumer_groups.clear()
    assert world.coordinator.names() == []


def test_b4_of_one_group_one_save_is_under_way_and_the_last_one_that_waits_comes_next():
    world, told = World(), []

    def save(generation):
        group = SaveGroup(1, "g", generation, "consumer", "range", "m", [MEMBER])
        world.coordinator.save(group, lambda error: told.append((generation, error)))

    for generation in (1, 2, 3):
        save(generation)
    assert [one.generation for one in world.ordered] == [1]
    saved_by(world)
    assert [one.generation for one in world.ordered] == [1, 3]
    assert told == [(1, ErrorCode.NONE)]
    saved_by(world)
    assert told[1:] == [(2, ErrorCode.NONE), (3, ErrorCode.NONE)]
    save(4)
    assert world.ordered[-1].generation == 4


def test_b4_members_that_were_saved_while_their_group_was_deleted_are_looked_after():
    world = World(ConsumerGroupRecord("g", 1))
    group = SaveGroup(1, "g", 2, "consumer", "range", "m", [MEMBER])
    world.coordinator.save(group, lambda error: None)
    world.coordinator.forget("g")
    saved_by(world)
    world.wait(20_000)
    assert world.ordered[-1].members == [], "the member was silent for its session time-out"


def test_b4_times_that_are_over_are_forgotten(monkeypatch):
    monkeypatch.setattr(module, "DUE_MIN", 10)
    world = World(of_a_member())
    group = world.coordinator.find("g")
    for earlier in range(1_000):
        group.looked_at_ms = None
        world.now_ms += earlier
        world.coordinator.touch(group)
    assert len(world.coordinator._due) <= 13
