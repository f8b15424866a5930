"""Transactions, as real clients use them: of several libraries, through deaths of nodes (B3)."""

import asyncio
import itertools
import json
import time

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import ProducerFenced
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, KafkaProducer

from kafka_coordinators import told
from kafka_nodes import SECONDS, idempotent_producer, kafka_nodes
from quorumlog.cli.main import main

NUMBERS = itertools.count()
PARTITIONS = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with kafka_nodes(tmp_path_factory.mktemp("kafka"), 3) as nodes:
        yield nodes


def topics(cluster, count=1):
    names = [f"topic-{next(NUMBERS)}" for _ in range(count)]
    admin = AdminClient({"bootstrap.servers": cluster.servers})
    for made in admin.create_topics([NewTopic(one, PARTITIONS) for one in names]).values():
        made.result(SECONDS)
    cluster.settle()
    return names


def producer_of(cluster, name, **options):
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.servers, "transactional.id": name, **options}
    )
    producer.init_transactions(SECONDS)
    return producer


def read(cluster, *names, isolation="read_committed"):
    """Return all values of some topics, as librdkafka sees them."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.servers,
            "group.id": "reader",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
        }
    )
    places = [TopicPartition(name, number, 0) for name in names for number in range(PARTITIONS)]
    consumer.assign(places)
    found, left, deadline = [], len(places), time.monotonic() + SECONDS
    while left:
        assert time.monotonic() < deadline
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error() is None:
            found.append(message.value())
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF
            left -= 1
    consumer.close()
    return sorted(found)


async def read_by_aiokafka(cluster, name, count):
    """Return the first `count` values of a topic, and what comes within a moment after them."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=cluster.servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        consumer.assign([AioTopicPartition(name, number) for number in range(PARTITIONS)])
        found = []
        async with asyncio.timeout(SECONDS):
            while len(found) < count:
                some = await consumer.getmany(timeout_ms=200)
                found += [one.value for records in some.values() for one in records]
        some = await consumer.getmany(timeout_ms=500)
        return sorted(found + [one.value for records in some.values() for one in records])
    finally:
        await consumer.stop()


# -- committed and aborted ------------------------------------------------------------------------


def transact_by_confluent(cluster, name, outcomes):
    producer = producer_of(cluster, name)
    for number, commits in enumerate(outcomes):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(name, b"%d-%d" % (number, partition), partition=partition)
        if commits:
            producer.commit_transaction(SECONDS)
        else:
            producer.flush(SECONDS)
            producer.abort_transaction(SECONDS)


def transact_by_aiokafka(cluster, name, outcomes):
    async def transact():
        producer = AIOKafkaProducer(bootstrap_servers=cluster.servers, transactional_id=name)
        await producer.start()
        try:
            for number, commits in enumerate(outcomes):
                await producer.begin_transaction()
                for partition in range(PARTITIONS):
                    value = b"%d-%d" % (number, partition)
                    await producer.send_and_wait(name, value, partition=partition)
                if commits:
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()
        finally:
            await producer.stop()

    asyncio.run(transact())


def transact_by_kafka_python(cluster, name, outcomes):
    producer = KafkaProducer(
        bootstrap_servers=cluster.servers.split(","), transactional_id=name, acks="all"
    )
    producer.init_transactions()
    for number, commits in enumerate(outcomes):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.send(name, b"%d-%d" % (number, partition), partition=partition)
        producer.flush()
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()


@pytest.mark.parametrize(
    "transact", [transact_by_confluent, transact_by_aiokafka, transact_by_kafka_python]
)
def test_b3_only_committed_records_are_read_by_those_who_ask_for_these(cluster, transact):
    (name,) = topics(cluster)
    outcomes = [True, False, True, False, False, True]
    transact(cluster, name, outcomes)
    values = [
        (commits, b"%d-%d" % (number, partition))
        for number, commits in enumerate(outcomes)
        for partition in range(PARTITIONS)
    ]
    committed = sorted(value for commits, value in values if commits)
    assert read(cluster, name) == committed
    assert asyncio.run(read_by_aiokafka(cluster, name, len(committed))) == committed
    everything = sorted(value for _, value in values)
    assert read(cluster, name, isolation="read_uncommitted") == everything


def test_b3_readers_wait_at_the_first_record_of_an_ongoing_transaction(cluster):
    (name,) = topics(cluster)
    producer = producer_of(cluster, name)
    plain = idempotent_producer(cluster.servers)
    plain.produce(name, b"before", partition=0)
    plain.flush(SECONDS)
    producer.begin_transaction()
    producer.produce(name, b"within", partition=0)
    producer.flush(SECONDS)
    plain.produce(name, b"after", partition=0)
    plain.flush(SECONDS)
    assert read(cluster, name) == [b"before"]
    everything = [b"after", b"before", b"within"]
    assert read(cluster, name, isolation="read_uncommitted") == everything
    producer.commit_transaction(SECONDS)
    assert read(cluster, name) == everything


def test_b3_what_a_producer_has_begun_is_aborted_when_another_takes_its_id(cluster):
    (name,) = topics(cluster)
    first = producer_of(cluster, name)
    first.begin_transaction()
    first.produce(name, b"first", partition=0)
    first.flush(SECONDS)
    second = producer_of(cluster, name)
    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(SECONDS)
    assert refused.value.args[0].code() == KafkaError._FENCED
    second.begin_transaction()
    second.produce(name, b"second", partition=0)
    second.commit_transaction(SECONDS)
    assert read(cluster, name) == [b"second"]


def test_b3_an_aiokafka_producer_is_told_that_another_has_its_id(cluster):
    (name,) = topics(cluster)

    async def be_fenced():
        first = AIOKafkaProducer(bootstrap_servers=cluster.servers, transactional_id=name)
        await first.start()
        await first.begin_transaction()
        await first.send_and_wait(name, b"first", partition=0)
        second = AIOKafkaProducer(bootstrap_servers=cluster.servers, transactional_id=name)
        await second.start()
        with pytest.raises(ProducerFenced):
            await first.commit_transaction()
        await second.stop()
        await first.stop()

    asyncio.run(be_fenced())
    assert read(cluster, name) == []


def test_b3_a_transaction_that_takes_too_long_is_aborted(cluster):
    (name,) = topics(cluster)
    producer = producer_of(cluster, name, **{"transaction.timeout.ms": 1_000})
    producer.begin_transaction()
    producer.produce(name, b"late", partition=0)
    producer.flush(SECONDS)
    plain = idempotent_producer(cluster.servers)
    plain.produce(name, b"plain", partition=0)
    plain.flush(SECONDS)
    deadline = time.monotonic() + SECONDS
    while read(cluster, name) != [b"plain"]:
        assert time.monotonic() < deadline
    with pytest.raises(KafkaException):
        producer.commit_transaction(SECONDS)


# -- offsets --------------------------------------------------------------------------------------


def test_b3_b5_offsets_are_committed_with_the_transaction_or_not_at_all(cluster):
    source, target = topics(cluster, 2)
    plain = idempotent_producer(cluster.servers)
    for number in range(10):
        plain.produce(source, b"%d" % number, partition=0)
    plain.flush(SECONDS)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.servers, "group.id": source, "enable.auto.commit": False}
    )
    place = TopicPartition(source, 0)

    def committed():
        return consumer.committed([place], SECONDS)[0].offset

    producer = producer_of(cluster, source)
    for offset, commits in ((4, False), (6, True), (9, False)):
        producer.begin_transaction()
        producer.produce(target, b"%d" % offset, partition=0)
        places = [TopicPartition(source, 0, offset)]
        producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), SECONDS)
        if commits:
            producer.commit_transaction(SECONDS)
            assert committed() == offset
        else:
            producer.abort_transaction(SECONDS)
    assert committed() == 6
    assert read(cluster, target) == [b"6"]
    consumer.close()


def test_b3_an_offset_that_a_transaction_may_commit_is_not_told_as_stable(cluster):
    (source,) = topics(cluster)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.servers, "group.id": source, "enable.auto.commit": False}
    )
    producer = producer_of(cluster, source)
    producer.begin_transaction()
    places = [TopicPartition(source, 0, 5)]
    producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), SECONDS)
    with pytest.raises(KafkaException) as refused:  # librdkafka asks again until it is stable
        consumer.committed([TopicPartition(source, 0)], 1)
    assert refused.value.args[0].code() == KafkaError._TIMED_OUT
    producer.commit_transaction(SECONDS)
    assert consumer.committed([TopicPartition(source, 0)], SECONDS)[0].offset == 5
    consumer.close()


# -- for administrators ---------------------------------------------------------------------------


def test_a3_transactions_are_described_and_listed(cluster):
    (name,) = topics(cluster)
    producer = producer_of(cluster, name)
    admin = KafkaAdminClient(bootstrap_servers=cluster.servers.split(","))
    try:
        described = told(admin.describe_transactions, [name])[name]
        assert described.state.value == "Empty"
        producer.begin_transaction()
        producer.produce(name, b"x", partition=2)
        producer.flush(SECONDS)
        described = told(admin.describe_transactions, [name])[name]
        assert described.state.value == "Ongoing"
        assert [tuple(one) for one in described.topic_partitions] == [(name, 2)]
        listed = [one for found in told(admin.list_transactions).values() for one in found]
        states = {one.transactional_id: one.state.value for one in listed}
        assert states[name] == "Ongoing"
        producer.commit_transaction(SECONDS)
        assert told(admin.describe_transactions, [name])[name].state.value == "CompleteCommit"
    finally:
        admin.close()


def test_f2_transactions_are_shown_on_the_command_line(cluster, capsys):
    (name,) = topics(cluster)
    producer = producer_of(cluster, name)
    producer.begin_transaction()
    producer.produce(name, b"x", partition=2)
    producer.flush(SECONDS)
    options = ["--bootstrap-server", cluster.servers]
    assert main(["transaction", "list", *options]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["TRANSACTIONAL", "ID", "STATE", "PRODUCER", "ID"]
    assert [line[1] for line in lines if line[0] == name] == ["Ongoing"]
    assert main(["transaction", "list", "--running-longer-than", "600", *options]) == 0
    assert name not in capsys.readouterr().out
    assert main(["transaction", "describe", name, "--json", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["timeout_ms"]) == ("Ongoing", 60_000)
    assert found["partitions"] == [{"topic": name, "partition": 2}]
    assert main(["transaction", "describe", name, "none", *options]) == 1
    printed, told = capsys.readouterr()
    assert f"  {name} 2\n" in printed
    shown = "('quorumlog transaction list' shows those there are)"
    assert f"there is no transactional id 'none' {shown}" in told
    producer.abort_transaction(SECONDS)
