"""A small value kept in two checksummed copies.

Each write replaces one copy, makes it durable, then the other: a torn write leaves the other copy
whole, and after a finished write a flipped bit in either copy does not bring back an older value.
"""

import struct
from typing import Final

from isal.isal_zlib import crc32

from quorumlog.model.errors import CorruptionError, check
from quorumlog.storage.advice import EMPTYING_IS_SAFE_WHEN
from quorumlog.storage.files import File, FileSystem

SLOT_SIZE: Final = 4_096
_HEADER = struct.Struct(">4sIQI")
_MAGIC: Final = b"QSLT"
_OVERHEAD: Final = _HEADER.size + 4


def _packed(sequence: int, value: bytes, slot_size: int) -> bytes:
    head = _HEADER.pack(_MAGIC, 1, sequence, len(value))
    return (head + value + crc32(head + value).to_bytes(4, "big")).ljust(slot_size, b"\0")


def _unpacked(slot: bytes) -> tuple[int, bytes] | None:
    """Return sequence and value of a slot, or None if it is damaged."""
    if len(slot) < _OVERHEAD:
        return None
    magic, version, sequence, length = _HEADER.unpack_from(slot)
    if magic != _MAGIC or version != 1 or length > len(slot) - _OVERHEAD:
        return None
    end = _HEADER.size + length
    if crc32(slot[:end]) != int.from_bytes(slot[end : end + 4], "big"):
        return None
    return sequence, slot[_HEADER.size : end]


class SlotFile:
    """One value at a path. Not made before the first write."""

    def __init__(
        self, files: FileSystem, directory: str, name: str, *, slot_size: int = SLOT_SIZE
    ) -> None:
        self._slot_size = slot_size
        self.value_bytes_max = slot_size - _OVERHEAD
        self._files = files
        self._directory = directory
        self.path = f"{directory}/{name}"
        self._file: File | None = None
        self._sequence = 0

    def read(self, *, read_only: bool = False) -> bytes | None:
        """Return the value, made durable in both copies, or None if none was ever written.

        With `read_only` nothing is made durable, and nothing may be written later. Raises
        `CorruptionError` when both copies are damaged.
        """
        if not self._files.exists(self.path):
            return None
        self._file = self._files.open(self.path, writable=not read_only)
        found: dict[int, tuple[int, bytes]] = {}
        for offset in (0, self._slot_size):
            slot = _unpacked(self._file.read_at(self._slot_size, offset))
            if slot is not None:
                found[offset] = slot
        if not found:
            raise CorruptionError(
                f"{self.path}: both copies are damaged; what this replica promised is not known; "
                f"restore it. {EMPTYING_IS_SAFE_WHEN}",
                self.path,
                0,
            )
        newest = max(found, key=lambda offset: found[offset][0])
        self._sequence, value = found[newest]
        if read_only:
            return value
        # what was read may be in the page cache only, or in one copy: it is relied on from now on
        for offset in (self._slot_size - newest, newest):
            self._file.write_at([_packed(self._sequence, value, self._slot_size)], offset)
            self._file.sync()
        return value

    def good_copies(self) -> int | None:
        """Return how many of the two copies are whole; None if there is no file."""
        if not self._files.exists(self.path):
            return None
        file = self._files.open(self.path, writable=False)
        try:
            size = self._slot_size
            copies = [_unpacked(file.read_at(size, place)) for place in (0, size)]
        finally:
            file.close()
        return sum(copy is not None for copy in copies)

    def write(self, value: bytes) -> None:
        """Replace the value durably."""
        check(len(value) <= self.value_bytes_max, "a slot holds it", len(value))
        self._sequence += 1
        slot = _packed(self._sequence, value, self._slot_size)
        if self._file is None:
            self._create(slot)
            return
        for offset in (0, self._slot_size):
            self._file.write_at([slot], offset)
            self._file.sync()

    def _create(self, slot: bytes) -> None:
        """Write a new file beside, then give it its name: it is never seen half made."""
        beside = f"{self.path}.new"
        self._file = self._files.open(beside, create=True)
        self._file.write_at([slot, slot], 0)
        self._file.sync()
        self._files.replace(beside, self.path)
        self._files.sync_directory(self._directory)
        self._file.path = self.path

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()
            self._file = None
