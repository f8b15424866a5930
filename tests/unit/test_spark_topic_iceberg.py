"""An archive of topics in an Iceberg table without Spark: brokers in memory, tasks on the spot."""

import sys
from contextlib import nullcontext
from datetime import date
from importlib import import_module

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import And, EqualTo
from pyiceberg.types import StringType

from pipeline_access import run_here
from quorumlog.model.errors import ConfigError, StorageError, StoreLockedError
from quorumlog.spark.jobs.archive.state import RunOptions, locked
from quorumlog.spark.jobs.output_files import OutputFileSystem
from quorumlog.spark.jobs.tasks import PipelineError, no_progress
from quorumlog.spark.jobs.topics.iceberg.progress import PROPERTY
from quorumlog.spark.jobs.topics.iceberg.run import IcebergArchiveRun
from quorumlog.spark.jobs.topics.iceberg.table import ArchiveTable, TableName
from quorumlog.spark.jobs.topics.tasks import FETCHED
from quorumlog.spark.topics.part import Part
from quorumlog.storage.files.os_files import OsFile, OsFileSystem
from spark_topics_fakes import FakeBrokers, FakePartition, filled
from topic_archives import (
    DAY_1,
    DAY_MS,
    FILES,
    NOON_MS,
    archived,
    parquet_files,
    rows_at,
    source_of,
    split_in,
)

A0 = Part("a", 0)
NAME = "lake.a"


class Killed(BaseException):
    """The process was killed."""


class Lake:
    """A directory with a catalog and a table in it."""

    def __init__(self, directory):
        self.uri = f"sqlite:///{directory}/catalog.db"
        self.directory = directory / "table"

    def opened(self, uri=None, name=NAME, directory=None):
        name = TableName(uri or self.uri, name, "default")
        return ArchiveTable(name, str(directory or self.directory))

    def archive(self, source, run=run_here, uri=None, name=NAME, **options):
        options = RunOptions(**{"file_bytes": 4_096, "cores": 2, **options})
        with self.opened(uri, name) as table:
            return IcebergArchiveRun(
                source, FILES, table, options, run, no_progress, lambda: DAY_1
            ).run()

    def table(self):
        """Return the table as pyiceberg's users get it."""
        return SqlCatalog("default", uri=self.uri).load_table(NAME)

    def rows(self):
        """Return all records by partition, as a reader of the table sees them."""
        found = {}
        for row in self.table().scan().to_arrow().sort_by("offset").to_pylist():
            row["headers"] = row["headers"] or None  # pyiceberg reads null as an empty list
            found.setdefault(Part(row.pop("topic"), row["partition"]), []).append(row)
        return found

    def data_files(self):
        return parquet_files(self.directory / "data")

    def data_files_named(self):
        paths = self.table().inspect.data_files().column("file_path").to_pylist()
        return sorted(path.partition("/table/data/")[2] for path in paths)


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


def records(source):
    """Return all records that brokers have, by partition."""
    return {part: rows for part, rows in rows_at(source).items() if rows}


def test_each_record_is_there_once_however_often_it_is_archived(lake):
    brokers = FakeBrokers(a=[filled(50), filled(30)], b=[filled(20)], c=[filled(9)])
    source = split_in(source_of(brokers, "a,b"), 7)
    first = lake.archive(source)
    assert (first.new_rows, first.partitions, first.topics, first.snapshots) == (100, 3, 2, 1)
    again = lake.archive(source)
    assert (again.new_rows, again.snapshots, again.rows) == (0, 0, 100)
    brokers.content[A0].append(5_000, 5_001)
    assert lake.archive(source).new_rows == 2
    assert lake.rows() == records(source)
    assert lake.archive(source_of(brokers)).new_rows == 9, "another topic joins them"
    assert lake.rows() == records(source_of(brokers))
    assert len(lake.table().snapshots()) == 3


@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_run_that_is_killed_and_repeated_adds_each_record_once(
    lake, monkeypatch, is_committed, is_first
):
    brokers = FakeBrokers(a=[filled(20), filled(5)])
    if not is_first:
        lake.archive(source_of(brokers))
    brokers.content[A0].append(7_000, 7_001)
    brokers.content[Part("a", 1)].append(7_000)
    commit = SqlCatalog.commit_table

    def killed(*arguments):
        if is_committed:
            commit(*arguments)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", killed)
        with pytest.raises(Killed):
            lake.archive(source_of(brokers))
    assert len(lake.data_files()) == (2 if is_first else 4)
    missing = 0 if is_committed else 28 if is_first else 3
    assert lake.archive(source_of(brokers)).new_rows == missing
    assert lake.rows() == records(source_of(brokers))
    assert lake.data_files() == lake.data_files_named(), "what the killed run left is gone"


def test_a_task_that_fails_leaves_nothing_in_the_table(lake):
    source = split_in(source_of(FakeBrokers(a=[filled(40)])), 10)

    def fails(tasks):
        run_here(tasks[:1])
        raise PipelineError("a task failed")

    with pytest.raises(PipelineError, match="a task failed"):
        lake.archive(source, fails)
    assert lake.rows() == {}
    lake.archive(source)
    assert lake.rows() == records(source)
    assert lake.data_files() == lake.data_files_named()


def test_a_large_run_commits_now_and_then(lake, monkeypatch):
    monkeypatch.setattr("quorumlog.spark.jobs.topics.iceberg.run.COMMIT_BYTES", 100)
    source = split_in(source_of(FakeBrokers(a=[filled(100)])), 10)
    rounds = 0

    def killed_later(tasks):
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            raise Killed
        return run_here(tasks)

    with pytest.raises(Killed):
        lake.archive(source, killed_later)
    assert len(lake.rows()[A0]) == 80
    assert lake.archive(source).new_rows == 20
    assert lake.rows() == records(source)
    assert len(lake.table().snapshots()) == 2


def test_the_columns_are_those_of_kafka_with_ids_in_the_files(lake):
    headers = (("h", b"1"), ("h", None))
    partition = FakePartition().append(NOON_MS, headers=headers).append(NOON_MS + 1)
    lake.archive(source_of(FakeBrokers(a=[partition])))
    table = lake.table()
    assert str(table.schema()) == (
        "table {\n  1: key: optional binary\n  2: value: optional binary\n"
        "  3: topic: required string\n  4: partition: required int\n"
        "  5: offset: required long\n  6: timestamp: optional timestamptz\n"
        "  7: timestampType: required int\n"
        "  8: headers: optional list<struct<10: key: required string, 11: value: optional binary>>"
        "\n}"
    )
    assert [str(one) for one in table.spec().fields] == [
        "1000: topic: identity(3)",
        "1001: timestamp_day: day(6)",
    ]
    (name,) = lake.data_files()
    file = pq.ParquetFile(lake.directory / "data" / name)
    ids = [field.metadata[b"PARQUET:field_id"] for field in file.schema_arrow]
    assert ids == [str(number).encode() for number in range(1, 9)]
    assert file.read().column("headers").to_pylist() == [
        [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        None,
    ]


def planned(table, condition):
    """Return which files are read for a condition."""
    return [one.file.file_path.partition("/data/")[2] for one in table.scan(condition).plan_files()]


def test_only_files_of_the_topic_and_the_day_are_read(lake):
    days = FakePartition().append(NOON_MS, NOON_MS + DAY_MS, NOON_MS + 2 * DAY_MS)
    name = "a-topic-with-a-long-name"
    brokers = FakeBrokers(**{name: [days], "b": [FakePartition().append(NOON_MS)]})
    lake.archive(source_of(brokers))
    table = lake.table()
    assert len(lake.data_files()) == 4
    (one,) = planned(table, "topic = 'b'")
    assert one.startswith("topic=b/day=2026-03-01/")
    day = "timestamp >= '2026-03-02T00:00:00+00:00' and timestamp < '2026-03-03T00:00:00+00:00'"
    (one,) = planned(table, day)
    assert one.startswith(f"topic={name}/day=2026-03-02/")
    assert planned(table, And(EqualTo("topic", name), EqualTo("offset", 3))) == []
    assert table.scan(day).to_arrow().column("offset").to_pylist() == [1]
    partitions = table.inspect.partitions().column("partition").to_pylist()
    assert {"topic": "b", "timestamp_day": date(2026, 3, 1)} in partitions


def test_a_timestamp_that_no_calendar_has_is_null(lake):
    times = [NOON_MS, -1, 300_000_000_000_000, 1 << 62]
    lake.archive(source_of(FakeBrokers(a=[FakePartition().append(*times)])))
    found = lake.table().scan().to_arrow().sort_by("offset").column("timestamp")
    assert pc.cast(found, "int64").to_pylist() == [NOON_MS * 1_000, -1_000, None, None]
    days = lake.table().inspect.partitions().column("partition").to_pylist()
    assert {one["timestamp_day"] for one in days} == {date(2026, 3, 1), date(1969, 12, 31), None}
    assert len(planned(lake.table(), "timestamp is null")) == 1


def test_one_run_at_a_time(lake):
    with locked(FILES, str(lake.directory)), pytest.raises(StoreLockedError):
        lake.archive(source_of(FakeBrokers(a=[filled(10)])))


def test_of_two_runs_that_no_lock_keeps_apart_one_appends(lake):
    """As on a file system whose locks do not work."""
    source = source_of(FakeBrokers(a=[filled(10)]))
    lake.archive(source_of(FakeBrokers(a=[filled(5)])))
    copied = None

    def late(tasks):
        nonlocal copied
        results = run_here(tasks)
        with lake.opened() as table:
            before = table.load()
            done = FETCHED.decode(results[0])[0]
            partitions = (replace(before.partitions[0], beyond=10, rows=10),)
            copied = table.append(
                replace(before, files=tuple(done.files), partitions=partitions), before
            )
        return results

    with pytest.raises(PipelineError, match=r"another run archived into table lake\.a mean"):
        lake.archive(source, late)
    assert copied.partitions[0].rows == 10
    assert lake.rows() == records(source)


def interrupted(tasks):
    """Write files, and end before anything is committed."""
    run_here(tasks)
    raise Killed


def test_a_directory_has_the_files_of_one_table_only(lake, tmp_path):
    source = source_of(FakeBrokers(a=[filled(10)]))
    with pytest.raises(Killed):
        lake.archive(source, interrupted)
    lake.archive(source)
    lake.archive(source_of(FakeBrokers(a=[filled(10)])))
    (lake.directory / "_seen").unlink()
    files = lake.data_files()
    for other in ({"name": "lake.other"}, {"uri": f"sqlite:///{tmp_path}/other.db"}):
        with pytest.raises(PipelineError, match=r"has files of table lake\.a, .* new directory"):
            lake.archive(source, **other)
    assert lake.data_files() == files
    (lake.directory / "_archive.json").unlink()  # as a table of an earlier version has none
    with pytest.raises(PipelineError, match=r"has files of a table, .* no table lake\.other"):
        lake.archive(source, name="lake.other")
    lake.archive(source)
    with pytest.raises(PipelineError, match=r"has files of table lake\.a"):
        lake.archive(source, name="lake.other")
    assert lake.rows() == records(source)


def test_a_table_whose_directory_belongs_to_another_archive_is_refused(lake):
    source = source_of(FakeBrokers(a=[filled(10)]))
    lake.archive(source)
    claim = lake.directory / "_archive.json"
    claim.write_text('{"archive_id":"00","table":"lake.b"}')
    with pytest.raises(PipelineError, match=r"belongs to another archive, that of table lake\.b"):
        lake.archive(source)
    claim.write_text("{")
    with pytest.raises(PipelineError, match=r"_archive\.json cannot be used"):
        lake.archive(source)


def without_locks(monkeypatch):
    lock = f"{IcebergArchiveRun.__module__}.locked"
    monkeypatch.setattr(lock, lambda files, directory: nullcontext())


@pytest.mark.parametrize("is_stopped", [False, True])
def test_where_locks_do_not_work_no_file_that_is_committed_is_removed(
    lake, monkeypatch, is_stopped
):
    """One run begins when another is about to commit its files."""
    without_locks(monkeypatch)
    brokers = FakeBrokers(a=[filled(5)])
    lake.archive(source_of(brokers))
    brokers.content[A0].append(9_000)
    append = ArchiveTable.append

    def late(*arguments):
        with monkeypatch.context() as patched:
            patched.setattr(ArchiveTable, "append", append)
            if is_stopped:
                with pytest.raises(Killed):
                    lake.archive(source_of(brokers), interrupted)
            else:
                lake.archive(source_of(brokers))
        return append(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(ArchiveTable, "append", late)
        with pytest.raises(PipelineError, match="another run archived into table"):
            lake.archive(source_of(brokers))
    lake.archive(source_of(brokers))
    assert lake.rows() == records(source_of(brokers))
    assert set(lake.data_files_named()) <= set(lake.data_files())


def test_of_two_first_runs_one_appends(lake, monkeypatch):
    without_locks(monkeypatch)
    source = source_of(FakeBrokers(a=[filled(10)]))
    create = SqlCatalog.create_table_if_not_exists

    def late(*arguments, **options):
        with monkeypatch.context() as patched:
            patched.setattr(SqlCatalog, "create_table_if_not_exists", create)
            lake.archive(source)
        return create(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "create_table_if_not_exists", late)
        assert lake.archive(source).new_rows == 0
    assert lake.archive(source).new_rows == 0
    assert lake.rows() == records(source)


def test_a_run_goes_on_when_others_change_the_table_meanwhile(lake):
    brokers = FakeBrokers(a=[filled(5)], b=[filled(5)])
    lake.archive(source_of(brokers))
    brokers.content[A0].append(9_000)

    def changed(tasks):
        lake.table().delete("topic = 'b'")
        return run_here(tasks)

    assert lake.archive(source_of(brokers), changed).new_rows == 1
    assert lake.rows() == records(source_of(brokers, "a")), "what others delete stays deleted"
    assert lake.archive(source_of(brokers)).new_rows == 0


def test_a_table_that_was_rolled_back_is_refused_and_expired_snapshots_are_not_missed(lake):
    brokers = FakeBrokers(a=[filled(5)])
    for time in (8_000, 9_000):
        lake.archive(source_of(brokers))
        brokers.content[A0].append(time)
    first, last = lake.table().snapshots()
    lake.table().manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    with pytest.raises(PipelineError, match=rf"rolled back to before snapshot {last.snapshot_id}"):
        lake.archive(source_of(brokers))
    lake.table().manage_snapshots().set_current_snapshot(last.snapshot_id).commit()
    lake.table().maintenance.expire_snapshots().by_id(first.snapshot_id).commit()
    assert lake.archive(source_of(brokers)).new_rows == 1
    assert lake.rows() == records(source_of(brokers))


@pytest.mark.parametrize("is_after", [False, True])
def test_a_table_that_was_rolled_back_is_refused_when_the_last_snapshot_expired(lake, is_after):
    brokers = FakeBrokers(a=[filled(5)], b=[filled(5)])
    for time in (8_000, 9_000):
        lake.archive(source_of(brokers))
        brokers.content[A0].append(time)
    first, last = lake.table().snapshots()
    if is_after:  # what others make of the archive's last snapshot
        lake.table().delete("topic = 'b'")
    else:
        lake.table().manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    lake.table().maintenance.expire_snapshots().by_id(last.snapshot_id).commit()
    if is_after:
        assert lake.archive(source_of(brokers)).new_rows == 1
        assert lake.rows() == records(source_of(brokers, "a"))
        return
    with pytest.raises(PipelineError, match=rf"rolled back to before snapshot {last.snapshot_id}"):
        lake.archive(source_of(brokers))


def test_a_topic_that_was_made_again_is_refused_also_if_no_record_is_known(lake):
    options = {"is_transactional": True, "producer_id": 7, "epoch": 0, "sequence": 0}
    partition = FakePartition().append(*range(10), **options).mark(commits=False, first=0)
    brokers = FakeBrokers(a=[partition])
    lake.archive(source_of(brokers))
    brokers.make_again(a=[filled(30)])
    with pytest.raises(
        PipelineError, match=r"table lake\.a and topic 'a' have different histories"
    ):
        lake.archive(source_of(brokers))


def test_a_table_without_ids_of_topics_gets_them_though_there_is_nothing_new(lake):
    brokers = FakeBrokers(a=[filled(5)])
    brokers.ids["a"] = ""
    lake.archive(source_of(brokers))
    assert "topic_ids" not in lake.table().properties[PROPERTY]
    del brokers.ids["a"]
    assert (
        lake.archive(source_of(brokers)).snapshots,
        lake.archive(source_of(brokers)).snapshots,
    ) == (1, 0)
    brokers.make_again(a=[filled(5)])
    with pytest.raises(PipelineError, match="made again"):
        lake.archive(source_of(brokers))


def test_what_retention_removes_of_a_topic_that_was_empty_is_missed(lake):
    brokers = FakeBrokers(a=[FakePartition()])
    assert lake.archive(source_of(brokers)).snapshots == 1, "it keeps where the partition begins"
    assert lake.archive(source_of(brokers)).snapshots == 0
    brokers.content[A0] = filled(10)
    brokers.content[A0].purge_before(10)
    with pytest.raises(PipelineError, match="offsets 0 to 9 of partition a-0 were removed"):
        lake.archive(source_of(brokers))
    for new in (10, 0):
        found = lake.archive(source_of(brokers), fail_on_data_loss=False)
        assert (found.lost_offsets, found.new_lost_offsets) == (10, new)


def test_files_that_retention_made_useless_are_removed_by_the_next_run(lake):
    """Records are removed while tasks read them: what others read after these is fetched again."""
    brokers = FakeBrokers(a=[filled(20)])
    source = split_in(source_of(brokers), 10)
    rounds = 0

    def late(tasks):
        nonlocal rounds
        rounds += 1
        if rounds > 1:
            return run_here(tasks)
        second = run_here(tasks[1:])
        brokers.content[A0].purge_before(10)
        return [*run_here(tasks[:1]), *second]

    assert lake.archive(source, late, fail_on_data_loss=False).new_rows == 10
    assert len(lake.data_files()) > len(lake.data_files_named())
    lake.archive(source)
    assert lake.data_files() == lake.data_files_named()
    assert lake.rows() == records(source)


@pytest.mark.parametrize("is_late", [False, True])
def test_files_of_attempts_that_spark_gave_up_are_removed_by_the_next_run(lake, is_late):
    """Tasks are killed and run again, or twice side by side; some end after the run."""
    brokers = FakeBrokers(a=[filled(20)], b=[filled(20)])
    source = split_in(source_of(brokers), 10)
    given = []

    def twice(tasks):
        given.extend(tasks)
        if not is_late:
            run_here(tasks[1:])
        return run_here(tasks)

    assert lake.archive(source, twice).new_rows == 40
    if is_late:
        run_here(given[:1])
    assert len(lake.data_files()) > len(lake.data_files_named())
    assert lake.archive(source).new_rows == 0
    assert lake.data_files() == lake.data_files_named()
    assert lake.rows() == records(source)


def test_only_if_other_files_are_there_are_snapshots_asked_what_they_name(lake, monkeypatch):
    brokers = FakeBrokers(a=[filled(5)])
    lake.archive(source_of(brokers))
    asked, data_files = [], ArchiveTable.data_files
    monkeypatch.setattr(
        ArchiveTable, "data_files", lambda table: asked.append(1) or data_files(table)
    )
    for time in (8_000, 9_000):
        brokers.content[A0].append(time)
        assert lake.archive(source_of(brokers)).new_rows == 1
    assert lake.archive(source_of(brokers)).new_rows == 0
    assert not asked
    lost, *_ = lake.data_files()
    (lake.directory / "data" / lost).unlink()
    lake.archive(source_of(brokers))
    assert asked
    asked.clear()
    lake.archive(source_of(brokers))
    assert not asked


def test_a_table_that_is_not_this_archives_is_refused(lake, tmp_path):
    source = source_of(FakeBrokers(a=[filled(5)]))
    lake.archive(source)
    with pytest.raises(PipelineError, match="is an archive of topics of cluster"):
        lake.archive(source_of(FakeBrokers(a=[filled(5)]), isolation="read_uncommitted"))
    with (
        lake.opened(directory=tmp_path / "elsewhere") as table,
        pytest.raises(PipelineError, match=r"lies in .*/table, not in .*/elsewhere"),
    ):
        table.load()
    catalog = SqlCatalog("default", uri=lake.uri)
    catalog.create_table("lake.theirs", lake.table().schema(), str(tmp_path / "theirs"))
    with pytest.raises(PipelineError, match="was not made by an archive of topics"):
        lake.archive(source, name="lake.theirs")
    with lake.table().update_schema() as update:
        update.rename_column("key", "name")
    with pytest.raises(PipelineError, match=r"has other columns than an archive, .* of key"):
        lake.archive(source)


def test_a_table_may_get_columns_and_not_other_partitions(lake):
    source = source_of(FakeBrokers(a=[filled(5)]))
    lake.archive(source)
    with lake.table().update_schema() as update:
        update.add_column("note", StringType())
    lake.archive(source)
    with lake.table().update_spec() as update:
        update.remove_field("topic")
    with pytest.raises(PipelineError, match="has other partitions than topic and day"):
        lake.archive(source)


def test_a_column_may_get_a_comment_and_the_table_no_other_format(lake):
    source = source_of(FakeBrokers(a=[filled(5)]))
    lake.archive(source)
    with lake.table().update_schema() as update:
        update.update_column("key", doc="what records are known by")
        update.update_column(("headers", "element", "key"), doc="their name")
    lake.archive(source)
    metadata = lake.directory / "metadata" / lake.table().metadata_location.rpartition("/")[2]
    text = metadata.read_text().replace('"format-version":2', '"format-version":3,"next-row-id":0')
    metadata.write_text(text)
    with pytest.raises(PipelineError, match=r"has Iceberg's format 3, and an archive writes 2"):
        lake.archive(source)


@pytest.mark.parametrize("content", ["{", "{}"])
def test_metadata_that_is_damaged_is_named(lake, content):
    source = source_of(FakeBrokers(a=[filled(5)]))
    lake.archive(source)
    name = lake.table().metadata_location.rpartition("/")[2]
    (lake.directory / "metadata" / name).write_text(content)
    with pytest.raises(PipelineError, match=r"table lake\.a cannot be used: "):
        lake.archive(source)


def test_a_table_that_is_dropped_meanwhile_is_named(lake):
    def dropped(tasks):
        SqlCatalog("default", uri=lake.uri).drop_table(NAME)
        return run_here(tasks)

    with pytest.raises(PipelineError, match=r"lake\.a was dropped while records were appended"):
        lake.archive(source_of(FakeBrokers(a=[filled(5)])), dropped)


def test_progress_that_cannot_be_used_is_refused(lake, monkeypatch):
    source = source_of(FakeBrokers(a=[filled(5)]))
    monkeypatch.setattr("quorumlog.spark.jobs.topics.iceberg.progress.PROGRESS_BYTES_MAX", 150)
    with pytest.raises(PipelineError, match="archive some topics into a table of their own"):
        lake.archive(source)
    assert lake.data_files() == [], "it is noticed before anything is fetched"
    monkeypatch.undo()
    lake.archive(source)
    text = lake.table().properties[PROPERTY]
    later = text.replace('"format_version":1', '"format_version":2')
    for wrong, message in ((text[1:], "cannot be used"), (later, "has format 2")):
        with lake.table().transaction() as transaction:
            transaction.set_properties({PROPERTY: wrong})
        with pytest.raises(PipelineError, match=message):
            lake.archive(source)


def test_a_directory_of_parquet_files_is_no_place_for_a_table(lake):
    source = source_of(FakeBrokers(a=[filled(5)]))
    archived(source, lake.directory)
    with pytest.raises(PipelineError, match="is an archive of Parquet files with a manifest"):
        lake.archive(source)


def test_what_the_catalog_names_is_durable_before(lake, monkeypatch):
    """The catalog's database makes its own commit durable."""
    synced, named = set(), []
    sync, sync_directory = OsFile.sync, OsFileSystem.sync_directory
    commit = SqlCatalog.commit_table

    def noted(file):
        sync(file)
        synced.add(file.path)

    def noted_directory(files, path):
        sync_directory(files, path)
        synced.add(path)

    def committed(catalog, *arguments):
        found = commit(catalog, *arguments)
        named.append(found.metadata_location)
        return found

    monkeypatch.setattr(OsFile, "sync", noted)
    monkeypatch.setattr(OsFileSystem, "sync_directory", noted_directory)
    monkeypatch.setattr(SqlCatalog, "commit_table", committed)
    lake.archive(source_of(FakeBrokers(a=[filled(5)])))
    metadata = lake.directory / "metadata"
    written = {str(one) for one in metadata.iterdir()}
    assert named[0].removeprefix("file://") in written
    assert {*written, str(metadata), str(lake.directory)} <= synced


def test_a_file_of_the_table_that_is_lost_is_named(lake):
    source = source_of(FakeBrokers(a=[filled(5)]))
    lake.archive(source)
    (lake.directory / "metadata" / lake.table().metadata_location.rpartition("/")[2]).unlink()
    with pytest.raises(PipelineError, match=r"a file of table lake\.a cannot be used: .*\.json"):
        lake.archive(source)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("nonsense", "not a database URI like sqlite:"),
        ("sqlite:////dev", "catalog sqlite:////dev failed: "),
        ("postgresql+pg8000://me:secret@h/d", "needs pg8000, which is not installed"),
    ],
)
def test_a_catalog_that_cannot_be_opened_is_named(lake, uri, message):
    with pytest.raises(PipelineError, match=message) as caught:
        lake.archive(source_of(FakeBrokers(a=[filled(5)])), uri=uri)
    assert "secret" not in str(caught.value)


def test_a_directory_that_is_there_needs_none_above_it_to_be_readable(lake, monkeypatch):
    """As below /home, which a user may pass through and not open."""

    def refused(*path):
        raise AssertionError(path)

    monkeypatch.setattr(OutputFileSystem, "make_directory", refused)
    with lake.opened():
        pass


def test_the_directory_of_an_sqlite_catalog_is_made(lake, tmp_path):
    uri = f"sqlite:///{tmp_path}/new/lake/catalog.db"
    lake.archive(source_of(FakeBrokers(a=[filled(5)])), uri=uri)
    assert (tmp_path / "new" / "lake" / "catalog.db").is_file()
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"mkdir|file"):
        lake.opened(f"sqlite:///{tmp_path}/file/catalog.db")


def test_names_that_cannot_be_are_refused(tmp_path):
    for name, catalog in (("flights", "c"), ("a.", "c"), ("a.b", "")):
        with pytest.raises(ConfigError):
            TableName("sqlite://", name, catalog)
    with pytest.raises(ConfigError, match=r"has #, which the URIs"):
        ArchiveTable(TableName("sqlite://", "a.b", "c"), f"{tmp_path}/x#y")


def test_without_the_extra_the_error_names_it(monkeypatch):
    module = "quorumlog.spark.jobs.topics.iceberg.table"
    monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog.sql", None)
    with pytest.raises(ConfigError, match=r"needs pyiceberg.*pip install 'quorumlog\[iceberg\]'"):
        import_module(module)
