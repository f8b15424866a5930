"""Leading: the NOOP, heartbeats, check-quorum, commit, and a dispatcher for each other member."""

import msgspec

from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.errors import check
from quorumlog.model.membership import Membership, identity_of
from quorumlog.model.messages.client import PeerStatus
from quorumlog.model.messages.peer import (
    HeartBeatRequest,
    HeartBeatResponse,
    InstallSnapshotResponse,
    PushResponse,
)
from quorumlog.raft.dispatcher import Dispatcher
from quorumlog.raft.effects import AppendMembership, AppendNoop, AppendProposal, RefuseProposal
from quorumlog.raft.events import (
    ChangeRequested,
    EntriesRead,
    EntriesUnreadable,
    Proposed,
    ReadRequested,
)
from quorumlog.raft.membership_change import MembershipChange
from quorumlog.raft.quorum import has_quorum, quorum_reached
from quorumlog.raft.read_index import ReadIndex
from quorumlog.raft.state import RaftState
from quorumlog.raft.transfer import Transfer, timeout_now

RETENTION_LIVENESS_MS = 60_000
"""Entries are kept for a peer that was heard of within this time."""
QUIESCE_AFTER_HEARTBEATS = 3
"""A leader rests once nothing has happened for so many heartbeats."""
QUIESCENT_HEARTBEAT_MS = 30_000
"""Heartbeats of a leader that rests: what only they can tell, such as lost data, is still found."""
DEPARTURE_MS = 10_000
"""How long a removed member is told that it was, if it does not acknowledge that."""


class Leadership:
    """Everything that lives exactly as long as one leader's term.

    Its first act is a NOOP: entries of older terms commit only together with one of the leader's
    own term (Raft 5.4.2, spec 95.2), and the NOOP is the first such entry. In a group that only
    begins, the entry that names its first membership takes its place.
    """

    def __init__(self, state: RaftState, transfer: Transfer) -> None:
        self._state = state
        self._transfer = transfer
        self.dispatchers: dict[str, Dispatcher] = {}
        self._departures_ms: dict[str, int] = {}
        # Made before the NOOP, so that the first compare is at the last index of the log as it
        # was when elected (spec 95.61).
        self._add_dispatchers()
        self._change = MembershipChange(state, self.dispatchers, self._append_membership)
        self._reads = ReadIndex(state)
        self._heartbeat_round = 0
        self._next_heartbeat_ms = 0
        self._active_ms = state.now_ms
        self._match_at_heartbeat: dict[str, int] = {}
        self._rounds_answered: dict[str, int] = {}
        self.first_index = state.log.end_index + 1
        """Index of the NOOP: where this term begins."""

    def start(self) -> None:
        """Append the first entry, tell everyone who leads, and look where their logs are."""
        state = self._state
        if state.memberships.is_founded:
            state.log.append(self.first_index, state.term)
            token = state.issue(self.first_index)
            state.emit(AppendNoop(self.first_index, state.term, token))
        else:
            self._append_membership(self._founding_membership())
        self._next_heartbeat_ms = self._next_moment_ms()
        self._transfer.leads()
        self._send_heartbeats()
        for dispatcher in self.dispatchers.values():
            dispatcher.compare()

    def _next_moment_ms(self) -> int:
        """Return the next multiple of the interval: all leaders of a node beat then."""
        interval_ms = self._state.config.heartbeat_ms
        return (self._state.now_ms // interval_ms + 1) * interval_ms

    def _founding_membership(self) -> Membership:
        """Return the first membership: all founders voted, and said who they are."""
        membership, said = self._state.memberships.current, self._state.voter_incarnations
        known = msgspec.structs.replace(
            membership,
            members=tuple(
                msgspec.structs.replace(member, incarnation=said[member.node_id])
                for member in membership.members
            ),
        )
        identity = identity_of(self._state.config.group, known)
        return msgspec.structs.replace(known, identity=identity)

    def stop(self) -> None:
        """Leadership ended."""
        self._change.abandon()
        self._reads.abandon()

    # -- events -------------------------------------------------------------------------------

    def propose(self, event: Proposed) -> None:
        """Append a client's entries and push them to everyone who is ready for them."""
        state = self._state
        if self._transfer.is_running:
            code = ResponseCode.LEADER_TRANSFERRING
            state.emit(RefuseProposal(event.proposal_id, code))
            return
        first, last = state.log.end_index + 1, state.log.end_index + event.count
        state.log.append(last, state.term)
        token = state.issue(last)
        state.emit(AppendProposal(event.proposal_id, first, last, state.term, token))
        for dispatcher in self.dispatchers.values():
            dispatcher.push_entries()

    def tick(self) -> None:
        """Do what is due: step down without a quorum or a disk, else heartbeats, repetitions."""
        state = self._state
        if not state.is_quiescent and state.now_ms >= self._quorum_deadline_ms():
            state.record("steps down: no majority answered for an election time-out")
            state.enter(Role.CANDIDATE, None)
            return
        if state.disk_is_stalled():
            state.record("steps down: its disk has not answered for an election time-out")
            state.enter(Role.FOLLOWER, None)
            return
        if state.now_ms >= self._next_heartbeat_ms:
            # rounds for reads come on top: they must not put off what goes with the beat
            rested_ms = state.now_ms + QUIESCENT_HEARTBEAT_MS
            self._next_heartbeat_ms = rested_ms if state.is_quiescent else self._next_moment_ms()
            self._send_heartbeats()
            for dispatcher in self.dispatchers.values():
                dispatcher.repeat_commit()
            self._transfer.consider_preferred(self.dispatchers)
            self._transfer.advance(self.dispatchers, again=True)
            if self.is_ready:
                self._change.tick()
            self._drop_departed()
        if not state.is_quiescent:
            for dispatcher in self.dispatchers.values():
                dispatcher.tick()

    def change_requested(self, event: ChangeRequested) -> None:
        """Change the membership; refused before the own term is committed (R15)."""
        self._change.request(event)

    def read_requested(self, event: ReadRequested) -> None:
        """Confirm leadership for a read."""
        self._reads.add(event.request_id)
        self._start_read_round()

    def heartbeat_answered(self, response: HeartBeatResponse) -> None:
        """Note that the peer is alive, and whether it still has what it acknowledged."""
        dispatcher = self._responding_peer(response)
        if dispatcher is None or response.round > self._heartbeat_round:
            return
        peer = response.local_id
        self._rounds_answered[peer] = max(self._rounds_answered.get(peer, 0), response.round)
        self._confirm_reads()
        dispatcher.commit_reported(response.committed_index)
        if response.code is ResponseCode.INCONSISTENT_STATE:
            dispatcher.diverged()
        # An older answer, or the present match, would accuse a peer whose answer was only late.
        elif response.round == self._heartbeat_round and (
            response.end_index < self._match_at_heartbeat.get(peer, -1) <= dispatcher.match_index
        ):
            dispatcher.match_regressed(response.end_index)

    def push_answered(self, response: PushResponse) -> None:
        """Take the answer to a push; what a majority has may now be committed."""
        dispatcher = self._responding_peer(response)
        if dispatcher is None:
            return
        before = dispatcher.match_index
        dispatcher.push_answered(response)
        if dispatcher.match_index > before:
            self.advance_commit()
        dispatcher.push_entries()
        self._transfer.advance(self.dispatchers)

    def offer_answered(self, response: InstallSnapshotResponse) -> None:
        """A peer has begun its log anew, or needs not."""
        dispatcher = self._responding_peer(response)
        if dispatcher is not None:
            dispatcher.offer_answered(response)

    def entries_read(self, event: EntriesRead) -> None:
        """Push entries that were asked for."""
        if event.peer_id in self.dispatchers:
            self.dispatchers[event.peer_id].entries_read(event)

    def entries_unreadable(self, event: EntriesUnreadable) -> None:
        """Entries that were asked for cannot be had now."""
        if event.peer_id in self.dispatchers:
            self.dispatchers[event.peer_id].entries_unreadable(event)

    def peer_connected(self, peer_id: str) -> None:
        """The bulk link to a peer is new."""
        if peer_id in self.dispatchers:
            self.dispatchers[peer_id].restart()

    def peer_lost(self, peer_id: str) -> None:
        """A peer's process has ended, it seems: leadership is not handed to it."""
        if peer_id in self.dispatchers:
            self.dispatchers[peer_id].is_lost = True

    def log_compacted(self) -> None:
        """The log begins later: what peers are asked about may be gone."""
        for dispatcher in self.dispatchers.values():
            dispatcher.log_compacted()

    def advance_commit(self) -> None:
        """Commit what a majority has on disk, if the last of it is of my own term (Raft 5.4.2).

        My own copy counts like a follower's: once it is durable (R3).
        """
        state = self._state
        matches = {peer: self.dispatchers[peer].match_index for peer in self._counted_peers()}
        matches[state.config.self_id] = state.writes.durable_index
        index = quorum_reached(state.memberships.current, matches)
        if index < self.first_index or index <= state.committed_index:
            return
        state.commit_to(index)
        self._change.committed()
        if self._reads.needs_round:
            self._start_read_round()
        for dispatcher in self.dispatchers.values():
            dispatcher.push_entries()
        self._transfer.advance(self.dispatchers)
        self._leave_if_removed()

    @property
    def may_commit(self) -> bool:
        """Whether a majority is there, as far as is known."""
        live = [
            peer
            for peer in self._counted_peers()
            if self.dispatchers[peer].is_live and not self.dispatchers[peer].is_lost
        ]
        return has_quorum(self._state.memberships.current, [self._state.config.self_id, *live])

    @property
    def is_ready(self) -> bool:
        """Whether this leader knows of all that is committed: its first entry is, too (Raft 8)."""
        return self._state.committed_index >= self.first_index

    # -- members ------------------------------------------------------------------------------

    def _add_dispatchers(self) -> None:
        """Have a dispatcher for each other member; tell those who leave so, for a while."""
        state = self._state
        ids = state.memberships.current.ids
        for peer_id in ids:
            if peer_id != state.config.self_id and peer_id not in self.dispatchers:
                self.dispatchers[peer_id] = Dispatcher(state, peer_id)
        for peer_id in self.dispatchers:
            if peer_id in ids:
                self._departures_ms.pop(peer_id, None)
            else:
                self._departures_ms.setdefault(peer_id, state.now_ms + DEPARTURE_MS)

    def _drop_departed(self) -> None:
        """Forget removed members once they know that they are, or do not answer."""
        state = self._state
        for peer_id, deadline_ms in list(self._departures_ms.items()):
            informed = self.dispatchers[peer_id].known_commit >= state.memberships.index
            if informed or state.now_ms >= deadline_ms:
                del self._departures_ms[peer_id], self.dispatchers[peer_id]
                self._match_at_heartbeat.pop(peer_id, None)
                self._rounds_answered.pop(peer_id, None)

    def _append_membership(self, membership: Membership) -> None:
        """Append an entry that names a membership; it counts from now on (Raft 6)."""
        state = self._state
        index = state.log.end_index + 1
        state.log.append(index, state.term)
        token = state.issue(index)
        state.emit(AppendMembership(index, state.term, membership, token))
        state.take_membership(index, membership)
        known = set(self.dispatchers)
        self._add_dispatchers()
        for peer_id, dispatcher in self.dispatchers.items():
            if peer_id in known:
                dispatcher.push_entries()
            else:
                dispatcher.compare()

    def _counted_peers(self) -> list[str]:
        """Return the peers that are who the membership says; others are heard, not counted."""
        membership = self._state.memberships.current
        return [
            peer_id
            for peer_id, dispatcher in self.dispatchers.items()
            if (member := membership.member(peer_id)) and member.may_be(dispatcher.incarnation)
        ]

    def _leave_if_removed(self) -> None:
        """A leader that is no voter any more led only until that was committed (R17)."""
        state = self._state
        current = state.memberships.current
        if current.is_voter(state.config.self_id) or (
            state.memberships.index > state.committed_index
        ):
            return
        # entries behind the last one that everybody acknowledged may be under way for ever
        matches = {peer: self.dispatchers[peer].match_index for peer in self._counted_peers()}
        voters = [peer for peer in matches if current.is_voter(peer)]
        if voters:
            best = max(voters, key=matches.__getitem__)
            state.send(timeout_now(state, best, matches[best]))
        state.record("leaves: it was removed from the voters")
        state.enter(Role.FOLLOWER, None)

    # -- inside -------------------------------------------------------------------------------

    def _responding_peer(
        self, response: HeartBeatResponse | PushResponse | InstallSnapshotResponse
    ) -> Dispatcher | None:
        """Return the peer's dispatcher; any answer of this term shows that the peer is alive."""
        state = self._state
        dispatcher = self.dispatchers.get(response.local_id)
        if dispatcher is None or response.term != state.term:
            return None
        if dispatcher.is_other(response.incarnation) and not self._is_newest(response):
            return None  # the disk it speaks for is gone
        if response.code is ResponseCode.INCONSISTENT_LEADER:
            state.alarm(f"{response.local_id} follows another leader of this term")
            state.enter(Role.CANDIDATE, None)
            return None
        dispatcher.peer_seen(response.incarnation)
        dispatcher.last_contact_ms = state.now_ms
        dispatcher.is_lost = False
        return dispatcher

    def _is_newest(
        self, response: HeartBeatResponse | PushResponse | InstallSnapshotResponse
    ) -> bool:
        """Whether the peer said this after all that it said before.

        An answer to an earlier round may be that of a data directory that was emptied since.
        """
        known = self._rounds_answered.get(response.local_id, 0)
        return (
            isinstance(response, HeartBeatResponse)
            and known < response.round <= self._heartbeat_round
        )

    def _send_heartbeats(self) -> None:
        state = self._state
        self._heartbeat_round += 1
        if self.is_ready:
            self._reads.round_started(self._heartbeat_round)
        floor = self.retention_floor()
        for peer_id, dispatcher in self.dispatchers.items():
            self._match_at_heartbeat[peer_id] = dispatcher.match_index
            state.send(
                HeartBeatRequest(
                    group=state.config.group,
                    local_id=state.config.self_id,
                    remote_id=peer_id,
                    incarnation=state.config.incarnation,
                    term=state.term,
                    round=self._heartbeat_round,
                    retention_floor=floor,
                    membership_index=state.memberships.index,
                    committed_index=state.committed_index,
                )
            )
        self._confirm_reads()

    def _start_read_round(self) -> None:
        if self.is_ready and self._reads.needs_round:
            self._send_heartbeats()

    def _confirm_reads(self) -> None:
        answered = {peer: self._rounds_answered.get(peer, 0) for peer in self._counted_peers()}
        answered[self._state.config.self_id] = self._heartbeat_round
        self._reads.confirmed(quorum_reached(self._state.memberships.current, answered))
        self._start_read_round()

    def _quorum_deadline_ms(self) -> int:
        """When the youngest majority's silence has lasted a time-out; I count as just heard."""
        contacts = {peer: self.dispatchers[peer].last_contact_ms for peer in self._counted_peers()}
        contacts[self._state.config.self_id] = NEVER_MS
        last_contact_ms = quorum_reached(self._state.memberships.current, contacts)
        if last_contact_ms >= NEVER_MS:
            return NEVER_MS
        return last_contact_ms + self._state.config.election_timeout_min_ms

    # -- rest ---------------------------------------------------------------------------------

    def confirming_peers(self) -> tuple[str, ...]:
        """Return the peers that must follow this leader for it to rest now; empty: it may not.

        It may when nothing has happened for a while, and all live members know and have all
        there is. Absent ones announce themselves when they are back.
        """
        quiet_ms = self._state.now_ms - self._active_ms
        awaited_ms = QUIESCE_AFTER_HEARTBEATS * self._state.config.heartbeat_ms
        if quiet_ms < awaited_ms or not self._is_idle():
            return ()
        live = tuple(peer for peer, dispatcher in self.dispatchers.items() if dispatcher.is_live)
        counted = [peer for peer in self._counted_peers() if peer in live]
        enough = has_quorum(self._state.memberships.current, [self._state.config.self_id, *counted])
        settled = all(self.dispatchers[peer].is_caught_up for peer in live)
        return live if enough and settled and len(counted) == len(live) else ()

    def _is_idle(self) -> bool:
        """Whether there is nothing to do but to be there."""
        state = self._state
        end_index = state.log.end_index
        return (
            self.is_ready
            and state.committed_index == end_index == state.writes.durable_index
            and state.writes.oldest_ms is None
            and not self._transfer.is_running
            and not self._transfer.live_preferred(self.dispatchers)
            and not self._change.is_running
            and not self._departures_ms
            and self._reads.is_idle
        )

    def quiesce(self) -> None:
        """The nodes vouch for all live peers: leave the heartbeats to them."""
        if not self._state.is_quiescent and (confirming_peers := self.confirming_peers()):
            self._state.is_quiescent = True
            for peer_id in confirming_peers:
                self.dispatchers[peer_id].is_confirmed = True
            self._next_heartbeat_ms = self._state.now_ms + QUIESCENT_HEARTBEAT_MS

    def wake_up(self) -> None:
        """Something happened: beat as ever, at once.

        Whoever was vouched for has an election time-out from now on to answer, like anybody who
        is asked: all groups of a node may wake at once, and their answers take a while.
        """
        now_ms = self._active_ms = self._state.now_ms
        if not self._state.is_quiescent:
            return
        self._state.is_quiescent = False
        self._next_heartbeat_ms = now_ms
        for dispatcher in self.dispatchers.values():
            if dispatcher.is_confirmed:
                dispatcher.is_confirmed = False
                dispatcher.last_contact_ms = now_ms

    def consider_quiescing(self) -> None:
        """A peer that turns out to need something, or is back, ends the rest."""
        if self._state.is_quiescent and not (
            self._is_idle()
            and all(
                dispatcher.is_caught_up if dispatcher.is_confirmed else not dispatcher.is_live
                for dispatcher in self.dispatchers.values()
            )
        ):
            self.wake_up()

    # -- views --------------------------------------------------------------------------------

    def retention_floor(self) -> int:
        """Return the last index that every peer heard of lately has."""
        oldest_ms = self._state.now_ms - RETENTION_LIVENESS_MS
        matches = [
            dispatcher.match_index
            for dispatcher in self.dispatchers.values()
            if dispatcher.is_confirmed or dispatcher.last_contact_ms >= oldest_ms
        ]
        return min(matches, default=self._state.committed_index)

    def deadline_ms(self) -> int:
        """When `tick` has something to do."""
        stalled_ms = self._state.stall_deadline_ms()
        if self._state.is_quiescent:
            return min(self._next_heartbeat_ms, stalled_ms)
        deadlines = [dispatcher.deadline_ms() for dispatcher in self.dispatchers.values()]
        if not deadlines:
            return stalled_ms
        return min(self._next_heartbeat_ms, self._quorum_deadline_ms(), stalled_ms, *deadlines)

    def peer_progress(self) -> tuple[PeerStatus, ...]:
        """Return a view of each peer."""
        return tuple(dispatcher.status() for dispatcher in self.dispatchers.values())

    def validate(self) -> None:
        """Raise `InvariantViolation` if something that must always hold does not."""
        state = self._state
        check(state.leader_id == state.config.self_id, "a leader knows who leads")
        check(state.vote == state.config.self_id, "a leader voted for itself", state.vote)
        check(state.log.end_term == state.term, "a leader's last entry is of its own term")
        for dispatcher in self.dispatchers.values():
            dispatcher.validate()
