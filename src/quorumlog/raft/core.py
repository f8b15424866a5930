"""The consensus core: events go in, effects come out, in order.

    voter        answers candidates                 campaign     becomes leader
    follower     answers the leader                 leadership   leads, with a dispatcher per peer

What they share is in `state`. There is no clock, socket, file, thread or randomness in here: time
and a random generator are arguments, so the same events at the same times have the same effects.
"""

from collections.abc import Callable
from typing import Any

from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.messages.peer import (
    HeartBeatRequest,
    HeartBeatResponse,
    InstallSnapshotRequest,
    InstallSnapshotResponse,
    PeerMessage,
    PushRequest,
    PushResponse,
    TimeoutNowRequest,
    VoteRequest,
    VoteResponse,
)
from quorumlog.raft.campaign import count_own_vote, count_vote, start_campaign, take_leadership
from quorumlog.raft.config import BootState, RaftConfig
from quorumlog.raft.effects import Effect, Finished, RefuseProposal
from quorumlog.raft.election_timer import RandomSource
from quorumlog.raft.events import (
    ChangeRequested,
    EligibilityChanged,
    EntriesRead,
    EntriesUnreadable,
    Event,
    LagMeasured,
    LogCompacted,
    OfferConfirmed,
    PeerConnected,
    PeerLost,
    Proposed,
    Quiesced,
    ReadRequested,
    Received,
    Reconfigured,
    RoomChanged,
    SnapshotFetched,
    Stopping,
    StorageFailed,
    Ticked,
    TransferRequested,
    Unquiesced,
    WritesDurable,
)
from quorumlog.raft.leadership import Leadership
from quorumlog.raft.plausibility import has_impossible_term
from quorumlog.raft.quiesce import HAPPENS_WHEN_IDLE
from quorumlog.raft.state import RaftState
from quorumlog.raft.view import CoreView
from quorumlog.raft.voter import answer_vote_request

_STEADY: frozenset[type[Any]] = frozenset(
    (
        Proposed,
        EntriesRead,
        WritesDurable,
        PushRequest,
        PushResponse,
        HeartBeatRequest,
        HeartBeatResponse,
    )
)
"""What happens all the time. Whatever is due earlier because of these says so itself, by
`RaftState.due_by`; after all others it is found out."""


class RaftCore(CoreView):
    """One replica of one group.

    `random` draws election time-outs; `now_ms` is the present time of a clock of any origin that
    never goes back. An index is -1 where there is none.
    """

    def __init__(
        self, config: RaftConfig, boot: BootState, random: RandomSource, now_ms: int
    ) -> None:
        super().__init__(RaftState(config, boot, random, now_ms))
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Ticked: self._ticked,
            Received: self._received,
            Proposed: self._proposed,
            EntriesRead: self._for_leader,
            EntriesUnreadable: self._for_leader,
            LagMeasured: self._lag_measured,
            OfferConfirmed: self._offer_confirmed,
            SnapshotFetched: self._snapshot_fetched,
            WritesDurable: self._writes_durable,
            StorageFailed: self._storage_failed,
            EligibilityChanged: self._eligibility_changed,
            RoomChanged: self._room_changed,
            LogCompacted: self._log_compacted,
            PeerConnected: self._peer_connected,
            PeerLost: self._peer_lost,
            TransferRequested: self._transfer_requested,
            Stopping: self._stopping,
            Reconfigured: self._reconfigured,
            ChangeRequested: self._change_requested,
            ReadRequested: self._read_requested,
            Quiesced: self._quiesced,
            Unquiesced: self._unquiesced,
        }
        self._message_handlers: dict[type[PeerMessage], Callable[[Any, Received], None]] = {
            PushRequest: self._follower.push,
            HeartBeatRequest: self._follower.heartbeat,
            InstallSnapshotRequest: self._follower.offered,
            VoteRequest: self._vote_requested,
            TimeoutNowRequest: self._timeout_now,
            VoteResponse: self._vote_answered,
            PushResponse: self._answered,
            HeartBeatResponse: self._answered,
            InstallSnapshotResponse: self._answered,
        }

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event; return what must be done, in this order.

        Raises `InvariantViolation` when something happened that must not; take no step after it.
        """
        state = self._state
        state.now_ms = max(state.now_ms, now_ms)
        state.effects = []
        kind = type(event.message) if isinstance(event, Received) else type(event)
        if self._has_failed:
            self._refuse_everything(event)
        else:
            leadership = self._leadership
            if leadership is not None and kind not in HAPPENS_WHEN_IDLE:
                leadership.quiescence.active(event)
            self._handlers[type(event)](event)
            if (state.role is Role.LEADER) is not (self._leadership is not None):
                self._change_leadership()
            if self._transfer.is_awaited:
                self._transfer.check_end()
            if self._leadership is not None:
                if state.is_stopping:
                    self._transfer.consider_successor()
                if self._leadership.quiescence.is_quiescent:
                    self._leadership.quiescence.review()
        if kind not in _STEADY:
            self.next_deadline_ms()  # remembers it
        return state.effects

    def next_deadline_ms(self) -> int:
        """Return when the next `Ticked` is needed, and remember it as `signals.due_ms`.

        Until that time has come it may be too early, as when a leader was heard from meanwhile; so
        this is called then, and after events that are rare.
        """
        self.signals.due_ms = due_ms = self._deadline_ms()
        return due_ms

    # -- events -------------------------------------------------------------------------------

    def _ticked(self, event: Ticked) -> None:
        if self._leadership is not None:
            self._leadership.tick()
        elif self.is_due_to_campaign(self._state.now_ms):
            start_campaign(self._state)

    def _received(self, event: Received) -> None:
        message, state = event.message, self._state
        if message.remote_incarnation not in (0, state.config.incarnation):
            return  # meant for another data directory under this name
        if not has_impossible_term(state, message):
            self._message_handlers[type(message)](message, event)

    def _vote_requested(self, message: VoteRequest, event: Received) -> None:
        answer_vote_request(self._state, message)

    def _timeout_now(self, message: TimeoutNowRequest, event: Received) -> None:
        take_leadership(self._state, message)

    def _vote_answered(self, message: VoteResponse, event: Received) -> None:
        if self._may_answer(message.local_id):
            count_vote(self._state, message)

    def _may_answer(self, node_id: str) -> bool:
        """Whether a node may have been asked: it is a member, or one that was just removed."""
        if node_id == self._state.config.self_id:
            return False
        if node_id in self._state.memberships.ids:
            return True
        return self._leadership is not None and node_id in self._leadership.dispatchers

    def _answered(
        self, message: PushResponse | HeartBeatResponse | InstallSnapshotResponse, event: Received
    ) -> None:
        """Take an answer of a peer; one of a higher term ends whatever role this replica has."""
        state = self._state
        if not self._may_answer(message.local_id):
            return
        if message.term > state.term:
            state.enter(Role.FOLLOWER, None, term=message.term)
        elif self._leadership is not None:
            self._leadership.handle(message)

    def _proposed(self, event: Proposed) -> None:
        if self._leadership is None:
            self._state.emit(RefuseProposal(event.proposal_id, ResponseCode.NOT_LEADER))
        else:
            self._leadership.propose(event)

    def _for_leader(self, event: EntriesRead | EntriesUnreadable) -> None:
        if self._leadership is not None:
            self._leadership.handle(event)

    def _lag_measured(self, event: LagMeasured) -> None:
        if self._leadership is not None:
            self._transfer.lag_measured(event)

    def _offer_confirmed(self, event: OfferConfirmed) -> None:
        self._follower.install(event.offer, is_confirmed=True)

    def _snapshot_fetched(self, event: SnapshotFetched) -> None:
        if self._leadership is None:
            self._follower.fetched(event.offer)

    def _writes_durable(self, event: WritesDurable) -> None:
        self._state.writes.durable(event.token)
        if self._leadership is not None:
            self._leadership.advance_commit()
        else:
            count_own_vote(self._state)

    def _peer_connected(self, event: PeerConnected) -> None:
        if self._leadership is not None:
            self._leadership.peer_connected(event.peer_id)
            self._transfer.peer_connected(event.peer_id)
        else:
            self._state.peer_seen()

    def _peer_lost(self, event: PeerLost) -> None:
        if self._leadership is not None:
            self._leadership.peer_lost(event.peer_id)
            self._transfer.peer_lost(event.peer_id)
        elif event.peer_id == self._state.leader_id:
            self._state.leader_lost()

    def _reconfigured(self, event: Reconfigured) -> None:
        state = self._state
        state.config = event.config
        state.election_timer.configure(event.config, state.now_ms)

    def _stopping(self, event: Stopping) -> None:
        """Do not campaign any more; a vote that is under way is decided all the same.

        The voters that chose this replica wait for the outcome, and would wait for an election
        time-out if there were none.
        """
        state = self._state
        state.is_stopping = True
        state.record("is about to stop")
        if state.election is not None and state.election.pre_vote:
            state.enter(Role.CANDIDATE, None)

    def _transfer_requested(self, event: TransferRequested) -> None:
        if self._leadership is None:
            self._refuse_request(event, ResponseCode.NOT_LEADER)
        else:
            self._transfer.request(event)

    def _change_requested(self, event: ChangeRequested) -> None:
        if self._leadership is None or not self._leadership.is_ready:
            code = ResponseCode.LEADER_NOT_READY if self._leadership else ResponseCode.NOT_LEADER
            self._refuse_request(event, code)
        elif self._transfer.is_running:
            self._refuse_request(event, ResponseCode.LEADER_TRANSFERRING)
        else:
            self._leadership.change_requested(event)

    def _read_requested(self, event: ReadRequested) -> None:
        if self._leadership is None:
            self._refuse_request(event, ResponseCode.NOT_LEADER)
        else:
            self._leadership.read_requested(event)

    def _quiesced(self, event: Quiesced) -> None:
        state = self._state
        if (event.leader_id, event.term) == (state.leader_id, state.term):
            if self._leadership is not None:
                self._leadership.quiescence.quiesce()
            else:
                state.election_timer.is_quiescent = True
                state.signals.changes += 1

    def _unquiesced(self, event: Unquiesced) -> None:
        if self._leadership is not None:
            self._leadership.quiescence.wake_up()
        else:
            self._state.election_timer.wake_up(event.last_contact_ms)
            self._state.signals.changes += 1

    def _refuse_request(
        self, event: TransferRequested | ChangeRequested | ReadRequested, code: ResponseCode
    ) -> None:
        text = f"{self.self_id}: {code.name}; the leader is {self.leader_id or 'not known'}"
        self._state.emit(Finished(event.request_id, code, text))

    def _eligibility_changed(self, event: EligibilityChanged) -> None:
        """Neither lead nor campaign while this replica is not eligible."""
        state = self._state
        state.is_eligible = event.is_eligible
        if not event.is_eligible and state.role is Role.LEADER:
            state.enter(Role.FOLLOWER, None)
        elif not event.is_eligible and state.election is not None:
            state.enter(Role.CANDIDATE, None)

    def _room_changed(self, event: RoomChanged) -> None:
        self._state.writes.lacks_room = event.lacks_room
        self._transfer.room_changed()
        self._state.record("its disk is full" if event.lacks_room else "its disk has room again")

    def _log_compacted(self, event: LogCompacted) -> None:
        self._state.log.compact(event.before_begin_index, event.before_begin_term)
        if self._leadership is not None:
            self._leadership.log_compacted()

    # -- endings ------------------------------------------------------------------------------

    def _storage_failed(self, event: StorageFailed) -> None:
        """Promise nothing any more: the last writes may or may not be on disk (R2)."""
        self._state.enter(Role.FOLLOWER, None)
        self._change_leadership()
        self._has_failed = True

    def _refuse_everything(self, event: Event) -> None:
        if isinstance(event, Proposed):
            self._state.emit(RefuseProposal(event.proposal_id, ResponseCode.DISK_ERROR))
        elif isinstance(event, TransferRequested | ChangeRequested | ReadRequested):
            self._refuse_request(event, ResponseCode.DISK_ERROR)

    def _change_leadership(self) -> None:
        """Start or end a leadership, as the role has changed."""
        if self._state.role is not Role.LEADER:
            ended, self._leadership = self._leadership, None
            if ended is not None:
                ended.stop()
        elif self._leadership is None:
            self._leadership = Leadership(self._state, self._transfer)
            self._leadership.start()
