"""Drives a group's state machine: entries in, results out, queries, snapshots (spec 40).

Everything that the machine does is a job; jobs run one after the other on a thread, never on the
event loop's. Only entries that are committed and durable here are applied, so a machine never holds
anything that this replica's log does not. In a plain log an entry counts as applied once it is
committed.
"""

import logging
import traceback

from quorumlog.log_events import describe_error, log_event
from quorumlog.machine.base import StateMachine
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import Role
from quorumlog.model.errors import (
    TRANSIENT_ERRORS,
    CorruptionError,
    IndexRemovedError,
    LeaderPendingFullError,
    StorageError,
)
from quorumlog.node.replica.appends import Appends
from quorumlog.node.replica.comparisons import Comparisons
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.entry_applier import EntryApplier
from quorumlog.node.replica.former_state import FormerState
from quorumlog.node.replica.machine_jobs import (
    MachineDamagedError,
    MachineError,
    MachineJob,
    damage_of_machine,
)
from quorumlog.node.replica.machine_recovery import MachineRecovery
from quorumlog.node.replica.machine_scrub import MachineScrub
from quorumlog.node.replica.machine_state import MachineState
from quorumlog.node.replica.pending_requests import PendingRequests
from quorumlog.node.replica.queries import Queries
from quorumlog.node.replica.retention import Retention
from quorumlog.node.replica.served_snapshots import ServedSnapshots
from quorumlog.node.replica.snapshot_requests import SnapshotRequests
from quorumlog.node.replica.snapshotter import Snapshotter
from quorumlog.node.replica.tables import Tables
from quorumlog.storage.log.snapshots import SnapshotMeta, Snapshots

logger = logging.getLogger(__name__)

RETRY_MS = 1_000
"""Pause before entries that could not be read are read again."""


class Applier:
    """The part of a replica that drives its state machine.

    All methods run on the event loop's thread.
    """

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        context: ReplicaContext,
        machine: MachineState,
        snapshots: Snapshots | None,
        tables: Tables,
        requests: PendingRequests,
        appends: Appends,
        retention: Retention,
        served: ServedSnapshots,
        snapshot_requests: SnapshotRequests,
    ) -> None:
        self._context = context
        self._environment = context.environment
        self.state = machine
        self._snapshots = snapshots
        self._appends = appends
        self.queries = Queries(context, machine, self, requests)
        self.snapshotter = Snapshotter(context, snapshots, machine, self, tables, served, retention)
        self.former_state = FormerState(context, snapshots, machine, self.snapshotter, served)
        self.scrub = MachineScrub(context, snapshots, machine, self, self.snapshotter)
        self.comparisons = Comparisons(context, machine, self, self.snapshotter, self.scrub)
        self._recovery = MachineRecovery(
            context, machine, self, self.snapshotter, snapshot_requests
        )
        self._entries = EntryApplier(
            context,
            machine,
            appends,
            self.queries,
            self.snapshotter,
            self.comparisons,
            context.timers.new(self._resume),
        )
        self._pause = context.timers.new(self._resume)
        self._transient_text = ""
        self._is_busy = False

    @property
    def is_eligible(self) -> bool:
        """Whether the machine works, and has what it once had."""
        state = self.state
        return not state.failed_text and self._recovery.is_over and not state.is_behind

    @property
    def condition(self) -> str:
        """A word for what keeps entries from the machine; empty: nothing does."""
        return self._recovery.condition

    @property
    def condition_text(self) -> str:
        """The same in a sentence, or what the machine cannot do at present."""
        return self._transient_text or self._recovery.condition_text

    @property
    def snapshots_kept(self) -> int:
        """Number of snapshots on disk; it looks there, on any thread."""
        return len(self._snapshots.indexes()) if self._snapshots is not None else 0

    @property
    def is_loading(self) -> bool:
        """Whether the machine loads a snapshot, or is about to."""
        return self._recovery.is_loading

    @property
    def is_paused(self) -> bool:
        """See `RecoveryControl`."""
        return self._pause.due_ms != NEVER_MS

    def pause_until(self, due_ms: int) -> None:
        """See `RecoveryControl`."""
        self._pause.set(due_ms)

    def resume(self) -> None:
        """See `RecoveryControl`."""
        self._pause.clear()

    def _resume(self, now_ms: int) -> None:
        """A pause, or a wait for more entries, is over."""
        self.advance()

    # -- what happens -------------------------------------------------------------------------

    def committed(self, index: int) -> None:
        """The committed index rose."""
        if self.state.machine is None:
            self._appends.applied(index, lambda first, last: [])
        else:
            self.advance()

    def role_changed(self, term: int, role: Role) -> None:
        """Report the new role to the machine."""
        if self.state.machine is not None:
            self.state.unreported_role = (term, role)
            self.advance()

    def load(self, meta: SnapshotMeta) -> None:
        """A snapshot was fetched, and the log starts after it: the machine must have it."""
        self._recovery.load(meta)

    def rebuild(self, why: str, *, trusted_index: int | None = None) -> None:
        """Rebuild the machine from a snapshot and the log: its state cannot be trusted.

        Nor can snapshots after `trusted_index`, if that is given: they are quarantined.
        """
        self._recovery.rebuild(why, trusted_index=trusted_index)

    # -- jobs ---------------------------------------------------------------------------------

    def advance(self) -> None:
        """Start the machine's next job, if none is running and there is one."""
        machine = self.state.machine
        if machine is None or self._is_busy or self.state.failed_text or self._context.is_broken:
            return
        work = self._next_query(machine) if self.is_paused else self._next_work(machine)
        if work is not None:
            self._is_busy = True
            self._environment.machines.run(
                work.run,
                lambda found: self._done(work, found),
                lambda error: self._failed(work, error),
            )

    def _done(self, work: MachineJob, found: object) -> None:
        self._is_busy = False
        self._transient_text = ""
        try:
            work.done(found)
        finally:  # even if passing on a result raised: others wait
            self.advance()

    def _next_work(self, machine: StateMachine) -> MachineJob | None:
        if not self._recovery.is_over:
            return self._recovery.next_job(machine)
        if self.state.unreported_role is not None:
            return self._reporting_role(machine, self.state.unreported_role)
        if self.snapshotter.may_remove_quarantined or self.snapshotter.should_save:
            return self.snapshotter.next_work(machine)
        if self.scrub.should_check and self.is_eligible:
            return self.scrub.checking(machine)
        return self._entries.next_job(machine) or self._next_query(machine)

    def _next_query(self, machine: StateMachine) -> MachineJob | None:
        if not self.queries.is_ready:
            return None
        self._entries.has_applied = False
        return self.queries.next_job(machine)

    def _reporting_role(self, machine: StateMachine, role: tuple[int, Role]) -> MachineJob:
        self.state.unreported_role = None

        def run() -> None:
            try:
                with damage_of_machine():
                    machine.on_role_change(*role)
            except TRANSIENT_ERRORS:
                raise
            except Exception as error:
                text = "".join(traceback.format_exception(error))
                raise MachineError(f"{describe_error(error)} in on_role_change\n{text}") from error

        def refused() -> None:
            self.state.unreported_role = self.state.unreported_role or role

        return MachineJob(run, refused=refused)

    def _failed(self, work: MachineJob, error: Exception) -> None:
        """A job failed: retry if something could not be read, else stop a machine that raised."""
        self._is_busy = False
        self._entries.has_applied = True
        context = self._context
        if isinstance(error, (LeaderPendingFullError, *TRANSIENT_ERRORS)):
            work.refused()
        if isinstance(error, MachineError):
            self.fail(str(error))
            return
        if isinstance(error, MachineDamagedError):
            work.refused()
            self.rebuild(str(error))
            return
        if isinstance(error, CorruptionError) and error.index is not None:
            context.damage_found(error)
        elif not isinstance(error, IndexRemovedError | LeaderPendingFullError | StorageError):
            self.fail(describe_error(error))
            return
        # the entries are removed: the log was reset to start after a snapshot, which is loaded next
        if isinstance(error, TRANSIENT_ERRORS):
            self._transient_text = f"it cannot go on now, and tries again: {error}"
        self.pause_until(self._environment.now_ms() + RETRY_MS)
        log_event(
            logger,
            logging.WARNING,
            "entries cannot be applied now",
            group=context.config.group,
            first_index=self.state.applied + 1,
            text=str(error),
        )

    def fail(self, text: str) -> None:
        """Apply nothing more: the machine does not match the log any more."""
        context = self._context
        self.state.failed_text = text
        log_event(
            logger,
            logging.CRITICAL,
            "state machine failed",
            group=context.config.group,
            applied_index=self.state.applied,
            text=text,
        )
        self.queries.refuse_all()
        self.snapshotter.end(self.state.failure_text)
        context.update_eligibility()

    def rebuilt(self) -> None:
        """See `RecoveryControl`."""
        self.comparisons.forget()
        self.queries.applied_less()

    def loaded(self) -> None:
        """See `RecoveryControl`."""
        self._entries.forget_results()
        self.queries.release()

    def applied(self) -> None:
        """See `RecoveryControl`."""
        self.queries.release()

    def close(self) -> None:
        """Close the machine: the node stops, and its machine threads have ended."""
        self._recovery.close()
