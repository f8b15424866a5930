"""The files of a log's index of batches: sealed columns, each whole or not there at all.

    <group>/quorumlog.batches/<first index in 20 digits>-<last index>     see `batch_columns`
    <group>/quorumlog.batches/sealing                                     being written

A file that cannot be used is removed, and made again from the log.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.storage.files.os_files import FileSystem
from quorumlog.topics.batch_columns import SealedBatches

DIRECTORY: Final = "quorumlog.batches"
SEALING: Final = "sealing"
_NAME: Final = re.compile(r"(\d{20})-(\d{20})")


class BatchFiles:
    """The files of one group; the first one creates the directory. Used by one thread at a time.

    `report` is called with a text for each one that is damaged.
    """

    def __init__(self, files: FileSystem, directory: str, report: Callable[[str], None]) -> None:
        self._files = files
        self._directory = f"{directory}/{DIRECTORY}"
        self._report = report

    def load(self) -> list[SealedBatches]:
        """Return all columns that follow one another, in order; remove every other file.

        Those that were sealed together with later ones are left over if the process ended then.
        """
        found = list[SealedBatches]()
        for name in self._files.names(self._directory):
            columns = self._read(name) if _NAME.fullmatch(name) else None
            if columns is None:
                self._files.remove(f"{self._directory}/{name}")
            else:
                found.append(columns)
        found.sort(key=lambda one: (one.first_index, -one.last_index))
        kept = list[SealedBatches]()
        for columns in found:
            if not kept or columns.first_index == kept[-1].last_index + 1:
                kept.append(columns)
            else:
                self._files.remove(self._path(columns))
        return kept

    def _read(self, name: str) -> SealedBatches | None:
        path = f"{self._directory}/{name}"
        file = self._files.open(path, writable=False)
        try:
            raw = file.map() if file.size() else memoryview(b"")
        finally:
            file.close()
        try:
            columns = SealedBatches.decode(raw)
        except UnexpectedArgumentError as error:
            self._report(f"{path} is damaged and is made again from the log: {error}")
            return None
        return columns if self._path(columns) == path else None

    def write(self, columns: SealedBatches) -> None:
        """Make columns durable. Raises `StorageError`."""
        self._files.make_directory(self._directory)
        path = f"{self._directory}/{SEALING}"
        self._files.remove(path)
        file = self._files.open(path, create=True)
        try:
            file.write_at([columns.encode()], 0)
            file.sync()
        finally:
            file.close()
        self._files.replace(path, self._path(columns))
        self._files.sync_directory(self._directory)

    def remove(self, gone: Sequence[SealedBatches]) -> None:
        """Remove the files of columns that are not needed any more."""
        for columns in gone:
            self._files.remove(self._path(columns))

    def _path(self, columns: SealedBatches) -> str:
        return f"{self._directory}/{columns.first_index:020}-{columns.last_index:020}"
