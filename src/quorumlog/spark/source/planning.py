"""How much is read, and in which partitions: shares of a limit, and where to cut by bytes.

Bytes of a range follow from the positions in two index records of the leader; each is a fetch of
one entry, so searches are by interpolation and their number is bounded.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias, TypeVar

from pyspark.sql.datasource import InputPartition

from quorumlog.spark.source.clusters import IndexRecord
from quorumlog.spark.source.options import ReadOptions

Key = TypeVar("Key")
RecordOf: TypeAlias = Callable[[str, int], IndexRecord]
"""(group, index) → the index record of an entry."""

PARTITIONS_MIN = 2
"""Partitions of a read if no option sets their number."""
FEW_ENTRIES = 10_000
"""Up to this many entries are read by one task, unless minPartitions says otherwise."""
RECORDS_MAX = 4_096
"""Fetches to cut one read by bytes; the rest is cut into equal numbers of entries."""
SLACK = 1.1
"""Partitions are planned smaller than allowed by this factor, as their sizes differ a little."""


@dataclass(frozen=True)
class IndexRange(InputPartition):
    """Entries first … last of a group; none if last is below first."""

    group: str
    first: int
    last: int

    @property
    def count(self) -> int:
        """Number of entries, NOOPs and others included that do not become rows."""
        return self.last - self.first + 1


NOTHING = IndexRange("", 0, -1)
"""Spark would make a partition of its own of an empty list."""


def shares(limit: int, wanted: Mapping[Key, int]) -> dict[Key, int]:
    """Return how much of a limit each of several gets: equal parts, with no part unused.

    The shares are `limit` together, or all that is wanted.
    """
    given: dict[Key, int] = {}
    for left, group in zip(
        range(len(wanted), 0, -1), sorted(wanted, key=lambda name: wanted[name]), strict=True
    ):
        given[group] = min(wanted[group], (limit - sum(given.values())) // left)
    return given


def bytes_of(record_of: RecordOf, part: IndexRange) -> int:
    """Return the bytes on disk of a range that has entries, headers included."""
    last = record_of(part.group, part.last)
    return last.pos + last.size - record_of(part.group, part.first).pos


def last_within(record_of: RecordOf, part: IndexRange, bytes_max: int) -> int:
    """Return the last index up to which a range is at most `bytes_max` long; at least the first.

    Takes some 4 fetches for entries of about one size, at most 2 log2(entries) for any.
    """
    first = record_of(part.group, part.first)
    limit = first.pos + bytes_max

    def end_of(index: int) -> int:
        record = record_of(part.group, index)
        return record.pos + record.size

    fits, above = part.first, part.last
    fits_end, above_end = first.pos + first.size, end_of(part.last)
    if above_end <= limit:
        return part.last
    by_interpolation = True
    while above - fits > 1:
        if by_interpolation and above_end > fits_end:
            guess = fits + (limit - fits_end) * (above - fits) // (above_end - fits_end)
            guess = min(above - 1, max(fits + 1, guess))
        else:
            guess = (fits + above) // 2
        by_interpolation = not by_interpolation
        end = end_of(guess)
        if end <= limit:
            fits, fits_end = guess, end
        else:
            above, above_end = guess, end
    return fits


def first_of_term(record_of: RecordOf, part: IndexRange, term: int) -> int:
    """Return the first index of a range whose term is at least `term`; last + 1 if none is.

    Terms never go down along a log: log2(entries) fetches find it.
    """
    below, found = part.first - 1, part.last + 1
    while found - below > 1:
        middle = (below + found) // 2
        if record_of(part.group, middle).term >= term:
            found = middle
        else:
            below = middle
    return found


def cut(parts: Iterable[IndexRange], options: ReadOptions, record_of: RecordOf) -> list[IndexRange]:
    """Return the partitions of a read, at least one.

    As many as maxEntriesPerPartition, maxBytesPerPartition and minPartitions ask for; the ranges of
    a group have about equal numbers of entries.
    """
    parts = [part for part in parts if part.count > 0]
    total = sum(part.count for part in parts)
    least = options.min_partitions or (PARTITIONS_MIN if total > FEW_ENTRIES else 1)
    partitions: list[IndexRange] = []
    for part in parts:
        shared = -(-least * part.count // total)
        by_count = -(-part.count // options.max_entries_per_partition)
        partitions += split(part, max(shared, by_count))
    if options.max_bytes_per_partition is not None:
        partitions = _cut_by_bytes(partitions, options.max_bytes_per_partition, record_of)
    return partitions or [NOTHING]


def split(part: IndexRange, partitions: int) -> list[IndexRange]:
    """Return a range cut into equal partitions, none of them empty."""
    partitions = min(partitions, part.count)
    edges = [part.first + part.count * number // partitions for number in range(partitions + 1)]
    return [IndexRange(part.group, begin, beyond - 1) for begin, beyond in pairwise(edges)]


def _cut_by_bytes(parts: list[IndexRange], bytes_max: int, record_of: RecordOf) -> list[IndexRange]:
    """Cut ranges further until each has at most `bytes_max` bytes, or is one entry."""
    known = lru_cache(maxsize=RECORDS_MAX)(record_of)
    done: list[IndexRange] = []
    waiting = parts[::-1]
    while waiting:
        part = waiting.pop()
        size = 0
        if part.count > 1 and known.cache_info().misses < RECORDS_MAX:
            size = bytes_of(known, part)
        if size <= bytes_max:
            done.append(part)
        else:
            waiting += split(part, max(2, int(-(-size * SLACK // bytes_max))))[::-1]
    return done
