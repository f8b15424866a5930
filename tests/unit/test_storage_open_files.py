"""How many files a group has open, and that what is closed for that reason is durable."""

import gc
import os
from random import Random

import pytest

from quorumlog.model.hard_state import HardState
from quorumlog.node.descriptors import PER_GROUP, SEQUENCES
from quorumlog.sim.disk import SimulatedFileSystem
from quorumlog.storage.files.file_sequence import WRITABLE_MAX
from quorumlog.storage.files.os_files import OsFileSystem
from store_access import Opened

BODIES = [b"%032d" % number for number in range(2_000)]
SMALL = {"data_file": 16 * 1024, "index_file": 4 * 1024}
MAPS = 2
AT_WORK = 2
"""What a thread may have open besides while it works."""


def descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def bodies(opened):
    return [entry.body for entry in opened.entries()]


class CountingFiles(OsFileSystem):
    """Notes how many descriptors there were at most when something was opened."""

    def __init__(self):
        self.before = descriptors()
        self.most = 0

    def more_than_before(self):
        return descriptors() - self.before

    def open(self, path, **options):
        opened = super().open(path, **options)
        if len(os.listdir("/proc/self/fd")) - self.before > self.most:  # some may be garbage
            self.most = max(self.most, self.more_than_before())
        return opened


def test_a_group_has_no_more_descriptors_than_the_plan_gives_it(tmp_path):
    files = CountingFiles()
    opened = Opened(tmp_path / "g", cache=1, files=files, maps_max=MAPS, **SMALL)
    planned = PER_GROUP + SEQUENCES * MAPS

    def check():
        assert files.more_than_before() <= planned
        assert files.most <= planned + AT_WORK

    for start in range(0, len(BODIES), 200):  # several files of each kind at a time
        opened.append(BODIES[start : start + 200])
        opened.submit(opened.group.hard_states.plan_save(HardState(start + 1, "n0")))
        check()
    opened.append(BODIES, run=False)
    opened.run(sync=False)
    check()
    assert bodies(opened) == BODIES * 2
    check()
    opened.checkpoint()
    opened.submit(opened.log.quarantine(7, is_readable=False))
    opened.truncate(50)
    check()
    opened.close()
    again = Opened(tmp_path / "g", cache=1, files=files, maps_max=MAPS, **SMALL)
    check()
    again.close()
    assert files.more_than_before() == 0


def test_at_rest_a_group_that_was_not_written_to_has_its_lock_and_its_hint_open(tmp_path):
    Opened(tmp_path / "g", **SMALL).close()
    files = CountingFiles()
    opened = Opened(tmp_path / "g", files=files, **SMALL)
    assert files.more_than_before() == PER_GROUP - SEQUENCES * WRITABLE_MAX
    opened.close()


@pytest.mark.parametrize("sync", [True, False])
def test_what_one_commit_writes_to_more_files_than_may_be_open_is_durable(sync):
    disk = SimulatedFileSystem(Random(1))
    disk.survival = "none"
    opened = Opened("/g", files=disk, **SMALL)
    for start in range(0, len(BODIES), 500):
        opened.append(BODIES[start : start + 500], run=False)
    opened.run(sync=sync)
    opened.submit(opened.group.hard_states.plan_save(HardState(1, "n0")))  # with an fsync
    disk.power_loss()
    assert bodies(Opened("/g", files=disk, **SMALL)) == BODIES
