"""The file of the key-value machine: sealed records, opened only if unchanged since it was closed.

Every record starts with a hash of its key and of what follows, which is verified on every read. A
record that is gone shows in the sum of all hashes of its table, which is kept up to date beside the
table; `whole` computes it again from the records.
LMDB itself trusts its pages: damaged ones end the process, or hide records. So a file is opened
only if its SHA-256 is the one that was recorded when it was closed. A file that was not closed, or
has changed, is removed unread: all of it can be derived from a snapshot and the log.
"""

import errno
import hashlib
import logging
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import lmdb

from quorumlog.log_events import log_event
from quorumlog.model.errors import (
    CorruptionError,
    NoSpaceError,
    OutOfDescriptorsError,
    StorageError,
)
from quorumlog.storage.files.os_files import (
    FILE_MODE,
    OUT_OF_DESCRIPTORS,
    SPARES,
    OsFileSystem,
    require_file,
)

CLOSED_NAME = "closed"
"""SHA-256 of the database and its length, from closing it to opening it again."""
CHUNK_BYTES = 1 << 20
"""Bytes that are read from or written to a file at once."""
HASH_BYTES = 16
"""Lengths of the hash of a record, and of a table's sum."""
FORMAT = b"quorumlog key-value 2"
"""Identifies a database of ours."""
TABLES = (b"items", b"events", b"kept")
"""Names of the tables that have records; their positions here are in snapshots."""
ITEMS, EVENTS, KEPT = range(3)
WALK_RECORDS = 1_024
"""Records in a chunk at most; it also ends once it has `CHUNK_BYTES`."""

_FORMAT_KEY = b"format"
_PROGRESS_KEY = b"progress"
_PROGRESS = struct.Struct(f">qq{HASH_BYTES}s{HASH_BYTES}s{HASH_BYTES}s")
_KEY_SIZE = struct.Struct(">H")
_MODULUS = 1 << 8 * HASH_BYTES
_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
    lmdb.IncompatibleError,
)

Handle: TypeAlias = "lmdb._Database"
Transaction: TypeAlias = "lmdb.Transaction[bytes]"
Records: TypeAlias = list[tuple[bytes, bytes]]
"""Pairs of key and body."""
_Result = TypeVar("_Result")

logger = logging.getLogger(__name__)


@contextmanager
def named(path: str) -> Iterator[None]:
    """Turn an error of LMDB into one of ours that names the file."""
    try:
        yield
    except lmdb.Error as error:
        if isinstance(error, _DAMAGE):
            raise CorruptionError(f"{path}: {error}", path, 0) from error
        kind: type[StorageError] = StorageError
        if error.code in (errno.ENOSPC, errno.EDQUOT):
            kind = NoSpaceError
        elif error.code in OUT_OF_DESCRIPTORS:
            kind = OutOfDescriptorsError
        raise kind(f"{path}: {error}") from error


def open_environment(path: str, **options: Any) -> lmdb.Environment:
    """Open a database file; if no descriptor is free, use spare ones or wait.

    Raises `lmdb.Error`, also if none becomes free, and `NotAFileError`.
    """
    for one in (path, f"{path}-lock"):  # LMDB would wait for the other end of a FIFO
        require_file(one)
    refused: list[lmdb.Error] = []

    def call() -> lmdb.Environment:
        try:
            return lmdb.open(path, subdir=False, **options)
        except lmdb.Error as error:
            if error.code not in OUT_OF_DESCRIPTORS:
                raise
            refused.append(error)
            raise OSError(error.code, str(error)) from error

    try:
        return SPARES.use(path, call)
    except OSError:
        raise refused[-1] from None


def hash_of(key: bytes, body: bytes) -> bytes:
    """Return the hash of a record."""
    data = _KEY_SIZE.pack(len(key)) + key + body
    return hashlib.blake2b(data, digest_size=HASH_BYTES).digest()


def added(total: bytes, hashes: list[bytes]) -> bytes:
    """Return a sum with hashes added to it."""
    found = sum(map(int.from_bytes, hashes), int.from_bytes(total))
    return (found % _MODULUS).to_bytes(HASH_BYTES)


def _shown(key: bytes) -> str:
    return key.decode(errors="backslashreplace")


def unsealed(path: str, key: bytes, record: bytes) -> bytes:
    """Return the body of a record. Raises `CorruptionError` if its hash does not match."""
    body = record[HASH_BYTES:]
    if hash_of(key, body) != record[:HASH_BYTES]:
        raise CorruptionError(f"{path}: the record of key '{_shown(key)}' is damaged", path, 0)
    return body


@dataclass(slots=True)
class Progress:
    """The applied index of the state, and the sums of its tables."""

    applied_index: int = -1
    first_kept_index: int = 0
    sums: list[bytes] = field(default_factory=lambda: [bytes(HASH_BYTES)] * len(TABLES))


class Table:
    """A table in one transaction; `total` is the sum of its records' hashes."""

    def __init__(
        self, path: str, handle: Handle, transaction: Transaction, total: bytes = b""
    ) -> None:
        self._path = path
        self._handle = handle
        self._transaction = transaction
        self._total = int.from_bytes(total)

    @property
    def total(self) -> bytes:
        """The sum, including the changes of this transaction."""
        return (self._total % _MODULUS).to_bytes(HASH_BYTES)

    @property
    def count(self) -> int:
        """How many records there are."""
        return int(self._transaction.stat(self._handle)["entries"])

    def get(self, key: bytes) -> bytes | None:
        """Return the body of a record, None if there is none. Raises `CorruptionError`."""
        record = self._transaction.get(key, db=self._handle)
        return None if record is None else unsealed(self._path, key, record)

    def put(self, key: bytes, body: bytes, *, append: bool = False) -> bytes | None:
        """Write a record; return the body that it had before. `append`: its key is the last."""
        sealed = hash_of(key, body)
        if append:
            before = None
            self._transaction.put(key, sealed + body, append=True, db=self._handle)
        else:
            before = self._transaction.replace(key, sealed + body, db=self._handle)
        self._total += int.from_bytes(sealed)
        return None if before is None else self._took(key, before)

    def remove(self, key: bytes) -> bytes | None:
        """Remove a record; return the body that it had."""
        before = self._transaction.pop(key, db=self._handle)
        return None if before is None else self._took(key, before)

    def _took(self, key: bytes, record: bytes) -> bytes:
        self._total -= int.from_bytes(record[:HASH_BYTES])
        return unsealed(self._path, key, record)

    def forward(self, begin: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield key and body in order, from the first key that is not before `begin`."""
        with self._transaction.cursor(self._handle) as cursor:
            if cursor.set_range(begin) if begin else cursor.first():
                for key, record in cursor.iternext():
                    yield key, unsealed(self._path, key, record)

    def backward(self, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield key and body in the opposite order, from `end` or the one after it."""
        with self._transaction.cursor(self._handle) as cursor:
            is_found = end is not None and cursor.set_range(end)
            if is_found or cursor.last():
                for key, record in cursor.iterprev():
                    yield key, unsealed(self._path, key, record)

    def whole(self) -> Iterator[Records]:
        """Yield all records in chunks, and look up each key as a query would.

        Raises `CorruptionError` if a record is damaged, cannot be found, or if one is missing.
        """
        hashes: list[bytes] = []
        chunk: Records = []
        size, total = 0, bytes(HASH_BYTES)
        with (
            self._transaction.cursor(self._handle) as cursor,
            self._transaction.cursor(self._handle) as probe,
        ):
            for key, record in cursor:
                chunk.append((key, unsealed(self._path, key, record)))
                hashes.append(record[:HASH_BYTES])
                size += len(key) + len(record)
                if not probe.set_key(key):
                    text = f"{self._path}: key '{_shown(key)}' is there and cannot be found"
                    raise CorruptionError(text, self._path, 0)
                if len(chunk) >= WALK_RECORDS or size >= CHUNK_BYTES:
                    total = added(total, hashes)
                    yield chunk
                    chunk, hashes, size = [], [], 0
        yield chunk
        if added(total, hashes) != self.total:
            text = f"{self._path}: records are missing: the sum of their hashes is another"
            raise CorruptionError(text, self._path, 0)


class Database:
    """The open file. Raises `lmdb.Error`, or `CorruptionError` if it is not a file of ours."""

    def __init__(self, path: str, map_bytes: int) -> None:
        self.path = path
        self.environment = open_environment(
            path,
            map_size=map_bytes,
            mode=FILE_MODE,
            max_dbs=len(TABLES) + 1,
            sync=False,
            metasync=False,
        )
        try:
            with self.environment.begin(write=True) as transaction:
                self._handles = [self.environment.open_db(name, transaction) for name in TABLES]
                self._meta = self.environment.open_db(b"meta", transaction)
                self._check_format(transaction)
        except BaseException:
            self.environment.close()
            raise

    def _check_format(self, transaction: Transaction) -> None:
        found = transaction.get(_FORMAT_KEY, db=self._meta)
        if found is None and not transaction.stat(self._meta)["entries"]:
            found = FORMAT
            transaction.put(_FORMAT_KEY, FORMAT, db=self._meta)
        if found != FORMAT:
            text = f"{self.path} is no database of the key-value machine"
            raise CorruptionError(text, self.path, 0)

    def progress(self, transaction: Transaction) -> Progress:
        """Return the applied index and the sums."""
        found = transaction.get(_PROGRESS_KEY, db=self._meta)
        if found is None:
            return Progress()
        body = unsealed(self.path, _PROGRESS_KEY, found)
        applied_index, first_kept_index, *sums = _PROGRESS.unpack(body)
        return Progress(applied_index, first_kept_index, sums)

    def keep_progress(self, transaction: Transaction, progress: Progress) -> None:
        """Write the applied index and the sums."""
        body = _PROGRESS.pack(progress.applied_index, progress.first_kept_index, *progress.sums)
        sealed = hash_of(_PROGRESS_KEY, body) + body
        transaction.put(_PROGRESS_KEY, sealed, db=self._meta)

    def table(
        self, number: int, transaction: Transaction, progress: Progress | None = None
    ) -> Table:
        """Return a table in a transaction; with its sum, if the progress is given."""
        total = b"" if progress is None else progress.sums[number]
        return Table(self.path, self._handles[number], transaction, total)

    def write(
        self, work: Callable[[Transaction], _Result], before_growing: Callable[[], None]
    ) -> _Result:
        """Do something in one transaction; if the file is full, enlarge it and repeat.

        No other transaction may be open while it grows: `before_growing` is called first.
        """
        while True:
            try:
                with self.environment.begin(write=True) as transaction:
                    return work(transaction)
            except lmdb.MapFullError:
                before_growing()
                self.environment.set_mapsize(2 * self.environment.info()["map_size"])


class CloseMarker:
    """The file with a closed database's checksum; there is none while the database is open."""

    def __init__(self, files: OsFileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._path = f"{directory}/{CLOSED_NAME}"

    def why_not(self, data_path: str) -> str:
        """Return why a database must not be opened; empty if unchanged since it was closed."""
        if not self._files.exists(self._path):
            return "it was not closed"
        file = self._files.open(self._path, writable=False)
        try:
            recorded = file.read_at(CHUNK_BYTES, 0)
        finally:
            file.close()
        return "" if recorded == self._content_for(data_path) else "it is not what was closed"

    def remove(self) -> None:
        """Remove the marker durably: the database is open."""
        self._files.remove(self._path)
        self._files.sync_directory(self._directory)

    def write(self, data_path: str) -> None:
        """Write the marker durably, now that the database is closed."""
        file = self._files.open(self._path, create=True)
        try:
            file.resize(0)
            file.write_at([self._content_for(data_path)], 0)
            file.sync()
        finally:
            file.close()
        self._files.sync_directory(self._directory)

    def _content_for(self, data_path: str) -> bytes:
        """Return the content of the marker: checksum and length of the whole file."""
        hashed, size = hashlib.sha256(), 0
        file = self._files.open(data_path, writable=False)
        try:
            while data := file.read_at(CHUNK_BYTES, size):
                hashed.update(data)
                size += len(data)
        finally:
            file.close()
        return b"%s %d\n" % (hashed.hexdigest().encode(), size)


def remove_stale(files: OsFileSystem, directory: str, known: dict[str, bool]) -> None:
    """Remove the files that `known` marks as stale, and log the names of unknown ones."""
    for name in files.names(directory):
        if known.get(name):
            files.remove(os.path.join(directory, name))
        elif name not in known:
            text = "not a file of the key-value machine; ignored"
            log_event(logger, logging.WARNING, text, path=os.path.join(directory, name))
