"""A group with a history, stopped, and each file of one of its replicas damaged in every way."""

import random
from functools import cache

from quorumlog.model.membership import Member
from quorumlog.raft.events import AddMember, ChangeRequested
from quorumlog.sessions.table_set import TableSet
from quorumlog.sim.cluster import DATA_FILE_BYTES, SimulatedCluster
from quorumlog.sim.content import Content
from quorumlog.sim.names import Directory, Obstacle
from quorumlog.storage.files.os_files import DANGLING_LINK
from store_access import entries_of

SETTINGS = {"retention_bytes": 3 * DATA_FILE_BYTES, "max_push_time_out_ms": 500}
VICTIM = "n1"
SECTOR = 512
LIMIT_MS = 20_000


def flipped(place):
    def damage(raw):
        raw[min(len(raw) - 1, int(len(raw) * place))] ^= 0x10
        return raw

    return damage


def zeroed(raw):
    """Zero the sector in the middle of what is used."""
    used = len(raw.rstrip(b"\0")) // 2 // SECTOR * SECTOR
    raw[used : used + SECTOR] = bytes(len(raw[used : used + SECTOR]))
    return raw


DAMAGES = {
    "bit at the head": flipped(0.001),
    "bit in the middle": flipped(0.5),
    "bit at the tail": flipped(1),
    "zeroed sector": zeroed,
    "cut in half": lambda raw: raw[: len(raw) // 2],
    "emptied": lambda raw: bytearray(),
    "deleted": None,
}


OBSTACLES = {
    "directory": lambda: Directory(0),
    "FIFO": lambda: Obstacle("a FIFO"),
    "dangling link": lambda: Obstacle(DANGLING_LINK),
}
"""What may lie in the place of a file."""


class Stopped:
    """The disks of a group that was stopped, and what its leader knew."""

    def __init__(self, founders, seed=5, millis=6_000, *, begins_later=True):
        self.settings = SETTINGS if begins_later else {"max_push_time_out_ms": 500}
        self.founders = founders
        cluster = SimulatedCluster(
            seed, founders, spares=1, has_sessions=True, has_transactions=True, **self.settings
        )
        cluster.invariants.clear()
        for node_id in cluster.founders:
            cluster.nodes[node_id].start()
        cluster.clients.start(3)
        cluster.run_until(2_500)
        spare = cluster.nodes[cluster.spares[0]]
        spare.start()
        added = AddMember(Member(spare.node_id, "sim:9"))
        cluster.leader().ask(lambda number: ChangeRequested(number, added))
        cluster.run_until(millis)
        cluster.clients.is_running = False
        cluster.run_until_equal(LIMIT_MS)
        if founders > 1:
            self._leave_a_note_of_damage(cluster)
        cluster.run_until(cluster.clock.now_ms + 3_000)
        leader = cluster.leader()
        self.begin = leader.log.before_begin_index + 1
        self.end = leader.log.end_index
        self.entries = {entry.index: entry for entry in entries_of(leader.log)}
        self.sessions = sessions_of(leader)
        self.term = leader.core.term
        self.membership = leader.core.membership
        for node in cluster.nodes.values():
            node.stop(power=False)
        self.disks = {node_id: node.files for node_id, node in cluster.nodes.items()}

    def _leave_a_note_of_damage(self, cluster):
        node = cluster.nodes[VICTIM]
        names = node.files.names("/node/g/data")
        node.files.flip(f"/node/g/data/{names[-2]}", 3_020, 1)
        cluster.read_everything()
        cluster.run_until_equal(LIMIT_MS)
        assert "quorumlog.damaged" in node.files.names("/node/g")

    def paths(self):
        """Every file of the victim's group."""
        return [path for path in self._files() if path.startswith("/node/g/")]

    def journal_paths(self):
        """Every file of the victim's journal that holds something."""
        paths = [path for path in self._files() if path.startswith("/node/quorumlog.journal/")]
        return [path for path in paths if not path.endswith("/lock")]

    def _files(self):
        names = self.disks[VICTIM]._names.now
        return sorted(path for path, node in names.items() if isinstance(node, Content))

    def started_after(self, *damages, down=()):
        """Start the group from copies of its disks, after (node, path, kind of damage) each."""
        cluster = SimulatedCluster(11, self.founders, spares=1, **self.settings)
        cluster.invariants.clear()
        for node_id, node in cluster.nodes.items():
            node.files = self.disks[node_id].copy(random.Random(1))
        for node_id, path, kind in damages:
            damage_file(cluster.nodes[node_id].files, path, kind)
        for node_id, node in cluster.nodes.items():
            if node_id not in down:
                node.start()
        return cluster


def damage_file(files, path, kind):
    names = files._names
    content = names.now.get(path)
    if content is None:
        return
    if kind in OBSTACLES:
        names.now[path] = names.durable[path] = OBSTACLES[kind]()
        return
    damage = DAMAGES[kind]
    changed = None if damage is None else damage(bytearray(content.cached))
    for nodes in (names.now, names.durable):
        if changed is None:
            nodes.pop(path, None)
        else:
            made = Content(0)
            made.cached = bytearray(changed)
            made.durable = bytearray(changed)
            nodes[path] = made
    if changed is not None:
        names.durable[path] = names.now[path]


def put_directory(files, path):
    for nodes in (files._names.now, files._names.durable):
        nodes[path] = Directory(0)


@cache
def one_member():
    """A group of one whose log begins later."""
    return Stopped(1)


def put_file(files, path, raw=b"nothing of ours"):
    content = Content(0)
    content.cached = bytearray(raw)
    for nodes in (files._names.now, files._names.durable):
        nodes[path] = content


def sessions_of(node):
    table = TableSet.decode(node.running.tables.encode())
    return table.sessions.sessions, table.transactions.producers


@cache
def three_members():
    """A group of three and a learner whose log begins later."""
    return Stopped(3)
