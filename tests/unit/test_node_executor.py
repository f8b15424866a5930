"""Threads beside the loop: results come back on the loop, and are dropped after `stop`."""

import asyncio
import threading
from functools import partial

import pytest

from quorumlog.node import executor
from quorumlog.node.executor import ThreadExecutor
from quorumlog.node.group_executor import GroupExecutor
from scripted_cluster import SOON_S


@pytest.fixture
async def threads():
    made = ThreadExecutor(asyncio.get_running_loop())
    yield made
    made.stop()
    made.join()


async def test_results_and_failures_come_back_on_the_loops_thread(threads):
    told, both = [], asyncio.Event()

    def tell(what):
        told.append((str(what), threading.current_thread() is threading.main_thread()))
        if len(told) == 2:
            both.set()

    def fail():
        raise ValueError("no good")

    threads.run(lambda: "done", tell, tell)
    threads.run(fail, tell, tell)
    async with asyncio.timeout(SOON_S):
        await both.wait()
    assert sorted(told) == [("done", True), ("no good", True)]


async def test_nobody_is_told_of_what_ends_with_them(threads):
    """Who asked is closed by then, and could only fail at what it would do next."""
    told, entered, gate = [], threading.Event(), threading.Event()

    def work():
        entered.set()
        gate.wait(SOON_S)

    threads.run(work, told.append, told.append)
    assert entered.wait(SOON_S)
    stopping = threading.Thread(target=threads.stop)
    stopping.start()
    gate.set()
    stopping.join(SOON_S)
    for _ in range(10):
        await asyncio.sleep(0)
    threads.run(work, told.append, told.append)  # as one that did not hear of it yet does
    for _ in range(10):
        await asyncio.sleep(0)
    assert told == []


class Held:
    """Threads that do nothing until they are let, with the order in which jobs were done."""

    def __init__(self, threads):
        self.threads = threads
        self.gate = threading.Event()
        self.done, self.failed = [], []
        self.all_done = asyncio.Event()
        for _ in range(executor.UNDER_WAY_PER_THREAD):
            threads.run(lambda: self.gate.wait(SOON_S), lambda _: None, self.failed.append)

    def run(self, name, client=None):
        def done(name):
            self.done.append(name)
            if name == "last":
                self.all_done.set()

        self.threads.run(lambda: name, done, self.failed.append, client)

    async def let(self):
        self.gate.set()
        async with asyncio.timeout(SOON_S):
            await self.all_done.wait()


@pytest.fixture
async def held():
    """Return one thread, so that jobs end in the order in which they start."""
    made = ThreadExecutor(asyncio.get_running_loop(), threads=1)
    held = Held(made)
    yield held
    held.gate.set()
    made.stop()
    made.join()


async def test_jobs_of_clients_take_turns_and_those_of_the_node_wait_for_one_of_them(held):
    for number in range(100):
        held.run(f"a{number}", "a")
    held.run("b0", "b")
    held.run("node0")
    held.run("node1")
    held.run("last", "c")
    await held.let()
    assert held.done[:5] == ["a0", "node0", "b0", "node1", "last"]


async def test_jobs_of_a_client_that_has_disconnected_are_dropped(held):
    held.run("a0", "a")
    held.run("b0", "b")
    held.threads.forget("a")
    held.threads.forget("unknown")
    held.run("last", "c")
    await held.let()
    assert held.done == ["b0", "last"]


async def test_what_was_read_for_a_client_that_disconnected_meanwhile_is_dropped():
    """It would wait on for entries, although nobody is there to be answered."""
    threads = ThreadExecutor(asyncio.get_running_loop(), threads=1)
    told, entered, gate, over = [], threading.Event(), threading.Event(), asyncio.Event()

    def work():
        entered.set()
        gate.wait(SOON_S)

    def fail():
        raise ValueError("damaged")

    threads.run(work, told.append, told.append, "a")
    threads.run(fail, told.append, lambda error: told.append(str(error)), "a")
    assert entered.wait(SOON_S)
    threads.forget("a")
    threads.run(lambda: None, lambda _: over.set(), told.append, "b")
    gate.set()
    async with asyncio.timeout(SOON_S):
        await over.wait()  # the thread did this last
    threads.stop()
    threads.join()
    assert told == ["damaged"], "what damage was found counts all the same"


async def test_more_jobs_than_so_many_of_one_client_are_refused_and_no_other_is(held, monkeypatch):
    monkeypatch.setattr(executor, "WAITING_MAX", 3)
    for number in range(4):
        held.run(f"a{number}", "a")
    (refused,) = held.failed
    assert "too much waits for threads" in str(refused)
    held.run("b0", "b")
    held.run("node0")
    assert held.failed == [refused]


async def test_results_that_the_loop_has_not_taken_yet_hold_up_the_next_jobs(held):
    """So that one turn of the loop takes a few of them, however small the jobs are."""
    started = []
    for number in range(10):
        work = partial(started.append, number)
        held.threads.run(work, lambda _: None, held.failed.append, "a")
    held.gate.set()
    held.threads._pool.submit(lambda: None).result(SOON_S)  # the loop has no turn meanwhile
    assert started == []
    held.run("last", "a")
    await held.let()


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_group_is_idle_once_its_last_job_has_ended_also_if_the_client_has_left(leaves):
    """A group that is deleted closes its files then: it would never be gone otherwise."""
    threads = ThreadExecutor(asyncio.get_running_loop(), threads=1)
    group, idle = GroupExecutor(threads), asyncio.Event()
    told, entered, gate = [], threading.Event(), threading.Event()

    def work():
        entered.set()
        gate.wait(SOON_S)

    group.run(work, told.append, told.append, "a")
    assert entered.wait(SOON_S)
    if leaves:
        threads.forget("a")
    group.end("deleted", idle.set)
    assert not idle.is_set()
    gate.set()
    async with asyncio.timeout(SOON_S):
        await idle.wait()
    threads.stop()
    threads.join()
    assert told == ([] if leaves else [None])
