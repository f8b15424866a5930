"""Which cases there are by name, and running them in order."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from quorumlog.bench import growth
from quorumlog.bench.cases import Bench, Plan, Target
from quorumlog.bench.figures import Figure
from quorumlog.bench.limits import measure_limits

Case: TypeAlias = Callable[[Bench], AsyncIterator[Figure]]

CASES: dict[str, Case] = {
    "append": Bench.append,
    "batch": Bench.batch,
    "producer": Bench.producer,
    "read": Bench.read,
    "idle": Bench.idle,
    "failover": Bench.failover,
    "silence": Bench.silence,
    "catchup": Bench.catchup,
    "restart": Bench.restart,
    "clients": growth.clients,
    "groups": growth.groups,
    "length": growth.length,
    "steady": growth.steady,
}
"""By name, in the order in which they run."""
OWN = ("idle", "failover", "silence", "catchup", "restart", "groups", "length", "steady")
"""Cases for clusters that the bench has made: they need one to themselves, or inject faults."""
ON_DEMAND = ("clients", "groups", "length", "steady")
"""How cost grows takes half an hour: only when it is asked for."""


async def run(
    target: Target, plan: Plan, cases: Sequence[str], disk: Path | None
) -> AsyncIterator[Figure]:
    """Yield figures as they come: those of the machine first, measured on the disk of `disk`.

    Raises what clients raise, `LocalClusterError`, and `UnexpectedArgumentError` for a case that
    the target does not allow.
    """
    limits = None
    if disk is not None:
        limits, figures = await asyncio.to_thread(measure_limits, disk, min(1.0, plan.seconds))
        for figure in figures:
            yield figure
    bench = Bench(target, plan, limits)
    for name in (name for name in CASES if name in cases):
        async for figure in CASES[name](bench):
            yield figure
