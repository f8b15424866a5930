"""What all parts of the core share: who I am, what I know, and the effects of the present step."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorumlog.model.codes import ResponseCode, Role, VoteResult
from quorumlog.model.errors import check
from quorumlog.model.hard_state import HardState
from quorumlog.model.message import PeerMessage
from quorumlog.raft.config import BootState, RaftConfig
from quorumlog.raft.effects import (
    Alarm,
    Committed,
    Effect,
    FailPending,
    RoleChanged,
    SaveHardState,
    Send,
)
from quorumlog.raft.log_shape import LogShape
from quorumlog.raft.writes import Writes

if TYPE_CHECKING:
    from random import Random

NEVER_MS = 1 << 62
"""A deadline that is not reached."""


@dataclass(slots=True)
class Round:
    """A round of questions to the voters; `own_vote_token` is the write of the vote for myself."""

    term: int
    pre_vote: bool
    own_vote_token: int = 0
    granted: set[str] = field(default_factory=set)


class RaftState:
    """One replica's state. Changed only during `RaftCore.step`.

    Invariants: committed_index <= log.end_index; role is LEADER exactly when leader_id is my own;
    a `round` runs only while role is CANDIDATE.
    """

    def __init__(self, config: RaftConfig, boot: BootState, random: "Random", now_ms: int) -> None:
        self.config = config
        self.log = LogShape(
            boot.before_begin_index, boot.before_begin_term, boot.term_runs, boot.end_index
        )
        self.writes = Writes(boot.end_index)
        self.term = boot.hard_state.term
        self.vote = boot.hard_state.vote
        self.role = Role.CANDIDATE
        self.leader_id: str | None = None
        # A commit index on disk is a hint: it may be older, or newer, than the log (R6).
        self.committed_index = max(
            min(boot.committed_index, boot.end_index), boot.before_begin_index
        )
        self.now_ms = now_ms
        self.round: Round | None = None
        self.last_vote_result: VoteResult | None = None
        self.effects: list[Effect] = []
        self.failed = False
        self.damaged = False
        self.retention_floor = -1
        self._random = random
        self.hard_state_token = 0
        self._request_id = 0
        self._leader_heard_ms = now_ms
        self._election_timeout_ms = 0
        self.election_deadline_ms = now_ms
        if config.peers:
            self.restart_election_timer()

    # -- effects ----------------------------------------------------------------------------

    def emit(self, effect: Effect) -> None:
        """Add an effect of the present step."""
        self.effects.append(effect)

    def send(self, message: PeerMessage, after: int = 0) -> None:
        """Send once the write `after` is durable, and never before the term it speaks for is."""
        after = max(after, self.hard_state_token)
        self.emit(Send(message, after if after > self.writes.stored_token else None))

    def alarm(self, text: str) -> None:
        """Tell people of something that must never happen."""
        self.emit(Alarm(f"{self.config.group}/{self.config.self_id}, term {self.term}: {text}"))

    def next_request_id(self) -> int:
        """Return a number no other request of this core has."""
        self._request_id += 1
        return self._request_id

    # -- log --------------------------------------------------------------------------------

    @property
    def known_term(self) -> int:
        """The newest term known: the log's may be newer in a store of the original (spec 95.3)."""
        return max(self.term, self.log.end_term)

    def commit_to(self, index: int) -> None:
        """Raise the committed index; never lowers it."""
        if index > self.committed_index:
            check(index <= self.log.end_index, "only stored entries commit", index)
            self.committed_index = index
            self.emit(Committed(index))

    # -- term, vote, role -------------------------------------------------------------------

    def enter(
        self,
        role: Role,
        leader_id: str | None,
        *,
        term: int | None = None,
        vote: str | None = None,
    ) -> None:
        """Take a role, and with it a new term or the vote in a term, which are saved first."""
        before = (self.role, self.term, self.leader_id)
        term = self.term if term is None else term
        if term != self.term or vote not in (None, self.vote):
            self._save_hard_state(term, vote)
        self.role, self.leader_id, self.round = role, leader_id, None
        if before[0] is Role.LEADER and role is not Role.LEADER:
            self.emit(FailPending(ResponseCode.TERM_CHANGED))
            self.restart_election_timer()
        if before != (role, term, leader_id):
            self.emit(RoleChanged(role, term, leader_id))

    def _save_hard_state(self, term: int, vote: str | None) -> None:
        check(term >= self.term, "the term never falls", term, self.term)
        check(term > self.term or self.vote is None, "one vote a term", self.vote, vote)
        self.term, self.vote = term, vote
        self.hard_state_token = self.writes.issue(self.log.end_index)
        self.emit(SaveHardState(HardState(term, vote), self.hard_state_token))

    # -- time -------------------------------------------------------------------------------

    def restart_election_timer(self) -> None:
        """Draw a new time-out and begin to wait (a new one each round breaks split votes)."""
        config = self.config
        self._election_timeout_ms = self._random.randrange(
            config.election_timeout_min_ms, config.election_timeout_max_ms
        )
        self.election_deadline_ms = self.now_ms + self._election_timeout_ms

    def heard_leader(self) -> None:
        """Note a sign of life of the leader."""
        self._leader_heard_ms = self.now_ms
        self.election_deadline_ms = self.now_ms + self._election_timeout_ms

    def has_live_leader(self) -> bool:
        """Whether I lead (with a quorum, else I would have stepped down) or heard the leader."""
        if self.leader_id is None:
            return False
        silent_ms = self.now_ms - self._leader_heard_ms
        return self.role is Role.LEADER or silent_ms < self.config.election_timeout_min_ms
