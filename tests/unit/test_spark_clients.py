"""Fetching a range for a task: replicas that lag, entries that are gone, clients kept."""

import asyncio

import pytest

from quorumlog.client import FetchedBlock
from quorumlog.model.errors import (
    IndexOutOfRangeError,
    IndexRemovedError,
    NoLeaderError,
    RemoteProtocolError,
)
from quorumlog.spark.access import open_nodes
from quorumlog.spark.source import clusters as clients
from quorumlog.spark.source.clusters import blocks_of, client_for

NOTHING = memoryview(b"")


def block(first, count):
    return FetchedBlock(first, count, NOTHING, NOTHING, 0, 99)


class Servers:
    """Answers fetches as the script says; each answer takes a second of its clock."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []
        self.now_ms = 0.0

    async def fetch(self, begin, last, leader_only):
        self.asked.append((begin, last, leader_only))
        self.now_ms += 1_000
        await asyncio.sleep(0)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return block(*answer)

    async def read(self, first, last, *, leader_only=True, patience_ms=10_000):
        found = blocks_of(
            "g",
            self.fetch,
            first,
            last,
            leader_only=leader_only,
            patience_ms=patience_ms,
            now_ms=lambda: self.now_ms,
        )
        return [(each.first_index, each.count) async for each in found]


async def test_a_range_is_fetched_to_its_end():
    servers = Servers((5, 3), (8, 2))
    assert await servers.read(5, 9) == [(5, 3), (8, 2)]
    assert servers.asked == [(5, 9, True), (8, 9, True)]


async def test_the_next_block_is_asked_for_while_one_is_used():
    servers = Servers((0, 5), (5, 5))
    found = blocks_of("g", servers.fetch, 0, 9, leader_only=True, patience_ms=1_000)
    first = await anext(found)
    await asyncio.sleep(0)
    assert (first.count, len(servers.asked)) == (5, 2)
    assert [each.first_index async for each in found] == [5]


async def test_a_replica_that_is_behind_is_asked_again():
    behind = IndexOutOfRangeError("index 9 is beyond the last committed index, 8")
    servers = Servers((5, 0), (5, 4), (9, 0), behind, (9, 1))
    assert await servers.read(5, 9, leader_only=False) == [(5, 4), (9, 1)]


async def test_a_replica_that_keeps_lagging_is_abandoned_after_a_while():
    servers = Servers((5, 4), *[(9, 0)] * 100)
    with pytest.raises(IndexOutOfRangeError, match="9 could not be had for 10000 ms"):
        await servers.read(5, 9)
    assert len(servers.asked) == 11


async def test_only_the_leader_is_believed_that_entries_are_gone():
    gone = IndexRemovedError("index 5 is below the first index kept, 7")
    servers = Servers(gone, (5, 5))
    assert await servers.read(5, 9, leader_only=False) == [(5, 5)]
    assert [leader_only for _, _, leader_only in servers.asked] == [False, True]
    with pytest.raises(IndexRemovedError):
        await Servers(gone, gone).read(5, 9, leader_only=False)
    with pytest.raises(IndexRemovedError):
        await Servers(gone).read(5, 9)


async def test_entries_that_were_not_asked_for_are_refused():
    for wrong in ((4, 3), (5, 6)):
        with pytest.raises(RemoteProtocolError, match="asked for entries 5 to 9 of g"):
            await Servers(wrong).read(5, 9)


async def test_an_error_ahead_is_raised_when_it_is_its_turn():
    servers = Servers((0, 5), NoLeaderError("no leader of g found"))
    found = blocks_of("g", servers.fetch, 0, 9, leader_only=True, patience_ms=1_000)
    assert (await anext(found)).count == 5
    with pytest.raises(NoLeaderError):
        await anext(found)


async def test_an_outage_that_is_over_before_it_is_noticed_is_none():
    servers = Servers((0, 5), NoLeaderError("no leader of g found"), (5, 5))
    found = blocks_of("g", servers.fetch, 0, 9, leader_only=True, patience_ms=1_000)
    assert (await anext(found)).count == 5
    for _ in range(10):  # what is fetched ahead fails within a few turns
        await asyncio.sleep(0)
    assert [each.first_index async for each in found] == [5]


async def test_a_reader_that_stops_early_leaves_nothing_running():
    servers = Servers((0, 5), (5, 5))
    found = blocks_of("g", servers.fetch, 0, 9, leader_only=True, patience_ms=1_000)
    await anext(found)
    await found.aclose()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_clients_are_kept_and_their_number_is_bounded(monkeypatch):
    made, closed = [], []

    class Client:
        def __init__(self, servers, group, *, timeout_ms):
            made.append((servers, group, timeout_ms))
            self.group = group

        def close(self):
            closed.append(self.group)

    monkeypatch.setattr(clients, "SyncClient", Client)
    monkeypatch.setattr(clients, "CLIENTS_MAX", 2)
    monkeypatch.setattr(clients, "_clients", type(clients._clients)())
    for group in ("a", "b", "a", "c", "a"):
        client_for("h:1", group, 5)
    assert made == [(open_nodes("h:1"), group, 5) for group in ("a", "b", "c")]
    assert closed == ["b"]
