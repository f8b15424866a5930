"""Threads beside the loop: results come back on the loop, and are dropped after `stop`."""

import asyncio
import threading

import pytest

from quorumlog.node import executor
from quorumlog.node.executor import ThreadExecutor
from scripted_cluster import SOON_S


@pytest.fixture
async def threads():
    made = ThreadExecutor(asyncio.get_running_loop())
    yield made
    made.stop()


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


async def test_more_than_so_many_jobs_are_refused(threads, monkeypatch):
    monkeypatch.setattr(executor, "WAITING_MAX", 0)
    refused = []
    threads.run(lambda: None, refused.append, refused.append)
    assert "too much waits for threads" in str(refused[0])
