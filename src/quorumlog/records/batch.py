"""The header of a record batch: what it says, whether it can be true, and what a leader stamps.

A batch starts with 61 bytes, big-endian (Kafka's message format, magic 2):

    offset  0 i64 base offset       12 i32 leader epoch    16 i8 magic = 2    17 u32 CRC-32C
            8 i32 length            21 i16 attributes      23 i32 last offset delta
           27 i64 first timestamp   35 i64 max timestamp   43 i64 producer id
           51 i16 producer epoch    53 i32 base sequence   57 i32 count

The length counts the bytes after it. The CRC covers everything from the attributes on, so a leader
stamps base offset and leader epoch without making it anew.
"""

import struct
from enum import Enum, IntEnum
from typing import Final

import msgspec
from crc32c import crc32c

from quorumlog.model.block import Buffer
from quorumlog.model.errors import QuorumlogError
from quorumlog.model.wording import counted

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE: Final = HEADER.size
MAGIC: Final = 2
_LENGTH_END: Final = 12
"""What the length does not count: base offset and length."""
CRC_BEGIN: Final = 21
"""Where begins what the CRC covers."""
_I64: Final = struct.Struct(">q")
_I32: Final = struct.Struct(">i")
_U32: Final = struct.Struct(">I")
_I16: Final = struct.Struct(">h")
_CODECS: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
"""Of the attributes: the records count only once their transaction is committed."""
_CONTROL: Final = 0x20
RECORD_BYTES_MIN: Final = 7
"""The least bytes of a record that is not compressed: each of its seven fields has one."""
NO_PRODUCER: Final = -1
"""Producer id of a batch of a producer that is not idempotent."""


class Codec(IntEnum):
    """How the records of a batch are compressed."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_LAST_CODEC: Final = int(Codec.ZSTD)


class BatchFault(Enum):
    """Why a batch is refused."""

    CORRUPT = "corrupt"
    """Its CRC does not match its bytes: it changed on the way, and may be sent again."""
    INVALID = "invalid"
    """Its header cannot be true."""
    MAGIC = "magic"
    """It is of a message format before magic 2."""
    CODEC = "codec"
    """Its compression is not known."""
    TOO_LARGE = "too large"
    """It has more bytes than a batch may have."""


class RecordBatchError(QuorumlogError):
    """A record batch cannot be stored; `fault` says what kind of reason the text gives."""

    def __init__(self, fault: BatchFault, text: str) -> None:
        super().__init__(text)
        self.fault = fault


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """The fields of a header, in their order; times in milliseconds since 1970."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch."""
        return _LENGTH_END + self.length

    @property
    def is_log_append_time(self) -> bool:
        """Whether all records have the time at which the leader took them, `max_timestamp`."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Whether the records count only once their transaction is committed."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether it is a marker of a transaction's end, which no producer may send."""
        return bool(self.attributes & _CONTROL)

    @property
    def codec(self) -> Codec:
        """How the records are compressed. Raises `ValueError` for an unknown number."""
        return Codec(self.attributes & _CODECS)


def batch_header(data: Buffer, offset: int = 0) -> BatchHeader:
    """Return the header at an offset, whatever it says; there must be `HEADER_SIZE` bytes."""
    return BatchHeader(*HEADER.unpack_from(data, offset))


def check_batch(data: memoryview, bytes_max: int) -> BatchHeader:
    """Return the header of a batch that a producer sent.

    Raises `RecordBatchError` unless `data` is one whole batch of at most `bytes_max` bytes that may
    be stored as it is. Records are not looked at: what is compressed stays so.
    """
    size = len(data)
    if size > bytes_max:
        text = f"a record batch of {size} bytes is above {bytes_max}; lower the batch size"
        raise RecordBatchError(BatchFault.TOO_LARGE, text)
    if size <= 16:
        raise _invalid(f"{size} bytes are no record batch, which has {HEADER_SIZE} and more")
    magic = data[16]
    if magic != MAGIC:
        text = f"a record batch of magic {magic}; only {MAGIC} is stored (Kafka 0.11 and later)"
        raise RecordBatchError(BatchFault.MAGIC, text)
    if size < HEADER_SIZE:
        raise _invalid(f"{size} bytes are no record batch, which has {HEADER_SIZE} and more")
    header = batch_header(data)
    length = header.length
    if length + _LENGTH_END != size:
        if HEADER_SIZE <= length + _LENGTH_END < size:
            raise _invalid("more than one record batch for a partition; send one in a request")
        raise _invalid(f"a record batch of {size} bytes states the length {length}")
    found = crc32c(data[CRC_BEGIN:])
    if found != header.crc:
        text = f"a record batch has the CRC-32C {found:#010x}, and states {header.crc:#010x}"
        raise RecordBatchError(BatchFault.CORRUPT, text)
    _check_fields(header)
    return header


def _check_fields(header: BatchHeader) -> None:
    attributes = header.attributes
    if attributes & _CODECS > _LAST_CODEC:
        text = f"compression {attributes & _CODECS} is not known; 0 to {_LAST_CODEC} are"
        raise RecordBatchError(BatchFault.CODEC, text)
    if attributes & _CONTROL:
        raise _invalid("a control batch; only transaction coordinators write these")
    if header.count < 1 or header.last_offset_delta != header.count - 1:
        raise _invalid(
            f"a record batch of {counted(header.count, 'record')} with the last offset delta "
            f"{header.last_offset_delta}"
        )
    record_bytes = header.size_bytes - HEADER_SIZE
    if not attributes & _CODECS and header.count * RECORD_BYTES_MIN > record_bytes:
        raise _invalid(
            f"a record batch of {counted(header.count, 'record')} in {record_bytes} bytes; each "
            f"has {RECORD_BYTES_MIN} or more"
        )
    if header.producer_id < NO_PRODUCER:
        raise _invalid(f"producer id {header.producer_id}")
    if header.producer_id != NO_PRODUCER:
        if header.producer_epoch < 0 or header.base_sequence < 0:
            raise _invalid(
                f"producer {header.producer_id} with the epoch {header.producer_epoch} and the "
                f"sequence {header.base_sequence}"
            )
    elif attributes & TRANSACTIONAL:
        raise _invalid("a transactional record batch without a producer id")


def _invalid(text: str) -> RecordBatchError:
    return RecordBatchError(BatchFault.INVALID, text)


def stamp_batch(data: memoryview, offset: int, base_offset: int, leader_epoch: int) -> None:
    """Write what the leader decides into the batch that starts at an offset."""
    _I64.pack_into(data, offset, base_offset)
    _I32.pack_into(data, offset + _LENGTH_END, leader_epoch)


def set_log_append_time(data: memoryview, time_ms: int) -> None:
    """Give all records of a batch, which is all of `data`, the time at which it is appended."""
    (attributes,) = _I16.unpack_from(data, CRC_BEGIN)
    _I16.pack_into(data, CRC_BEGIN, attributes | _LOG_APPEND_TIME)
    _I64.pack_into(data, 35, time_ms)
    _U32.pack_into(data, 17, crc32c(data[CRC_BEGIN:]))
