"""The files of a journal: made at full size, then written from the front, again and again."""

import re
from contextlib import suppress
from typing import Final

import msgspec

from quorumlog.model.errors import StorageError
from quorumlog.storage.files.os_files import File, FileSystem
from quorumlog.storage.files.sequence_file import ZERO_BYTES
from quorumlog.storage.journal.records import SegmentHeader, packed_header
from quorumlog.storage.metadata.dual_slot_file import COPY, DualSlotFile

NAME_START = "segment."
BESIDE = ".new"
LIST_NAME = "list"
_NAMES = re.compile(
    rf"(?:{re.escape(NAME_START)}\d+|{LIST_NAME}(?:{re.escape(COPY)})?)(?:{re.escape(BESIDE)})?"
)


def is_journal_file(name: str) -> bool:
    """Whether a name is that of a segment, of the list of them, or of one that is half made."""
    return _NAMES.fullmatch(name) is not None


class Segment(msgspec.Struct, eq=False):
    """A segment that can be written. `offset` is where its next record goes, 0 in a new use.

    `covers` are the paths of the files that its records were written to, each once.
    """

    file: File
    offset: int = 0
    covers: dict[str, None] = {}


class SegmentList(msgspec.Struct, frozen=True, array_like=True):
    """Which segments a journal has: its number, how many of which size.

    It is durable before the newest of them is used: one that is missing later was lost.
    """

    journal: int
    count: int
    segment_bytes: int

    def paths(self, directory: str) -> list[str]:
        """Return the paths of the segments."""
        return [f"{directory}/{NAME_START}{number}" for number in range(self.count)]


_LISTS: Final = msgspec.msgpack.Decoder(SegmentList)


def load_list(files: FileSystem, directory: str) -> SegmentList | None:
    """Return which segments a journal has; None: there is no journal.

    Raises `CorruptionError` if all copies of the list are damaged.
    """
    slots = DualSlotFile(files, directory, LIST_NAME, mirrored=True)
    raw = slots.read(read_only=True)
    return None if raw is None else _LISTS.decode(raw)


def remove_segments(files: FileSystem, directory: str) -> None:
    """Remove all segments, also half made ones, and the list of them, durably; nothing else."""
    names = [name for name in files.names(directory) if is_journal_file(name)]
    for name in names:
        files.remove(f"{directory}/{name}")
    if names:
        files.sync_directory(directory)


class SegmentMaker:
    """Makes the last of the segments in `made` in small steps, beside the disk thread.

    It is written with zeros once, so that later no fsync of it has to change where its bytes lie.
    Its header says from the start which journal it belongs to.
    """

    def __init__(self, files: FileSystem, directory: str, made: SegmentList) -> None:
        self._files = files
        self._directory = directory
        self.path = made.paths(directory)[-1]
        self._list = made
        self._size = made.segment_bytes
        self._header = packed_header(SegmentHeader(made.journal, 0))
        self._written = 0
        self._file: File | None = None

    def step(self) -> Segment | None:
        """Do a little; return the segment once it is whole.

        Raises `StorageError`, such as when the disk is full; then call `abandon`.
        """
        beside = self.path + BESIDE
        if self._file is None:
            self._file = self._files.open(beside, create=True)
        if self._written < self._size:
            length = min(ZERO_BYTES, self._size - self._written)
            self._file.write_at([bytes(length)], self._written)
            self._written += length
            return None
        self._file.write_at([self._header], 0)
        self._file.sync()
        self._file.close()
        self._files.replace(beside, self.path)
        self._files.sync_directory(self._directory)
        slots = DualSlotFile(self._files, self._directory, LIST_NAME, mirrored=True)
        slots.read()
        slots.write(msgspec.msgpack.encode(self._list))
        return Segment(self._files.open(self.path), covers={})

    def abandon(self) -> None:
        """Remove what was made so far, if it can be removed; the next start tries again."""
        with suppress(StorageError):
            if self._file is not None and self._file.is_open:
                self._file.close()
            self._files.remove(self.path + BESIDE)


def sync_path(files: FileSystem, path: str) -> None:
    """Make what was written to a file durable, over a descriptor of its own.

    Each descriptor learns of a failed write by itself: the one that wrote does so, too. A file
    that was removed needs nothing.
    """
    if not files.exists(path):
        return
    try:
        file = files.open(path, writable=False)
    except StorageError:
        if files.exists(path):
            raise
        return
    try:
        file.sync()
    finally:
        file.close()
