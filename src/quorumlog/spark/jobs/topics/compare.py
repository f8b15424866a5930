"""Compares records with records: those of an archive with those that brokers have."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.spark.jobs.topics.files import FILE_COLUMNS, TOPIC_LAYOUT, offsets_in

COMPARED: Final = ("key", "value", "timestamp", "timestampType", "headers")
"""What two records at one offset may differ in."""

Report = Callable[[str, int, str], None]
"""Called with a kind of difference (`MISSING` …), the offset, and what it is about."""
MISSING: Final = "archive-missing"
EXTRA: Final = "archive-extra"
DIFFERING: Final = "archive-differing"


def differing(
    ours: pa.Table, theirs: pa.Table, columns: Sequence[str] = COMPARED
) -> list[tuple[int, str]]:
    """Return the rows of two tables of the same length that differ, and in which columns."""
    found: dict[int, list[str]] = {}
    for name in columns:
        one, other = _plain(ours.column(name)), _plain(theirs.column(name))
        if one.equals(other):
            continue
        for row, (mine, yours) in enumerate(zip(one.to_pylist(), other.to_pylist(), strict=True)):
            if mine != yours:
                found.setdefault(row, []).append(name)
    return [(row, ", ".join(found[row])) for row in sorted(found)]


def _plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return timestamps as numbers: not all of them are times for Python."""
    return values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values


class ArchiveComparison:
    """Records of an archive, in order, against those of brokers, given in order."""

    def __init__(self, archived: Iterator[pa.Table], report: Report) -> None:
        self._archived = archived
        self._rest: list[pa.Table] = []
        self._report = report
        self.records = 0

    def take(self, live: pa.RecordBatch) -> None:
        """Compare the next records that brokers have, at least one."""
        ours = self._up_to(int(offsets_in(live)[-1]))
        theirs = pa.Table.from_batches([live]).select(FILE_COLUMNS)
        archived, there = offsets_in(ours), offsets_in(theirs)
        for offset in np.setdiff1d(there, archived).tolist():
            self._report(MISSING, offset, "the record is missing")
        self._note_extra(archived, there)
        ours, theirs = (
            ours.filter(_are_in(archived, there)),
            theirs.filter(_are_in(there, archived)),
        )
        self.records += theirs.num_rows
        for row, columns in differing(ours, theirs):
            self._report(DIFFERING, int(offsets_in(theirs)[row]), f"another {columns}")

    def skip(self, offset: int) -> None:
        """Leave out what is archived below an offset, as brokers do not have it any more."""
        self._up_to(offset - 1)

    def end(self) -> None:
        """Take note that brokers have no more."""
        for table in (*self._rest, *self._archived):
            self._note_extra(offsets_in(table), np.zeros(0, np.int64))

    def _note_extra(self, archived: npt.NDArray[np.int64], there: npt.NDArray[np.int64]) -> None:
        for offset in np.setdiff1d(archived, there).tolist():
            self._report(EXTRA, offset, "no such record for readers")
        again = archived[1:][np.diff(archived) == 0]
        for offset in np.unique(again).tolist():
            self._report(EXTRA, offset, "the record is there twice")

    def _up_to(self, offset: int) -> pa.Table:
        """Return the archived records up to an offset that were not taken before."""
        taken: list[pa.Table] = []
        while not self._rest and (table := next(self._archived, None)) is not None:
            last = int(offsets_in(table)[-1])
            if last > offset:
                self._rest.append(table)
                break
            taken.append(table)
        if self._rest:
            (table,) = self._rest
            count = int(np.searchsorted(offsets_in(table), offset, side="right"))
            taken.append(table.slice(0, count))
            self._rest = [table.slice(count)] if count < table.num_rows else []
        return pa.concat_tables(taken) if taken else TOPIC_LAYOUT.schema.empty_table()


def _are_in(offsets: npt.NDArray[np.int64], others: npt.NDArray[np.int64]) -> pa.Array:
    """Return which of some offsets are in others too; of those that are there twice the first."""
    first = np.concatenate(([True], np.diff(offsets) != 0))[: len(offsets)]
    return pa.array(np.isin(offsets, others) & first)


def within(tables: Iterator[pa.Table], first: int, beyond: int) -> Iterator[pa.Table]:
    """Yield the records with offsets first … beyond - 1 of tables in order."""
    for table in tables:
        offsets = table.column("offset")
        taken = table.filter(pc.and_(pc.greater_equal(offsets, first), pc.less(offsets, beyond)))
        if taken.num_rows:
            yield taken
