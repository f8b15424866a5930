"""Finding a record of one batch by its timestamp; the only reason for a node to unpack a batch.

A record is a varint that counts its bytes, one byte of attributes, then the differences of its
timestamp and of its offset from those of the batch, as varints. The rest is skipped.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias

from quorumlog.records.batch import HEADER_SIZE, batch_header
from quorumlog.records.compression import unpacked, unreadable

UNPACKED_MAX: Final = 64 * 1024 * 1024
"""Bytes that the records of a batch may have once they are unpacked; a few bytes can claim more."""
RECORDS_MAX: Final = 1_000_000
"""Records that are walked through in a batch, as its header and a few bytes can claim any number;
it takes about a second."""
_VARINT_BITS_MAX: Final = 63
_TIMESTAMP_END: Final = 1 << 63

Found: TypeAlias = tuple[int, int]
"""Offset and timestamp of a record."""


def first_since(batch: memoryview, offset: int, time_ms: int) -> Found | None:
    """Return the first record of a batch, from an offset on, that is not older than a time.

    None: all are older.

    Raises `RecordBatchError` if the records cannot be read; then nothing is known about them.
    """
    header = batch_header(batch)
    if header.max_timestamp < time_ms:
        return None
    if header.is_log_append_time:
        return max(header.base_offset, offset), header.max_timestamp
    records = (found for found in _records(batch) if found[0] >= offset)
    return next((found for found in records if found[1] >= time_ms), None)


def first_newest(batch: memoryview, offset: int) -> Found:
    """Return the first of the records with the largest timestamp of a batch, from an offset on.

    Raises `RecordBatchError` if the records cannot be read, or there is none.
    """
    header = batch_header(batch)
    if header.is_log_append_time:
        return max(header.base_offset, offset), header.max_timestamp
    records = (found for found in _records(batch) if found[0] >= offset)
    newest = max(records, key=lambda found: (found[1], -found[0]), default=None)
    if newest is None:
        raise unreadable(f"none has an offset from {offset} on")
    return newest


def _records(batch: memoryview) -> Iterator[Found]:
    """Yield offset and timestamp of each record."""
    header = batch_header(batch)
    if header.count > RECORDS_MAX:
        raise unreadable(f"the count {header.count} is above {RECORDS_MAX}")
    data = unpacked(header.codec, batch[HEADER_SIZE : header.size_bytes], UNPACKED_MAX)
    place = 0
    for _ in range(header.count):
        size, place = _varint(data, place)
        if size < 0 or place + size > len(data):
            raise unreadable(f"a record of {size} bytes ends outside its batch")
        time_delta, following = _varint(data, place + 1)
        offset_delta, following = _varint(data, following)
        if following > place + size:
            raise unreadable(f"a record of {size} bytes ends before its fields do")
        if not 0 <= offset_delta <= header.last_offset_delta:
            raise unreadable(f"a record with the offset delta {offset_delta}")
        timestamp = header.first_timestamp + time_delta
        if not -_TIMESTAMP_END <= timestamp < _TIMESTAMP_END:
            raise unreadable(f"a record with the timestamp {timestamp}, of more than 64 bits")
        yield header.base_offset + offset_delta, timestamp
        place += size


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    """Return a zigzag-encoded number, and the place after it."""
    number = shift = 0
    while shift <= _VARINT_BITS_MAX:
        if place >= len(data):
            raise unreadable("a record ends in the middle of a number")
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), place
        shift += 7
    raise unreadable("a number in a record has more than 64 bits")
