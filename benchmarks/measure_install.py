"""What it costs to fill a follower again that lost its disk: puts a second before and meanwhile.

    python benchmarks/measure_install.py [MEGABYTES]

Starts three nodes of its own on this machine, gives them a state of so many megabytes (1,024),
empties one follower's directory, and puts small values until it is back in step.
"""

import asyncio
import shutil
import sys
import time
from pathlib import Path

import uvloop

from quorumlog.client import KV, Client
from quorumlog.local import LocalCluster, guarded_directory

MIB = 1 << 20
VALUE_BYTES = 256 * 1024
IN_FLIGHT = 64
BASE_SECONDS = 10.0
GROUP = "default"


class Load:
    """Puts small values until told to stop; `done` counts them."""

    def __init__(self, kv: KV) -> None:
        self.kv = kv
        self.done = 0
        self.is_on = True

    async def run(self, number: int) -> None:
        """One of those in flight."""
        while self.is_on:
            await self.kv.put(b"small/%d" % number, b"v" * 100)
            self.done += 1

    async def rate(self, until: asyncio.Future[None]) -> float:
        """Return puts a second until something has happened."""
        before, started = self.done, time.perf_counter()
        await until
        return (self.done - before) / (time.perf_counter() - started)


async def fill(kv: KV, megabytes: int) -> None:
    """Make the state as large as asked for."""
    count = megabytes * MIB // VALUE_BYTES

    async def one(first: int) -> None:
        for number in range(first, count, 8):
            await kv.put(b"large/%d" % number, number.to_bytes(4, "big") * (VALUE_BYTES // 4))

    await asyncio.gather(*(one(first) for first in range(8)))


async def caught_up(client: Client, node_id: str) -> None:
    """Wait until a replica has applied what the leader had when this was called."""
    end = max(status.committed_index for status in await client.status())
    while True:
        found = {status.node_id: status for status in await client.status()}
        if found[node_id].applied_index >= end:
            return
        await asyncio.sleep(0.2)


async def measure(cluster: LocalCluster, megabytes: int) -> None:
    """Fill, empty a follower, and compare."""
    async with Client(cluster.servers, GROUP, timeout_ms=60_000) as client:
        kv = KV(client)
        started = time.perf_counter()
        await fill(kv, megabytes)
        print(f"filled with {megabytes} MiB in     {time.perf_counter() - started:8.1f} s")
        await client.admin.save_snapshot()
        load = Load(kv)
        tasks = [asyncio.create_task(load.run(number)) for number in range(IN_FLIGHT)]
        base = await load.rate(asyncio.ensure_future(asyncio.sleep(BASE_SECONDS)))
        print(f"puts                      {base:8,.0f}/s")
        leader = await asyncio.to_thread(cluster.leader, GROUP)
        victim = next(node_id for node_id in cluster.running() if node_id != leader)
        await asyncio.to_thread(cluster.kill, victim)
        shutil.rmtree(Path(cluster.directory) / victim / GROUP)
        started = time.perf_counter()
        await asyncio.to_thread(cluster.start, victim)
        during = await load.rate(asyncio.ensure_future(caught_up(client, victim)))
        took = time.perf_counter() - started
        print(f"puts while {victim} is filled   {during:8,.0f}/s   {during / base:.2f} of before")
        print(f"{victim} is back in step after  {took:8.1f} s")
        load.is_on = False
        await asyncio.gather(*tasks)


def main() -> None:
    """Measure and print."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1_024
    with guarded_directory("quorumlog-measure-") as guard:
        cluster = LocalCluster.create(guard.directory / "cluster", state_machine="kv")
        cluster.up()
        try:
            uvloop.run(measure(cluster, megabytes))
        finally:
            cluster.down()


if __name__ == "__main__":
    main()
