"""Entries on the system channel that say which partitions a log holds, and where they start.

"PON1" opens a partition: from then on the entries of its channel are record batches.

    0 4s magic "PON1"    4 u32 channel    8 i32 partition    12 16s topic id    28 topic's name

"PCL1" closes one, whose topic was deleted or which moved elsewhere:

    0 4s magic "PCL1"    4 u32 channel

"PST1" moves log start offsets: records below them are not read any more.

    0 4s magic "PST1"    4 u32 number of pairs, and each  0 u32 channel  4 i64 log start offset

Only leaders append these, never clients. A directory tells by them what is in it.
"""

import struct
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

from quorumlog.model.block import encode_entry
from quorumlog.model.entry import SYSTEM_CHANNEL
from quorumlog.model.errors import UnexpectedArgumentError

_OPENED: Final = struct.Struct(">4sIi16s")
_CLOSED: Final = struct.Struct(">4sI")
_STARTS: Final = struct.Struct(">4sI")
_START: Final = struct.Struct(">Iq")
_OPENED_MAGIC: Final = b"PON1"
_CLOSED_MAGIC: Final = b"PCL1"
_STARTS_MAGIC: Final = b"PST1"
TOPIC_NAME_MAX: Final = 249
"""Bytes of a topic's name, as in Kafka."""
STARTS_MAX: Final = 10_000
"""Log start offsets that one entry can move."""


@dataclass(frozen=True, slots=True)
class PartitionOpened:
    """Partition `number` of a topic begins on a channel, which was never used before."""

    channel: int
    number: int
    topic_id: bytes
    topic: str
    count: ClassVar[int] = 0

    def encode(self) -> bytes:
        """Return the whole entry, unstamped."""
        head = _OPENED.pack(_OPENED_MAGIC, self.channel, self.number, self.topic_id)
        return encode_entry(head + self.topic.encode(), channel=SYSTEM_CHANNEL)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> "PartitionOpened | None":
        """Read the body of an entry of the system channel; None: it is another entry."""
        if not _OPENED.size < len(body) <= _OPENED.size + TOPIC_NAME_MAX:
            return None
        magic, channel, number, topic_id = _OPENED.unpack_from(body)
        if magic != _OPENED_MAGIC or channel == SYSTEM_CHANNEL or number < 0:
            return None
        try:
            topic = bytes(body[_OPENED.size :]).decode()
        except UnicodeDecodeError:
            return None
        return cls(channel, number, topic_id, topic)


@dataclass(frozen=True, slots=True)
class PartitionClosed:
    """Nothing of the partition on a channel is read any more, and nothing is appended to it."""

    channel: int
    count: ClassVar[int] = 0

    def encode(self) -> bytes:
        """Return the whole entry, unstamped."""
        return encode_entry(_CLOSED.pack(_CLOSED_MAGIC, self.channel), channel=SYSTEM_CHANNEL)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> "PartitionClosed | None":
        """Read the body of an entry of the system channel; None: it is another entry."""
        if len(body) != _CLOSED.size:
            return None
        magic, channel = _CLOSED.unpack(body)
        return cls(channel) if magic == _CLOSED_MAGIC else None


@dataclass(frozen=True, slots=True)
class LogStartsMoved:
    """Log start offsets by channel: (channel, first offset that may be read)."""

    starts: tuple[tuple[int, int], ...]
    count: ClassVar[int] = 0

    def encode(self) -> bytes:
        """Return the whole entry, unstamped. Raises `UnexpectedArgumentError` for too many."""
        if len(self.starts) > STARTS_MAX:
            text = f"an entry moves at most {STARTS_MAX} log start offsets, not {len(self.starts)}"
            raise UnexpectedArgumentError(text)
        parts = [_STARTS.pack(_STARTS_MAGIC, len(self.starts))]
        parts += [_START.pack(channel, offset) for channel, offset in self.starts]
        return encode_entry(b"".join(parts), channel=SYSTEM_CHANNEL)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> "LogStartsMoved | None":
        """Read the body of an entry of the system channel; None: it is another entry."""
        if len(body) < _STARTS.size:
            return None
        magic, count = _STARTS.unpack_from(body)
        if magic != _STARTS_MAGIC or len(body) != _STARTS.size + count * _START.size:
            return None
        pairs = tuple((pair[0], pair[1]) for pair in _START.iter_unpack(body[_STARTS.size :]))
        return cls(pairs)


PartitionEntry: TypeAlias = PartitionOpened | PartitionClosed | LogStartsMoved
PARTITION_ENTRIES: Final = (PartitionOpened, PartitionClosed, LogStartsMoved)
