"""Timers of replicas: one that raises ends the node, and keeps none of the others from its time."""

import asyncio

from quorumlog.node.wakes import Wakes


async def test_a_timer_that_raises_is_told_and_the_others_are_woken():
    now_ms, failures, woken = 0, [], []
    wakes = Wakes(asyncio.get_running_loop(), lambda: now_ms, failures.append)
    done = asyncio.Event()

    def broken():
        raise ValueError("a bug")

    def good(name):
        def tick():
            woken.append(name)
            if len(woken) == 2:
                done.set()

        return tick

    for tick in (good("before"), broken, good("behind")):
        wake = wakes.new()
        wake.tick = tick
        wake.wake_at(0)
    async with asyncio.timeout(10):
        await done.wait()
    assert woken == ["before", "behind"]
    assert [str(failure) for failure in failures] == ["a bug"]
    wakes.stop()
