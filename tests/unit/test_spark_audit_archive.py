"""An archive against the log: each difference that is planted is found, and nothing else."""

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quorumlog.model.block import parse_block
from quorumlog.sessions.entries import (
    AcceptedAttempt,
    EndTransaction,
    InitTransactions,
    TransactionPart,
    encode_session_block,
)
from quorumlog.spark.jobs.archive.manifest import (
    ArchivedFile,
    Manifest,
    load_manifest,
    save_manifest,
)
from quorumlog.spark.jobs.audit.audit import compare_stores
from quorumlog.spark.jobs.audit.plan import AuditRequest
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.spark.source.schema import arrow_schema
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.offline.store_files import scan_store
from store_access import Opened

FILES = OsFileSystem()
COLUMNS = ("index", "term", "channel", "body", "body_crc", "chain_crc")
SIZES = {"data_file": 4_000, "index_file": 32 * 16}
ID, OTHER_ID = b"q" * 16, b"r" * 16


@pytest.fixture
def store(tmp_path):
    """A log with users' entries at 1 to 39 and 41 to 79, and NOOPs at 0 and 40."""
    opened = Opened(tmp_path / "n0", **SIZES)
    for term in (1, 2):
        opened.submit(opened.log.append_noop(term))
        opened.append([f"{term} {n} ".encode() * 9 for n in range(39)], term=term)
    opened.close()
    return tmp_path / "n0"


@pytest.fixture
def archive(store, tmp_path):
    return make_archive(store, tmp_path / "archive", 15)


def rows_of(store, rejected=range(0)):
    return [
        {name: getattr(entry, name) for name in COLUMNS}
        for entry, _, _ in scan_store(FILES, str(store))
        if entry.is_data and entry.index not in rejected
    ]


def make_archive(store, directory, step, rejected=range(0), isolation="read_committed"):
    """An archive of the store in files of `step` entries each."""
    directory.mkdir()
    last = max(entry.index for entry, _, _ in scan_store(FILES, str(store)))
    files = []
    for first in range(0, last + 1, step):
        until = min(first + step - 1, last)
        rows = [row for row in rows_of(store, rejected) if first <= row["index"] <= until]
        files.append(write(directory, f"{first}-{until}.parquet", rows, first, until))
    save(directory, files, isolation)
    return directory


def write(directory, name, rows, first, last):
    if rows:
        table = pa.Table.from_pylist(rows, schema=arrow_schema(COLUMNS))
        pq.write_table(table, directory / name, row_group_size=7)
    return ArchivedFile(
        path=name if rows else "",
        first=first,
        last=last,
        rows=len(rows),
        body_bytes=0,
        file_bytes=0,
        sha256="",
        first_term=0,
        last_term=0,
        chain_before=None,
        chain_last=0,
        day="2026-03-01",
    )


def save(directory, files, isolation="read_committed"):
    manifest = Manifest(
        format_version=1,
        archive_id="a",
        cluster="c",
        group="g",
        isolation=isolation,
        partition_by="range",
        files=tuple(files),
    )
    save_manifest(FILES, str(directory), manifest)


def change(archive, number, edit):
    """Let `edit` change the rows of one of the archive's files."""
    path = archive / load_manifest(FILES, str(archive)).files[number].path
    rows = pq.read_table(path).to_pylist()
    edit(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=arrow_schema(COLUMNS)), path)


def audit(store, archive, range_bytes=1 << 30):
    wanted = AuditRequest(str(archive), range_bytes=range_bytes)
    return compare_stores(FILES, [store], wanted, lambda pieces: [piece() for piece in pieces])


def found(store, archive, range_bytes=1 << 30):
    _, findings = audit(store, archive, range_bytes)
    return [(one.kind, one.first, one.last, one.reason) for one in findings]


both_ways = pytest.mark.parametrize("range_bytes", [1 << 30, 1_000])


@both_ways
def test_an_archive_of_all_entries_is_equal(store, archive, range_bytes):
    report, findings = audit(store, archive, range_bytes)
    assert findings == []
    assert (report.archive.rows, report.archive.files) == (78, 6)
    assert "78 rows compared" in report.text()


@both_ways
def test_an_archive_of_a_part_of_the_log_is_equal(store, archive, range_bytes):
    files = load_manifest(FILES, str(archive)).files
    save(archive, files[1:4])
    assert found(store, archive, range_bytes) == []


@both_ways
def test_missing_and_extra_rows(store, archive, range_bytes):
    change(archive, 1, lambda rows: rows.__delitem__(slice(3, 5)))
    (gone,) = found(store, archive, range_bytes)
    assert gone == ("archive-missing", 18, 19, "the row is missing")

    def add(rows):
        rows.insert(10, {**rows[9], "index": 40})
        rows.insert(3, rows[2])

    change(archive, 2, add)
    assert found(store, archive, range_bytes)[1:] == [
        ("archive-extra", 32, 32, "the entry is there twice"),
        ("archive-extra", 40, 40, "there is no such entry for readers"),
    ]


@both_ways
@pytest.mark.parametrize(
    ("field", "value"),
    [("term", 7), ("channel", 3), ("body", b"?"), ("body_crc", 5), ("chain_crc", 5)],
)
def test_a_row_that_differs(store, archive, field, value, range_bytes):
    change(archive, 3, lambda rows: rows[4].update({field: value}))
    (one,) = audit(store, archive, range_bytes)[1]
    assert (one.kind, one.first, one.last) == ("archive-differing", 49, 49)
    assert one.reason == f"another {field}"
    assert one.file == str(archive / "45-59.parquet")


@both_ways
def test_files_that_are_gone_or_no_parquet(store, archive, range_bytes):
    (archive / "15-29.parquet").unlink()
    (archive / "60-74.parquet").write_bytes(b"PAR1 nothing of the kind PAR1")
    assert found(store, archive, range_bytes) == [
        ("archive-missing", 15, 29, "its file is missing"),
        ("archive-missing", 60, 74, "its file cannot be read"),
    ]


@both_ways
def test_rows_after_the_end_of_the_log(store, archive, range_bytes):
    files = list(load_manifest(FILES, str(archive)).files)
    row = {**rows_of(store)[-1]}
    rows = [{**row, "index": index} for index in (80, 81, 82)]
    files.append(write(archive, "80-90.parquet", rows, 80, 90))
    save(archive, files)
    assert found(store, archive, range_bytes) == [
        ("archive-extra", 80, 82, "no replica has entries there")
    ]


def test_a_damaged_entry_of_the_log_is_not_compared(store, archive):
    _, path, offset = list(scan_store(FILES, str(store)))[20]
    with open(path, "r+b") as file:
        file.seek(offset + 48)
        file.write(b"?")
    assert [(one[0], one[1]) for one in found(store, archive)] == [("damaged", 20)]


def test_a_directory_without_an_archive_is_refused(store, tmp_path):
    with pytest.raises(PipelineError, match="holds no archive"):
        audit(store, tmp_path)


# -- transactions ---------------------------------------------------------------------------------


def submit(opened, data, count):
    block = parse_block(memoryview(bytearray(data)), count=count, entry_bytes_max=1 << 20)
    plan, _ = opened.log.append(block, 1)
    opened.submit(plan)


def written(producer_id, sequence, count, transactional_id=ID):
    part = TransactionPart(transactional_id, 1, 0, producer_id)
    bodies = [f"{producer_id} {sequence + n}".encode() * 5 for n in range(count)]
    return encode_session_block(producer_id, sequence, bodies, part=part), count + 1


@pytest.fixture
def transactional(tmp_path):
    """A log in which producer 1 wrote 11 to 20 and 32 to 41, accepted; 2 wrote 22 to 31, not."""
    opened = Opened(tmp_path / "n0", **SIZES)
    opened.append([b"plain %d" % n for n in range(9)])
    submit(opened, InitTransactions(ID, b"i" * 16, 1_000).encode(), 1)
    for producer_id, sequence in ((1, 0), (2, 0), (1, 10)):
        submit(opened, *written(producer_id, sequence, 10))
    accepted = AcceptedAttempt(0, 1, 10, 42, 20, 0)
    submit(opened, EndTransaction(ID, 1, 0, (accepted,)).encode(), 1)
    opened.append([b"more"])
    opened.close()
    return tmp_path / "n0"


REJECTED = range(22, 32)
ACCEPTED = range(11, 21)


@both_ways
def test_entries_of_rejected_transactions_are_not_missing(transactional, tmp_path, range_bytes):
    archive = make_archive(transactional, tmp_path / "archive", 8, REJECTED)
    assert found(transactional, archive, range_bytes) == []
    archive = make_archive(transactional, tmp_path / "all", 8, isolation="read_uncommitted")
    assert found(transactional, archive, range_bytes) == []


def test_many_rejected_blocks_are_no_findings(tmp_path, monkeypatch):
    monkeypatch.setattr("quorumlog.spark.jobs.audit.plan.TASK_FINDINGS_MAX", 3)
    opened = Opened(tmp_path / "n0", **SIZES)
    for block in range(9):
        submit(opened, *written(1 + block % 2, 5 * (block // 2), 5))
    opened.close()
    archive = make_archive(tmp_path / "n0", tmp_path / "archive", 100, range(100))
    report, findings = audit(tmp_path / "n0", archive)
    assert (findings, report.faults_total) == ([], 0)


@both_ways
def test_entries_of_accepted_transactions_are_missing(transactional, tmp_path, range_bytes):
    gone = range(ACCEPTED.start, REJECTED.stop)
    archive = make_archive(transactional, tmp_path / "archive", 100, gone)
    assert found(transactional, archive, range_bytes) == [
        ("archive-missing", 11, 20, "the row is missing")
    ]


@both_ways
def test_entries_of_rejected_transactions_are_extra(transactional, tmp_path, range_bytes):
    archive = make_archive(transactional, tmp_path / "archive", 100)
    assert found(transactional, archive, range_bytes) == [
        ("archive-extra", REJECTED.start, REJECTED.stop - 1, "its transaction was not accepted")
    ]


def test_a_manifest_of_another_version_is_refused(store, archive):
    path = archive / "_manifest.json"
    raw = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode({**raw, "format_version": 99}))
    with pytest.raises(PipelineError, match="format is 99"):
        audit(store, archive)
