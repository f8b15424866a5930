"""What a simulated process has in place of threads: each piece of work happens a little later."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from quorumlog.model.config import JOURNAL_NAME
from quorumlog.model.errors import StorageError
from quorumlog.node.disk import Barrier, Submission, report_commit
from quorumlog.node.environment import WriteOwner
from quorumlog.node.turn import Turn
from quorumlog.sim.disk import SimulatedFileSystem
from quorumlog.storage.files.write_plans import WritePlan
from quorumlog.storage.journal.writer import JournalLimits, NodeJournal
from quorumlog.storage.log.group_store import HINT_PAUSE_MS, GroupStore

T = TypeVar("T")
STALL_CHECK_US = 20_000
"""How often a stalled disk is polled."""


class Process(Protocol):
    """The process that the work is done in. `is_stalled`: no write ends at present."""

    files: SimulatedFileSystem

    @property
    def directory(self) -> str:
        """Where its node keeps its groups and its journal."""
        ...

    @property
    def is_stalled(self) -> bool:
        """Whether no write ends at present."""
        ...

    @property
    def simulated_us(self) -> int:
        """The time of the simulation, whatever the machine's clock shows."""
        ...

    def disk_us(self) -> int:
        """Return how long the next group commit, or read, takes."""
        ...

    def later(self, delay_us: int, action: Callable[[], object]) -> None:
        """Plan an action in this life of the process."""
        ...

    def broken(self, reason: str) -> None:
        """End the process: it must not go on."""
        ...


class SimulatedDiskWorker:
    """Carries out all waiting writes as one group commit, a little later.

    Writes that are submitted meanwhile go into the next one, as with a thread. What is submitted
    until `at_end` calls back goes into one together, as in `DiskWorker`.
    """

    def __init__(
        self,
        process: Process,
        turn: Turn,
        limits: JournalLimits,
        at_end: Callable[[Callable[[], None]], object] = lambda hand_over: hand_over(),
    ) -> None:
        self._process = process
        self._turn = turn
        self._at_end = at_end
        settler = _Settler(process, self.fail)
        path = f"{process.directory}/{JOURNAL_NAME}"
        self._journal = NodeJournal(process.files, path, settler, limits=limits)
        self._store = GroupStore(self._journal, lambda: process.simulated_us // 1_000)
        self._submitted = 0
        self._queue: deque[tuple[Submission, int]] = deque()
        self._owners: dict[WriteOwner, None] = {}
        self._is_busy = self._has_failed = False
        self._batch = 0
        self.queued_bytes = 0

    @property
    def waits_us(self) -> int:
        """How long the oldest write that a core waits for has been waiting."""
        now_us = self._process.simulated_us
        waiting = (since_us for item, since_us in self._queue if item.token is not None)
        return now_us - next(waiting, now_us)

    def waits_us_of(self, owner: object) -> int:
        """Return how long the oldest such write of one owner has been waiting."""
        now_us, queue = self._process.simulated_us, self._queue
        waiting = (at for item, at in queue if item.token is not None and item.owner is owner)
        return now_us - next(waiting, now_us)

    def submit(self, owner: WriteOwner, token: int | None, plan: WritePlan) -> None:
        """See `Disk`."""
        self._owners[owner] = None
        if not self._has_failed:
            self.queued_bytes += plan.size_bytes
            submission = Submission(owner, token, plan)
            self._queue.append((submission, self._process.simulated_us))
            self._submitted += 1
            if self._submitted == 1:
                self._at_end(self._hand_over)

    def end(self, owners: Sequence[WriteOwner], last: WritePlan, done: Callable[[], None]) -> None:
        """See `Disk`."""

        def reported() -> None:
            for owner in (barrier, *owners):
                self._owners.pop(owner, None)
            done()

        barrier = Barrier(reported)
        self.submit(barrier, None, last)

    def _hand_over(self) -> None:
        """What was submitted in this turn may be written."""
        self._submitted = 0
        self._begin()

    def _begin(self) -> None:
        handed_over = len(self._queue) - self._submitted
        if not self._is_busy and handed_over and not self._has_failed:
            self._is_busy = True
            self._batch = handed_over
            self._process.later(self._process.disk_us(), self._commit)

    def _commit(self) -> None:
        if self._process.is_stalled:
            self._process.later(STALL_CHECK_US, self._commit)
            return
        batch = [self._queue.popleft()[0] for _ in range(self._batch)]
        try:
            self._store.execute([item.plan for item in batch], sync=True)
        except StorageError as error:
            self.fail(error)
            return
        self._is_busy = False
        self._process.later(HINT_PAUSE_MS * 1_000, self._idle)
        self.queued_bytes -= sum(item.plan.size_bytes for item in batch)
        self._turn.run(report_commit, batch)
        self._begin()

    def _idle(self) -> None:
        if self._is_busy or self._has_failed:
            return
        try:
            self._store.idle()
        except StorageError as error:
            self.fail(error)

    def fail(self, error: StorageError) -> None:
        """Tell everybody, once, that nothing is written any more."""
        if self._has_failed:
            return
        self._has_failed = True
        for owner in list(self._owners):
            owner.write_failed(error)
        self._process.broken(str(error))

    def close(self) -> None:
        """End as an orderly stop does, if nothing failed."""
        if not self._has_failed and not self._is_busy:
            with suppress(StorageError):
                self._store.close()


class _Settler:
    """Carries out steps one after the other, each a little later, as a thread would."""

    def __init__(self, process: Process, on_failure: Callable[[StorageError], object]) -> None:
        self._process = process
        self._on_failure = on_failure
        self._steps: deque[Callable[[], bool]] = deque()

    def run(self, step: Callable[[], bool]) -> None:
        """See `Settler`."""
        self._steps.append(step)
        if len(self._steps) == 1:
            self._process.later(self._process.disk_us(), self._next)

    def _next(self) -> None:
        if not self._steps:
            return
        if self._process.is_stalled:
            self._process.later(STALL_CHECK_US, self._next)
            return
        try:
            if not self._steps[0]():
                self._steps.popleft()
        except StorageError as error:
            self._on_failure(error)
            return
        if self._steps:
            self._process.later(self._process.disk_us(), self._next)

    def finish(self) -> None:
        """See `Settler`."""
        self._steps.clear()


class SimulatedExecutor:
    """Runs work a little later, as a thread would."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def run(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        client: object = None,
        dropped: Callable[[], None] | None = None,
    ) -> None:
        """See `Executor`; no client leaves."""

        def happen() -> None:
            try:
                result = work()
            except Exception as error:
                failed(error)
                return
            done(result)

        self._process.later(self._process.disk_us(), happen)
