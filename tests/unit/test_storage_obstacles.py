"""A FIFO, socket, directory, device or dangling link where a file of ours must be.

Nothing waits for the other end of a FIFO, and whoever finds one says what to do about it.
"""

import os
import socket
from pathlib import Path
from threading import Thread

import pytest

from quorumlog.machine.kv import KeyValueMachine
from quorumlog.model.errors import NotAFileError, StorageError
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
