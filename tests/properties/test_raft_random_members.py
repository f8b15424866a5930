"""Groups whose members come, go and lose their disks under random faults (R14 to R18).

`Group` checks what `Cluster` does, and that no read is stale. A disk is emptied only while all
others are up and in step, and nobody is removed until its owner is back: one is lost at a time.
Likewise one log at a time is damaged at its end, until a peer has what would repair it.
A failing seed is replayed by `run_seed(seed)`.
"""

import random

import pytest

from quorumlog.raft import events as ev
from raft_members import started_group

SEEDS = 30
BATCH = 15
ACTIONS = 60
MEMBERS = 6


class Requests:
    """Draws what to ask of whoever leads, and what to do to the nodes."""

    def __init__(self, group, seed):
        self.group = group
        self.random = random.Random(f"members {seed}")
        kinds = [self.add, self.promote, self.remove, self.transfer, self.read]
        faults = [
            self.crash,
            self.isolate,
            self.split,
            self.heal,
            self.empty,
            self.trim,
            self.damage,
        ]
        self.kinds = self.random.sample(kinds, 4) + self.random.sample(faults, 3)
        self.damaged = None  # the node whose log is, and the entry: its index and term
        group.loss = self.random.choice([0, 0, 0.02, 0.1])
        group.duplicates = self.random.choice([0, 0, 0.1])
        group.delay_ms = self.random.choice([(1, 3), (1, 30), (1, 200)])
        group.sync_ms = self.random.choice([(1, 5), (1, 60)])
        group.fetch_ms = self.random.choice([None, 5, 700])

    def act(self):
        if self.random.random() < 0.6:
            self.random.choice(self.kinds)()
        if self.random.random() < 0.3:
            self.restart()
        for leader in self.group.leaders():
            self.group.propose(leader, self.random.randint(1, 12))
            self.group.read(leader)
        self.group.run_for(self.random.choice([1, 10, 100, 400, 1_500]))

    def any(self):
        return self.random.choice(self.group.ids)

    def leader(self):
        leaders = self.group.leaders()
        return self.random.choice(leaders) if leaders else None

    def add(self):
        if self.leader():
            self.group.add(self.any(), joining=self.random.random() < 0.7, at=self.leader())

    def promote(self):
        if self.leader():
            self.group.promote(self.any(), at=self.leader())

    def remove(self):
        if self.leader() is None or self.is_one_lost():
            return
        if self.damaged is None or len(self.group.voters(self.leader())) > 2:
            self.group.remove(self.any(), at=self.leader())

    def is_one_lost(self):
        """Whether a member of any membership known is not there any more."""
        return any(
            member.incarnation not in (0, self.group.nodes[member.node_id].directory)
            for node in self.group.nodes.values()
            for member in node.core.membership.members
        )

    def transfer(self):
        if self.leader():
            self.group.transfer(self.any(), at=self.leader())

    def read(self):
        if self.leader():
            self.group.read(self.leader())

    def crash(self):
        node_id = self.any()
        if self.group.nodes[node_id].up:
            self.group.crash(node_id)

    def restart(self):
        node_id = self.any()
        if not self.group.nodes[node_id].up:
            self.start(node_id)

    def start(self, node_id):
        self.group.start(node_id)
        if self.damaged is not None and self.damaged[0] == node_id:
            self.group.step(self.group.nodes[node_id], ev.EligibilityChanged(is_eligible=False))

    def damage(self):
        """Rot the newest entry of a leader that was cut off, of a group that can do without."""
        if self.leader() is None or self.damaged is not None or self.is_one_lost():
            return
        node = self.group.nodes[self.leader()]
        for other in self.random.sample(self.group.ids, self.random.randint(1, MEMBERS)):
            self.group.cut(node.id, other)
        self.random.choice([self.add, self.promote, self.remove, self.read])()
        self.group.propose(node.id, self.random.randint(1, 4))
        self.group.run_for(self.random.choice([0, 10, 300]))
        core = node.core
        if node.up and len(core.membership.voters) > 2 and core.committed_index >= 0:
            self.damaged = (node.id, core.end_index, core.term_at(core.end_index))
            self.group.step(node, ev.EligibilityChanged(is_eligible=False))

    def repair(self):
        """Heal the damage if a peer has the entry, or if it is gone."""
        if self.damaged is None:
            return
        node_id, index, term = self.damaged
        node = self.group.nodes[node_id]
        others = [other.log for other in self.group.live() if other is not node]
        is_gone = index <= node.log.base or not has_entry(node.log, index, term)
        if is_gone or any(has_entry(log, index, term) for log in others):
            self.damaged = None
            self.group.step(node, ev.EligibilityChanged(is_eligible=True))

    def isolate(self):
        self.group.isolate(self.any())

    def trim(self):
        node = self.group.nodes[self.any()]
        if node.up:
            self.group.trim(node.id, self.random.randint(0, node.core.end_index + 1))

    def split(self):
        ids = self.random.sample(self.group.ids, len(self.group.ids))
        at = self.random.randint(0, len(ids))
        self.group.split(ids[:at], ids[at:])

    def heal(self):
        self.group.heal()

    def empty(self):
        group, victim = self.group, self.any()
        self.recover()
        founders = {name for name in group.founders if group.nodes[name].directory == 1}
        if not founders - {victim}:
            return  # all founders with empty disks begin a group anew (docs/guarantees.md)
        if len(group.voters() - {victim}) >= 2 and group.nodes[victim].up:
            group.wipe(victim)
            group.start(victim)

    def recover(self):
        """Faults stop: soon all members are in step, and an append and a read succeed."""
        group = self.group
        before = group.loss, group.duplicates, group.delay_ms, group.sync_ms
        group.loss = group.duplicates = 0.0
        group.delay_ms, group.sync_ms = (1, 3), (1, 5)
        group.heal()
        for node_id in group.ids:
            if not group.nodes[node_id].up:
                self.start(node_id)

        def is_well():
            self.repair()
            if not members_are_in_step(group):
                return False
            return self.damaged is None or self.damaged[0] not in group.voters()

        group.run_until(is_well, 30_000)
        assert group.outcome(group.read(), 1_000) >= 0
        group.run_until(lambda: members_are_in_step(group), 30_000)
        group.loss, group.duplicates, group.delay_ms, group.sync_ms = before


def has_entry(log, index, term):
    """Whether a log has the entry, or began anew behind it."""
    return index <= log.base or (index <= log.end and log.at(index).term == term)


def members_are_in_step(group):
    leader = group.leader
    if leader is None or group.core(leader).is_transferring:
        return False
    membership = group.core(leader).membership
    if membership.is_joint or not group.core(leader).is_ready:
        return False
    states = set()
    for member in membership.members:
        node = group.nodes[member.node_id]
        if member.joining or member.incarnation not in (0, node.directory):
            return False
        core = node.core
        states.add((core.leader_id, core.term, core.end_index, core.committed_index))
    return states == {(leader, group.core(leader).term, *[group.core(leader).end_index] * 2)}


def run_seed(seed):
    group, _ = started_group(2 + seed % 3, seed)
    for number in range(len(group.ids), MEMBERS):
        group.start_stranger(f"n{number}")
    requests = Requests(group, seed)
    for _ in range(ACTIONS):
        requests.act()
    requests.recover()
    group.checker.finished()
    return group


@pytest.mark.parametrize("first_seed", range(0, SEEDS, BATCH))
def test_groups_that_change_stay_safe_and_come_to_rest(first_seed):
    for seed in range(first_seed, first_seed + BATCH):
        try:
            run_seed(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
