"""How long appends stand still when the leader dies, with the default timers.

    python examples/measure_failover.py [KILLS] [SIMULATED_KILLS]

First in simulation, each time from another seed, then with three processes on this machine, whose
leader is killed with SIGKILL under a steady trickle of appends.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from quorumlog import Client, QuorumlogError
from quorumlog.local import LocalCluster
from quorumlog.sim.cluster import SimulatedCluster

PAUSE_MS = 5
LIVE_MS = 2_000
"""A simulated group lives so long before its leader dies; then a different while each time."""


def simulated_ms(seed: int) -> int:
    """Return the time without an acknowledgement in a run from one seed."""
    cluster = SimulatedCluster(seed, 3)
    for node in cluster.nodes.values():
        node.start()
    cluster.run_until(LIVE_MS)
    killed_ms = LIVE_MS + seed * 7 % 1_000
    while cluster.world.now_ms < killed_ms or cluster.leader() is None:
        cluster.clients.append(1, 40)
        cluster.run_until(cluster.world.now_ms + PAUSE_MS)
    leader, killed_ms = cluster.leader(), cluster.world.now_ms
    if leader is not None:
        leader.stop(power=False)
    acknowledged = cluster.clients.appended
    while cluster.clients.appended == acknowledged:
        if cluster.leader() is not None:
            cluster.clients.append(1, 40)
        cluster.run_until(cluster.world.now_ms + PAUSE_MS)
    return cluster.world.now_ms - killed_ms


async def acknowledged(client: Client, seconds: float) -> None:
    """Append until one was acknowledged and so many seconds have passed."""
    end = time.monotonic() + seconds
    while True:
        try:
            await client.append(b"x" * 40)
        except QuorumlogError:
            continue  # of unknown fate, or refused: the next one is what counts
        if time.monotonic() >= end:
            return
        await asyncio.sleep(PAUSE_MS / 1_000)


async def processes_ms(directory: Path, kills: int) -> list[float]:
    """Return the times without an acknowledgement of one cluster of processes."""
    cluster = LocalCluster.create(directory, groups=("g",), data_file_bytes=64 << 20)
    await asyncio.to_thread(cluster.up)
    found = []
    try:
        for _ in range(kills):
            async with Client(cluster.servers, "g") as client:
                await acknowledged(client, 2.0)
                leader = await asyncio.to_thread(cluster.leader, "g")
                begun = time.monotonic()
                await asyncio.to_thread(cluster.kill, leader)
                await acknowledged(client, 0.0)
                found.append((time.monotonic() - begun) * 1_000)
            await asyncio.to_thread(cluster.start, leader)
    finally:
        await asyncio.to_thread(cluster.down)
    return found


def show(what: str, milliseconds: Sequence[float]) -> None:
    """Print a line of percentiles."""
    p50, p99 = np.percentile(milliseconds, (50, 99))
    print(
        f"{what:22} {len(milliseconds):6} kills   p50 {p50:6.0f} ms   p99 {p99:6.0f} ms   "
        f"max {max(milliseconds):6.0f} ms",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    simulated = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000
    show("simulated", [simulated_ms(seed) for seed in range(simulated)])
    with tempfile.TemporaryDirectory(prefix="quorumlog-failover-") as name:
        show("processes", asyncio.run(processes_ms(Path(name) / "cluster", kills)))


if __name__ == "__main__":
    main()
