"""F4: for each error that a client can cause, the node's log says who caused it, and why."""

import asyncio
import itertools
import struct
from uuid import uuid4

import pytest
from aiokafka.record.util import calc_crc32c

from kafka_client import fetch_values
from kafka_nodes import SECONDS, kafka_nodes
from kafka_peer import answered, sent
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.requests import ApiKey, RequestHeader
from quorumlog.log_events import EVENT_FIELDS
from quorumlog.machine.cluster.commands import AlterConfigs, AlterResource, ConfigChange
from record_batches import batch_of

NUMBERS = itertools.count()
TOPIC = "known"
CONTROL = 0x20
"""The bit of a batch that only brokers write."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with kafka_nodes(tmp_path_factory.mktemp("kafka")) as nodes:
        create = {"name": TOPIC, "num_partitions": 1, "replication_factor": -1}
        found = ask(nodes, "setup", ApiKey.CREATE_TOPICS, 5, **creation(create))
        assert [one.error_code for one in found.topics] == [0]
        change = ConfigChange("set", "auto.create.topics.enable", "false")
        command = AlterConfigs([AlterResource(None, [change])])
        nodes.run(nodes.nodes[0].broker.execute(command, SECONDS * 1_000))
        yield nodes


def creation(*topics, **fields):
    topics = [{"assignments": [], "configs": [], **one} for one in topics]
    return {"topics": topics, "timeout_ms": 10_000, "validate_only": False, **fields}


def ask(cluster, client_id, key, version, **values):
    """Return the answer to a request, or None if the connection was closed instead."""

    async def asked():
        host, _, port = cluster.nodes[0].broker.advertised.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(sent(key, version, values, client_id=client_id))
            size = await reader.readexactly(4)
            raw = size + await reader.readexactly(int.from_bytes(size, "big"))
        finally:
            writer.close()
        return answered(RequestHeader(key, version, 7), raw)

    return cluster.run(asked())


def errors_in(found):
    """Return the errors in an answer, wherever they are."""
    if isinstance(found, (list, tuple)):
        return [error for one in found for error in errors_in(one)]
    if not hasattr(found, "_struct"):
        return []
    errors = []
    for name in found._struct.fields:
        value = getattr(found, name, None)
        errors += [value] if name.endswith("error_code") else errors_in(value)
    return [one for one in errors if one]


def produce(batch, *, topic=TOPIC, partition=0, acks=-1, version=9):
    data = [{"name": topic, "partition_data": [{"index": partition, "records": bytes(batch)}]}]
    values = {"transactional_id": None, "acks": acks, "timeout_ms": 10_000, "topic_data": data}
    return ApiKey.PRODUCE, version, values


def fetch(offset=0, **fields):
    return ApiKey.FETCH, 12, fetch_values(offset, **{"topic": TOPIC, **fields})


def list_offsets(topic=TOPIC, partition=0, timestamp=-1, epoch=-1, times=1):
    asked = {"partition_index": partition, "current_leader_epoch": epoch, "timestamp": timestamp}
    topics = [{"name": topic, "partitions": [asked]}] * times
    return ApiKey.LIST_OFFSETS, 5, {"replica_id": -1, "isolation_level": 0, "topics": topics}


def epoch_end(topic=TOPIC, partition=0, epoch=-1):
    asked = {"partition": partition, "current_leader_epoch": epoch, "leader_epoch": 0}
    topics = [{"topic": topic, "partitions": [asked]}]
    return ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, {"replica_id": -1, "topics": topics}


def delete_records(offset, topic=TOPIC, partition=0):
    partitions = [{"partition_index": partition, "offset": offset}]
    topics = [{"name": topic, "partitions": partitions}]
    return ApiKey.DELETE_RECORDS, 2, {"topics": topics, "timeout_ms": 10_000}


def create(**fields):
    one = {"name": "new", "num_partitions": 1, "replication_factor": -1, **fields}
    return ApiKey.CREATE_TOPICS, 5, creation(one)


def delete_topics(name=None, topic_id=None):
    topics = [{"name": name, "topic_id": topic_id}]
    return ApiKey.DELETE_TOPICS, 6, {"topics": topics, "timeout_ms": 10_000}


def create_partitions(count, name=TOPIC, assignments=None):
    topics = [{"name": name, "count": count, "assignments": assignments}]
    return (
        ApiKey.CREATE_PARTITIONS,
        2,
        {"topics": topics, "timeout_ms": 10_000, "validate_only": False},
    )


def alter(name, value, *, kind=2, resource=TOPIC):
    config = {"name": name, "config_operation": 0, "value": value}
    resources = [{"resource_type": kind, "resource_name": resource, "configs": [config]}]
    return (
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        {"resources": resources, "validate_only": False},
    )


def describe_configs(kind, name):
    resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]
    return (
        ApiKey.DESCRIBE_CONFIGS,
        2,
        {"resources": resources, "include_synonyms": False, "include_documentation": False},
    )


def reassign(replicas):
    topics = [{"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": replicas}]}]
    return ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, {"timeout_ms": 1_000, "topics": topics}


def elect(topic=TOPIC, partition=0):
    partitions = [{"topic": topic, "partitions": [partition]}]
    values = {"election_type": 0, "topic_partitions": partitions, "timeout_ms": 1_000}
    return ApiKey.ELECT_LEADERS, 2, values


def describe_producers(topic=TOPIC, partition=0):
    topics = [{"name": topic, "partition_indexes": [partition]}]
    return ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": topics}


def metadata(topic):
    topics = [{"topic_id": None, "name": topic}]
    values = {"allow_auto_topic_creation": True, "include_topic_authorized_operations": False}
    return ApiKey.METADATA, 12, {"topics": topics, **values}


def heartbeat(group="g", member="nobody"):
    values = {"generation_id": 1, "member_id": member, "group_instance_id": None}
    return ApiKey.HEARTBEAT, 4, {"group_id": group, **values}


def leave(version=4):
    if version < 3:
        return ApiKey.LEAVE_GROUP, version, {"group_id": "g", "member_id": "nobody"}
    members = [{"member_id": "nobody", "group_instance_id": None}]
    return ApiKey.LEAVE_GROUP, version, {"group_id": "g", "members": members}


def join(**fields):
    values = {
        "group_id": "g",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
        **fields,
    }
    return ApiKey.JOIN_GROUP, 5, values


def commit(topic=TOPIC, partition=0, metadata_="", generation=-1, group="g"):
    one = {
        "partition_index": partition,
        "committed_offset": 0,
        "committed_leader_epoch": -1,
        "committed_metadata": metadata_,
    }
    values = {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": [one]}],
    }
    return ApiKey.OFFSET_COMMIT, 8, values


def delete_offsets(group, topic=TOPIC, partition=0):
    topics = [{"name": topic, "partitions": [{"partition_index": partition}]}]
    return ApiKey.OFFSET_DELETE, 0, {"group_id": group, "topics": topics}


def with_byte(place, value):
    """Return a batch whose byte at a place is another, with the right CRC."""
    batch = bytearray(batch_of(range(3)))
    batch[place] = value
    return recounted(batch)


def recounted(batch):
    batch[17:21] = struct.pack(">I", calc_crc32c(bytes(batch[21:])))
    return bytes(batch)


OF_A_STRANGER = {"transactional_id": "nobody", "producer_id": 1 << 40, "producer_epoch": 0}


def end_transaction(name="nobody"):
    values = {**OF_A_STRANGER, "transactional_id": name, "committed": True}
    return ApiKey.END_TXN, 3, values


def add_to_transaction(topic):
    of_it = {f"v3_and_below_{key}": value for key, value in OF_A_STRANGER.items()}
    topics = [{"name": topic, "partitions": [0]}]
    return ApiKey.ADD_PARTITIONS_TO_TXN, 3, {**of_it, "v3_and_below_topics": topics}


def cases():
    batch, error = bytes(batch_of(range(3))), ErrorCode
    negative_delta = bytearray(batch)
    negative_delta[23:27] = struct.pack(">i", -1)
    return {
        "produce, unknown topic": (produce(batch, topic="none"), error.UNKNOWN_TOPIC_OR_PARTITION),
        "produce, unknown partition": (
            produce(batch, partition=1),
            error.UNKNOWN_TOPIC_OR_PARTITION,
        ),
        "produce, wrong CRC": (produce(with_byte(17, 1)[:-1] + b"?"), error.CORRUPT_MESSAGE),
        "produce, old magic": (produce(with_byte(16, 1)), error.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        "produce, two batches": (produce(batch * 2), error.INVALID_RECORD),
        "produce, too short": (produce(batch[:40]), error.INVALID_RECORD),
        "produce, cut": (produce(batch[:-1]), error.INVALID_RECORD),
        "produce, negative delta": (produce(recounted(negative_delta)), error.INVALID_RECORD),
        "produce, control batch": (produce(with_byte(22, CONTROL)), error.INVALID_RECORD),
        "produce, transactional": (
            produce(batch_of(range(3), producer_id=1, epoch=0, sequence=0, is_transactional=True)),
            error.INVALID_PRODUCER_ID_MAPPING,
        ),
        "produce, unknown codec": (produce(with_byte(22, 7)), error.UNSUPPORTED_COMPRESSION_TYPE),
        "produce, acks 2": (produce(batch, acks=2), error.INVALID_REQUIRED_ACKS),
        "produce, bad name": (produce(batch, topic="a/b"), error.INVALID_TOPIC_EXCEPTION),
        "fetch, unknown topic": (fetch(topic="none"), error.UNKNOWN_TOPIC_OR_PARTITION),
        "fetch, unknown partition": (fetch(partition=3), error.UNKNOWN_TOPIC_OR_PARTITION),
        "fetch, beyond the end": (fetch(1 << 40), error.OFFSET_OUT_OF_RANGE),
        "fetch, later epoch": (fetch(epoch=1_000), error.UNKNOWN_LEADER_EPOCH),
        "fetch, a session": (fetch(session_id=5), error.FETCH_SESSION_ID_NOT_FOUND),
        "offsets, unknown topic": (list_offsets("none"), error.UNKNOWN_TOPIC_OR_PARTITION),
        "offsets, later epoch": (list_offsets(epoch=1_000), error.UNKNOWN_LEADER_EPOCH),
        "offsets, unknown kind": (list_offsets(timestamp=-3), error.UNSUPPORTED_VERSION),
        "offsets, named again": (list_offsets(timestamp=5, times=1_000), error.INVALID_REQUEST),
        "epochs, unknown topic": (epoch_end("none"), error.UNKNOWN_TOPIC_OR_PARTITION),
        "records to be deleted, none": (delete_records(1 << 40), error.OFFSET_OUT_OF_RANGE),
        "create, exists": (create(name=TOPIC), error.TOPIC_ALREADY_EXISTS),
        "create, bad name": (create(name="a/b"), error.INVALID_TOPIC_EXCEPTION),
        "create, partitions": (create(num_partitions=0), error.INVALID_PARTITIONS),
        "create, factor": (create(replication_factor=4), error.INVALID_REPLICATION_FACTOR),
        "create, config": (
            create(configs=[{"name": "nothing", "value": "1"}]),
            error.INVALID_CONFIG,
        ),
        "create, placed": (
            create(
                num_partitions=-1,
                assignments=[{"partition_index": 0, "broker_ids": [0]}],
            ),
            error.INVALID_REPLICA_ASSIGNMENT,
        ),
        "delete, unknown name": (delete_topics("none"), error.UNKNOWN_TOPIC_OR_PARTITION),
        "delete, unknown id": (delete_topics(topic_id=uuid4()), error.UNKNOWN_TOPIC_ID),
        "delete, bad name": (delete_topics("a/b"), error.UNKNOWN_TOPIC_OR_PARTITION),
        "partitions, fewer": (create_partitions(1), error.INVALID_PARTITIONS),
        "partitions, unknown": (
            create_partitions(2, "none"),
            error.UNKNOWN_TOPIC_OR_PARTITION,
        ),
        "configs, unknown": (alter("nothing", "1"), error.INVALID_CONFIG),
        "configs, bad value": (alter("retention.ms", "soon"), error.INVALID_CONFIG),
        "configs, unknown topic": (
            alter("retention.ms", "1", resource="none"),
            error.UNKNOWN_TOPIC_OR_PARTITION,
        ),
        "configs, unknown kind": (describe_configs(99, "x"), error.INVALID_REQUEST),
        "configs, described of none": (
            describe_configs(2, "none"),
            error.UNKNOWN_TOPIC_OR_PARTITION,
        ),
        "reassignment": (reassign([0]), error.INVALID_REPLICA_ASSIGNMENT),
        "reassignment, cancelled": (reassign(None), error.NO_REASSIGNMENT_IN_PROGRESS),
        "election, unknown": (elect("none"), error.UNKNOWN_TOPIC_OR_PARTITION),
        "election, not needed": (elect(), error.ELECTION_NOT_NEEDED),
        "producers, unknown": (describe_producers("none"), error.UNKNOWN_TOPIC_OR_PARTITION),
        "metadata, bad name": (metadata("a/b"), error.INVALID_TOPIC_EXCEPTION),
        "producer id, transactional": (
            (
                ApiKey.INIT_PRODUCER_ID,
                4,
                {
                    "transactional_id": "t",
                    "transaction_timeout_ms": 0,
                    "producer_id": -1,
                    "producer_epoch": -1,
                },
            ),
            error.INVALID_TRANSACTION_TIMEOUT,
        ),
        "transaction of a stranger": (end_transaction(), error.INVALID_PRODUCER_ID_MAPPING),
        "transaction without a name": (end_transaction(""), error.INVALID_REQUEST),
        "transaction, unknown topic": (
            add_to_transaction("none"),
            error.UNKNOWN_TOPIC_OR_PARTITION,
        ),
        "transaction, partition of a stranger": (
            add_to_transaction(TOPIC),
            error.INVALID_PRODUCER_ID_MAPPING,
        ),
        "transaction, unknown": (
            (ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["none"]}),
            error.TRANSACTIONAL_ID_NOT_FOUND,
        ),
        "heartbeat of a stranger": (heartbeat(), error.UNKNOWN_MEMBER_ID),
        "group without a name": (heartbeat(""), error.INVALID_GROUP_ID),
        "leaving stranger": (leave(), error.UNKNOWN_MEMBER_ID),
        "leaving stranger, old": (leave(2), error.UNKNOWN_MEMBER_ID),
        "joining, session": (join(session_timeout_ms=1), error.INVALID_SESSION_TIMEOUT),
        "joining, stranger": (join(member_id="nobody"), error.UNKNOWN_MEMBER_ID),
        "commit, unknown topic": (commit("none"), error.UNKNOWN_TOPIC_OR_PARTITION),
        "commit, generation": (commit(generation=5, group="other"), error.ILLEGAL_GENERATION),
        "commit, metadata": (commit(metadata_="x" * 4_097), error.OFFSET_METADATA_TOO_LARGE),
        "offsets of no group": (delete_offsets("none"), error.GROUP_ID_NOT_FOUND),
        "offsets of a group, unknown topic": (
            delete_offsets("committed", "none"),
            error.UNKNOWN_TOPIC_OR_PARTITION,
        ),
        "group to be deleted, none": (
            (ApiKey.DELETE_GROUPS, 2, {"groups_names": ["none"]}),
            error.GROUP_ID_NOT_FOUND,
        ),
    }


CASES = cases()


@pytest.mark.parametrize("case", CASES)
def test_f4_an_error_that_a_client_causes_has_a_line_with_its_id_and_address(cluster, case, caplog):
    if case.startswith("offsets of a group"):
        key, version, values = commit(group="committed")
        assert errors_in(ask(cluster, "committing", key, version, **values)) == []
    (key, version, values), error = CASES[case]
    client_id = f"client-{next(NUMBERS)}"
    found = ask(cluster, client_id, key, version, **values)
    assert [ErrorCode(one) for one in errors_in(found)] == [error]
    lines = [getattr(one, EVENT_FIELDS) for one in caplog.records if hasattr(one, EVENT_FIELDS)]
    (line,) = [one for one in lines if one.get("client") == client_id]
    assert (line["request"], line["error"]) == (key.name, error.name)
    assert line["remote"].startswith("127.0.0.1:")
    assert len(line["reason"]) > 10
