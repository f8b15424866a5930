"""A node warns when others may use its files, and changes nothing."""

import os

import pytest

from quorumlog.log_events import EVENT_FIELDS
from quorumlog.model.config import NodeConfig
from quorumlog.service import file_rights
from quorumlog.service.file_rights import SHOWN_MAX, warn_of_open_files
from quorumlog.storage.files.os_files import open_to_others


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "n0"
    path.mkdir(mode=0o700)
    for number in range(6):
        file = path / f"f{number}"
        file.touch()
        file.chmod(0o600)
    return path


def warned(store, caplog):
    warn_of_open_files(NodeConfig(self_id="n0", store_base_dir=str(store), listen="127.0.0.1:1"))
    return [getattr(record, EVENT_FIELDS) for record in caplog.records]


def test_files_of_the_owner_alone_are_no_reason_to_warn(store, caplog):
    (store / "link").symlink_to("f0")
    assert warned(store, caplog) == []


def test_what_others_may_use_is_named_with_what_to_do(store, caplog):
    (store / "f1").chmod(0o640)
    (said,) = warned(store, caplog)
    assert said["paths"] == [f"{store}/f1 (0640)"]
    assert said["more"] == 0
    assert said["text"].endswith(f"run: chmod -R go= {store}")
    assert (store / "f1").stat().st_mode & 0o777 == 0o640, "it is left to whoever set it"


def test_a_copy_that_was_restored_has_one_line(store, caplog):
    for path in (store, *store.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (said,) = warned(store, caplog)
    assert len(said["paths"]) == SHOWN_MAX
    assert said["more"] == 7 - SHOWN_MAX


def test_a_large_directory_takes_bounded_time(store, monkeypatch, caplog):
    for path in store.iterdir():
        path.chmod(0o644)
    assert len(list(open_to_others(str(store), 4))) == 3
    monkeypatch.setattr(file_rights, "LOOKS_MAX", 1)
    assert warned(store, caplog) == []


def test_what_has_gone_or_cannot_be_listed_is_left_out(tmp_path):
    assert list(open_to_others(str(tmp_path / "none"), 10)) == []
    assert os.path.isdir(tmp_path)
