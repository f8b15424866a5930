"""Files of a table's metadata that are durable before the catalog names them.

pyiceberg writes them and does not fsync: after a loss of power the catalog, which does, could name
a file that is empty, or not there.
"""

import os
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFileIO

from quorumlog.spark.jobs.output_files import OutputFileSystem

SCHEME = "file://"


class DurableFileIO(PyArrowFileIO):  # type: ignore[misc]  # its types come with an extra
    """Reads and writes as pyiceberg does; what is written is durable once it is closed."""

    def new_output(self, location: str) -> "DurableOutput":
        """Return a file that can be written."""
        return DurableOutput(super().new_output(location), location.removeprefix(SCHEME))


class DurableOutput:
    """A file that can be written, and what pyiceberg asks of it besides."""

    def __init__(self, output: Any, path: str) -> None:
        self._output = output
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)

    def __len__(self) -> int:
        return len(self._output)

    def create(self, overwrite: bool = False) -> "DurableStream":
        """Return the stream to which it is written."""
        return DurableStream(self._output.create(overwrite=overwrite), self._path)


class DurableStream:
    """A stream of bytes to a file, whose content and name `close` makes durable."""

    def __init__(self, stream: Any, path: str) -> None:
        self._stream = stream
        self._path = path

    def __enter__(self) -> "DurableStream":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def write(self, data: bytes) -> int:
        """Write more bytes."""
        written: int = self._stream.write(data)
        return written

    def tell(self) -> int:
        """Return how many bytes were written."""
        place: int = self._stream.tell()
        return place

    def close(self) -> None:
        """Make it durable. Raises `StorageError`."""
        self._stream.close()
        files, directory = OutputFileSystem(), os.path.dirname(self._path)
        file = files.open(self._path)
        try:
            file.sync()
        finally:
            file.close()
        for one in (directory, os.path.dirname(directory)):  # it may be the directory's first file
            files.sync_directory(one)
