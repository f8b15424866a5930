"""Entries on the system channel: the first ones of producers' blocks, and some that stand alone.

A block of an idempotent producer starts with one session entry. It has magic NORMAL, is on the
system channel, and has this body:

    0 4s magic "PSE1"    4 u64 producer id    12 u32 epoch    16 u64 first sequence
                                                              24 u32 count    28 u32 CRC

The sequence counts the producer's entries. The CRC-32 is over the body CRCs of the `count` entries
after it, 4 bytes each, big-endian. With magic "CSE1" these are commands, whose results are kept as
well. With magic "TSE1" they are part of a transaction, which follows:

    32 16s transactional id    48 u32 epoch of it    52 u64 batch id    60 u32 partition

Three entries stand alone. "TIN1" starts a run of a transactional producer:

    4 16s transactional id    20 16s run id    36 u32 time-out in ms

"TEN1" ends a transaction. Outcome 1 accepts the `count` attempts that follow, outcome 0 none:

    4 16s transactional id    20 u32 epoch    24 u64 batch id    32 u8 outcome    33 u32 count
    and each  0 u32 partition  4 u64 producer id  12 u64 first index  20 u64 last index
              28 u64 entries   36 u32 CRC (of the CRCs of its blocks, in order)

"TMK1" records group time (see `time_marks`). Only leaders append it, never clients:

    4 u64 milliseconds

Those about partitions of topics are in `topics.entries`.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

import numpy as np
from isal.isal_zlib import crc32

from quorumlog.model.block import (
    HEADER_SIZE,
    Block,
    Buffer,
    encode_checked,
    encode_entry,
    first_channel_of,
    headers,
    system_ordinals_of,
)
from quorumlog.model.entry import SYSTEM_CHANNEL
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.topics.entries import (
    PARTITION_ENTRIES,
    LogStartsMoved,
    PartitionClosed,
    PartitionEntry,
)

_SESSION: Final = struct.Struct(">4sQIQII")
_PRODUCER_MAGIC: Final = b"PSE1"
_COMMANDS_MAGIC: Final = b"CSE1"
_PART_MAGIC: Final = b"TSE1"
_INIT_MAGIC: Final = b"TIN1"
_END_MAGIC: Final = b"TEN1"
_TIME_MAGIC: Final = b"TMK1"
_PART: Final = struct.Struct(">16sIQI")
_INIT: Final = struct.Struct(">4s16s16sI")
_END: Final = struct.Struct(">4s16sIQBI")
_ATTEMPT: Final = struct.Struct(">IQQQQI")
_TIME: Final = struct.Struct(">4sQ")
_U32: Final = struct.Struct(">I")
SESSION_ENTRY_SIZE: Final = HEADER_SIZE + _SESSION.size
TRANSACTIONAL_ENTRY_SIZE: Final = SESSION_ENTRY_SIZE + _PART.size
ID_SIZE: Final = 16
"""Bytes of a transactional id, and of a run id."""
ACCEPTED_MAX: Final = 50_000
"""Attempts that one end of a transaction can accept."""
TIME_MS_MAX: Final = 1 << 53
"""Group time ends here; a mark with a later time is ignored."""


@dataclass(frozen=True, slots=True)
class TransactionPart:
    """Which part of which transaction a block belongs to.

    The transaction is the `batch_id` of a `transactional_id` (16 bytes); `epoch` numbers the runs
    of that id, `partition` the tasks that write the batch. The producer id of the block tells
    the attempts at a partition apart.
    """

    transactional_id: bytes
    epoch: int
    batch_id: int
    partition: int


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """What a session entry says of the `count` entries after it.

    `keeps_results`: they are commands, and a repeated block is answered with their results again.
    """

    producer_id: int
    epoch: int
    first_sequence: int
    count: int
    crc: int
    keeps_results: bool = False
    part: TransactionPart | None = None

    def encode(self) -> bytes:
        """Return the whole entry, unstamped."""
        magic = _COMMANDS_MAGIC if self.keeps_results else _PRODUCER_MAGIC
        tail = b""
        if (part := self.part) is not None:
            magic = _PART_MAGIC
            tail = _PART.pack(part.transactional_id, part.epoch, part.batch_id, part.partition)
        body = _SESSION.pack(
            magic, self.producer_id, self.epoch, self.first_sequence, self.count, self.crc
        )
        return encode_entry(body + tail, channel=SYSTEM_CHANNEL)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> "SessionEntry | None":
        """Read the body of an entry of the system channel; None: it is another entry."""
        if len(body) < _SESSION.size:
            return None
        magic, producer_id, epoch, first_sequence, count, crc = _SESSION.unpack_from(body)
        part = None
        if len(body) == _SESSION.size + _PART.size and magic == _PART_MAGIC:
            part = TransactionPart(*_PART.unpack_from(body, _SESSION.size))
        elif len(body) != _SESSION.size or magic not in (_PRODUCER_MAGIC, _COMMANDS_MAGIC):
            return None
        keeps_results = magic == _COMMANDS_MAGIC
        return cls(producer_id, epoch, first_sequence, count, crc, keeps_results, part)


@dataclass(frozen=True, slots=True)
class InitTransactions:
    """A new run of a transactional id starts; earlier runs of that id can append nothing any more.

    A transaction of the run to which nothing is added for `timeout_ms` is aborted.
    """

    transactional_id: bytes
    run_id: bytes
    timeout_ms: int
    count: ClassVar[int] = 0

    def encode(self) -> bytes:
        """Return the whole entry, unstamped."""
        body = _INIT.pack(_INIT_MAGIC, self.transactional_id, self.run_id, self.timeout_ms)
        return encode_entry(body, channel=SYSTEM_CHANNEL)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> "InitTransactions | None":
        """Read the body of an entry of the system channel; None: it is another entry."""
        if len(body) != _INIT.size:
            return None
        magic, *fields = _INIT.unpack(body)
        return cls(*fields) if magic == _INIT_MAGIC else None


@dataclass(frozen=True, slots=True)
class AcceptedAttempt:
    """What one task wrote of a transaction: `count` entries from first_index to last_index.

    `crc` continues over the CRCs that the session entries of its blocks state.
    """

    partition: int
    producer_id: int
    first_index: int
    last_index: int
    count: int
    crc: int


def _packed_attempt(one: AcceptedAttempt) -> bytes:
    try:
        return _ATTEMPT.pack(
            one.partition, one.producer_id, one.first_index, one.last_index, one.count, one.crc
        )
    except struct.error:
        raise UnexpectedArgumentError(
            f"{one} has a number that no attempt can have; pass what Producer.attempt returned"
        ) from None


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """A batch has ended: only the `accepted` attempts count; None: the batch is aborted."""

    transactional_id: bytes
    epoch: int
    batch_id: int
    accepted: tuple[AcceptedAttempt, ...] | None
    count: ClassVar[int] = 0

    def encode(self) -> bytes:
        """Return the whole entry, unstamped.

        Raises `UnexpectedArgumentError` for too many attempts, or numbers out of range.
        """
        accepted = self.accepted or ()
        if len(accepted) > ACCEPTED_MAX:
            raise UnexpectedArgumentError(
                f"a transaction of {len(accepted)} parts is above {ACCEPTED_MAX}; write the batch "
                "with fewer partitions"
            )
        outcome = 0 if self.accepted is None else 1
        parts = [
            _END.pack(
                _END_MAGIC,
                self.transactional_id,
                self.epoch,
                self.batch_id,
                outcome,
                len(accepted),
            )
        ]
        parts += map(_packed_attempt, accepted)
        return encode_entry(b"".join(parts), channel=SYSTEM_CHANNEL)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> "EndTransaction | None":
        """Read the body of an entry of the system channel; None: it is another entry."""
        if len(body) < _END.size:
            return None
        magic, transactional_id, epoch, batch_id, outcome, count = _END.unpack_from(body)
        if magic != _END_MAGIC or len(body) != _END.size + count * _ATTEMPT.size:
            return None
        accepted = tuple(
            AcceptedAttempt(*fields) for fields in _ATTEMPT.iter_unpack(body[_END.size :])
        )
        return cls(transactional_id, epoch, batch_id, accepted if outcome else None)


@dataclass(frozen=True, slots=True)
class TimeMark:
    """The group's time when a leader appended it: `time_ms`, at most TIME_MS_MAX."""

    time_ms: int
    count: ClassVar[int] = 0

    def encode(self) -> bytes:
        """Return the whole entry, unstamped."""
        return encode_entry(_TIME.pack(_TIME_MAGIC, self.time_ms), channel=SYSTEM_CHANNEL)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> "TimeMark | None":
        """Read the body of an entry of the system channel; None: it is another entry."""
        if len(body) != _TIME.size:
            return None
        magic, time_ms = _TIME.unpack(body)
        return cls(time_ms) if magic == _TIME_MAGIC and time_ms <= TIME_MS_MAX else None


SystemEntry: TypeAlias = (
    SessionEntry | InitTransactions | EndTransaction | TimeMark | PartitionEntry
)
LEADERS_ENTRIES: Final = (TimeMark, *PARTITION_ENTRIES)
"""Those that only leaders append, never clients."""
RELEASING_ENTRIES: Final = (TimeMark, PartitionClosed, LogStartsMoved)
"""Those without which a full disk would stay full: nothing old could be given up."""


def is_transactional(entry: SystemEntry) -> bool:
    """Whether an entry is about a transaction."""
    if isinstance(entry, SessionEntry):
        return entry.part is not None
    return isinstance(entry, InitTransactions | EndTransaction)


def transactional_id_of(entry: SystemEntry | None) -> bytes | None:
    """Return the transactional id in whose name an entry is appended; None: in nobody's."""
    if isinstance(entry, SessionEntry):
        return None if entry.part is None else entry.part.transactional_id
    if isinstance(entry, InitTransactions | EndTransaction):
        return entry.transactional_id
    return None


_KINDS: Final = (SessionEntry, InitTransactions, EndTransaction, *LEADERS_ENTRIES)


def decode_system_entry(body: bytes | memoryview) -> SystemEntry | None:
    """Read the body of an entry of the system channel; None: it is none of these."""
    found = (kind.decode(body) for kind in _KINDS)
    return next((entry for entry in found if entry is not None), None)


def crc_of(body_crcs: Iterable[int]) -> int:
    """Return the CRC that a session entry states, from the CRCs of the bodies after it."""
    crcs = list(body_crcs)
    return crc32(struct.pack(f">{len(crcs)}I", *crcs))


def encode_session_block(
    producer_id: int,
    first_sequence: int,
    bodies: Sequence[Buffer],
    *,
    epoch: int = 0,
    keeps_results: bool = False,
    part: TransactionPart | None = None,
) -> bytes:
    """Return the unstamped entries of `bodies`, after the session entry that describes them."""
    crcs = [crc32(body) for body in bodies]
    entry = SessionEntry(
        producer_id, epoch, first_sequence, len(bodies), crc_of(crcs), keeps_results, part
    )
    return entry.encode() + encode_checked(zip(bodies, crcs, strict=True))


def continued_crc(crc: int, block_crc: int) -> int:
    """Return the CRC of an attempt with one more block, whose session entry states block_crc."""
    return crc32(_U32.pack(block_crc), crc)


def system_entry_of(block: Block) -> SystemEntry | None:
    """Return the entry of the system channel at the start of a client's block; None: it has none.

    Raises `UnexpectedArgumentError` if it does not match the block, or no client may append it.
    """
    if first_channel_of(block) != SYSTEM_CHANNEL:
        return None
    first = int(block.sizes[0])
    entry = decode_system_entry(block.data[HEADER_SIZE:first])
    if entry is None:
        raise UnexpectedArgumentError(
            "the first entry of the block is none that a block may start with"
        )
    if isinstance(entry, LEADERS_ENTRIES):
        raise UnexpectedArgumentError(f"only leaders append entries {type(entry).__name__}")
    if entry.count != block.count - 1:
        raise UnexpectedArgumentError(
            f"the first entry of the block goes with {entry.count} more, not {block.count - 1}"
        )
    if isinstance(entry, SessionEntry):
        if not entry.count:
            raise UnexpectedArgumentError("a session entry without entries after it")
        crc = crc32(np.ascontiguousarray(headers(block)["body_crc"][1:]).tobytes())
        if entry.crc != crc:
            raise UnexpectedArgumentError("the session entry does not match the entries after it")
    return entry


def only_releases(block: Block, releases: Callable[[memoryview], bool]) -> bool:
    """Whether all entries of a block make room: `RELEASING_ENTRIES`, or what `releases` says of.

    `releases` gets the body of each entry that is not on the system channel. The session entry that
    comes before the commands of a client does not matter.
    """
    system = set(system_ordinals_of(block))
    for ordinal in range(block.count):
        body = body_at(block, ordinal)
        if ordinal in system:
            entry = decode_system_entry(body)
            is_of_commands = isinstance(entry, SessionEntry) and entry.keeps_results
            makes_room = is_of_commands or isinstance(entry, RELEASING_ENTRIES)
        else:
            makes_room = releases(body)
        if not makes_room:
            return False
    return True


def body_at(block: Block, ordinal: int) -> memoryview:
    """Return the body of one entry."""
    start = int(block.offsets[ordinal])
    return block.data[start + HEADER_SIZE : start + int(block.sizes[ordinal])]


def system_entries_in(block: Block, first_index: int) -> list[tuple[int, SystemEntry]]:
    """Return (index, entry) of each in a block whose first entry is at first_index."""
    found = []
    for ordinal in system_ordinals_of(block):
        entry = decode_system_entry(body_at(block, ordinal))
        if entry is not None:
            found.append((first_index + ordinal, entry))
    return found
