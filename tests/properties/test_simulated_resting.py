"""Idle groups rest, and wake when anything happens: whole clusters from seeds, with pauses."""

import pytest

from quorumlog.model.message import HeartBeatRequest, NodeMessage
from quorumlog.sim.cluster import SimulatedCluster, leads

SEEDS = 40
ELECTION_MS = 6_000
"""Detection, a few rounds of votes with 150 ms on the way, the first entry."""


def started(seed, count=3, **settings):
    cluster = SimulatedCluster(seed, count, **settings)
    for node in cluster.nodes.values():
        node.start()
    return cluster


def leader(cluster):
    return next(node for node in cluster.nodes.values() if leads(node))


def all_rest(cluster):
    return all(node.replica is not None and node.replica.core.rests for node in up(cluster))


def up(cluster):
    return [node for node in cluster.nodes.values() if node.is_up]


def until(cluster, condition, limit_ms):
    end = cluster.world.now_ms + limit_ms
    while not condition():
        assert cluster.world.now_ms < end, cluster.describe()
        cluster.run_until(cluster.world.now_ms + 10)


def rested(seed, **settings):
    """A cluster all of whose replicas rest."""
    cluster = started(seed, **settings)
    until(cluster, lambda: all_rest(cluster), 10_000)
    return cluster


def carried(cluster, duration_ms):
    """Let time pass; return the messages that were sent meanwhile."""
    messages, carry = [], cluster.carry

    def note(sender, receiver, message, data):
        messages.append(message)
        carry(sender, receiver, message, data)

    cluster.carry = note
    cluster.run_until(cluster.world.now_ms + duration_ms)
    cluster.carry = carry
    return messages


def test_an_idle_group_costs_beats_between_nodes_only():
    cluster = rested(1)
    term = leader(cluster).replica.core.term
    messages = carried(cluster, 20_000)

    assert all(isinstance(message, NodeMessage) for message in messages)
    assert 700 < len(messages) < 900, "two peers, ten beats a second, each answered"
    assert leader(cluster).replica.core.term == term
    assert all_rest(cluster)


def test_heartbeats_that_tell_more_than_life_go_on_slowly():
    cluster = rested(2)
    messages = carried(cluster, 65_000)

    assert 4 <= sum(isinstance(message, HeartBeatRequest) for message in messages) <= 6
    assert all_rest(cluster)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_resting_group_elects_as_quickly_when_its_leader_dies(seed):
    cluster = rested(seed)
    old, since = leader(cluster), cluster.world.now_ms
    old.stop(power=bool(seed % 2))
    until(cluster, lambda: any(leads(node) for node in up(cluster)), ELECTION_MS)

    assert cluster.world.now_ms - since < 3_000
    until(cluster, lambda: all_rest(cluster), 10_000)  # without the third
    old.start()
    until(cluster, lambda: len(up(cluster)) == 3 and all_rest(cluster), 10_000)
    assert cluster.append(3, 20)
    cluster.run_until_equal(10_000)
    cluster.judge_end()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_leader_that_is_cut_off_while_it_rests_is_replaced(seed):
    cluster = rested(seed, count=5 if seed % 4 == 3 else 3)
    old = leader(cluster)
    others = [node_id for node_id in cluster.ids if node_id != old.node_id]
    cuts = [
        {(old.node_id, other) for other in others} | {(other, old.node_id) for other in others},
        {(old.node_id, other) for other in others},
        {(other, old.node_id) for other in others},
    ]
    cluster.cut |= cuts[seed % 3]
    until(cluster, lambda: any(leads(cluster.nodes[other]) for other in others), 2 * ELECTION_MS)
    until(cluster, lambda: not leads(old), ELECTION_MS)
    cluster.cut.clear()
    until(cluster, lambda: all_rest(cluster), 10_000)
    cluster.run_until_equal(10_000)
    cluster.judge_end()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_lost_with_pauses_losses_and_restarts(seed):
    cluster = started(seed, count=5 if seed % 4 == 3 else 3)
    random = cluster.world.random
    cluster.run_until(5_000)
    cluster.loss, cluster.repeat = random.choice([0.0, 0.02, 0.1]), 0.05
    cluster.delay_us = (100, random.choice([2_000, 40_000, 150_000]))
    for _ in range(12):
        cluster.append(random.randint(1, 5), 40)
        cluster.run_until(cluster.world.now_ms + random.randint(50, 5_000))
        disturb(cluster)
    cluster.loss = cluster.repeat = 0.0
    cluster.delay_us = (100, 2_000)
    cluster.cut.clear()
    for node in cluster.nodes.values():
        if not node.is_up:
            node.start()
    cluster.run_until(cluster.world.now_ms + 3_000)
    cluster.run_until_equal(30_000)
    cluster.judge_end()
    until(cluster, lambda: all_rest(cluster), 10_000)


def disturb(cluster):
    """Stop and start a node, cut one off, join it again, or nothing."""
    random = cluster.world.random
    chosen = cluster.nodes[random.choice(cluster.ids)]
    other = random.choice([node_id for node_id in cluster.ids if node_id != chosen.node_id])
    action = random.randrange(5)
    if action == 0 and len(up(cluster)) > len(cluster.ids) // 2 + 1:
        chosen.stop(power=random.random() < 0.5)
    elif action == 1 and not chosen.is_up:
        chosen.start()
    elif action == 2:
        cluster.cut |= {(chosen.node_id, other)}
    elif action == 3:
        cluster.cut.clear()
