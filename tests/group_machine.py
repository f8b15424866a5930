"""The lifecycle of the groups of one node on a simulated disk, with replicas that do nothing."""

from collections import deque
from random import Random

from quorumlog.model.config import NodeConfig
from quorumlog.model.errors import LeaderPendingFullError, StorageError
from quorumlog.model.group_records import GroupRecord
from quorumlog.model.limits import Limits
from quorumlog.model.messages.groups import AlterGroupRequest
from quorumlog.node.deleted_groups import LifecycleEnvironment
from quorumlog.node.executor import WAITING_MAX
from quorumlog.node.group_catalog import GroupCatalog
from quorumlog.node.group_lifecycle import GroupLifecycle
from quorumlog.sim.disk import SimulatedFileSystem
from quorumlog.storage.metadata.group_files import GroupFiles

PEERS = "n0-127.0.0.1:7101;n1-127.0.0.1:7102"
ONE, TWO = b"1" * 16, b"2" * 16


class Now:
    """Runs work at once."""

    def run(self, work, done, failed, client=None):
        try:
            found = work()
        except Exception as error:
            failed(error)
        else:
            done(found)


class Later:
    """Runs work when it is told to, and refuses it when as much waits as `ThreadExecutor` takes."""

    def __init__(self):
        self.waiting = deque()
        self.refused = 0

    def run(self, work, done, failed, client=None):
        if len(self.waiting) >= WAITING_MAX:
            self.refused += 1
            failed(LeaderPendingFullError("too much waits"))
        else:
            self.waiting.append((work, done, failed))

    def run_all(self):
        while self.waiting:
            Now().run(*self.waiting.popleft())


class Host:
    """Replicas that are nothing but open or closed; `files` has what each wrote.

    With `fails` none can be opened, and says why.
    """

    def __init__(self, files, base):
        self.files, self.base = files, base
        self.open_groups = {}
        self.failed = {}
        self.refuses = self.fails = ""
        self.being_made = []

    def room_for(self, config, being_made):
        self.being_made.append(being_made)
        return self.refuses

    def peers_of(self, name):
        return ""

    def member_ids(self, name):
        return ()

    def why_not_open(self, name):
        return self.failed.get(name, "")

    def open(self, config, identity, done):
        if self.fails:
            self.failed[config.group] = self.fails
            done(StorageError(self.fails))
            return
        self.open_groups[config.group] = (config, identity)
        self.files.make_directory(f"{self.base}/{config.group}")
        path = f"{self.base}/{config.group}/data"
        if not self.files.exists(path):
            file = self.files.open(path, create=True)
            file.write_at([identity], 0)
            file.sync()
            file.close()
            self.files.sync_directory(f"{self.base}/{config.group}")
        done(None)

    def keeps_failed(self, name, reason):
        self.failed[name] = reason

    def close(self, name, done):
        self.failed.pop(name, None)
        self.open_groups.pop(name, None)
        done()

    def change(self, config):
        self.open_groups[config.group] = (config, self.open_groups[config.group][1])

    def identity_of(self, name):
        return b""


class Machine:
    """A node's disk, and the process that runs on it; `restart` begins another one."""

    def __init__(self, *groups, hours=72.0, executor=None, limits=None):
        self.files = SimulatedFileSystem(Random(7))
        self.executor = executor or Now()
        self.config = NodeConfig(
            self_id="n0",
            store_base_dir="/base",
            listen="127.0.0.1:7101",
            groups=list(groups),
            limits=limits or Limits(),
            deleted_group_reserved_hours=hours,
        )
        self.wall_ms = 1_000
        self.woken_at = []
        self.files.make_directory("/base")
        self.restart()

    def restart(self, *, ticks=True):
        if self.files.is_off:
            self.files.restart()
        self.catalog = GroupCatalog(self.config)
        self.host = Host(self.files, "/base")
        records = GroupFiles(self.files, "/base", self.files.remove_tree)
        self.lifecycle = GroupLifecycle(
            self.catalog,
            records,
            self.host,
            LifecycleEnvironment(self.executor, lambda: self.wall_ms, self.woken_at.append),
        )
        self.lifecycle.loaded(records.finish(records.load(self.wall_ms)))
        for name, config in self.catalog.configs.items():
            record = self.catalog.records.get(name)
            self.host.open(config, record.identity if record else b"", lambda error: None)
        if ticks:
            self.lifecycle.tick()

    def create(self, name="g", identity=ONE, **settings):
        said = []
        record = GroupRecord(group=name, identity=identity, peers=PEERS, settings=settings)
        self.lifecycle.create(record, lambda code, text: said.append((code, text)))
        return said[0][0] if said else None

    def delete(self, name="g", identity=b"", *, purge=False):
        said = []
        self.lifecycle.delete(
            name, identity, lambda code, text: said.append((code, text)), purge=purge
        )
        return said[0][0]

    def alter(self, settings, revision, name="g", identity=ONE, **options):
        said = []
        request = AlterGroupRequest(
            group=name, identity=identity, settings=settings, revision=revision, **options
        )
        self.lifecycle.alter(request, lambda code, text: said.append((code, text)))
        return said[0][0] if said else None

    @property
    def hosted(self):
        """Name → identity of what is open."""
        return {name: identity for name, (_, identity) in self.host.open_groups.items()}

    def written_in(self, name):
        file = self.files.open(f"/base/{name}/data", writable=False)
        return file.read_at(16, 0)
