"""kill -9 of any node at any moment, again and again, under load: nothing acknowledged is lost."""

import asyncio
import random
from collections import Counter

import pytest

from quorumlog.client import Client, Producer
from quorumlog.local import LocalCluster

pytestmark = pytest.mark.processes

ROUNDS = 10
ACKNOWLEDGED_BETWEEN_KILLS = 300
BODY_BYTES = 1_024


class Load:
    """Appends unique bodies through a producer; remembers every body that was acknowledged."""

    def __init__(self, client):
        self.client = client
        self.acknowledged = set()
        self.sent = 0
        self.stopping = asyncio.Event()
        self.progress = asyncio.Condition()

    async def run(self):
        async with Producer(
            self.client, batch_bytes=16 * 1024, delivery_timeout_ms=60_000
        ) as producer:
            pending = []
            while not self.stopping.is_set():
                body = f"{self.sent:012d}".encode().ljust(BODY_BYTES, b".")
                pending.append((body, await producer.send(body)))
                self.sent += 1
                if len(pending) >= 200:
                    await self.note(pending)
                    pending = []
            await producer.flush()
            await self.note(pending)
            return producer.stats

    async def note(self, pending):
        for body, delivery in pending:
            await delivery
            self.acknowledged.add(body)
        async with self.progress:
            self.progress.notify_all()

    async def until_more(self, count):
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(60), self.progress:
            await self.progress.wait_for(lambda: len(self.acknowledged) >= wanted)


async def committed_state(client):
    return [
        (status.node_id, status.committed_index, status.end_index, status.committed_chain_crc)
        for status in await client.status()
    ]


async def until_identical(client):
    async with asyncio.timeout(30):
        while True:
            states = await committed_state(client)
            if len({state[1:] for state in states}) == 1 and states[0][1] == states[0][2]:
                return
            await asyncio.sleep(0.05)


@pytest.mark.timeout(280)
async def test_73_ten_kills_under_load_lose_nothing(tmp_path):
    generator = random.Random(20131)
    cluster = LocalCluster.create(tmp_path / "cluster", groups=("g",), data_file_bytes=16 << 20)
    await asyncio.to_thread(cluster.up)
    try:
        async with Client(cluster.servers, "g", timeout_ms=30_000) as client:
            load = Load(client)
            running = asyncio.ensure_future(load.run())
            for round_number in range(ROUNDS):
                await load.until_more(generator.randrange(ACKNOWLEDGED_BETWEEN_KILLS))
                leader = await asyncio.to_thread(cluster.leader, "g")
                victims = cluster.node_ids if round_number % 2 else [leader]
                victim = generator.choice(victims)
                await asyncio.to_thread(cluster.kill, victim)
                await load.until_more(ACKNOWLEDGED_BETWEEN_KILLS)
                await asyncio.to_thread(cluster.start, victim)
            load.stopping.set()
            stats = await running
            await until_identical(client)
            found = Counter([entry.body async for entry in client.read(0, follow=False)])
        assert load.acknowledged <= set(found)
        assert len(load.acknowledged) == load.sent
        extra = sum(found.values()) - len(found)
        assert extra <= stats.entries_resent_after_unknown
    finally:
        await asyncio.to_thread(cluster.down)


async def test_all_nodes_killed_at_once_keep_what_was_acknowledged(tmp_path):
    cluster = LocalCluster.create(tmp_path / "cluster", groups=("g",), data_file_bytes=16 << 20)
    await asyncio.to_thread(cluster.up)
    try:
        async with Client(cluster.servers, "g") as client:
            batches = [
                await client.append_batch([f"{batch} {i}".encode() for i in range(50)])
                for batch in range(20)
            ]
            for node_id in cluster.node_ids:
                await asyncio.to_thread(cluster.kill, node_id)
        await asyncio.to_thread(cluster.up)
        async with Client(cluster.servers, "g") as client:
            bodies = {e.index: e.body async for e in client.read(0, follow=False)}
            for batch, placed in enumerate(batches):
                for i in range(50):
                    assert bodies[placed.first_index + i] == f"{batch} {i}".encode()
            await until_identical(client)
    finally:
        await asyncio.to_thread(cluster.down)
