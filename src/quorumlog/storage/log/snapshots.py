"""Snapshots of a state machine: one file each, whole or not there at all (spec 40 section 3).

    <group>/snapshot/snapshot_<last included index in 20 digits>   data, metadata, a footer
    <group>/snapshot/aside_<the same>                               quarantined
    <group>/snapshot/saving                                         being written by this replica
    <group>/snapshot/installing                                     being fetched from another

A snapshot is written under another name, fsynced, and published by rename. Its metadata
(`SnapshotMeta`) follows the data as JSON, with a footer of its length and CRC-32; the SHA-256
in it is of the data, and checked whenever they are read.
"""

import hashlib
import struct
from collections.abc import Callable, Container
from threading import Lock
from typing import Final

import msgspec
from isal.isal_zlib import crc32

from quorumlog.model.block import Buffer
from quorumlog.model.errors import CorruptionError, StorageError
from quorumlog.storage.files.os_files import File, FileSystem

DIRECTORY = "snapshot"
SAVING = "saving"
INSTALLING = "installing"
META_SUFFIX = ".json"
"""The name of the file next to `installing` that says what is being fetched."""
PREFIX = "snapshot_"
QUARANTINED_PREFIX = "aside_"
"""Starts the name of a snapshot that is used only if the state has no other source."""
QUARANTINED_MAX = 4
"""Kept of those, the newest."""
DIGITS = 20
META_BYTES_MAX = 1024 * 1024
COPY_BYTES = 1024 * 1024
"""Bytes read or written at a time."""
_FOOTER = struct.Struct(">II8s")
_MAGIC = b"QLSNAP01"


class SnapshotMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot holds: everything up to last_included_index, whose term and chain CRC follow.

    `config` is the newest CONFIG_CHANGE entry among it as (index, body), where that is known;
    `digest` is the machine's digest of its state; `sha256` is of the `size_bytes` bytes of data.
    The last `kept_bytes` of them are what the replica keeps in addition to the machine's state.
    """

    last_included_index: int
    last_included_term: int
    chain_crc: int = -1
    config: tuple[int, bytes] | None = None
    digest: bytes = b""
    size_bytes: int = 0
    sha256: bytes = b""
    kept_bytes: int = 0


_METAS: Final = msgspec.json.Decoder(SnapshotMeta)


class SavedData:
    """Reads the data of a snapshot from start to end; see `SnapshotReader`."""

    def __init__(self, file: File, size_bytes: int) -> None:
        self._file = file
        self._size = size_bytes
        self._position = 0
        self._sha256 = hashlib.sha256()

    def read(self, length: int = -1, /) -> bytes:
        """Return up to `length` bytes (-1: all that are left)."""
        left = self._size - self._position
        length = left if length < 0 else min(length, left)
        parts = []
        while length:
            part = self._file.read_at(min(length, COPY_BYTES), self._position)
            if not part:
                raise CorruptionError(
                    f"{self._file.path}: ends at byte {self._position} of {self._size}",
                    self._file.path,
                    self._position,
                )
            self._sha256.update(part)
            self._position += len(part)
            length -= len(part)
            parts.append(part)
        return b"".join(parts)

    def digest(self) -> bytes:
        """Return the SHA-256 of all data, what was not read yet included."""
        while self.read(COPY_BYTES):
            pass
        return self._sha256.digest()


class Checking:
    """A check of a snapshot: its data are read step by step and compared with its SHA-256."""

    def __init__(self, file: File, meta: SnapshotMeta) -> None:
        self._file = file
        self._meta = meta
        self._data = SavedData(file, meta.size_bytes)
        self._left = meta.size_bytes

    def step(self, length: int) -> bool:
        """Read on; True: all of it is whole. Raises `CorruptionError` if it is not."""
        try:
            self._left -= len(self._data.read(min(length, self._left)))
            if self._left:
                return False
            if self._data.digest() != self._meta.sha256:
                raise CorruptionError(
                    f"{self._file.path}: the data are damaged", self._file.path, 0
                )
        except BaseException:
            self._file.close()
            raise
        self._file.close()
        return True


class Saving:
    """A snapshot that is being written; see `SnapshotWriter`. Used by one thread at a time."""

    def __init__(self, snapshots: "Snapshots", file: File) -> None:
        self._snapshots = snapshots
        self._file = file
        self._sha256 = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: Buffer) -> None:
        """Append data."""
        data = memoryview(data).cast("B")  # items may be wider than bytes
        self._file.write_at([data], self.size_bytes)
        self._sha256.update(data)
        self.size_bytes += len(data)

    def publish(self, meta: SnapshotMeta) -> SnapshotMeta:
        """Make it durable and visible; return `meta` with size and SHA-256 filled in."""
        meta = msgspec.structs.replace(
            meta, size_bytes=self.size_bytes, sha256=self._sha256.digest()
        )
        self._snapshots.publish(self._file, meta)
        return meta

    def abandon(self) -> None:
        """Stop writing; the next snapshot replaces the file."""
        if self._file.is_open:
            self._file.close()


class Installing:
    """A snapshot that is being fetched, chunk by chunk; fetching continues after a restart.

    Used by one thread at a time. Its size says how far it has come: whether all bytes are right is
    known at the end.
    """

    def __init__(self, snapshots: "Snapshots", file: File, meta: SnapshotMeta) -> None:
        self._snapshots = snapshots
        self._file = file
        self.meta = meta
        self.size_bytes = min(file.size(), meta.size_bytes)

    def write(self, data: Buffer, offset: int) -> int:
        """Write a chunk where the last one ended; return how many bytes there are."""
        if offset == self.size_bytes and offset + len(data) <= self.meta.size_bytes:
            self._file.write_at([data], offset)
            self.size_bytes += len(data)
        return self.size_bytes

    def publish(self) -> bool:
        """Check all of it, make it durable and visible; False: it was damaged, start again."""
        if SavedData(self._file, self.meta.size_bytes).digest() != self.meta.sha256:
            self._file.resize(0)
            self.size_bytes = 0
            return False
        self._file.resize(self.meta.size_bytes)
        self._snapshots.publish(self._file, self.meta)
        return True

    def close(self) -> None:
        """Close the file; fetching may go on later."""
        if self._file.is_open:
            self._file.close()

    def discard(self) -> None:
        """Remove it: after a failed write the page cache says nothing about the disk."""
        self.close()
        self._snapshots.discard_installing()


class Snapshots:
    """The snapshots of one group; the first one creates the directory.

    `report` is called with a text for each one that is removed or quarantined.
    """

    def __init__(self, files: FileSystem, directory: str, report: Callable[[str], None]) -> None:
        self._files = files
        self.directory = f"{directory}/{DIRECTORY}"
        self._report = report
        self._changing = Lock()
        """Held while files get or lose the names of snapshots."""

    # -- what is there ------------------------------------------------------------------------

    def indexes(self) -> list[int]:
        """Return the last included index of each, ascending."""
        return self._indexes_of(PREFIX)

    def quarantined(self) -> list[int]:
        """Return the last included index of each quarantined one, ascending."""
        return self._indexes_of(QUARANTINED_PREFIX)

    def _indexes_of(self, prefix: str) -> list[int]:
        names = self._files.names(self.directory)
        digits = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        return sorted(int(digit) for digit in digits if digit.isdecimal() and len(digit) == DIGITS)

    def path_of(self, index: int) -> str:
        """Return where a snapshot lies."""
        return f"{self.directory}/{PREFIX}{index:0{DIGITS}d}"

    def _quarantined_path(self, index: int) -> str:
        return f"{self.directory}/{QUARANTINED_PREFIX}{index:0{DIGITS}d}"

    def newest(self, refused: Container[int] = ()) -> SnapshotMeta | None:
        """Return the newest snapshot that is whole; broken ones are reported and removed (spec 40).

        It skips those of `refused`, and one that is removed while it is read.
        """
        for index in reversed(self.indexes()):
            try:
                if index not in refused:
                    return self.meta_of(index)
            except CorruptionError as error:
                self.remove_broken(index, error)
            except StorageError:
                if self.has(index):
                    raise
        return None

    def has(self, index: int) -> bool:
        """Whether there is a snapshot, whole or not."""
        return index in self.indexes()

    def meta_of(self, index: int) -> SnapshotMeta:
        """Return the metadata of a snapshot. Raises `CorruptionError` if it cannot be read."""
        file = self._files.open(self.path_of(index), writable=False)
        try:
            return self._read_meta(file, index)
        finally:
            file.close()

    def _read_meta(self, file: File, index: int) -> SnapshotMeta:
        size = file.size()
        footer = file.read_at(_FOOTER.size, max(0, size - _FOOTER.size))
        try:
            length, crc, magic = _FOOTER.unpack(footer)
            begin = size - _FOOTER.size - length
            raw = (
                file.read_at(length, begin) if 0 < length <= META_BYTES_MAX and begin >= 0 else b""
            )
            if magic != _MAGIC or crc32(raw) != crc:
                raise CorruptionError(f"{file.path}: no whole snapshot", file.path, size)
            meta = _METAS.decode(raw)
        except (struct.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CorruptionError(f"{file.path}: no snapshot ({error})", file.path, size) from error
        if (meta.last_included_index, meta.size_bytes) != (index, begin):
            raise CorruptionError(f"{file.path}: holds another snapshot", file.path, size)
        return meta

    def checking(self, index: int) -> Checking:
        """Start to read a snapshot to see whether it is whole. Raises `CorruptionError`."""
        meta = self.meta_of(index)
        return Checking(self._files.open(self.path_of(index), writable=False), meta)

    def check(self, meta: SnapshotMeta) -> None:
        """Read the data of a snapshot. Raises `CorruptionError` if they are not whole."""
        file = self._files.open(self.path_of(meta.last_included_index), writable=False)
        Checking(file, meta).step(meta.size_bytes)

    def use(self, meta: SnapshotMeta, reader: Callable[[SavedData], None]) -> bytes:
        """Have `reader` read the machine's part of a snapshot that was checked; return the rest."""
        file = self._files.open(self.path_of(meta.last_included_index), writable=False)
        own_bytes = meta.size_bytes - meta.kept_bytes
        try:
            reader(SavedData(file, own_bytes))
            return file.read_at(meta.kept_bytes, own_bytes)
        finally:
            file.close()

    def read_chunk(self, index: int, offset: int, length: int) -> bytes:
        """Return a chunk of the data of a snapshot, to be sent."""
        file = self._files.open(self.path_of(index), writable=False)
        try:
            return file.read_at(length, offset)
        finally:
            file.close()

    # -- making and removing ------------------------------------------------------------------

    def begin(self) -> Saving:
        """Start to write a snapshot; one that was half written before is removed."""
        self._files.make_directory(self.directory)
        return Saving(self, self._new_file(SAVING))

    def install(self, meta: SnapshotMeta) -> Installing:
        """Start to fetch one, or continue where fetching the same one stopped."""
        self._files.make_directory(self.directory)
        wanted = msgspec.json.encode(meta)
        meta_path = f"{self.directory}/{INSTALLING}{META_SUFFIX}"
        path = f"{self.directory}/{INSTALLING}"
        if not self._files.exists(meta_path) or self._read_all(meta_path) != wanted:
            self._files.remove(path)
            self._files.remove(meta_path)
            file = self._files.open(meta_path, create=True)
            file.write_at([wanted], 0)
            file.sync()
            file.close()
            self._files.sync_directory(self.directory)
        return Installing(self, self._files.open(path, create=True), meta)

    def discard_installing(self) -> None:
        """Remove what was fetched of a snapshot."""
        self._files.remove(f"{self.directory}/{INSTALLING}")
        self._files.remove(f"{self.directory}/{INSTALLING}{META_SUFFIX}")
        self._files.sync_directory(self.directory)

    def holds(self, meta: SnapshotMeta) -> bool:
        """Whether exactly this snapshot is here, whole."""
        if not self.has(meta.last_included_index):
            return False
        try:
            if self.meta_of(meta.last_included_index) != meta:
                return False
            self.check(meta)
        except CorruptionError:
            return False
        except StorageError:
            if self.has(meta.last_included_index):
                raise
            return False
        return True

    def _read_all(self, path: str) -> bytes:
        file = self._files.open(path, writable=False)
        try:
            return file.read_at(META_BYTES_MAX, 0)
        finally:
            file.close()

    def _new_file(self, name: str) -> File:
        path = f"{self.directory}/{name}"
        self._files.remove(path)
        return self._files.open(path, create=True)

    def publish(self, file: File, meta: SnapshotMeta) -> None:
        """Write the metadata after the data of a new file, and give it its final name, durably."""
        raw = msgspec.json.encode(meta)
        if len(raw) > META_BYTES_MAX:
            raise StorageError(f"{file.path}: what it is takes {len(raw)} bytes, too many")
        file.write_at([raw, _FOOTER.pack(len(raw), crc32(raw), _MAGIC)], meta.size_bytes)
        file.sync()
        file.close()
        with self._changing:
            self._files.replace(file.path, self.path_of(meta.last_included_index))
            self._files.sync_directory(self.directory)

    def keep_newest(
        self, count: int, besides: Container[int] = (), before_begin_index: int = -1
    ) -> int:
        """Remove all but the newest `count` and those of `besides`, oldest first.

        Those after which the log has a gap, since it starts later, are removed too, but the newest
        stays. Return the index of the oldest that is kept; -1: there is none.
        """
        with self._changing:
            indexes = self.indexes()
            useful = [index for index in indexes[-count:] if index >= before_begin_index]
            useful = useful or indexes[-1:]
            for index in indexes:
                if index not in useful and index not in besides:
                    self._files.remove(self.path_of(index))
        return useful[0] if useful else -1

    def quarantine(self, indexes: list[int]) -> bool:
        """Stop using some, since their state may be another's; keep them in case no other is left.

        Those that are gone are skipped; False: all are.
        """
        with self._changing:
            there = [index for index in indexes if self.has(index)]
            for index in there:
                self._report(f"snapshot {index} is quarantined: its state may be another's")
                self._files.replace(self.path_of(index), self._quarantined_path(index))
            if there:
                self._remove_quarantined(self.quarantined()[:-QUARANTINED_MAX])
        return bool(there)

    def restore_quarantined(self) -> None:
        """Restore what was quarantined, to be used again."""
        with self._changing:
            present = self.indexes()
            for index in self.quarantined():
                if index not in present:
                    self._files.replace(self._quarantined_path(index), self.path_of(index))
            self._remove_quarantined(self.quarantined())

    def remove_quarantined(self) -> None:
        """Remove what was quarantined."""
        self._remove_quarantined(self.quarantined())

    def _remove_quarantined(self, indexes: list[int]) -> None:
        for index in indexes:
            self._files.remove(self._quarantined_path(index))
        self._files.sync_directory(self.directory)

    def remove_broken(self, index: int, error: CorruptionError) -> None:
        """Remove one that cannot be used, and report it; do nothing if it is gone.

        The scrub and the machine's thread may find the same one at the same time, and a whole one
        may have taken its place since: what lies there now is checked before it is removed.
        """
        with self._changing:
            if not self.has(index) or self._is_whole(index):
                return
            self._report(f"snapshot {index} is broken and was removed: {error}")
            self._files.remove(self.path_of(index))
            self._files.sync_directory(self.directory)

    def _is_whole(self, index: int) -> bool:
        try:
            checking = self.checking(index)
            while not checking.step(COPY_BYTES):
                pass
        except CorruptionError:
            return False
        return True

    def clear_saving(self) -> None:
        """Remove what a crash left half-written."""
        self._files.remove(f"{self.directory}/{SAVING}")
