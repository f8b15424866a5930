"""Giving committed entries to a replica's machine, in batches, and their results to appends."""

import logging
from typing import NamedTuple

from quorumlog.log_events import describe_error, log_event
from quorumlog.machine.base import StateMachine
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import Role
from quorumlog.model.errors import TRANSIENT_ERRORS, OutOfDescriptorsError
from quorumlog.node.replica.appends import Appends
from quorumlog.node.replica.command_results import CommandResults
from quorumlog.node.replica.comparisons import Comparisons
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.digest_comparison import DIGEST_BYTES_MAX
from quorumlog.node.replica.fetches import gather
from quorumlog.node.replica.machine_jobs import (
    ApplyBatch,
    MachineDamagedError,
    MachineError,
    MachineJob,
    damage_of_machine,
)
from quorumlog.node.replica.machine_state import MachineState
from quorumlog.node.replica.part_timers import PartTimer
from quorumlog.node.replica.queries import Queries
from quorumlog.node.replica.snapshotter import Snapshotter

logger = logging.getLogger(__name__)

APPLY_ENTRIES = 1_024
APPLY_BYTES = 1024 * 1024
"""Entries passed to a machine in one batch, and their bytes (but always one entry)."""
RESULTS_KEPT = 65_536
"""Number of results above which those that no append waits for are dropped."""


class _Applied(NamedTuple):
    """The results of a batch; `digest` is empty unless states are compared after it."""

    last_index: int
    seconds: float
    size_bytes: int
    results: dict[int, bytes]
    digest: bytes


class EntryApplier:
    """The part of a replica that has its machine apply entries.

    `has_applied`: entries were applied since queries were last answered, so it is the turn of
    queries. `linger` fires when a batch has waited long enough for others. All methods run on the
    event loop's thread, except those that say otherwise.
    """

    def __init__(
        self,
        context: ReplicaContext,
        machine: MachineState,
        appends: Appends,
        queries: Queries,
        snapshotter: Snapshotter,
        comparisons: Comparisons,
        linger: PartTimer,
    ) -> None:
        self._context = context
        self._machine = machine
        self._appends = appends
        self._queries = queries
        self._snapshotter = snapshotter
        self._comparisons = comparisons
        self._linger = linger
        self._results: dict[int, bytes] = {}
        self._apply_at_ms = NEVER_MS
        self._due_index = -1
        self.has_applied = False

    def next_job(self, machine: StateMachine) -> MachineJob | None:
        """Return the job that applies the next batch; None if there is none, or not yet."""
        core, applied = self._context.core, self._machine.applied
        last = min(core.committed_index, core.durable_index)
        asks_first = self.has_applied and self._queries.is_ready
        if last <= applied or asks_first or not self._is_time_to_apply(machine, last):
            return None
        point = self._comparisons.points.after(applied)
        last = min(last, applied + APPLY_ENTRIES, point)
        return self._applying(machine, applied + 1, last)

    def forget_results(self) -> None:
        """Forget all results: a snapshot was loaded, so answers no longer include them."""
        self._results.clear()

    def _is_time_to_apply(self, machine: StateMachine, last: int) -> bool:
        """Whether to apply now. If no client waits for a result, larger batches cost less.

        Entries that were there when the time had come do not wait again, even if they are applied
        in several batches: else a follower that compares its state after each entry would apply
        only 50 entries a second.
        """
        now_ms = self._context.environment.now_ms()
        is_requested = self._queries.is_waiting or self._snapshotter.is_requested
        led = len(self._appends.pending) > 0  # whether it led when they were committed
        is_awaited = self._context.core.role is Role.LEADER or led or is_requested
        is_due = self._machine.applied < self._due_index
        if is_awaited or is_due or last - self._machine.applied >= APPLY_ENTRIES:
            self._apply_at_ms = NEVER_MS
            self._due_index = last
            return True
        if self._apply_at_ms == NEVER_MS:
            self._apply_at_ms = now_ms + machine.linger_ms
            self._linger.set(self._apply_at_ms)
        if now_ms < self._apply_at_ms:
            return False
        self._apply_at_ms = NEVER_MS
        self._due_index = last
        return True

    def _applying(self, machine: StateMachine, first: int, last: int) -> MachineJob:
        log, limits = self._context.log, APPLY_BYTES
        histograms, now_us = self._context.histograms, self._context.environment.now_us
        found = gather(log, first, last, limits) if log.is_in_memory(first) else None

        def run() -> _Applied:
            runs = gather(log, first, last, limits) if found is None else found
            batch = ApplyBatch.of([entries.block() for entries in runs])
            size, end = sum(len(entries.data) for entries in runs), runs[-1].last_index
            started_us = now_us()
            results = self._apply(machine, batch)
            seconds = (now_us() - started_us) / 1_000_000
            return _Applied(end, seconds, size, results, self._digest_at(machine, end))

        def done(found: _Applied) -> None:
            self._machine.applied, size, results = found.last_index, found.size_bytes, found.results
            histograms.apply_seconds.observe(found.seconds)
            histograms.apply_entries.observe(found.last_index - first + 1)
            self.has_applied = True
            self._snapshotter.applied(size)
            if len(self._appends.pending):
                self._results.update(results)
            if not self._machine.is_behind:
                self._context.environment.applied(machine)
            self._appends.applied(self._machine.applied, self._take_results)
            self._forget_unwanted()
            self._queries.release()
            if found.digest:
                self._comparisons.reached(self._machine.applied, found.digest)
            if self._machine.has_caught_up():
                self._context.update_eligibility()

        return MachineJob(run, done)

    def _apply(self, machine: StateMachine, batch: ApplyBatch) -> dict[int, bytes]:
        """Apply a batch; runs on the machine's thread."""
        try:
            return batch.apply_to(machine, self._machine.results)
        except TRANSIENT_ERRORS as error:
            if machine.applied_index != self._machine.applied:  # it does not store its own state
                if isinstance(error, OutOfDescriptorsError):
                    raise MachineDamagedError(f"{error} while entries were applied") from error
                raise MachineError(f"{describe_error(error)} while entries were applied") from error
            self._machine.results = CommandResults.of(machine.kept())  # as they were before
            raise

    def _digest_at(self, machine: StateMachine, index: int) -> bytes:
        """Return the digest if states are compared after an entry; on the machine's thread."""
        if not self._comparisons.points.is_one(index):
            return b""
        try:
            with damage_of_machine():
                digest = machine.digest()
        except MachineDamagedError:
            raise
        # a failed digest costs one comparison, and the next snapshot reports it too; the entries
        # are applied all the same
        except Exception as error:
            log_event(
                logger,
                logging.WARNING,
                "the state machine gave no digest",
                group=self._context.config.group,
                index=index,
                reason=describe_error(error),
            )
            return b""
        is_eligible = isinstance(digest, bytes) and len(digest) <= DIGEST_BYTES_MAX
        return digest if is_eligible else b""

    def _forget_unwanted(self) -> None:
        """Drop the results of appends that were given up: they will not be asked for."""
        first = self._appends.pending.first_index
        if first is None:
            self._results.clear()
        elif len(self._results) > RESULTS_KEPT:
            kept = {index: found for index, found in self._results.items() if index >= first}
            self._results = kept

    def _take_results(self, first: int, last: int) -> list[bytes]:
        return [self._results.pop(index, b"") for index in range(first, last + 1)]
