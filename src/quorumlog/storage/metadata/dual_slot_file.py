"""A small value kept in several checksummed copies.

Each write replaces one copy, makes it durable, then the others: after a torn write another copy is
whole, and after a finished write a flipped bit in any copy does not bring back an older value.
Two copies are slots of one file; a mirrored value has a third in a file of its own, so that a file
that is lost as a whole costs nothing. That one is written first, and then both slots with one
fsync: term and vote of a thousand groups are written while they elect their leaders.
"""

import logging
import struct
from collections.abc import Callable
from functools import partial
from typing import Final

from isal.isal_zlib import crc32

from quorumlog.model.errors import CorruptionError, NoSpaceError, check
from quorumlog.storage.files.os_files import FileSystem
from quorumlog.storage.files.reserve import Reserve
from quorumlog.storage.metadata.advice import EMPTYING_IS_SAFE_WHEN

logger = logging.getLogger(__name__)

SLOT_SIZE: Final = 4_096
COPY: Final = ".copy"
_HEADER = struct.Struct(">4sIQI")
_MAGIC: Final = b"QSLT"
_OVERHEAD: Final = _HEADER.size + 4
_Slot = tuple[int, bytes]


def _packed(sequence: int, value: bytes, slot_size: int) -> bytes:
    head = _HEADER.pack(_MAGIC, 1, sequence, len(value))
    return (head + value + crc32(head + value).to_bytes(4, "big")).ljust(slot_size, b"\0")


def _unpacked(slot: bytes) -> _Slot | None:
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


def restore(path: str, write: Callable[[], None]) -> bool:
    """Write a damaged copy of a file again; False: the disk is full, and it stays as it is.

    The whole copy says all that is needed, so opening goes on even if the other cannot be written.
    """
    try:
        write()
    except NoSpaceError as error:
        logger.warning("%s is restored from its other copy once there is room: %s", path, error)
        return False
    return True


class _DualSlots:
    """One file with a number of slots; the first write makes it.

    It is open only while it is read or written: a node has several of them for each group.
    """

    def __init__(self, files: FileSystem, path: str, slot_size: int, count: int) -> None:
        self._files = files
        self.path = path
        self._size = slot_size
        self._offsets = [slot_size * number for number in range(count)]

    def exists(self) -> bool:
        return self._files.exists(self.path)

    def read(self) -> list[_Slot | None]:
        """Return what is in each slot; empty if there is no file."""
        if not self.exists():
            return []
        if self._files.obstacle(self.path):
            return [None] * len(self._offsets)
        file = self._files.open(self.path, writable=False)
        try:
            return [_unpacked(file.read_at(self._size, offset)) for offset in self._offsets]
        finally:
            file.close()

    def write(self, slot: bytes, *, first: int = 0, at_once: bool = False) -> None:
        """Replace all slots, that with the number `first` as the first one.

        `at_once`: with one fsync, as another file holds the same, durably.
        """
        if not self.exists():
            self._create(slot)
            return
        file = self._files.open(self.path)
        try:
            if at_once:
                file.write_at([slot] * len(self._offsets), 0)
                file.sync()
                return
            for offset in self._offsets[first:] + self._offsets[:first]:
                file.write_at([slot], offset)
                file.sync()
        finally:
            file.close()

    def _create(self, slot: bytes) -> None:
        """Write a new file under another name, then rename it: nobody ever sees it half made."""
        beside = f"{self.path}.new"
        file = self._files.open(beside, create=True)
        try:
            file.write_at([slot] * len(self._offsets), 0)
            file.sync()
        except NoSpaceError:
            self._files.remove(beside)
            raise
        finally:
            file.close()
        self._files.replace(beside, self.path)
        self._files.sync_directory(self.path.rpartition("/")[0])

    def sync(self) -> None:
        """Make what is there durable as it is."""
        if self.exists():
            file = self._files.open(self.path)
            try:
                file.sync()
            finally:
                file.close()


class DualSlotFile:
    """One value at a path; the first write makes its files. `is_lost`: `read_or_lose` lost it."""

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        name: str,
        *,
        slot_size: int = SLOT_SIZE,
        mirrored: bool = False,
    ) -> None:
        self._slot_size = slot_size
        self.value_bytes_max = slot_size - _OVERHEAD
        self.path = f"{directory}/{name}"
        self._pair = _DualSlots(files, self.path, slot_size, 2)
        self._mirrors = [_DualSlots(files, self.path + COPY, slot_size, 1)] if mirrored else []
        self._reserve = Reserve(files, directory)
        self._sequence = 0
        self.is_lost = False

    def exists(self) -> bool:
        """Whether one of its files exists, readable or not."""
        return self._pair.exists() or any(mirror.exists() for mirror in self._mirrors)

    def read(self, *, read_only: bool = False) -> bytes | None:
        """Return the value, made durable in all copies, or None if none was ever written.

        With `read_only` nothing is made durable, and nothing may be written later. Raises
        `CorruptionError` when all copies are damaged.
        """
        if not self.exists():
            return None
        pair, copies = self._pair.read(), [slot for one in self._mirrors for slot in one.read()]
        found = [slot for slot in (*pair, *copies) if slot is not None]
        if not found:
            raise CorruptionError(
                f"{self.path}: all its copies are damaged; what this replica promised is not "
                f"known; restore it. {EMPTYING_IS_SAFE_WHEN}",
                self.path,
                0,
            )
        self._sequence, value = max(found)
        if read_only:
            return value
        if not pair or None in (*pair, *copies):
            logger.warning("%s was damaged; it is restored from another copy of it", self.path)
        self._equalize_copies(pair, value)
        return value

    def _equalize_copies(self, pair: list[_Slot | None], value: bytes) -> None:
        """Make all copies what was read, durably: it is relied on from now on.

        It may be in the page cache only, or in one copy. That one is written as the last.
        """
        slot = _packed(self._sequence, value, self._slot_size)
        newest = [number for number, one in enumerate(pair) if one and one[0] == self._sequence]
        last = [self._pair, *self._mirrors] if not newest else [*self._mirrors, self._pair]
        for one in last:
            first = 1 if one is self._pair and newest[:1] == [0] else 0
            if not restore(one.path, partial(self._write_one, one, slot, first)):
                one.sync()  # which needs no room

    def read_or_lose(self, *, read_only: bool = False) -> bytes | None:
        """Return the value like `read`; None, and `is_lost`, when all copies are damaged."""
        try:
            return self.read(read_only=read_only)
        except CorruptionError:
            self.is_lost = True
            return None

    def copies(self) -> tuple[int, int] | None:
        """Return how many copies are whole, and how many there should be; None: none are there.

        Files of earlier versions have no mirror: it is made when the group is opened.
        """
        if not self.exists():
            return None
        mirrors = [slot for one in self._mirrors for slot in one.read()]
        slots = [*(self._pair.read() or [None, None]), *mirrors]
        return sum(slot is not None for slot in slots), len(slots)

    def write(self, value: bytes) -> None:
        """Replace the value durably. Raises `NoSpaceError` when not even the reserve is left."""
        check(len(value) <= self.value_bytes_max, "a slot holds it", len(value))
        self._sequence += 1
        slot = _packed(self._sequence, value, self._slot_size)
        if self._mirrors and self._pair.exists():
            for mirror in self._mirrors:
                self._write_one(mirror, slot)
            self._write_one(self._pair, slot, at_once=True)
        else:  # a mirror may be the only copy
            for one in (self._pair, *self._mirrors):
                self._write_one(one, slot)
        self.is_lost = False

    def _write_one(
        self, one: _DualSlots, slot: bytes, first: int = 0, *, at_once: bool = False
    ) -> None:
        self._reserve.use(partial(one.write, slot, first=first, at_once=at_once))
