"""What all groups of a node say to a peer in one turn of the loop, in one frame a link.

A frame for each message would cost more than most messages (`wire/joined.py`). The groups come
together here because the leaders of a node send heartbeats at the same moments
(`raft/leadership.py`), timers fire together (`node/timers.py`), and one group commit makes writes
of many groups durable.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from quorumlog.model.block import Buffer
from quorumlog.model.limits import Limits
from quorumlog.model.messages.base import JOINED_MAX
from quorumlog.model.messages.peer import (
    HeartBeatRequest,
    HeartBeatResponse,
    HeartBeats,
    NodeMessage,
    PeerMessage,
    PeerTurn,
)
from quorumlog.node.environment import Network
from quorumlog.wire.joined import PART_ATTACHED_MAX, Outgoing, attached_max, runs_of

_BEATS = (HeartBeatRequest, HeartBeatResponse)
_Message: TypeAlias = PeerMessage | NodeMessage
_Link: TypeAlias = tuple[str, bool]
"""A peer, and whether it is the bulk link."""


class Links(Network, Protocol):
    """The links to peers."""

    def send(
        self,
        peer_id: str,
        message: _Message,
        attachments: Sequence[Buffer] = (),
        *,
        bulk: bool = False,
        has_room: bool = False,
    ) -> bool:
        """See `Network`; `has_room`: it was found to fit, so it is refused only without a link."""
        ...

    def joined_room(self, peer_id: str, *, bulk: bool) -> int | None:
        """Return how many more attached bytes a link takes now; None: it takes no joined frames.

        Below 0 it is so full that it takes no message at all.
        """
        ...


@dataclass(slots=True)
class _Gathered:
    """What one link gets at the end of the turn; `room` as in `Links`, less what is here."""

    room: int | None
    messages: list[Outgoing[_Message]] = field(default_factory=list)
    attached: int = 0


class PeerTurns:
    """A `Network` that sends at the end of a turn what replicas gave it in the turn.

    Over each link messages leave in the order in which they were given. What was accepted is not
    dropped unless the connection ends. A peer of an earlier version gets frames as it knows them:
    heartbeats are joined, and dropped if the link is full by then; everything else goes at once.
    """

    def __init__(
        self,
        self_id: str,
        links: Links,
        at_end: Callable[[Callable[[], None]], object],
        limits: Limits,
    ) -> None:
        self._self_id = self_id
        self._links = links
        self._at_end = at_end
        self._attached_max = attached_max(limits)
        self._gathered: dict[_Link, _Gathered] = {}

    def send(
        self,
        peer_id: str,
        message: _Message,
        attachments: Sequence[Buffer] = (),
        *,
        bulk: bool = False,
    ) -> bool:
        """See `Network`; False also while what was given in this turn fills the link."""
        link = (peer_id, bulk)
        gathered = self._gathered.get(link)
        if gathered is None:
            if not self._gathered:
                self._at_end(self._send_all)
            room = self._links.joined_room(peer_id, bulk=bulk)
            gathered = self._gathered[link] = _Gathered(room)
        if gathered.room is None and not isinstance(message, _BEATS):
            return self._links.send(peer_id, message, attachments, bulk=bulk)
        size = 0
        for part in attachments:
            size += len(part)
        if size > PART_ATTACHED_MAX:
            self._send_early(link, gathered)
            is_sent = self._links.send(peer_id, message, attachments, bulk=bulk)
            gathered.room = self._links.joined_room(peer_id, bulk=bulk)
            return is_sent
        if gathered.room is not None:
            if size > gathered.room:
                return False
            gathered.room -= size
        gathered.attached += size
        gathered.messages.append(Outgoing(message, attachments, size))
        if len(gathered.messages) >= JOINED_MAX or gathered.attached >= self._attached_max:
            self._send_early(link, gathered)
        return True

    def update_members(self, group: str, addresses: Mapping[str, str]) -> None:
        """See `Network`."""
        self._links.update_members(group, addresses)

    def _send_all(self) -> None:
        all_gathered, self._gathered = self._gathered, {}
        for link, gathered in all_gathered.items():
            self._send_gathered(link, gathered.messages, has_room=gathered.room is not None)

    def _send_early(self, link: _Link, gathered: _Gathered) -> None:
        """Send what is gathered before the turn ends."""
        messages, gathered.messages, gathered.attached = gathered.messages, [], 0
        self._send_gathered(link, messages, has_room=gathered.room is not None)
        gathered.room = self._links.joined_room(link[0], bulk=link[1])

    def _send_gathered(
        self, link: _Link, messages: list[Outgoing[_Message]], *, has_room: bool
    ) -> None:
        peer_id, bulk = link
        if len(messages) == 1:
            ((message, attachments, _, _),) = messages
            self._links.send(peer_id, message, attachments, bulk=bulk, has_room=has_room)
        elif not messages:
            return
        elif self._links.joined_room(peer_id, bulk=bulk) is None:
            self._send_to_earlier(link, messages)
        else:
            place = 0
            for run in runs_of(messages, self._attached_max):
                begin, place = place, place + len(run.parts)
                turn = PeerTurn(local_id=self._self_id, remote_id=peer_id, parts=run.parts)
                message = run.first.message if len(run.parts) == 1 else turn
                if self._links.send(peer_id, message, run.attachments, bulk=bulk, has_room=True):
                    continue
                if message is turn:  # one part may be nothing for this peer: not the others
                    for one in messages[begin:place]:
                        self._links.send(peer_id, one.message, one.attachments, bulk=bulk)

    def _send_to_earlier(self, link: _Link, messages: list[Outgoing[_Message]]) -> None:
        """Send to a peer that takes no joined frames, or has been connected anew."""
        peer_id, bulk = link
        beats: list[HeartBeatRequest] = []
        answers: list[HeartBeatResponse] = []
        for message, attachments, _, _ in messages:
            if isinstance(message, HeartBeatRequest):
                beats.append(message)
            elif isinstance(message, HeartBeatResponse):
                answers.append(message)
            else:
                self._links.send(peer_id, message, attachments, bulk=bulk)
        if beats or answers:
            joined = HeartBeats(
                local_id=self._self_id, remote_id=peer_id, requests=beats, responses=answers
            )
            self._links.send(peer_id, joined, bulk=bulk)
