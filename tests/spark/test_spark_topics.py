"""Spark reads topics that Kafka's clients produce to (B13)."""

import itertools
import json
import time

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.errors import PySparkException
from pyspark.sql.functions import col, lit, timestamp_millis

from kafka_nodes import idempotent_producer
from quorumlog.spark.topics.batch import TopicReader
from quorumlog.spark.topics.options import parse_topic_options
from spark_topics_fakes import rows_of

pytestmark = [pytest.mark.processes, pytest.mark.spark]

SECONDS = 200
NUMBERS = itertools.count()
PARTITIONS = 3
EPOCH_MS = 1_700_000_000_000
KAFKA_SCHEMA = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
    "timestamp:timestamp,timestampType:int"
)


@pytest.fixture(scope="module")
def admin(brokers):
    return AdminClient({"bootstrap.servers": brokers.bootstrap_servers})


@pytest.fixture
def topic(admin):
    name = f"flights-{next(NUMBERS)}"
    made = admin.create_topics([NewTopic(name, PARTITIONS)], operation_timeout=SECONDS)
    made[name].result(SECONDS)
    return name


def produce(brokers, topic, numbers, **options):
    producer = idempotent_producer(brokers.bootstrap_servers, **{"linger.ms": 5, **options})
    for number in numbers:
        producer.produce(
            topic,
            None if number % 10 == 9 else f"v{number}".encode(),
            f"k{number}".encode(),
            partition=number % PARTITIONS,
            timestamp=EPOCH_MS + number,
            headers=[("number", str(number).encode())] if number % 2 else None,
        )
    assert producer.flush(SECONDS) == 0


def read(spark, brokers, **options):
    reader = spark.read.format("quorumlog").options(**options)
    return reader.option("kafka.bootstrap.servers", brokers.bootstrap_servers).load()


def test_b13_rows_have_what_was_produced(spark, brokers, topic):
    produce(brokers, topic, range(300), **{"compression.type": "zstd"})
    frame = read(spark, brokers, subscribe=topic, includeHeaders="true")
    headers = ",headers:array<struct<key:string,value:binary>>>"
    assert frame.schema.simpleString() == KAFKA_SCHEMA + headers
    found = frame.selectExpr(
        "cast(key as string) key", "cast(value as string) value", "topic", "partition", "offset",
        "unix_millis(timestamp) time", "timestampType kind", "cast(headers[0].value as string) h",
    ).orderBy("time").collect()  # fmt: skip
    assert [tuple(row) for row in found] == [
        (
            f"k{number}",
            None if number % 10 == 9 else f"v{number}",
            topic,
            number % PARTITIONS,
            number // PARTITIONS,
            EPOCH_MS + number,
            0,
            str(number) if number % 2 else None,
        )
        for number in range(300)
    ]


def test_b13_offsets_times_and_conditions_choose_rows(spark, brokers, topic):
    produce(brokers, topic, range(90))
    offsets = {topic: {"0": 10, "1": -1, "2": -2}}
    frame = read(spark, brokers, subscribe=topic, startingOffsets=json.dumps(offsets))
    assert frame.count() == 20 + 0 + 30
    frame = read(spark, brokers, subscribePattern=f"{topic}|none", endingTimestamp=EPOCH_MS + 45)
    assert frame.count() == 45
    assert read(spark, brokers, assign=json.dumps({topic: [1]})).count() == 30
    narrowed = read(spark, brokers, subscribe=topic, minPartitions="5")
    assert narrowed.where((col("partition") == 1) & (col("offset") >= 25)).count() == 5


def test_conditions_are_pushed_down_if_spark_offers_them(spark, brokers, topic):
    produce(brokers, topic, range(90))
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "true")
    try:
        frame = read(spark, brokers, subscribe=topic, pushDownPredicate="true")
        since = timestamp_millis(lit(EPOCH_MS + 60))
        assert frame.where(col("timestamp") >= since).count() == 30
        assert frame.where((col("partition") == 1) & (col("offset") >= 25)).count() == 5
    finally:
        spark.conf.unset(setting)


def test_a_wrong_option_is_told_in_one_line(spark, brokers):
    with pytest.raises(PySparkException) as refused:
        read(spark, brokers, subscribe="t", startingOffset="earliest")
    lines = str(refused.value).splitlines()
    assert any("'startingoffset'" in line and "mean 'startingOffsets'" in line for line in lines)


class Stream:
    """A query that writes the numbers of keys to Parquet; its directory has a checkpoint."""

    def __init__(self, spark, brokers, directory, **options):
        self.spark = spark
        self.rows, self.checkpoint = str(directory / "rows"), str(directory / "checkpoint")
        self.options = {
            "kafka.bootstrap.servers": brokers.bootstrap_servers,
            "startingOffsets": "earliest",
            **options,
        }

    def start(self, **trigger):
        frame = self.spark.readStream.format("quorumlog").options(**self.options).load()
        frame = frame.selectExpr("cast(substr(cast(key as string), 2) as int) number")
        writer = frame.writeStream.format("parquet").option("checkpointLocation", self.checkpoint)
        return (writer.trigger(**trigger) if trigger else writer).start(self.rows)

    def run(self):
        """Read all there is; return the rows of each batch."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(SECONDS)
        return [each.numInputRows for each in query.recentProgress if each.numInputRows]

    def numbers(self):
        return sorted(row.number for row in self.spark.read.parquet(self.rows).collect())


def test_b13_a_stream_goes_on_where_its_checkpoint_is(spark, brokers, topic, admin, tmp_path):
    stream = Stream(spark, brokers, tmp_path, subscribe=topic, maxOffsetsPerTrigger="60")
    produce(brokers, topic, range(100))
    assert stream.run() == [60, 40]
    produce(brokers, topic, range(100, 150))
    (grown,) = admin.create_partitions([NewPartitions(topic, PARTITIONS + 1)]).values()
    grown.result(SECONDS)
    producer = idempotent_producer(brokers.bootstrap_servers)
    producer.produce(topic, b"new", b"k150", partition=PARTITIONS)
    assert producer.flush(SECONDS) == 0
    assert sum(stream.run()) == 51
    assert stream.run() == []
    assert stream.numbers() == list(range(151))


def test_b13_a_stream_says_how_far_it_lags_and_rides_out_a_dead_leader(
    spark, brokers, topic, admin, tmp_path
):
    produce(brokers, topic, range(30))
    query = Stream(spark, brokers, tmp_path, subscribe=topic).start()
    leader = admin.list_topics(topic).topics[topic].partitions[0].leader
    victim = brokers.node_ids[leader]
    try:
        brokers.kill(victim)
        try:
            produce(brokers, topic, range(30, 60))
            deadline = time.monotonic() + SECONDS
            while True:
                found = [one for one in query.recentProgress if one.sources[0].endOffset]
                if found and sum(json.loads(found[-1].sources[0].endOffset)[topic].values()) == 60:
                    break
                assert time.monotonic() < deadline
                assert query.isActive, query.exception()
                time.sleep(0.1)
        finally:
            brokers.start(victim)
    finally:
        query.stop()
    ends = {topic: dict.fromkeys("012", 20)}
    assert json.loads(found[-1].sources[0].latestOffset) == ends
    assert Stream(spark, brokers, tmp_path, subscribe=topic).numbers() == list(range(60))


def test_b13_a_task_goes_on_at_the_next_leader(brokers, topic, admin, monkeypatch):
    monkeypatch.setattr("quorumlog.spark.topics.tasks.FETCH_BYTES", 2_000)
    produce(brokers, topic, range(3_000), **{"batch.size": 2_000})
    options = {
        "kafka.bootstrap.servers": brokers.bootstrap_servers,
        "subscribe": topic,
        "localReads": "false",
    }
    reader = TopicReader(parse_topic_options(options).for_batch(), ("key",))
    (task,) = reader.partitions()
    batches = reader.read(task)
    rows = next(batches).to_pylist()
    leader = admin.list_topics(topic).topics[topic].partitions[0].leader
    victim = brokers.node_ids[leader]
    brokers.kill(victim)
    try:
        rows += [row for batch in batches for row in batch.to_pylist()]
    finally:
        brokers.start(victim)
    assert sorted(int(row["key"][1:]) for row in rows) == list(range(3_000))
    assert rows_of(reader, [task]) != []
