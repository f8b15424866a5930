"""Groups that remove entries by age, whatever clocks are set to; an invariant checks each event."""

from quorumlog.sim.cluster import SimulatedCluster
from quorumlog.sim.invariants.no_early_removal import NoEarlyRemoval
from quorumlog.sim.run import run_seed

SEEDS = (17, 31, 33, 46)
"""Of those with ages: each has steps of clocks, deaths of leaders, or both."""


def test_old_entries_go_and_young_ones_stay():
    clusters = []

    class Kept(SimulatedCluster):
        def __init__(self, *args, **settings):
            super().__init__(*args, **settings)
            clusters.append(self)

    steps = removals = 0
    for seed in SEEDS:
        outcome = run_seed(seed, seconds=20, cluster_type=Kept)
        assert outcome.finding is None, (seed, outcome.finding)
        steps += sum("clocks of" in line for line in outcome.histories["faults"])
        [invariant] = [one for one in clusters.pop().invariants if isinstance(one, NoEarlyRemoval)]
        removals += invariant.removals
    assert steps > 10
    assert removals > 50
