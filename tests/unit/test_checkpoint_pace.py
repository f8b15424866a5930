"""When the groups of a node write checkpoints, and look after their files."""

import itertools
from types import SimpleNamespace

from quorumlog.node.checkpoint_pace import (
    CLEANING_STEP_MS,
    PAUSE_MAX_MS,
    CheckpointPace,
    CleaningPace,
)
from quorumlog.node.replica.maintenance import Maintenance
from quorumlog.node.replica.part_timers import PartTimers
from quorumlog.storage.files.space import DiskState
from store_access import Opened


def test_a_group_alone_keeps_to_its_interval():
    pace = CheckpointPace()
    assert [pace.pause_ms("g", now_ms, 1_000) for now_ms in (0, 1_000, 2_000)] == [1_000] * 3


def test_many_groups_that_begin_at_once_do_not_write_theirs_at_once():
    pace = CheckpointPace()
    pauses = [pace.pause_ms(f"g{number}", 0, 1_000) for number in range(1_000)]
    assert min(pauses) >= 1_000
    assert max(pauses) <= PAUSE_MAX_MS
    in_each_second = [pause // 1_000 for pause in pauses]
    assert max(map(in_each_second.count, set(in_each_second))) < 100
    assert sum(pauses) / len(pauses) > PAUSE_MAX_MS / 2


def test_groups_that_have_not_written_one_for_long_do_not_count_any_more():
    pace = CheckpointPace()
    for number in range(10):
        pace.pause_ms(f"g{number}", number, 1_000)
    assert pace.pause_ms("g0", 1_000, 1_000) > 1_000
    assert pace.pause_ms("g0", PAUSE_MAX_MS + 1_001, 1_000) == 1_000


class Cleaned:
    """A group whose disk is looked at; `checks` are the times."""

    def __init__(self, environment, number):
        self.checks = []
        self.space = SimpleNamespace(
            disk=DiskState(),
            prepare_files=lambda: None,
            check=lambda checked: self.checks.append(environment.now_ms()),
        )
        timers = PartTimers(environment.now_ms, lambda due_ms: None)
        context = SimpleNamespace(
            environment=environment,
            config=SimpleNamespace(
                group=f"g{number}", clean_interval=1_000, check_point_interval=1_000
            ),
            core=SimpleNamespace(committed_index=-1, retention_floor=-1),
            log=SimpleNamespace(size_bytes=0, end_index=-1, before_begin_index=-1),
            timers=timers,
            health_text="full",
        )
        self.timers = timers
        self.maintenance = Maintenance(
            context, self.space, None, SimpleNamespace(check=lambda: None)
        )


def cleaned_groups(count, until_ms, changed=()):
    """Let time pass over groups; `changed` are the milliseconds at which all were written to."""
    now = [0]
    environment = SimpleNamespace(
        now_ms=lambda: now[0], checkpoints=CheckpointPace(), cleanings=CleaningPace()
    )
    groups = [Cleaned(environment, number) for number in range(count)]
    for now[0] in range(until_ms):
        for group in groups:
            if group.timers.next_due_ms() <= now[0]:
                group.timers.tick()
            if now[0] in changed:
                group.maintenance.changed()
    return [group.checks for group in groups]


def test_a_group_alone_looks_after_its_files_at_once_and_at_its_interval():
    ((first, second, *_),) = cleaned_groups(1, 2_500, changed=[100])
    assert (first, second) == (0, 1_000)


def test_groups_that_start_at_once_look_after_their_files_one_after_the_other():
    checks = cleaned_groups(60, 2_000, changed=[300, 700])
    assert [times[0] for times in checks] == [number * CLEANING_STEP_MS for number in range(60)]
    at = sorted(time for times in checks for time in times)
    steps = [after - before for before, after in itertools.pairwise(at)]
    assert min(steps) >= CLEANING_STEP_MS


def test_a_group_to_which_nothing_was_written_since_it_was_opened_writes_none(tmp_path):
    for bodies in ([], [b"one"]):
        opened = Opened(tmp_path / "g")
        assert opened.log.checkpoint() is None
        if bodies:
            opened.append(bodies)
            assert opened.log.checkpoint() is not None
        opened.close()
    again = Opened(tmp_path / "g")
    assert again.log.checkpoint() is None
    assert [entry.body for entry in again.entries()] == [b"one"]
    again.close()
