"""Records to Arrow batches, without touching a record in Python."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quorumlog.model.block import Int64s
from quorumlog.records.columns import Bytes, RecordColumns, Texts
from quorumlog.spark.source.schema import arrow_schema
from quorumlog.spark.topics.part import Part
from quorumlog.spark.topics.schema import ARROW_HEADER, COLUMNS

_MICROSECONDS: Final = 1_000
_TIMESTAMP_MAX: Final = (1 << 63) // _MICROSECONDS
"""Milliseconds that Spark's timestamps reach, from 1970 on and before."""


def arrow_batch(
    records: RecordColumns, part: Part, columns: tuple[str, ...], first: int, beyond: int
) -> pa.RecordBatch:
    """Return the records with offsets from `first` on, below `beyond`.

    A timestamp that is none for Spark is null. Raises `RecordBatchError` if the headers of records,
    which are only read if they are wanted, cannot be read.
    """
    rows = np.flatnonzero((records.offsets >= first) & (records.offsets < beyond))
    schema = arrow_schema(columns, COLUMNS)
    arrays = [_array(records, part, name, rows) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(records: RecordColumns, part: Part, name: str, rows: Int64s) -> pa.Array:
    match name:
        case "key":
            return _binaries(records.data, records.keys, rows)
        case "value":
            return _binaries(records.data, records.values, rows)
        case "topic":
            return pa.repeat(pa.scalar(part.topic, pa.string()), len(rows))
        case "partition":
            return pa.array(np.full(len(rows), part.partition, np.int32))
        case "offset":
            return pa.array(records.offsets[rows])
        case "timestamp":
            return _timestamps(records.timestamps[rows])
        case "timestampType":
            return pa.array(records.log_append_times[rows].astype(np.int32))
    return _headers(records, rows)


def _binaries(data: Bytes, texts: Texts, rows: Int64s | None = None) -> pa.Array:
    """Return byte strings; of all the bytes those are taken that are between their starts and ends.

    The bytes are taken as one Arrow array of 2n values: each string, and what is between it and the
    next one.
    """
    count = len(texts.starts)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2] = texts.starts
    offsets[1::2] = texts.starts + np.maximum(texts.sizes, 0)
    offsets[-1] = len(data)
    values = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    wanted = np.arange(count) if rows is None else rows
    return values.take(pa.array(2 * wanted, mask=_if_any(texts.sizes[wanted] < 0)))


def _if_any(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_] | None:
    return mask if mask.any() else None


def _timestamps(milliseconds: Int64s) -> pa.Array:
    is_none = (milliseconds >= _TIMESTAMP_MAX) | (milliseconds <= -_TIMESTAMP_MAX)
    found = np.where(is_none, 0, milliseconds) * _MICROSECONDS
    return pa.array(found, mask=_if_any(is_none)).cast(COLUMNS["timestamp"][1])


def _headers(records: RecordColumns, rows: Int64s) -> pa.Array:
    """Return lists of headers; null for a record that has none, as Spark's Kafka source does."""
    headers = records.headers()
    pairs = pa.StructArray.from_arrays(
        [_strings(_binaries(records.data, headers.keys)), _binaries(records.data, headers.values)],
        fields=list(ARROW_HEADER),
    )
    offsets = np.zeros(len(headers.counts) + 1, np.int32)
    np.cumsum(headers.counts, out=offsets[1:])
    lists = pa.ListArray.from_arrays(pa.array(offsets), pairs)
    return lists.take(pa.array(rows, mask=_if_any(headers.counts[rows] == 0)))


def _strings(values: pa.Array) -> pa.Array:
    """Return byte strings as text; bytes that are not UTF-8 are replaced."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [value.decode("utf-8", "replace") for value in values.to_pylist()]
        return pa.array(texts, pa.string())
