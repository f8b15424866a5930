"""What Kafka's admin clients do: kafka-python's and confluent-kafka's, over three nodes."""

import asyncio
import itertools
import re
from concurrent.futures import Future
from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka import (
    ElectionType,
    IsolationLevel,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import Producer as LibrdkafkaProducer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka import TopicPartition as PythonPartition
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import NewPartitions as PythonPartitions
from kafka.errors import InvalidReplicationAssignmentError, InvalidReplicationFactorError

from kafka_client import Client
from kafka_nodes import kafka_nodes
from quorumlog.kafka.requests import ApiKey
from quorumlog.model.topic_configs import CLUSTER_CONFIGS, TOPIC_CONFIGS
from record_batches import batch_of

SECONDS = 60
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with kafka_nodes(tmp_path_factory.mktemp("kafka"), 3) as nodes:
        yield nodes


class Settling:
    """An admin client; once it has answered, all nodes know what it has changed."""

    def __init__(self, client, cluster):
        self._client, self._cluster = client, cluster

    def __getattr__(self, name):
        call = getattr(self._client, name)

        def called(*args, **options):
            try:
                return finished(call(*args, **options))
            finally:
                self._cluster.settle()

        return called


def finished(answer):
    """Wait until the futures in an answer are done."""
    for future in answer.values() if isinstance(answer, dict) else ():
        if isinstance(future, Future):
            future.exception(SECONDS)
    return answer


@pytest.fixture(scope="module")
def admin(cluster):
    return Settling(AdminClient({"bootstrap.servers": cluster.servers}), cluster)


@pytest.fixture(scope="module")
def python_admin(cluster):
    client = KafkaAdminClient(bootstrap_servers=cluster.servers.split(","))
    yield Settling(client, cluster)
    client.close()


def done(futures):
    """Return the one result of an admin operation."""
    (future,) = futures.values()
    return future.result(SECONDS)


def refused(futures):
    """Return the name and the text of the error of an admin operation."""
    with pytest.raises(KafkaException) as caught:
        done(futures)
    error = caught.value.args[0]
    return error.name(), error.str()


def created(admin, partitions=4, **fields):
    """Create a topic; return its name."""
    name = f"topic-{next(NUMBERS)}"
    done(admin.create_topics([NewTopic(name, partitions, 3, **fields)]))
    return name


def produced(cluster, name, times_ms):
    """Produce a record with each of these timestamps to partition 0, each in a batch of its own."""
    producer = LibrdkafkaProducer(
        {"bootstrap.servers": cluster.servers, "linger.ms": 0, "enable.idempotence": True}
    )
    for time_ms in times_ms:
        producer.produce(name, b"value", partition=0, timestamp=time_ms)
        assert producer.flush(SECONDS) == 0


def configs_of(admin, kind, name):
    return done(admin.describe_configs([ConfigResource(kind, name)]))


# -- topics ---------------------------------------------------------------------------------------


def test_a_topic_is_created_listed_described_and_deleted(admin):
    name = created(admin)
    found = admin.list_topics(timeout=SECONDS).topics[name]
    assert sorted(found.partitions) == [0, 1, 2, 3]
    for one in found.partitions.values():
        assert one.error is None
        assert sorted(one.replicas) == sorted(one.isrs) == [0, 1, 2]
        assert one.leader in one.replicas
    described = done(admin.describe_topics(TopicCollection([name])))
    assert (described.name, described.is_internal, len(described.partitions)) == (name, False, 4)
    done(admin.delete_topics([name]))
    assert name not in admin.list_topics(timeout=SECONDS).topics
    assert refused(admin.delete_topics([name]))[0] == "UNKNOWN_TOPIC_OR_PART"


def test_a_topic_has_the_configs_that_it_is_created_with(admin):
    configs = {
        name: definition.default for name, definition in TOPIC_CONFIGS.items() if definition.default
    } | {"cleanup.policy": "compact,delete", "max.message.bytes": "2000000"}
    name = created(admin, config=configs)
    found = configs_of(admin, ResourceType.TOPIC, name)
    assert {key: found[key].value for key in configs} == configs
    assert {one.source for key, one in found.items() if key in configs} == {1}


def test_what_cannot_be_created_says_why(admin):
    name = created(admin)
    cases = {
        "TOPIC_ALREADY_EXISTS": NewTopic(name, 1, 3),
        "TOPIC_EXCEPTION": NewTopic("no/name", 1, 3),
        "INVALID_PARTITIONS": NewTopic("none", 4_001, 3),
        "INVALID_REPLICATION_FACTOR": NewTopic("four", 1, 4),
        "INVALID_REPLICA_ASSIGNMENT": NewTopic("placed", 1, replica_assignment=[[0, 1]]),
        "INVALID_CONFIG": NewTopic("strange", 1, 3, config={"retention.years": "1"}),
    }
    found = {kind: refused(admin.create_topics([new])) for kind, new in cases.items()}
    assert {kind: name for kind, (name, _) in found.items()} == {kind: kind for kind in cases}
    assert "factor 4" in found["INVALID_REPLICATION_FACTOR"][1]
    assert "partition group" in found["INVALID_REPLICA_ASSIGNMENT"][1]
    assert "retention.years" in found["INVALID_CONFIG"][1]
    assert set(admin.list_topics(timeout=SECONDS).topics).isdisjoint(
        {"none", "four", "placed", "strange"}
    )


def test_a_topic_without_numbers_gets_the_defaults_and_one_that_asks_for_less_is_told(python_admin):
    name, fewer = f"topic-{next(NUMBERS)}", f"topic-{next(NUMBERS)}"
    answer = python_admin.create_topics(
        {
            name: {"num_partitions": -1, "replication_factor": -1},
            fewer: {"num_partitions": 1, "replication_factor": 1},
        }
    )
    told = {one["name"]: one for one in answer["topics"]}
    assert (told[name]["num_partitions"], told[name]["replication_factor"]) == (4, 3)
    assert told[fewer]["replication_factor"] == 3
    assert told[name]["configs"]["retention.ms"]["config_source"] == "DEFAULT_CONFIG"
    (found,) = python_admin.describe_topics([fewer])
    assert len(found["partitions"][0]["replica_nodes"]) == 3


def test_more_replicas_than_partition_groups_have_are_refused(tmp_path):
    """A client that asks for two replicas would not look whether its topic has only one."""
    with kafka_nodes(tmp_path, 2) as nodes:
        admin = KafkaAdminClient(bootstrap_servers=nodes.servers.split(","))
        change = {"default.replication.factor": "1"}
        admin.alter_configs([PythonResource("BROKER", "0", change)])
        refused_so = "groups have 1 replica; ask for no more"
        two = {"two": {"replication_factor": 2}}
        with pytest.raises(InvalidReplicationFactorError, match=refused_so):
            admin.create_topics(two)  # before there are partition groups
        admin.create_topics({"one": {"replication_factor": 1}})
        with pytest.raises(InvalidReplicationFactorError, match=refused_so):
            admin.create_topics(two)
        assert admin.list_topics() == ["one"]
        admin.close()


def test_a_topic_that_a_request_names_twice_is_refused_once_and_the_others_are_created(admin):
    twice, other = f"topic-{next(NUMBERS)}", f"topic-{next(NUMBERS)}"
    wanted = [NewTopic(twice, 1, 3), NewTopic(other, 1, 3), NewTopic(twice, 2, 3)]
    found = {
        name: future.exception(SECONDS) for name, future in admin.create_topics(wanted).items()
    }
    assert found[other] is None
    assert found[twice].args[0].name() == "INVALID_REQUEST"


def test_what_is_only_validated_is_not_created(admin, python_admin):
    done(admin.create_topics([NewTopic("checked", 1, 3)], validate_only=True))
    with pytest.raises(InvalidReplicationFactorError):
        python_admin.create_topics(
            {"checked": {"num_partitions": 1, "replication_factor": 4}}, validate_only=True
        )
    name = created(admin)
    done(admin.create_partitions([NewPartitions(name, 9)], validate_only=True))
    topics = admin.list_topics(timeout=SECONDS).topics
    assert "checked" not in topics
    assert len(topics[name].partitions) == 4


def test_a_topic_is_described_and_deleted_by_its_id(admin, python_admin):
    name = created(admin)
    topic_id = python_admin.describe_topics([name])[0]["topic_id"]
    id_ = UUID(str(topic_id))
    assert [one["name"] for one in python_admin.describe_topics([id_])] == [name]
    python_admin.delete_topics([id_])
    assert name not in python_admin.list_topics()


def test_partitions_are_added_and_never_taken_away(admin, python_admin):
    name = created(admin)
    done(admin.create_partitions([NewPartitions(name, 6)]))
    (found,) = python_admin.describe_topics([name])
    assert [one["partition_index"] for one in found["partitions"]] == list(range(6))
    assert min(one["leader_id"] for one in found["partitions"]) >= 0
    python_admin.create_partitions({name: PythonPartitions(7)})
    assert refused(admin.create_partitions([NewPartitions(name, 3)]))[0] == "INVALID_PARTITIONS"
    placed = [NewPartitions(name, 8, [[0]])]
    assert refused(admin.create_partitions(placed))[0] == "INVALID_REPLICA_ASSIGNMENT"


def test_a_topic_that_is_asked_for_is_created_unless_the_client_says_no(cluster, python_admin):
    asked, unasked = f"topic-{next(NUMBERS)}", f"topic-{next(NUMBERS)}"
    producer = LibrdkafkaProducer({"bootstrap.servers": cluster.servers})
    assert len(producer.list_topics(asked, timeout=SECONDS).topics[asked].partitions) == 4
    quiet = LibrdkafkaProducer(
        {"bootstrap.servers": cluster.servers, "allow.auto.create.topics": False}
    )
    assert quiet.list_topics(unasked, timeout=SECONDS).topics[unasked].error is not None
    assert unasked not in python_admin.list_topics()


def test_the_example_of_the_page_on_topics_runs_as_printed(tmp_path, capsys):
    page = (Path(__file__).parents[2] / "docs/topics.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert "127.0.0.1:9092" in example
    with kafka_nodes(tmp_path) as node:  # one: it knows what it has answered
        exec(example.replace("127.0.0.1:9092", node.servers), {})
    topics, partitions = capsys.readouterr().out.splitlines()
    assert "'orders'" in topics
    assert partitions == "8"


async def errors_of_produces(servers, topic):
    """Return the errors with which nodes answer Produces for one topic, sent at the same time."""

    async def error_of(server):
        reader, writer = await asyncio.open_connection(*server.split(":"))
        try:
            (answer,) = await Client(reader, writer).produce(batch_of(range(1)), topic=topic)
        finally:
            writer.close()
        return answer.error_code

    async with asyncio.timeout(SECONDS):
        return await asyncio.gather(*map(error_of, servers.split(",")))


def test_a_topic_that_records_are_produced_to_is_created_unless_the_cluster_says_no(
    cluster, python_admin
):
    topic, unwanted = f"topic-{next(NUMBERS)}", f"topic-{next(NUMBERS)}"
    led, led_elsewhere = 0, 6
    assert set(asyncio.run(errors_of_produces(cluster.servers, topic))) <= {led, led_elsewhere}
    assert topic in python_admin.list_topics()
    everywhere = {"auto.create.topics.enable": "false"}
    python_admin.alter_configs([PythonResource("BROKER", "0", everywhere)])
    assert asyncio.run(errors_of_produces(cluster.servers, unwanted)) == [3, 3, 3]
    python_admin.reset_configs([PythonResource("BROKER", "0", list(everywhere))])
    assert unwanted not in python_admin.list_topics()


# -- configs --------------------------------------------------------------------------------------


def test_every_config_has_its_value_its_source_and_its_type(admin, python_admin):
    name = created(admin, config={"retention.ms": "1000"})
    found = configs_of(admin, ResourceType.TOPIC, name)
    assert set(found) == set(TOPIC_CONFIGS)
    assert (found["retention.ms"].value, found["retention.ms"].source) == ("1000", 1)
    assert not found["retention.ms"].is_default
    assert found["retention.bytes"].is_default
    synonyms = found["retention.ms"].synonyms
    assert sorted(synonyms) == ["log.retention.ms", "retention.ms"]
    (described,) = python_admin.describe_configs(
        [PythonResource("TOPIC", name)], config_filter="all"
    )["topic"].values()
    for key, definition in TOPIC_CONFIGS.items():
        assert described[key]["config_type"] == definition.type.upper()


def test_the_cluster_has_configs_that_are_the_defaults_of_topics(admin, python_admin):
    name = created(admin)
    everywhere = PythonResource("BROKER", "0", {"log.retention.ms": "5000"})
    python_admin.alter_configs([everywhere])
    of_topic = configs_of(admin, ResourceType.TOPIC, name)["retention.ms"]
    assert (of_topic.value, of_topic.source) == ("5000", 3)
    found = configs_of(admin, ResourceType.BROKER, "1")
    assert set(CLUSTER_CONFIGS) <= set(found)
    assert (found["broker.id"].value, found["broker.id"].is_read_only) == ("1", True)
    python_admin.reset_configs([PythonResource("BROKER", "2", ["log.retention.ms"])])
    assert configs_of(admin, ResourceType.TOPIC, name)["retention.ms"].is_default


def test_configs_are_set_deleted_appended_to_and_replaced(admin):
    name = created(admin, config={"retention.ms": "1000"})

    def altered(key, value, operation):
        change = ConfigEntry(key, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[change])
        done(admin.incremental_alter_configs([resource]))
        return configs_of(admin, ResourceType.TOPIC, name)

    assert altered("retention.bytes", "9", AlterConfigOpType.SET)["retention.bytes"].value == "9"
    assert altered("retention.ms", None, AlterConfigOpType.DELETE)["retention.ms"].is_default
    policy = altered("cleanup.policy", "compact", AlterConfigOpType.APPEND)["cleanup.policy"]
    assert policy.value == "delete,compact"
    policy = altered("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT)["cleanup.policy"]
    assert policy.value == "compact"
    policy = altered("cleanup.policy", "compact", AlterConfigOpType.SUBTRACT)["cleanup.policy"]
    assert (policy.value, policy.is_default) == ("", False)
    whole = ConfigResource(ResourceType.TOPIC, name, set_config={"retention.ms": "7"})
    done(admin.alter_configs([whole]))
    found = configs_of(admin, ResourceType.TOPIC, name)
    assert [key for key, one in found.items() if not one.is_default] == ["retention.ms"]


def test_configs_that_cannot_be_altered_say_why(admin):
    name = created(admin)

    def answer(kind, resource, key, value="1", **options):
        change = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        wanted = ConfigResource(kind, resource, incremental_configs=[change])
        return refused(admin.incremental_alter_configs([wanted], **options))

    assert answer(ResourceType.TOPIC, name, "retention.years")[0] == "INVALID_CONFIG"
    error, text = answer(ResourceType.TOPIC, name, "retention.ms", "soon", validate_only=True)
    assert error == "INVALID_CONFIG"
    assert "'soon' is not a whole number" in text
    assert answer(ResourceType.TOPIC, "none", "retention.ms")[0] == "UNKNOWN_TOPIC_OR_PART"
    assert answer(ResourceType.BROKER, "1", "log.retention.years")[0] == "INVALID_CONFIG"


# -- offsets and records --------------------------------------------------------------------------


def listed(admin, name, spec, **options):
    found = done(admin.list_offsets({TopicPartition(name, 0): spec}, **options))
    return found.offset, found.timestamp


def test_offsets_are_listed_by_place_by_time_and_by_the_newest_record(cluster, admin):
    name = created(admin, config={"retention.ms": "-1"})
    produced(cluster, name, [1_000, 3_000, 2_000])
    assert listed(admin, name, OffsetSpec.earliest())[0] == 0
    assert listed(admin, name, OffsetSpec.latest())[0] == 3
    committed = {"isolation_level": IsolationLevel.READ_COMMITTED}
    assert listed(admin, name, OffsetSpec.latest(), **committed)[0] == 3
    assert listed(admin, name, OffsetSpec.max_timestamp()) == (1, 3_000)
    assert listed(admin, name, OffsetSpec.for_timestamp(1_500)) == (1, 3_000)
    assert listed(admin, name, OffsetSpec.for_timestamp(500)) == (0, 1_000)
    assert listed(admin, name, OffsetSpec.for_timestamp(3_001)) == (-1, -1)
    assert refused(admin.list_offsets({TopicPartition(name, 9): OffsetSpec.latest()}))[0] == (
        "_NOENT"
    )


def test_records_are_deleted_up_to_an_offset_or_all(cluster, admin):
    name = created(admin, config={"retention.ms": "-1"})
    produced(cluster, name, [1_000, 2_000, 3_000])
    assert done(admin.delete_records([TopicPartition(name, 0, 2)])).low_watermark == 2
    assert listed(admin, name, OffsetSpec.earliest())[0] == 2
    assert listed(admin, name, OffsetSpec.for_timestamp(500)) == (2, 3_000)
    assert refused(admin.delete_records([TopicPartition(name, 0, 9)]))[0] == "OFFSET_OUT_OF_RANGE"
    everything = TopicPartition(name, 0, -1)
    assert done(admin.delete_records([everything])).low_watermark == 3
    assert listed(admin, name, OffsetSpec.earliest())[0] == 3


# -- the cluster ----------------------------------------------------------------------------------


def test_the_cluster_is_described(cluster, admin):
    found = admin.describe_cluster(include_authorized_operations=True).result(SECONDS)
    addresses = {f"{one.host}:{one.port}" for one in found.nodes}
    assert addresses == set(cluster.servers.split(","))
    assert found.controller.id in {0, 1, 2}
    assert len(found.authorized_operations) == 7


def test_log_directories_have_the_bytes_that_can_be_read(cluster, admin, python_admin):
    name = created(admin, partitions=1, config={"retention.ms": "-1"})
    produced(cluster, name, [1_000, 2_000])
    leader = cluster.leader_of(name).broker
    sizes = [
        partition["partition_size"]
        for broker in python_admin.describe_log_dirs()
        if broker["broker"] == leader.broker_id
        for directory in broker["log_dirs"]
        for topic in directory["topics"]
        if topic["name"] == name
        for partition in topic["partitions"]
    ]
    one_batch = 61 + 1 + 1 + 1 + 1 + 1 + 1 + 5
    assert sizes == [2 * (one_batch + 1)]


def test_producers_that_a_partition_remembers_are_described(cluster, admin, python_admin):
    name = created(admin, partitions=1)
    producer = LibrdkafkaProducer(
        {"bootstrap.servers": cluster.servers, "enable.idempotence": True}
    )
    for _ in range(3):
        producer.produce(name, b"value")
        assert producer.flush(SECONDS) == 0
    (found,) = python_admin.describe_producers([PythonPartition(name, 0)]).values()
    (state,) = found.active_producers
    assert state.last_sequence == 2
    assert state.producer_id >= 0


def test_all_producers_of_one_partition_are_described_however_many_they_are(
    cluster, admin, monkeypatch
):
    monkeypatch.setattr("quorumlog.kafka.handlers.partitions.PRODUCERS_MAX", 1)
    name = created(admin, partitions=2)
    for _ in range(3):
        producer = LibrdkafkaProducer(
            {"bootstrap.servers": cluster.servers, "enable.idempotence": True}
        )
        for partition in range(2):
            producer.produce(name, b"value", partition=partition)
        assert producer.flush(SECONDS) == 0
    leader = cluster.leader_of(name).broker.advertised

    def described(*partitions):
        asked = [{"name": name, "partition_indexes": list(partitions)}]
        answer = cluster.run(asked_of(leader, ApiKey.DESCRIBE_PRODUCERS, 0, topics=asked))
        found = answer.topics[0].partitions
        return [(one.error_code, len(one.active_producers)) for one in found]

    assert described(0) == [(0, 3)]
    assert described(0, 0) == [(0, 3), (44, 0)]


async def asked_of(server, key, version, **values):
    reader, writer = await asyncio.open_connection(*server.split(":"))
    try:
        return await Client(reader, writer).ask(key, version, **values)
    finally:
        writer.close()


def test_partitions_whose_preferred_leader_leads_need_no_election(cluster, admin):
    name = created(admin)
    broker = cluster.nodes[0].broker
    groups = {one.group for one in broker.topics[name].partitions}

    async def led_as_preferred():
        return await broker.until(
            lambda: all(
                broker.replicas_of(group)[0] == broker.leader_of(group).broker_id
                for group in groups
            ),
            SECONDS * 1000,
        )

    assert cluster.run(led_as_preferred())
    partitions = [TopicPartition(name, number) for number in range(4)]
    for kind in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
        outcomes = admin.elect_leaders(kind, partitions).result(SECONDS)
        assert {error.name() for error in outcomes.values()} == {"ELECTION_NOT_NEEDED"}


def test_partitions_are_not_moved_one_by_one(admin, python_admin):
    name = created(admin)
    assert python_admin.list_partition_reassignments() == {}
    answer = python_admin.alter_partition_reassignments({PythonPartition(name, 0): [0, 1]})
    assert list(answer.values()) == [InvalidReplicationAssignmentError]


def test_topics_that_are_to_be_compacted_are_counted(cluster, admin):
    created(admin, config={"cleanup.policy": "compact"})
    (listener, *_) = [one.listener for one in cluster.nodes]

    async def counted():
        async with asyncio.timeout(SECONDS):
            while True:
                if listener.counters.compacted_topics:
                    return
                await asyncio.sleep(0.01)

    cluster.run(counted())


def test_g6_a_batch_may_have_a_little_more_than_a_megabyte_unless_the_topic_says_otherwise(
    cluster, admin
):
    name = created(admin, partitions=1)
    configs = configs_of(admin, ResourceType.TOPIC, name)
    bytes_max = int(configs["max.message.bytes"].value)
    assert bytes_max >= 1_000_012
    producer = LibrdkafkaProducer(
        {"bootstrap.servers": cluster.servers, "message.max.bytes": 8 << 20, "linger.ms": 0}
    )
    said = []
    overhead = 100  # header of the batch and of the record, at most
    for size in (1_000_012 - overhead, bytes_max - overhead, bytes_max):
        producer.produce(
            name, bytes(size), on_delivery=lambda error, _: said.append(error and error.name())
        )
        assert producer.flush(SECONDS) == 0
    assert said == [None, None, "MSG_SIZE_TOO_LARGE"]
