"""Consumer groups, as real clients use them: members, committed offsets, another coordinator."""

import asyncio
import contextlib
import itertools
import time

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from kafka_client import Client
from kafka_nodes import SECONDS, idempotent_producer, kafka_nodes
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups import refused_fetches
from quorumlog.kafka.requests import ApiKey
from quorumlog.machine.cluster.commands import AlterConfigs, AlterResource, ConfigChange
from quorumlog.service.metrics import NodeMetrics

NUMBERS = itertools.count()
PARTITIONS = 4
RECORDS = 40


def without_delay(nodes):
    """Have groups without members wait for nobody."""
    change = ConfigChange("set", "group.initial.rebalance.delay.ms", "0")
    command = AlterConfigs([AlterResource(None, [change])])
    nodes.run(nodes.nodes[0].broker.execute(command, SECONDS * 1000))
    nodes.settle()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with kafka_nodes(tmp_path_factory.mktemp("kafka"), 3) as nodes:
        without_delay(nodes)
        yield nodes


def filled(cluster):
    """Make a topic with the same number of records in each partition; return its name."""
    name = f"topic-{next(NUMBERS)}"
    admin = AdminClient({"bootstrap.servers": cluster.servers})
    admin.create_topics([NewTopic(name, PARTITIONS)])[name].result(SECONDS)
    cluster.settle()
    producer = idempotent_producer(cluster.servers)
    for number in range(RECORDS):
        producer.produce(name, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(SECONDS) == 0
    return name


def confluent(cluster, group, topic, **options):
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "partition.assignment.strategy": "range",
            **options,
        }
    )
    consumer.subscribe([topic])
    return consumer


def until(condition, *consumers):
    """Have consumers work until something holds; return the values of what they consumed."""
    found, deadline = [], time.monotonic() + SECONDS
    while not condition(found):
        assert time.monotonic() < deadline, found
        for consumer in consumers:
            if isinstance(consumer, KafkaConsumer):
                polled = consumer.poll(timeout_ms=50).values()
                found.extend(one.value for records in polled for one in records)
            else:
                consumed = consumer.consume(100, 0.05)
                found.extend(one.value() for one in consumed if not is_gone(one.error()))
    return found


def is_gone(error):
    """Whether a topic is not there, as a consumer notices if it is just then made anew."""
    return error is not None and error.code() == confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART


def has_all(found):
    return len(found) >= RECORDS


def numbers(count=RECORDS):
    return sorted(b"%d" % number for number in range(count))


def test_b4_two_clients_of_different_libraries_share_a_group(cluster):
    topic = filled(cluster)
    first = confluent(cluster, topic, topic)
    until(lambda found: len(first.assignment()) == PARTITIONS, first)
    second = KafkaConsumer(
        topic,
        bootstrap_servers=cluster.servers.split(","),
        group_id=topic,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )

    def is_shared(found):
        return len(first.assignment()) == len(second.assignment()) == PARTITIONS // 2

    until(is_shared, first, second)
    theirs = {one.partition for one in first.assignment()} | {
        one.partition for one in second.assignment()
    }
    assert theirs == set(range(PARTITIONS))
    second.close()
    until(lambda found: len(first.assignment()) == PARTITIONS, first)
    first.close()


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_b4_each_record_is_consumed_once_while_members_come_and_leave(cluster, strategy):
    topic = filled(cluster)
    options = {"partition.assignment.strategy": strategy}
    first = confluent(cluster, topic, topic, **options)
    begun = until(lambda found: len(found) >= RECORDS // 4, first)
    first.commit(asynchronous=False)
    second = confluent(cluster, topic, topic, **options)
    rest = until(lambda found: first.assignment() and second.assignment(), first, second)
    # what was not committed when the second one came is consumed again, and counts once
    rest += until(lambda found: len({*begun, *rest, *found}) >= RECORDS, first, second)
    assert sorted({*begun, *rest}) == numbers()
    for one in (first, second):
        one.close()


def test_b4_aiokafka_consumes_as_a_member_and_goes_on_from_its_commit(cluster):
    topic = filled(cluster)

    async def consume(count):
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=cluster.servers,
            group_id=topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            found = []
            while len(found) < count:
                records = await consumer.getmany(timeout_ms=1000, max_records=count - len(found))
                found.extend(one.value for some in records.values() for one in some)
            await consumer.commit()
        finally:
            await consumer.stop()
        return found

    first = asyncio.run(consume(15))
    rest = asyncio.run(consume(RECORDS - 15))
    assert sorted(first + rest) == numbers()


def test_b4_a_static_member_that_comes_back_has_its_partitions_at_once(cluster):
    topic = filled(cluster)
    static = {"group.instance.id": "one", "session.timeout.ms": 30_000}
    first = confluent(cluster, topic, topic, **static)
    other = confluent(cluster, topic, topic)
    until(lambda found: first.assignment() and other.assignment(), first, other)
    owned, generation = set(map(str, first.assignment())), generation_of(cluster, topic)
    first.close()  # as librdkafka does it, a static member does not leave
    again = confluent(cluster, topic, topic, **static)
    until(lambda found: again.assignment(), again, other)
    assert set(map(str, again.assignment())) == owned
    assert generation_of(cluster, topic) == generation
    again.close()
    other.close()


def generation_of(cluster, group):
    (found,) = {
        one.broker.consumer_groups[group].generation
        for one in cluster.nodes
        if one.broker.coordinator_term >= 0
    }
    return found


def test_b5_what_was_committed_is_given_back_with_its_metadata(cluster):
    topic = filled(cluster)
    consumer = confluent(cluster, topic, topic)
    until(has_all, consumer)
    wanted = [confluent_kafka.TopicPartition(topic, 0, 7, "my note")]
    consumer.commit(offsets=wanted, asynchronous=False)
    found = consumer.committed([confluent_kafka.TopicPartition(topic, n) for n in (0, 1)], SECONDS)
    assert [(one.offset, one.metadata) for one in found] == [(7, "my note"), (-1001, None)]
    consumer.close()


def test_a3_offsets_of_groups_are_listed_altered_and_deleted(cluster):
    topic = filled(cluster)
    admin = KafkaAdminClient(bootstrap_servers=cluster.servers.split(","))
    place = TopicPartition(topic, 1)
    admin.alter_group_offsets(topic, {place: OffsetAndMetadata(3, "moved", -1)})
    offsets = admin.list_group_offsets(topic)[topic]
    assert (offsets[place].offset, offsets[place].metadata) == (3, "moved")
    assert topic in {one["group_id"] for one in admin.list_groups()}
    admin.delete_group_offsets(topic, [place])
    assert place not in admin.list_group_offsets(topic)[topic]
    admin.delete_groups([topic])
    assert topic not in {one["group_id"] for one in admin.list_groups()}
    admin.close()


def test_a3_a_group_with_members_is_described_and_not_deleted(cluster):
    topic = filled(cluster)
    consumer = confluent(cluster, topic, topic, **{"client.id": "reader"})
    until(lambda found: consumer.assignment(), consumer)
    admin = AdminClient({"bootstrap.servers": cluster.servers})
    found = admin.describe_consumer_groups([topic])[topic].result(SECONDS)
    assert (found.state.name, found.partition_assignor) == ("STABLE", "range")
    (member,) = found.members
    assert (member.client_id, len(member.assignment.topic_partitions)) == ("reader", PARTITIONS)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        admin.delete_consumer_groups([topic])[topic].result(SECONDS)
    assert refused.value.args[0].name() == "NON_EMPTY_GROUP"
    consumer.close()
    found = admin.describe_consumer_groups([topic])[topic].result(SECONDS)
    assert (found.state.name, found.members) == ("EMPTY", [])


def figures_of(one):
    """Return the metrics of a node by their names: labels and values."""
    metrics = NodeMetrics(one.node, one.listener.counters, lambda: one.broker.view)
    return {
        metric.name.removeprefix("quorumlog_"): [
            (sample.labels, sample.value) for sample in metric.samples
        ]
        for metric in metrics.registry.collect()
    }


def test_f3_lag_and_rebalances_are_in_the_metrics(cluster, monkeypatch):
    topic = filled(cluster)
    consumer = confluent(cluster, topic, topic)
    until(has_all, consumer)
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 3)], asynchronous=False)
    consumer.close()
    for one in cluster.nodes:
        assert cluster.run(one.broker.barrier(SECONDS * 1_000))
    found = [figures_of(one) for one in cluster.nodes]
    lags = [
        (labels["partition"], value)
        for one in found
        for labels, value in one["consumer_group_lag_records"]
        if labels["consumer_group"] == labels["topic"] == topic
    ]
    assert lags == [("0", RECORDS // PARTITIONS - 3)], "the leader says it, and nobody else"
    assert sum(one["kafka_rebalances"][0][1] for one in found) >= 1
    known = len(cluster.nodes[0].broker.consumer_groups)
    assert [one["kafka_consumer_groups"][0][1] for one in found] == [known] * len(found)
    monkeypatch.setattr("quorumlog.service.metrics.LAGS_SHOWN_MAX", 0)
    assert not any(figures_of(one)["consumer_group_lag_records"] for one in cluster.nodes)


async def asked_of(node, key, version, **values):
    host, _, port = node.broker.advertised.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        return await Client(reader, writer).ask(key, version, **values)
    finally:
        writer.close()


def ask(cluster, key, version, *, of_coordinator=True, **values):
    node = next(
        one for one in cluster.nodes if (one.broker.coordinator_term >= 0) is of_coordinator
    )
    return cluster.run(asked_of(node, key, version, **values))


HEARTBEAT = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}


def test_b4_a_broker_that_does_not_coordinate_says_so(cluster):
    answer = ask(cluster, ApiKey.HEARTBEAT, 4, of_coordinator=False, **HEARTBEAT)
    assert answer.error_code == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize(
    ("retry_s", "error"),
    [(15, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), (0, ErrorCode.NOT_COORDINATOR)],
)
def test_b4_a_broker_that_does_not_coordinate_has_offsets_asked_for_again(
    cluster, monkeypatch, retry_s, error
):
    monkeypatch.setattr(refused_fetches, "RETRY_S", retry_s)
    topics = [{"name": "t", "partition_indexes": []}]
    answer = ask(
        cluster,
        ApiKey.OFFSET_FETCH,
        7,
        of_coordinator=False,
        group_id="g",
        topics=topics,
        require_stable=False,
    )
    assert answer.error_code == error


@pytest.mark.parametrize("name", ["", "g" * 250])
def test_c4_a_group_without_a_proper_name_is_refused(cluster, name):
    answer = ask(cluster, ApiKey.HEARTBEAT, 4, **{**HEARTBEAT, "group_id": name})
    assert answer.error_code == ErrorCode.INVALID_GROUP_ID


def test_b4_a_stranger_is_unknown(cluster):
    answer = ask(cluster, ApiKey.HEARTBEAT, 4, **HEARTBEAT)
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def commit_from_outside(cluster, group, topic, offset):
    """Return the error of a commit of partition 0 by a client that is no member."""
    partitions = [
        {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
    ]
    answer = ask(
        cluster,
        ApiKey.OFFSET_COMMIT,
        8,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[{"name": topic, "partitions": partitions}],
    )
    (partition,) = answer.topics[0].partitions
    return partition.error_code


def test_c4_what_is_said_of_an_unknown_topic_is_not_committed(cluster):
    error = commit_from_outside(cluster, "g", "none", 1)
    assert error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_b5_a_committed_offset_below_0_is_taken_as_by_kafkas_brokers_and_counts_as_none(cluster):
    topic = filled(cluster)
    assert commit_from_outside(cluster, topic, topic, -5) == ErrorCode.NONE
    consumer = confluent(cluster, topic, topic)
    until(has_all, consumer)  # from where auto.offset.reset says
    consumer.close()
    for one in cluster.nodes:
        assert cluster.run(one.broker.barrier(SECONDS * 1_000))
    assert topic not in {
        labels["consumer_group"]
        for one in cluster.nodes
        for labels, _ in figures_of(one)["consumer_group_lag_records"]
    }


def test_b5_the_last_acknowledged_commit_counts_when_the_coordinator_stops(tmp_path):
    with kafka_nodes(tmp_path, 3) as cluster:
        without_delay(cluster)
        topic = filled(cluster)
        consumer = confluent(cluster, topic, topic)
        found = until(has_all, consumer)
        consumer.commit(asynchronous=False)
        coordinator = next(one for one in cluster.nodes if one.broker.coordinator_term >= 0)
        cluster.run(coordinator.stop())
        cluster.nodes.remove(coordinator)
        places = [confluent_kafka.TopicPartition(topic, number) for number in range(PARTITIONS)]
        offsets = [one.offset for one in consumer.committed(places, SECONDS)]
        assert offsets == [RECORDS // PARTITIONS] * PARTITIONS
        producer = idempotent_producer(cluster.servers)
        for number in range(PARTITIONS):
            producer.produce(topic, b"later %d" % number, partition=number)
        assert producer.flush(SECONDS) == 0
        found = until(lambda found: len(found) >= PARTITIONS, consumer)
        assert sorted(found) == [b"later %d" % number for number in range(PARTITIONS)]
        consumer.commit(asynchronous=False)
        consumer.close()


def test_b4_without_a_coordinator_clients_are_told_to_ask_again(tmp_path):
    with kafka_nodes(tmp_path, 3) as cluster:
        without_delay(cluster)
        left, *others = cluster.nodes
        for one in others:
            cluster.run(one.stop())
            cluster.nodes.remove(one)

        fetched = cluster.run(
            asked_of(left, ApiKey.OFFSET_FETCH, 7, group_id="g", topics=None, require_stable=False)
        )
        assert fetched.error_code in (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.NOT_COORDINATOR,
        ), "older clients of Java know no other error that passes"
        broker = left.broker

        def has_heard():
            return broker.coordinator_term < 0 and broker.controller_id == broker.broker_id

        assert cluster.run(broker.until(has_heard, SECONDS * 1_000))
        listed = cluster.run(asked_of(left, ApiKey.LIST_GROUPS, 4, states_filter=[]))
        assert listed.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_c2_what_a_request_names_again_and_again_is_answered_once(cluster):
    """Else a small request has the coordinator make an answer of gigabytes."""
    topics = [{"name": "none", "partition_indexes": [0] * 10}] * 2
    groups = [{"group_id": "many", "topics": topics}] * 20
    found = ask(cluster, ApiKey.OFFSET_FETCH, 8, groups=groups, require_stable=True)
    assert [len(topic.partitions) for one in found.groups for topic in one.topics] == [1]
    found = ask(cluster, ApiKey.DESCRIBE_GROUPS, 4, groups=["many"] * 100)
    assert [one.group_id for one in found.groups] == ["many"]
    names = ["many"] * 100
    found = ask(cluster, ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=names)
    assert [one.transactional_id for one in found.transaction_states] == ["many"]


def test_groups_and_transactions_have_one_coordinator_and_nothing_else_has_any(cluster):
    found = [
        ask(cluster, ApiKey.FIND_COORDINATOR, 4, key_type=one, coordinator_keys=["t"])
        for one in range(3)
    ]
    group, transaction, other = (one.coordinators[0] for one in found)
    assert (group.error_code, group.node_id) == (ErrorCode.NONE, transaction.node_id)
    assert other.error_code == ErrorCode.INVALID_REQUEST


def test_a1_a_consumer_that_assigns_without_an_offset_goes_on_from_its_commit(cluster):
    topic = filled(cluster)

    def consume(count):
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": cluster.servers,
                "group.id": f"assigned-{topic}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, one) for one in range(PARTITIONS)])
        found = [consumer.poll(SECONDS).value() for _ in range(count)]
        consumer.commit(asynchronous=False)
        consumer.close()
        return found

    assert sorted(consume(RECORDS // 2) + consume(RECORDS - RECORDS // 2)) == numbers()


def test_g7_a_live_consumer_meets_new_partitions_deleted_records_and_a_topic_made_anew(cluster):
    topic = filled(cluster)
    admin = AdminClient({"bootstrap.servers": cluster.servers})
    options = {"topic.metadata.refresh.interval.ms": 100}
    consumer = confluent(cluster, f"live-{topic}", topic, **options)

    def consumed(*ends):
        """Return what is consumed until the group has committed these offsets of its partitions.

        After a rebalance it begins at what was committed, and consumes the rest again.
        """

        def is_committed(_):
            with contextlib.suppress(confluent_kafka.KafkaException):  # just after a rebalance
                consumer.commit(asynchronous=False)
            places = [confluent_kafka.TopicPartition(topic, one) for one in range(len(ends))]
            return [one.offset for one in consumer.committed(places, SECONDS)] == list(ends)

        return sorted({*until(is_committed, consumer)})

    def produced(value, partition):
        producer = idempotent_producer(cluster.servers, **options)
        producer.produce(topic, value, partition=partition)
        assert producer.flush(SECONDS) == 0

    count = RECORDS // PARTITIONS
    assert consumed(*[count] * PARTITIONS) == numbers()
    grown = NewPartitions(topic, PARTITIONS + 1)
    admin.create_partitions([grown])[topic].result(SECONDS)
    produced(b"in the new one", PARTITIONS)
    assert consumed(*[count] * PARTITIONS, 1) == [b"in the new one"]
    everything = confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_END)
    (deleted,) = admin.delete_records([everything]).values()
    assert deleted.result(SECONDS).low_watermark == count
    produced(b"after the deleted ones", 0)
    assert consumed(count + 1, *[count] * (PARTITIONS - 1), 1) == [b"after the deleted ones"]
    admin.delete_topics([topic])[topic].result(SECONDS)
    admin.create_topics([NewTopic(topic, 1)])[topic].result(SECONDS)
    produced(b"in the topic made anew", 0)
    assert consumed(1) == [b"in the topic made anew"]
    consumer.close()
