"""What the tasks of a scan of store files read: planned on the driver, before the job starts."""

import logging
import os
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from quorumlog.model.errors import IndexOutOfRangeError, IndexRemovedError
from quorumlog.sessions.transaction_table import RANGES_MAX, TransactionTable
from quorumlog.spark.source.pushdown import IndexInterval
from quorumlog.spark.store.options import StoreOptions
from quorumlog.storage.files.file_sequence import existing_file_size
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.log.layout import DATA, has_identity
from quorumlog.storage.offline.range_planner import (
    Extent,
    FileRange,
    PartitionSizing,
    RangePlanner,
    committed_index,
    extent_of,
)
from quorumlog.storage.offline.store_files import open_files
from quorumlog.storage.offline.transactions import transactions_of

logger = logging.getLogger(__name__)

PARTITION_BYTES = 1024 * 1024 * 1024
PARTITION_BYTES_MIN = 32 * 1024 * 1024
"""A task in Python costs Spark some 50 ms by itself; it reads this in the same time."""
WITHOUT_BODIES = 8
"""The factor of that if only headers are read, which is this many times as fast."""


@dataclass(frozen=True, slots=True)
class StoreRange:
    """A range of a data file; entries in a (first, last) of `rejected` are not read."""

    part: FileRange
    rejected: list[tuple[int, int]]


@dataclass
class StorePartition(InputPartition):
    """What one task reads: neighbouring ranges, in order."""

    ranges: list[StoreRange]


def plan(
    options: StoreOptions, indexes: IndexInterval, *, with_bodies: bool
) -> list[StorePartition]:
    """Return the partitions of a scan of some indexes, in the order of paths and indexes.

    Raises `StorageError` when there is no store or it cannot be read, `IndexRemovedError` or
    `IndexOutOfRangeError` when the range asked for is not there.
    """
    sizing = _sizing(options, 1 if with_bodies else WITHOUT_BODIES)
    return [
        partition
        for directory in options.directories
        for partition in _of_store(options, directory, indexes, sizing)
    ]


def _sizing(options: StoreOptions, times: int) -> PartitionSizing:
    bytes_max = options.max_bytes_per_partition or times * PARTITION_BYTES
    if options.min_partitions is not None:
        return PartitionSizing(bytes_max, options.min_partitions)
    # the process that plans knows neither how many tasks run at a time nor Spark's settings
    return PartitionSizing(bytes_max, len(os.sched_getaffinity(0)), times * PARTITION_BYTES_MIN)


def _of_store(
    options: StoreOptions, directory: str, indexes: IndexInterval, sizing: PartitionSizing
) -> list[StorePartition]:
    files = OsFileSystem()
    data = options.data_directories or (f"{directory}/{DATA}",)
    is_ours = has_identity(files, directory)
    if is_ours and existing_file_size(files, data) is None:
        return []  # nothing was ever appended
    store = open_files(files, directory, options.data_directories)
    try:
        committed = committed_index(files, directory, store) if options.committed_only else None
        extent = extent_of(store, committed)
        if extent is None:
            return []
        planner, transactions = RangePlanner(store, extent), TransactionTable()
        if options.read_committed:
            transactions = transactions_of(files, directory, store, extent, planner)
            extent = replace(extent, last=transactions.stable_index(extent.last))
        begin = max(extent.first, transactions.complete_from)
        first, last = indexes.within(*_range(options, directory, extent, begin))
        parts = planner.ranges(first, last, sizing) if first <= last else []
    finally:
        store.close()
    ranges = [
        StoreRange(part, transactions.rejected_within(part.wanted, part.last, RANGES_MAX))
        for part in parts
    ]
    return _packed(ranges, sizing)


def _packed(ranges: list[StoreRange], sizing: PartitionSizing) -> list[StorePartition]:
    """Return partitions of neighbouring ranges, cut as the planner cuts the ranges."""
    length = sizing.length(sum(_bytes_of(one) for one in ranges))
    partitions: dict[int, StorePartition] = {}
    before = 0
    for one in ranges:
        size = _bytes_of(one)
        middle = (before + size // 2) // length  # cuts lie between entries, so up to one entry off
        partitions.setdefault(middle, StorePartition([])).ranges.append(one)
        before += size
    return list(partitions.values())


def _bytes_of(one: StoreRange) -> int:
    return one.part.end - one.part.begin


def _range(options: StoreOptions, directory: str, extent: Extent, begin: int) -> tuple[int, int]:
    """Return the first and the last entry to read; `begin` is the first that can be read."""
    available = f"{directory} has {begin} to {extent.last}"
    if extent.last < begin:
        available = f"{directory} has no entries"
        if extent.committed is not None:
            available += " that are known to be committed (committedOnly=false reads the others)"
            logger.warning("%s", available)
    first = begin if options.start is None else options.start
    last = extent.last if options.end is None else options.end - 1
    if first < begin:
        raise IndexRemovedError(f"startingIndex {first} is no longer kept: {available}")
    if options.end is not None and last > extent.last:
        raise IndexOutOfRangeError(f"endingIndex {options.end} is beyond the end: {available}")
    return first, last
