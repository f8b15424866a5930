"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: members of consumer groups."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from quorumlog.auth.acls import Operation, ResourceType
from quorumlog.auth.hosts import without_port
from quorumlog.kafka.context import Answer, RequestContext
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.consumer_protocol import ProtocolGroup
from quorumlog.kafka.groups.coordinator import AnyGroup
from quorumlog.kafka.groups.group import ConsumerGroup, GroupState
from quorumlog.kafka.groups.members import (
    GroupProtocol,
    JoinAnswer,
    JoinRequest,
    SyncAnswer,
    SyncRequest,
)

TEXT_MAX: Final = 249
"""Characters of a group's name, of an instance id and of a protocol's name."""
_FIRST_WITH_IDS: Final = 4
_FIRST_WITH_NULL_PROTOCOL: Final = 7
_FIRST_THAT_SKIPS: Final = 9
_FIRST_WITH_MEMBERS: Final = 3
_FIRST_WITH_NOT_FOUND: Final = 6
_EXPECTED: Final = {
    ErrorCode.NONE,
    ErrorCode.MEMBER_ID_REQUIRED,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.STALE_MEMBER_EPOCH,
}
"""What consumers are answered in quiet times, too: no line in the log."""
Value = TypeVar("Value")

REASONS: Final = {
    ErrorCode.NOT_COORDINATOR: "another broker coordinates consumer groups (FindCoordinator)",
    ErrorCode.ILLEGAL_GENERATION: "the group has another generation: join it again",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "other members know none of its protocols "
    "(partition.assignment.strategy), or use the consumer protocol (group.protocol)",
    ErrorCode.INVALID_GROUP_ID: f"the name of a group has 1 to {TEXT_MAX} characters",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has no such member: it was removed, or never joined",
    ErrorCode.INVALID_SESSION_TIMEOUT: "session.timeout.ms is below group.min.session.timeout.ms "
    "or above group.max.session.timeout.ms of the cluster",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group, or the cluster, has no room for more members",
    ErrorCode.FENCED_INSTANCE_ID: "another consumer has this group.instance.id now",
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group, or it is one of the other protocol",
    ErrorCode.NON_EMPTY_GROUP: "the group has members",
    ErrorCode.UNKNOWN_SERVER_ERROR: "the members are assigned more than can be saved",
    ErrorCode.INVALID_REQUEST: f"an instance id has 1 to {TEXT_MAX} characters",
    ErrorCode.FENCED_MEMBER_EPOCH: "the member has another epoch: it joins again",
    ErrorCode.STALE_MEMBER_EPOCH: "the member has another epoch: it gets that with a heartbeat",
    ErrorCode.UNRELEASED_INSTANCE_ID: "another consumer has this group.instance.id, and has not "
    "left",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "the cluster does not allow this group.remote.assignor "
    "(group.consumer.assignors)",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "no regular expression of RE2",
    ErrorCode.UNSUPPORTED_VERSION: "members by the consumer protocol commit with OffsetCommit 9",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "__cluster did not apply it: disks of its nodes are "
    "full, it has no majority (quorumlog status), or too much waits to be saved already",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "no broker coordinates consumer groups at the moment: "
    "__cluster has no leader, or the leader does not know yet all that is committed",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "metadata of an offset have at most 4,096 characters",
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: "the cluster has no room for more committed offsets",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "members of the group are subscribed to the topic",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such partition",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "a right on the consumer group is missing",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "a right on the topic is missing",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "a right on the transactional id is missing",
}
"""What errors mean, for people."""


def note(context: RequestContext, error: ErrorCode, group: str, **where: str | int) -> None:
    """Have a line in the log about an error, unless it is an expected one."""
    if error not in _EXPECTED:
        context.note_error(error, REASONS[error], group=group, **where)


def group_error(context: RequestContext, group: str) -> ErrorCode:
    """Return why requests about a group cannot be answered here; NONE: they can."""
    if not 0 < len(group) <= TEXT_MAX:
        return ErrorCode.INVALID_GROUP_ID
    if not context.services.coordinator.is_current():
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.NONE


def judged_group_error(context: RequestContext, group: str, operation: Operation) -> ErrorCode:
    """Return as `group_error` does, or that the client may not do something with the group."""
    if not context.rights.may_group(operation, group):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return group_error(context, group)


def group_of(
    context: RequestContext, name: str, unknown: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID
) -> AnyGroup | ErrorCode:
    """Return a group that is coordinated here, or why there is none; `unknown`: nobody has it."""
    error = group_error(context, name)
    if error is not ErrorCode.NONE:
        return error
    found = context.services.coordinator.find(name)
    return unknown if found is None else found


def _classic_group_of(
    context: RequestContext, name: str, unknown: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID
) -> ConsumerGroup | ErrorCode:
    """Return a group by the classic protocol; for `unknown`, there is none of that protocol."""
    found = group_of(context, name, unknown)
    return unknown if isinstance(found, ProtocolGroup) else found


def answered(future: "asyncio.Future[Value]") -> Callable[[Value], None]:
    """Return what gives a future its value, unless the client has gone."""

    def answer(value: Value) -> None:
        if not future.done():  # the client may have gone
            future.set_result(value)

    return answer


# -- joining --------------------------------------------------------------------------------------


async def handle_join_group(context: RequestContext, request: Any) -> Answer:
    """Answer once the generation that the consumer joins is complete."""
    error = _fault_of_join(context, request)
    if error is ErrorCode.NONE:
        future = asyncio.get_running_loop().create_future()
        joining = _join_request(context, request)
        context.services.coordinator.join(request.group_id, joining, answered(future))
        answer: JoinAnswer = await future
    else:
        answer = JoinAnswer(error, request.member_id)
    note(context, answer.error, request.group_id)
    has_null = context.header.version >= _FIRST_WITH_NULL_PROTOCOL
    return {
        "error_code": answer.error,
        "generation_id": answer.generation,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol if has_null else answer.protocol or "",
        "leader": answer.leader,
        "skip_assignment": answer.skips_assignment,
        "member_id": answer.member_id,
        "members": [
            {
                "member_id": one.member_id,
                "group_instance_id": one.instance_id,
                "metadata": one.metadata,
            }
            for one in answer.members
        ],
    }


def _fault_of_join(context: RequestContext, request: Any) -> ErrorCode:
    error = group_error(context, request.group_id)
    if error is not ErrorCode.NONE:
        return error
    names = [request.protocol_type, *(one.name for one in request.protocols)]
    if any(len(one) > TEXT_MAX for one in names):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    instance_id = getattr(request, "group_instance_id", None)
    if instance_id is not None and not 0 < len(instance_id) <= TEXT_MAX:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _join_request(context: RequestContext, request: Any) -> JoinRequest:
    version = context.header.version
    rebalance_ms = getattr(request, "rebalance_timeout_ms", None)
    session_ms = request.session_timeout_ms
    return JoinRequest(
        context.client_id[:TEXT_MAX],
        without_port(context.address),
        request.member_id,
        getattr(request, "group_instance_id", None),
        session_ms,
        session_ms if rebalance_ms is None or rebalance_ms <= 0 else rebalance_ms,
        request.protocol_type,
        tuple(GroupProtocol(one.name, one.metadata) for one in request.protocols),
        knows_ids=version >= _FIRST_WITH_IDS,
        may_skip=version >= _FIRST_THAT_SKIPS,
    )


async def handle_sync_group(context: RequestContext, request: Any) -> Answer:
    """Answer what the member is assigned, once the leader has said and it is saved."""
    group, coordinator = _classic_group_of(context, request.group_id), context.services.coordinator
    if isinstance(group, ErrorCode):
        answer = SyncAnswer(group)
    else:
        future = asyncio.get_running_loop().create_future()
        syncing = SyncRequest(
            request.member_id,
            getattr(request, "group_instance_id", None),
            request.generation_id,
            getattr(request, "protocol_type", None),
            getattr(request, "protocol_name", None),
            {one.member_id: one.assignment for one in request.assignments},
        )
        group.sync(syncing, coordinator.now_ms(), answered(future))
        coordinator.touch(group)
        answer = await future
    note(context, answer.error, request.group_id)
    return {
        "error_code": answer.error,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol,
        "assignment": answer.assignment,
    }


# -- members that are there, and that leave -------------------------------------------------------


async def handle_heartbeat(context: RequestContext, request: Any) -> Answer:
    """Note that a member is alive."""
    group = _classic_group_of(context, request.group_id)
    if isinstance(group, ErrorCode):
        error = group
    else:
        error = group.heartbeat(
            request.member_id,
            getattr(request, "group_instance_id", None),
            request.generation_id,
            context.services.coordinator.now_ms(),
        )
    note(context, error, request.group_id)
    return {"error_code": error}


async def handle_leave_group(context: RequestContext, request: Any) -> Answer:
    """Remove members from a group."""
    error, coordinator = group_error(context, request.group_id), context.services.coordinator

    def leave(member_id: str, instance_id: str | None) -> ErrorCode:
        group = _classic_group_of(context, request.group_id)
        if isinstance(group, ErrorCode):
            return group
        found = group.leave(member_id, instance_id, coordinator.now_ms())
        coordinator.touch(group)
        return found

    def left(member_id: str, instance_id: str | None = None) -> ErrorCode:
        outcome = leave(member_id, instance_id)
        note(context, outcome, request.group_id, member=member_id or instance_id or "")
        return outcome

    if context.header.version < _FIRST_WITH_MEMBERS:
        return {"error_code": left(request.member_id)}
    note(context, error, request.group_id)
    return {
        "error_code": error,
        "members": [
            {
                "member_id": one.member_id,
                "group_instance_id": one.group_instance_id,
                "error_code": left(one.member_id, one.group_instance_id),
            }
            async for one in context.in_turns(request.members if error is ErrorCode.NONE else ())
        ],
    }


# -- what groups there are ------------------------------------------------------------------------


async def handle_list_groups(context: RequestContext, request: Any) -> Answer:
    """Answer which groups this broker coordinates: all, or none if another broker does.

    If none does, clients shall ask again: it is not said that there are no groups.
    """
    coordinator, broker = context.services.coordinator, context.broker
    is_current = coordinator.is_current()
    if not is_current and broker.controller_id == broker.broker_id:
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        context.note_error(error, REASONS[error])
        return {"error_code": error, "groups": []}
    wanted = {one.lower() for one in getattr(request, "states_filter", None) or ()}
    types = {one.lower() for one in getattr(request, "types_filter", None) or ()}
    groups = []
    sees_all = context.rights.sees_cluster(Operation.DESCRIBE)
    async for name in context.in_turns(coordinator.names() if is_current else ()):
        if not (sees_all or context.rights.sees_group(Operation.DESCRIBE, name)):
            continue
        found = coordinator.find(name)
        if found is None or (wanted and found.state.lower() not in wanted):
            continue
        group_type, protocol_type = "consumer", "consumer"
        if isinstance(found, ConsumerGroup):
            group_type, protocol_type = "classic", found.protocol_type or ""
        if types and group_type not in types:
            continue
        groups.append(
            {
                "group_id": name,
                "protocol_type": protocol_type,
                "group_state": found.state,
                "group_type": group_type,
            }
        )
    return {"error_code": ErrorCode.NONE, "groups": groups}


async def handle_describe_groups(context: RequestContext, request: Any) -> Answer:
    """Answer the members of groups by the classic protocol.

    One that does not exist is dead, as Kafka's brokers say; from version 6 on it is unknown.
    """
    found: list[dict[str, Any]] = []
    is_told = context.header.version >= _FIRST_WITH_NOT_FOUND
    unknown = ErrorCode.GROUP_ID_NOT_FOUND if is_told else ErrorCode.NONE
    wants_operations = getattr(request, "include_authorized_operations", False)
    async for name in context.in_turns(dict.fromkeys(request.groups)):
        group: ConsumerGroup | ErrorCode = ErrorCode.GROUP_AUTHORIZATION_FAILED
        if context.rights.may_group(Operation.DESCRIBE, name):
            group = _classic_group_of(context, name, unknown)
        if isinstance(group, ErrorCode):
            if group is not unknown:  # clients ask for groups of both protocols by their names
                note(context, group, name)
            state = GroupState.DEAD if group is unknown else ""
            text = REASONS.get(group)
            found.append(
                {
                    "error_code": group,
                    "error_message": text,
                    "group_id": name,
                    "group_state": state,
                }
            )
            continue
        found.append(
            {
                "group_id": name,
                "group_state": group.state,
                "protocol_type": group.protocol_type or "",
                "protocol_data": group.protocol or "",
                "members": [
                    {
                        "member_id": one.member_id,
                        "group_instance_id": one.instance_id,
                        "client_id": one.client_id,
                        "client_host": one.client_host,
                        "member_metadata": one.metadata(group.protocol),
                        "member_assignment": one.assignment,
                    }
                    async for one in context.in_turns(list(group.members))
                ],
                **operations_on(context, name, are_wanted=wants_operations),
            }
        )
    return {"groups": found}


def operations_on(context: RequestContext, group: str, *, are_wanted: bool) -> dict[str, Any]:
    """Return the field that says what the client may do with a group, if it wants to know that."""
    if not are_wanted:
        return {}
    operations = context.rights.operations(ResourceType.CONSUMER_GROUP, group)
    return {"authorized_operations": set(map(int, operations))}
