"""Damage on running replicas that chance brings about too seldom, scene by scene."""

import pytest

from quorumlog.model.errors import CorruptionError
from quorumlog.sim.cluster import DATA_FILE_BYTES, SimulatedCluster
from quorumlog.sim.process import DIRECTORY
from quorumlog.storage.log.file_log import FileLog

HEAL_MS = 20_000
INDEX_FILE_BYTES = 32 * 64
RECORD_BYTES = 32
POSITION_BYTE = 11
"""Of an index record: the lowest one of the position."""
BODY_BYTE = 55


def until(cluster, condition, limit_ms=HEAL_MS):
    end = cluster.clock.now_ms + limit_ms
    while not condition():
        assert cluster.clock.now_ms < end, cluster.describe()
        cluster.run_until(cluster.clock.now_ms + 10)


def filled(count, appends, **settings):
    """A cluster with so many appends, all of them committed and in a checkpoint everywhere."""
    cluster = SimulatedCluster(1, count, scrub_bytes_per_second=0, **settings)
    for node in cluster.nodes.values():
        node.start()
    until(cluster, lambda: cluster.leader() is not None and cluster.leader().core.is_ready)
    if settings.get("has_sessions"):
        cluster.clients.append(2, 20, "client 1")
        cluster.run_until(cluster.clock.now_ms + 3_000)
    for _ in range(appends):
        cluster.clients.append(2, 40, "plain")
        cluster.run_until(cluster.clock.now_ms + 50)
    cluster.run_until(cluster.clock.now_ms + 5_000)
    return cluster


def a_follower(cluster):
    return next(node for node in cluster.members() if node is not cluster.leader())


def flip(node, place, offsets=(BODY_BYTE,), mask=0x5A):
    start = place // DATA_FILE_BYTES * DATA_FILE_BYTES
    for offset in offsets:
        node.files.flip(f"{DIRECTORY}/g/data/{start:020d}", place - start + offset, mask)


def flip_position(node, entry, mask):
    """Let the index record of an entry tell of another place."""
    place = entry * RECORD_BYTES
    start = place // INDEX_FILE_BYTES * INDEX_FILE_BYTES
    path = f"{DIRECTORY}/g/index/{start:020d}"
    node.files.flip(path, place - start + POSITION_BYTE, mask)


def meet(node, entry):
    """Let a reader come across a damaged entry."""

    def read():
        with pytest.raises(CorruptionError) as caught:
            node.log.read(entry, entry, 1)
        node.running.repairer.found(caught.value)

    node.enter(read)


@pytest.mark.parametrize("absent", [0, 1])
def test_two_replicas_with_damage_side_by_side_heal_one_another(absent):
    """What one of them quarantined because nothing proves it is whole, and the other needs it."""
    cluster = filled(2 + absent, 30)
    nodes = [cluster.nodes["n0"], cluster.nodes["n1"]]
    places = [[node.log._place_of(index)[0] for index in (29, 30)] for node in nodes]
    for node in cluster.nodes.values():
        if node.is_up:
            node.stop(power=False)
    flip(nodes[0], places[0][1])
    flip(nodes[1], places[1][0], range(60))
    for node in nodes:
        node.start()
    cluster.run_until(cluster.clock.now_ms + 100)
    cluster.read_everything()
    until(
        cluster,
        lambda: cluster.leader() is not None and not any(node.log.damaged for node in nodes),
    )


def test_an_index_record_that_hides_sessions_is_mended_once(monkeypatch):
    """It is found while the replica starts, before the disk can repair it."""
    cluster = filled(3, 30, has_sessions=True)
    node = a_follower(cluster)
    node.stop(power=False)
    flip_position(node, cluster.leader().log.end_index - 10, 0x10)
    quarantined = []
    quarantine = FileLog.quarantine

    def counted(self, index, **how):
        quarantined.append(index)
        return quarantine(self, index, **how)

    monkeypatch.setattr(FileLog, "quarantine", counted)
    node.start()
    until(cluster, lambda: node.running is not None and not node.running.tables.is_incomplete)
    assert len(quarantined) == 1
    until(cluster, lambda: node.running._eligibility._is_eligible)


def test_a_repair_beside_a_wrong_index_record_does_not_stop_the_replica():
    cluster = filled(3, 10)
    node = a_follower(cluster)
    last = node.log.end_index
    places = [node.log._place_of(index)[0] for index in (last - 2, last - 1)]
    node.stop(power=False)
    for place in places:
        flip(node, place)
    flip_position(node, last, 0x01)
    node.start()
    meet(node, last - 2)
    until(cluster, lambda: not node.log.damaged)
    assert node.is_up
    assert node.log.read(last, last, 1).count == 1
