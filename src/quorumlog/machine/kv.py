"""The key-value machine: an ordered map on LMDB with its latest changes and a digest.

One file has three tables: `items` (key → index that last changed it, value), `events` (index and
ordinal → key and value, or deletion) and `kept` (the answers to repeated commands). Each call of
`apply` is one write transaction that includes the applied index: the file always holds the state
after some entry, never half of one. Everything that is read is verified (see `kv_database`).

Nothing is flushed to the disk while it runs: the log is durable, and everything here can be derived
from a snapshot and the log. `close` flushes everything and records the file's checksum; a file is
opened again only if it still has the checksum that was recorded. After a crash, or if any bit of it
has changed, it is removed unread, and the replica loads its snapshot and replays the log.
"""

import logging
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby, islice

from msgspec import UNSET

from quorumlog.log_events import log_event
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
    CLOSED_NAME,
    EVENTS,
    ITEMS,
    KEPT,
    CloseMarker,
    Database,
    Progress,
    Transaction,
    named,
    remove_stale,
)
from quorumlog.machine.kv_snapshots import FrozenDatabase, Loading
from quorumlog.model.block import Buffer
from quorumlog.model.entry import Entry
from quorumlog.model.errors import (
    CorruptionError,
    NoSpaceError,
    StorageError,
    UnexpectedArgumentError,
    check,
)
from quorumlog.storage.files.os_files import OsFileSystem

DATA_NAME = "state.mdb"
"""The database; LMDB keeps its readers in another file of this name with `-lock`."""
LOADING_NAME = "state.loading"
"""A snapshot that is being received."""
MAP_BYTES = 64 << 20
"""Address space for the database to start with; it doubles when it is full."""

logger = logging.getLogger(__name__)

_LOCK_NAME = f"{DATA_NAME}-lock"
_FILES = {
    DATA_NAME: False,
    CLOSED_NAME: False,
    _LOCK_NAME: True,
    LOADING_NAME: True,
    f"{LOADING_NAME}-lock": True,
    f"{LOADING_NAME}.earlier": True,
    "boot": True,
}
"""Files that may be there; True: left by an earlier run or an earlier build, to be removed."""
_INDEX = struct.Struct(">q")
_EVENT = struct.Struct(">qI")
_CHANGE = struct.Struct(">?H")


class _Batch:
    """Entries being applied in one write transaction."""

    def __init__(self, database: Database, transaction: Transaction) -> None:
        self._database = database
        self._transaction = transaction
        self._progress = progress = database.progress(transaction)
        self._tables = [database.table(number, transaction, progress) for number in range(3)]
        self._items, self._events = self._tables[ITEMS], self._tables[EVENTS]
        self._index = -1
        self._ordinal = 0

    def apply(self, entries: Sequence[Entry]) -> list[bytes]:
        """Return the encoded outcomes."""
        outcomes = [encode_outcome(self._apply(entry)) for entry in entries]
        self._forget()
        return outcomes

    def keep(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Change the answers to repeated commands."""
        for key, value in changes.items():
            if value is None:
                self._tables[KEPT].remove(key)
            else:
                self._tables[KEPT].put(key, value)

    def end(self) -> None:
        """Write the applied index and the sums into the transaction."""
        self._progress.sums = [table.total for table in self._tables]
        self._database.keep_progress(self._transaction, self._progress)

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
        record = self._items.get(compare.key)
        value = None if record is None else record[_INDEX.size :]
        index = ABSENT if record is None else _INDEX.unpack_from(record)[0]
        return compare.value in (UNSET, value) and compare.index in (UNSET, index)

    def _carry_out(self, operation: Operation) -> bytes | None:
        """Change one key; return its value before."""
        key = operation.key
        if isinstance(operation, Put):
            before = self._items.put(key, _INDEX.pack(self._index) + operation.value)
            self._record_event(key, operation.value)
        else:
            before = self._items.remove(key)
            if before is not None:
                self._record_event(key, None)
        return None if before is None else before[_INDEX.size :]

    def _record_event(self, key: bytes, value: bytes | None) -> None:
        """Keep a change for later queries of events."""
        at = _EVENT.pack(self._index, self._ordinal)
        change = _CHANGE.pack(value is not None, len(key)) + key + (value or b"")
        self._events.put(at, change, append=True)
        self._ordinal += 1

    def _forget(self) -> None:
        """Remove the oldest changes; which are left does not depend on how entries are batched."""
        surplus = self._events.count - EVENTS_KEPT
        if surplus <= 0:
            return
        oldest = [at for at, _ in islice(self._events.forward(), surplus)]
        for at in oldest:
            self._events.remove(at)
        # an entry whose changes are only partly left counts as forgotten
        self._progress.first_kept_index = _EVENT.unpack(oldest[-1])[0] + 1


class _Asked:
    """The state that one query sees."""

    def __init__(self, database: Database, transaction: Transaction) -> None:
        self._progress = database.progress(transaction)
        self._items = database.table(ITEMS, transaction)
        self._events = database.table(EVENTS, transaction)

    def get(self, query: Get) -> Value:
        """See `Get`."""
        record = self._items.get(query.key)
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

    # A bound may be longer than any key (the last key and a zero byte, say), which LMDB does not
    # allow: it is asked for the start of the bound, and items outside the range are skipped.

    def _forward(self, begin: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        for key, record in self._items.forward(begin[:KEY_BYTES_MAX]):
            if end is not None and key >= end:
                return
            if key >= begin:
                yield key, record

    def _backward(self, begin: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        for key, record in self._items.backward(None if end is None else end[:KEY_BYTES_MAX]):
            if key < begin:
                return
            if end is None or key < end:
                yield key, record

    def events(self, query: Events) -> Happened:
        """See `Events`."""
        progress = self._progress
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
        for at, change in self._events.forward(_EVENT.pack(first_index, 0)):
            index, _ordinal = _EVENT.unpack(at)
            is_put, key_size = _CHANGE.unpack_from(change)
            value_at = _CHANGE.size + key_size
            key = change[_CHANGE.size : value_at]
            yield index, key, change[value_at:] if is_put else None


class KeyValueMachine(StateMachine):
    """The machine of this module; `kv_commands` defines its commands, results and queries.

    Its methods raise `CorruptionError` if its file is damaged, `NoSpaceError` if the disk is full
    (then nothing has changed), and `StorageError` if LMDB or the disk fails otherwise.
    """

    def __init__(self, directory: str, map_bytes: int) -> None:
        self._files = OsFileSystem()
        self._directory = directory
        self._path = os.path.join(directory, DATA_NAME)
        self._map_bytes = map_bytes
        self._frozen: list[FrozenDatabase] = []
        self._marker = CloseMarker(self._files, directory)
        self._open: Database | None = None
        self._is_damaged = False

    @classmethod
    def open(cls, directory: str, *, map_bytes: int = MAP_BYTES) -> "KeyValueMachine":
        """See `StateMachine`; nothing is read before `recover`, or whatever else is called."""
        return cls(directory, map_bytes)

    def recover(self) -> None:
        """Open the database, if it is unchanged since it was closed, else an empty one."""
        if self._open is not None:
            return
        self._files.make_directory(self._directory)
        remove_stale(self._files, self._directory, _FILES)
        if self._files.exists(self._path) and (reason := self._marker.why_not(self._path)):
            self._throw_away(reason)
        self._marker.remove()
        try:
            self._open = self._open_database()
        except CorruptionError as error:  # unchanged since `close`, but of another word size, say
            self._throw_away(str(error))
            self._open = self._open_database()

    def _throw_away(self, reason: str) -> None:
        text = "database is rebuilt from snapshot and log"
        log_event(logger, logging.WARNING, text, path=str(self._path), reason=reason)
        self._files.remove(self._path)
        self._files.remove(os.path.join(self._directory, _LOCK_NAME))

    @property
    def _database(self) -> Database:
        if self._open is None:
            self.recover()
        check(self._open is not None, "the database is open")
        return self._open  # type: ignore[return-value]

    @property
    def _loading_path(self) -> str:
        return os.path.join(self._directory, LOADING_NAME)

    def _open_database(self) -> Database:
        with named(self._path):
            return Database(self._path, self._map_bytes)

    @contextmanager
    def _watched(self) -> Iterator[Database]:
        """Yield the database; once damage was found, it does not count as whole any more."""
        database = self._database
        try:
            with named(self._path):
                yield database
        except CorruptionError:
            self._met_damage()
            raise

    def _met_damage(self) -> None:
        self._is_damaged = True

    def _progress(self) -> Progress:
        with self._watched() as database, database.environment.begin() as transaction:
            return database.progress(transaction)

    @property
    def applied_index(self) -> int:
        """See `StateMachine`."""
        return self._progress().applied_index

    def digest(self) -> bytes:
        """Return the sum of the hashes of all items with their indexes.

        Every change keeps it up to date, and a loaded snapshot computes it from the items
        themselves; `check` and every saved snapshot compare the two.
        """
        return self._progress().sums[ITEMS]

    def check(self) -> None:
        """See `StateMachine`; reads everything."""
        self.save_snapshot(_Nowhere())

    def kept(self) -> list[tuple[bytes, bytes]]:
        """See `StateMachine`."""
        with self._watched() as database, database.environment.begin() as transaction:
            return list(database.table(KEPT, transaction).forward())

    def apply(self, entries: Sequence[Entry]) -> Sequence[bytes]:
        """Carry out commands; the `Outcome` of a malformed one says so.

        It waits while a frozen state is saved, if the database has to grow. Raises
        `InvariantViolation` if it gets an entry again.
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

        def work(transaction: Transaction) -> list[bytes]:
            batch = _Batch(database, transaction)
            results = batch.apply(entries)
            batch.keep(keep(results))
            batch.end()
            return results

        with self._watched() as database:
            return database.write(work, self._detach_frozen)

    def _detach_frozen(self) -> None:
        for frozen in self._frozen:
            frozen.detach()

    def query(self, query: bytes) -> bytes:
        """Answer a `Get`, `Scan` or `Events`."""
        asked = decode_query(query)
        with self._watched() as database, database.environment.begin() as transaction:
            return encode_answer(self._answer(_Asked(database, transaction), asked))

    def _answer(self, state: _Asked, query: Query) -> Answer:
        if isinstance(query, Get):
            return state.get(query)
        return state.scan(query) if isinstance(query, Scan) else state.events(query)

    def freeze(self) -> FrozenDatabase:
        """See `StateMachine`. Space freed after it is not used again before it is closed."""
        self._frozen = [frozen for frozen in self._frozen if frozen.is_open]
        with self._watched() as database:
            self._frozen.append(FrozenDatabase(database, self._directory, self._met_damage))
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
        with named(self._path):
            self._detach_frozen()
        database, loading = self._database, self._loading_path
        self._files.remove(loading)
        try:
            with named(loading):
                Loading(self._files, loading, self._map_bytes).read(reader)
        except BaseException:
            self._files.remove(loading)
            raise
        finally:
            self._files.remove(f"{loading}-lock")
        database.environment.close()
        self._open = None
        self._files.remove(os.path.join(self._directory, _LOCK_NAME))
        self._files.replace(loading, self._path)
        self._open = self._open_database()
        self._is_damaged = False

    def close(self) -> None:
        """See `StateMachine`; waits while a frozen state is saved, and ends those that are not.

        Where the disk has no room for the marker, the next start rebuilds the state.
        """
        for frozen in self._frozen:
            frozen.close()
        database, self._open = self._open, None
        if database is None:
            return
        try:
            with named(self._path):
                database.environment.sync(True)
        finally:
            database.environment.close()
        self._files.sync_directory(self._directory)
        if self._is_damaged:
            return
        try:
            self._marker.write(self._path)
        except NoSpaceError as error:
            text = "state will be rebuilt from snapshot and log"
            log_event(logger, logging.WARNING, text, path=str(self._path), reason=str(error))
            with suppress(StorageError):
                self._marker.remove()


class _Nowhere:
    def write(self, data: Buffer) -> None:
        """Discard the data."""
