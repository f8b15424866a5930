"""`quorumlog.reserve`: room for small files that must be saved even when the disk is full."""

import logging
from collections.abc import Callable

from quorumlog.model.errors import NoSpaceError
from quorumlog.storage.files.os_files import File, FileSystem

logger = logging.getLogger(__name__)

FILE_NAME = "quorumlog.reserve"
RESERVE_BYTES = 256 * 1024
"""Room for all small files of a group but its derived tables, which are added twice."""
LEAST_BYTES = 4_096
"""With less than this, nothing is kept."""


class Reserve:
    """The reserve of one directory. Its only state is the file, so there may be several objects."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._path = f"{directory}/{FILE_NAME}"

    def keep(self, table_bytes: int) -> None:
        """Reserve room for small files and a table of this many bytes, as far as there is any."""
        self._hold(RESERVE_BYTES + 2 * table_bytes)

    def use(self, write: Callable[[], None]) -> None:
        """Run a write that replaces a whole file; it may use the reserve if the disk is full.

        Raises `NoSpaceError` when there is no room even so.
        """
        try:
            write()
        except NoSpaceError as error:
            held = self._size()
            if not held:
                raise
            logger.warning("%s; the room kept in %s is used for it", error, self._path)
            self._files.remove(self._path)
            write()
            self._hold(held)  # what is left of it may be needed for the next file

    def _hold(self, wanted: int) -> None:
        held = self._size()
        if held >= wanted:
            return
        try:
            file = self._files.open(self._path, create=True)
        except NoSpaceError:
            return  # later there may be room
        try:
            while wanted > max(held, LEAST_BYTES) and not _has_grown(file, wanted):
                wanted //= 2
                file.resize(held)
            file.sync()
        finally:
            file.close()

    def _size(self) -> int:
        if not self._files.exists(self._path):
            return 0
        file = self._files.open(self._path, writable=False)
        try:
            return file.size()
        finally:
            file.close()


def _has_grown(file: File, size: int) -> bool:
    try:
        file.resize(size)
    except NoSpaceError:
        return False
    return True
