"""Small batches of a stream travel with their plan: what Spark's own planner passes to the JVM."""

import io
import json

import pyarrow as pa
import pytest
from pyspark.serializers import SpecialLengths, UTF8Deserializer, read_int, write_with_length
from pyspark.sql import datasource_internal
from pyspark.sql.streaming import python_streaming_source_runner as planner
from pyspark.sql.types import LongType, StructField, StructType

from quorumlog.model.errors import NetworkError
from quorumlog.spark.data_source import QuorumlogSource
from quorumlog.spark.source import inline_rows as rows_along
from quorumlog.spark.source.options import parse_options
from quorumlog.spark.source.stream import LogStreamReader
from spark_fakes import FakeCluster, FakeGroup, filled

SCHEMA = StructType([StructField("index", LongType())])


def at(index, group="g"):
    return {group: {"index": index, "term": 1}}


def reader_of(cluster, **options):
    parsed = parse_options({"servers": "h:1", "group": "g", **options}).for_stream()
    return LogStreamReader(parsed, ("index",), cluster.connect)


def planned(reader, start, end):
    """Plan a batch as Spark does; its partitions, and the indexes that travel along (or None)."""
    asked, answered = io.BytesIO(), io.BytesIO()
    for offset in (start, end):
        write_with_length(json.dumps(offset).encode(), asked)
    asked.seek(0)
    source = QuorumlogSource({})
    planner.partitions_func(reader, source, SCHEMA, 1_000, asked, answered)
    answered.seek(0)
    partitions = [
        UTF8Deserializer(use_unicode=False).loads(answered) for _ in range(read_int(answered))
    ]
    status = read_int(answered)
    if status == planner.PREFETCHED_RECORDS_NOT_FOUND:
        return partitions, None
    if status == planner.EMPTY_PYARROW_RECORD_BATCHES:
        return partitions, []
    assert read_int(answered) == SpecialLengths.START_ARROW_STREAM
    table = pa.ipc.open_stream(answered).read_all()
    return partitions, table.column("index").to_pylist()


def test_a_small_batch_travels_with_its_plan():
    reader = reader_of(FakeCluster(g=filled(10)))
    partitions, indexes = planned(reader, at(3), at(8))
    assert len(partitions) == 1  # should Spark have lost the rows, a task reads it
    assert indexes == [3, 4, 5, 6, 7]


def test_each_batch_has_its_own_rows():
    reader = reader_of(FakeCluster(g=filled(10)))
    found = [planned(reader, at(begin), at(begin + 2))[1] for begin in (0, 2, 4, 2)]
    assert found == [[0, 1], [2, 3], [4, 5], [2, 3]]


def test_a_reader_whose_rows_were_taken_still_says_how_far_behind_it_is():
    reader = reader_of(FakeCluster(g=filled(10)), startingIndex="earliest")
    end = reader.latestOffset(at(0), reader.getDefaultReadLimit())
    planned(reader, at(0), end)
    written = io.BytesIO()
    planner.report_latest_offset_func(reader, written)
    written.seek(0)
    assert json.loads(UTF8Deserializer().loads(written))["g"]["index"] == 10
    features = io.BytesIO()
    planner.check_support_func(reader, features)
    features.seek(0)
    both = planner.SUPPORTS_ADMISSION_CONTROL | planner.SUPPORTS_TRIGGER_AVAILABLE_NOW
    assert read_int(features) == both


def test_entries_that_are_no_rows_travel_as_none():
    group = FakeGroup().append_noop(1)
    assert planned(reader_of(FakeCluster(g=group)), at(0), at(1))[1] == []


@pytest.mark.parametrize(
    ("entries", "size", "options"),
    [
        (rows_along.ENTRIES_MAX + 1, 1, {}),
        (2, rows_along.BYTES_MAX // 2, {}),
        (10, 1, {"minPartitions": "2"}),
        (10, 1, {"maxEntriesPerPartition": "5"}),
    ],
)
def test_larger_batches_are_read_by_tasks(entries, size, options):
    reader = reader_of(FakeCluster(g=filled(entries, size=size)), **options)
    assert planned(reader, at(0), at(entries))[1] is None


def test_a_batch_that_cannot_be_read_now_is_read_by_a_task(caplog):
    cluster = FakeCluster(g=filled(10))

    def fail(block):
        raise NetworkError("h:1: connection lost")

    cluster.before_block = fail
    reader = reader_of(cluster)
    partitions, indexes = planned(reader, at(0), at(10))
    assert (len(partitions), indexes) == (1, None)
    assert "a small batch of g is read by a task: h:1: connection lost" in caplog.text
    cluster.before_block = None
    assert planned(reader, at(0), at(10))[1] == list(range(10))


def test_spark_has_what_takes_rows_along():
    """Should a later one lose it, everything still works by tasks; this tells that it is slower."""
    assert hasattr(datasource_internal, "_SimpleStreamReaderWrapper")


def test_without_what_takes_rows_tasks_read_everything(monkeypatch):
    monkeypatch.setattr(rows_along, "_TAKES_ROWS", None)
    assert planned(reader_of(FakeCluster(g=filled(10))), at(0), at(10))[1] is None
