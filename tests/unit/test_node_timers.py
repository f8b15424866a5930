"""When replicas are ticked, and what happens before."""

import asyncio
import socket

import pytest
import uvloop

from quorumlog.node.node import monotonic_ms
from quorumlog.node.timers import LATE_MS, TimerQueue


class Loop:
    """Timers that go off when the test says so."""

    def __init__(self):
        self.timers = []

    def call_later(self, delay, function):
        self.timers.append((delay, function))
        return self

    def cancel(self):
        self.timers.pop()

    def go(self):
        _, function = self.timers.pop()
        function()


class World:
    def __init__(self):
        self.now_ms, self.loop, self.ticks = 1_000, Loop(), []
        self.wakes = TimerQueue(self.loop, lambda: self.now_ms, lambda error: None)
        self.wake = self.wakes.new()
        self.wake.tick = lambda: self.ticks.append(self.now_ms)


@pytest.fixture
def world():
    return World()


def test_a_timer_in_time_wakes_at_once(world):
    world.wake.wake_at(1_200)
    world.now_ms = 1_200 + LATE_MS - 1
    world.loop.go()
    assert world.ticks == [1_200 + LATE_MS - 1]


def test_a_late_timer_wakes_after_one_look_at_sockets_and_no_later(world):
    world.wake.wake_at(1_200)
    world.now_ms = 2_000
    world.loop.go()
    assert world.ticks == []
    ((delay, _),) = world.loop.timers
    assert delay > 0
    world.now_ms = 3_000
    world.loop.go()
    assert world.ticks == [3_000]
    assert world.loop.timers == []


def test_what_was_due_before_it_was_asked_for_is_not_late(world):
    world.wake.wake_at(10)
    world.loop.go()
    assert world.ticks == [1_000]


def test_a_loop_that_stood_still_reads_what_has_come_before_its_timers_fire():
    """uvloop has its timers go off before it looks at sockets again."""

    async def run():
        loop, order = asyncio.get_running_loop(), []
        (asked, stranger), (answered, member) = socket.socketpair(), socket.socketpair()
        done = loop.create_future()

        def tick():
            order.append("tick")
            done.set_result(None)

        wakes = TimerQueue(loop, monotonic_ms, done.set_exception)
        wake = wakes.new()
        wake.tick = tick

        def busy():
            loop.remove_reader(asked)
            wake.wake_at(monotonic_ms() + 5)
            until = monotonic_ms() + 5 + LATE_MS
            member.send(b"an answer")
            while monotonic_ms() <= until:  # the loop stands still
                pass

        def heard():
            loop.remove_reader(answered)
            order.append("heard")

        with asked, stranger, answered, member:
            loop.add_reader(answered, heard)
            loop.add_reader(asked, busy)
            stranger.send(b"a request")
            await done
            wakes.stop()
        return order

    assert uvloop.run(run()) == ["heard", "tick"]
