"""One group's replica: events go into the core one at a time, effects are carried out in order.

The walk of an append (DESIGN section 4) passes here twice: down as a proposal, up as a committed
index. Nothing here waits: whatever takes time comes back later as an event.
"""

import itertools
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

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
from quorumlog.model.message import (
    AppendResponse,
    FetchRequest,
    PeerMessage,
    PushRequest,
    RepairRequest,
    RepairResponse,
)
from quorumlog.node.doors import Doors
from quorumlog.node.fetches import FetchAnswer, Fetches, View, gather
from quorumlog.node.healing import Healing
from quorumlog.node.log_lines import say
from quorumlog.node.proposals import (
    Answer,
    Batch,
    PendingAppend,
    PendingAppends,
    Proposal,
    ProposalQueue,
    refusal,
)
from quorumlog.node.received import read_push_block
from quorumlog.node.upkeep import Upkeep
from quorumlog.raft import effects as fx
from quorumlog.raft import events as ev
from quorumlog.raft.core import RaftCore
from quorumlog.storage.base import Span, WritePlan
from quorumlog.storage.store import OpenedGroup

logger = logging.getLogger(__name__)

HELD_SENDS_MAX = 65_536
"""Messages waiting for a write; the oldest is dropped above (peers repeat what they need)."""

_UNKNOWN_FATE = "leadership ended before a majority answered; the append may or may not be kept"
_ACK_TIMEOUT = "no majority answered in {} ms; the append may still be committed"


@dataclass(slots=True)
class ReplicaCounters:
    """Totals since the start, for metrics."""

    append_requests: int = 0
    append_entries: int = 0
    append_bytes: int = 0
    appends_refused: dict[str, int] = field(default_factory=dict)
    pushes_sent: int = 0
    push_bytes_sent: int = 0
    pushes_received: int = 0
    role_changes: int = 0
    alarms: int = 0
    malformed_pushes: int = 0
    entries_damaged: int = 0
    entries_repaired: int = 0
    segments_removed: int = 0
    bytes_removed: int = 0


@dataclass(frozen=True, slots=True)
class _Item:
    """An event with the bytes that belong to it."""

    event: ev.Event
    block: Block | None = None
    spans: list[Span] | None = None


class Replica:
    """Shell around one `RaftCore`. All methods are called on one thread."""

    def __init__(
        self,
        config: GroupConfig,
        core: RaftCore,
        opened: OpenedGroup,
        doors: Doors,
        limits: Limits,
    ) -> None:
        self.config = config
        self.core = core
        self.log = log = opened.log
        self.counters = ReplicaCounters()
        self.health_text = ""
        self.broken = False
        self.draining = False
        self._hard_states = opened.hard_states
        self._doors = doors
        self._limits = limits
        self._inbox: deque[_Item] = deque()
        self._stepping = False
        self._held: deque[fx.Send] = deque()
        self._stored_token = 0
        self._reported_token = 0
        self._proposals = ProposalQueue(limits)
        self._batches: dict[int, Batch] = {}
        self._batch_numbers = itertools.count(1)
        self.pending = PendingAppends(config.max_wait_ack_time_ms)
        self.fetches = Fetches(log, limits, self.view, doors.background.run, self._damage_found)
        self.upkeep = Upkeep(self, opened.disk_state, doors, limits)
        self.healing = Healing(self, doors, limits)
        self._run: dict[type[Any], Callable[[Any, _Item], None]] = {
            fx.SaveHardState: self._save_hard_state,
            fx.AppendProposal: self._append_proposal,
            fx.AppendNoop: self._append_noop,
            fx.AppendReceived: self._append_received,
            fx.TruncateLog: self._truncate,
            fx.Send: self._send,
            fx.ReadEntries: self._read_entries,
            fx.PushEntries: self._push_entries,
            fx.RefuseProposal: self._refuse_proposal,
            fx.Committed: self._committed,
            fx.FailPending: self._fail_pending,
            fx.RoleChanged: self._role_changed,
            fx.Alarm: self._alarm,
        }

    # -- doors in ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take part."""
        if self.log.damaged:
            self.tell(ev.DamageChanged(is_damaged=True))
        self.tell(ev.Ticked())

    def tell(self, event: ev.Event) -> None:
        """Let the core know of something that brings no bytes."""
        self._handle(_Item(event))

    def view(self) -> View:
        """Return what answers to clients say about this replica."""
        core = self.core
        return View(core.role, core.term, core.leader_id, core.committed_index, core.is_ready)

    def propose(self, block: Block, answer: Answer) -> None:
        """Append a verified block; `answer` is called once, at once or later."""
        refused = self._admission(len(block.data))
        if refused is not None:
            code, text = refused
            self._count_refusal(code)
            answer(refusal(code, text, self.core.leader_id, self.core.term))
        elif self._proposals.add(Proposal(block, answer, self._doors.now_us())):
            self._doors.defer(self._flush_proposals)

    def receive(self, message: PeerMessage, attachment: memoryview) -> None:
        """Take a message of a peer."""
        if isinstance(message, RepairRequest):
            self.healing.serve(message)
            return
        if isinstance(message, RepairResponse):
            self.healing.answered(message, attachment)
            self.wake()
            return
        block, chain_fits, disk_full = None, True, False
        if isinstance(message, PushRequest):
            self.counters.pushes_received += 1
            chain_fits = self._chain_fits(message)
            if message.type is PushType.APPEND:
                block = read_push_block(message, attachment, self._limits)
                if block is None:
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
                # a leader's NOOP is taken from the reserve: elections go on while the disk is full
                disk_full = bool(self.upkeep.full_text(len(attachment))) and not is_noop(block)
        self._handle(_Item(ev.Received(message, chain_fits, disk_full), block=block))

    def fetch(self, request: FetchRequest, answer: FetchAnswer) -> None:
        """Read committed entries for a client."""
        self.fetches.fetch(request, answer, self._doors.now_ms())
        self.wake()

    def peer_connected(self, peer_id: str) -> None:
        """The bulk link to a peer is up (again)."""
        self._handle(_Item(ev.PeerConnected(peer_id)))

    def tick(self) -> None:
        """Let time pass: timers of the core, of waiting appends and of waiting fetches."""
        now_ms = self._doors.now_ms()
        for pending in self.pending.pop_expired(now_ms):
            text = _ACK_TIMEOUT.format(self.config.max_wait_ack_time_ms)
            self._answer_failed(pending, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, text)
        self.fetches.expire(now_ms)
        if not self.health_text:
            self.upkeep.tick(now_ms)
            self.healing.tick(now_ms)
        self._handle(_Item(ev.Ticked()))

    # -- what the disk says -----------------------------------------------------------------

    def written(self, token: int | None, plan: WritePlan) -> None:
        """See `WriteOwner`."""
        if token is not None:
            check(token > self._stored_token, "tokens rise", token, self._stored_token)
            self._stored_token = token

    def writes_completed(self) -> None:
        """See `WriteOwner`: one event for all tokens of a group commit, then the held messages."""
        while self._held and (self._held[0].after or 0) <= self._stored_token:
            self._transmit(self._held.popleft().message)
        if self._stored_token > self._reported_token:
            self._reported_token = self._stored_token
            self._handle(_Item(ev.Stored(self._stored_token)))
        self.upkeep.prepare_files()

    def write_failed(self, error: StorageError) -> None:
        """See `WriteOwner`: nothing that waits for a write may ever be sent."""
        self.health_text = str(error)
        self._held.clear()
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
        self.wake()

    def _break(self, error: Exception) -> None:
        """After a bug or a failed check this replica must not go on as if nothing had happened."""
        self.health_text = self.health_text or f"replica stopped: {error!r}"
        self.broken = True
        self._inbox.clear()
        self._held.clear()
        self._doors.broken(self.health_text)

    def wake(self) -> None:
        """Have `tick` called when the next thing is due."""
        deadlines = [
            self.core.next_deadline_ms(),
            self.pending.next_deadline_ms(),
            self.fetches.next_deadline_ms(),
            self.upkeep.next_deadline_ms(),
            self.healing.next_deadline_ms(),
        ]
        self._doors.wake_at(min(deadline for deadline in deadlines if deadline is not None))

    # -- proposals --------------------------------------------------------------------------

    def _admission(self, size_bytes: int) -> tuple[ResponseCode, str] | None:
        """Return why no append can be taken now, or None (spec 30 section 1, in its order)."""
        if self.health_text:
            return ResponseCode.DISK_ERROR, f"replica is unhealthy: {self.health_text}"
        if self.draining:
            return ResponseCode.LEADER_TRANSFERRING, "this node is stopping"
        if self.core.role is not Role.LEADER:
            return ResponseCode.NOT_LEADER, f"not the leader of {self.config.group}"
        if full := self.upkeep.full_text(size_bytes):
            return ResponseCode.DISK_FULL, full
        limits = self._limits
        requests = len(self.pending) + len(self._proposals)
        size = self.pending.size_bytes + self._proposals.size_bytes
        if requests >= limits.pending_requests_max or size >= limits.pending_bytes_max:
            return (
                ResponseCode.LEADER_PENDING_FULL,
                f"{requests} appends ({size} bytes) wait for a majority; try again later",
            )
        if self._doors.disk.queued_bytes >= limits.disk_queue_bytes_max:
            return ResponseCode.LEADER_PENDING_FULL, "the disk is behind; try again later"
        return None

    def _flush_proposals(self) -> None:
        for batch in self._proposals.take():
            number = next(self._batch_numbers)
            self._batches[number] = batch
            self._handle(_Item(ev.Proposed(number, batch.block.count)))

    def _append_proposal(self, effect: fx.AppendProposal, item: _Item) -> None:
        batch = self._batches.pop(effect.proposal_id)
        plan, spans = self.log.append(batch.block, effect.term)
        check(self.log.end_index == effect.last_index, "core and log agree on the end")
        self.pending.add(batch, effect.first_index, effect.term, spans)
        self.counters.append_requests += len(batch.members)
        self._doors.disk.submit(self, effect.token, plan)

    def _refuse_proposal(self, effect: fx.RefuseProposal, item: _Item) -> None:
        text = f"refused by {self.config.group}: {effect.code.name}"
        for member in self._batches.pop(effect.proposal_id).members:
            self._count_refusal(effect.code)
            member.answer(refusal(effect.code, text, self.core.leader_id, self.core.term))

    def _committed(self, effect: fx.Committed, item: _Item) -> None:
        self.log.note_committed(effect.index)
        now_us = self._doors.now_us()
        observer, counters = self._doors.observer, self.counters
        for pending in self.pending.pop_committed(effect.index):
            proposal = pending.proposal
            count, size = proposal.block.count, len(proposal.block.data)
            counters.append_entries += count
            counters.append_bytes += size
            seconds = (now_us - proposal.accepted_us) / 1_000_000
            observer.append_answered(self.config.group, seconds, count, size)
            proposal.answer(
                AppendResponse(
                    leader_id=self.core.leader_id,
                    term=pending.term,
                    first_index=pending.first_index,
                    last_index=pending.last_index,
                    spans=pending.spans,
                )
            )
        self.fetches.committed(self._doors.now_ms())

    def _fail_pending(self, effect: fx.FailPending, item: _Item) -> None:
        for pending in self.pending.pop_all():
            self._answer_failed(pending, effect.code, _UNKNOWN_FATE)

    def _answer_failed(self, pending: PendingAppend, code: ResponseCode, text: str) -> None:
        self._count_refusal(code)
        pending.proposal.answer(refusal(code, text, self.core.leader_id, self.core.term))

    def _count_refusal(self, code: ResponseCode) -> None:
        refused = self.counters.appends_refused
        refused[code.name] = refused.get(code.name, 0) + 1

    # -- writes -----------------------------------------------------------------------------

    def _save_hard_state(self, effect: fx.SaveHardState, item: _Item) -> None:
        plan = self._hard_states.plan_save(effect.hard_state)
        self._doors.disk.submit(self, effect.token, plan)

    def _append_noop(self, effect: fx.AppendNoop, item: _Item) -> None:
        plan = self.log.append_noop(effect.term)
        check(self.log.end_index == effect.index, "core and log agree on the end")
        self._doors.disk.submit(self, effect.token, plan)

    def _append_received(self, effect: fx.AppendReceived, item: _Item) -> None:
        if item.block is None or not isinstance(item.event, ev.Received):
            raise InvariantViolation(f"{effect} without the block of a push")
        block = item.block
        skipped = effect.first_index - first_index_of(block)
        kept = effect.last_index - effect.first_index + 1
        if skipped or kept != block.count:
            block = block.slice(skipped, skipped + kept)
        plan = self.log.append_received(block)
        check(self.log.end_index == effect.last_index, "core and log agree on the end")
        self._doors.disk.submit(self, effect.token, plan)

    def _truncate(self, effect: fx.TruncateLog, item: _Item) -> None:
        say(
            logger,
            logging.WARNING,
            "truncating entries that were never committed",
            group=self.config.group,
            from_index=effect.from_index,
            end_index=self.log.end_index,
        )
        self._doors.disk.submit(self, effect.token, self.log.truncate(effect.from_index))

    # -- messages ---------------------------------------------------------------------------

    def _send(self, effect: fx.Send, item: _Item) -> None:
        if effect.after is None or effect.after <= self._stored_token:
            self._transmit(effect.message)
            return
        if len(self._held) >= HELD_SENDS_MAX:
            self._held.popleft()
        self._held.append(effect)

    def _transmit(self, message: PeerMessage) -> None:
        bulk = isinstance(message, PushRequest)
        if isinstance(message, PushRequest) and message.type is PushType.COMPARE:
            with_chain = self._with_chain(message)
            if with_chain is None:
                return
            message = with_chain
        self._doors.network.send(message.remote_id, message, bulk=bulk)

    def _with_chain(self, message: PushRequest) -> PushRequest | None:
        """Add the chain CRC at prev_index: the core does not know bytes.

        None if that entry is damaged here: the peer waits, everything else goes on.
        """
        chain = self._chain_at(message.prev_index)
        if chain is None:
            text = f"entry {message.prev_index} is damaged: {message.remote_id} is not compared"
            self._alarm(fx.Alarm(text))
            return None
        return msgspec.structs.replace(message, prev_chain_crc=chain)

    def _chain_fits(self, message: PushRequest) -> bool:
        compared = message.type in (PushType.COMPARE, PushType.APPEND)
        inside = self.log.before_begin_index < message.prev_index <= self.log.end_index
        if not compared or not inside:
            return True
        known = self._chain_at(message.prev_index)
        return known is None or known == message.prev_chain_crc

    def _chain_at(self, index: int) -> int | None:
        """Return the chain CRC at an index; damage found on the way is dealt with."""
        chain = self.log.chain_crc_at(index)
        if chain is None and self.log.before_begin_index < index:
            self.healing.look_at(index)
        return chain

    def _read_entries(self, effect: fx.ReadEntries, item: _Item) -> None:
        """Find entries for a push: from memory at once, else beside the loop."""
        log = self.log

        def read() -> list[Span]:
            return gather(log, effect.first_index, effect.last_index, effect.bytes_max)

        def done(spans: list[Span]) -> None:
            size = sum(len(span.data) for span in spans)
            event = ev.EntriesRead(effect.peer_id, effect.request_id, spans[-1].last_index, size)
            self._handle(_Item(event, spans=spans))

        def failed(error: Exception) -> None:
            if isinstance(error, CorruptionError):
                self._damage_found(error)
            elif not isinstance(error, StorageError | RequestError):
                logger.error("reading entries for a push failed", exc_info=error)
            event = ev.EntriesUnreadable(effect.peer_id, effect.request_id, str(error))
            self._handle(_Item(event))

        if log.is_in_memory(effect.first_index):
            done(read())
        else:
            self._doors.background.run(read, done, failed)

    def _push_entries(self, effect: fx.PushEntries, item: _Item) -> None:
        spans = item.spans or []
        message = self._with_chain(effect.message)
        if message is None:
            return
        check(
            bool(spans) and spans[0].first_index == message.first_index, "the push fits its entries"
        )
        attachments: list[Buffer] = [span.data for span in spans]
        if self._doors.network.send(message.remote_id, message, attachments, bulk=True):
            self.counters.pushes_sent += 1
            self.counters.push_bytes_sent += sum(len(part) for part in attachments)

    def _damage_found(self, error: CorruptionError) -> None:
        self.healing.found(error)

    # -- news -------------------------------------------------------------------------------

    def _role_changed(self, effect: fx.RoleChanged, item: _Item) -> None:
        self.counters.role_changes += 1
        say(
            logger,
            logging.INFO,
            "role changed",
            group=self.config.group,
            role=effect.role.value,
            term=effect.term,
            leader=effect.leader_id,
        )
        self.fetches.committed(self._doors.now_ms())

    def _alarm(self, effect: fx.Alarm, item: _Item | None = None) -> None:
        self.counters.alarms += 1
        say(logger, logging.ERROR, "alarm", group=self.config.group, text=effect.text)
