"""Saves a state machine's snapshots beside the log, and removes entries that they cover.

After the machine's own data a snapshot holds what the replica keeps beside it: the derived tables
and the results of commands (`SnapshotTrailer`).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from quorumlog.log_events import describe_error, log_event
from quorumlog.machine.base import FrozenState, StateMachine
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import (
    TRANSIENT_ERRORS,
    CorruptionError,
    LeaderPendingFullError,
    StorageError,
)
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.machine_jobs import (
    MachineControl,
    MachineDamagedError,
    MachineError,
    MachineJob,
    damage_of_machine,
)
from quorumlog.node.replica.machine_state import MachineState
from quorumlog.node.replica.retention import Retention
from quorumlog.node.replica.served_snapshots import ServedSnapshots
from quorumlog.node.replica.tables import Tables
from quorumlog.storage.files.os_files import is_out_of_descriptors, storage_error
from quorumlog.storage.log.snapshots import SnapshotMeta, Snapshots

logger = logging.getLogger(__name__)

Saved: TypeAlias = Callable[[ResponseCode, str, int], None]
"""Called when a requested save ends: with code, reason of a failure, last included index."""

RETRY_MS = 60_000
"""Pause after a snapshot that could not be saved."""
REQUESTS_MAX = 1_024
"""Requests for a snapshot that may wait for the one under way."""


class SnapshotTrailer(msgspec.Struct, frozen=True, array_like=True):
    """What follows the machine's data in a snapshot.

    An encoded `TableSet`, and the pairs of `CommandResults`.
    """

    tables: bytes = b""
    results: list[tuple[bytes, bytes]] = []


_TRAILERS: Final = msgspec.msgpack.Decoder(SnapshotTrailer)


@dataclass(frozen=True, slots=True)
class _Frozen:
    """A snapshot to be saved; `state` None: it is saved already, and only `oldest` counts."""

    meta: SnapshotMeta
    trailer: bytes
    state: FrozenState | None
    oldest: int


class Snapshotter:
    """The part of a replica that saves its machine's snapshots.

    All methods run on the event loop's thread, but for those that say otherwise.
    """

    def __init__(
        self,
        context: ReplicaContext,
        snapshots: Snapshots | None,
        machine: MachineState,
        control: MachineControl,
        tables: Tables,
        served: ServedSnapshots,
        retention: Retention,
    ) -> None:
        self._context = context
        self._snapshots = snapshots
        self._environment = context.environment
        self._machine = machine
        self._control = control
        self._tables = tables
        self._served = served
        self._retention = retention
        machine.newest = snapshots.newest() if snapshots is not None else None
        self.saved = 0
        self._bytes = self._bytes_before = 0
        self._requests: list[tuple[int, Saved]] = []
        self._is_saving = False
        self._save_started_us = 0
        self._retry_timer = context.timers.new(self._retry)
        self._state_number = 0
        # the file is whole, but the machine cannot load it: this process must not remove it
        self._refused: set[int] = set()
        self.has_quarantined = bool(snapshots.quarantined()) if snapshots is not None else False
        self._may_remove_quarantined = False

    # -- when -----------------------------------------------------------------------------------

    def applied(self, size_bytes: int) -> None:
        """The machine has applied entries of this size."""
        self._bytes += size_bytes

    @property
    def should_save(self) -> bool:
        """Whether the machine's state is to be saved now."""
        applied = self._machine.applied_index
        since = applied - self._machine.newest_index
        if self._snapshots is None or self._is_saving or since <= 0:
            return False
        if applied > self._context.core.committed_index:
            return False  # the machine was opened with it; the commit is not known here yet
        config = self._context.config
        grown = since >= config.snapshot_threshold or self._bytes >= config.snapshot_bytes
        return bool(self._requests) or (grown and self._retry_timer.due_ms == NEVER_MS)

    @property
    def is_requested(self) -> bool:
        """Whether a request waits for a snapshot."""
        return bool(self._requests)

    def ask(self, saved: Saved) -> None:
        """Save at once; `saved` is called when the snapshot is durable."""
        if self._snapshots is None or self._machine.machine is None:
            text = f"group {self._context.config.group} has no state machine"
            saved(ResponseCode.UNSUPPORTED, text, -1)
        elif self._machine.failed_text:
            saved(ResponseCode.INTERNAL_ERROR, "the state machine of this replica failed", -1)
        elif len(self._requests) >= REQUESTS_MAX:
            saved(ResponseCode.LEADER_PENDING_FULL, "too many requests; try again later", -1)
        elif self._machine.applied_index == self._machine.newest_index and not self._is_saving:
            saved(ResponseCode.SUCCESS, "", self._machine.newest_index)
        else:
            self._requests.append((self._machine.applied_index, saved))
            self._control.advance()

    def answer_requests(self) -> None:
        """Answer the requests that the newest snapshot fulfils."""
        waiting, self._requests = self._requests, []
        for index, saved in waiting:
            if index <= self._machine.newest_index:
                saved(ResponseCode.SUCCESS, "", self._machine.newest_index)
            else:
                self._requests.append((index, saved))

    def end(self, text: str) -> None:
        """Save nothing any more: the machine failed."""
        requests, self._requests = self._requests, []
        for _, saved in requests:
            saved(ResponseCode.INTERNAL_ERROR, text, -1)

    def _retry(self, now_ms: int) -> None:
        """Saving may be tried again."""
        self._control.advance()

    # -- saving -------------------------------------------------------------------------------

    def next_work(self, machine: StateMachine) -> MachineJob:
        """Return the next job, if it `may_remove_quarantined` or `should_save`."""
        if self.may_remove_quarantined:
            return self._removing_quarantined()
        return self._saving(machine)

    def _saving(self, machine: StateMachine) -> MachineJob:
        """Return the job that saves the machine's state, beside the machine if it can be frozen."""
        snapshots, log, index = self._snapshots, self._context.log, self._machine.applied_index
        self._is_saving = True
        self._save_started_us = self._environment.now_us()
        self._bytes_before, self._bytes = self._bytes, 0
        configs = [pair for pair in log.config_entries() if pair[0] <= index]
        chain_crc = log.chain_crc_at(index)
        meta = SnapshotMeta(
            last_included_index=index,
            last_included_term=self._context.core.term_at(index),
            chain_crc=-1 if chain_crc is None else chain_crc,
            config=configs[-1] if configs else None,
        )

        begin, number = log.before_begin_index, self._state_number
        tables, results = self._tables.committed_tables(), self._machine.results
        is_trusted = self._tables.is_trusted
        fetched = self._served.indexes()

        def run() -> _Frozen:
            whole = _with_digest(meta, machine)
            table = tables.encode() if is_trusted else b""
            trailer = msgspec.msgpack.encode(SnapshotTrailer(table, results.pairs()))
            state, oldest = _frozen(machine, index), -1
            if state is None and snapshots is not None:
                with damage_of_machine():
                    machine.check()
                whole = _write(snapshots, whole, machine, trailer)
                oldest = self._tidy(snapshots, fetched, begin)
            return _Frozen(whole, trailer, state, oldest)

        def done(found: _Frozen | Exception) -> None:
            if isinstance(found, Exception):
                self._failed(found)
            elif found.state is None:
                self._published(found.meta, found.oldest, number)
            else:
                self._save_frozen(found.meta, found.trailer, found.state, number)

        return MachineJob(lambda: _caught(run), done, refused=self._not_saved)

    def _not_saved(self) -> None:
        self._is_saving = False
        self._bytes += self._bytes_before

    def _save_frozen(
        self, meta: SnapshotMeta, trailer: bytes, frozen: FrozenState, number: int
    ) -> None:
        begin = self._context.log.before_begin_index
        snapshots, fetched = self._snapshots, self._served.indexes()
        if snapshots is None:
            return

        def run() -> tuple[SnapshotMeta, int]:
            try:
                found = _write(snapshots, meta, frozen, trailer)
            finally:
                frozen.close()
            return found, self._tidy(snapshots, fetched, begin)

        def failed(error: Exception) -> None:
            if isinstance(error, LeaderPendingFullError):
                frozen.close()  # saving was not started
            self._failed(error)

        self._environment.executor.run(run, lambda found: self._published(*found, number), failed)

    def _tidy(self, snapshots: Snapshots, fetched: list[int], before_begin_index: int) -> int:
        count = self._context.config.max_snapshot_reserved_num
        return snapshots.keep_newest(count, fetched, before_begin_index)

    def _published(self, meta: SnapshotMeta, oldest: int, number: int) -> None:
        self._is_saving = False
        if number != self._state_number:
            self._withdraw(meta)
            return
        self.saved += 1
        took_us = self._environment.now_us() - self._save_started_us
        self._context.histograms.snapshot_save_seconds.observe(took_us / 1_000_000)
        if meta.last_included_index >= self._machine.newest_index:
            self._machine.newest = meta
        log_event(
            logger,
            logging.INFO,
            "snapshot saved",
            group=self._context.config.group,
            last_included_index=meta.last_included_index,
            bytes=meta.size_bytes,
        )
        self.answer_requests()
        kept = self._context.config.reset_snapshot_entries_but_keep_last_entries_num
        self.remove_covered(oldest - kept)
        self._control.advance()

    def _failed(self, error: Exception) -> None:
        """Keep the snapshot before, and the log after it: saving failed."""
        self._not_saved()
        if isinstance(error, MachineDamagedError):
            self._control.rebuild(str(error))
            return
        self._retry_timer.set(self._environment.now_ms() + RETRY_MS)
        group, text = self._context.config.group, str(error)
        log_event(logger, logging.ERROR, "snapshot could not be saved", group=group, text=text)
        requests, self._requests = self._requests, []
        for _, saved in requests:
            saved(ResponseCode.DISK_ERROR, f"it could not be saved: {error}", -1)

    def remove_covered(self, last: int) -> None:
        """Remove entries up to one that all snapshots hold, but not what a live member still needs.

        So an older snapshot can be used when the newer ones turn out to be damaged.
        """
        context, log = self._context, self._context.log
        if log.size_bytes <= self._context.config.follower_retention_bytes:
            last = min(last, context.core.retention_floor)
        self._retention.remove_until(last)

    # -- what cannot be believed ----------------------------------------------------------------

    def lost(self, index: int, error: CorruptionError) -> None:
        """A snapshot turned out to be damaged: another is saved in its place."""
        snapshots = self._snapshots
        if snapshots is None:
            return

        def done() -> None:
            if not self._requests and self._control.is_eligible:
                self.ask(lambda code, text, saved_index: None)

        self._change(lambda: snapshots.remove_broken(index, error), done)

    def distrust(self, trusted_index: int) -> None:
        """Trust neither the present state nor snapshots after an index.

        A snapshot that is being saved is not used. Those after the index are quarantined, by
        `quarantine_after`, and not removed: they may be all that is left of the state.
        """
        self._state_number += 1
        self._may_remove_quarantined = False
        if self._machine.newest_index > trusted_index:
            self._machine.newest = None

    def quarantine_after(self, index: int) -> None:
        """Quarantine snapshots after an index; on the machine's thread."""
        snapshots = self._snapshots
        if snapshots is not None:
            later = [found for found in snapshots.indexes() if found > index]
            if snapshots.quarantine(later):
                self.has_quarantined = True

    def agreed(self) -> None:
        """The machine's state equals a majority's.

        Once it has a snapshot of its own again, it needs none of the quarantined ones.
        """
        if self.has_quarantined and self._machine.newest is not None and self._control.is_eligible:
            self._may_remove_quarantined = True

    @property
    def may_remove_quarantined(self) -> bool:
        """Whether quarantined snapshots can be removed."""
        return self._may_remove_quarantined

    def _removing_quarantined(self) -> MachineJob:
        """Return the job that removes them: it uses the machine's thread, as quarantining does."""

        def run() -> None:
            if self._snapshots is not None and self._may_remove_quarantined:
                self._snapshots.remove_quarantined()

        def done(_: object) -> None:
            if self._may_remove_quarantined:
                self.has_quarantined = self._may_remove_quarantined = False

        return MachineJob(run, done)

    def restoring_quarantined(self, done: Callable[[], None]) -> MachineJob:
        """Return the job that puts quarantined snapshots back into use."""

        before = self._machine.newest

        def run() -> SnapshotMeta | None:
            if self._snapshots is not None:
                self._snapshots.restore_quarantined()
            return self.find_newest()

        def taken(found: SnapshotMeta | None) -> None:
            self.has_quarantined = self._may_remove_quarantined = False
            self.newest_found(before, found)
            done()

        return MachineJob(run, taken)

    def _withdraw(self, meta: SnapshotMeta) -> None:
        """Quarantine a snapshot of a state that is not trusted any more."""
        snapshots, index = self._snapshots, meta.last_included_index
        if snapshots is None:
            return
        self._refused.add(index)

        def run() -> None:
            if snapshots.quarantine([index]):
                self.has_quarantined = True

        def done() -> None:
            self._refused.discard(index)

        self._change(run, done)

    def _change(self, change: Callable[[], None], done: Callable[[], None]) -> None:
        """Take snapshots out of use, and find the newest that is left, on a thread."""
        before = self._machine.newest

        def run() -> SnapshotMeta | None:
            change()
            return self.find_newest()

        def changed(found: SnapshotMeta | None) -> None:
            self.newest_found(before, found)
            done()

        def failed(error: Exception) -> None:
            text = "a snapshot that is not to be used cannot be removed now"
            log_event(
                logger,
                logging.WARNING,
                text,
                group=self._context.config.group,
                reason=describe_error(error),
            )

        self._environment.executor.run(run, changed, failed)

    # -- loading ------------------------------------------------------------------------------

    def load_into(self, machine: StateMachine, meta: SnapshotMeta) -> SnapshotTrailer | None:
        """Have a machine load a snapshot, on its thread; None: it was broken and was removed."""
        snapshots, index = self._snapshots, meta.last_included_index
        if snapshots is None:
            return None
        try:
            snapshots.check(meta)
        except CorruptionError as error:
            snapshots.remove_broken(index, error)
            return None
        except StorageError:
            if snapshots.has(index):
                raise
            return None  # the scrub found it broken and removed it
        try:
            raw = snapshots.use(meta, machine.load_snapshot)
            trailer = _TRAILERS.decode(raw) if raw else SnapshotTrailer()
            found = machine.digest()
        except CorruptionError as error:
            self._refused.add(index)
            raise MachineDamagedError(f"snapshot {index} cannot be loaded: {error}") from error
        except TRANSIENT_ERRORS:
            raise
        except StorageError as error:
            raise MachineDamagedError(f"{error} while it loaded snapshot {index}") from error
        except Exception as error:
            if isinstance(error, OSError) and is_out_of_descriptors(error):
                raise storage_error(f"snapshot {index}", "loading", error) from error
            raise MachineError(
                f"{describe_error(error)} while it loaded snapshot {index}"
            ) from error
        if meta.digest and found != meta.digest:
            # the machine's state is now neither the old one nor the new one: it must not go on
            self._refused.add(index)
            raise MachineDamagedError(f"snapshot {index} gives another state than was saved")
        return trailer

    def loaded(self, meta: SnapshotMeta, trailer: SnapshotTrailer) -> None:
        """A machine has loaded a snapshot: take over its trailer, and answer waiting requests."""
        if trailer.tables:
            self._tables.learned(trailer.tables)
        if self._context.log.damaged:  # damaged entries below it are not needed any more
            self._retention.remove_until(meta.last_included_index)
        self.answer_requests()

    def find_newest(self) -> SnapshotMeta | None:
        """Return the newest snapshot on disk that can be used; on any thread but the loop's."""
        snapshots = self._snapshots
        return snapshots.newest(self._refused) if snapshots is not None else None

    def newest_found(self, before: SnapshotMeta | None, found: SnapshotMeta | None) -> None:
        """Take the result of `find_newest`; `before` was the newest when it was called."""
        if self._machine.newest is before:  # else another snapshot came meanwhile
            self._machine.newest = found


def _caught(run: Callable[[], _Frozen]) -> object:
    """Return a failure as a value, unless the machine failed, which must not be used again."""
    try:
        return run()
    except (MachineError, MachineDamagedError):
        raise
    except Exception as error:
        return error


def _with_digest(meta: SnapshotMeta, machine: StateMachine) -> SnapshotMeta:
    with damage_of_machine():
        digest = machine.digest()
    if not isinstance(digest, bytes):
        given = type(digest).__name__
        raise MachineError(f"{type(machine).__name__}.digest gave {given}; it must give bytes")
    return msgspec.structs.replace(meta, digest=digest)


def _frozen(machine: StateMachine, index: int) -> FrozenState | None:
    try:
        with damage_of_machine():
            return machine.freeze()
    except (MachineDamagedError, *TRANSIENT_ERRORS):
        raise
    except Exception as error:
        raise MachineError(f"{describe_error(error)} while it was frozen at {index}") from error


def _write(
    snapshots: Snapshots, meta: SnapshotMeta, state: FrozenState | StateMachine, trailer: bytes
) -> SnapshotMeta:
    """Write and publish a state and its `SnapshotTrailer`."""
    saving = snapshots.begin()
    try:
        try:
            state.save_snapshot(saving)
        except CorruptionError as error:
            raise MachineDamagedError(str(error)) from error
        saving.write(trailer)
        return saving.publish(msgspec.structs.replace(meta, kept_bytes=len(trailer)))
    except BaseException:
        saving.abandon()
        raise
