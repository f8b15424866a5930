"""Links to peers: two outgoing connections each, so that votes and heartbeats never wait for bulk.

Messages are one-way; a lost one is repeated by the core, so nothing is queued while a link is down.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from quorumlog.model.block import Buffer
from quorumlog.model.config import parse_address
from quorumlog.model.errors import RemoteProtocolError
from quorumlog.model.limits import Limits
from quorumlog.model.message import Hello, PeerMessage, Response
from quorumlog.transport.connection import Connection, TransportCounters
from quorumlog.wire.frame import Frame

logger = logging.getLogger(__name__)

BACKOFF_MIN_S = 0.02
BACKOFF_MAX_S = 1.0
CONNECT_TIMEOUT_S = 3.0


class _Link:
    """One outgoing connection that is made again whenever it ends."""

    def __init__(
        self,
        links: "PeerLinks",
        peer_id: str,
        role: str,
        on_connected: Callable[[str], None] | None,
    ) -> None:
        self._links = links
        self.peer_id = peer_id
        self._hello = Hello(cluster=links.cluster, node_id=links.self_id, role=role)
        self._on_connected = on_connected
        self._ended = asyncio.Event()
        self._refusal = ""
        self.connection: Connection | None = None

    async def run(self) -> None:
        """Connect, wait for the end, pause, again; until cancelled."""
        pause = BACKOFF_MIN_S
        while True:
            self._ended.clear()
            try:
                await self._connect()
                await self._ended.wait()
                pause = BACKOFF_MIN_S
            except (OSError, TimeoutError) as error:
                logger.debug("cannot reach %s: %s", self.peer_id, error)
                pause = min(BACKOFF_MAX_S, pause * 2)
            await asyncio.sleep(pause * self._links.generator.uniform(0.5, 1.0))

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        links = self._links
        host, port = parse_address(links.addresses[self.peer_id])
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await loop.create_connection(
                lambda: Connection(
                    self._hello,
                    self._greet,
                    links.limits,
                    links.counters,
                    on_lost=lambda _: self._ended.set(),
                ),
                host,
                port,
            )

    def _greet(self, hello: Hello) -> "_Link":
        if hello.cluster != self._links.cluster or hello.node_id != self.peer_id:
            raise RemoteProtocolError(
                f"expected {self.peer_id} of cluster {self._links.cluster!r}, found "
                f"{hello.node_id!r} of {hello.cluster!r}"
            )
        return self

    def opened(self, connection: Connection, hello: Hello) -> None:
        """See `ConnectionHandler`."""
        self.connection = connection  # before anyone is told that it can be used
        if self._on_connected is not None:
            self._on_connected(self.peer_id)

    def frame_received(self, connection: Connection, frame: Frame) -> None:
        """Peers answer over their own links; what comes back here is a refusal."""
        if isinstance(frame.message, Response) and frame.message.text != self._refusal:
            self._refusal = frame.message.text  # the same one again and again is said once
            logger.warning("%s refused a message: %s", self.peer_id, self._refusal)

    def closed(self, connection: Connection, reason: str) -> None:
        """See `ConnectionHandler`."""
        self.connection = None
        logger.debug("link to %s ended: %s", self.peer_id, reason)

    def send(self, message: PeerMessage, attachments: Sequence[Buffer]) -> bool:
        """Send if the link is up and its outbox has room."""
        connection = self.connection
        if connection is None or not connection.is_open:
            return False
        return connection.send(message, attachments=attachments)

    def close(self) -> None:
        """End the connection."""
        if self.connection is not None:
            self.connection.abort("the node is stopping")


class PeerLinks:
    """All links of a node. `on_connected(peer_id)` is called when a bulk link is up (again)."""

    def __init__(
        self,
        self_id: str,
        cluster: str,
        addresses: dict[str, str],
        limits: Limits,
        *,
        on_connected: Callable[[str], None],
        generator: random.Random,
    ) -> None:
        self.self_id = self_id
        self.cluster = cluster
        self.addresses = addresses
        self.limits = limits
        self.counters = TransportCounters()
        self.generator = generator
        self._control = {peer: _Link(self, peer, "control", None) for peer in addresses}
        self._bulk = {peer: _Link(self, peer, "bulk", on_connected) for peer in addresses}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to connect."""
        for link in (*self._control.values(), *self._bulk.values()):
            self._tasks.append(asyncio.create_task(link.run(), name=f"link to {link.peer_id}"))

    async def stop(self) -> None:
        """End all links."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        for link in (*self._control.values(), *self._bulk.values()):
            link.close()

    def send(
        self,
        peer_id: str,
        message: PeerMessage,
        attachments: Sequence[Buffer] = (),
        *,
        bulk: bool = False,
    ) -> bool:
        """Send to a peer; return False if its link is down or full."""
        link = (self._bulk if bulk else self._control).get(peer_id)
        return link is not None and link.send(message, attachments)
