"""One entry of the log, as a reader sees it."""

import msgspec

from quorumlog.model.codes import Magic

SYSTEM_CHANNEL = 0xFFFF_FFFF
"""Entries on this channel are bookkeeping; readers skip them unless asked."""


class Entry(msgspec.Struct, frozen=True):
    """An entry with everything its header says.

    `pos` is the byte offset in the leader's data files; `body_crc` and `chain_crc` are both 0 in
    entries written by DLedger, which computes neither.
    """

    index: int
    term: int
    pos: int
    body: bytes
    magic: int = Magic.NORMAL
    channel: int = 0
    chain_crc: int = 0
    body_crc: int = 0

    @property
    def is_data(self) -> bool:
        """Whether a user appended it (not a NOOP, membership change or bookkeeping entry)."""
        return self.magic == Magic.NORMAL and self.channel != SYSTEM_CHANNEL
