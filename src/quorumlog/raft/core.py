"""The core: one object with one door. Events go in, effects come out, in order.

    voter        answers candidates                 campaign     becomes leader
    follower     answers the leader                 leadership   leads, with a dispatcher per peer

What they share is in `state`. There is no clock, socket, file, thread or chance in here: time and
a random generator are arguments, so the same events at the same times have the same effects.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode, Role, VoteResult
from quorumlog.model.errors import check
from quorumlog.model.membership import Membership
from quorumlog.model.messages.client import PeerStatus
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
from quorumlog.raft.event_history import EventHistory
from quorumlog.raft.events import (
    ChangeRequested,
    EligibilityChanged,
    EntriesRead,
    EntriesUnreadable,
    Event,
    Leaving,
    LogCompacted,
    OfferConfirmed,
    PeerConnected,
    PeerLost,
    Proposed,
    Quiesced,
    ReadRequested,
    Received,
    SnapshotFetched,
    StorageFailed,
    Stored,
    Ticked,
    TransferRequested,
    Unquiesced,
)
from quorumlog.raft.follower import Follower
from quorumlog.raft.leadership import Leadership
from quorumlog.raft.state import RaftState
from quorumlog.raft.transfer import Transfer
from quorumlog.raft.voter import answer_vote_request

if TYPE_CHECKING:
    from random import Random


class RaftCore:
    """One replica of one group.

    `random` draws election time-outs; `now_ms` is the present time of a clock that never goes back
    (of any origin). All indexes are -1 where there is none.
    """

    def __init__(self, config: RaftConfig, boot: BootState, random: "Random", now_ms: int) -> None:
        self._state = RaftState(config, boot, random, now_ms)
        self._follower = Follower(self._state)
        self._leadership: Leadership | None = None
        self._transfer = Transfer(self._state)
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Ticked: self._ticked,
            Received: self._received,
            Proposed: self._proposed,
            EntriesRead: self._entries_read,
            EntriesUnreadable: self._entries_unreadable,
            OfferConfirmed: self._offer_confirmed,
            SnapshotFetched: self._snapshot_fetched,
            Stored: self._stored,
            StorageFailed: self._storage_failed,
            EligibilityChanged: self._eligibility_changed,
            LogCompacted: self._log_compacted,
            PeerConnected: self._peer_connected,
            PeerLost: self._peer_lost,
            TransferRequested: self._transfer_requested,
            Leaving: self._leaving,
            ChangeRequested: self._change_requested,
            ReadRequested: self._read_requested,
            Quiesced: self._quiesced,
            Unquiesced: self._unquiesced,
        }

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event; return what must be done, in this order.

        Raises `InvariantViolation` when something happened that must not; do not go on after it.
        """
        state = self._state
        state.now_ms = max(state.now_ms, now_ms)
        state.effects = []
        if state.failed:
            self._refuse_everything(event)
        else:
            if self._leadership is not None and self._disturbs(event):
                self._leadership.wake_up()
            self._handlers[type(event)](event)
            self._change_leadership()
            self._transfer.check_end()
            if self._leadership is not None:
                if state.is_leaving:
                    self._transfer.consider_successor(self._leadership.dispatchers)
                self._leadership.consider_quiescing()
        return state.effects

    def next_deadline_ms(self) -> int:
        """Return when the next `Ticked` is needed."""
        if self._state.failed:
            return NEVER_MS
        leadership, transfer_ms = self._leadership, self._transfer.deadline_ms()
        if leadership is not None:
            return min(leadership.deadline_ms(), transfer_ms)
        if self._state.is_quiescent:
            return transfer_ms
        return min(self._state.election_deadline_ms, transfer_ms)

    # -- what others may know -----------------------------------------------------------------

    @property
    def self_id(self) -> str:
        """The member this replica is."""
        return self._state.config.self_id

    @property
    def incarnation(self) -> int:
        """Number of this replica's data directory, 0: not numbered."""
        return self._state.config.incarnation

    @property
    def role(self) -> Role:
        """What this replica is at present."""
        return self._state.role

    @property
    def term(self) -> int:
        """The present term."""
        return self._state.term

    @property
    def vote(self) -> str | None:
        """Whom this replica voted for in the present term."""
        return self._state.vote

    @property
    def leader_id(self) -> str | None:
        """The leader of the present term, if known."""
        return self._state.leader_id

    @property
    def end_index(self) -> int:
        """Index of the last entry, durable or not."""
        return self._state.log.end_index

    @property
    def committed_index(self) -> int:
        """Index of the last entry known to be committed."""
        return self._state.committed_index

    @property
    def is_ready(self) -> bool:
        """Whether this leader knows of all that is committed: its first entry is, too (Raft 8)."""
        return self._leadership is not None and self._leadership.is_ready

    @property
    def is_transferring(self) -> bool:
        """Whether leadership is being handed over: appends are refused for a moment."""
        return self._transfer.is_running

    @property
    def awaits_leader(self) -> bool:
        """Whether this replica hands leadership over, or did and does not know yet to whom."""
        return self._transfer.is_awaited

    @property
    def is_leaving(self) -> bool:
        """Whether the node is about to stop."""
        return self._state.is_leaving

    @property
    def may_leave(self) -> bool:
        """Whether a node that is about to stop need not wait for this replica any more.

        It leads no more, or nobody could instead; if it asked for votes, that is decided.
        """
        if self._state.failed:
            return True
        if self._transfer.is_awaited:
            return False
        if self._leadership is not None:
            return not self._transfer.successors(self._leadership.dispatchers)
        return self._state.election is None or self._state.election.pre_vote

    @property
    def may_commit(self) -> bool:
        """Whether this replica leads, and a majority is there as far as is known."""
        return self._leadership is not None and self._leadership.may_commit

    def term_at(self, index: int) -> int:
        """Return the term of an entry of the log, or of the absent one before the first."""
        return self._state.log.term_at(index)

    @property
    def membership(self) -> Membership:
        """Who belongs to the group, as far as this replica's log says."""
        return self._state.memberships.current

    @property
    def membership_index(self) -> int:
        """Index of the entry that says so; -1 while the group has not begun."""
        return self._state.memberships.index

    @property
    def committed_membership_index(self) -> int:
        """Index of the newest membership that is known to be committed; -1: none is."""
        return self._state.committed_membership_index

    @property
    def identity(self) -> bytes:
        """The group's identity, as far as it is committed; empty: not known, or it has none."""
        return self._state.memberships.identity_at(self._state.committed_index)

    @property
    def is_quiescent(self) -> bool:
        """Whether the beats between nodes stand for this replica's heartbeats."""
        return self._state.is_quiescent

    def is_due_to_campaign(self, now_ms: int) -> bool:
        """Whether no leader was heard in time."""
        state = self._state
        waits = self._leadership is None and not state.is_quiescent and not state.failed
        return waits and now_ms >= state.election_deadline_ms

    def confirming_peers(self) -> tuple[str, ...]:
        """Return the peers that must follow this leader for it to rest now; empty: it may not."""
        return self._leadership.confirming_peers() if self._leadership is not None else ()

    @property
    def disk_is_stalled(self) -> bool:
        """Whether the oldest write has taken an election time-out without an answer."""
        return self._state.disk_is_stalled()

    @property
    def history(self) -> EventHistory:
        """What happened lately."""
        return self._state.history

    @property
    def durable_index(self) -> int:
        """Index up to which the log is known to be durable here."""
        return self._state.writes.durable_index

    @property
    def last_vote_result(self) -> VoteResult | None:
        """The last answer to a candidacy of this replica; None once it follows a leader."""
        return self._state.last_vote_result

    @property
    def retention_floor(self) -> int:
        """Entries above it are still needed by a live member, as far as is known here."""
        if self._leadership is not None:
            return self._leadership.retention_floor()
        return self._state.retention_floor

    def peer_progress(self) -> tuple[PeerStatus, ...]:
        """Return a leader's view of its peers; empty when not leader."""
        return self._leadership.peer_progress() if self._leadership is not None else ()

    def validate(self) -> None:
        """Raise `InvariantViolation` if something that must always hold does not."""
        state = self._state
        log, committed, durable = state.log, state.committed_index, state.writes.durable_index
        log.validate()
        state.memberships.validate(committed)
        check(committed <= log.end_index, "committed_index <= end_index", committed, log.end_index)
        check(durable <= log.end_index, "durable_index <= end_index", durable, log.end_index)
        leads = state.role is Role.LEADER
        check(leads == (self._leadership is not None), "leaders, and only they, have a leadership")
        check(leads == (state.leader_id == state.config.self_id), "a leader knows that it leads")
        check(state.election is None or state.role is Role.CANDIDATE, "only candidates hold rounds")
        if self._leadership is not None:
            self._leadership.validate()

    # -- events -------------------------------------------------------------------------------

    def _ticked(self, event: Ticked) -> None:
        if self._leadership is not None:
            self._leadership.tick()
        elif not self.is_due_to_campaign(self._state.now_ms):
            return
        elif event.may_campaign:
            start_campaign(self._state)
        else:
            self._state.campaign_again_soon()

    def _received(self, event: Received) -> None:
        message, state = event.message, self._state
        if message.remote_incarnation not in (0, state.config.incarnation):
            return  # meant for another data directory under this name
        if state.refuses_term(message):
            return
        if isinstance(message, PushRequest):
            self._follower.push(
                message,
                chain_fits=event.chain_fits,
                disk_full=event.disk_full,
                memberships=event.memberships,
            )
        elif isinstance(message, HeartBeatRequest):
            self._follower.heartbeat(message, chain_fits=event.chain_fits)
        elif isinstance(message, InstallSnapshotRequest):
            self._follower.install(message)
        elif isinstance(message, VoteRequest):
            answer_vote_request(state, message)
        elif isinstance(message, TimeoutNowRequest):
            take_leadership(state, message)
        elif message.local_id != state.config.self_id and self._may_answer(message.local_id):
            self._answered(message)

    def _may_answer(self, node_id: str) -> bool:
        """Whether somebody may have been asked: a member, or one that was just removed."""
        if self._state.memberships.current.member(node_id) is not None:
            return True
        return self._leadership is not None and node_id in self._leadership.dispatchers

    def _answered(self, message: PeerMessage) -> None:
        """Take an answer of a peer; one of a higher term ends whatever I was."""
        state = self._state
        if isinstance(message, VoteResponse):
            count_vote(state, message)
        elif message.term > state.term:
            state.enter(Role.FOLLOWER, None, term=message.term)
        elif self._leadership is not None and isinstance(message, PushResponse):
            self._leadership.push_answered(message)
        elif self._leadership is not None and isinstance(message, HeartBeatResponse):
            self._leadership.heartbeat_answered(message)
        elif self._leadership is not None and isinstance(message, InstallSnapshotResponse):
            self._leadership.offer_answered(message)

    def _proposed(self, event: Proposed) -> None:
        if self._leadership is None:
            self._state.emit(RefuseProposal(event.proposal_id, ResponseCode.NOT_LEADER))
        else:
            self._leadership.propose(event)

    def _entries_read(self, event: EntriesRead) -> None:
        if self._leadership is not None:
            self._leadership.entries_read(event)

    def _entries_unreadable(self, event: EntriesUnreadable) -> None:
        if self._leadership is not None:
            self._leadership.entries_unreadable(event)

    def _offer_confirmed(self, event: OfferConfirmed) -> None:
        self._follower.install(event.offer, is_confirmed=True)

    def _snapshot_fetched(self, event: SnapshotFetched) -> None:
        if self._leadership is None:
            self._follower.fetched(event.offer)

    def _stored(self, event: Stored) -> None:
        self._state.writes.stored(event.token)
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

    def _leaving(self, event: Leaving) -> None:
        """Seek leadership no more; a vote that is under way is decided all the same.

        Those who gave theirs wait for its outcome, for an election time-out if there is none.
        """
        state = self._state
        state.is_leaving = True
        state.record("is about to stop")
        if state.election is not None and state.election.pre_vote:
            state.enter(Role.CANDIDATE, None)

    def _transfer_requested(self, event: TransferRequested) -> None:
        if self._leadership is None:
            self._refuse_request(event, ResponseCode.NOT_LEADER)
        else:
            self._transfer.request(event, self._leadership.dispatchers)

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

    def _disturbs(self, event: Event) -> bool:
        """Whether an event is more than what happens to an idle leader all the time.

        What a node says that is no member, or no more, may go on for ever.
        """
        if isinstance(event, Received):
            message = event.message
            known = self._state.memberships.current.ids
            return not isinstance(message, HeartBeatResponse) and message.local_id in known
        return not isinstance(event, Ticked | Quiesced | Unquiesced)

    def _quiesced(self, event: Quiesced) -> None:
        state = self._state
        if (event.leader_id, event.term) == (state.leader_id, state.term):
            if self._leadership is not None:
                self._leadership.quiesce()
            else:
                state.is_quiescent = True

    def _unquiesced(self, event: Unquiesced) -> None:
        state = self._state
        if self._leadership is not None:
            self._leadership.wake_up()
        else:
            state.unquiesce(event.last_contact_ms)

    def _refuse_request(
        self, event: TransferRequested | ChangeRequested | ReadRequested, code: ResponseCode
    ) -> None:
        text = f"{self.self_id}: {code.name}; the leader is {self.leader_id or 'not known'}"
        self._state.emit(Finished(event.request_id, code, text))

    def _eligibility_changed(self, event: EligibilityChanged) -> None:
        """Leave leading, and trying to, to others while this replica is not fit for it."""
        state = self._state
        state.is_eligible = event.is_eligible
        if not event.is_eligible and state.role is Role.LEADER:
            state.enter(Role.FOLLOWER, None)
        elif not event.is_eligible and state.election is not None:
            state.enter(Role.CANDIDATE, None)

    def _log_compacted(self, event: LogCompacted) -> None:
        self._state.log.compact(event.before_begin_index, event.before_begin_term)
        if self._leadership is not None:
            self._leadership.log_compacted()

    # -- endings ------------------------------------------------------------------------------

    def _storage_failed(self, event: StorageFailed) -> None:
        """Promise nothing any more: what was written last may or may not be there (R2)."""
        self._state.enter(Role.FOLLOWER, None)
        self._change_leadership()
        self._state.failed = True

    def _refuse_everything(self, event: Event) -> None:
        if isinstance(event, Proposed):
            self._state.emit(RefuseProposal(event.proposal_id, ResponseCode.DISK_ERROR))
        elif isinstance(event, TransferRequested | ChangeRequested | ReadRequested):
            self._refuse_request(event, ResponseCode.DISK_ERROR)

    def _change_leadership(self) -> None:
        """Begin or end leading as the role has it."""
        if self._state.role is not Role.LEADER:
            ended, self._leadership = self._leadership, None
            if ended is not None:
                ended.stop()
        elif self._leadership is None:
            self._leadership = Leadership(self._state, self._transfer)
            self._leadership.start()
