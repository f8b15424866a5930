"""A program's handler of role changes, whatever it does."""

import asyncio
import logging

from quorumlog import Role, RoleChange
from quorumlog.embedded import role_changes
from quorumlog.embedded.role_changes import RoleChanges


def change(term, role=Role.FOLLOWER):
    return RoleChange("g", role, term, "n1")


async def test_a_plain_function_hears_of_each_change_in_order_after_the_turn():
    told = []
    changes = RoleChanges("g", told.append)
    for term in range(5):
        changes.changed(change(term))
    assert told == [], "a replica is in the middle of a step"
    await changes.end()
    assert [one.term for one in told] == list(range(5))


async def test_a_coroutine_is_not_called_again_before_it_has_returned():
    told, release = [], asyncio.Event()

    async def handle(one):
        told.append((one.term, "begins"))
        await release.wait()
        told.append((one.term, "ends"))

    changes = RoleChanges("g", handle)
    changes.changed(change(1))
    await asyncio.sleep(0)
    changes.changed(change(2))
    await asyncio.sleep(0)
    assert told == [(1, "begins")]
    release.set()
    await changes.end()
    assert told == [(1, "begins"), (1, "ends"), (2, "begins"), (2, "ends")]


async def test_of_too_many_that_wait_the_oldest_are_skipped_and_that_is_logged(caplog, monkeypatch):
    monkeypatch.setattr(role_changes, "WAITING_MAX", 3)
    told = []
    changes = RoleChanges("g", told.append)
    with caplog.at_level(logging.WARNING):
        for term in range(10):
            changes.changed(change(term))
    await changes.end()
    assert [one.term for one in told] == [7, 8, 9]
    assert len(caplog.records) == 7


async def test_what_a_handler_raises_is_logged_and_the_next_change_is_told(caplog):
    told = []

    def handle(one):
        told.append(one.term)
        raise RuntimeError("no")

    changes = RoleChanges("g", handle)
    changes.changed(change(1))
    await changes.end()
    changes.changed(change(2))
    await changes.end()
    assert told == [1, 2]
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


async def test_a_handler_that_waits_for_something_cancelled_is_told_the_changes_that_wait(caplog):
    told, cancelled = [], asyncio.get_running_loop().create_future()
    cancelled.cancel()

    async def handle(one):
        told.append(one.term)
        await cancelled

    changes = RoleChanges("g", handle)
    changes.changed(change(1))
    changes.changed(change(2))
    await changes.end()
    assert told == [1, 2]
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


async def test_a_handler_that_never_returns_does_not_keep_a_node_from_stopping(monkeypatch):
    monkeypatch.setattr(role_changes, "END_S", 0.05)
    cancelled = []

    async def handle(one):
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(one.term)

    changes = RoleChanges("g", handle)
    changes.changed(change(1))
    await changes.end()
    await asyncio.sleep(0)
    assert cancelled == [1]


async def test_a_handler_may_stop_the_node_that_calls_it():
    ended = []

    async def handle(one):
        changes.caller_waits()
        await asyncio.shield(ending)
        ended.append(one.term)

    changes = RoleChanges("g", handle)
    changes.changed(change(1))
    ending = asyncio.ensure_future(changes.end())
    async with asyncio.timeout(role_changes.END_S / 2):
        await ending
    assert ended == []
    await changes._task
    assert ended == [1], "it was not cancelled"


async def test_a_task_that_a_handler_waits_for_may_stop_the_node():
    async def stop():
        changes.caller_waits()
        await asyncio.shield(ending)

    async def handle(_):
        await asyncio.create_task(stop())

    changes = RoleChanges("g", handle)
    changes.changed(change(1))
    ending = asyncio.ensure_future(changes.end())
    async with asyncio.timeout(role_changes.END_S / 2):
        await ending
    await changes._task


async def test_a_handler_is_waited_for_if_another_of_its_calls_has_begun_what_stops_the_node():
    begun, told, release = [], [], asyncio.Event()

    async def handle(one):
        if one.term == 1:
            begun.append(asyncio.create_task(stops()))
            return
        await release.wait()
        told.append(one.term)

    async def stops():
        await asyncio.sleep(0)
        changes.caller_waits()
        release.set()
        await changes.end()

    changes = RoleChanges("g", handle)
    changes.changed(change(1))
    changes.changed(change(2))
    await changes.end()
    assert told == [2]
    await begun[0]
