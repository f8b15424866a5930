"""Readers of a topic that share no code: aiokafka, kcat, and Spark with its source for topics."""

import asyncio
import hashlib
import logging
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from quorumlog.client import Context
from quorumlog.client.contexts import Access
from quorumlog.client.kafka_security import librdkafka_settings
from quorumlog.client.outgoing_tls import outgoing_tls
from quorumlog.spark.access import options_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ_SECONDS: Final = 60.0
"""All partitions are read within this, or the reader fails."""
POLL_MS: Final = 500


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


def read_with_aiokafka(cluster: Context, topic: str, partitions: int) -> dict[int, PartitionRead]:
    """Return what every partition holds up to its end. Raises `TimeoutError`."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    return asyncio.run(_read_with_aiokafka(cluster, topic, partitions))


async def _read_with_aiokafka(
    cluster: Context, topic: str, partitions: int
) -> dict[int, PartitionRead]:
    wanted = [TopicPartition(topic, number) for number in range(partitions)]
    digests = {one: _Digest() for one in wanted}
    security = cluster.open().security
    tls = None if security is None else outgoing_tls(security).context
    consumer = AIOKafkaConsumer(
        bootstrap_servers=cluster.kafka,
        enable_auto_commit=False,
        security_protocol="PLAINTEXT" if tls is None else "SSL",
        ssl_context=tls,
    )
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


def read_with_kcat(cluster: Context, topic: str, partitions: int) -> dict[int, PartitionRead]:
    """Return what every partition holds up to its end; values have no line feeds.

    Raises `subprocess.SubprocessError` if kcat fails or does not end.
    """
    found = {}
    settings = librdkafka_settings(cluster.open().security)
    options = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    for number in range(partitions):
        where = ["-b", cluster.kafka, *options, "-t", topic, "-p", str(number), "-o", "beginning"]
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
    spark: "SparkSession", cluster: Context, topic: str, partitions: int
) -> dict[int, PartitionRead]:
    """Return what every partition holds up to its end."""
    where = options_of(Access(given=cluster), "kafka.bootstrap.servers")
    reader = spark.read.format("quorumlog").options(**where)
    frame = reader.option("subscribe", topic).load()
    rows = frame.selectExpr("partition", "offset", "unhex(sha2(value, 256)) as digest").toArrow()
    digests = {number: _Digest() for number in range(partitions)}
    for row in rows.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist():
        digests[row["partition"]].add(row["offset"], row["digest"])
    return {number: digest.read() for number, digest in digests.items()}
