"""Read a topic with Spark as a batch: a task for each partition, up to where that ends then.

python examples/spark_topic.py 127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094 flights
"""

import sys
from collections.abc import Iterator

import pyarrow as pa
from kafka import KafkaConsumer, TopicPartition
from pyspark.sql import functions as f

from quorumlog.spark import session

if len(sys.argv) != 3:
    raise SystemExit(__doc__)
servers, topic = sys.argv[1].split(","), sys.argv[2]
SCHEMA = "partition int, offset bigint, timestamp bigint, key binary, value binary"


def records_of(number: int) -> Iterator[pa.RecordBatch]:
    """Yield what a partition holds; in one of Spark's workers."""
    place = TopicPartition(topic, number)
    consumer = KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    end = consumer.end_offsets([place])[place]
    while consumer.position(place) < end:
        records = consumer.poll(timeout_ms=1_000).get(place, [])
        found = [one for one in records if one.offset < end]
        columns = {
            "partition": pa.array([one.partition for one in found], pa.int32()),
            "offset": pa.array([one.offset for one in found], pa.int64()),
            "timestamp": pa.array([one.timestamp for one in found], pa.int64()),
            "key": pa.array([one.key for one in found], pa.binary()),
            "value": pa.array([one.value for one in found], pa.binary()),
        }
        yield pa.RecordBatch.from_pydict(columns)
    consumer.close()


def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the partitions whose numbers a task is given."""
    for batch in batches:
        for number in batch.column("id").to_pylist():
            yield from records_of(number)


client = KafkaConsumer(bootstrap_servers=servers)
count = len(client.partitions_for_topic(topic) or ())
client.close()
spark = session("topic")
records = spark.range(0, count, 1, count).mapInArrow(read, SCHEMA)
totals = records.agg(f.count("*").alias("records"), f.sum(f.length("value")).alias("bytes"))
totals.show()
spark.stop()
