"""Files that pipelines write for others: readable as the user's umask says, and found by name."""

import hashlib
import os
import re
from contextlib import suppress
from types import TracebackType
from typing import Final

from quorumlog.model.block import Buffer
from quorumlog.model.errors import StorageError, UnexpectedArgumentError
from quorumlog.storage.files.os_files import FileSystem, OsFile, OsFileSystem, storage_error

TOKEN_BYTES = 4
"""Chance in a name, so that two attempts at one file never meet."""

_SCHEME: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]+:/")


def local_path(path: str | os.PathLike[str]) -> str:
    """Return an absolute path on this machine. Raises `UnexpectedArgumentError` for a URI."""
    text = os.fspath(path)
    if _SCHEME.match(text):
        raise UnexpectedArgumentError(
            f"{text} is a URI: give the path of a directory that driver and executors see (a local "
            "disk, or NFS); object stores and HDFS are not known"
        )
    return os.path.abspath(text)


class OutputFileSystem(OsFileSystem):
    """The operating system's files; new ones are not for their owner alone, as a store's are."""

    def make_directory(self, path: str) -> None:
        """See `FileSystem`."""
        parent = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(path):
            self.make_directory(parent)
            try:
                os.mkdir(path)
            except OSError as error:
                if not os.path.isdir(path):  # else another process has made it meanwhile
                    raise storage_error(path, "mkdir", error) from error
        self.sync_directory(parent)

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> OsFile:
        """See `FileSystem`."""
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
        try:
            return OsFile(path, os.open(path, flags | (os.O_CREAT if create else 0), 0o666))
        except OSError as error:
            raise storage_error(path, "open", error) from error


class NewFile:
    """A file that gets its name when it is whole and durable; after a crash only `.….tmp` exists.

    It has what Arrow needs to write to it. `size` in bytes; `sha256` of all of them.
    """

    def __init__(self, files: FileSystem, directory: str, name: str) -> None:
        self._files = files
        self._directory = directory
        self._name = name
        self._temporary = f"{directory}/.{name}.tmp"
        self._file = files.open(self._temporary, create=True)
        self._hash = hashlib.sha256()
        self.size = 0
        self.closed = False

    def write(self, data: Buffer) -> int:
        """Write more bytes; once the file is closed, they are dropped."""
        if not self.closed:
            view = memoryview(data)
            self._file.write_at([view], self.size)
            self._hash.update(view)
            self.size += view.nbytes
        return len(data)

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self.size

    def flush(self) -> None:
        """Do nothing: `publish` makes all durable."""

    @property
    def sha256(self) -> str:
        """The SHA-256 of the bytes written so far, in hexadecimal."""
        return self._hash.hexdigest()

    def publish(self) -> None:
        """Make it durable and give it its name."""
        self._file.sync()
        self.close()
        self._files.replace(self._temporary, f"{self._directory}/{self._name}")
        self._files.sync_directory(self._directory)

    def close(self) -> None:
        """Let go of the file."""
        if not self.closed:
            self.closed = True
            self._file.close()

    def __enter__(self) -> "NewFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.closed:  # it was not published
            with suppress(StorageError):  # must not hide why; what is left is known by its name
                self.close()
                self._files.remove(self._temporary)
