"""The files of an audit log: the newest one, and those before it.

quorumlog.audit.log      lines are added here
quorumlog.audit.log.1    the file before it
quorumlog.audit.log.2    and so on; the oldest is removed when there are too many

They are in the node's own directory, for its owner alone.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from quorumlog.model.config import AUDIT_LOG_NAME
from quorumlog.model.errors import StorageError
from quorumlog.storage.files.os_files import File, FileSystem

_BEFORE: Final = re.compile(rf"{re.escape(AUDIT_LOG_NAME)}\.([0-9]{{1,9}})")


def earlier_files(files: FileSystem, directory: str) -> dict[int, str]:
    """Return number → path of the files before the newest one; 1 is the one just before it."""
    found = [match for name in files.names(directory) if (match := _BEFORE.fullmatch(name))]
    return {int(match[1]): f"{directory}/{match[0]}" for match in found}


class AuditFiles:
    """Adds lines. Every call may raise `StorageError`; `let_go` then, and add all that is unsynced.

    `bytes_max`: of one file. `files_max`: files that are kept, the newest one included.
    """

    def __init__(
        self, files: FileSystem, directory: str, *, bytes_max: int, files_max: int
    ) -> None:
        self._files = files
        self._directory = directory
        self._path = f"{directory}/{AUDIT_LOG_NAME}"
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._file: File | None = None
        self._end = 0
        self._durable_end: int | None = None
        """Up to where the newest file is known to be durable; None: that is whatever it has."""

    def add(self, lines: Sequence[bytes]) -> None:
        """Add lines, each with its end; `sync` makes them durable."""
        size = sum(map(len, lines))
        file = self._opened()
        if self._end and self._end + size > self._bytes_max:
            self._begin_next(file)
            file = self._opened()
        file.write_at(lines, self._end)
        self._end += size

    def sync(self) -> None:
        """Make durable what was added."""
        if self._file is not None:
            self._file.sync()
            self._durable_end = self._end

    def let_go(self) -> None:
        """Close the file. What was added since the last `sync` counts as not added."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(StorageError):  # why it is closed is known already
                file.close()

    def _opened(self) -> File:
        if self._file is None:
            file = self._files.open(self._path, create=True)
            try:
                self._end = size = file.size()
                if self._durable_end is not None:  # the same bytes are written there once more
                    self._end = min(size, self._durable_end)
                elif size and file.read_at(1, size - 1) != b"\n":  # a crash cut its last line
                    file.write_at([b"\n"], size)
                    self._end += 1
                self._durable_end = self._end
                self._files.sync_directory(self._directory)
            except StorageError:
                with suppress(StorageError):
                    file.close()
                raise
            self._file = file
        return self._file

    def _begin_next(self, file: File) -> None:
        """Give the newest file the number 1, and those before it the next one each."""
        file.sync()
        self._durable_end = self._end
        before = earlier_files(self._files, self._directory)
        for number in sorted(before, reverse=True):
            if number + 1 >= self._files_max:
                self._files.remove(before[number])
            else:
                self._files.replace(before[number], f"{self._path}.{number + 1}")
        if self._files_max > 1:
            self._files.replace(self._path, f"{self._path}.1")
        else:
            self._files.remove(self._path)
        self._durable_end = None
        self.let_go()
