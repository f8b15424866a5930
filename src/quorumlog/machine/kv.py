"""The key-value machine: an ordered map on LMDB with its latest changes and a digest.

Four databases in one file: `items` (key → index that last changed it, value), `events` (index and
ordinal → key and value, or deletion), `kept` (what the replica answers repeated commands with) and
`meta`. Each call of `apply` is one write transaction, with the applied index in it: the file always
holds the state behind some entry, never half of one.

Nothing is flushed to the disk while it runs: the log is what is durable, and everything here can be
made again from a snapshot and the log. A killed process loses nothing, since the page cache is the
kernel's. A crash of the operating system may leave any of the written pages on disk and not the
others, and LMDB would not notice. So a small file beside says in which boot of the system the
database was opened; one that was left open in another boot is thrown away unread, and the replica
loads its snapshot and replays. `close` flushes everything, and only then notes that it is closed;
such a database is good in any boot. Where a boot has no name, only a closed one is.

A snapshot is the frozen database, compacted, as LMDB writes it, and a hash of that: LMDB trusts its
pages, so damaged ones could end the process. It can be loaded where the byte order and the size of
a word are the same.
"""

import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import groupby

import lmdb
from msgspec import UNSET

from quorumlog.machine.base import SnapshotReader, SnapshotWriter, StateMachine
from quorumlog.machine.kv_commands import (
    ABSENT,
    EVENTS_KEPT,
    KEY_BYTES_MAX,
    SCAN_BYTES_MAX,
    SCAN_ITEMS_MAX,
    Answer,
    Compare,
    Events,
    Get,
    Happened,
    Operation,
    Outcome,
    Page,
    Put,
    Query,
    Scan,
    Value,
    decode_command,
    decode_query,
    encode_answer,
    encode_outcome,
)
from quorumlog.machine.kv_database import (
    CHUNK_BYTES,
    DIGEST_BYTES,
    BootNote,
    Database,
    FrozenDatabase,
    Progress,
    current_boot_id,
    named,
)
from quorumlog.model.entry import Entry
from quorumlog.model.errors import CorruptionError, UnexpectedArgumentError, check
from quorumlog.storage.files import OsFileSystem

DATA_NAME = "state.mdb"
"""The database; LMDB keeps its readers in another file of this name with `-lock`."""
LOADING_NAME = "state.loading"
"""A snapshot that is being received."""
MAP_BYTES = 64 << 20
"""Address space for the database to begin with; it doubles when it is full."""

_INDEX = struct.Struct(">q")
_EVENT = struct.Struct(">qI")
_CHANGE = struct.Struct(">?H")
_KEY_SIZE = struct.Struct(">H")


def _item_hash(key: bytes, record: bytes) -> int:
    data = _KEY_SIZE.pack(len(key)) + key + record
    return int.from_bytes(blake2b(data, digest_size=DIGEST_BYTES).digest(), "big")


class _Batch:
    """Entries being applied in one write transaction."""

    def __init__(self, database: Database, transaction: "lmdb.Transaction[bytes]") -> None:
        self._database = database
        self._transaction = transaction
        self._progress = database.progress(transaction)
        self._digest = int.from_bytes(self._progress.digest, "big")
        self._index = -1
        self._ordinal = 0

    def apply(self, entries: Sequence[Entry]) -> list[bytes]:
        """Return the encoded outcomes."""
        outcomes = [encode_outcome(self._apply(entry)) for entry in entries]
        self._forget()
        self._progress.digest = (self._digest % (1 << 8 * DIGEST_BYTES)).to_bytes(DIGEST_BYTES)
        self._database.keep_progress(self._transaction, self._progress)
        return outcomes

    def _apply(self, entry: Entry) -> Outcome:
        applied = self._progress.applied_index
        check(entry.index > applied, "an entry is applied again", entry.index, applied)
        self._progress.applied_index = self._index = entry.index
        self._ordinal = 0
        try:
            command = decode_command(entry.body)
        except UnexpectedArgumentError as error:
            return Outcome(False, entry.index, [], str(error))
        succeeded = all(self._holds(compare) for compare in command.compares)
        operations = command.then if succeeded else command.otherwise
        previous = [self._carry_out(operation) for operation in operations]
        return Outcome(succeeded, entry.index, previous)

    def _holds(self, compare: Compare) -> bool:
        record = self._transaction.get(compare.key, db=self._database.items)
        value = None if record is None else record[_INDEX.size :]
        index = ABSENT if record is None else _INDEX.unpack_from(record)[0]
        return compare.value in (UNSET, value) and compare.index in (UNSET, index)

    def _carry_out(self, operation: Operation) -> bytes | None:
        """Change one key; return its value before."""
        key, items = operation.key, self._database.items
        before = self._transaction.get(key, db=items)
        if before is not None:
            self._digest -= _item_hash(key, before)
        if isinstance(operation, Put):
            record = _INDEX.pack(self._index) + operation.value
            self._transaction.put(key, record, db=items)
            self._digest += _item_hash(key, record)
            self._note(key, operation.value)
        elif before is not None:
            self._transaction.delete(key, db=items)
            self._note(key, None)
        return None if before is None else before[_INDEX.size :]

    def _note(self, key: bytes, value: bytes | None) -> None:
        """Keep a change for those who ask what happened."""
        at = _EVENT.pack(self._index, self._ordinal)
        change = _CHANGE.pack(value is not None, len(key)) + key + (value or b"")
        self._transaction.put(at, change, append=True, db=self._database.events)
        self._ordinal += 1

    def _forget(self) -> None:
        """Remove the oldest changes; however entries are batched, the same ones are left."""
        events = self._database.events
        surplus = self._transaction.stat(events)["entries"] - EVENTS_KEPT
        if surplus <= 0:
            return
        with self._transaction.cursor(events) as cursor:
            cursor.first()
            for _ in range(surplus):
                index, _ordinal = _EVENT.unpack(cursor.key())
                cursor.delete()
        # an entry of which a part is left counts as forgotten
        self._progress.first_kept_index = index + 1


class _Asked:
    """The state as one query sees it."""

    def __init__(self, database: Database, transaction: "lmdb.Transaction[bytes]") -> None:
        self._database = database
        self._transaction = transaction

    def get(self, query: Get) -> Value:
        """See `Get`."""
        record = self._transaction.get(query.key, db=self._database.items)
        if record is None:
            return Value(None, ABSENT)
        return Value(record[_INDEX.size :], _INDEX.unpack_from(record)[0])

    def scan(self, query: Scan) -> Page:
        """See `Scan`."""
        limit, size = min(query.limit, SCAN_ITEMS_MAX), 0
        walk = self._backward if query.reverse else self._forward
        items: list[tuple[bytes, bytes, int]] = []
        for key, record in walk(query.begin, query.end):
            size += len(key) + len(record) - _INDEX.size
            if items and (len(items) >= limit or size > SCAN_BYTES_MAX):
                return Page(items, more=True)
            items.append((key, record[_INDEX.size :], _INDEX.unpack_from(record)[0]))
        return Page(items, more=False)

    # Bounds may be longer than any key (the last one and a zero byte, say), but LMDB must not
    # be asked for such: it is asked for their beginning, and what does not belong is left out.
    # A cursor that found nothing stands nowhere, and would be iterated from the other end.

    def _forward(self, begin: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        with self._transaction.cursor(self._database.items) as cursor:
            if not cursor.set_range(begin[:KEY_BYTES_MAX]):
                return
            for key, record in cursor.iternext():
                if end is not None and key >= end:
                    return
                if key >= begin:
                    yield key, record

    def _backward(self, begin: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        with self._transaction.cursor(self._database.items) as cursor:
            is_found = end is not None and cursor.set_range(end[:KEY_BYTES_MAX])
            if not is_found and not cursor.last():
                return
            for key, record in cursor.iterprev():
                if key < begin:
                    return
                if end is None or key < end:
                    yield key, record

    def events(self, query: Events) -> Happened:
        """See `Events`."""
        progress = self._database.progress(self._transaction)
        first, first_kept = query.first_index, progress.first_kept_index
        if first < first_kept:
            return Happened([], first, first_kept)
        limit, size = min(query.limit, SCAN_ITEMS_MAX), 0
        events: list[tuple[int, bytes, bytes | None]] = []
        for index, changes in groupby(self._changes(first), key=lambda change: change[0]):
            found = [change for change in changes if change[1].startswith(query.prefix)]
            size += sum(len(key) + len(value or b"") for _, key, value in found)
            if found and events and (len(events) + len(found) > limit or size > SCAN_BYTES_MAX):
                return Happened(events, index, first_kept)
            events += found
        return Happened(events, max(first, progress.applied_index + 1), first_kept)

    def _changes(self, first_index: int) -> Iterator[tuple[int, bytes, bytes | None]]:
        with self._transaction.cursor(self._database.events) as cursor:
            if not cursor.set_range(_EVENT.pack(first_index, 0)):
                return
            for at, change in cursor.iternext():
                index, _ordinal = _EVENT.unpack(at)
                is_put, key_size = _CHANGE.unpack_from(change)
                value_at = _CHANGE.size + key_size
                key = change[_CHANGE.size : value_at]
                yield index, key, change[value_at:] if is_put else None


class KeyValueMachine(StateMachine):
    """See the module; commands, results, queries and answers are those of `kv_commands`.

    Raises `StorageError` when LMDB or the disk fail.
    """

    def __init__(self, directory: str, boot_id: str, map_bytes: int) -> None:
        self._files = OsFileSystem()
        self._directory = directory
        self._path = os.path.join(directory, DATA_NAME)
        self._map_bytes = map_bytes
        self._frozen: list[FrozenDatabase] = []
        self._files.make_directory(directory)
        self._note = BootNote(self._files, directory, boot_id)
        if not self._note.vouches():
            self._files.remove(self._path)
        self._files.remove(self._loading_path)
        self._note.opened()
        self._database = self._open_database()

    @classmethod
    def open(
        cls, directory: str, boot_id: str | None = None, *, map_bytes: int = MAP_BYTES
    ) -> "KeyValueMachine":
        """See `StateMachine`; `boot_id` stands for the operating system's."""
        return cls(directory, current_boot_id() if boot_id is None else boot_id, map_bytes)

    @property
    def _loading_path(self) -> str:
        return os.path.join(self._directory, LOADING_NAME)

    def _open_database(self) -> Database:
        with named(self._path):
            return Database(self._path, self._map_bytes)

    def _progress(self) -> Progress:
        with named(self._path), self._database.environment.begin() as transaction:
            return self._database.progress(transaction)

    @property
    def applied_index(self) -> int:
        """See `StateMachine`."""
        return self._progress().applied_index

    def digest(self) -> bytes:
        """Return the sum of the hashes of all items with their indexes."""
        return self._progress().digest

    def kept(self) -> list[tuple[bytes, bytes]]:
        """See `StateMachine`."""
        database = self._database
        with named(self._path), database.environment.begin() as transaction:
            return list(transaction.cursor(database.kept))

    def apply(self, entries: Sequence[Entry]) -> Sequence[bytes]:
        """Carry out commands; a malformed one is an `Outcome` that says so.

        Waits while a frozen state is saved, if the database has to grow. Raises
        `InvariantViolation` when given an entry again.
        """
        return self.apply_keeping(entries, lambda results: {})

    def apply_keeping(
        self,
        entries: Sequence[Entry],
        keep: Callable[[Sequence[bytes]], Mapping[bytes, bytes | None]],
    ) -> Sequence[bytes]:
        """See `StateMachine`."""
        if not entries:
            return []
        with named(self._path):
            while True:
                try:
                    with self._database.environment.begin(write=True) as transaction:
                        results = _Batch(self._database, transaction).apply(entries)
                        self._keep(transaction, keep(results))
                        return results
                except lmdb.MapFullError:
                    self._grow()

    def _keep(
        self, transaction: "lmdb.Transaction[bytes]", changes: Mapping[bytes, bytes | None]
    ) -> None:
        for key, value in changes.items():
            if value is None:
                transaction.delete(key, db=self._database.kept)
            else:
                transaction.put(key, value, db=self._database.kept)

    def _grow(self) -> None:
        environment = self._database.environment
        self._detach_frozen()
        environment.set_mapsize(2 * environment.info()["map_size"])

    def _detach_frozen(self) -> None:
        for frozen in self._frozen:
            frozen.detach()

    def query(self, query: bytes) -> bytes:
        """Answer a `Get`, `Scan` or `Events`."""
        asked = decode_query(query)
        with named(self._path), self._database.environment.begin() as transaction:
            return encode_answer(self._answer(_Asked(self._database, transaction), asked))

    def _answer(self, state: _Asked, query: Query) -> Answer:
        if isinstance(query, Get):
            return state.get(query)
        return state.scan(query) if isinstance(query, Scan) else state.events(query)

    def freeze(self) -> FrozenDatabase:
        """See `StateMachine`. Space freed after it is not used again before it is closed."""
        self._frozen = [frozen for frozen in self._frozen if frozen.is_open]
        with named(self._path):
            self._frozen.append(FrozenDatabase(self._database.environment, self._directory))
        return self._frozen[-1]

    def save_snapshot(self, writer: SnapshotWriter) -> None:
        """See `StateMachine`."""
        frozen = self.freeze()
        try:
            frozen.save_snapshot(writer)
        finally:
            frozen.close()

    def load_snapshot(self, reader: SnapshotReader) -> None:
        """See `StateMachine`. Raises `CorruptionError`, and changes nothing, if it is none."""
        loading = self._loading_path
        try:
            self._receive(reader)
            try:
                Database(loading, self._map_bytes, is_snapshot=True).environment.close()
            except lmdb.Error as error:
                raise CorruptionError(
                    f"the snapshot is no database: {error}", loading, 0
                ) from error
        except BaseException:
            self._files.remove(loading)
            raise
        self._replace_by(loading)

    def _receive(self, reader: SnapshotReader) -> None:
        """Write what is read, but for the hash behind it, to a file, durably."""
        hashed, position, held = blake2b(digest_size=DIGEST_BYTES), 0, b""
        self._files.remove(self._loading_path)
        file = self._files.open(self._loading_path, create=True)
        try:
            for data in iter(partial(reader.read, CHUNK_BYTES), b""):
                held += data
                body, held = held[:-DIGEST_BYTES], held[-DIGEST_BYTES:]
                hashed.update(body)
                if body:
                    file.write_at([body], position)
                position += len(body)
            file.sync()
        finally:
            file.close()
        if held != hashed.digest():
            raise CorruptionError("the snapshot is damaged", self._loading_path, position)

    def _replace_by(self, path: str) -> None:
        with named(self._path):
            self._detach_frozen()
        self._database.environment.close()
        try:
            self._files.replace(path, self._path)
            self._files.sync_directory(self._directory)
        finally:
            self._database = self._open_database()

    def close(self) -> None:
        """See `StateMachine`; waits while a frozen state is saved, and ends those that are not."""
        for frozen in self._frozen:
            frozen.close()
        try:
            with named(self._path):
                self._database.environment.sync(True)
        finally:
            self._database.environment.close()
        self._files.sync_directory(self._directory)
        self._note.closed()
