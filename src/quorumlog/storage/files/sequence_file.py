"""One file of a sequence: made at its full size under another name, then renamed and written."""

from collections.abc import Callable, Sequence
from threading import Lock

from quorumlog.model.errors import StorageError, check
from quorumlog.storage.files.os_files import File, FileSystem, move_aside

NAME_DIGITS = 20
BESIDE = ".new"
ZERO_BYTES = 1024 * 1024


def name_of(start: int) -> str:
    """Return the name of the file that starts at a position (spec 20 section 3)."""
    return f"{start:0{NAME_DIGITS}d}"


def is_name(name: str) -> bool:
    """Whether a name is that of a file of a sequence."""
    return len(name) == NAME_DIGITS and name.isdecimal()


def sync_made(files: "Sequence[SequenceFile]") -> None:
    """Make what was written to files durable; those that were never made hold nothing."""
    for file in files:
        if file.is_made:
            file.writable().sync()


class SequenceFile:
    """A file that holds positions start … end - 1.

    `prepare` may be called on any thread, the other writing methods on the disk thread only.
    `predecessor` has the same positions and is to be removed, by a plan that may still be waiting.
    `ignored_path` is the path of something that has the file's name but does not belong to the
    log; it is renamed before the file is made. `opened` is called with each file that was opened
    to be written.
    """

    def __init__(  # noqa: PLR0913
        self,
        files: FileSystem,
        directory: str,
        start: int,
        size: int,
        *,
        is_made: bool = False,
        predecessor: "SequenceFile | None" = None,
        ignored_path: str | None = None,
        opened: "Callable[[SequenceFile], None]" = lambda file: None,
    ) -> None:
        self._files = files
        self._directory = directory
        self.start = start
        self.size = size
        self.path = f"{directory}/{name_of(start)}"
        self.is_made = is_made
        self.is_removed = False
        self._predecessor = predecessor
        self._ignored_path = ignored_path
        self._making = Lock()
        self._opened = opened
        self._file: File | None = None

    @property
    def end(self) -> int:
        """Position after its last byte."""
        return self.start + self.size

    @property
    def is_open(self) -> bool:
        """Whether it is open to be written."""
        return self._file is not None

    def prepare(self) -> None:
        """Make the file, zero-filled and with all its room reserved, unless it is there.

        It is not made while its predecessor exists. Raises `NoSpaceError` when the disk is full,
        and leaves nothing half made.
        """
        with self._making:
            if self._predecessor is not None and not self._predecessor.is_removed:
                return
            self._predecessor = None
            if not self.is_made and not self.is_removed:
                self._make()
                self.is_made = True

    def _make(self) -> None:
        """Write it under another name first: it is never seen at another size (etcd #6368)."""
        beside = self.path + BESIDE
        for path in {self._ignored_path or self.path, self.path}:
            if self._files.exists(path) or self._files.obstacle(path):
                move_aside(self._files, path)
        file = self._files.open(beside, create=True)
        try:
            file.resize(0)
            file.resize(self.size)
            file.sync()
        except StorageError:
            file.close()
            self._files.remove(beside)
            raise
        file.close()
        self._files.replace(beside, self.path)
        self._files.sync_directory(self._directory)

    def writable(self) -> File:
        """Return the open file, made if need be."""
        if self._file is None:
            self.prepare()
            check(self.is_made, "a file is written once it may be made", self.path)
            self._file = self._files.open(self.path)
            self._opened(self)
        return self._file

    def cut(self, position: int) -> None:
        """Zero everything from a position on; durable. Only while nobody has the file mapped."""
        file = self.writable()
        file.resize(position - self.start)
        file.resize(self.size)
        file.sync()

    def zero(self, position: int, until: int) -> None:
        """Zero from a position of the sequence on up to another or the file's end; durable.

        This happens in place: a file that readers have mapped must never shrink, even briefly.
        """
        file = self.writable()
        offset, end = position - self.start, min(until, self.end) - self.start
        while offset < end:
            length = min(ZERO_BYTES, end - offset)
            file.write_at([bytes(length)], offset)
            offset += length
        file.sync()

    def write_through(self, data: bytes, position: int) -> None:
        """Write at a position of the sequence, durably, outside any group commit."""
        file = self.writable()
        file.write_at([data], position - self.start)
        file.sync()

    def read(self, length: int, position: int) -> bytes:
        """Return bytes of the disk, not of the page cache."""
        file = self._files.open(self.path, writable=False)
        try:
            file.drop_cache(position - self.start, length)
            return file.read_at(length, position - self.start)
        finally:
            file.close()

    def reload_from_disk(self) -> None:
        """Make reads return what the disk holds.

        After a failed fsync the page cache may show bytes that never reached the disk
        (RELIABILITY 2.2).
        """
        opened = self._files.open(self.path, writable=False)
        try:
            opened.sync()
            opened.drop_cache()
        finally:
            opened.close()

    def remove(self) -> None:
        """Remove the file from disk, durably."""
        with self._making:
            self.close()
            if self.is_made:
                self._files.remove(self.path)
                self._files.sync_directory(self._directory)
            self.is_removed = True

    def sync_and_close(self) -> None:
        """Close the file, durable: one that is opened later may not learn of a failed write."""
        if self._file is not None:
            self._file.sync()
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
