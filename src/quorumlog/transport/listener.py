"""Connections of peers and clients on one port: who they are, and how many there may be."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec

from quorumlog.auth.certificates import check_member
from quorumlog.auth.hosts import without_port
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import RemoteProtocolError
from quorumlog.model.limits import Limits
from quorumlog.model.messages.base import Hello, Response
from quorumlog.transport.acceptor import Acceptor
from quorumlog.transport.budget import RequestMemory
from quorumlog.transport.connection import PEER_ROLES, Connection, ConnectionHandler
from quorumlog.transport.first_bytes import TlsPort
from quorumlog.transport.node_tls import IsRevoked, NodeTls, refused_node
from quorumlog.transport.shared_resources import SharedResources
from quorumlog.transport.stream import TransportCounters
from quorumlog.wire.frame import MAGIC, encode_frame
from quorumlog.wire.versions import HelloRefusedError, stating_versions

CLIENT_ROLE = "client"
PEERS_RESERVE = 256
"""Connections beyond `connections_max` that only peers may make: clients must not lock them out."""
REFUSALS_MAX = 16
"""Connections beyond all places that get an answer which says so; more are closed without one."""
PEER_CONNECTIONS_MAX = 4
"""Connections of one peer and role; one more ends the one that was silent for the longest time."""
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
    the clients' appends, which whoever handles them holds. `tls`: what is spoken before anything
    else; None: nothing is encrypted.
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
        tls: NodeTls | None = None,
    ) -> None:
        self._handler_for = handler_for
        hello = Hello(cluster=cluster, node_id=node_id, role="node", takes_joined=True)
        self._hello = stating_versions(hello)
        self._accepts = accepts
        self._limits = limits
        self._peers_reserve = PEERS_RESERVE if peers_reserve is None else peers_reserve
        self.shared = SharedResources(
            limits,
            lambda hello: hello.role in PEER_ROLES and (is_member is None or is_member(hello)),
            is_crowded,
            appends,
            None if tls is None else tls.members,
        )
        self._timer: asyncio.TimerHandle | None = None
        self.connections: set[Connection] = set()
        self._unproven: dict[Connection, None] = {}
        self._clients_gone: asyncio.Event | None = None
        self.counters = TransportCounters()
        self._tls = tls
        self._tls_port: TlsPort | None = None
        if tls is not None:
            self._tls_port = TlsPort(tls, lambda: tls.current.native, self._answer_plain)
            tls.when_revoked.append(self._end_revoked)
        self._acceptor = Acceptor(
            host,
            port,
            self._has_room,
            self._make,
            self.counters,
            lambda: self.shared.strangers,
            lambda: self._limits.connections_max,
        )

    @property
    def port(self) -> int:
        """Where it listens; 0 before the start if any port will do."""
        return self._acceptor.port

    def limit_connections(self, connections_max: int) -> None:
        """Accept this many connections from now on; those that are open stay."""
        self._limits = msgspec.structs.replace(self._limits, connections_max=connections_max)

    async def start(self) -> None:
        """Start to listen. Raises `ConfigError` when the address cannot be used."""
        await self._acceptor.start()
        self._check_later()

    async def dismiss_clients(self, within_s: float) -> None:
        """Stop listening, send clients a notice that this node stops, and wait for them to go.

        Requests that they have sent are still answered. Peers stay connected.
        """
        if not self._acceptor.is_listening:
            return
        self._acceptor.close()
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
        self._acceptor.stop()
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self.connections):
            connection.abort("the node is stopping")
        for _ in range(STOP_TURNS):
            if not self.connections:
                break
            await asyncio.sleep(0)

    # -- places -----------------------------------------------------------------------------

    def _has_room(self) -> bool:
        """Whether there is room for one more connection; if need be, another one is closed.

        That is one that waits for its turn, or else one that is unproven.
        """
        count = len(self.connections) + self._acceptor.set_up
        if count < self._limits.connections_max or self._acceptor.end_waiting():
            return True
        while self._unproven:
            oldest = next(iter(self._unproven))
            del self._unproven[oldest]
            if not oldest.is_member and not oldest.answered:
                self.counters.ended_for_places += 1
                oldest.abort("others need its place, and none of its requests succeeded")
                return True
        return count < self._limits.connections_max + self._peers_reserve + REFUSALS_MAX

    def _make(self) -> asyncio.BaseProtocol:
        beyond = len(self.connections) - self._limits.connections_max
        own_hello = self._hello
        if self._tls is not None:
            cluster_id = self._tls.current.own.cluster_id
            own_hello = msgspec.structs.replace(own_hello, cluster_id=cluster_id)
        connection = Connection(
            own_hello,
            self._greet if beyond < 0 else partial(self._greet_beyond, beyond),
            self._limits,
            self.counters,
            on_lost=self._lost,
            shared=self.shared,
            check_identity=self._check_other,
        )
        self.connections.add(connection)
        self._unproven[connection] = None
        return connection if self._tls_port is None else self._tls_port.protocol_for(connection)

    def _lost(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._unproven.pop(connection, None)
        self._check_for_clients()

    # -- looking after them -----------------------------------------------------------------

    def _check_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self._check)

    def _check(self) -> None:
        self._check_later()
        self.counters.late_frames += self.shared.check()

    # -- handshakes -------------------------------------------------------------------------

    def _answer_plain(self, first: bytes) -> bytes:
        """Return what somebody is told who does not speak TLS, by the first bytes."""
        if first != MAGIC:
            return b""
        own = self._hello
        text = "this port speaks TLS: give the certificate of its authority (ca), or a context"
        hello = Hello(
            cluster="", node_id="", role=own.role, code=ResponseCode.TLS_REQUIRED, text=text
        )
        return b"".join(encode_frame(hello, limits=self._limits))

    def _check_identity(self, connection: Connection, hello: Hello) -> None:
        """Raise `RemoteProtocolError` unless the certificate of the other side fits its Hello.

        Where plain connections are served, a peer that makes one is believed as without TLS.
        """
        certified, is_peer = connection.identity.certified, hello.role in PEER_ROLES
        if self._tls is None or not connection.is_encrypted:
            return
        if connection.identity.refusal:
            raise RemoteProtocolError(connection.identity.refusal)
        if is_peer:
            check_member(certified, hello.node_id, self._tls.current.own.cluster_id)
        elif certified is not None and certified.kind == "node":
            raise RemoteProtocolError(refused_node(certified))

    def _check_other(self, connection: Connection, hello: Hello) -> None:
        """Raise `RemoteProtocolError` if the other side is not who it says.

        Raises `HelloRefusedError` if it has too much, which it may try again; members have no
        bounds.
        """
        self._check_identity(connection, hello)
        shared, host = self.shared, without_port(connection.remote_address)
        if hello.role in PEER_ROLES:
            if self._accepts(hello):
                shared.members.note(host)
            return
        reason = shared.admissions.refusal_of_address(connection, host, shared.now())
        if reason:
            raise HelloRefusedError(reason, ResponseCode.UNEXPECTED_MEMBER)

    def _end_revoked(self, is_revoked: IsRevoked) -> None:
        """End connections of whoever shows a certificate that is revoked now."""
        for connection in list(self.connections):
            connection.end_if(is_revoked)

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
