"""Compares an archive with the log: which entries are missing, extra or different in its files."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from quorumlog.model.block import Block, Int64s, data_mask, index_records
from quorumlog.sessions.entries import EndTransaction, SessionEntry, system_entries_in
from quorumlog.spark.jobs.archive.manifest import load_manifest
from quorumlog.spark.jobs.archive.parquet import COLUMNS
from quorumlog.spark.jobs.audit.report import ARCHIVE, Finding
from quorumlog.spark.source.arrow import decode
from quorumlog.spark.source.schema import arrow_schema
from quorumlog.storage.files.os_files import FileSystem

_SCHEMA = arrow_schema(COLUMNS)
_NUMBERS = ("term", "channel", "chain_crc", "body_crc")
MISSING = "archive-missing"
ROW_MISSING = "the row is missing"
EXTRA = "archive-extra"
DIFFERING = "archive-differing"


@dataclass(frozen=True, slots=True)
class ArchiveRange:
    """A file with the rows of entries first … last; the path is empty if none of them is a row."""

    first: int
    last: int
    path: str


def archive_ranges(files: FileSystem, directory: str) -> tuple[list[ArchiveRange], bool]:
    """Return the files of an archive, and whether only accepted entries of transactions are in it.

    This is all that an audit asks of an archive's manifest. Raises `PipelineError` where there is
    none.
    """
    manifest = load_manifest(files, directory)
    ranges = [
        ArchiveRange(file.first, file.last, f"{directory}/{file.path}" if file.path else "")
        for file in manifest.files
    ]
    return sorted(ranges, key=lambda one: one.first), manifest.isolation == "read_committed"


class Attempt(msgspec.Struct, frozen=True, array_like=True):
    """Blocks first … last that one producer wrote for a transaction.

    Those up to `seen` were compared; all of them are in the archive, in part at least, or none.
    """

    transactional_id: bytes
    producer_id: int
    first: int
    last: int
    seen: int
    is_archived: bool


class Transactions(msgspec.Struct, array_like=True):
    """The transactions in a range of the log: who wrote, and who was accepted."""

    attempts: list[Attempt] = []
    accepted: list[tuple[bytes, int]] = []


class ArchiveComparison:
    """The archive's rows of one range against the blocks of the log, given in order."""

    def __init__(
        self, ranges: Sequence[ArchiveRange], first: int, last: int, add: Callable[[Finding], None]
    ) -> None:
        self._ranges = [
            ArchiveRange(max(one.first, first), min(one.last, last), one.path)
            for one in ranges
            if one.first <= last and first <= one.last
        ]
        self._add = add
        self._open: ArchiveRange | None = None
        self._table = _no_rows()
        self._is_unreadable = False
        self._indexes: Int64s = np.zeros(0, dtype=np.int64)
        self._seen = first
        self.transactions = Transactions()
        self.rows = 0

    def take(self, block: Block, first: int) -> None:
        """Compare a block of the log that starts at index `first`."""
        for one in self._ranges:
            begin, end = max(one.first, first), min(one.last, first + block.count - 1)
            if begin <= end:
                self._load(one)
                part = block.slice(begin - first, end + 1 - first)
                self._compare(part, begin, end)
        for _, entry in system_entries_in(block, first):
            if isinstance(entry, EndTransaction):
                self.transactions.accepted += [
                    (entry.transactional_id, one.producer_id) for one in entry.accepted or ()
                ]

    def _load(self, one: ArchiveRange) -> None:
        if one is self._open:
            return
        self._open, self._table, self._is_unreadable = one, _no_rows(), False
        if one.path:
            wanted = [("index", ">=", one.first), ("index", "<=", one.last)]
            try:
                found = pq.read_table(
                    one.path, columns=list(COLUMNS), filters=wanted, partitioning=None
                )
                self._table = found.cast(_SCHEMA).sort_by("index").combine_chunks()
            except FileNotFoundError:
                self._is_unreadable = True
                self._report(MISSING, "its file is missing", one.first, one.last)
            except (OSError, pa.ArrowException) as error:
                self._is_unreadable = True
                text = str(error).partition("\n")[0]
                self._report(MISSING, "its file cannot be read", one.first, one.last, text)
        self._indexes = self._table["index"].to_numpy().astype(np.int64)
        self.rows += len(self._indexes)
        again = np.flatnonzero(self._indexes[1:] == self._indexes[:-1])
        self._report_each(EXTRA, "the entry is there twice", self._indexes[again])
        if len(again):
            keep = np.concatenate(([True], self._indexes[1:] != self._indexes[:-1]))
            self._table = self._table.filter(pa.array(keep))
            self._indexes = self._indexes[keep]

    def _compare(self, block: Block, first: int, last: int) -> None:
        low, high = np.searchsorted(self._indexes, [first, last + 1]).tolist()
        there = self._table.slice(low, high - low)
        log = _rows_of(block)
        if there.equals(log):
            self._absent_blocks(block, first, last)
            return
        mine = log["index"].to_numpy()
        theirs = self._indexes[low:high]
        absent = np.setdiff1d(mine, theirs)
        for begin, end in self._absent_blocks(block, first, last):
            absent = absent[(absent < begin) | (absent > end)]
        if not self._is_unreadable:  # else the whole file was reported already
            self._report_each(MISSING, ROW_MISSING, absent)
        reason = "there is no such entry for readers"
        self._report_each(EXTRA, reason, np.setdiff1d(theirs, mine))
        both = np.intersect1d(mine, theirs)
        if len(both):
            here = log.take(pa.array(np.searchsorted(mine, both)))
            self._compare_rows(here, there.take(pa.array(np.searchsorted(theirs, both))), both)

    def _compare_rows(self, log: pa.Table, rows: pa.Table, indexes: Int64s) -> None:
        differs = np.zeros(len(indexes), dtype=bool)
        unchecked = (_column(log, "body_crc") | _column(log, "chain_crc")) == 0
        for name in _NUMBERS:
            other = _column(log, name) != _column(rows, name)
            if name == "body_crc":
                other &= ~unchecked
            self._report_each(DIFFERING, f"another {name}", indexes[other & ~differs])
            differs |= other
        other = pc.not_equal(log["body"], rows["body"]).to_numpy(zero_copy_only=False)
        self._report_each(DIFFERING, "another body", indexes[other & ~differs])

    def _report_each(self, kind: str, reason: str, indexes: npt.NDArray[Any]) -> None:
        for first, last in ranges_of(indexes):
            self._report(kind, reason, first, last)

    def _report(self, kind: str, reason: str, first: int, last: int, detail: str = "") -> None:
        path = self._open.path if self._open is not None else ""
        self._add(Finding(kind, first, last, ARCHIVE, reason, path, 0, detail))

    def finish(self, ends: int) -> None:
        """Report rows after `ends`, the last entry that any replica has."""
        for one in self._ranges:
            if one.last > ends:
                self._load(one)
                beyond = self._indexes[self._indexes > ends]
                self._report_each(EXTRA, "no replica has entries there", beyond)

    # -- transactions -------------------------------------------------------------------------

    def _absent_blocks(self, block: Block, first: int, last: int) -> list[tuple[int, int]]:
        """Record the blocks of transactions; return (first, last) of those without any row.

        Whether they should be there is decided when it is known which transactions were accepted.
        """
        if self._is_unreadable:
            return []
        absent = []
        for index, entry in system_entries_in(block, first):
            if isinstance(entry, SessionEntry) and entry.part is not None:
                seen = min(index + entry.count, last)
                low, high = np.searchsorted(self._indexes, [index, seen + 1]).tolist()
                if low == high:
                    absent.append((index, seen))
                self._add_attempt(
                    Attempt(
                        entry.part.transactional_id,
                        entry.producer_id,
                        index,
                        index + entry.count,
                        seen,
                        high > low,
                    )
                )
        return absent

    def _add_attempt(self, made: Attempt) -> None:
        known = self.transactions.attempts
        if known and _goes_on(known[-1], made):
            known[-1] = msgspec.structs.replace(known[-1], last=made.last, seen=made.seen)
        else:
            known.append(made)


def _goes_on(before: Attempt, made: Attempt) -> bool:
    same = (before.transactional_id, before.producer_id, before.is_archived) == (
        made.transactional_id,
        made.producer_id,
        made.is_archived,
    )
    return same and before.seen == before.last == made.first - 1


def _no_rows() -> pa.Table:
    return _SCHEMA.empty_table()


def _rows_of(block: Block) -> pa.Table:
    """Return the users' entries of a block as the archive has them."""
    if not data_mask(block).any():
        return _no_rows()
    records = memoryview(index_records(block, block.offsets))
    batches = decode(block.data, records, COLUMNS, verify_crc=False)
    return pa.Table.from_batches(list(batches)).combine_chunks()


def _column(rows: pa.Table, name: str) -> Int64s:
    numbers: Int64s = rows[name].to_numpy().astype(np.int64)
    return numbers


def ranges_of(indexes: npt.NDArray[Any]) -> list[tuple[int, int]]:
    """Return (first, last) of each run of consecutive ascending numbers."""
    if not len(indexes):
        return []
    breaks = np.flatnonzero(np.diff(indexes) != 1)
    firsts = indexes[np.concatenate(([0], breaks + 1))]
    lasts = indexes[np.concatenate((breaks, [len(indexes) - 1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


# -- on the driver --------------------------------------------------------------------------------


def holes_of(ranges: Sequence[ArchiveRange]) -> list[tuple[int, int]]:
    """Return (first, last) of what lies between the ranges of an archive."""
    return [
        (before.last + 1, after.first - 1)
        for before, after in pairwise(ranges)
        if after.first > before.last + 1
    ]


def with_transactions(
    findings: Iterable[Finding], found: Sequence[Transactions], *, only_accepted: bool
) -> list[Finding]:
    """Return findings without those that transactions explain, and with those they give rise to.

    Entries of transactions that were not accepted are not in an archive of accepted ones: their
    rows are not missing, and extra if they are there.
    """
    accepted = {one for part in found for one in part.accepted}
    rejected: list[Attempt] = []
    kept: list[Finding] = []
    for attempt in (attempt for part in found for attempt in part.attempts):
        key = (attempt.transactional_id, attempt.producer_id)
        is_rejected = only_accepted and key not in accepted
        first, seen = attempt.first + 1, attempt.seen
        if is_rejected:
            rejected.append(attempt)
        if is_rejected and attempt.is_archived:
            reason = "its transaction was not accepted"
            kept.append(Finding(EXTRA, first, attempt.last, ARCHIVE, reason))
        elif not is_rejected and not attempt.is_archived and first <= seen:
            kept.append(Finding(MISSING, first, seen, ARCHIVE, ROW_MISSING))
    for finding in findings:
        kept += _outside(finding, rejected) if finding.kind == MISSING else [finding]
    return sorted(kept, key=lambda finding: finding.first)


def _outside(finding: Finding, rejected: Sequence[Attempt]) -> list[Finding]:
    remaining = []
    first = finding.first
    for attempt in rejected:
        if attempt.last < first or attempt.first > finding.last:
            continue
        if attempt.first > first:
            remaining.append(msgspec.structs.replace(finding, first=first, last=attempt.first - 1))
        first = max(first, attempt.last + 1)
    if first <= finding.last:
        remaining.append(msgspec.structs.replace(finding, first=first))
    return remaining
