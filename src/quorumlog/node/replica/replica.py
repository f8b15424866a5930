"""One group's replica: events go into the core one at a time, effects are carried out in order.

The walk of an append (DESIGN section 4) passes here twice: down as a proposal, up as a committed
index. Nothing here waits: whatever takes time comes back later as an event.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from quorumlog.log_events import describe_error, log_event
from quorumlog.machine.base import StateMachine
from quorumlog.model.block import Block, Buffer, first_index_of, is_noop
from quorumlog.model.codes import PushType, ResponseCode, Role
from quorumlog.model.config import GroupConfig
from quorumlog.model.errors import (
    CorruptionError,
    InvariantViolation,
    RequestError,
    StorageError,
    check,
)
from quorumlog.model.limits import Limits
from quorumlog.model.messages.client import FetchRequest
from quorumlog.model.messages.machine import QueryRequest
from quorumlog.model.messages.peer import (
    DigestQuery,
    HeartBeatRequest,
    InstallSnapshotRequest,
    OfferQuery,
    OfferResponse,
    PeerMessage,
    PushRequest,
    ReadIndexRequest,
    ReadIndexResponse,
    RepairRequest,
    RepairResponse,
    SnapshotChunk,
    SnapshotChunkRequest,
    SnapshotOfferRequest,
    StateDigest,
)
from quorumlog.node.environment import Environment
from quorumlog.node.replica.appends import Appends
from quorumlog.node.replica.applier import Applier, QueryAnswer
from quorumlog.node.replica.consumer_positions import ConsumerPositions
from quorumlog.node.replica.counters import ReplicaCounters
from quorumlog.node.replica.events_logged import (
    log_membership_change,
    log_role_change,
    log_truncation,
)
from quorumlog.node.replica.fetch_waiters import FetchAnswer
from quorumlog.node.replica.fetches import Fetches, View
from quorumlog.node.replica.lost_sessions import LostSessions
from quorumlog.node.replica.maintenance import Maintenance
from quorumlog.node.replica.peer_messages import PeerMessages
from quorumlog.node.replica.pending_requests import PendingRequests
from quorumlog.node.replica.placement import Placement
from quorumlog.node.replica.proposals import Answer
from quorumlog.node.replica.push_batching import gather_whole
from quorumlog.node.replica.push_validation import read_push_block
from quorumlog.node.replica.repair import Repairer
from quorumlog.node.replica.sessions import Sessions
from quorumlog.node.replica.snapshot_transfer import SnapshotTransfer
from quorumlog.node.replica.transactions import OpenTransactions
from quorumlog.raft import effects as fx
from quorumlog.raft import events as ev
from quorumlog.raft.core import RaftCore
from quorumlog.sessions.entries import SystemEntry, is_time_mark
from quorumlog.storage.entries.entry_runs import EntryRun
from quorumlog.storage.files.write_plans import WritePlan
from quorumlog.storage.log.store import OpenedGroup

logger = logging.getLogger(__name__)

LOOK_MS = 5
"""Timers may be so late: looking at all of them after each event would cost more than the event."""


class _Item(msgspec.Struct, frozen=True):
    """An event with the bytes that belong to it."""

    event: ev.Event
    block: Block | None = None
    runs: list[EntryRun] | None = None
    table: bytes = b""


class Replica:
    """Shell around one `RaftCore`. All methods are called on one thread."""

    def __init__(
        self,
        config: GroupConfig,
        core: RaftCore,
        opened: OpenedGroup,
        environment: Environment,
        limits: Limits,
        machine: StateMachine | None = None,
    ) -> None:
        self.config = config
        self.core = core
        self.log = log = opened.log
        network, now_ms = environment.network, environment.now_ms
        self.counters = ReplicaCounters()
        self.health_text = ""
        places = environment.is_same_place, environment.is_here
        self.placement = Placement(core, config, network, *places)
        self.broken = False
        self._looks_ms = 0
        self._hard_states = opened.hard_states
        self._environment = environment
        self._limits = limits
        self._inbox: deque[_Item] = deque()
        self._stepping = False
        self._is_eligible = True
        self._stored_token = self._reported_token = 0
        saved, is_lost = opened.sessions, opened.sessions_lost
        self.sessions = Sessions(log, opened.committed_index, saved, is_lost=is_lost)
        self.log.keep_sessions(self.sessions.to_save)
        self.appends = Appends(self, environment, limits)
        self.transactions = OpenTransactions(self, environment)
        self.readers = ConsumerPositions(environment.now_ms)
        self.applier = Applier(self, machine, opened, environment)
        self.repairer = Repairer(self, environment, limits)
        self.lost_sessions = LostSessions(self, environment)
        parts = self.view, self.sessions, environment.executor.run, self.repairer.found
        where = opened.location
        self.fetches = Fetches(log, limits, *parts, defer=environment.defer, location=where)
        self.maintenance = Maintenance(self, opened.disk_state, environment, limits)
        pushed_max = limits.push_bytes_max
        self.snapshot_transfer = SnapshotTransfer(self, opened.snapshots, environment, pushed_max)
        self._outbox = PeerMessages(log, network, self.repairer.look_at, self.raise_alarm)
        self.pending_requests = PendingRequests(
            core, config.group, network, self.tell, now_ms, environment.nonce
        )
        self._run: dict[type[Any], Callable[[Any, _Item], None]] = {
            fx.SaveHardState: self._save_hard_state,
            fx.AppendProposal: lambda effect, _: self.appends.stage(effect),
            fx.AppendNoop: self._append_noop,
            fx.AppendMembership: self._append_membership,
            fx.AppendReceived: self._append_received,
            fx.TruncateLog: self._truncate,
            fx.ResetLog: lambda effect, item: self.snapshot_transfer.reset(effect, item.table),
            fx.OfferSnapshot: lambda effect, _: self.snapshot_transfer.offer(effect),
            fx.ConfirmOffer: lambda effect, item: self.snapshot_transfer.confirm(
                effect, item.table
            ),
            fx.FetchSnapshot: lambda effect, item: self.snapshot_transfer.fetch(effect, item.table),
            fx.Send: self._send,
            fx.ReadEntries: self._read_entries,
            fx.PushEntries: self._push_entries,
            fx.RefuseProposal: lambda effect, _: self.appends.refused(effect),
            fx.Committed: self._committed,
            fx.FailPending: lambda effect, _: self.appends.fail(effect),
            fx.RoleChanged: self._role_changed,
            fx.MembershipChanged: self._membership_changed,
            fx.ReadReady: lambda effect, _: self.pending_requests.read_ready(effect),
            fx.Finished: lambda effect, _: self.pending_requests.finished(effect),
            fx.Alarm: self._alarm,
        }

    # -- doors in ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take part; before the links to peers are made."""
        self.check_addresses()
        self.applier.go_on()
        self.tell(ev.Ticked())

    def check_addresses(self) -> None:
        """See whether this replica is where its log has it, and where the others are."""
        self.placement.look()
        self.update_eligibility()

    def update_eligibility(self) -> None:
        """Let the core know when this replica becomes, or ceases to be, fit to lead."""
        is_eligible = (
            not self.log.damaged
            and self.applier.is_eligible
            and not self.snapshot_transfer.is_installing
        )
        is_eligible = is_eligible and self._knows_sessions() and not self.placement.misplaced_text
        if is_eligible != self._is_eligible:
            self._is_eligible = is_eligible
            self.tell(ev.EligibilityChanged(is_eligible))

    def _knows_sessions(self) -> bool:
        """Whether no producer's block can be stored twice: what hid them is repaired, then read."""
        if self.sessions.is_incomplete:
            try:
                unread = self.sessions.scan(self.core.committed_index)
            except StorageError as error:
                log_event(
                    logger,
                    logging.WARNING,
                    "cannot read producer sessions",
                    group=self.config.group,
                    text=str(error),
                )
                self.repairer.look_again_later()
                return False
            if unread is not None:  # damage that nobody has met yet, or an index record
                self.repairer.look_at(unread)
                self.repairer.look_again_later()
        return not self.sessions.is_incomplete

    def tell(self, event: ev.Event, table: bytes = b"") -> None:
        """Let the core know of something that brings no entries.

        `table`: the producer sessions that came with an offer.
        """
        self._handle(_Item(event, table=table))

    def view(self) -> View:
        """Return what answers to clients say about this replica."""
        core = self.core
        known = (core.role, core.term, core.leader_id, core.committed_index, core.is_ready)
        return View(*known, core.durable_index)

    def story(self) -> list[tuple[int, str]]:
        """Return what happened lately as (milliseconds ago, sentence), oldest first."""
        now_ms = self._environment.now_ms()
        return [(now_ms - at_ms, text) for at_ms, text in self.core.history.lines()]

    def propose(self, block: Block, answer: Answer, entry: SystemEntry | None = None) -> None:
        """Append a verified block; `answer` is called once, at once or later."""
        self.appends.propose(block, answer, entry)

    def receive(self, message: PeerMessage, attachment: memoryview) -> None:
        """Take a message of a peer."""
        if isinstance(message, RepairRequest):
            self.repairer.serve(message)
            return
        if isinstance(message, RepairResponse):
            if not self.lost_sessions.answered(message, attachment):
                self.repairer.answered(message, attachment)
            self.wake()
            return
        if isinstance(message, ReadIndexRequest):
            self.pending_requests.serve(message)
        elif isinstance(message, ReadIndexResponse):
            self.pending_requests.answered(message)
            self.wake()
        elif isinstance(message, PushRequest):
            self._receive_push(message, attachment)
        elif isinstance(message, InstallSnapshotRequest):
            self.snapshot_transfer.offered(message, attachment)
        elif isinstance(message, OfferQuery):
            self.snapshot_transfer.asked(message)
        elif isinstance(message, OfferResponse):
            self.snapshot_transfer.answered(message)
        elif isinstance(message, SnapshotChunkRequest):
            self.snapshot_transfer.serve(message)
        elif isinstance(message, SnapshotOfferRequest):
            self.snapshot_transfer.wanted(message)
        elif isinstance(message, DigestQuery | StateDigest):
            self.applier.comparisons.received(message)
        elif isinstance(message, SnapshotChunk):
            self.snapshot_transfer.received(message, attachment)
            self.wake()
        elif isinstance(message, HeartBeatRequest):
            fits = self._outbox.heartbeat_fits(message, self.core.committed_index)
            self._handle(_Item(ev.Received(message, fits)))
        else:
            self._handle(_Item(ev.Received(message)))

    def _receive_push(self, message: PushRequest, attachment: memoryview) -> None:
        self.counters.pushes_received += 1
        fits = self._outbox.push_fits(message)
        if message.type is not PushType.APPEND:
            self._handle(_Item(ev.Received(message, fits)))
            return
        received = read_push_block(message, attachment, self._limits)
        if received is None:
            self.counters.malformed_pushes += 1
            log_event(
                logger,
                logging.ERROR,
                "malformed push dropped",
                group=message.group,
                peer=message.local_id,
                first_index=message.first_index,
            )
            return
        # what elections need is taken from the reserve: they go on while the disk is full
        block, memberships = received
        spared = bool(memberships) or is_noop(block)
        full_text = self.maintenance.full_text(len(attachment), is_mark=is_time_mark(block))
        full = bool(full_text) and not spared
        self._handle(_Item(ev.Received(message, fits, full, memberships), block=block))

    def fetch(self, request: FetchRequest, answer: FetchAnswer) -> None:
        """Read committed entries for a client."""
        if request.linearizable:
            self.pending_requests.read(lambda *proof: self._fetch_proved(request, answer, *proof))
        else:
            self.fetches.fetch(request, answer, self._environment.now_ms())
        self.wake()

    def _fetch_proved(
        self, request: FetchRequest, answer: FetchAnswer, code: ResponseCode, text: str, index: int
    ) -> None:
        """Answer a linearizable fetch: everything up to index is committed here now."""
        known_until = self.sessions.as_of
        if code is ResponseCode.SUCCESS and request.read_committed and known_until < index:
            # its answer would end there, and leave out what was acknowledged behind it
            code = ResponseCode.DISK_ERROR
            text = f"not all entries behind {known_until} can be read here; ask another replica"
        if code is ResponseCode.SUCCESS:
            self.fetches.fetch(request, answer, self._environment.now_ms())
        else:
            self.fetches.refuse(answer, code, text)

    def query(self, request: QueryRequest, body: bytes, answer: QueryAnswer) -> None:
        """Ask the state machine for a client."""
        applier = self.applier
        if request.linearizable:
            applier.query_proved(body, answer)
        else:
            applier.query(request.after_index, body, answer, wait_ms=request.wait_ms)
        self.wake()

    @property
    def applied_index(self) -> int:
        """Index of the last entry that is applied; of a plain log: committed."""
        return self.applier.applied_index

    def peer_connected(self, peer_id: str) -> None:
        """The bulk link to a peer is up (again)."""
        self._handle(_Item(ev.PeerConnected(peer_id)))

    def peer_lost(self, peer_id: str) -> None:
        """A peer's process has ended, it seems."""
        self._handle(_Item(ev.PeerLost(peer_id)))

    def leave(self) -> None:
        """The node is about to stop: have another one lead."""
        self._handle(_Item(ev.Leaving()))

    @property
    def may_leave(self) -> bool:
        """Whether the node need not wait for this replica any more before it stops.

        Where nobody else can lead, appends that no majority will acknowledge are not waited for.
        """
        if not self.core.may_leave:
            return False
        is_hopeless = self.core.role is Role.LEADER and not self.core.may_commit
        return self.appends.is_idle or is_hopeless or bool(self.health_text)

    def tick(self) -> None:
        """Let time pass: timers of the core, of waiting appends and of waiting fetches."""
        now_ms = self._environment.now_ms()
        self.appends.expire(now_ms)
        self.transactions.tick(now_ms)
        self.applier.tick(now_ms)
        self.snapshot_transfer.tick(now_ms)
        self.fetches.expire(now_ms)
        self.pending_requests.expire(now_ms)
        if not self.health_text:
            self.maintenance.tick(now_ms)
            self.repairer.tick(now_ms)
            self.lost_sessions.tick(now_ms)
        self._handle(_Item(ev.Ticked(self._may_campaign(now_ms))))
        if self.core.role is Role.LEADER:
            self._environment.liveness.rest(self)

    def _may_campaign(self, now_ms: int) -> bool:
        group, timeout_ms = self.config.group, self.config.election_timeout_max_ms
        is_due = self.core.is_due_to_campaign(now_ms)
        return not is_due or self._environment.election_throttle.admits(group, now_ms, timeout_ms)

    # -- what the disk says -----------------------------------------------------------------

    def written(self, token: int | None, plan: WritePlan) -> None:
        """See `WriteOwner`."""
        if token is not None:
            check(token > self._stored_token, "tokens rise", token, self._stored_token)
            self._stored_token = token

    def writes_completed(self) -> None:
        """See `WriteOwner`: one event for all tokens of a group commit, then the held messages."""
        self._outbox.stored(self._stored_token)
        if self._stored_token > self._reported_token:
            self._reported_token = self._stored_token
            self._handle(_Item(ev.Stored(self._stored_token)))
        self.applier.go_on()
        self.maintenance.prepare_files()
        self.maintenance.changed()

    def write_failed(self, error: StorageError) -> None:
        """See `WriteOwner`: nothing that waits for a write may ever be sent."""
        self.health_text = str(error)
        self._outbox.drop_all()
        self._handle(_Item(ev.StorageFailed(str(error))))

    # -- the loop ---------------------------------------------------------------------------

    def _handle(self, item: _Item) -> None:
        """Step the core with this and all events that follow from it, one after the other."""
        self._inbox.append(item)
        if self._stepping or self.broken:
            return
        self._stepping = True
        try:
            while self._inbox:
                item = self._inbox.popleft()
                for effect in self.core.step(item.event, self._environment.now_ms()):
                    self._run[type(effect)](effect, item)
        except Exception as error:
            self._break(error)
            raise
        finally:
            self._stepping = False
        self.appends.settle_late()
        if self.core.role is not Role.CANDIDATE:
            self._environment.election_throttle.over(self.config.group)
        self._environment.liveness.stepped(self)
        self.wake()

    def _break(self, error: Exception) -> None:
        """After a bug or a failed check this replica must not go on as if nothing had happened."""
        self.health_text = self.health_text or f"replica stopped: {describe_error(error)}"
        self.broken = True
        self._inbox.clear()
        self._outbox.drop_all()
        self._environment.broken(self.health_text)

    def wake(self) -> None:
        """Have `tick` called when the next thing is due.

        What changes within the next milliseconds is looked at together, in one `tick` after them.
        """
        now_ms = self._environment.now_ms()
        if now_ms < self._looks_ms:
            self._environment.wake_at(self._looks_ms)
            return
        self._looks_ms = now_ms + LOOK_MS
        deadlines = [
            self.core.next_deadline_ms(),
            self.appends.next_deadline_ms(),
            self.transactions.next_deadline_ms(),
            self.applier.next_deadline_ms(),
            self.snapshot_transfer.next_deadline_ms(),
            self.fetches.next_deadline_ms(),
            self.pending_requests.next_deadline_ms(),
        ]
        if not self.health_text:  # `tick` leaves them alone then
            deadlines += [
                self.maintenance.next_deadline_ms(),
                self.repairer.next_deadline_ms(),
                self.lost_sessions.next_deadline_ms(),
            ]
        self._environment.wake_at(min(deadline for deadline in deadlines if deadline is not None))

    def _committed(self, effect: fx.Committed, item: _Item) -> None:
        self.log.note_committed(effect.index)
        self.sessions.committed(effect.index)
        self.maintenance.changed()
        self.applier.committed(effect.index)
        self.fetches.committed()
        self.pending_requests.committed(effect.index)

    # -- writes -----------------------------------------------------------------------------

    def _save_hard_state(self, effect: fx.SaveHardState, item: _Item) -> None:
        plan = self._hard_states.plan_save(effect.hard_state)
        self._environment.disk.submit(self, effect.token, plan)

    def _append_noop(self, effect: fx.AppendNoop, item: _Item) -> None:
        plan = self.log.append_noop(effect.term)
        check(self.log.end_index == effect.index, "core and log agree on the end")
        self._environment.disk.submit(self, effect.token, plan)

    def _append_membership(self, effect: fx.AppendMembership, item: _Item) -> None:
        plan = self.log.append_config(effect.membership.encode(), effect.term)
        check(self.log.end_index == effect.index, "core and log agree on the end")
        self._environment.disk.submit(self, effect.token, plan)

    def _append_received(self, effect: fx.AppendReceived, item: _Item) -> None:
        if item.block is None or not isinstance(item.event, ev.Received):
            raise InvariantViolation(f"entry {effect.first_index} without the block of a push")
        block = item.block
        skipped = effect.first_index - first_index_of(block)
        kept = effect.last_index - effect.first_index + 1
        if skipped or kept != block.count:
            block = block.slice(skipped, skipped + kept)
        plan = self.log.append_received(block)
        self.sessions.appended(block, effect.first_index)
        check(self.log.end_index == effect.last_index, "core and log agree on the end")
        self._environment.disk.submit(self, effect.token, plan)

    def _truncate(self, effect: fx.TruncateLog, item: _Item) -> None:
        log_truncation(self.config.group, effect, self.log.end_index)
        self._environment.disk.submit(self, effect.token, self.log.truncate(effect.from_index))
        self.sessions.truncated(effect.from_index)

    # -- messages ---------------------------------------------------------------------------

    def _send(self, effect: fx.Send, item: _Item) -> None:
        self._outbox.send(effect)

    def _read_entries(self, effect: fx.ReadEntries, item: _Item) -> None:
        """Find entries for a push: from memory at once, else beside the loop."""
        log = self.log

        def read() -> list[EntryRun]:
            return gather_whole(log, effect.first_index, effect.last_index, effect.bytes_max)

        def done(runs: list[EntryRun]) -> None:
            size = sum(len(run.data) for run in runs)
            last, hot = runs[-1].last_index, runs[0].from_memory
            event = ev.EntriesRead(effect.peer_id, effect.request_id, last, size, hot)
            self._handle(_Item(event, runs=runs))

        def failed(error: Exception) -> None:
            if isinstance(error, CorruptionError):
                self.repairer.found(error)
            elif not isinstance(error, StorageError | RequestError):
                text = "reading entries for a push failed"
                log_event(logger, logging.ERROR, text, exc_info=error, group=self.config.group)
            event = ev.EntriesUnreadable(effect.peer_id, effect.request_id, str(error))
            self._handle(_Item(event))

        if log.is_in_memory(effect.first_index):
            done(read())
        else:
            self._environment.executor.run(read, done, failed)

    def _push_entries(self, effect: fx.PushEntries, item: _Item) -> None:
        runs = item.runs or []
        message = self._outbox.with_chain(effect.message)
        if message is None:
            return
        check(
            bool(runs) and runs[0].first_index == message.first_index, "the push fits its entries"
        )
        attachments: list[Buffer] = [run.data for run in runs]
        if self._environment.network.send(message.remote_id, message, attachments, bulk=True):
            self.counters.pushes_sent += 1
            self.counters.push_bytes_sent += sum(len(part) for part in attachments)

    # -- news -------------------------------------------------------------------------------

    def _role_changed(self, effect: fx.RoleChanged, item: _Item) -> None:
        self.counters.role_changes += 1
        log_role_change(self.config.group, effect)
        self.applier.role_changed(effect.term, effect.role)
        self.transactions.role_changed(effect.role)
        self.readers.forget()
        self.fetches.committed()

    def _membership_changed(self, effect: fx.MembershipChanged, item: _Item) -> None:
        log_membership_change(self.config.group, effect)
        self.check_addresses()

    def _alarm(self, effect: fx.Alarm, item: _Item) -> None:
        self.raise_alarm(effect.text)

    def raise_alarm(self, text: str) -> None:
        """Tell people of something that must never happen."""
        self.counters.alarms += 1
        log_event(logger, logging.ERROR, "alarm", group=self.config.group, text=text)
