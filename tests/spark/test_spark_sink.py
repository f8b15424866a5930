"""Writing to the log from Spark: every row once, whatever is run again."""

import itertools
import os
import sys

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceStreamWriter

from quorumlog.client import SyncClient
from quorumlog.local import LocalCluster
from quorumlog.model.errors import ProducerFencedError, UnexpectedArgumentError
from quorumlog.spark.data_source import QuorumlogSource
from quorumlog.spark.sink.options import parse_write_options
from quorumlog.spark.sink.writer import (
    LogStreamWriter,
    TaskWriter,
    WriteContext,
    abort_batch,
    commit_batch,
)

pytestmark = [pytest.mark.processes, pytest.mark.spark]

GROUPS = tuple(f"w{number}" for number in range(13))


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """Three nodes with empty groups; `take` hands out one that no other test writes to."""
    made = LocalCluster.create(
        tmp_path_factory.mktemp("sink") / "nodes", groups=GROUPS, data_file_bytes=8 << 20
    )
    made.up()
    yield made
    made.down()


@pytest.fixture(scope="module")
def groups():
    return iter(GROUPS)


@pytest.fixture
def group(groups):
    return next(groups)


def bodies(target, group, **options):
    with SyncClient(target.servers, group) as client:
        return [entry.body for entry in client.read("earliest", follow=False, **options)]


def options_for(target, group, **given):
    return parse_write_options({"servers": target.servers, "group": group, **given})


def rows(*texts):
    return iter([pa.record_batch({"body": pa.array([text.encode() for text in texts])})])


def test_only_attempts_reported_to_the_driver_count(target, group):
    options, writing = options_for(target, group), WriteContext("query", "run 1", 0)
    messages = [TaskWriter(options, writing, part).write(rows(f"{part}")) for part in range(3)]
    TaskWriter(options, writing, 0).write(rows("0"))  # a speculative twin, also done
    assert bodies(target, group) == []
    commit_batch(options, messages)
    commit_batch(options, messages)  # the driver did not hear of it
    assert sorted(bodies(target, group)) == [b"0", b"1", b"2"]
    assert len(bodies(target, group, isolation="read_uncommitted")) == 4


def test_a_batch_that_has_ended_is_not_written_again_however_it_is_divided(target, group):
    options = options_for(target, group)
    for run, divided in (("run 1", [("a", "b"), ("c",)]), ("run 2", [("c", "a", "b")])):
        writing = WriteContext("query", run, 7)
        parts = [
            TaskWriter(options, writing, part).write(rows(*texts))
            for part, texts in enumerate(divided)
        ]
        commit_batch(options, parts)
    other = TaskWriter(options, WriteContext("query", "run 3", 7), 0).write(rows("d", "e"))
    with pytest.raises(UnexpectedArgumentError, match="with 3 rows and not 2"):
        commit_batch(options, [other])
    assert sorted(bodies(target, group)) == [b"a", b"b", b"c"]
    assert len(bodies(target, group, isolation="read_uncommitted")) == 3


def test_a_run_that_was_succeeded_is_fenced(target, group):
    options = options_for(target, group)
    old = TaskWriter(options, WriteContext("query", "run 1", 0), 0).write(rows("old"))
    new = TaskWriter(options, WriteContext("query", "run 2", 0), 0).write(rows("new"))
    with pytest.raises(ProducerFencedError):
        commit_batch(options, [old])
    with pytest.raises(ProducerFencedError):
        TaskWriter(options, WriteContext("query", "run 1", 0), 1).write(rows("late"))
    commit_batch(options, [new])
    assert bodies(target, group) == [b"new"]


def test_an_aborted_batch_does_not_block_readers(target, group):
    options = options_for(target, group)
    written = TaskWriter(options, WriteContext("query", "run 1", 0), 0).write(rows("lost"))
    abort_batch(options, [written, None])
    with SyncClient(target.servers, group) as client:
        client.append(b"plain")
    assert bodies(target, group) == [b"plain"]


def test_rows_that_cannot_be_written_are_refused_in_words(target, group):
    writer = TaskWriter(options_for(target, group), None, 0)
    for columns, says in (
        ({"body": pa.array([b"a", None], pa.binary())}, "1 of 2 rows without a body"),
        ({"body": pa.array([b"a"]), "channel": pa.array([-1])}, "values from -1 to -1"),
        ({"body": pa.array([b"a"]), "group": pa.array([None], pa.string())}, "a row has no group"),
        ({"body": pa.array([b"a"]), "group": pa.array(["no group!"])}, "column group"),
    ):
        with pytest.raises(UnexpectedArgumentError) as raised:
            writer.write(iter([pa.record_batch(columns)]))
        assert says in str(raised.value)


def sink(frame, target, group, **options):
    writer = frame.write.format("quorumlog").option("servers", target.servers)
    return writer.option("group", group).options(**options)


def test_a_batch_with_channels_and_text_is_read_back(spark, target, group):
    frame = spark.range(1_000).selectExpr(
        "cast(id as string) as body", "cast(id % 3 as int) as channel"
    )
    sink(frame, target, group).mode("append").save()
    read = spark.read.format("quorumlog").option("servers", target.servers)
    found = read.option("group", group).load().select("body", "channel").collect()
    assert sorted(int(row.body) for row in found) == list(range(1_000))
    assert all(int(row.body) % 3 == row.channel for row in found)


def test_rows_say_themselves_which_group_they_go_to(spark, target, groups):
    names = [next(groups), next(groups)]
    frame = spark.range(100).selectExpr(
        f"if(id % 2 = 0, '{names[0]}', '{names[1]}') as group", "cast(id as string) as body"
    )
    (frame.write.format("quorumlog").option("servers", target.servers).mode("append").save())
    for number, name in enumerate(names):
        assert sorted(int(body) for body in bodies(target, name)) == list(range(number, 100, 2))


def test_a_failed_task_is_run_again_and_its_rows_are_there_once(spark, target, group):
    def fails_once(batches):
        for number, batch in enumerate(batches):
            yield batch
            if TaskContext.get().attemptNumber() == 0 and number == 1:
                raise RuntimeError("this task fails the first time")

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        frame = spark.range(0, 1_000, 1, 2).selectExpr("cast(id as string) as body")
        frame = frame.mapInArrow(fails_once, "body string")
        sink(frame, target, group).mode("append").save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert sorted(int(body) for body in bodies(target, group)) == list(range(1_000))


def test_a_failed_job_does_not_block_readers(spark, target, group):
    def fails(batches):
        for batch in batches:
            yield batch
            raise RuntimeError("this task fails every time")

    frame = spark.range(0, 1_000, 1, 2).selectExpr("cast(id as string) as body")
    with pytest.raises(PySparkException):
        sink(frame.mapInArrow(fails, "body string"), target, group).mode("append").save()
    with SyncClient(target.servers, group) as client:
        client.append(b"plain")
    assert bodies(target, group) == [b"plain"]


def test_named_batches_are_written_once_from_foreach_batch(spark, target, group):
    frame = spark.range(10).selectExpr("cast(id as string) as body")

    def write(batch_id, frame=frame, **options):
        named = {"transactionalId": "app", "batchId": str(batch_id), **options}
        sink(frame, target, group, **named).mode("append").save()

    for batch_id in (0, 1, 1):
        write(batch_id)
    with pytest.raises(PySparkException, match="batch 0 of app is not written"):
        write(0)
    with pytest.raises(PySparkException, match="committed there before, with 10 rows and not 20"):
        write(1, frame.union(frame))
    write(1, frame.union(frame), failOnDataLoss="false")
    assert len(bodies(target, group)) == 20


def test_a_log_is_not_overwritten_and_wrong_columns_are_refused_before_the_job(spark, target):
    frame = spark.range(3).selectExpr("id as value")
    with pytest.raises(PySparkException, match="column 'value' cannot be written"):
        sink(frame, target, "w0").mode("append").save()
    frame = spark.range(3).selectExpr("cast(id as string) as body")
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        sink(frame, target, "w0").mode("overwrite").save()


class DyingWriter(LogStreamWriter):
    """The driver's process dies when a batch is to end: before, or right after the log has it."""

    def commit(self, messages, batchId):  # noqa: N803
        flag = os.environ["QUORUMLOG_TEST_FLAG"]
        if not os.path.exists(flag):
            with open(flag, "w"):
                pass
            if os.environ["QUORUMLOG_TEST_DIES"] == "after":
                super().commit(messages, batchId)
            os._exit(1)
        super().commit(messages, batchId)

    def abort(self, messages, batchId):  # noqa: N803
        """A process that was killed aborts nothing."""


class DyingSource(QuorumlogSource):
    """Writes as the real one does, but for the death of its driver."""

    @classmethod
    def name(cls):
        return "quorumlog-dying"

    def streamWriter(self, schema, overwrite) -> DataSourceStreamWriter:  # noqa: N802
        options = dict(self.options)
        os.environ["QUORUMLOG_TEST_FLAG"] = options.pop("flag")
        os.environ["QUORUMLOG_TEST_DIES"] = options.pop("dies")
        self.options = options
        return DyingWriter(self._write_options(schema))


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_driver_that_dies_at_the_end_of_a_batch_continues_where_it_was(
    spark, target, group, tmp_path, dies
):
    """And divides the batch that it replays into another number of partitions."""
    source, flag = tmp_path / "in", tmp_path / "flag"
    source.mkdir()
    numbers = itertools.count()
    for name in "abc":
        texts = [f"{next(numbers)}\n" for _ in range(200)]
        (source / f"{name}.txt").write_text("".join(texts))
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it
    spark.dataSource.register(DyingSource)

    def run(partitions, kind, **options):
        lines = spark.readStream.option("maxFilesPerTrigger", "1").text(str(source))
        query = (
            lines.selectExpr("value as body")
            .repartition(partitions)
            .writeStream.format(kind)
            .queryName("numbers")
            .option("servers", target.servers)
            .option("group", group)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .options(**options)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with pytest.raises(PySparkException):
        run(2, "quorumlog-dying", flag=str(flag), dies=dies)
    assert flag.exists()
    run(3, "quorumlog")
    assert sorted(int(body) for body in bodies(target, group)) == list(range(600))
    run(2, "quorumlog")  # there is nothing new
    assert len(bodies(target, group)) == 600
