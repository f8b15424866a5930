"""Whole clusters from seeds: real replicas and logs over networks, disks and clocks that fail."""

from functools import partial

import pytest

from quorumlog.sim.campaign import Plan, cores, run_all
from quorumlog.sim.cluster import SimulatedCluster
from quorumlog.sim.run import run_seed

SEEDS = 12
"""More belong into `make soak`."""
SECONDS = 30


def found(plan):
    """Return what was found, as a failing test should show it."""
    told = []
    for outcome in run_all(plan, cores()):
        if outcome.finding is not None:
            lines = [line for story in outcome.histories.values() for line in story]
            told.append("\n".join([*lines, str(outcome.finding), plan.command(outcome.seed)]))
    return "\n\n".join(told)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("first_seed", "seeds", "nodes"), [(0, SEEDS - SEEDS // 10, 3), (10_000, SEEDS // 10, 5)]
)
def test_nothing_is_found_whatever_goes_wrong(first_seed, seeds, nodes):
    told = found(Plan(first_seed, seeds, SECONDS, nodes))
    assert not told, told


@pytest.mark.parametrize("seed", range(40_000, 40_004))
def test_nothing_is_found_in_groups_whose_log_dledger_can_go_on_with(seed):
    made = partial(SimulatedCluster, original_compatible="0.2.7")
    outcome = run_seed(seed, has_partitions=False, cluster_type=made)
    assert outcome.finding is None, (str(outcome.finding), outcome.histories)


@pytest.mark.parametrize("seed", range(50_000, 50_003))
def test_nothing_is_found_in_groups_that_hold_partitions(seed):
    outcome = run_seed(seed, seconds=20, has_partitions=True)
    assert outcome.finding is None, (str(outcome.finding), outcome.histories)
    assert outcome.appended > 100
    assert outcome.reads > 10


@pytest.mark.parametrize("seed", [7, 8])
def test_the_same_seed_is_the_same_run_to_the_byte(seed):
    first, second = run_seed(seed, seconds=10), run_seed(seed, seconds=10)
    assert first.digest == second.digest
    assert first.histories == second.histories


def test_every_kind_of_fault_is_used_and_all_that_is_asked_is_served():
    outcomes = list(run_all(Plan(500, 30, 10, 3), cores()))
    of_groups = [outcome for outcome in outcomes if "groups" in outcome.faults]
    of_brokers = [outcome for outcome in outcomes if "brokers" in outcome.faults]
    of_one_group = [one for one in outcomes if one not in of_groups and one not in of_brokers]
    for runs, count in ((of_one_group, 26), (of_groups, 18), (of_brokers, 19)):
        kinds = {kind for outcome in runs for kind in outcome.faults}
        assert len(kinds) == count, sorted(kinds)
    assert all(outcome.appended > 20 for outcome in of_one_group)
    # Groups that come and go on full disks take little, on average they do not.
    assert all(outcome.appended for outcome in of_groups)
    assert sum(outcome.appended for outcome in of_groups) > 20 * len(of_groups)
    # Producers of partitions wait for their answers: a long election leaves a run few batches.
    assert all(outcome.appended for outcome in of_brokers)
    assert sum(outcome.appended for outcome in of_brokers) > 20 * len(of_brokers)
    assert sum(outcome.reads for outcome in outcomes) > 200
