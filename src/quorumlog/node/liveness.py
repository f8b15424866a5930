"""Beats between nodes: one message for the heartbeats of all idle groups (decision 0012).

A node tells each peer which groups it leads, and in which terms; only what changed is sent, until
the peer has acknowledged it. As long as its beats come, the peer's replicas of these groups wait
for no heartbeats; as long as the answers come, its own replicas of them send none. Whatever is in
doubt (silence, another process, a group that follows somebody else) ends the rest of the groups
concerned: then their own heartbeats and time-outs decide, as they do without any of this.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol

from quorumlog.model.codes import Role
from quorumlog.model.config import GroupConfig
from quorumlog.model.messages.peer import (
    CHANGES_MAX,
    STRAYS_MAX,
    NodeHeartBeat,
    NodeHeartBeatResponse,
    NodeMessage,
)
from quorumlog.node.environment import QuiescibleReplica
from quorumlog.raft.events import Quiesced, Unquiesced

PATIENCE_PERCENT = 80
"""Of the shortest election time-out: whoever is silent for longer is in doubt."""
SPEAKERS_MAX = 1_024
"""Nodes whose beats are taken."""
STRANGE_CLAIMS_MAX = 4_096
"""Groups that are not here and that one node may say it leads beside those that are; one with more
is not believed at all."""
ENDED = -1
"""Instead of a term: the group is not led by this node any more."""


class LivenessNetwork(Protocol):
    """Carries beats to peers; may lose them."""

    def send(self, peer_id: str, message: NodeMessage) -> bool:
        """Send, or return False when that is impossible now."""
        ...


@dataclass(frozen=True, slots=True)
class _Claim:
    """A group that this node leads, as it was when all there was to know about it was known."""

    term: int
    membership_index: int
    peers: tuple[str, ...]


@dataclass(slots=True)
class _PeerView:
    """What one peer is told and knows. `changes`: group → (version, term), by version."""

    changes: dict[str, tuple[int, int]] = field(default_factory=dict)
    version: int = 0
    acknowledged: int = 0
    number: int = 0
    answered: int = 0
    heard_ms: int = -1
    is_silent: bool = True
    strays: frozenset[str] = frozenset()

    def change(self, group: str, term: int) -> None:
        """Say something else of a group from now on."""
        self.version += 1
        self.changes.pop(group, None)
        self.changes[group] = (self.version, term)

    def changes_after(self, version: int) -> list[tuple[str, int, int]]:
        """Return (group, version, term) of what changed after a version, oldest first."""
        newest_first = ((group, *change) for group, change in reversed(self.changes.items()))
        return list(takewhile(lambda change: change[1] > version, newest_first))[::-1]

    def confirms(self, group: str) -> bool:
        """Whether the peer follows in this group, as far as its last answer says."""
        is_sure = not self.is_silent and len(self.strays) < STRAYS_MAX
        version, _ = self.changes[group]
        return is_sure and version <= self.acknowledged and group not in self.strays


@dataclass(slots=True)
class _RemoteLeaderView:
    """What one peer says that it leads. `unsettled`: groups that do not rest with it here."""

    run: int
    interval_ms: int
    number: int = 0
    version: int = 0
    heard_ms: int = 0
    is_silent: bool = True
    claims: dict[str, int] = field(default_factory=dict)
    unsettled: dict[str, None] = field(default_factory=dict)


class NodeLiveness:
    """What one node and its peers tell each other about the groups that they lead.

    `run` numbers the process, by chance and above 0. All methods run on the event loop's thread.
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
        groups: list[GroupConfig],
    ) -> None:
        self._self_id = self_id
        self._replicas = replicas
        self._network = network
        self._now_ms = now_ms
        self._wake_at = wake_at
        self._run = run
        self._interval_ms = min(group.heart_beat_time_interval_ms for group in groups)
        self._timeout_ms = min(group.election_timeout_min_ms for group in groups)
        self._next_ms = 0
        self._claims: dict[str, _Claim] = {}
        self._audiences: dict[str, _PeerView] = {}
        self._resting: dict[str, QuiescibleReplica] = {}
        self._speakers: dict[str, _RemoteLeaderView] = {}
        self._settled: dict[str, str] = {}

    def start(self) -> None:
        """Begin to beat."""
        self._next_ms = self._now_ms()
        self._wake_at(self._next_ms)

    @property
    def resting(self) -> int:
        """How many groups rest here: led by this node, or following one that beats."""
        return len(self._resting) + len(self._settled)

    def _patience_ms(self, interval_ms: int) -> int:
        """Return how long a silence is no sign of anything: below every time-out.

        Not by much: a busy machine must not wake a thousand groups, which make it busier still.
        """
        return max(interval_ms * 3 // 2, self._timeout_ms * PATIENCE_PERCENT // 100)

    # -- replicas -----------------------------------------------------------------------------

    def rest(self, replica: QuiescibleReplica) -> None:
        """A leader asks, now and then, whether it may rest: once all live peers vouch for it.

        A peer whose node answers, but which does not (its disk may be slow), goes on to be asked:
        it rests with the beats of this node, and so would not tell that it needs something.
        Its followers rest before, as soon as it is ready: while everything is busy, one beat
        arrives in time where a thousand heartbeats do not.
        """
        core, group = replica.core, replica.config.group
        if core.is_quiescent or not core.is_ready:
            return
        if group not in self._claims:
            self._claim(replica)
            return
        confirming_peers = core.confirming_peers()
        if confirming_peers and all(
            audience.confirms(group) if peer in confirming_peers else audience.is_silent
            for peer, audience in self._audiences_of(group)
        ):
            self._resting[group] = replica
            replica.step(Quiesced(self._self_id, core.term))
            self.stepped(replica)

    def _audiences_of(self, group: str) -> Iterator[tuple[str, _PeerView]]:
        return ((peer, self._audiences[peer]) for peer in self._claims[group].peers)

    def _claim(self, replica: QuiescibleReplica) -> None:
        core, group = replica.core, replica.config.group
        peers = tuple(peer for peer in core.membership.ids if peer != self._self_id)
        self._claims[group] = _Claim(core.term, core.membership_index, peers)
        for peer in peers:
            self._audiences.setdefault(peer, _PeerView()).change(group, core.term)

    def stepped(self, replica: QuiescibleReplica) -> None:
        """A replica's state may have changed: say no longer what is not so any more."""
        core, group = replica.core, replica.config.group
        claim = self._claims.get(group)
        if claim is not None:
            known = (Role.LEADER, claim.term, claim.membership_index)
            if (core.role, core.term, core.membership_index) != known:
                del self._claims[group]
                for peer in claim.peers:
                    self._audiences[peer].change(group, ENDED)
        if not core.is_quiescent:
            self._resting.pop(group, None)
            speaker = self._settled.pop(group, None)
            if speaker is not None:
                self._speakers[speaker].unsettled[group] = None
        elif group not in self._resting and group not in self._settled:
            # nobody would wake it: it must not rest
            replica.step(Unquiesced(self._now_ms()))

    # -- time ---------------------------------------------------------------------------------

    def tick(self) -> None:
        """Beat when it is time, and see who has fallen silent."""
        now_ms = self._now_ms()
        # after a pause of my own, what others sent meanwhile must be read before it is missed
        was_awake = now_ms - self._next_ms <= self._interval_ms
        if now_ms >= self._next_ms:
            self._next_ms = now_ms + self._interval_ms
            for peer, audience in self._audiences.items():
                self._beat(peer, audience)
        if was_awake:
            self._look_for_silence(now_ms)
        self._wake_at(self._next_deadline_ms(now_ms))

    def _next_deadline_ms(self, now_ms: int) -> int:
        patience_ms = self._patience_ms(self._interval_ms)
        heard = [
            audience.heard_ms + patience_ms
            for audience in self._audiences.values()
            if not audience.is_silent
        ]
        heard += [
            speaker.heard_ms + self._patience_ms(speaker.interval_ms)
            for speaker in self._speakers.values()
            if not speaker.is_silent
        ]
        return min([self._next_ms, *(due + 1 for due in heard if due >= now_ms)])

    def _look_for_silence(self, now_ms: int) -> None:
        patience_ms = self._patience_ms(self._interval_ms)
        for peer, audience in self._audiences.items():
            if not audience.is_silent and now_ms > audience.heard_ms + patience_ms:
                audience.is_silent = True
                self._wake_leaders(peer)
        for peer, speaker in self._speakers.items():
            patience_ms = self._patience_ms(speaker.interval_ms)
            if not speaker.is_silent and now_ms > speaker.heard_ms + patience_ms:
                self._doubt(peer, speaker)

    # -- what this node leads -----------------------------------------------------------------

    def _beat(self, peer: str, audience: _PeerView) -> None:
        """Say what changed; nothing when the peer knows that nothing is left to say."""
        changes = audience.changes_after(audience.acknowledged)
        if not changes and not audience.changes:
            return
        base = audience.acknowledged
        for begin in range(0, max(1, len(changes)), CHANGES_MAX):
            part = changes[begin : begin + CHANGES_MAX]
            more = begin + CHANGES_MAX < len(changes)
            version = part[-1][1] if more else audience.version
            audience.number += 1
            beat = NodeHeartBeat(
                local_id=self._self_id,
                remote_id=peer,
                run=self._run,
                number=audience.number,
                base=base,
                version=version,
                interval_ms=self._interval_ms,
                changes=[(group, term) for group, _, term in part],
                more=more,
            )
            if not self._network.send(peer, beat):
                return
            base = version

    def _answered(self, answer: NodeHeartBeatResponse) -> None:
        """Wake the groups for which the peer does not vouch any more."""
        audience = self._audiences.get(answer.local_id)
        if audience is None or answer.run != self._run:
            return
        if not audience.answered < answer.number <= audience.number:
            return
        audience.answered = answer.number
        before, audience.acknowledged = audience.acknowledged, min(answer.version, audience.version)
        audience.strays = frozenset(answer.strays)
        audience.heard_ms = self._now_ms()
        for group, version, term in audience.changes_after(before):
            if term == ENDED and version <= audience.acknowledged:
                del audience.changes[group]
        # one that was silent is back, or has started again: leaders must look where it is
        if audience.is_silent or audience.acknowledged < before:
            audience.is_silent = False
            self._wake_leaders(answer.local_id)
        elif len(answer.strays) >= STRAYS_MAX:
            self._wake_leaders(answer.local_id)
        else:
            for group in answer.strays:
                if group in self._resting:
                    self._wake_leader(group)

    def _wake_leaders(self, peer: str) -> None:
        for group in [group for group in self._resting if peer in self._claims[group].peers]:
            self._wake_leader(group)

    def _wake_leader(self, group: str) -> None:
        self._resting.pop(group).step(Unquiesced(self._now_ms()))

    # -- what other nodes lead ----------------------------------------------------------------

    def received(self, message: NodeMessage) -> None:
        """Take a message of a peer, whose identity was checked."""
        if isinstance(message, NodeHeartBeatResponse):
            self._answered(message)
        elif isinstance(message, NodeHeartBeat):
            self._heard(message)

    def _heard(self, beat: NodeHeartBeat) -> None:
        """Learn what the peer leads, have its groups rest, and say which do not."""
        peer = beat.local_id
        speaker = self._speakers.get(peer)
        if speaker is None or speaker.run != beat.run:
            if speaker is not None:
                self._doubt(peer, speaker)
            elif len(self._speakers) >= SPEAKERS_MAX:
                return
            speaker = self._speakers[peer] = _RemoteLeaderView(beat.run, beat.interval_ms)
        if beat.number <= speaker.number:
            return
        speaker.number, speaker.interval_ms = beat.number, beat.interval_ms
        if beat.base > speaker.version:
            self._forget(peer, speaker)
        elif beat.version > speaker.version:
            self._learn(peer, speaker, beat)
        if not beat.more:
            if beat.version == speaker.version:
                speaker.heard_ms, speaker.is_silent = self._now_ms(), False
                self._settle(peer, speaker)
            self._answer(peer, speaker)

    def _learn(self, peer: str, speaker: _RemoteLeaderView, beat: NodeHeartBeat) -> None:
        known = len(speaker.claims) + len(beat.changes)
        if known > len(self._replicas) + STRANGE_CLAIMS_MAX:
            self._forget(peer, speaker)
            return
        for group, term in beat.changes:
            if speaker.claims.get(group) == term:
                continue
            self._unsettle(peer, speaker, group)
            if term == ENDED:
                speaker.claims.pop(group, None)
                speaker.unsettled.pop(group, None)
            else:
                speaker.claims[group] = term
                speaker.unsettled[group] = None
        speaker.version = beat.version

    def _settle(self, peer: str, speaker: _RemoteLeaderView) -> None:
        """Have those groups rest that follow the peer in the term it named."""
        for group in list(speaker.unsettled):
            replica = self._replicas.get(group)
            if replica is None:
                continue
            core, term = replica.core, speaker.claims[group]
            timeout_ms = replica.config.election_timeout_min_ms
            if (core.leader_id, core.term) == (peer, term) and (
                self._patience_ms(speaker.interval_ms) < timeout_ms
            ):
                del speaker.unsettled[group]
                self._settled[group] = peer
                replica.step(Quiesced(peer, term))
                self.stepped(replica)

    def _answer(self, peer: str, speaker: _RemoteLeaderView) -> None:
        answer = NodeHeartBeatResponse(
            local_id=self._self_id,
            remote_id=peer,
            run=speaker.run,
            number=speaker.number,
            version=speaker.version,
            strays=list(speaker.unsettled)[:STRAYS_MAX],
        )
        self._network.send(peer, answer)

    def _unsettle(self, peer: str, speaker: _RemoteLeaderView, group: str) -> None:
        """Have a group wait for heartbeats again, from when the peer was last heard of."""
        if self._settled.get(group) == peer:
            del self._settled[group]
            speaker.unsettled[group] = None
            self._replicas[group].step(Unquiesced(speaker.heard_ms))

    def _doubt(self, peer: str, speaker: _RemoteLeaderView) -> None:
        """Nothing is known of the peer at present."""
        speaker.is_silent = True
        for group in speaker.claims:
            self._unsettle(peer, speaker, group)

    def _forget(self, peer: str, speaker: _RemoteLeaderView) -> None:
        """What the peer said cannot be told any more: it must say everything again."""
        self._doubt(peer, speaker)
        speaker.claims, speaker.unsettled, speaker.version = {}, {}, 0
