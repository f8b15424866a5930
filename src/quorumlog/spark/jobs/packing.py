"""Arrow columns as packed bytes: entries ready to be appended, and digests of entries.

No entry is touched in Python: fixed-length heads and bodies are laid end to end by one `take`.
"""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from isal.isal_zlib import crc32

from quorumlog.model.block import HEADER_DTYPE, HEADER_SIZE
from quorumlog.model.codes import Magic

_DIGEST_HEAD = np.dtype([("channel", ">u4"), ("body_size", ">u4")])


def interleaved(heads: npt.NDArray[Any], bodies: pa.BinaryArray) -> memoryview:
    """Return head 0, body 0, head 1, body 1 … as one block; below 2 GiB in all."""
    count, width = len(heads), heads.dtype.itemsize
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    heads_array = pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(heads.tobytes())]
    )
    order = np.empty(2 * count, dtype=np.int64)
    order[0::2] = np.arange(count)
    order[1::2] = np.arange(count, 2 * count)
    taken = pa.concat_arrays([heads_array, bodies]).take(pa.array(order))
    size = count * width + int(sizes_of(bodies).sum())
    return memoryview(taken.buffers()[2])[:size]


def sizes_of(bodies: pa.BinaryArray) -> npt.NDArray[np.int64]:
    """Return the length of each body."""
    sizes: npt.NDArray[np.int64] = pc.binary_length(bodies).to_numpy().astype(np.int64)
    return sizes


def channels_of(channels: pa.Int32Array) -> npt.NDArray[np.uint32]:
    """Return channels as they are in headers: unsigned."""
    unsigned: npt.NDArray[np.uint32] = channels.to_numpy().astype(np.uint32)
    return unsigned


def packed_entries(rows: pa.RecordBatch) -> tuple[memoryview, npt.NDArray[np.uint32]]:
    """Return rows with channel, body and body_crc as unstamped entries, and their body CRCs.

    CRCs that are 0, since DLedger wrote none, are computed.
    """
    bodies = rows.column("body")
    crcs = rows.column("body_crc").to_numpy().astype(np.uint32)
    for number in np.flatnonzero(crcs == 0).tolist():
        crcs[number] = crc32(bodies[number].as_buffer())
    sizes = sizes_of(bodies)
    heads = np.zeros(len(bodies), dtype=HEADER_DTYPE)
    heads["magic"] = int(Magic.NORMAL)
    heads["size"] = sizes + HEADER_SIZE
    heads["channel"] = channels_of(rows.column("channel"))
    heads["body_crc"] = crcs
    heads["body_size"] = sizes
    return interleaved(heads, bodies), crcs


class EntryDigest:
    """SHA-256 over entries in their order: channel and body size, 4 bytes each, then the body.

    Numbers are big-endian. Equal digests mean equal bodies on equal channels in equal order,
    wherever in a log they are.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.entries = 0

    def update(self, rows: pa.RecordBatch) -> None:
        """Continue with rows that have the columns channel and body."""
        if not rows.num_rows:
            return
        bodies = rows.column("body")
        heads = np.empty(len(bodies), dtype=_DIGEST_HEAD)
        heads["channel"] = channels_of(rows.column("channel"))
        heads["body_size"] = sizes_of(bodies)
        self._hash.update(interleaved(heads, bodies))
        self.entries += len(bodies)

    def hexdigest(self) -> str:
        """Return it as 64 hexadecimal digits."""
        return self._hash.hexdigest()
