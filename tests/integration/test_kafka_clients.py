"""Programs of other people produce and consume: librdkafka (confluent-kafka) and aiokafka."""

import threading
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition as AioTopicPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_nodes import SECONDS, kafka_nodes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with kafka_nodes(tmp_path_factory.mktemp("kafka"), 3) as cluster:
        yield cluster


def create(cluster, name, partitions=1, **config):
    admin = AdminClient({"bootstrap.servers": cluster.servers})
    (made,) = admin.create_topics([NewTopic(name, partitions, config=config)]).values()
    made.result(SECONDS)
    cluster.settle()


def producer(cluster, acks="all", **config):
    """Return a producer that is idempotent, if it may be: leaders may change on a busy machine."""
    config |= {"acks": acks, "enable.idempotence": acks == "all", "linger.ms": 1}
    return Producer({"bootstrap.servers": cluster.servers, **config})


def consumed(cluster, topic, count):
    """Return (offset, value) of the first records of partition 0."""
    config = {"group.id": "reader", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": cluster.servers, **config})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found, deadline = [], time.monotonic() + SECONDS
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(count, 0.5):
            assert message.error() is None, message.error()
            found.append((message.offset(), message.value()))
    consumer.close()
    return found


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_librdkafka_consumes_what_it_produced_in_order(cluster, acks):
    topic = f"acks-{acks}"
    create(cluster, topic)
    values = [b"%d" % number for number in range(300)]
    made = producer(cluster, acks)
    for value in values:
        made.produce(topic, value)
    assert made.flush(SECONDS) == 0
    assert consumed(cluster, topic, len(values)) == list(enumerate(values))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_come_back(cluster, codec):
    create(cluster, codec)
    values = [b"a value that can be made smaller " * 20 + b"%d" % one for one in range(50)]
    made = producer(cluster, **{"compression.type": codec})
    for value in values:
        made.produce(codec, value)
    assert made.flush(SECONDS) == 0
    assert consumed(cluster, codec, len(values)) == list(enumerate(values))


async def test_aiokafka_consumes_what_it_produced(cluster):
    create(cluster, "aio", 2)
    made = AIOKafkaProducer(bootstrap_servers=cluster.servers, enable_idempotence=True)
    await made.start()
    headers = [("h", b"1"), ("h", b"")]
    for number in range(20):
        sent = await made.send_and_wait(
            "aio", b"%d" % number, key=b"k", partition=1, timestamp_ms=number, headers=headers
        )
        assert sent.offset == number
    await made.stop()
    consumer = AIOKafkaConsumer(bootstrap_servers=cluster.servers, auto_offset_reset="earliest")
    await consumer.start()
    consumer.assign([AioTopicPartition("aio", 1)])
    for number in range(20):
        record = await consumer.getone()
        assert (record.offset, record.value, record.timestamp) == (number, b"%d" % number, number)
        assert list(record.headers) == headers
    await consumer.stop()


def test_an_idempotent_producer_loses_and_doubles_nothing_when_the_leader_dies(tmp_path):
    with kafka_nodes(tmp_path, 3) as cluster:
        create(cluster, "t")
        count, failed = 3_000, []
        made = producer(cluster, **{"batch.num.messages": 20})
        delivered = threading.Semaphore(0)

        def report(error, _):
            if error is not None:
                failed.append(error)
            delivered.release()

        for number in range(count):
            made.produce("t", b"%d" % number, on_delivery=report)
            made.poll(0)
            if number == count // 3:
                while not delivered.acquire(blocking=False):
                    made.poll(0.1)
                leader = cluster.leader_of("t")
                cluster.run(leader.stop())
                cluster.nodes.remove(leader)
        assert made.flush(SECONDS) == 0
        assert failed == []
        assert consumed(cluster, "t", count) == [(one, b"%d" % one) for one in range(count)]
