"""What a task does: the records of ranges of offsets, fetched and decoded, as Arrow batches."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
from crc32c import crc32c

from quorumlog.model.errors import CorruptionError
from quorumlog.records.batch import CRC_BEGIN, BatchHeader, RecordBatchError
from quorumlog.records.columns import record_columns
from quorumlog.spark.source.offsets import DataLossPolicy
from quorumlog.spark.topics.arrow import arrow_batch
from quorumlog.spark.topics.brokers import FETCH_BYTES, Brokers, FetchedBatches
from quorumlog.spark.topics.confirm import OffsetsLostError, batches_there
from quorumlog.spark.topics.errors import UnknownTopicError
from quorumlog.spark.topics.options import TopicOptions
from quorumlog.spark.topics.part import Part
from quorumlog.spark.topics.planning import Bounds, OffsetRange, first_kept, offsets_text

INLINE_BYTES: Final = 1024 * 1024
"""Bytes of one partition that are read with a plan; more are left to tasks."""


def read_ranges(
    brokers: Brokers,
    ranges: Iterable[OffsetRange],
    options: TopicOptions,
    columns: tuple[str, ...],
) -> Iterator[pa.RecordBatch]:
    """Yield the records of ranges, those of one after those of the other.

    Records that retention removes meanwhile, and partitions that are deleted, are an error, or
    skipped and logged (failOnDataLoss).
    Raises `DataLossError`, `CorruptionError` (verifyCrc), `RecordBatchError` for records that
    cannot be read, `NetworkError` after fetchTimeoutMs.
    """
    for left in ranges:
        one = left
        while one.count:
            fetched = batches_there(
                brokers,
                one,
                reads_committed=options.reads_committed,
                bytes_max=FETCH_BYTES,
                local_reads=options.local_reads,
            )
            try:
                for found in fetched:
                    yield from arrow_batches(found, one, options, columns)
                    one = replace(one, first=found.next_offset)
            except OffsetsLostError as error:
                one = _after_loss(one, error.bounds, options)
            except UnknownTopicError:
                DataLossPolicy(options.fail_on_data_loss).lose(
                    f"partition {one.part}: the cluster does not have it any more, so offsets "
                    f"{one.first} to {one.beyond - 1} could not be read"
                )
                break


def read_few(
    brokers: Brokers,
    ranges: Iterable[OffsetRange],
    options: TopicOptions,
    columns: tuple[str, ...],
) -> list[pa.RecordBatch] | None:
    """Return the records of ranges that are small; None: a range has more than is fetched at once.

    Raises what `read_ranges` raises, and `OffsetOutOfRangeError`.
    """
    rows: list[pa.RecordBatch] = []
    for one in ranges:
        fetched = brokers.batches(
            one.part,
            one.first,
            one.beyond,
            reads_committed=options.reads_committed,
            bytes_max=INLINE_BYTES,
            local_reads=False,  # not worth opening files for
        )
        found = next(iter(fetched))
        if found.next_offset < one.beyond:
            return None
        rows += arrow_batches(found, one, options, columns)
    return rows


def _after_loss(one: OffsetRange, bounds: Bounds, options: TopicOptions) -> OffsetRange:
    """Return what is there of a range whose first offset is not there any more."""
    losses = DataLossPolicy(options.fail_on_data_loss)
    if one.first < bounds.begin:
        kept = first_kept(losses, one.part, one.first, one.beyond, bounds.begin)
        return replace(one, first=kept)
    losses.lose(
        f"partition {one.part} has {offsets_text(bounds)}, but {one.first} to {one.beyond - 1} "
        "were there when the read was planned: was the topic deleted and made again?"
    )
    return replace(one, first=one.beyond)


def arrow_batches(
    fetched: FetchedBatches, one: OffsetRange, options: TopicOptions, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the records of fetched batches that are in a range, as the options want them."""
    if options.checks_crcs and not fetched.is_checked:
        for start, header in fetched.batches:
            _check_crc(fetched.data, start, header, one.part)
    wanted = [
        (start, header)
        for start, header in visible(
            fetched.batches, fetched.aborted if options.reads_committed else ()
        )
        if header.base_offset < one.beyond and header.count
    ]
    try:
        for records in record_columns(fetched.data, wanted):
            yield arrow_batch(records, one.part, columns, one.first, one.beyond)
    except RecordBatchError as error:
        raise RecordBatchError(error.fault, f"partition {one.part}: {error}") from None


def _check_crc(data: memoryview, start: int, header: BatchHeader, part: Part) -> None:
    found = crc32c(data[start + CRC_BEGIN : start + header.size_bytes])
    if found != header.crc:
        raise CorruptionError(
            f"partition {part}: the record batch at offset {header.base_offset} does not fit its "
            "CRC",
            "",
            0,
            header.base_offset,
        )


def visible(
    batches: Iterable[tuple[int, BatchHeader]], aborted: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the batches that have records for users: no markers, nothing of aborted transactions.

    `aborted`: producer id and first offset of each. It ends with the next marker of that producer.
    """
    waiting = sorted(aborted, key=lambda one: one[1], reverse=True)
    producers: set[int] = set()
    for start, header in batches:
        while waiting and waiting[-1][1] <= header.last_offset:
            producers.add(waiting.pop()[0])
        if header.is_control:
            producers.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in producers):
            yield start, header
