"""The groups of one node: made, altered and deleted, with a crash at every call of the system."""

from collections import deque
from random import Random
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import GroupConfig, NodeConfig
from quorumlog.model.errors import ConfigError, LeaderPendingFullError, StorageError
from quorumlog.model.group_records import GroupRecord, GroupState, config_of, next_revision
from quorumlog.model.limits import Limits
from quorumlog.node.deleted_groups import RETRY_MS, TOMBSTONE_MS, LifecycleEnvironment
from quorumlog.node.executor import WAITING_MAX
from quorumlog.node.group_catalog import GroupCatalog
from quorumlog.node.group_lifecycle import GroupLifecycle
from quorumlog.sim.disk import SimulatedCrash, SimulatedFileSystem
from quorumlog.storage.metadata.group_files import REFUSED_MAX, GroupFiles

PEERS = "n0-127.0.0.1:7101;n1-127.0.0.1:7102"
HOUR_MS = 3_600_000
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

    def close(self, name, done):
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

    def restart(self):
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
        self.catalog.loaded(*records.load())
        for name, config in self.catalog.configs.items():
            record = self.catalog.records.get(name)
            self.host.open(config, record.identity if record else b"", lambda error: None)
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

    def alter(self, settings, revision, name="g", identity=ONE):
        said = []
        self.lifecycle.alter(
            name, identity, settings, revision, lambda code, text: said.append((code, text))
        )
        return said[0][0]

    @property
    def hosted(self):
        """Name → identity of what is open."""
        return {name: identity for name, (_, identity) in self.host.open_groups.items()}

    def written_in(self, name):
        file = self.files.open(f"/base/{name}/data", writable=False)
        return file.read_at(16, 0)


def crashes(prepare, act):
    """Run `act` on fresh machines, each of which crashes one call later; yield them restarted."""
    number = 0
    while True:
        number += 1
        machine = Machine()
        prepare(machine)
        machine.files.crash_at = machine.files.calls + number
        try:
            act(machine)
        except SimulatedCrash:
            machine.files.crash_at = None
            machine.restart()
            yield machine
            continue
        return


def test_163_a_crash_at_any_point_of_a_creation_leaves_the_group_or_nothing():
    points = 0
    for machine in crashes(lambda machine: None, lambda machine: machine.create()):
        points += 1
        assert machine.hosted in ({}, {"g": ONE})
        assert machine.create() is ResponseCode.SUCCESS
        machine.restart()
        assert machine.hosted == {"g": ONE}
        assert machine.delete(purge=True) is ResponseCode.SUCCESS
    assert points > 5


@pytest.mark.parametrize("purge", [False, True])
def test_163_a_crash_at_any_point_of_a_deletion_leaves_the_group_or_nothing_of_it(purge):
    points = 0
    for machine in crashes(Machine.create, lambda machine: machine.delete(purge=purge)):
        points += 1
        if machine.hosted:
            assert machine.hosted == {"g": ONE}
            assert machine.delete(identity=ONE, purge=purge) is ResponseCode.SUCCESS
        assert machine.hosted == {}
        assert machine.create() is ResponseCode.GROUP_DELETED
        assert machine.create(identity=TWO) is ResponseCode.SUCCESS
        assert machine.written_in("g") == TWO
        machine.restart()
        assert machine.hosted == {"g": TWO}
    assert points > 5


def test_the_files_of_a_deleted_group_go_after_their_time_and_its_tombstone_much_later():
    machine = Machine(hours=2)
    machine.create()
    machine.delete()
    kept = f"/base/quorumlog.deleted/g.{ONE.hex()}/data"
    assert machine.files.exists(kept)
    machine.wall_ms += 2 * HOUR_MS - 1
    machine.lifecycle.tick()
    assert machine.files.exists(kept)
    assert machine.woken_at[-1] == machine.wall_ms + 1
    machine.wall_ms += 1
    machine.lifecycle.tick()
    assert not machine.files.exists(kept)
    machine.restart()
    assert machine.create() is ResponseCode.GROUP_DELETED
    machine.wall_ms += TOMBSTONE_MS
    machine.lifecycle.tick()
    machine.restart()
    assert machine.create() is ResponseCode.SUCCESS


def test_the_files_of_a_group_that_was_deleted_before_can_be_purged_later():
    machine = Machine()
    machine.create()
    machine.delete()
    assert machine.delete(identity=ONE, purge=True) is ResponseCode.SUCCESS
    assert not machine.files.exists(f"/base/quorumlog.deleted/g.{ONE.hex()}/data")


def test_a_group_that_was_undone_before_it_was_made_is_never_made():
    machine = Machine()
    assert machine.delete(identity=ONE) is ResponseCode.SUCCESS
    machine.restart()
    assert machine.create() is ResponseCode.GROUP_DELETED
    assert machine.create(identity=TWO) is ResponseCode.SUCCESS


def test_what_must_not_be_made_is_remembered_within_a_bound():
    machine = Machine()
    for number in range(REFUSED_MAX + 3):
        machine.delete(identity=number.to_bytes(16, "big"))
    assert len(list(machine.catalog.tombstones())) == REFUSED_MAX
    assert machine.create(identity=bytes(16)) is ResponseCode.SUCCESS  # the oldest is forgotten


def test_a_deleted_group_of_the_configuration_file_stays_deleted():
    group = GroupConfig(group="g", peers=PEERS)
    machine = Machine(group)
    assert set(machine.hosted) == {"g"}
    assert machine.delete() is ResponseCode.SUCCESS
    machine.wall_ms += 2 * TOMBSTONE_MS
    machine.lifecycle.tick()
    machine.restart()
    assert machine.hosted == {}
    assert machine.create(identity=TWO) is ResponseCode.SUCCESS
    machine.restart()
    assert machine.hosted == {"g": TWO}


def test_a_group_that_is_here_is_not_made_again_unless_it_is_the_very_same():
    machine = Machine(GroupConfig(group="f", peers=PEERS))
    machine.create()
    assert machine.create() is ResponseCode.SUCCESS
    assert machine.create(identity=TWO) is ResponseCode.GROUP_EXISTS
    assert machine.create("f") is ResponseCode.GROUP_EXISTS


def test_settings_override_the_file_are_kept_and_an_older_change_does_not_undo_them():
    machine = Machine(GroupConfig(group="f", peers=PEERS, clean_interval=50, retention_bytes=7))
    first = next_revision(0, {"cleanInterval": "60"})
    second = next_revision(first, {})
    assert machine.alter({"cleanInterval": "60"}, first, "f", b"") is ResponseCode.SUCCESS
    machine.restart()
    config = machine.host.open_groups["f"][0]
    assert (config.clean_interval, config.retention_bytes) == (60, 7)
    assert machine.alter({}, second, "f", b"") is ResponseCode.SUCCESS
    assert machine.alter({"cleanInterval": "60"}, first, "f", b"") is ResponseCode.SUCCESS
    assert machine.host.open_groups["f"][0].clean_interval == 50


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"cleanIntervall": "1"}, "did you mean cleanInterval"),
        ({"cleanInterval": "soon"}, "Expected `int`"),
        ({"cleanInterval": "0"}, "cleanInterval must be above 0"),
        ({"peers": PEERS}, "peers is no setting"),
        ({"dataStorePath": "/elsewhere"}, "directories of one machine"),
        ({"preferredLeaderId": "n0"}, "use preferredLeaderIds"),
    ],
)
def test_a_setting_is_checked_as_the_configuration_file_is(settings, text):
    with pytest.raises(ConfigError, match=text):
        config_of(GroupRecord(group="g", peers=PEERS, settings=settings))
    machine = Machine()
    assert machine.create(**settings) is ResponseCode.UNEXPECTED_ARGUMENT
    machine.create()
    assert machine.alter(settings, 1 << 40) is ResponseCode.UNEXPECTED_ARGUMENT


def test_a_node_without_room_refuses_and_keeps_nothing():
    machine = Machine()
    machine.host.refuses = "too many groups"
    assert machine.create() is ResponseCode.GROUP_REFUSED
    machine.host.refuses = ""
    machine.files.fail_next("quorumlog.group.new", "ENOSPC")
    assert machine.create() is ResponseCode.DISK_FULL
    machine.restart()
    assert machine.hosted == {}
    assert machine.create() is ResponseCode.SUCCESS


def test_of_two_changes_at_the_same_time_the_same_one_wins_everywhere():
    one, other = {"cleanInterval": "60"}, {"cleanInterval": "70"}
    revisions = {next_revision(0, one): "60", next_revision(0, other): "70"}
    for order in (one, other), (other, one):
        machine = Machine()
        machine.create()
        for settings in order:
            machine.alter(settings, next_revision(0, settings))
        kept = machine.catalog.records["g"].settings["cleanInterval"]
        assert kept == revisions[max(revisions)]


def test_a_record_on_disk_says_deleted_before_the_replica_is_closed():
    machine = Machine()
    machine.create()
    seen = []
    machine.host.close = lambda name, done: seen.append(machine.catalog.tombstone(name, ONE))
    machine.lifecycle.delete("g", ONE, lambda code, text: None)
    assert [record.state for record in seen] == [GroupState.DELETED]
    machine.files.power_loss()
    machine.restart()
    assert machine.hosted == {}


def test_while_a_group_changes_another_change_of_it_is_refused():
    machine = Machine()
    machine.lifecycle._environment = SimpleNamespace(
        executor=SimpleNamespace(run=lambda *_: None), wall_ms=lambda: 0, wake_at=lambda _: None
    )
    machine.lifecycle.create(
        GroupRecord(group="g", identity=ONE, peers=PEERS), lambda code, text: None
    )
    assert machine.create(identity=TWO) is ResponseCode.CHANGE_IN_PROGRESS
    assert machine.delete() is ResponseCode.CHANGE_IN_PROGRESS


def test_what_cannot_be_moved_or_removed_is_tried_again():
    machine = Machine()
    machine.create()
    machine.files.make_directory("/base/quorumlog.deleted")
    machine.files.fail_next(f"g.{ONE.hex()}", "EIO")
    assert machine.delete(purge=True) is ResponseCode.DISK_ERROR
    assert machine.hosted == {}
    assert machine.create(identity=TWO) is ResponseCode.CHANGE_IN_PROGRESS
    machine.lifecycle.tick()
    assert machine.create(identity=TWO) is ResponseCode.SUCCESS
    assert machine.written_in("g") == TWO
    assert not machine.files.exists(f"/base/quorumlog.deleted/g.{ONE.hex()}/data")


def test_an_empty_directory_stays_as_nobody_knows_whose_it_is_and_a_group_takes_it():
    machine = Machine()
    machine.files.make_directory("/base/lost+found")
    machine.files.make_directory("/base/g")
    machine.restart()
    assert machine.files.is_directory("/base/lost+found")
    assert machine.files.is_directory("/base/g")
    assert machine.create() is ResponseCode.SUCCESS
    machine.restart()
    assert machine.hosted == {"g": ONE}


def test_making_a_group_again_that_could_not_be_opened_is_no_success():
    machine = Machine()
    machine.host.fails = "data file 3 is damaged"
    assert machine.create() is ResponseCode.DISK_ERROR
    said = []
    again = GroupRecord(group="g", identity=ONE, peers=PEERS)
    machine.lifecycle.create(again, lambda code, text: said.append((code, text)))
    assert said[0][0] is ResponseCode.DISK_ERROR
    assert "data file 3 is damaged" in said[0][1]
    assert machine.delete(purge=True) is ResponseCode.SUCCESS
    machine.host.fails = ""
    assert machine.create(identity=TWO) is ResponseCode.SUCCESS


def test_a_group_that_is_being_made_or_altered_takes_one_place_of_those_that_a_node_has():
    later = Later()
    machine = Machine(executor=later, limits=Limits(groups_max=3))
    opening, open_at_once = [], machine.host.open
    machine.host.open = lambda *arguments: opening.append(arguments)
    machine.create("a", b"a" * 16)
    later.run_all()  # it is recorded, and being opened
    machine.create("b", b"b" * 16)
    later.run_all()
    for arguments in opening:
        open_at_once(*arguments)
    machine.host.open = open_at_once
    settings = {"cleanInterval": "60"}
    machine.lifecycle.alter(
        "a", b"a" * 16, settings, next_revision(0, settings), lambda code, text: None
    )
    assert machine.create("c", b"c" * 16) is None  # not refused, but under way
    later.run_all()
    assert set(machine.hosted) == {"a", "b", "c"}
    assert machine.host.being_made == [0, 1, 0]
    assert machine.create("d", b"d" * 16) is ResponseCode.GROUP_REFUSED


def ticked_until_idle(machine):
    """Do what is due now as the timer of a node does; return in how many ticks."""
    for number in range(1_000):
        machine.executor.run_all()
        if not [at for at in machine.woken_at if at <= machine.wall_ms]:
            return number
        machine.woken_at.clear()
        machine.lifecycle.tick()
    raise AssertionError("it does not end")


def test_thousands_of_deleted_groups_are_forgotten_tick_by_tick():
    later = Later()
    machine = Machine(executor=later)
    for number in range(3 * WAITING_MAX):
        record = GroupRecord(group="g", identity=number.to_bytes(16, "big"), purged=True)
        machine.lifecycle._files.refuse(replace(record, state=GroupState.DELETED, peers=PEERS))
    machine.restart()
    machine.wall_ms += TOMBSTONE_MS
    machine.lifecycle.tick()
    assert len(later.waiting) <= WAITING_MAX // 4  # there is room for what others want
    assert ticked_until_idle(machine) > 3
    assert not later.refused
    machine.restart()
    assert not list(machine.catalog.tombstones())


def test_a_tombstone_that_cannot_be_removed_is_kept_said_and_tried_again(caplog, monkeypatch):
    def fail():
        raise StorageError("the disk does not answer")

    machine = Machine()
    machine.delete(identity=ONE)
    machine.wall_ms += TOMBSTONE_MS
    with monkeypatch.context() as patched:
        patched.setattr(GroupFiles, "forget", lambda *_: fail())
        machine.lifecycle.tick()
    assert "tombstone kept" in caplog.text
    assert machine.create() is ResponseCode.GROUP_DELETED
    machine.lifecycle.tick()
    assert machine.create() is ResponseCode.GROUP_DELETED
    assert machine.woken_at[-1] == machine.wall_ms + RETRY_MS
    machine.wall_ms += RETRY_MS
    machine.lifecycle.tick()
    assert machine.create() is ResponseCode.SUCCESS
