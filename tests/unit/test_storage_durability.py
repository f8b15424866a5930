"""What must be on disk before what: order of writes and fsyncs, seen where files are accessed."""

import mmap

import pytest

from quorumlog.model.errors import NoSpaceError
from quorumlog.model.hard_state import HardState
from quorumlog.sessions.table_set import TableSet
from quorumlog.storage.files.os_files import OsFile, OsFileSystem
from quorumlog.storage.log.hard_state import FILE_NAME
from quorumlog.storage.metadata.checkpoint import Checkpoint, LogPoint, LogStart
from quorumlog.storage.metadata.dual_slot_file import SLOT_SIZE, DualSlotFile
from quorumlog.storage.metadata.store_metadata import StoreMetadata
from quorumlog.storage.metadata.tables_file import TablesFile
from store_access import Opened

SIZES = {"data_file": 2_000, "index_file": 32 * 8}


@pytest.fixture
def seen(monkeypatch):
    """Every fsync of a file or directory, in order, as `kind name`."""
    happened = []
    file_sync, directory_sync = OsFile.sync, OsFileSystem.sync_directory

    def sync(file):
        happened.append("file " + "/".join(file.path.rsplit("/", 2)[-2:]))
        file_sync(file)

    def sync_directory(files, path):
        happened.append("directory " + path.rsplit("/", 1)[-1])
        directory_sync(files, path)

    monkeypatch.setattr(OsFile, "sync", sync)
    monkeypatch.setattr(OsFileSystem, "sync_directory", sync_directory)
    return happened


def index_file(number):
    return f"file index/{32 * 8 * number:020d}"


def test_after_a_truncation_a_checkpoint_covers_index_records_written_again(tmp_path, seen):
    opened = Opened(tmp_path / "g", **SIZES)
    opened.append([b"x"] * 35)
    opened.checkpoint()
    opened.truncate(18)
    opened.append([b"y"] * 20, term=2)
    del seen[:]
    opened.checkpoint()
    first = next(place for place, name in enumerate(seen) if "quorumlog.checkpoint" in name)
    assert {index_file(2), index_file(3), index_file(4)} <= set(seen[:first])
    opened.close()


def test_a_truncation_makes_durable_what_it_names(tmp_path, seen):
    opened = Opened(tmp_path / "g", **SIZES)
    opened.append([b"x"] * 5)
    opened.append([b"y"] * 10, run=False)
    opened.truncate(12, run=False)
    del seen[:]
    opened.run()
    named = seen.index("file g/quorumlog.checkpoint")
    assert f"file data/{0:020d}" in seen[:named]
    assert {index_file(0), index_file(1)} <= set(seen[:named])
    opened.close()
    again = Opened(tmp_path / "g", **SIZES)
    assert again.log.end_index == 11
    again.close()


def test_a_truncation_never_shrinks_a_file_that_readers_may_have_mapped(tmp_path, monkeypatch):
    opened = Opened(tmp_path / "g", **SIZES)
    opened.append([b"x" * 50] * 30)
    path = tmp_path / "g" / "data" / f"{0:020d}"
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    resized = []
    monkeypatch.setattr(OsFile, "resize", lambda file, size: resized.append(file.path))
    opened.truncate(7)
    assert resized == []
    assert mapped[7 * 98 :] == bytes(len(mapped) - 7 * 98)
    opened.close()


def test_75_what_is_read_at_start_is_made_durable_in_both_copies(tmp_path, seen):
    opened = Opened(tmp_path / "g")
    for term in (1, 2):
        opened.waiting.append(opened.group.hard_states.plan_save(HardState(term, "n1")))
        opened.run()
    opened.close()
    path = tmp_path / "g" / FILE_NAME
    newest = path.read_bytes()
    opened = Opened(tmp_path / "g")
    opened.waiting.append(opened.group.hard_states.plan_save(HardState(3, "n2")))
    opened.run()
    opened.close()
    one_copy_only = path.read_bytes()[:SLOT_SIZE] + newest[SLOT_SIZE:]
    path.write_bytes(one_copy_only)
    del seen[:]
    slots = DualSlotFile(OsFileSystem(), str(tmp_path / "g"), FILE_NAME)
    slots.read()
    assert seen == [f"file g/{FILE_NAME}"] * 2
    raw = path.read_bytes()
    assert raw[:SLOT_SIZE] == raw[SLOT_SIZE:] == one_copy_only[:SLOT_SIZE]


def test_75_a_vote_is_durable_in_one_copy_before_the_next_is_written(tmp_path, seen):
    opened = Opened(tmp_path / "g")
    del seen[:]
    opened.submit(opened.group.hard_states.plan_save(HardState(1, "n1")))
    assert seen == [f"file g/{FILE_NAME}.copy", f"file g/{FILE_NAME}"]


def test_opening_again_writes_no_checkpoint_that_says_nothing_new(tmp_path, seen):
    Opened(tmp_path / "g").close()
    del seen[:]
    Opened(tmp_path / "g").close()
    assert seen.count("file g/quorumlog.checkpoint") == 2, "what was read is made durable"
    assert seen.count("directory g") == 1


def test_names_made_just_before_a_crash_are_durable_after_the_next_start(tmp_path, seen):
    Opened(tmp_path / "g").close()
    del seen[:]
    Opened(tmp_path / "g").close()
    assert {"directory g", "directory data", "directory index"} <= set(seen)
    assert f"directory {tmp_path.name}" in seen


def test_entries_found_at_start_are_fsynced_and_read_from_the_disk(tmp_path, seen, monkeypatch):
    opened = Opened(tmp_path / "g")
    opened.append([b"x"] * 10)
    opened.close()
    dropped = []
    monkeypatch.setattr(OsFile, "drop_cache", lambda file: dropped.append(file.path))
    del seen[:]
    Opened(tmp_path / "g").close()
    assert f"file data/{0:020d}" in seen
    assert dropped == [str(tmp_path / "g" / room / f"{0:020d}") for room in ("data", "index")]


def test_a_checkpoint_without_room_for_the_sessions_is_postponed(tmp_path, monkeypatch):
    """The one before holds as well; the sessions are saved with the next one, changed or not."""

    def full(self, value):
        raise NoSpaceError("no room")

    opened = Opened(tmp_path / "g")
    opened.append([b"one", b"two"])
    opened.log.note_committed(1)
    sessions = TableSet(1).encode()
    opened.log.keep_tables(iter([sessions, None]).__next__)
    with monkeypatch.context() as context:
        context.setattr(TablesFile, "save", full)
        opened.checkpoint()
    assert not (tmp_path / "g" / "quorumlog.sessions").exists()
    opened.checkpoint()
    assert TablesFile(OsFileSystem(), str(tmp_path / "g")).load() == sessions
    opened.close()


def test_a_removal_after_a_checkpoint_without_room_saves_the_sessions_first(tmp_path, monkeypatch):
    """The removal is planned before it is known that the checkpoint could not save them."""
    saves = [NoSpaceError("no room")]
    real = TablesFile.save

    def first_full(self, value):
        if saves:
            raise saves.pop()
        real(self, value)

    opened = Opened(tmp_path / "g", data_file=2_000, index_file=256)
    opened.append([b"x"] * 35)
    opened.log.note_committed(34)
    sessions = TableSet(30).encode()
    opened.log.keep_tables(iter([sessions, None, None]).__next__)
    monkeypatch.setattr(TablesFile, "save", first_full)
    opened.submit(opened.log.checkpoint(), run=False)
    opened.submit(opened.log.reset(20))
    assert TablesFile(OsFileSystem(), str(tmp_path / "g")).load() == sessions
    opened.close()
    again = Opened(tmp_path / "g", data_file=2_000, index_file=256)
    assert (again.log.before_begin_index, again.group.tables) == (20, sessions)
    again.close()


def test_sessions_are_saved_until_they_are_durable_and_then_no_more(tmp_path, monkeypatch):
    saved = []
    opened = Opened(tmp_path / "g", data_file=2_000, index_file=256)
    opened.append([b"x"] * 35)
    opened.log.note_committed(34)
    older, newer = TableSet(30).encode(), TableSet(34).encode()
    opened.log.keep_tables(iter([older, newer, None]).__next__)
    monkeypatch.setattr(TablesFile, "save", lambda _, value: saved.append(value))
    opened.submit(opened.log.checkpoint(), run=False)
    opened.submit(opened.log.reset(10), run=False)
    opened.run(1)
    opened.submit(opened.log.reset(20))  # planned before the newer ones were durable
    assert saved == [older, newer, newer]
    opened.log.keep_tables(lambda: None)
    opened.submit(opened.log.reset(30))
    assert len(saved) == 3
    opened.close()


def test_a_checkpoint_is_written_again_after_a_write_that_failed(tmp_path, monkeypatch):
    """What failed may be in one copy already: the one before it is not on disk any more."""
    (tmp_path / "g").mkdir()
    saved = StoreMetadata(OsFileSystem(), str(tmp_path / "g"))
    before, later = (
        Checkpoint(LogStart(-1, -1, 0, 0), LogPoint(index, 0, 0, 1), index, []) for index in (3, 9)
    )
    saved.write_checkpoint(before)
    write = OsFile.write_at

    def fail_after(file, buffers, offset):
        write(file, buffers, offset)
        if file.path.endswith("quorumlog.checkpoint"):
            raise NoSpaceError("full")

    with monkeypatch.context() as patched:
        patched.setattr(OsFile, "write_at", fail_after)
        with pytest.raises(NoSpaceError):
            saved.write_checkpoint(later)
    saved.write_checkpoint(before)
    loaded = StoreMetadata(OsFileSystem(), str(tmp_path / "g"))
    loaded.load(read_only=True)
    assert loaded.checkpoint.point.index == 3
