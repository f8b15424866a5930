"""Snapshots of the key-value machine: records, not pages, so that loading builds new pages.

A snapshot is a line that names the format, then frames: a length of four bytes and the MessagePack
of a `_Chunk` of one table, with its records in order; at the end comes an `_End`. The sums of the
records' hashes are computed from what is written, and again from what is read. An earlier build
wrote its database as LMDB copies it, and a hash of that; such a snapshot can be read as well.
"""

import hashlib
import os
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, TypeAlias, TypeVar

import lmdb
import msgspec

from quorumlog.machine.base import SnapshotReader, SnapshotWriter
from quorumlog.machine.kv_database import (
    CHUNK_BYTES,
    EVENTS,
    HASH_BYTES,
    KEPT,
    TABLES,
    Database,
    Progress,
    Records,
    Transaction,
    added,
    named,
    open_environment,
)
from quorumlog.model.errors import CorruptionError, StorageError
from quorumlog.storage.files.os_files import OUT_OF_DESCRIPTORS, OsFileSystem, storage_error

MAGIC = b"quorumlog key-value snapshot 2\n"
EARLIER_FORMAT = b"quorumlog key-value 1"
FRAME_BYTES_MAX = 1 << 30
"""Length of one frame: a chunk ends with the record that makes it longer than a mebibyte."""

_LENGTH = struct.Struct(">I")
_EARLIER_PROGRESS = struct.Struct(f">q{HASH_BYTES}sq")


class _Chunk(msgspec.Struct, frozen=True, array_like=True, tag=0):
    table: int
    records: Records


class _End(msgspec.Struct, frozen=True, array_like=True, tag=1):
    applied_index: int
    first_kept_index: int
    sums: list[bytes]


_Frame: TypeAlias = _Chunk | _End
_Result = TypeVar("_Result")
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[_Frame] = msgspec.msgpack.Decoder(_Frame)


def _framed(frame: _Frame) -> bytes:
    data = _encoder.encode(frame)
    return _LENGTH.pack(len(data)) + data


def save(database: Database, transaction: Transaction, writer: SnapshotWriter) -> None:
    """Write the state of a transaction, and verify all of it.

    Raises `CorruptionError` if it is damaged; then the written bytes are not a snapshot.
    """
    writer.write(MAGIC)
    progress = database.progress(transaction)
    for number in range(len(TABLES)):
        for records in database.table(number, transaction, progress).whole():
            if records:
                writer.write(_framed(_Chunk(number, records)))
    writer.write(_framed(_End(progress.applied_index, progress.first_kept_index, progress.sums)))


class FrozenDatabase:
    """The database in a read transaction, or its saved copy if the transaction had to end."""

    def __init__(self, database: Database, directory: str, damaged: Callable[[], None]) -> None:
        self._database = database
        self._damaged = damaged
        self._directory = directory
        self._lock = threading.Lock()
        self._transaction: Transaction | None = database.environment.begin()
        self._saved: IO[bytes] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it still holds anything."""
        return self._transaction is not None or self._saved is not None

    def save_snapshot(self, writer: SnapshotWriter) -> None:
        """See `FrozenState`. Raises `StorageError` also if the machine was closed before."""
        with self._lock:
            if self._transaction is not None:
                self._save(self._transaction, writer)
            elif self._saved is not None:
                for data in iter(partial(self._saved.read, CHUNK_BYTES), b""):
                    writer.write(data)
            else:
                raise StorageError(f"{self._database.path}: the frozen state was closed")

    def _save(self, transaction: Transaction, writer: SnapshotWriter) -> None:
        try:
            with named(self._database.path):
                save(self._database, transaction, writer)
        except CorruptionError:
            self._damaged()
            raise

    def detach(self) -> None:
        """Save the state to hold it without the database, which is about to move.

        LMDB would end the transaction, and it is not known when, or whether, the state will be
        saved. Waits while it is being saved.
        """
        with self._lock:
            if self._transaction is None:
                return
            saved = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115
            try:
                self._save(self._transaction, saved)
                saved.seek(0)
            except OSError as error:
                saved.close()
                raise storage_error(self._directory, "write", error) from error
            except BaseException:
                saved.close()
                raise
            self._saved = saved
            self._end_transaction()

    def _end_transaction(self) -> None:
        if self._transaction is not None:
            self._transaction.abort()
            self._transaction = None

    def close(self) -> None:
        """See `FrozenState`; waits while it is saved."""
        with self._lock:
            self._end_transaction()
            if self._saved is not None:
                self._saved.close()
                self._saved = None


class Loading:
    """A snapshot that is being read into a new database."""

    def __init__(self, files: OsFileSystem, path: str, map_bytes: int) -> None:
        self._files = files
        self._path = path
        self._database = Database(path, map_bytes)
        self._sums = [bytes(HASH_BYTES)] * len(TABLES)

    def read(self, reader: SnapshotReader) -> None:
        """Read all of it. Raises `CorruptionError` if it is not a whole snapshot."""
        try:
            head = reader.read(len(MAGIC))
            end = self._read_earlier(head, reader) if head != MAGIC else self._read(reader)
            if end.sums != self._sums:
                raise self._damaged("records are missing, or others than were saved")
            progress = Progress(end.applied_index, end.first_kept_index, end.sums)
            self._write(partial(self._database.keep_progress, progress=progress))
        except (lmdb.KeyExistsError, lmdb.BadValsizeError) as error:
            raise self._damaged(f"its records are not in order: {error}") from error
        finally:
            self._database.environment.close()

    def _damaged(self, reason: str) -> CorruptionError:
        return CorruptionError(f"the snapshot is damaged: {reason}", self._path, 0)

    def _read(self, reader: SnapshotReader) -> _End:
        while True:
            frame = self._frame(reader)
            if isinstance(frame, _End):
                if reader.read(1):
                    raise self._damaged("there is more after its end")
                return frame
            if not 0 <= frame.table < len(TABLES):
                raise self._damaged(f"it has a table {frame.table}")
            self._take(frame.table, frame.records)

    def _frame(self, reader: SnapshotReader) -> _Frame:
        try:
            (length,) = _LENGTH.unpack(reader.read(_LENGTH.size))
            if length > FRAME_BYTES_MAX:
                raise self._damaged(f"a frame of {length} bytes")
            data = reader.read(length)
            if len(data) != length:
                raise self._damaged("it ends too soon")
            return _decoder.decode(data)
        except (struct.error, msgspec.MsgspecError) as error:
            raise self._damaged(f"a frame cannot be read: {error}") from error

    def _take(self, number: int, records: Records) -> None:
        def write(transaction: Transaction) -> bytes:
            table = self._database.table(number, transaction)
            for key, body in records:
                table.put(key, body, append=True)
            return table.total

        self._sums[number] = added(self._sums[number], [self._write(write)])

    def _write(self, work: Callable[[Transaction], _Result]) -> _Result:
        return self._database.write(work, lambda: None)

    # -- of an earlier build ------------------------------------------------------------------

    def _read_earlier(self, head: bytes, reader: SnapshotReader) -> _End:
        """Copy the records of a database as LMDB wrote it."""
        copied = f"{self._path}.earlier"
        try:
            self._receive(copied, head, reader)
            return self._copy(copied)
        except lmdb.Error as error:
            if error.code in OUT_OF_DESCRIPTORS:
                raise
            raise self._damaged(f"it is no database: {error}") from error
        finally:
            self._files.remove(copied)

    def _receive(self, path: str, head: bytes, reader: SnapshotReader) -> None:
        """Write everything that is read, except the hash at the end, to a file."""
        hashed, position, held = hashlib.blake2b(digest_size=HASH_BYTES), 0, head
        self._files.remove(path)
        file = self._files.open(path, create=True)
        try:
            for data in iter(partial(reader.read, CHUNK_BYTES), b""):
                held += data
                body, held = held[:-HASH_BYTES], held[-HASH_BYTES:]
                hashed.update(body)
                if body:
                    file.write_at([body], position)
                position += len(body)
        finally:
            file.close()
        if held != hashed.digest():
            raise self._damaged("its hash is another")

    def _copy(self, path: str) -> _End:
        with open_environment(
            path,
            readonly=True,
            create=False,
            lock=False,
            max_dbs=len(TABLES) + 1,
        ) as environment:
            pages = environment.info()["last_pgno"] + 1
            if os.path.getsize(path) != pages * environment.stat()["psize"]:
                raise self._damaged("it has another length than it says")
            handles = [environment.open_db(name, create=False) for name in TABLES]
            meta = environment.open_db(b"meta", create=False)
            with environment.begin() as transaction:
                if transaction.get(b"format", db=meta) != EARLIER_FORMAT:
                    raise self._damaged("it is no database of the key-value machine")
                for number, handle in enumerate(handles):
                    for records in _in_chunks(transaction.cursor(handle)):
                        self._take(number, records)
                found = transaction.get(b"progress", db=meta)
        digest = bytes(HASH_BYTES)
        applied_index, first_kept_index = -1, 0
        if found is not None:
            applied_index, digest, first_kept_index = _EARLIER_PROGRESS.unpack(found)
        sums = [digest, self._sums[EVENTS], self._sums[KEPT]]
        return _End(applied_index, first_kept_index, sums)


def _in_chunks(cursor: "lmdb.Cursor[bytes]") -> Iterator[Records]:
    chunk: Records = []
    size = 0
    for key, body in cursor:
        chunk.append((key, body))
        size += len(key) + len(body)
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    yield chunk
