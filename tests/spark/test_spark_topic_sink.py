"""Writing to topics from Spark: every row once for readers of committed records."""

import itertools
import os
import sys

import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSourceStreamWriter

from quorumlog.spark.data_source import QuorumlogSource
from quorumlog.spark.sink.topics.options import parse_topic_options
from quorumlog.spark.sink.topics.writer import TopicStreamWriter
from topic_rows import make_topics, read_rows, values_of

pytestmark = [pytest.mark.processes, pytest.mark.spark]

PARTITIONS = 2
NUMBERS = itertools.count()


@pytest.fixture
def topics(brokers):
    names = [f"{name}-{next(NUMBERS)}" for name in ("even", "odd")]
    make_topics(brokers.bootstrap_servers, names, PARTITIONS)
    return names


def in_turns(frame, topics, number="id"):
    """Return a frame whose rows go to one of two topics."""
    even, odd = topics
    return frame.selectExpr(
        f"if({number} % 2 = 0, '{even}', '{odd}') AS topic",
        f"cast({number} AS string) AS key",
        f"cast({number} AS string) AS value",
    )


def sink(frame, brokers, **options):
    writer = frame.write.format("quorumlog").mode("append")
    return writer.option("kafka.bootstrap.servers", brokers.bootstrap_servers).options(**options)


def numbers_in(brokers, topics, **options):
    found = values_of(brokers.bootstrap_servers, topics, PARTITIONS, **options)
    return sorted(int(value) for value in found)


def test_rows_go_to_the_topics_that_they_name_with_all_that_they_have(spark, brokers, topics):
    frame = in_turns(spark.range(1_000), topics).selectExpr(
        "*",
        "array(named_struct('key', 'h', 'value', cast(value AS binary))) AS headers",
        "timestamp_millis(1700000000000 + cast(value AS int)) AS timestamp",
        "cast(cast(key AS int) % 2 AS int) AS partition",
    )
    sink(frame, brokers).save()
    found = read_rows(brokers.bootstrap_servers, topics, PARTITIONS)
    assert len(found) == 1_000
    for one in found:
        number = int(one.value())
        assert one.topic() == topics[number % 2]
        assert one.partition() == number % 2
        assert one.key() == one.value()
        assert one.headers() == [("h", one.value())]
        assert one.timestamp()[1] == 1_700_000_000_000 + number


def test_a_failed_task_is_run_again_and_its_rows_are_there_once(spark, brokers, topics):
    def fails_once(batches):
        for number, batch in enumerate(batches):
            yield batch
            if TaskContext.get().attemptNumber() == 0 and number == 1:
                raise RuntimeError("this task fails the first time")

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        frame = in_turns(spark.range(0, 1_000, 1, 2), topics)
        frame = frame.mapInArrow(fails_once, "topic string, key string, value string")
        sink(frame, brokers).save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert numbers_in(brokers, topics) == list(range(1_000))


def test_a_failed_job_leaves_nothing_and_does_not_hold_up_readers(spark, brokers, topics):
    def fails(batches):
        for batch in batches:
            yield batch
            raise RuntimeError("this task fails every time")

    frame = in_turns(spark.range(0, 100, 1, 2), topics)
    with pytest.raises(PySparkException):
        sink(frame.mapInArrow(fails, "topic string, key string, value string"), brokers).save()
    sink(in_turns(spark.range(3), topics), brokers, deliveryGuarantee="at-least-once").save()
    assert numbers_in(brokers, topics) == [0, 1, 2]


def test_named_batches_are_written_once_from_foreach_batch(spark, brokers, topics):
    frame = spark.range(10).selectExpr("cast(id AS string) AS value")

    def write(batch_id, topic):
        named = {"transactionalId": "app", "batchId": str(batch_id), "topic": topic}
        sink(frame, brokers, **named).save()

    for batch_id, topic in itertools.product((0, 1, 1), topics):
        write(batch_id, topic)
    for topic in topics:
        assert len(numbers_in(brokers, [topic])) == 20


def test_what_is_wrong_is_said_before_the_job(spark, brokers):
    value = spark.range(3).selectExpr("cast(id AS string) AS value")
    with pytest.raises(PySparkException, match=r"did you mean 'kafka\.linger\.ms'"):
        sink(value, brokers, **{"topic": "t", "kafka.liger.ms": "5"}).save()


class DyingWriter(TopicStreamWriter):
    """The driver's process dies when a batch is to end: before, or right after its decision."""

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
        return "quorumlog-dying-topics"

    def streamWriter(self, schema, overwrite) -> DataSourceStreamWriter:  # noqa: N802
        options = dict(self.options)
        os.environ["QUORUMLOG_TEST_FLAG"] = options.pop("flag")
        os.environ["QUORUMLOG_TEST_DIES"] = options.pop("dies")
        self.options = options
        return DyingWriter(parse_topic_options(self.options))


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_driver_that_dies_around_its_decision_goes_on_where_it_was(
    spark, brokers, topics, tmp_path, dies
):
    """And divides the batch that it replays into another number of partitions."""
    source, flag = tmp_path / "in", tmp_path / "flag"
    source.mkdir()
    numbers = itertools.count()
    for name in "ab":
        texts = [f"{next(numbers)}\n" for _ in range(200)]
        (source / f"{name}.txt").write_text("".join(texts))
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it
    spark.dataSource.register(DyingSource)

    def run(partitions, kind, **options):
        lines = spark.readStream.option("maxFilesPerTrigger", "1").text(str(source))
        rows = in_turns(lines.repartition(partitions), topics, "cast(value AS int)")
        query = (
            rows.writeStream.format(kind)
            .queryName("numbers")
            .option("kafka.bootstrap.servers", brokers.bootstrap_servers)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .options(**options)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with pytest.raises(PySparkException):
        run(2, "quorumlog-dying-topics", flag=str(flag), dies=dies)
    assert flag.exists()
    run(3, "quorumlog")
    assert numbers_in(brokers, topics) == list(range(400))
    run(2, "quorumlog")  # there is nothing new
    assert numbers_in(brokers, topics) == list(range(400))
