"""Links to peers: two outgoing connections each, so that votes and heartbeats never wait for bulk.

Messages are one-way; a lost one is repeated by the core, so nothing is queued while a link is down.
"""

import asyncio
import logging
import random
import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from quorumlog.log_events import log_event, reason_of
from quorumlog.model.block import Buffer
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import parse_address
from quorumlog.model.errors import (
    RemoteProtocolError,
    UnexpectedArgumentError,
    UnsupportedError,
)
from quorumlog.model.features import names_of
from quorumlog.model.limits import Limits
from quorumlog.model.messages.base import Hello, Response
from quorumlog.model.messages.peer import Introduction, NodeMessage, PeerMessage
from quorumlog.transport.connection import Connection, ConnectionHandler
from quorumlog.transport.node_tls import IsRevoked, NodeTls
from quorumlog.transport.resolver import Resolver, connect_to
from quorumlog.transport.stream import TransportCounters
from quorumlog.transport.tls import OutgoingTls
from quorumlog.wire.frame import Frame
from quorumlog.wire.versions import stating_versions

logger = logging.getLogger(__name__)

BACKOFF_MIN_S = 0.02
BACKOFF_MAX_S = 1.0
STEADY_S = 0.1
"""A connection that lasted this long is made again at once."""
LOST_S = 1.0
"""If nobody listens any more so soon after it ended, the peer's process is gone. The first attempt
may still succeed: a dying process closes its sockets one by one."""
CONNECT_TIMEOUT_S = 1.5
NAME_TIMEOUT_S = 1.5
"""After this time without an answer, the address that was found before is used."""
SILENCE_MS = 1_500
"""A link on which nothing was acknowledged for this long is made anew: TCP itself would wait for
about as long again as the silence lasted."""
REMOVED_S = 60.0
"""How long the links to a member that was removed stay."""
UNKNOWN_PEERS_MAX = 32
"""Connections of nodes that are not members as far as this node knows, but may be (R18)."""


class Spoken(NamedTuple):
    """What a peer runs, and what was agreed with it; `release` is empty if it did not say."""

    release: str
    wire_version: int
    features: int


class LinkWatcher(Protocol):
    """The part of a node that is called when links open and close."""

    def peer_connected(self, peer_id: str) -> None:
        """A bulk link is up (again): what was on its way before may be lost."""
        ...

    def peer_reached(self, peer_id: str) -> None:
        """A control link is up (again)."""
        ...

    def peer_lost(self, peer_id: str) -> None:
        """A control link has ended, and nobody listens at the peer's address."""
        ...

    def introductions(self, peer_id: str, group: str | None = None) -> Sequence[Introduction]:
        """Return the messages that introduce this node and its groups, or one group, to a peer."""
        ...

    def inbox_of(self, hello: Hello) -> ConnectionHandler:
        """Return who takes the messages of a peer."""
        ...


class _Link:
    """One outgoing connection that is made again whenever it ends."""

    def __init__(
        self,
        links: "PeerLinks",
        peer_id: str,
        role: str,
        watcher: LinkWatcher,
    ) -> None:
        self._links = links
        self.peer_id = peer_id
        hello = Hello(
            cluster=links.cluster, node_id=links.self_id, role=role, address=links.own_address
        )
        self._hello = stating_versions(hello)
        self._is_bulk = role == "bulk"
        self._watcher = watcher
        self._ended = asyncio.Event()
        self._refusal = ""
        self._made: Connection | None = None
        self._inbox: ConnectionHandler | None = None
        self._is_welcome = self._goes_plain = False
        self.connection: Connection | None = None

    async def run(self) -> None:
        """Connect, wait for the end, pause, and start again, until cancelled."""
        loop = asyncio.get_running_loop()
        pause, ended_at = BACKOFF_MIN_S, -LOST_S
        while True:
            self._ended.clear()
            self._is_welcome = False
            begun = loop.time()
            try:
                await self._connect()
                await self._ended.wait()
                # one that refuses us, or is a proxy for nobody, is not asked again at once
                pause = BACKOFF_MIN_S if self._is_welcome else min(BACKOFF_MAX_S, pause * 2)
                if self._is_welcome and loop.time() - begun >= STEADY_S:
                    ended_at = loop.time()
                    continue
            except (OSError, TimeoutError) as error:
                reason = reason_of(error)
                log_event(logger, logging.DEBUG, "cannot reach", peer=self.peer_id, reason=reason)
                pause = min(BACKOFF_MAX_S, pause * 2)
                if isinstance(error, ConnectionRefusedError) and not self._is_bulk:
                    if loop.time() - ended_at < LOST_S:
                        self._watcher.peer_lost(self.peer_id)
                    ended_at = -LOST_S
            except Exception as error:  # a link that is given up would cut this node off
                text = "a link failed; it is made anew"
                log_event(logger, logging.ERROR, text, exc_info=error, peer=self.peer_id)
                pause = BACKOFF_MAX_S
            await asyncio.sleep(pause * self._links.generator.uniform(0.5, 1.0))

    async def _connect(self) -> None:
        links = self._links
        host, port = parse_address(links.addresses[self.peer_id])
        try:
            found = await links.resolver.resolve(host, port, NAME_TIMEOUT_S)
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                transport, _ = await connect_to(found, self._make, self._tls())
        except BaseException:
            self.close()  # it may have been made, and even opened, in this very moment
            raise
        if links.tls is not None and (peer := transport.get_extra_info("peername")):
            links.tls.members.note(peer[0])
        # a peer that dies meanwhile may have closed the connection again: there is no socket then
        if hasattr(socket, "TCP_USER_TIMEOUT") and not transport.is_closing():
            transport.get_extra_info("socket").setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS
            )

    def _tls(self) -> OutgoingTls | None:
        """Return how the next connection is encrypted; None: not at all.

        Where TLS is optional, a peer that does not speak it is spoken to without, the next time.
        """
        tls, goes_plain = self._links.tls, self._goes_plain
        self._goes_plain = False
        if tls is None or goes_plain:
            return None
        return tls.current.to_peer(self.peer_id, self._go_plain if tls.is_optional else None)

    def _go_plain(self) -> None:
        self._goes_plain = True

    def _lost(self, connection: Connection) -> None:
        self._ended.set()
        is_told = self._is_welcome or self._goes_plain or not connection.reason
        if self._links.tls is not None and not is_told and connection.reason != self._refusal:
            self._refusal = connection.reason  # the same one again and again is said once
            text = "cannot connect to a peer"
            log_event(logger, logging.WARNING, text, peer=self.peer_id, reason=connection.reason)

    def _make(self) -> Connection:
        links, own_hello = self._links, self._hello
        if links.tls is not None:
            cluster_id = links.tls.current.own.cluster_id
            own_hello = msgspec.structs.replace(own_hello, cluster_id=cluster_id)
        self._made = Connection(
            own_hello,
            self._greet,
            links.limits,
            links.counters,
            on_lost=self._lost,
        )
        return self._made

    def _greet(self, hello: Hello) -> "_Link":
        if hello.cluster != self._links.cluster or hello.node_id != self.peer_id:
            raise RemoteProtocolError(
                f"expected {self.peer_id} of cluster {self._links.cluster!r}, found "
                f"{hello.node_id!r} of {hello.cluster!r}"
            )
        self._inbox = self._watcher.inbox_of(hello)
        return self

    def opened(self, connection: Connection, hello: Hello) -> None:
        """See `ConnectionHandler`."""
        self.connection = connection  # set before the watcher is called, which may send at once
        self._links.note_spoken(self.peer_id, Spoken(hello.release, *connection.agreed))
        self._is_welcome = True
        self.introduce()
        if self._is_bulk:
            self._watcher.peer_connected(self.peer_id)
        else:
            self._watcher.peer_reached(self.peer_id)

    def introduce(self, group: str | None = None) -> None:
        """Send which groups are here, and their identities, before any other message."""
        if self.connection is None:
            return
        for introduction in self._watcher.introductions(self.peer_id, group):
            self.send(introduction, ())

    def frame_received(self, connection: Connection, frame: Frame) -> None:
        """Handle a frame that comes back on this link, mostly a refusal.

        Members answer over their own links. The other side may refuse one message, or all of them:
        it sends its Hello before it knows ours. A node that does not know us as a member has no
        link to us, so it answers here.
        """
        message = frame.message
        if isinstance(message, PeerMessage | NodeMessage) and self._inbox is not None:
            self._inbox.frame_received(connection, frame)
        if isinstance(message, Hello):
            self._is_welcome = message.code == ResponseCode.SUCCESS
        if isinstance(message, Hello | Response) and message.text != self._refusal:
            self._refusal = message.text  # the same one again and again is said once
            log_event(logger, logging.WARNING, "refused", peer=self.peer_id, reason=self._refusal)

    def closed(self, connection: Connection, reason: str) -> None:
        """See `ConnectionHandler`."""
        if self.connection is connection:
            self.connection = None
        log_event(logger, logging.DEBUG, "link ended", peer=self.peer_id, reason=reason)

    def send(
        self,
        message: PeerMessage | NodeMessage,
        attachments: Sequence[Buffer],
        *,
        has_room: bool = False,
    ) -> bool:
        """Send if the link is up and its outbox has room.

        What no frame takes, and what the peer does not, is logged.
        """
        connection = self.connection
        if connection is None:
            return False
        try:
            return connection.send(message, attachments=attachments, has_room=has_room)
        except (UnexpectedArgumentError, UnsupportedError) as error:
            if str(error) != self._refusal:
                self._refusal = str(error)
                text = "a message cannot be sent"
                log_event(logger, logging.ERROR, text, peer=self.peer_id, reason=str(error))
            return False

    def close(self) -> None:
        """End the connection, also one that is only being made."""
        self.connection = None
        if self._made is not None:
            self._made.abort("it is given up")


class PeerLinks:
    """All links of a node.

    `addresses` are those of the peers known at first; `update_members` adds members that join
    later. Links go only to these. A peer that connects without being known is answered on its own
    connection: it may be a member that was added while this node was away. `tls`: how links are
    encrypted; None: not at all.
    """

    def __init__(  # noqa: PLR0913
        self,
        self_id: str,
        cluster: str,
        own_address: str,
        addresses: Mapping[str, str],
        limits: Limits,
        *,
        watcher: LinkWatcher,
        generator: random.Random,
        tls: NodeTls | None = None,
    ) -> None:
        self.tls = tls
        if tls is not None:
            tls.when_revoked.append(self._end_revoked)
        self.self_id = self_id
        self.cluster = cluster
        self.own_address = own_address
        self.addresses = dict(addresses)
        self.limits = limits
        self.counters = TransportCounters()
        self.resolver = Resolver()
        self.generator = generator
        self._watcher = watcher
        self._control: dict[str, _Link] = {}
        self._bulk: dict[str, _Link] = {}
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        self._members: dict[str, set[str]] = {"": set(addresses)}
        self._removed: dict[str, asyncio.TimerHandle] = {}
        self._unknown_peers: dict[str, list[Connection]] = {}
        self._heard_on: dict[str, Connection] = {}
        self._running = False
        self.spoken: dict[str, Spoken] = {}
        """By peer, as it said when a link to it was last made."""

    def start(self) -> None:
        """Start to connect."""
        self._running = True
        for peer_id in self.addresses:
            self._open(peer_id)

    async def stop(self) -> None:
        """End all links."""
        self._running = False
        tasks = [task for peer_id in list(self._tasks) for task in self._close(peer_id)]
        await asyncio.gather(*tasks, return_exceptions=True)

    def update_members(self, group: str, addresses: Mapping[str, str]) -> None:
        """Link to the new members of a group, and drop links that no group needs any more."""
        self._members.pop("", None)
        if addresses:
            self._members[group] = set(addresses)
        else:
            self._members.pop(group, None)
        for peer_id, address in addresses.items():
            if peer_id != self.self_id and address:
                if peer_id in self._removed:
                    self._removed.pop(peer_id).cancel()
                self._link_to(peer_id, address)
        needed = set().union(*self._members.values(), self._removed)
        for peer_id in sorted(set(self.addresses) - needed):
            if peer_id in self._removed:
                continue
            if self._running:  # the link stays until a member that was just removed knows it
                loop = asyncio.get_running_loop()
                self._removed[peer_id] = loop.call_later(REMOVED_S, self._drop, peer_id)
            else:
                del self.addresses[peer_id]
        while len(self._removed) > UNKNOWN_PEERS_MAX:
            self._drop(next(iter(self._removed)))
        for link in (*self._control.values(), *self._bulk.values()):
            link.introduce(group)

    def _end_revoked(self, is_revoked: IsRevoked) -> None:
        """End links to peers whose certificates are revoked now."""
        for link in (*self._control.values(), *self._bulk.values()):
            if link.connection is not None:
                link.connection.end_if(is_revoked)

    def _drop(self, peer_id: str) -> None:
        self._removed.pop(peer_id).cancel()
        self.addresses.pop(peer_id, None)
        self._close(peer_id)

    def note_spoken(self, peer_id: str, spoken: Spoken) -> None:
        """Keep what a peer speaks, and log it if it has changed."""
        if self.spoken.get(peer_id) == spoken:
            return
        self.spoken[peer_id] = spoken
        log_event(
            logger,
            logging.INFO,
            "peer speaks",
            peer=peer_id,
            release=spoken.release or "an earlier one",
            wire_version=spoken.wire_version,
            features=names_of(spoken.features),
        )

    def features_of(self, peer_id: str) -> int | None:
        """Return the features that a peer took when it was connected last; None: it never was."""
        found = self.spoken.get(peer_id)
        return None if found is None else found.features

    def accepts(self, hello: Hello) -> bool:
        """Whether a peer may connect: one that is known, or that says where it is."""
        if hello.node_id in self.addresses:
            return True
        return bool(hello.address) and hello.node_id != self.self_id

    def knows(self, peer_id: str) -> bool:
        """Whether a peer is a member, or was until now, as far as this node knows."""
        return peer_id in self.addresses

    def incoming_opened(self, peer_id: str, connection: Connection) -> None:
        """Note that a peer connected: it must be answered, whether or not it is known.

        An unknown one is answered on its own connection: the address that it states may be wrong.
        """
        if connection.hello is not None and connection.hello.role == "control":
            self._heard_on[peer_id] = connection
        if peer_id in self._tasks:
            return
        self._unknown_peers.setdefault(peer_id, []).append(connection)
        while len(self._unknown_peers) > UNKNOWN_PEERS_MAX:
            del self._unknown_peers[next(iter(self._unknown_peers))]

    def incoming_closed(self, peer_id: str, connection: Connection) -> bool:
        """A connection that a peer made has ended; return whether it was what it was heard on.

        That is the newest of its control connections.
        """
        known = self._unknown_peers.get(peer_id, [])
        if connection in known:
            known.remove(connection)
        if not known:
            self._unknown_peers.pop(peer_id, None)
        if self._heard_on.get(peer_id) is not connection:
            return False
        del self._heard_on[peer_id]
        return True

    def _link_to(self, peer_id: str, address: str) -> None:
        if self.addresses.get(peer_id) == address and peer_id in self._tasks:
            return
        self.addresses[peer_id] = address
        if self._running:
            self._close(peer_id)
            self._open(peer_id)

    def _open(self, peer_id: str) -> None:
        control = self._control[peer_id] = _Link(self, peer_id, "control", self._watcher)
        bulk = self._bulk[peer_id] = _Link(self, peer_id, "bulk", self._watcher)
        self._tasks[peer_id] = [
            asyncio.create_task(link.run(), name=f"link to {peer_id}") for link in (control, bulk)
        ]

    def _close(self, peer_id: str) -> list[asyncio.Task[None]]:
        self.spoken.pop(peer_id, None)
        tasks = self._tasks.pop(peer_id, [])
        for task in tasks:
            task.cancel()
        for links in (self._control, self._bulk):
            link = links.pop(peer_id, None)
            if link is not None:
                link.close()
        return tasks

    def send(
        self,
        peer_id: str,
        message: PeerMessage | NodeMessage,
        attachments: Sequence[Buffer] = (),
        *,
        bulk: bool = False,
        has_room: bool = False,
    ) -> bool:
        """Send to a peer; return False if its link is down or full.

        `has_room`: `joined_room` was asked before, and what was accepted since fits.
        """
        link = (self._bulk if bulk else self._control).get(peer_id)
        if link is not None:
            return link.send(message, attachments, has_room=has_room)
        return self._answer_unknown_peer(peer_id, message, attachments, bulk=bulk)

    def joined_room(self, peer_id: str, *, bulk: bool) -> int | None:
        """Return how many more attached bytes a link takes now; below 0 it takes no message.

        None: it is down, or the peer takes no joined frames.
        """
        link = (self._bulk if bulk else self._control).get(peer_id)
        connection = None if link is None else link.connection
        hello = None if connection is None else connection.hello
        if connection is None or hello is None or not hello.takes_joined:
            return None
        return self.limits.outbox_bytes_max - connection.outbox_bytes

    def _answer_unknown_peer(
        self,
        peer_id: str,
        message: PeerMessage | NodeMessage,
        attachments: Sequence[Buffer],
        *,
        bulk: bool,
    ) -> bool:
        role = "bulk" if bulk else "control"
        open_now = [one for one in self._unknown_peers.get(peer_id, ()) if one.is_open]
        fitting = [one for one in open_now if one.hello is not None and one.hello.role == role]
        for connection in (fitting or open_now)[-1:]:
            return connection.send(message, attachments=attachments)
        return False
