"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: where partitions begin, end and are by time."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from quorumlog.auth.acls import Operation
from quorumlog.kafka.context import Answer, RequestContext
from quorumlog.kafka.errors import ErrorCode, error_of
from quorumlog.kafka.fetch import READS_COMMITTED
from quorumlog.kafka.gathering import Gathering
from quorumlog.kafka.led_partitions import LedPartition, Refusal, led_partition
from quorumlog.machine.cluster.consumer_groups import LOG_PREFIX
from quorumlog.model.codes import ResponseCode
from quorumlog.node.replica.partition_retention import DeletedRecords
from quorumlog.node.replica.partition_times import EARLIEST, LATEST, MAX_TIMESTAMP, FoundOffset
from quorumlog.node.replica.replica import Replica

LOOK_UP_MS: Final = 30_000
"""Most time to find offsets; requests do not say it."""
_EARLIEST_HERE: Final = -4
"""The earliest offset on the brokers' own disks, which is the earliest one of all."""
_FIRST_WITH: Final = {MAX_TIMESTAMP: 7, _EARLIEST_HERE: 8}
_UNKNOWN: Final = -1
_HIGH_WATERMARK: Final = -1
"""Instead of an offset to which records are deleted."""
_NOT_CONFIRMED: Final = Refusal(
    ErrorCode.NOT_LEADER_OR_FOLLOWER, "whether this node leads still was not found out in time"
)


async def handle_list_offsets(context: RequestContext, request: Any) -> Answer:
    """Answer offsets of partitions by time, or the first, the end, or that of the newest record.

    Readers of committed transactions see the last stable offset as the end. A partition that is
    named more than once is refused, as by Kafka's brokers, and answered once: one request could
    have its batches searched again and again. A log that a consumer group reads is asked for by its
    name there (`LogToRead.topic`), of any broker that has a replica of it.
    """
    asked: dict[str, dict[int, Any]] = {}  # by partition; None: it is named more than once
    for topic in request.topics:
        partitions = asked.setdefault(topic.name, {})
        async for one in context.in_turns(topic.partitions):
            number = one.partition_index
            partitions[number] = None if number in partitions else one
    gathering = Gathering[FoundOffset | Refusal]()
    reads_committed = getattr(request, "isolation_level", 0) == READS_COMMITTED
    for name, partitions in asked.items():
        async for one in context.in_turns(partitions.values()):
            _look_up(context, name, one, gathering.expect(), reads_committed=reads_committed)
    answers = iter(await gathering.wait(LOOK_UP_MS))
    return {
        "topics": [
            {
                "name": name,
                "partitions": [
                    _listed(context, name, number, next(answers))
                    async for number in context.in_turns(partitions)
                ],
            }
            for name, partitions in asked.items()
        ]
    }


def _look_up(
    context: RequestContext,
    topic: str,
    asked: Any,
    take: Callable[[FoundOffset | Refusal], None],
    *,
    reads_committed: bool,
) -> None:
    """Have an offset of a partition found, or refuse that."""
    if asked is None:
        text = "the request names the partition more than once; ask for one time in each request"
        take(Refusal(ErrorCode.INVALID_REQUEST, text))
        return
    refused = context.rights.refused_topic(Operation.DESCRIBE, topic)
    if refused is not None:
        take(refused)
        return
    time_ms = asked.timestamp
    if topic.startswith(LOG_PREFIX):
        take(_end_of_log(context, topic.removeprefix(LOG_PREFIX), time_ms))
        return
    led = led_partition(context.broker, topic, asked.partition_index, asked.current_leader_epoch)
    if isinstance(led, Refusal):
        take(led)
    elif context.header.version < _FIRST_WITH.get(time_ms, 0):
        text = f"timestamp {time_ms} has no meaning in version {context.header.version}"
        take(Refusal(ErrorCode.UNSUPPORTED_VERSION, text))
    else:
        led.replica.partition_times.find(
            led.channel,
            EARLIEST if time_ms == _EARLIEST_HERE else time_ms,
            take,
            context.owner,
            reads_committed=reads_committed,
        )


def _end_of_log(context: RequestContext, name: str, time_ms: int) -> FoundOffset | Refusal:
    """Return the first index of a log, or that after the last one that can be read."""
    replica = context.broker.replica(name)
    if replica is None or replica.config.kind != "log":
        text = f"this node has no replica of a log {name!r}"
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    if time_ms in (EARLIEST, _EARLIEST_HERE):
        return FoundOffset(offset=replica.log.before_begin_index + 1)
    if time_ms == LATEST:
        last = min(replica.core.committed_index, replica.tables.stable_index)
        return FoundOffset(offset=last + 1)
    text = "entries of a log are not found by time"
    return Refusal(ErrorCode.UNSUPPORTED_VERSION, text)


def _listed(
    context: RequestContext, topic: str, partition: int, found: FoundOffset | Refusal | None
) -> dict[str, Any]:
    answer = {"partition_index": partition}
    if found is None:
        found = Refusal(ErrorCode.REQUEST_TIMED_OUT, f"nothing was found within {LOOK_UP_MS} ms")
    elif isinstance(found, FoundOffset) and found.code is not ResponseCode.SUCCESS:
        found = Refusal(error_of(found.code), found.text)
    if isinstance(found, Refusal):
        context.note_error(found.error, found.text, topic=topic, partition=partition)
        return {**answer, "error_code": found.error, "timestamp": _UNKNOWN, "offset": _UNKNOWN}
    return {
        **answer,
        "timestamp": found.timestamp,
        "offset": found.offset,
        "leader_epoch": found.leader_epoch,
    }


async def handle_offset_for_leader_epoch(context: RequestContext, request: Any) -> Answer:
    """Answer where the records of leader epochs end: clients see so whether theirs were lost.

    Of its own epoch, and of later ones, only a leader that is confirmed may speak: clients take
    records that a former leader does not know of for lost, and start over.
    """
    unsure: dict[Replica, Callable[[Refusal], None]] = {}
    gathering = Gathering[Refusal]()
    for topic in request.topics:
        async for one in context.in_turns(topic.partitions):
            led = _described(context, topic.topic, one)
            if isinstance(led, Refusal) or one.leader_epoch < led.replica.core.term:
                continue
            if led.replica not in unsure:
                unsure[led.replica] = gathering.expect()
    for replica, take in unsure.items():
        _confirm(replica, take)
    found = await gathering.wait(LOOK_UP_MS)
    confirmed = dict(zip(unsure, found, strict=True))
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [
                    _epoch_end(context, topic.topic, one, confirmed)
                    async for one in context.in_turns(topic.partitions)
                ],
            }
            for topic in request.topics
        ]
    }


def _described(context: RequestContext, topic: str, asked: Any) -> LedPartition | Refusal:
    """Return a partition that this node leads, and that the client may describe."""
    refused = context.rights.refused_topic(Operation.DESCRIBE, topic)
    if refused is not None:
        return refused
    return led_partition(context.broker, topic, asked.partition, asked.current_leader_epoch)


def _confirm(replica: Replica, take: Callable[[Refusal], None]) -> None:
    """Have a leader confirmed; NONE says that it is."""
    replica.partition_reads.confirm(lambda code, text: take(Refusal(error_of(code), text)))


def _epoch_end(
    context: RequestContext,
    topic: str,
    asked: Any,
    confirmed: Mapping[Replica, Refusal | None],
) -> dict[str, Any]:
    found = _described(context, topic, asked)
    ends = None
    if isinstance(found, LedPartition) and asked.leader_epoch >= found.replica.core.term:
        outcome = confirmed.get(found.replica) or _NOT_CONFIRMED
        if outcome.error is not ErrorCode.NONE:
            found = outcome
    if isinstance(found, LedPartition):
        ends = found.replica.partition_reads.epoch_end(found.channel, asked.leader_epoch)
        if ends is None:
            text = f"partition {asked.partition} of topic {topic!r} is not open yet"
            found = Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    if isinstance(found, Refusal):
        context.note_error(found.error, found.text, topic=topic, partition=asked.partition)
        return {
            "partition": asked.partition,
            "error_code": found.error,
            "leader_epoch": _UNKNOWN,
            "end_offset": _UNKNOWN,
        }
    epoch, end = ends or (_UNKNOWN, _UNKNOWN)
    return {"partition": asked.partition, "leader_epoch": epoch, "end_offset": end}


async def handle_delete_records(context: RequestContext, request: Any) -> Answer:
    """Move the log starts of partitions, to an offset or (-1) to the high watermark."""
    gathering = Gathering[DeletedRecords | Refusal]()
    for topic in request.topics:
        async for one in context.in_turns(topic.partitions):
            take = gathering.expect()
            found: LedPartition | Refusal | None
            found = context.rights.refused_topic(Operation.DELETE, topic.name)
            if found is None:
                found = led_partition(context.broker, topic.name, one.partition_index)
            if isinstance(found, Refusal):
                take(found)
            else:
                _delete_records(found, one.offset, take)
    answers = iter(await gathering.wait(context.within_ms(request.timeout_ms)))
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _deleted(context, topic.name, one.partition_index, next(answers))
                    async for one in context.in_turns(topic.partitions)
                ],
            }
            for topic in request.topics
        ]
    }


def _delete_records(
    led: LedPartition, offset: int, take: Callable[[DeletedRecords | Refusal], None]
) -> None:
    """Have a log start moved."""
    partition = led.replica.partition_reads.partition(led.channel)
    if partition is None:
        text = "the partition is not open yet"
        take(Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text))
        return
    if offset == _HIGH_WATERMARK:
        offset = partition.next_offset
    led.replica.partition_retention.delete_records(led.channel, offset, take)


def _deleted(
    context: RequestContext, topic: str, partition: int, found: DeletedRecords | Refusal | None
) -> dict[str, Any]:
    if found is None:
        found = Refusal(ErrorCode.REQUEST_TIMED_OUT, "not all records were deleted in time")
    elif isinstance(found, DeletedRecords) and found.code is not ResponseCode.SUCCESS:
        found = Refusal(error_of(found.code), found.text)
    if isinstance(found, Refusal):
        context.note_error(found.error, found.text, topic=topic, partition=partition)
        answer = {"partition_index": partition, "error_code": found.error}
        return {**answer, "low_watermark": _UNKNOWN}
    return {"partition_index": partition, "low_watermark": found.log_start}
