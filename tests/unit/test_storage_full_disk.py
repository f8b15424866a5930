"""Small files on a disk without a free byte: a replica opens, and what must be saved is saved."""

from random import Random

import pytest

from quorumlog.model.errors import NoSpaceError
from quorumlog.sessions.table_set import TableSet
from quorumlog.sim.disk import SimulatedFileSystem
from quorumlog.storage.files.reserve import FILE_NAME, RESERVE_BYTES
from quorumlog.storage.metadata.tables_file import TablesFile
from store_access import Opened

SIZES = {"data_file": 200_000, "index_file": 4_096}
RESERVE = f"/g/{FILE_NAME}"
TABLE = TableSet(30).encode()


def new_disk():
    return SimulatedFileSystem(Random(1))


def fill(disk):
    disk.total_bytes -= disk.free_bytes


def used(disk):
    """Let a group save something of everything that is kept twice."""
    opened = Opened("/g", files=disk, **SIZES)
    opened.append([b"x"] * 35)
    opened.submit(opened.log.append_config(b"members", 1))
    opened.submit(opened.log.append_noop(1))
    opened.log.note_committed(36)
    opened.log.keep_tables(iter([TABLE, None]).__next__)
    opened.submit(opened.log.quarantine(7, is_readable=False))
    opened.checkpoint()
    opened.close()
    disk.kill()


KEPT_TWICE = [
    f"/g/quorumlog.{name}{copy}"
    for name in ("state", "identity", "membership", "sessions", "damaged")
    for copy in ("", ".copy")
]


@pytest.mark.parametrize("path", KEPT_TWICE)
def test_a_file_lost_on_a_full_disk_stops_no_opening(path, caplog):
    disk = new_disk()
    used(disk)
    held = disk.size_of(path)
    disk.remove(path)
    disk.remove(RESERVE)
    fill(disk)
    disk.kill()
    assert held
    opened = Opened("/g", files=disk, **SIZES)
    assert opened.group.tables == TABLE
    assert f"{path} is restored from its other copy once there is room" in caplog.text
    opened.close()
    disk.kill()
    disk.total_bytes += 1 << 20
    Opened("/g", files=disk, **SIZES).close()
    assert disk.size_of(path) == held


def test_a_table_saved_by_half_is_read_on_a_full_disk_and_then_saved_whole():
    disk = new_disk()
    used(disk)
    newer = TableSet(33).encode()
    disk.remove(RESERVE)
    disk.fail_next("sessions.copy.new", "ENOSPC")
    with pytest.raises(NoSpaceError):
        TablesFile(disk, "/g").save(newer)
    disk.kill()
    disk.fail_next("sessions.copy.new", "ENOSPC")
    opened = Opened("/g", files=disk, **SIZES)
    assert opened.group.tables == newer
    opened.submit(opened.log.reset(20))
    opened.close()
    disk.kill()
    disk.remove("/g/quorumlog.sessions")
    assert TablesFile(disk, "/g").load(read_only=True) == newer


def test_a_removal_on_a_full_disk_saves_sessions_and_damage_with_the_reserve(caplog):
    disk = new_disk()
    opened = Opened("/g", files=disk, **SIZES)
    opened.append([b"x" * 10_000] * 100)
    opened.submit(opened.log.append_config(b"members", 1))
    opened.submit(opened.log.append_noop(1))
    opened.log.note_committed(100)
    opened.log.keep_tables(iter([TABLE, None, None]).__next__)
    fill(disk)
    opened.submit(opened.log.quarantine(70, is_readable=False))
    opened.submit(opened.log.reset(60))
    assert "the room kept in /g/quorumlog.reserve is used" in caplog.text
    assert disk.size_of(RESERVE) > RESERVE_BYTES  # made again where the files were
    disk.kill()
    opened = Opened("/g", files=disk, **SIZES)
    assert (opened.log.before_begin_index, opened.group.tables) == (60, TABLE)
    assert list(opened.log.damaged) == [(70, 70)]
    opened.close()


@pytest.mark.parametrize("has_reserve", [True, False])
def test_a_log_with_members_killed_before_its_first_checkpoint_opens_on_a_full_disk(has_reserve):
    disk = new_disk()
    opened = Opened("/g", files=disk, **SIZES)
    opened.submit(opened.log.append_config(b"members", 1))
    opened.submit(opened.log.append_noop(1))
    opened.append([b"one"])
    fill(disk)
    if not has_reserve:
        disk.remove(RESERVE)
        fill(disk)
    for _ in range(2):
        disk.kill()
        opened = Opened("/g", files=disk, **SIZES)
        assert opened.log.end_index == 2
        opened.checkpoint()
    assert disk.exists("/g/quorumlog.membership") is has_reserve
    disk.total_bytes += 1 << 20
    opened.append([b"two"])
    opened.checkpoint()
    assert disk.exists("/g/quorumlog.membership")
    assert disk.size_of(RESERVE) >= RESERVE_BYTES


def test_the_reserve_grows_with_the_table_of_sessions():
    disk = new_disk()
    opened = Opened("/g", files=disk, **SIZES)
    table = TableSet(1).encode() + bytes(1 << 20)
    opened.append([b"one", b"two"])
    opened.log.keep_tables(lambda: table)
    opened.checkpoint()
    fill(disk)
    newer = TableSet(2).encode() + bytes(1 << 20)
    opened.log.keep_tables(lambda: newer)
    opened.append([b"three"])
    opened.checkpoint()
    assert TablesFile(disk, "/g").load(read_only=True) == newer
    opened.close()
