"""Finding a record of one batch by its timestamp; the only place where a batch is unpacked.

A record is a varint that counts its bytes, one byte of attributes, then the differences of its
timestamp and of its offset from those of the batch, as varints. The rest is skipped.
"""

import zlib
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import cramjam

from quorumlog.records.batch import HEADER_SIZE, BatchFault, Codec, RecordBatchError, batch_header

UNPACKED_MAX: Final = 64 * 1024 * 1024
"""Bytes that the records of a batch may have once they are unpacked; a few bytes can claim more."""
RECORDS_MAX: Final = 1_000_000
"""Records that are walked through in a batch, as its header and a few bytes can claim any number;
it takes about a second."""
_UNPACKED_LEAST: Final = 256 * 1024
_GROWTH: Final = 8
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
"""What snappy data in blocks starts with, as the Java client writes it."""
_XERIAL_HEADER: Final = 16
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
        raise _unreadable(f"none has an offset from {offset} on")
    return newest


def _records(batch: memoryview) -> Iterator[Found]:
    """Yield offset and timestamp of each record."""
    header = batch_header(batch)
    if header.count > RECORDS_MAX:
        raise _unreadable(f"the count {header.count} is above {RECORDS_MAX}")
    data = _unpacked(header.codec, batch[HEADER_SIZE : header.size_bytes])
    place = 0
    for _ in range(header.count):
        size, place = _varint(data, place)
        if size < 0 or place + size > len(data):
            raise _unreadable(f"a record of {size} bytes ends outside its batch")
        time_delta, following = _varint(data, place + 1)
        offset_delta, following = _varint(data, following)
        if following > place + size:
            raise _unreadable(f"a record of {size} bytes ends before its fields do")
        if not 0 <= offset_delta <= header.last_offset_delta:
            raise _unreadable(f"a record with the offset delta {offset_delta}")
        timestamp = header.first_timestamp + time_delta
        if not -_TIMESTAMP_END <= timestamp < _TIMESTAMP_END:
            raise _unreadable(f"a record with the timestamp {timestamp}, of more than 64 bits")
        yield header.base_offset + offset_delta, timestamp
        place += size


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    """Return a zigzag-encoded number, and the place after it."""
    number = shift = 0
    while shift <= _VARINT_BITS_MAX:
        if place >= len(data):
            raise _unreadable("a record ends in the middle of a number")
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), place
        shift += 7
    raise _unreadable("a number in a record has more than 64 bits")


def _unpacked(codec: Codec, data: memoryview) -> memoryview:
    """Return the records, unpacked. Raises `RecordBatchError` above `UNPACKED_MAX`."""
    if codec is Codec.NONE:
        return data
    try:
        if codec is Codec.SNAPPY:
            return memoryview(_snappy(data))
        if codec is Codec.GZIP:
            return memoryview(_gzip(data))
        unpack = cramjam.lz4.decompress_into if codec is Codec.LZ4 else cramjam.zstd.decompress_into
        return _unpacked_into(unpack, data)
    except (cramjam.DecompressionError, zlib.error) as error:
        raise _unreadable(f"{codec.name.lower()}: {error}") from None


def _unpacked_into(unpack: Callable[..., int], data: memoryview) -> memoryview:
    """Unpack into ever larger memory, as the size is not known before."""
    size = max(_UNPACKED_LEAST, len(data))
    while True:
        target = bytearray(size)
        try:
            return memoryview(target)[: unpack(data, target)]
        except cramjam.DecompressionError:
            if size >= UNPACKED_MAX:
                raise
            size = min(_GROWTH * size, UNPACKED_MAX)


def _gzip(data: memoryview) -> bytes:
    found = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    unpacked = found.decompress(data, UNPACKED_MAX)
    if not found.eof:
        raise _unreadable(f"gzip: the records end early, or have more than {UNPACKED_MAX} bytes")
    return unpacked


def _snappy(data: memoryview) -> bytes:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(data, UNPACKED_MAX)
    parts, room, place = list[bytes](), UNPACKED_MAX, _XERIAL_HEADER
    while place < len(data):
        size = int.from_bytes(data[place : place + 4])
        if place + 4 + size > len(data):
            raise _unreadable("snappy: a block ends outside the batch")
        parts.append(_snappy_block(data[place + 4 : place + 4 + size], room))
        room -= len(parts[-1])
        place += 4 + size
    return b"".join(parts)


def _snappy_block(data: memoryview, room: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(data)
    if size > room:
        raise _unreadable(f"snappy: the records have more than {UNPACKED_MAX} bytes")
    return bytes(cramjam.snappy.decompress_raw(data))


def _unreadable(text: str) -> RecordBatchError:
    return RecordBatchError(BatchFault.INVALID, f"the records of a batch cannot be read: {text}")
