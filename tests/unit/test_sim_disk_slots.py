"""A slot file over the simulated disk, with a crash at every call."""

import sys
from functools import partial
from random import Random

import pytest

from quorumlog.model.errors import CorruptionError
from quorumlog.sim.disk import SimulatedCrash, SimulatedFile, SimulatedFileSystem
from quorumlog.storage.metadata.dual_slot_file import DualSlotFile

MIRRORED = False
VALUES = [b"first" * 50, b"second" * 300, b"third"]


def disk_of(seed=1, survival="random"):
    disk = SimulatedFileSystem(Random(seed))
    disk.survival = survival
    disk.make_directory("/d")
    return disk


def crash(disk, at, action):
    disk.crash_at = disk.calls + at
    with pytest.raises(SimulatedCrash):
        action()


def write_values(disk, durable):
    """Write the values over what is there; `durable` takes each one that was reported durable."""
    slots = DualSlotFile(disk, "/d", "state", mirrored=MIRRORED)
    slots.read()
    for value in VALUES[len(durable) :]:
        slots.write(value)
        durable.append(value)


def check_value(disk, durable):
    """Read as after a start; return the value."""
    disk.sync_directory("/d")
    slots = DualSlotFile(disk, "/d", "state", mirrored=MIRRORED)
    value = slots.read()
    allowed = [None, *VALUES][len(durable) : len(durable) + 2]
    assert value in allowed
    return value


def calls_of(disk, action, durable):
    """How many calls something takes."""
    twin = disk.copy(Random(0))
    action(twin, durable[:])
    return twin.calls


def check_crashes_while_reading(disk, durable):
    """Crash at each call of a start: the next start returns an allowed value, and keeps it."""
    for at in range(1, calls_of(disk, check_value, durable) + 1):
        twin = disk.copy(Random(at))
        crash(twin, at, partial(check_value, twin, durable))
        twin.restart()
        value = check_value(twin, durable)
        twin.power_loss()
        assert check_value(twin, durable) == value, "what was read stays"


@pytest.mark.parametrize("survival", ["random", "none", "all"])
@pytest.mark.parametrize("end", ["power_loss", "kill"])
def test_a_slot_file_holds_the_old_or_the_new_value_wherever_it_crashes(survival, end):
    calls = calls_of(disk_of(), write_values, [])
    for seed in range(20):
        for at in range(1, calls + 1):
            disk = disk_of(100 * seed + at, survival)
            durable = []
            crash(disk, at, partial(write_values, disk, durable))
            getattr(disk, end)()
            check_crashes_while_reading(disk, durable)


@pytest.mark.parametrize("end", ["power_loss", "kill"])
def test_a_mirrored_one_does_so_too(monkeypatch, end):
    monkeypatch.setattr(sys.modules[__name__], "MIRRORED", True)
    test_a_slot_file_holds_the_old_or_the_new_value_wherever_it_crashes("random", end)


@pytest.mark.parametrize(
    ("owner", "forgotten", "error"),
    [
        (SimulatedFile, "sync", CorruptionError),
        (SimulatedFileSystem, "sync_directory", AssertionError),
    ],
)
def test_a_slot_file_that_skips_a_step_is_detected(monkeypatch, owner, forgotten, error):
    monkeypatch.setattr(owner, forgotten, lambda *_: None)
    with pytest.raises(error):
        test_a_slot_file_holds_the_old_or_the_new_value_wherever_it_crashes("random", "power_loss")
