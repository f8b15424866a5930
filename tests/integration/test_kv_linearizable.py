"""Keys and values on real processes that are killed and frozen: what clients saw is linearizable.

`QUORUMLOG_KV_SECONDS=60` makes it as long as wanted.
"""

import asyncio
import os
import random
import time

import pytest

from quorumlog.client import KV, Client
from quorumlog.local import LocalCluster
from quorumlog.model.errors import Outcome, RequestError
from quorumlog.sim.linearizability import Kind, Operation, RegisterModel, check

pytestmark = pytest.mark.processes

SECONDS = float(os.environ.get("QUORUMLOG_KV_SECONDS", "8"))
CLIENTS = 8
KEYS = 6
OPERATIONS_A_KEY = 80
"""Then others take the keys' place: short histories are checked quickly."""


class History:
    """What all clients asked, and what they were told."""

    def __init__(self):
        self.operations = []
        self.asked = 0
        self.unknown = 0

    def key(self, generator):
        self.asked += 1
        age = self.asked // (KEYS * OPERATIONS_A_KEY)
        return f"{age}/{generator.randrange(KEYS)}".encode()

    async def run(self, number, servers, end):
        generator = random.Random(number)
        async with Client(servers, "g", timeout_ms=3_000) as client:
            kv = KV(client)
            value = 0
            while time.monotonic() < end:
                value += 1
                await self.one(number, kv, generator, f"{number}.{value}".encode())

    async def one(self, number, kv, generator, value):
        key, chance = self.key(generator), generator.random()
        expected, result, kind = None, None, Kind.GET
        started = time.monotonic_ns()
        try:
            if chance < 0.45:
                value, result = None, await kv.get(key)
            elif chance < 0.75:
                kind = Kind.PUT
                await kv.put(key, value)
            else:
                kind = Kind.COMPARE_AND_SET
                expected = await kv.get(key)
                started = time.monotonic_ns()
                result = await kv.compare_and_set(key, expected, value)
        except RequestError as error:
            if kind is not Kind.GET and error.outcome is not Outcome.DID_NOT_HAPPEN:
                self.unknown += 1
                self.operations.append(Operation(number, key, kind, started, None, value, expected))
            return
        ended = time.monotonic_ns()
        self.operations.append(
            Operation(number, key, kind, started, ended, value, expected, result)
        )


async def disturb(cluster, end):
    """Kill or freeze somebody, mostly the leader, until the end; then all run."""
    generator = random.Random(5)
    happened = 0
    while time.monotonic() < end - 3:
        victim = generator.choice(list(cluster.running()))
        if generator.random() < 0.7:
            victim = await asyncio.to_thread(cluster.leader, "g", 20.0)
        if generator.random() < 0.6:
            await asyncio.to_thread(cluster.kill, victim)
            await asyncio.sleep(generator.uniform(0.1, 1.0))  # what it is away
            await asyncio.to_thread(cluster.start, victim)
        else:
            cluster.pause(victim)
            await asyncio.sleep(generator.uniform(0.2, 2.0))  # how long it is frozen
            cluster.resume(victim)
        happened += 1
    return happened


@pytest.mark.timeout(280)
async def test_169_histories_under_kills_and_pauses_are_linearizable(tmp_path):
    cluster = LocalCluster.create(tmp_path / "cluster", groups=("g",), state_machine="kv")
    await asyncio.to_thread(cluster.up)
    history = History()
    try:
        end = time.monotonic() + SECONDS
        async with asyncio.TaskGroup() as tasks:
            for number in range(CLIENTS):
                tasks.create_task(history.run(number, cluster.servers, end))
            trouble = tasks.create_task(disturb(cluster, end))
        assert trouble.result() > 0
        async with Client(cluster.servers, "g", timeout_ms=20_000) as client:
            assert await KV(client).get(b"nothing") is None
    finally:
        for node_id in cluster.running():
            cluster.resume(node_id)
        await asyncio.to_thread(cluster.down)
    print(f"{len(history.operations)} operations, {history.unknown} of unknown outcome")
    assert len(history.operations) > 100
    violation = await asyncio.to_thread(check, history.operations, RegisterModel())
    assert violation is None, violation.reason
