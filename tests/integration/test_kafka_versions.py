"""Each request in each version that is spoken is answered in the form that Kafka says.

The answers are read by kio, whose codec has nothing in common with ours or kafka-python's, and are
what they were when somebody looked at them: `tests/fixtures/kafka`, masked where they vary. With
QUORUMLOG_WRITE_GOLDEN=1 these files are written anew.
"""

import json
import os
import socket
import struct
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from uuid import UUID

import kio.index
import pytest
from kio.serial import entity_reader

from kafka_nodes import SECONDS, kafka_nodes
from kafka_peer import MESSAGES, answered, framed, sent
from quorumlog.auth.acls import Acl, Operation, PatternType, Permission, ResourceType
from quorumlog.auth.verifiers import verifier_of_salted
from quorumlog.kafka.requests import SPOKEN, ApiKey, RequestHeader
from quorumlog.machine.cluster.commands import (
    AlterAcls,
    AlterConfigs,
    AlterQuotas,
    AlterResource,
    AlterUsers,
    ConfigChange,
    CreateTopics,
    NewTopic,
    QuotaChange,
    UserChange,
)
from record_batches import batch_of

GOLDEN = Path(__file__).parents[1] / "fixtures" / "kafka"
VARIES = {
    "base_offset",
    "cluster_id",
    "leader_epoch",
    "log_dir",
    "port",
    "producer_id",
    "topic_id",
    "total_bytes",
    "usable_bytes",
}
TOPIC_ID = UUID(int=7)
PRODUCED = batch_of([1_000])
READ = batch_of([1_000, 3_000, 2_000])
OWN = (ApiKey.JOIN_SINK, ApiKey.END_SINK_BATCH, ApiKey.LOCATE_BATCHES)
"""Requests that Kafka does not have, nor kio."""
KEYS = [ApiKey(key) for key in SPOKEN if key not in OWN]
UNSUPPORTED_VERSION = 35
NOBODY = ("User:ANONYMOUS", "127.0.0.1:1")
KNOWN_ACL = Acl(
    ResourceType.TOPIC,
    "t",
    PatternType.PREFIXED,
    "User:known",
    "*",
    Operation.READ,
    Permission.ALLOW,
)
VERIFIER = verifier_of_salted(bytes(32), "SCRAM-SHA-256", b"salt-of-tests", 4_096)


class Connection:
    """A client that sends what it is told, and cuts answers out of what it receives."""

    def __init__(self, server):
        host, _, port = server.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), SECONDS)
        self._file = self._socket.makefile("rb")

    def ask(self, frame):
        """Send a frame; return the one that is answered, without its size."""
        self._socket.sendall(frame)
        size = int.from_bytes(self._file.read(4), "big")
        answer = self._file.read(size)
        assert len(answer) == size > 0
        return answer

    def close(self):
        self._file.close()
        self._socket.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with kafka_nodes(tmp_path_factory.mktemp("kafka")) as nodes:
        broker = nodes.nodes[0].broker

        async def make_topic():
            new = NewTopic("t", TOPIC_ID.bytes, 2, configs={"retention.ms": "-1"})
            await broker.execute(CreateTopics([new]), SECONDS * 1000)
            assert await broker.wait_open([TOPIC_ID.bytes], SECONDS * 1000)
            names = ("group.consumer.max.session.timeout.ms", "group.consumer.session.timeout.ms")
            changes = [ConfigChange("set", name, str(SECONDS * 60_000)) for name in names]
            await broker.execute(AlterConfigs([AlterResource(None, changes)]), SECONDS * 1000)
            for command in (
                AlterAcls(*NOBODY, [KNOWN_ACL], []),
                AlterUsers(*NOBODY, [UserChange("known", {"SCRAM-SHA-256": VERIFIER})]),
                AlterQuotas(*NOBODY, [QuotaChange((("user", "known"),), "producer_byte_rate", 5)]),
            ):
                await broker.execute(command, SECONDS * 1000)

        nodes.run(make_topic())
        yield nodes


@pytest.fixture(scope="module")
def connection(cluster):
    made = Connection(cluster.servers)
    made.ask(produce_frame(7, 0, READ))
    made.ask(sent(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, heartbeat_of("described", "member")))
    yield made
    made.close()


def produce_frame(version, partition, batch):
    data = [{"index": partition, "records": bytes(batch)}]
    values = {
        "acks": -1,
        "timeout_ms": 30_000,
        "topic_data": [{"name": "t", "partition_data": data}],
    }
    return sent(ApiKey.PRODUCE, version, values)


def fetch_values(version):
    partition = {"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1 << 20}
    unknown = {**partition, "partition": 9}
    topic = {"topic": "t", "topic_id": TOPIC_ID, "partitions": [partition, unknown]}
    return {"max_wait_ms": 0, "min_bytes": 0, "topics": [topic]}


def list_offsets_values(version):
    # a partition is named once: each version asks it for something else
    times = {1: -1, 2: -2, 3: 0, 4: 2_500, 5: 4_000, 6: 2_500, 7: -3, 8: -4}
    asked = {"partition_index": 0, "timestamp": times[version]}
    return {"topics": [{"name": "t", "partitions": [asked, {"partition_index": 9}]}]}


def metadata_values(version):
    asked = {"topics": [{"name": "t"}, {"name": "none"}, {"name": "no/name"}]}
    if version >= 12:
        asked["topics"] += [{"name": None, "topic_id": TOPIC_ID}, {"topic_id": UUID(int=8)}]
    more = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": version > 8}
    return asked | (more if version >= 4 else {}) if version >= 4 else {"topics": [{"name": "t"}]}


def create_topics_values(version):
    config = {"name": "retention.ms", "value": "1000"}
    return {
        "topics": [
            {"name": "new", "num_partitions": 3, "replication_factor": 1, "configs": [config]},
            {"name": "t", "num_partitions": 1, "replication_factor": 1},
            {"name": "..", "num_partitions": 1, "replication_factor": 1},
            {"name": "two", "num_partitions": 1, "replication_factor": 2},
        ],
        "validate_only": True,
    }


def delete_topics_values(version):
    if version < 6:
        return {"topic_names": ["none"]}
    return {"topics": [{"name": "none"}, {"name": None, "topic_id": UUID(int=8)}]}


def altered(kind, name, *configs):
    return {"resource_type": kind, "resource_name": name, "configs": list(configs)}


def alter_configs_values(version):
    known = altered(2, "t", {"name": "retention.ms", "value": "1000"})
    unknown = altered(2, "none", {"name": "retention.ms", "value": "1000"})
    strange = altered(4, "0", {"name": "retention.years", "value": "1"})
    return {"resources": [known, unknown, strange], "validate_only": True}


def incremental_alter_configs_values(version):
    policy = {"name": "cleanup.policy", "config_operation": 2, "value": "compact"}
    deleted = {"name": "retention.ms", "config_operation": 1, "value": None}
    strange = {"name": "retention.ms", "config_operation": 9, "value": "1"}
    return {
        "resources": [altered(2, "t", policy, deleted), altered(4, "", strange)],
        "validate_only": True,
    }


def of_member(version, instances_from, **values):
    """Return what a member says that the group does not know."""
    more = {"group_instance_id": None} if version >= instances_from else {}
    return {"group_id": "g", "generation_id": 1, "member_id": "stranger", **values, **more}


def join_group_values(version):
    values = of_member(version, 5)
    del values["generation_id"]
    return {
        **values,
        "session_timeout_ms": 10_000,
        **({"rebalance_timeout_ms": 10_000} if version >= 1 else {}),
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"topics"}],
    }


def leave_group_values(version):
    if version < 3:
        return {"group_id": "g", "member_id": "stranger"}
    return {"group_id": "g", "members": [{"member_id": "stranger", "group_instance_id": None}]}


def offset_commit_values(version):
    partition = {"committed_offset": 7, "committed_metadata": "note"}
    partitions = [{**partition, "partition_index": number} for number in (0, 9)]
    return {
        "group_id": "committing",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": "t", "partitions": partitions}],
    }


def offset_fetch_values(version):
    topics = [{"name": "t", "partition_indexes": [1, 9]}]
    if version >= 8:
        more = {"member_id": None, "member_epoch": -1} if version >= 9 else {}
        return {"groups": [{"group_id": "none", "topics": topics, **more}], "require_stable": False}
    return {"group_id": "none", "topics": topics}


def heartbeat_of(group, member_id):
    return {
        "group_id": group,
        "member_id": member_id,
        "member_epoch": 0,
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }


OF_A_STRANGER = {"transactional_id": "nobody", "producer_id": 1 << 40, "producer_epoch": 0}


def txn_offset_commit_values(version):
    offset = {"partition_index": 0, "committed_offset": 7, "committed_metadata": "note"}
    member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
    return {
        **OF_A_STRANGER,
        "group_id": "g",
        **(member if version >= 3 else {}),
        "topics": [{"name": "t", "partitions": [offset, {**offset, "partition_index": 9}]}],
    }


def acl_filter(**changes):
    return {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": "User:known",
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
        **changes,
    }


def acl_creation(**changes):
    return {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:created",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
        **changes,
    }


def quota_entry(kind, name, key, **changes):
    operation = {"key": key, "value": 7.5, "remove": False, **changes}
    return {"entity": [{"entity_type": kind, "entity_name": name}], "ops": [operation]}


def upsertion(**changes):
    return {
        "name": "altered",
        "mechanism": 1,
        "iterations": 4_096,
        "salt": b"salt-of-tests",
        "salted_password": bytes(32),
        **changes,
    }


VALUES = {
    ApiKey.DESCRIBE_ACLS: lambda version: acl_filter(),
    ApiKey.CREATE_ACLS: lambda version: {
        "creations": [
            acl_creation(),
            acl_creation(principal="nobody"),
            acl_creation(resource_type=6),
            acl_creation(operation=99),
        ]
    },
    ApiKey.DELETE_ACLS: lambda version: {
        "filters": [
            acl_filter(principal_filter="User:nobody"),
            acl_filter(operation=99),
            acl_filter(resource_type_filter=6),
        ]
    },
    ApiKey.DESCRIBE_CLIENT_QUOTAS: lambda version: {
        "components": [{"entity_type": "user", "match_type": 0, "match": "known"}],
        "strict": True,
    },
    ApiKey.ALTER_CLIENT_QUOTAS: lambda version: {
        "entries": [
            quota_entry("user", "a", "producer_byte_rate"),
            quota_entry("user", None, "speed"),
            quota_entry("ip", "nowhere", "connection_creation_rate"),
            quota_entry("client-id", "a", "request_percentage", remove=True),
        ],
        "validate_only": True,
    },
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: lambda version: {
        "users": [{"name": "known"}, {"name": "nobody"}]
    },
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: lambda version: {
        "deletions": [{"name": "nobody", "mechanism": 1}, {"name": "strange", "mechanism": 9}],
        "upsertions": [
            upsertion(),
            upsertion(name="weak", iterations=1),
            upsertion(name="twice"),
            upsertion(name="twice"),
        ],
    },
    ApiKey.ADD_PARTITIONS_TO_TXN: lambda version: {
        **{f"v3_and_below_{key}": value for key, value in OF_A_STRANGER.items()},
        "v3_and_below_topics": [{"name": "t", "partitions": [0, 9]}],
    },
    ApiKey.ADD_OFFSETS_TO_TXN: lambda version: {**OF_A_STRANGER, "group_id": "g"},
    ApiKey.END_TXN: lambda version: {**OF_A_STRANGER, "committed": True},
    ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit_values,
    ApiKey.DESCRIBE_TRANSACTIONS: lambda version: {"transactional_ids": ["nobody"]},
    ApiKey.LIST_TRANSACTIONS: lambda version: {
        "state_filters": ["Ongoing", "Strange"],
        "producer_id_filters": [1],
        **({"duration_filter": 5} if version >= 1 else {}),
    },
    ApiKey.CONSUMER_GROUP_HEARTBEAT: lambda version: heartbeat_of(f"joined-{version}", "member"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: lambda version: {
        "group_ids": ["described", "none"],
        "include_authorized_operations": False,
    },
    ApiKey.OFFSET_COMMIT: offset_commit_values,
    ApiKey.OFFSET_FETCH: offset_fetch_values,
    ApiKey.JOIN_GROUP: join_group_values,
    ApiKey.HEARTBEAT: lambda version: of_member(version, 3),
    ApiKey.LEAVE_GROUP: leave_group_values,
    ApiKey.SYNC_GROUP: lambda version: of_member(version, 3, assignments=[]),
    ApiKey.DESCRIBE_GROUPS: lambda version: {"groups": ["none"]},
    ApiKey.LIST_GROUPS: lambda version: {},
    ApiKey.DELETE_GROUPS: lambda version: {"groups_names": ["none"]},
    ApiKey.OFFSET_DELETE: lambda version: {
        "group_id": "none",
        "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}],
    },
    ApiKey.FETCH: fetch_values,
    ApiKey.LIST_OFFSETS: list_offsets_values,
    ApiKey.METADATA: metadata_values,
    ApiKey.FIND_COORDINATOR: lambda version: (
        {"coordinator_keys": ["group"]} if version >= 4 else {"key": "group"}
    ),
    ApiKey.SASL_HANDSHAKE: lambda version: {"mechanism": "PLAIN"},  # nobody logs in at this node
    ApiKey.SASL_AUTHENTICATE: lambda version: {"auth_bytes": b"\0user\0password"},
    ApiKey.API_VERSIONS: lambda version: (
        {"client_software_name": "a", "client_software_version": "1"} if version >= 3 else {}
    ),
    ApiKey.CREATE_TOPICS: create_topics_values,
    ApiKey.DELETE_TOPICS: delete_topics_values,
    ApiKey.DELETE_RECORDS: lambda version: {
        "topics": [
            {
                "name": "t",
                "partitions": [
                    {"partition_index": 0, "offset": 0},
                    {"partition_index": 1, "offset": 1 << 40},
                ],
            }
        ],
        "timeout_ms": 30_000,
    },
    ApiKey.INIT_PRODUCER_ID: lambda version: {
        "transactional_id": None,
        "transaction_timeout_ms": 1_000,
    },
    ApiKey.OFFSET_FOR_LEADER_EPOCH: lambda version: {
        "topics": [
            {
                "topic": "t",
                "partitions": [
                    {"partition": 0, "leader_epoch": 0},
                    {"partition": 1, "leader_epoch": 1_000},
                    {"partition": 0, "leader_epoch": 0, "current_leader_epoch": 0},
                    {"partition": 0, "leader_epoch": 0, "current_leader_epoch": 1_000},
                ],
            }
        ]
    },
    ApiKey.DESCRIBE_CONFIGS: lambda version: {
        "resources": [
            {
                "resource_type": 2,
                "resource_name": "t",
                "configuration_keys": ["retention.ms", "cleanup.policy"],
            },
            {"resource_type": 4, "resource_name": "0", "configuration_keys": ["broker.id"]},
            {"resource_type": 2, "resource_name": "none", "configuration_keys": None},
            {"resource_type": 8, "resource_name": "0", "configuration_keys": None},
        ],
        "include_synonyms": True,
        **({"include_documentation": True} if version >= 3 else {}),
    },
    ApiKey.ALTER_CONFIGS: alter_configs_values,
    ApiKey.DESCRIBE_LOG_DIRS: lambda version: {"topics": [{"topic": "t", "partitions": [0, 9]}]},
    ApiKey.CREATE_PARTITIONS: lambda version: {
        "topics": [
            {"name": "t", "count": 3, "assignments": None},
            {"name": "none", "count": 3, "assignments": None},
        ],
        "timeout_ms": 30_000,
        "validate_only": True,
    },
    ApiKey.ELECT_LEADERS: lambda version: {
        "topic_partitions": [{"topic": "t", "partitions": [0, 9]}],
        "timeout_ms": 30_000,
    },
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs_values,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda version: {
        "topics": [
            {
                "name": "t",
                "partitions": [
                    {"partition_index": 0, "replicas": [0]},
                    {"partition_index": 1, "replicas": None},
                ],
            }
        ]
    },
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda version: {"topics": None},
    ApiKey.DESCRIBE_CLUSTER: lambda version: {"include_cluster_authorized_operations": True},
    ApiKey.DESCRIBE_PRODUCERS: lambda version: {
        "topics": [{"name": "t", "partition_indexes": [0, 9]}]
    },
}


def frame_of(key, version):
    """Return a request that is well formed."""
    if key == ApiKey.PRODUCE:
        return produce_frame(version, 1, PRODUCED)
    return sent(key, version, VALUES[key](version))


def read(key, version, answer):
    """Return an answer as kio reads it: whole, and nothing of it is left over."""
    schema = kio.index.load_response_schema(key, version)
    header, size = entity_reader(schema.__header_schema__)(answer, 0)
    assert header.correlation_id == 7
    found, body_size = entity_reader(schema)(answer, size)
    assert size + body_size == len(answer)
    return found


def plain(value, name=""):
    """Return what kio has read as JSON can say it; what varies is masked."""
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name), one.name) for one in fields(value)}
    if isinstance(value, tuple):
        return [plain(one, name) for one in value]
    if name in VARIES and value not in (None, -1, 0):
        return "…"
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_each_version_is_answered_as_it_was_when_somebody_looked(key, connection):
    spoken = SPOKEN[key]
    found = {
        str(version): plain(read(key, version, connection.ask(frame_of(key, version))))
        for version in range(spoken.first, spoken.last + 1)
    }
    path = GOLDEN / f"{key.name.lower()}.json"
    if os.environ.get("QUORUMLOG_WRITE_GOLDEN"):
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    assert found == json.loads(path.read_text())


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_versions_below_and_above_are_refused_and_the_connection_stays(key, connection):
    for version in (SPOKEN[key].first - 1, SPOKEN[key].last + 1):
        answer = connection.ask(framed(struct.pack(">hhih", key, version, 7, -1)))
        # kio knows no versions before Kafka 4's, and both know none that do not exist
        form = min(max(version, 0), MESSAGES[key, False].max_version)
        form = 0 if key == ApiKey.API_VERSIONS else form
        whole = len(answer).to_bytes(4, "big") + answer
        found = answered(RequestHeader(key, form, 7), whole)
        assert f"error_code': {UNSUPPORTED_VERSION}" in str(found.to_dict())
    assert read(ApiKey.API_VERSIONS, 0, connection.ask(frame_of(ApiKey.API_VERSIONS, 0)))


def test_tagged_fields_that_nobody_knows_here_are_ignored(connection):
    tags = b"\x02\x07\x03abc\x90\x4e\x00"
    head = struct.pack(">hhih", ApiKey.METADATA, 12, 7, -1) + tags
    topic = bytes(16) + b"\x02t" + tags
    frame = framed(head + b"\x02" + topic + b"\0\0" + tags)
    (found,) = read(ApiKey.METADATA, 12, connection.ask(frame)).topics
    assert (found.name, len(found.partitions)) == ("t", 2)


def test_a_client_may_ask_for_versions_again_and_have_no_name(connection):
    for _ in range(2):
        frame = sent(ApiKey.API_VERSIONS, 0, {}, client_id=None)
        found = read(ApiKey.API_VERSIONS, 0, connection.ask(frame))
        assert {one.api_key for one in found.api_keys} == set(SPOKEN)
