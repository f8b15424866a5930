"""Several groups of one node on a simulated disk, with the journal that they share."""

from collections import deque
from random import Random

from quorumlog.model.limits import Limits
from quorumlog.sim.disk import SimulatedFileSystem
from quorumlog.storage.journal.writer import JournalLimits, NodeJournal
from quorumlog.storage.log.group_store import GroupStore
from quorumlog.storage.log.settle import settle_node
from quorumlog.storage.log.store import open_group
from store_access import block_of, config, entries_of

NODE = "/node"
JOURNAL = f"{NODE}/quorumlog.journal"
SMALL = JournalLimits(
    segment_bytes=12_288,
    segments_max=3,
    groups_min=2,
    commit_bytes_max=6_000,
    group_bytes_max=1_500,
    group_wanted_min=1,
    wanted_min=1,
    wanted_again=8,
)


class Steps:
    """Work beside the disk thread: the test says when a step is taken."""

    def __init__(self):
        self.waiting = deque()

    def run(self, step):
        self.waiting.append(step)

    def finish(self):
        self.waiting.clear()

    def take(self, count=1_000):
        """Take steps, at most `count`, until nothing waits."""
        while self.waiting and count:
            count -= 1
            if not self.waiting[0]():
                self.waiting.popleft()


class JournaledNode:
    """A node's groups by name, open; `commit` writes what was staged as one group commit."""

    def __init__(
        self, files, names=("a", "b", "c"), limits=SMALL, now_ms=None, settles=True, **sizes
    ):
        self.files = files
        self.names = names
        self.sizes = {"data_file": 4_096, "index_file": 32 * 32, **sizes}
        self.settled = settle_node(files, NODE) if settles else None
        self.steps = Steps()
        self.journal = NodeJournal(files, JOURNAL, self.steps, limits=limits)
        self.store = GroupStore(self.journal, now_ms)
        self.groups = {}
        for name in names:
            self.open(name)
        self.plans = []

    def open(self, name):
        group = config(**self.sizes)
        self.groups[name] = open_group(
            self.files, f"{NODE}/{name}", group, Limits(tail_cache_bytes=500), self_id="n0"
        )

    def log(self, name):
        return self.groups[name].log

    def stage(self, name, bodies, term=1):
        self.plans.append(self.log(name).append(block_of(bodies), term)[0])

    def commit(self):
        plans, self.plans = self.plans, []
        self.store.execute(plans, sync=True)
        for plan in plans:
            plan.completed()

    def append(self, **bodies):
        """Append one body to each named group, as one commit."""
        for name, body in bodies.items():
            self.stage(name, [body])
        self.commit()

    def begin_journal(self):
        """Append until the journal is in use by all groups."""
        for _ in range(6):
            self.append(**dict.fromkeys(self.names, b"begin"))
            self.steps.take()
        assert self.journal.place[1] > 1

    def checkpoint(self, name):
        plan = self.log(name).checkpoint()
        if plan is not None:
            self.plans.append(plan)

    def bodies(self, name):
        return [entry.body for entry in entries_of(self.log(name))]

    def close(self):
        """Stop in order."""
        self.store.close()
        for group in self.groups.values():
            group.close()


def new_disk(seed=0, survival="none"):
    files = SimulatedFileSystem(Random(seed))
    files.survival = survival
    files.make_directory(NODE)
    return files


def after_power_loss(node, survival="none", **settings):
    """Lose power; return the node as it starts again."""
    node.files.survival = survival
    node.files.power_loss()
    return JournaledNode(node.files, node.names, **settings)
