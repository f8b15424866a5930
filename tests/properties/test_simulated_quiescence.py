"""Idle groups quiesce, and wake up when anything happens: clusters from seeds (decision 0012)."""

import pytest

from quorumlog.model.codes import Role
from quorumlog.model.messages.peer import HeartBeatRequest, NodeMessage
from quorumlog.sim.cluster import SimulatedCluster

SEEDS = 12
"""So many that each kind of cut meets three nodes and five."""
REST_MS = 10_000
ELECTION_MS = 6_000
"""Detection, a few rounds of votes with 150 ms on the way, the first entry."""


class Watched(SimulatedCluster):
    """Keeps what is sent between nodes."""

    messages: list

    def carry(self, sender, receiver, message, data):
        self.messages.append(message)
        super().carry(sender, receiver, message, data)


def up(cluster):
    return [node for node in cluster.nodes.values() if node.is_up]


def leads(node):
    return node.is_up and node.core.role is Role.LEADER


def all_rest(cluster):
    return all(node.core.is_quiescent for node in up(cluster))


def until(cluster, condition, limit_ms):
    end = cluster.clock.now_ms + limit_ms
    while not condition():
        assert cluster.clock.now_ms < end, cluster.describe()
        cluster.run_until(cluster.clock.now_ms + 10)


def rested(seed, count=3):
    """A cluster all of whose replicas rest."""
    cluster = Watched(seed, count)
    cluster.messages = []
    for node in cluster.nodes.values():
        node.start()
    until(cluster, lambda: any(map(leads, up(cluster))) and all_rest(cluster), REST_MS)
    return cluster


def sent_in(cluster, duration_ms):
    """Let time pass; return the messages that were sent meanwhile."""
    cluster.messages.clear()
    cluster.run_until(cluster.clock.now_ms + duration_ms)
    return list(cluster.messages)


def test_an_idle_group_costs_beats_between_nodes_only():
    cluster = rested(1)
    term = cluster.leader().core.term
    messages = sent_in(cluster, 20_000)

    assert all(isinstance(message, NodeMessage) for message in messages)
    assert 700 < len(messages) < 900, "two peers, ten beats a second, each answered"
    assert cluster.leader().core.term == term
    assert all_rest(cluster)


def test_heartbeats_that_tell_more_than_life_go_on_slowly():
    cluster = rested(2)
    messages = sent_in(cluster, 65_000)

    assert 4 <= sum(isinstance(message, HeartBeatRequest) for message in messages) <= 6
    assert all_rest(cluster)


def test_an_append_wakes_the_group_and_it_rests_again():
    cluster = rested(3)
    before = cluster.leader().log.end_index
    clients = cluster.clients
    clients.append(3, 20)
    until(cluster, lambda: clients.appended or clients.refused, 1_000)
    if clients.refused:  # a client may ask a follower first
        clients.append(3, 20)
    until(cluster, lambda: clients.appended == 3, 1_000)
    until(cluster, lambda: all_rest(cluster), REST_MS)

    assert {node.core.committed_index for node in up(cluster)} == {before + 3}
    cluster.check_end()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_quiescent_group_elects_as_quickly_when_its_leader_dies(seed):
    cluster = rested(seed)
    old, since = cluster.leader(), cluster.clock.now_ms
    old.stop(power=bool(seed % 2))
    until(cluster, lambda: any(map(leads, up(cluster))), ELECTION_MS)

    assert cluster.clock.now_ms - since < 3_000
    until(cluster, lambda: all_rest(cluster), REST_MS)  # without the third
    old.start()
    until(cluster, lambda: len(up(cluster)) == 3 and all_rest(cluster), REST_MS)
    cluster.run_until_equal(REST_MS)
    cluster.check_end()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_leader_that_is_cut_off_while_it_rests_is_replaced(seed):
    cluster = rested(seed, count=5 if seed % 4 == 3 else 3)
    old = cluster.leader()
    others = [node_id for node_id in cluster.nodes if node_id != old.node_id]
    to_others = {(old.node_id, other) for other in others}
    from_others = {(other, old.node_id) for other in others}
    cluster.network.cut |= (to_others | from_others, to_others, from_others)[seed % 3]
    until(cluster, lambda: any(leads(cluster.nodes[other]) for other in others), 2 * ELECTION_MS)
    until(cluster, lambda: not leads(old), ELECTION_MS)
    cluster.network.cut.clear()
    until(cluster, lambda: all_rest(cluster), REST_MS)
    cluster.run_until_equal(REST_MS)
    cluster.check_end()
