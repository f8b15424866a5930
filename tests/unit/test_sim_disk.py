"""The simulated disk fails and forgets as it says."""

import errno
import os
from contextlib import suppress
from functools import partial
from random import Random

import pytest

from quorumlog.model.errors import NoSpaceError, StorageError, StoreLockedError
from quorumlog.sim.content import SECTOR_BYTES
from quorumlog.sim.disk import SimulatedCrash, SimulatedFileSystem
from quorumlog.storage.files.os_files import File, FileSystem, OsFileSystem, Space, storage_error

OLD = b"o" * SECTOR_BYTES * 16
NEW = b"n" * SECTOR_BYTES * 16
SECTORS = range(0, len(OLD), SECTOR_BYTES)


def disk_of(seed=1, survival="random", **options):
    disk = SimulatedFileSystem(Random(seed), **options)
    disk.survival = survival
    disk.make_directory("/d")
    return disk


def write(disk, path, data, *, sync=True, name=True):
    file = disk.open(path, create=True)
    file.write_at([data], 0)
    if sync:
        file.sync()
    if name:
        disk.sync_directory(path.rpartition("/")[0])
    return file


def content(disk, path):
    file = disk.open(path, writable=False)
    data = file.read_at(file.size(), 0)
    file.close()
    return data


def crash(disk, at, action):
    disk.crash_at = disk.calls + at
    with pytest.raises(SimulatedCrash):
        action()


def test_it_is_a_file_system():
    files: FileSystem = disk_of()
    file: File = write(files, "/d/a", b"abc")
    assert (file.size(), file.read_at(2, 1), file.read_at(9, 2), file.read_at(9, 9)) == (
        3,
        b"bc",
        b"c",
        b"",
    )
    file.write_at([b"x", memoryview(b"yz")], 5)
    assert content(files, "/d/a") == b"abc\0\0xyz"
    file.resize(2)
    file.resize(4)
    assert content(files, "/d/a") == b"ab\0\0"
    files.make_directory("/d/e/f")
    assert files.names("/d") == ["a", "e"]
    assert files.names("/") == ["d"]
    assert files.names("/none") == []
    files.replace("/d/a", "/d/e/b")
    files.remove("/d/none")
    assert [files.exists(path) for path in ("/d/a", "/d/e/b", "/d/e/f/")] == [False, True, True]
    assert file.is_open
    file.close()
    assert not file.is_open
    assert len(files.random_bytes(5)) == 5


def refused(files, directory, use):
    """What a file system says to a wrong use, without the directory."""
    with pytest.raises(StorageError) as caught:
        use(files, directory)
    return str(caught.value).replace(directory, "")


@pytest.mark.parametrize(
    "use",
    [
        lambda files, at: files.open(f"{at}/none"),
        lambda files, at: files.open(f"{at}/none/a", create=True),
        lambda files, at: files.open(f"{at}/made"),
        lambda files, at: files.replace(f"{at}/none", f"{at}/b"),
        lambda files, at: files.replace(f"{at}/file", f"{at}/none/b"),
        lambda files, at: files.replace(f"{at}/file", f"{at}/made"),
        lambda files, at: files.remove(f"{at}/made"),
        lambda files, at: files.sync_directory(f"{at}/none"),
        lambda files, at: files.sync_directory(f"{at}/file"),
        lambda files, at: files.make_directory(f"{at}/file"),
        lambda files, at: files.lock(f"{at}/none/lock"),
        lambda files, at: files.space(f"{at}/none"),
        lambda files, at: files.modified_ms(f"{at}/none"),
        lambda files, at: files.open(f"{at}/file", writable=False).write_at([b"x"], 0),
        lambda files, at: files.open(f"{at}/file", writable=False).resize(1),
        lambda files, at: [files.lock(f"{at}/l"), files.lock(f"{at}/l")][2:],
        lambda files, at: [files.lock(f"{at}/made"), files.lock(f"{at}/made")][2:],
    ],
)
def test_it_refuses_what_the_real_one_refuses_with_the_same_words(tmp_path, use):
    at = str(tmp_path)
    simulated = SimulatedFileSystem(Random(1))
    for files in (simulated, OsFileSystem()):
        files.make_directory(f"{at}/made")
        files.open(f"{at}/file", create=True).close()
    assert refused(simulated, at, use) == refused(OsFileSystem(), at, use)


@pytest.mark.parametrize("files", [SimulatedFileSystem(Random(1)), OsFileSystem()])
def test_a_closed_file_cannot_be_used(files, tmp_path):
    files.make_directory(str(tmp_path))
    file = files.open(f"{tmp_path}/a", create=True)
    file.close()
    for use in (file.sync, file.size, file.close, lambda: file.write_at([b"x"], 0)):
        with pytest.raises(StorageError, match="Bad file descriptor"):
            use()


def test_the_real_one_tells_space_time_and_a_full_disk(tmp_path):
    files = OsFileSystem()
    space = files.space(str(tmp_path))
    assert 0 < space.free_bytes <= space.total_bytes
    os.utime(tmp_path, ns=(0, 5_123_456_789))
    assert files.modified_ms(str(tmp_path)) == 5_123
    files.open(f"{tmp_path}/a", create=True).drop_cache(0, 4_096)
    for number in (errno.ENOSPC, errno.EDQUOT):
        error = storage_error("a", "write", OSError(number, os.strerror(number)))
        assert isinstance(error, NoSpaceError)
    assert not isinstance(storage_error("a", "write", OSError(5, "x")), NoSpaceError)


# power


def test_bytes_not_synced_are_lost_kept_or_mixed():
    found = {}
    for survival in ("none", "all"):
        disk = disk_of(survival=survival)
        write(disk, "/d/a", OLD).write_at([NEW], 0)
        assert content(disk, "/d/a") == NEW
        disk.power_loss()
        found[survival] = content(disk, "/d/a")
    assert found == {"none": OLD, "all": NEW}
    kinds = set()
    for seed in range(30):
        disk = disk_of(seed)
        write(disk, "/d/a", OLD).write_at([NEW], 0)
        disk.power_loss()
        mixed = content(disk, "/d/a")
        sectors = {mixed[at : at + SECTOR_BYTES] for at in SECTORS}
        assert sectors <= {OLD[:SECTOR_BYTES], NEW[:SECTOR_BYTES]}
        kinds.add(len(sectors) if len(sectors) > 1 else mixed[:1])
        disk.power_loss()
        assert content(disk, "/d/a") == mixed, "nothing is left to lose"
    assert kinds == {2, b"o", b"n"}


def test_synced_bytes_survive_also_without_the_name_being_synced_again():
    disk = disk_of(survival="none")
    file = write(disk, "/d/a", OLD)
    file.write_at([NEW[:1_000]], 300)
    file.sync()
    disk.power_loss()
    assert content(disk, "/d/a") == OLD[:300] + NEW[:1_000] + OLD[1_300:]


def test_a_size_not_synced_survives_or_not():
    sizes = set()
    for seed in range(30):
        disk = disk_of(seed)
        file = write(disk, "/d/a", OLD)
        file.resize(700)
        file.resize(9_000)
        disk.power_loss()
        found = content(disk, "/d/a")
        sizes.add(len(found))
        assert found == (OLD if len(found) == len(OLD) else OLD[:700].ljust(len(found), b"\0"))
    assert sizes == {len(OLD), 700, 9_000}


def test_a_name_is_lost_with_its_fsynced_bytes_until_its_directory_is_synced():
    disk = disk_of(survival="none")
    write(disk, "/d/a", OLD, name=False)
    disk.power_loss()
    assert disk.names("/d") == []
    write(disk, "/d/a", OLD)
    disk.remove("/d/a")
    assert disk.names("/d") == []
    disk.power_loss()
    assert content(disk, "/d/a") == OLD
    seen = set()
    for seed in range(30):
        disk = disk_of(seed)
        write(disk, "/d/a", OLD, name=False)
        write(disk, "/d/b", OLD, name=False)
        disk.power_loss()
        seen.add(tuple(disk.names("/d")))
    assert seen == {(), ("a",), ("b",), ("a", "b")}


def test_a_rename_is_atomic():
    seen = set()
    for seed in range(30):
        disk = disk_of(seed)
        write(disk, "/d/a", OLD)
        write(disk, "/d/a.new", NEW)
        disk.replace("/d/a.new", "/d/a")
        assert disk.names("/d") == ["a"]
        disk.power_loss()
        seen.add((tuple(disk.names("/d")), content(disk, "/d/a")))
    assert seen == {(("a", "a.new"), OLD), (("a",), NEW)}


def test_a_new_file_renamed_may_be_missing_beside_or_there_but_never_both():
    seen = set()
    for seed in range(40):
        disk = disk_of(seed)
        write(disk, "/d/a.new", NEW, name=False)
        disk.replace("/d/a.new", "/d/a")
        disk.power_loss()
        seen.add(tuple(disk.names("/d")))
    assert seen == {(), ("a.new",), ("a",)}


def test_directories_made_are_durable_unless_it_crashes_before_that():
    disk = disk_of(survival="none")
    disk.make_directory("/d/e/f")
    disk.power_loss()
    assert disk.names("/d/e") == ["f"]
    seen = set()
    for seed in range(20):
        disk = disk_of(seed, survival="none")
        crash(disk, 3, partial(disk.make_directory, "/d/e"))
        killed = disk.copy(Random(seed))
        killed.kill()
        assert killed.names("/d") == ["e"]
        disk.restart()
        seen.add(tuple(disk.names("/d")))
    assert seen == {(), ("e",)}


def test_kill_keeps_the_cache_and_ends_files_and_locks():
    disk = disk_of(survival="none")
    file = write(disk, "/d/a", NEW, sync=False, name=False)
    lock = disk.lock("/d/lock")
    disk.kill()
    with pytest.raises(StorageError, match="Bad file descriptor"):
        file.read_at(1, 0)
    file.close()
    again = disk.lock("/d/lock")
    lock.release()
    with pytest.raises(StoreLockedError):
        disk.lock("/d/lock")
    again.release()
    assert content(disk, "/d/a") == NEW


# crashes


def test_a_crash_stops_the_machine_until_restart():
    disk = disk_of(survival="none")
    file = write(disk, "/d/a", OLD)
    crash(disk, 2, lambda: [file.write_at([NEW], 0) for _ in range(3)])
    for use in (file.sync, file.size, lambda: disk.names("/d"), lambda: disk.open("/d/a")):
        with pytest.raises(StorageError, match="the machine is off"):
            use()
    file.close()
    disk.restart()
    assert content(disk, "/d/a") == OLD
    with pytest.raises(StorageError, match="Bad file descriptor"):
        file.size()


def test_a_crash_during_a_write_leaves_nothing_a_prefix_or_some_sectors():
    shapes = set()
    for seed in range(60):
        disk = disk_of(seed, survival="all")
        file = write(disk, "/d/a", OLD)
        crash(disk, 1, partial(file.write_at, [NEW], 0))
        disk.restart()
        found = content(disk, "/d/a")
        prefix = len(found) - len(found.lstrip(b"n"))
        if b"n" not in found[prefix:]:
            shapes.add("prefix" if prefix else "nothing")
        else:
            shapes.add("sectors")
            assert all(len(set(found[at : at + SECTOR_BYTES])) == 1 for at in SECTORS)
    assert shapes == {"nothing", "prefix", "sectors"}


def test_other_calls_happened_or_not_when_it_crashes():
    seen = set()
    for seed in range(20):
        disk = disk_of(seed, survival="none")
        file = write(disk, "/d/a", OLD)
        file.write_at([NEW], 0)
        crash(disk, 1, file.sync)
        disk.restart()
        seen.add(content(disk, "/d/a"))
    assert seen == {OLD, NEW}


# errors


def test_a_planned_failure_raises_the_error_that_the_real_disk_raises():
    disk = disk_of()
    file = write(disk, "/d/a", OLD)
    disk.fail(disk.calls + 1, "ENOSPC")
    with pytest.raises(NoSpaceError, match=r"^/d/a: write failed: No space left on device$"):
        file.write_at([NEW], 0)
    prefix = len(NEW) - len(content(disk, "/d/a").lstrip(b"n"))
    assert content(disk, "/d/a") == NEW[:prefix] + OLD[prefix:]
    disk.fail(disk.calls + 2, "EIO")
    file.write_at([NEW], 0)
    with pytest.raises(StorageError, match=r"^/d/a: fdatasync failed: Input/output error$"):
        file.sync()
    disk.fail(disk.calls + 1, "EIO")
    with pytest.raises(StorageError, match=r"^/d/b: rename failed: Input/output error$"):
        disk.replace("/d/a", "/d/b")
    assert disk.names("/d") == ["a"]


def test_a_failed_sync_loses_sectors_that_the_cache_goes_on_to_show():
    disk = disk_of(survival="all")
    file = write(disk, "/d/a", OLD)
    file.write_at([NEW], 0)
    disk.fail(disk.calls + 1, "EIO")
    with pytest.raises(StorageError):
        file.sync()
    file.sync()
    assert content(disk, "/d/a") == NEW
    dropped = disk.copy(Random(1))
    disk.power_loss()
    found = content(disk, "/d/a")
    assert b"o" in found
    assert b"n" in found
    file = dropped.open("/d/a")
    file.drop_cache(1, 4_096)
    assert file.read_at(len(NEW), 0) == NEW, "no whole page was in the range"
    file.drop_cache(0, 4_096)
    assert file.read_at(len(NEW), 0) == found[:4_096] + NEW[4_096:]
    file.write_at([NEW[:1]], 4_096)
    file.drop_cache()
    assert file.read_at(len(NEW), 0) == found[:4_096] + NEW[4_096:], "a dirty page stays"
    file.sync()
    file.drop_cache()
    assert file.read_at(1, 4_096) == b"n"
    assert file.read_at(len(NEW), 4_608) == found[4_608:]
    file.write_at([NEW], 0)
    file.sync()
    dropped.power_loss()
    assert content(dropped, "/d/a") == NEW, "what is written again is durable"


def test_a_full_disk_refuses_what_needs_room():
    disk = disk_of(total_bytes=5 * 4_096)
    file = write(disk, "/d/a", bytes(100))
    assert disk.space("/d") == Space(5 * 4_096, 4 * 4_096)
    file.resize(4 * 4_096)
    other = write(disk, "/d/b", b"")
    with pytest.raises(NoSpaceError, match=r"^/d/b: write failed"):
        other.write_at([b"x" * 5_000], 0)
    assert content(disk, "/d/b") == b"x" * 4_096
    assert disk.free_bytes == 0
    file.write_at([NEW], 0)
    with pytest.raises(NoSpaceError, match=r"^/d/a: resize failed"):
        file.resize(6 * 4_096)
    with pytest.raises(NoSpaceError, match=r"^/d/c: open failed"):
        disk.open("/d/c", create=True)
    disk.remove("/d/b")
    disk.open("/d/c", create=True)
    file.resize(10)
    assert disk.free_bytes == 4 * 4_096


def test_reading_fails_where_planned():
    disk = disk_of()
    file = write(disk, "/d/a", OLD)
    other = write(disk, "/d/b", OLD)
    disk.fail_reads("/a", "EIO")
    with pytest.raises(StorageError, match=r"^/d/a: read failed: Input/output error$"):
        file.read_at(1, 0)
    with pytest.raises(StorageError, match=r"^/d/a: mmap failed"):
        file.map()
    assert other.read_at(1, 0) == b"o"
    disk.fail_reads("/a", None)
    assert file.read_at(1, 0) == b"o"


def test_flipped_bits_are_on_the_disk_and_in_the_cache():
    disk = disk_of(survival="none")
    write(disk, "/d/a", b"abc")
    disk.flip("/d/a", 1, 0x03)
    assert content(disk, "/d/a") == b"aac"
    disk.power_loss()
    assert content(disk, "/d/a") == b"aac"


# the rest


def test_a_map_shows_writes_in_place_and_stays_readable():
    disk = disk_of()
    file = write(disk, "/d/a", b"abcd")
    view = file.map()
    file.write_at([b"X"], 1)
    assert bytes(view) == b"aXcd"
    assert view.readonly
    file.resize(2)
    file.resize(9)
    file.close()
    assert bytes(view) == b"aXcd"
    assert content(disk, "/d/a") == b"aX".ljust(9, b"\0")
    longer = disk.open("/d/a").map()
    disk.open("/d/a").write_at([b"tail"], 9)
    assert bytes(longer) == b"aX".ljust(9, b"\0")
    assert content(disk, "/d/a") == b"aX".ljust(9, b"\0") + b"tail"


@pytest.mark.parametrize("path", ["/d/lock", "/d"])
def test_a_lock_is_held_until_released_killed_or_without_power(path):
    disk = disk_of()
    for end in (lambda lock: lock.release(), lambda _: disk.kill(), lambda _: disk.power_loss()):
        lock = disk.lock(path)
        with pytest.raises(StoreLockedError, match=r"^/d is in use by another process"):
            disk.lock(path)
        end(lock)
    disk.lock(path)


def test_time_of_the_last_write():
    now = [5]
    disk = disk_of(now_ms=lambda: now[0])
    file = write(disk, "/d/a", OLD)
    now[0] = 9
    assert disk.modified_ms("/d/a") == 5
    file.write_at([b"x"], 0)
    assert disk.modified_ms("/d/a") == 9
    disk.set_modified("/d/a", 3)
    assert disk.modified_ms("/d/a") == 3


def test_calls_and_reads_are_counted_apart():
    disk = disk_of()
    calls, reads = disk.calls, disk.reads
    file = disk.open("/d/a", create=True)
    file.write_at([OLD, NEW], 0)
    file.resize(10)
    file.sync()
    disk.sync_directory("/d")
    disk.replace("/d/a", "/d/b")
    disk.remove("/d/b")
    assert (disk.calls - calls, disk.reads) == (7, reads)
    file.read_at(1, 0), file.map(), file.size(), file.close()
    disk.names("/d"), disk.exists("/d"), disk.space("/d")
    assert (disk.calls - calls, disk.reads - reads) == (7, 7)


def story(disk):
    """A crash in the middle of some work, and all that is there afterwards."""
    disk.crash_at = 40
    with suppress(SimulatedCrash):
        for number in range(100):
            name = f"/d/{number % 3}"
            file = write(disk, name, disk.random_bytes(3_000), sync=number % 2, name=number % 5)
            file.resize(2_000 + number)
            disk.replace(name, f"/d/{number % 4}")
    disk.restart()
    return {name: content(disk, f"/d/{name}") for name in disk.names("/d")}


def test_the_same_seed_gives_the_same_bytes():
    stories = [story(disk_of(seed)) for seed in (1, 1, 2)]
    assert stories[0] == stories[1] != stories[2]


def test_copies_go_on_apart():
    disk = disk_of()
    write(disk, "/d/a", OLD).write_at([NEW], 0)
    found = set()
    for seed in range(10):
        twin = disk.copy(Random(seed))
        again = disk.copy(Random(seed))
        assert twin.calls == 0
        for one in (twin, again):
            one.power_loss()
        assert content(twin, "/d/a") == content(again, "/d/a")
        found.add(content(twin, "/d/a"))
    assert len(found) > 2
    assert content(disk, "/d/a") == NEW
