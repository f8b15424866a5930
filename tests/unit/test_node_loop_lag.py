"""The lag of the event loop is measured and reported."""

import pytest

from quorumlog.node import loop_lag
from quorumlog.node.loop_lag import KEPT_S, MEASURE_S, STALL_S, LoopLag


class Loop:
    """Calls back when it is told to, as late as it is told to."""

    def __init__(self):
        self.now = 1_000.0
        self.calls = []

    def call_later(self, delay, call, *arguments):
        timer = Timer(self, self.now + delay, call, arguments)
        self.calls.append(timer)
        return timer

    def turn(self, late=0.0):
        (timer,) = self.calls
        self.calls.remove(timer)
        self.now = timer.when + late
        timer.call(*timer.arguments)


class Timer:
    def __init__(self, loop, when, call, arguments):
        self.loop, self.when, self.call, self.arguments = loop, when, call, arguments

    def cancel(self):
        self.loop.calls.remove(self)


@pytest.fixture
def loop(monkeypatch):
    made = Loop()
    monkeypatch.setattr(loop_lag.time, "monotonic", lambda: made.now)
    return made


@pytest.fixture
def lag(loop):
    made = LoopLag(loop)
    made.start()
    return made


def test_a_loop_that_is_on_time_has_no_lag(loop, lag):
    for _ in range(10):
        loop.turn()
    assert (lag.recent_max_s, lag.stalls) == (0.0, 0)


def test_the_longest_lag_is_told_and_stalls_are_counted(loop, lag):
    loop.turn(late=STALL_S / 2)
    assert (lag.recent_max_s, lag.stalls) == (pytest.approx(STALL_S / 2), 0)
    loop.turn(late=3.0)
    loop.turn(late=STALL_S * 1.01)
    assert (lag.recent_max_s, lag.stalls) == (pytest.approx(3.0), 2)


def test_a_late_turn_makes_only_itself_late(loop, lag):
    loop.turn(late=3.0)
    loop.turn()
    assert lag.stalls == 1


def test_what_is_long_ago_is_not_recent_and_still_counted(loop, lag):
    loop.turn(late=3.0)
    for _ in range(int(KEPT_S / MEASURE_S) + 1):
        loop.turn()
    assert (lag.recent_max_s, lag.stalls) == (0.0, 1)


def test_no_more_is_remembered_than_of_the_last_minute(loop, lag):
    for _ in range(3 * int(KEPT_S / MEASURE_S)):
        loop.turn(late=0.01)
    assert len(lag._recent) == int(KEPT_S / MEASURE_S)


def test_a_lag_that_is_still_going_on_is_not_forgotten_with_the_loop_standing(loop, lag):
    loop.turn(late=0.5)
    loop.now += KEPT_S - 1
    assert lag.recent_max_s == pytest.approx(0.5)


def test_it_looks_no_more_when_stopped(loop, lag):
    lag.stop()
    assert loop.calls == []
    LoopLag(loop).stop()  # never started
