"""Timers of many replicas: what is due at one moment is woken in one turn of the loop."""

from quorumlog.node.timers import STALE_MAX, TICKS_MAX, TimerQueue


class Loop:
    """A loop whose time stands still until it is told to go on."""

    def __init__(self):
        self.now_ms = 1_000
        self.calls = []
        self.failures = []
        self.wakes = TimerQueue(self, lambda: self.now_ms, self.failures.append)

    class Handle:
        cancelled = False

        def cancel(self):
            self.cancelled = True

    def call_later(self, delay, action):
        handle = self.Handle()
        self.calls.append((self.now_ms + round(delay * 1_000), action, handle))
        return handle

    def pending(self):
        return [call for call in self.calls if not call[2].cancelled]

    def turn(self):
        """Let what is due happen; return how often the loop called."""
        due = [call for call in self.pending() if call[0] <= self.now_ms]
        self.calls = [call for call in self.pending() if call[0] > self.now_ms]
        for _, action, _ in due:
            action()
        return len(due)

    def wake(self, told, name):
        wake = self.wakes.new()
        wake.tick = lambda: told.append(name)
        return wake


def test_all_that_is_due_at_one_moment_is_woken_in_one_turn():
    loop, told = Loop(), []
    for name, deadline in (("a", 1_100), ("b", 1_100), ("c", 1_200), ("d", 1_050)):
        loop.wake(told, name).wake_at(deadline)
    assert len(loop.pending()) == 1, "one timer for all"
    loop.now_ms = 1_050
    loop.turn()
    assert told == ["d"]
    loop.now_ms = 1_100
    assert loop.turn() == 1
    assert told == ["d", "a", "b"]
    loop.now_ms = 1_200
    loop.turn()
    assert told == ["d", "a", "b", "c"]
    assert not loop.pending()


def test_an_earlier_deadline_replaces_a_later_and_a_later_does_not_replace_an_earlier():
    loop, told = Loop(), []
    wake = loop.wake(told, "a")
    for deadline in (1_500, 1_200, 1_900):
        wake.wake_at(deadline)
    for loop.now_ms in (1_199, 1_200, 1_500, 1_900):
        loop.turn()
    assert told == ["a"]
    wake.wake_at(1_950)
    loop.now_ms = 1_950
    loop.turn()
    assert told == ["a", "a"]


def test_sockets_are_looked_at_between_many_that_are_due():
    loop, told = Loop(), []
    for number in range(TICKS_MAX + 3):
        loop.wake(told, number).wake_at(1_100)
    loop.now_ms = 1_100
    loop.turn()
    assert told == list(range(TICKS_MAX))
    loop.turn()
    assert told == list(range(TICKS_MAX + 3))


def test_one_that_raises_keeps_nobody_from_being_woken():
    loop, told = Loop(), []
    first = loop.wake(told, "first")
    bad = loop.wakes.new()
    bad.tick = lambda: 1 / 0
    for wake in (first, bad, loop.wake(told, "last")):
        wake.wake_at(1_100)
    loop.now_ms = 1_100
    loop.turn()
    assert told == ["first", "last"]
    assert [type(failure) for failure in loop.failures] == [ZeroDivisionError]


def test_deadlines_that_were_replaced_are_forgotten():
    loop, told = Loop(), []
    wake = loop.wake(told, "a")
    for deadline in range(1_000_000, 1_000_000 - 10 * STALE_MAX, -1):
        wake.wake_at(deadline)
    assert len(loop.wakes._heap) <= STALE_MAX + 1
    loop.now_ms = deadline
    loop.turn()
    assert told == ["a"]


def test_stopped_it_wakes_nobody():
    loop, told = Loop(), []
    wake = loop.wake(told, "a")
    wake.wake_at(1_100)
    loop.wakes.stop()
    wake.wake_at(1_010)
    loop.now_ms = 2_000
    loop.turn()
    assert not told
