"""Leading: the NOOP, heartbeats, check-quorum, commit, and a dispatcher for each peer."""

from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.errors import check
from quorumlog.model.message import HeartBeatRequest, HeartBeatResponse, PeerStatus, PushResponse
from quorumlog.raft.dispatcher import Dispatcher
from quorumlog.raft.effects import AppendNoop, AppendProposal
from quorumlog.raft.events import EntriesRead, EntriesUnreadable, Proposed
from quorumlog.raft.quorum import majority, quorum_index
from quorumlog.raft.state import NEVER_MS, RaftState

RETENTION_LIVENESS_MS = 60_000
"""Entries are kept for a peer that was heard of within this time."""


class Leadership:
    """Everything that lives exactly as long as one leader's term.

    Its first act is a NOOP: entries of older terms commit only together with one of the leader's
    own term (Raft 5.4.2, spec 95.2), and the NOOP is the first such entry.
    """

    def __init__(self, state: RaftState) -> None:
        self._state = state
        # Made before the NOOP, so that the first compare is at the last index of the log as it
        # was when elected (spec 95.61).
        self._dispatchers = {peer_id: Dispatcher(state, peer_id) for peer_id in state.config.peers}
        self._followers_needed = majority(len(state.config.members)) - 1
        self._round = 0
        self._next_beat_ms = 0
        self._match_at_beat: dict[str, int] = {}
        self.first_index = state.log.end_index + 1
        """Index of the NOOP: where this term begins."""

    def start(self) -> None:
        """Append the NOOP, tell everyone who leads, and look where their logs are."""
        state = self._state
        state.log.append(self.first_index, state.term)
        token = state.writes.issue(self.first_index)
        state.emit(AppendNoop(self.first_index, state.term, token))
        self._beat()
        for dispatcher in self._dispatchers.values():
            dispatcher.compare()

    # -- events -------------------------------------------------------------------------------

    def propose(self, event: Proposed) -> None:
        """Append a client's entries and push them to everyone who is ready for them."""
        state = self._state
        first, last = state.log.end_index + 1, state.log.end_index + event.count
        state.log.append(last, state.term)
        token = state.writes.issue(last)
        state.emit(AppendProposal(event.proposal_id, first, last, state.term, token))
        for dispatcher in self._dispatchers.values():
            dispatcher.pump()

    def tick(self) -> None:
        """Do what is due: step down without a quorum, else heartbeats and repetitions."""
        state = self._state
        if state.now_ms >= self._quorum_deadline_ms():
            state.enter(Role.CANDIDATE, None)
            return
        if state.now_ms >= self._next_beat_ms:
            self._beat()
            for dispatcher in self._dispatchers.values():
                dispatcher.beat()
        for dispatcher in self._dispatchers.values():
            dispatcher.tick()

    def heartbeat_answered(self, response: HeartBeatResponse) -> None:
        """Note that the peer is alive, and whether it still has what it acknowledged."""
        dispatcher = self._contact(response)
        if dispatcher is None or response.round != self._round:
            return
        # An older answer, or the present match, would accuse a peer whose answer was only late.
        if response.end_index < self._match_at_beat[response.local_id] <= dispatcher.match_index:
            dispatcher.lost_data(response.end_index)

    def push_answered(self, response: PushResponse) -> None:
        """Take the answer to a push; what a majority has may now be committed."""
        dispatcher = self._contact(response)
        if dispatcher is None:
            return
        before = dispatcher.match_index
        dispatcher.respond(response)
        if dispatcher.match_index > before:
            self.advance_commit()
        dispatcher.pump()

    def entries_read(self, event: EntriesRead) -> None:
        """Push entries that were asked for."""
        self._dispatchers[event.peer_id].entries_read(event)

    def entries_unreadable(self, event: EntriesUnreadable) -> None:
        """Entries that were asked for cannot be had now."""
        self._dispatchers[event.peer_id].entries_unreadable(event)

    def peer_connected(self, peer_id: str) -> None:
        """The bulk link to a peer is new."""
        if peer_id in self._dispatchers:
            self._dispatchers[peer_id].restart()

    def begin_moved(self) -> None:
        """The log begins later: what peers are asked about may be gone."""
        for dispatcher in self._dispatchers.values():
            dispatcher.begin_moved()

    def retention_floor(self) -> int:
        """Return the last index that every peer heard of lately has."""
        oldest_ms = self._state.now_ms - RETENTION_LIVENESS_MS
        matches = [
            dispatcher.match_index
            for dispatcher in self._dispatchers.values()
            if dispatcher.contact_ms >= oldest_ms
        ]
        return min(matches, default=self._state.committed_index)

    def advance_commit(self) -> None:
        """Commit what a majority has on disk, if the last of it is of my own term (Raft 5.4.2).

        My own copy counts like a follower's: once it is durable (R3).
        """
        state = self._state
        matches = [dispatcher.match_index for dispatcher in self._dispatchers.values()]
        index = quorum_index([state.writes.durable_index, *matches])
        if index >= self.first_index and index > state.committed_index:
            state.commit_to(index)
            for dispatcher in self._dispatchers.values():
                dispatcher.pump()

    # -- inside -------------------------------------------------------------------------------

    def _contact(self, response: HeartBeatResponse | PushResponse) -> Dispatcher | None:
        """Return the peer's dispatcher; any answer of this term shows that the peer is alive."""
        state = self._state
        dispatcher = self._dispatchers.get(response.local_id)
        if dispatcher is None or response.term != state.term:
            return None
        if response.code is ResponseCode.INCONSISTENT_LEADER:
            state.alarm(f"{response.local_id} follows another leader of this term")
            state.enter(Role.CANDIDATE, None)
            return None
        dispatcher.contact_ms = state.now_ms
        return dispatcher

    def _beat(self) -> None:
        state = self._state
        self._round += 1
        self._next_beat_ms = state.now_ms + state.config.heartbeat_ms
        floor = self.retention_floor()
        for peer_id, dispatcher in self._dispatchers.items():
            self._match_at_beat[peer_id] = dispatcher.match_index
            state.send(
                HeartBeatRequest(
                    group=state.config.group,
                    local_id=state.config.self_id,
                    remote_id=peer_id,
                    term=state.term,
                    round=self._round,
                    retention_floor=floor,
                )
            )

    def _quorum_deadline_ms(self) -> int:
        """When the youngest majority's silence, mine not counted, has lasted a time-out."""
        if not self._followers_needed:
            return NEVER_MS
        contacts = sorted(dispatcher.contact_ms for dispatcher in self._dispatchers.values())
        return contacts[-self._followers_needed] + self._state.config.election_timeout_min_ms

    # -- views --------------------------------------------------------------------------------

    def deadline_ms(self) -> int:
        """When `tick` has something to do."""
        deadlines = [dispatcher.deadline_ms() for dispatcher in self._dispatchers.values()]
        if not deadlines:
            return NEVER_MS
        return min(self._next_beat_ms, self._quorum_deadline_ms(), *deadlines)

    def peer_progress(self) -> tuple[PeerStatus, ...]:
        """Return a view of each peer."""
        return tuple(dispatcher.status() for dispatcher in self._dispatchers.values())

    def validate(self) -> None:
        """Raise `InvariantViolation` if something that must always hold does not."""
        state = self._state
        check(state.leader_id == state.config.self_id, "a leader knows who leads")
        check(state.vote == state.config.self_id, "a leader voted for itself", state.vote)
        check(state.log.end_term == state.term, "a leader's last entry is of its own term")
        for dispatcher in self._dispatchers.values():
            dispatcher.validate()
