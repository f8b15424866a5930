"""Killed, frozen and full nodes under load: the clients' history stays that of one log."""

import asyncio
import random
import time

import pytest

from integration.history import Fate
from integration.workload import Workload
from quorumlog.local import LocalCluster
from quorumlog.model.errors import RequestError

pytestmark = pytest.mark.processes

KILL_SECONDS = 15.0
BETWEEN_KILLS = 50
FROZEN_SECONDS = 2.0
"""Twice the longest election time-out."""
FAILOVER_SECONDS = 5.0


@pytest.fixture
def cluster(tmp_path):
    made = LocalCluster.create(tmp_path / "cluster", groups=("g",), data_file_bytes=8 << 20)
    made.up()
    yield made
    for node_id in made.running():
        made.resume(node_id)
    made.down()


async def test_random_nodes_killed_for_a_while(cluster):
    generator = random.Random(73)
    async with Workload(cluster.servers) as load:
        await load.acknowledged_after(BETWEEN_KILLS)
        begun, kills = time.monotonic(), 0
        while time.monotonic() - begun < KILL_SECONDS:
            victims = generator.sample(cluster.node_ids, generator.choice([1, 1, 1, 2, 3]))
            for victim in victims:
                await asyncio.to_thread(cluster.kill, victim)
            kills += len(victims)
            if len(victims) == 1:
                await load.acknowledged_after(BETWEEN_KILLS)
            for victim in victims:
                await asyncio.to_thread(cluster.start, victim)
            await load.acknowledged_after(BETWEEN_KILLS)
        await load.verify()
    print(f"{kills} kills, {load.history.fates()}, at most {load.history.longest_stall_s():.2f} s")
    assert kills >= 3


async def reads_of(load, client, reader, *, least_index, seconds=10.0):
    """Read linearizably from a replica until it knows of an index; return how it answered.

    Refusals are fine for a while; answers are recorded and so may not be stale.
    """
    refused = 0
    async with asyncio.timeout(seconds):
        while True:
            try:
                bound = await load.recorder.bound(client, reader, leader_only=False)
            except RequestError:
                refused += 1
                continue
            if bound.index >= least_index:
                return refused


async def test_a_frozen_leader_is_replaced_and_is_not_believed_when_it_wakes(cluster):
    leader = await asyncio.to_thread(cluster.leader, "g")
    frozen = cluster.address(leader)
    async with (
        Workload(cluster.servers) as load,
        load.client(frozen, timeout_ms=15_000) as direct,
        load.client(frozen, timeout_ms=15_000) as appender,
    ):
        await load.acknowledged_after(50)
        await load.recorder.bound(direct, "direct", leader_only=False)
        before = await load.recorder.append(appender, b"before")
        assert before.fate is Fate.ACKNOWLEDGED
        cluster.pause(leader)
        begun = time.monotonic()
        # both arrive at the frozen node, and it answers them when it wakes
        late = asyncio.ensure_future(load.recorder.append(appender, b"to the frozen leader"))
        waiting = asyncio.ensure_future(load.recorder.bound(direct, "woken", leader_only=False))
        await load.acknowledged_after()
        took = time.monotonic() - begun
        print(f"an append was acknowledged {took:.2f} s after the leader was frozen")
        assert took < FAILOVER_SECONDS
        newest = await load.acknowledged_after(100)
        await asyncio.sleep(max(0.0, begun + FROZEN_SECONDS - time.monotonic()))
        assert not late.done()
        cluster.resume(leader)
        await reads_of(load, direct, "direct", least_index=newest.index)
        await asyncio.gather(late, waiting, return_exceptions=True)
        print(f"the append to the frozen leader: {late.result()}")
        await load.verify()


async def test_a_leader_frozen_again_and_again(cluster):
    """Frozen for about as long as an election takes: terms change while answers are under way."""
    generator = random.Random(76)
    async with Workload(cluster.servers) as load:
        await load.acknowledged_after(50)
        for _ in range(5):
            leader = await asyncio.to_thread(cluster.leader, "g")
            cluster.pause(leader)
            await asyncio.sleep(generator.uniform(0.3, 1.2))  # how long it is frozen
            cluster.resume(leader)
            await load.acknowledged_after(20)
        await load.verify()
    assert load.history.longest_stall_s() < FAILOVER_SECONDS
