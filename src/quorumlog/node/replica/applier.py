"""Drives a group's state machine: entries in, results out, questions, snapshots (spec 40).

The machine has one thread's attention at a time and never the loop's: whatever it is to do is a job
that runs beside the loop, one after the other. What is applied is committed and durable here, so a
machine never holds what this replica's log does not. Without a machine, committed is applied.
"""

import heapq
import itertools
import logging
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from quorumlog.log_events import describe_error, log_event
from quorumlog.machine.base import StateMachine
from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.errors import (
    PASSING_ERRORS,
    CorruptionError,
    IndexRemovedError,
    LeaderPendingFullError,
    OutOfDescriptorsError,
    RequestError,
    StorageError,
)
from quorumlog.node.environment import Environment
from quorumlog.node.replica.command_results import CommandResults
from quorumlog.node.replica.comparisons import DIGEST_BYTES_MAX, Comparisons
from quorumlog.node.replica.fetches import gather
from quorumlog.node.replica.machine_jobs import (
    ApplyBatch,
    MachineDamagedError,
    MachineError,
    MachineJob,
    damage_of_machine,
)
from quorumlog.node.replica.machine_scrub import MachineScrub
from quorumlog.node.replica.snapshotter import Kept, Snapshotter
from quorumlog.storage.log.snapshots import SnapshotMeta
from quorumlog.storage.log.store import OpenedGroup
from quorumlog.storage.metadata.advice import EMPTYING_IS_SAFE_WHEN

if TYPE_CHECKING:
    from quorumlog.node.replica.replica import Replica

logger = logging.getLogger(__name__)

QueryAnswer: TypeAlias = Callable[[ResponseCode, str, int, bytes], None]
"""Is told code, why it failed, the applied index and the machine's answer."""

APPLY_ENTRIES = 1_024
APPLY_BYTES = 1024 * 1024
"""Entries handed to a machine in one batch, and their bytes (but always one entry)."""
LINGER_MS = 20
"""How long a follower waits for more entries to apply, unless somebody waits for them."""
QUERIES_TOGETHER = 128
"""Questions put to a machine in one job: all their answers are sent in one turn of the loop."""
QUERIES_MAX = 65_536
"""Questions to one machine that may wait; more are refused."""
_TOO_MANY = f"{QUERIES_MAX} questions wait already; try again later"
QUERY_WAIT_MS = 2_500
"""How long a question may wait for what it must see to be applied, and for a fit machine."""
RESULTS_KEPT = 65_536
"""Results above which those that nobody waits for are looked for."""
RETRY_MS = 1_000
"""Pause before entries that could not be read are tried again."""
REBUILD_PAUSE_MS = 60_000
"""From making a machine again to doing so once more, if it differs each time from what it should
be; `RETRY_MS` if it is damaged."""
ASIDE_WAIT_MS = 60_000
"""How long peers are asked for a snapshot before those are used whose state may be another's."""


@dataclass(order=True, slots=True)
class _Query:
    """To be answered once `index` is applied; `is_patient`: at the deadline in any case.

    After `end_ms` it is refused if the machine is not fit.
    """

    index: int
    number: int
    deadline_ms: int = field(compare=False)
    is_patient: bool = field(compare=False)
    body: bytes = field(compare=False)
    answer: QueryAnswer = field(compare=False)

    @property
    def end_ms(self) -> int:
        return self.deadline_ms + (QUERY_WAIT_MS if self.is_patient else 0)


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
    """Of one replica; called on its thread. `machine` None: a plain log."""

    def __init__(
        self,
        replica: "Replica",
        machine: StateMachine | None,
        opened: OpenedGroup,
        environment: Environment,
    ) -> None:
        self._replica = replica
        self._environment = environment
        self.machine = machine
        self.snapshotter = Snapshotter(replica, self, opened.snapshots, environment)
        self.scrub = MachineScrub(replica, self, opened.snapshots, environment)
        self.comparisons = Comparisons(replica, environment)
        self._applied = -1
        self.failed_text = ""
        self._passing_text = ""
        self._is_recovering = machine is not None
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
        self.results = CommandResults()
        self._waiting: list[_Query] = []
        self._ready: deque[_Query] = deque()
        self._unproved: list[tuple[bytes, QueryAnswer]] = []
        self._numbers = itertools.count()
        self._is_busy = False
        self._has_applied = False
        self._retry_ms = NEVER_MS
        self._apply_at_ms = NEVER_MS
        self._due_index = -1

    @property
    def applied_index(self) -> int:
        """Index of the last entry that the machine has applied; of a plain log: committed."""
        return self._replica.core.committed_index if self.machine is None else self._applied

    @property
    def is_eligible(self) -> bool:
        """Whether the machine works, and has what it once had."""
        is_behind = self._applied < self._least_applied
        return not (self.failed_text or self.condition or self._load or is_behind)

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
    def is_loading(self) -> bool:
        """Whether the machine is to load a snapshot, or does."""
        return self._load is not None

    # -- what happens -------------------------------------------------------------------------

    def committed(self, index: int) -> None:
        """The committed index rose."""
        if self.machine is None:
            self._replica.appends.applied(index, lambda first, last: [])
        else:
            self.go_on()

    def role_changed(self, term: int, role: Role) -> None:
        """Let the machine know."""
        if self.machine is not None:
            self._role = (term, role)
            self.go_on()

    def load(self, meta: SnapshotMeta) -> None:
        """A snapshot was fetched, and the log begins behind it: the machine must have it."""
        self._load = meta
        self._retry_ms = self._ask_peers_ms = NEVER_MS
        self._takes_back = False
        self.snapshotter.newest = meta
        self._replica.update_eligibility()
        self.go_on()

    def query(
        self, index: int, body: bytes, answer: QueryAnswer, *, wait_ms: int | None = None
    ) -> None:
        """Ask the machine once `index` is applied.

        With `wait_ms`, after that time at the latest; else after `QUERY_WAIT_MS` it is refused. A
        machine that is made again or loads answers neither: the former is refused so much later.
        """
        if self.machine is None:
            text = (
                f"group {self._replica.config.group} has no state machine to ask; 'quorumlog "
                "cluster up --machine' or stateMachine in the configuration gives a group one"
            )
            answer(ResponseCode.UNSUPPORTED, text, -1, b"")
            return
        if self.failed_text:
            answer(ResponseCode.INTERNAL_ERROR, self._first_line(), self._applied, b"")
            return
        if len(self._waiting) + len(self._ready) >= QUERIES_MAX:
            answer(ResponseCode.LEADER_PENDING_FULL, _TOO_MANY, -1, b"")
            return
        patience_ms = QUERY_WAIT_MS if wait_ms is None else wait_ms
        deadline_ms = self._environment.now_ms() + patience_ms
        query = _Query(index, next(self._numbers), deadline_ms, wait_ms is not None, body, answer)
        heapq.heappush(self._waiting, query)
        self._release()
        self.go_on()

    def query_proved(self, body: bytes, answer: QueryAnswer) -> None:
        """Ask the machine once everything acknowledged before now is applied.

        The questions of one turn of the loop share one proof that the leader leads.
        """
        if len(self._unproved) >= QUERIES_MAX:
            answer(ResponseCode.LEADER_PENDING_FULL, _TOO_MANY, -1, b"")
            return
        self._unproved.append((body, answer))
        if len(self._unproved) == 1:
            self._environment.defer(self._prove)

    def _prove(self) -> None:
        together, self._unproved = self._unproved, []

        def proved(code: ResponseCode, text: str, index: int) -> None:
            for body, answer in together:
                if code is ResponseCode.SUCCESS:
                    self.query(index, body, answer)
                else:
                    answer(code, text, -1, b"")

        self._replica.pending_requests.read(proved)
        self._replica.wake()

    def tick(self, now_ms: int) -> None:
        """Give up what waited too long; try again what could not be read."""
        self._expire(now_ms)
        if now_ms >= self._retry_ms:
            self._retry_ms = NEVER_MS
        if now_ms >= self._ask_peers_ms:
            self._ask_a_peer(now_ms)
        if self.machine is not None and not self.failed_text:
            self.scrub.tick(now_ms)
        self.go_on()

    def _expire(self, now_ms: int) -> None:
        """Give up questions that waited too long for entries, or for the machine to be fit."""
        if any(query.deadline_ms <= now_ms for query in self._waiting):
            late = sorted(query for query in self._waiting if query.deadline_ms <= now_ms)
            self._waiting = [query for query in self._waiting if query.deadline_ms > now_ms]
            heapq.heapify(self._waiting)
            for query in late:
                if query.is_patient:
                    self._ready.append(query)
                else:
                    text = f"index {query.index} is not applied here yet; try again later"
                    query.answer(ResponseCode.TIMEOUT, text, self._applied, b"")
        # those of a machine that is fit are answered as soon as it is free
        if not self.is_eligible and any(query.end_ms <= now_ms for query in self._ready):
            unanswered = [query for query in self._ready if query.end_ms <= now_ms]
            self._ready = deque(query for query in self._ready if query.end_ms > now_ms)
            why = self.condition_text or "its state machine has not again what it had"
            text = f"this replica cannot answer yet: {why}; try again later"
            for query in unanswered:
                query.answer(ResponseCode.TIMEOUT, text, self._applied, b"")

    def next_deadline_ms(self) -> int:
        """When `tick` has something to do."""
        waiting_ms = min((query.deadline_ms for query in self._waiting), default=NEVER_MS)
        if self._ready and not self.is_eligible:
            waiting_ms = min(waiting_ms, *(query.end_ms for query in self._ready))
        # once it is time, whatever keeps the machine from applying goes on by itself
        is_ahead = self._apply_at_ms > self._environment.now_ms()
        apply_ms = self._apply_at_ms if is_ahead else NEVER_MS
        return min(
            waiting_ms,
            self._retry_ms,
            apply_ms,
            self._ask_peers_ms,
            self.snapshotter.next_deadline_ms(),
            NEVER_MS if self.machine is None or self.failed_text else self.scrub.next_deadline_ms(),
        )

    # -- jobs ---------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Give the machine something to do, if it has nothing and there is something."""
        machine = self.machine
        if machine is None or self._is_busy or self.failed_text or self._replica.broken:
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
            self.go_on()
            self._replica.wake()

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
        core = self._replica.core
        last = min(core.committed_index, core.durable_index)
        asks_first = bool(self._ready) and self._has_applied and self.is_eligible
        if last > self._applied and not asks_first and self._is_time_to_apply(last):
            point = self.comparisons.next_point(self._applied)
            last = min(last, self._applied + APPLY_ENTRIES, point)
            return self._applying(machine, self._applied + 1, last)
        return self._next_question(machine)

    def _is_time_to_apply(self, last: int) -> bool:
        """Whether not to wait for more: where nobody waits for it, applying seldom costs less.

        What was there when the time had come is not waited for again, in however many pieces it is
        handed over: a follower that compares its state after each entry would apply 50 a second.
        """
        now_ms = self._environment.now_ms()
        replica = self._replica
        is_asked = bool(self._waiting or self._ready or self.snapshotter.is_asked)
        led = len(replica.appends.pending) > 0  # when they were committed
        is_awaited = replica.core.role is Role.LEADER or led or is_asked
        is_due = self._applied < self._due_index
        if is_awaited or is_due or last - self._applied >= APPLY_ENTRIES:
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
        return self._asking(machine) if self._ready and self.is_eligible else None

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
        replica = self._replica
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
            replica.repairer.found(error)
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
            group=replica.config.group,
            first_index=self._applied + 1,
            text=str(error),
        )
        replica.wake()

    def _end(self, text: str) -> None:
        """The machine is not what the log says any more: nothing more is applied."""
        replica = self._replica
        self.failed_text = text
        log_event(
            logger,
            logging.CRITICAL,
            "state machine failed",
            group=replica.config.group,
            applied_index=self._applied,
            text=text,
        )
        for query in [*self._ready, *self._waiting]:
            query.answer(ResponseCode.INTERNAL_ERROR, self._first_line(), self._applied, b"")
        self._ready.clear()
        self._waiting.clear()
        self.snapshotter.end(self._first_line())
        replica.update_eligibility()
        replica.wake()

    def _first_line(self) -> str:
        return f"the state machine of this replica failed: {self.failed_text.splitlines()[0]}"

    # -- beginning, and beginning again ----------------------------------------------------------

    def _recovering(self, machine: StateMachine) -> MachineJob:
        before = self.snapshotter.newest

        def run() -> tuple[int, CommandResults, SnapshotMeta | None]:
            newest = self.snapshotter.look()  # before: `recover` is called once
            with damage_of_machine():
                machine.recover()
                return machine.applied_index, CommandResults.of(machine.kept()), newest

        def done(found: tuple[int, CommandResults, SnapshotMeta | None]) -> None:
            self._is_recovering = False
            self._applied, self.results, newest = found
            self.snapshotter.looked(before, newest)
            self._begin()

        return MachineJob(run, done)

    def _begin(self) -> None:
        """Go on from what the machine has, or from the newest snapshot."""
        log, newest = self._replica.log, self.snapshotter.newest
        reached = -1 if newest is None else newest.last_included_index
        if self._applied > max(log.end_index, reached):
            self._end(
                f"the state machine holds entries up to {self._applied}, but the log ends at "
                f"{log.end_index}: they do not belong together. {EMPTYING_IS_SAFE_WHEN}"
            )
        elif max(self._applied, reached) < log.before_begin_index:
            self._ask_peers()
        else:
            self._load = newest if reached > self._applied else None
        self._release()
        self._replica.update_eligibility()
        self.go_on()

    def rebuild(self, why: str, *, trusted_index: int | None = None) -> None:
        """Make the machine again from a snapshot and the log: what it holds cannot be believed.

        Nor can snapshots behind `trusted_index`, if that is given: they are set aside.
        """
        if self.machine is None or self.failed_text:
            return
        if self._rebuild is not None:
            self._rebuild_again(self._rebuild, trusted_index)
            return
        if self._environment.remake is None:
            self._end(why)
            return
        replica, now_ms = self._replica, self._environment.now_ms()
        self._rebuild = _Rebuild(why, trusted_index)
        self._is_recovering = False
        self._least_applied = max(self._least_applied, self._applied)
        differs = trusted_index is not None or self._load is not None
        pause_ms = REBUILD_PAUSE_MS if differs else RETRY_MS
        self._retry_ms = max(now_ms, self._rebuilt_ms + pause_ms)
        self._rebuilt_ms = self._retry_ms
        self._load, self._ask_peers_ms, self._takes_back = None, NEVER_MS, False
        if trusted_index is not None:
            self.snapshotter.distrust(trusted_index)
        replica.counters.machine_rebuilds += 1
        log_event(
            logger,
            logging.ERROR,
            "state machine is made again",
            group=replica.config.group,
            applied_index=self._applied,
            text=why,
        )
        replica.update_eligibility()
        replica.wake()

    def _rebuild_again(self, rebuild: _Rebuild, trusted_index: int | None) -> None:
        """It failed, or less can be trusted than was known when it was asked for."""
        if trusted_index is not None:
            before = rebuild.trusted_index
            least = trusted_index if before is None else min(before, trusted_index)
            self._rebuild = _Rebuild(rebuild.why, least)
            self.snapshotter.distrust(least)
        elif self._retry_ms == NEVER_MS:
            self._retry_ms = self._environment.now_ms() + RETRY_MS
        self._replica.wake()

    def _remaking(self, machine: StateMachine, rebuild: _Rebuild) -> MachineJob:
        remake, before = self._environment.remake, self.snapshotter.newest

        def run() -> tuple[StateMachine, SnapshotMeta | None]:
            if rebuild.trusted_index is not None:
                self.snapshotter.set_aside_behind(rebuild.trusted_index)
            newest = self.snapshotter.look()  # may fail, as what follows may not for its sake
            with damage_of_machine():
                return machine if remake is None else remake(machine), newest

        def done(found: tuple[StateMachine, SnapshotMeta | None]) -> None:
            self.machine, newest = found
            self.snapshotter.looked(before, newest)
            self._applied, self.results = -1, CommandResults()
            if self._rebuild is not rebuild:
                return  # less is trusted by now: once more
            self._rebuild = None
            core = self._replica.core
            self._role = self._role or (core.term, core.role)
            self.comparisons.forget()
            for query in self._ready:
                heapq.heappush(self._waiting, query)
            self._ready.clear()
            self._begin()

        return MachineJob(run, done)

    def _no_snapshot_text(self) -> str:
        begin = self._replica.log.before_begin_index + 1
        what = "trusted" if self.snapshotter.has_aside else "whole"
        return f"no {what} snapshot is left, and the log begins at {begin}"

    def _ask_peers(self) -> None:
        is_alone = len(self._replica.core.membership.ids) <= 1
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
            group=self._replica.config.group,
            text=self._no_snapshot_text(),
        )

    def _ask_a_peer(self, now_ms: int) -> None:
        """Ask the leader, if one is known, else one after the other.

        If nobody has given one for long, what was set aside is used.
        """
        core = self._replica.core
        peers = [peer for peer in core.membership.ids if peer != core.self_id]
        self._ask_peers_ms = now_ms + RETRY_MS
        self._asked_peers += 1
        if self._replica.snapshot_transfer.is_installing:
            return
        if self.snapshotter.has_aside and now_ms >= self._ask_until_ms:
            self._takes_back = True
            return
        if not peers:
            return
        peer = core.leader_id if core.leader_id in peers else peers[self._asked_peers % len(peers)]
        self._replica.snapshot_transfer.want(str(peer), self._replica.log.before_begin_index)

    def _taken_back(self) -> None:
        self._takes_back = False
        if self._load is not None:
            return  # one has come meanwhile
        self._ask_peers_ms = NEVER_MS
        self._replica.raise_alarm(
            "nobody gives a snapshot: those are used that were set aside, although their state "
            "may be another's"
        )
        self._begin()

    # -- applying -----------------------------------------------------------------------------

    def _applying(self, machine: StateMachine, first: int, last: int) -> MachineJob:
        log, limits = self._replica.log, APPLY_BYTES
        found = gather(log, first, last, limits) if log.is_in_memory(first) else None

        def run() -> _Applied:
            runs = gather(log, first, last, limits) if found is None else found
            handed = ApplyBatch.of([entries.block() for entries in runs])
            size, end = sum(len(entries.data) for entries in runs), runs[-1].last_index
            results = self._apply(machine, handed)
            return _Applied(end, size, results, self._digest_at(machine, end))

        def done(found: _Applied) -> None:
            self._applied, size, results = found.last_index, found.size_bytes, found.results
            self._has_applied = True
            self.snapshotter.applied(size)
            if len(self._replica.appends.pending):
                self._results.update(results)
            self._replica.appends.applied(self._applied, self._take_results)
            self._forget_results()
            self._release()
            if found.digest:
                self.comparisons.reached(self._applied, found.digest)
            if self._least_applied >= 0 and self._applied >= self._least_applied:
                self._least_applied = -1
                self._replica.update_eligibility()

        return MachineJob(run, done)

    def _apply(self, machine: StateMachine, handed: ApplyBatch) -> dict[int, bytes]:
        """Have entries applied; on the machine's thread."""
        try:
            return handed.apply_to(machine, self.results)
        except PASSING_ERRORS as error:
            if machine.applied_index != self._applied:  # it does not keep its state itself
                if isinstance(error, OutOfDescriptorsError):
                    raise MachineDamagedError(f"{error} while entries were applied") from error
                raise MachineError(f"{describe_error(error)} while entries were applied") from error
            self.results = CommandResults.of(machine.kept())  # as they were before
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
                group=self._replica.config.group,
                index=index,
                reason=describe_error(error),
            )
            return b""
        is_eligible = isinstance(digest, bytes) and len(digest) <= DIGEST_BYTES_MAX
        return digest if is_eligible else b""

    def _forget_results(self) -> None:
        """Those of appends that were given up are not asked for any more."""
        first = self._replica.appends.pending.first_index
        if first is None:
            self._results.clear()
        elif len(self._results) > RESULTS_KEPT:
            kept = {index: found for index, found in self._results.items() if index >= first}
            self._results = kept

    def _take_results(self, first: int, last: int) -> list[bytes]:
        return [self._results.pop(index, b"") for index in range(first, last + 1)]

    # -- asking -------------------------------------------------------------------------------

    def _release(self) -> None:
        while self._waiting and self._waiting[0].index <= self._applied:
            self._ready.append(heapq.heappop(self._waiting))

    def _asking(self, machine: StateMachine) -> MachineJob:
        count = min(len(self._ready), QUERIES_TOGETHER)
        queries = [self._ready.popleft() for _ in range(count)]
        self._has_applied = False

        def again() -> None:
            self._ready.extendleft(reversed(queries))

        def run() -> list[tuple[ResponseCode, str, bytes]]:
            return [_asked(machine, query.body) for query in queries]

        def done(answers: list[tuple[ResponseCode, str, bytes]]) -> None:
            for query, (code, text, answer) in zip(queries, answers, strict=True):
                query.answer(code, text, self._applied, answer)

        return MachineJob(run, done, refused=again)

    # -- loading ------------------------------------------------------------------------------

    def _loading(self, machine: StateMachine, meta: SnapshotMeta) -> MachineJob:
        before = self.snapshotter.newest

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
        self._applied = meta.last_included_index
        self._results.clear()
        self.results = results
        if kept.sessions:
            self._replica.sessions.learned(kept.sessions)
        if self._load is meta:
            self._load = None
        log_event(
            logger,
            logging.INFO,
            "snapshot loaded",
            group=self._replica.config.group,
            applied_index=self._applied,
        )
        self._release()
        if self._replica.log.damaged:  # what is damaged below it is needed by nobody any more
            self._replica.maintenance.remove_until(meta.last_included_index)
        self.snapshotter.settle()
        self._replica.update_eligibility()

    def _load_older(self) -> None:
        """The newest was broken and is gone: an older one will do if the log goes back so far."""
        self._load = None
        self._begin()

    def close(self) -> None:
        """The node stops, and its machine threads have."""
        if self.machine is None:
            return
        if self._rebuild is not None and self._environment.remake is not None:
            self.machine = self._environment.remake(self.machine)  # not to be opened as it is
        self.machine.close()


def _asked(machine: StateMachine, body: bytes) -> tuple[ResponseCode, str, bytes]:
    """Answer one question; what it raises is told to whoever asked."""
    try:
        return ResponseCode.SUCCESS, "", bytes(memoryview(machine.query(body)))
    except PASSING_ERRORS as error:
        return ResponseCode.LEADER_PENDING_FULL, f"{error}; try again later", b""
    except StorageError as error:
        raise MachineDamagedError(str(error)) from error
    except RequestError as error:
        return error.code, f"the state machine cannot answer: {error}", b""
    except Exception as error:
        text = f"the state machine cannot answer: {describe_error(error)}"
        return ResponseCode.INTERNAL_ERROR, text, b""
