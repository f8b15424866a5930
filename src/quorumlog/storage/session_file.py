"""The producer sessions of a group on disk: replaced as a whole, beside the checkpoint."""

from isal.isal_zlib import crc32

from quorumlog.model.errors import CorruptionError
from quorumlog.storage.files import FileSystem

FILE_NAME = "quorumlog.sessions"
_MAGIC = b"QSES"
BYTES_MAX = 64 * 1024 * 1024


class SessionFile:
    """Not made before a producer appended in a session."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._path = f"{directory}/{FILE_NAME}"

    def load(self) -> bytes | None:
        """Return what was saved last; None: nothing was. Raises `CorruptionError`."""
        if not self._files.exists(self._path):
            return None
        file = self._files.open(self._path, writable=False)
        try:
            raw = file.read_at(BYTES_MAX, 0)
        finally:
            file.close()
        value = raw[8:]
        if raw[:4] != _MAGIC or crc32(value) != int.from_bytes(raw[4:8], "big"):
            raise CorruptionError(f"{self._path}: its CRC does not fit", self._path, 0)
        return value

    def save(self, value: bytes) -> None:
        """Replace it, durably."""
        beside = f"{self._path}.new"
        self._files.remove(beside)
        file = self._files.open(beside, create=True)
        file.write_at([_MAGIC, crc32(value).to_bytes(4, "big"), value], 0)
        file.sync()
        file.close()
        self._files.replace(beside, self._path)
        self._files.sync_directory(self._directory)
