"""Saves of a group by the consumer protocol: what waits for them is bounded, of all groups."""

import asyncio
import gc
import tracemalloc
from types import SimpleNamespace

import pytest

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups import group_saves
from quorumlog.kafka.groups.consumer_saves import (
    ANSWER_BYTES,
    PARTITION_BYTES,
    ConsumerSaves,
    Waiting,
)
from quorumlog.kafka.groups.consumers import Consumer, Consumers, HeartbeatAnswer
from quorumlog.kafka.groups.group_saves import GroupSaves
from quorumlog.kafka.handlers.groups import answered
from quorumlog.machine.cluster.commands import GroupsChanged
from quorumlog.model.codes import ResponseCode

ROOM = 10
"""Answers without partitions that may wait."""


class Coordinator(GroupSaves):
    """A coordinator whose saves end when a test says so. `saved`: members in the record."""

    term = 1

    def __init__(self):
        self.ordered, self.saved, self.given_up = [], {}, []
        broker = SimpleNamespace(
            coordinator_term=1,
            order=lambda command, timeout_ms, done: self.ordered.append((command, done)),
            ask_barrier=lambda timeout_ms, done: done(True),
        )
        super().__init__(broker, lambda name: None, lambda command: None)

    def saved_members(self, name):
        return self.saved

    def unsaved(self, name):
        pass

    def give_up(self, name, error):
        self.given_up.append(name)

    def end(self, code=ResponseCode.SUCCESS):
        """Have the newest command end."""
        command, done = self.ordered[-1]
        if code is ResponseCode.SUCCESS:
            self.saved |= dict.fromkeys(one.member_id for one in command.changed)
            self.saved = {one: None for one in self.saved if one not in command.removed}
        done(code, "", GroupsChanged(code))


class Group:
    """Members of a group, which join, say something, and leave. `told`: their answers."""

    def __init__(self, coordinator, name="g"):
        self.members, self.told = Consumers(), []
        self.saves = ConsumerSaves(name, 1, self.members, coordinator, lambda: 1, lambda: None)

    def beat(self, name, assigned=()):
        """Have a member say something that is to be saved, and be told `assigned`."""
        member = self.members.by_id.get(name)
        if member is None:
            member = Consumer(name, None)
            self.members.add(member)
        self.saves.note(member)
        answer = HeartbeatAnswer(ErrorCode.NONE, name, 1, frozenset(assigned))
        self.saves.answer(Waiting(member.change, answer, self._tell))

    def leave(self, name):
        self.members.drop(self.members.by_id[name])
        self.saves.note_removed(name)
        answer = HeartbeatAnswer(ErrorCode.NONE, name, -1)
        self.saves.answer(Waiting(self.saves.changes, answer, self._tell))

    def _tell(self, answer):
        self.told.append((answer.member_id, answer.error))


REFUSED = ("", ErrorCode.COORDINATOR_NOT_AVAILABLE)


@pytest.fixture
def coordinator(monkeypatch):
    monkeypatch.setattr(group_saves, "WAITING_BYTES_MAX", ROOM * ANSWER_BYTES)
    return Coordinator()


def test_c4_answers_that_wait_are_bounded_and_the_rest_is_to_ask_again(coordinator):
    group = Group(coordinator)
    for _ in range(ROOM + 2):
        group.beat("m")
    assert group.told == [REFUSED] * 2
    assert coordinator.waiting_bytes == ROOM * ANSWER_BYTES
    coordinator.end()
    coordinator.end()
    assert group.told[2:] == [("m", ErrorCode.NONE)] * ROOM
    assert coordinator.waiting_bytes == 0
    group.beat("m")
    coordinator.end()
    assert group.told[-1] == ("m", ErrorCode.NONE)


def test_c4_all_groups_have_one_bound_and_partitions_count(coordinator):
    groups = [Group(coordinator, f"g{number}") for number in range(3)]
    wide = [(bytes(16), number) for number in range(ANSWER_BYTES // PARTITION_BYTES + 1)]
    for number in range(ROOM):
        groups[number % 3].beat("m", wide)
    refused = sum(group.told.count(REFUSED) for group in groups)
    assert ROOM / 2 <= refused < ROOM
    for group in groups:
        group.saves.end(ErrorCode.NOT_COORDINATOR)
    assert coordinator.waiting_bytes == 0


@pytest.mark.parametrize("count", [0, 1_000])
def test_c4_answers_that_wait_take_no_more_memory_than_is_counted(count):
    coordinator = Coordinator()
    group = Group(coordinator)
    group.beat("m" * 200)  # its save is the one that hangs
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        counted = coordinator.waiting_bytes
        gc.collect()
        tracemalloc.start()
        try:
            for number in range(50):
                group._tell = answered(loop.create_future())
                group.beat("m" * 200, [(number.to_bytes(16), each) for each in range(count)])
            gc.collect()
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert held < coordinator.waiting_bytes - counted


def test_c4_what_a_member_changes_is_saved_also_if_its_answer_may_not_wait(coordinator):
    group = Group(coordinator)
    for _ in range(ROOM):
        group.beat("m")
    group.beat("other")
    assert group.told == [REFUSED]
    coordinator.end()
    assert [one.member_id for one in coordinator.ordered[-1][0].changed] == ["m", "other"]


def test_c4_members_that_come_and_go_while_a_save_hangs_leave_nothing(coordinator):
    group = Group(coordinator)
    group.beat("m")
    for number in range(100):
        group.beat(f"x{number}")
        group.leave(f"x{number}")
    assert group.saves.is_saving
    assert len(group.saves._removed) == len(group.saves._changed) == 0
    coordinator.end()
    assert (coordinator.saved, len(coordinator.ordered)) == ({"m": None}, 1)
    assert coordinator.waiting_bytes == 0
    assert not group.saves._waiting, "nobody waits for a save that does not come"


def test_who_leaves_while_it_is_saved_is_removed_by_the_next_save(coordinator):
    group = Group(coordinator)
    group.beat("m")
    group.leave("m")
    coordinator.end()
    assert coordinator.ordered[-1][0].removed == ["m"]
    coordinator.end()
    assert coordinator.saved == {}
    assert group.told == [("m", ErrorCode.NONE)] * 2


def test_on_a_full_disk_nothing_goes_on_waiting(coordinator):
    group = Group(coordinator)
    for _ in range(3):
        group.beat("m")
    coordinator.end(ResponseCode.DISK_FULL)
    assert group.told == [REFUSED] * 3
    assert coordinator.waiting_bytes == 0
