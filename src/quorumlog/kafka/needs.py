"""What is judged of each request of Kafka's protocol: a request that the table lacks is refused.

What is about a request as a whole is judged here, before its handler runs; of single topics,
groups … its handler judges, and answers them with errors of their own.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from quorumlog.auth.acls import CLUSTER_NAME, Operation, ResourceType
from quorumlog.auth.permits import Right
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.led_partitions import Refusal
from quorumlog.kafka.requests import ApiKey
from quorumlog.kafka.rights import Rights
from quorumlog.machine.cluster.sinks import attempt_id

Needed: TypeAlias = Iterator[Right]


Needs: TypeAlias = Callable[[Any], Needed]
"""Yields the rights without which a whole request is refused."""


def _nothing(request: Any) -> Needed:
    """Everybody may have it."""
    yield from ()


def _of_elements(request: Any) -> Needed:
    """Its handler judges each topic, group … that it names, or tells of."""
    yield from ()


def _on_cluster(operation: Operation) -> Needs:
    def needs(request: Any) -> Needed:
        yield Right(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    return needs


def _on_group(operation: Operation) -> Needs:
    def needs(request: Any) -> Needed:
        yield Right(operation, ResourceType.CONSUMER_GROUP, request.group_id)

    return needs


def _transaction(request: Any) -> Needed:
    yield Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)


def _transaction_and_group(request: Any) -> Needed:
    yield from _transaction(request)
    yield Right(Operation.READ, ResourceType.CONSUMER_GROUP, request.group_id)


def _init_producer(request: Any) -> Needed:
    if request.transactional_id is not None:
        yield from _transaction(request)


def _sink(request: Any) -> Needed:
    """The sink stands for the transactional ids of all its attempts, which begin so."""
    begin = attempt_id(request.sink, "")
    yield Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, begin)


def _join_sink(request: Any) -> Needed:
    yield from _sink(request)
    yield from _init_producer(request)


def _located(request: Any) -> Needed:
    yield Right(Operation.READ, ResourceType.TOPIC, request.topic)


NEEDS: Final[Mapping[int, Needs]] = {
    ApiKey.PRODUCE: _of_elements,
    ApiKey.FETCH: _of_elements,
    ApiKey.LIST_OFFSETS: _of_elements,
    ApiKey.METADATA: _of_elements,
    ApiKey.OFFSET_COMMIT: _of_elements,
    ApiKey.OFFSET_FETCH: _of_elements,
    ApiKey.FIND_COORDINATOR: _of_elements,
    ApiKey.JOIN_GROUP: _on_group(Operation.READ),
    ApiKey.HEARTBEAT: _on_group(Operation.READ),
    ApiKey.LEAVE_GROUP: _on_group(Operation.READ),
    ApiKey.SYNC_GROUP: _on_group(Operation.READ),
    ApiKey.DESCRIBE_GROUPS: _of_elements,
    ApiKey.LIST_GROUPS: _of_elements,
    ApiKey.SASL_HANDSHAKE: _nothing,
    ApiKey.API_VERSIONS: _nothing,
    ApiKey.CREATE_TOPICS: _of_elements,
    ApiKey.DELETE_TOPICS: _of_elements,
    ApiKey.DELETE_RECORDS: _of_elements,
    ApiKey.INIT_PRODUCER_ID: _init_producer,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _of_elements,
    ApiKey.ADD_PARTITIONS_TO_TXN: _of_elements,
    ApiKey.ADD_OFFSETS_TO_TXN: _transaction_and_group,
    ApiKey.END_TXN: _transaction,
    ApiKey.TXN_OFFSET_COMMIT: _of_elements,
    ApiKey.DESCRIBE_ACLS: _on_cluster(Operation.DESCRIBE),
    ApiKey.CREATE_ACLS: _of_elements,
    ApiKey.DELETE_ACLS: _of_elements,
    ApiKey.DESCRIBE_CONFIGS: _of_elements,
    ApiKey.ALTER_CONFIGS: _of_elements,
    ApiKey.DESCRIBE_LOG_DIRS: _on_cluster(Operation.DESCRIBE),
    ApiKey.SASL_AUTHENTICATE: _nothing,
    ApiKey.CREATE_PARTITIONS: _of_elements,
    ApiKey.DELETE_GROUPS: _of_elements,
    ApiKey.ELECT_LEADERS: _on_cluster(Operation.ALTER),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _of_elements,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _on_cluster(Operation.ALTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _on_cluster(Operation.DESCRIBE),
    ApiKey.OFFSET_DELETE: _on_group(Operation.DELETE),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _on_cluster(Operation.DESCRIBE_CONFIGS),
    ApiKey.ALTER_CLIENT_QUOTAS: _of_elements,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _on_cluster(Operation.DESCRIBE),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _of_elements,
    ApiKey.DESCRIBE_CLUSTER: _nothing,
    ApiKey.DESCRIBE_PRODUCERS: _of_elements,
    ApiKey.DESCRIBE_TRANSACTIONS: _of_elements,
    ApiKey.LIST_TRANSACTIONS: _of_elements,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _on_group(Operation.READ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _of_elements,
    ApiKey.JOIN_SINK: _join_sink,
    ApiKey.END_SINK_BATCH: _sink,
    ApiKey.LOCATE_BATCHES: _located,
}
_UNKNOWN: Final = "it is not known which rights the request needs: nobody may have it"


def refusal_of_key(rights: Rights, api_key: int) -> Refusal | None:
    """Return why nobody may have a request, if nothing says which rights it needs."""
    if rights.permit is None or api_key in NEEDS:
        return None
    return Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, _UNKNOWN)


def refusal_of(rights: Rights, api_key: int, request: Any) -> Refusal | None:
    """Return why a request is refused as a whole; None: its handler may run."""
    if rights.permit is None:
        return None
    refusals = map(rights.refused, NEEDS[api_key](request))
    return next(filter(None, refusals), None)
