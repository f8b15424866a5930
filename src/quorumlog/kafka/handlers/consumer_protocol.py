"""ConsumerGroupHeartbeat, ConsumerGroupDescribe: groups by the consumer protocol (KIP-848)."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from quorumlog.auth.acls import Operation
from quorumlog.auth.hosts import without_port
from quorumlog.kafka.broker_view import TopicView
from quorumlog.kafka.context import Answer, RequestContext
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.assignors import Partitions
from quorumlog.kafka.groups.consumer_protocol import ProtocolGroup
from quorumlog.kafka.groups.consumers import (
    AWAY,
    JOINING,
    Consumer,
    ConsumerHeartbeat,
    HeartbeatAnswer,
    by_topic,
)
from quorumlog.kafka.groups.coordinator import AnyGroup
from quorumlog.kafka.groups.group import GroupState
from quorumlog.kafka.groups.log_topics import LogTopic, topic_of
from quorumlog.kafka.handlers.groups import (
    REASONS,
    TEXT_MAX,
    answered,
    group_error,
    group_of,
    operations_on,
)
from quorumlog.machine.cluster.commands import ITEMS_MAX

_FIRST_WITH_PATTERNS: Final = 1
_UNSEEN: Final = "the client may not describe all topics that it subscribes to"
_OF_THE_PROTOCOL: Final = 1
"""The type of a member that uses the consumer protocol."""


# -- heartbeats -----------------------------------------------------------------------------------


async def handle_consumer_group_heartbeat(context: RequestContext, request: Any) -> Answer:
    """Take what a member says, and answer which partitions it may use once that is saved."""
    name, problem = request.group_id, _problem_of(context, request)
    error = group_error(context, name)
    if error is not ErrorCode.NONE or problem:
        error = error if error is not ErrorCode.NONE else ErrorCode.INVALID_REQUEST
        answer = HeartbeatAnswer(error, text=problem if error is ErrorCode.INVALID_REQUEST else "")
    elif request.member_epoch == JOINING and request.topic_partitions:
        # Kafka's coordinator refuses that as invalid, which ends a client of librdkafka that was
        # fenced while its coordinator changed. So it gives up what it has, and joins without.
        text = "who joins has no partitions: it gives up those that it has first"
        answer = HeartbeatAnswer(ErrorCode.FENCED_MEMBER_EPOCH, text=text)
    elif not _may_subscribe(context, request):
        answer = HeartbeatAnswer(ErrorCode.TOPIC_AUTHORIZATION_FAILED, text=_UNSEEN)
    else:
        future = asyncio.get_running_loop().create_future()
        context.services.coordinator.heartbeat(name, _asked(context, request), answered(future))
        answer = await future
        if answer.error is ErrorCode.NONE and not _may_have(context, answer.assigned):
            answer = HeartbeatAnswer(ErrorCode.TOPIC_AUTHORIZATION_FAILED, text=_UNSEEN)
    if answer.error is not ErrorCode.NONE:
        text = answer.text or REASONS[answer.error]
        context.note_error(answer.error, text, group=name, member=request.member_id)
        return {"error_code": answer.error, "error_message": text}
    assigned = answer.assigned
    return {
        "member_id": answer.member_id,
        "member_epoch": answer.epoch,
        "heartbeat_interval_ms": context.services.coordinator.protocol_settings.interval_ms,
        "assignment": None if assigned is None else {"topic_partitions": _numbers(assigned)},
    }


def _may_subscribe(context: RequestContext, request: Any) -> bool:
    """Whether the client may describe the topics that a member names.

    Of those that its regular expression matches the coordinator gives it what it may see.
    """
    rights = context.rights
    named = request.subscribed_topic_names or ()
    return all(rights.may_topic(Operation.DESCRIBE, one) for one in named)


def _may_have(context: RequestContext, assigned: Partitions | None) -> bool:
    """Whether the client may describe the topics whose partitions a member is assigned.

    A right may have been taken away since it has subscribed to them, or while it was answered.
    """
    if context.rights.permit is None or not assigned:
        return True
    known = context.broker.topics_by_id
    names = {known[topic_id].name for topic_id, _ in assigned if topic_id in known}
    return all(context.rights.may_topic(Operation.DESCRIBE, one) for one in names)


def _problem_of(context: RequestContext, request: Any) -> str:
    """Return what is wrong with a heartbeat, whatever group it is about; empty: nothing."""
    epoch, member_id = request.member_epoch, request.member_id
    names, pattern = request.subscribed_topic_names, getattr(request, "subscribed_topic_regex", "")
    needs_id = epoch != JOINING or context.header.version >= _FIRST_WITH_PATTERNS
    texts = (request.instance_id, request.rack_id)
    if epoch < AWAY:
        return f"there is no member epoch {epoch}"
    if len(member_id) > TEXT_MAX or (needs_id and not member_id):
        return f"a member id has 1 to {TEXT_MAX} characters"
    if any(one is not None and not 0 < len(one) <= TEXT_MAX for one in texts):
        return f"an instance id, and a rack, have 1 to {TEXT_MAX} characters"
    if epoch == AWAY and request.instance_id is None:
        return f"member epoch {AWAY} is that of a static member, which has an instance id"
    if len(names or ()) > ITEMS_MAX or any(len(one) > TEXT_MAX for one in names or ()):
        return f"a member names {ITEMS_MAX:,} topics at most, of {TEXT_MAX} characters each"
    if epoch != JOINING:
        return ""
    if request.rebalance_timeout_ms < 0:
        return "who joins says its rebalance time-out"
    return "" if names or pattern else "who joins is subscribed to topics"


def _asked(context: RequestContext, request: Any) -> ConsumerHeartbeat:
    names, owned = request.subscribed_topic_names, request.topic_partitions
    return ConsumerHeartbeat(
        request.member_id or context.services.coordinator.new_id(),
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms,
        None if names is None else tuple(sorted(set(names))),
        getattr(request, "subscribed_topic_regex", None),
        request.server_assignor,
        None if owned is None else _owned(owned),
        context.client_id[:TEXT_MAX],
        without_port(context.address),
        principal=context.principal,
    )


def _owned(topics: Any) -> Partitions:
    return frozenset(
        (topic.topic_id.bytes, number)
        for topic in topics
        if topic.topic_id is not None
        for number in topic.partitions
    )


def _numbers(partitions: Partitions) -> list[dict[str, Any]]:
    return [
        {"topic_id": topic_id, "partitions": numbers}
        for topic_id, numbers in by_topic(partitions).items()
    ]


# -- what there is --------------------------------------------------------------------------------


async def handle_consumer_group_describe(context: RequestContext, request: Any) -> Answer:
    """Answer the members of groups by the consumer protocol, with what they have and shall have."""
    found: list[dict[str, Any]] = []
    wants_operations = request.include_authorized_operations
    async for name in context.in_turns(dict.fromkeys(request.group_ids)):
        group: AnyGroup | ErrorCode = ErrorCode.GROUP_AUTHORIZATION_FAILED
        if context.rights.may_group(Operation.DESCRIBE, name):
            group = group_of(context, name, ErrorCode.GROUP_ID_NOT_FOUND)
        if isinstance(group, ProtocolGroup) and not _sees_topics_of(context, group):
            group = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if not isinstance(group, ProtocolGroup):
            error = group if isinstance(group, ErrorCode) else ErrorCode.GROUP_ID_NOT_FOUND
            text = REASONS[error]
            if error is not ErrorCode.GROUP_ID_NOT_FOUND:  # clients ask for groups of both kinds
                context.note_error(error, text, group=name)
            found.append(
                {
                    "error_code": error,
                    "error_message": text,
                    "group_id": name,
                    "group_state": GroupState.DEAD,
                }
            )
            continue
        found.append(
            {
                "group_id": name,
                "group_state": group.state,
                "group_epoch": group.epoch,
                "assignment_epoch": group.target.epoch,
                "assignor_name": group.target.assignor or group.assignors[0],
                "members": [
                    _described(context, group, one)
                    async for one in context.in_turns(list(group.members))
                ],
                **operations_on(context, name, are_wanted=wants_operations),
            }
        )
    return {"groups": found}


def _sees_topics_of(context: RequestContext, group: ProtocolGroup) -> bool:
    """Whether the client may describe all topics that a group uses (as Kafka's brokers ask)."""
    rights = context.rights
    if rights.permit is None:
        return True
    by_id = context.broker.topics_by_id
    used = {one for member in group.members for one in member.subscription.topics}
    for member in group.members:
        held = member.held.assigned | group.target.of(member.member_id)
        used.update(by_id[topic_id].name for topic_id, _ in held if topic_id in by_id)
    return all(rights.sees_topic(Operation.DESCRIBE, one) for one in used)


def _described(context: RequestContext, group: ProtocolGroup, member: Consumer) -> dict[str, Any]:
    topics: Mapping[bytes, TopicView | LogTopic] = context.broker.topics_by_id
    if group.log is not None:
        topics = {group.log.topic_id: topic_of(group.log)}
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.held.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": list(member.subscription.topics),
        "subscribed_topic_regex": member.subscription.pattern or None,
        "assignment": _named(topics, member.held.assigned),
        "target_assignment": _named(topics, group.target.of(member.member_id)),
        "member_type": _OF_THE_PROTOCOL,
    }


def _named(topics: Mapping[bytes, TopicView | LogTopic], partitions: Partitions) -> dict[str, Any]:
    """Return partitions with the names of their topics; those of deleted topics are left out."""
    return {
        "topic_partitions": [
            {**one, "topic_name": topics[one["topic_id"]].name}
            for one in _numbers(partitions)
            if one["topic_id"] in topics
        ]
    }
