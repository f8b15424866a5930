"""A request of each key of Kafka's protocol, and who may have it: what is meant, whatever the
product's tables have. Names: topic `t`, new topic `n`, consumer group `c`, transactional id `x`.
"""

from kafka_client import fetch_values
from quorumlog.kafka.requests import ApiKey

ROLES = {
    "anonymous": (),
    "nothing": ("read topic other", "read consumers other", "write transaction other"),
    "describe": (
        "describe topic t",
        "describe consumers c",
        "describe transaction x",
        "describe cluster",
    ),
    "read": ("read topic t", "read consumers c"),
    "write": ("write topic t", "write transaction x", "write transaction quorumlog-sink:s:*"),
    "both": ("read topic t", "read consumers c", "write topic t", "write transaction x"),
    "operate": (
        *(f"{word} topic t" for word in ("alter", "delete", "alter_configs")),
        "create topic n",
        "delete topic n",
        "describe_configs topic n",
        "delete consumers c",
        "alter cluster",
        "alter_configs cluster",
    ),
    "super": (),
}
OF_TOPIC = {"describe", "read", "write", "both", "operate"}
ALL = {*ROLES} - {"super"}
WRITES = {"write", "both"}
PRODUCER = {"producer_id": 5, "producer_epoch": 0}
T = {"transactional_id": "x"}
C = {"group_id": "c"}
MEMBER = {**C, "generation_id": 1, "member_id": "m", "group_instance_id": None}
CONFIGS = {"validate_only": True}
OFFSET = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
OFFSETS = [{"name": "t", "partitions": [{**OFFSET, "committed_metadata": ""}]}]


def configs(kind, name, **more):
    one = {"name": "retention.ms", "value": "60000", **more}
    return {"resources": [{"resource_type": kind, "resource_name": name, "configs": [one]}]}


TABLE = [
    (ApiKey.LIST_OFFSETS, 6, {
        "replica_id": -1, "isolation_level": 0,
        "topics": [{"name": "t", "partitions": [
            {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]}],
    }, OF_TOPIC),
    (ApiKey.METADATA, 12, {
        "topics": [{"topic_id": None, "name": "t"}], "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": True,
    }, OF_TOPIC),
    (ApiKey.OFFSET_COMMIT, 8, {
        "group_id": "c", "generation_id_or_member_epoch": -1, "member_id": "",
        "group_instance_id": None, "topics": OFFSETS,
    }, {"read", "both"}),
    (ApiKey.OFFSET_FETCH, 7, {
        **C, "topics": [{"name": "t", "partition_indexes": [0]}], "require_stable": False,
    }, {"describe", "read", "both", "operate"}),
    (ApiKey.OFFSET_FETCH, 8, {
        "groups": [{**C, "topics": None}], "require_stable": False,
    }, {"describe", "read", "both", "operate"}),
    (ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["c"]},
     {"describe", "read", "both", "operate"}),
    (ApiKey.FIND_COORDINATOR, 3, {"key_type": 1, "key": "x"}, {"describe", *WRITES}),
    (ApiKey.JOIN_GROUP, 6, {
        **C, "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "member_id": "",
        "group_instance_id": None, "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }, {"read", "both"}),
    (ApiKey.HEARTBEAT, 4, MEMBER, {"read", "both"}),
    (ApiKey.LEAVE_GROUP, 4, {
        **C, "members": [{"member_id": "m", "group_instance_id": None}]}, {"read", "both"}),
    (ApiKey.SYNC_GROUP, 5, {
        **MEMBER, "protocol_type": "consumer", "protocol_name": "range", "assignments": [],
    }, {"read", "both"}),
    (ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["c"], "include_authorized_operations": True},
     {"describe", "read", "both", "operate"}),
    (ApiKey.LIST_GROUPS, 4, {"states_filter": []}, ALL),
    (ApiKey.API_VERSIONS, 3, {"client_software_name": "x", "client_software_version": "1"}, ALL),
    (ApiKey.CREATE_TOPICS, 6, {
        "topics": [{"name": "n", "num_partitions": 1, "replication_factor": -1,
                    "assignments": [], "configs": []}],
        "timeout_ms": 5_000, "validate_only": True,
    }, {"operate"}),
    (ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": "n", "topic_id": None}], "timeout_ms": 5_000},
     {"operate"}),
    (ApiKey.CREATE_PARTITIONS, 3, {
        "topics": [{"name": "t", "count": 3, "assignments": None}],
        "timeout_ms": 5_000, "validate_only": True,
    }, {"operate"}),
    (ApiKey.DELETE_RECORDS, 2, {
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "offset": 0}]}],
        "timeout_ms": 5_000,
    }, {"operate"}),
    (ApiKey.INIT_PRODUCER_ID, 4, {
        "transactional_id": None, "transaction_timeout_ms": 1_000,
        "producer_id": -1, "producer_epoch": -1,
    }, WRITES),
    (ApiKey.INIT_PRODUCER_ID, 4, {
        **T, "transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1,
    }, WRITES),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, {
        "replica_id": -1, "topics": [{"topic": "t", "partitions": [
            {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}],
    }, OF_TOPIC),
    (ApiKey.ADD_PARTITIONS_TO_TXN, 3, {
        "v3_and_below_transactional_id": "x", "v3_and_below_producer_id": 5,
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": [{"name": "t", "partitions": [0]}],
    }, WRITES),
    (ApiKey.ADD_OFFSETS_TO_TXN, 3, {**T, **PRODUCER, **C}, {"both"}),
    (ApiKey.END_TXN, 3, {**T, **PRODUCER, "committed": True}, WRITES),
    (ApiKey.TXN_OFFSET_COMMIT, 3, {
        **T, **PRODUCER, **MEMBER, "topics": OFFSETS,
    }, {"both"}),
    (ApiKey.DESCRIBE_CONFIGS, 4, {
        "resources": [{"resource_type": 2, "resource_name": "t", "configuration_keys": None}],
        "include_synonyms": False, "include_documentation": False,
    }, {"operate"}),
    (ApiKey.DESCRIBE_CONFIGS, 4, {
        "resources": [{"resource_type": 4, "resource_name": "", "configuration_keys": None}],
        "include_synonyms": False, "include_documentation": False,
    }, {"operate"}),
    (ApiKey.ALTER_CONFIGS, 2, {**configs(2, "t"), **CONFIGS}, {"operate"}),
    (ApiKey.ALTER_CONFIGS, 2, {**configs(4, ""), **CONFIGS}, {"operate"}),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {
        **configs(2, "t", config_operation=0), **CONFIGS}, {"operate"}),
    (ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None}, {"describe", "operate"}),
    (ApiKey.DELETE_GROUPS, 2, {"groups_names": ["c"]}, {"operate"}),
    (ApiKey.ELECT_LEADERS, 2, {
        "election_type": 0, "timeout_ms": 1_000,
        "topic_partitions": [{"topic": "t", "partitions": [0]}],
    }, {"operate"}),
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, {"timeout_ms": 1_000, "topics": []}, {"operate"}),
    (ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"timeout_ms": 1_000, "topics": None},
     {"describe", "operate"}),
    (ApiKey.OFFSET_DELETE, 0, {
        **C, "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]}, set()),
    (ApiKey.DESCRIBE_CLUSTER, 1, {
        "include_cluster_authorized_operations": True, "endpoint_type": 1}, ALL),
    (ApiKey.DESCRIBE_PRODUCERS, 0, {
        "topics": [{"name": "t", "partition_indexes": [0]}]}, {"read", "both"}),
    (ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["x"]}, {"describe", *WRITES}),
    (ApiKey.LIST_TRANSACTIONS, 1, {
        "state_filters": [], "producer_id_filters": [], "duration_filter": -1}, ALL),
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, {
        **C, "member_id": "m", "member_epoch": 7, "instance_id": None, "rack_id": None,
        "rebalance_timeout_ms": 1_000, "subscribed_topic_names": ["t"],
        "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": None,
    }, {"read", "both"}),
    (ApiKey.CONSUMER_GROUP_DESCRIBE, 1, {
        "group_ids": ["c"], "include_authorized_operations": False},
     {"describe", "read", "both", "operate"}),
    (ApiKey.JOIN_SINK, 0, {
        "sink": "s", "run_id": "r", "batch_id": 1, "transactional_id": None}, {"write"}),
    (ApiKey.END_SINK_BATCH, 1, {
        "sink": "s", "run_id": "other", "batch_id": 1, "committed": False, "is_last": False,
        "rows": -1, "attempts": [],
    }, {"write"}),
    (ApiKey.LOCATE_BATCHES, 1, {
        "topic": "t", "partition": 0, "first_offset": 0, "end_offset": 1, "machine": "m",
        "isolation_level": 0,
    }, {"read", "both"}),
    (ApiKey.DESCRIBE_ACLS, 2, {
        "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
        "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
    }, {"describe", "operate"}),
    (ApiKey.CREATE_ACLS, 2, {"creations": [{
        "resource_type": 2, "resource_name": "z", "resource_pattern_type": 3,
        "principal": "User:z", "host": "*", "operation": 3, "permission_type": 3,
    }]}, {"operate"}),
    (ApiKey.DELETE_ACLS, 2, {"filters": [{
        "resource_type_filter": 2, "resource_name_filter": "z", "pattern_type_filter": 3,
        "principal_filter": "User:z", "host_filter": None, "operation": 1, "permission_type": 1,
    }]}, {"operate"}),
    (ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": [], "strict": False}, {"operate"}),
    (ApiKey.ALTER_CLIENT_QUOTAS, 1, {"validate_only": True, "entries": [{
        "entity": [{"entity_type": "user", "entity_name": "z"}],
        "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}],
    }]}, {"operate"}),
    (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": None}, {"describe", "operate"}),
    (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, {
        "deletions": [{"name": "z", "mechanism": 1}], "upsertions": []}, {"operate"}),
    (ApiKey.FETCH, 12, fetch_values(0), {"read", "both"}),
]  # fmt: skip
"""Key, version, request, and who may have it besides super users. Produce comes last, by hand."""
LOGINS = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}


def errors_in(answer):
    """Return all error codes in an answer, at whatever depth."""
    if isinstance(answer, dict):
        for name, value in answer.items():
            yield from [value] if name.endswith("error_code") else errors_in(value)
    elif isinstance(answer, list):
        for one in answer:
            yield from errors_in(one)
