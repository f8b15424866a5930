"""Spark's sink for topics against librdkafka itself, as a ratio measured in one run.

    python benchmarks/spark_topic_sink.py [ROWS] [BYTES]           # default 2000000 100

Three nodes and Spark (local[2]) on this machine. In turn, several times: a program in Python that
produces these rows to a topic of four partitions with acks=all, idempotent, with the settings of
the sink; and a batch write of as many rows by Spark, exactly once, from the start of the job to its
end. Both include making the rows.
"""

import statistics
import sys
import time

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from quorumlog.local import LocalCluster, guarded_directory
from quorumlog.spark import session
from quorumlog.spark.sink.topics.options import parse_topic_options, producer_settings

ROUNDS = 3
PARTITIONS = 4
TOPIC = "rows"
SECONDS = 300


def by_librdkafka(servers: str, count: int, size: int) -> float:
    """Return rows a second of one producer."""
    options = parse_topic_options({"servers": servers, "topic": TOPIC})
    producer = Producer(producer_settings(options, None))
    started, left = time.perf_counter(), "x" * size
    for number in range(count):
        value = (str(number) + left)[:size]
        while True:
            try:
                producer.produce(TOPIC, value)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(SECONDS)
    return count / (time.perf_counter() - started)


def main() -> None:
    """Measure and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    size = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    spark = session("spark_topic_sink")
    with guarded_directory("quorumlog-bench-") as guard:
        cluster = LocalCluster.create(guard.directory / "nodes", topics=True, kafka_port=0)
        cluster.up()
        servers = cluster.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(SECONDS)

        def by_spark(rows: int) -> float:
            frame = spark.range(0, rows, 1, 2)
            frame = frame.selectExpr(f"rpad(cast(id AS string), {size}, 'x') AS value")
            started = time.perf_counter()
            writer = frame.write.format("quorumlog").mode("append")
            writer.option("servers", servers).option("topic", TOPIC).save()
            return rows / (time.perf_counter() - started)

        by_spark(10_000)  # Spark's workers have started then
        ratios = []
        for _ in range(ROUNDS):
            alone, sink = by_librdkafka(servers, count, size), by_spark(count)
            ratios.append(sink / alone)
            print(f"librdkafka {alone:,.0f} rows/s, the sink {sink:,.0f}: {ratios[-1]:.2f}")
        print(f"{count:,} rows of {size} bytes: median {statistics.median(ratios):.2f}")
        cluster.down()
    spark.stop()


if __name__ == "__main__":
    main()
