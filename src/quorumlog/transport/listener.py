"""Accepting connections of peers and clients on one port."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import ConfigError, RemoteProtocolError
from quorumlog.model.limits import Limits
from quorumlog.model.message import Hello, Response
from quorumlog.transport.connection import Connection, ConnectionHandler, TransportCounters

CLIENT_ROLE = "client"
PEER_ROLES = ("control", "bulk")
PEERS_RESERVE = 256
"""Connections beyond `connections_max` that only peers may make: clients must not lock them out."""


class Listener:
    """Listens, checks who is there, and finds a handler for each connection.

    Peers must be of the same cluster and such as `accepts` accepts; clients may leave the cluster
    out.
    """

    def __init__(
        self,
        host: str,
        port: int,
        handler_for: Callable[[Hello], ConnectionHandler],
        *,
        cluster: str,
        node_id: str,
        accepts: Callable[[Hello], bool],
        limits: Limits,
    ) -> None:
        self._host = host
        self.port = port
        self._handler_for = handler_for
        self._hello = Hello(cluster=cluster, node_id=node_id, role="node")
        self._accepts = accepts
        self._limits = limits
        self._server: asyncio.Server | None = None
        self.connections: set[Connection] = set()
        self._clients_gone: asyncio.Event | None = None
        self.counters = TransportCounters()

    async def start(self) -> None:
        """Begin to listen. Raises `ConfigError` when the address cannot be used."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._accept, self._host, self.port)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {self._host}:{self.port}: {error.strerror or error}"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def dismiss_clients(self, within_s: float) -> None:
        """Listen no more, tell clients that this node stops, and wait for them to go.

        Requests that they have sent are answered meanwhile. Peers stay.
        """
        if self._server is None:
            return
        self._server.close()
        self._clients_gone = asyncio.Event()
        for connection in self._clients():
            text = f"{self._hello.node_id} is stopping; ask another node"
            connection.send(Response(code=ResponseCode.NODE_STOPPING, text=text))
        self._look_for_clients()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._clients_gone.wait()

    def _clients(self) -> list[Connection]:
        return [
            connection
            for connection in self.connections
            if connection.hello is not None and connection.hello.role == CLIENT_ROLE
        ]

    def _look_for_clients(self) -> None:
        if self._clients_gone is not None and not self._clients():
            self._clients_gone.set()

    def _lost(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._look_for_clients()

    async def stop(self) -> None:
        """Listen no more and end all connections."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self.connections):
            connection.abort("the node is stopping")
        await self._server.wait_closed()
        self._server = None

    def _accept(self) -> Connection:
        self.counters.accepted += 1
        beyond = len(self.connections) - self._limits.connections_max
        connection = Connection(
            self._hello,
            self._greet if beyond < 0 else partial(self._greet_beyond, beyond),
            self._limits,
            self.counters,
            on_lost=self._lost,
        )
        self.connections.add(connection)
        return connection

    def _greet_beyond(self, beyond: int, hello: Hello) -> ConnectionHandler:
        """Take a peer although there are so many more connections than clients may have."""
        if hello.role in PEER_ROLES and beyond < PEERS_RESERVE:
            return self._greet(hello)
        raise RemoteProtocolError(f"more than {self._limits.connections_max} connections")

    def _greet(self, hello: Hello) -> ConnectionHandler:
        is_client = hello.role == CLIENT_ROLE
        if hello.cluster != self._hello.cluster and not (is_client and not hello.cluster):
            raise RemoteProtocolError(
                f"this is cluster {self._hello.cluster!r}, not {hello.cluster!r}"
            )
        if is_client and self._clients_gone is not None:
            raise RemoteProtocolError(f"{self._hello.node_id} is stopping")
        if not is_client and hello.role not in PEER_ROLES:
            raise RemoteProtocolError(f"role {hello.role!r} is not known")
        if not is_client and not self._accepts(hello):
            raise RemoteProtocolError(
                f"{hello.node_id!r} is no member of a group on {self._hello.node_id}"
            )
        return self._handler_for(hello)
