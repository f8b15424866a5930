"""Which handler each request has, but for Produce, Fetch and OffsetCommit, which have no tasks of
their own (`request_queue`)."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from quorumlog.kafka.context import Answer, RequestContext
from quorumlog.kafka.handlers.api_versions import handle_api_versions
from quorumlog.kafka.handlers.configs import (
    handle_alter_configs,
    handle_describe_configs,
    handle_incremental_alter_configs,
)
from quorumlog.kafka.handlers.consumer_protocol import (
    handle_consumer_group_describe,
    handle_consumer_group_heartbeat,
)
from quorumlog.kafka.handlers.group_offsets import (
    handle_delete_groups,
    handle_offset_delete,
    handle_offset_fetch,
)
from quorumlog.kafka.handlers.groups import (
    handle_describe_groups,
    handle_heartbeat,
    handle_join_group,
    handle_leave_group,
    handle_list_groups,
    handle_sync_group,
)
from quorumlog.kafka.handlers.locations import handle_locate_batches
from quorumlog.kafka.handlers.metadata import (
    handle_describe_cluster,
    handle_find_coordinator,
    handle_metadata,
)
from quorumlog.kafka.handlers.offsets import (
    handle_delete_records,
    handle_list_offsets,
    handle_offset_for_leader_epoch,
)
from quorumlog.kafka.handlers.partitions import (
    handle_alter_partition_reassignments,
    handle_describe_log_dirs,
    handle_describe_producers,
    handle_elect_leaders,
    handle_list_partition_reassignments,
)
from quorumlog.kafka.handlers.sasl import handle_sasl_authenticate, handle_sasl_handshake
from quorumlog.kafka.handlers.security import (
    handle_alter_client_quotas,
    handle_alter_user_scram_credentials,
    handle_create_acls,
    handle_delete_acls,
    handle_describe_acls,
    handle_describe_client_quotas,
    handle_describe_user_scram_credentials,
)
from quorumlog.kafka.handlers.sinks import handle_end_sink_batch, handle_join_sink
from quorumlog.kafka.handlers.topics import (
    handle_create_partitions,
    handle_create_topics,
    handle_delete_topics,
)
from quorumlog.kafka.handlers.transactions import (
    handle_add_offsets_to_txn,
    handle_add_partitions_to_txn,
    handle_describe_transactions,
    handle_end_txn,
    handle_init_producer_id,
    handle_list_transactions,
    handle_txn_offset_commit,
)
from quorumlog.kafka.requests import ApiKey

Handler: TypeAlias = Callable[[RequestContext, Any], Awaitable[Answer]]
"""Answers a request as `codec.decode_request` returns it. A `RequestError` that it raises becomes
the error code of the answer."""

HANDLERS: Final[dict[int, Handler]] = {
    ApiKey.LIST_OFFSETS: handle_list_offsets,
    ApiKey.METADATA: handle_metadata,
    ApiKey.OFFSET_FETCH: handle_offset_fetch,
    ApiKey.FIND_COORDINATOR: handle_find_coordinator,
    ApiKey.JOIN_GROUP: handle_join_group,
    ApiKey.HEARTBEAT: handle_heartbeat,
    ApiKey.LEAVE_GROUP: handle_leave_group,
    ApiKey.SYNC_GROUP: handle_sync_group,
    ApiKey.DESCRIBE_GROUPS: handle_describe_groups,
    ApiKey.LIST_GROUPS: handle_list_groups,
    ApiKey.SASL_HANDSHAKE: handle_sasl_handshake,
    ApiKey.API_VERSIONS: handle_api_versions,
    ApiKey.CREATE_TOPICS: handle_create_topics,
    ApiKey.DELETE_TOPICS: handle_delete_topics,
    ApiKey.DELETE_RECORDS: handle_delete_records,
    ApiKey.INIT_PRODUCER_ID: handle_init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: handle_offset_for_leader_epoch,
    ApiKey.ADD_PARTITIONS_TO_TXN: handle_add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: handle_add_offsets_to_txn,
    ApiKey.END_TXN: handle_end_txn,
    ApiKey.TXN_OFFSET_COMMIT: handle_txn_offset_commit,
    ApiKey.DESCRIBE_ACLS: handle_describe_acls,
    ApiKey.CREATE_ACLS: handle_create_acls,
    ApiKey.DELETE_ACLS: handle_delete_acls,
    ApiKey.DESCRIBE_CONFIGS: handle_describe_configs,
    ApiKey.ALTER_CONFIGS: handle_alter_configs,
    ApiKey.DESCRIBE_LOG_DIRS: handle_describe_log_dirs,
    ApiKey.SASL_AUTHENTICATE: handle_sasl_authenticate,
    ApiKey.CREATE_PARTITIONS: handle_create_partitions,
    ApiKey.DELETE_GROUPS: handle_delete_groups,
    ApiKey.ELECT_LEADERS: handle_elect_leaders,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: handle_incremental_alter_configs,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: handle_alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: handle_list_partition_reassignments,
    ApiKey.OFFSET_DELETE: handle_offset_delete,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: handle_describe_client_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: handle_alter_client_quotas,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: handle_describe_user_scram_credentials,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: handle_alter_user_scram_credentials,
    ApiKey.DESCRIBE_CLUSTER: handle_describe_cluster,
    ApiKey.DESCRIBE_PRODUCERS: handle_describe_producers,
    ApiKey.DESCRIBE_TRANSACTIONS: handle_describe_transactions,
    ApiKey.LIST_TRANSACTIONS: handle_list_transactions,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: handle_consumer_group_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: handle_consumer_group_describe,
    ApiKey.JOIN_SINK: handle_join_sink,
    ApiKey.END_SINK_BATCH: handle_end_sink_batch,
    ApiKey.LOCATE_BATCHES: handle_locate_batches,
}
