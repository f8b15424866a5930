"""Saves of groups that wait for an earlier one of their group: the last one says all, and all of
them together take a bounded number of bytes."""

from types import SimpleNamespace

import pytest

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups import group_saves as module
from quorumlog.kafka.groups.group_saves import GroupSaves
from quorumlog.machine.cluster.commands import GroupsChanged, SavedMember, SaveGroup
from quorumlog.model.codes import ResponseCode

ROOM = 10_000
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
    monkeypatch.setattr(module, "CALL_BYTES", 10)
    case.save(0)
    taken = case.save_until_refused(["g"])
    assert taken > 500, "each of them waits for its answer"
    case.told.clear()
    case.end()
    assert [command.generation for command, _ in case.ordered] == [0, taken]
    assert case.saves.waiting_bytes == 0
    case.end()
    assert case.told == [(number, ErrorCode.NONE) for number in range(taken + 1)]
    assert not case.saves.is_saving("g")


def test_c4_callers_that_wait_are_bounded_also_if_their_groups_say_nothing(case):
    case.save(0, said=b"")
    assert case.save_until_refused(["g"]) < ROOM // module.CALL_BYTES


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
