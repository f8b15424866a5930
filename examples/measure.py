"""Measures a running cluster: python examples/measure.py SERVERS GROUP [BODY_BYTES] [ENTRIES].

Prints entries a second through the Producer, latency of single appends, 64 appends in flight, and
entries a second read back. It appends to the group it is given.
"""

import asyncio
import os
import sys
import time

import uvloop

from quorumlog import Client, Producer

SINGLE_APPENDS = 500
IN_FLIGHT = 64
APPENDS_EACH = 100


async def measure(servers: str, group: str, body_bytes: int, entries: int) -> None:
    """Run all measurements, one after the other."""
    body = os.urandom(body_bytes)
    async with Client(servers, group) as log:
        first = (await log.append(b"warm-up")).index
        await produce(log, body, entries)
        await one_in_flight(log, body)
        await many_in_flight(log, body)
        await read_back(log, first)


async def produce(log: Client, body: bytes, entries: int) -> None:
    """Append entries through the Producer until all are acknowledged."""
    started = time.perf_counter()
    async with Producer(log) as producer:
        for _ in range(entries):
            await producer.send(body)
        await producer.flush()
    seconds = time.perf_counter() - started
    rate = entries / seconds
    print(f"Producer            {rate:>10,.0f} entries/s {rate * len(body) / 1e6:8.1f} MB/s")


async def one_in_flight(log: Client, body: bytes) -> None:
    """Append one entry after the other."""
    seconds = []
    for _ in range(SINGLE_APPENDS):
        started = time.perf_counter()
        await log.append(body)
        seconds.append(time.perf_counter() - started)
    seconds.sort()
    p50, p99 = seconds[len(seconds) // 2], seconds[len(seconds) * 99 // 100]
    print(f"one append          p50 {p50 * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms")


async def many_in_flight(log: Client, body: bytes) -> None:
    """Append from 64 tasks at a time, each waiting for its answer."""

    async def work() -> None:
        for _ in range(APPENDS_EACH):
            await log.append(body)

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
    rate = IN_FLIGHT * APPENDS_EACH / (time.perf_counter() - started)
    print(f"64 appends at a time {rate:>9,.0f} entries/s")


async def read_back(log: Client, first: int) -> None:
    """Read everything appended here."""
    started = time.perf_counter()
    count = 0
    async for _ in log.read(first, follow=False):
        count += 1
    print(f"read                {count / (time.perf_counter() - started):>10,.0f} entries/s")


if __name__ == "__main__":
    given = sys.argv[1:]
    size = int(given[2]) if len(given) > 2 else 1_024
    number = int(given[3]) if len(given) > 3 else 200_000
    uvloop.run(measure(given[0], given[1], size, number))
