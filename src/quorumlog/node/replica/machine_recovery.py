"""How a replica's state machine gets its state, at the start and after damage.

A machine is opened with the state that it stores itself, or loads the newest snapshot; then it
applies the log from there. One that cannot be trusted any more is rebuilt in the same way. If
the log has removed entries that no snapshot here holds, peers are asked for a snapshot.
"""

import logging
from dataclasses import dataclass
from typing import Protocol

from quorumlog.log_events import describe_error, log_event
from quorumlog.machine.base import StateMachine
from quorumlog.model.bounds import NEVER_MS
from quorumlog.node.replica.command_results import CommandResults
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.machine_jobs import (
    MachineControl,
    MachineError,
    MachineJob,
    damage_of_machine,
)
from quorumlog.node.replica.machine_state import MachineState
from quorumlog.node.replica.snapshot_requests import SnapshotRequests
from quorumlog.node.replica.snapshotter import Snapshotter, SnapshotTrailer
from quorumlog.storage.log.snapshots import SnapshotMeta
from quorumlog.storage.metadata.advice import EMPTYING_IS_SAFE_WHEN

logger = logging.getLogger(__name__)

RETRY_MS = 1_000
"""Pause before a damaged machine is rebuilt, and before another peer is asked."""
REBUILD_PAUSE_MS = 60_000
"""Least time between two rebuilds of a machine whose state differs each time; `RETRY_MS` if it is
damaged."""
QUARANTINE_WAIT_MS = 60_000
"""How long peers are asked for a snapshot before quarantined ones are used."""


@dataclass(frozen=True, slots=True)
class _Rebuild:
    """The reason for a rebuild, and up to where snapshots are trusted (None: all are)."""

    why: str
    trusted_index: int | None


class RecoveryControl(MachineControl, Protocol):
    """What recovery asks of the part that drives the machine."""

    @property
    def is_paused(self) -> bool:
        """Whether the machine gets nothing but queries for a moment."""
        ...

    def pause_until(self, due_ms: int) -> None:
        """Give the machine nothing but queries until then."""
        ...

    def resume(self) -> None:
        """Give the machine everything again."""
        ...

    def fail(self, text: str) -> None:
        """Stop the machine: its state does not match the log."""
        ...

    def rebuilt(self) -> None:
        """The machine was replaced by an empty one."""
        ...

    def loaded(self) -> None:
        """The machine has loaded a snapshot."""
        ...

    def applied(self) -> None:
        """The machine may hold more than before."""
        ...


def _applied_index(machine: StateMachine) -> int:
    applied: object = machine.applied_index
    if isinstance(applied, int) and applied >= -1:
        return applied
    name = type(machine).__name__
    raise MachineError(f"{name}.applied_index is {applied!r}; it must be an index, or -1")


class MachineRecovery:
    """The part of a replica that opens its machine, rebuilds it and loads snapshots.

    All methods run on the event loop's thread.
    """

    def __init__(
        self,
        context: ReplicaContext,
        machine: MachineState,
        control: RecoveryControl,
        snapshotter: Snapshotter,
        snapshot_requests: SnapshotRequests,
    ) -> None:
        self._context = context
        self._environment = context.environment
        self._machine = machine
        self._control = control
        self._snapshotter = snapshotter
        self._snapshot_requests = snapshot_requests
        self._is_recovering = machine.machine is not None
        self._rebuild: _Rebuild | None = None
        self._rebuilt_ms = -REBUILD_PAUSE_MS
        self._ask_timer = context.timers.new(self._ask_a_peer)
        self._ask_until_ms = NEVER_MS
        self._restores_quarantined = False
        self._asked_peers = 0
        self._load: SnapshotMeta | None = None

    @property
    def condition(self) -> str:
        """A word for what keeps entries from the machine; empty: nothing does."""
        if self._is_recovering:
            return "recovering"
        if self._rebuild is not None:
            return "rebuilding"
        return "waiting" if self._asks_peers else ""

    @property
    def _asks_peers(self) -> bool:
        return self._ask_timer.due_ms != NEVER_MS

    @property
    def condition_text(self) -> str:
        """The same in a sentence."""
        if self._rebuild is not None:
            return f"the state machine is rebuilt from snapshot and log: {self._rebuild.why}"
        if self._asks_peers:
            return f"{self._no_snapshot_text()}; peers are asked for theirs"
        return "the files of the state machine are read" if self._is_recovering else ""

    @property
    def is_loading(self) -> bool:
        """Whether the machine loads a snapshot, or is about to."""
        return self._load is not None

    @property
    def is_over(self) -> bool:
        """Whether the machine can be given entries."""
        return not self.condition and self._load is None

    def next_job(self, machine: StateMachine) -> MachineJob | None:
        """Return the next step of a recovery that is not over; None while peers are asked."""
        if self._rebuild is not None:
            return self._rebuilding(machine, self._rebuild)
        if self._is_recovering:
            return self._recovering(machine)
        if self._asks_peers:
            if not self._restores_quarantined:
                return None
            return self._snapshotter.restoring_quarantined(self._restored)
        return self._loading(machine, self._load) if self._load is not None else None

    def load(self, meta: SnapshotMeta) -> None:
        """A snapshot was fetched, and the log starts after it: the machine must load it."""
        self._load = meta
        self._ask_timer.clear()
        self._control.resume()
        self._restores_quarantined = False
        self._machine.newest = meta
        self._context.update_eligibility()
        self._control.advance()

    def _recovering(self, machine: StateMachine) -> MachineJob:
        before = self._machine.newest

        def run() -> tuple[int, CommandResults, SnapshotMeta | None]:
            # first, as it may fail: `recover` is called once
            newest = self._snapshotter.find_newest()
            with damage_of_machine():
                machine.recover()
                return _applied_index(machine), CommandResults.of(machine.kept()), newest

        def done(found: tuple[int, CommandResults, SnapshotMeta | None]) -> None:
            self._is_recovering = False
            self._machine.applied, self._machine.results, newest = found
            self._snapshotter.newest_found(before, newest)
            self._begin()

        return MachineJob(run, done)

    def _begin(self) -> None:
        """Continue from the machine's own state, or from the newest snapshot."""
        log, newest = self._context.log, self._machine.newest
        reached = -1 if newest is None else newest.last_included_index
        if self._machine.applied > max(log.end_index, reached):
            self._control.fail(
                f"the state machine holds entries up to {self._machine.applied}, but the log ends "
                f"at {log.end_index}: they do not belong together. {EMPTYING_IS_SAFE_WHEN}"
            )
        elif max(self._machine.applied, reached) < log.before_begin_index:
            self._ask_peers()
        else:
            self._load = newest if reached > self._machine.applied else None
        self._control.applied()
        self._context.update_eligibility()
        self._control.advance()

    def rebuild(self, why: str, *, trusted_index: int | None = None) -> None:
        """Rebuild the machine from a snapshot and the log: its state cannot be trusted.

        Nor can snapshots after `trusted_index`, if that is given: they are quarantined.
        """
        if self._machine.machine is None or self._machine.failed_text:
            return
        if self._rebuild is not None:
            self._repeat_rebuild(self._rebuild, trusted_index)
            return
        if self._environment.rebuild_machine is None:
            self._control.fail(why)
            return
        context, machine = self._context, self._machine
        now_ms = self._environment.now_ms()
        self._rebuild = _Rebuild(why, trusted_index)
        self._is_recovering = False
        machine.least_applied = max(machine.least_applied, machine.applied)
        differs = trusted_index is not None or self._load is not None
        pause_ms = REBUILD_PAUSE_MS if differs else RETRY_MS
        self._rebuilt_ms = max(now_ms, self._rebuilt_ms + pause_ms)
        self._control.pause_until(self._rebuilt_ms)
        self._ask_timer.clear()
        self._load, self._restores_quarantined = None, False
        if trusted_index is not None:
            self._snapshotter.distrust(trusted_index)
        context.counters.machine_rebuilds += 1
        log_event(
            logger,
            logging.ERROR,
            "state machine is rebuilt",
            group=context.config.group,
            applied_index=self._machine.applied,
            text=why,
        )
        context.update_eligibility()

    def _repeat_rebuild(self, rebuild: _Rebuild, trusted_index: int | None) -> None:
        """Repeat a rebuild that failed, or that was requested with a lower `trusted_index`."""
        if trusted_index is not None:
            before = rebuild.trusted_index
            least = trusted_index if before is None else min(before, trusted_index)
            self._rebuild = _Rebuild(rebuild.why, least)
            self._snapshotter.distrust(least)
        elif not self._control.is_paused:
            self._control.pause_until(self._environment.now_ms() + RETRY_MS)

    def _rebuilding(self, machine: StateMachine, rebuild: _Rebuild) -> MachineJob:
        rebuild_machine, before = self._environment.rebuild_machine, self._machine.newest

        def run() -> tuple[StateMachine, SnapshotMeta | None]:
            if rebuild.trusted_index is not None:
                self._snapshotter.quarantine_after(rebuild.trusted_index)
            newest = self._snapshotter.find_newest()  # first: if it fails, the machine is untouched
            with damage_of_machine():
                return machine if rebuild_machine is None else rebuild_machine(machine), newest

        def done(found: tuple[StateMachine, SnapshotMeta | None]) -> None:
            self._machine.machine, newest = found
            self._snapshotter.newest_found(before, newest)
            self._machine.applied, self._machine.results = -1, CommandResults()
            if self._rebuild is not rebuild:
                return  # a lower index is trusted by now, so it starts once more
            self._rebuild = None
            core = self._context.core
            self._machine.unreported_role = self._machine.unreported_role or (core.term, core.role)
            self._control.rebuilt()
            self._begin()

        return MachineJob(run, done)

    def _no_snapshot_text(self) -> str:
        begin = self._context.log.before_begin_index + 1
        what = "trusted" if self._snapshotter.has_quarantined else "whole"
        return f"no {what} snapshot is left, and the log begins at {begin}"

    def _ask_peers(self) -> None:
        is_alone = len(self._context.core.membership.ids) <= 1
        if is_alone and not self._snapshotter.has_quarantined:
            self._control.fail(
                f"{self._no_snapshot_text()}. There is no other member to ask: restore the "
                "replica's directory, or the snapshots in it, from a backup"
            )
            return
        now_ms = self._environment.now_ms()
        self._ask_timer.set(now_ms)
        self._ask_until_ms = now_ms + (0 if is_alone else QUARANTINE_WAIT_MS)
        log_event(
            logger,
            logging.ERROR,
            "peers are asked for a snapshot",
            group=self._context.config.group,
            text=self._no_snapshot_text(),
        )

    def _ask_a_peer(self, now_ms: int) -> None:
        """Ask the leader for a snapshot if one is known, else one peer after the other.

        If no peer has given one for `QUARANTINE_WAIT_MS`, the quarantined snapshots are used.
        """
        core = self._context.core
        peers = [peer for peer in core.membership.ids if peer != core.self_id]
        self._ask_timer.set(now_ms + RETRY_MS)
        self._asked_peers += 1
        if self._machine.is_installing:
            return
        if self._snapshotter.has_quarantined and now_ms >= self._ask_until_ms:
            self._restores_quarantined = True
            self._control.advance()
            return
        if not peers:
            return
        peer = core.leader_id if core.leader_id in peers else peers[self._asked_peers % len(peers)]
        self._snapshot_requests.ask(str(peer), self._context.log.before_begin_index)

    def _restored(self) -> None:
        self._restores_quarantined = False
        if self._load is not None:
            return  # a snapshot has arrived meanwhile
        self._ask_timer.clear()
        self._context.raise_alarm(
            "nobody gives a snapshot: those are used that were quarantined, although their state "
            "may be another's"
        )
        self._begin()

    def _loading(self, machine: StateMachine, meta: SnapshotMeta) -> MachineJob:
        before, now_us = self._machine.newest, self._environment.now_us
        seconds = self._context.histograms.snapshot_load_seconds
        started_us = now_us()

        def run() -> tuple[SnapshotTrailer, CommandResults] | SnapshotMeta | None:
            trailer = self._snapshotter.load_into(machine, meta)
            return (
                self._snapshotter.find_newest()
                if trailer is None
                else (trailer, CommandResults.of(trailer.results))
            )

        def done(found: tuple[SnapshotTrailer, CommandResults] | SnapshotMeta | None) -> None:
            if isinstance(found, tuple):
                seconds.observe((now_us() - started_us) / 1_000_000)
                self._loaded(meta, *found)
                return
            self._snapshotter.newest_found(before, found)
            if self._load is meta:
                self._load_older()

        return MachineJob(run, done)

    def _loaded(
        self, meta: SnapshotMeta, trailer: SnapshotTrailer, results: CommandResults
    ) -> None:
        self._machine.applied = meta.last_included_index
        self._machine.results = results
        if self._load is meta:
            self._load = None
        log_event(
            logger,
            logging.INFO,
            "snapshot loaded",
            group=self._context.config.group,
            applied_index=self._machine.applied,
        )
        self._control.loaded()
        if self._machine.machine is not None and not self._machine.is_behind:
            self._environment.applied(self._machine.machine)
        self._snapshotter.loaded(meta, trailer)
        self._context.update_eligibility()

    def _load_older(self) -> None:
        """Load an older snapshot, if the log reaches back to it: the newest was broken."""
        self._load = None
        self._begin()

    def close(self) -> None:
        """Close the machine: the node stops, and its machine threads have ended."""
        machine = self._machine.machine
        if machine is None:
            return
        if self._rebuild is not None and self._environment.rebuild_machine is not None:
            # so that the next start finds no bad state
            machine = self._environment.rebuild_machine(machine)
        try:
            machine.close()
        except SystemExit as error:  # as it is, it would end the event loop
            raise RuntimeError(describe_error(error)) from error
