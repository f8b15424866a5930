"""Killed, frozen and full nodes under load: the clients' history stays that of one log."""

import asyncio
import random
import time

import pytest

from integration.history import Fate
from integration.workload import Workload
from quorumlog.local import LocalCluster
from quorumlog.local.cluster import leader_of
from quorumlog.local.health import ask_health
from quorumlog.model.errors import RequestError
from scripted_cluster import metadata_of
from small_disks import on_small_disks

pytestmark = pytest.mark.processes

KILL_SECONDS = 6
BETWEEN_KILLS = 50
KILLS_MIN = 3
"""However long they take."""
FROZEN_SECONDS = 2.0
"""Twice the longest election time-out."""
FAILOVER_SECONDS = 5.0


async def test_random_nodes_killed_for_a_while(cluster):
    generator = random.Random(73)
    async with Workload(cluster.servers) as load:
        await load.acknowledged_after(BETWEEN_KILLS)
        begun, kills = time.monotonic(), 0
        while kills < KILLS_MIN or time.monotonic() - begun < KILL_SECONDS:
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


async def reads_of(load, client, reader, *, least_index, seconds=60.0):
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


async def until_led_by_another(cluster, frozen, seconds=60.0):
    """Wait until another node than the frozen one says that it leads."""
    others = [node_id for node_id in cluster.node_ids if node_id != frozen]
    async with asyncio.timeout(seconds):
        while True:
            health = {
                node_id: await asyncio.to_thread(ask_health, cluster.admin_address(node_id))
                for node_id in others
            }
            if leader_of("g", health) is not None:
                return
            await asyncio.sleep(0.01)


async def test_a_frozen_leader_is_replaced_and_is_not_believed_when_it_wakes(cluster):
    leader = await asyncio.to_thread(cluster.leader, "g")
    frozen = cluster.address(leader)
    async with (
        Workload(cluster.servers) as load,
        load.client(frozen, timeout_ms=15_000) as direct,
        load.client(frozen, timeout_ms=15_000) as appender,
    ):
        metadata_of(appender).fell_silent = lambda connection: (
            None
        )  # this one does not look elsewhere
        await load.acknowledged_after(50)
        await load.recorder.bound(direct, "direct", leader_only=False)
        before = await load.recorder.append(appender, b"before")
        assert before.fate is Fate.ACKNOWLEDGED
        cluster.pause(leader)
        begun = time.monotonic()
        # both arrive at the frozen node, and it answers them when it wakes
        late = asyncio.ensure_future(load.recorder.append(appender, b"to the frozen leader"))
        waiting = asyncio.ensure_future(load.recorder.bound(direct, "woken", leader_only=False))
        await until_led_by_another(cluster, leader)
        elected = time.monotonic() - begun
        await load.acknowledged_after()
        acknowledged = time.monotonic() - begun
        print(f"new leader after {elected:.2f} s, acknowledgements after {acknowledged:.2f} s")
        assert acknowledged < FAILOVER_SECONDS
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
        for _ in range(4):
            leader = await asyncio.to_thread(cluster.leader, "g")
            cluster.pause(leader)
            await asyncio.sleep(generator.uniform(0.3, 1.2))  # how long it is frozen
            cluster.resume(leader)
            await load.acknowledged_after(20)
        await load.verify()
    assert load.history.longest_stall_s() < FAILOVER_SECONDS


# -- full disks -----------------------------------------------------------------------------------


@pytest.fixture
def disks(tmp_path):
    """A cluster of which every node has a small disk of its own; not started."""
    made = LocalCluster.create(tmp_path / "cluster", groups=("g",), data_file_bytes=8 << 20)
    with on_small_disks(made) as mounted:
        yield made, mounted


async def status_of(client, node_id):
    (found,) = [status for status in await client.status() if status.node_id == node_id]
    return found


async def until_full(client, node_id, seconds=60.0):
    """Wait until a node has noticed that its disk is full."""
    async with asyncio.timeout(seconds):
        while True:
            if (await status_of(client, node_id)).disk_text:
                return
            await asyncio.sleep(0.05)


async def test_68_a_follower_without_room_stops_nobody_and_catches_up(disks):
    cluster, small = disks
    await asyncio.to_thread(cluster.up)
    leader = await asyncio.to_thread(cluster.leader, "g")
    victim = next(node_id for node_id in cluster.node_ids if node_id != leader)
    pid = cluster.running()[victim]
    async with Workload(cluster.servers) as load, load.client() as client:
        await load.acknowledged_after(50)
        small[victim].fill()
        await until_full(client, victim)
        bodies = [b"filler %d" % number for number in range(20)]
        for body in bodies:
            placed = await load.recorder.append(client, body.ljust(1 << 20, b"."))
            assert placed.fate is Fate.ACKNOWLEDGED
        await load.acknowledged_after(100)
        behind = await status_of(client, victim)
        assert behind.end_index < placed.index
        assert cluster.running()[victim] == pid, "a full disk does not end a node"
        small[victim].free()
        await load.verify()
    assert load.history.longest_stall_s() < FAILOVER_SECONDS


async def test_a_leader_without_room_hands_over_to_a_node_with_room(disks):
    cluster, small = disks
    await asyncio.to_thread(cluster.up)
    leader = await asyncio.to_thread(cluster.leader, "g")
    running = cluster.running()
    async with Workload(cluster.servers) as load, load.client() as client:
        await load.acknowledged_after(100)
        small[leader].fill()
        await until_full(client, leader)
        await load.acknowledged_after(200)
        assert await asyncio.to_thread(cluster.leader, "g") != leader
        assert cluster.running() == running, "a full disk does not end a node"
        small[leader].free()
        await load.verify()
    assert load.history.longest_stall_s() < FAILOVER_SECONDS


async def test_68_a_group_without_room_refuses_appends_serves_reads_and_recovers(disks):
    cluster, small = disks
    await asyncio.to_thread(cluster.up)
    running = cluster.running()
    async with Workload(cluster.servers) as load, load.client() as client:
        newest = await load.acknowledged_after(100)
        for node_id, disk in small.items():
            disk.fill()
            await until_full(client, node_id)
        leader = await asyncio.to_thread(cluster.leader, "g")
        refused = await load.recorder.append(client, b"no room")
        assert refused.fate is Fate.FAILED
        assert refused.error.startswith("DiskFullError: ")
        assert (await client.get(newest.index, linearizable=True)).body == newest.value
        assert cluster.running() == running, "full disks do not end a node"
        assert await asyncio.to_thread(cluster.leader, "g") == leader
        for disk in small.values():
            disk.free()
        await load.acknowledged_after(100)
        await load.verify()
