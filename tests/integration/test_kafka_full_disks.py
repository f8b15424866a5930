"""Topics while the disks of all brokers are full: what makes room is done, all else is refused."""

import time
from collections import Counter

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from test_kafka_consumer_protocol import hasten

from quorumlog.local import LocalCluster
from small_disks import on_small_disks

pytestmark = pytest.mark.processes

SECONDS = 60
DISK_BYTES = 400 << 20
RECORD = bytes(100_000)
RECORDS = 900
"""Deleted, they leave more than what a node keeps free (`diskReserveBytes`)."""


@pytest.fixture
def full(tmp_path):
    """Brokers with full disks, most of which holds one topic; and their disks."""
    cluster = LocalCluster.create(
        tmp_path / "c", topics=True, kafka_port=0, data_file_bytes=8 << 20
    )
    with on_small_disks(cluster, DISK_BYTES) as disks:
        cluster.up(SECONDS)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        hasten(cluster.bootstrap_servers)
        topics = [NewTopic("large", 1), NewTopic("small", 1)]
        for made in admin.create_topics(topics, operation_timeout=SECONDS).values():
            made.result(SECONDS)
        assert errors_of(cluster, "large", RECORDS) == []
        for disk in disks.values():
            disk.fill()
        until(lambda: errors_of(cluster, "small", 1))
        until(lambda: creation_error(admin) == KafkaError.KAFKA_STORAGE_ERROR)
        yield cluster, admin


def errors_of(cluster, topic, count):
    """Produce records; return the errors of those that were refused."""
    errors = []
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 5, "retries": 0}
    )
    for _ in range(count):
        while True:
            try:
                producer.produce(
                    topic, RECORD, on_delivery=lambda error, _: error and errors.append(error)
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(SECONDS) == 0
    return errors


def until(is_done):
    deadline = time.monotonic() + SECONDS
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def creation_error(admin):
    """Return why a topic cannot be created; a broker sees a little later that its disk is full."""
    name = f"new-{time.monotonic_ns()}"
    (made,) = admin.create_topics([NewTopic(name, 1)], operation_timeout=1).values()
    try:
        made.result(SECONDS)
    except KafkaException as refused:
        return refused.args[0].code()
    return None


def commit_error(consumer):
    """Return why a consumer cannot commit an offset; it joins again, if it has to, in `poll`."""
    consumer.poll(0)
    with pytest.raises(KafkaException) as refused:
        consumer.commit(offsets=[TopicPartition("large", 0, 1)], asynchronous=False)
    return refused.value.args[0].code()


def test_a_topic_is_deleted_and_its_room_is_used(full):
    cluster, admin = full
    (refused,) = errors_of(cluster, "small", 1)
    assert refused.code() == KafkaError.KAFKA_STORAGE_ERROR
    (deleted,) = admin.delete_topics(["large"], operation_timeout=SECONDS).values()
    deleted.result(SECONDS)
    until(lambda: not errors_of(cluster, "small", 1))


def test_a_shorter_retention_makes_room(full):
    cluster, admin = full
    entry = ConfigEntry("retention.bytes", "1000000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "large", incremental_configs=[entry])
    (altered,) = admin.incremental_alter_configs([resource]).values()
    altered.result(SECONDS)
    until(lambda: not errors_of(cluster, "small", 1))


CLASSIC = {"partition.assignment.strategy": "roundrobin"}
CONSUMER = {"group.protocol": "consumer"}


@pytest.mark.parametrize("protocol", [CLASSIC, CONSUMER], ids=["classic", "consumer"])
def test_consumers_join_and_read_and_are_told_that_nothing_is_committed(full, protocol):
    cluster, _ = full
    consumers = [
        Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": commits,
                **protocol,
            }
        )
        for commits in (True, False)
    ]
    for consumer in consumers:  # the second one has the group rebalance
        consumer.subscribe(["large", "small"])
        until(shared_by(consumers[: consumers.index(consumer) + 1]))
    read = Counter()

    def has_all():
        for consumer in consumers:
            read.update(one.topic() for one in consumer.consume(100, 0.2) if not one.error())
        return read["large"] >= 0.9 * RECORDS  # some were read before

    until(has_all)
    # after a refusal of its own commits librdkafka looks for the coordinator, and answers itself
    until(lambda: commit_error(consumers[0]) == KafkaError.COORDINATOR_NOT_AVAILABLE)
    for consumer in consumers:
        consumer.close()


def shared_by(consumers):
    """Whether each consumer has a partition, after all have been polled."""

    def is_shared():
        for consumer in consumers:
            consumer.poll(0.1)  # what it reads meanwhile is read again by whoever gets it
        return all(consumer.assignment() for consumer in consumers)

    return is_shared
