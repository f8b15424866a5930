"""Produce: record batches of a request become entries of the groups that hold their partitions."""

import asyncio
from collections.abc import Container, Sequence
from functools import partial
from typing import Final, NamedTuple

from quorumlog.auth.acls import Operation, ResourceType
from quorumlog.auth.permits import Right
from quorumlog.kafka.broker_view import PartitionView
from quorumlog.kafka.errors import ErrorCode, error_of, error_of_fault
from quorumlog.kafka.handlers.topics import create_missing, creates_missing
from quorumlog.kafka.led_partitions import Refusal, find_partition, not_here
from quorumlog.kafka.pending_request import PendingRequest
from quorumlog.kafka.produce import (
    ProducedPartition,
    ProduceRequest,
    produce_answer,
    read_produce,
)
from quorumlog.kafka.refused_batches import Key
from quorumlog.kafka.topic_policies import TopicPolicy
from quorumlog.machine.cluster.topics import problem_of_name
from quorumlog.model.block import HEADER_SIZE, Block
from quorumlog.model.codes import ResponseCode, Role, WriteLevel
from quorumlog.model.messages.client import AppendResponse
from quorumlog.model.wording import counted, shortened
from quorumlog.node.replica.replica import Replica
from quorumlog.records.batch import HEADER_SIZE as BATCH_HEADER_SIZE
from quorumlog.records.batch import (
    NO_PRODUCER,
    BatchHeader,
    RecordBatchError,
    batch_header,
    check_batch,
)
from quorumlog.topics.produced_batch import ProducedBatch, block_around

BATCHES_PER_TURN: Final = 100
"""Batches of a request that are proposed before others have their turn on the loop; each takes some
ten microseconds."""
ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
ACKS_ALL: Final = -1
BARRIER_MS: Final = 5_000
"""How long a transactional batch waits for what `__cluster` says of its transaction."""
_UNKNOWN_TRANSACTIONS: Final = "__cluster does not say now which transactions are ongoing"
_SEND_EARLIER: Final = "a batch before it was refused; that one is to be sent again first"
_TOO_EARLY: Final = frozenset({ResponseCode.SEQUENCE_GAP, ResponseCode.UNKNOWN_PRODUCER})
"""Codes of a batch that may be in order once those before it are there."""
_NO_TRANSACTIONAL_ID: Final = "a transactional batch is sent without its transactional id"
_NO_ROOM: Final = "group {} {} within {} ms; nothing was appended"


class _Target(NamedTuple):
    """Where a batch is to go. `is_kept`: its group is not given up any more."""

    replica: Replica
    group: str
    channel: int
    policy: TopicPolicy
    is_kept: bool


def start_produce(request: PendingRequest) -> None:
    """Append the batches of a request; it is answered when they have reached their level.

    Raises `RemoteProtocolError` if it is none.
    """
    request.read(read_produce, lambda parsed: _start(request, parsed))


def _start(request: PendingRequest, parsed: ProduceRequest) -> None:
    request.is_awaited = parsed.acks != ACKS_NONE
    production, topics = _Production(request, parsed), request.context.broker.topics
    allowed = (name for name, _ in parsed.topics if name not in production.forbidden)
    request.context.accessed(allowed, "Write")
    missing = [
        name for name, _ in parsed.topics if name not in topics and name not in production.forbidden
    ]
    if not missing or not creates_missing(request.context):
        production.go_on()
        return

    async def create() -> None:
        try:
            await create_missing(request.context, missing)
            has_ended_waiting = production.go_on()
        except Exception as error:
            request.failed(error)
        else:
            if has_ended_waiting:
                request.wait_alone(is_alone=False)

    request.cancel = asyncio.get_running_loop().create_task(create()).cancel
    request.wait_alone(is_alone=True)


class _Production:
    """One Produce under way: its batches go to their groups one after the other.

    If a group has no room, this one and all later batches wait until it has, and so do the later
    requests of the connection; that ends with the time-out of the request. So they do for a group
    that the controller may still give up, as it does not know yet that it is led.
    """

    __slots__ = (
        "_answers",
        "_awaited",
        "_is_alone",
        "_is_asking",
        "_known",
        "_left",
        "_next",
        "_parsed",
        "_places",
        "_request",
        "_timer",
        "_used",
        "forbidden",
    )

    def __init__(self, request: PendingRequest, parsed: ProduceRequest) -> None:
        self._request = request
        self._parsed = parsed
        self._places = [
            (name, partition, start, end)
            for name, places in parsed.topics
            for partition, start, end in places
        ]
        self._answers: list[ProducedPartition | None] = [None] * len(self._places)
        self._left = len(self._places)
        self._next = 0
        self._used = 0
        """Up to where the frame's memory belongs to a batch that was proposed."""
        self._awaited = ""
        self._is_asking = False
        """Whether a batch waits for what `__cluster` says of its transaction."""
        self._known = -1, -1
        """The batch, and the term, for which this was found out last."""
        self._is_alone = False
        self._timer: asyncio.TimerHandle | None = None
        self.forbidden = _forbidden(request, parsed)
        """Topics that the client may not write to."""

    def go_on(self) -> bool:
        """Append what has room; False: not all of it yet. See `rooms.Waiting`."""
        if not self._places:
            self._finish()
            return True
        if self._is_asking:
            return False
        last = self._next + BATCHES_PER_TURN
        try:
            while self._next < len(self._places):
                if self._next == last:
                    self._go_on_next_turn()
                    return False
                if not self._append(self._next):
                    return False
                self._next += 1
        except Exception as error:
            self._failed(error)
            return True
        if self._is_alone:
            self._end_waiting()
            self._is_alone = False
            self._request.wait_alone(is_alone=False)
        return True

    def _go_on_next_turn(self) -> None:
        """Let others have their turn; later requests of the connection wait."""

        def go_on() -> None:
            if self._next < len(self._places):
                self.go_on()

        self._wait_alone()
        asyncio.get_running_loop().call_soon(go_on)

    def _wait_alone(self) -> None:
        if not self._is_alone:
            self._is_alone = True
            self._request.cancel = self._abandon
            self._request.wait_alone(is_alone=True)

    def _failed(self, error: Exception) -> None:
        """Answer the whole request with an error."""
        self._end_waiting()
        self._left = -1  # what was proposed is answered to nobody
        self._next = len(self._places)
        self._request.failed(error)

    # -- one batch --------------------------------------------------------------------------

    def _append(self, number: int) -> bool:
        """Append one batch, or answer it with an error; False: its group has no room."""
        name, partition, start, end = self._places[number]
        target = self._target(name, partition)
        if isinstance(target, Refusal):
            self._refuse(number, target, _header(self._request, self._places[number]))
            return True
        buffer = self._request.frame.buffer
        try:
            header = check_batch(buffer[start:end], target.policy.batch_bytes_max)
        except RecordBatchError as error:
            self._refuse(number, Refusal(error_of_fault(error.fault), str(error)))
            return True
        if header.is_transactional:
            is_answered = self._check_transaction(number, target, header)
            if is_answered is not None:
                return is_answered
        before = self._refused_before(number, target, header)
        if before is not None:
            self._refuse(number, Refusal(before, _SEND_EARLIER), header)
            return True
        level = _level(self._request, self._parsed.acks, target)
        if isinstance(level, Refusal):
            self._refuse(number, level, header)
            return True
        if not self._has_room(target):
            return False
        self._propose(number, target, header, level)
        return True

    def _target(self, name: str, number: int) -> _Target | Refusal:
        services, rights = self._request.context.services, self._request.context.rights
        # it may have waited: the right may have been taken away meanwhile
        is_judged = rights.permit is not None
        if (is_judged and not rights.may_topic(Operation.WRITE, name)) or name in self.forbidden:
            return rights.refusal(Operation.WRITE, ResourceType.TOPIC, name)
        broker = services.broker
        partition = find_partition(broker, name, number)
        if isinstance(partition, Refusal):
            # a client asks again for a topic that may come; none comes with such a name
            problem = problem_of_name(name) if name not in broker.topics else ""
            return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem) if problem else partition
        group = partition.group
        replica = broker.replica(group)
        if replica is None:
            return not_here(name, number)
        if not _is_open(replica, partition):
            text = f"partition {number} of topic {name!r} is not open yet"
            return Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
        policy = services.policies.of(broker.topics[name], broker.defaults)
        is_kept = partition.is_open or broker.is_made(group)
        return _Target(replica, group, partition.channel, policy, is_kept)

    def _check_transaction(self, number: int, target: _Target, header: BatchHeader) -> bool | None:
        """Return None if a transactional batch may be appended; True: it is refused; False: wait.

        This node may not know yet what the coordinator has told the producer, so it finds out
        before it refuses. What a new leader takes must not depend on an old view either.
        """
        services, replica = self._request.context.services, target.replica
        forbidden = self._forbidden_transaction()
        if forbidden is not None:
            self._refuse(number, forbidden, header)
            return True
        if replica.core.role is not Role.LEADER:
            return None  # and so it is refused
        topic, partition, _, _ = self._places[number]
        place = services.broker.topics[topic].topic_id, partition
        name = self._parsed.transactional_id
        refusal = services.gate.refusal(replica, target.channel, place, header, name)
        if services.gate.needs_barrier(replica, target.group) or (
            refusal is not None and self._known != (number, replica.core.term)
        ):
            self._ask_for_transactions(number, target, header)
            return False
        if refusal is not None:
            self._refuse(number, refusal, header)
            return True
        return None

    def _forbidden_transaction(self) -> Refusal | None:
        """Return why the client may not write in the transaction of a batch; None: it may.

        Where rights count, a request names the transactional id: who knows the number of a
        producer could write in its name.
        """
        rights = self._request.context.rights
        name = self._parsed.transactional_id
        if rights.permit is None:
            return None
        if name is None and not rights.permit.only_reports:
            return Refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, _NO_TRANSACTIONAL_ID)
        return rights.refused(Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name or ""))

    def _ask_for_transactions(self, number: int, target: _Target, header: BatchHeader) -> None:
        """Go on once this node knows all that `__cluster` had committed by now."""
        services, core = self._request.context.services, target.replica.core
        term = core.term

        def passed(is_known: bool) -> None:
            self._is_asking = False
            if self._next != number:
                return  # given up meanwhile
            if not is_known:
                refusal = Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, _UNKNOWN_TRANSACTIONS)
                self._refuse(number, refusal, header)
                self._next += 1
            elif core.term == term:  # else it is asked again, as of the present term
                services.gate.barrier_passed(target.group, term)
                self._known = number, term
            self.go_on()

        def asked(is_known: bool) -> None:
            services.defer(partial(passed, is_known))

        self._end_waiting()  # others may have the room that earlier batches waited for
        self._is_asking = True
        self._wait_alone()
        services.broker.ask_barrier(BARRIER_MS, asked)

    def _propose(
        self, number: int, target: _Target, header: BatchHeader, level: WriteLevel
    ) -> None:
        _, partition, start, end = self._places[number]
        block = self._block(target.channel, start, end)
        services = self._request.context.services
        reads, rooms = target.replica.partition_reads, services.rooms
        refused, key = services.refused_batches, _key(self._places[number], header)
        place = header.producer_epoch, header.base_sequence
        has_waited = key is not None and refused.has_waited(key, *place, services.now())
        produced = ProducedBatch(
            target.channel, header, target.policy.gets_append_time, begins_anywhere=has_waited
        )
        if key is not None and refused:
            refused.judged(key, *place)

        def take(response: AppendResponse) -> None:
            if response.code == ResponseCode.SUCCESS:
                if key is not None and refused:
                    refused.taken(key, *place)
                known = reads.partition(target.channel)
                self._answered(
                    number,
                    ProducedPartition(
                        partition,
                        ErrorCode.NONE,
                        produced.base_offset,
                        produced.append_time,
                        -1 if known is None else known.log_start,
                    ),
                )
            else:
                error, text = error_of(response.code), response.text
                if response.code in _TOO_EARLY and not has_waited:
                    error, text = ErrorCode.NOT_ENOUGH_REPLICAS, f"{text}; {_SEND_EARLIER}"
                self._refuse(number, Refusal(error, text), header)

        def answer(response: AppendResponse, _: Sequence[bytes]) -> None:
            # raises nothing: a replica calls it in the middle of what it does
            try:
                take(response)
            except Exception as error:
                self._failed(error)
            rooms.freed()

        self._request.is_in_log = True
        target.replica.propose(block, answer, produced, level)

    def _block(self, channel: int, start: int, end: int) -> Block:
        """Return the entry of a batch: around it where it lies, if the bytes before are free.

        It must be most of the frame, all of whose memory is kept with it, maybe for long.
        """
        buffer = self._request.frame.buffer
        if start - HEADER_SIZE >= self._used and 2 * (end - start) >= len(buffer):
            self._used = end
            return block_around(buffer, start, end, channel)
        copied = memoryview(bytearray(HEADER_SIZE + end - start))
        copied[HEADER_SIZE:] = buffer[start:end]
        return block_around(copied, HEADER_SIZE, len(copied), channel)

    # -- waiting for room -------------------------------------------------------------------

    def _has_room(self, target: _Target) -> bool:
        """Whether the group has room, and will not be given up; if not, wait for it."""
        group, replica = target.group, target.replica
        rooms = self._request.context.services.rooms
        is_next = self._awaited == group or group not in rooms.waiting
        if is_next and target.is_kept and replica.appends.has_room:
            return True
        if replica.core.role is not Role.LEADER:
            return True
        if self._awaited != group:
            if self._awaited:
                rooms.forget(self._awaited, self)
            self._await_room(group)
        return False

    def _await_room(self, group: str) -> None:
        request = self._request
        services = request.context.services
        services.rooms.wait(group, self)
        self._awaited = group
        if self._timer is None:
            services.counters.waited_for_room += 1
            timeout_ms = request.context.within_ms(self._parsed.timeout_ms)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(timeout_ms / 1_000, self._timed_out)
            self._wait_alone()

    def _end_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._awaited:
            self._request.context.services.rooms.forget(self._awaited, self)
            self._awaited = ""

    def _timed_out(self) -> None:
        """Refuse the batches that were not appended."""
        context = self._request.context
        is_made = context.broker.is_made(self._awaited)
        lacks = "had no room for the batch" if is_made else "was not made"
        text = _NO_ROOM.format(self._awaited, lacks, context.within_ms(self._parsed.timeout_ms))
        self._end_waiting()
        first, self._next = self._next, len(self._places)
        for number in range(first, len(self._places)):
            refusal = Refusal(ErrorCode.REQUEST_TIMED_OUT, text)
            self._refuse(number, refusal, _header(self._request, self._places[number]))
        self._is_alone = False
        self._request.wait_alone(is_alone=False)

    def _abandon(self) -> None:
        """Append no more batches: the connection has ended."""
        self._end_waiting()
        first, self._next = self._next, len(self._places)
        for number in range(first, len(self._places)):
            error = ErrorCode.REQUEST_TIMED_OUT
            self._answered(number, ProducedPartition(self._places[number][1], error))

    # -- out --------------------------------------------------------------------------------

    def _refuse(self, number: int, refusal: Refusal, header: BatchHeader | None = None) -> None:
        name, partition, _, _ = self._places[number]
        context, services = self._request.context, self._request.context.services
        key = None if header is None else _key(self._places[number], header)
        if header is not None and key is not None:
            place = header.producer_epoch, header.base_sequence
            services.refused_batches.refused(key, *place, refusal.error, services.now())
        context.note_error(refusal.error, refusal.text, topic=name, partition=partition)
        text = shortened(refusal.text)
        self._answered(number, ProducedPartition(partition, refusal.error, error_message=text))

    def _refused_before(
        self, number: int, target: _Target, header: BatchHeader
    ) -> ErrorCode | None:
        """Return the error of an earlier batch of the same producer that is to come again."""
        services = self._request.context.services
        key = _key(self._places[number], header) if services.refused_batches else None
        if key is None:
            return None
        place = header.producer_epoch, header.base_sequence
        error = services.refused_batches.error_for(key, *place, services.now())
        if error is None or target.replica.tables.partitions_at_end.follows(target.channel, header):
            return None  # or it is in the log, by another leader or after its time-out
        return error

    def _answered(self, number: int, answer: ProducedPartition) -> None:
        self._answers[number] = answer
        self._left -= 1
        if not self._left:
            self._finish()

    def _finish(self) -> None:
        request, parsed = self._request, self._parsed
        if parsed.acks == ACKS_NONE:
            if request.context.error is not ErrorCode.NONE:
                request.close_connection(
                    f"a Produce with acks=0 failed: {request.context.error.name}"
                )
            request.answered(())
            return
        answers = iter(self._answers)
        topics = [
            (name, [found for _ in places if (found := next(answers)) is not None])
            for name, places in parsed.topics
        ]
        request.answered([produce_answer(request.header, topics)])


def _forbidden(request: PendingRequest, parsed: ProduceRequest) -> Container[str]:
    """Return the topics of a request that its client may not write to."""
    rights = request.context.rights
    if rights.permit is None:
        return ()
    return {name for name, _ in parsed.topics if not rights.may_topic(Operation.WRITE, name)}


def _is_open(replica: Replica, partition: PartitionView) -> bool:
    """Whether a partition takes batches, as the view or the group's own log says.

    The view may learn it later than that of the broker whose metadata sent the client here. A
    producer that is not idempotent would reorder what it sends again.
    """
    return partition.is_open or replica.partition_reads.partition(partition.channel) is not None


def _header(request: PendingRequest, place: tuple[str, int, int, int]) -> BatchHeader | None:
    """Return the header of a batch that was not looked at yet; None: it is too short."""
    _, _, start, end = place
    is_whole = end - start >= BATCH_HEADER_SIZE
    return batch_header(request.frame.buffer, start) if is_whole else None


def _key(place: tuple[str, int, int, int], header: BatchHeader) -> Key | None:
    """Return whose batch this is, for `RefusedBatches`; None: no idempotent producer's."""
    name, partition, _, _ = place
    is_idempotent = header.producer_id != NO_PRODUCER
    return (header.producer_id, name, partition) if is_idempotent else None


def _level(request: PendingRequest, acks: int, target: _Target) -> WriteLevel | Refusal:
    policy = target.policy
    if acks == ACKS_NONE:
        return WriteLevel.ONE_WAY
    if acks == ACKS_LEADER:
        return max(policy.acks_one, policy.least_level)
    if acks != ACKS_ALL:
        return Refusal(ErrorCode.INVALID_REQUIRED_ACKS, f"acks {acks}; -1, 0 and 1 are known")
    least = max(WriteLevel.REPLICATION, policy.least_level)
    if policy.in_sync_min <= 1:
        return least
    broker = request.context.services.broker
    in_sync = len(broker.in_sync_of(target.group))
    if in_sync < policy.in_sync_min:
        text = f"in sync: {counted(in_sync, 'replica')}; least: {policy.in_sync_min}"
        text += " (min.insync.replicas)"
        return Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, text)
    replicas = len(broker.replicas_of(target.group))
    if policy.in_sync_min > replicas // 2 + 1:
        return WriteLevel.ALL
    return least
