"""Reading data files entry by entry, checking all that can be checked."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from isal.isal_zlib import crc32

from quorumlog.model.block import HEADER_SIZE
from quorumlog.model.codes import Magic
from quorumlog.storage.file_sequence import FileSequence

_HEADER = struct.Struct(">iiqqqIIIi")
_CHAIN = struct.Struct(">iqqIiI")
_KNOWN = frozenset((Magic.NORMAL, Magic.NOOP, Magic.CONFIG_CHANGE))
BLANK_SIZE_MIN = 8
SECTOR = 512


@dataclass(frozen=True, slots=True)
class Found:
    """One entry as it lies on disk: header fields, where it is, whether its CRCs fit."""

    magic: int
    size: int
    index: int
    term: int
    pos: int
    channel: int
    chain_crc: int
    body_crc: int
    position: int
    checked: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """Why reading ended: nothing more is there (`reason` empty), or what lies there is no entry."""

    position: int
    reason: str
    whole_header: bool = False


class Scanner:
    """Walks entries from a position on, checking everything that can be checked.

    `index`, `term` and `chain_crc` are those of the entry before; index None: any may come first.
    """

    def __init__(
        self,
        sequence: FileSequence,
        position: int,
        *,
        index: int | None = None,
        term: int = -1,
        chain_crc: int = 0,
    ) -> None:
        self._sequence = sequence
        self.position = position
        self.index = index
        self.term = term
        self.chain_crc = chain_crc
        self.stop: Stop | None = None

    def __iter__(self) -> Iterator[Found]:
        starts = self._sequence.starts
        for start in starts:
            if start + self._sequence.file_size <= self.position:
                continue
            _, view = self._sequence.map_at(start)
            self.position = max(self.position, start)
            while self.stop is None and self.position < start + len(view):
                found = self._next(view, self.position - start)
                if found is not None:
                    yield found
            if self.stop is not None:
                break
            self.position = start + self._sequence.file_size
        if self.stop is None:
            self.stop = Stop(self.position, "")
        elif not self.stop.reason and self._later_file(starts):
            # an empty rest with more files behind it is only legal if those are empty too
            self.stop = Stop(self.stop.position, "nothing here although later files have entries")

    def _later_file(self, starts: list[int]) -> bool:
        if self.stop is None:
            return False
        for start in starts:
            if start > self.stop.position:
                _, view = self._sequence.map_at(start)
                if any(view[:BLANK_SIZE_MIN]):
                    return True
        return False

    def _end(self, reason: str, *, whole_header: bool = False) -> None:
        self.stop = Stop(self.position, reason, whole_header)

    def _next(self, view: memoryview, offset: int) -> Found | None:
        """Return the entry at an offset of a file; None after a blank or at the end."""
        left = self._sequence.file_size - offset
        if len(view) - offset < BLANK_SIZE_MIN:
            self._end("" if not any(view[offset:]) else "the file ends inside a header")
            return None
        magic, size = struct.unpack_from(">ii", view, offset)
        if magic == 0 and size == 0:
            self._end("" if not any(view[offset : offset + HEADER_SIZE]) else "no magic")
            return None
        if magic == Magic.BLANK:
            if not BLANK_SIZE_MIN <= size <= left:
                self._end(f"a blank record of {size} bytes with {left} left")
                return None
            self.position += size
            return None
        if magic not in _KNOWN or size < HEADER_SIZE or size > left - BLANK_SIZE_MIN:
            self._end(f"magic {magic}, size {size} is no entry")
            return None
        if offset + size > len(view):
            self._end("the file ends inside an entry")
            return None
        return self._entry(view, offset, size)

    def _entry(self, view: memoryview, offset: int, size: int) -> Found | None:
        magic, _, index, term, pos, channel, chain_crc, body_crc, body_size = _HEADER.unpack_from(
            view, offset
        )
        if body_size != size - HEADER_SIZE:
            self._end(f"body size {body_size} in an entry of {size} bytes")
            return None
        if self.index is not None and index != self.index + 1:
            self._end(f"index {index} after index {self.index}")
            return None
        if term < self.term or index < 0:
            self._end(f"term {term} after term {self.term}")
            return None
        checked = bool(chain_crc or body_crc)
        if not checked and self.chain_crc:
            self._end("an entry without CRCs behind one with CRCs")
            return None
        if checked:
            identity = _CHAIN.pack(magic, index, term, channel, body_size, body_crc)
            expected = crc32(identity, self.chain_crc)
            unknown_before = self.index is None and index > 0
            if chain_crc != expected and not unknown_before:
                self._end("the chain CRC does not fit", whole_header=True)
                return None
            if crc32(view[offset + HEADER_SIZE : offset + size]) != body_crc:
                self._end("the body CRC does not fit", whole_header=True)
                return None
        found = Found(
            magic,
            size,
            index,
            term,
            pos,
            channel,
            chain_crc,
            body_crc,
            self.position,
            checked,
        )
        self.position += size
        self.index, self.term, self.chain_crc = index, term, chain_crc
        return found


def looks_torn(view: memoryview, offset: int, size: int) -> bool:
    """Whether an unchecked last entry ends in zeros from a sector boundary on.

    The original writes no CRC; its files are filled with zeros beforehand, so what a crash kept
    from being written reads as zeros up to the end of the entry.
    """
    last_boundary = (offset + size - 1) // SECTOR * SECTOR
    begin = max(last_boundary, offset + HEADER_SIZE)
    return begin < offset + size and not any(view[begin : offset + size])
