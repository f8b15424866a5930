"""Spark's readers of topics against brokers that live: all that needs no Spark."""

import itertools
import os
import socket
import threading

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from kafka_nodes import SECONDS, idempotent_producer, kafka_nodes
from pipeline_access import run_here
from quorumlog.kafka.frames import FIRST_FRAME_BYTES_MAX
from quorumlog.kafka.requests import ApiKey
from quorumlog.local.ports import free_ports
from quorumlog.model.errors import NetworkError, RemoteProtocolError
from quorumlog.spark.access import open_brokers
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.spark.jobs.topics.audit import audit_archive
from quorumlog.spark.jobs.topics.replay import replay_topics
from quorumlog.spark.jobs.topics.source import topic_source
from quorumlog.spark.source.offsets import DataLossError
from quorumlog.spark.topics.batch import TopicReader
from quorumlog.spark.topics.errors import UnknownTopicError
from quorumlog.spark.topics.options import parse_topic_options
from quorumlog.spark.topics.part import LATEST, Part
from quorumlog.spark.topics.remote_brokers import RemoteBrokers
from quorumlog.storage.files.os_files import boot_id
from spark_topics_fakes import rows_of
from topic_archives import FILES, archived

NUMBERS = itertools.count()
PARTITIONS = 3
RECORDS = 3_000
SMALL_FETCH = 2 * 1024


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with kafka_nodes(tmp_path_factory.mktemp("kafka"), 3) as nodes:
        yield nodes


@pytest.fixture
def topic(cluster):
    name = f"topic-{next(NUMBERS)}"
    admin = AdminClient({"bootstrap.servers": cluster.servers})
    admin.create_topics([NewTopic(name, PARTITIONS)])[name].result(SECONDS)
    cluster.settle()
    return name


def produce(cluster, topic, values, **options):
    producer = idempotent_producer(cluster.servers, **options)
    if "transactional.id" in options:
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
    for value in values:
        producer.produce(topic, str(value).encode(), partition=value % PARTITIONS)
        producer.poll(0)
    assert producer.flush(SECONDS) == 0
    return producer


def reader_of(cluster, topic, **options):
    named = {"kafka.bootstrap.servers": cluster.servers, "subscribe": topic, **options}
    return TopicReader(parse_topic_options(named).for_batch(), ("partition", "value"))


def located_in(cluster, topic):
    """Return how many batches the leaders have located for readers on this machine."""
    leaders = {cluster.leader_of(topic, number) for number in range(PARTITIONS)}
    return sum(
        replica.partitions.locations.entries_located
        for one in leaders
        for replica in one.node.replicas.values()
    )


def numbers_of(rows):
    """Return the numbers that were produced, sorted; those of a partition came in order."""
    by_partition = [[int(row["value"]) for row in rows if row["partition"] == n] for n in range(3)]
    assert all(found == sorted(found) for found in by_partition)
    return sorted(itertools.chain(*by_partition))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_b13_what_a_client_produced_is_read(cluster, topic, codec):
    produce(cluster, topic, range(RECORDS), **{"compression.type": codec, "linger.ms": 20})
    before = located_in(cluster, topic)
    for options in ({}, {"localReads": "false"}):
        reader = reader_of(cluster, topic, **options)
        assert numbers_of(rows_of(reader, reader.partitions())) == list(range(RECORDS))
        if not options:
            located = located_in(cluster, topic)
            assert located >= before + PARTITIONS
    assert located_in(cluster, topic) == located


def test_b13_a_read_ends_before_a_transaction_that_is_ongoing(cluster, topic):
    produce(cluster, topic, range(30))
    ongoing = produce(cluster, topic, range(30, 60), **{"transactional.id": "a"})
    produce(cluster, topic, range(60, 90))
    reader = reader_of(cluster, topic)
    assert numbers_of(rows_of(reader, reader.partitions())) == list(range(30))
    dirty = reader_of(cluster, topic, isolationLevel="read_uncommitted")
    assert numbers_of(rows_of(dirty, dirty.partitions())) == list(range(90))
    ongoing.abort_transaction(SECONDS)
    reads = RemoteBrokers(open_brokers(cluster.servers), SECONDS * 1_000, "test")
    parts = {Part(topic, number): LATEST for number in range(PARTITIONS)}
    while set(reads.offsets(parts, reads_committed=True).values()) != {31}:
        pass
    for kept in ("true", "false"):
        reader = reader_of(cluster, topic, localReads=kept)
        rows = rows_of(reader, reader.partitions())
        assert numbers_of(rows) == [*range(30), *range(60, 90)]


def test_records_are_sent_by_a_broker_whose_files_are_not_here(cluster, topic, monkeypatch):
    produce(cluster, topic, range(30))
    reader = reader_of(cluster, topic)
    tasks, before = reader.partitions(), located_in(cluster, topic)
    monkeypatch.setattr("quorumlog.spark.topics.local_reads.boot_id", lambda: "another machine")
    asked = []
    locate = RemoteBrokers._ask

    def ask(self, address, key, *args):
        asked.append((address, key))
        return locate(self, address, key, *args)

    monkeypatch.setattr(RemoteBrokers, "_ask", ask)
    for _ in range(2):
        assert numbers_of(rows_of(reader, tasks)) == list(range(30))
    assert located_in(cluster, topic) == before
    asked = [address for address, key in asked if key == ApiKey.LOCATE_BATCHES]
    assert sorted(asked) == sorted(set(asked)), "each broker once"


def test_what_is_to_be_repaired_is_not_located(cluster, topic):
    """A read through the leader has damage repaired, a read of its files does not."""
    produce(cluster, topic, range(30))
    leader, part = cluster.leader_of(topic), Part(topic, 0)
    reads = RemoteBrokers(open_brokers(cluster.servers), SECONDS * 1_000, "test")

    def located(machine=None, first=0):
        return reads._locate(part, True, machine or boot_id(), first, 10)

    assert located().next_offset >= 10
    assert located(first=10_000) is None, "there is no such offset"
    broker = leader.broker
    replica = broker.replica(broker.topics[topic].partitions[0].group)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(replica.log, "damaged", [(0, 0)])
        assert located() is None
    assert located("another machine") is None
    assert located() is None, "the broker is known to be elsewhere"
    reads.close()


def test_records_that_are_deleted_while_they_are_read_are_a_loss(cluster, topic, monkeypatch):
    monkeypatch.setattr("quorumlog.spark.topics.tasks.FETCH_BYTES", SMALL_FETCH)
    produce(cluster, topic, range(RECORDS), **{"batch.size": 2_000})
    reader = reader_of(cluster, topic)
    (task,) = reader.partitions()
    admin = AdminClient({"bootstrap.servers": cluster.servers})
    place = confluent_kafka.TopicPartition(topic, 1, 900)
    (deleted,) = admin.delete_records([place]).values()
    deleted.result(SECONDS)
    with pytest.raises(DataLossError, match=f"partition {topic}-1: offsets 0 to 899 "):
        rows_of(reader, [task])
    reader = reader_of(cluster, topic, failOnDataLoss="false")
    assert len(rows_of(reader, [task])) == RECORDS - 900


def test_a_read_that_was_given_up_leaves_no_answer_to_others(cluster, topic, monkeypatch):
    monkeypatch.setattr("quorumlog.spark.topics.tasks.FETCH_BYTES", SMALL_FETCH)
    produce(cluster, topic, range(RECORDS), **{"batch.size": 2_000})
    reader = reader_of(cluster, topic, localReads="false")
    (task,) = reader.partitions()
    for _ in range(3):
        given_up = reader.read(task)
        next(given_up)
        whole = numbers_of(rows_of(reader, [task]))
        given_up.close()
        assert whole == list(range(RECORDS))


def test_a_topic_that_is_made_a_moment_later_is_waited_for(cluster, monkeypatch):
    monkeypatch.setattr("quorumlog.spark.topics.remote_brokers.UNKNOWN_S", SECONDS)
    reads = RemoteBrokers(open_brokers(cluster.servers), SECONDS * 1_000, "test")
    admin = AdminClient({"bootstrap.servers": cluster.servers})
    made = threading.Timer(0.2, lambda: admin.create_topics([NewTopic("late", 2)]))
    made.start()
    assert reads.partitions(["late"]) == {"late": [0, 1]}
    monkeypatch.setattr("quorumlog.spark.topics.remote_brokers.UNKNOWN_S", 0)
    assert reads.partitions(["nope"]) == {}
    with pytest.raises(UnknownTopicError, match="there is no partition late-2"):
        reads.offsets({Part("late", 2): LATEST}, reads_committed=True)
    reads.close()


def test_a_large_request_may_be_the_first_of_a_reader(cluster, monkeypatch):
    monkeypatch.setattr("quorumlog.spark.topics.remote_brokers.UNKNOWN_S", 0)
    names = [f"{'no-such-topic' * 10}-{number}" for number in range(1_000)]
    assert sum(map(len, names)) > 2 * FIRST_FRAME_BYTES_MAX
    reads = RemoteBrokers(open_brokers(cluster.servers), SECONDS * 1_000, "test")
    assert reads.partitions(names) == {}
    reads.close()


def test_servers_that_are_none_are_named_with_the_reason():
    (port,) = free_ports(1)
    reads = RemoteBrokers(open_brokers(f"127.0.0.1:{port}"), 300, "test")
    with pytest.raises(NetworkError, match=rf"0.3 s: 127.0.0.1:{port} cannot be reached: Connecti"):
        reads.topics()


def answer_with(listener, data):
    connection, _ = listener.accept()
    connection.recv(1_000)
    connection.sendall(data)
    connection.close()


@pytest.mark.parametrize(
    ("said", "within_s", "error", "text"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            SECONDS,
            RemoteProtocolError,
            "does not speak Kafka's protocol",
        ),
        (
            b"\0\0\0\x08\0\0\0\x63\0\0\0\0",
            SECONDS,
            RemoteProtocolError,
            "answer 99 in the place of 1",
        ),
        (
            b"\0\0\0\x05\0\0\0\x01\0",
            SECONDS,
            RemoteProtocolError,
            "an answer that cannot be read",
        ),
        (b"\0\0\0\x09\0\0", 0.5, NetworkError, "could not answer for 0.5 s"),
    ],
)
def test_whoever_is_no_broker_is_told_from_one_that_is_down(said, within_s, error, text):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer_with, args=(listener, said))
        thread.start()
        address, within_ms = f"127.0.0.1:{listener.getsockname()[1]}", round(within_s * 1_000)
        reads = RemoteBrokers(open_brokers(address), within_ms, "test")
        with pytest.raises(error, match=text):
            reads.topics()
        thread.join()


def test_an_archived_topic_that_is_made_again_is_refused(cluster, topic, tmp_path):
    """All that was archived was aborted, so no record is known by which it could be known again."""
    aborting = produce(cluster, topic, range(9), **{"transactional.id": f"aborts-{topic}"})
    aborting.abort_transaction(SECONDS)
    source = topic_source(cluster.servers, topic)
    assert archived(source, tmp_path).rows == 0
    admin = AdminClient({"bootstrap.servers": cluster.servers})
    admin.delete_topics([topic], operation_timeout=SECONDS)[topic].result(SECONDS)
    cluster.settle()
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(SECONDS)
    cluster.settle()
    produce(cluster, topic, range(30))
    with pytest.raises(PipelineError, match=f"topic '{topic}' have different histories"):
        archived(source, tmp_path)
    assert audit_archive(source, FILES, str(tmp_path), run_here).counts.keys() == {"made-again"}


def test_a_replay_keeps_large_records_and_times_before_1970(cluster, topic, tmp_path):
    large, times = os.urandom(2_000_000), [-62_135_596_800_000, -1_000, -1, 1]
    admin = AdminClient({"bootstrap.servers": cluster.servers})

    def allow_large(name):
        entry = ConfigEntry(
            "max.message.bytes", "4194256", incremental_operation=AlterConfigOpType.SET
        )
        changed = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        admin.incremental_alter_configs([changed])[changed].result(SECONDS)
        cluster.settle()

    allow_large(topic)
    settings = {"message.max.bytes": 4_194_256, "compression.type": "none"}
    producer = idempotent_producer(cluster.servers, **settings)
    for value, time in zip([b"", large, b"", b"v"], times, strict=True):
        producer.produce(topic, value, partition=0, timestamp=time)
    assert producer.flush(SECONDS) == 0
    archived(topic_source(cluster.servers, topic), tmp_path)
    again = {"names": {topic: f"{topic}-again"}, "timeout_ms": 30_000}
    with pytest.raises(
        PipelineError, match=f"partition {topic}-again-0 refuses a batch .* 2,000,000 b"
    ):
        replay_topics(tmp_path, cluster.servers, **again)
    allow_large(f"{topic}-again")
    result = replay_topics(tmp_path, cluster.servers, **again)
    assert (result.records, result.changed_timestamps) == (4, 0)
