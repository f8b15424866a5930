"""Snapshot files: whole or not there, whatever is flipped, cut off, refused or crashes."""

import os
import random
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from quorumlog.model.errors import CorruptionError, NoSpaceError, StorageError
from quorumlog.node.replica.machine_state import MachineState
from quorumlog.node.replica.part_timers import PartTimers
from quorumlog.node.replica.snapshotter import Snapshotter
from quorumlog.sim.disk import SimulatedCrash, SimulatedFileSystem
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.log.snapshots import QUARANTINED_MAX, SnapshotMeta, Snapshots

DIRECTORY = "/node/g"
SIZES = {"data_file": 1_000, "index_file": 32 * 6, "cache": 1}
SEEDS = range(6)
TIMERS = PartTimers(lambda: 0, lambda due_ms: None)


def load(snapshots, meta, use):
    snapshots.check(meta)
    snapshots.use(meta, use)


def meta_at(index, term=1, **fields):
    return SnapshotMeta(last_included_index=index, last_included_term=term, **fields)


def save(snapshots, index, *parts, **fields):
    saving = snapshots.begin()
    for part in parts:
        saving.write(part)
    return saving.publish(meta_at(index, **fields))


def data_of(snapshots, meta):
    found = []
    load(snapshots, meta, lambda reader: found.append(reader.read()))
    return found[0]


class Disk:
    """A simulated disk with the snapshots of one group; `reports` tell of broken ones."""

    def __init__(self, seed=0, survival="random"):
        self.files = SimulatedFileSystem(random.Random(f"{survival} {seed}"))
        self.files.survival = survival
        self.files.make_directory(DIRECTORY)
        self.reopen()

    def reopen(self):
        self.reports = []
        self.snapshots = Snapshots(self.files, DIRECTORY, self.reports.append)
        self.snapshots.clear_saving()

    def crash_at(self, offset, act):
        """Do something, crash in its call of this number, start again; False: it had fewer."""
        self.files.crash_at = self.files.calls + offset
        try:
            act()
        except SimulatedCrash:
            self.files.restart()
            return True
        finally:
            self.files.crash_at = None
        self.files.power_loss()
        return False


# -- what is saved can be loaded ----------------------------------------------------------------


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b""],
        [b"one"],
        [bytes([n % 251]) * (n % 7) for n in range(3_000)],
        [bytes(range(256)) * 4_096 * 5, b"tail"],
        [bytearray(b"mutable"), memoryview(b"view")[1:]],
    ],
    ids=["nothing", "an empty write", "small", "many small writes", "several MiB", "buffers"],
)
def test_what_was_saved_is_loaded_as_it_was(tmp_path, parts):
    snapshots = Snapshots(OsFileSystem(), str(tmp_path / "g"), pytest.fail)
    whole = b"".join(bytes(part) for part in parts)
    meta = save(snapshots, 7, *parts, chain_crc=3, config=(2, b"\x00\xff"), digest=b"\xfe")
    assert meta.size_bytes == len(whole)
    again = Snapshots(OsFileSystem(), str(tmp_path / "g"), pytest.fail)
    assert again.newest() == meta
    assert (again.newest().config, again.newest().digest) == ((2, b"\x00\xff"), b"\xfe")
    assert data_of(again, meta) == whole


@pytest.mark.parametrize("piece", [1, 3, 10, 1_000])
def test_a_machine_may_read_in_pieces_of_any_size(piece):
    disk, found = Disk(), []

    def use(reader):
        while part := reader.read(piece):
            assert len(part) <= piece
            found.append(part)
        assert reader.read() == reader.read(5) == b""

    load(disk.snapshots, save(disk.snapshots, 7, b"0123456789"), use)
    assert b"".join(found) == b"0123456789"


def test_pieces_that_are_sent_to_others_make_up_the_data():
    disk = Disk()
    save(disk.snapshots, 7, b"0123456789")
    pieces = [disk.snapshots.read_chunk(7, offset, 5) for offset in (0, 5)]
    assert b"".join(pieces) == b"0123456789"
    with pytest.raises(StorageError):
        disk.snapshots.read_chunk(8, 0, 4)


def test_a_group_without_snapshots_has_none():
    assert Disk().snapshots.newest() is None


@pytest.mark.parametrize("kept", [1, 3, 4, 9])
def test_only_the_newest_are_kept(kept):
    disk = Disk()
    for index in (30, 7, 100, 9):
        save(disk.snapshots, index, b"%d" % index)
    assert disk.snapshots.newest().last_included_index == 100
    disk.snapshots.keep_newest(kept)
    assert disk.snapshots.indexes() == [7, 9, 30, 100][-kept:]
    assert data_of(disk.snapshots, disk.snapshots.newest()) == b"100"


def test_what_is_quarantined_is_kept_out_of_use_until_it_is_taken_back():
    disk = Disk()
    snapshots = disk.snapshots
    for index in (7, 9, 11):
        save(snapshots, index, b"%d" % index)
    snapshots.quarantine([9, 11])
    assert (snapshots.indexes(), snapshots.quarantined()) == ([7], [9, 11])
    assert snapshots.newest().last_included_index == 7
    assert len(disk.reports) == 2
    save(snapshots, 11, b"better")
    snapshots.keep_newest(1)
    assert snapshots.quarantined() == [9, 11], "it is no matter of how many are kept"
    snapshots.restore_quarantined()
    assert (snapshots.indexes(), snapshots.quarantined()) == ([9, 11], [])
    assert data_of(snapshots, snapshots.newest()) == b"better"
    snapshots.quarantine([9])
    snapshots.remove_quarantined()
    assert (snapshots.indexes(), snapshots.quarantined()) == ([11], [])


def test_a_bounded_number_is_quarantined():
    disk = Disk()
    for index in range(QUARANTINED_MAX + 2):
        save(disk.snapshots, index, b"%d" % index)
        disk.snapshots.quarantine([index])
    assert disk.snapshots.quarantined() == list(range(2, QUARANTINED_MAX + 2))


def test_names_that_are_no_snapshots_are_left_alone():
    disk = Disk()
    for index in (7, 9):
        save(disk.snapshots, index, b"%d" % index)
    names = ["snapshot_", "snapshot_9.old", "snapshot_-1", "notes", "snapshot_x", "installing"]
    for name in names:
        disk.files.open(f"{DIRECTORY}/snapshot/{name}", create=True).close()
    disk.reopen()
    assert disk.snapshots.newest().last_included_index == 9
    disk.snapshots.keep_newest(1)
    found = set(disk.files.names(f"{DIRECTORY}/snapshot"))
    assert found == {*names, "snapshot_" + "9".rjust(20, "0")}


# -- damage -------------------------------------------------------------------------------------


def two_saved():
    """An older and a newer snapshot, and the newer one's file."""
    disk = Disk()
    save(disk.snapshots, 5, b"the older one")
    save(disk.snapshots, 9, b"the newer one", config=(3, b"c"), digest=b"d")
    file = disk.files.open(disk.snapshots.path_of(9))
    return disk, file.read_at(file.size(), 0)


def twin_of(original):
    disk = Disk()
    disk.files = original.files.copy(random.Random(1))
    disk.reopen()
    return disk


def judge(disk, where):
    """Whatever happened to the newest: what is loaded is right, and the older one is there."""
    found = disk.snapshots.newest()
    if found.last_included_index == 9:
        with pytest.raises(CorruptionError):
            load(disk.snapshots, found, lambda reader: pytest.fail(f"{where}: used"))
        disk.snapshots.remove_broken(9, CorruptionError("as the machine's owner does", "", 0))
        found = disk.snapshots.newest()
    (report,) = disk.reports
    assert "snapshot 9 is broken and was removed" in report, where
    assert disk.snapshots.indexes() == [5], where
    assert data_of(disk.snapshots, found) == b"the older one", where


def test_74_every_flipped_byte_of_a_snapshot_is_detected():
    original, whole = two_saved()
    for offset in range(len(whole)):
        for mask in (1 << offset % 8, 0xFF):
            disk = twin_of(original)
            disk.files.flip(disk.snapshots.path_of(9), offset, mask)
            judge(disk, (offset, mask))


def test_every_length_that_a_snapshot_may_be_cut_to_is_detected():
    original, whole = two_saved()
    for length in range(len(whole)):
        disk = twin_of(original)
        disk.files.open(disk.snapshots.path_of(9)).resize(length)
        judge(disk, length)


def test_bytes_behind_or_before_a_snapshot_are_detected():
    original, whole = two_saved()
    for content in (whole + b"\0", b"\0" + whole, whole + whole, bytes(len(whole))):
        disk = twin_of(original)
        disk.files.open(disk.snapshots.path_of(9)).write_at([content], 0)
        judge(disk, content)


def test_a_snapshot_under_the_name_of_another_is_not_taken_for_it():
    disk, _ = two_saved()
    disk.files.replace(disk.snapshots.path_of(5), disk.snapshots.path_of(9))
    assert disk.snapshots.newest() is None
    (report,) = disk.reports
    assert "holds another snapshot" in report
    assert disk.snapshots.indexes() == []


def test_damage_that_comes_while_a_machine_reads_is_not_silent():
    disk = Disk()
    meta = save(disk.snapshots, 9, b"0123456789")
    file = disk.files.open(disk.snapshots.path_of(9))

    def use(reader):
        assert reader.read(4) == b"0123"
        file.resize(6)
        with pytest.raises(CorruptionError, match="ends at byte 6"):
            reader.read()

    load(disk.snapshots, meta, use)


# -- crashes and refusals while it is saved ----------------------------------------------------


def big(number):
    """Data of several sectors that cannot be taken for those of another number."""
    return b"".join(b"%d %d;" % (number, n) for n in range(300))


def judge_whole(disk, where, older=5, newer=9):
    """The newest is one of these, and whatever is there is whole."""
    disk.reopen()
    newest = disk.snapshots.newest()
    assert newest.last_included_index in (older, newer), where
    assert not disk.reports, where
    assert data_of(disk.snapshots, disk.snapshots.meta_of(older)) == big(older), where
    assert data_of(disk.snapshots, newest) == big(newest.last_included_index), where
    return newest


@pytest.mark.parametrize("survival", ["none", "all", "random"])
@pytest.mark.parametrize("seed", SEEDS)
def test_154_a_crash_at_every_call_of_saving_leaves_the_older_or_the_newer_one(survival, seed):
    for call in count(1):
        disk = Disk(f"{seed} {call}", survival)
        save(disk.snapshots, 5, big(5))
        data = memoryview(big(9))
        crashed = disk.crash_at(
            call, lambda d=disk, b=data: save(d.snapshots, 9, b[:700], b[700:701], b[701:])
        )
        newest = judge_whole(disk, (seed, call))
        if not crashed:
            assert newest.last_included_index == 9, "what was published outlives a loss of power"
            break
        save(disk.snapshots, 12, big(12))
        assert data_of(disk.snapshots, disk.snapshots.newest()) == big(12)
    assert call > 6


@pytest.mark.parametrize("kind", ["EIO", "ENOSPC"])
def test_a_call_that_fails_while_saving_leaves_the_older_one_usable(kind):
    for call in count(1):
        disk = Disk(f"{kind} {call}")
        save(disk.snapshots, 5, big(5))
        disk.files.fail(disk.files.calls + call, kind)
        try:
            save(disk.snapshots, 9, big(9))
        except StorageError:
            judge_whole(disk, call)
        else:
            break
        assert save(disk.snapshots, 9, big(9)) == disk.snapshots.newest(), "it is tried again"
        disk.files.power_loss()
        assert judge_whole(disk, call).last_included_index == 9
    assert call > 5


def test_a_disk_without_room_refuses_and_keeps_what_is_there():
    disk = Disk()
    save(disk.snapshots, 5, big(5))
    disk.files.total_bytes = 64 * 1_024
    saving = disk.snapshots.begin()
    with pytest.raises(NoSpaceError):
        saving.write(bytes(100 * 1_024))
    saving.abandon()
    assert judge_whole(disk, "full").last_included_index == 5
    assert disk.files.names(f"{DIRECTORY}/snapshot") == ["snapshot_" + "5".rjust(20, "0")]


def test_an_abandoned_one_is_never_seen():
    disk = Disk()
    saving = disk.snapshots.begin()
    saving.write(b"half of it")
    saving.abandon()
    assert disk.snapshots.newest() is None
    meta = save(disk.snapshots, 9, b"all")
    assert data_of(disk.snapshots, meta) == b"all", "nothing of the half is in it"


# -- fetching one ---------------------------------------------------------------------------------


def offered(index=9):
    """What another replica has, as it is offered."""
    return save(Disk().snapshots, index, big(index), term=3, chain_crc=8)


def fetch(disk, meta, step=500, upto=None):
    """Fetch from where it was; return the `Installing`."""
    data = big(meta.last_included_index)
    installing = disk.snapshots.install(meta)
    while (at := installing.size_bytes) < (len(data) if upto is None else upto):
        assert installing.write(data[at : at + step], at) > at
    return installing


def test_a_fetched_snapshot_is_the_one_that_was_offered():
    disk, meta = Disk(), offered()
    assert fetch(disk, meta).publish()
    disk.files.power_loss()
    disk.reopen()
    assert disk.snapshots.newest() == meta
    assert data_of(disk.snapshots, meta) == big(9)


def test_fetching_goes_on_after_a_restart_where_it_was():
    disk, meta = Disk(), offered()
    fetch(disk, meta, upto=1_000)
    disk.files.kill()
    disk.reopen()
    assert disk.snapshots.newest() is None
    again = disk.snapshots.install(meta)
    assert again.size_bytes == 1_000
    again.close()
    assert fetch(disk, meta).publish()
    assert data_of(disk.snapshots, disk.snapshots.newest()) == big(9)


def test_another_snapshot_is_fetched_from_its_begin():
    disk, first, second = Disk(), offered(9), offered(12)
    fetch(disk, first, upto=1_000)
    assert fetch(disk, second).publish()
    assert data_of(disk.snapshots, disk.snapshots.newest()) == big(12)
    assert disk.snapshots.install(first).size_bytes == 0, "nothing of it is left"


def test_only_the_next_piece_is_taken():
    disk, meta = Disk(), offered()
    installing, data = disk.snapshots.install(meta), big(9)
    assert installing.write(data[:100], 0) == 100
    assert installing.write(data[:100], 0) == 100, "twice"
    assert installing.write(data[200:300], 200) == 100, "a gap"
    assert installing.write(data[50:150], 50) == 100, "an overlap"
    assert installing.write(data[100:] + b"!", 100) == 100, "more than there is"
    assert installing.write(b"", 100) == 100
    assert installing.write(data[100:], 100) == len(data)
    assert installing.publish()
    assert data_of(disk.snapshots, disk.snapshots.newest()) == data


@pytest.mark.parametrize("offset", [0, 600, -1])
def test_damaged_bytes_are_found_at_the_end_and_it_begins_again(offset):
    disk, meta = Disk(), offered()
    installing = fetch(disk, meta)
    place = offset % meta.size_bytes
    disk.files.flip(f"{DIRECTORY}/snapshot/installing", place, 4)
    assert not installing.publish()
    assert installing.size_bytes == 0
    assert disk.snapshots.newest() is None
    assert fetch(disk, meta).publish()
    assert data_of(disk.snapshots, disk.snapshots.newest()) == big(9)


@pytest.mark.parametrize("survival", ["none", "all", "random"])
@pytest.mark.parametrize("seed", SEEDS)
def test_73_a_crash_at_every_call_of_fetching_leaves_the_older_or_the_newer_one(survival, seed):
    meta = offered()
    for call in count(1):
        disk = Disk(f"{seed} {call}", survival)
        save(disk.snapshots, 5, big(5))
        fetch(disk, offered(7), upto=800).close()  # an older one had been started
        crashed = disk.crash_at(call, lambda d=disk: fetch(d, meta).publish())
        newest = judge_whole(disk, (seed, call))
        if not crashed:
            assert newest == meta
            break
        whole = any(fetch(disk, meta).publish() for _ in range(2))
        assert whole, "damaged at most once: then it begins again"
        assert judge_whole(disk, (seed, call)) == meta
    assert call > 10


def test_147_a_broken_one_that_two_find_is_reported_once():
    disk = Disk()
    save(disk.snapshots, 5, b"the older one")
    disk.files.flip(disk.snapshots.path_of(5), 3, 1)
    disk.snapshots.remove_broken(5, CorruptionError("as the scrub does", "", 0))
    disk.snapshots.remove_broken(5, CorruptionError("as the machine's owner does", "", 0))
    assert disk.reports == ["snapshot 5 is broken and was removed: as the scrub does"]


def test_147_the_scrub_of_an_old_broken_one_leaves_the_whole_one_that_took_its_place(tmp_path):
    reports = []
    snapshots = Snapshots(OsFileSystem(), str(tmp_path), reports.append)
    meta = save(snapshots, 9, b"x" * 1000)
    path = Path(snapshots.path_of(9))
    raw = bytearray(path.read_bytes())
    raw[500] ^= 1
    path.write_bytes(raw)
    checking = snapshots.checking(9)  # the scrub reads it slowly
    checking.step(400)
    with pytest.raises(CorruptionError) as caught:  # the machine's thread finds it meanwhile
        snapshots.check(meta)
    snapshots.remove_broken(9, caught.value)
    good = save(snapshots, 9, b"x" * 1000)  # and a peer's comes in its place
    assert not checking.step(400)
    with pytest.raises(CorruptionError) as caught:
        checking.step(400)
    snapshots.remove_broken(9, caught.value)
    assert snapshots.holds(good)
    assert len(reports) == 1


def test_one_that_is_removed_before_it_is_set_aside_is_passed_over_and_not_the_newest(tmp_path):
    snapshots = Snapshots(OsFileSystem(), str(tmp_path), lambda text: None)
    older, newer = save(snapshots, 5, b"the older one"), save(snapshots, 9, b"the newer one")
    quarantine = snapshots.quarantine

    def after_the_scrub(indexes):
        path = Path(snapshots.path_of(9))
        path.write_bytes(path.read_bytes()[:-1])
        snapshots.remove_broken(9, CorruptionError("as the scrub does", "", 0))
        return quarantine(indexes)

    snapshots.quarantine = after_the_scrub
    executor = SimpleNamespace(run=lambda work, done, failed: done(work()))
    environment = SimpleNamespace(executor=executor)
    machine = MachineState(None, None)
    context = SimpleNamespace(environment=environment, config=None, timers=TIMERS)
    saves = Snapshotter(context, snapshots, machine, None, None, None, None)
    assert machine.newest == newer
    saves._withdraw(newer)
    assert machine.newest == older
    assert not saves.has_quarantined


class Vanishing(OsFileSystem):
    """Removes a file just before it is opened, as another thread may."""

    def __init__(self):
        self.vanishes = None

    def open(self, path, **options):
        if path == self.vanishes:
            self.remove(path)
        return super().open(path, **options)


def test_147_one_that_the_scrub_removes_while_it_is_looked_at_is_passed_over(tmp_path):
    files = Vanishing()
    snapshots = Snapshots(files, str(tmp_path), pytest.fail)
    older, newer = save(snapshots, 5, b"the older one"), save(snapshots, 9, b"the newer one")
    files.vanishes = snapshots.path_of(9)
    assert snapshots.newest() == older
    assert not snapshots.has(9)
    assert not snapshots.holds(newer)


def test_147_one_that_the_scrub_removes_while_it_is_loaded_lets_an_older_one_be_loaded(tmp_path):
    files = Vanishing()
    snapshots = Snapshots(files, str(tmp_path), pytest.fail)
    older, newer = save(snapshots, 5, b"the older one"), save(snapshots, 9, b"the newer one")
    machine = MachineState(None, None)
    context = SimpleNamespace(environment=None, config=None, timers=TIMERS)
    saves = Snapshotter(context, snapshots, machine, None, None, None, None)
    files.vanishes = snapshots.path_of(9)
    assert machine.newest == newer
    assert saves.load_into(None, newer) is None
    assert saves.find_newest() == older


def test_one_that_cannot_be_opened_now_is_not_taken_for_a_removed_one(tmp_path):
    snapshots = Snapshots(OsFileSystem(), str(tmp_path), pytest.fail)
    meta = save(snapshots, 5, b"the older one")
    machine = MachineState(None, None)
    context = SimpleNamespace(environment=None, config=None, timers=TIMERS)
    saves = Snapshotter(context, snapshots, machine, None, None, None, None)
    os.rename(snapshots.path_of(5), tmp_path / "elsewhere")
    os.mkdir(snapshots.path_of(5))
    with pytest.raises(StorageError):
        snapshots.newest()
    with pytest.raises(StorageError):
        saves.load_into(None, meta)
