"""The partitions of one log, as every replica derives them from it (`sessions.table_set`).

Offsets of a partition are dense: the base offset of a batch is the number of records before it. The
leader writes it into the batch when the core has given the batch its index, so it never differs
between replicas, and a batch that is truncated leaves no gap.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, ClassVar, Final, TypeAlias

import msgspec

from quorumlog.model.block import HEADER as ENTRY_HEADER
from quorumlog.model.block import HEADER_SIZE as ENTRY_HEADER_SIZE
from quorumlog.model.block import Block
from quorumlog.model.codes import Magic, ResponseCode
from quorumlog.model.record_sum import DIGEST_SIZE, RecordSum
from quorumlog.records.batch import HEADER_SIZE, MAGIC, NO_PRODUCER, BatchHeader, batch_header
from quorumlog.records.markers import marker_commits
from quorumlog.topics.entries import (
    PARTITION_ENTRIES,
    LogStartsMoved,
    PartitionClosed,
    PartitionEntry,
    PartitionOpened,
)
from quorumlog.topics.partition_transactions import AbortedTransaction, PartitionTransactions
from quorumlog.topics.produced_batch import ProducedBatch
from quorumlog.topics.producers import (
    TO_BE_ADDED,
    BatchCheck,
    ProducerState,
    check_sequence,
    state_after,
    state_after_marker,
)

PRODUCERS_MAX: Final = 100_000
"""Pairs of partition and producer that a log remembers; that idle longest is forgotten first.

The bound is part of the rule: all replicas must forget the same one at the same entry."""
EPOCHS_MAX: Final = 1_000
"""Leader epochs of a partition whose first offsets are known; the oldest are forgotten first."""
NO_CHANNEL: Final = -1


class AppendedBatch(msgspec.Struct, frozen=True, gc=False):
    """A record batch that was found in the log; `commits`: what a transaction marker says."""

    channel: int
    header: BatchHeader
    commits: bool | None = None


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
    """All partitions by channel, what they remember of producers, and their transactions.

    See `DerivedTable`.
    """

    name: ClassVar[str] = "partitions.2"

    def __init__(
        self,
        partitions: Sequence[tuple[int, Partition]] = (),
        producers: Sequence[tuple[int, int, ProducerState]] = (),
        highest_channel: int = NO_CHANNEL,
        ongoing: Iterable[tuple[int, int, int]] = (),
        aborted: Iterable[tuple[int, AbortedTransaction]] = (),
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
        self.transactions = PartitionTransactions(ongoing, aborted)
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
                batch = batch_header(data, start)
                commits = marker_commits(data, start, header[8]) if batch.is_control else None
                found.append((index, AppendedBatch(channel, batch, commits)))
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
        if header.producer_id != NO_PRODUCER:
            self._produced(index, batch)

    def _produced(self, index: int, batch: AppendedBatch) -> None:
        """A batch of a known producer, or a marker of its transaction, was appended."""
        channel, header = batch.channel, batch.header
        key = channel, header.producer_id
        before = self._producers.pop(key, None)
        if header.is_control:
            after = state_after_marker(before, header.producer_epoch, index)
            if batch.commits is not None:
                offset = header.base_offset
                self.transactions.ended(*key, offset, commits=batch.commits)
        else:
            after = state_after(before, header, index)
            if header.is_transactional:
                self.transactions.begun(*key, header.base_offset)
        self._remember(*key, after)
        self._producer_sum.changed(key)
        while len(self._producers) > PRODUCERS_MAX:
            oldest = next(iter(self._producers))
            if self.transactions.first_offset(*oldest) < 0:
                self._forget(oldest)
            else:  # its transaction would be taken for one that is left over, and aborted
                self._producers[oldest] = self._producers.pop(oldest)

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
            self.transactions.closed(channel)
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
            self.transactions.log_start_moved(channel, offset)

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
            return TO_BE_ADDED  # of no idempotent producer, or a marker
        state, begins_anywhere = self._producers.get(producer), batch.begins_anywhere
        found = check_sequence(state, batch.header, begins_anywhere=begins_anywhere)
        if found.appended is not None:
            batch.base_offset = found.appended.base_offset
            batch.append_time = found.appended.append_time
        elif found.code is ResponseCode.SUCCESS:
            return self._check_transaction(producer, batch.header)
        return found

    def _check_transaction(self, producer: tuple[int, int], header: BatchHeader) -> BatchCheck:
        is_ongoing = self.transactions.first_offset(*producer) >= 0
        if is_ongoing and not header.is_transactional:
            text = f"producer {header.producer_id} has an ongoing transaction in this partition"
            return BatchCheck(ResponseCode.INVALID_TRANSACTION_STATE, text)
        if is_ongoing and header.producer_epoch > self.epoch_of(*producer):
            text = f"an earlier transaction of producer {header.producer_id} has not ended here yet"
            return BatchCheck(ResponseCode.CHANGE_IN_PROGRESS, text)
        if header.is_transactional and not is_ongoing and self.transactions.is_full:
            text = "the log of the partition has no room for more transactions; remove old records"
            return BatchCheck(ResponseCode.CLUSTER_FULL, text)
        return TO_BE_ADDED

    def stable_offset(self, channel: int) -> int:
        """Return the last stable offset of a partition, which there must be."""
        partition = self.partitions[channel]
        stable = self.transactions.stable_offset(channel, partition.next_offset)
        return max(stable, partition.log_start)

    def is_ongoing(self, channel: int, header: BatchHeader) -> bool:
        """Whether a batch goes on with a transaction that its producer has in the partition."""
        state = self._producers.get((channel, header.producer_id))
        is_begun = self.transactions.first_offset(channel, header.producer_id) >= 0
        return is_begun and state is not None and state.epoch == header.producer_epoch

    def epoch_of(self, channel: int, producer_id: int) -> int:
        """Return the epoch of a producer in a partition; 0 if that is not known."""
        state = self._producers.get((channel, producer_id))
        return 0 if state is None else state.epoch

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
        copied.transactions = self.transactions.copy()
        return copied

    def fields(self) -> tuple[Any, ...]:
        """See `DerivedTable`."""
        producers = [(*key, state) for key, state in self._producers.items()]
        partitions = list(self.partitions.items())
        return partitions, producers, self.highest_channel, *self.transactions.fields()

    def digest(self, since: int) -> bytes:
        """See `DerivedTable`. The index of a producer's newest batch shows how long it is idle."""
        hashed = blake2b(repr(self.highest_channel).encode(), digest_size=DIGEST_SIZE)
        hashed.update(self._partition_sum.of(self.partitions))
        hashed.update(self._producer_sum.of(self._producers))
        hashed.update(self.transactions.digest())
        return hashed.digest()
