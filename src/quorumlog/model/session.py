"""Producer sessions: what every replica remembers of producers, so that a retry is stored once.

A block of an idempotent producer begins with one session entry: magic NORMAL, on the system
channel, its body

    0 4s magic "PSE1"    4 u64 producer id    12 u32 epoch    16 u64 first sequence
                                                              24 u32 count    28 u32 CRC

The sequence counts the producer's entries; the CRC-32 is over the body CRCs of the `count` entries
behind it, 4 bytes each, big-endian. From these entries, in the order of the log, every replica
derives the same table. With magic "CSE1" they are commands, and what a state machine made of them
is kept as well.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
from isal.isal_zlib import crc32

from quorumlog.model.block import (
    HEADER_SIZE,
    Block,
    Buffer,
    encode_checked,
    encode_entry,
    headers,
)
from quorumlog.model.entry import SYSTEM_CHANNEL
from quorumlog.model.errors import UnexpectedArgumentError

_BODY: Final = struct.Struct(">4sQIQII")
_MAGIC: Final = b"PSE1"
_COMMANDS_MAGIC: Final = b"CSE1"
SESSION_ENTRY_SIZE: Final = HEADER_SIZE + _BODY.size
SESSIONS_MAX: Final = 10_000
"""Producers that a group remembers; the one that appended longest ago is forgotten first."""
BLOCKS_REMEMBERED: Final = 16
"""Newest blocks of each producer whose answer can be given again."""


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """What a session entry says of the `count` entries behind it.

    `keeps_results`: they are commands, and a repeated block is given their results again.
    """

    producer_id: int
    epoch: int
    first_sequence: int
    count: int
    crc: int
    keeps_results: bool = False

    def encode(self) -> bytes:
        """Return the whole entry, unstamped."""
        magic = _COMMANDS_MAGIC if self.keeps_results else _MAGIC
        body = _BODY.pack(
            magic, self.producer_id, self.epoch, self.first_sequence, self.count, self.crc
        )
        return encode_entry(body, channel=SYSTEM_CHANNEL)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> "SessionEntry | None":
        """Read the body of an entry of the system channel; None: it is something else."""
        if len(body) != _BODY.size:
            return None
        magic, producer_id, epoch, first_sequence, count, crc = _BODY.unpack(body)
        if magic not in (_MAGIC, _COMMANDS_MAGIC):
            return None
        keeps_results = magic == _COMMANDS_MAGIC
        return cls(producer_id, epoch, first_sequence, count, crc, keeps_results)


def crc_of(body_crcs: Iterable[int]) -> int:
    """Return the CRC that a session entry states, of the CRCs of the bodies behind it."""
    crcs = list(body_crcs)
    return crc32(struct.pack(f">{len(crcs)}I", *crcs))


def encode_session_block(
    producer_id: int,
    first_sequence: int,
    bodies: Sequence[Buffer],
    *,
    epoch: int = 0,
    keeps_results: bool = False,
) -> bytes:
    """Return the unstamped entries of `bodies` behind the session entry that fits them."""
    crcs = [crc32(body) for body in bodies]
    entry = SessionEntry(
        producer_id, epoch, first_sequence, len(bodies), crc_of(crcs), keeps_results
    )
    return entry.encode() + encode_checked(zip(bodies, crcs, strict=True))


def session_of(block: Block) -> SessionEntry | None:
    """Return the session entry with which a proposed block begins; None if it begins with none.

    Raises `UnexpectedArgumentError` if it does not fit the block.
    """
    table = headers(block)
    if int(table["channel"][0]) != SYSTEM_CHANNEL:
        return None
    first = int(block.sizes[0])
    entry = SessionEntry.decode(block.data[HEADER_SIZE:first])
    if entry is None or block.count < 2:
        raise UnexpectedArgumentError("the first entry of the block is no session entry")
    crc = crc32(np.ascontiguousarray(table["body_crc"][1:]).tobytes())
    if (entry.count, entry.crc) != (block.count - 1, crc):
        raise UnexpectedArgumentError("the session entry does not fit the entries behind it")
    return entry


def sessions_in(block: Block, first_index: int) -> list[tuple[int, SessionEntry]]:
    """Return (index, session entry) of each in a block that begins at first_index in the log."""
    ordinals = np.flatnonzero(headers(block)["channel"] == SYSTEM_CHANNEL).tolist()
    found = []
    for ordinal in ordinals:
        begin = int(block.offsets[ordinal])
        body = block.data[begin + HEADER_SIZE : begin + int(block.sizes[ordinal])]
        entry = SessionEntry.decode(body)
        if entry is not None:
            found.append((first_index + ordinal, entry))
    return found


class StoredBlock(msgspec.Struct, frozen=True, array_like=True):
    """A block of a producer; its session entry is at `index`."""

    first_sequence: int
    count: int
    crc: int
    index: int

    @property
    def last_index(self) -> int:
        """Index of its last entry."""
        return self.index + self.count


class Session(msgspec.Struct, frozen=True, array_like=True):
    """One producer: its epoch, the sequence it must go on with, and its newest blocks."""

    epoch: int
    next_sequence: int
    blocks: tuple[StoredBlock, ...] = ()

    def block_at(self, first_sequence: int) -> StoredBlock | None:
        """Return the block that begins with a sequence, if it is remembered."""
        found = (block for block in self.blocks if block.first_sequence == first_sequence)
        return next(found, None)


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    as_of: int
    sessions: list[tuple[int, Session]]


@dataclass(slots=True)
class SessionTable:
    """All sessions as the entries up to `as_of` have them, the one that slept longest first."""

    as_of: int = -1
    sessions: dict[int, Session] = field(default_factory=dict)

    def apply(self, index: int, entry: SessionEntry) -> None:
        """Take a session entry; one that is not after `as_of` is known already."""
        if index <= self.as_of:
            return
        before = self.sessions.get(entry.producer_id)
        block = StoredBlock(entry.first_sequence, entry.count, entry.crc, index)
        following = entry.first_sequence + entry.count
        if before is None or entry.epoch > before.epoch:
            session = Session(entry.epoch, following, (block,))
        elif entry.epoch == before.epoch and entry.first_sequence == before.next_sequence:
            blocks = (*before.blocks, block)[-BLOCKS_REMEMBERED:]
            session = Session(entry.epoch, following, blocks)
        else:
            return  # no leader appends such a block
        self.sessions.pop(entry.producer_id, None)
        self.sessions[entry.producer_id] = session
        while len(self.sessions) > SESSIONS_MAX:
            del self.sessions[next(iter(self.sessions))]

    def copy(self) -> "SessionTable":
        """Return an independent copy."""
        return SessionTable(self.as_of, dict(self.sessions))

    def encode(self) -> bytes:
        """Return it as bytes."""
        return msgspec.msgpack.encode(_Saved(self.as_of, list(self.sessions.items())))

    @classmethod
    def decode(cls, raw: bytes | memoryview) -> "SessionTable":
        """Read what `encode` returned. Raises `UnexpectedArgumentError`."""
        try:
            saved = msgspec.msgpack.decode(raw, type=_Saved)
        except msgspec.MsgspecError as error:
            raise UnexpectedArgumentError(f"no table of producer sessions: {error}") from error
        return cls(saved.as_of, dict(saved.sessions))
