"""The simulator sees: every known bug that is put back is found within 200 seeds, or in a scene."""

import importlib

import pytest
from broker_mutants import BROKER_MUTANTS
from scenes import SCENES, SceneError

from mutants import MUTANTS
from quorumlog.sim.broker_run import run_brokers_seed
from quorumlog.sim.campaign import Plan, run_all
from quorumlog.sim.finding import found_by
from quorumlog.sim.group_run import run_groups_seed
from quorumlog.sim.run import run_seed

SEEDS = 200
GROUPS_SEEDS = 20
"""Of mutants of groups that come and go, or of partitions: each seed has them."""
SECONDS = 20
BROKER_SECONDS = 12
FIRST_SEEDS = {
    "c01": 1,
    "c02": 1,
    "c05": 1,
    "c06": 1,
    "c07": 1,
    "c09": 1,
    "c11": 4,
    "g01": 1,
    "g05": 194,
    "j01": 16,
    "p04": 1,
    "p05": 3,
    "p14": 11,
    "r05": 1,
    "r08": 1,
    "r09": 6,
    "r11": 5,
    "r12": 1,
    "r16": 50,
    "r18": 19,
    "r21": 3,
    "r26": 2,
    "r27": 6,
    "r28": 80,
    "r29": 6,
    "r30": 13,
    "r31": 31,
    "r32": 31,
    "r35": 13,
    "r38": 2,
    "r39": 1,
    "t04": 8,
    "t05": 24,
    "t06": 24,
}
"""Where the rare ones are found soon, so that the suite stays short: from seed 0 it takes up to 129
seeds. Those that take long wherever one starts have a scene."""


@pytest.fixture
def put(monkeypatch):
    def place(target, name, bug):
        owner = importlib.import_module(target) if isinstance(target, str) else target
        monkeypatch.setattr(owner, name, bug)

    return place


BROKEN_MUTANT = ("TypeError", "AttributeError", "NameError")
"""What is raised if a mutant does not fit the product any more; it proves nothing then."""


def findings(name):
    """Yield what each run finds, or None."""
    if name[:3] in SCENES:
        finding = found_by(SCENES[name[:3]])
        if finding is not None and isinstance(finding.__cause__, SceneError):
            raise finding.__cause__
        yield finding
        return
    first_seed = FIRST_SEEDS.get(name[:3], 0)
    seeds = range(first_seed, first_seed + GROUPS_SEEDS)
    if name.startswith("g"):
        outcomes = (run_groups_seed(seed, seconds=SECONDS) for seed in seeds)
    elif name.startswith("c"):
        outcomes = (run_brokers_seed(seed, seconds=BROKER_SECONDS) for seed in seeds)
    elif name.startswith("p"):
        outcomes = (run_seed(seed, seconds=SECONDS, has_partitions=True) for seed in seeds)
    else:
        plan = Plan(first_seed, SEEDS, SECONDS, 3, has_partitions=False)
        outcomes = run_all(plan, 1)  # other processes would finish runs that nobody waits for
    for outcome in outcomes:
        yield outcome.finding


@pytest.mark.parametrize("mutant", MUTANTS + BROKER_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_known_bug_is_found(mutant, put):
    mutant(put)
    found = next((one for one in findings(mutant.__name__) if one is not None), None)
    assert found is not None, f"{mutant.__name__} was not found"
    assert not found.text.startswith(BROKEN_MUTANT), f"{mutant.__name__} is broken: {found}"


@pytest.mark.parametrize("scene", dict.fromkeys(SCENES.values()), ids=lambda scene: scene.__name__)
def test_nothing_is_found_in_a_scene_without_its_bug(scene):
    assert found_by(scene) is None
