"""What all parts of the core share: what this replica knows, and the effects of this step."""

from dataclasses import dataclass, field

from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode, Role, VoteResult
from quorumlog.model.errors import check
from quorumlog.model.hard_state import HardState
from quorumlog.model.membership import Membership
from quorumlog.model.messages.peer import PeerMessage
from quorumlog.raft.config import BootState, RaftConfig
from quorumlog.raft.effects import (
    Alarm,
    Committed,
    Effect,
    FailPending,
    MembershipChanged,
    RoleChanged,
    SaveHardState,
    Send,
)
from quorumlog.raft.election_timer import ElectionTimer, RandomSource
from quorumlog.raft.event_history import EventHistory
from quorumlog.raft.log_index import LogIndex
from quorumlog.raft.membership_history import MembershipHistory
from quorumlog.raft.write_tracker import WriteTracker


@dataclass(slots=True)
class Election:
    """One round of a campaign: a pre-vote round, or the vote itself.

    `own_vote_token` is the write of this replica's vote for itself. `granted` maps the voters that
    would vote, or voted, for it to their incarnations; `expected` are those that may still do so.
    `gave_up` is the part of `granted` whose logs are ahead of this one: these voters give up the
    entries that it lacks. `transfer`: the leader asked this replica to take over.
    """

    term: int
    pre_vote: bool
    own_vote_token: int = 0
    granted: dict[str, int] = field(default_factory=dict)
    transfer: bool = False
    expected: set[str] = field(default_factory=set)
    gave_up: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Signals:
    """What to check after a step, besides its effects.

    No `Ticked` is needed before `due_ms`. `changes` rises with each change of role, term,
    membership, quiescence, and of a transfer.
    """

    due_ms: int
    changes: int = 0


class RaftState:
    """One replica's state. Changed only during `RaftCore.step`.

    Invariants: committed_index <= log.end_index; role is LEADER exactly when leader_id is its
    own id; there is an `election` only while role is CANDIDATE.
    """

    def __init__(
        self, config: RaftConfig, boot: BootState, random: RandomSource, now_ms: int
    ) -> None:
        self.config = config
        self.log = LogIndex(
            boot.before_begin_index, boot.before_begin_term, boot.term_runs, boot.end_index
        )
        self.memberships = MembershipHistory(config.founders, boot.memberships)
        self.memberships.committed(boot.committed_index)
        self.history = EventHistory()
        self.writes = WriteTracker(boot.end_index)
        self.term = boot.hard_state.term
        self.vote = boot.hard_state.vote
        self.role = Role.CANDIDATE
        self.leader_id: str | None = None
        # A commit index on disk is a hint: it may be older, or newer, than the log (R6).
        self.committed_index = max(
            min(boot.committed_index, boot.end_index), boot.before_begin_index
        )
        self.now_ms = now_ms
        self.signals = Signals(now_ms)
        self.election: Election | None = None
        self.last_vote_result: VoteResult | None = None
        self.voter_incarnations: dict[str, int] = {}
        self.effects: list[Effect] = []
        self.is_eligible = True
        self.is_stopping = False
        self._request_id = 0
        self.election_timer = ElectionTimer(config, random, now_ms)
        self.election_timer.yields = self._yields()
        if not self.is_sole_voter:
            self.election_timer.restart(now_ms)

    # -- effects ----------------------------------------------------------------------------

    def emit(self, effect: Effect) -> None:
        """Add an effect of the present step."""
        self.effects.append(effect)

    def send(self, message: PeerMessage, after: int = 0) -> None:
        """Send once the write `after` is durable, and never before the present term is durable."""
        after = max(after, self.writes.hard_state_token)
        self.effects.append(Send(message, after if after > self.writes.durable_token else None))

    def alarm(self, text: str) -> None:
        """Tell operators of something that must never happen."""
        self.record(f"ALARM: {text}")
        self.emit(Alarm(f"{self.config.group}/{self.config.self_id}, term {self.term}: {text}"))

    def record(self, text: str) -> None:
        """Add a line to the history."""
        self.history.record(self.now_ms, text)

    def due_by(self, due_ms: int) -> None:
        """Something is due at this time: a `Ticked` may be needed then."""
        self.signals.due_ms = min(self.signals.due_ms, due_ms)

    def next_request_id(self) -> int:
        """Return a number no other request of this core has."""
        self._request_id += 1
        return self._request_id

    def alarm_once(self, text: str) -> None:
        """Raise an alarm unless it equals the last one, because others may repeat its cause."""
        if text != self.history.last_alarm:
            self.history.last_alarm = text
            self.alarm(text)

    # -- log --------------------------------------------------------------------------------

    @property
    def known_term(self) -> int:
        """The newest term known; the log's may be newer in a store of DLedger (spec 95.3)."""
        term = self.log.end_term
        return term if term > self.term else self.term

    def issue(self, end_index: int) -> int:
        """Return the token of a write after which the log ends at end_index."""
        if self.writes.oldest_ms is None:
            self.due_by(self.now_ms + self.config.election_timeout_max_ms)  # `stall_deadline_ms`
        return self.writes.issue(end_index, self.now_ms)

    def commit_to(self, index: int) -> None:
        """Raise the committed index; never lower it."""
        if index > self.committed_index:
            check(index <= self.log.end_index, "only appended entries commit", index)
            self.committed_index = index
            self.memberships.committed(index)
            self.effects.append(Committed(index))

    # -- members ----------------------------------------------------------------------------

    @property
    def is_sole_voter(self) -> bool:
        """Whether this replica is the only voter."""
        current = self.memberships.current
        return current.voters == (self.config.self_id,) and not current.is_joint

    @property
    def may_campaign(self) -> bool:
        """Whether it is an eligible voter, with the named data directory, that is not stopping."""
        own_id = self.config.self_id
        if (
            self.is_stopping
            or not self.is_eligible
            or not self.memberships.counts_voter(own_id, self.committed_index)
        ):
            return False
        member = self.memberships.current.member(own_id)
        return member is None or member.may_be(self.config.incarnation)

    @property
    def committed_membership_index(self) -> int:
        """Index of the newest membership known to be committed; -1 if none is."""
        return self.memberships.committed_at(self.committed_index)

    def take_membership(self, index: int, membership: Membership) -> None:
        """The log got an entry that names a membership, which counts at once."""
        self.memberships.append(index, membership)
        self._membership_changed()

    def drop_memberships(self, from_index: int) -> None:
        """The log lost entries: an older membership may count again."""
        before = self.memberships.index
        self.memberships.truncate(from_index)
        if self.memberships.index != before:
            self._membership_changed()

    def install_membership(self, config: tuple[int, bytes] | None) -> None:
        """Take over the newest CONFIG_CHANGE entry before the start of a log that was reset."""
        if config is not None and self.memberships.installed(
            config[0], Membership.decode(config[1])
        ):
            self._membership_changed()

    def _yields(self) -> bool:
        """Whether a preferred leader shall found the group: all founders are there for that.

        Clients would see it take over from another one in the first moments of their topics.
        """
        preferred = self.config.preferred_leader_ids
        is_one, voters = self.config.self_id in preferred, self.memberships.current.voters
        return not (self.memberships.is_founded or is_one) and any(
            name in voters for name in preferred
        )

    def _membership_changed(self) -> None:
        self.signals.changes += 1
        self.election_timer.yields = self._yields()
        index, current = self.memberships.index, self.memberships.current
        joint = f", before {', '.join(current.outgoing)}" if current.is_joint else ""
        learners = f"; learners {', '.join(current.learners)}" if current.learners else ""
        self.record(
            f"membership of index {index}: voters {', '.join(current.voters)}{joint}{learners}"
        )
        self.emit(MembershipChanged(index, current))

    # -- term, vote, role -------------------------------------------------------------------

    def enter(
        self,
        role: Role,
        leader_id: str | None,
        *,
        term: int | None = None,
        vote: str | None = None,
    ) -> None:
        """Take a role, and with it a new term or a vote, which are saved first."""
        before = (self.role, self.term, self.leader_id)
        self.election_timer.wake_up(self.now_ms)
        term = self.term if term is None else term
        if term != self.term or vote not in (None, self.vote):
            self._save_hard_state(term, vote)
        self.role, self.leader_id, self.election = role, leader_id, None
        self.signals.changes += 1
        self.due_by(self.now_ms)  # what is due depends on all of these
        if before[0] is Role.LEADER and role is not Role.LEADER:
            self.emit(FailPending(ResponseCode.TERM_CHANGED))
            self.election_timer.restart(self.now_ms)
        if before != (role, term, leader_id):
            self.record(f"{role.value} in term {term}, leader {leader_id or 'unknown'}")
            self.emit(RoleChanged(role, term, leader_id))

    def _save_hard_state(self, term: int, vote: str | None) -> None:
        check(term >= self.term, "the term never falls", term, self.term)
        check(term > self.term or self.vote is None, "one vote a term", self.vote, vote)
        self.term, self.vote = term, vote
        token = self.writes.issue_hard_state(self.log.end_index, self.now_ms)
        self.emit(SaveHardState(HardState(term, vote), token))

    # -- time -------------------------------------------------------------------------------

    def leader_lost(self) -> None:
        """The leader's process seems to have ended: do not wait for it, and vote for others.

        This is a hint, and may be wrong. A leader that is still there keeps its followers, who
        refuse a pre-vote, and its next heartbeat makes this replica follow it again.
        """
        self.election_timer.leader_lost(self.now_ms)
        self.record(
            f"lost {self.leader_id}, which led: its connection closed and cannot be renewed"
        )

    def peer_seen(self) -> None:
        """A peer can be reached: without a leader, there may be enough voters now to elect one.

        A group whose nodes all start at once has its leader sooner than after a time-out, and it
        is the last one: whoever voted for another lets that one campaign first, so that votes are
        not split.
        """
        asks_for_votes = self.election is not None and not self.election.pre_vote
        if self.leader_id is None and not asks_for_votes and not self.voted_for_another:
            self.election_timer.campaign_earlier(self.now_ms)

    @property
    def voted_for_another(self) -> bool:
        """Whether this replica gave its last vote to another."""
        return self.vote not in (None, self.config.self_id)

    def has_live_leader(self) -> bool:
        """Whether this replica leads (without a quorum it steps down) or its leader is live."""
        if self.leader_id is None:
            return False
        return self.role is Role.LEADER or self.election_timer.leader_is_live(self.now_ms)

    def stall_deadline_ms(self) -> int:
        """When the disk counts as stalled: its oldest write has taken an election time-out."""
        oldest_ms = self.writes.oldest_ms
        return NEVER_MS if oldest_ms is None else oldest_ms + self.config.election_timeout_max_ms

    def disk_is_stalled(self) -> bool:
        """Whether the disk does not answer: such a replica must not lead (R11)."""
        return self.now_ms >= self.stall_deadline_ms()
