"""Topics that a sink writes to, as librdkafka makes and reads them: committed records only."""

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

SECONDS = 60
PASSING = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
}
"""Errors of consumers while brokers are killed."""


def make_topics(servers, names, partitions):
    """Make topics, and wait until all their partitions have leaders."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for made in admin.create_topics([NewTopic(one, partitions) for one in names]).values():
        made.result(SECONDS)
    deadline = time.monotonic() + SECONDS
    for name in names:
        while not all(one.leader >= 0 for one in _partitions_of(admin, name)):
            assert time.monotonic() < deadline


def _partitions_of(admin, name):
    return admin.list_topics(name, SECONDS).topics[name].partitions.values()


def read_rows(servers, topics, partitions, isolation="read_committed", seconds=SECONDS):
    """Return (topic, message) for all records up to the end of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "log_level": 0,
        }
    )
    places = [TopicPartition(name, one, 0) for name in topics for one in range(partitions)]
    consumer.assign(places)
    deadline, found = time.monotonic() + seconds, []
    left = {(one.topic, one.partition) for one in places}
    while left:
        assert time.monotonic() < deadline, f"{left} were not read to their ends"
        for message in consumer.consume(1_000, 0.2):
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard((message.topic(), message.partition()))
            elif error.code() not in PASSING:
                raise KafkaException(error)
    consumer.close()
    return found


def values_of(servers, topics, partitions, **options):
    """Return the values of all records, in order."""
    return sorted(one.value() for one in read_rows(servers, topics, partitions, **options))
