"""Unpacking the records of a batch; a few bytes can claim to be any number, so it is bounded."""

import zlib
from collections.abc import Callable
from typing import Final

import cramjam

from quorumlog.records.batch import BatchFault, Codec, RecordBatchError

_UNPACKED_LEAST: Final = 256 * 1024
_GROWTH: Final = 8
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
"""What snappy data in blocks starts with, as the Java client writes it."""
_XERIAL_HEADER: Final = 16


def unpacked(codec: Codec, data: memoryview, bytes_max: int) -> memoryview:
    """Return the records, unpacked.

    Raises `RecordBatchError` if they are damaged, or have more than `bytes_max` bytes.
    """
    if codec is Codec.NONE:
        return data
    try:
        if codec is Codec.SNAPPY:
            return memoryview(_snappy(data, bytes_max))
        if codec is Codec.GZIP:
            return memoryview(_gzip(data, bytes_max))
        unpack = cramjam.lz4.decompress_into if codec is Codec.LZ4 else cramjam.zstd.decompress_into
        return _unpacked_into(unpack, data, bytes_max)
    except (cramjam.DecompressionError, zlib.error) as error:
        raise unreadable(f"{codec.name.lower()}: {error}") from None


def _unpacked_into(unpack: Callable[..., int], data: memoryview, bytes_max: int) -> memoryview:
    """Unpack into ever larger memory, as the size is not known before."""
    size = min(max(_UNPACKED_LEAST, len(data)), bytes_max)
    while True:
        target = bytearray(size)
        try:
            return memoryview(target)[: unpack(data, target)]
        except cramjam.DecompressionError:
            if size >= bytes_max:
                raise
            size = min(_GROWTH * size, bytes_max)


def _gzip(data: memoryview, bytes_max: int) -> bytes:
    found = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    unpacked = found.decompress(data, bytes_max)
    if not found.eof:
        raise unreadable(f"gzip: the records end early, or have more than {bytes_max} bytes")
    return unpacked


def _snappy(data: memoryview, bytes_max: int) -> bytes:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(data, bytes_max)
    parts, room, place = list[bytes](), bytes_max, _XERIAL_HEADER
    while place < len(data):
        size = int.from_bytes(data[place : place + 4])
        if place + 4 + size > len(data):
            raise unreadable("snappy: a block ends outside the batch")
        parts.append(_snappy_block(data[place + 4 : place + 4 + size], room))
        room -= len(parts[-1])
        place += 4 + size
    return b"".join(parts)


def _snappy_block(data: memoryview, room: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(data)
    if size > room:
        raise unreadable("snappy: the records have more bytes than may be unpacked")
    return bytes(cramjam.snappy.decompress_raw(data))


def unreadable(text: str) -> RecordBatchError:
    """Return the error that records cannot be read."""
    return RecordBatchError(BatchFault.INVALID, f"the records of a batch cannot be read: {text}")
