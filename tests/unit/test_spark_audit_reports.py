"""What an audit makes of what Raft allows, of many faults, and of what cannot be audited."""

import shutil
from pathlib import Path

import msgspec
import pytest

from audit_access import (
    DATA_FILE,
    INDEX_FILE,
    NAMES,
    RANGES,
    WHOLE,
    audit,
    flip,
    found,
    make,
    overwrite,
    places,
    unpacked,
)
from quorumlog.model.errors import StorageError
from quorumlog.spark.jobs.audit.audit import compare_stores
from quorumlog.spark.jobs.audit.plan import AuditRequest
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.log.layout import read_identity
from store_access import Opened

both_ways = pytest.mark.parametrize("range_bytes", [WHOLE, RANGES])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    base = tmp_path_factory.mktemp("made")
    return [make(base / name, name) for name in NAMES]


@pytest.fixture
def stores(made, tmp_path):
    """Three equal replicas of group `g` with entries 0 to 99, up to 80 known as committed."""
    return [Path(shutil.copytree(store, tmp_path / store.name)) for store in made]


@pytest.fixture
def original(tmp_path):
    """Return copies of three stores that the original wrote."""
    return lambda name, *below: unpacked(tmp_path / "original", name, *below)


# -- what Raft allows -----------------------------------------------------------------------------


@pytest.fixture
def deposed(tmp_path):
    """The first replica led term 2 up to 59 entries more, of which nobody else has any."""
    stores = [make(tmp_path / name, name, terms=(1, 3), committed=24) for name in NAMES[1:]]
    return [make(tmp_path / "n0", "n0", terms=(1, 2, 2), committed=24), *stores]


@both_ways
def test_uncommitted_entries_of_a_former_leader_are_no_fault(deposed, range_bytes):
    report, findings = audit(deposed, range_bytes)
    listed = [(one.kind, one.replica, one.first, one.last) for one in findings]
    assert listed == [("uncommitted", "n0", 25, 49), ("extra", "n0", 50, 74)]
    assert report.is_clean
    assert "(no fault)" in report.text()


@both_ways
def test_the_same_is_a_fault_where_it_was_committed(deposed, range_bytes, tmp_path):
    shutil.rmtree(deposed[0])
    make(deposed[0], "n0", terms=(1, 2, 2), committed=30)
    assert found(deposed, range_bytes)[0] == ("differing", "n0", 25, 49)


def test_stores_of_the_original_do_not_say_what_was_committed(original):
    report, findings = audit(original("truncated-follower", "before"))
    assert [(one.kind, one.first, one.last) for one in findings] == [("extra", 60, 89)]
    assert report.is_clean
    report, findings = audit(original("truncated-follower", "after"))
    assert [one.kind for one in findings] == ["tail"]  # what the original left behind its end
    assert report.is_clean


def test_a_torn_tail_is_reported_and_no_fault(stores):
    opened = Opened(stores[0], self_id="n0", data_file=DATA_FILE, index_file=INDEX_FILE)
    end = places(stores[0])[-1]
    opened.close()
    overwrite(end[1], end[2] + 48 + len(end[0].body), b"\x00\x00\x00\x01\x00\x00\x00\x70torn")
    report, findings = audit(stores)
    assert [one.kind for one in findings] == ["tail"]
    assert report.is_clean


# -- many faults ----------------------------------------------------------------------------------


@both_ways
def test_a_wholly_different_log_is_one_finding(tmp_path, range_bytes):
    stores = [make(tmp_path / name, name) for name in NAMES[:2]]
    stores.append(make(tmp_path / "n2", "n2", terms=(7, 7, 7, 7)))
    report, findings = audit(stores, range_bytes)
    listed = [(one.kind, one.replica, one.first, one.last) for one in findings]
    assert listed == [("differing", "n2", 0, 99)]
    assert (report.counts, report.findings_total) == ({"differing": 100}, 1)


def test_findings_beyond_the_bound_of_a_task_are_counted(stores, monkeypatch):
    monkeypatch.setattr("quorumlog.spark.jobs.audit.plan.TASK_FINDINGS_MAX", 3)
    for entry, path, offset in places(stores[1])[::2]:
        if entry.body:
            flip(path, offset + 48)
    damaged = sum(bool(entry.body) for entry, _, _ in places(stores[0])[::2])
    report, findings = audit(stores)
    assert len(findings) == 3
    assert report.counts == {"damaged": damaged}
    assert report.dropped == {"damaged": damaged - 3}
    assert report.findings_total == report.faults_total == damaged
    assert f"and {damaged - 3} more that were only counted" in report.text()


def test_several_replicas_with_faults_of_many_kinds(stores):
    for store, row, at in zip(stores, (20, 50, 80), (2, 17, 48), strict=True):
        _, path, offset = next(one for one in places(store)[row:] if one[0].body)
        flip(path, offset + at)
    kinds = [(kind, replica) for kind, replica, *_ in found(stores)]
    assert kinds == [("damaged", "n0"), ("chain", "n1"), ("damaged", "n2")]


# -- what is asked for ----------------------------------------------------------------------------


def test_only_the_range_asked_for_is_compared(stores):
    rows = places(stores[1])
    for _, path, offset in (rows[10], rows[50], rows[90]):
        flip(path, offset + 3, 0x40)
    report, findings = audit(stores, first_index=20, last_index=70)
    assert [one.first for one in findings] == [50]
    assert [replica.entries for replica in report.replicas] == [51, 50, 51]
    assert (report.first_index, report.last_index) == (20, 70)


def test_replicas_are_named_by_the_caller_or_by_themselves(stores, tmp_path):
    copy = shutil.copytree(stores[0], tmp_path / "copy")
    report, _ = audit([stores[0], copy, stores[1]])
    assert [replica.name for replica in report.replicas] == ["n0", "copy", "n1"]
    report, _ = audit({"left": stores[0], "right": str(stores[1]) + "/"})
    assert [replica.name for replica in report.replicas] == ["left", "right"]


def test_a_replica_that_cannot_be_read_does_not_hide_the_others(stores):
    _, path, offset = places(stores[2])[5]
    flip(path, offset + 1)
    overwrite(stores[0] / "quorumlog.identity", 5, b"????")
    overwrite(stores[0] / "quorumlog.identity.copy", 5, b"????")
    report, findings = audit(stores)
    assert [(one.kind, one.replica) for one in findings] == [
        ("unreadable", "n0"),
        ("damaged", "n2"),
    ]
    assert not report.is_clean
    assert len(report.replicas) == 2


def test_entries_that_retention_removes_meanwhile_are_not_missing(stores):
    def remove_and_run(pieces):
        opened = Opened(stores[1], self_id="n1", data_file=DATA_FILE, index_file=INDEX_FILE)
        opened.submit(opened.log.reset(70))
        opened.close()
        return [piece() for piece in pieces]

    wanted = AuditRequest(range_bytes=RANGES)
    report, findings = compare_stores(OsFileSystem(), stores, wanted, remove_and_run)
    assert findings == []
    assert report.is_clean


def test_a_machine_that_does_not_see_the_stores_says_so(stores, tmp_path):
    def elsewhere(pieces):
        (tmp_path / "n1").rename(tmp_path / "gone")
        return [piece() for piece in pieces]

    with pytest.raises(StorageError, match="all executors must see the stores"):
        compare_stores(OsFileSystem(), stores, AuditRequest(), elsewhere)


def test_what_cannot_be_audited_is_refused_with_the_reason(stores, tmp_path):
    with pytest.raises(PipelineError, match="no store is given"):
        audit([])
    with pytest.raises(PipelineError, match=r"n0 is given twice"):
        audit([stores[0], stores[1], f"{stores[0]}/../n0"])
    with pytest.raises(StorageError, match="is this a group directory"):
        audit([stores[0], tmp_path])
    identity = read_identity(OsFileSystem(), str(stores[1]))
    changed = msgspec.structs.replace(identity, group="h", crc=0)
    (stores[1] / "quorumlog.identity").write_bytes(msgspec.json.encode(changed))
    with pytest.raises(PipelineError, match=r"not replicas of one group.*'g'.*'h'"):
        audit(stores)
