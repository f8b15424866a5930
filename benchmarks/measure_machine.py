"""What keys and values cost: puts and linearizable gets, and the time that a restart takes.

    python benchmarks/measure_machine.py [ENTRIES]

Starts three nodes of its own on this machine, with fsync before every acknowledgement.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

import uvloop

from quorumlog.client import KV, Client
from quorumlog.local import LocalCluster, guarded_directory

IN_FLIGHT = 64
SECONDS = 5.0
VALUE = b"v" * 100


async def rate_of(ask: Callable[[int], Awaitable[object]]) -> float:
    """Return how many questions a second are answered, `IN_FLIGHT` at a time."""
    end, answered = time.perf_counter() + SECONDS, 0

    async def one(number: int) -> None:
        nonlocal answered
        while time.perf_counter() < end:
            await ask(number)
            number += IN_FLIGHT
            answered += 1

    started = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(IN_FLIGHT)))
    return answered / (time.perf_counter() - started)


async def measure(servers: str, entries: int) -> None:
    """Put, get, and fill."""
    async with Client(servers) as client:
        kv = KV(client)
        await kv.put("warm", "up")
        puts = await rate_of(lambda number: kv.put(b"%d" % (number % 10_000), VALUE))
        print(f"put, {IN_FLIGHT} in flight                {puts:9,.0f}/s")
        gets = await rate_of(lambda number: kv.get(b"%d" % (number % 10_000)))
        print(f"linearizable get, {IN_FLIGHT} in flight   {gets:9,.0f}/s")
        started = time.perf_counter()
        await asyncio.gather(*(fill(kv, entries // IN_FLIGHT) for _ in range(IN_FLIGHT)))
        print(f"filled with {entries:,} entries in   {time.perf_counter() - started:9.1f} s")
        await client.admin.save_snapshot()


async def fill(kv: KV, count: int) -> None:
    """Put so many."""
    for number in range(count):
        await kv.put(b"%d" % number, VALUE)


async def time_until_served(servers: str) -> float:
    """Return how long it takes until a get is answered."""
    started = time.perf_counter()
    async with Client(servers, timeout_ms=60_000) as client:
        await KV(client).get("warm")
    return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    entries = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    with guarded_directory("quorumlog-measure-") as guard:
        cluster = LocalCluster.create(guard.directory / "cluster", state_machine="kv")
        cluster.up()
        try:
            uvloop.run(measure(cluster.servers, entries))
            cluster.down()
            started = time.perf_counter()
            cluster.up()
            up = time.perf_counter() - started
            served = uvloop.run(time_until_served(cluster.servers))
            print(
                f"restart with {entries:,} entries: up after {up:.2f} s, served {served:.2f} s on"
            )
        finally:
            cluster.down()


if __name__ == "__main__":
    main()
