"""What one Kafka client has sent is what every other one reads; little is set but servers.

Producers are idempotent: leaders may change on a busy machine, and records are sent again then.
"""

import asyncio
import itertools
import zlib
from collections import Counter

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import codec
from kafka.partitioner.default import murmur2

from kafka_nodes import kafka_nodes

SECONDS = 60
PARTITIONS = 4
RECORDS = 2_000
"""Records of one client with one codec: 10,000 of each client (A1)."""
TIME_MS = 1_700_000_000_000
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
OF_KAFKA_PYTHON = [name for name in CODECS if name == "none" or getattr(codec, f"has_{name}")()]
"""What the packages beside kafka-python let it pack and unpack."""


def records(label):
    """Return records as (partition or None, timestamp, key, value, headers)."""
    made = []
    for number in range(RECORDS):
        key = None if number % 5 == 0 else f"{label}-{number % 11}".encode()
        value = None if number % 7 == 0 and key is not None else f"{label} {number} ".encode() * 20
        headers = [("number", str(number).encode()), ("empty", b"")]
        if number % 3 == 0:
            headers += [("twice", b"1"), ("twice", b"2")]
        if number % 4 == 0:
            headers = []
        partition = number % PARTITIONS if number % 2 else None
        made.append((partition, TIME_MS + 1_000 * number, key, value, headers))
    return made


def partition_of(key):
    """Return the partition of a key, as the client computes it whose name the key begins with."""
    if key.startswith(b"confluent"):
        return zlib.crc32(key) % PARTITIONS
    return (murmur2(key) & 0x7FFFFFFF) % PARTITIONS


def produce_confluent(servers, topic, name, made):
    said = []
    options = {"bootstrap.servers": servers, "compression.type": name, "linger.ms": 20}
    producer = confluent_kafka.Producer({**options, "enable.idempotence": True})
    for partition, timestamp, key, value, headers in made:
        where = {} if partition is None else {"partition": partition}
        producer.produce(
            topic,
            value,
            key,
            headers=headers,
            timestamp=timestamp,
            on_delivery=lambda error, message: said.append((error, message)),
            **where,
        )
    assert producer.flush(SECONDS) == 0
    assert [error for error, _ in said if error is not None] == []
    assert len(said) == len(made)


def produce_kafka_python(servers, topic, name, made):
    producer = kafka.KafkaProducer(
        bootstrap_servers=servers.split(","),
        compression_type=None if name == "none" else name,
        linger_ms=20,
        enable_idempotence=True,
    )
    sent = [
        producer.send(topic, value, key, headers, partition, timestamp)
        for partition, timestamp, key, value, headers in made
    ]
    for one in sent:
        one.get(SECONDS)
    producer.close()


def produce_aiokafka(servers, topic, name, made):
    async def produce():
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=servers,
            compression_type=None if name == "none" else name,
            linger_ms=20,
            enable_idempotence=True,
        )
        async with producer:
            sent = [
                await producer.send(
                    topic, value, key, partition, timestamp_ms=timestamp, headers=headers
                )
                for partition, timestamp, key, value, headers in made
            ]
            await asyncio.wait_for(asyncio.gather(*sent), SECONDS)

    asyncio.run(produce())


def consume_confluent(servers, topic, count):
    options = {"bootstrap.servers": servers, "group.id": "none", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(options)
    start = confluent_kafka.OFFSET_BEGINNING
    consumer.assign(
        [confluent_kafka.TopicPartition(topic, one, start) for one in range(PARTITIONS)]
    )
    found = []
    while len(found) < count:
        message = consumer.poll(SECONDS)
        assert message is not None, f"{len(found)} of {count}"
        assert message.error() is None
        found.append(
            (
                message.partition(),
                message.offset(),
                message.timestamp()[1],
                message.key(),
                message.value(),
                message.headers() or [],
            )
        )
    consumer.close()
    return found


def consume_kafka_python(servers, topic, count):
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=servers.split(","),
        consumer_timeout_ms=SECONDS * 1_000,
        enable_auto_commit=False,
    )
    partitions = [kafka.TopicPartition(topic, one) for one in range(PARTITIONS)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    found = [_as_tuple(one) for one in itertools.islice(consumer, count)]
    consumer.close()
    return found


def consume_aiokafka(servers, topic, count):
    async def consume():
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
        found = []
        async with consumer, asyncio.timeout(SECONDS):
            partitions = [aiokafka.TopicPartition(topic, one) for one in range(PARTITIONS)]
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            while len(found) < count:
                found.append(_as_tuple(await consumer.getone()))
        return found

    return asyncio.run(consume())


def _as_tuple(one):
    return (one.partition, one.offset, one.timestamp, one.key, one.value, list(one.headers))


PRODUCERS = {
    "confluent-kafka": (produce_confluent, CODECS),
    "kafka-python": (produce_kafka_python, OF_KAFKA_PYTHON),
    "aiokafka": (produce_aiokafka, CODECS),
}
CONSUMERS = {
    "confluent-kafka": (consume_confluent, CODECS),
    "kafka-python": (consume_kafka_python, OF_KAFKA_PYTHON),
    "aiokafka": (consume_aiokafka, CODECS),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with kafka_nodes(tmp_path_factory.mktemp("kafka"), 3) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def produced(cluster):
    """Topics by the codec, with the records that all clients have sent, which have the codec."""
    admin = AdminClient({"bootstrap.servers": cluster.servers})
    wanted = [NewTopic(name, PARTITIONS, 3) for name in CODECS]
    for future in admin.create_topics(wanted, operation_timeout=SECONDS).values():
        future.result(SECONDS)
    cluster.settle()
    made = {}
    for name in CODECS:
        made[name] = []
        for label, (produce, codecs) in PRODUCERS.items():
            if name in codecs:
                produce(cluster.servers, name, name, records(label))
                made[name] += records(label)
    return made


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("reader", CONSUMERS)
def test_what_every_client_has_sent_is_read_by_every_client(cluster, produced, name, reader):
    consume, codecs = CONSUMERS[reader]
    if name not in codecs:
        with pytest.raises(kafka.errors.UnsupportedCodecError):
            consume(cluster.servers, name, 1)
        return
    sent = produced[name]
    found = consume(cluster.servers, name, len(sent))
    for number in range(PARTITIONS):
        offsets = [one[1] for one in found if one[0] == number]
        assert offsets == list(range(len(offsets)))
    plain = [(time, key, value, headers) for _, _, time, key, value, headers in found]
    assert Counter(map(repr, plain)) == Counter(repr(one[1:]) for one in sent)
    placed = {repr(one[2:]): one[0] for one in found}
    assert len(placed) == len(found), "all records differ"
    asked = [one for one in sent if one[0] is not None]
    assert asked == [(placed[repr(one[1:])], *one[1:]) for one in asked]
    with_key = [one for one in sent if one[0] is None and one[2] is not None]
    assert [placed[repr(one[1:])] for one in with_key] == [partition_of(one[2]) for one in with_key]


def test_all_clients_read_the_same(cluster, produced):
    count = len(produced["gzip"])
    first, *others = [
        sorted(consume(cluster.servers, "gzip", count), key=lambda one: one[:2])
        for consume, _ in CONSUMERS.values()
    ]
    assert all(other == first for other in others)
