"""Node heartbeats: one message stands for the heartbeats of all quiescent groups (decision 0012).

A node reports to each peer which groups it leads, and in which terms; it sends only changes, until
the peer has acknowledged them. While its node heartbeats arrive, the peer's replicas of these
groups expect no heartbeats of their own; while the answers arrive, the leaders on this node send
none. A suspicion (silence, a new process, a group that follows another leader) wakes up the groups
concerned: then their own heartbeats and time-outs decide, as they do without this module.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol

import msgspec

from quorumlog.model.codes import Role
from quorumlog.model.config import GroupConfig
from quorumlog.model.messages.peer import (
    CHANGES_MAX,
    UNCONFIRMED_MAX,
    NodeHeartBeat,
    NodeHeartBeatResponse,
    NodeMessage,
)
from quorumlog.node.environment import QuiescibleReplica
from quorumlog.raft.events import Quiesced, Unquiesced

SUSPECT_AFTER_PERCENT = 80
"""A peer is suspected once it has been silent for this share of the shortest election time-out."""
REMOTE_LEADERS_MAX = 1_024
"""Nodes whose heartbeats are accepted."""
UNKNOWN_GROUPS_MAX = 4_096
"""How many groups that this node does not host a peer may claim to lead, besides those that it
hosts; the claims of a peer that names more are dropped altogether."""
ENDED = -1
"""Stands in place of a term: this node does not lead the group any more."""


class LivenessNetwork(Protocol):
    """Carries node heartbeats to peers; may lose them."""

    def send(self, peer_id: str, message: NodeMessage) -> bool:
        """Send, or return False when that is impossible now."""
        ...


@dataclass(frozen=True, slots=True)
class _Claim:
    """A group that this node leads, and its state when it became ready to quiesce."""

    term: int
    membership_index: int
    peers: tuple[str, ...]


@dataclass(slots=True)
class _PeerView:
    """What one peer was sent, and has acknowledged. `changes`: group → (version, term)."""

    changes: dict[str, tuple[int, int]] = field(default_factory=dict)
    version: int = 0
    acknowledged: int = 0
    number: int = 0
    answered: int = 0
    last_contact_ms: int = -1
    is_suspected: bool = True
    unconfirmed: frozenset[str] = frozenset()

    def change(self, group: str, term: int) -> None:
        """Report another term of a group from now on."""
        self.version += 1
        self.changes.pop(group, None)
        self.changes[group] = (self.version, term)

    def changes_after(self, version: int) -> list[tuple[str, int, int]]:
        """Return (group, version, term) of what changed after a version, oldest first."""
        newest_first = ((group, *change) for group, change in reversed(self.changes.items()))
        return list(takewhile(lambda change: change[1] > version, newest_first))[::-1]

    def confirms(self, group: str) -> bool:
        """Whether the peer follows in this group, according to its last answer."""
        is_sure = not self.is_suspected and len(self.unconfirmed) < UNCONFIRMED_MAX
        version, _ = self.changes[group]
        return is_sure and version <= self.acknowledged and group not in self.unconfirmed


@dataclass(slots=True)
class _RemoteLeaderView:
    """The groups that one peer claims to lead. `unconfirmed`: those that are not quiescent here."""

    run: int
    interval_ms: int
    number: int = 0
    version: int = 0
    last_contact_ms: int = 0
    is_suspected: bool = True
    claims: dict[str, int] = field(default_factory=dict)
    unconfirmed: dict[str, None] = field(default_factory=dict)


class NodeLiveness:
    """What one node and its peers report to each other about the groups that they lead.

    `run` is a random number above 0 that identifies the process. All methods run on the event
    loop's thread.
    """

    def __init__(
        self,
        self_id: str,
        replicas: Mapping[str, QuiescibleReplica],
        network: LivenessNetwork,
        now_ms: Callable[[], int],
        wake_at: Callable[[int], None],
        *,
        run: int,
        groups: Iterable[GroupConfig],
    ) -> None:
        self._self_id = self_id
        self._replicas = replicas
        self._network = network
        self._now_ms = now_ms
        self._wake_at = wake_at
        self._run = run
        self._interval_ms = self._timeout_ms = 0
        self.set_timing(groups)
        self._next_ms = 0
        self._claims: dict[str, _Claim] = {}
        self._peer_views: dict[str, _PeerView] = {}
        self._quiescent_led: dict[str, QuiescibleReplica] = {}
        self._remote_leaders: dict[str, _RemoteLeaderView] = {}
        self._quiescent_followed: dict[str, str] = {}

    def set_timing(self, groups: Iterable[GroupConfig]) -> None:
        """Keep to the shortest interval and time-out of these groups from now on."""
        timings = [
            (group.heart_beat_time_interval_ms, group.election_timeout_min_ms) for group in groups
        ]
        if not timings:
            fields = {field.name: field.default for field in msgspec.structs.fields(GroupConfig)}
            timings = [(fields["heart_beat_time_interval_ms"], fields["election_timeout_min_ms"])]
        self._interval_ms = min(interval_ms for interval_ms, _ in timings)
        self._timeout_ms = min(timeout_ms for _, timeout_ms in timings)

    def forget(self, group: str) -> None:
        """A replica of this node is gone: nothing is claimed of its group, nor relied on."""
        claim = self._claims.pop(group, None)
        for peer in claim.peers if claim is not None else ():
            self._peer_views[peer].change(group, ENDED)
        self._quiescent_led.pop(group, None)
        remote_leader = self._quiescent_followed.pop(group, None)
        if remote_leader is not None:
            self._remote_leaders[remote_leader].unconfirmed[group] = None

    def start(self) -> None:
        """Start to send heartbeats."""
        self._next_ms = self._now_ms()
        self._wake_at(self._next_ms)

    @property
    def quiescent_count(self) -> int:
        """How many groups are quiescent here: led by this node, or by one that sends heartbeats."""
        return len(self._quiescent_led) + len(self._quiescent_followed)

    def _suspect_after_ms(self, interval_ms: int) -> int:
        """Return how long a peer may be silent before it is suspected: less than every time-out.

        It is only a little less: a busy machine must not wake up a thousand groups, which would
        make it busier still.
        """
        return max(interval_ms * 3 // 2, self._timeout_ms * SUSPECT_AFTER_PERCENT // 100)

    # -- replicas -----------------------------------------------------------------------------

    def quiesce(self, replica: QuiescibleReplica) -> None:
        """A leader asks, now and then, whether it may quiesce: it may once all live peers confirm.

        If a peer's node answers but its replica does not (its disk may be slow), the replica is
        still asked: it is quiescent on the heartbeats of this node, and so would not say that it
        needs something. Followers quiesce earlier than the leader, as soon as it is ready: on a
        busy machine one node heartbeat arrives in time where a thousand heartbeats do not.
        """
        core, group = replica.core, replica.config.group
        if core.is_quiescent or not core.is_ready:
            return
        if group not in self._claims:
            self._claim(replica)
            return
        confirming_peers = core.confirming_peers()
        if confirming_peers and all(
            peer_view.confirms(group) if peer in confirming_peers else peer_view.is_suspected
            for peer, peer_view in self._views_of(group)
        ):
            self._quiescent_led[group] = replica
            replica.step(Quiesced(self._self_id, core.term))
            self.state_changed(replica)

    def _views_of(self, group: str) -> Iterator[tuple[str, _PeerView]]:
        return ((peer, self._peer_views[peer]) for peer in self._claims[group].peers)

    def _claim(self, replica: QuiescibleReplica) -> None:
        core, group = replica.core, replica.config.group
        peers = tuple(peer for peer in core.membership.ids if peer != self._self_id)
        self._claims[group] = _Claim(core.term, core.membership_index, peers)
        for peer in peers:
            self._peer_views.setdefault(peer, _PeerView()).change(group, core.term)

    def state_changed(self, replica: QuiescibleReplica) -> None:
        """A replica's state may have changed: withdraw what is no longer true."""
        core, group = replica.core, replica.config.group
        claim = self._claims.get(group)
        if claim is not None:
            known = (Role.LEADER, claim.term, claim.membership_index)
            if (core.role, core.term, core.membership_index) != known:
                del self._claims[group]
                for peer in claim.peers:
                    self._peer_views[peer].change(group, ENDED)
        if not core.is_quiescent:
            self._quiescent_led.pop(group, None)
            remote_leader = self._quiescent_followed.pop(group, None)
            if remote_leader is not None:
                self._remote_leaders[remote_leader].unconfirmed[group] = None
        elif group not in self._quiescent_led and group not in self._quiescent_followed:
            # no peer would wake it up, so it must not quiesce
            replica.step(Unquiesced(self._now_ms()))

    # -- time ---------------------------------------------------------------------------------

    def tick(self) -> None:
        """Send node heartbeats when they are due, and suspect the peers that have fallen silent."""
        now_ms = self._now_ms()
        # after a pause of this process, first read what arrived meanwhile: peers were not silent
        was_awake = now_ms - self._next_ms <= self._interval_ms
        if now_ms >= self._next_ms:
            self._next_ms = now_ms + self._interval_ms
            for peer, peer_view in self._peer_views.items():
                self._send_heartbeat(peer, peer_view)
        if was_awake:
            self._check_contacts(now_ms)
        self._wake_at(self._next_deadline_ms(now_ms))

    def _next_deadline_ms(self, now_ms: int) -> int:
        suspect_after_ms = self._suspect_after_ms(self._interval_ms)
        deadlines = [
            peer_view.last_contact_ms + suspect_after_ms
            for peer_view in self._peer_views.values()
            if not peer_view.is_suspected
        ]
        deadlines += [
            remote_leader.last_contact_ms + self._suspect_after_ms(remote_leader.interval_ms)
            for remote_leader in self._remote_leaders.values()
            if not remote_leader.is_suspected
        ]
        return min([self._next_ms, *(due + 1 for due in deadlines if due >= now_ms)])

    def _check_contacts(self, now_ms: int) -> None:
        suspect_after_ms = self._suspect_after_ms(self._interval_ms)
        for peer, peer_view in self._peer_views.items():
            if not peer_view.is_suspected and now_ms > peer_view.last_contact_ms + suspect_after_ms:
                peer_view.is_suspected = True
                self._wake_leaders(peer)
        for peer, remote_leader in self._remote_leaders.items():
            suspect_after_ms = self._suspect_after_ms(remote_leader.interval_ms)
            if (
                not remote_leader.is_suspected
                and now_ms > remote_leader.last_contact_ms + suspect_after_ms
            ):
                self._suspect(peer, remote_leader)

    # -- what this node leads -----------------------------------------------------------------

    def _send_heartbeat(self, peer: str, peer_view: _PeerView) -> None:
        """Send what has changed, or nothing once the peer knows that this node leads no group."""
        changes = peer_view.changes_after(peer_view.acknowledged)
        if not changes and not peer_view.changes:
            return
        base = peer_view.acknowledged
        for begin in range(0, max(1, len(changes)), CHANGES_MAX):
            part = changes[begin : begin + CHANGES_MAX]
            more = begin + CHANGES_MAX < len(changes)
            version = part[-1][1] if more else peer_view.version
            peer_view.number += 1
            heartbeat = NodeHeartBeat(
                local_id=self._self_id,
                remote_id=peer,
                run=self._run,
                number=peer_view.number,
                base=base,
                version=version,
                interval_ms=self._interval_ms,
                changes=[(group, term) for group, _, term in part],
                more=more,
            )
            if not self._network.send(peer, heartbeat):
                return
            base = version

    def _response_received(self, answer: NodeHeartBeatResponse) -> None:
        """Wake up the groups for which the peer does not confirm any more."""
        peer_view = self._peer_views.get(answer.local_id)
        if peer_view is None or answer.run != self._run:
            return
        if not peer_view.answered < answer.number <= peer_view.number:
            return
        peer_view.answered = answer.number
        before, peer_view.acknowledged = (
            peer_view.acknowledged,
            min(answer.version, peer_view.version),
        )
        peer_view.unconfirmed = frozenset(answer.unconfirmed)
        peer_view.last_contact_ms = self._now_ms()
        for group, version, term in peer_view.changes_after(before):
            if term == ENDED and version <= peer_view.acknowledged:
                del peer_view.changes[group]
        # a suspected peer is back or has restarted: leaders must find out how far its logs go
        if peer_view.is_suspected or peer_view.acknowledged < before:
            peer_view.is_suspected = False
            self._wake_leaders(answer.local_id)
        elif len(answer.unconfirmed) >= UNCONFIRMED_MAX:
            self._wake_leaders(answer.local_id)
        else:
            for group in answer.unconfirmed:
                if group in self._quiescent_led:
                    self._wake_leader(group)

    def _wake_leaders(self, peer: str) -> None:
        for group in [group for group in self._quiescent_led if peer in self._claims[group].peers]:
            self._wake_leader(group)

    def _wake_leader(self, group: str) -> None:
        self._quiescent_led.pop(group).step(Unquiesced(self._now_ms()))

    # -- what other nodes lead ----------------------------------------------------------------

    def received(self, message: NodeMessage) -> None:
        """Handle a message of a peer whose identity was checked."""
        if isinstance(message, NodeHeartBeatResponse):
            self._response_received(message)
        elif isinstance(message, NodeHeartBeat):
            self._heartbeat_received(message)

    def _heartbeat_received(self, heartbeat: NodeHeartBeat) -> None:
        """Record what the peer leads, quiesce its groups, and answer which do not follow."""
        peer = heartbeat.local_id
        remote_leader = self._remote_leaders.get(peer)
        if remote_leader is None or remote_leader.run != heartbeat.run:
            if remote_leader is not None:
                self._suspect(peer, remote_leader)
            elif len(self._remote_leaders) >= REMOTE_LEADERS_MAX:
                return
            remote_leader = self._remote_leaders[peer] = _RemoteLeaderView(
                heartbeat.run, heartbeat.interval_ms
            )
        if heartbeat.number <= remote_leader.number:
            return
        remote_leader.number, remote_leader.interval_ms = heartbeat.number, heartbeat.interval_ms
        if heartbeat.base > remote_leader.version:
            self._drop_claims(peer, remote_leader)
        elif heartbeat.version > remote_leader.version:
            self._apply_changes(peer, remote_leader, heartbeat)
        if not heartbeat.more:
            if heartbeat.version == remote_leader.version:
                remote_leader.last_contact_ms, remote_leader.is_suspected = self._now_ms(), False
                self._quiesce_followers(peer, remote_leader)
            self._respond(peer, remote_leader)

    def _apply_changes(
        self, peer: str, remote_leader: _RemoteLeaderView, heartbeat: NodeHeartBeat
    ) -> None:
        known = len(remote_leader.claims) + len(heartbeat.changes)
        if known > len(self._replicas) + UNKNOWN_GROUPS_MAX:
            self._drop_claims(peer, remote_leader)
            return
        for group, term in heartbeat.changes:
            if remote_leader.claims.get(group) == term:
                continue
            self._unquiesce(peer, remote_leader, group)
            if term == ENDED:
                remote_leader.claims.pop(group, None)
                remote_leader.unconfirmed.pop(group, None)
            else:
                remote_leader.claims[group] = term
                remote_leader.unconfirmed[group] = None
        remote_leader.version = heartbeat.version

    def _quiesce_followers(self, peer: str, remote_leader: _RemoteLeaderView) -> None:
        """Quiesce the groups that follow the peer in the term that it named."""
        for group in list(remote_leader.unconfirmed):
            replica = self._replicas.get(group)
            if replica is None:
                continue
            core, term = replica.core, remote_leader.claims[group]
            timeout_ms = replica.config.election_timeout_min_ms
            if (core.leader_id, core.term) == (peer, term) and (
                self._suspect_after_ms(remote_leader.interval_ms) < timeout_ms
            ):
                del remote_leader.unconfirmed[group]
                self._quiescent_followed[group] = peer
                replica.step(Quiesced(peer, term))
                self.state_changed(replica)

    def _respond(self, peer: str, remote_leader: _RemoteLeaderView) -> None:
        answer = NodeHeartBeatResponse(
            local_id=self._self_id,
            remote_id=peer,
            run=remote_leader.run,
            number=remote_leader.number,
            version=remote_leader.version,
            unconfirmed=list(remote_leader.unconfirmed)[:UNCONFIRMED_MAX],
        )
        self._network.send(peer, answer)

    def _unquiesce(self, peer: str, remote_leader: _RemoteLeaderView, group: str) -> None:
        """Have a group expect heartbeats again, counted from the last contact with the peer."""
        if self._quiescent_followed.get(group) == peer:
            del self._quiescent_followed[group]
            remote_leader.unconfirmed[group] = None
            self._replicas[group].step(Unquiesced(remote_leader.last_contact_ms))

    def _suspect(self, peer: str, remote_leader: _RemoteLeaderView) -> None:
        """Rely on none of the peer's claims until its next heartbeat."""
        remote_leader.is_suspected = True
        for group in remote_leader.claims:
            self._unquiesce(peer, remote_leader, group)

    def _drop_claims(self, peer: str, remote_leader: _RemoteLeaderView) -> None:
        """Drop all claims of the peer: it must report everything again."""
        self._suspect(peer, remote_leader)
        remote_leader.claims, remote_leader.unconfirmed, remote_leader.version = {}, {}, 0
