"""Faults of disks, clocks and links in runs of groups and brokers: what they do, and their end."""

from random import Random

import pytest

from quorumlog.sim.broker_cluster import BrokerCluster
from quorumlog.sim.disk import DISK_BYTES
from quorumlog.sim.environment_faults import EnvironmentFaults
from quorumlog.sim.group_cluster import GroupCluster


def chosen(cluster, said):
    """Return faults of which some are on."""
    for seed in range(100):
        faults = EnvironmentFaults(cluster, Random(seed), said.append)
        if faults.names:
            return faults
    raise AssertionError


@pytest.fixture
def cluster():
    made = GroupCluster(0)
    for node in made.nodes.values():
        node.start()
    made.update_connections()
    return made


@pytest.fixture
def faults(cluster):
    made = chosen(cluster, [])
    made.is_on = True
    return made


def heard_by(cluster, node_id, monkeypatch):
    """Return the list of what a node receives from now on."""
    heard = []
    monkeypatch.setattr(
        cluster.nodes[node_id], "receive", lambda peer, message, data: heard.append((peer, data))
    )
    monkeypatch.setattr(cluster.trace, "record", lambda pair, message, data: None)
    return heard


def test_about_half_of_the_runs_have_some(cluster):
    names = [EnvironmentFaults(cluster, Random(seed), print).names for seed in range(400)]
    assert 160 < sum(map(bool, names)) < 240
    assert len({name for run in names for name in run}) == 7


def test_a_run_without_them_stays_as_it_is(cluster):
    faults = next(
        found
        for seed in range(100)
        if not (found := EnvironmentFaults(cluster, Random(seed), print)).names
    )
    before = cluster.random.getstate()
    planned = len(cluster.clock._queue)
    faults.start()
    assert not faults.is_on
    assert len(cluster.clock._queue) == planned
    assert cluster.random.getstate() == before


def test_what_is_lost_in_one_direction_is_lost_until_the_connection_has_broken(
    cluster, faults, monkeypatch
):
    monkeypatch.setattr(faults, "_pair", lambda: ("n0", "n1"))
    heard, back = heard_by(cluster, "n1", monkeypatch), heard_by(cluster, "n0", monkeypatch)
    connection = cluster.connection("n0", "n1")
    faults.one_way()
    cluster.carry("n0", "n1", None, b"lost")
    cluster.carry("n1", "n0", None, b"there")
    cluster.clock.run_until(100, lambda: None)
    assert ("n1", b"there") in back
    assert not [one for one in heard if one == ("n0", b"lost")]
    assert cluster.connection("n0", "n1") == connection
    cluster.clock.run_until(6_000, lambda: None)
    assert cluster.connection("n0", "n1") is None
    cluster.update_connections()
    cluster.carry("n0", "n1", None, b"again")
    cluster.clock.run_until(6_100, lambda: None)
    assert ("n0", b"again") in heard


def test_no_connection_comes_about_while_nothing_gets_through_in_one_direction(cluster):
    cluster.one_way.add(("n1", "n0"))
    cluster.break_connection("n0", "n1")
    cluster.update_connections()
    assert cluster.connection("n0", "n1") is None
    assert cluster.connection("n0", "n2") is not None
    cluster.one_way.clear()
    cluster.update_connections()
    assert cluster.connection("n0", "n1") is not None


def test_a_link_that_flaps_is_cut_for_that_pair_only(cluster, faults, monkeypatch):
    monkeypatch.setattr(faults, "_pair", lambda: ("n0", "n1"))
    faults.flap()
    lost = set()
    for now_ms in range(0, 3_000, 20):
        cluster.clock.run_until(now_ms, lambda: None)
        cluster.update_connections()
        lost |= {one for one in ("n1", "n2") if cluster.connection("n0", one) is None}
    assert lost == {"n1"}
    assert not cluster.severed


def test_no_bit_flips_before_a_group_has_begun(cluster, faults):
    for _ in range(20):
        faults.flip_bit()
    assert not any(node.is_damaged for node in cluster.nodes.values())


def test_in_the_end_everything_is_healed(cluster, faults):
    for _ in range(4):
        for kind in (
            *(faults.fill_disk, faults.drift, faults.suspend, faults.set_clocks),
            *(faults.one_way, faults.flap),
        ):
            kind()
        cluster.clock.run_until(cluster.clock.now_ms + 50, lambda: None)
    assert min(node.files.free_bytes for node in cluster.nodes.values()) < 1 << 20
    faults.end()
    assert not cluster.one_way
    assert not cluster.severed
    for node in cluster.nodes.values():
        assert node.files.total_bytes == DISK_BYTES
        assert node.clock.rate == 1.0
        assert not node.is_paused
        before_ms = node.clock.now_ms
        cluster.clock.run_until(cluster.clock.now_ms + 100, lambda: None)
        assert node.clock.now_ms >= before_ms + 99


def test_a_call_of_a_loop_waits_until_the_clock_of_its_machine_shows_its_time():
    cluster = BrokerCluster(0)
    node, called = cluster.nodes["n0"], []
    node.start()
    due = node.loop.time() + 2.0
    node.loop.call_later(2.0, lambda: called.append(node.loop.time()))
    cluster.clock.run_until(500, lambda: None)
    node.pause()
    node.clock.stop()
    cluster.clock.run_until(3_500, lambda: None)
    node.resume()
    cluster.clock.run_until(4_500, lambda: None)
    assert not called, "only 1.5 s have passed on its clock"
    cluster.clock.run_until(5_500, lambda: None)
    assert [round(at - due, 3) for at in called] == [0.0]
