"""Accepting connections of peers and clients on one port.

Connections are accepted here and not by the event loop's server. When no file descriptor is free,
that one gives up, or tries again without a pause; and it cannot bound the number of connections.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec

from quorumlog.log_events import log_event, reason_of
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import ConfigError, RemoteProtocolError
from quorumlog.model.limits import Limits
from quorumlog.model.messages.base import Hello, Response
from quorumlog.transport.budget import RequestMemory
from quorumlog.transport.connection import (
    PEER_ROLES,
    Connection,
    ConnectionHandler,
    TransportCounters,
)
from quorumlog.transport.resolver import Resolver
from quorumlog.transport.shared_resources import SharedResources

logger = logging.getLogger(__name__)

CLIENT_ROLE = "client"
PEERS_RESERVE = 256
"""Connections beyond `connections_max` that only peers may make: clients must not lock them out."""
REFUSALS_MAX = 16
"""Connections beyond all places that get an answer which says so; more are closed without one."""
PEER_CONNECTIONS_MAX = 4
"""Connections of one peer and role; one more ends the one that was silent for the longest time."""
BACKLOG = 1_024
ACCEPTS_PER_TURN = 2
"""Connections accepted in one turn of the loop."""
ACCEPT_PAUSE_MIN_S = 0.05
ACCEPT_PAUSE_MAX_S = 1.0
"""Pauses while a connection cannot be accepted, as no descriptor or no memory is there."""
CHECK_S = 1.0
"""Pause between checks for frames that do not arrive and answers that are not read."""
STOP_TURNS = 100
"""The most turns of the loop to wait until all aborted connections have reported their end."""


class Listener:
    """Listens, checks who connects, and finds a handler for each connection.

    Peers must be of the same cluster and be accepted by `accepts`; clients may leave the cluster
    out. `is_member` says whether a peer is a member of a group here: members have a share of memory
    and time that nobody else can take. When there are too many connections, the oldest of those
    that never had a request answered is closed. `is_crowded`: see `Scheduler`. `appends`: memory of
    the clients' appends, which whoever handles them holds.
    """

    def __init__(  # noqa: PLR0913
        self,
        host: str,
        port: int,
        handler_for: Callable[[Hello], ConnectionHandler],
        *,
        cluster: str,
        node_id: str,
        accepts: Callable[[Hello], bool],
        limits: Limits,
        is_member: Callable[[Hello], bool] | None = None,
        is_crowded: Callable[[], bool] = lambda: False,
        appends: RequestMemory | None = None,
        peers_reserve: int | None = None,
    ) -> None:
        self._host = host
        self.port = port
        self._handler_for = handler_for
        self._hello = Hello(cluster=cluster, node_id=node_id, role="node", takes_joined=True)
        self._accepts = accepts
        self._limits = limits
        self._peers_reserve = PEERS_RESERVE if peers_reserve is None else peers_reserve
        self.shared = SharedResources(
            limits,
            lambda hello: hello.role in PEER_ROLES and (is_member is None or is_member(hello)),
            is_crowded,
            appends,
        )
        self._sockets: list[socket.socket] = []
        self._setting_up: set[asyncio.Task[None]] = set()
        self._pause_s = ACCEPT_PAUSE_MIN_S
        self._timer: asyncio.TimerHandle | None = None
        self.connections: set[Connection] = set()
        self._unproven: dict[Connection, None] = {}
        self._clients_gone: asyncio.Event | None = None
        self.counters = TransportCounters()

    def limit_connections(self, connections_max: int) -> None:
        """Accept this many connections from now on; those that are open stay."""
        self._limits = msgspec.structs.replace(self._limits, connections_max=connections_max)

    async def start(self) -> None:
        """Start to listen. Raises `ConfigError` when the address cannot be used."""
        try:
            for family, address in await Resolver().resolve(self._host, self.port):
                self._sockets.append(_listening(family, address))
                if not self.port:
                    break  # another family would have another port
        except OSError as error:
            self._close_sockets()
            raise ConfigError(
                f"cannot listen on {self._host}:{self.port}: {reason_of(error)}"
            ) from error
        self.port = self._sockets[0].getsockname()[1]
        self._listen()
        self._check_later()

    async def dismiss_clients(self, within_s: float) -> None:
        """Stop listening, send clients a notice that this node stops, and wait for them to go.

        Requests that they have sent are still answered. Peers stay connected.
        """
        if not self._sockets:
            return
        self._close_sockets()
        self._clients_gone = asyncio.Event()
        for connection in self._clients():
            text = f"{self._hello.node_id} is stopping; ask another node"
            connection.send(Response(code=ResponseCode.NODE_STOPPING, text=text))
        self._check_for_clients()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._clients_gone.wait()

    def _clients(self) -> list[Connection]:
        return [
            connection
            for connection in self.connections
            if connection.hello is not None and connection.hello.role == CLIENT_ROLE
        ]

    def _check_for_clients(self) -> None:
        if self._clients_gone is not None and not self._clients():
            self._clients_gone.set()

    async def stop(self) -> None:
        """Listen no more and end all connections."""
        self._close_sockets()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._setting_up:
            task.cancel()
        for connection in list(self.connections):
            connection.abort("the node is stopping")
        for _ in range(STOP_TURNS):
            if not self.connections:
                break
            await asyncio.sleep(0)

    def _close_sockets(self) -> None:
        loop = asyncio.get_running_loop()
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            loop.remove_reader(one)
            one.close()

    # -- accepting --------------------------------------------------------------------------

    def _listen(self) -> None:
        for one in self._sockets:
            asyncio.get_running_loop().add_reader(one, self._accept, one)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._accept_later(error)
                return
            self._pause_s = ACCEPT_PAUSE_MIN_S
            self.counters.accepted += 1
            if self._has_room():
                self._set_up(accepted)
            else:
                self.counters.refused_places += 1
                accepted.close()

    def _accept_later(self, error: OSError) -> None:
        """Stop accepting for a while, as descriptors or memory are short; the backlog waits."""
        if self._pause_s == ACCEPT_PAUSE_MIN_S:
            log_event(
                logger, logging.WARNING, "cannot accept connections now", reason=reason_of(error)
            )
        self.counters.accept_failures += 1
        loop = asyncio.get_running_loop()
        for one in self._sockets:
            loop.remove_reader(one)
        loop.call_later(self._pause_s, self._listen)
        self._pause_s = min(ACCEPT_PAUSE_MAX_S, 2 * self._pause_s)

    def _has_room(self) -> bool:
        """Whether there is room for one more connection; if need be, an unproven one is closed."""
        count = len(self.connections) + len(self._setting_up)
        if count < self._limits.connections_max:
            return True
        while self._unproven:
            oldest = next(iter(self._unproven))
            del self._unproven[oldest]
            if not oldest.is_member and not oldest.answered:
                self.counters.ended_for_places += 1
                oldest.abort("others need its place, and none of its requests succeeded")
                return True
        return count < self._limits.connections_max + self._peers_reserve + REFUSALS_MAX

    def _set_up(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        with suppress(OSError):  # closed already: connection_lost follows
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = asyncio.get_running_loop().create_task(self._connect(accepted))
        self._setting_up.add(task)
        task.add_done_callback(self._setting_up.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(self._make, accepted)
        except BaseException as error:
            accepted.close()
            if not isinstance(error, OSError):
                raise

    def _make(self) -> Connection:
        beyond = len(self.connections) - self._limits.connections_max
        connection = Connection(
            self._hello,
            self._greet if beyond < 0 else partial(self._greet_beyond, beyond),
            self._limits,
            self.counters,
            on_lost=self._lost,
            shared=self.shared,
        )
        self.connections.add(connection)
        self._unproven[connection] = None
        return connection

    def _lost(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._unproven.pop(connection, None)
        self._check_for_clients()

    # -- looking after them -----------------------------------------------------------------

    def _check_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)

    def _check(self) -> None:
        self._check_later()
        now = self.shared.now()
        # not at all connections: with thousands of them the loop would stand still for so long
        for connection in list(self.shared.unfinished):
            if connection.is_late(now):
                self.counters.late_frames += 1
                connection.abort("a frame did not arrive in time")
        self.shared.budgets.answers.check()

    # -- handshakes -------------------------------------------------------------------------

    def _greet_beyond(self, beyond: int, hello: Hello) -> ConnectionHandler:
        """Accept a peer although there are more connections than clients may have."""
        if hello.role in PEER_ROLES and beyond < self._peers_reserve:
            return self._greet(hello)
        if len(self.connections) <= self._limits.connections_max:  # those before it have gone
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
        if not is_client:
            self._bound_peer(hello)
        return self._handler_for(hello)

    def _bound_peer(self, hello: Hello) -> None:
        """Close the connection that was silent for longest if a peer has too many."""
        key = (hello.node_id, hello.role)
        known = [
            connection
            for connection in self.connections
            if connection.hello is not None
            and (connection.hello.node_id, connection.hello.role) == key
        ]
        if len(known) >= PEER_CONNECTIONS_MAX:
            min(known, key=lambda one: one.last_received_at).abort(
                "the peer has made later connections"
            )


def _listening(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setblocking(False)
        made.bind(address)
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return made
