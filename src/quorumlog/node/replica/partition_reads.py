"""Reads of partitions by offset: whole record batches, up to what is committed.

What may be read of a partition is what its table says as of the committed index: from the log start
offset to the high watermark, or to the last stable offset, for those who read committed
transactions only. The index of batches says which entries of the log these are.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Final, TypeAlias

import msgspec

from quorumlog.log_events import describe_error
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.errors import (
    CorruptionError,
    IndexRemovedError,
    LeaderPendingFullError,
    RequestError,
    StorageError,
)
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.pending_requests import PendingRequests
from quorumlog.node.replica.tables import Tables
from quorumlog.storage.log.bodies import read_bodies
from quorumlog.topics.batch_columns import PlacedBatch
from quorumlog.topics.partition_table import Partition
from quorumlog.topics.producers import ProducerState

BATCHES_PER_READ_MAX: Final = 256
"""Batches of one partition in an answer: each is a buffer of a scatter-gather write."""


class PartitionRead(msgspec.Struct, frozen=True, gc=False):
    """What is asked of one partition: batches from the one with `offset` on.

    `reads_committed`: none of transactions that are ongoing, nor what comes after these.
    """

    channel: int
    offset: int
    bytes_max: int
    reads_committed: bool = False


class ReadBatches(msgspec.Struct):
    """The answer for one partition; offsets are -1 if it has none here.

    `batches` are whole; the first one may start before the offset that was asked for. `aborted`,
    for those who read committed transactions: (producer id, first offset) of each aborted one that
    the batches have records of.
    """

    code: ResponseCode = ResponseCode.SUCCESS
    text: str = ""
    high_watermark: int = -1
    log_start: int = -1
    stable_offset: int = -1
    batches: list[memoryview] = []
    aborted: list[tuple[int, int]] = []
    damage: CorruptionError | None = None

    def fail(self, code: ResponseCode, text: str) -> None:
        """Say why there are no batches (or no more)."""
        self.code, self.text = code, text


Answer: TypeAlias = Callable[[list[ReadBatches]], None]
Confirmed: TypeAlias = Callable[[ResponseCode, str], None]
"""Called with SUCCESS if this replica leads still, else with what a client is told, and why."""


class PartitionReads:
    """The part of a replica that reads its partitions for consumers.

    All methods run on the event loop's thread.
    """

    def __init__(self, context: ReplicaContext, tables: Tables, requests: PendingRequests) -> None:
        self._context = context
        self._tables = tables
        self._requests = requests
        self._waiting: dict[int, dict[int, Callable[[], None]]] = {}
        self._numbers = count()

    def partition(self, channel: int) -> Partition | None:
        """Return a partition as of the committed index; None: there is none on this channel."""
        return self._readable.get(channel)

    @property
    def _readable(self) -> Mapping[int, Partition]:
        """All partitions by channel, as of the committed index."""
        return self._tables.partitions.partitions

    def refusal(self) -> tuple[ResponseCode, str] | None:
        """Return why this replica serves no reads now, or None: only a leader does."""
        core, group = self._context.core, self._context.config.group
        if core.role is not Role.LEADER:
            return ResponseCode.NOT_LEADER, f"not the leader of {group}"
        if not core.is_ready:
            text = f"{group} has a new leader, which is finding out what is committed"
            return ResponseCode.LEADER_NOT_READY, text
        return None

    def confirm(self, done: Confirmed) -> None:
        """Have this leader find out by a round of heartbeats whether it still is one.

        A former leader that nobody could tell of its successor does not know of the newest records.
        It must not say that they are not there: consumers would start over. It learns within an
        election time-out that it leads no more.
        """

        def confirmed(code: ResponseCode, text: str, _: int) -> None:
            self._context.environment.defer(partial(done, code, text))

        self._requests.read(confirmed)

    def producers(self, channel: int) -> list[tuple[int, ProducerState, int]]:
        """Return what a partition remembers of producers, by id, as of the committed index.

        The last of each is where its ongoing transaction began, -1 if it has none.
        """
        table = self._tables.partitions
        first_offset = table.transactions.first_offset
        return [
            (producer_id, state, first_offset(channel, producer_id))
            for producer_id, state in table.producers_of(channel)
        ]

    def epoch_end(self, channel: int, epoch: int) -> tuple[int, int] | None:
        """Return the largest leader epoch up to one that has records, and where these end.

        What is not committed does not count. The epoch of this leader ends at the high watermark,
        one after it at -1, being -1: these two cases may be answered only after `confirm`. None:
        there is no partition on this channel.
        """
        partition, term = self.partition(channel), self._context.core.term
        if partition is None:
            return None
        if epoch >= term:
            return (term, partition.next_offset) if epoch == term else (-1, -1)
        return partition.end_of_epoch(epoch)

    # -- waiting ------------------------------------------------------------------------------

    def wait(self, channels: Iterable[int], call: Callable[[], None]) -> Callable[[], None]:
        """Have a function called each time that one of some partitions grew, or the role changed.

        Returns a function that ends this.
        """
        number, all_channels = next(self._numbers), tuple(channels)
        for channel in all_channels:
            self._waiting.setdefault(channel, {})[number] = call

        def end() -> None:
            for channel in all_channels:
                waiting = self._waiting.get(channel, {})
                waiting.pop(number, call)
                if not waiting:
                    self._waiting.pop(channel, None)

        return end

    def committed(self) -> None:
        """The committed index rose: tell those who wait for partitions that grew."""
        grown = self._tables.grown
        if grown:
            self._tables.grown = set()
            self._tell(channel for channel in grown if channel in self._waiting)

    def role_changed(self) -> None:
        """Tell everybody: this replica may not lead any more."""
        self._tell(list(self._waiting))

    def _tell(self, channels: Iterable[int]) -> None:
        calls: dict[int, Callable[[], None]] = {}
        for channel in channels:
            calls |= self._waiting[channel]
        for number in sorted(calls):
            calls[number]()

    def missing(self, reads: Iterable[PartitionRead], wanted: int) -> int:
        """Return how many of some bytes these reads would not give yet, without a disk.

        0: they give enough, or one of them would be refused.
        """
        partitions = self._readable
        for read in reads:
            known, offset = partitions.get(read.channel), read.offset
            if known is None or not known.log_start <= offset <= known.next_offset:
                return 0
            end = self._end(read, known)
            if offset < end:
                if wanted <= 1:
                    return 0
                wanted -= self._available(read, end, wanted)
                if wanted <= 0:
                    return 0
        return wanted

    def fault(self, read: PartitionRead) -> tuple[ResponseCode, str] | None:
        """Return why an offset cannot be read, or None: it can, now or once there are records."""
        checked = _checked(read, self.partition(read.channel))
        return None if checked.code is ResponseCode.SUCCESS else (checked.code, checked.text)

    def end(self, read: PartitionRead) -> int:
        """Return the offset at which a read of a partition that is there ends in any case."""
        return self._end(read, self._readable[read.channel])

    def _end(self, read: PartitionRead, partition: Partition) -> int:
        if read.reads_committed:
            return self._tables.partitions.stable_offset(read.channel)
        return partition.next_offset

    def _available(self, read: PartitionRead, end: int, wanted: int) -> int:
        """Return how many bytes a read would give, counted no further than to `wanted`.

        It is `wanted`, too, if there are more batches than an answer has: waiting brings no more.
        """
        most, available = min(read.bytes_max, wanted), 0
        batches = self._tables.batches.batches_from(read.channel, read.offset)
        for number, batch in enumerate(batches, 1):
            if batch.last_offset >= end:
                break
            available += batch.size_bytes
            if available >= most:
                break
            if number == BATCHES_PER_READ_MAX:
                return wanted
        return available

    # -- reading ------------------------------------------------------------------------------

    def read(
        self,
        reads: Sequence[PartitionRead],
        bytes_max: int,
        answer: Answer,
        client: object,
        *,
        at_least_one: bool = True,
    ) -> None:
        """Answer with batches of some partitions, in the order in which they are asked for.

        All of them have at most `bytes_max` bytes, and each has at most what its read says; but if
        `at_least_one`, the first batch that there is, is given whatever its size. What is not in
        memory is read on a thread, on which clients take turns. That an offset is after the end is
        answered once this leader is confirmed.
        """
        begin = partial(self._read, reads, bytes_max, answer, client, at_least_one=at_least_one)
        if self.refusal() is not None or not self._is_any_after_end(reads):
            begin()
            return

        def confirmed(code: ResponseCode, text: str) -> None:
            if code is ResponseCode.SUCCESS:
                begin()
            else:
                answer([ReadBatches(code, text) for _ in reads])

        self.confirm(confirmed)

    def _is_any_after_end(self, reads: Sequence[PartitionRead]) -> bool:
        partitions = self._readable
        for read in reads:  # no call for each: most fetches wait at the ends of many partitions
            partition = partitions.get(read.channel)
            if partition is not None and read.offset > partition.next_offset:
                return True
        return False

    def _read(
        self,
        reads: Sequence[PartitionRead],
        bytes_max: int,
        answer: Answer,
        client: object,
        *,
        at_least_one: bool,
    ) -> None:
        refused = self.refusal()
        if refused is not None:
            answer([ReadBatches(*refused) for _ in reads])
            return
        found, room, is_first = list[ReadBatches](), bytes_max, at_least_one
        cold: list[tuple[ReadBatches, list[int], int]] = []
        tail, table = self._context.log.tail, self._tables.partitions
        partitions, has_ongoing = self._readable, table.transactions.has_ongoing
        for read in reads:
            partition = partitions.get(read.channel)
            found.append(result := _checked(read, partition))
            if partition is None or result.code is not ResponseCode.SUCCESS:
                continue
            stable = table.stable_offset(read.channel) if has_ongoing else partition.next_offset
            result.stable_offset = stable
            end = stable if read.reads_committed else partition.next_offset
            if room <= 0 or read.offset >= end:
                continue
            most = min(read.bytes_max, room)
            batches = self._placed(read, end, most, at_least=is_first)
            if not batches or batches[0].base_offset > read.offset:
                self._check_first(read, result, batches)
            if batches:
                is_first = False
                indexes, size_bytes = [], 0
                for batch in batches:
                    indexes.append(batch.index)
                    size_bytes += batch.size_bytes
                room -= size_bytes
                if read.reads_committed:
                    result.aborted = self._aborted(read, batches)
                bodies = tail.bodies(indexes)
                if bodies is None:
                    cold.append((result, indexes, size_bytes))
                else:
                    result.batches = bodies
        if not cold:
            answer(found)
            return

        def work() -> list[ReadBatches]:
            for result, indexes, size_bytes in cold:
                self._fill(result, indexes, size_bytes)
            return found

        def failed(error: Exception) -> None:
            text = f"reading failed: {describe_error(error)}"
            is_full = isinstance(error, LeaderPendingFullError)  # the threads have no room now
            code = ResponseCode.LEADER_PENDING_FULL if is_full else ResponseCode.DISK_ERROR
            answer([ReadBatches(code, text) for _ in reads])

        self._context.environment.executor.run(
            work, lambda results: self._answer(results, answer), failed, client
        )

    def _aborted(self, read: PartitionRead, batches: list[PlacedBatch]) -> list[tuple[int, int]]:
        transactions = self._tables.partitions.transactions
        return transactions.aborted_within(read.channel, read.offset, batches[-1].last_offset + 1)

    def _check_first(
        self, read: PartitionRead, result: ReadBatches, batches: list[PlacedBatch]
    ) -> None:
        """Fail a read of a batch whose entry was damaged when this replica started."""
        first = batches[0] if batches else None
        if first is None:  # there may have been no room for it
            first = next(self._tables.batches.batches_from(read.channel, read.offset), None)
        if first is None or first.base_offset > read.offset:
            result.fail(ResponseCode.DISK_ERROR, f"offset {read.offset} cannot be read here yet")
            batches.clear()

    def _placed(
        self, read: PartitionRead, end: int, room: int, *, at_least: bool
    ) -> list[PlacedBatch]:
        """Return the batches that fit; if `at_least`, the first one of them fits always."""
        return self._tables.batches.batches_within(
            read.channel,
            read.offset,
            end,
            room,
            count_max=BATCHES_PER_READ_MAX,
            at_least=at_least,
        )

    def _fill(self, result: ReadBatches, indexes: list[int], size_bytes: int) -> None:
        """Read batches; on any thread. One that cannot be read ends them."""
        try:
            result.batches = read_bodies(self._context.log, indexes, size_bytes)
        except IndexRemovedError as error:
            result.fail(ResponseCode.INDEX_OUT_OF_RANGE, str(error))
        except (StorageError, RequestError) as error:
            result.fail(ResponseCode.DISK_ERROR, str(error))
            result.damage = error if isinstance(error, CorruptionError) else None

    def _answer(self, results: list[ReadBatches], answer: Answer) -> None:
        for result in results:
            if result.damage is not None:
                self._context.damage_found(result.damage)
        answer(results)


def _checked(read: PartitionRead, partition: Partition | None) -> ReadBatches:
    """Return the answer to a read before there are batches: whether the offset can be read."""
    if partition is None:
        text = f"there is no partition on channel {read.channel}"
        return ReadBatches(ResponseCode.UNKNOWN_PARTITION, text)
    end, start = partition.next_offset, partition.log_start
    if start <= read.offset <= end:
        return ReadBatches(high_watermark=end, log_start=start)
    text = f"offset {read.offset} is outside {start} to {end}"
    return ReadBatches(ResponseCode.INDEX_OUT_OF_RANGE, text, end, start)
