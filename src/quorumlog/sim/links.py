"""The links of a simulated process to its peers: bounded as a real node's, slow if a fault says so.

What is sent over a slow link waits in an outbox, in the process, until the link takes it; what does
not fit is refused. A link that is not slow takes everything at once.
"""

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from quorumlog.model.block import Buffer
from quorumlog.model.features import OWN_FEATURES
from quorumlog.model.limits import Limits
from quorumlog.model.messages.peer import NodeMessage, PeerMessage
from quorumlog.sim.finding import Finding
from quorumlog.sim.network import parts_of
from quorumlog.wire.frame import encode_frame

STEP_US = 10_000
"""How often a slow link takes something."""

Link: TypeAlias = tuple[str, str, bool]
"""Sender, receiver, and whether it is the bulk link."""
_Message: TypeAlias = PeerMessage | NodeMessage


class Wires(Protocol):
    """The network, as links see it. `paces`: how many bytes each slow link takes in a step."""

    paces: dict[Link, int]

    def connection(self, sender: str, receiver: str) -> Hashable:
        """Return what stands for the connection between two nodes; None: there is none."""
        ...

    def takes_joined(self, receiver: str) -> bool:
        """Whether a node understands joined frames."""
        ...

    def sent(self, sender: str, parts: Sequence[PeerMessage]) -> None:
        """A link has accepted these messages of groups."""
        ...

    def carry(self, sender: str, receiver: str, message: _Message, data: bytes) -> None:
        """Carry a frame that has left the link."""
        ...


class Process(Protocol):
    """The process that has the links."""

    node_id: str

    def later(self, delay_us: int, action: Callable[[], object]) -> None:
        """Plan an action in this life of the process."""
        ...


class _Waiting(NamedTuple):
    """A frame that has not left; `size` is all that it takes on the wire."""

    message: _Message
    data: bytes
    size: int


class _Outbox:
    """The frames of one connection that have not left, in order.

    They take `size` bytes, of which `attached` are attached to messages. `credit` is what the link
    may take now; below 0 it has taken more.
    """

    def __init__(self, connection: Hashable) -> None:
        self.connection = connection
        self.waiting: deque[_Waiting] = deque()
        self.size = self.attached = self.credit = 0


class SimulatedLinks:
    """All links of one life of a process; see `Links`.

    `on_sent` is called with the receiver, whether it is the bulk link, and what was accepted.
    """

    def __init__(
        self,
        process: Process,
        wires: Wires,
        limits: Limits,
        members_changed: Callable[[str], None] = lambda group: None,
    ) -> None:
        self._process = process
        self._wires = wires
        self._bytes_max = limits.outbox_bytes_max
        self._members_changed = members_changed
        self._outboxes: dict[Link, _Outbox] = {}
        self.on_sent: Callable[[str, bool, list[PeerMessage]], None] = lambda *sent: None

    def connection(self, peer_id: str) -> Hashable:
        """Return what stands for the present connection to a peer; None: there is none."""
        return self._wires.connection(self._process.node_id, peer_id)

    def takes_joined(self, peer_id: str) -> bool:
        """Whether a peer understands joined frames."""
        return self._wires.takes_joined(peer_id)

    def features_of(self, peer_id: str) -> int:
        """Return the features that a peer takes: all of them are of this release."""
        return OWN_FEATURES

    def joined_room(self, peer_id: str, *, bulk: bool) -> int | None:
        """See `Links`."""
        connection = self.connection(peer_id)
        if connection is None or not self.takes_joined(peer_id):
            return None
        return self._bytes_max - self._outbox(peer_id, bulk, connection).size

    def send(
        self,
        peer_id: str,
        message: _Message,
        attachments: Sequence[Buffer] = (),
        *,
        bulk: bool = False,
        has_room: bool = False,
    ) -> bool:
        """See `Links`. Raises `Finding` if it must have room, and has none."""
        connection, most = self.connection(peer_id), self._bytes_max
        if connection is None:
            return False
        outbox = self._outbox(peer_id, bulk, connection)
        data = b"".join(bytes(part) for part in attachments)
        if has_room and outbox.attached + len(data) > most:
            text = f"{outbox.attached + len(data)} bytes were accepted for {peer_id}, not {most}"
            raise Finding("link_bound", f"{self._process.node_id}: {text}")
        if not has_room and outbox.size + len(data) > most:
            return False
        parts = parts_of(message, data)
        self.on_sent(peer_id, bulk, parts)
        self._wires.sent(self._process.node_id, parts)
        if outbox.waiting or (self._process.node_id, peer_id, bulk) in self._wires.paces:
            self._wait(outbox, (self._process.node_id, peer_id, bulk), message, data)
        else:
            self._wires.carry(self._process.node_id, peer_id, message, data)
        return True

    def update_members(self, group: str, addresses: Mapping[str, str]) -> None:
        """See `Network`: a simulated network reaches everyone."""
        self._members_changed(group)

    def _outbox(self, peer_id: str, bulk: bool, connection: Hashable) -> _Outbox:
        """Return the outbox of a link: what waited in an earlier connection is lost."""
        link = (self._process.node_id, peer_id, bulk)
        outbox = self._outboxes.get(link)
        if outbox is None or outbox.connection != connection:
            outbox = self._outboxes[link] = _Outbox(connection)
        return outbox

    def _wait(self, outbox: _Outbox, link: Link, message: _Message, data: bytes) -> None:
        size = sum(map(len, encode_frame(message, attachments=[data])))
        outbox.waiting.append(_Waiting(message, data, size))
        outbox.size += size
        outbox.attached += len(data)
        if len(outbox.waiting) == 1:
            self._process.later(STEP_US, lambda: self._take(outbox, link))

    def _take(self, outbox: _Outbox, link: Link) -> None:
        """Let the link take what it can in a step."""
        sender, receiver, _ = link
        if outbox.connection != self.connection(receiver):
            return
        pace = self._wires.paces.get(link)
        outbox.credit = outbox.size if pace is None else min(outbox.credit, 0) + pace
        while outbox.waiting and outbox.credit > 0:
            message, data, size = outbox.waiting.popleft()
            outbox.credit -= size
            outbox.size -= size
            outbox.attached -= len(data)
            self._wires.carry(sender, receiver, message, data)
        if outbox.waiting:
            self._process.later(STEP_US, lambda: self._take(outbox, link))
