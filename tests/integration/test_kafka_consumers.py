"""Consumers that are assigned their partitions, in a group or in none."""

import time

import confluent_kafka
import pytest
from kafka import KafkaConsumer, TopicPartition

from kafka_nodes import SECONDS, kafka_nodes

PROMPT_S = 20
"""Well below the 45 s for which librdkafka tries to commit."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with kafka_nodes(tmp_path_factory.mktemp("kafka")) as nodes:
        producer = confluent_kafka.Producer({"bootstrap.servers": nodes.servers})
        producer.list_topics("t", timeout=SECONDS)
        nodes.settle()
        producer.produce("t", b"value", partition=0)
        assert producer.flush(SECONDS) == 0
        yield nodes


def consumer_of(cluster):
    settings = {"bootstrap.servers": cluster.servers, "group.id": "g"}
    return confluent_kafka.Consumer(settings | {"auto.offset.reset": "earliest"})


def polled(consumer):
    """Return the first message or error of a consumer."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        found = consumer.poll(1)
        if found is not None:
            return found
    raise AssertionError("nothing came")


def test_a_consumer_of_librdkafka_that_would_commit_by_itself_closes_promptly(cluster):
    consumer = consumer_of(cluster)
    consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
    assert polled(consumer).value() == b"value"
    begun = time.monotonic()
    consumer.close()
    assert time.monotonic() - begun < PROMPT_S


def test_a_consumer_without_a_group_reads(cluster):
    consumer = KafkaConsumer(bootstrap_servers=cluster.servers, auto_offset_reset="earliest")
    partition = TopicPartition("t", 0)
    consumer.assign([partition])
    (records,) = consumer.poll(timeout_ms=SECONDS * 1000).values()
    assert [one.value for one in records] == [b"value"]
    assert consumer.end_offsets([partition]) == {partition: 1}
    consumer.close()
