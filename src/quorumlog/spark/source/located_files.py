"""The files of a replica on this machine, as it said where they are (decision 0019)."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from quorumlog.model.block import position_of
from quorumlog.model.codes import Magic
from quorumlog.model.errors import IndexRemovedError, StorageError
from quorumlog.model.messages.client import StoreLocation
from quorumlog.storage.entries.disk_reader import DiskReader
from quorumlog.storage.entries.entry_runs import EntryRun
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.offline.store_files import StoreFiles, open_files


class LocatedFiles:
    """Reads entries that are committed and in files; they may be removed, but do not change."""

    def __init__(self, store: StoreFiles) -> None:
        log_start = store.metadata.log_start
        if log_start is None:
            raise StorageError(f"{store.directory}: it is not recorded where the log starts")
        self._store = store
        self._before_begin_index = log_start.before_begin_index
        self._reader = DiskReader(store.data, store.index, log_start)

    def require(self, index: int) -> None:
        """Raise `IndexRemovedError` if the log started after an entry when it was opened."""
        if index <= self._before_begin_index:
            raise IndexRemovedError(f"{self._store.directory} now starts after entry {index}")

    def read(self, index: int, last: int, bytes_max: int) -> EntryRun:
        """Return entries from `index` on that lie together and fit, at least one, checked.

        Raises `IndexRemovedError` if they were removed meanwhile, `CorruptionError` for a damaged
        one.
        """
        run = self._reader.read(index, last, bytes_max)
        if position_of(run.records) % self._store.data.file_size == 0:
            return msgspec.structs.replace(run, data=_kept(run.data, index))
        return run


@contextmanager
def located_files(location: StoreLocation) -> Iterator[LocatedFiles]:
    """Open the files at a location. Raises `StorageError` if they cannot be read."""
    directory, _, *data_directories = (path for path, _, _ in location.directories)
    store = open_files(OsFileSystem(), directory, data_directories)
    try:
        yield LocatedFiles(store)
    finally:
        store.close()


def _kept(data: memoryview, index: int) -> memoryview:
    """Return a copy of what was read at the start of a file.

    When a log's first entries are removed, a blank is written over the start of the file in which
    the log then starts: the only place where entries that were read once may change. Raises
    `IndexRemovedError` if that has happened.
    """
    kept = memoryview(bytes(data))
    if int.from_bytes(kept[:4], "big", signed=True) == Magic.BLANK:
        raise IndexRemovedError(f"entry {index} was removed while it was read")
    return kept
