"""When a broker looks at its replicas: seldom while nothing goes on, at once after a change."""

import pytest

from quorumlog.broker.pace import LATELY_MS, LOOK_MS, QUIET_LOOK_MS, Pace
from quorumlog.node.timers import TimerQueue


class Case:
    """A pace on a clock that goes on by whole milliseconds; notes when it was looked."""

    def __init__(self):
        self.now_ms, self.calls, self.looks = 1_000, [], []
        self.failures = []
        timers = TimerQueue(self, lambda: self.now_ms, self.failures.append)
        self.pace = Pace(timers.new(), lambda: self.now_ms)
        self.work = lambda: None
        self.pace.start(self.look)

    def look(self):
        self.pace.looks()
        self.looks.append(self.now_ms)
        self.work()

    def call_later(self, delay, action):
        handle = Handle()
        self.calls.append((self.now_ms + round(delay * 1_000), action, handle))
        return handle

    def run(self, ms):
        """Let time pass; return when looks happened, counted from now."""
        begin, before = self.now_ms, len(self.looks)
        for self.now_ms in range(begin, begin + ms + 1):
            due = [one for one in self.calls if one[0] <= self.now_ms]
            self.calls = [one for one in self.calls if one[0] > self.now_ms]
            for _, action, handle in due:
                if not handle.is_cancelled:
                    action()
        assert not self.failures
        return [at - begin for at in self.looks[before:]]


class Handle:
    is_cancelled = False

    def cancel(self):
        self.is_cancelled = True


@pytest.fixture
def case():
    return Case()


def test_a_broker_looks_seldom_once_nothing_has_changed_for_a_while(case):
    assert len(case.run(LATELY_MS)) == LATELY_MS // LOOK_MS
    case.run(QUIET_LOOK_MS)
    assert len(case.run(10_000)) <= 10_000 // QUIET_LOOK_MS + 1


def test_it_looks_at_once_after_a_change_and_often_for_a_while(case):
    case.run(LATELY_MS + 2 * QUIET_LOOK_MS + 100)
    case.pace.changed()
    found = case.run(LATELY_MS)
    assert found[:2] == [0, LOOK_MS]
    assert len(found) >= LATELY_MS // LOOK_MS


def test_it_looks_often_while_something_is_under_way(case):
    case.run(LATELY_MS + QUIET_LOOK_MS)
    case.work = case.pace.soon
    case.run(QUIET_LOOK_MS)
    assert len(case.run(1_000)) == 1_000 // LOOK_MS


def test_many_changes_do_not_have_it_look_all_the_time(case):
    case.run(LATELY_MS + QUIET_LOOK_MS)
    looks = 0
    for _ in range(100):
        case.pace.changed()
        looks += len(case.run(1))
    assert 2 <= looks <= 200 // LOOK_MS


def test_nothing_is_looked_at_after_the_end(case):
    case.pace.end()
    case.pace.changed()
    assert case.run(1_000) == []
