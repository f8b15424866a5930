"""Small files on a disk without a free byte: a replica opens, and what must be saved is saved."""

from random import Random

import pytest

from quorumlog.model.errors import NoSpaceError
from quorumlog.model.session import SessionTable
from quorumlog.sim.disk import SimulatedFileSystem
from quorumlog.storage.session_file import SessionFile
from store_access import Opened

SIZES = {"data_file": 20_000, "index_file": 4_096}
TABLE = SessionTable(30).encode()


def new_disk():
    return SimulatedFileSystem(Random(1))


def fill(disk):
    disk.total_bytes -= disk.free_bytes


def used(disk):
    """Let a group save something of everything that is kept twice."""
    opened = Opened("/g", files=disk, **SIZES)
    opened.append([b"x"] * 35)
    opened.log.append_config(b"members", 1)
    opened.submit(opened.log.append_noop(1))
    opened.log.note_committed(36)
    opened.log.keep_sessions(iter([TABLE, None]).__next__)
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
    fill(disk)
    disk.kill()
    assert held
    opened = Opened("/g", files=disk, **SIZES)
    assert opened.group.sessions == TABLE
    assert f"{path} is restored from its other copy once there is room" in caplog.text
    opened.close()
    disk.kill()
    disk.total_bytes += 1 << 20
    Opened("/g", files=disk, **SIZES).close()
    assert disk.size_of(path) == held


def test_a_table_saved_by_half_is_read_on_a_full_disk_and_then_saved_whole():
    disk = new_disk()
    used(disk)
    newer = SessionTable(33).encode()
    disk.fail_next("sessions.copy.new", "ENOSPC")
    with pytest.raises(NoSpaceError):
        SessionFile(disk, "/g").save(newer)
    disk.kill()
    disk.fail_next("sessions.copy.new", "ENOSPC")
    opened = Opened("/g", files=disk, **SIZES)
    assert opened.group.sessions == newer
    opened.submit(opened.log.reset(20))
    opened.close()
    disk.kill()
    disk.remove("/g/quorumlog.sessions")
    assert SessionFile(disk, "/g").load(read_only=True) == newer
