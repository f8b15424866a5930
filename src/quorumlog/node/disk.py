"""The disk thread of a data directory: group commit over all its groups.

Everything submitted while the last fsync ran is written with the next one (DESIGN section 2.4).
A second thread fsyncs what nobody waits for.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from quorumlog.log_events import describe_error, log_event
from quorumlog.model.errors import InvariantViolation, StorageError
from quorumlog.node.environment import WriteOwner
from quorumlog.storage.files.os_files import SPARES
from quorumlog.storage.files.write_plans import Store, WritePlan
from quorumlog.storage.log.group_store import HINT_PAUSE_MS

logger = logging.getLogger(__name__)

SLOW_SYNC_SECONDS = 0.5
"""A group commit slower than this is logged (DLedger's bound for a slow flush)."""


class Submission(msgspec.Struct, eq=False):
    """One queued write."""

    owner: WriteOwner
    token: int | None
    plan: WritePlan


def report_commit(batch: Sequence[Submission]) -> None:
    """Report a completed group commit to the owners of its writes."""
    owners: dict[WriteOwner, None] = {}
    for item in batch:
        item.plan.completed()
        item.owner.written(item.token, item.plan)
        owners[item.owner] = None
    for owner in owners:
        owner.writes_completed()


class Barrier:
    """The owner of a group's last write: all that were submitted before it are done with it."""

    def __init__(self, reached: Callable[[], None]) -> None:
        self._reached = reached

    def written(self, token: int | None, plan: WritePlan) -> None:
        """See `WriteOwner`."""

    def writes_completed(self) -> None:
        """See `WriteOwner`."""
        self._reached()

    def write_failed(self, error: StorageError) -> None:
        """See `WriteOwner`."""


class SettlerThread:
    """Does beside the disk thread what nobody waits for; see `Settler`.

    `on_failure` gets the first error, on this thread. It is started when it is first needed.
    """

    def __init__(self, on_failure: Callable[[StorageError], object]) -> None:
        self._on_failure = on_failure
        self._queue: queue.SimpleQueue[Callable[[], bool] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_finished = False

    def run(self, step: Callable[[], bool]) -> None:
        """See `Settler`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="quorumlog-settler", daemon=True)
            self._thread.start()
        self._queue.put(step)

    def finish(self) -> None:
        """See `Settler`."""
        self._is_finished = True
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        SPARES.wait_on_this_thread()
        while (step := self._queue.get()) is not None:
            try:
                while not self._is_finished and step():
                    pass
            except StorageError as error:
                self._on_failure(error)
                return
            except Exception as error:  # a bug must end the node, not hide
                log_event(logger, logging.ERROR, "settler thread failed", exc_info=error)
                self._on_failure(StorageError(f"settler thread: {describe_error(error)}"))
                return


class DiskWorker:
    """The disk thread and its queue. Its methods run on the event loop's thread, but `join`.

    `call_soon_threadsafe` brings a call back to the loop's thread. `observe_commit` gets the
    seconds and bytes of each group commit (on the disk thread), `on_failure` the first failure.
    With `sync_interval_ms` above 0 writes are reported before they are fsynced, and an fsync
    follows within that time (unsafe). What is submitted until `at_end` calls back is given to the
    thread together: what all groups write in one turn of the loop takes one group commit.
    """

    def __init__(
        self,
        store: Store,
        call_soon_threadsafe: Callable[..., object],
        observe_commit: Callable[[float, int], None],
        on_failure: Callable[[StorageError], None],
        *,
        sync_interval_ms: int = 0,
        at_end: Callable[[Callable[[], None]], object] = lambda hand_over: hand_over(),
    ) -> None:
        self._store = store
        self._call_soon = call_soon_threadsafe
        self._observe = observe_commit
        self._on_failure = on_failure
        self._sync_interval_s = sync_interval_ms / 1000
        self._at_end = at_end
        self._submitted: list[Submission] = []
        self._queue: queue.SimpleQueue[list[Submission] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="quorumlog-disk", daemon=True)
        self._owners: set[WriteOwner] = set()
        self._failure: StorageError | None = None
        self._is_stopped = False
        self._has_put_off = False
        self.queued_bytes = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Have the thread write what is queued, close the store, and end; `join` waits for that.

        From now on owners get no reports: they are about to be closed. After a failure nothing is
        written: the store lets go of its files.
        """
        self._is_stopped = True
        self._hand_over()
        self._queue.put(None)

    def join(self) -> None:
        """Wait until the thread has ended; on any thread."""
        if self._thread.is_alive():
            self._thread.join()

    def set_sync_interval(self, sync_interval_ms: int) -> None:
        """Report writes that are submitted from now on as a worker made with this interval does."""
        self._sync_interval_s = sync_interval_ms / 1000

    def end(self, owners: Sequence[WriteOwner], last: WritePlan, done: Callable[[], None]) -> None:
        """See `Disk`. After a failure `done` is never called: the process is about to end."""

        def reported() -> None:
            self._owners.difference_update(owners)
            self._owners.discard(barrier)
            done()

        barrier = Barrier(reported)
        self.submit(barrier, None, last)

    def submit(self, owner: WriteOwner, token: int | None, plan: WritePlan) -> None:
        """Queue a write. After a failure nothing is written and nothing is reported."""
        self._owners.add(owner)
        if self._failure is None:
            self.queued_bytes += plan.size_bytes
            self._submitted.append(Submission(owner, token, plan))
            if len(self._submitted) == 1:
                self._at_end(self._hand_over)

    def _hand_over(self) -> None:
        """Give the thread what was submitted in this turn."""
        submitted, self._submitted = self._submitted, []
        if submitted and self._failure is None:
            self._queue.put(submitted)

    def _run(self) -> None:
        """Write until `stop` is called, and leave the store closed."""
        SPARES.wait_on_this_thread()
        if self._write_all():
            try:
                self._store.close()
            except StorageError as error:
                text = str(error)
                log_event(logger, logging.WARNING, "journal stays for the next start", text=text)
            return
        while not self._is_stopped:
            self._queue.get()
        self._store.abandon()

    def _write_all(self) -> bool:
        """Write everything that is queued, fsync once and report it, until `stop` is called.

        Returns False after the first failure.
        """
        dirty_since: float | None = None
        running = True
        while running:
            batch, running = self._gather(dirty_since)
            due = dirty_since is not None and (
                time.monotonic() - dirty_since >= self._sync_interval_s
            )
            is_last = not running or any(isinstance(item.owner, Barrier) for item in batch)
            sync = not self._sync_interval_s or due or is_last
            try:
                self._commit(batch, sync=sync)
            except StorageError as error:
                self.fail(error)
                return False
            except Exception as error:  # a bug in the store must end the replica, not hide
                log_event(logger, logging.ERROR, "disk thread failed", exc_info=error)
                self.fail(StorageError(f"disk thread: {describe_error(error)}"))
                return False
            if sync:
                dirty_since = None
            elif batch and dirty_since is None:
                dirty_since = time.monotonic()
            if batch:
                self._call_soon(self._completed, batch)
        return True

    def fail(self, error: StorageError) -> None:
        """End everything as after a failed write; on any thread."""
        self._call_soon(self._failed, error)

    def _gather(self, dirty_since: float | None) -> tuple[list[Submission], bool]:
        """Wait for work; return all there is, and False when asked to stop."""
        batch: list[Submission] = []
        timeout = HINT_PAUSE_MS / 1000 if self._has_put_off else None
        if dirty_since is not None:
            timeout = max(0.0, dirty_since + self._sync_interval_s - time.monotonic())
        try:
            item = self._queue.get(timeout=timeout)
            while item is not None:
                batch += item
                item = self._queue.get_nowait()
        except queue.Empty:
            return batch, True
        return batch, False

    def _commit(self, batch: list[Submission], *, sync: bool) -> None:
        if not batch and not (sync and self._sync_interval_s):
            self._has_put_off = self._store.idle()
            return
        plans: list[WritePlan] = []
        size_bytes = 0
        for item in batch:
            plans.append(item.plan)
            size_bytes += item.plan.size_bytes
        started = time.perf_counter()
        self._store.execute(plans, sync=sync)
        took = time.perf_counter() - started
        self._has_put_off = True
        self._observe(took, size_bytes)
        if took > SLOW_SYNC_SECONDS:
            log_event(
                logger, logging.WARNING, "slow disk", seconds=round(took, 3), bytes=size_bytes
            )

    def _completed(self, batch: list[Submission]) -> None:
        """On the loop's thread: report a group commit to the owners."""
        for item in batch:
            self.queued_bytes -= item.plan.size_bytes
        if self.queued_bytes < 0:
            raise InvariantViolation(f"queued bytes must not fall below 0: {self.queued_bytes}")
        if not self._is_stopped and self._failure is None:
            report_commit(batch)

    def _failed(self, error: StorageError) -> None:
        """On the loop's thread: the directory is poisoned (RELIABILITY 2.2), everyone must stop.

        What the settler reports the disk thread finds again: once is enough.
        """
        if self._failure is not None:
            return
        self._failure = error
        for owner in () if self._is_stopped else list(self._owners):
            owner.write_failed(error)
        self._on_failure(error)
