"""One group's replica: it passes events to the core one at a time and carries out the effects.

An append (DESIGN section 4) passes here twice: on its way down as a proposal, and on its way up as
a committed index. Nothing here waits: the result of anything that takes time comes as an event.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from quorumlog.log_events import describe_error, log_event
from quorumlog.machine.base import StateMachine
from quorumlog.model.block import Block, Buffer
from quorumlog.model.codes import Role, WriteLevel
from quorumlog.model.config import GroupConfig
from quorumlog.model.errors import CorruptionError, StorageError
from quorumlog.model.hooks import RoleChange
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
    PushResponse,
    ReadIndexRequest,
    ReadIndexResponse,
    RepairRequest,
    RepairResponse,
    SnapshotChunk,
    SnapshotChunkRequest,
    SnapshotOfferRequest,
    StateDigest,
    TableDigest,
    TableDigestQuery,
)
from quorumlog.node.environment import Environment
from quorumlog.node.replica.appends import Appends
from quorumlog.node.replica.applier import Applier
from quorumlog.node.replica.batch_sealer import BatchSealer
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.core_timer import CoreTimer
from quorumlog.node.replica.counters import ReplicaCounters
from quorumlog.node.replica.disk_space import DiskSpace
from quorumlog.node.replica.eligibility import Eligibility
from quorumlog.node.replica.fetch_waiters import FetchAnswer
from quorumlog.node.replica.fetches import Fetches, view_of
from quorumlog.node.replica.group_time import GroupTime
from quorumlog.node.replica.log_writer import LogWriter
from quorumlog.node.replica.machine_state import MachineState
from quorumlog.node.replica.maintenance import Maintenance
from quorumlog.node.replica.partition_reads import PartitionReads
from quorumlog.node.replica.partition_retention import PartitionRetention
from quorumlog.node.replica.partition_times import PartitionTimes
from quorumlog.node.replica.partitions import Partitions
from quorumlog.node.replica.peer_messages import PeerMessages
from quorumlog.node.replica.pending_requests import PendingRequests
from quorumlog.node.replica.placement import Placement
from quorumlog.node.replica.proposals import Answer, Checked
from quorumlog.node.replica.pushes import Pushes
from quorumlog.node.replica.queries import QueryAnswer
from quorumlog.node.replica.repair import Repairer
from quorumlog.node.replica.retention import Retention
from quorumlog.node.replica.served_snapshots import ServedSnapshots
from quorumlog.node.replica.snapshot_receiver import SnapshotReceiver
from quorumlog.node.replica.snapshot_requests import SnapshotRequests
from quorumlog.node.replica.snapshot_sender import SnapshotSender
from quorumlog.node.replica.table_comparisons import DerivedTables
from quorumlog.node.replica.tables import Tables
from quorumlog.node.replica.transactions import OpenTransactions
from quorumlog.raft import effects as fx
from quorumlog.raft import events as ev
from quorumlog.raft.core import RaftCore
from quorumlog.storage.entries.entry_runs import EntryRun
from quorumlog.storage.files.write_plans import WritePlan
from quorumlog.storage.log.interface import Log
from quorumlog.storage.log.store import OpenedGroup

logger = logging.getLogger(__name__)


class _Item(msgspec.Struct, frozen=True):
    """An event with the bytes that belong to it; see `ReplicaShell.step`."""

    event: ev.Event | None
    table: bytes = b""
    block: Block | None = None
    runs: list[EntryRun] | None = None
    prepare: Callable[[], ev.Event | None] | None = None


class Replica:
    """The shell around one `RaftCore`. All methods run on the event loop's thread."""

    def __init__(
        self,
        config: GroupConfig,
        core: RaftCore,
        opened: OpenedGroup,
        environment: Environment,
        limits: Limits,
        machine: StateMachine | None = None,
    ) -> None:
        self.context = context = ReplicaContext(
            config, limits, core, opened.log, environment, shell=self
        )
        core.history.on_event = context.log_history
        self._inbox: deque[_Item] = deque()
        self._is_stepping = False
        places = environment.is_same_place, environment.is_here
        self.placement = Placement(core, config, environment.network, *places)
        self.pending_requests = requests = PendingRequests(context)
        # a part is made after the parts that its constructor gets
        self.derived = derived = DerivedTables(context, opened)
        tables = derived.tables
        self.fetches = Fetches(
            opened.log,
            limits,
            partial(view_of, core),
            tables,
            environment.executor.run,
            context.damage_found,
            defer=environment.defer,
            timers=context.timers,
            location=opened.location,
            now_us=environment.now_us,
            seconds=context.histograms.fetch_seconds,
        )
        state, space = MachineState(core, machine), DiskSpace(context, opened.disk_state)
        self.appends = Appends(context, state, tables, requests, self.fetches, space)
        propose, snapshots, place = self.appends.propose, opened.snapshots, opened.location
        self.transactions = OpenTransactions(context, tables, requests, propose)
        group_time = GroupTime(context, tables, propose)
        self.partitions = Partitions(context, tables, requests, propose, group_time, place)
        retention = Retention(context, state, tables, space, group_time)
        sealer = BatchSealer(context, tables, opened.batches)
        self.maintenance = Maintenance(context, space, retention, sealer)
        served, snapshot_requests = ServedSnapshots(context), SnapshotRequests(context)
        self.applier = Applier(
            context,
            state,
            snapshots,
            tables,
            requests,
            self.appends,
            retention,
            served,
            snapshot_requests,
        )
        sender = SnapshotSender(context, snapshots, tables, served, self.applier)
        self.snapshot_receiver = receiver = SnapshotReceiver(
            context, snapshots, tables, snapshot_requests, self.applier, retention
        )
        self.repairer = Repairer(context, tables, receiver.skip_removed, derived.agreed)
        self._eligibility = Eligibility(context, tables, self.placement, self.applier)
        self._writer = LogWriter(context, opened.hard_states, tables)
        self._messages = PeerMessages(context)
        pushes = Pushes(context, self._messages, space, state)
        self._core_timer = CoreTimer(context, partial(environment.liveness.quiesce, self)).timer
        self._effects = self._effect_handlers(pushes, sender)
        self._received = self._message_handlers(pushes, sender)

    def _effect_handlers(
        self, pushes: Pushes, sender: SnapshotSender
    ) -> dict[type[Any], Callable[[Any, _Item], None]]:
        """Return the handler of each effect; it also gets the event that caused the effect."""
        writer, receiver = self._writer, self.snapshot_receiver
        return {
            fx.SaveHardState: lambda effect, _: writer.save_hard_state(effect),
            fx.AppendProposal: self._append_proposal,
            fx.AppendNoop: lambda effect, _: writer.append_noop(effect),
            fx.AppendMembership: lambda effect, _: writer.append_membership(effect),
            fx.AppendReceived: lambda effect, item: writer.append_received(effect, item.block),
            fx.TruncateLog: lambda effect, _: writer.truncate(effect),
            fx.ResetLog: lambda effect, item: receiver.reset(effect, item.table),
            fx.OfferSnapshot: lambda effect, _: sender.offer(effect),
            fx.ConfirmOffer: lambda effect, item: receiver.confirm(effect, item.table),
            fx.FetchSnapshot: lambda effect, item: receiver.fetch(effect, item.table),
            fx.Send: lambda effect, _: self._messages.send(effect),
            fx.ReadEntries: lambda effect, _: pushes.read_entries(effect),
            fx.MeasureLag: lambda effect, _: pushes.measure_lag(effect),
            fx.PushEntries: lambda effect, item: pushes.send(effect, item.runs),
            fx.RefuseProposal: lambda effect, _: self.appends.refused(effect),
            fx.Committed: self._committed,
            fx.FailPending: lambda effect, _: self.appends.fail(effect),
            fx.RoleChanged: self._role_changed,
            fx.MembershipChanged: self._membership_changed,
            fx.ReadReady: lambda effect, _: self.pending_requests.read_ready(effect),
            fx.Finished: lambda effect, _: self.pending_requests.finished(effect),
            fx.Alarm: lambda effect, _: self.context.raise_alarm(effect.text),
        }

    def _message_handlers(
        self, pushes: Pushes, sender: SnapshotSender
    ) -> dict[type[Any], Callable[[Any, memoryview], None]]:
        """Return the handler of each message that does not go straight to the core."""
        receiver = self.snapshot_receiver

        def repaired(message: RepairResponse, attachment: memoryview) -> None:
            if not self.derived.lost_tables.answered(message, attachment):
                self.repairer.answered(message, attachment)

        return {
            DigestQuery: lambda message, _: self.applier.comparisons.received(message),
            HeartBeatRequest: self._receive_heartbeat,
            InstallSnapshotRequest: receiver.offer_received,
            OfferQuery: lambda message, _: sender.query_received(message),
            OfferResponse: lambda message, _: receiver.response_received(message),
            PushRequest: pushes.receive,
            PushResponse: pushes.answered,
            ReadIndexRequest: lambda message, _: self.pending_requests.serve(message),
            ReadIndexResponse: lambda message, _: self.pending_requests.answered(message),
            RepairRequest: lambda message, _: self.repairer.serve(message),
            RepairResponse: repaired,
            SnapshotChunk: receiver.chunk_received,
            SnapshotChunkRequest: lambda message, _: sender.send_chunk(message),
            SnapshotOfferRequest: lambda message, _: sender.offer_requested(message),
            StateDigest: lambda message, _: self.applier.comparisons.received(message),
            TableDigest: self.derived.received,
            TableDigestQuery: self.derived.received,
        }

    # -- what others see ----------------------------------------------------------------------

    @property
    def config(self) -> GroupConfig:
        """The group's configuration."""
        return self.context.config

    @property
    def core(self) -> RaftCore:
        """The core (to be read only)."""
        return self.context.core

    @property
    def log(self) -> Log:
        """The log (to be read only)."""
        return self.context.log

    @property
    def tables(self) -> Tables:
        """What is derived from the log (to be read only)."""
        return self.derived.tables

    @property
    def partition_reads(self) -> PartitionReads:
        """Reads of partitions by offset."""
        return self.partitions.reads

    @property
    def partition_times(self) -> PartitionTimes:
        """Look-up of offsets of partitions by time."""
        return self.partitions.times

    @property
    def partition_retention(self) -> PartitionRetention:
        """Retention of partitions, and deletion of their records."""
        return self.partitions.retention

    @property
    def counters(self) -> ReplicaCounters:
        """What has been counted since the start."""
        return self.context.counters

    @property
    def health_text(self) -> str:
        """Why this replica cannot write any more; empty if it can."""
        return self.context.health_text

    @property
    def is_broken(self) -> bool:
        """Whether this replica has stopped after a bug."""
        return self.context.is_broken

    @property
    def applied_index(self) -> int:
        """Index of the last entry that is applied, or of a plain log committed."""
        return self.applier.state.applied_index

    @property
    def may_stop(self) -> bool:
        """Whether the node need not wait for this replica any more before it stops.

        If no other member can lead, it does not wait for appends that no majority will acknowledge.
        """
        core = self.core
        if not core.may_stop:
            return False
        is_hopeless = core.role is Role.LEADER and not core.may_commit
        return self.appends.is_idle or is_hopeless or bool(self.health_text)

    def history(self) -> list[tuple[int, str]]:
        """Return recent events as (milliseconds ago, sentence), oldest first."""
        now_ms = self.context.environment.now_ms()
        return [(now_ms - at_ms, text) for at_ms, text in self.core.history.lines()]

    # -- what the node and clients say --------------------------------------------------------

    def start(self) -> None:
        """Start to take part; call it before connections to peers are made."""
        self.check_addresses()
        self.applier.advance()
        self.step(ev.Ticked())

    def check_addresses(self) -> None:
        """Check whether this replica is at the address in its log, and where the others are."""
        self.placement.check()
        self.update_eligibility()

    def propose(
        self,
        block: Block,
        answer: Answer,
        entry: Checked | None = None,
        level: WriteLevel = WriteLevel.REPLICATION,
    ) -> None:
        """Append a verified block; `answer` is called once, when it has reached its level."""
        self.appends.propose(block, answer, entry, level)

    def fetch(self, request: FetchRequest, answer: FetchAnswer, client: object = None) -> None:
        """Read committed entries for a client; reads of cold files of clients take turns."""
        fetches, now_ms = self.fetches, self.context.environment.now_ms
        if request.linearizable:
            self.pending_requests.read(
                partial(fetches.fetch_linearizable, request, answer, client, now_ms)
            )
        else:
            fetches.fetch(request, answer, client, now_ms())

    def query(
        self, request: QueryRequest, body: Buffer, answer: QueryAnswer, client: object
    ) -> None:
        """Ask the state machine for a client (compared by identity or `__eq__`)."""
        self.applier.queries.take(request, body, answer, client)

    def peer_connected(self, peer_id: str) -> None:
        """The replication connection to a peer is up (again)."""
        self.step(ev.PeerConnected(peer_id))

    def peer_lost(self, peer_id: str) -> None:
        """A peer's process has ended, it seems."""
        self.step(ev.PeerLost(peer_id))

    def prepare_stop(self) -> None:
        """Transfer leadership: the node is about to stop."""
        self.step(ev.Stopping())

    # -- what peers say -----------------------------------------------------------------------

    def receive(self, message: PeerMessage, attachment: memoryview) -> None:
        """Take a message of a peer; one without a handler goes straight to the core."""
        handler = self._received.get(type(message))
        if handler is None:
            self.step(ev.Received(message))
        else:
            handler(message, attachment)

    def _receive_heartbeat(self, message: HeartBeatRequest, _: memoryview) -> None:
        matches = self._messages.heartbeat_matches(message, self.core.committed_index)
        self.step(ev.Received(message, matches))

    # -- what the disk says -------------------------------------------------------------------

    def written(self, token: int | None, plan: WritePlan) -> None:
        """See `WriteOwner`."""
        self._writer.written(token)

    def writes_completed(self) -> None:
        """See `WriteOwner`: one event for all tokens of a group commit, then the held messages."""
        self._messages.writes_durable(self._writer.durable_token)
        token = self._writer.take_unreported()
        if token is not None:
            self.step(ev.WritesDurable(token))
        self.applier.advance()
        self.maintenance.space.prepare_files()
        self.maintenance.changed()

    def write_failed(self, error: StorageError) -> None:
        """See `WriteOwner`: nothing that waits for a write may ever be sent."""
        self.context.health_text = str(error)
        self.context.timers.stop_writes()
        self._messages.drop_all()
        self.step(ev.StorageFailed(str(error)))

    # -- what the parts say -------------------------------------------------------------------

    def step(
        self,
        event: ev.Event | None,
        *,
        table: bytes = b"",
        block: Block | None = None,
        runs: list[EntryRun] | None = None,
        prepare: Callable[[], ev.Event | None] | None = None,
    ) -> None:
        """Step the core with this and all events that follow from it, one after the other."""
        self._inbox.append(_Item(event, table, block, runs, prepare))
        if self._is_stepping or self.context.is_broken:
            return
        self._is_stepping = True
        core, environment = self.context.core, self.context.environment
        signals = core.signals
        changes_before = signals.changes
        try:
            while self._inbox:
                item = self._inbox.popleft()
                event = item.event if item.prepare is None else item.prepare()
                if event is not None:
                    for effect in core.step(event, environment.now_ms()):
                        self._effects[type(effect)](effect, item)
        except Exception as error:
            self._break(error)
            raise
        finally:
            self._is_stepping = False
        if self.appends.levels.is_waiting:
            self.appends.levels.advance()
        if signals.changes != changes_before:
            self._core_changed()
        if signals.due_ms < self._core_timer.due_ms:
            self._core_timer.set(signals.due_ms)

    def _core_changed(self) -> None:
        """Role, term, membership, quiescence or a transfer may be others than before."""
        environment = self.context.environment
        self.appends.send_deferred_refusals()
        self.pending_requests.leaders.changed()
        if self.core.role is not Role.CANDIDATE:
            environment.election_throttle.over(self.config.group)
        environment.liveness.state_changed(self)

    def _break(self, error: Exception) -> None:
        """Stop this replica after a bug or a failed check: its state cannot be trusted."""
        context = self.context
        context.health_text = context.health_text or f"replica stopped: {describe_error(error)}"
        context.is_broken = True
        context.timers.stop_writes()
        self._inbox.clear()
        self._messages.drop_all()
        context.environment.broken(context.health_text)

    def update_eligibility(self) -> None:
        """See `ReplicaShell`."""
        self._eligibility.update()

    def damage_found(self, error: CorruptionError) -> None:
        """See `ReplicaShell`."""
        self.repairer.found(error)

    def check_entry(self, index: int) -> None:
        """See `ReplicaShell`."""
        self.repairer.check_entry(index)

    def check_damage_later(self) -> None:
        """See `ReplicaShell`."""
        self.repairer.check_later()

    # -- time ---------------------------------------------------------------------------------

    def tick(self) -> None:
        """Let time pass: what is due in the core, and in the parts, is done."""
        self.context.timers.tick()

    # -- what the core decides ----------------------------------------------------------------

    def _append_proposal(self, effect: fx.AppendProposal, _: _Item) -> None:
        entries = self.appends.stage(effect)
        if entries:
            self.transactions.appended(entries)

    def _committed(self, effect: fx.Committed, _: _Item) -> None:
        self.log.note_committed(effect.index)
        self.tables.committed(effect.index)
        self.maintenance.changed()
        self.applier.committed(effect.index)
        self.fetches.committed()
        self.partitions.committed()
        self.pending_requests.committed(effect.index)

    def _role_changed(self, effect: fx.RoleChanged, _: _Item) -> None:
        self.counters.role_changes += 1
        _tell_role(self.context, effect)
        self.applier.role_changed(effect.term, effect.role)
        self.transactions.role_changed(effect.role)
        self.fetches.role_changed()
        self.partitions.role_changed()

    def _membership_changed(self, effect: fx.MembershipChanged, _: _Item) -> None:
        _log_membership(self.config.group, effect)
        self.check_addresses()


def _tell_role(context: ReplicaContext, effect: fx.RoleChanged) -> None:
    group = context.config.group
    log_event(
        logger,
        logging.INFO,
        "role changed",
        group=group,
        role=effect.role.value,
        term=effect.term,
        leader=effect.leader_id,
    )
    change = RoleChange(group, effect.role, effect.term, effect.leader_id)
    context.environment.role_changed(change)


def _log_membership(group: str, effect: fx.MembershipChanged) -> None:
    current = effect.membership
    log_event(
        logger,
        logging.INFO,
        "membership changed",
        group=group,
        index=effect.index,
        voters=current.voters,
        before=current.outgoing,
        learners=current.learners,
    )
