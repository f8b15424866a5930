"""The groups of one node: made, altered and deleted, with a crash at every call of the system."""

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from group_machine import ONE, PEERS, TWO, Later, Machine, Now
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import GroupConfig
from quorumlog.model.errors import ConfigError, LeaderPendingFullError, StorageError
from quorumlog.model.group_records import GroupRecord, GroupState, config_of, next_revision
from quorumlog.model.limits import Limits
from quorumlog.model.messages.groups import GroupNews, GroupsAnswer, Knowledge
from quorumlog.node.deleted_groups import RETRY_MS, TOMBSTONE_MS, LifecycleEnvironment
from quorumlog.node.executor import WAITING_MAX
from quorumlog.node.group_sync import GroupSync, GroupView, SyncEnvironment
from quorumlog.sim.disk import SimulatedCrash
from quorumlog.storage.metadata.group_files import REFUSED_MAX, GroupFiles

HOUR_MS = 3_600_000


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


def test_copies_of_a_deleted_groups_files_and_of_a_live_groups_take_nothing_from_its_successor():
    machine = Machine()
    machine.create()
    machine.delete()
    machine.create(identity=TWO)
    records = GroupFiles(machine.files, "/base", machine.files.remove_tree)
    found = records.load(0)
    (live,), (deleted,) = found.hosted, found.tombstones
    records._write("/base/g.old", deleted)
    records._write("/base/quorumlog.deleted/g.aside", live)
    machine.restart()
    assert machine.hosted == {"g": TWO}
    assert machine.files.is_directory("/base/quorumlog.deleted/g.aside")
    assert machine.files.is_directory("/base/g.old")


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


@pytest.mark.parametrize("purge", [False, True])
def test_a_deletion_leaves_files_that_lie_elsewhere_and_says_so(purge, caplog):
    elsewhere = {"data_store_path": "/one,/two", "read_only_data_store_dirs": "/three"}
    machine = Machine(GroupConfig(group="f", peers=PEERS, **elsewhere))
    said = []
    machine.lifecycle.delete("f", b"", lambda *answer: said.append(answer), purge=purge)
    ((code, text),) = said
    assert code is ResponseCode.SUCCESS
    assert "its files in /one, /two, /three stay there (dataStorePath): remove them" in text
    assert "files left" in caplog.text
    machine.restart()
    assert machine.hosted == {}
    assert machine.create("f", TWO) is ResponseCode.SUCCESS


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
    late = machine.alter({"cleanInterval": "60"}, first, "f", b"")
    assert late is ResponseCode.CHANGE_IN_PROGRESS
    assert machine.host.open_groups["f"][0].clean_interval == 50


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"cleanIntervall": "1"}, "did you mean cleanInterval"),
        ({"cleanInterval": "soon"}, "cleanInterval is a whole number, not 'soon'"),
        ({"scrubIntervalHours": "x"}, "scrubIntervalHours is a number, not 'x'"),
        ({"enableDiskForceClean": "ja"}, "enableDiskForceClean is true or false, not 'ja'"),
        ({"logLevel": "LOUD"}, "logLevel is one of '', 'DEBUG', .*, not 'LOUD'"),
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


def test_preferred_leaders_are_members_as_the_replica_knows_them():
    machine = Machine()
    wanted = {"preferredLeaderIds": "n4"}
    assert machine.create(**wanted) is ResponseCode.UNEXPECTED_ARGUMENT
    machine.create()
    refused = machine.alter(wanted, 1 << 40, prepares=True)
    assert refused is ResponseCode.UNEXPECTED_ARGUMENT
    machine.host.member_ids = lambda name: ("n0", "n1", "n4")  # it was added
    assert machine.alter(wanted, 1 << 40, prepares=True) is ResponseCode.SUCCESS
    assert machine.alter(wanted, 1 << 40) is ResponseCode.SUCCESS
    machine.restart()
    assert machine.host.open_groups["g"][0].preferred_leaders == ("n4",)


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


def test_a_change_for_which_no_thread_has_room_may_be_asked_for_again():
    class Busy(Now):
        def run(self, work, done, failed, client=None):
            failed(LeaderPendingFullError("too much waits for threads; try again later"))

    machine = Machine(executor=Busy())
    assert machine.create() is ResponseCode.LEADER_PENDING_FULL
    assert machine.hosted == {}


def test_of_two_changes_at_the_same_time_the_later_is_told_that_it_lost_also_after_a_restart():
    one, other = {"cleanInterval": "60"}, {"retentionBytes": "70"}
    low, high = sorted([next_revision(0, one), next_revision(0, other)])
    machine = Machine()
    machine.create()
    assert machine.alter(one, low, prepares=True, replaces=0) is ResponseCode.SUCCESS
    assert machine.alter(other, high, prepares=True, replaces=0) is ResponseCode.SUCCESS
    machine.restart()
    assert machine.hosted == {"g": ONE}
    assert machine.alter(one, low) is ResponseCode.CHANGE_IN_PROGRESS
    assert machine.alter(other, high) is ResponseCode.SUCCESS
    assert machine.alter(other, high) is ResponseCode.SUCCESS  # it is sent again
    late = machine.alter(one, next_revision(high, one), prepares=True, replaces=0)
    assert late is ResponseCode.CHANGE_IN_PROGRESS
    machine.restart()
    assert machine.catalog.records["g"].settings == other


def test_a_promise_to_a_client_that_died_does_not_keep_a_member_from_learning():
    settings = {"cleanInterval": "60"}
    machine = Machine()
    machine.create()
    assert machine.alter({}, 1 << 40, prepares=True, replaces=0) is ResponseCode.SUCCESS
    said = []
    news = GroupRecord(group="g", identity=ONE, settings=settings, revision=1 << 32)
    machine.lifecycle.learn(news, lambda code, text: said.append(code))
    assert said == [ResponseCode.SUCCESS]
    assert machine.host.open_groups["g"][0].clean_interval == 60


def test_settings_that_were_only_learned_do_not_count_against_a_later_promise():
    """The client that has the promise does not know them: it would undo a change that was done."""
    one, other = {"cleanInterval": "60"}, {"retentionBytes": "70"}
    low, high = next_revision(0, one), next_revision(1 << 32, other)
    machine = Machine()
    machine.create()
    assert machine.alter(one, low, prepares=True, replaces=0) is ResponseCode.SUCCESS
    assert machine.alter(other, high, prepares=True, replaces=0) is ResponseCode.SUCCESS
    news = GroupRecord(group="g", identity=ONE, settings=one, revision=low)
    machine.lifecycle.learn(news, lambda code, text: None)  # another member had taken them
    assert machine.catalog.records["g"].revision == low
    assert machine.alter(one, low) is ResponseCode.CHANGE_IN_PROGRESS
    assert machine.alter(other, high) is ResponseCode.SUCCESS


def test_newer_settings_that_a_member_cannot_take_over_are_said_once_and_until_it_can(caplog):
    machine = Machine()
    machine.create()
    unknown = GroupRecord(group="g", identity=ONE, settings={"ofTomorrow": "1"}, revision=1 << 32)
    known = replace(unknown, settings={"cleanInterval": "60"}, revision=2 << 32)
    peer = Peer(machine)
    for _ in range(3):
        peer.says(unknown)
    assert caplog.text.count("settings that members have are not taken over") == 1
    assert "ofTomorrow" in machine.catalog.outdated["g"]
    peer.says(known)
    assert machine.catalog.outdated == {}
    assert machine.host.open_groups["g"][0].clean_interval == 60


class Peer:
    """The only peer of a node; it answers each query with one change."""

    def __init__(self, machine):
        self.asked = []
        view = GroupView(("n0", "n1"), True, False, dict)
        views = SimpleNamespace(view=lambda name: view, peers=lambda: ["n1"])
        self.sync = GroupSync(
            machine.lifecycle,
            SyncEnvironment(self, views, lambda: 0, lambda due_ms: None, lambda: len(self.asked)),
        )

    def send(self, peer_id, message):
        self.asked.append(message)
        return True

    def says(self, record):
        self.sync.tick()
        news = [GroupNews(Knowledge.CHANGED, record)]
        nonce = self.asked[-1].nonce
        self.sync.received(GroupsAnswer(local_id="n1", remote_id="n0", nonce=nonce, news=news))


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


def damage(machine, directory):
    for name in ("quorumlog.group", "quorumlog.group.copy"):
        file = machine.files.open(f"{directory}/{name}")
        file.write_at([b"x" * 64], 0)
        file.write_at([b"x" * 64], 16_384)
        file.close()


def test_a_group_whose_record_cannot_be_read_fails_alone_and_is_not_made_or_deleted():
    machine = Machine(GroupConfig(group="f", peers=PEERS))
    machine.create("g")
    machine.create("h", TWO)
    damage(machine, "/base/g")
    machine.restart()
    assert set(machine.hosted) == {"f", "h"}
    reason = machine.catalog.unusable["g"]
    assert "/base/g/quorumlog.group: all its copies are damaged" in reason
    assert "It may say that the group was deleted" in reason
    said = []
    again = GroupRecord(group="g", identity=ONE, peers=PEERS)
    machine.lifecycle.create(again, lambda *answer: said.append(answer))
    machine.lifecycle.delete("g", ONE, lambda *answer: said.append(answer))
    assert [code for code, _ in said] == [ResponseCode.GROUP_EXISTS, ResponseCode.DISK_ERROR]
    assert all("all its copies are damaged" in text for _, text in said)
    machine.files.remove_tree("/base/g")
    machine.restart()
    assert machine.create() is ResponseCode.SUCCESS


def test_a_group_of_the_file_whose_record_cannot_be_read_is_not_opened():
    machine = Machine(GroupConfig(group="f", peers=PEERS))
    machine.alter({"cleanInterval": "60"}, 1 << 40, "f", b"")
    damage(machine, "/base/f")
    machine.restart()
    assert machine.hosted == {}
    assert "all its copies are damaged" in machine.catalog.unusable["f"]


@pytest.mark.parametrize("is_in_file", [False, True])
def test_a_tombstone_that_cannot_be_read_still_keeps_its_group_from_coming_back(is_in_file):
    machine = Machine(*[GroupConfig(group="g", peers=PEERS)] * is_in_file, hours=2)
    machine.create("h", TWO)
    if not is_in_file:
        machine.create()
    machine.delete()
    (name,) = machine.files.names("/base/quorumlog.deleted")
    damage(machine, f"/base/quorumlog.deleted/{name}")
    machine.restart()
    assert machine.hosted == {"h": TWO}
    if is_in_file:
        assert "may say that group g was deleted" in machine.catalog.unusable["g"]
        return
    assert machine.create() is ResponseCode.GROUP_DELETED
    assert machine.create(identity=b"3" * 16) is ResponseCode.SUCCESS
    machine.restart()
    assert set(machine.hosted) == {"g", "h"}  # the successor is another group
    machine.wall_ms += 2 * HOUR_MS
    machine.lifecycle.tick()
    assert not machine.files.exists(f"/base/quorumlog.deleted/{name}/data")
    machine.restart()
    assert set(machine.hosted) == {"g", "h"}


@pytest.mark.parametrize("is_in_file", [False, True])
def test_an_interrupted_deletion_that_cannot_be_finished_at_a_start_is_tried_again(is_in_file):
    machine = Machine()
    machine.create()
    machine.create("h", TWO)
    machine.host.close = lambda name, done: None  # the process ends before that
    machine.lifecycle.delete("g", ONE, lambda *_: None, purge=True)
    if is_in_file:  # a successor, whose place is not free yet
        machine.config = replace(machine.config, groups=[GroupConfig(group="g", peers=PEERS)])
    machine.files.fail_next(f"g.{ONE.hex()}", "EIO")
    machine.restart(ticks=False)
    assert machine.hosted == {"h": TWO}
    assert ("restart the node" in machine.catalog.unusable.get("g", "")) == is_in_file
    assert machine.create(identity=b"3" * 16) is ResponseCode.CHANGE_IN_PROGRESS
    assert machine.woken_at[-1] == machine.wall_ms + RETRY_MS
    machine.lifecycle.tick()
    assert machine.files.is_directory(f"/base/quorumlog.deleted/g.{ONE.hex()}")
    assert not machine.files.exists(f"/base/quorumlog.deleted/g.{ONE.hex()}/data")
    if not is_in_file:
        assert machine.create(identity=b"3" * 16) is ResponseCode.SUCCESS
    machine.restart()
    assert machine.hosted == {"h": TWO, "g": b"" if is_in_file else b"3" * 16}


def test_nothing_is_moved_before_the_journal_can_be_settled():
    machine = Machine()
    machine.create()
    machine.host.close = lambda name, done: None
    machine.lifecycle.delete("g", ONE, lambda *_: None)
    records = GroupFiles(machine.files, "/base", machine.files.remove_tree)
    found = records.load(0)
    assert [record.key for record in found.unmoved] == [("g", ONE)]
    assert machine.files.exists("/base/g/data")
    assert records.finish(found).unmoved == []
    assert not machine.files.exists("/base/g")


def test_while_a_group_changes_another_change_of_it_is_refused():
    machine = Machine()
    machine.lifecycle._environment = LifecycleEnvironment(
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


@pytest.mark.parametrize("purge", [False, True])
def test_each_step_of_a_deletion_may_be_repeated_after_a_failure(purge):
    for number in range(1, 100):
        machine = Machine()
        machine.create()
        machine.files.crash_at = machine.files.calls + number
        try:
            machine.delete(purge=purge)
        except SimulatedCrash:
            machine.files.crash_at = None
            machine.files.restart()
            record = next((one for one in [machine.catalog.records.get("g")] if one), None)
            records = GroupFiles(machine.files, "/base", machine.files.remove_tree)
            deleted = replace(
                record or GroupRecord(group="g", identity=ONE, peers=PEERS),
                state=GroupState.DELETED,
            )
            records.save(deleted)
            for _ in range(2):
                records.bury(deleted)
                records.purge(replace(deleted, purged=True))
            machine.restart()
            assert machine.hosted == {}
            assert machine.create() is ResponseCode.GROUP_DELETED
            assert machine.create(identity=TWO) is ResponseCode.SUCCESS
            continue
        break
    assert number > 5


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
    machine.create()
    machine.host.failed["g"] = "data file 3 is damaged"
    said = []
    again = GroupRecord(group="g", identity=ONE, peers=PEERS)
    machine.lifecycle.create(again, lambda code, text: said.append((code, text)))
    assert said[0][0] is ResponseCode.DISK_ERROR
    assert "data file 3 is damaged" in said[0][1]
    assert machine.delete(purge=True) is ResponseCode.SUCCESS
    assert machine.create(identity=TWO) is ResponseCode.SUCCESS


def test_nothing_stays_of_a_group_that_cannot_be_opened_when_it_is_made():
    machine = Machine()
    machine.host.fails = "its state machine raises"
    assert machine.create() is ResponseCode.DISK_ERROR
    assert machine.files.names("/base/quorumlog.deleted") == []
    assert not machine.files.is_directory("/base/g")
    assert not list(machine.catalog.tombstones())  # else others would learn that it was deleted
    machine.host.fails = ""
    assert machine.create() is ResponseCode.SUCCESS
    machine.restart()
    assert machine.hosted == {"g": ONE}


def test_why_a_group_could_not_be_opened_is_known_also_if_what_was_made_of_it_stays(monkeypatch):
    def fail(*_):
        raise StorageError("the disk does not answer")

    machine = Machine()
    machine.host.fails = "its state machine raises"
    monkeypatch.setattr(GroupFiles, "undo", fail)
    said = []
    record = GroupRecord(group="g", identity=ONE, peers=PEERS)
    for _ in range(2):
        machine.lifecycle.create(record, lambda *answer: said.append(answer))
    assert [code for code, _ in said] == [ResponseCode.DISK_ERROR] * 2
    assert "what was made of it stays: the disk does not answer" in said[0][1]
    assert "is made but cannot be opened: its state machine raises" in said[1][1]
    assert machine.delete(identity=ONE) is ResponseCode.SUCCESS
    assert machine.host.failed == {}


def test_a_new_group_takes_no_directory_that_holds_something_and_removes_none():
    machine = Machine()
    machine.files.make_directory("/base/g")
    machine.files.make_directory("/base/g/data")
    said = []
    record = GroupRecord(group="g", identity=ONE, peers=PEERS)
    machine.lifecycle.create(record, lambda code, text: said.append((code, text)))
    assert said[0][0] is ResponseCode.GROUP_REFUSED
    assert "/base/g is there already, and not empty (data)" in said[0][1]
    assert machine.delete(identity=ONE, purge=True) is ResponseCode.SUCCESS  # as a client undoes it
    assert machine.files.is_directory("/base/g/data")
    machine.restart()
    assert machine.hosted == {}
    assert machine.files.is_directory("/base/g/data")


def test_an_empty_directory_stays_when_the_record_of_its_new_group_cannot_be_written():
    machine = Machine()
    machine.files.make_directory("/base/g")
    machine.files.fail_next("quorumlog.group", "ENOSPC")
    assert machine.create() is ResponseCode.DISK_FULL
    assert machine.files.names("/base/g") == []
    assert machine.files.is_directory("/base/g")
    assert machine.create() is ResponseCode.SUCCESS


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
    assert machine.alter(settings, next_revision(0, settings), "a", b"a" * 16) is None
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


def test_more_deleted_groups_than_may_wait_are_forgotten_tick_by_tick():
    later = Later()
    machine = Machine(executor=later)
    for number in range(WAITING_MAX + 1):
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
