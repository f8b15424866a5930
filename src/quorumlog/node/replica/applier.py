"""Drives a group's state machine: entries in, results out, questions, snapshots (spec 40).

The machine has one thread's attention at a time and never the loop's: whatever it is to do is a job
that runs beside the loop, one after the other. What is applied is committed and durable here, so a
machine never holds what this replica's log does not. Without a machine, committed is applied.
"""

import logging
import traceback
from dataclasses import dataclass
from typing import NamedTuple

from quorumlog.log_events import describe_error, log_event
from quorumlog.machine.base import StateMachine
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import Role
from quorumlog.model.errors import (
    PASSING_ERRORS,
    CorruptionError,
    IndexRemovedError,
    LeaderPendingFullError,
    OutOfDescriptorsError,
    StorageError,
)
from quorumlog.node.replica.appends import Appends
from quorumlog.node.replica.command_results import CommandResults
from quorumlog.node.replica.comparisons import DIGEST_BYTES_MAX, Comparisons
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.fetches import gather
from quorumlog.node.replica.machine_jobs import (
    ApplyBatch,
    MachineDamagedError,
    MachineError,
    MachineJob,
    damage_of_machine,
)
from quorumlog.node.replica.machine_scrub import MachineScrub
from quorumlog.node.replica.machine_state import MachineState
from quorumlog.node.replica.pending_requests import PendingRequests
from quorumlog.node.replica.queries import Queries
from quorumlog.node.replica.retention import Retention
from quorumlog.node.replica.served_snapshots import ServedSnapshots
from quorumlog.node.replica.sessions import Sessions
from quorumlog.node.replica.snapshot_requests import SnapshotRequests
from quorumlog.node.replica.snapshotter import Kept, Snapshotter
from quorumlog.storage.log.snapshots import SnapshotMeta, Snapshots
from quorumlog.storage.metadata.advice import EMPTYING_IS_SAFE_WHEN

logger = logging.getLogger(__name__)

APPLY_ENTRIES = 1_024
APPLY_BYTES = 1024 * 1024
"""Entries handed to a machine in one batch, and their bytes (but always one entry)."""
LINGER_MS = 20
"""How long a follower waits for more entries to apply, unless somebody waits for them."""
RESULTS_KEPT = 65_536
"""Results above which those that nobody waits for are looked for."""
RETRY_MS = 1_000
"""Pause before entries that could not be read are tried again."""
REBUILD_PAUSE_MS = 60_000
"""From making a machine again to doing so once more, if it differs each time from what it should
be; `RETRY_MS` if it is damaged."""
ASIDE_WAIT_MS = 60_000
"""How long peers are asked for a snapshot before those are used whose state may be another's."""


@dataclass(frozen=True, slots=True)
class _Rebuild:
    """Why, and up to where snapshots are trusted (None: all are)."""

    why: str
    trusted_index: int | None


class _Applied(NamedTuple):
    """What came of entries; `digest` is empty unless states are compared behind them."""

    last_index: int
    size_bytes: int
    results: dict[int, bytes]
    digest: bytes


class Applier:
    """The part of a replica that drives its state machine.

    All methods run on the event loop's thread.
    """

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        context: ReplicaContext,
        machine: MachineState,
        snapshots: Snapshots | None,
        sessions: Sessions,
        requests: PendingRequests,
        appends: Appends,
        retention: Retention,
        served: ServedSnapshots,
        snapshot_requests: SnapshotRequests,
    ) -> None:
        self._context = context
        self._environment = context.environment
        self.state = machine
        self._sessions = sessions
        self._appends = appends
        self._retention = retention
        self._snapshot_requests = snapshot_requests
        self.queries = Queries(context, machine, self, requests)
        self.snapshotter = Snapshotter(
            context, snapshots, machine, self, sessions, served, retention
        )
        self.scrub = MachineScrub(context, snapshots, machine, self, self.snapshotter)
        self.comparisons = Comparisons(context, machine, self, self.snapshotter, self.scrub)
        self._passing_text = ""
        self._is_recovering = machine.machine is not None
        self._rebuild: _Rebuild | None = None
        self._rebuilt_ms = -REBUILD_PAUSE_MS
        self._least_applied = -1
        self._ask_peers_ms = NEVER_MS
        self._ask_until_ms = NEVER_MS
        self._takes_back = False
        self._asked_peers = 0
        self._load: SnapshotMeta | None = None
        self._role: tuple[int, Role] | None = None
        self._results: dict[int, bytes] = {}
        self._is_busy = False
        self._has_applied = False
        self._retry_ms = NEVER_MS
        self._apply_at_ms = NEVER_MS
        self._due_index = -1

    @property
    def is_eligible(self) -> bool:
        """Whether the machine works, and has what it once had."""
        is_behind = self.state.applied < self._least_applied
        return not (self.state.failed_text or self.condition or self._load or is_behind)

    @property
    def condition(self) -> str:
        """A word for what keeps the machine from being given entries; empty: nothing does."""
        if self._is_recovering:
            return "recovering"
        if self._rebuild is not None:
            return "rebuilding"
        return "waiting" if self._ask_peers_ms != NEVER_MS else ""

    @property
    def condition_text(self) -> str:
        """The same in a sentence, or what the machine cannot do at present."""
        if self._passing_text:
            return self._passing_text
        if self._rebuild is not None:
            return f"the state machine is made again from snapshot and log: {self._rebuild.why}"
        if self._ask_peers_ms != NEVER_MS:
            return f"{self._no_snapshot_text()}; peers are asked for theirs"
        return "the files of the state machine are read" if self._is_recovering else ""

    @property
    def _is_driven(self) -> bool:
        """Whether there is a machine that is given something to do."""
        return self.state.machine is not None and not self.state.failed_text

    @property
    def is_loading(self) -> bool:
        """Whether the machine is to load a snapshot, or does."""
        return self._load is not None

    # -- what happens -------------------------------------------------------------------------

    def committed(self, index: int) -> None:
        """The committed index rose."""
        if self.state.machine is None:
            self._appends.applied(index, lambda first, last: [])
        else:
            self.advance()

    def role_changed(self, term: int, role: Role) -> None:
        """Let the machine know."""
        if self.state.machine is not None:
            self._role = (term, role)
            self.advance()

    def load(self, meta: SnapshotMeta) -> None:
        """A snapshot was fetched, and the log begins behind it: the machine must have it."""
        self._load = meta
        self._retry_ms = self._ask_peers_ms = NEVER_MS
        self._takes_back = False
        self.state.newest = meta
        self._context.update_eligibility()
        self.advance()

    def tick(self, now_ms: int) -> None:
        """Give up what waited too long; try again what could not be read."""
        self.queries.expire(now_ms)
        if now_ms >= self._retry_ms:
            self._retry_ms = NEVER_MS
        if now_ms >= self._ask_peers_ms:
            self._ask_a_peer(now_ms)
        if self._is_driven:
            self.scrub.tick(now_ms)
        self.advance()

    def next_deadline_ms(self) -> int:
        """When `tick` has something to do."""
        # once it is time, whatever keeps the machine from applying goes on by itself
        is_ahead = self._apply_at_ms > self._environment.now_ms()
        apply_ms = self._apply_at_ms if is_ahead else NEVER_MS
        return min(
            self.queries.next_deadline_ms(),
            self._retry_ms,
            apply_ms,
            self._ask_peers_ms,
            self.snapshotter.next_deadline_ms(),
            self.scrub.next_deadline_ms() if self._is_driven else NEVER_MS,
        )

    # -- jobs ---------------------------------------------------------------------------------

    def advance(self) -> None:
        """Give the machine something to do, if it has nothing and there is something."""
        machine = self.state.machine
        if machine is None or self._is_busy or self.state.failed_text or self._context.is_broken:
            return
        pauses = self._retry_ms != NEVER_MS
        work = self._next_question(machine) if pauses else self._next_work(machine)
        if work is not None:
            self._is_busy = True
            self._environment.machines.run(
                work.run,
                lambda found: self._done(work, found),
                lambda error: self._failed(work, error),
            )

    def _done(self, work: MachineJob, found: object) -> None:
        self._is_busy = False
        self._passing_text = ""
        try:
            work.done(found)
        finally:  # whatever an answer met on its way: others wait
            self.advance()
            self._context.wake()

    def _next_work(self, machine: StateMachine) -> MachineJob | None:
        if self._rebuild is not None:
            return self._remaking(machine, self._rebuild)
        if self._is_recovering:
            return self._recovering(machine)
        if self._ask_peers_ms != NEVER_MS:
            return self.snapshotter.taking_back(self._taken_back) if self._takes_back else None
        if self._load is not None:
            return self._loading(machine, self._load)
        if self._role is not None:
            return self._telling(machine, self._role)
        if self.snapshotter.is_settled or self.snapshotter.is_due:
            return self.snapshotter.next_work(machine)
        if self.scrub.is_due and self.is_eligible:
            return self.scrub.checking(machine)
        core = self._context.core
        last = min(core.committed_index, core.durable_index)
        asks_first = self._has_applied and self.queries.is_ready
        if last > self.state.applied and not asks_first and self._is_time_to_apply(last):
            point = self.comparisons.next_point(self.state.applied)
            last = min(last, self.state.applied + APPLY_ENTRIES, point)
            return self._applying(machine, self.state.applied + 1, last)
        return self._next_question(machine)

    def _is_time_to_apply(self, last: int) -> bool:
        """Whether not to wait for more: where nobody waits for it, applying seldom costs less.

        What was there when the time had come is not waited for again, in however many pieces it is
        handed over: a follower that compares its state after each entry would apply 50 a second.
        """
        now_ms = self._environment.now_ms()
        context = self._context
        is_asked = self.queries.is_waiting or self.snapshotter.is_asked
        led = len(self._appends.pending) > 0  # when they were committed
        is_awaited = context.core.role is Role.LEADER or led or is_asked
        is_due = self.state.applied < self._due_index
        if is_awaited or is_due or last - self.state.applied >= APPLY_ENTRIES:
            self._apply_at_ms = NEVER_MS
            self._due_index = last
            return True
        if self._apply_at_ms == NEVER_MS:
            self._apply_at_ms = now_ms + LINGER_MS
        if now_ms < self._apply_at_ms:
            return False
        self._apply_at_ms = NEVER_MS
        self._due_index = last
        return True

    def _next_question(self, machine: StateMachine) -> MachineJob | None:
        if not self.queries.is_ready:
            return None
        self._has_applied = False
        return self.queries.next_job(machine)

    def _telling(self, machine: StateMachine, role: tuple[int, Role]) -> MachineJob:
        self._role = None

        def run() -> None:
            try:
                with damage_of_machine():
                    machine.on_role_change(*role)
            except PASSING_ERRORS:
                raise
            except Exception as error:
                text = "".join(traceback.format_exception(error))
                raise MachineError(f"{describe_error(error)} in on_role_change\n{text}") from error

        def refused() -> None:
            self._role = self._role or role

        return MachineJob(run, refused=refused)

    def _failed(self, work: MachineJob, error: Exception) -> None:
        """What could not be read may be readable later; a machine that raises is at its end."""
        self._is_busy = False
        self._has_applied = True
        context = self._context
        if isinstance(error, (LeaderPendingFullError, *PASSING_ERRORS)):
            work.refused()
        if isinstance(error, MachineError):
            self._end(str(error))
            return
        if isinstance(error, MachineDamagedError):
            work.refused()
            self.rebuild(str(error))
            return
        if isinstance(error, CorruptionError) and error.index is not None:
            context.damage_found(error)
        elif not isinstance(error, IndexRemovedError | LeaderPendingFullError | StorageError):
            self._end(describe_error(error))
            return
        # removed: the log begins anew behind a snapshot, which is loaded next
        if isinstance(error, PASSING_ERRORS):
            self._passing_text = f"it cannot go on now, and tries again: {error}"
        self._retry_ms = self._environment.now_ms() + RETRY_MS
        log_event(
            logger,
            logging.WARNING,
            "entries cannot be applied now",
            group=context.config.group,
            first_index=self.state.applied + 1,
            text=str(error),
        )
        context.wake()

    def _end(self, text: str) -> None:
        """The machine is not what the log says any more: nothing more is applied."""
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
        context.wake()

    # -- beginning, and beginning again ----------------------------------------------------------

    def _recovering(self, machine: StateMachine) -> MachineJob:
        before = self.state.newest

        def run() -> tuple[int, CommandResults, SnapshotMeta | None]:
            newest = self.snapshotter.look()  # before: `recover` is called once
            with damage_of_machine():
                machine.recover()
                return machine.applied_index, CommandResults.of(machine.kept()), newest

        def done(found: tuple[int, CommandResults, SnapshotMeta | None]) -> None:
            self._is_recovering = False
            self.state.applied, self.state.results, newest = found
            self.snapshotter.looked(before, newest)
            self._begin()

        return MachineJob(run, done)

    def _begin(self) -> None:
        """Go on from what the machine has, or from the newest snapshot."""
        log, newest = self._context.log, self.state.newest
        reached = -1 if newest is None else newest.last_included_index
        if self.state.applied > max(log.end_index, reached):
            self._end(
                f"the state machine holds entries up to {self.state.applied}, but the log ends at "
                f"{log.end_index}: they do not belong together. {EMPTYING_IS_SAFE_WHEN}"
            )
        elif max(self.state.applied, reached) < log.before_begin_index:
            self._ask_peers()
        else:
            self._load = newest if reached > self.state.applied else None
        self.queries.release()
        self._context.update_eligibility()
        self.advance()

    def rebuild(self, why: str, *, trusted_index: int | None = None) -> None:
        """Make the machine again from a snapshot and the log: what it holds cannot be believed.

        Nor can snapshots behind `trusted_index`, if that is given: they are set aside.
        """
        if self.state.machine is None or self.state.failed_text:
            return
        if self._rebuild is not None:
            self._rebuild_again(self._rebuild, trusted_index)
            return
        if self._environment.remake is None:
            self._end(why)
            return
        context, now_ms = self._context, self._environment.now_ms()
        self._rebuild = _Rebuild(why, trusted_index)
        self._is_recovering = False
        self._least_applied = max(self._least_applied, self.state.applied)
        differs = trusted_index is not None or self._load is not None
        pause_ms = REBUILD_PAUSE_MS if differs else RETRY_MS
        self._retry_ms = max(now_ms, self._rebuilt_ms + pause_ms)
        self._rebuilt_ms = self._retry_ms
        self._load, self._ask_peers_ms, self._takes_back = None, NEVER_MS, False
        if trusted_index is not None:
            self.snapshotter.distrust(trusted_index)
        context.counters.machine_rebuilds += 1
        log_event(
            logger,
            logging.ERROR,
            "state machine is made again",
            group=context.config.group,
            applied_index=self.state.applied,
            text=why,
        )
        context.update_eligibility()
        context.wake()

    def _rebuild_again(self, rebuild: _Rebuild, trusted_index: int | None) -> None:
        """It failed, or less can be trusted than was known when it was asked for."""
        if trusted_index is not None:
            before = rebuild.trusted_index
            least = trusted_index if before is None else min(before, trusted_index)
            self._rebuild = _Rebuild(rebuild.why, least)
            self.snapshotter.distrust(least)
        elif self._retry_ms == NEVER_MS:
            self._retry_ms = self._environment.now_ms() + RETRY_MS
        self._context.wake()

    def _remaking(self, machine: StateMachine, rebuild: _Rebuild) -> MachineJob:
        remake, before = self._environment.remake, self.state.newest

        def run() -> tuple[StateMachine, SnapshotMeta | None]:
            if rebuild.trusted_index is not None:
                self.snapshotter.set_aside_behind(rebuild.trusted_index)
            newest = self.snapshotter.look()  # may fail, as what follows may not for its sake
            with damage_of_machine():
                return machine if remake is None else remake(machine), newest

        def done(found: tuple[StateMachine, SnapshotMeta | None]) -> None:
            self.state.machine, newest = found
            self.snapshotter.looked(before, newest)
            self.state.applied, self.state.results = -1, CommandResults()
            if self._rebuild is not rebuild:
                return  # less is trusted by now: once more
            self._rebuild = None
            core = self._context.core
            self._role = self._role or (core.term, core.role)
            self.comparisons.forget()
            self.queries.applied_less()
            self._begin()

        return MachineJob(run, done)

    def _no_snapshot_text(self) -> str:
        begin = self._context.log.before_begin_index + 1
        what = "trusted" if self.snapshotter.has_aside else "whole"
        return f"no {what} snapshot is left, and the log begins at {begin}"

    def _ask_peers(self) -> None:
        is_alone = len(self._context.core.membership.ids) <= 1
        if is_alone and not self.snapshotter.has_aside:
            self._end(
                f"{self._no_snapshot_text()}. There is no other member to ask: restore the "
                "replica's directory, or the snapshots in it, from a backup"
            )
            return
        self._ask_peers_ms = self._environment.now_ms()
        self._ask_until_ms = self._ask_peers_ms + (0 if is_alone else ASIDE_WAIT_MS)
        log_event(
            logger,
            logging.ERROR,
            "peers are asked for a snapshot",
            group=self._context.config.group,
            text=self._no_snapshot_text(),
        )

    def _ask_a_peer(self, now_ms: int) -> None:
        """Ask the leader, if one is known, else one after the other.

        If nobody has given one for long, what was set aside is used.
        """
        core = self._context.core
        peers = [peer for peer in core.membership.ids if peer != core.self_id]
        self._ask_peers_ms = now_ms + RETRY_MS
        self._asked_peers += 1
        if self.state.is_installing:
            return
        if self.snapshotter.has_aside and now_ms >= self._ask_until_ms:
            self._takes_back = True
            return
        if not peers:
            return
        peer = core.leader_id if core.leader_id in peers else peers[self._asked_peers % len(peers)]
        self._snapshot_requests.ask(str(peer), self._context.log.before_begin_index)

    def _taken_back(self) -> None:
        self._takes_back = False
        if self._load is not None:
            return  # one has come meanwhile
        self._ask_peers_ms = NEVER_MS
        self._context.raise_alarm(
            "nobody gives a snapshot: those are used that were set aside, although their state "
            "may be another's"
        )
        self._begin()

    # -- applying -----------------------------------------------------------------------------

    def _applying(self, machine: StateMachine, first: int, last: int) -> MachineJob:
        log, limits = self._context.log, APPLY_BYTES
        found = gather(log, first, last, limits) if log.is_in_memory(first) else None

        def run() -> _Applied:
            runs = gather(log, first, last, limits) if found is None else found
            handed = ApplyBatch.of([entries.block() for entries in runs])
            size, end = sum(len(entries.data) for entries in runs), runs[-1].last_index
            results = self._apply(machine, handed)
            return _Applied(end, size, results, self._digest_at(machine, end))

        def done(found: _Applied) -> None:
            self.state.applied, size, results = found.last_index, found.size_bytes, found.results
            self._has_applied = True
            self.snapshotter.applied(size)
            if len(self._appends.pending):
                self._results.update(results)
            self._appends.applied(self.state.applied, self._take_results)
            self._forget_results()
            self.queries.release()
            if found.digest:
                self.comparisons.reached(self.state.applied, found.digest)
            if self._least_applied >= 0 and self.state.applied >= self._least_applied:
                self._least_applied = -1
                self._context.update_eligibility()

        return MachineJob(run, done)

    def _apply(self, machine: StateMachine, handed: ApplyBatch) -> dict[int, bytes]:
        """Have entries applied; on the machine's thread."""
        try:
            return handed.apply_to(machine, self.state.results)
        except PASSING_ERRORS as error:
            if machine.applied_index != self.state.applied:  # it does not keep its state itself
                if isinstance(error, OutOfDescriptorsError):
                    raise MachineDamagedError(f"{error} while entries were applied") from error
                raise MachineError(f"{describe_error(error)} while entries were applied") from error
            self.state.results = CommandResults.of(machine.kept())  # as they were before
            raise

    def _digest_at(self, machine: StateMachine, index: int) -> bytes:
        """Return the digest if states are compared after an entry; on the machine's thread."""
        if not self.comparisons.is_point(index):
            return b""
        try:
            with damage_of_machine():
                digest = machine.digest()
        except MachineDamagedError:
            raise
        # costs a comparison, and the next snapshot says so, too; the entries have been applied
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

    def _forget_results(self) -> None:
        """Those of appends that were given up are not asked for any more."""
        first = self._appends.pending.first_index
        if first is None:
            self._results.clear()
        elif len(self._results) > RESULTS_KEPT:
            kept = {index: found for index, found in self._results.items() if index >= first}
            self._results = kept

    def _take_results(self, first: int, last: int) -> list[bytes]:
        return [self._results.pop(index, b"") for index in range(first, last + 1)]

    # -- loading ------------------------------------------------------------------------------

    def _loading(self, machine: StateMachine, meta: SnapshotMeta) -> MachineJob:
        before = self.state.newest

        def run() -> tuple[Kept, CommandResults] | SnapshotMeta | None:
            kept = self.snapshotter.load_into(machine, meta)
            return (
                self.snapshotter.look() if kept is None else (kept, CommandResults.of(kept.results))
            )

        def done(found: tuple[Kept, CommandResults] | SnapshotMeta | None) -> None:
            if isinstance(found, tuple):
                self._loaded(meta, *found)
                return
            self.snapshotter.looked(before, found)
            if self._load is meta:
                self._load_older()

        return MachineJob(run, done)

    def _loaded(self, meta: SnapshotMeta, kept: Kept, results: CommandResults) -> None:
        self.state.applied = meta.last_included_index
        self._results.clear()
        self.state.results = results
        if kept.sessions:
            self._sessions.learned(kept.sessions)
        if self._load is meta:
            self._load = None
        log_event(
            logger,
            logging.INFO,
            "snapshot loaded",
            group=self._context.config.group,
            applied_index=self.state.applied,
        )
        self.queries.release()
        if self._context.log.damaged:  # what is damaged below it is needed by nobody any more
            self._retention.remove_until(meta.last_included_index)
        self.snapshotter.settle()
        self._context.update_eligibility()

    def _load_older(self) -> None:
        """The newest was broken and is gone: an older one will do if the log goes back so far."""
        self._load = None
        self._begin()

    def close(self) -> None:
        """The node stops, and its machine threads have."""
        machine = self.state.machine
        if machine is None:
            return
        if self._rebuild is not None and self._environment.remake is not None:
            machine = self._environment.remake(machine)  # not to be opened as it is
        machine.close()
