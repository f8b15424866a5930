"""Look-up of offsets by time: the first record of a partition that is not older than a time.

Which batches may hold it is known from the newest time of each, whatever order the times are in. A
batch that may is read and searched on a thread (`quorumlog.records.timestamps`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from quorumlog.log_events import describe_error
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import CorruptionError, IndexRemovedError, LeaderPendingFullError
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.partition_reads import PartitionReads
from quorumlog.node.replica.tables import Tables
from quorumlog.records.batch import RecordBatchError, batch_header
from quorumlog.records.timestamps import first_newest, first_since
from quorumlog.storage.log.bodies import read_bodies
from quorumlog.topics.batch_columns import PlacedBatch
from quorumlog.topics.partition_table import Partition

LATEST: Final = -1
"""Instead of a time: the high watermark."""
EARLIEST: Final = -2
"""Instead of a time: the log start offset."""
MAX_TIMESTAMP: Final = -3
"""Instead of a time: the first of the records with the largest timestamp."""
BATCHES_SEARCHED_MAX: Final = 8
"""Batches that one look-up reads. It needs a second one only if the records of the first that are
new enough lie before the log start, or a client stated a newer time than its records have."""
RECORDS_SEARCHED_MAX: Final = 1_000_000
"""Records after which a look-up reads no further batch: clients who state newer times than their
records have would have it walk through as many in each batch."""
NOTHING: Final = -1


class FoundOffset(msgspec.Struct, frozen=True):
    """The answer to a look-up; offset, timestamp and leader epoch are -1 where there is none."""

    code: ResponseCode = ResponseCode.SUCCESS
    text: str = ""
    offset: int = NOTHING
    timestamp: int = NOTHING
    leader_epoch: int = NOTHING


Answer: TypeAlias = Callable[[FoundOffset], None]


class PartitionTimes:
    """The part of a replica that finds offsets by time. Its methods run on the loop's thread."""

    def __init__(self, context: ReplicaContext, tables: Tables, reads: PartitionReads) -> None:
        self._context = context
        self._tables = tables
        self._reads = reads

    def find(
        self,
        channel: int,
        timestamp: int,
        answer: Answer,
        client: object = None,
        *,
        reads_committed: bool = False,
    ) -> None:
        """Answer with the first record whose timestamp is not below one.

        `timestamp` is in milliseconds since 1970, or `EARLIEST`, `LATEST` or `MAX_TIMESTAMP`.
        `reads_committed`: the end is the last stable offset, and nothing is found after it. If
        there is no such record, the answer has no offset. A batch whose records cannot be read,
        as it is no batch in truth or unpacks to too much, is taken for one record with the newest
        time that it states.
        """
        refused = self._reads.refusal()
        partition = self._reads.partition(channel)
        if refused is not None:
            answer(FoundOffset(*refused))
        elif partition is None:
            text = f"there is no partition on channel {channel}"
            answer(FoundOffset(ResponseCode.UNKNOWN_PARTITION, text))
        elif timestamp == EARLIEST:
            answer(_offset(partition, partition.log_start))
        elif timestamp == LATEST:
            end = self._end(channel, partition, reads_committed=reads_committed)
            answer(_offset(partition, end))
        elif timestamp < MAX_TIMESTAMP:
            text = f"{timestamp} is no timestamp, nor is it {LATEST}, {EARLIEST} or {MAX_TIMESTAMP}"
            answer(FoundOffset(ResponseCode.UNEXPECTED_ARGUMENT, text))
        elif self._tables.is_incomplete:
            text = f"batches of channel {channel} cannot be read here yet"
            answer(FoundOffset(ResponseCode.DISK_ERROR, text))
        elif timestamp == MAX_TIMESTAMP:
            end = self._end(channel, partition, reads_committed=reads_committed)
            self._search(partition, self._newest(channel, partition, end), None, answer, client)
        else:
            end = self._end(channel, partition, reads_committed=reads_committed)
            batches = self._since(channel, partition, timestamp, end)
            self._search(partition, batches, timestamp, answer, client)

    def _end(self, channel: int, partition: Partition, *, reads_committed: bool) -> int:
        """Return the offset from which on nothing is found."""
        if reads_committed:
            return self._tables.partitions.stable_offset(channel)
        return partition.next_offset

    def _since(
        self, channel: int, partition: Partition, time_ms: int, end: int
    ) -> list[PlacedBatch]:
        """Return the batches of which the first that has such a record holds what is asked for.

        Only those before `end` count.
        """
        found = self._tables.batches.batches_since(channel, partition.log_start, time_ms)
        first = islice(found, BATCHES_SEARCHED_MAX)
        return [batch for batch in first if batch.base_offset < end]

    def _newest(self, channel: int, partition: Partition, end: int) -> list[PlacedBatch]:
        """Return the batches one of which has the newest record, in the order of their offsets.

        Only those before `end` count.

        The newest time of a batch that starts before the log start may be that of a record there.
        """
        batches, start = self._tables.batches, partition.log_start
        found, first = list[PlacedBatch](), next(batches.batches_from(channel, start), None)
        if first is not None and first.base_offset < start < end:
            found.append(first)
            start = first.last_offset + 1
        newest = batches.newest_within(channel, start, end)
        return found if newest is None else [*found, newest]

    def _search(
        self,
        partition: Partition,
        batches: Sequence[PlacedBatch],
        time_ms: int | None,
        answer: Answer,
        client: object,
    ) -> None:
        """Search batches on a thread; `time_ms` None: for the newest record."""
        if not batches:
            answer(FoundOffset())
            return

        def failed(error: Exception) -> None:
            if isinstance(error, CorruptionError):
                self._context.damage_found(error)
            code = ResponseCode.DISK_ERROR
            if isinstance(error, IndexRemovedError):
                code = ResponseCode.INDEX_OUT_OF_RANGE
            elif isinstance(error, LeaderPendingFullError):  # the threads have no room for it now
                code = error.code
            answer(FoundOffset(code, f"reading failed: {describe_error(error)}"))

        start = partition.log_start
        if time_ms is None:
            work = partial(self._newest_in, batches, start)
        else:
            work = partial(self._first_in, batches, start, time_ms)
        self._context.environment.executor.run(work, answer, failed, client)

    # -- on a thread --------------------------------------------------------------------------

    def _first_in(self, batches: Sequence[PlacedBatch], start: int, time_ms: int) -> FoundOffset:
        walked = 0
        for number, batch in enumerate(batches, 1):
            data = self._read(batch)
            walked += batch_header(data).count
            try:
                found = first_since(data, start, time_ms)
            except RecordBatchError:
                found = max(batch.base_offset, start), batch.newest_time
            is_last = number == BATCHES_SEARCHED_MAX or walked >= RECORDS_SEARCHED_MAX
            if found is None and is_last:
                found = max(batch.base_offset, start), batch.newest_time
            if found is not None:
                return FoundOffset(
                    offset=found[0],
                    timestamp=found[1],
                    leader_epoch=batch_header(data).leader_epoch,
                )
        return FoundOffset()

    def _newest_in(self, batches: Sequence[PlacedBatch], start: int) -> FoundOffset:
        best = FoundOffset()
        for batch in batches:
            data = self._read(batch)
            try:
                offset, timestamp = first_newest(data, start)
            except RecordBatchError:
                offset, timestamp = max(batch.base_offset, start), batch.newest_time
            if best.offset == NOTHING or timestamp > best.timestamp:
                epoch = batch_header(data).leader_epoch
                best = FoundOffset(offset=offset, timestamp=timestamp, leader_epoch=epoch)
        return best

    def _read(self, batch: PlacedBatch) -> memoryview:
        (body,) = read_bodies(self._context.log, [batch.index], batch.size_bytes)
        return body


def _offset(partition: Partition, offset: int) -> FoundOffset:
    """Return an offset of a partition without a timestamp."""
    epoch = partition.epoch_at(offset)
    return FoundOffset(offset=offset, leader_epoch=NOTHING if epoch is None else epoch)
