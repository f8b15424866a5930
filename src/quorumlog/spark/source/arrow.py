"""Blocks of entries to Arrow batches, without touching an entry in Python.

The bytes of a block are taken as one Arrow array of 2n binary values (header, body, header, body …)
whose offsets follow from the index records; one `take` in C++ gathers the bodies.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quorumlog.model.block import HEADER_SIZE, Block, block_from_index_records, data_rows
from quorumlog.spark.source.schema import arrow_schema
from quorumlog.spark.source.verify import check_bodies
from quorumlog.storage.entries.checksums import Words, header_table, header_words

BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Bytes decoded into one batch; keeps offsets far below the 2 GiB of Arrow's binary type."""


def decode(
    data: memoryview,
    records: memoryview,
    columns: tuple[str, ...],
    *,
    verify_crc: bool,
    rejected: Sequence[tuple[int, int]] = (),
    group: str = "",
) -> Iterator[pa.RecordBatch]:
    """Yield the users' entries of a block as batches of at most 8 MiB (or one entry).

    NOOPs, entries of the system channel and those in a (first, last) of `rejected` are skipped.
    `group` is what the column of that name says. Raises `CorruptionError` when a body does not fit
    its CRC (only with verify_crc; entries without CRCs are not checked).
    """
    block = block_from_index_records(data, records)
    if verify_crc:
        check_bodies(block)
    return decode_block(block, header_words(block), columns, rejected=rejected, group=group)


def decode_block(
    block: Block,
    words: Words,
    columns: tuple[str, ...],
    *,
    rejected: Sequence[tuple[int, int]] = (),
    group: str = "",
    channel: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Do what `decode` does with a block that was read; one of headers only has no `body`.

    `words` are its `header_words`. With a `channel` entries on others are skipped as well.
    """
    ends = block.offsets + block.sizes
    start = 0
    while start < block.count:
        limit = int(block.offsets[start]) + BATCH_BYTES_MAX
        stop = max(start + 1, int(np.searchsorted(ends, limit, side="right")))
        table = header_table(words[start:stop])
        mask = data_rows(table, rejected)
        if channel is not None:
            mask &= table["channel"] == channel
        yield _batch(block.slice(start, stop), table, columns, mask, group)
        start = stop


def _batch(
    block: Block,
    table: npt.NDArray[Any],
    columns: tuple[str, ...],
    mask: npt.NDArray[np.bool_],
    group: str,
) -> pa.RecordBatch:
    schema = arrow_schema(columns)
    arrays: list[pa.Array] = []
    for name in columns:
        if name == "body":
            arrays.append(_bodies(block, mask))
        elif name == "group":
            arrays.append(pa.repeat(pa.scalar(group, pa.string()), int(mask.sum())))
        else:
            arrays.append(_numbers(table, mask, name, schema))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _numbers(
    table: npt.NDArray[Any], mask: npt.NDArray[np.bool_], name: str, schema: pa.Schema
) -> pa.Array:
    target = np.int32 if schema.field(name).type == pa.int32() else np.int64
    return pa.array(table[name][mask].astype(target))


def _bodies(block: Block, mask: npt.NDArray[np.bool_]) -> pa.Array:
    offsets = np.empty(2 * block.count + 1, dtype=np.int32)
    offsets[0:-1:2] = block.offsets
    offsets[1::2] = block.offsets + HEADER_SIZE
    offsets[-1] = len(block.data)
    values = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * block.count, [None, pa.py_buffer(offsets), pa.py_buffer(block.data)]
    )
    return values.take(pa.array(2 * np.flatnonzero(mask) + 1))
