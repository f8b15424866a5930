"""Measures what idle groups cost: python examples/measure_groups.py [GROUPS] [SECONDS] [FILE].

Starts three nodes on this machine with so many groups (1,000), which keep their entries in memory,
or with FILE on disk, waits until every group has a leader, then prints the processor time that the
three processes take together while nothing is appended.
"""

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from quorumlog import Client, QuorumlogError
from quorumlog.bench.processes import cpu_seconds

NODES = 3
START_SECONDS = 300.0
SETTLE_SECONDS = 10.0
GROUP = """
[[groups]]
group = "{group}"
peers = "{peers}"
storeType = "{kind}"
mappedFileSizeForEntryData = 65536
mappedFileSizeForEntryIndex = 32768
"""
LIMITS = """
[limits]
entryBytesMax = 32768
"""


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(listening.getsockname()[1]) for listening in sockets]
    for listening in sockets:
        listening.close()
    return ports


def write_configs(root: Path, groups: int, kind: str) -> dict[str, Path]:
    """Write a file for each node; return them by address."""
    addresses = {f"n{n}": f"127.0.0.1:{port}" for n, port in enumerate(free_ports(NODES))}
    peers = ";".join(f"{node}-{address}" for node, address in addresses.items())
    configs = {}
    for node, address in addresses.items():
        parts = [f'selfId = "{node}"\nstoreBaseDir = "{root / node}"\nlogLevel = "ERROR"\n', LIMITS]
        parts += [GROUP.format(group=f"g{n}", peers=peers, kind=kind) for n in range(groups)]
        configs[address] = root / f"{node}.toml"
        configs[address].write_text("".join(parts))
    return configs


async def groups_led(address: str) -> int:
    """Return how many groups have a leader, as a node knows; 0 while it does not answer."""
    try:
        async with Client(address, "g0") as log:
            return sum(group.leader_id is not None for group in (await log.metadata()).groups)
    except QuorumlogError:
        return 0


async def wait_for_leaders(addresses: list[str], groups: int) -> None:
    """Wait until every node knows the leader of every group."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if min([await groups_led(address) for address in addresses]) == groups:
            return
        await asyncio.sleep(0.2)
    sys.exit(f"not all groups had a leader after {START_SECONDS:.0f} s")


def measure(root: Path, groups: int, seconds: float, kind: str) -> None:
    """Start, wait, measure, stop."""
    configs = write_configs(root, groups, kind)
    begun = time.monotonic()
    nodes = [
        subprocess.Popen([sys.executable, "-m", "quorumlog", "serve", "-c", path])  # noqa: S603
        for path in configs.values()
    ]
    try:
        asyncio.run(wait_for_leaders(list(configs), groups))
        started = sum(cpu_seconds(node.pid) for node in nodes)
        print(f"{groups} groups led after {time.monotonic() - begun:.1f} s, CPU {started:.1f} s")
        time.sleep(SETTLE_SECONDS)
        before, begun = [cpu_seconds(node.pid) for node in nodes], time.monotonic()
        time.sleep(seconds)
        took = [cpu_seconds(node.pid) - was for node, was in zip(nodes, before, strict=True)]
        elapsed = time.monotonic() - begun
        parts = ", ".join(f"{part / elapsed:.1%}" for part in took)
        print(f"idle: {sum(took) / elapsed:.1%} of a core in all ({parts})")
    finally:
        for node in nodes:
            node.terminate()
        for node in nodes:
            node.wait()


def main() -> None:
    """Measure and print."""
    groups = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 20.0
    kind = sys.argv[3] if len(sys.argv) > 3 else "MEMORY"
    with tempfile.TemporaryDirectory(prefix="quorumlog-groups-") as name:
        measure(Path(name), groups, seconds, kind)


if __name__ == "__main__":
    main()
