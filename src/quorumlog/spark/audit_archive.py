"""An archive against the log: which entries its files lack, have too much, or have otherwise."""

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
from quorumlog.model.system_entry import EndTransaction, SessionEntry, system_entries_in
from quorumlog.spark.archive_files import COLUMNS
from quorumlog.spark.archive_manifest import load_manifest
from quorumlog.spark.audit_report import ARCHIVE, Finding
from quorumlog.spark.decode import decode
from quorumlog.spark.schema import arrow_schema
from quorumlog.storage.files import FileSystem

_SCHEMA = arrow_schema(COLUMNS)
_NUMBERS = ("term", "channel", "chain_crc", "body_crc")
MISSING = "archive-missing"
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
    """Entries first … last that one producer wrote for a transaction; `rows` are in the archive."""

    transactional_id: bytes
    producer_id: int
    first: int
    last: int
    rows: int


class Transactions(msgspec.Struct, array_like=True):
    """What a range of the log says of transactions: who wrote, and who was accepted."""

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
        """Compare a block of the log that begins at index `first`."""
        for one in self._ranges:
            begin, end = max(one.first, first), min(one.last, first + block.count - 1)
            if begin <= end:
                self._load(one)
                part = block.slice(begin - first, end + 1 - first)
                self._compare(part, begin, end)
                self._note_attempts(part, begin)
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
            return
        mine = log["index"].to_numpy()
        theirs = self._indexes[low:high]
        if not self._is_unreadable:  # that was told of the whole file
            self._report_each(MISSING, "the row is missing", np.setdiff1d(mine, theirs))
        reason = "there is no such entry for readers"
        self._report_each(EXTRA, reason, np.setdiff1d(theirs, mine))
        both = np.intersect1d(mine, theirs)
        if len(both):
            here = log.take(pa.array(np.searchsorted(mine, both)))
            self._compare_rows(here, there.take(pa.array(np.searchsorted(theirs, both))), both)

    def _compare_rows(self, log: pa.Table, rows: pa.Table, indexes: Int64s) -> None:
        differs = np.zeros(len(indexes), dtype=bool)
        unchecked = _column(log, "body_crc") | _column(log, "chain_crc") == 0
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
        """Report rows behind `ends`, the last entry that any replica has."""
        for one in self._ranges:
            if one.last > ends:
                self._load(one)
                beyond = self._indexes[self._indexes > ends]
                self._report_each(EXTRA, "no replica has entries there", beyond)

    # -- transactions -------------------------------------------------------------------------

    def _note_attempts(self, block: Block, first: int) -> None:
        for index, entry in system_entries_in(block, first):
            if isinstance(entry, SessionEntry) and entry.part is not None:
                self._note_attempt(entry, index, entry.part.transactional_id)

    def _note_attempt(self, entry: SessionEntry, index: int, transactional_id: bytes) -> None:
        low, high = np.searchsorted(self._indexes, [index, index + entry.count + 1]).tolist()
        made = Attempt(transactional_id, entry.producer_id, index, index + entry.count, high - low)
        known = self.transactions.attempts
        before = known[-1] if known else made
        if (before.transactional_id, before.producer_id, before.last + 1) == (
            transactional_id,
            entry.producer_id,
            index,
        ):
            known[-1] = msgspec.structs.replace(
                before, last=made.last, rows=before.rows + made.rows
            )
        else:
            known.append(made)


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


def without_rejected(
    findings: Iterable[Finding], found: Sequence[Transactions], *, only_accepted: bool
) -> list[Finding]:
    """Return findings without those that transactions explain, and with those they give rise to.

    Entries of transactions that were not accepted are not in an archive of accepted ones: their
    rows are not missing, and extra if they are there.
    """
    if not only_accepted:
        return list(findings)
    accepted = {one for part in found for one in part.accepted}
    rejected = [
        attempt
        for part in found
        for attempt in part.attempts
        if (attempt.transactional_id, attempt.producer_id) not in accepted
    ]
    kept: list[Finding] = []
    for finding in findings:
        kept += _outside(finding, rejected) if finding.kind == MISSING else [finding]
    reason = "its transaction was not accepted"
    kept += [
        Finding(EXTRA, attempt.first, attempt.last, ARCHIVE, reason)
        for attempt in rejected
        if attempt.rows
    ]
    return kept


def _outside(finding: Finding, rejected: Sequence[Attempt]) -> list[Finding]:
    left = []
    first = finding.first
    for attempt in rejected:
        if attempt.last < first or attempt.first > finding.last:
            continue
        if attempt.first > first:
            left.append(msgspec.structs.replace(finding, first=first, last=attempt.first - 1))
        first = max(first, attempt.last + 1)
    if first <= finding.last:
        left.append(msgspec.structs.replace(finding, first=first))
    return left
