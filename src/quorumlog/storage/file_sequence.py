"""A logical sequence of bytes spread over files of one size, named by their start (spec 20 §3)."""

from collections import OrderedDict
from itertools import pairwise
from threading import Lock

from quorumlog.model.errors import CorruptionError, StorageError, check
from quorumlog.storage.advice import EMPTYING_IS_SAFE_WHEN
from quorumlog.storage.files import File, FileSystem

NAME_DIGITS = 20
ZERO_BYTES = 1024 * 1024
MAPS_MAX = 64
"""Files of one sequence mapped for reading at a time; the least recently used is let go."""


class SequenceFile:
    """One file of the sequence; made at full size when first written."""

    def __init__(self, files: FileSystem, directory: str, start: int, size: int) -> None:
        self._files = files
        self._directory = directory
        self.start = start
        self.size = size
        self.path = f"{directory}/{start:0{NAME_DIGITS}d}"
        self._file: File | None = None

    @property
    def end(self) -> int:
        """Position behind its last byte."""
        return self.start + self.size

    def writable(self) -> File:
        """Return the open file, made and reserved on disk if it is new; on the disk thread."""
        if self._file is None:
            new = not self._files.exists(self.path)
            self._file = self._files.open(self.path, create=True)
            if self._file.size() != self.size:
                self._file.resize(self.size)
                self._file.sync()
            if new:
                self._files.sync_directory(self._directory)
        return self._file

    def cut(self, position: int) -> None:
        """Zero everything from a position on; durable. Only while nobody has the file mapped."""
        file = self.writable()
        file.resize(position - self.start)
        file.resize(self.size)
        file.sync()

    def zero(self, position: int, until: int) -> None:
        """Zero from a position of the sequence on up to another or the file's end; durable.

        In place: a file that is mapped by readers must never shrink, not even for a moment.
        """
        file = self.writable()
        offset, end = position - self.start, min(until, self.end) - self.start
        while offset < end:
            length = min(ZERO_BYTES, end - offset)
            file.write_at([bytes(length)], offset)
            offset += length
        file.sync()

    def remove(self) -> None:
        """Remove the file from disk, durably."""
        self.close()
        self._files.remove(self.path)
        self._files.sync_directory(self._directory)

    def close(self) -> None:
        """Give the open file back."""
        if self._file is not None:
            self._file.close()
            self._file = None


class FileSequence:
    """The files in order. Looked up from any thread, changed on the owner's thread."""

    def __init__(self, files: FileSystem, directory: str, file_size: int) -> None:
        self._files = files
        self.directory = directory
        self.file_size = file_size
        self._by_start: dict[int, SequenceFile] = {}
        self._maps: OrderedDict[int, memoryview] = OrderedDict()
        self._maps_lock = Lock()

    @property
    def starts(self) -> list[int]:
        """Start positions, ascending."""
        return sorted(self._by_start)

    def __len__(self) -> int:
        return len(self._by_start)

    def load(self) -> None:
        """Take in the files that exist.

        Raises `StorageError` for a strange name, `CorruptionError` for a gap between files or a
        file of another size (the last one may have been cut short by a crash).
        """
        for name in self._files.names(self.directory):
            if not (name.isdecimal() and len(name) == NAME_DIGITS):
                raise StorageError(
                    f"{self.directory}/{name} is no data or index file (20 digits); move it away"
                )
            self.file_starting(int(name))
        starts = self.starts
        for before, start in pairwise(starts):
            if start - before != self.file_size:
                raise CorruptionError(
                    f"{self.directory}: no file between {before:020d} and {start:020d}, files have "
                    f"{self.file_size} bytes; restore it. {EMPTYING_IS_SAFE_WHEN}",
                    f"{self.directory}/{start:020d}",
                    0,
                )
        for start in starts:
            path = self._by_start[start].path
            size = _size_of(self._files, path)
            if size > self.file_size or (size < self.file_size and start != starts[-1]):
                raise CorruptionError(
                    f"{path} has {size} bytes instead of {self.file_size}; restore it. "
                    f"{EMPTYING_IS_SAFE_WHEN}",
                    path,
                    min(size, self.file_size),
                )

    def file_starting(self, start: int) -> SequenceFile:
        """Return the file with this start, taken into the sequence if it is new."""
        if start not in self._by_start:
            changed = dict(self._by_start)
            changed[start] = SequenceFile(self._files, self.directory, start, self.file_size)
            self._by_start = changed
        return self._by_start[start]

    def start_of(self, position: int) -> int:
        """Return the start of the file that holds a position."""
        if not self._by_start:
            return position - position % self.file_size
        first = next(iter(self._by_start))
        return first + (position - first) // self.file_size * self.file_size

    def file_at(self, position: int) -> SequenceFile:
        """Return the file that holds a position, taken into the sequence if it is new."""
        return self.file_starting(self.start_of(position))

    def map_at(self, position: int) -> tuple[int, memoryview]:
        """Return start and read-only bytes of the file that holds a position.

        Raises `StorageError` when there is no such file.
        """
        start = self.start_of(position)
        with self._maps_lock:
            view = self._maps.get(start)
            if view is not None:
                self._maps.move_to_end(start)
                return start, view
            known = self._by_start.get(start)
            if known is None:
                raise StorageError(f"{self.directory}: no file holds position {position}")
            file = self._files.open(known.path, writable=False)
            try:
                view = file.map()
            finally:
                file.close()
            if len(view) == self.file_size:
                self._maps[start] = view
                if len(self._maps) > MAPS_MAX:
                    self._maps.popitem(last=False)
            return start, view

    def files_over(self, first: int, last: int) -> list[SequenceFile]:
        """Return the files that hold positions first … last."""
        return [
            file
            for start, file in self._by_start.items()
            if start <= last and first < start + self.file_size
        ]

    def forget_maps(self, removed: list[SequenceFile]) -> None:
        """Let go of maps that readers made of files before those were removed; on any thread."""
        with self._maps_lock:
            for file in removed:
                self._maps.pop(file.start, None)

    def settle(self, position: int) -> None:
        """Make what will be read from a position on what the disk holds, not the page cache.

        After a failed fsync the cache may show bytes that never reached the disk (RELIABILITY 2.2).
        """
        for start, file in self._by_start.items():
            if position < start + self.file_size:
                opened = self._files.open(file.path)
                try:
                    opened.sync()
                    opened.drop_cache()
                finally:
                    opened.close()

    def drop_from(self, position: int) -> list[SequenceFile]:
        """Take all files that begin at or behind a position out; return them, last first."""
        dropped = [self._by_start[start] for start in self.starts if start >= position]
        self._by_start = {start: file for start, file in self._by_start.items() if start < position}
        with self._maps_lock:
            for file in dropped:
                self._maps.pop(file.start, None)
        return dropped[::-1]

    def drop_first(self) -> SequenceFile:
        """Take the first file out and return it."""
        check(bool(self._by_start), "there is a first file")
        start = self.starts[0]
        dropped = self._by_start[start]
        self._by_start = {key: file for key, file in self._by_start.items() if key != start}
        return dropped

    def close(self) -> None:
        """Give all files back."""
        with self._maps_lock:
            self._maps.clear()
        for file in self._by_start.values():
            file.close()


def stored_file_size(files: FileSystem, directory: str) -> int | None:
    """Return the size the files of an existing sequence have; None if there are none.

    A crash may have cut the last file short, so the distance of the first two counts.
    """
    names = [name for name in files.names(directory) if name.isdecimal()]
    if not names:
        return None
    if len(names) > 1:
        return int(names[1]) - int(names[0])
    return _size_of(files, f"{directory}/{names[0]}")


def _size_of(files: FileSystem, path: str) -> int:
    file = files.open(path, writable=False)
    try:
        return file.size()
    finally:
        file.close()
