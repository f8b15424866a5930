"""One group's replica: events go into the core one at a time, effects are carried out in order.

The walk of an append (DESIGN section 4) passes here twice: down as a proposal, up as a committed
index. Nothing here waits: whatever takes time comes back later as an event.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from quorumlog.log_lines import described, say
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
from quorumlog.model.machine_message import QueryRequest
from quorumlog.model.message import (
    DigestQuestion,
    FetchRequest,
    HeartBeatRequest,
    InstallSnapshotRequest,
    OfferAnswer,
    OfferQuestion,
    PeerMessage,
    PushRequest,
    ReadIndexRequest,
    ReadIndexResponse,
    RepairRequest,
    RepairResponse,
    SnapshotPiece,
    SnapshotPieceRequest,
    SnapshotWanted,
    StateDigest,
)
from quorumlog.node.environment import Doors
from quorumlog.node.replica.appends import Appends
from quorumlog.node.replica.applier import Applier, QueryAnswer
from quorumlog.node.replica.consumer_positions import ReaderPositions
from quorumlog.node.replica.counters import ReplicaCounters
from quorumlog.node.replica.events_logged import say_membership, say_role, say_truncation
from quorumlog.node.replica.fetch_waiters import FetchAnswer
from quorumlog.node.replica.lost_sessions import LostSessions
from quorumlog.node.replica.maintenance import Upkeep
from quorumlog.node.replica.peer_messages import Outbox
from quorumlog.node.replica.pending_requests import Asked
from quorumlog.node.replica.placement import Placement
from quorumlog.node.replica.proposals import Answer
from quorumlog.node.replica.push_batching import gather_whole
from quorumlog.node.replica.push_validation import read_push_block
from quorumlog.node.replica.reads import Fetches, View
from quorumlog.node.replica.repair import Healing
from quorumlog.node.replica.sessions import Sessions
from quorumlog.node.replica.snapshot_transfer import Installs
from quorumlog.node.replica.transactions import OpenTransactions
from quorumlog.raft import effects as fx
from quorumlog.raft import events as ev
from quorumlog.raft.core import RaftCore
from quorumlog.sessions.entries import SystemEntry, is_time_mark
from quorumlog.storage.entries.spans import Span
from quorumlog.storage.files.write_plans import WritePlan
from quorumlog.storage.log.store import OpenedGroup

logger = logging.getLogger(__name__)

LOOK_MS = 5
"""Timers may be so late: looking at all of them after each event would cost more than the event."""


class _Item(msgspec.Struct, frozen=True):
    """An event with the bytes that belong to it."""

    event: ev.Event
    block: Block | None = None
    spans: list[Span] | None = None
    table: bytes = b""


class Replica:
    """Shell around one `RaftCore`. All methods are called on one thread."""

    def __init__(
        self,
        config: GroupConfig,
        core: RaftCore,
        opened: OpenedGroup,
        doors: Doors,
        limits: Limits,
        machine: StateMachine | None = None,
    ) -> None:
        self.config = config
        self.core = core
        self.log = log = opened.log
        self.counters = ReplicaCounters()
        self.health_text = ""
        self.placement = Placement(core, config, doors.network, doors.is_same_place, doors.is_here)
        self.broken = False
        self._looks_ms = 0
        self._hard_states = opened.hard_states
        self._doors = doors
        self._limits = limits
        self._inbox: deque[_Item] = deque()
        self._stepping = False
        self._is_fit = True
        self._stored_token = 0
        self._reported_token = 0
        saved, is_lost = opened.sessions, opened.sessions_lost
        self.sessions = Sessions(log, opened.committed_index, saved, is_lost=is_lost)
        self.log.keep_sessions(self.sessions.to_save)
        self.appends = Appends(self, doors, limits)
        self.transactions = OpenTransactions(self, doors)
        self.readers = ReaderPositions(doors.now_ms)
        self.applier = Applier(self, machine, opened, doors)
        self.healing = Healing(self, doors, limits)
        self.lost_sessions = LostSessions(self, doors)
        parts = self.view, self.sessions, doors.background.run, self.healing.found
        where = opened.location
        self.fetches = Fetches(log, limits, *parts, defer=doors.defer, location=where)
        self.upkeep = Upkeep(self, opened.disk_state, doors, limits)
        self.installs = Installs(self, opened.snapshots, doors, limits.push_bytes_max)
        self._outbox = Outbox(log, doors.network, self.healing.look_at, self.raise_alarm)
        self.asked = Asked(core, config.group, doors.network, self.tell, doors.now_ms, doors.nonce)
        self._run: dict[type[Any], Callable[[Any, _Item], None]] = {
            fx.SaveHardState: self._save_hard_state,
            fx.AppendProposal: lambda effect, _: self.appends.stage(effect),
            fx.AppendNoop: self._append_noop,
            fx.AppendMembership: self._append_membership,
            fx.AppendReceived: self._append_received,
            fx.TruncateLog: self._truncate,
            fx.ResetLog: lambda effect, item: self.installs.reset(effect, item.table),
            fx.OfferSnapshot: lambda effect, _: self.installs.offer(effect),
            fx.ConfirmOffer: lambda effect, item: self.installs.confirm(effect, item.table),
            fx.FetchSnapshot: lambda effect, item: self.installs.fetch(effect, item.table),
            fx.Send: self._send,
            fx.ReadEntries: self._read_entries,
            fx.PushEntries: self._push_entries,
            fx.RefuseProposal: lambda effect, _: self.appends.refused(effect),
            fx.Committed: self._committed,
            fx.FailPending: lambda effect, _: self.appends.fail(effect),
            fx.RoleChanged: self._role_changed,
            fx.MembershipChanged: self._membership_changed,
            fx.ReadReady: lambda effect, _: self.asked.read_ready(effect),
            fx.Finished: lambda effect, _: self.asked.finished(effect),
            fx.Alarm: self._alarm,
        }

    # -- doors in ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take part; before the links to peers are made."""
        self.look_at_addresses()
        self.applier.go_on()
        self.tell(ev.Ticked())

    def look_at_addresses(self) -> None:
        """See whether this replica is where its log has it, and where the others are."""
        self.placement.look()
        self.tell_fitness()

    def tell_fitness(self) -> None:
        """Let the core know when this replica becomes, or ceases to be, fit to lead."""
        is_fit = not self.log.damaged and self.applier.is_fit and not self.installs.is_installing
        is_fit = is_fit and self._knows_sessions() and not self.placement.misplaced_text
        if is_fit != self._is_fit:
            self._is_fit = is_fit
            self.tell(ev.FitnessChanged(is_fit))

    def _knows_sessions(self) -> bool:
        """Whether no producer's block can be stored twice: what hid them is repaired, then read."""
        if self.sessions.is_incomplete:
            try:
                unread = self.sessions.scan(self.core.committed_index)
            except StorageError as error:
                say(
                    logger,
                    logging.WARNING,
                    "cannot read producer sessions",
                    group=self.config.group,
                    text=str(error),
                )
                self.healing.look_again_later()
                return False
            if unread is not None:  # damage that nobody has met yet, or an index record
                self.healing.look_at(unread)
                self.healing.look_again_later()
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
        now_ms = self._doors.now_ms()
        return [(now_ms - at_ms, text) for at_ms, text in self.core.story.lines()]

    def propose(self, block: Block, answer: Answer, entry: SystemEntry | None = None) -> None:
        """Append a verified block; `answer` is called once, at once or later."""
        self.appends.propose(block, answer, entry)

    def receive(self, message: PeerMessage, attachment: memoryview) -> None:
        """Take a message of a peer."""
        if isinstance(message, RepairRequest):
            self.healing.serve(message)
            return
        if isinstance(message, RepairResponse):
            if not self.lost_sessions.answered(message, attachment):
                self.healing.answered(message, attachment)
            self.wake()
            return
        if isinstance(message, ReadIndexRequest):
            self.asked.serve(message)
        elif isinstance(message, ReadIndexResponse):
            self.asked.answered(message)
            self.wake()
        elif isinstance(message, PushRequest):
            self._receive_push(message, attachment)
        elif isinstance(message, InstallSnapshotRequest):
            self.installs.offered(message, attachment)
        elif isinstance(message, OfferQuestion):
            self.installs.asked(message)
        elif isinstance(message, OfferAnswer):
            self.installs.answered(message)
        elif isinstance(message, SnapshotPieceRequest):
            self.installs.serve(message)
        elif isinstance(message, SnapshotWanted):
            self.installs.wanted(message)
        elif isinstance(message, DigestQuestion | StateDigest):
            self.applier.comparisons.received(message)
        elif isinstance(message, SnapshotPiece):
            self.installs.received(message, attachment)
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
            say(
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
        full_text = self.upkeep.full_text(len(attachment), is_mark=is_time_mark(block))
        full = bool(full_text) and not spared
        self._handle(_Item(ev.Received(message, fits, full, memberships), block=block))

    def fetch(self, request: FetchRequest, answer: FetchAnswer) -> None:
        """Read committed entries for a client."""
        if request.linearizable:
            self.asked.read(lambda *proof: self._fetch_proved(request, answer, *proof))
        else:
            self.fetches.fetch(request, answer, self._doors.now_ms())
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
            self.fetches.fetch(request, answer, self._doors.now_ms())
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
        now_ms = self._doors.now_ms()
        self.appends.expire(now_ms)
        self.transactions.tick(now_ms)
        self.applier.tick(now_ms)
        self.installs.tick(now_ms)
        self.fetches.expire(now_ms)
        self.asked.expire(now_ms)
        if not self.health_text:
            self.upkeep.tick(now_ms)
            self.healing.tick(now_ms)
            self.lost_sessions.tick(now_ms)
        self._handle(_Item(ev.Ticked(self._may_campaign(now_ms))))
        if self.core.role is Role.LEADER:
            self._doors.beats.rest(self)

    def _may_campaign(self, now_ms: int) -> bool:
        group, timeout_ms = self.config.group, self.config.election_timeout_max_ms
        is_due = self.core.is_due_to_campaign(now_ms)
        return not is_due or self._doors.campaigns.admits(group, now_ms, timeout_ms)

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
        self.upkeep.prepare_files()
        self.upkeep.changed()

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
                for effect in self.core.step(item.event, self._doors.now_ms()):
                    self._run[type(effect)](effect, item)
        except Exception as error:
            self._break(error)
            raise
        finally:
            self._stepping = False
        self.appends.settle_late()
        if self.core.role is not Role.CANDIDATE:
            self._doors.campaigns.over(self.config.group)
        self._doors.beats.stepped(self)
        self.wake()

    def _break(self, error: Exception) -> None:
        """After a bug or a failed check this replica must not go on as if nothing had happened."""
        self.health_text = self.health_text or f"replica stopped: {described(error)}"
        self.broken = True
        self._inbox.clear()
        self._outbox.drop_all()
        self._doors.broken(self.health_text)

    def wake(self) -> None:
        """Have `tick` called when the next thing is due.

        What changes within the next milliseconds is looked at together, in one `tick` after them.
        """
        now_ms = self._doors.now_ms()
        if now_ms < self._looks_ms:
            self._doors.wake_at(self._looks_ms)
            return
        self._looks_ms = now_ms + LOOK_MS
        deadlines = [
            self.core.next_deadline_ms(),
            self.appends.next_deadline_ms(),
            self.transactions.next_deadline_ms(),
            self.applier.next_deadline_ms(),
            self.installs.next_deadline_ms(),
            self.fetches.next_deadline_ms(),
            self.asked.next_deadline_ms(),
        ]
        if not self.health_text:  # `tick` leaves them alone then
            deadlines += [
                self.upkeep.next_deadline_ms(),
                self.healing.next_deadline_ms(),
                self.lost_sessions.next_deadline_ms(),
            ]
        self._doors.wake_at(min(deadline for deadline in deadlines if deadline is not None))

    def _committed(self, effect: fx.Committed, item: _Item) -> None:
        self.log.note_committed(effect.index)
        self.sessions.committed(effect.index)
        self.upkeep.changed()
        self.applier.committed(effect.index)
        self.fetches.committed()
        self.asked.committed(effect.index)

    # -- writes -----------------------------------------------------------------------------

    def _save_hard_state(self, effect: fx.SaveHardState, item: _Item) -> None:
        plan = self._hard_states.plan_save(effect.hard_state)
        self._doors.disk.submit(self, effect.token, plan)

    def _append_noop(self, effect: fx.AppendNoop, item: _Item) -> None:
        plan = self.log.append_noop(effect.term)
        check(self.log.end_index == effect.index, "core and log agree on the end")
        self._doors.disk.submit(self, effect.token, plan)

    def _append_membership(self, effect: fx.AppendMembership, item: _Item) -> None:
        plan = self.log.append_config(effect.membership.encode(), effect.term)
        check(self.log.end_index == effect.index, "core and log agree on the end")
        self._doors.disk.submit(self, effect.token, plan)

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
        self._doors.disk.submit(self, effect.token, plan)

    def _truncate(self, effect: fx.TruncateLog, item: _Item) -> None:
        say_truncation(self.config.group, effect, self.log.end_index)
        self._doors.disk.submit(self, effect.token, self.log.truncate(effect.from_index))
        self.sessions.truncated(effect.from_index)

    # -- messages ---------------------------------------------------------------------------

    def _send(self, effect: fx.Send, item: _Item) -> None:
        self._outbox.send(effect)

    def _read_entries(self, effect: fx.ReadEntries, item: _Item) -> None:
        """Find entries for a push: from memory at once, else beside the loop."""
        log = self.log

        def read() -> list[Span]:
            return gather_whole(log, effect.first_index, effect.last_index, effect.bytes_max)

        def done(spans: list[Span]) -> None:
            size = sum(len(span.data) for span in spans)
            last, hot = spans[-1].last_index, spans[0].from_memory
            event = ev.EntriesRead(effect.peer_id, effect.request_id, last, size, hot)
            self._handle(_Item(event, spans=spans))

        def failed(error: Exception) -> None:
            if isinstance(error, CorruptionError):
                self.healing.found(error)
            elif not isinstance(error, StorageError | RequestError):
                text = "reading entries for a push failed"
                say(logger, logging.ERROR, text, exc_info=error, group=self.config.group)
            event = ev.EntriesUnreadable(effect.peer_id, effect.request_id, str(error))
            self._handle(_Item(event))

        if log.is_in_memory(effect.first_index):
            done(read())
        else:
            self._doors.background.run(read, done, failed)

    def _push_entries(self, effect: fx.PushEntries, item: _Item) -> None:
        spans = item.spans or []
        message = self._outbox.with_chain(effect.message)
        if message is None:
            return
        check(
            bool(spans) and spans[0].first_index == message.first_index, "the push fits its entries"
        )
        attachments: list[Buffer] = [span.data for span in spans]
        if self._doors.network.send(message.remote_id, message, attachments, bulk=True):
            self.counters.pushes_sent += 1
            self.counters.push_bytes_sent += sum(len(part) for part in attachments)

    # -- news -------------------------------------------------------------------------------

    def _role_changed(self, effect: fx.RoleChanged, item: _Item) -> None:
        self.counters.role_changes += 1
        say_role(self.config.group, effect)
        self.applier.role_changed(effect.term, effect.role)
        self.transactions.role_changed(effect.role)
        self.readers.forget()
        self.fetches.committed()

    def _membership_changed(self, effect: fx.MembershipChanged, item: _Item) -> None:
        say_membership(self.config.group, effect)
        self.look_at_addresses()

    def _alarm(self, effect: fx.Alarm, item: _Item) -> None:
        self.raise_alarm(effect.text)

    def raise_alarm(self, text: str) -> None:
        """Tell people of something that must never happen."""
        self.counters.alarms += 1
        say(logger, logging.ERROR, "alarm", group=self.config.group, text=text)
