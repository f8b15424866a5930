"""The rounds that linearizable reads start besides the leader's heartbeats."""

import pytest

from quorumlog.raft import events as ev
from raft_cluster import Cluster


@pytest.fixture
def led_by_another():
    """The preferred leader, n2, came when another led already; it has everything."""
    cluster = Cluster(preferred_leader_ids=("n2",)).start("n0", "n1")
    cluster.elect()
    cluster.start("n2")
    cluster.converge()
    return cluster


@pytest.mark.parametrize("pause_ms", [50, 150])
def test_reads_do_not_keep_the_leader_from_its_other_work(led_by_another, pause_ms):
    """Leadership goes to the preferred member however often linearizable reads come."""
    cluster = led_by_another
    assert cluster.leader != "n2"
    for number in range(1, 200):
        cluster.step(cluster.nodes[cluster.leader or "n0"], ev.ReadRequested(number))
        cluster.run_for(pause_ms)
        if cluster.leader == "n2":
            break
    assert cluster.leader == "n2"
