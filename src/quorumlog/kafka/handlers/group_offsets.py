"""OffsetFetch, OffsetDelete, DeleteGroups: how far consumer groups have come."""

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from quorumlog.auth.acls import Operation
from quorumlog.kafka.broker_view import BrokerView
from quorumlog.kafka.context import Answer, RequestContext
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.consumer_protocol import ProtocolGroup
from quorumlog.kafka.groups.coordinator import FORGOTTEN_MAX, AnyGroup
from quorumlog.kafka.groups.group_saves import SAVE_MS
from quorumlog.kafka.groups.log_topics import topic_of
from quorumlog.kafka.handlers.groups import group_of, judged_group_error, note
from quorumlog.machine.cluster.commands import (
    OFFSET_METADATA_MAX,
    DeleteOffsets,
    ForgetGroups,
    GroupsChanged,
    OffsetToCommit,
)
from quorumlog.machine.cluster.consumer_groups import CommittedOffset, LogToRead
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import RequestError

OFFSETS_PER_COMMAND: Final = 2_000
"""Offsets that are committed with one command."""
METADATA_PER_COMMAND: Final = 400_000
"""Bytes of metadata in one command, beside one more offset."""
Place: TypeAlias = tuple[str, int]
"""A topic and the number of a partition."""
_FIRST_WITH_GROUPS: Final = 8
_FIRST_WITH_EPOCHS: Final = 9
"""Of OffsetFetch: clients know the errors of the consumer protocol."""
_UNKNOWN: Final = CommittedOffset(-1, -1, "", 0)
OFFSET_ERRORS: Final = {
    ResponseCode.SUCCESS: ErrorCode.NONE,
    ResponseCode.NOT_LEADER: ErrorCode.NOT_COORDINATOR,
    ResponseCode.INCONSISTENT_TERM: ErrorCode.ILLEGAL_GENERATION,
    ResponseCode.UNKNOWN_TOPIC: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ResponseCode.CLUSTER_FULL: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ResponseCode.UNKNOWN_GROUP: ErrorCode.GROUP_ID_NOT_FOUND,
    ResponseCode.CHANGE_IN_PROGRESS: ErrorCode.NON_EMPTY_GROUP,
}
"""What codes of `__cluster` are to clients; after others they look for the coordinator anew."""


async def _execute(context: RequestContext, command: Any) -> GroupsChanged | ErrorCode:
    """Have a command of the coordinator applied; return the result, or why there is none."""
    try:
        result = await context.broker.execute(command, SAVE_MS)
    except RequestError:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return changed(result)


def changed(result: Any) -> GroupsChanged | ErrorCode:
    """Return a result if the command was applied, else its error."""
    if not isinstance(result, GroupsChanged):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if result.code is not ResponseCode.SUCCESS:
        return OFFSET_ERRORS.get(result.code, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return result


# -- what may be committed ----------------------------------------------------------------------


async def offsets_to_commit(
    context: RequestContext, topics: Any, error: ErrorCode
) -> tuple[dict[Place, ErrorCode], list[tuple[Place, OffsetToCommit]]]:
    """Return what is known of each partition of a request, and the offsets that may be committed.

    `error`: of the whole request; unless it is NONE, none may be. The group reads topics.
    """
    outcomes: dict[Place, ErrorCode] = {}
    wanted: list[tuple[Place, OffsetToCommit]] = []
    for topic in topics:
        async for one in context.in_turns(topic.partitions):
            place = topic.name, one.partition_index
            judged: OffsetToCommit | ErrorCode = error
            if error is ErrorCode.NONE:
                judged = judge_offset(context, None, topic.name, one)
            if isinstance(judged, ErrorCode):
                outcomes[place] = judged
            else:
                outcomes[place] = ErrorCode.NONE
                wanted.append((place, judged))
    return outcomes, wanted


def judge_offset(
    context: RequestContext, log: LogToRead | None, topic: str, asked: Any
) -> OffsetToCommit | ErrorCode:
    """Return the offset of a partition as it is to be committed, or why it cannot be.

    `log`: what the group reads instead of topics.
    """
    if not context.rights.may_topic(Operation.READ, topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    number, metadata = asked.partition_index, asked.committed_metadata or ""
    topic_id = _id_of(context.broker, log, topic, number)
    if topic_id is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if len(metadata) > OFFSET_METADATA_MAX:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    epoch = getattr(asked, "committed_leader_epoch", None)  # older versions have none
    epoch = -1 if epoch is None else epoch
    return OffsetToCommit(topic_id, number, asked.committed_offset, epoch, metadata)


def log_of(context: RequestContext, group: str) -> LogToRead | None:
    """Return the log that a group reads instead of topics; None: it does not."""
    record = context.broker.consumer_groups.get(group)
    return None if record is None else record.log


def _id_of(broker: BrokerView, log: LogToRead | None, topic: str, number: int) -> bytes | None:
    """Return the id of the topic of a partition, or of the log that a group reads, by its name.

    None: there is no such partition.
    """
    if log is not None and topic == log.topic:
        return log.topic_id if 0 <= number < log.partitions else None
    found = broker.topics.get(topic)
    return found.topic_id if found is not None and 0 <= number < len(found.partitions) else None


def note_outcomes(context: RequestContext, group: str, outcomes: Mapping[Place, ErrorCode]) -> None:
    """Have lines in the log about partitions whose offsets are not as the client wants."""
    for (topic, number), error in outcomes.items():
        note(context, error, group, topic=topic, partition=number)


def parts_of(
    wanted: Iterable[tuple[Place, OffsetToCommit]],
) -> Iterator[list[tuple[Place, OffsetToCommit]]]:
    """Yield offsets as they fit into commands."""
    part: list[tuple[Place, OffsetToCommit]] = []
    metadata = 0
    for place, one in wanted:
        part.append((place, one))
        metadata += len(one.metadata.encode())
        if len(part) >= OFFSETS_PER_COMMAND or metadata >= METADATA_PER_COMMAND:
            yield part
            part, metadata = [], 0
    if part:
        yield part


def by_topic(topics: Iterable[Any], outcomes: Mapping[Place, ErrorCode]) -> list[dict[str, Any]]:
    """Return the outcomes as answers have them, for each partition that was asked for."""
    return [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": one.partition_index,
                    "error_code": outcomes[topic.name, one.partition_index],
                }
                for one in topic.partitions
            ],
        }
        for topic in topics
    ]


# -- fetch ----------------------------------------------------------------------------------------


async def handle_offset_fetch(context: RequestContext, request: Any) -> Answer:
    """Answer how far groups have come: all that was acknowledged, by whatever coordinator."""
    has_groups = context.header.version >= _FIRST_WITH_GROUPS
    asked = [request]
    if has_groups:  # one that is named twice is answered once
        asked = list({one.group_id: one for one in request.groups}.values())
    has_passed = context.services.coordinator.is_current() and await context.broker.barrier(SAVE_MS)
    answers = []
    for one in asked:
        error = judged_group_error(context, one.group_id, Operation.DESCRIBE)
        if error is ErrorCode.NONE and not has_passed:
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # older clients know no other one
        if error is ErrorCode.NONE and context.header.version >= _FIRST_WITH_EPOCHS:
            group = context.services.coordinator.find(one.group_id)
            if isinstance(group, ProtocolGroup):
                error = group.may_fetch(one.member_id, one.member_epoch)
        note(context, error, one.group_id)
        if error is ErrorCode.NOT_COORDINATOR:
            refused, now_s = context.services.refused_fetches, context.services.now()
            error = refused.error(context.owner, now_s, getattr(one, "member_id", None))
        is_stable = getattr(request, "require_stable", False)
        topics = await _fetched(context, one, error, requires_stable=is_stable)
        answers.append({"error_code": error, "topics": topics})
    if not has_groups:
        return answers[0]
    return {
        "groups": [
            {"group_id": one.group_id, **answer} for one, answer in zip(asked, answers, strict=True)
        ]
    }


async def _fetched(
    context: RequestContext, asked: Any, error: ErrorCode, *, requires_stable: bool
) -> list[dict[str, Any]]:
    """Return the offsets of one group, by topic.

    `requires_stable`: none of partitions of which a transaction may commit another one.
    """
    transactions = context.broker.transactions
    record = context.broker.consumer_groups.get(asked.group_id)
    offsets = record.offsets if record is not None and error is ErrorCode.NONE else {}
    by_id, by_name = context.broker.topics_by_id, context.broker.topics
    log = None if record is None or record.log is None else topic_of(record.log)
    if asked.topics is None:
        wanted: dict[str, list[int]] = {}
        for topic_id, number in offsets:
            if log is not None and topic_id == log.topic_id:
                wanted.setdefault(log.name, []).append(number)
            elif topic_id in by_id:
                wanted.setdefault(by_id[topic_id].name, []).append(number)
    else:
        wanted = {}
        for topic in asked.topics:
            wanted.setdefault(topic.name, []).extend(topic.partition_indexes)
    topics = []
    for name, numbers in wanted.items():
        is_named, judged = asked.topics is not None, error
        if is_named and not context.rights.may_topic(Operation.DESCRIBE, name):
            judged = error if error is not ErrorCode.NONE else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif not is_named and not context.rights.sees_topic(Operation.DESCRIBE, name):
            continue
        known = log if log is not None and name == log.name else by_name.get(name)
        topic_id = b"" if known is None else known.topic_id
        partitions = []
        async for number in context.in_turns(dict.fromkeys(numbers)):
            found, fault = offsets.get((topic_id, number), _UNKNOWN), judged
            if judged is not ErrorCode.NONE or found.offset < 0:
                found = _UNKNOWN  # librdkafka would never begin at an offset below 0
            is_told = requires_stable and judged is ErrorCode.NONE
            if is_told and transactions.has_pending(asked.group_id, (topic_id, number)):
                found, fault = _UNKNOWN, ErrorCode.UNSTABLE_OFFSET_COMMIT
            partitions.append(
                {
                    "partition_index": number,
                    "committed_offset": found.offset,
                    "committed_leader_epoch": found.leader_epoch,
                    "metadata": found.metadata,
                    "error_code": fault,
                }
            )
        topics.append({"name": name, "partitions": partitions})
    return topics


# -- deletion -------------------------------------------------------------------------------------


async def handle_offset_delete(context: RequestContext, request: Any) -> Answer:
    """Forget how far a group has come in partitions of topics that no member is subscribed to."""
    name, error = request.group_id, ErrorCode.NONE
    group = group_of(context, name, ErrorCode.GROUP_ID_NOT_FOUND)
    term = context.services.coordinator.term
    subscribed = group if isinstance(group, ErrorCode) else _subscribed(group)
    if isinstance(subscribed, ErrorCode):
        note(context, subscribed, name)
        return {"error_code": subscribed, "topics": []}
    outcomes: dict[tuple[str, int], ErrorCode] = {}
    deleted, log = [], log_of(context, name)
    for topic in request.topics:
        async for one in context.in_turns(topic.partitions):
            place = topic.name, one.partition_index
            topic_id = _id_of(context.broker, log, *place)
            if not context.rights.may_topic(Operation.READ, topic.name):
                outcomes[place] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif topic_id is None:
                outcomes[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif topic.name in subscribed:
                outcomes[place] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                outcomes[place] = ErrorCode.NONE
                deleted.append((topic_id, one.partition_index))
    if deleted:
        result = await _execute(context, DeleteOffsets(term, name, deleted))
        error = result if isinstance(result, ErrorCode) else ErrorCode.NONE
    if error is not ErrorCode.NONE:
        note(context, error, name)
        return {"error_code": error, "topics": []}
    note_outcomes(context, name, outcomes)
    return {"error_code": error, "topics": by_topic(request.topics, outcomes)}


def _subscribed(group: AnyGroup) -> frozenset[str] | ErrorCode:
    """Return the topics that members are subscribed to, or an error if they do not say."""
    if isinstance(group, ProtocolGroup):
        return group.subscribed
    topics: set[str] = set()
    for member in group.members:
        found = subscription(member.metadata(group.protocol))
        if group.protocol_type != "consumer" or found is None:
            return ErrorCode.NON_EMPTY_GROUP
        topics.update(found)
    return frozenset(topics)


def subscription(metadata: bytes) -> list[str] | None:
    """Return the topics in what a consumer says when it joins (`ConsumerProtocolSubscription`)."""
    try:
        (count,) = struct.unpack_from(">i", metadata, 2)
        place, topics = 6, []
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, place)
            name = metadata[place + 2 : place + 2 + length]
            if length < 0 or len(name) < length:
                return None
            topics.append(name.decode())
            place += 2 + length
    except (struct.error, UnicodeDecodeError):
        return None
    return topics


async def handle_delete_groups(context: RequestContext, request: Any) -> Answer:
    """Forget groups that have no members, with their offsets."""
    coordinator = context.services.coordinator
    coordinator.is_current()
    term = coordinator.term  # groups that are judged in a later one are not forgotten
    outcomes: dict[str, ErrorCode] = {}
    forgotten = []
    async for name in context.in_turns(dict.fromkeys(request.groups_names)):
        group: AnyGroup | ErrorCode = ErrorCode.GROUP_AUTHORIZATION_FAILED
        if context.rights.may_group(Operation.DELETE, name):
            group = group_of(context, name, ErrorCode.GROUP_ID_NOT_FOUND)
        if isinstance(group, ErrorCode):
            outcomes[name] = group
        elif not group.is_unused:
            outcomes[name] = ErrorCode.NON_EMPTY_GROUP
        else:
            forgotten.append(name)
    for start in range(0, len(forgotten), FORGOTTEN_MAX):
        some = forgotten[start : start + FORGOTTEN_MAX]
        result = await _execute(context, ForgetGroups(term, some))
        for number, name in enumerate(some):
            if isinstance(result, GroupsChanged):
                outcomes[name] = OFFSET_ERRORS[result.codes[number]]
            else:
                outcomes[name] = result
            if outcomes[name] is ErrorCode.NONE:
                coordinator.forget(name)
    for name, error in outcomes.items():
        note(context, error, name)
    asked = dict.fromkeys(request.groups_names)
    return {"results": [{"group_id": one, "error_code": outcomes[one]} for one in asked]}
