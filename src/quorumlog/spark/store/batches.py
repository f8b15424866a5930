"""Entries of data files to Arrow batches, without touching an entry in Python."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quorumlog.model.block import HEADER_SIZE, Block, Int64s, data_rows
from quorumlog.spark.store.schema import arrow_schema
from quorumlog.storage.offline.range_planner import FileRange
from quorumlog.storage.offline.range_reader import IndexedRun, StoredRun

Mask = npt.NDArray[np.bool_]


class Batches:
    """Makes batches with the given columns of what is read of a range.

    It skips entries before the first that is wanted, those in a (first, last) of `rejected`
    and, unless `include_all`, those that no user appended; but never a damaged one that is wanted.
    `checks_bodies`: whether bodies that have a CRC were compared with it.
    """

    def __init__(
        self,
        columns: tuple[str, ...],
        part: FileRange,
        *,
        rejected: Sequence[tuple[int, int]] = (),
        include_all: bool = False,
        checks_bodies: bool = True,
    ) -> None:
        self._columns = columns
        self._schema = arrow_schema(columns)
        self._part = part
        self._rejected = rejected
        self._include_all = include_all
        self._checks_bodies = checks_bodies

    def of_entries(self, run: StoredRun) -> pa.RecordBatch:
        """Return the rows of entries with good headers."""
        block, wrong = run.block, np.zeros(run.block.count, dtype=bool)
        wrong[list(run.wrong)] = True
        table = run.table
        users = np.ones(block.count, dtype=bool) if self._include_all else data_rows(table)
        rows = self._rows(users, wrong, run.first_index)
        arrays = []
        for name in self._columns:
            if name == "body":
                arrays.append(self._bodies(block, rows, wrong[rows]))
            elif name == "crc_ok":
                arrays.append(self._crc_ok(table, wrong, rows))
            elif name == "file":
                arrays.append(self._file(len(rows)))
            elif name == "pos":
                arrays.append(pa.array(block.offsets[rows] + run.offset))
            else:
                arrays.append(
                    self._numbers(table["pos" if name == "header_pos" else name][rows], name)
                )
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def of_indexed(self, run: IndexedRun) -> pa.RecordBatch:
        """Return the rows of entries of which only index records are known; all else is null."""
        count, is_damaged = len(run.records), bool(run.reason)
        everyone, wrong = np.ones(count, dtype=bool), np.full(count, is_damaged)
        rows = self._rows(everyone, wrong, run.first_index)
        records = run.records[rows]
        unknown = records["size"] == 0
        positions, nowhere = records["pos"].astype(np.int64) - self._part.start, unknown.copy()
        if len(rows) and rows[0] == 0 and run.offset is not None:
            positions[0], nowhere[0] = run.offset, False
        arrays = []
        for name in self._columns:
            if name == "index":
                arrays.append(pa.array(rows + run.first_index))
            elif name in ("term", "size", "magic"):
                arrays.append(self._numbers(records[name], name, unknown))
            elif name == "pos":
                arrays.append(pa.array(positions, mask=nowhere))
            elif name == "file":
                arrays.append(self._file(len(rows)))
            elif name == "crc_ok" and is_damaged:
                arrays.append(pa.array(np.zeros(len(rows), dtype=bool)))
            else:
                arrays.append(pa.nulls(len(rows), self._schema.field(name).type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _rows(self, users: Mask, wrong: Mask, first_index: int) -> Int64s:
        """Return which of the entries from an index on become rows."""
        for first, last in self._rejected:
            users[max(0, first - first_index) : max(0, last + 1 - first_index)] = False
        users |= wrong
        users[: max(0, self._part.wanted - first_index)] = False
        return np.flatnonzero(users)

    def _numbers(
        self, values: npt.NDArray[Any], name: str, unknown: Mask | None = None
    ) -> pa.Array:
        target = np.int32 if self._schema.field(name).type == pa.int32() else np.int64
        return pa.array(values.astype(target), mask=unknown)

    def _file(self, count: int) -> pa.Array:
        return pa.repeat(pa.scalar(self._part.path, pa.string()), count)

    def _crc_ok(self, table: npt.NDArray[Any], wrong: Mask, rows: Int64s) -> pa.Array:
        """Null where there is nothing to compare with, or it was not compared."""
        checked = (table["body_crc"] != 0) | (table["chain_crc"] != 0)
        known = wrong | (checked & self._checks_bodies)
        return pa.array(~wrong[rows], mask=~known[rows])

    def _bodies(self, block: Block, rows: Int64s, wrong: Mask) -> pa.Array:
        """Gather bodies with one `take` from an array of header, body, header, body …

        A damaged body is returned only if the columns show that it is damaged.
        """
        offsets = np.empty(2 * block.count + 1, dtype=np.int32)
        offsets[0:-1:2] = block.offsets
        offsets[1::2] = block.offsets + HEADER_SIZE
        offsets[-1] = len(block.data)
        values = pa.BinaryArray.from_buffers(
            pa.binary(), 2 * block.count, [None, pa.py_buffer(offsets), pa.py_buffer(block.data)]
        )
        hidden = wrong if wrong.any() and "crc_ok" not in self._columns else None
        return values.take(pa.array(2 * rows + 1, mask=hidden))
