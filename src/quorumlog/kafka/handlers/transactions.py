"""Requests of producers with a transactional id, and about these ids."""

from collections.abc import Mapping
from typing import Any, Final

from quorumlog.auth.acls import Operation, ResourceType
from quorumlog.kafka.broker_view import PartitionView
from quorumlog.kafka.context import Answer, RequestContext
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.consumer_protocol import ProtocolGroup
from quorumlog.kafka.handlers.group_offsets import by_topic, log_of, offsets_to_commit, parts_of
from quorumlog.kafka.handlers.groups import REASONS, TEXT_MAX
from quorumlog.kafka.led_partitions import Refusal, find_partition
from quorumlog.kafka.transactions.coordinator import (
    NO_MEMBER,
    NO_PRODUCER,
    GroupMember,
    InitAnswer,
    Producer,
)
from quorumlog.machine.cluster.commands import NO_GENERATION
from quorumlog.machine.cluster.transactions import STATES, TransactionRecord
from quorumlog.model.errors import RequestError

_FIRST_WITH_FENCED: Final = {"init": 4, "add": 2, "end": 2}
"""Versions from which on producers know PRODUCER_FENCED."""
_FIRST_WITH_MEMBERS: Final = 3
_FENCED: Final = (
    "another producer has taken the transactional id, or the transaction took longer than "
    "transaction.timeout.ms and was aborted"
)
_REASONS: Final = {
    ErrorCode.NOT_COORDINATOR: "another broker coordinates transactions (FindCoordinator)",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: REASONS[ErrorCode.COORDINATOR_NOT_AVAILABLE],
    ErrorCode.INVALID_REQUEST: f"a transactional id has 1 to {TEXT_MAX} characters",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "transaction.timeout.ms is 0, or above "
    "transaction.max.timeout.ms of the cluster",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "the transactional id belongs to no producer with this "
    "id: it was not used for long, or another has taken it",
    ErrorCode.PRODUCER_FENCED: _FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH: _FENCED,
    ErrorCode.INVALID_TXN_STATE: "there is no transaction that this could be done to",
    ErrorCode.POLICY_VIOLATION: "the cluster has no room for more of them (docs/kafka.md, Limits)",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "there is no such transactional id",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "a right on the transactional id is missing",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "a right on the topic is missing",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "a right on the consumer group is missing",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "the consumer group reads a log, by quorumlog's own "
    "Consumer, and has no offsets of topics: use another group",
}
_OF_OFFSETS: Final = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.CONCURRENT_TRANSACTIONS: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
"""What clients know as an answer to TxnOffsetCommit instead of other errors."""
_PASSING: Final = {ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS}
"""What producers are answered in quiet times, too: no line in the log."""


def _note(context: RequestContext, error: ErrorCode, name: str, **where: str | int) -> None:
    if error not in _PASSING:
        reason = _REASONS.get(error, error.name)
        context.note_error(error, reason, transactional_id=name, **where)


def _fault(context: RequestContext, name: str) -> ErrorCode:
    """Return why requests about a transactional id cannot be answered here; NONE: they can."""
    if not 0 < len(name) <= TEXT_MAX:
        return ErrorCode.INVALID_REQUEST
    if not context.services.transactions.is_current():
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.NONE


def _judged_fault(context: RequestContext, name: str, operation: Operation) -> ErrorCode:
    """Return as `_fault` does, or that the client may not do something with the id."""
    if not context.rights.may(operation, ResourceType.TRANSACTIONAL_ID, name):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return _fault(context, name)


def _fault_of_group(context: RequestContext, name: str, group: str) -> ErrorCode:
    """Return why a transaction cannot commit offsets of a consumer group; NONE: it can."""
    error = _fault(context, name)
    if error is ErrorCode.NONE and log_of(context, group) is not None:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return error


def _as_known(context: RequestContext, error: ErrorCode, request: str) -> ErrorCode:
    """Return an error as clients of this version of a request know it."""
    is_new = context.header.version >= _FIRST_WITH_FENCED[request]
    if error is ErrorCode.PRODUCER_FENCED and not is_new:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


# -- beginning ------------------------------------------------------------------------------------


async def handle_init_producer_id(context: RequestContext, request: Any) -> Answer:
    """Give an id to an idempotent producer, or to one with a transactional id.

    An idempotent one that has an id and wants a higher epoch gets another id. While the cluster
    group cannot give ids, it is told to ask again, by the one error that all clients know here.
    """
    name = request.transactional_id
    if name is None:
        refused = context.rights.refused_idempotence()
        if refused is not None:
            context.note_error(refused.error, refused.text)
            return {"error_code": refused.error, "producer_id": NO_PRODUCER, "producer_epoch": -1}
        try:
            producer_id = await context.services.producer_ids.take()
        except RequestError as failed:
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            context.note_error(error, str(failed))
            return {"error_code": error, "producer_id": NO_PRODUCER, "producer_epoch": -1}
        return {"error_code": ErrorCode.NONE, "producer_id": producer_id, "producer_epoch": 0}
    error, found = _fault(context, name), InitAnswer(ErrorCode.NONE)
    if error is ErrorCode.NONE:
        known_id = getattr(request, "producer_id", NO_PRODUCER)
        asked = Producer(name, known_id, getattr(request, "producer_epoch", -1))
        timeout_ms = request.transaction_timeout_ms
        found = await context.services.transactions.init(asked, timeout_ms)
        error = _as_known(context, found.error, "init")
    _note(context, error, name)
    return {
        "error_code": error,
        "producer_id": found.producer_id,
        "producer_epoch": found.epoch,
    }


async def handle_add_partitions_to_txn(context: RequestContext, request: Any) -> Answer:
    """Take partitions into a transaction: all of them, or none."""
    name = request.v3_and_below_transactional_id
    asked = Producer(name, request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    error = _judged_fault(context, name, Operation.WRITE)
    outcomes: dict[tuple[str, int], ErrorCode] = {}
    places = []
    for topic in request.v3_and_below_topics:
        async for number in context.in_turns(topic.partitions):
            found: PartitionView | Refusal | None
            found = context.rights.refused_topic(Operation.WRITE, topic.name)
            if found is None:
                found = find_partition(context.broker, topic.name, number)
            outcomes[topic.name, number] = error
            if isinstance(found, Refusal) and error is ErrorCode.NONE:
                outcomes[topic.name, number] = found.error
            elif not isinstance(found, Refusal):
                places.append((context.broker.topics[topic.name].topic_id, number))
    if error is ErrorCode.NONE and not any(outcomes.values()):
        error = await context.services.transactions.add(asked, places)
        error = _as_known(context, error, "add")
        outcomes = dict.fromkeys(outcomes, error)
    elif error is ErrorCode.NONE:
        attempted = ErrorCode.OPERATION_NOT_ATTEMPTED
        outcomes = {
            place: attempted if one is ErrorCode.NONE else one for place, one in outcomes.items()
        }
    for (topic_name, number), outcome in outcomes.items():
        _note(context, outcome, name, topic=topic_name, partition=number)
    return {"results_by_topic_v3_and_below": _results(request.v3_and_below_topics, outcomes)}


def _results(topics: Any, outcomes: Mapping[tuple[str, int], ErrorCode]) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {
                    "partition_index": number,
                    "partition_error_code": outcomes[topic.name, number],
                }
                for number in topic.partitions
            ],
        }
        for topic in topics
    ]


async def handle_add_offsets_to_txn(context: RequestContext, request: Any) -> Answer:
    """Have a transaction commit offsets of a consumer group, too."""
    asked = Producer(request.transactional_id, request.producer_id, request.producer_epoch)
    error = _fault_of_group(context, asked.transactional_id, request.group_id)
    if not 0 < len(request.group_id) <= TEXT_MAX:
        error = ErrorCode.INVALID_GROUP_ID
    if error is ErrorCode.NONE:
        error = await context.services.transactions.add(asked, [], [request.group_id])
        error = _as_known(context, error, "add")
    _note(context, error, asked.transactional_id, group=request.group_id)
    return {"error_code": error}


# -- offsets --------------------------------------------------------------------------------------


async def handle_txn_offset_commit(context: RequestContext, request: Any) -> Answer:
    """Note offsets that are committed if the transaction is."""
    asked = Producer(request.transactional_id, request.producer_id, request.producer_epoch)
    error = _judged_fault(context, asked.transactional_id, Operation.WRITE)
    if error is ErrorCode.NONE and not context.rights.may_group(Operation.READ, request.group_id):
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if error is ErrorCode.NONE:
        error = _fault_of_group(context, asked.transactional_id, request.group_id)
    member = NO_MEMBER
    if error is ErrorCode.NONE and context.header.version >= _FIRST_WITH_MEMBERS:
        found_member = _member_of(context, request)
        if isinstance(found_member, ErrorCode):
            error = found_member
        else:
            member = found_member
    outcomes, wanted = await offsets_to_commit(context, request.topics, error)
    for some in parts_of(wanted):
        offsets = [one for _, one in some]
        transactions = context.services.transactions
        found = await transactions.add_offsets(asked, request.group_id, offsets, member)
        if isinstance(found, ErrorCode):
            found = _OF_OFFSETS.get(found, found)
        for number, (place, _) in enumerate(some):
            outcomes[place] = found if isinstance(found, ErrorCode) else found[number]
    for (topic, number), outcome in outcomes.items():
        _note(context, outcome, asked.transactional_id, topic=topic, partition=number)
    return {"topics": by_topic(request.topics, outcomes)}


def _member_of(context: RequestContext, request: Any) -> GroupMember | ErrorCode:
    """Return whose offsets these are, or why that is no member of its group any more."""
    coordinator = context.services.coordinator
    generation = request.generation_id
    if generation < 0 and not request.member_id and request.group_instance_id is None:
        return NO_MEMBER  # it does not say
    if not coordinator.is_current():
        return ErrorCode.NOT_COORDINATOR
    group = coordinator.find(request.group_id)
    if group is None:
        return ErrorCode.ILLEGAL_GENERATION
    now_ms, instance_id = coordinator.now_ms(), request.group_instance_id
    error = group.may_commit(request.member_id, instance_id, generation, now_ms)
    if error is ErrorCode.STALE_MEMBER_EPOCH:
        # as Kafka's brokers say it to producers, which know nothing of epochs of members
        return ErrorCode.ILLEGAL_GENERATION
    if error is not ErrorCode.NONE:
        return error
    generation = max(NO_GENERATION, generation)
    has_epochs = isinstance(group, ProtocolGroup) and generation != NO_GENERATION
    return GroupMember(generation, request.member_id if has_epochs else "")


# -- ending ---------------------------------------------------------------------------------------


async def handle_end_txn(context: RequestContext, request: Any) -> Answer:
    """Commit or abort a transaction."""
    asked = Producer(request.transactional_id, request.producer_id, request.producer_epoch)
    error = _fault(context, asked.transactional_id)
    if error is ErrorCode.NONE:
        error = await context.services.transactions.finish(asked, commits=request.committed)
        error = _as_known(context, error, "end")
    _note(context, error, asked.transactional_id)
    return {"error_code": error}


# -- for administrators ---------------------------------------------------------------------------


async def handle_describe_transactions(context: RequestContext, request: Any) -> Answer:
    """Answer what is known of transactional ids."""
    answers = []
    async for name in context.in_turns(dict.fromkeys(request.transactional_ids)):
        error = _judged_fault(context, name, Operation.DESCRIBE)
        record = context.broker.transactions.records.get(name)
        if error is ErrorCode.NONE and record is None:
            error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        _note(context, error, name)
        if record is None or error is not ErrorCode.NONE:
            answers.append({"error_code": error, "transactional_id": name, "topics": []})
        else:
            answers.append(_described(context, record))
    return {"transaction_states": answers}


def _described(context: RequestContext, record: TransactionRecord) -> dict[str, Any]:
    topics: dict[str, list[int]] = {}
    for topic_id, number in record.partitions:
        topic = context.broker.topics_by_id.get(topic_id)
        if topic is not None and context.rights.sees_topic(Operation.DESCRIBE, topic.name):
            topics.setdefault(topic.name, []).append(number)
    return {
        "error_code": ErrorCode.NONE,
        "transactional_id": record.transactional_id,
        "transaction_state": record.state,
        "transaction_timeout_ms": record.timeout_ms,
        "transaction_start_time_ms": record.started_ms if record.is_open else -1,
        "producer_id": record.producer_id,
        "producer_epoch": record.epoch,
        "topics": [{"topic": name, "partitions": some} for name, some in topics.items()],
    }


async def handle_list_transactions(context: RequestContext, request: Any) -> Answer:
    """Answer which transactional ids this broker coordinates: all, or none if another broker does.

    Of some states or producers only, if these are named.
    """
    states, producers = set(request.state_filters), set(request.producer_id_filters)
    known = set(STATES)
    broker, listed, error = context.broker, list[dict[str, Any]](), ErrorCode.NONE
    is_current = context.services.transactions.is_current()
    if not is_current and broker.controller_id == broker.broker_id:
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        context.note_error(error, "no broker coordinates transactions at the moment")
    if is_current:
        least_ms = getattr(request, "duration_filter", -1)
        now_ms = context.services.transactions.wall_ms()
        async for record in context.in_turns(context.broker.transactions.records.values()):
            is_wanted = not states or record.state in states
            is_wanted &= not producers or record.producer_id in producers
            right = Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, record.transactional_id
            is_wanted = is_wanted and context.rights.sees(*right)
            is_old = record.is_open and now_ms - record.started_ms > least_ms
            if is_wanted and (least_ms < 0 or is_old):
                listed.append(
                    {
                        "transactional_id": record.transactional_id,
                        "producer_id": record.producer_id,
                        "transaction_state": record.state,
                    }
                )
    return {
        "error_code": error,
        "unknown_state_filters": sorted(states - known),
        "transaction_states": listed,
    }
