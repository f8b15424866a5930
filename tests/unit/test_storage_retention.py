"""Which old files go, and when (spec 20 section 13)."""

import pytest

from quorumlog.storage.files.os_files import Space
from quorumlog.storage.files.space import DiskState, read_disk_state, used_ratio
from quorumlog.storage.log.interface import Segment
from quorumlog.storage.log.retention import (
    HOUR_MS,
    RetentionInputs,
    last_to_remove,
    last_unneeded,
    mark_pause_ms,
)
from store_access import config

CALM = DiskState()


def segments(*ages_hours, size=100):
    """Files of ten entries each, oldest first, with their ages; None: not known."""
    return [
        (Segment(10 * number + 9, size, f"file {number}"), age)
        for number, age in enumerate(ages_hours)
    ]


def removable(
    found,
    *,
    disk=CALM,
    hour=4,
    applied=1 << 40,
    peers=1 << 40,
    size=1_000,
    steady=True,
    **settings,
):
    ages = {segment.last_index: age for segment, age in found}
    ages_ms = {index: None if age is None else int(age * HOUR_MS) for index, age in ages.items()}
    moment = RetentionInputs(ages_ms.get, hour, steady, applied, peers)
    segments_only = [segment for segment, _ in found]
    return last_to_remove(segments_only, size, config(**settings), disk, moment)


@pytest.mark.parametrize(
    ("ages", "hour", "expected"),
    [
        ((80, 73, 71), 4, 19),  # two are older than 72 hours
        ((80, 73, 71), 5, None),  # not the hour for it
        ((71, 80, 90), 4, None),  # stops at the first that is not old
        ((), 4, None),
    ],
)
def test_65_old_files_go_at_their_hour(ages, hour, expected):
    assert removable(segments(*ages), hour=hour) == expected


@pytest.mark.parametrize("disk", [CALM, DiskState(deletes_old=True)])
def test_files_whose_age_nobody_recorded_stay(disk):
    assert removable(segments(80, None, 80), disk=disk) == 9
    assert removable(segments(None, 80), disk=disk) is None


@pytest.mark.parametrize("disk", [CALM, DiskState(deletes_old=True)])
def test_nothing_goes_for_its_age_while_the_wall_clock_cannot_be_believed(disk):
    assert removable(segments(80, 80, 1), disk=disk, steady=False) is None
    assert removable(segments(80, 1), size=350, steady=False, retention_bytes=251) is None
    assert removable(segments(80, 1), size=350, steady=False, retention_bytes=250) == 9


@pytest.mark.parametrize(("hours", "minutes"), [(72, 60), (24, 60), (12, 30), (1, 2.5)])
def test_group_time_is_written_down_hourly_or_oftener_where_entries_are_kept_briefly(
    hours, minutes
):
    assert mark_pause_ms(config(file_reserved_hours=hours)) == minutes * 60_000


def test_65_several_hours_and_another_age():
    found = segments(3, 2.5, 1)
    options = {"file_reserved_hours": 2, "delete_when": "04;16"}
    assert removable(found, hour=16, **options) == 19
    assert removable(found, hour=15, **options) is None


def test_65_a_fuller_disk_deletes_old_files_at_any_hour():
    assert removable(segments(80, 1), hour=11, disk=DiskState(deletes_old=True)) == 9


def test_65_a_disk_too_full_gives_up_fresh_files_one_at_a_time():
    disk = DiskState(deletes_old=True, deletes_any=True)
    assert removable(segments(1, 1, 1), hour=11, disk=disk) == 9
    assert removable(segments(80, 80, 1), hour=11, disk=disk) == 19


def test_66_nothing_beyond_what_is_applied():
    assert removable(segments(80, 80, 80), applied=19) == 19
    assert removable(segments(80, 80, 80), applied=18) == 9
    disk = DiskState(deletes_old=True, deletes_any=True)
    assert removable(segments(1, 1), applied=8, disk=disk) is None


def test_r12_a_live_follower_keeps_what_it_needs_within_the_budget():
    found = segments(80, 80, 80)
    assert removable(found, peers=12) == 9
    # 900 bytes would be left behind the first file, which is more than it may hold back
    assert removable(found, peers=-1, follower_retention_bytes=850) == 9
    assert removable(found, peers=-1, follower_retention_bytes=900) is None


def test_files_beyond_the_byte_bound_go_whatever_their_age():
    assert removable(segments(1, 1, 1), hour=11, size=350, retention_bytes=150) == 19
    assert removable(segments(1, 1, 1), hour=11, size=350, retention_bytes=260) is None


@pytest.mark.parametrize(("used", "ratio"), [(0, 0.0), (1, 0.01), (700, 0.70), (701, 0.71)])
def test_spec_20_13_ratios_are_rounded_up_to_whole_percents(used, ratio):
    assert used_ratio(Space(1_000, 1_000 - used)) == ratio


class Disks:
    """Says how full each path is."""

    def __init__(self, **used_percent):
        self.used = used_percent

    def space(self, path):
        return Space(1_000, 1_000 - 10 * self.used[path])


SMALL = {"disk_reserve_bytes": 0, "data_file": 1, "index_file": 32}


@pytest.mark.parametrize(
    ("base", "data", "state"),
    [
        (70, (70,), (False, False, False)),
        (71, (10,), (True, False, False)),
        (10, (71,), (True, False, False)),
        (10, (71, 20), (False, False, False)),  # the emptiest of the data paths counts
        (86, (86,), (True, True, False)),
        (90, (90,), (True, True, False)),
        (91, (10,), (True, True, True)),
    ],
)
def test_spec_20_13_what_the_ratios_bring_about(base, data, state):
    paths = [f"data{number}" for number in range(len(data))]
    disks = Disks(base=base, **dict(zip(paths, data, strict=True)))
    found = read_disk_state(disks, "base", paths, config(enable_disk_force_clean=True, **SMALL))
    assert (found.deletes_old, found.deletes_any, bool(found.full_text)) == state


def test_fresh_files_go_only_if_that_was_asked_for():
    found = read_disk_state(Disks(base=89), "base", [], config(**SMALL))
    assert (found.deletes_old, found.deletes_any) == (True, False)


def test_ample_room_is_no_reason_to_delete_or_refuse_whatever_its_share():
    class Large:
        def space(self, path):
            return Space(1_000 << 30, 30 << 30)

    assert read_disk_state(Large(), "base", ["data"], config()) == DiskState()


def test_the_reserve_is_kept_whatever_the_ratio():
    class Nearly:
        def space(self, path):
            return Space(1 << 30, 200 << 20)

    found = read_disk_state(Nearly(), "base", [], config(disk_reserve_bytes=300 << 20))
    assert "less than" in found.full_text
    assert found.is_tight


@pytest.mark.parametrize(
    ("offered_from", "peers", "lag", "expected"),
    [
        (20, 1 << 40, 0, 19),
        (19, 1 << 40, 0, 9),
        (10, 1 << 40, 0, 9),
        (9, 1 << 40, 0, None),
        (1 << 40, 1 << 40, 0, 29),
        (1 << 40, 15, 99, 19),  # a live peer lags by more than it may
        (1 << 40, 15, 150, 9),
    ],
)
def test_files_in_which_no_partition_offers_anything_go_whatever_their_age(
    offered_from, peers, lag, expected
):
    files = [segment for segment, _ in segments(0, 0, 0)]
    inputs = RetentionInputs(lambda index: None, 5, False, offered_from - 1, peers)
    settings = config(follower_retention_bytes=lag)
    assert last_unneeded(files, 300, settings, inputs) == expected
