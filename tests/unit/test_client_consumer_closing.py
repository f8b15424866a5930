"""Consumers whose closing is cancelled, or asked for more than once, leave their group."""

import asyncio
import gc
import signal
import threading
from functools import partial

import pytest

from quorumlog import Consumer, SyncConsumer
from quorumlog.client.consumer_membership import Callbacks, Membership
from scripted_coordinator import SECONDS, Coordinator, zero


class SlowToLeave(Coordinator):
    """Says when a member leaves, and lets it once `may_leave`."""

    def __init__(self, *answers, leaving):
        super().__init__(*answers)
        self.leaving = leaving
        self.may_leave = asyncio.Event()

    async def leave(self, timeout_ms):
        self.leaving()
        await self.may_leave.wait()
        await super().leave(timeout_ms)


def membership(coordinator, **callbacks):
    return Membership(
        coordinator, zero, partitions=1, auto_commit_s=None, callbacks=Callbacks(**callbacks)
    )


async def test_closing_goes_on_if_it_is_cancelled_and_all_who_close_wait_for_it(monkeypatch):
    leaving, ended = asyncio.Event(), []
    coordinator = SlowToLeave({0}, leaving=leaving.set)
    consumer = Consumer("127.0.0.1:1", group="g", log="l")
    consumer._membership = membership(coordinator)

    async def end():
        ended.append(coordinator.left)

    monkeypatch.setattr(consumer._requests, "close", end)
    async with asyncio.timeout(SECONDS):
        await consumer._membership.usable()
        first = asyncio.create_task(consumer.close())
        await leaving.wait()
        first.cancel()
        await asyncio.wait((first,))
        others = [asyncio.create_task(consumer.close()) for _ in range(2)]
        done, _ = await asyncio.wait(others, timeout=0.01)
        assert not done
        assert not ended, "the connections are still needed"
        coordinator.may_leave.set()
        await asyncio.gather(*others)
        await consumer.close()
    assert (first.cancelled(), coordinator.left, ended) == (True, 1, [1])


@pytest.mark.parametrize("how", ["no time is left", "cancelled before it began"])
async def test_closing_begins_at_the_call(how):
    coordinator = Coordinator({0})
    consumer = Consumer("127.0.0.1:1", group="g", log="l")
    consumer._membership = membership(coordinator)
    async with asyncio.timeout(SECONDS):
        await consumer._membership.usable()
        if how == "no time is left":
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.close(), 0)
        else:
            closing = asyncio.create_task(consumer.close())
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
        assert not coordinator.left
        await consumer.close()
    assert coordinator.left == 1


async def test_who_is_about_to_give_up_may_close_whoever_else_does():
    consumer = Consumer("127.0.0.1:1", group="g", log="l")
    has_begun, may_close, has_ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def revoked(partitions):
        has_begun.set()
        await may_close.wait()
        await consumer.close()
        has_ended.set()

    coordinator = Coordinator({0})
    consumer._membership = membership(coordinator, revoked=revoked)
    async with asyncio.timeout(SECONDS):
        await consumer._membership.usable()
        coordinator.answers = [set()]
        await has_begun.wait()
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        may_close.set()
        await closing
    assert (has_ended.is_set(), coordinator.left) == (True, 1)


def test_a_consumer_is_closed_from_outside_of_its_loop():
    coordinator = Coordinator({0})
    consumer = Consumer("127.0.0.1:1", group="g", log="l")
    consumer._membership = membership(coordinator)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(consumer._membership.usable())

        async def elsewhere():
            return asyncio.run_coroutine_threadsafe(consumer.close(), loop)

        closing = asyncio.run(elsewhere())
        loop.run_until_complete(asyncio.wrap_future(closing, loop=loop))
        loop.run_until_complete(consumer.close())
    finally:
        loop.close()
    assert coordinator.left == 1


class Worker:
    """What a program has around its consumer, which calls it back."""

    def __init__(self):
        self.consumer = SyncConsumer(
            "127.0.0.1:1", group="g", log="l", on_assigned=self.assigned, on_revoked=self.revoked
        )

    def assigned(self, partitions):
        pass

    def revoked(self, partitions):
        self.consumer.commit()


def test_a_consumer_that_is_dropped_leaves_and_its_thread_ends():
    worker = Worker()
    thread, coordinator = worker.consumer._thread, Coordinator({0})
    callbacks = worker.consumer._consumer._membership._callbacks
    worker.consumer._consumer._membership = membership(coordinator, **callbacks._asdict())
    thread.wait(worker.consumer._consumer._membership.usable())
    del worker
    with pytest.warns(ResourceWarning, match="a SyncConsumer of the group 'g' was not closed"):
        gc.collect()
    thread._thread.join(SECONDS)
    assert not thread._thread.is_alive()
    assert coordinator.left == 1


@pytest.mark.parametrize("closes_again", [True, False])
def test_a_consumer_whose_closing_is_interrupted_leaves_and_its_thread_ends(closes_again):
    consumer = SyncConsumer("127.0.0.1:1", group="g", log="l")
    thread = consumer._thread
    press = partial(signal.pthread_kill, threading.get_ident(), signal.SIGINT)
    coordinator = SlowToLeave({0}, leaving=press)
    consumer._consumer._membership = membership(coordinator)
    thread.wait(consumer._consumer._membership.usable())
    with pytest.raises(KeyboardInterrupt):
        consumer.close()
    assert not coordinator.left
    thread._loop.call_soon_threadsafe(coordinator.may_leave.set)
    if closes_again:
        consumer.close()
    thread._thread.join(SECONDS)
    assert coordinator.left == 1
    assert not thread._thread.is_alive()
    consumer.close()
