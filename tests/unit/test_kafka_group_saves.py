"""Saves of groups that wait for an earlier one of their group: only the newest is kept, and all of
them together, with those who wait for them, take a bounded number of bytes."""

import asyncio
import gc
import secrets
import tracemalloc
from itertools import count
from types import SimpleNamespace

import pytest

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups import group_saves as module
from quorumlog.kafka.groups.group import ConsumerGroup, GroupSettings, GroupState
from quorumlog.kafka.groups.group_saves import GroupSaves
from quorumlog.kafka.groups.members import GroupProtocol, JoinRequest
from quorumlog.kafka.handlers.groups import answered
from quorumlog.machine.cluster.commands import GroupsChanged, SavedMember, SaveGroup
from quorumlog.machine.cluster.consumer_groups import ConsumerGroupRecord
from quorumlog.model.codes import ResponseCode

REJOINS = 50
TIMES = 10_000, 60_000
WIDE = "\N{GRINNING FACE}" * 249
ROOM = 40_000
SAID = bytes(1_000)


class Case:
    """A coordinator's saves. `told`: what callers were, by the generations that they saved."""

    def __init__(self):
        self.ordered, self.told, self.ended, self.unsaved = [], [], [], []
        broker = SimpleNamespace(
            coordinator_term=1,
            order=lambda command, timeout_ms, done: self.ordered.append((command, done)),
            ask_barrier=lambda timeout_ms, done: done(True),
        )
        self.saves = GroupSaves(broker, self.unsaved.append, self.ended.append)

    def save(self, generation, name="g", term=1, said=SAID):
        member = SavedMember("m", None, "client", "host", 10_000, 60_000, said, b"")
        group = SaveGroup(term, name, generation, "consumer", "range", "m", [member])
        self.saves.save(group, lambda error: self.told.append((generation, error)))

    def end(self, code=ResponseCode.SUCCESS):
        """Have the newest command end."""
        self.ordered[-1][1](code, "", GroupsChanged(code))

    def save_until_refused(self, names):
        """Save generations of some groups in turn; return how many were taken."""
        for number in range(1, 1_000):
            self.save(number, names[number % len(names)])
            if self.told:
                return number - 1
        return None


@pytest.fixture
def case(monkeypatch):
    monkeypatch.setattr(module, "WAITING_BYTES_MAX", ROOM)
    return Case()


def refused(generation):
    return generation, ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_c4_saves_that_wait_take_no_more_than_their_bound_and_the_rest_tries_again(case):
    names = [f"g{number}" for number in range(100)]
    for name in names:
        case.save(0, name)
    taken = case.save_until_refused(names)
    assert 3 <= taken < ROOM // len(SAID)
    assert case.told == [refused(taken + 1)]
    assert case.saves.waiting_bytes <= ROOM


def test_c4_of_the_saves_of_one_group_only_the_last_one_takes_its_bytes(case, monkeypatch):
    monkeypatch.setattr(module, "WAITER_BYTES", 50)
    case.save(0)
    taken = case.save_until_refused(["g"])
    assert taken > 500, "each of them waits for its answer"
    case.told.clear()
    case.end()
    assert [command.generation for command, _ in case.ordered] == [0, taken]
    assert case.saves.waiting_bytes == taken * 50, "they wait for what is under way now"
    case.end()
    assert case.told == [(number, ErrorCode.NONE) for number in range(taken + 1)]
    assert case.saves.waiting_bytes == 0
    assert not case.saves.is_saving("g")


def test_c4_callers_that_wait_are_bounded_also_if_their_groups_say_nothing(case):
    case.save(0, said=b"")
    assert case.save_until_refused(["g"]) <= ROOM // module.WAITER_BYTES


def test_c4_a_save_that_is_refused_leaves_the_one_before_it_waiting(case):
    case.save(0)
    case.save(1)
    case.save(2, said=bytes(ROOM))
    assert case.told == [refused(2)]
    case.end()
    assert [command.generation for command, _ in case.ordered] == [0, 1]
    case.save(3)
    case.end()
    case.end()
    assert case.told[1:] == [(number, ErrorCode.NONE) for number in (0, 1, 3)]
    assert [one.generation for one in case.ended] == [0, 1, 3]


def test_b4_what_waits_of_an_earlier_term_is_not_saved_in_a_later_one(case):
    case.save(0, term=1)
    case.save(1, term=1)
    case.save(2, term=2)
    assert case.told == [(1, ErrorCode.NOT_COORDINATOR)]
    case.end()
    case.end()
    assert [command.generation for command, _ in case.ordered] == [0, 2]
    assert case.told[1:] == [(0, ErrorCode.NONE), (2, ErrorCode.NONE)]


def test_a_group_that_went_on_unsaved_is_named(case):
    case.save(0)
    case.end(ResponseCode.DISK_FULL)
    assert case.told == [(0, ErrorCode.NONE)]
    assert case.unsaved == ["g"]


# -- what is held while a save hangs --------------------------------------------------------------


class Store:
    """What a group needs of its coordinator, with saves that do not end."""

    term = 1

    def __init__(self, saves):
        self._saves, self._ids = saves, count()

    def now_ms(self):
        return 0

    def new_member_id(self, prefix):
        return f"{prefix}-{next(self._ids):036}"

    def generation_began(self):
        pass

    def save(self, group, done):
        self._saves.save(group, done)


class Rejoining:
    """A group with a static member that is started again and again, and what that takes."""

    def __init__(self, loop, members, said_bytes, instance_id="i"):
        self._loop = loop
        self.saves, self._said_bytes, self._instance_id = Case().saves, said_bytes, instance_id
        self.group = ConsumerGroup("g", GroupSettings(), Store(self.saves))
        saved = tuple(
            SavedMember(
                f"m{number}", instance_id if not number else None, "c", "h", *TIMES, b"", b""
            )
            for number in range(members)
        )
        record = ConsumerGroupRecord("g", 1, "consumer", "range", "m1", saved)
        self.group.restore(record, 0)

    def join(self):
        protocols = (GroupProtocol("range", secrets.token_bytes(self._said_bytes)),)
        request = JoinRequest("c", "h", "", self._instance_id, *TIMES, "consumer", protocols)
        answer = self._loop.create_future()
        self.group.join(request, 0, answered(answer))
        answer.cancel()  # it has closed its connection

    def leave(self):
        self.group.leave("", self._instance_id, 0)

    def held_bytes(self, again):
        """Return how many bytes more are held after that was done again and again."""
        again()  # its save is the one that hangs
        again()
        counted = self.saves.waiting_bytes
        gc.collect()
        tracemalloc.start()
        try:
            for _ in range(REJOINS):
                again()
            gc.collect()
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert self.saves.waiting_bytes - counted >= REJOINS * module.WAITER_BYTES
        return held


@pytest.fixture
def loop():
    with asyncio.Runner() as runner:
        yield runner.get_loop()


@pytest.mark.parametrize("instance_id", ["i", WIDE], ids=["short", "long"])
@pytest.mark.parametrize(("members", "said_bytes"), [(500, 10), (2, 100_000)])
def test_c4_rejoins_of_a_static_member_hold_no_more_than_is_counted(
    loop, members, said_bytes, instance_id
):
    rejoining = Rejoining(loop, members, said_bytes, instance_id)
    held = rejoining.held_bytes(rejoining.join)
    assert rejoining.group.state is GroupState.STABLE
    assert held < rejoining.saves.waiting_bytes, "what they said before, or older saves, are held"


def test_c4_a_static_member_that_leaves_and_joins_holds_no_more_than_is_counted(loop):
    rejoining = Rejoining(loop, 2, 100_000)

    def again():
        rejoining.leave()
        rejoining.join()

    held = rejoining.held_bytes(again)
    assert rejoining.group.state is GroupState.PREPARING
    assert held < rejoining.saves.waiting_bytes + 100_000, "members that have left are held"
