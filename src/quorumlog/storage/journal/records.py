"""The bytes of a journal: segments that begin with a header and hold records.

A record is what one group commit appends to several groups. Its CRC covers everything before it
in the record and starts from the journal's number, so that no record of another journal counts.
All integers are big-endian.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from isal.isal_zlib import crc32

from quorumlog.model.block import Buffer

BLOCK_BYTES: Final = 4_096
"""What the header of a segment takes."""
ALIGNMENT: Final = 512
"""Records start at multiples of this: what is torn leaves those before it whole."""
ITEMS_MAX: Final = 65_536
FORMAT: Final = 1
_HEADER = struct.Struct(">4sIQQ")
_HEADER_MAGIC: Final = b"QLJ1"
_RECORD = struct.Struct(">4sQII")
_RECORD_MAGIC: Final = b"QLJR"
_ITEM = struct.Struct(">QqIqqqq")
_CRC_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The journal's number, and the sequence of the first record."""

    journal: int
    first_sequence: int


@dataclass(frozen=True, slots=True)
class Item:
    """Bytes at a position of a group; after its record the group's log ends with entry `index`.

    `incarnation` is that of the group's data directory. The entry has `term` and `chain_crc` and
    ends before byte `end`.
    """

    incarnation: int
    position: int
    length: int
    index: int
    end: int
    chain_crc: int
    term: int


@dataclass(frozen=True, slots=True)
class Record:
    """One record: its items with their bytes. `size` is what it takes in the segment."""

    sequence: int
    parts: list[tuple[Item, memoryview]]
    size: int


def packed_header(header: SegmentHeader) -> bytes:
    """Return the first block of a segment: the header, twice."""
    head = _HEADER.pack(_HEADER_MAGIC, FORMAT, header.journal, header.first_sequence)
    return 2 * (head + crc32(head).to_bytes(_CRC_BYTES, "big")).ljust(BLOCK_BYTES // 2, b"\0")


def parsed_header(block: bytes) -> SegmentHeader | None:
    """Return what a segment's first block says; None if no copy of the header is whole.

    If a crash left two different ones, the newer counts: what the older one names is settled.
    """
    half = BLOCK_BYTES // 2
    found = [one for one in (_header(block[:half]), _header(block[half:])) if one is not None]
    return max(found, key=lambda one: one.first_sequence, default=None)


def _header(raw: bytes) -> SegmentHeader | None:
    if len(raw) < _HEADER.size + _CRC_BYTES:
        return None
    magic, form, journal, first = _HEADER.unpack_from(raw)
    crc = int.from_bytes(raw[_HEADER.size : _HEADER.size + _CRC_BYTES], "big")
    if magic != _HEADER_MAGIC or form != FORMAT or crc != crc32(raw[: _HEADER.size]):
        return None
    return SegmentHeader(journal, first)


def record_size(items: int, size_bytes: int) -> int:
    """Return what a record takes with so many items of so many bytes in all."""
    used = _RECORD.size + items * _ITEM.size + _CRC_BYTES + size_bytes
    return -(-used // ALIGNMENT) * ALIGNMENT


def packed_record(
    journal: int, sequence: int, parts: Sequence[tuple[Item, Sequence[Buffer]]]
) -> list[Buffer]:
    """Return the bytes of a record, padded to `ALIGNMENT`."""
    size_bytes = sum(item.length for item, _ in parts)
    head = _RECORD.pack(_RECORD_MAGIC, sequence, len(parts), size_bytes)
    head += b"".join(
        _ITEM.pack(
            item.incarnation,
            item.position,
            item.length,
            item.index,
            item.end,
            item.chain_crc,
            item.term,
        )
        for item, _ in parts
    )
    crc = crc32(head, _seed(journal))
    buffers: list[Buffer] = []
    for _, of_item in parts:
        for buffer in of_item:
            crc = crc32(buffer, crc)
            buffers.append(buffer)
    used = len(head) + _CRC_BYTES + size_bytes
    padding = bytes(record_size(len(parts), size_bytes) - used)
    return [head + crc.to_bytes(_CRC_BYTES, "big"), *buffers, padding]


def parsed_record(journal: int, view: memoryview, offset: int) -> Record | None:
    """Return the record at an offset of a segment; None if there is no whole one."""
    if len(view) - offset < _RECORD.size or bytes(view[offset : offset + 4]) != _RECORD_MAGIC:
        return None
    _, sequence, count, size_bytes = _RECORD.unpack_from(view, offset)
    size = record_size(count, size_bytes)
    if count > ITEMS_MAX or offset + size > len(view):
        return None
    data = offset + _RECORD.size + count * _ITEM.size + _CRC_BYTES
    crc = crc32(view[offset : data - _CRC_BYTES], _seed(journal))
    crc = crc32(view[data : data + size_bytes], crc)
    if crc != int.from_bytes(view[data - _CRC_BYTES : data], "big"):
        return None
    parts: list[tuple[Item, memoryview]] = []
    for number in range(count):
        item = Item(*_ITEM.unpack_from(view, offset + _RECORD.size + number * _ITEM.size))
        parts.append((item, view[data : data + item.length]))
        data += item.length
    return Record(sequence, parts, size)


def records_in(header: SegmentHeader, view: memoryview) -> Iterator[tuple[int, Record]]:
    """Yield the whole records of a segment with their offsets, those after damage included.

    Sequences rise: what an earlier use of the segment left after its end has lower ones.
    """
    offset, least = BLOCK_BYTES, header.first_sequence
    while offset < len(view):
        record = parsed_record(header.journal, view, offset)
        if record is None or record.sequence < least:
            offset += ALIGNMENT
            continue
        yield offset, record
        offset += record.size
        least = record.sequence + 1


def _seed(journal: int) -> int:
    return crc32(journal.to_bytes(8, "big"))
