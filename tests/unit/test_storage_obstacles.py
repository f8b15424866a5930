"""A FIFO, socket, directory, device or dangling link where a file of ours must be.

Nothing waits for the other end of a FIFO, and whoever finds one says what to do about it.
"""

import os
import socket
from pathlib import Path
from threading import Thread

import pytest

from quorumlog.machine.kv import KeyValueMachine
from quorumlog.model.errors import CorruptionError, NotAFileError, StorageError
from quorumlog.storage.files.os_files import OsFileSystem
from store_access import Opened


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))  # a long path would be refused


OBSTACLES = {
    "a FIFO": os.mkfifo,
    "a socket": make_socket,
    "a directory": os.mkdir,
    "a link that leads nowhere": lambda path: os.symlink("/nonexistent/x", path),
}


def within_seconds(call):
    """Return what a call raised; None: it returned. Fail if it waits."""
    raised = []

    def run():
        try:
            raised.append(call())
        except Exception as error:
            raised.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert raised, "it waits"
    return raised[0] if isinstance(raised[0], Exception) else None


@pytest.mark.parametrize("what", OBSTACLES)
@pytest.mark.parametrize("options", [{}, {"writable": False}, {"create": True}])
def test_what_is_no_file_is_not_opened(tmp_path, what, options):
    path = str(tmp_path / "one")
    OBSTACLES[what](path)
    files = OsFileSystem()
    assert files.obstacle(path) == what
    error = within_seconds(lambda: files.open(path, **options))
    assert type(error) is NotAFileError
    assert str(error) == f"{path} is {what} where a file must be; move it away"


def test_no_device_is_opened():
    with pytest.raises(NotAFileError, match="/dev/null is a device where a file must be"):
        OsFileSystem().open("/dev/null")


def test_a_link_to_itself_leads_nowhere(tmp_path):
    path = str(tmp_path / "one")
    os.symlink(path, path)
    with pytest.raises(NotAFileError, match="a link that leads nowhere where a file must be"):
        OsFileSystem().open(path)


def test_files_and_links_to_files_are_no_obstacle(tmp_path):
    files, path = OsFileSystem(), str(tmp_path / "one")
    assert files.obstacle(path) == ""
    files.open(path, create=True).close()
    assert files.obstacle(path) == ""
    os.symlink(path, tmp_path / "other")
    assert files.obstacle(str(tmp_path / "other")) == ""
    files.open(str(tmp_path / "other")).close()


@pytest.mark.parametrize("what", [one for one in OBSTACLES if one != "a directory"])
def test_a_lock_that_is_no_file_is_refused(tmp_path, what):
    path = str(tmp_path / "quorumlog.lock")
    OBSTACLES[what](path)
    error = within_seconds(lambda: OsFileSystem().lock(path))
    assert str(error) == f"{path} is {what} where a file must be; move it away"


@pytest.mark.parametrize("what", ["a file", *OBSTACLES])
def test_what_is_no_directory_is_named(tmp_path, what):
    path = str(tmp_path / "data")
    if what == "a directory":
        return
    OBSTACLES.get(what, lambda path: Path(path).touch())(path)
    with pytest.raises(StorageError, match=f"is {what} where a directory must be; move it away"):
        OsFileSystem().make_directory(path)


def test_a_link_that_cannot_be_followed_is_named_where_a_directory_must_be(tmp_path):
    (tmp_path / "file").touch()
    path = str(tmp_path / "data")
    os.symlink(tmp_path / "file" / "below", path)
    with pytest.raises(StorageError, match=path):
        OsFileSystem().make_directory(path)


@pytest.mark.parametrize("name", ["state.mdb", "state.mdb-lock", "closed"])
def test_a_machine_does_not_wait_for_a_fifo(tmp_path, name):
    machine = KeyValueMachine.open(str(tmp_path))
    machine.recover()
    machine.close()
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    again = KeyValueMachine.open(str(tmp_path))
    error = within_seconds(again.recover)
    assert error is None or f"{name} is a FIFO where a file must be" in str(error)
    again.close()


def test_no_file_of_a_group_makes_opening_wait(tmp_path):
    opened = Opened(tmp_path / "g")
    opened.append([b"entry"])
    opened.checkpoint()
    opened.close()
    paths = [path for path in (tmp_path / "g").rglob("*") if path.is_file()]
    assert len(paths) >= 7
    for path in paths:
        moved = path.rename(tmp_path / "moved")
        os.mkfifo(path)
        error = within_seconds(lambda: Opened(tmp_path / "g").close())
        assert error is None or f"{path} is a FIFO where a file must be; move it away" in str(error)
        if path.is_fifo():
            path.unlink()
        moved.replace(path)
        again = Opened(tmp_path / "g")
        assert len(again.entries()) == 1
        again.close()


# -- files that are not ours among those of a log ------------------------------------------------

DATA_FILE, INDEX_FILE = 4_096, 1_024


def opened(directory):
    return Opened(directory, data_file=DATA_FILE, index_file=INDEX_FILE)


def filled(directory, count=20):
    log = opened(directory)
    for number in range(count):
        log.append([b"%d" % number * 300])
    log.checkpoint()
    log.close()
    return log


def strangers(group, end):
    """Return path and content of files that nobody but a stranger can have put there."""
    first = (group / "data" / f"{0:020d}").read_bytes()
    last = end.position // DATA_FILE
    place = (end.index + 1) * 32 // INDEX_FILE
    data = {last + 1: b"precious", last + 2: first, last + 40: b"x" * DATA_FILE, last + 90: b""}
    index = {place + 1: b"y" * INDEX_FILE, place + 2: b"short", place + 50: b"z" * INDEX_FILE}
    return {
        **{group / "data" / f"{n * DATA_FILE:020d}": content for n, content in data.items()},
        **{group / "index" / f"{n * INDEX_FILE:020d}": content for n, content in index.items()},
    }


def test_files_behind_the_end_that_are_not_ours_are_named_and_left_alone(tmp_path, caplog):
    log = filled(tmp_path / "g")
    there = strangers(tmp_path / "g", log.log.end_point)
    for path, content in there.items():
        path.unlink(missing_ok=True)  # one that was made ahead
        path.write_bytes(content)
    again = opened(tmp_path / "g")
    assert len(again.entries()) == 20
    for path, content in there.items():
        assert path.read_bytes() == content
        assert f"{path} is no file of this log; it is ignored, and renamed once" in caplog.text
    for number in range(200):
        again.append([b"%d" % number * 300])
    again.close()
    for path, content in there.items():
        kept = path if path.read_bytes() == content else path.with_name(f"moved.{path.name}")
        assert kept.read_bytes() == content
    caplog.clear()
    last = opened(tmp_path / "g")
    assert len(last.entries()) == 220
    last.close()
    moved = (
        tmp_path / "g" / "data" / f"moved.{log.log.end_point.position // 4096 * 4096 + 4096:020d}"
    )
    assert f"{moved} is no file of this log; it is ignored" in caplog.text


def test_files_before_the_log_that_are_not_ours_are_named_and_left_alone(tmp_path, caplog):
    log = filled(tmp_path / "g")
    first = tmp_path / "g" / "data" / f"{0:020d}"
    content = first.read_bytes()
    log = opened(tmp_path / "g")
    log.log.note_committed(19)
    log.submit(log.log.reset(10))
    log.close()
    assert not first.exists()
    first.write_bytes(content)  # from a copy
    again = opened(tmp_path / "g")
    assert len(again.entries()) == 9
    again.close()
    assert first.read_bytes() == content
    assert f"{first} is no file of this log; it is ignored" in caplog.text


def test_what_was_made_ahead_is_no_stranger(tmp_path, caplog):
    log = filled(tmp_path / "g")
    end = log.log.end_point
    start = end.position // DATA_FILE * DATA_FILE
    for ahead in (1, 3):  # two threads make files, and a crash may come between
        (tmp_path / "g" / "data" / f"{start + ahead * DATA_FILE:020d}").write_bytes(
            bytes(DATA_FILE)
        )
    opened(tmp_path / "g").close()
    assert "ignored" not in caplog.text


def test_what_was_made_ahead_of_a_reset_that_a_crash_undid_is_no_stranger(tmp_path, caplog):
    """Files for the new place are made on another thread, before the reset itself is written."""
    filled(tmp_path / "g")
    log = opened(tmp_path / "g")
    log.log.reset(2_000, 2, 123)
    for file in log.log.upcoming():
        file.prepare()
    log.close()
    again = opened(tmp_path / "g")
    assert len(again.entries()) == 20
    again.submit(again.log.reset(2_000, 2, 123))
    again.append([b"y" * 100] * 3, term=2)
    again.close()
    opened(tmp_path / "g").close()
    assert "no file of this log" not in caplog.text
    assert list((tmp_path / "g").rglob("moved.*")) == []


@pytest.mark.parametrize("cut", [4, 8])
def test_a_header_of_which_a_crash_left_the_first_bytes_is_no_stranger(tmp_path, cut, caplog):
    log = filled(tmp_path / "g")
    start = log.log.end_point.position // DATA_FILE * DATA_FILE + DATA_FILE
    head = (tmp_path / "g" / "data" / f"{0:020d}").read_bytes()[:cut]
    (tmp_path / "g" / "data" / f"{start:020d}").write_bytes(head.ljust(DATA_FILE, b"\0"))
    opened(tmp_path / "g").close()
    assert "ignored" not in caplog.text


@pytest.mark.parametrize("name", ["data", "index"])
def test_an_empty_file_where_none_begins_is_ignored_beside_one_file(tmp_path, name, caplog):
    filled(tmp_path / "g", 1)
    path = tmp_path / "g" / name / f"{7:020d}"
    path.touch()
    assert len(list(path.parent.iterdir())) == 2
    again = opened(tmp_path / "g")
    assert len(again.entries()) == 1
    again.close()
    assert path.exists()
    assert f"{path} is no file of this log; it is ignored" in caplog.text


def test_of_two_whole_files_of_which_one_can_belong_to_the_log_both_are_named(tmp_path):
    filled(tmp_path / "g", 1)
    first = tmp_path / "g" / "data" / f"{0:020d}"
    path = first.with_name(f"{7:020d}")
    path.write_bytes(bytes(DATA_FILE))
    with pytest.raises(CorruptionError, match="move away the one that was put there") as caught:
        opened(tmp_path / "g")
    assert str(caught.value).startswith(f"{first} and {path}: ")


@pytest.mark.parametrize("what", OBSTACLES)
def test_what_lies_in_the_place_of_a_data_file_is_said_once(tmp_path, what, caplog):
    filled(tmp_path / "g")
    path = tmp_path / "g" / "data" / f"{0:020d}"
    path.unlink()
    OBSTACLES[what](path)
    with pytest.raises(NotAFileError, match=f"{path} is {what} where a file must be; move it away"):
        opened(tmp_path / "g")
    assert str(path) not in caplog.text
