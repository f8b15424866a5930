"""What state machines and snapshots did wrong when this was written: a reason for each test."""

import os
import random
from array import array
from itertools import count

import msgspec
import pytest
import test_node_applier as applied
import test_node_snapshot_transfer as installed
import test_storage_snapshots as stored
from test_node_applier import OK, SOON, Group, Traced, handed
from test_node_snapshot_transfer import CHUNK_BYTES, DATA, TIME_OUT_MS, Side

from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.errors import ConfigError, StorageError
from quorumlog.model.membership import founding
from quorumlog.node.machines import machine_class
from quorumlog.node.replica.command_results import CommandResults
from quorumlog.node.replica.machine_jobs import MachineError
from quorumlog.node.replica.served_snapshots import SILENT_OFFERS
from quorumlog.node.replica.snapshotter import RETRY_MS as SAVE_RETRY_MS
from quorumlog.raft.effects import FetchSnapshot
from quorumlog.raft.events import Received, SnapshotFetched
from quorumlog.sim.disk import SimulatedCrash, SimulatedFileSystem
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.log.snapshots import Snapshots
from store_access import Opened

SIZES = {"data_file": 1_024, "index_file": 32 * 8}
CONFIG = founding({"n0": "127.0.0.1:1", "n7": "127.0.0.1:2"}).encode()

# -- storage ------------------------------------------------------------------------------------


def test_a_crash_while_a_plain_log_begins_anew_forgets_no_membership():
    lost = []
    for call in count(1):
        files = SimulatedFileSystem(random.Random(call))
        files.make_directory("/node")
        opened = Opened(stored.DIRECTORY, files=files, **SIZES)
        opened.append([b"x"] * 10)
        files.crash_at = files.calls + call
        crashed = True
        try:
            opened.submit(opened.log.reset(20, 2, 77, (15, CONFIG)))
            opened.close()
            crashed = False
        except SimulatedCrash:
            files.restart()
        files.crash_at = None
        files.kill()
        again = Opened(stored.DIRECTORY, files=files, **SIZES)
        began = again.log.before_begin_index == 20
        if began and again.log.config_entries() != [(15, CONFIG)]:
            lost.append(call)
        again.close()
        if not crashed:
            break
    assert lost == []


def test_a_failed_sync_of_a_fetched_snapshot_is_not_made_good_by_trying_again():
    meta = stored.offered()
    for seed in range(20):
        disk = stored.Disk(seed, "none")
        installing = stored.fetch(disk, meta)
        disk.files.fail(disk.files.calls + 3, "EIO")  # after its size and footer: the sync
        with pytest.raises(StorageError):
            installing.publish()
        installing.discard()
        fetched = stored.fetch(disk, meta)
        assert fetched.publish()
        disk.files.power_loss()
        disk.reopen()
        assert stored.data_of(disk.snapshots, disk.snapshots.newest()) == stored.big(9), seed


def test_a_name_with_too_few_digits_does_not_keep_a_group_from_opening():
    disk = stored.Disk()
    stored.save(disk.snapshots, 5, b"good")
    disk.files.open(f"{stored.DIRECTORY}/snapshot/snapshot_7", create=True).close()
    assert disk.snapshots.newest().last_included_index == 5
    disk.snapshots.keep_newest(1)
    assert stored.data_of(disk.snapshots, disk.snapshots.newest()) == b"good"


def test_a_view_of_wider_items_is_saved_as_its_bytes():
    disk = stored.Disk()
    numbers = memoryview(array("I", [1, 2, 3]))
    meta = stored.save(disk.snapshots, 5, numbers, b"tail")
    assert stored.data_of(disk.snapshots, meta) == numbers.tobytes() + b"tail"


def test_a_snapshot_that_cannot_be_published_leaves_no_file_open(tmp_path, monkeypatch):
    files = OsFileSystem()
    group = Group()

    def refuse(source, target):
        raise StorageError("no")

    monkeypatch.setattr(files, "replace", refuse)
    monkeypatch.setattr(
        group.applier.snapshotter, "_snapshots", Snapshots(files, str(tmp_path), print)
    )
    monkeypatch.setattr("quorumlog.storage.files.os_files.OsFile.sync", lambda self: refuse("", ""))
    group.filled(1)
    assert group.answered(group.ask_to_save())[0] is ResponseCode.DISK_ERROR
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        assert group.answered(group.ask_to_save())[0] is ResponseCode.DISK_ERROR
    assert len(os.listdir("/proc/self/fd")) == before


# -- fetching -----------------------------------------------------------------------------------


def test_what_was_fetched_is_told_not_what_was_offered_while_it_was_verified():
    leader, follower = Side("n0"), Side("n1")
    offer = leader.has(40)
    follower.is_offered(offer)
    while follower.offset_asked() + CHUNK_BYTES < len(DATA):
        follower.next_chunk()
    request = follower.sent[-1][0]
    last = installed.chunk_of(request)
    follower.receiver.chunk_received(last, memoryview(DATA[request.offset :]))
    work, done, _ = follower.jobs.pop(0)
    done(work())  # all bytes are here: they are verified next
    assert follower.receiver.state == "verifying"
    newer = leader.has(50)
    follower.receiver.fetch(FetchSnapshot(newer))
    follower.work()
    assert follower.snapshots.indexes() == [40]
    assert SnapshotFetched(newer) not in follower.steps, "50 is not here"


def test_a_last_chunk_that_comes_after_giving_up_does_not_end_fetching_for_ever():
    follower = Side("n1")
    offer = Side("n0").has(40)
    follower.is_offered(offer)
    while follower.offset_asked() + CHUNK_BYTES < len(DATA):
        follower.next_chunk()
    follower.passes(SILENT_OFFERS * TIME_OUT_MS)
    assert not follower.machine.is_installing
    follower.next_chunk()
    for _ in range(5):
        follower.passes(TIME_OUT_MS)
        follower.is_offered(offer)
        if follower.machine.is_installing:
            follower.next_chunk()  # a leader sends what is asked for: nothing
    assert SnapshotFetched(offer) in follower.steps


@pytest.mark.parametrize("call", [1, 2, 3, 4, 5])
def test_a_disk_error_while_a_snapshot_is_published_delays_it_only(call):
    follower = Side("n1")
    offer = Side("n0").has(40)
    follower.is_offered(offer)
    while follower.offset_asked() + CHUNK_BYTES < len(DATA):
        follower.next_chunk()
    follower.files.fail(follower.files.calls + 1 + call, "EIO")
    follower.next_chunk()  # call 1: resize, 2: the footer, 3: sync, 4: rename, 5: of the directory
    follower.files.forgive()
    for _ in range(5):
        if follower.steps:
            break
        follower.passes(TIME_OUT_MS)
        follower.is_offered(offer)
        if follower.machine.is_installing:
            follower.fetches_all()
    assert follower.steps == [SnapshotFetched(offer)]
    assert follower.data_at(40) == DATA


def test_status_tells_that_it_installs_when_it_goes_on():
    follower = Side("n1")
    offer = Side("n0").has(40)
    follower.is_offered(offer)
    follower.next_chunk()
    follower.passes(SILENT_OFFERS * TIME_OUT_MS)
    follower.is_offered(offer)
    assert follower.machine.is_installing
    assert follower.receiver.state == "installing"


def test_a_replica_with_a_machine_does_not_begin_anew_for_a_plain_log():
    follower = Side("n1")
    plain = msgspec.structs.replace(Side("n0").has(40), sha256=b"", size_bytes=0)
    follower.receiver.offer_received(plain, b"")
    assert Received(plain) not in follower.steps, "its log would go, and no snapshot come"
    assert follower.alarms


# -- the machine --------------------------------------------------------------------------------


def test_questions_are_answered_while_the_next_entries_cannot_be_read():
    group = Group()
    group.filled(100)
    node = group.node
    group.passes(2_000)  # a checkpoint remembers what is committed
    node.stop(power=False)
    node.files.flip("/node/g/data/00000000000000000000", 2_010, 1)
    node.start()
    group.passes(5_000)
    assert node.log.damaged
    applied_index = node.running.applier.state.applied_index
    assert applied_index < node.core.committed_index
    for _ in range(2):
        waiting = group.ask(wait_ms=100)
        group.passes(5_000)
        assert waiting, "after that time at the latest"
        assert (waiting[0][0], waiting[0][2]) == (OK, applied_index)


class Poisoned(Traced):
    """Every snapshot of it gives another state than was saved."""

    def load_snapshot(self, reader):
        super().load_snapshot(reader)
        self.total += 1_000


def test_a_machine_that_loaded_another_state_than_was_saved_is_not_given_entries():
    group = Group(reset_snapshot_entries_but_keep_last_entries_num=1_000)
    group.filled(5)
    assert group.answered(group.ask_to_save())[0] is OK
    group.machine_class = Poisoned
    group.restart()
    group.passes(5_000)
    applier = group.nodes["n0"].running.applier
    assert applier.state.failed_text or applier.state.machine.total == 5


class Hexadecimal(Traced):
    def digest(self):
        return f"{self.total:064x}"


def test_a_digest_that_is_no_bytes_costs_no_data():
    group = Group(machine=Hexadecimal, **SOON)
    group.append(*[b"1"] * 30)
    group.passes(1_000)
    for _ in range(2):
        group.restart()
        group.passes(5_000)
    node = group.nodes["n0"]
    assert node.is_up, node.why_stopped
    assert (
        node.running.log.before_begin_index == -1 or node.running.applier.state.machine.total == 30
    )


class OddError(Exception):
    code = "e3q8"


@pytest.mark.parametrize("kind", ["raises what has a code of its own", "gives no bytes"])
def test_a_question_that_a_machine_mistreats_is_answered_with_an_error(kind):
    group = Group()

    def query(body):
        if kind.startswith("raises"):
            raise OddError
        return {"total": 3}

    group.machine.query = query
    assert group.answered(group.ask())[0] is ResponseCode.INTERNAL_ERROR


def test_questions_are_answered_when_the_machines_threads_are_full():
    group = Group()
    group.filled(3)
    waiting = [group.ask() for _ in range(3)]
    assert all(group.answered(one)[0] is OK for one in waiting)
    group.gate.refusals = 1
    waiting = [group.ask() for _ in range(3)]
    group.passes(applied.QUERY_WAIT_MS * 2)
    assert [bool(one) for one in waiting] == [True] * 3


def test_snapshots_are_saved_although_the_machines_threads_were_full_once():
    group = Group()
    group.filled(3)
    group.gate.refusals = 1
    first = group.ask_to_save()
    group.passes(SAVE_RETRY_MS * 2)
    second = group.ask_to_save()
    group.passes(1_000)
    assert [bool(first), bool(second)] == [True, True]


def test_the_last_entry_is_named_when_a_machine_raises_after_looking_at_all():
    machine = Traced()

    def apply(entries):
        for entry in entries:
            assert entry.body
        raise RuntimeError("at the end")

    machine.apply = apply
    with pytest.raises(MachineError, match="at entry 14\n"):
        handed().apply_to(machine, CommandResults())


@pytest.mark.parametrize("name", [":Counter", ".counting:Counter"])
def test_a_machine_without_a_module_is_refused_as_a_setting(name):
    with pytest.raises(ConfigError):
        machine_class(name)


# -- snapshots of a machine ---------------------------------------------------------------------


class Frozen:
    def __init__(self, total):
        self.total, self.closed = total, 0

    def save_snapshot(self, writer):
        writer.write(b"%d" % self.total)

    def close(self):
        self.closed += 1


class Freezing(Traced):
    """Goes on while it is saved."""

    frozen = None

    def freeze(self):
        self.frozen = Frozen(self.total)
        return self.frozen


def test_a_snapshot_asked_for_while_another_is_saved_holds_what_was_acknowledged_before():
    group = Group(machine=Freezing)
    group.filled(1)
    executor = group.backgrounds["n0"]
    executor.is_shut = True
    first = group.ask_to_save()
    group.until(lambda: group.machine.frozen is not None)
    group.filled(5)
    applied_index = group.applier.state.applied_index
    second = group.ask_to_save()
    executor.open()
    assert group.answered(first)[0] is OK
    code, _, index = group.answered(second)
    assert (code, index >= applied_index) == (OK, True)


def test_a_frozen_state_is_closed_when_the_threads_are_full():
    group = Group(machine=Freezing)
    group.filled(1)
    group.backgrounds["n0"].refusals = 1
    assert group.answered(group.ask_to_save())[0] is ResponseCode.DISK_ERROR
    assert group.machine.frozen.closed == 1


@pytest.mark.parametrize("name", ["freeze", "on_role_change"])
def test_whoever_asked_for_a_snapshot_learns_that_the_machine_failed(name):
    group = Group()
    group.filled(1)
    group.machine.fails.add(name)
    group.gate.is_shut = True
    if name == "on_role_change":
        group.node.enter(lambda: group.applier.role_changed(9, Role.LEADER))
    waiting = group.ask_to_save()
    group.gate.open()
    group.passes(5_000)
    assert [answer[0] for answer in waiting] == [ResponseCode.INTERNAL_ERROR]


def test_whoever_asks_for_a_snapshot_while_one_is_loaded_is_answered():
    group = Group(3)
    group.filled(3)
    node = next(node for node in group.nodes.values() if node is not group.leader())
    saves, answers = node.running.applier.snapshotter, []
    group.until(lambda: node.running.applier.state.machine.total == 3)
    node.enter(lambda: saves.ask(lambda *answer: answers.append(answer)))
    assert group.answered(answers)[0] is OK
    node.stop(power=False)
    node.start()  # it loads that one
    saves = node.running.applier.snapshotter
    waiting = []
    node.enter(lambda: saves.ask(lambda *answer: waiting.append(answer)))
    group.passes(20_000)
    assert node.running.applier.state.machine.total == 3
    assert waiting


def test_a_snapshot_that_was_due_for_its_bytes_is_tried_again():
    group = Group(snapshot_bytes=1_000)
    group.node.files.fail_next("snapshot/saving", "EIO")
    group.filled(30)
    group.passes(1_000)
    assert group.applier.snapshotter.saved == 0
    group.passes(SAVE_RETRY_MS * 2)
    assert group.applier.snapshotter.saved == 1
