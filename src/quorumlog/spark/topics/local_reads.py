"""Record batches read from a broker's files on this machine instead of being sent (decision 0058).

The leader says which entries of its log are batches that may be read, and are in its files.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from quorumlog.model.block import HEADER_SIZE as ENTRY_HEADER_SIZE
from quorumlog.model.block import channel_at
from quorumlog.model.errors import IndexRemovedError, StorageError
from quorumlog.model.messages.client import StoreLocation
from quorumlog.records.batch import HEADER_SIZE, BatchHeader, batch_header
from quorumlog.spark.source.located_files import located_files
from quorumlog.spark.topics.brokers import FetchedBatches
from quorumlog.spark.topics.part import Part
from quorumlog.storage.entries.entry_runs import EntryRun
from quorumlog.storage.files.location import is_here
from quorumlog.storage.files.os_files import boot_id

logger = logging.getLogger(__name__)

RUN_BYTES: Final = 4 * 1024 * 1024
"""Bytes of entries that are read at a time where batches of one partition follow each other."""
AROUND_BYTES: Final = 64 * 1024
"""The same where entries of other partitions lie between them, and are read, too."""
TOGETHER: Final = 8
"""Batches that follow each other in the log, from which on no entries around them are read."""
ENOUGH_BYTES: Final = 512 * 1024
"""Bytes of batches that are given as they are read; smaller ones are copied together first."""


class AbortedRange(NamedTuple):
    """An aborted transaction of a producer, from its first record to its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class LocatedBatches:
    """Batches that follow each other in a partition, by base offset and index of their entries.

    `channel`: that of the partition in the log. `next_offset` comes after them.
    """

    location: StoreLocation
    channel: int
    base_offsets: Sequence[int]
    indexes: Sequence[int]
    next_offset: int
    aborted: Sequence[AbortedRange]


Locate: TypeAlias = Callable[[str, int, int], LocatedBatches | None]
"""(machine, first offset, offset to end before) → some of the batches; None: they are fetched."""
_Placed: TypeAlias = tuple[int, BatchHeader]
"""Where a batch starts, and its header."""


def local_batches(locate: Locate, part: Part, first: int, beyond: int) -> Iterator[FetchedBatches]:
    """Yield the batches with offsets from `first` on, as far as they can be read from files here.

    Raises what `locate` raises, but for what has nothing to do with where batches are read.
    """
    boot = boot_id()
    while boot and first < beyond:
        located = locate(boot, first, beyond)
        if located is None or not is_here(located.location):
            return
        try:
            for found in read_located(located):
                yield found
                first = found.next_offset
        except IndexRemovedError:
            return
        except StorageError as error:
            logger.warning("batches of %s from offset %d on are fetched: %s", part, first, error)
            return


def read_located(located: LocatedBatches) -> Iterator[FetchedBatches]:
    """Yield batches that an answer says are in files, checked as their replica checks entries.

    Raises `IndexRemovedError` if they were removed meanwhile, `StorageError` when the files cannot
    be read or hold something else, `CorruptionError` for a damaged entry.
    """
    with located_files(located.location) as files:
        files.require(located.indexes[0])
        copied, starts = bytearray(), list[_Placed]()
        row = 0
        while row < len(located.indexes):
            run = files.read(*_wanted(located.indexes, row))
            found = list(_batches_in(run, located, row))
            row += len(found)
            if copied and len(copied) + len(run.data) > RUN_BYTES:
                yield _given(located, memoryview(copied), starts, row - len(found))
                copied, starts = bytearray(), []
            if not copied and sum(one.size_bytes for _, one in found) >= ENOUGH_BYTES:
                yield _given(located, run.data, found, row)
                continue
            for start, header in found:
                starts.append((len(copied), header))
                copied += run.data[start : start + header.size_bytes]
        if copied:
            yield _given(located, memoryview(copied), starts, row)


def _wanted(indexes: Sequence[int], row: int) -> tuple[int, int, int]:
    """Return the first and the last entry of the next run, and its most bytes."""
    first, last = indexes[row], row
    while last + 1 < len(indexes) and indexes[last + 1] == first + last + 1 - row:
        last += 1
    if last - row + 1 >= min(TOGETHER, len(indexes) - row):
        return first, indexes[last], RUN_BYTES
    return first, indexes[-1], AROUND_BYTES


def _batches_in(run: EntryRun, located: LocatedBatches, row: int) -> Iterator[_Placed]:
    """Yield the batches from one on that are in a run. Raises `StorageError` for something else."""
    block = run.block()
    starts, sizes = block.offsets.tolist(), block.sizes.tolist()
    while row < len(located.indexes) and located.indexes[row] <= run.last_index:
        index = located.indexes[row]
        place = index - run.first_index
        start, size = starts[place] + ENTRY_HEADER_SIZE, sizes[place] - ENTRY_HEADER_SIZE
        stated, channel = located.base_offsets[row], channel_at(run.data, starts[place])
        if channel != located.channel:  # batches of several partitions may have this offset
            raise StorageError(
                f"entry {index} is in channel {channel}, not in channel {located.channel}, which "
                "the partition has"
            )
        header = batch_header(run.data, start) if size >= HEADER_SIZE else None
        if header is None or (header.base_offset, header.size_bytes) != (stated, size):
            raise StorageError(f"entry {index} is not the record batch at offset {stated}")
        yield start, header
        row += 1


def _given(
    located: LocatedBatches, data: memoryview, found: list[_Placed], row: int
) -> FetchedBatches:
    """Return batches, the last of which comes before a row, with what was aborted among them."""
    is_last = row == len(located.indexes)
    next_offset = located.next_offset if is_last else located.base_offsets[row]
    first = found[0][1].base_offset
    aborted = [
        (one.producer_id, one.first_offset)
        for one in located.aborted
        if one.first_offset < next_offset and one.last_offset >= first
    ]
    return FetchedBatches(data, found, aborted, next_offset, is_checked=True)
