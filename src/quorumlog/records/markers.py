"""Transaction markers: control batches that say how a producer's transaction ended.

A marker is a record batch with one record (Kafka's message format, `EndTxnMarker`). Its key is
i16 version 0 and i16 type, 0 for abort and 1 for commit; its value i16 version 0 and i32 epoch of
the coordinator. It takes an offset, which no consumer sees.
"""

import struct
from typing import Final

from crc32c import crc32c

from quorumlog.model.block import Buffer
from quorumlog.records.batch import CRC_BEGIN, HEADER, HEADER_SIZE, MAGIC

_RECORD: Final = struct.Struct(">bbbbbhhbhib")
"""Length, attributes, time delta, offset delta, length of the key, key, length of the value, value
and number of headers; all lengths are below 64, so each is one byte (zigzag)."""
_TYPE_AT: Final = HEADER_SIZE + 7
MARKER_SIZE: Final = HEADER_SIZE + _RECORD.size
_ATTRIBUTES: Final = 0x30
"""Transactional, and control."""
_ABORT: Final = 0
_COMMIT: Final = 1
_NO_SEQUENCE: Final = -1


def encode_marker(
    producer_id: int, producer_epoch: int, coordinator_epoch: int, time_ms: int, *, commits: bool
) -> bytes:
    """Return the marker of one partition, before the leader stamps it.

    `coordinator_epoch`: the term in which the transaction was decided.
    """
    record = _RECORD.pack(
        _doubled(_RECORD.size - 1), 0, 0, 0, _doubled(4), 0, int(commits), _doubled(6), 0,
        coordinator_epoch, 0,
    )  # fmt: skip
    length = MARKER_SIZE - 12
    batch = bytearray(
        HEADER.pack(
            0, length, -1, MAGIC, 0, _ATTRIBUTES, 0, time_ms, time_ms, producer_id, producer_epoch,
            _NO_SEQUENCE, 1,
        )
        + record
    )  # fmt: skip
    struct.pack_into(">I", batch, 17, crc32c(batch[CRC_BEGIN:]))
    return bytes(batch)


def marker_commits(data: Buffer, start: int, size: int) -> bool | None:
    """Return whether a control batch is a commit; None: it is no marker that is known here."""
    if size != MARKER_SIZE:
        return None
    (kind,) = struct.unpack_from(">h", data, start + _TYPE_AT)
    return kind == _COMMIT if kind in (_ABORT, _COMMIT) else None


def _doubled(length: int) -> int:
    """Return a length as zigzag writes it."""
    return 2 * length
