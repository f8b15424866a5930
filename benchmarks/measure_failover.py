"""How long appends stand still when the leader dies, with the default timers.

    python benchmarks/measure_failover.py [KILLS]

In simulation, each time from another seed. `quorumlog bench failover silence` does the same with
processes.
"""

import sys
from collections.abc import Sequence

import numpy as np

from quorumlog.sim.cluster import SimulatedCluster

PAUSE_MS = 5
LIVE_MS = 2_000
"""A simulated group lives so long before its leader dies; then a different while each time."""


def simulated_ms(seed: int) -> int:
    """Return the time without an acknowledgement in a run from one seed."""
    cluster = SimulatedCluster(seed, 3)
    for node in cluster.nodes.values():
        node.start()
    cluster.run_until(LIVE_MS)
    killed_ms = LIVE_MS + seed * 7 % 1_000
    while cluster.world.now_ms < killed_ms or cluster.leader() is None:
        cluster.clients.append(1, 40)
        cluster.run_until(cluster.world.now_ms + PAUSE_MS)
    leader, killed_ms = cluster.leader(), cluster.world.now_ms
    if leader is not None:
        leader.stop(power=False)
    acknowledged = cluster.clients.appended
    while cluster.clients.appended == acknowledged:
        if cluster.leader() is not None:
            cluster.clients.append(1, 40)
        cluster.run_until(cluster.world.now_ms + PAUSE_MS)
    return cluster.world.now_ms - killed_ms


def show(what: str, milliseconds: Sequence[float]) -> None:
    """Print a line of percentiles."""
    p50, p99 = np.percentile(milliseconds, (50, 99))
    print(
        f"{what:22} {len(milliseconds):6} kills   p50 {p50:6.0f} ms   p99 {p99:6.0f} ms   "
        f"max {max(milliseconds):6.0f} ms",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    show("simulated", [simulated_ms(seed) for seed in range(kills)])


if __name__ == "__main__":
    main()
