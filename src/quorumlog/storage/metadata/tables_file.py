"""The tables of a group on disk: replaced as a whole, next to the checkpoint.

They are derived from the log (`quorumlog.sessions.table_set`). Two files hold them, because nothing
else knows what entries said that the log has removed.
"""

import logging
from functools import partial

from isal.isal_zlib import crc32

from quorumlog.model.errors import NoSpaceError
from quorumlog.storage.files.os_files import FileSystem
from quorumlog.storage.files.reserve import Reserve
from quorumlog.storage.metadata.dual_slot_file import COPY, restore

logger = logging.getLogger(__name__)

FILE_NAME = "quorumlog.sessions"
_MAGIC = b"QSES"
BYTES_MAX = 64 * 1024 * 1024


class TablesFile:
    """The saved tables; there is no file while they are empty.

    `is_lost`: `load` found no whole copy.
    """

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._path = f"{directory}/{FILE_NAME}"
        self._paths = [self._path, self._path + COPY]
        self._reserve = Reserve(files, directory)
        self.is_lost = False
        self.saved_in_one_file: bytes | None = None
        """What one file holds and the other does not yet."""
        self.size_bytes = 0
        """The size of what was saved last."""

    def exists(self) -> bool:
        """Whether one of the files exists, readable or not."""
        return any(self._files.exists(path) for path in self._paths)

    def load(self, *, read_only: bool = False) -> bytes | None:
        """Return what was saved last, and (unless `read_only`) make both files hold it.

        On a full disk one of them may stay as it is: `saved_in_one_file` is to be saved again.
        None: nothing was ever saved, or (`is_lost`) neither file is whole.
        """
        there = [path for path in self._paths if self._files.exists(path)]
        values = {path: self._read(path) for path in there}
        whole = [value for value in values.values() if value is not None]
        self.is_lost = bool(there) and not whole
        self.size_bytes = max(map(len, whole), default=0)
        if not whole or read_only:
            return whole[0] if whole else None
        if None in values.values() or self._path not in values:
            logger.warning("%s was damaged; it is restored from its other copy", self._path)
        for path in self._paths:
            is_same = values.get(path) == whole[0]
            if not is_same and not restore(path, partial(self._write, path, whole[0])):
                self.saved_in_one_file = whole[0]
        return whole[0]

    def damaged(self) -> list[str]:
        """Return the files that are there and not whole."""
        return [
            path for path in self._paths if self._files.exists(path) and self._read(path) is None
        ]

    def _read(self, path: str) -> bytes | None:
        if self._files.obstacle(path):
            return None
        file = self._files.open(path, writable=False)
        try:
            raw = file.read_at(BYTES_MAX, 0)
        finally:
            file.close()
        value = raw[8:]
        is_whole = raw[:4] == _MAGIC and crc32(value) == int.from_bytes(raw[4:8], "big")
        return value if is_whole else None

    def save(self, value: bytes) -> None:
        """Replace them, durably.

        Raises `NoSpaceError` when the reserve is used up, too: one of them may be what it was.
        """
        self.size_bytes = len(value)
        for path in self._paths:
            self._write(path, value)
        self.saved_in_one_file = None

    def _write(self, path: str, value: bytes) -> None:
        self._reserve.use(partial(self._replace, path, value))

    def _replace(self, path: str, value: bytes) -> None:
        beside = f"{path}.new"
        self._files.remove(beside)
        file = self._files.open(beside, create=True)
        try:
            file.write_at([_MAGIC, crc32(value).to_bytes(4, "big"), value], 0)
            file.sync()
        except NoSpaceError:
            self._files.remove(beside)
            raise
        finally:
            file.close()
        self._files.replace(beside, path)
        self._files.sync_directory(self._directory)
