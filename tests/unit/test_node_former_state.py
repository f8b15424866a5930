"""What a replica removes when nothing may be left of what its machine had before."""

from types import SimpleNamespace

from test_storage_snapshots import Disk, save

from group_machine import Now
from quorumlog.node.replica.former_state import FormerState


class Side:
    """A replica with snapshots at some indexes, the last of which it knows as its newest."""

    def __init__(self, *indexes, begin=-1, fetched=()):
        self.disk = Disk()
        self.snapshots = self.disk.snapshots
        newest = [save(self.snapshots, index, b"state") for index in indexes][-1]
        self.log = SimpleNamespace(before_begin_index=begin)
        self.asked, self.lost = [], []
        self.former = FormerState(
            SimpleNamespace(log=self.log, environment=SimpleNamespace(executor=Now())),
            self.snapshots,
            SimpleNamespace(newest=newest),
            SimpleNamespace(
                ask=self.asked.append,
                remove_covered=self.remove_covered,
                lost=lambda index, error: self.lost.append(index),
            ),
            SimpleNamespace(indexes=lambda: list(fetched)),
        )

    def remove_covered(self, last):
        self.log.before_begin_index = last


def test_earlier_snapshots_and_the_entries_up_to_the_newest_are_removed():
    side = Side(50, 80, 100)
    assert not side.former.forget(90)
    assert side.former.forget(90)
    assert (side.snapshots.indexes(), side.log.before_begin_index) == ([100], 100)


def test_the_snapshot_that_was_checked_stays_though_a_later_one_has_appeared():
    side = Side(50, 100)
    save(side.snapshots, 200, b"of a state that is not trusted any more")
    side.former.forget(90)
    assert side.snapshots.indexes() == [100, 200]
    assert side.log.before_begin_index == 100, "what comes after it is needed if 200 is not used"


def test_a_snapshot_from_before_one_that_was_fetched_is_removed_too():
    side = Side(50, 100, begin=100)
    assert not side.former.forget(100)
    assert side.former.forget(100)
    assert side.snapshots.indexes() == [100]


def test_while_an_earlier_one_is_fetched_it_is_asked_for_again():
    side = Side(50, 100, begin=100, fetched=[50])
    assert not side.former.forget(100)
    assert not side.former.forget(100)
    assert side.snapshots.indexes() == [50, 100]


def test_a_newest_snapshot_that_is_damaged_is_told_of_and_nothing_is_removed():
    side = Side(50, 100)
    file = side.disk.files.open(side.snapshots.path_of(100))
    file.write_at([b"X"], 0)
    file.close()
    assert not side.former.forget(90)
    assert side.lost == [100]
    assert side.snapshots.indexes() == [50, 100]
