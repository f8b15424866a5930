"""Leading: the NOOP, heartbeats, check-quorum, commit, and a dispatcher for each other member."""

from collections.abc import Callable
from typing import Any

import msgspec

from quorumlog.model.bounds import NEVER_MS
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.errors import check
from quorumlog.model.membership import Membership, identity_of
from quorumlog.model.messages.client import PeerStatus
from quorumlog.model.messages.peer import (
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
from quorumlog.raft.heartbeat_rounds import HeartbeatRounds
from quorumlog.raft.membership_change import MembershipChange
from quorumlog.raft.quiesce import Quiescence
from quorumlog.raft.quorum import has_quorum, quorum_index
from quorumlog.raft.read_index import ReadIndex
from quorumlog.raft.state import RaftState
from quorumlog.raft.transfer import Transfer, timeout_now

RETENTION_LIVENESS_MS = 60_000
"""Entries are retained for a peer that was heard from within this time."""
REMOVED_PEER_MS = 10_000
"""How long a removed member is sent its removal, if it does not acknowledge that."""


class Leadership:
    """Everything that lives exactly as long as one leader's term.

    Its first act is a NOOP: entries of older terms commit only together with an entry of the
    leader's own term (Raft 5.4.2, spec 95.2), and the NOOP is the first such entry. In a group that
    has just been founded, the entry that names its first membership takes the NOOP's place.
    """

    def __init__(self, state: RaftState, transfer: Transfer) -> None:
        self._state = state
        self._transfer = transfer
        self.dispatchers: dict[str, Dispatcher] = {}
        self._counted: list[str] | None = None
        self._removed_peers_ms: dict[str, int] = {}
        # The dispatchers are made before the NOOP, so that the first COMPARE is at the last index
        # that the log had when this replica was elected (spec 95.61).
        self._add_dispatchers()
        self._change = MembershipChange(state, self.dispatchers, self._append_membership)
        self._reads = ReadIndex(state)
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            HeartBeatResponse: self._heartbeat_answered,
            PushResponse: self._push_answered,
            InstallSnapshotResponse: self._offer_answered,
            EntriesRead: self._entries_read,
            EntriesUnreadable: self._entries_unreadable,
        }
        self._rounds = HeartbeatRounds(state, self.dispatchers)
        self.quiescence = Quiescence(state, self.dispatchers, self._counted_peers, self._has_work)
        self.first_index = state.log.end_index + 1
        """Index of the NOOP, the first entry of this term."""

    def start(self) -> None:
        """Append the first entry, send heartbeats, and find out how far the other logs go."""
        state = self._state
        if state.memberships.is_founded:
            state.log.append(self.first_index, state.term)
            token = state.issue(self.first_index)
            state.emit(AppendNoop(self.first_index, state.term, token))
        else:
            self._append_membership(self._founding_membership())
        self.quiescence.schedule_heartbeat()
        self._transfer.leadership_started(self.dispatchers)
        self._send_heartbeats()
        for dispatcher in self.dispatchers.values():
            dispatcher.compare()

    def _founding_membership(self) -> Membership:
        """Return the first membership, with the incarnations that all founders voted with."""
        membership, voters = self._state.memberships.current, self._state.voter_incarnations
        known = msgspec.structs.replace(
            membership,
            members=tuple(
                msgspec.structs.replace(member, incarnation=voters[member.node_id])
                for member in membership.members
            ),
        )
        identity = known.identity or identity_of(self._state.config.group, known)
        return msgspec.structs.replace(known, identity=identity)

    def stop(self) -> None:
        """Leadership ended."""
        self._change.abandon()
        self._reads.abandon()
        self._transfer.leadership_ended()

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
        state.effects.append(AppendProposal(event.proposal_id, first, last, state.term, token))
        for dispatcher in self.dispatchers.values():
            dispatcher.push_proposed(first, last, event.size_bytes)

    def tick(self) -> None:
        """Do what is due: step down without a quorum or a disk, else send and repeat messages."""
        state, quiescence = self._state, self.quiescence
        if not quiescence.is_quiescent and state.now_ms >= self._quorum_deadline_ms():
            state.record("steps down: no majority answered for an election time-out")
            state.enter(Role.CANDIDATE, None)
            return
        if state.disk_is_stalled():
            state.record("steps down: its disk has not answered for an election time-out")
            state.enter(Role.FOLLOWER, None)
            return
        if state.now_ms >= quiescence.next_heartbeat_ms:
            # Only these heartbeats set the next time. Those for reads come in addition, and must
            # not postpone what is done here at each interval.
            quiescence.schedule_heartbeat()
            self._send_heartbeats()
            for dispatcher in self.dispatchers.values():
                dispatcher.repeat_commit()
            self._transfer.consider_other_leader()
            self._transfer.advance(again=True)
            if self.is_ready:
                self._change.tick()
            self._drop_removed_peers()
        if not quiescence.is_quiescent:
            for dispatcher in self.dispatchers.values():
                dispatcher.tick()

    def change_requested(self, event: ChangeRequested) -> None:
        """Change the membership; refused before the own term is committed (R15)."""
        self._change.request(event)

    def read_requested(self, event: ReadRequested) -> None:
        """Confirm that this replica still leads, for a read."""
        self._reads.add(event.request_id)
        self._start_read_round()

    def handle(
        self,
        event: HeartBeatResponse
        | PushResponse
        | InstallSnapshotResponse
        | EntriesRead
        | EntriesUnreadable,
    ) -> None:
        """Take an answer of a peer, of the present term or an older one, or of the log."""
        self._handlers[type(event)](event)

    def _heartbeat_answered(self, response: HeartBeatResponse) -> None:
        """Record that the peer is live, and whether it still has what it acknowledged."""
        dispatcher = self._responding_peer(response)
        if dispatcher is None or not self._rounds.record_answer(response):
            return
        self._confirm_reads()
        dispatcher.commits.reported(response.committed_index)
        if response.lacks_room is not dispatcher.contact.lacks_room:
            dispatcher.contact.lacks_room = response.lacks_room
            self._transfer.room_changed()
        if response.code is ResponseCode.INCONSISTENT_STATE:
            dispatcher.diverged()
        elif self._rounds.shows_lost_data(response, dispatcher.match_index):
            dispatcher.match_regressed(response.end_index)

    def _push_answered(self, response: PushResponse) -> None:
        """Take the answer to a push; what a majority has may now be committed."""
        dispatcher = self._responding_peer(response)
        if dispatcher is None:
            return
        before = dispatcher.match_index
        dispatcher.push_answered(response)
        if dispatcher.match_index > max(before, self._state.committed_index):
            self.advance_commit()
        dispatcher.push_entries()
        if self._transfer.is_awaited:
            self._transfer.advance()

    def _offer_answered(self, response: InstallSnapshotResponse) -> None:
        """A peer has installed a snapshot, or needs none."""
        dispatcher = self._responding_peer(response)
        if dispatcher is not None:
            dispatcher.offer_answered(response)

    def _entries_read(self, event: EntriesRead) -> None:
        """Push entries that were asked for."""
        if event.peer_id in self.dispatchers:
            self.dispatchers[event.peer_id].entries_read(event)

    def _entries_unreadable(self, event: EntriesUnreadable) -> None:
        """Entries that were asked for cannot be read now."""
        if event.peer_id in self.dispatchers:
            self.dispatchers[event.peer_id].entries_unreadable(event)

    def peer_connected(self, peer_id: str) -> None:
        """The replication connection to a peer is new."""
        if peer_id in self.dispatchers:
            self.dispatchers[peer_id].restart()

    def peer_lost(self, peer_id: str) -> None:
        """A peer's process seems to have ended: leadership is not transferred to it."""
        if peer_id in self.dispatchers:
            self.dispatchers[peer_id].contact.is_lost = True

    def log_compacted(self) -> None:
        """The log starts later now: what peers are asked about may be gone."""
        for dispatcher in self.dispatchers.values():
            dispatcher.log_compacted()

    def advance_commit(self) -> None:
        """Commit what a majority has on disk, if the last of it is of its own term (Raft 5.4.2).

        An entry of an older term that a majority holds may still be overwritten by a later leader
        that never saw it. The own copy counts like a follower's: once it is durable (R3).
        """
        state = self._state
        if state.committed_index == state.log.end_index:
            return
        matches = {state.config.self_id: state.writes.durable_index}
        for peer in self._counted or self._counted_peers():
            matches[peer] = self.dispatchers[peer].match_index
        index = quorum_index(state.memberships.current, matches)
        if index < self.first_index or index <= state.committed_index:
            return
        state.commit_to(index)
        self._change.committed()
        if self._reads.needs_round:
            self._start_read_round()
        for dispatcher in self.dispatchers.values():
            dispatcher.push_entries()
        if self._transfer.is_awaited:
            self._transfer.advance()
        self._step_down_if_removed()

    @property
    def may_commit(self) -> bool:
        """Whether a majority can be reached, as far as is known."""
        live = [
            peer
            for peer in self._counted_peers()
            if self.dispatchers[peer].contact.is_live and not self.dispatchers[peer].contact.is_lost
        ]
        return has_quorum(self._state.memberships.current, [self._state.config.self_id, *live])

    @property
    def is_ready(self) -> bool:
        """Whether this leader knows of all that is committed: its first entry is, too (Raft 8)."""
        return self._state.committed_index >= self.first_index

    # -- members ------------------------------------------------------------------------------

    def _add_dispatchers(self) -> None:
        """Make a dispatcher for each new member; keep those of removed members for a while."""
        state, self._counted = self._state, None
        ids = state.memberships.current.ids
        for peer_id in ids:
            if peer_id != state.config.self_id and peer_id not in self.dispatchers:
                self.dispatchers[peer_id] = Dispatcher(state, peer_id)
        for peer_id in self.dispatchers:
            if peer_id in ids:
                self._removed_peers_ms.pop(peer_id, None)
            else:
                self._removed_peers_ms.setdefault(peer_id, state.now_ms + REMOVED_PEER_MS)

    def _drop_removed_peers(self) -> None:
        """Forget removed members once they know that they were removed, or do not answer."""
        state = self._state
        for peer_id, deadline_ms in list(self._removed_peers_ms.items()):
            informed = self.dispatchers[peer_id].commits.known_index >= state.memberships.index
            if informed or state.now_ms >= deadline_ms:
                del self._removed_peers_ms[peer_id], self.dispatchers[peer_id]
                self._counted = None
                self._rounds.forget(peer_id)

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
        state.due_by(state.now_ms)  # another majority counts
        for peer_id, dispatcher in self.dispatchers.items():
            if peer_id in known:
                dispatcher.push_entries()
            else:
                dispatcher.compare()

    def _counted_peers(self) -> list[str]:
        """Return the peers whose data directory is the one that the membership names.

        A peer with an emptied disk is sent entries like any other, but counts towards no majority
        until it was readmitted (R14). Kept until the membership, or an incarnation, changes.
        """
        if self._counted is None:
            self._counted = _counted(self._state.memberships.current, self.dispatchers)
        return self._counted

    def _step_down_if_removed(self) -> None:
        """Step down if this replica is no voter of the committed membership any more (R17)."""
        state = self._state
        current = state.memberships.current
        if current.is_voter(state.config.self_id) or (
            state.memberships.index > state.committed_index
        ):
            return
        # The newest entries may never be acknowledged, since they are not pushed any more. So the
        # target need only have the entries that it has acknowledged.
        matches = {peer: self.dispatchers[peer].match_index for peer in self._counted_peers()}
        voters = [peer for peer in matches if current.is_voter(peer)]
        if voters:
            best = max(voters, key=matches.__getitem__)
            state.send(timeout_now(state, best, matches[best]))
        state.record("steps down: it was removed from the voters")
        state.enter(Role.FOLLOWER, None)

    # -- inside -------------------------------------------------------------------------------

    def _responding_peer(
        self, response: HeartBeatResponse | PushResponse | InstallSnapshotResponse
    ) -> Dispatcher | None:
        """Return the peer's dispatcher; any answer of this term shows that the peer is live.

        None: the answer is of another term, or must not be believed.
        """
        state = self._state
        dispatcher = self.dispatchers.get(response.local_id)
        if dispatcher is None or response.term != state.term:
            return None
        contact, incarnation = dispatcher.contact, response.incarnation
        is_known = incarnation == contact.incarnation
        is_other = not is_known and contact.is_other(incarnation)
        if is_other and not self._rounds.is_newest(response):
            return None  # the data directory that it speaks for is gone
        if response.code is ResponseCode.INCONSISTENT_LEADER:
            state.alarm(f"{response.local_id} follows another leader of this term")
            state.enter(Role.CANDIDATE, None)
            return None
        if is_known:
            contact.seen(incarnation)
        else:
            self._counted = None
            dispatcher.peer_seen(incarnation)
        return dispatcher

    def _send_heartbeats(self) -> None:
        self._rounds.send(self.retention_floor())
        if self.is_ready:
            self._reads.round_started(self._rounds.number)
        self._confirm_reads()

    def _start_read_round(self) -> None:
        if self.is_ready and self._reads.needs_round:
            self._send_heartbeats()

    def _confirm_reads(self) -> None:
        answered = self._rounds.answered_by(self._counted_peers())
        self._reads.confirmed(quorum_index(self._state.memberships.current, answered))
        self._start_read_round()

    def _quorum_deadline_ms(self) -> int:
        """When no majority will have been heard for a time-out; the leader itself always counts."""
        contacts = {self._state.config.self_id: NEVER_MS}
        for peer in self._counted or self._counted_peers():
            contacts[peer] = self.dispatchers[peer].contact.last_contact_ms
        last_contact_ms = quorum_index(self._state.memberships.current, contacts)
        if last_contact_ms >= NEVER_MS:
            return NEVER_MS
        return last_contact_ms + self._state.config.election_timeout_min_ms

    def _has_work(self) -> bool:
        """Whether this leader has anything under way that keeps the group from quiescing."""
        return (
            not self.is_ready
            or self._transfer.is_running
            or self._transfer.needs_heartbeats
            or self._change.is_running
            or bool(self._removed_peers_ms)
            or not self._reads.is_idle
        )

    # -- views --------------------------------------------------------------------------------

    def retention_floor(self) -> int:
        """Return the last index that every peer that was heard from lately has."""
        oldest_ms = self._state.now_ms - RETENTION_LIVENESS_MS
        matches = [
            dispatcher.match_index
            for dispatcher in self.dispatchers.values()
            if dispatcher.contact.is_confirmed or dispatcher.contact.last_contact_ms >= oldest_ms
        ]
        return min(matches, default=self._state.committed_index)

    def deadline_ms(self) -> int:
        """When `tick` has something to do."""
        stalled_ms = self._state.stall_deadline_ms()
        heartbeat_ms = self.quiescence.next_heartbeat_ms
        if self.quiescence.is_quiescent:
            return min(heartbeat_ms, stalled_ms)
        deadlines = [dispatcher.deadline_ms() for dispatcher in self.dispatchers.values()]
        if not deadlines:
            return stalled_ms
        return min(heartbeat_ms, self._quorum_deadline_ms(), stalled_ms, *deadlines)

    def peer_progress(self) -> tuple[PeerStatus, ...]:
        """Return a view of each peer."""
        return tuple(dispatcher.status() for dispatcher in self.dispatchers.values())

    def validate(self) -> None:
        """Raise `InvariantViolation` if something that must always hold does not."""
        state = self._state
        check(state.leader_id == state.config.self_id, "a leader knows who leads")
        check(state.vote == state.config.self_id, "a leader voted for itself", state.vote)
        check(state.log.end_term == state.term, "a leader's last entry is of its own term")
        counted = _counted(state.memberships.current, self.dispatchers)
        check(self._counted in (None, counted), "the peers that count are known", counted)
        for dispatcher in self.dispatchers.values():
            dispatcher.validate()


def _counted(membership: Membership, dispatchers: dict[str, Dispatcher]) -> list[str]:
    return [
        peer_id
        for peer_id, dispatcher in dispatchers.items()
        if (member := membership.member(peer_id)) and member.may_be(dispatcher.contact.incarnation)
    ]
