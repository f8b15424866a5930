"""Many runs, in several processes: seed after seed, until one finds something or all are done."""

import gc
import itertools
import logging
import os
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from random import Random

from quorumlog.sim.broker_run import run_brokers_seed
from quorumlog.sim.finding import Outcome
from quorumlog.sim.group_run import run_groups_seed
from quorumlog.sim.run import run_seed

AHEAD = 2
"""Runs given to each process before the first of them ends."""
GC_ALLOCATIONS = 200_000
BROKERS = 0.1
"""Share of seeds whose nodes are brokers, with consumer groups and transactions."""
GROUPS = 0.2
"""Share of the others whose nodes have groups that come and go; those of the rest have one group.
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """Seeds first_seed … first_seed + seeds - 1 (seeds None: without end), `seconds` of faults.

    `has_partitions`: whether every run is of one group that holds partitions of topics; None: each
    seed decides. False: none does. `has_brokers`: whether every run is of brokers; None: each seed
    decides, unless every run is of one group. False: none is.
    """

    first_seed: int
    seeds: int | None
    seconds: float
    nodes: int
    has_partitions: bool | None = None
    has_brokers: bool | None = None

    def command(self, seed: int) -> str:
        """Return the command that repeats one run."""
        return (
            f"quorumlog simulate --first-seed {seed} --seeds 1 --seconds {self.seconds:g} "
            f"--nodes {self.nodes}"
            + " --partitions" * bool(self.has_partitions)
            + " --brokers" * bool(self.has_brokers)
        )


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))


def _prepare() -> None:
    """Prepare a process for runs only: what nodes log is in their histories.

    Most of what a run allocates lives to its end, so looking for garbage in its course as often as
    usual is a fifth of its time.
    """
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, 50, 50)


def has_groups(seed: int) -> bool:
    """Whether the nodes of a seed have groups that come and go."""
    return Random(f"kind {seed}").random() < GROUPS  # noqa: S311  (nothing secret)


def has_brokers(seed: int) -> bool:
    """Whether the nodes of a seed are brokers."""
    return Random(f"has brokers {seed}").random() < BROKERS  # noqa: S311  (nothing secret)


def _run(plan: Plan, seed: int) -> Outcome:
    seconds, nodes = plan.seconds, plan.nodes
    are_brokers = plan.has_brokers
    if are_brokers is None:
        are_brokers = plan.has_partitions is None and has_brokers(seed)
    try:
        if are_brokers:
            return run_brokers_seed(seed, seconds=seconds, nodes=nodes)
        if not plan.has_partitions and has_groups(seed):
            return run_groups_seed(seed, seconds=seconds, nodes=nodes)
        return run_seed(seed, seconds=seconds, nodes=nodes, has_partitions=plan.has_partitions)
    finally:
        gc.collect()  # a run is one large cycle


def run_all(plan: Plan, jobs: int) -> Iterator[Outcome]:
    """Yield how each run ended, in the order in which they end; with one job, of the seeds."""
    numbers = itertools.count() if plan.seeds is None else range(plan.seeds)
    seeds = (plan.first_seed + number for number in numbers)
    if jobs == 1:
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            for seed in seeds:
                yield _run(plan, seed)
        finally:
            logging.disable(before)
        return
    with ProcessPoolExecutor(jobs, initializer=_prepare) as pool:
        running: set[Future[Outcome]] = set()
        try:
            for seed in seeds:
                running.add(pool.submit(_run, plan, seed))
                if len(running) >= AHEAD * jobs:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            for future in running:
                yield future.result()
        finally:
            for future in running:
                future.cancel()
