"""Groups under random faults: whatever happens stays safe, and when it ends the group recovers.

`Cluster` checks after every step: election safety, log matching, leader completeness, state machine
safety (a committed entry never changes), committed rises only, and that nothing is promised before
it is durable. A failing seed is replayed by `run_seed(seed)`.
"""

import random

import pytest

from raft_cluster import Cluster

SEEDS = 100
BATCH = 25
ACTIONS = 60


class Faults:
    """Draws what to do to a cluster next; each seed has its own mixture."""

    def __init__(self, cluster, seed):
        self.cluster = cluster
        self.random = random.Random(f"faults {seed}")
        kinds = [self.crash, self.isolate, self.one_way, self.split, self.heal, self.link_lost]
        kinds += [self.disk_error, self.unreadable, self.trim]
        self.kinds = self.random.sample(kinds, self.random.randint(1, len(kinds)))
        cluster.loss = self.random.choice([0, 0, 0.02, 0.2])
        cluster.duplicates = self.random.choice([0, 0, 0.1, 0.5])
        cluster.delay_ms = self.random.choice([(1, 3), (1, 30), (1, 300)])
        cluster.sync_ms = self.random.choice([(1, 5), (1, 100), (5, 700)])
        cluster.read_ms = self.random.choice([(0, 0), (0, 50)])
        cluster.fetch_ms = self.random.choice([None, 5, 700])

    def act(self):
        if self.random.random() < 0.3:
            self.random.choice(self.kinds)()
        if self.random.random() < 0.2:
            self.restart()
        for leader in self.cluster.leaders():
            if self.random.random() < 0.7:
                self.cluster.propose(leader, self.random.randint(1, 25))
        self.cluster.run_for(self.random.choice([1, 10, 100, 400, 1_500]))

    def any(self):
        return self.random.choice(self.cluster.ids)

    def crash(self):
        node_id = self.any()
        if self.cluster.nodes[node_id].up:
            self.cluster.crash(node_id)

    def restart(self):
        node_id = self.any()
        if not self.cluster.nodes[node_id].up:
            self.cluster.start(node_id)

    def isolate(self):
        self.cluster.isolate(self.any())

    def one_way(self):
        self.cluster.cut(self.any(), self.any(), both=False)

    def split(self):
        ids = self.random.sample(self.cluster.ids, len(self.cluster.ids))
        at = self.random.randint(0, len(ids))
        self.cluster.split(ids[:at], ids[at:])

    def heal(self):
        self.cluster.heal()

    def link_lost(self):
        self.cluster.reconnect(self.any(), self.any())

    def disk_error(self):
        node_id = self.any()
        if self.cluster.nodes[node_id].up:
            self.cluster.fail_disk(node_id)
            self.cluster.crash(node_id)

    def trim(self):
        node = self.cluster.nodes[self.any()]
        if node.up:
            self.cluster.trim(node.id, self.random.randint(0, node.core.end_index + 1))

    def unreadable(self):
        self.cluster.nodes[self.any()].unreadable = 2


def run_seed(seed):
    count = [1, 2, 3, 3, 3, 4, 5, 5][seed % 8]
    cluster = Cluster(count, seed).start()
    faults = Faults(cluster, seed)
    for _ in range(ACTIONS):
        faults.act()
    recover(cluster)
    cluster.checker.finished()
    return cluster


def recover(cluster):
    """Faults stop: soon one leads, all logs are equal, and an append is committed."""
    cluster.loss = cluster.duplicates = 0.0
    cluster.delay_ms, cluster.sync_ms, cluster.read_ms = (1, 3), (1, 5), (0, 0)
    cluster.heal()
    for node_id in cluster.ids:
        if not cluster.nodes[node_id].up:
            cluster.start(node_id)
    cluster.converge(10_000)
    number = cluster.propose()
    cluster.run_until(lambda: number in cluster.finished, 1_000)
    cluster.converge(2_000)


@pytest.mark.parametrize("first_seed", range(0, SEEDS, BATCH))
def test_random_schedules_are_safe_and_end_in_one_group(first_seed):
    for seed in range(first_seed, first_seed + BATCH):
        try:
            cluster = run_seed(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        unexpected = [text for _, text in cluster.alarms if "cannot be read" not in text]
        assert not unexpected, f"seed {seed}: {unexpected[:3]}"


def test_one_seed_gives_one_history():
    first, second = run_seed(11), run_seed(11)

    assert first.sent == second.sent
    assert first.changes == second.changes
