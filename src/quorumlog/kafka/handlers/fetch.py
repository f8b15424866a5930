"""Fetch: record batches of partitions, as soon as there are enough of them."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from quorumlog.auth.acls import Operation
from quorumlog.kafka.context import ELEMENTS_PER_TURN
from quorumlog.kafka.errors import ErrorCode, error_of
from quorumlog.kafka.fetch import (
    GATHERED_BYTES_MAX,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    fetch_answer,
    read_fetch,
)
from quorumlog.kafka.led_partitions import Refusal, not_here, partition_of, refusal_of
from quorumlog.kafka.pending_request import PendingRequest
from quorumlog.model.block import Buffer
from quorumlog.model.codes import ResponseCode
from quorumlog.model.wording import topic_id_text
from quorumlog.node.replica.partition_reads import PartitionRead, ReadBatches
from quorumlog.node.replica.replica import Replica

_NO_SESSION: Final = 0


class _Asked(msgspec.Struct, frozen=True):
    """One partition of a request, and where its answer goes."""

    slot: list[FetchedPartition]
    number: int
    topic: str
    partition: int
    read: PartitionRead


def start_fetch(request: PendingRequest) -> None:
    """Answer a Fetch once there are enough bytes, or its wait is over.

    Raises `RemoteProtocolError` if it is none.
    """
    request.read(read_fetch, lambda parsed: _Fetching(request, parsed).start())


class _Fetching:
    """One Fetch under way."""

    __slots__ = (
        "_asked",
        "_ends",
        "_has_error",
        "_has_records",
        "_is_looking",
        "_parsed",
        "_request",
        "_room",
        "_timer",
        "_topics",
    )

    def __init__(self, request: PendingRequest, parsed: FetchRequest) -> None:
        self._request = request
        self._parsed = parsed
        self._topics: list[FetchedTopic] = []
        self._asked: dict[Replica, list[_Asked]] = {}
        self._has_error = self._has_records = self._is_looking = False
        self._ends: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._room = 0

    def start(self) -> None:
        """Answer now, or when there is enough."""
        parsed, request = self._parsed, self._request
        if parsed.session_id != _NO_SESSION:
            error = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            request.context.note_error(error, "fetch sessions are declined")
            request.answered(fetch_answer(request.header, [], error))
            return
        if sum([len(topic.partitions) for topic in parsed.topics]) <= ELEMENTS_PER_TURN:
            for topic in parsed.topics:
                self._resolve(topic, topic.partitions, self._add(topic))
            self._go_on()
        else:
            task = asyncio.get_running_loop().create_task(self._resolve_in_turns())
            request.cancel = task.cancel

    async def _resolve_in_turns(self) -> None:
        """Find thousands of partitions, while others have their turn on the loop."""
        try:
            for topic in self._parsed.topics:
                found = self._add(topic)
                for first in range(0, len(topic.partitions), ELEMENTS_PER_TURN):
                    some = topic.partitions[first : first + ELEMENTS_PER_TURN]
                    self._resolve(topic, some, found)
                    await asyncio.sleep(0)
            self._go_on()
        except Exception as error:
            self._end_waiting()
            self._request.failed(error)

    def _go_on(self) -> None:
        parsed, request = self._parsed, self._request
        context = request.context
        wait_ms = min(
            context.within_ms(parsed.wait_ms_max), context.services.config.limits.fetch_wait_ms_max
        )
        if self._has_error or not self._asked or not wait_ms or self._has_enough():
            self._read()
        else:
            self._wait(wait_ms)

    # -- what is asked for ------------------------------------------------------------------

    def _add(self, asked: FetchTopic) -> list[FetchedPartition]:
        """Return where the answers for the partitions of a topic go."""
        found: list[FetchedPartition] = []
        self._topics.append(FetchedTopic(asked.name, asked.topic_id, found))
        return found

    def _resolve(
        self, asked: FetchTopic, partitions: list[FetchPartition], found: list[FetchedPartition]
    ) -> None:
        """Find the replicas of partitions of a topic; those that are not here are answered."""
        broker = self._request.context.services.broker
        asked_of, accepted = self._asked, set[tuple[Replica, int]]()
        if asked.topic_id is not None:
            topic = broker.topics_by_id.get(asked.topic_id)
            unknown, named = ErrorCode.UNKNOWN_TOPIC_ID, topic_id_text(asked.topic_id)
        else:
            topic = broker.topics.get(asked.name or "")
            unknown, named = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, repr(asked.name)
        name = named if topic is None else topic.name
        forbidden = None
        if self._request.context.rights.permit is not None:
            forbidden = self._forbidden(asked, None if topic is None else topic.name)
        if topic is not None and forbidden is None:
            self._request.context.accessed((name,), "Read")
        for one in partitions:
            if forbidden is not None:
                self._refuse(found, named, one, forbidden)
                continue
            if topic is None:
                self._refuse(found, name, one, Refusal(unknown, f"there is no topic {named}"))
                continue
            partition = partition_of(topic, one.partition)
            if isinstance(partition, Refusal):
                self._refuse(found, name, one, partition)
                continue
            replica = broker.replica(partition.group)
            if replica is None:
                self._refuse(found, name, one, not_here(name, one.partition))
                continue
            if (replica, one.leader_epoch) not in accepted:
                refusal = refusal_of(replica, one.leader_epoch)
                if refusal is not None:
                    self._refuse(found, name, one, refusal)
                    continue
                accepted.add((replica, one.leader_epoch))
            most, committed = max(0, one.bytes_max), self._parsed.reads_committed
            read = PartitionRead(partition.channel, one.offset, most, committed)
            asked_here = asked_of.setdefault(replica, [])
            asked_here.append(_Asked(found, len(found), name, one.partition, read))
            found.append(FetchedPartition(one.partition))

    def _forbidden(self, asked: FetchTopic, known: str | None) -> Refusal | None:
        """Return why the client may not read a topic; None: it may, or no topic has the id.

        Who may not describe a topic is not told that its id is one. `known`: its name.
        """
        rights = self._request.context.rights
        if rights.permit is None or (asked.topic_id is not None and known is None):
            return None
        name = known or asked.name or ""
        refused = rights.refused_topic(Operation.READ, name)
        if refused is None or asked.topic_id is None:
            return refused
        if rights.sees_topic(Operation.DESCRIBE, name):
            return refused
        text = f"there is no topic {topic_id_text(asked.topic_id)}"
        return Refusal(ErrorCode.UNKNOWN_TOPIC_ID, text)

    def _refuse(
        self,
        found: list[FetchedPartition],
        topic: str,
        asked: FetchPartition,
        refusal: Refusal,
    ) -> None:
        self._has_error = True
        error, text = refusal
        self._request.context.note_error(error, text, topic=topic, partition=asked.partition)
        found.append(self._failed(asked.partition, error))

    def _failed(
        self, partition: int, error: ErrorCode, high_watermark: int = -1, log_start: int = -1
    ) -> FetchedPartition:
        aborted = () if self._parsed.reads_committed else None
        return FetchedPartition(
            partition, error, high_watermark, high_watermark, log_start, aborted
        )

    # -- waiting ----------------------------------------------------------------------------

    def _has_enough(self) -> bool:
        """Whether the answer has the bytes that the client wants, or cannot have any."""
        wanted = min(self._parsed.bytes_min, self._bytes_max())
        if wanted <= 0:
            return True
        for replica, asked in self._asked.items():
            reads = replica.partition_reads
            if reads.refusal() is not None:
                return True
            wanted = reads.missing([one.read for one in asked], wanted)
            if wanted <= 0:
                return True
        return False

    def _wait(self, wait_ms: int) -> None:
        self._request.cancel = self._end_waiting
        for replica, asked in self._asked.items():
            channels = [one.read.channel for one in asked]
            self._ends.append(replica.partition_reads.wait(channels, self._grown))
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(wait_ms / 1_000, self._guard, self._timed_out)

    def _grown(self) -> None:
        """A partition has grown; look at the end of the turn, in which others may grow, too."""
        if not self._is_looking:
            self._is_looking = True
            self._request.context.services.defer(partial(self._guard, self._look))

    def _look(self) -> None:
        self._is_looking = False
        if self._timer is not None and self._has_enough():
            self._end_waiting()
            self._read()

    def _timed_out(self) -> None:
        self._end_waiting()
        self._read()

    def _end_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ends, self._ends = self._ends, []
        for end in ends:
            end()

    def _guard(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            self._end_waiting()
            self._request.failed(error)

    # -- reading ----------------------------------------------------------------------------

    def _bytes_max(self) -> int:
        """Return the most bytes of the answer: 1 and more, so that its first batch is given.

        0: none, as the client has used up its quota, and is told so at once.
        """
        services, most = self._request.context.services, self._parsed.bytes_max
        if services.throttles.is_active:
            left = self._request.bytes_left()
            if left is not None:
                if left < 0:
                    return 0
                most = min(most, int(left))
        return max(1, min(most, services.answer_bytes_max()))

    def _read(self) -> None:
        """Read from one group after the other, and answer."""
        self._room = self._bytes_max()
        self._read_next(
            (replica, asked[first : first + ELEMENTS_PER_TURN])
            for replica, asked in list(self._asked.items())
            for first in range(0, len(asked), ELEMENTS_PER_TURN)
        )

    def _read_next(self, left: Iterator[tuple[Replica, list[_Asked]]]) -> None:
        found = next(left, None)
        if found is None:
            self._finish()
            return
        replica, asked = found

        def answer(results: list[ReadBatches]) -> None:
            def take() -> None:
                for one, result in zip(asked, results, strict=True):
                    self._take(one, result)
                if len(asked) < ELEMENTS_PER_TURN:
                    self._read_next(left)
                    return
                loop = asyncio.get_running_loop()
                loop.call_soon(self._guard, lambda: self._read_next(left))

            self._guard(take)

        owner = self._request.context.owner
        reads, at_least_one = [one.read for one in asked], not self._has_records and self._room > 0
        replica.partition_reads.read(reads, self._room, answer, owner, at_least_one=at_least_one)

    def _take(self, asked: _Asked, result: ReadBatches) -> None:
        # the right may have been taken away while it waited
        forbidden = self._request.context.rights.refused_topic(Operation.READ, asked.topic)
        if forbidden is not None:
            error, text = forbidden
            self._request.context.note_error(error, text, topic=asked.topic)
            asked.slot[asked.number] = self._failed(asked.partition, error)
            return
        if result.code is not ResponseCode.SUCCESS:
            error = error_of(result.code)
            where: dict[str, str | int] = {"topic": asked.topic, "partition": asked.partition}
            self._request.context.note_error(error, result.text, **where)
            asked.slot[asked.number] = self._failed(
                asked.partition, error, result.high_watermark, result.log_start
            )
            return
        records = gathered(result.batches) if len(result.batches) > 1 else result.batches
        size = sum(map(len, records))
        self._room -= size
        self._request.bytes_read += size
        self._has_records = self._has_records or bool(records)
        asked.slot[asked.number] = FetchedPartition(
            asked.partition,
            ErrorCode.NONE,
            result.high_watermark,
            result.stable_offset,
            result.log_start,
            result.aborted if self._parsed.reads_committed else None,
            records=records,
        )

    def _finish(self) -> None:
        self._request.answered(fetch_answer(self._request.header, self._topics))


def gathered(batches: Sequence[memoryview]) -> list[Buffer]:
    """Return the bytes of batches in fewer buffers: small ones in a row are joined."""
    if len(batches) <= 1:
        return list(batches)
    buffers: list[Buffer] = []
    small: list[memoryview] = []
    for batch in batches:
        if len(batch) < GATHERED_BYTES_MAX:
            small.append(batch)
            continue
        if small:
            buffers.append(b"".join(small))
            small = []
        buffers.append(batch)
    if small:
        buffers.append(b"".join(small))
    return buffers
