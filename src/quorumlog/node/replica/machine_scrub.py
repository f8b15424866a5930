"""Reads the snapshots and the state of a machine now and then, to find damage before it matters.

A pass starts with the process and every `scrubIntervalHours`. It reads all snapshots at
`scrubBytesPerSecond`, then the state, except in the first pass: the state was read when the machine
was opened.
"""

import logging

from quorumlog.log_events import describe_error, log_event
from quorumlog.machine.base import FrozenState, StateMachine
from quorumlog.model.block import Buffer
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
    MachineJob,
    damage_of_machine,
)
from quorumlog.node.replica.machine_state import MachineState
from quorumlog.node.replica.snapshotter import Snapshotter
from quorumlog.storage.log.snapshots import Checking, Snapshots

logger = logging.getLogger(__name__)

STEP_BYTES = 512 * 1024
"""Read and checked at a time; the rate decides how often."""
RETRY_MS = 1_000


class MachineScrub:
    """The part of a replica that reads its snapshots and its machine's state, now and then.

    All methods run on the event loop's thread.
    """

    def __init__(
        self,
        context: ReplicaContext,
        snapshots: Snapshots | None,
        machine: MachineState,
        control: MachineControl,
        snapshotter: Snapshotter,
    ) -> None:
        self._context = context
        self._environment = environment = context.environment
        self._snapshots = snapshots
        self._machine = machine
        self._control = control
        self._snapshotter = snapshotter
        self._rate = context.config.scrub_bytes_per_second
        self._timer = context.timers.new(self.tick)
        if self._rate and snapshots is not None:
            self._timer.set(environment.now_ms())
        self._retry_timer = context.timers.new(self._retry)
        self._pass_started_ms = 0
        self._to_check: list[int] | None = None
        self._checking: Checking | None = None
        self._is_busy = False
        self._passes = 0
        self.should_check = False
        self.checked_ms = 0

    def check_soon(self) -> None:
        """Have the machine's state read, as it may be damaged."""
        self.should_check = True
        self._control.advance()

    # -- snapshots ----------------------------------------------------------------------------

    def suspect(self, index: int) -> None:
        """Read this snapshot next: a peer received it and found it broken."""
        to_check = self._to_check if self._to_check is not None else []
        if index not in to_check:
            to_check.insert(1 if to_check and (self._is_busy or self._checking) else 0, index)
        self._to_check = to_check
        self._timer.set_earlier(self._environment.now_ms())

    def tick(self, now_ms: int) -> None:
        """Read the next part of a snapshot."""
        snapshots, machine = self._snapshots, self._machine
        is_driven = machine.machine is not None and not machine.failed_text
        if snapshots is None or self._is_busy or not is_driven:
            return
        if self._to_check is None:
            self._to_check, self._pass_started_ms = snapshots.indexes()[::-1], now_ms
        if self._checking is None and not self._to_check:
            self._end_pass(now_ms)
            return
        checking, index = self._checking, self._to_check[0] if self._to_check else -1
        self._is_busy = True

        def work() -> Checking | None:
            current = snapshots.checking(index) if checking is None else checking
            return None if current.step(STEP_BYTES) else current

        self._environment.executor.run(
            work, self._stepped, lambda error: self._failed(index, checking, error)
        )

    def _stepped(self, checking: Checking | None) -> None:
        self._checking = checking
        pause_ms = max(1, STEP_BYTES * 1_000 // self._rate) if self._rate else 1
        self._advance(pause_ms, is_over=checking is None)

    def _failed(self, index: int, checking: Checking | None, error: Exception) -> None:
        was_started = not isinstance(error, LeaderPendingFullError)
        self._checking = None if was_started else checking  # a step that fails closes it
        if not was_started or isinstance(error, TRANSIENT_ERRORS):
            self._advance(RETRY_MS, is_over=False)
            return
        if isinstance(error, CorruptionError):
            self._context.counters.snapshots_damaged += 1
            self._snapshotter.lost(index, error)
        elif not isinstance(error, StorageError):  # a snapshot may have been removed meanwhile
            log_event(
                logger,
                logging.ERROR,
                "snapshot cannot be checked",
                exc_info=error,
                group=self._context.config.group,
                index=index,
            )
        self._advance(1, is_over=True)

    def _advance(self, pause_ms: int, *, is_over: bool) -> None:
        if is_over and self._to_check:
            del self._to_check[0]
        self._is_busy = False
        self._timer.set(self._environment.now_ms() + pause_ms)

    def _end_pass(self, now_ms: int) -> None:
        self._to_check = None
        interval_ms = int(self._context.config.scrub_interval_hours * 3_600_000)
        if self._rate:
            self._timer.set(max(now_ms + 1, self._pass_started_ms + interval_ms))
        self._passes += 1
        if self._passes > 1:
            self.check_soon()
        else:
            self.checked_ms = self._environment.wall_ms()

    # -- the state ----------------------------------------------------------------------------

    def checking(self, machine: StateMachine) -> MachineJob:
        """Return the job that reads the machine's state, beside the machine if it can be frozen."""
        self.should_check = False

        def run() -> FrozenState | None:
            with damage_of_machine():
                frozen = machine.freeze()
                if frozen is None:
                    machine.check()
            return frozen

        def done(frozen: FrozenState | None) -> None:
            if frozen is None:
                self._checked(None)
            else:
                self._read(machine, frozen)

        return MachineJob(run, done, refused=self._check_later)

    def _retry(self, now_ms: int) -> None:
        self._control.advance()

    def _check_later(self) -> None:
        self.should_check = True

    def _read(self, machine: StateMachine, frozen: FrozenState) -> None:
        def work() -> None:
            try:
                frozen.save_snapshot(_Nowhere())
            finally:
                frozen.close()

        def failed(error: Exception) -> None:
            if isinstance(error, LeaderPendingFullError):
                frozen.close()  # the check was not started
                self._check_later()
                self._retry_timer.set(self._environment.now_ms() + RETRY_MS)
            elif machine is not self._machine.machine:
                return
            elif isinstance(error, CorruptionError | MachineDamagedError):
                self._control.rebuild(str(error))
            else:
                log_event(
                    logger,
                    logging.WARNING,
                    "state cannot be checked now",
                    group=self._context.config.group,
                    reason=describe_error(error),
                )

        self._environment.executor.run(work, self._checked, failed)

    def _checked(self, _: None) -> None:
        self.checked_ms = self._environment.wall_ms()
        log_event(logger, logging.INFO, "state checked", group=self._context.config.group)


class _Nowhere:
    def write(self, data: Buffer) -> None:
        """Discard the data."""
