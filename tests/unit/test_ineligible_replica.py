"""A replica that does not know what producers appended does not lead; what snapshots tell of it."""

import pytest

from quorumlog.model.codes import Role
from quorumlog.sim.cluster import SimulatedCluster
from quorumlog.storage.log.snapshots import SnapshotMeta
from store_access import Opened


@pytest.fixture
def cluster():
    made = SimulatedCluster(1, 3)
    for node in made.nodes.values():
        node.start()
    until(made, lambda: made.leader() is not None and made.leader().core.is_ready)
    return made


def until(cluster, condition, limit_ms=20_000):
    end_ms = cluster.clock.now_ms + limit_ms
    while not condition():
        assert cluster.clock.now_ms < end_ms, cluster.describe()
        cluster.run_until(cluster.clock.now_ms + 10)


def test_who_cannot_read_a_producers_block_does_not_lead_until_it_can(cluster):
    """Else the block would be stored once more: nobody has met the damage that hides it."""
    node = cluster.leader()
    replica, looked = node.running, []
    replica.repairer.check_entry = looked.append
    replica.tables.is_incomplete = True
    replica.tables.scan = lambda committed_index: 5
    node.enter(replica.update_eligibility)
    assert (node.core.role, looked) == (Role.FOLLOWER, [5])
    until(cluster, lambda: cluster.leader() not in (None, node))

    def scanned(committed_index):
        replica.tables.is_incomplete = False

    replica.tables.scan = scanned
    node.enter(replica.update_eligibility)
    for other in cluster.nodes.values():
        if other is not node:
            other.running.tables.is_incomplete = True
            other.running.tables.scan = lambda committed_index: 5
            other.running.repairer.check_entry = looked.append
            other.enter(other.running.update_eligibility)
    until(cluster, lambda: cluster.leader() is node)


@pytest.mark.parametrize(
    ("index", "term", "committed"),
    [
        (11, 2, 11),
        (9, 1, 9),
        (2, 1, 3),
        (11, 1, 3),  # of another history: the log holds what was never committed
        (15, 2, 3),  # fetched, and the log was not begun anew behind it yet
    ],
)
def test_a_snapshot_shows_that_a_log_is_committed_that_a_checkpoint_lags_behind(
    tmp_path, index, term, committed
):
    opened = Opened(tmp_path / "g", state_machine="counting:Counter")
    opened.append([b"x"] * 10, term=1)
    opened.append([b"y"] * 5, term=2)
    opened.log.note_committed(3)
    opened.checkpoint()
    saving = opened.group.snapshots.begin()
    saving.write(b"state")
    saving.publish(SnapshotMeta(last_included_index=index, last_included_term=term))
    opened.close()
    again = Opened(tmp_path / "g", state_machine="counting:Counter")
    assert again.group.committed_index == committed
    again.close()
