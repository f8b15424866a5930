"""Metadata and DescribeCluster: which nodes there are, and where partitions are.

FindCoordinator, too: one broker coordinates all consumer groups.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from quorumlog.auth.acls import CLUSTER_NAME, Operation, ResourceType
from quorumlog.auth.permits import Right
from quorumlog.kafka.broker_view import TopicView
from quorumlog.kafka.context import Answer, RequestContext
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.handlers.topics import create_missing
from quorumlog.kafka.metadata import (
    UNTOLD,
    MetadataBroker,
    metadata_answer,
    topic_bytes,
)
from quorumlog.kafka.rights import bits_of
from quorumlog.machine.cluster.topics import problem_of_name
from quorumlog.model.wording import topic_id_text

NEWS_S: Final = 0.005
"""Pause before Metadata is answered. A client whose connection to a broker ends asks another one at
once, which may see its own connection to that broker end a millisecond later."""
_OF_BROKERS: Final = 1
_FIRST_WITH_IDS: Final = 12
_FIRST_WITH_KEYS: Final = 4
_OF_GROUPS: Final = 0
_KEY_TYPES: Final = {_OF_GROUPS: ResourceType.CONSUMER_GROUP, 1: ResourceType.TRANSACTIONAL_ID}
"""Consumer groups and transactional ids."""
_NO_COORDINATOR: Final = ErrorCode.COORDINATOR_NOT_AVAILABLE, "no controller is known now"
_NO_KEY_TYPE: Final = (
    ErrorCode.INVALID_REQUEST,
    "only consumer groups (key type 0) and transactional ids (1) have a coordinator",
)


async def handle_metadata(context: RequestContext, request: Any) -> Answer:
    """Answer which nodes there are, and who leads the partitions of which topics.

    Topics that do not exist are created if the client, the cluster and this node allow it.
    """
    await asyncio.sleep(NEWS_S)
    await context.broker.wait_elected()  # told of no leader, librdkafka asks again after a second
    version, broker = context.header.version, context.broker
    wants_operations = request.include_topic_authorized_operations
    rights = context.rights
    if request.topics is None or (version == 0 and not request.topics):
        topics = [
            _known(context, topic, wants_operations=wants_operations)
            async for topic in context.in_turns(broker.topics.values())
            if rights.sees_topic(Operation.DESCRIBE, topic.name)
        ]
    else:
        if request.allow_auto_topic_creation:
            names = [one.name for one in request.topics if one.name]
            seen = [name for name in names if rights.sees_topic(Operation.DESCRIBE, name)]
            await create_missing(context, seen)
        asked = dict.fromkeys((one.name, one.topic_id) for one in request.topics)
        topics = [
            _named(context, name, topic_id, wants_operations=wants_operations)
            async for name, topic_id in context.in_turns(asked)
        ]
    return metadata_answer(
        context.header,
        brokers=[
            MetadataBroker(one.broker_id, one.host, one.port, one.rack or None)
            for one in broker.brokers.values()
        ],
        cluster_id=broker.cluster_id or None,
        controller_id=broker.controller_id,
        topics=topics,
        operations=bits_of(_cluster_operations(context))
        if request.include_cluster_authorized_operations
        else UNTOLD,
    )


def _known(context: RequestContext, topic: TopicView, *, wants_operations: bool) -> bytes:
    """Return what the answer says of a topic that there is."""
    operations = UNTOLD
    if wants_operations:
        operations = bits_of(context.rights.operations(ResourceType.TOPIC, topic.name))
    return context.services.encoded_topics.of(topic, context.header.version, operations)


def _cluster_operations(context: RequestContext) -> frozenset[Operation]:
    """Return what the client may do with the cluster, if it may describe that."""
    if not context.rights.sees_cluster(Operation.DESCRIBE):
        return frozenset()
    return context.rights.operations(ResourceType.CLUSTER, CLUSTER_NAME)


def _named(
    context: RequestContext,
    name: str | None,
    topic_id: UUID | None,
    *,
    wants_operations: bool,
) -> bytes:
    """Return what the answer says of a topic that was asked for by its name or its id."""
    broker, version = context.broker, context.header.version
    if name is not None:
        topic, raw_id = broker.topics.get(name), None
        error, text = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}"
        refused = context.rights.refused_topic(Operation.DESCRIBE, name)
        if refused is not None:  # whether there is such a topic or not
            topic, (error, text) = None, refused
        elif problem := problem_of_name(name):
            error, text = ErrorCode.INVALID_TOPIC_EXCEPTION, problem
    elif topic_id is not None and version >= _FIRST_WITH_IDS:
        raw_id = topic_id.bytes
        topic = broker.topics_by_id.get(raw_id)
        if topic is not None and not context.rights.may_topic(Operation.DESCRIBE, topic.name):
            topic = None
        error, text = ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic of id {topic_id_text(raw_id)}"
    else:
        topic, raw_id = None, None
        error, text = ErrorCode.INVALID_REQUEST, "a topic is asked for without name and id"
    if topic is not None:
        return _known(context, topic, wants_operations=wants_operations)
    context.note_error(error, text)
    return topic_bytes(version, name, raw_id, error)


async def handle_describe_cluster(context: RequestContext, request: Any) -> Answer:
    """Answer which brokers there are."""
    broker = context.broker
    if request.endpoint_type != _OF_BROKERS:
        text = f"endpoints of type {request.endpoint_type} are not told, only those of brokers (1)"
        context.note_error(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, text)
        return {"error_code": ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "error_message": text}
    return {
        "endpoint_type": _OF_BROKERS,
        "cluster_id": broker.cluster_id,
        "controller_id": broker.controller_id,
        "brokers": [
            {
                "broker_id": one.broker_id,
                "host": one.host,
                "port": one.port,
                "rack": one.rack or None,
            }
            for one in broker.brokers.values()
        ],
        "authorized_operations": set(map(int, _cluster_operations(context)))
        if request.include_cluster_authorized_operations
        else None,
    }


async def handle_find_coordinator(context: RequestContext, request: Any) -> Answer:
    """Answer that the controller is the coordinator of every group and transactional id.

    One that has just lost that says so (NOT_COORDINATOR), and is asked again.
    """
    broker = context.broker
    found = broker.brokers.get(broker.controller_id)
    is_known = getattr(request, "key_type", _OF_GROUPS) in _KEY_TYPES
    if found is None or not is_known:
        error, text = _NO_COORDINATOR if is_known else _NO_KEY_TYPE
        context.note_error(error, text)
        fields = {"error_code": error, "error_message": text, "node_id": -1, "port": -1}
    else:
        fields = {
            "error_message": None,
            "node_id": found.broker_id,
            "host": found.host,
            "port": found.port,
        }
    kind = _KEY_TYPES.get(getattr(request, "key_type", _OF_GROUPS))

    def of(key: str) -> Mapping[str, Any]:
        if kind is None:
            return fields
        refused = context.rights.refused(Right(Operation.DESCRIBE, kind, key))
        if refused is None:
            return fields
        context.note_error(refused.error, refused.text)
        told = {"error_code": refused.error, "error_message": refused.text}
        return {**told, "node_id": -1, "port": -1}

    if context.header.version < _FIRST_WITH_KEYS:
        return of(request.key)
    keys = context.in_turns(request.coordinator_keys)
    return {"coordinators": [{**of(key), "key": key} async for key in keys]}
