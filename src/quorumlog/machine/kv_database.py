"""The file of the key-value machine: opened or thrown away, and frozen to be saved.

LMDB flushes nothing here while it runs, so the file may be damaged by a crash of the operating
system (see `kv`); a note beside it says whether it may be believed.
"""

import errno
import os
import struct
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from hashlib import blake2b
from typing import IO

import lmdb

from quorumlog.machine.base import SnapshotWriter
from quorumlog.model.errors import CorruptionError, NoSpaceError, StorageError
from quorumlog.storage.files import FILE_MODE, OsFileSystem

BOOT_NAME = "boot"
"""In which boot the database was opened, or that it was closed."""
BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"
CHUNK_BYTES = 1 << 20
"""Read from or written to a snapshot at once."""
DIGEST_BYTES = 16
"""Of the hash of an item, of the digest, and of the hash behind a snapshot."""
FORMAT = b"quorumlog key-value 1"
"""Told apart from other databases by this."""

_CLOSED = "closed"
_DATABASES = (b"items", b"events", b"kept", b"meta")
_FORMAT_KEY = b"format"
_PROGRESS_KEY = b"progress"
_PROGRESS = struct.Struct(f">q{DIGEST_BYTES}sq")


def current_boot_id() -> str:
    """Return a name of this run of the operating system; empty if there is none."""
    try:
        with open(BOOT_ID_PATH, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


@contextmanager
def named(path: str) -> Iterator[None]:
    """Turn an error of LMDB into one of ours that names the file."""
    try:
        yield
    except lmdb.Error as error:
        kind = NoSpaceError if error.code in (errno.ENOSPC, errno.EDQUOT) else StorageError
        raise kind(f"{path}: {error}") from error


class BootNote:
    """Says whether the database may be believed."""

    def __init__(self, files: OsFileSystem, directory: str, boot_id: str) -> None:
        self._files = files
        self._directory = directory
        self._path = os.path.join(directory, BOOT_NAME)
        self._boot_id = boot_id

    def vouches(self) -> bool:
        """Whether the database was closed, or is of this boot."""
        if not self._files.exists(self._path):
            return False
        with open(self._path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        return text == _CLOSED or (bool(self._boot_id) and text == f"open {self._boot_id}")

    def opened(self) -> None:
        """Say, durably, that it must not be believed in another boot."""
        self._write(f"open {self._boot_id}")

    def closed(self) -> None:
        """Say, durably, that it may be believed."""
        self._write(_CLOSED)

    def _write(self, text: str) -> None:
        temporary = f"{self._path}.new"
        self._files.remove(temporary)
        file = self._files.open(temporary, create=True)
        try:
            file.write_at([text.encode()], 0)
            file.sync()
        finally:
            file.close()
        self._files.replace(temporary, self._path)
        self._files.sync_directory(self._directory)


@dataclass(slots=True)
class Progress:
    """What `meta` says of the rest."""

    applied_index: int = -1
    digest: bytes = bytes(DIGEST_BYTES)
    first_kept_index: int = 0


class Database:
    """The open file. Raises `lmdb.Error`, or `CorruptionError` if it is none of ours."""

    def __init__(self, path: str, map_bytes: int, *, is_snapshot: bool = False) -> None:
        self.path = path
        self.environment = lmdb.open(
            path,
            map_size=map_bytes,
            subdir=False,
            mode=FILE_MODE,
            max_dbs=len(_DATABASES),
            sync=False,
            metasync=False,
            readonly=is_snapshot,
            create=not is_snapshot,
            lock=not is_snapshot,
        )
        try:
            if is_snapshot:
                self._check_length()
            with self.environment.begin(write=not is_snapshot) as transaction:
                self.items, self.events, self.kept, self.meta = (
                    self.environment.open_db(name, transaction, create=not is_snapshot)
                    for name in _DATABASES
                )
                self._check_format(transaction)
        except BaseException:
            self.environment.close()
            raise

    def _check_length(self) -> None:
        """Touching a page behind the end of the file would kill the process."""
        last_page = self.environment.info()["last_pgno"]
        expected = (last_page + 1) * self.environment.stat()["psize"]
        length = os.path.getsize(self.path)
        if length != expected:
            raise self._corruption(f"has {length} bytes instead of {expected}")

    def _check_format(self, transaction: "lmdb.Transaction[bytes]") -> None:
        found = transaction.get(_FORMAT_KEY, db=self.meta)
        if found is None and not transaction.stat(self.meta)["entries"]:
            found = FORMAT
            transaction.put(_FORMAT_KEY, FORMAT, db=self.meta)
        if found != FORMAT:
            raise self._corruption("is no database of the key-value machine")

    def _corruption(self, reason: str) -> CorruptionError:
        message = f"{self.path} {reason}; without its directory, the replica makes a new one"
        return CorruptionError(message, self.path, 0, reason=reason)

    def progress(self, transaction: "lmdb.Transaction[bytes]") -> Progress:
        """Return how far the state is."""
        found = transaction.get(_PROGRESS_KEY, db=self.meta)
        return Progress() if found is None else Progress(*_PROGRESS.unpack(found))

    def keep_progress(self, transaction: "lmdb.Transaction[bytes]", progress: Progress) -> None:
        """Say how far it is now."""
        transaction.put(_PROGRESS_KEY, _PROGRESS.pack(*astuple(progress)), db=self.meta)


class FrozenDatabase:
    """The database as a read transaction sees it, or as it was copied when that had to end."""

    def __init__(self, environment: lmdb.Environment, directory: str) -> None:
        self._environment = environment
        self._directory = directory
        self._lock = threading.Lock()
        self._transaction: lmdb.Transaction[bytes] | None = environment.begin()
        self._copied: IO[bytes] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it still holds anything."""
        return self._transaction is not None or self._copied is not None

    def save_snapshot(self, writer: SnapshotWriter) -> None:
        """See `FrozenState`. Raises `StorageError` also if the machine was closed before."""
        with self._lock, named(self._directory):
            if self._transaction is not None:
                hashed = self._stream(self._transaction, writer)
            elif self._copied is not None:
                hashed = _pump(self._copied, writer)
            else:
                raise StorageError(f"{self._directory}: the frozen state was closed")
        writer.write(hashed)

    def _stream(self, transaction: "lmdb.Transaction[bytes]", writer: SnapshotWriter) -> bytes:
        """LMDB writes into a descriptor only, so another thread has it fill a pipe."""
        incoming, outgoing = os.pipe()
        with (
            open(incoming, "rb") as source,
            open(outgoing, "wb", buffering=0) as sink,
            ThreadPoolExecutor(1, "kv-snapshot") as executor,
        ):
            copying = executor.submit(self._copy, transaction, sink)
            with source:  # closed first, so that a copy whose reader failed fails too
                hashed = _pump(source, writer)
            copying.result()
        return hashed

    def _copy(self, transaction: "lmdb.Transaction[bytes]", sink: IO[bytes]) -> None:
        with sink:
            self._environment.copyfd(sink.fileno(), compact=True, txn=transaction)

    def detach(self) -> None:
        """Hold the state without the database, which is about to move; waits while it is saved.

        LMDB would end the transaction, and it is not known when, or whether, it will be saved.
        """
        with self._lock:
            if self._transaction is None:
                return
            copied = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115
            try:
                self._environment.copyfd(copied.fileno(), compact=True, txn=self._transaction)
                copied.seek(0)
            except BaseException:
                copied.close()
                raise
            self._copied = copied
            self._end_transaction()

    def _end_transaction(self) -> None:
        if self._transaction is not None:
            self._transaction.abort()
            self._transaction = None

    def close(self) -> None:
        """See `FrozenState`; waits while it is saved."""
        with self._lock:
            self._end_transaction()
            if self._copied is not None:
                self._copied.close()
                self._copied = None


def _pump(source: IO[bytes], writer: SnapshotWriter) -> bytes:
    """Write everything; return its hash."""
    hashed = blake2b(digest_size=DIGEST_BYTES)
    while data := source.read(CHUNK_BYTES):
        hashed.update(data)
        writer.write(data)
    return hashed.digest()
