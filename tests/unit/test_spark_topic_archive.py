"""An archive of topics without Spark: brokers in memory, files on disk, tasks run on the spot."""

import json
from contextlib import suppress

import pytest

from pipeline_access import run_here
from quorumlog.model.errors import StoreLockedError
from quorumlog.spark.jobs.archive.archive import read_archive as read_group_archive
from quorumlog.spark.jobs.archive.state import locked
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.spark.jobs.topics.files import RecordsInOrder, most_overlapping, offsets_in
from quorumlog.spark.jobs.topics.manifest import load_topic_manifest
from quorumlog.spark.topics import confirm
from quorumlog.spark.topics.errors import UnknownTopicError
from quorumlog.spark.topics.part import Part
from spark_topics_fakes import PRODUCER, FakeBrokers, FakePartition, depose, filled
from topic_archives import (
    DAY_1,
    DAY_MS,
    FILES,
    NOON_MS,
    archived,
    parquet_files,
    rows_at,
    rows_in,
    source_of,
    split_in,
)

A0, A1, B0 = Part("a", 0), Part("a", 1), Part("b", 0)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(confirm, "AGAIN_S", 0)


def manifest_of(directory):
    return load_topic_manifest(FILES, str(directory))


def test_each_record_is_there_once_however_often_it_is_archived(tmp_path):
    brokers = FakeBrokers(a=[filled(50), filled(30)], b=[filled(20)], c=[filled(9)])
    source = split_in(source_of(brokers, "a,b"), 7)
    first = archived(source, tmp_path)
    assert (first.new_rows, first.partitions, first.topics) == (100, 3, 2)
    assert archived(source, tmp_path).new_rows == 0
    brokers.content[A0].append(5_000, 5_001)
    assert archived(source, tmp_path).new_rows == 2
    assert rows_in(tmp_path) == rows_at(source)
    assert archived(source_of(brokers), tmp_path).new_rows == 9, "another topic joins them"
    assert rows_in(tmp_path) == rows_at(source_of(brokers))


def test_a_leader_that_was_does_not_say_how_much_is_archived(tmp_path):
    brokers = FakeBrokers(a=[filled(50)])
    depose(brokers, A0, 20)
    assert archived(source_of(brokers), tmp_path).new_rows == 50
    brokers.content[A0].append(5_000, 5_001)
    depose(brokers, A0, 30)  # nor that the topic was made again
    assert archived(source_of(brokers), tmp_path).new_rows == 2
    assert rows_in(tmp_path) == rows_at(source_of(brokers))


def test_a_leader_that_was_does_not_say_where_an_archive_begins(tmp_path):
    brokers = FakeBrokers(a=[filled(50)])
    depose(brokers, A0, 20)
    agree = brokers.before_confirmed

    def agree_and_remove():
        agree()
        brokers.content[A0].purge_before(30)

    brokers.before_confirmed = agree_and_remove
    result = archived(source_of(brokers), tmp_path)
    assert (result.new_rows, result.lost_offsets) == (20, 0)


def test_files_lie_where_the_day_of_their_timestamps_says(tmp_path):
    times = [NOON_MS, NOON_MS + DAY_MS, NOON_MS + 1, -1, NOON_MS + DAY_MS + 1, 1 << 62]
    brokers = FakeBrokers(a=[FakePartition().append(*times).append(NOON_MS + 2)])
    archived(source_of(brokers), tmp_path)
    found = {file.day: file for file in manifest_of(tmp_path).files}
    assert {day: (file.first, file.last, file.rows) for day, file in found.items()} == {
        "2026-03-01": (0, 6, 3),
        "2026-03-02": (1, 4, 2),
        "1969-12-31": (3, 3, 1),
        "__HIVE_DEFAULT_PARTITION__": (5, 5, 1),
    }
    assert (found["2026-03-02"].min_ms, found["2026-03-02"].max_ms) == (times[1], times[4])
    assert parquet_files(tmp_path) == sorted(file.path for file in found.values())
    assert all(path.startswith("topic=a/day=") for path in parquet_files(tmp_path))
    assert [row["offset"] for row in rows_in(tmp_path)[A0]] == [0, 1, 2, 3, 4, 5, 6]


def test_a_range_of_many_days_is_written_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("quorumlog.spark.jobs.topics.files.DAYS_OPEN_MAX", 3)
    times = [NOON_MS + number % 5 * DAY_MS for number in range(40)]
    partition = FakePartition()
    for number, time in enumerate(times):
        partition.append(time, codec=number % 2)  # read one by one, as their codecs change
    source = source_of(FakeBrokers(a=[partition]))
    archived(source, tmp_path, compact=False)
    assert rows_in(tmp_path) == rows_at(source)
    assert len(manifest_of(tmp_path).files) > 5
    archived(source, tmp_path, file_bytes=1 << 20, keep_replaced_s=0)
    assert len(manifest_of(tmp_path).files) == len(parquet_files(tmp_path)) == 5
    assert rows_in(tmp_path) == rows_at(source)


def test_files_of_many_days_that_are_read_side_by_side_share_their_memory(tmp_path, monkeypatch):
    """Event times spread over 20 days: each file has records from all over the partition."""
    days, records, value, room = 20, 400, b"v" * 500, 20_000
    partition = FakePartition()
    for number in range(0, records, days):
        partition.append(*(NOON_MS + day * DAY_MS + number for day in range(days)), value=value)
    source = source_of(FakeBrokers(a=[partition]), "a")
    archived(source, tmp_path, file_bytes=1 << 20)
    parts = manifest_of(tmp_path).files_of(A0)
    assert most_overlapping(parts) == len(parts) == days
    monkeypatch.setattr("quorumlog.spark.jobs.topics.files.SIDE_BY_SIDE_BYTES", room)
    monkeypatch.setattr("quorumlog.spark.jobs.topics.files.PIECE_BYTES_MIN", 1)
    reader, offsets = RecordsInOrder(FILES, str(tmp_path), parts), []
    for table in reader:
        waiting = sum(one.column("value").nbytes for one, _ in reader._heads)
        assert waiting <= room < records * len(value) // 5
        offsets += offsets_in(table).tolist()
    assert offsets == list(range(records))


def test_what_was_aborted_or_marks_an_end_is_no_record_and_is_covered(tmp_path):
    options = {"is_transactional": True, "producer_id": PRODUCER, "epoch": 0, "sequence": 0}
    partition = FakePartition().append(1, 2, **options).mark(commits=True)
    partition.append(3, 4, **options).mark(commits=False, first=3)
    partition.append(5, **options | {"producer_id": PRODUCER + 1})
    partition.stable = 6
    brokers = FakeBrokers(a=[partition])
    source = source_of(brokers)
    assert archived(source, tmp_path).rows == 2
    (coverage,) = manifest_of(tmp_path).partitions
    assert (coverage.first, coverage.beyond, coverage.rows) == (0, 6, 2)
    partition.mark(commits=True, producer=PRODUCER + 1).stable = None
    assert archived(source, tmp_path).new_rows == 1
    assert [row["offset"] for row in rows_in(tmp_path)[A0]] == [0, 1, 6]


def test_records_that_retention_took_first_are_an_error_or_a_gap(tmp_path):
    partition = filled(30)
    partition.purge_before(10)
    brokers = FakeBrokers(a=[partition])
    source = source_of(brokers)
    archived(source, tmp_path)
    assert manifest_of(tmp_path).gaps == (), "an archive begins where the partition begins"
    for _ in range(4):
        partition.append(*range(2_000, 2_010))
    partition.purge_before(50)
    with pytest.raises(PipelineError, match="offsets 30 to 49 of partition a-0 were removed"):
        archived(source, tmp_path)
    result = archived(source, tmp_path, fail_on_data_loss=False)
    assert (result.new_rows, result.new_lost_offsets, result.lost_offsets) == (20, 20, 20)
    (gap,) = manifest_of(tmp_path).gaps
    assert (gap.first, gap.last, gap.day) == (30, 49, "2026-03-01")


def test_retention_during_a_run_leaves_what_was_read_before(tmp_path):
    brokers = FakeBrokers(a=[filled(40)])
    source = split_in(source_of(brokers), 10)

    def retention(number):
        if number == 3:
            brokers.content[A0].purge_before(30)

    brokers.before_fetch = retention
    result = archived(source, tmp_path, fail_on_data_loss=False)
    assert (result.rows, result.lost_offsets) == (30, 10)
    (gap,) = manifest_of(tmp_path).gaps
    assert (gap.first, gap.last) == (20, 29)
    assert len(parquet_files(tmp_path)) == result.files


def test_a_topic_that_was_made_again_is_refused(tmp_path):
    brokers = FakeBrokers(a=[filled(20)])
    source = source_of(brokers)
    archived(source, tmp_path)
    brokers.content[A0] = filled(10)
    with pytest.raises(PipelineError, match="holds offsets up to 19, and the partition ends at 9"):
        archived(source, tmp_path)
    brokers.content[A0] = filled(30, value=b"of another topic")
    with pytest.raises(PipelineError, match="records at offset 19 differ; was the topic deleted"):
        archived(source, tmp_path)
    brokers.content[A0] = filled(30)
    assert archived(source, tmp_path).new_rows == 10


def aborted_only():
    """Return a partition with ten records of an aborted transaction, and its marker."""
    options = {"is_transactional": True, "producer_id": PRODUCER, "epoch": 0, "sequence": 0}
    return FakePartition().append(*range(10), **options).mark(commits=False, first=0)


@pytest.mark.parametrize("count", [0, 5, 30])
def test_a_topic_that_was_made_again_is_refused_also_if_no_record_is_known(tmp_path, count):
    brokers = FakeBrokers(a=[aborted_only()], b=[filled(3)])
    archived(source_of(brokers), tmp_path)
    assert manifest_of(tmp_path).coverage[A0].beyond == 11
    assert manifest_of(tmp_path).topic_ids == {"a": "id-of-a", "b": "id-of-b"}
    before = (tmp_path / "_manifest.json").read_bytes()
    brokers.make_again(a=[filled(count)])
    for lossy in (False, True):
        with pytest.raises(PipelineError, match=r"topic 'a' have different histories.*made again"):
            archived(source_of(brokers), tmp_path, fail_on_data_loss=not lossy)
    assert (tmp_path / "_manifest.json").read_bytes() == before
    brokers.content[B0].append(5_000)
    assert archived(source_of(brokers, "b"), tmp_path).new_rows == 1, "others go on"


def test_a_topic_that_was_made_again_before_anything_was_archived_is_archived(tmp_path):
    brokers = FakeBrokers(a=[filled(3)], b=[FakePartition()])
    archived(source_of(brokers), tmp_path)
    brokers.make_again(b=[filled(5), filled(7)])
    assert archived(source_of(brokers), tmp_path).new_rows == 12
    assert manifest_of(tmp_path).topic_ids == {"a": "id-of-a", "b": brokers.ids["b"]}
    assert rows_in(tmp_path) == rows_at(source_of(brokers))


@pytest.mark.parametrize("calls", range(1, 7))
def test_a_topic_that_is_gone_when_ids_are_looked_up_is_not_taken_for_another_one(tmp_path, calls):
    """It is made again right after, with as many records as the archive has offsets, and more."""
    brokers = FakeBrokers(a=[aborted_only()])
    archived(source_of(brokers), tmp_path)
    topic_ids, left = brokers.topic_ids, [calls]

    def gone(topics):
        left[0] -= 1
        if left[0]:
            return topic_ids(topics)
        brokers.make_again(a=[filled(30, value=b"of another topic")])
        return {}

    brokers.topic_ids = gone
    brokers.content[A0].append(*range(11, 15))
    with suppress(UnknownTopicError, PipelineError):
        archived(source_of(brokers), tmp_path)
    values = {row["value"] for row in rows_in(tmp_path)[A0]}
    assert b"of another topic" not in values
    assert values or left[0] <= 0, "nothing kept it from being archived"


def without_ids(directory):
    """Make an archive one of an earlier version."""
    path = directory / "_manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["topic_ids"]
    path.write_text(json.dumps(manifest))


def test_an_archive_without_ids_goes_on_and_gets_them(tmp_path):
    brokers = FakeBrokers(a=[filled(20), aborted_only()])
    archived(source_of(brokers), tmp_path)
    without_ids(tmp_path)
    refused = FakeBrokers(a=[filled(30, value=b"of another topic"), aborted_only()])
    with pytest.raises(PipelineError, match="records at offset 19 differ"):
        archived(source_of(refused), tmp_path)
    assert manifest_of(tmp_path).topic_ids == {}, "it is not known which topic it was"
    assert archived(source_of(brokers), tmp_path).new_rows == 0
    assert manifest_of(tmp_path).topic_ids == {"a": "id-of-a"}
    brokers.ids["a"] = ""  # a broker that tells none
    brokers.content[A0].append(5_000)
    assert archived(source_of(brokers), tmp_path).new_rows == 1
    assert manifest_of(tmp_path).topic_ids == {"a": "id-of-a"}


@pytest.mark.parametrize("when", ["before bounds", "after bounds", "before tasks", "after tasks"])
def test_a_topic_that_is_made_again_during_a_run_is_not_mixed_with_the_former_one(tmp_path, when):
    """The new one has as many records, so that nothing else could tell them apart."""
    brokers = FakeBrokers(a=[filled(20)])
    new = filled(20, value=b"of another topic")
    left = [lambda: brokers.make_again(a=[new])]

    def act(at):
        if at == when and left:
            left.pop()()

    source = source_of(brokers)
    offsets = brokers.offsets

    def told(*given, **options):
        act("before bounds")
        found = offsets(*given, **options)
        act("after bounds")
        return found

    def run(tasks):
        act("before tasks")
        found = run_here(tasks)
        act("after tasks")
        return found

    brokers.offsets = told
    with pytest.raises(PipelineError, match="'a' was deleted and made again while it was archived"):
        archived(source, tmp_path, run=run)
    assert rows_in(tmp_path).get(A0, []) == []
    archived(source, tmp_path / "new")
    assert rows_in(tmp_path / "new") == rows_at(source)


def test_an_archive_goes_on_as_it_was_started(tmp_path):
    brokers = FakeBrokers(a=[filled(5)])
    archived(source_of(brokers), tmp_path)
    with pytest.raises(PipelineError, match=r"read_committed, not of .* read_uncommitted"):
        archived(source_of(brokers, isolation="read_uncommitted"), tmp_path)
    brokers.cluster_id = lambda: "another"
    with pytest.raises(PipelineError, match="of cluster cluster-of-test"):
        archived(source_of(brokers), tmp_path)
    with pytest.raises(PipelineError, match="is an archive of topics, not a group"):
        read_group_archive(None, tmp_path)
    brokers = FakeBrokers(a=[filled(5)])
    with pytest.raises(UnknownTopicError, match="no topic 'b'"):
        archived(source_of(brokers, "b"), tmp_path)
    with locked(FILES, str(tmp_path)), pytest.raises(StoreLockedError):
        archived(source_of(brokers), tmp_path)


def test_small_files_of_a_day_become_one_and_others_stay(tmp_path):
    brokers = FakeBrokers(a=[FakePartition(), FakePartition()])
    source = source_of(brokers)
    for number in range(8):
        brokers.content[A0].append(NOON_MS + number, NOON_MS + DAY_MS)
        brokers.content[A1].append(NOON_MS)
        result = archived(source, tmp_path, DAY_1 + number, keep_replaced_s=3)
    assert result.merged_files == 24
    assert [file.rows for file in manifest_of(tmp_path).files] == [8, 8, 8]
    assert len(parquet_files(tmp_path)) == 27
    archived(source, tmp_path, DAY_1 + 60, keep_replaced_s=3)
    assert len(parquet_files(tmp_path)) == 3
    assert rows_in(tmp_path) == rows_at(source)


def test_an_archive_that_lacks_a_file_is_not_gone_on_with(tmp_path):
    source = source_of(FakeBrokers(a=[filled(5)]))
    archived(source, tmp_path)
    (path,) = tmp_path.rglob("*.parquet")
    path.unlink()
    with pytest.raises(PipelineError, match=rf"{path.name} is missing; put it back from a copy"):
        archived(source, tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    archived(source_of(FakeBrokers(a=[filled(5)])), tmp_path)
    (path,) = tmp_path.rglob("*.parquet")
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(PipelineError, match=f"{path.name} is damaged"):
        rows_in(tmp_path)


def test_a_manifest_that_cannot_be_true_is_refused(tmp_path):
    archived(source_of(FakeBrokers(a=[filled(5)])), tmp_path)
    path = tmp_path / "_manifest.json"
    text = path.read_text()
    for old, new, reason in (
        ('"beyond": 5', '"beyond": 4', "were not read"),
        ('"rows": 5', '"rows": 6', "were read"),
        ('"partition": 0', '"partition": 1', "were not read"),
        ('"path": "', '"path": "../', "leaves the archive"),
        ('"path": "', '"path": "/', "leaves the archive"),
    ):
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(PipelineError, match=f"cannot be used: .*{reason}"):
            manifest_of(tmp_path)


def test_a_task_that_is_repeated_adds_nothing(tmp_path):
    brokers = FakeBrokers(a=[filled(20)])
    source = source_of(brokers)
    result = archived(source, tmp_path, run=lambda tasks: run_here(tasks) and run_here(tasks))
    assert (result.rows, len(parquet_files(tmp_path))) == (20, result.files)
