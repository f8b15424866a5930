"""Loads on a group: appends in flight, a producer, batches and reads, each for some seconds."""

import asyncio
import os
import random
import struct
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle

from quorumlog.bench.figures import Sample
from quorumlog.client import Client, Producer
from quorumlog.client.delivery import Delivery
from quorumlog.client.reader import BlockReader
from quorumlog.client.results import FetchedBlock
from quorumlog.model.errors import RequestError
from quorumlog.model.limits import MIB

BATCH_ENTRIES = 128
BATCHES_IN_FLIGHT = 4
GETS_IN_FLIGHT = 16
SEND_CHUNK = 256
"""Entries given to a producer between two readings of the clock; one of them is timed."""
FETCH_BYTES = 4 * MIB
_SENT_AT = struct.Struct(">d")
TAIL_WAIT_SECONDS = 10.0


def body_of(size: int) -> bytes:
    """Return a body that nothing compresses."""
    return os.urandom(size)


async def _closed_loop(
    calls: Sequence[Callable[[], Awaitable[object]]], seconds: float, entries: int = 1
) -> Sample:
    """Keep each of the calls under way; each stores `entries`."""
    latencies = array("d")
    started = time.perf_counter()
    end = started + seconds

    async def work(call: Callable[[], Awaitable[object]]) -> None:
        while (asked := time.perf_counter()) < end:
            await call()
            latencies.append(time.perf_counter() - asked)

    await asyncio.gather(*map(work, calls))
    return Sample(len(latencies) * entries, time.perf_counter() - started, latencies)


async def single_appends(log: Client, size: int, in_flight: int, seconds: float) -> Sample:
    """Append entries one by one from `in_flight` tasks."""
    body = body_of(size)
    return await _closed_loop([lambda: log.append(body)] * in_flight, seconds)


async def each_appends(logs: Sequence[Client], size: int, seconds: float) -> Sample:
    """Append entries one by one, each client for itself."""
    body = body_of(size)
    return await _closed_loop([partial(log.append, body) for log in logs], seconds)


async def spread_appends(
    logs: Sequence[Client], size: int, in_flight: int, seconds: float
) -> Sample:
    """Append entries one by one from `in_flight` tasks, each time with the next client.

    A group that is too busy to keep its leader fails an append; the next one's turn comes.
    """
    body, turn = body_of(size), cycle(logs)

    async def append() -> None:
        while True:
            with suppress(RequestError):
                await next(turn).append(body)
                return

    return await _closed_loop([append] * in_flight, seconds)


async def batches(log: Client, size: int, seconds: float) -> Sample:
    """Append atomic batches of 128 entries, or as many as are allowed, four at a time."""
    fitting = max(1, log.limits.block_bytes_max // (2 * size))
    bodies = [body_of(size)] * min(BATCH_ENTRIES, fitting)
    return await _closed_loop(
        [lambda: log.append_batch(bodies)] * BATCHES_IN_FLIGHT, seconds, len(bodies)
    )


async def produced(log: Client, size: int, seconds: float) -> Sample:
    """Give a producer, with default settings, as much as it takes; one entry in 256 is timed."""
    body = body_of(size)
    latencies = array("d")
    waiting: set[asyncio.Task[None]] = set()

    async def timed(delivery: Delivery, asked: float) -> None:
        await delivery
        latencies.append(time.perf_counter() - asked)

    count = 0
    try:
        async with Producer(log) as producer:
            await producer.send(body)
            await producer.flush()
            started = time.perf_counter()
            while time.perf_counter() - started < seconds:
                asked = time.perf_counter()
                task = asyncio.ensure_future(timed(await producer.send(body), asked))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
                for _ in range(SEND_CHUNK - 1):
                    await producer.send(body)
                count += SEND_CHUNK
            await producer.flush()
            taken = time.perf_counter() - started
    finally:
        # where the producer fails, all of them do, of the same reason
        await asyncio.gather(*waiting, return_exceptions=True)
    return Sample(count, taken, latencies)


async def fill(log: Client, size: int, count: int) -> None:
    """Append `count` entries."""
    body = body_of(size)
    async with Producer(log) as producer:
        for _ in range(count):
            await producer.send(body)
        await producer.flush()


# -- reads -------------------------------------------------------------------------------------


async def read_entries(log: Client, first: int, last: int) -> Sample:
    """Read a range as Python entries, one consumer."""
    started = time.perf_counter()
    count = 0
    async for entries in log.read_blocks(first, end=last, follow=False):
        count += len(entries)
    return Sample(count, time.perf_counter() - started)


async def read_blocks(log: Client, first: int, last: int) -> Sample:
    """Read a range as blocks with one consumer, which counts entries but does not touch them."""

    async def fetch(begin: int, end: int, wait_ms: int) -> FetchedBlock:
        return await log.fetch(
            begin, end, bytes_max=FETCH_BYTES, wait_ms=wait_ms, index_records=True
        )

    started = time.perf_counter()
    count = 0
    async for fetched in BlockReader(fetch, first, last, follow=False).blocks():
        count += fetched.block(log.limits.entry_bytes_max).count
    return Sample(count, time.perf_counter() - started)


async def random_gets(log: Client, first: int, last: int, seconds: float) -> Sample:
    """Get single entries anywhere in a range, 16 at a time."""
    chance = random.Random(1)  # noqa: S311  (places to read, nothing secret)
    return await _closed_loop(
        [lambda: log.get(chance.randint(first, last))] * GETS_IN_FLIGHT, seconds
    )


async def follow(log: Client) -> None:
    """Read what is appended from now on, until cancelled."""
    async for _ in log.read_blocks("latest"):
        pass


async def tail(log: Client, size: int, seconds: float) -> Sample:
    """Follow the log while single entries are appended: from the append to its reader."""
    latencies = array("d")
    rest = body_of(max(0, size - _SENT_AT.size))
    _, committed = await log.bounds()
    seen = asyncio.Event()

    async def follow() -> None:
        async for entry in log.read(committed + 1):
            (sent_at,) = _SENT_AT.unpack_from(entry.body)
            latencies.append(time.perf_counter() - sent_at)
            seen.set()

    reader = asyncio.ensure_future(follow())
    started = time.perf_counter()
    try:
        while time.perf_counter() - started < seconds:
            seen.clear()
            await log.append(_SENT_AT.pack(time.perf_counter()) + rest)
            async with asyncio.timeout(TAIL_WAIT_SECONDS):
                await seen.wait()
    finally:
        reader.cancel()
    return Sample(len(latencies), time.perf_counter() - started, latencies)
