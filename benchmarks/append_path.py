"""How much Python runs for one append: calls, functions, files, and calls from one file to another.

    python benchmarks/append_path.py [APPENDS [IN_FLIGHT [GROUPS]]]    # default: 300, one at a time

Three nodes on this machine, each with a profiling hook that counts the calls of all of its threads
while the appends of 1 KiB run; the client is not counted. The hook slows the nodes, so timers
(heartbeats, checkpoints) have a larger part than at full speed: what a node does in the same time
without appends is taken off in the second column. Over several groups each node leads some: the
first line is of the one that leads the first group, and appends go to one group after the other.
"""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import AsyncExitStack
from itertools import cycle
from pathlib import Path
from types import CodeType, FrameType

import uvloop

from quorumlog import Client
from quorumlog.local import LocalCluster, guarded_directory
from quorumlog.model.config import load_config
from quorumlog.service.main import serve

WARM_UP = 100
IDLE_S = 2.0
START_S = 60.0
BODY = b"x" * 1_024
PACKAGE = "/quorumlog/"
LISTED = 12


class Counting:
    """Counts calls in this process between the lines "start" and "stop" on standard input."""

    def __init__(self) -> None:
        self._is_on = False
        self._calls: Counter[CodeType] = Counter()
        self._crossings = 0

    def hook(self, frame: FrameType, event: str, _: object) -> None:
        """See `sys.setprofile`."""
        if not self._is_on or event != "call":
            return
        code, caller = frame.f_code, frame.f_back
        self._calls[code] += 1
        if caller is None or caller.f_code.co_filename != code.co_filename:
            self._crossings += 1

    def obey(self) -> None:
        """Count between "start" and "stop"; print the counts as one JSON object for each "stop"."""
        for line in sys.stdin:
            if line.strip() == "start":
                self._calls.clear()
                self._crossings = 0
                self._is_on = True
                continue
            self._is_on = False
            by_file: Counter[str] = Counter()
            for code, count in self._calls.items():
                by_file[code.co_filename] += count
            own = {
                name.split(PACKAGE)[-1]: count for name, count in by_file.items() if PACKAGE in name
            }
            found = {
                "calls": sum(self._calls.values()),
                "functions": len(self._calls),
                "crossings": self._crossings,
                "files": own,
            }
            print(json.dumps(found), flush=True)


def node(path: str) -> int:
    """Be a node that counts."""
    counting = Counting()
    threading.Thread(target=counting.obey, daemon=True).start()
    threading.setprofile(counting.hook)
    sys.setprofile(counting.hook)
    return serve(load_config(path))


class Nodes:
    """The processes of a cluster that count."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._processes = {
            node_id: subprocess.Popen(  # noqa: S603  (this program)
                [sys.executable, __file__, "--node", f"{cluster.directory}/{node_id}.toml"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for node_id in cluster.node_ids
        }

    def start(self) -> None:
        """Have all count from now on."""
        for process in self._processes.values():
            print("start", file=process.stdin, flush=True)

    def stop(self) -> dict[str, dict]:
        """Return what each counted."""
        for process in self._processes.values():
            print("stop", file=process.stdin, flush=True)
        return {name: json.loads(p.stdout.readline()) for name, p in self._processes.items()}

    def end(self) -> None:
        """End them."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait()


async def measure(cluster: LocalCluster, nodes: Nodes, appends: int, in_flight: int) -> None:
    """Count and print."""
    async with AsyncExitStack() as opened:
        logs = [
            await opened.enter_async_context(
                Client(cluster.servers, group, timeout_ms=int(START_S * 1_000))
            )
            for group in cluster.groups
        ]
        turns = cycle(logs)

        async def some(count: int) -> None:
            async def one_after_the_other(number: int) -> None:
                for _ in range(number):
                    await next(turns).append(BODY)

            async with asyncio.TaskGroup() as group:
                for _ in range(in_flight):
                    group.create_task(one_after_the_other(max(1, count // in_flight)))

        await some(max(WARM_UP, 2 * len(logs)))
        leader = next(one.leader_id for one in await logs[0].status() if one.leader_id)
        nodes.start()
        await asyncio.sleep(IDLE_S)
        idle = nodes.stop()
        nodes.start()
        started = time.perf_counter()
        await some(appends)
        seconds = time.perf_counter() - started
        found = nodes.stop()

    over = f"over {len(logs)} groups, " if len(logs) > 1 else ""
    print(
        f"{appends} appends of 1 KiB, {over}{in_flight} in flight, in {seconds:.1f} s with the hook"
    )
    heads = ("calls an append", "without idle ones", "functions", "files", "file to file")
    print(f"{'':10}" + "".join(f"{head:>19}" for head in heads))
    for name, counted in sorted(found.items(), key=lambda item: item[0] != leader):
        role = "leader" if name == leader else "follower" if len(logs) == 1 else "other"
        calls, idle_calls = counted["calls"], idle[name]["calls"] * seconds / IDLE_S
        values = (calls / appends, (calls - idle_calls) / appends, counted["functions"])
        values += (len(counted["files"]), counted["crossings"] / appends)
        print(f"{role:10}" + "".join(f"{value:19.0f}" for value in values))
    print("\nleader, calls an append by file:")
    files = Counter(found[leader]["files"]).most_common(LISTED)
    print("\n".join(f"{count / appends:8.1f}  {name}" for name, count in files))


def main() -> int:
    """Measure, or be a node."""
    if sys.argv[1:2] == ["--node"]:
        return node(sys.argv[2])
    appends = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    in_flight = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    groups = [f"g{number}" for number in range(int(sys.argv[3]) if len(sys.argv) > 3 else 1)]
    with guarded_directory("quorumlog-path-") as guard:
        directory = Path(guard.directory) / "cluster"
        nodes = Nodes(cluster := LocalCluster.create(directory, groups=groups))
        try:
            uvloop.run(measure(cluster, nodes, appends, in_flight))
        finally:
            nodes.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
