"""What a restart of a cluster with many groups costs, from ready nodes to led groups.

    python benchmarks/measure_restart.py [GROUPS] [RUNS]

Makes three nodes, stops them all and starts them at once. Processor time of each thread is counted
from the moment at which the last node says that it has started, until each group has had a leader:
wall time depends on what else the machine does. Linux only.
"""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from quorumlog.bench.growth import GROUP_FILE_BYTES, GROUP_INDEX_BYTES, GROUP_LIMITS
from quorumlog.local import LocalCluster
from quorumlog.local.layout import Layout
from quorumlog.local.process import NodeProcess

START_S = 600.0
POLL_S = 0.02


class Lines:
    """What a node logs from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size
        self._rest = b""

    def new(self) -> Iterator[dict[str, object]]:
        """Return the lines that have come since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            raw = file.read()
        self._offset += len(raw)
        *lines, self._rest = (self._rest + raw).split(b"\n")
        return (json.loads(line) for line in lines if line.startswith(b"{"))


def thread_seconds(pids: list[int]) -> dict[str, float]:
    """Return the processor time of these processes: of their first threads, and of the others."""
    seconds = dict.fromkeys(("event loop", "other threads"), 0.0)
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            name = "event loop" if task.name == str(pid) else "other threads"
            seconds[name] += int((task / "schedstat").read_text().split()[0]) / 1e9
    return seconds


def restarted(cluster: LocalCluster, groups: int) -> None:
    """Start all nodes of a stopped cluster, and print what it took until all groups were led."""
    layout = Layout(cluster.directory)
    lines = [Lines(cluster.log_file(node)) for node in cluster.node_ids]
    processes = [NodeProcess(layout, node) for node in cluster.node_ids]
    for process in processes:
        process.start()
    pids = [process.pid or 0 for process in processes]
    starting, led = len(lines), set[object]()
    ready_s = began_s = time.perf_counter()
    before: dict[str, float] = {}
    led_before = 0
    while len(led) < groups:
        if time.perf_counter() - began_s > START_S:
            raise TimeoutError(f"{len(led)} of {groups} groups were led after {START_S:.0f} s")
        time.sleep(POLL_S)
        for line in (line for log in lines for line in log.new()):
            if line["event"] == "node started":
                starting -= 1
            elif line["event"] == "role changed" and line["role"] == "LEADER":
                led.add(line["group"])
        if not starting and not before:
            ready_s, before, led_before = time.perf_counter(), thread_seconds(pids), len(led)
    now_s, after = time.perf_counter(), thread_seconds(pids)
    taken = {name: after[name] - before[name] for name in after}
    print(
        f"ready after {sum(before.values()):.1f} s of a processor ({ready_s - began_s:.1f} s), "
        f"{led_before} groups led; all led {sum(taken.values()):.1f} s of a processor later "
        f"({now_s - ready_s:.1f} s): "
        + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in taken.items()),
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    groups = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    directory = Path(tempfile.mkdtemp(prefix="quorumlog-restart-"))
    cluster = LocalCluster.create(
        directory / "cluster",
        groups=[f"g{number}" for number in range(groups)],
        data_file_bytes=GROUP_FILE_BYTES,
        index_file_bytes=GROUP_INDEX_BYTES,
        limits=GROUP_LIMITS,
    )
    try:
        cluster.up(START_S)
        for _ in range(runs):
            cluster.down()
            restarted(cluster, groups)
    finally:
        cluster.down()
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
