"""The event loop of simulated time does for coroutines what asyncio's does."""

import asyncio
import heapq
import itertools

import pytest

from quorumlog.sim.event_loop import SimulatedLoop


class Clock:
    """A queue of calls; `run` makes them all."""

    def __init__(self):
        self.now_us, self.numbers, self.queue = 0, itertools.count(), []
        self.loop = SimulatedLoop(self.later, lambda: self.now_us)

    def later(self, delay_us, call):
        heapq.heappush(self.queue, (self.now_us + delay_us, next(self.numbers), call))

    def run(self, coroutine):
        return self.loop.run(lambda: self._until_done(coroutine))

    def _until_done(self, coroutine):
        task = self.loop.create_task(coroutine)
        while self.queue:
            self.now_us, _, call = heapq.heappop(self.queue)
            call()
        return task


@pytest.fixture
def clock():
    return Clock()


def test_time_passes_only_in_the_simulation(clock):
    async def nap():
        await asyncio.sleep(3_600)
        return asyncio.get_running_loop().time()

    assert clock.run(nap()).result() == 3_600


def test_a_timeout_ends_a_wait_and_a_result_ends_a_timeout(clock):
    async def wait(future, seconds):
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            return "too late"

    async def both():
        never, soon = clock.loop.create_future(), clock.loop.create_future()
        clock.loop.call_later(1, soon.set_result, "in time")
        return await asyncio.gather(wait(never, 2), wait(soon, 2))

    assert clock.run(both()).result() == ["too late", "in time"]
    assert clock.now_us == 2_000_000


def test_what_is_cancelled_is_not_called(clock):
    called = []

    async def cancel():
        clock.loop.call_soon(called.append, 1).cancel()
        handle = clock.loop.call_at(5, called.append, 2)
        assert (handle.when(), handle.cancelled()) == (5, False)
        clock.loop.call_later(1, handle.cancel)
        clock.loop.call_soon(called.append, 3)

    clock.run(cancel())
    assert called == [3]


def test_nothing_is_called_once_the_process_has_ended(clock):
    called = []

    async def end():
        clock.loop.call_later(1, called.append, 1)
        clock.loop.close()
        clock.loop.call_soon(called.append, 2)
        await asyncio.sleep(1)
        called.append(3)

    task = clock.run(end())
    assert not called
    assert not task.done()
    assert clock.loop.is_closed()


def test_the_loop_that_ran_before_runs_again_afterwards(clock):
    other = Clock().loop

    def both():
        return clock.loop.run(asyncio.get_running_loop), asyncio.get_running_loop()

    assert other.run(both) == (clock.loop, other)
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
