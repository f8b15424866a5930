"""Counting the entries of a range, many at a time: what tasks of the pipeline `stats` do."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from quorumlog.model.block import HEADER_SIZE, Int64s, block_from_index_records, headers
from quorumlog.model.codes import Magic
from quorumlog.model.entry import SYSTEM_CHANNEL
from quorumlog.spark.jobs.log_source import LogSource
from quorumlog.storage.entries.index_records import records_of
from quorumlog.storage.offline.replica_files import ReplicaPart
from quorumlog.storage.offline.replica_walk import ReplicaWalk

FINE_BITS = 7
"""A power of two is divided into 2**7 classes of sizes: a percentile is right within 0.8 %."""
RECORDS_AT_ONCE = 262_144
BOOKKEEPING = "bookkeeping"
Table: TypeAlias = npt.NDArray[Any]


class TermCounts(msgspec.Struct, array_like=True):
    """Entries of one term; bytes with their headers."""

    first_index: int
    entries: int
    bytes: int


class Counts(msgspec.Struct, array_like=True):
    """What was counted. `bytes` are of entries with their headers, of all kinds.

    `classes`, `smallest`, `largest` and `body_bytes` are of bodies of users' entries. `entries_in`
    and `bytes_in` are by bucket of the index.
    """

    entries: int = 0
    bytes: int = 0
    damaged: int = 0
    kinds: dict[str, int] = {}
    users_entries: int = 0
    body_bytes: int = 0
    smallest: int = -1
    largest: int = -1
    classes: dict[int, int] = {}
    terms: dict[int, TermCounts] = {}
    entries_in: dict[int, int] = {}
    bytes_in: dict[int, int] = {}

    def add(self, other: "Counts") -> None:
        """Add what another task counted."""
        self.entries += other.entries
        self.bytes += other.bytes
        self.damaged += other.damaged
        self.users_entries += other.users_entries
        self.body_bytes += other.body_bytes
        self.largest = max(self.largest, other.largest)
        if other.smallest >= 0:
            known = self.smallest if self.smallest >= 0 else other.smallest
            self.smallest = min(known, other.smallest)
        for mine, theirs in (
            (self.kinds, other.kinds),
            (self.classes, other.classes),
            (self.entries_in, other.entries_in),
            (self.bytes_in, other.bytes_in),
        ):
            _add_all(mine, theirs)
        for term, found in other.terms.items():
            self.add_term(term, found)

    def add_term(self, term: int, found: TermCounts) -> None:
        """Add entries of one term."""
        known = self.terms.setdefault(term, TermCounts(found.first_index, 0, 0))
        known.first_index = min(known.first_index, found.first_index)
        known.entries += found.entries
        known.bytes += found.bytes


def _add_all(mine: dict[Any, int], theirs: dict[Any, int]) -> None:
    for key, count in theirs.items():
        mine[key] = mine.get(key, 0) + count


@dataclass(frozen=True, slots=True)
class Buckets:
    """`count` ranges of about equal length of the entries first … last."""

    first: int
    last: int
    count: int

    def of(self, indexes: Int64s) -> Int64s:
        """Return in which bucket each entry is."""
        return (indexes - self.first) * self.count // (self.last - self.first + 1)

    def range(self, number: int) -> tuple[int, int]:
        """Return first and last index of a bucket."""
        length = self.last - self.first + 1
        begin, stop = (-(-length * edge // self.count) for edge in (number, number + 1))
        return self.first + begin, self.first + stop - 1


def class_of(sizes: Int64s) -> Int64s:
    """Return the class of each size; sizes below 256 have one each."""
    exponents = np.frexp(sizes.astype(np.float64))[1].astype(np.int64) - 1
    shifts = np.maximum(exponents - FINE_BITS, 0)
    return (shifts << FINE_BITS) + (sizes >> shifts)


def smallest_of_class(number: int) -> int:
    """Return the smallest size of a class."""
    shift = max(0, (number >> FINE_BITS) - 1)
    return (number - (shift << FINE_BITS)) << shift


class Counting:
    """Counts tables of headers or index records."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        self.counts = Counts()

    def take(self, table: Table) -> None:
        """Count entries; the table has `magic`, `size`, `index`, `term` and perhaps `channel`."""
        if not len(table):
            return
        counts = self.counts
        sizes, indexes = table["size"].astype(np.int64), table["index"].astype(np.int64)
        counts.entries += len(table)
        counts.bytes += int(sizes.sum())
        users = self._kinds(table)
        self._sizes(sizes[users] - HEADER_SIZE)
        buckets = self._buckets.of(indexes)
        for values, weights, target in (
            (buckets, None, counts.entries_in),
            (buckets, sizes, counts.bytes_in),
        ):
            found = np.bincount(values, weights)
            _add_all(target, {int(place): int(found[place]) for place in np.flatnonzero(found)})
        self._terms(table["term"].astype(np.int64), sizes, indexes)

    def _kinds(self, table: Table) -> npt.NDArray[np.bool_]:
        """Count kinds; return which entries are users'."""
        users: npt.NDArray[np.bool_] = table["magic"] == int(Magic.NORMAL)
        found = {}
        if "channel" in (table.dtype.names or ()):
            system = users & (table["channel"] == SYSTEM_CHANNEL)
            users &= ~system
            found[BOOKKEEPING] = int(system.sum())
        found[Magic.NORMAL.name] = int(users.sum())
        for magic in (Magic.NOOP, Magic.CONFIG_CHANGE):
            found[magic.name] = int((table["magic"] == int(magic)).sum())
        _add_all(self.counts.kinds, {name: count for name, count in found.items() if count})
        return users

    def _sizes(self, sizes: Int64s) -> None:
        counts = self.counts
        if not len(sizes):
            return
        smallest = int(sizes.min())
        counts.smallest = smallest if counts.smallest < 0 else min(counts.smallest, smallest)
        counts.largest = max(counts.largest, int(sizes.max()))
        counts.users_entries += len(sizes)
        counts.body_bytes += int(sizes.sum())
        classes, numbers = np.unique(class_of(sizes), return_counts=True)
        found = zip(classes.tolist(), numbers.tolist(), strict=True)
        _add_all(counts.classes, dict(found))

    def _terms(self, terms: Int64s, sizes: Int64s, indexes: Int64s) -> None:
        edges = np.flatnonzero(np.concatenate(([True], terms[1:] != terms[:-1])))
        sums = np.add.reduceat(sizes, edges)
        lengths = np.diff(np.append(edges, len(terms)))
        for row, length, size in zip(edges.tolist(), lengths.tolist(), sums.tolist(), strict=True):
            self.counts.add_term(int(terms[row]), TermCounts(int(indexes[row]), length, size))

    def encoded(self) -> bytes:
        """Return what was counted."""
        return msgspec.msgpack.encode(self.counts)


@dataclass(frozen=True, slots=True)
class CountOfLog:
    """Count entries first … last of a live group."""

    source: LogSource
    first: int
    last: int
    buckets: Buckets

    def __call__(self) -> bytes:
        """Carry it out."""
        counting = Counting(self.buckets)
        for fetched in self.source.blocks(self.first, self.last):
            counting.take(headers(block_from_index_records(fetched.data, fetched.records)))
        return counting.encoded()


@dataclass(frozen=True, slots=True)
class CountOfStore:
    """Count a part of a store: by the headers, or (`quick`) by the index records alone."""

    part: ReplicaPart
    buckets: Buckets
    quick: bool

    def __call__(self) -> bytes:
        """Carry it out."""
        counting = Counting(self.buckets)
        if self.quick:
            self._by_index(counting)
        else:
            self._by_headers(counting)
        return counting.encoded()

    def _by_headers(self, counting: Counting) -> None:
        part, walk = self.part, ReplicaWalk(self.part)
        try:
            for run in walk.runs():
                counting.take(run.table[max(0, part.first - run.first_index) :])
            for finding in walk.take_findings():
                counting.counts.damaged += max(0, finding.last - max(finding.first, part.first) + 1)
        finally:
            walk.close()

    def _by_index(self, counting: Counting) -> None:
        part = self.part
        data, index = part.open()
        try:
            for first in range(part.first, part.last + 1, RECORDS_AT_ONCE):
                last = min(part.last, first + RECORDS_AT_ONCE - 1)
                records = records_of(index, first, last)
                there = records["index"] == np.arange(first, last + 1)
                there &= records["size"] >= HEADER_SIZE
                counting.take(records[there])
                counting.counts.damaged += int((~there).sum())
        finally:
            data.close()
            index.close()
