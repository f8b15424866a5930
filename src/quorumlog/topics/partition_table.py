"""The partitions of one log, as every replica derives them from it (`sessions.table_set`).

Offsets of a partition are dense: the base offset of a batch is the number of records before it. The
leader writes it into the batch when the core has given the batch its index, so it never differs
between replicas, and a batch that is truncated leaves no gap.
"""

from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, ClassVar, Final, TypeAlias

import msgspec

from quorumlog.model.block import HEADER as ENTRY_HEADER
from quorumlog.model.block import HEADER_SIZE as ENTRY_HEADER_SIZE
from quorumlog.model.block import Block
from quorumlog.model.codes import Magic, ResponseCode
from quorumlog.model.record_sum import DIGEST_SIZE, RecordSum
from quorumlog.records.batch import HEADER_SIZE, MAGIC, NO_PRODUCER, BatchHeader, batch_header
from quorumlog.topics.entries import (
    PARTITION_ENTRIES,
    LogStartsMoved,
    PartitionClosed,
    PartitionEntry,
    PartitionOpened,
)
from quorumlog.topics.produced_batch import ProducedBatch
from quorumlog.topics.producers import (
    TO_BE_ADDED,
    BatchCheck,
    ProducerState,
    check_sequence,
    state_after,
)

PRODUCERS_MAX: Final = 100_000
"""Pairs of partition and producer that a log remembers; that idle longest is forgotten first.

The bound is part of the rule: all replicas must forget the same one at the same entry."""
EPOCHS_MAX: Final = 1_000
"""Leader epochs of a partition whose first offsets are known; the oldest are forgotten first."""
NO_CHANNEL: Final = -1


class AppendedBatch(msgspec.Struct, frozen=True, gc=False):
    """A record batch that was found in the log."""

    channel: int
    header: BatchHeader


class Partition(msgspec.Struct, frozen=True, array_like=True):
    """One partition: records from `log_start` to `next_offset` - 1 may be read.

    `epochs` are (leader epoch, offset of its first record), ascending in both. `appended_bytes`
    counts all batches since the partition was opened; `append_time` is the newest time that a
    leader has given to records.
    """

    number: int
    topic_id: bytes
    topic: str
    next_offset: int = 0
    log_start: int = 0
    appended_bytes: int = 0
    max_timestamp: int = -1
    append_time: int = -1
    epochs: tuple[tuple[int, int], ...] = ()

    def epoch_at(self, offset: int) -> int | None:
        """Return the newest epoch that began at or before an offset; None: none is known."""
        place = bisect_right(self.epochs, offset, key=lambda pair: pair[1])
        return self.epochs[place - 1][0] if place else None

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to one, and the offset after its last record.

        If no record of such an epoch is known, all that are known came after it.
        """
        place = bisect_right(self.epochs, epoch, key=lambda pair: pair[0])
        if not place:
            first = self.epochs[0][1] if self.epochs else self.next_offset
            return epoch, max(first, self.log_start)
        is_last = place == len(self.epochs)
        return self.epochs[place - 1][0], self.next_offset if is_last else self.epochs[place][1]


_What: TypeAlias = AppendedBatch | PartitionEntry


class PartitionTable:
    """All partitions by channel, and what they remember of producers. See `DerivedTable`."""

    name: ClassVar[str] = "partitions.1"

    def __init__(
        self,
        partitions: Sequence[tuple[int, Partition]] = (),
        producers: Sequence[tuple[int, int, ProducerState]] = (),
        highest_channel: int = NO_CHANNEL,
    ) -> None:
        self.partitions = dict(partitions)
        self.reads_users = bool(self.partitions)
        """See `DerivedTable`: only a log that holds partitions has batches."""
        self.highest_channel = highest_channel
        """The highest channel that was ever opened: none up to it is opened again."""
        self._producers: dict[tuple[int, int], ProducerState] = {}
        self._ids: dict[int, set[int]] = {}
        for channel, producer_id, state in producers:
            self._remember(channel, producer_id, state)
        self._partition_sum = RecordSum()
        self._producer_sum = RecordSum()

    def __eq__(self, other: object) -> bool:
        """Whether both say the same."""
        return isinstance(other, PartitionTable) and self.fields() == other.fields()

    __hash__ = None  # type: ignore[assignment]

    # -- derived ----------------------------------------------------------------------------

    def found_in(
        self, block: Block, first_index: int, entries: Sequence[tuple[int, object]]
    ) -> Sequence[tuple[int, _What]]:
        """See `DerivedTable`."""
        found: list[tuple[int, _What]] = []
        opened = set[int]()
        for index, entry in entries:
            if isinstance(entry, PARTITION_ENTRIES):
                found.append((index, entry))
                if isinstance(entry, PartitionOpened):
                    opened.add(entry.channel)
        if self.partitions or opened:
            found += self._batches_in(block, first_index, opened)
            found.sort(key=lambda pair: pair[0])
        return found

    def _batches_in(
        self, block: Block, first_index: int, opened: set[int]
    ) -> list[tuple[int, _What]]:
        data, known, found = block.data, self.partitions, list[tuple[int, _What]]()
        for index, offset in enumerate(block.offsets.tolist(), first_index):
            header = ENTRY_HEADER.unpack_from(data, offset)
            channel = header[5]
            if channel not in known and channel not in opened:
                continue
            start = offset + ENTRY_HEADER_SIZE
            is_batch = header[0] == Magic.NORMAL and header[8] >= HEADER_SIZE
            if is_batch and data[start + 16] == MAGIC:
                found.append((index, AppendedBatch(channel, batch_header(data, start))))
        return found

    def apply(self, index: int, what: _What) -> None:
        """See `DerivedTable`. What no leader appends changes nothing."""
        if isinstance(what, AppendedBatch):
            self._appended(index, what)
        elif isinstance(what, PartitionOpened):
            self._opened(what)
        elif isinstance(what, PartitionClosed):
            self._closed(what.channel)
        else:
            self._starts_moved(what)

    def _appended(self, index: int, batch: AppendedBatch) -> None:
        channel, header = batch.channel, batch.header
        before = self.partitions.get(channel)
        if before is None or header.base_offset != before.next_offset or header.count < 1:
            return
        is_leaders, epochs = header.is_log_append_time, before.epochs
        if not epochs or header.leader_epoch > epochs[-1][0]:
            epochs = (*epochs, (header.leader_epoch, header.base_offset))[-EPOCHS_MAX:]
        self.partitions[channel] = Partition(
            before.number,
            before.topic_id,
            before.topic,
            header.base_offset + header.last_offset_delta + 1,
            before.log_start,
            before.appended_bytes + header.size_bytes,
            max(before.max_timestamp, header.max_timestamp),
            max(before.append_time, header.max_timestamp) if is_leaders else before.append_time,
            epochs,
        )
        self._partition_sum.changed(channel)
        if header.producer_id != NO_PRODUCER and not header.is_control:
            key = channel, header.producer_id
            after = state_after(self._producers.pop(key, None), header, index)
            self._remember(*key, after)
            self._producer_sum.changed(key)
            while len(self._producers) > PRODUCERS_MAX:
                self._forget(next(iter(self._producers)))

    def _opened(self, what: PartitionOpened) -> None:
        if what.channel > self.highest_channel:
            self.partitions[what.channel] = Partition(what.number, what.topic_id, what.topic)
            self.reads_users = True
            self.highest_channel = what.channel
            self._partition_sum.changed(what.channel)

    def _closed(self, channel: int) -> None:
        if self.partitions.pop(channel, None) is not None:
            self.reads_users = bool(self.partitions)
            self._partition_sum.changed(channel)
            for producer_id in list(self._ids.get(channel, ())):
                self._forget((channel, producer_id))

    def _starts_moved(self, what: LogStartsMoved) -> None:
        for channel, offset in what.starts:
            before = self.partitions.get(channel)
            if before is None or not before.log_start < offset <= before.next_offset:
                continue
            place = bisect_right(before.epochs, offset, key=lambda pair: pair[1])
            self.partitions[channel] = msgspec.structs.replace(
                before, log_start=offset, epochs=before.epochs[max(0, place - 1) :]
            )
            self._partition_sum.changed(channel)

    def _remember(self, channel: int, producer_id: int, state: ProducerState) -> None:
        self._producers[channel, producer_id] = state
        self._ids.setdefault(channel, set()).add(producer_id)

    def _forget(self, key: tuple[int, int]) -> None:
        channel, producer_id = key
        del self._producers[key]
        self._ids[channel].discard(producer_id)
        if not self._ids[channel]:
            del self._ids[channel]
        self._producer_sum.changed(key)

    def removed(self, before_begin_index: int) -> None:
        """See `DerivedTable`: log start offsets say what may be read, and producers stay known."""

    # -- asked ------------------------------------------------------------------------------

    def follows(self, channel: int, header: BatchHeader) -> bool:
        """Whether a batch comes next of a producer that is known here, or came before."""
        state = self._producers.get((channel, header.producer_id))
        return state is not None and check_sequence(state, header).code is ResponseCode.SUCCESS

    def check(self, batch: ProducedBatch) -> BatchCheck:
        """Decide on a batch that a leader is asked to append after those that were applied.

        One that was appended before is told where.
        """
        if batch.channel not in self.partitions:
            text = f"there is no partition on channel {batch.channel}"
            return BatchCheck(ResponseCode.UNKNOWN_PARTITION, text)
        producer = batch.producer
        if producer is None:
            return TO_BE_ADDED
        found = check_sequence(self._producers.get(producer), batch.header)
        if found.appended is not None:
            batch.base_offset = found.appended.base_offset
            batch.append_time = found.appended.append_time
        return found

    def producers_of(self, channel: int) -> list[tuple[int, ProducerState]]:
        """Return (producer id, what is remembered of it) for a partition."""
        ids = sorted(self._ids.get(channel, ()))
        return [(producer_id, self._producers[channel, producer_id]) for producer_id in ids]

    # -- kept -------------------------------------------------------------------------------

    def copy(self) -> "PartitionTable":
        """Return an independent copy."""
        copied = PartitionTable()
        copied.partitions, copied.reads_users = dict(self.partitions), self.reads_users
        copied.highest_channel = self.highest_channel
        copied._producers = dict(self._producers)
        copied._ids = {channel: set(ids) for channel, ids in self._ids.items()}
        return copied

    def fields(self) -> tuple[Any, ...]:
        """See `DerivedTable`."""
        producers = [(*key, state) for key, state in self._producers.items()]
        return list(self.partitions.items()), producers, self.highest_channel

    def digest(self, since: int) -> bytes:
        """See `DerivedTable`. The index of a producer's newest batch shows how long it is idle."""
        hashed = blake2b(repr(self.highest_channel).encode(), digest_size=DIGEST_SIZE)
        hashed.update(self._partition_sum.of(self.partitions))
        hashed.update(self._producer_sum.of(self._producers))
        return hashed.digest()
