"""What an append costs, load by load, and in which parts of the code.

    pip install py-spy
    python benchmarks/profile_appends.py [SECONDS]                # default 6

Three nodes on this machine and the load in this process. Of the client, the leader and a follower:
processor time for each entry (all threads, the kernel's share included), then, in a second run, how
py-spy's samples of busy threads spread over the modules. Tracing other processes may need root.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import uvloop

from quorumlog.bench import loads
from quorumlog.bench.figures import Sample
from quorumlog.bench.processes import Usage
from quorumlog.client import Client
from quorumlog.local import LocalCluster, guarded_directory

SAMPLES_A_SECOND = 250
WARM_UP_SECONDS = 1.0
LINES = 9
"""Modules shown of each process."""
PACKAGE = "quorumlog/"

Load: TypeAlias = Callable[[Client, float], Awaitable[Sample]]


def single(in_flight: int) -> Load:
    """Return the load of so many appends of 1 KiB in flight."""
    return lambda log, seconds: loads.single_appends(log, 1_024, in_flight, seconds)


def producer(size: int) -> Load:
    """Return the load of a producer with bodies of a size."""
    return lambda log, seconds: loads.produced(log, size, seconds)


LOADS: dict[str, Load] = {
    "1 in flight, 1 KiB": single(1),
    "64 in flight, 1 KiB": single(64),
    "512 in flight, 1 KiB": single(512),
    "batches of 128, 1 KiB": lambda log, seconds: loads.batches(log, 1_024, seconds),
    "Producer, 256 B": producer(256),
    "Producer, 1 KiB": producer(1_024),
    "Producer, 16 KiB": producer(16_384),
}


class Sampler:
    """py-spy beside a process for some seconds; `shares` tells where its samples were."""

    def __init__(self, pid: int, seconds: float, directory: Path) -> None:
        self._path = directory / f"{pid}.txt"
        self._process = subprocess.Popen(  # noqa: S603  (a program named here)
            [
                *("py-spy", "record", "--nonblocking", "--format", "raw", "--threads"),
                *("--rate", str(SAMPLES_A_SECOND), "--duration", str(max(1, round(seconds)))),
                *("--pid", str(pid), "--output", str(self._path)),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def shares(self) -> list[tuple[str, float]]:
        """Return (module, share of the samples), the largest first."""
        _, errors = self._process.communicate()
        if self._process.returncode:
            raise SystemExit(f"py-spy: {errors.decode().strip()}")
        found: Counter[str] = Counter()
        for line in self._path.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            found[module_of(stack.split(";"))] += int(count)
        total = sum(found.values())
        return [(name, count / total) for name, count in found.most_common(LINES)]


def module_of(stack: list[str]) -> str:
    """Return our module that a sample is in, by itself or in what it called; else the innermost."""
    places = [frame.rpartition("(")[2].rstrip(")").rpartition(":")[0] for frame in stack]
    for place in reversed(places):
        if PACKAGE in place:
            return place.rpartition(PACKAGE)[2]
    return "the event loop" if any("asyncio" in place for place in places) else places[-1]


async def profile(cluster: LocalCluster, name: str, load: Load, seconds: float) -> None:
    """Put one load on the cluster and print what it cost."""
    (group,) = cluster.groups
    pids, leader = cluster.running(), cluster.leader(group)
    follower = next(node for node in pids if node != leader)
    async with Client(cluster.servers, group, timeout_ms=60_000) as log:
        await load(log, WARM_UP_SECONDS)
        usage = Usage(pids)
        plain = usage.into(await load(log, seconds))
        with tempfile.TemporaryDirectory() as place:
            watched = {"client": os.getpid(), "leader": pids[leader], "follower": pids[follower]}
            samplers = {who: Sampler(pid, seconds, Path(place)) for who, pid in watched.items()}
            await load(log, seconds + WARM_UP_SECONDS)
            shares = {
                who: await asyncio.to_thread(sampler.shares) for who, sampler in samplers.items()
            }
    spent = {
        "client": plain.client_cpu_seconds,
        "leader": plain.node_cpu_seconds[leader],
        "follower": plain.node_cpu_seconds[follower],
    }
    print(f"\n{name}: {plain.rate:,.0f} entries/s")
    for who, found in shares.items():
        each = spent[who] / plain.count * 1e6
        parts = ", ".join(f"{module} {share:.0%}" for module, share in found)
        print(f"  {who:8} {each:8.1f} us an entry, {spent[who] / plain.seconds:4.0%} of a core")
        print(f"           {parts}", flush=True)


def main() -> None:
    """Measure each load."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 6.0
    with ExitStack() as stack:
        guard = stack.enter_context(guarded_directory("quorumlog-profile-"))
        cluster = LocalCluster.create(guard.directory / "nodes")
        stack.callback(cluster.down)
        cluster.up()
        for name, load in LOADS.items():
            uvloop.run(profile(cluster, name, load, seconds))


if __name__ == "__main__":
    main()
