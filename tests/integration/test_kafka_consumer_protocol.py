"""Groups by the consumer protocol (KIP-848), as librdkafka uses it: members that come, go, die and
restart, offsets of those that are fenced, and a coordinator that is killed.
"""

import contextlib
import itertools
import signal
import subprocess
import sys
import time

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    NewPartitions,
    NewTopic,
)
from test_kafka_consumer_groups import ask

from kafka_nodes import SECONDS, hasten, idempotent_producer, kafka_nodes
from quorumlog.cli.main import main
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.requests import ApiKey
from quorumlog.local import LocalCluster

NUMBERS = itertools.count()
PARTITIONS, RECORDS = 4, 40
SESSION_MS = 45_000
"""As by default: only a member that is killed shall be removed."""
CHILD = """
import sys, confluent_kafka
servers, group, topic = sys.argv[1:]
settings = {"bootstrap.servers": servers, "group.id": group, "group.protocol": "consumer"}
consumer = confluent_kafka.Consumer({**settings, "auto.offset.reset": "earliest"})
consumer.subscribe([topic])
while not consumer.assignment():
    consumer.poll(0.1)
print("assigned", flush=True)
while True:
    consumer.poll(1)
"""
"""A consumer in a process of its own, which can be killed."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with kafka_nodes(tmp_path_factory.mktemp("kafka"), 3) as nodes:
        hasten(nodes.servers, SESSION_MS)
        nodes.settle()
        yield nodes


@pytest.fixture
def topic(cluster):
    """A topic with as many records in each partition."""
    name = f"topic-{next(NUMBERS)}"
    fill(cluster.servers, name)
    cluster.settle()
    return name


def fill(servers, name):
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, PARTITIONS)])[name].result(SECONDS)
    producer = idempotent_producer(servers)
    for number in range(RECORDS):
        producer.produce(name, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(SECONDS) == 0


@pytest.fixture
def consumer(cluster):
    """Makes members of a group; those that are left are closed."""
    made = []

    def make(group, *topics, servers=cluster.servers, **options):
        one = confluent_kafka.Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 200,
                **options,
            }
        )
        one.subscribe(list(topics or (group,)))
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


def until(condition, *consumers):
    """Have consumers work until something holds; return the values of what they consumed."""
    found, deadline = [], time.monotonic() + SECONDS
    while not condition(found):
        assert time.monotonic() < deadline, found
        for one in consumers:
            found.extend(each.value() for each in one.consume(100, 0.02) if not each.error())
    return found


def owned(*consumers):
    return [sorted(one.partition for one in each.assignment()) for each in consumers]


def shared(*consumers):
    """Whether all partitions are owned, by each consumer as many as by any other."""

    def are_shared(found):
        theirs = owned(*consumers)
        counts = [len(one) for one in theirs]
        all_of_them = sorted(itertools.chain(*theirs))
        return all_of_them == list(range(PARTITIONS)) and max(counts) - min(counts) < 2

    return are_shared


def test_b4_members_share_partitions_and_each_record_is_consumed_once(cluster, topic, consumer):
    first = consumer(topic)
    begun = until(lambda found: len(found) >= RECORDS // 4, first)
    first.commit(asynchronous=False)
    others = [consumer(topic) for _ in range(3)]
    rest = until(shared(first, *others), first, *others)
    # what was not committed when the others came is consumed again, and counts once
    rest += until(lambda found: len({*begun, *rest, *found}) >= RECORDS, first, *others)
    assert sorted({*begun, *rest}) == sorted(b"%d" % one for one in range(RECORDS))
    for one in others[:2]:
        one.close()
    until(shared(first, others[2]), first, others[2])


@pytest.fixture
def short_sessions(cluster):
    hasten(cluster.servers)
    cluster.settle()
    yield
    hasten(cluster.servers, SESSION_MS)
    cluster.settle()


@pytest.mark.usefixtures("short_sessions")
def test_b4_what_a_member_had_that_was_killed_is_others_after_its_session(cluster, topic, consumer):
    first = consumer(topic)
    until(shared(first), first)
    command = [sys.executable, "-c", CHILD, cluster.servers, topic, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        until(lambda found: len(first.assignment()) < PARTITIONS, first)
        assert child.stdout.readline() == "assigned\n"
        child.send_signal(signal.SIGKILL)
    until(shared(first), first)


def test_b4_a_static_member_that_restarts_has_its_partitions_and_nobody_else_notices(
    cluster, topic, consumer
):
    first = consumer(topic, **{"group.instance.id": "one"})
    other = consumer(topic)
    until(shared(first, other), first, other)
    theirs, epoch = owned(first, other), epoch_of(cluster, topic)
    first.close()
    again = consumer(topic, **{"group.instance.id": "one"})
    until(lambda found: again.assignment(), again, other)
    assert owned(again, other) == theirs
    assert epoch_of(cluster, topic) == epoch


def epoch_of(cluster, group):
    (found,) = {
        one.broker.consumer_groups[group].generation
        for one in cluster.nodes
        if one.broker.coordinator_term >= 0
    }
    return found


def test_b5_who_was_fenced_commits_nothing(cluster, topic, consumer):
    first = consumer(topic, **{"max.poll.interval.ms": 1_500})
    until(shared(first), first)
    second = consumer(topic)
    until(shared(second), second)  # the first one does not poll, and leaves
    place = confluent_kafka.TopicPartition(topic, 0, 5)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        first.commit(offsets=[place], asynchronous=False)
    assert refused.value.args[0].name() in (
        "UNKNOWN_MEMBER_ID",
        "STALE_MEMBER_EPOCH",
        "_STATE",
        "ILLEGAL_GENERATION",
    )
    second.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 7)], asynchronous=False)
    (found,) = second.committed([place], SECONDS)
    assert found.offset == 7


def commit_of(topic, epoch, member_id="m"):
    offset = {"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}
    return {
        "group_id": f"raw-{topic}",
        "generation_id_or_member_epoch": epoch,
        "member_id": member_id,
        "topics": [{"name": topic, "partitions": [{**offset, "committed_leader_epoch": -1}]}],
    }


def test_b5_offsets_name_the_epoch_of_their_member(cluster, topic):
    def told(key, version, **values):
        return ask(cluster, key, version, **values)

    joined = told(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        1,
        group_id=f"raw-{topic}",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=[topic],
        topic_partitions=[],
    )
    assert (joined.error_code, joined.member_epoch) == (0, 1)

    def committed(epoch, version=9, member_id="m"):
        answer = told(ApiKey.OFFSET_COMMIT, version, **commit_of(topic, epoch, member_id))
        return answer.topics[0].partitions[0].error_code

    def fetched(member_id, epoch):
        asked = {"group_id": f"raw-{topic}", "topics": None}
        member = {"member_id": member_id, "member_epoch": epoch}
        (answer,) = told(ApiKey.OFFSET_FETCH, 9, groups=[{**asked, **member}]).groups
        return answer.error_code

    assert committed(0) == ErrorCode.STALE_MEMBER_EPOCH
    assert committed(1, member_id="x") == ErrorCode.UNKNOWN_MEMBER_ID
    assert committed(1, version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert committed(-1, member_id="") == ErrorCode.UNKNOWN_MEMBER_ID
    assert committed(1) == ErrorCode.NONE
    assert fetched("m", 1) == fetched(None, -1) == ErrorCode.NONE
    assert fetched("m", 2) == ErrorCode.STALE_MEMBER_EPOCH
    assert fetched("x", 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_b3_offsets_of_a_member_are_committed_in_a_transaction_and_only_with_its_epoch(
    cluster, topic, consumer
):
    one = consumer(topic)
    until(lambda found: len(found) >= RECORDS, one)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.servers, "transactional.id": topic}
    )
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    member = one.consumer_group_metadata()
    positions = one.position(one.assignment())
    producer.send_offsets_to_transaction(positions, member, SECONDS)
    producer.commit_transaction(SECONDS)
    found = one.committed(one.assignment(), SECONDS)
    assert [place.offset for place in found] == [RECORDS // PARTITIONS] * PARTITIONS
    one.close()
    producer.begin_transaction()
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        producer.send_offsets_to_transaction(positions, member, SECONDS)
    assert refused.value.args[0].name() in ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION")
    producer.abort_transaction(SECONDS)


HEARTBEAT = {
    "group_id": "bad",
    "member_id": "m",
    "member_epoch": 0,
    "rebalance_timeout_ms": 1_000,
    "subscribed_topic_names": ["t"],
    "topic_partitions": [],
}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": []}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": ["t" * 250]}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": ["t"] * 10_001}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": [{"partitions": [0]}]}, ErrorCode.FENCED_MEMBER_EPOCH),
        ({"server_assignor": "best"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"member_epoch": 5}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_c4_what_makes_no_sense_is_refused_with_words(cluster, change, error):
    answer = ask(cluster, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **{**HEARTBEAT, **change})
    assert (answer.error_code, bool(answer.error_message)) == (error, True)


def test_g7_partitions_and_topics_that_are_new_are_consumed_by_a_regular_expression(
    cluster, topic, consumer
):
    reader = consumer(f"of-{topic}", f"^{topic}.*")
    until(lambda found: len(found) >= RECORDS, reader)
    admin = AdminClient({"bootstrap.servers": cluster.servers})
    admin.create_partitions([NewPartitions(topic, PARTITIONS + 1)])[topic].result(SECONDS)
    fill(cluster.servers, f"{topic}-more")
    until(lambda found: len(reader.assignment()) == 2 * PARTITIONS + 1, reader)
    admin.delete_topics([f"{topic}-more"])[f"{topic}-more"].result(SECONDS)
    until(lambda found: len(reader.assignment()) == PARTITIONS + 1, reader)


def test_f2_a_group_of_the_protocol_is_listed_described_reset_and_deleted(
    cluster, topic, consumer, capsys
):
    def run(*arguments):
        status = main(["consumer-group", *arguments, "--bootstrap-server", cluster.servers])
        return status, *capsys.readouterr()

    one = consumer(topic, **{"client.id": "svc"})
    until(lambda found: len(found) >= RECORDS, one)
    one.commit(asynchronous=False)
    assert f'"group": "{topic}", "type": "consumer", "state": "Stable"' in run("list", "--json")[1]
    out = run("describe", topic)[1]
    assert (
        f"{topic}: Stable, 1 member, lag 0\n  consumer protocol, epoch 1, assignor uniform" in out
    )
    columns, row = (line.split() for line in out.splitlines()[2:4])
    assert columns[-4:] == ["MEMBER", "EPOCH", "CLIENT", "HOST"]
    assert row[-3:] == ["1", "svc", "127.0.0.1"]
    assert run("reset", topic, "--to-earliest")[0] == run("delete", topic)[0] == 1
    one.close()
    assert run("reset", topic, "--to-earliest")[0] == 0
    assert f'"committed": 0, "end": {RECORDS // PARTITIONS}' in run("describe", topic, "--json")[1]
    assert run("delete", topic)[:2] == (0, f"group {topic} is deleted\n")
    assert f"there is no consumer group {topic!r}" in run("describe", topic)[2]


def test_b4_consumers_of_the_other_protocol_are_refused_while_there_are_members(
    cluster, topic, consumer
):
    one = consumer(topic)
    until(shared(one), one)
    classic = consumer(topic, **CLASSIC)
    assert error_of(classic) == "INCONSISTENT_GROUP_PROTOCOL"
    one.close()
    until(shared(classic), classic)
    assert error_of(consumer(topic)) == "_FATAL"


CLASSIC = {"group.protocol": "classic", "session.timeout.ms": 6_000}


def error_of(one):
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        message = one.poll(0.1)
        if message is not None and message.error():
            return message.error().name()
    return "no error"


@pytest.mark.processes
def test_b4_a_group_goes_on_when_its_coordinator_is_killed(tmp_path, consumer):
    cluster = LocalCluster.create(tmp_path / "c", topics=True, kafka_port=0)
    try:
        cluster.up(SECONDS)
        servers = cluster.bootstrap_servers
        hasten(servers, SESSION_MS)
        fill(servers, "t")
        members = [consumer("g", "t", servers=servers) for _ in range(2)]
        found = until(shared(*members), *members)
        found += until(lambda more: len(found + more) >= RECORDS, *members)
        places = [confluent_kafka.TopicPartition("t", number) for number in range(PARTITIONS)]

        def has_committed(_):
            for one in members:
                with contextlib.suppress(confluent_kafka.KafkaException):  # it has read nothing yet
                    one.commit(asynchronous=False)
            offsets = [one.offset for one in members[0].committed(places, SECONDS)]
            return offsets == [RECORDS // PARTITIONS] * PARTITIONS

        until(has_committed, *members)
        theirs = owned(*members)
        controller = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=SECONDS)
        port = controller.brokers[controller.controller_id].port
        (node_id,) = (
            one for one in cluster.node_ids if cluster.kafka_address(one).endswith(f":{port}")
        )
        cluster.kill(node_id)
        producer = idempotent_producer(servers)
        for number in range(PARTITIONS):
            producer.produce("t", b"later %d" % number, partition=number)
        assert producer.flush(SECONDS) == 0
        more = until(lambda found: len(found) >= PARTITIONS, *members)
        assert sorted(more) == [b"later %d" % number for number in range(PARTITIONS)]
        for one in members:
            one.commit(asynchronous=False)
        assert owned(*members) == theirs
    finally:
        cluster.down()
