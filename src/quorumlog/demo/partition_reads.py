"""Readers of a topic that share no code: aiokafka, kcat, and Spark's tasks with kafka-python.

Spark's workers import this module for every task: it loads nothing that draws or prints.
"""

import asyncio
import hashlib
import logging
import shutil
import subprocess
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

READ_SECONDS: Final = 60.0
"""All partitions are read within this, or the reader fails."""
POLL_MS: Final = 500
PANDAS_WARNING: Final = "PySpark does not yet fully support pandas"
"""What PySpark says of pandas 3 on making a function for Arrow."""
ROW_SCHEMA: Final = "partition int, records long, gaps long, digest string"


@dataclass(frozen=True, slots=True)
class PartitionRead:
    """What a partition holds: how many records, and a digest of their offsets and values in order.

    `gaps`: records whose offset is not the number of those before them.
    """

    records: int
    gaps: int
    digest: str


class _Digest:
    """Takes a partition's records in their order."""

    def __init__(self) -> None:
        self._whole = hashlib.sha256()
        self._records = self._gaps = 0

    def add(self, offset: int, value_digest: bytes) -> None:
        self._gaps += offset != self._records
        self._records += 1
        self._whole.update(offset.to_bytes(8, "big") + value_digest)

    def read(self) -> PartitionRead:
        return PartitionRead(self._records, self._gaps, self._whole.hexdigest())


def value_digest(value: bytes | None) -> bytes:
    """Return the SHA-256 of a record's value."""
    return hashlib.sha256(value or b"").digest()


def partition_read(records: Iterable[tuple[int, bytes]]) -> PartitionRead:
    """Return what these records make, each an offset and the digest of a value, in their order."""
    digest = _Digest()
    for offset, of_value in records:
        digest.add(offset, of_value)
    return digest.read()


# -- aiokafka -----------------------------------------------------------------------------------


def read_with_aiokafka(servers: str, topic: str, partitions: int) -> dict[int, PartitionRead]:
    """Return what every partition holds up to its end. Raises `TimeoutError`."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    return asyncio.run(_read_with_aiokafka(servers, topic, partitions))


async def _read_with_aiokafka(
    servers: str, topic: str, partitions: int
) -> dict[int, PartitionRead]:
    from aiokafka import AIOKafkaConsumer, TopicPartition  # noqa: PLC0415  (Spark's workers)

    wanted = [TopicPartition(topic, number) for number in range(partitions)]
    digests = {one: _Digest() for one in wanted}
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
    await consumer.start()
    try:
        async with asyncio.timeout(READ_SECONDS):
            consumer.assign(wanted)
            await consumer.seek_to_beginning(*wanted)
            ends = await consumer.end_offsets(wanted)
            while any([await consumer.position(one) < ends[one] for one in wanted]):
                for place, records in (await consumer.getmany(timeout_ms=POLL_MS)).items():
                    for record in records:
                        digests[place].add(record.offset, value_digest(record.value))
    finally:
        await consumer.stop()
    return {place.partition: digest.read() for place, digest in digests.items()}


# -- kcat ---------------------------------------------------------------------------------------


def has_kcat() -> bool:
    """Whether kcat is installed."""
    return shutil.which("kcat") is not None


def read_with_kcat(servers: str, topic: str, partitions: int) -> dict[int, PartitionRead]:
    """Return what every partition holds up to its end; values have no line feeds.

    Raises `subprocess.SubprocessError` if kcat fails or does not end.
    """
    found = {}
    for number in range(partitions):
        where = ["-b", servers, "-t", topic, "-p", str(number), "-o", "beginning"]
        shown = subprocess.run(  # noqa: S603  (fixed arguments, no shell)
            [shutil.which("kcat") or "kcat", "-C", *where, "-e", "-q", "-f", "%o %s\n"],
            check=True,
            capture_output=True,
            timeout=READ_SECONDS,
        ).stdout
        found[number] = partition_read(_of_kcat(shown))
    return found


def _of_kcat(shown: bytes) -> Iterator[tuple[int, bytes]]:
    for line in shown.splitlines():
        offset, _, value = line.partition(b" ")
        yield int(offset), value_digest(value)


# -- Spark --------------------------------------------------------------------------------------


def read_with_spark(
    spark: "SparkSession", servers: str, topic: str, partitions: int
) -> dict[int, PartitionRead]:
    """Return what every partition holds up to its end, each read by a task of its own."""

    def read(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow  # noqa: PLC0415  (in Spark's worker)

        for batch in batches:
            numbers = batch.column("id").to_pylist()
            reads = [read_with_kafka_python(servers, topic, number) for number in numbers]
            columns = {
                "partition": pyarrow.array(numbers, pyarrow.int32()),
                "records": [one.records for one in reads],
                "gaps": [one.gaps for one in reads],
                "digest": [one.digest for one in reads],
            }
            yield pyarrow.RecordBatch.from_pydict(columns)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=PANDAS_WARNING)
        rows = spark.range(0, partitions, 1, partitions).mapInArrow(read, ROW_SCHEMA).collect()
    return {
        row["partition"]: PartitionRead(row["records"], row["gaps"], row["digest"]) for row in rows
    }


def read_with_kafka_python(servers: str, topic: str, partition: int) -> PartitionRead:
    """Return what one partition holds up to its end. Raises `TimeoutError`."""
    from kafka import KafkaConsumer, TopicPartition  # noqa: PLC0415  (only Spark's workers)

    place = TopicPartition(topic, partition)
    digest = _Digest()
    deadline = time.monotonic() + READ_SECONDS
    consumer = KafkaConsumer(bootstrap_servers=servers.split(","), enable_auto_commit=False)
    try:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = consumer.end_offsets([place])[place]
        while consumer.position(place) < end:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}-{partition} not read within {READ_SECONDS:g} s")
            for record in consumer.poll(timeout_ms=POLL_MS).get(place, ()):
                digest.add(record.offset, value_digest(record.value))
    finally:
        consumer.close()
    return digest.read()
