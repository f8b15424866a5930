"""Spark on topics against Spark on a plain group, as ratios measured in one run.

    python benchmarks/measure_spark_topics.py [MIB] [json|hex]           # default 512 hex

Three nodes and Spark (local[2]) on this machine. A topic of four partitions and a plain group are
filled with the same values of 1 KiB, the topic by librdkafka with batches of up to 1 MB. Then,
several times in turn, both are scanned: all values, read from files on this machine or sent, and
the number of rows.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from measure_spark import BODIES_OF, BODY_BYTES, MIB, ROUNDS, fill, measure
from pyspark.sql import DataFrame

from quorumlog.local import LocalCluster, guarded_directory
from quorumlog.spark import session

TOPIC = "topic"
GROUP = "log"
PARTITIONS = 4
TIMEOUT_S = 60
POLL_EVERY = 1_000
TOPIC_SENT = "values of the topic, sent by its leaders"
TOPIC_LOCAL = "values of the topic, read from files on this machine"
GROUP_SENT = "bodies of the plain group, sent by its leader"
GROUP_LOCAL = "bodies of the plain group, read from files on this machine"
TOPIC_ROWS = "rows of the topic, offsets only"


def fill_topic(servers: str, values: Iterator[bytes]) -> None:
    """Make the topic, and produce values."""
    topic = NewTopic(TOPIC, PARTITIONS)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([topic], operation_timeout=TIMEOUT_S)[TOPIC].result(TIMEOUT_S)
    settings = {"bootstrap.servers": servers, "linger.ms": 50, "batch.size": 1_000_000}
    producer = Producer({**settings, "enable.idempotence": True})
    for number, value in enumerate(values):
        while True:
            try:
                producer.produce(TOPIC, value)
                break
            except BufferError:
                producer.poll(0.05)
        if number % POLL_EVERY == 0:
            producer.poll(0)
    producer.flush()


def lengths(frame: DataFrame, column: str) -> int:
    """Return the bytes of a column; it is read whole."""
    (row,) = frame.selectExpr(f"sum(length({column})) as bytes").collect()
    return int(row.bytes)


def main() -> None:
    """Fill, measure, print."""
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    bodies_of = BODIES_OF[sys.argv[2] if len(sys.argv) > 2 else "hex"]
    count = mib * MIB // BODY_BYTES
    with guarded_directory("quorumlog-measure-") as guard:
        took = measured(guard.directory, bodies_of, count)
    print("\nrates of scans")
    for topic, group in ((TOPIC_SENT, GROUP_SENT), (TOPIC_LOCAL, GROUP_LOCAL)):
        print(f"{took[group] / took[topic]:5.2f} x {group}: {topic}")


def measured(
    root: Path, bodies_of: Callable[[int], Iterator[bytes]], count: int
) -> dict[str, float]:
    """Return the median seconds of each scan."""
    cluster = LocalCluster.create(
        root / "nodes", groups=(GROUP,), topics=True, kafka_port=0, data_file_bytes=256 * MIB
    )
    cluster.up()
    spark = session("measure", output=root / "spark.log")

    def topic(schema: str, *, local_reads: bool = True) -> DataFrame:
        reader = spark.read.format("quorumlog").option("subscribe", TOPIC).schema(schema)
        reader = reader.option("localReads", local_reads)
        return reader.option("kafka.bootstrap.servers", cluster.bootstrap_servers).load()

    def group(*, local_reads: bool) -> DataFrame:
        reader = spark.read.format("quorumlog").option("servers", cluster.servers)
        reader = reader.option("group", GROUP).option("localReads", local_reads)
        return reader.schema("body binary").load()

    try:
        fill(cluster.servers, GROUP, bodies_of(count))
        fill_topic(cluster.bootstrap_servers, bodies_of(count))
        cases: dict[str, Callable[[], object]] = {
            TOPIC_SENT: lambda: lengths(topic("value binary", local_reads=False), "value"),
            TOPIC_LOCAL: lambda: lengths(topic("value binary"), "value"),
            GROUP_SENT: lambda: lengths(group(local_reads=False), "body"),
            GROUP_LOCAL: lambda: lengths(group(local_reads=True), "body"),
            TOPIC_ROWS: lambda: topic("offset long").count(),
        }
        return measure(cases, ROUNDS, count * BODY_BYTES / MIB)
    finally:
        spark.stop()
        cluster.down()


if __name__ == "__main__":
    main()
