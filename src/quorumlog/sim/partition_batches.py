"""Record batches of simulated producers: each has a number of its own, by which it is known again.

The number is the first timestamp of the batch, which nobody changes on the way into the log.
"""

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from quorumlog.model.block import Block
from quorumlog.model.codes import WriteLevel
from quorumlog.records.batch import (
    HEADER,
    HEADER_SIZE,
    MAGIC,
    NO_PRODUCER,
    TRANSACTIONAL,
    BatchHeader,
)
from quorumlog.records.markers import encode_marker
from quorumlog.topics.produced_batch import ProducedBatch, block_around

_CRC_BEGIN: Final = 21
_BEFORE: Final = 64
"""Room before a batch for the header of its entry."""
_RECORD_HEAD: Final = b"\x00\x00"
"""Attributes and timestamp delta of every record."""
_NO_KEY: Final = b"\x01"
_NO_HEADERS: Final = b"\x00"
_COUNT_MAX: Final = 63
"""Records of a batch, so that offset deltas are one byte long."""


@dataclass(slots=True)
class SentBatch:
    """A batch of `count` records for the partition on a channel, as its producer sends it.

    One that is `is_transactional` counts once a marker ends the transaction: a batch of one record
    whose `commits` says how. `floor`: the highest index acknowledged to any client before it was
    made, at `made_ms`. `sends` counts how often it was sent; `is_refused`: the only time it was
    sent it was answered as not stored; `offset` is that of its first record once it is acknowledged
    by a majority, -1 before.
    """

    number: int
    channel: int
    count: int
    size: int
    floor: int
    level: WriteLevel = WriteLevel.REPLICATION
    producer_id: int = NO_PRODUCER
    epoch: int = -1
    sequence: int = -1
    gets_append_time: bool = False
    sends: int = 0
    is_refused: bool = False
    offset: int = -1
    made_ms: int = 0
    is_transactional: bool = False
    commits: bool | None = None

    @property
    def is_idempotent(self) -> bool:
        """Whether it is stored at most once, however often it is sent."""
        return self.producer_id != NO_PRODUCER and self.commits is None

    @property
    def name(self) -> str:
        """What findings call it."""
        producer = f" of producer {self.producer_id}" if self.is_idempotent else ""
        return f"batch {self.number}{producer}"


def encode_batch(sent: SentBatch) -> bytes:
    """Return the bytes of a batch, with records as Kafka's clients write them."""
    number = sent.number
    if sent.commits is not None:
        return encode_marker(sent.producer_id, sent.epoch, 0, number, commits=sent.commits)
    value = f"{number} ".encode().ljust(max(8, sent.size // sent.count), b".")
    records = b"".join(_record(delta, value) for delta in range(min(sent.count, _COUNT_MAX)))
    producer = sent.producer_id, sent.epoch, sent.sequence
    attributes = TRANSACTIONAL * sent.is_transactional
    fields = (attributes, sent.count - 1, number, number, *producer, sent.count)
    length = HEADER_SIZE - 12 + len(records)
    batch = bytearray(HEADER.pack(0, length, -1, MAGIC, 0, *fields) + records)
    struct.pack_into(">I", batch, 17, crc32c(batch[_CRC_BEGIN:]))
    return bytes(batch)


def _record(delta: int, value: bytes) -> bytes:
    body = b"".join(
        (_RECORD_HEAD, _varint(delta), _NO_KEY, _varint(len(value)), value, _NO_HEADERS)
    )
    return _varint(len(body)) + body


def _varint(value: int) -> bytes:
    """Encode a length or delta, which is not negative (zigzag, seven bits a byte)."""
    rest, out = value << 1, bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def proposal_of(sent: SentBatch, data: bytes, header: BatchHeader) -> tuple[ProducedBatch, Block]:
    """Return a batch that has arrived at a node, and the block in which it is proposed."""
    buffer = memoryview(bytearray(_BEFORE) + data)
    block = block_around(buffer, _BEFORE, len(buffer), sent.channel)
    return ProducedBatch(sent.channel, header, sent.gets_append_time), block
