"""DescribeLogDirs, DescribeProducers, ElectLeaders, and reassignments, of which there are none."""

import shutil
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

from quorumlog.auth.acls import Operation
from quorumlog.kafka.broker_view import BrokerView
from quorumlog.kafka.context import Answer, RequestContext
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.led_partitions import LedPartition, Refusal, find_partition, led_partition

PRODUCERS_MAX: Final = 10_000
"""Producers that one answer describes; those of further partitions are to be asked for again. All
of the first partition are told, however many these are."""
_PREFERRED: Final = 0
_UNASSIGNABLE: Final = (
    "a partition cannot be moved by itself: it is where its partition group is, with others"
)
_NEVER_UNCLEAN: Final = "a replica that lacks acknowledged records is never elected"


def _asked_for(broker: BrokerView, topics: Any, numbers: str) -> Iterator[tuple[str, int]]:
    """Yield the partitions that a request names, or all."""
    if topics is None:
        for name, topic in broker.topics.items():
            for one in topic.partitions:
                yield name, one.number
        return
    for asked in topics:
        for number in getattr(asked, numbers):
            yield asked.topic, number


def _by_topic(found: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for name, answer in found:
        topics.setdefault(name, []).append(answer)
    return topics


# -- what this node has ---------------------------------------------------------------------------


async def handle_describe_log_dirs(context: RequestContext, request: Any) -> Answer:
    """Answer how many bytes of partitions can be read at this node, leader or not, and where.

    The high watermark that a replica knows is never beyond its log: as in Kafka, none lags.
    """
    broker = context.broker
    here = context.config.store_base_dir
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {here: []}
    asked = dict.fromkeys(_asked_for(broker, request.topics, "partitions"))
    async for name, number in context.in_turns(asked):
        partition = find_partition(broker, name, number)
        replica = None if isinstance(partition, Refusal) else broker.replica(partition.group)
        if isinstance(partition, Refusal) or replica is None:
            continue
        if replica.partition_reads.partition(partition.channel) is None:
            continue
        size = replica.partition_retention.readable_bytes(partition.channel)
        answer = {"partition_index": number, "partition_size": size, "offset_lag": 0}
        directory = next(iter(replica.config.data_directories), here)
        found.setdefault(directory, []).append((name, {**answer, "is_future_key": False}))
    results = []
    for directory, partitions in found.items():
        usage = await context.on_thread(partial(shutil.disk_usage, directory))
        result = {
            "error_code": ErrorCode.NONE,
            "log_dir": directory,
            "topics": [
                {"name": name, "partitions": some} for name, some in _by_topic(partitions).items()
            ],
            "total_bytes": usage.total,
            "usable_bytes": usage.free,
        }
        results.append(result)
    return {"results": results}


async def handle_describe_producers(context: RequestContext, request: Any) -> Answer:
    """Answer which idempotent producers partitions remember."""
    left, found = PRODUCERS_MAX, []
    for topic in request.topics:
        partitions = []
        async for number in context.in_turns(topic.partition_indexes):
            led: LedPartition | Refusal | None
            led = context.rights.refused_topic(Operation.READ, topic.name)
            if led is None:
                led = led_partition(context.broker, topic.name, number)
            producers = []
            if not isinstance(led, Refusal):
                producers = led.replica.partition_reads.producers(led.channel)
                is_first = left == PRODUCERS_MAX
                left -= len(producers)
                if left < 0 and not is_first:
                    text = f"one answer describes at most {PRODUCERS_MAX} producers; ask again"
                    led = Refusal(ErrorCode.POLICY_VIOLATION, text)
            if isinstance(led, Refusal):
                context.note_error(led.error, led.text, topic=topic.name, partition=number)
                answer = {"error_code": led.error, "error_message": led.text}
                partitions.append({**answer, "partition_index": number, "active_producers": []})
                continue
            partitions.append(
                {
                    "partition_index": number,
                    "active_producers": [
                        {
                            "producer_id": producer_id,
                            "producer_epoch": state.epoch,
                            "last_sequence": state.last_sequence,
                            "coordinator_epoch": -1,
                            "current_txn_start_offset": first_offset,
                        }
                        async for producer_id, state, first_offset in context.in_turns(producers)
                    ],
                }
            )
        found.append({"name": topic.name, "partitions": partitions})
    return {"topics": found}


# -- leaders --------------------------------------------------------------------------------------


async def handle_elect_leaders(context: RequestContext, request: Any) -> Answer:
    """Wait until the preferred leaders lead, which they do by themselves once they are in sync.

    A partition has the leader of its group, so others of the group change with it.
    """
    broker, is_all = context.broker, request.topic_partitions is None
    asked = list(dict.fromkeys(_asked_for(broker, request.topic_partitions, "partitions")))
    found = [
        (name, number, find_partition(broker, name, number))
        async for name, number in context.in_turns(asked)
    ]
    awaited = {
        one.group
        for _, _, one in found
        if not isinstance(one, Refusal)
        and _election(broker, one.group, request.election_type).error is ErrorCode.NONE
    }
    if awaited:
        await broker.until(
            lambda: all(_is_led_as_preferred(broker, group) for group in awaited),
            context.within_ms(request.timeout_ms),
        )
    results = []
    async for name, number, one in context.in_turns(found):
        if isinstance(one, Refusal):
            outcome = one
        elif one.group not in awaited:
            outcome = _election(broker, one.group, request.election_type)
        elif _is_led_as_preferred(broker, one.group):
            outcome = Refusal(ErrorCode.NONE, "")
        else:
            text = f"the preferred leader of {one.group} has not taken over yet"
            outcome = Refusal(ErrorCode.REQUEST_TIMED_OUT, text)
        if is_all and outcome.error is ErrorCode.ELECTION_NOT_NEEDED:
            continue
        if outcome.error is not ErrorCode.NONE:
            context.note_error(outcome.error, outcome.text, topic=name, partition=number)
        answer = {"partition_id": number, "error_code": outcome.error}
        results.append((name, {**answer, "error_message": outcome.text or None}))
    topics = [
        {"topic": name, "partition_result": partitions}
        for name, partitions in _by_topic(results).items()
    ]
    return {"replica_election_results": topics}


def _election(broker: BrokerView, group: str, election_type: int) -> Refusal:
    """Return why there is no election in a group; with NONE: there is one to wait for."""
    leader = broker.leader_of(group).broker_id
    if election_type != _PREFERRED:
        if leader >= 0:
            return Refusal(ErrorCode.ELECTION_NOT_NEEDED, f"broker {leader} leads it")
        return Refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, _NEVER_UNCLEAN)
    if _is_led_as_preferred(broker, group):
        return Refusal(ErrorCode.ELECTION_NOT_NEEDED, f"broker {leader} leads it, as is preferred")
    preferred = broker.replicas_of(group)[:1]
    if not preferred or preferred[0] not in broker.brokers:
        text = "the preferred leader is not there"
        return Refusal(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, text)
    return Refusal(ErrorCode.NONE, "")


def _is_led_as_preferred(broker: BrokerView, group: str) -> bool:
    return broker.replicas_of(group)[:1] == (broker.leader_of(group).broker_id,)


# -- reassignments --------------------------------------------------------------------------------


async def handle_alter_partition_reassignments(context: RequestContext, request: Any) -> Answer:
    """Refuse to move single partitions."""

    def outcome(topic: str, asked: Any) -> dict[str, Any]:
        error, text = ErrorCode.INVALID_REPLICA_ASSIGNMENT, _UNASSIGNABLE
        if asked.replicas is None:
            error, text = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "no reassignment is under way"
        context.note_error(error, text, topic=topic, partition=asked.partition_index)
        return {"error_code": error, "error_message": text}

    return {
        "error_message": None,
        "responses": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": one.partition_index, **outcome(topic.name, one)}
                    async for one in context.in_turns(topic.partitions)
                ],
            }
            for topic in request.topics
        ],
    }


async def handle_list_partition_reassignments(context: RequestContext, request: Any) -> Answer:
    """Answer that no partition is being moved."""
    return {"error_message": None, "topics": []}
