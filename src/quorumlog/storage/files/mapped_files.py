"""Files mapped for reading in a process that belongs to no node, such as a task of a Spark job."""

from collections import OrderedDict
from dataclasses import dataclass

from quorumlog.model.errors import StorageError
from quorumlog.storage.files.os_files import FileSystem

MAPS_MAX = 16
"""Files mapped at a time; the least recently used is let go."""


@dataclass(frozen=True, slots=True)
class _Mapped:
    size: int
    modified_ms: int
    view: memoryview


class MappedFiles:
    """Maps of files by path, kept while the file stays as it is. For one thread."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._maps: OrderedDict[str, _Mapped] = OrderedDict()

    def view(self, path: str) -> memoryview:
        """Return the bytes of a file. Raises `StorageError` when it is gone or cannot be read."""
        if not self._files.exists(path):
            raise StorageError(
                f"{path} is gone: the node removed it after the job was planned; run the job again"
            )
        known = self._maps.pop(path, None)
        file = self._files.open(path, writable=False)
        try:
            size, modified_ms = file.size(), self._files.modified_ms(path)
            if known is None or (known.size, known.modified_ms) != (size, modified_ms):
                known = _Mapped(size, modified_ms, file.map())
        finally:
            file.close()
        self._maps[path] = known
        if len(self._maps) > MAPS_MAX:
            self._maps.popitem(last=False)
        return known.view
