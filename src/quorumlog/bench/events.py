"""Events in a cluster: a leader is killed or frozen, a follower was stopped, all nodes restart.

These stop and kill nodes, so they are only for clusters that the bench has made.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from operator import sub

from quorumlog.bench.figures import Sample
from quorumlog.bench.loads import body_of, fill
from quorumlog.bench.processes import Usage
from quorumlog.client import Client
from quorumlog.local import LocalCluster
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import Outcome, QuorumlogError, RequestError

TRICKLE_S = 0.005
"""Between two appends of those that show how long a group stands still."""
STEADY_S = 1.0
"""How long a group works before its leader is stopped."""
POLL_S = 0.01
CATCH_UP_SECONDS = 120.0
LIVE_IN_FLIGHT = 64
STOP_IN_FLIGHT = 32
"""Appends in flight while the leader is stopped."""


async def appended(log: Client, seconds: float) -> None:
    """Append small entries for some seconds, and until one was acknowledged."""
    end = time.perf_counter() + seconds
    body = body_of(40)
    while True:
        try:
            await log.append(body)
        except QuorumlogError:
            continue  # of unknown outcome, or refused: the next one is what counts
        if time.perf_counter() >= end:
            return
        await asyncio.sleep(TRICKLE_S)


async def leader_lost(cluster: LocalCluster, group: str, *, silent: bool) -> float:
    """Return the seconds from the loss of the leader to the next append that is acknowledged.

    It is killed, or with `silent` frozen: its connections stay open and say nothing. Afterwards it
    is back.
    """
    async with Client(cluster.context, group) as log:
        await appended(log, STEADY_S)
        leader = await asyncio.to_thread(cluster.leader, group)
        take, give_back = (
            (cluster.pause, cluster.resume) if silent else (cluster.kill, cluster.start)
        )
        started = time.perf_counter()
        await asyncio.to_thread(take, leader)
        await appended(log, 0.0)
        taken = time.perf_counter() - started
    await asyncio.to_thread(give_back, leader)
    await _in_step(cluster, group)
    return taken


@dataclass(frozen=True, slots=True)
class CleanStop:
    """How long no append was acknowledged; appends in flight of unknown outcome."""

    seconds: float
    unknown: int


async def leader_stopped(cluster: LocalCluster, group: str) -> CleanStop:
    """Stop the leader with SIGTERM while appends are in flight, until its process is gone.

    Afterwards it is started again.
    """
    unknown = 0
    answered: list[float] = []
    async with Client(cluster.context, group) as log:

        async def work() -> None:
            nonlocal unknown
            body = body_of(40)
            while True:
                try:
                    await log.append(body)
                except RequestError as error:
                    unknown += error.outcome is Outcome.UNKNOWN
                else:
                    answered.append(time.perf_counter())

        tasks = [asyncio.ensure_future(work()) for _ in range(STOP_IN_FLIGHT)]
        try:
            await asyncio.sleep(STEADY_S)
            leader = await asyncio.to_thread(cluster.leader, group)
            answered.clear()
            started = time.perf_counter()
            await asyncio.to_thread(cluster.stop, leader)
            await appended(log, 0.0)
            await log.append(body_of(40))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.to_thread(cluster.start, leader)
    await _in_step(cluster, group)
    moments = [started, *answered]
    return CleanStop(max(map(sub, moments[1:], moments)), unknown)


async def _ends(log: Client) -> dict[str, int]:
    """Return the last index of each replica that answers."""
    return {
        status.node_id: status.end_index
        for status in await log.status()
        if status.code == ResponseCode.SUCCESS
    }


async def _in_step(cluster: LocalCluster, group: str) -> None:
    """Wait until all replicas have what was committed when this was called."""
    async with Client(cluster.context, group) as log:
        _, committed = await log.bounds()
        deadline = time.perf_counter() + CATCH_UP_SECONDS
        while time.perf_counter() < deadline:
            ends = await _ends(log)
            if len(ends) == len(cluster.node_ids) and min(ends.values()) >= committed:
                return
            await asyncio.sleep(POLL_S)
    raise TimeoutError(f"not all replicas of {group} caught up in {CATCH_UP_SECONDS:.0f} s")


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Bytes a second of the log; appends a second before, and while a follower caught up."""

    bytes_per_second: float
    rate_before: float
    rate_meanwhile: float


async def caught_up(
    cluster: LocalCluster, group: str, size: int, count: int, *, live_s: float
) -> CatchUp:
    """Stop a follower, append `count` entries, start it, and measure how fast it catches up.

    With live_s above 0, 64 appends are in flight for this long before, and until it has caught up.
    """
    async with Client(cluster.context, group) as log:
        leader = await asyncio.to_thread(cluster.leader, group)
        follower = next(node for node in cluster.node_ids if node != leader)
        await asyncio.to_thread(cluster.stop, follower)
        await fill(log, size, count)
        _, target = await log.bounds()
        async with _live(log, size if live_s else 0) as done:
            before = done()
            await asyncio.sleep(live_s)
            rate_before = (done() - before) / max(live_s, POLL_S)
            await asyncio.to_thread(cluster.start, follower)
            first = (await _ends(log)).get(follower, target - count)
            started, before = time.perf_counter(), done()
            while (await _ends(log)).get(follower, -1) < target:
                await asyncio.sleep(POLL_S)
                if time.perf_counter() - started > CATCH_UP_SECONDS:
                    raise TimeoutError(f"{follower} did not catch up")
            taken = time.perf_counter() - started
            return CatchUp((target - first) * size / taken, rate_before, (done() - before) / taken)


@asynccontextmanager
async def _live(log: Client, size: int) -> AsyncIterator[Callable[[], int]]:
    """Append from many tasks meanwhile (size 0: none); yield a function that counts the appends."""
    count = 0
    body = body_of(size)

    async def work() -> None:
        nonlocal count
        while True:
            await log.append(body)
            count += 1

    tasks = [asyncio.ensure_future(work()) for _ in range(LIVE_IN_FLIGHT if size else 0)]
    try:
        yield lambda: count
    finally:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


async def restarted(cluster: LocalCluster, group: str) -> float:
    """Stop all nodes; return the seconds from their start to the first append acknowledged."""
    await asyncio.to_thread(cluster.down)
    started = time.perf_counter()
    starting = asyncio.ensure_future(asyncio.to_thread(cluster.up))
    async with Client(cluster.context, group) as log:
        await appended(log, 0.0)
        taken = time.perf_counter() - started
    await starting
    return taken


async def idle(cluster: LocalCluster, seconds: float) -> Sample:
    """Measure the CPU seconds that the nodes use while nothing happens."""
    usage, started = Usage(cluster.running()), time.perf_counter()
    await asyncio.sleep(seconds)
    return usage.into(Sample(0, time.perf_counter() - started))
