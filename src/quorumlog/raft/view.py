"""What the other parts of a node may read of a replica's core; nothing in here changes it."""

from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import Role, VoteResult
from quorumlog.model.errors import check
from quorumlog.model.membership import Membership
from quorumlog.model.messages.client import PeerStatus
from quorumlog.raft.config import RaftConfig
from quorumlog.raft.event_history import EventHistory
from quorumlog.raft.follower import Follower
from quorumlog.raft.leadership import Leadership
from quorumlog.raft.state import RaftState
from quorumlog.raft.transfer import Transfer


class CoreView:
    """The parts of a core, and a read-only view of its state.

    Invariants, checked by `validate`: a replica has a leadership exactly while its role is LEADER,
    and an election only while its role is CANDIDATE.
    """

    def __init__(self, state: RaftState) -> None:
        self._state = state
        self._follower = Follower(state)
        self._leadership: Leadership | None = None
        self._transfer = Transfer(state)
        self._has_failed = False
        self.signals = state.signals

    def _deadline_ms(self) -> int:
        if self._has_failed:
            return NEVER_MS
        transfer_ms, timer = self._transfer.deadline_ms(), self._state.election_timer
        if self._leadership is not None:
            return min(self._leadership.deadline_ms(), transfer_ms)
        return transfer_ms if timer.is_quiescent else min(timer.deadline_ms, transfer_ms)

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
        """Whether this leader knows all that is committed, as its first entry is, too (Raft 8)."""
        return self._leadership is not None and self._leadership.is_ready

    @property
    def is_transferring(self) -> bool:
        """Whether this leader transfers leadership: it refuses appends for a moment."""
        return self._transfer.is_running

    @property
    def takes_proposals(self) -> bool:
        """Whether the core would append entries that were proposed now."""
        return self._leadership is not None and not self._has_failed and not self.is_transferring

    @property
    def awaits_leader(self) -> bool:
        """Whether a transfer of leadership is under way whose end this replica does not know."""
        return self._transfer.is_awaited

    @property
    def is_stopping(self) -> bool:
        """Whether the node is about to stop."""
        return self._state.is_stopping

    @property
    def may_stop(self) -> bool:
        """Whether a node that is about to stop need not wait for this replica any more.

        The replica does not lead, or no other could lead in its place; and if it asked for votes,
        the outcome is known.
        """
        if self._has_failed:
            return True
        if self._transfer.is_awaited:
            return False
        if self._leadership is not None:
            return not self._transfer.successors()
        return self._state.election is None or self._state.election.pre_vote

    @property
    def may_commit(self) -> bool:
        """Whether this replica leads and, as far as is known, a majority can be reached."""
        return self._leadership is not None and self._leadership.may_commit

    @property
    def no_room_text(self) -> str:
        """Why no majority takes entries, if this replica leads and disks are full; else empty."""
        if not self._transfer.knows_full_disks or self._leadership is None:
            return ""  # asked for each append
        return self._transfer.no_room_text()

    def term_at(self, index: int) -> int:
        """Return the term of an entry of the log, or of the absent one before the first."""
        return self._state.log.term_at(index)

    @property
    def membership(self) -> Membership:
        """Who belongs to the group, as far as this replica's log says."""
        return self._state.memberships.current

    @property
    def membership_index(self) -> int:
        """Index of the entry that says so; -1 while the group is not founded."""
        return self._state.memberships.index

    @property
    def committed_membership_index(self) -> int:
        """Index of the newest membership that is known to be committed; -1 if none is."""
        return self._state.committed_membership_index

    @property
    def identity(self) -> bytes:
        """The group's identity, as far as it is certain; empty: not known, or it has none."""
        return self._state.memberships.identity_at(self._state.committed_index)

    @property
    def config(self) -> RaftConfig:
        """What the core was given, or was told to use since."""
        return self._state.config

    @property
    def given_identity(self) -> bytes:
        """The identity that the group was given when it was made while nodes ran, or empty."""
        return self._state.config.identity

    @property
    def is_quiescent(self) -> bool:
        """Whether node heartbeats stand for the heartbeats of this group (`quiesce.py`)."""
        if self._leadership is not None:
            return self._leadership.quiescence.is_quiescent
        return self._state.election_timer.is_quiescent

    @property
    def voted_for_another(self) -> bool:
        """Whether this replica gave its last vote to another, which may campaign first."""
        return self._state.voted_for_another

    def is_due_to_campaign(self, now_ms: int) -> bool:
        """Whether no leader was heard from in time."""
        timer = self._state.election_timer
        waits = self._leadership is None and not timer.is_quiescent and not self._has_failed
        return waits and now_ms >= timer.deadline_ms

    def confirming_peers(self) -> tuple[str, ...]:
        """Return the peers that must follow this leader for it to quiesce now; none: it may not."""
        return (
            self._leadership.quiescence.confirming_peers() if self._leadership is not None else ()
        )

    @property
    def disk_is_stalled(self) -> bool:
        """Whether the oldest write has taken an election time-out without an answer."""
        return self._state.disk_is_stalled()

    @property
    def history(self) -> EventHistory:
        """What happened to this replica lately."""
        return self._state.history

    @property
    def durable_index(self) -> int:
        """Index up to which the log is known to be durable here."""
        return self._state.writes.durable_index

    def index_on_all(self) -> int:
        """Return the last index that all voters have on disk; -1 if this replica does not lead."""
        if self._leadership is None:
            return -1
        membership, own_id = self._state.memberships.current, self._state.config.self_id
        others = {*membership.voters, *membership.outgoing} - {own_id}
        peers = self._leadership.dispatchers
        matches = (peers[peer].match_index if peer in peers else -1 for peer in others)
        return min([self.durable_index, *matches])

    @property
    def last_vote_result(self) -> VoteResult | None:
        """The last answer to a campaign of this replica; None once it follows a leader."""
        return self._state.last_vote_result

    @property
    def retention_floor(self) -> int:
        """Entries after this index are still needed by a live member, as far as is known here."""
        if self._leadership is not None:
            return self._leadership.retention_floor()
        return self._follower.retention_floor

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
        check(
            state.election is None or state.role is Role.CANDIDATE, "only candidates have elections"
        )
        due_ms = max(self._deadline_ms(), state.now_ms)
        check(
            state.signals.due_ms <= due_ms,
            "what is due is due in time",
            state.signals.due_ms,
            due_ms,
        )
        if self._leadership is not None:
            self._leadership.validate()
