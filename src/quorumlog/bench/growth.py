"""How cost grows: with clients, with groups, with the length of the log, with time.

Groups, length and time are measured on clusters made for it, one after the other.
"""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from quorumlog.bench import events, loads
from quorumlog.bench.cases import Bench
from quorumlog.bench.figures import (
    MEGABYTE,
    Figure,
    Sample,
    pause_figure,
    rate_figure,
    value_figure,
)
from quorumlog.bench.processes import Usage, resident_bytes
from quorumlog.client import Client
from quorumlog.local import LocalCluster
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.model.limits import KIB, MIB, Limits
from quorumlog.model.wording import counted

BODY_BYTES = 1_024
FILLED_BODY_BYTES = 16 * KIB
IN_FLIGHT = 64
IN_FLIGHT_OF_GROUP = 16
"""Appends in flight over a number of groups: 64, with which a hundred groups have less than one
each, and 16 times as many as there are groups, so that each fills blocks."""
GIB = 1_024 * MIB
START_S = 300.0
GROUP_FILE_BYTES = 256 * KIB
GROUP_INDEX_BYTES = 32 * KIB
GROUP_LIMITS = Limits(entry_bytes_max=64 * KIB)
"""Files of a thousand groups are small, and entries must fit into them."""
LONG_FILE_BYTES = 256 * MIB
SPARE_BYTES = 4 * GIB
"""Kept free on the disk, for files prepared in advance and for other programs."""
RETENTION_BYTES = 512 * MIB
SAMPLES = 10
"""Measurements of the memory in the course of a run."""


@asynccontextmanager
async def _cluster(bench: Bench, name: str, **layout: object) -> AsyncIterator[LocalCluster]:
    """Make and start a cluster next to the one that is measured, and remove it afterwards.

    If a case fails, its files are removed by the caller, who made the directory (`guarded`).
    """
    directory = bench.own_cluster().directory.parent / name
    certify = bench.target.certify
    given: dict[str, Any] = {**layout, "secure": certify is not None}
    cluster = LocalCluster.create(directory, **given)
    if certify is not None and cluster.tls_directory is not None:
        certify(cluster.tls_directory, cluster.node_ids)
    await asyncio.to_thread(cluster.up, START_S)
    yield cluster
    await asyncio.to_thread(cluster.down)
    await asyncio.to_thread(shutil.rmtree, directory)


async def clients(bench: Bench) -> AsyncIterator[Figure]:
    """Several numbers of clients, each with its own connections and one append in flight."""
    for count in bench.plan.client_counts:
        samples = []
        for _ in range(bench.plan.rounds):
            async with AsyncExitStack() as opened:
                logs = [await opened.enter_async_context(bench.client()) for _ in range(count)]
                await asyncio.gather(*(log.bounds() for log in logs))  # connected
                usage = Usage(bench.target.pids())
                sample = await loads.each_appends(logs, BODY_BYTES, bench.plan.seconds)
                samples.append(usage.into(sample))
        yield rate_figure(f"append, {counted(count, 'client')}", samples, BODY_BYTES)


async def groups(bench: Bench) -> AsyncIterator[Figure]:
    """Several numbers of groups: until all are led, idle, and appends in flight over all."""
    for count in bench.plan.group_counts:
        names = [f"g{number}" for number in range(count)]
        started = time.perf_counter()
        async with _cluster(
            bench,
            f"groups-{count}",
            groups=names,
            data_file_bytes=GROUP_FILE_BYTES,
            index_file_bytes=GROUP_INDEX_BYTES,
            limits=GROUP_LIMITS,
        ) as cluster:
            led = time.perf_counter() - started
            yield value_figure(f"{counted(count, 'group')}, all led after", "s", [led])
            await asyncio.sleep(bench.plan.idle_seconds)  # until idle groups are quiescent
            sample = await events.idle(cluster, bench.plan.idle_seconds)
            used = sum(sample.node_cpu_seconds.values()) / sample.seconds * 100
            memory = f"{sample.memory_bytes / MEGABYTE:.0f} MB a node"
            yield value_figure(
                f"{counted(count, 'group')}, idle", "% of a core", [used], note=memory
            )
            for in_flight in (IN_FLIGHT, IN_FLIGHT_OF_GROUP * count):
                samples = [
                    await _over_groups(cluster, names, in_flight, bench.plan.seconds)
                    for _ in range(bench.plan.rounds)
                ]
                case = f"append, {in_flight} in flight over {counted(count, 'group')}"
                yield rate_figure(case, samples, BODY_BYTES)


async def _over_groups(
    cluster: LocalCluster, names: list[str], in_flight: int, seconds: float
) -> Sample:
    """Append from `in_flight` tasks to one group after the other."""
    async with AsyncExitStack() as opened:
        logs = [
            await opened.enter_async_context(Client(cluster.context, name, timeout_ms=60_000))
            for name in names
        ]
        for begin in range(0, len(logs), IN_FLIGHT):
            await asyncio.gather(*(log.bounds() for log in logs[begin : begin + IN_FLIGHT]))
        usage = Usage(cluster.running())
        return usage.into(await loads.spread_appends(logs, BODY_BYTES, in_flight, seconds))


async def length(bench: Bench) -> AsyncIterator[Figure]:
    """Logs of several lengths: producer, single entries anywhere, restart."""
    lengths = sorted(bench.plan.lengths_gib)
    async with _cluster(bench, "length", data_file_bytes=LONG_FILE_BYTES) as cluster:
        (group,) = cluster.groups
        needed = len(cluster.node_ids) * int(lengths[-1] * GIB) + SPARE_BYTES
        free = shutil.disk_usage(cluster.directory).free
        if needed > free:
            raise UnexpectedArgumentError(
                f"a log of {lengths[-1]:g} GiB on {counted(len(cluster.node_ids), 'node')} needs "
                f"{needed / GIB:.0f} GiB in {cluster.directory.parent}, where {free / GIB:.0f} are "
                "free: choose shorter ones with --gib, or another place with TMPDIR"
            )
        filled = 0
        for gib in lengths:
            async with Client(cluster.context, group, timeout_ms=60_000) as log:
                wanted = int(gib * GIB) // FILLED_BODY_BYTES
                await loads.fill(log, FILLED_BODY_BYTES, wanted - filled)
                filled = wanted
                usage = Usage(cluster.running())
                sample = usage.into(await loads.produced(log, BODY_BYTES, bench.plan.seconds))
                yield rate_figure(f"producer, log of {gib:g} GiB", [sample], BODY_BYTES)
                begin, committed = await log.bounds()
                usage = Usage(cluster.running())
                sample = usage.into(
                    await loads.random_gets(log, begin, committed, bench.plan.seconds)
                )
                case = f"get anywhere, 16 in flight, log of {gib:g} GiB"
                yield rate_figure(case, [sample], FILLED_BODY_BYTES)
            taken = await events.restarted(cluster, group)
            yield pause_figure(f"restart, log of {gib:g} GiB, to the first append", [taken])


async def steady(bench: Bench) -> AsyncIterator[Figure]:
    """Memory while 64 appends are in flight, a reader follows and retention removes old files."""
    seconds = bench.plan.steady_seconds
    async with _cluster(
        bench, "steady", data_file_bytes=64 * MIB, retention_bytes=RETENTION_BYTES
    ) as cluster:
        (group,) = cluster.groups
        pids = cluster.running()
        resident: list[list[float]] = []
        rates: list[float] = []
        async with (
            Client(cluster.context, group, timeout_ms=60_000) as log,
            Client(cluster.context, group, timeout_ms=60_000) as reading,
        ):
            follower = asyncio.ensure_future(loads.follow(reading))
            try:
                for _ in range(SAMPLES):
                    sample = await loads.single_appends(
                        log, BODY_BYTES, IN_FLIGHT, seconds / SAMPLES
                    )
                    rates.append(sample.rate)
                    resident.append([resident_bytes(pid) / MEGABYTE for pid in pids.values()])
            finally:
                follower.cancel()
                await asyncio.gather(follower, return_exceptions=True)
        case = f"memory of a node over {seconds:.0f} s"
        for node, held in zip(pids, zip(*resident, strict=True), strict=True):
            note = f"{node}: {held[0]:.0f} MB after a tenth, {held[-1]:.0f} at the end"
            yield value_figure(case, "MB", held, note=note)
        yield value_figure(f"append, 64 in flight over {seconds:.0f} s", "entries/s", rates)
