"""How long appends stand still when the leader is killed, with the default timers."""

import asyncio
import time

import pytest

from integration.workload import Workload

pytestmark = pytest.mark.processes

KILLS = 3
FAILOVER_SECONDS = 5.0
BETWEEN_KILLS = 50


async def test_6_a_killed_leader_is_replaced_in_time(cluster):
    seconds = []
    async with Workload(cluster.servers) as load:
        for _ in range(KILLS):
            await load.acknowledged_after(BETWEEN_KILLS)
            leader = await asyncio.to_thread(cluster.leader, "g")
            started = time.monotonic()
            await asyncio.to_thread(cluster.kill, leader)
            await load.acknowledged_after()
            seconds.append(time.monotonic() - started)
            await asyncio.to_thread(cluster.start, leader)
        await load.verify()
    ordered = sorted(seconds)
    shown = ", ".join(f"{second:.2f}" for second in ordered)
    print(f"fail-over p50 {ordered[KILLS // 2]:.2f} s, max {ordered[-1]:.2f} s ({shown})")
    assert ordered[-1] < FAILOVER_SECONDS
