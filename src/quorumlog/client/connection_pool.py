"""The connections of a client: one to each server that all calls share, and ones of one caller."""

import asyncio
import weakref
from collections.abc import Iterator
from typing import Protocol

from quorumlog.client.connection import ServerConnection
from quorumlog.client.login import LoginOfClient
from quorumlog.client.outgoing_tls import TlsOfClient
from quorumlog.client.process import MakingProcess
from quorumlog.client.security import Security
from quorumlog.model.errors import (
    ConfigError,
    LoginError,
    NetworkError,
    Outcome,
    RequestError,
    UnsupportedVersionError,
    WrongClusterError,
)
from quorumlog.model.limits import Limits
from quorumlog.model.messages.base import Response
from quorumlog.model.messages.client import GroupIdentity
from quorumlog.transport.resolver import Resolver
from quorumlog.transport.tls import OutgoingTls

CONNECT_TIMEOUT_S = 1.5
UNRESPONSIVE_MAX = 16
"""At most this many unresponsive servers are remembered."""
REFUSED_S = 1.0
"""A server of another cluster, or of other versions, is not asked again for this long."""
REFUSED_MAX = 64
"""At most this many such servers are remembered."""


class ServerObserver(Protocol):
    """The owner of a pool, which learns from it about servers."""

    def unreachable(self, address: str) -> None:
        """No connection can be made to a server, or it is about to stop."""
        ...

    def forget_leader(self, address: str) -> None:
        """A server belongs to another cluster, or cannot be spoken to: it leads nothing here."""
        ...

    def fell_silent(self, connection: ServerConnection) -> None:
        """A server does not answer although it should; called at every check."""
        ...


class UnresponsiveServers:
    """Servers that did not answer, each with the newest term that was known then."""

    def __init__(self) -> None:
        self._terms: dict[str, int] = {}

    def __contains__(self, address: object) -> bool:
        return address in self._terms

    def __iter__(self) -> Iterator[str]:
        return iter(self._terms)

    def add(self, address: str, term: int) -> None:
        """Remember a server, and forget the one that was added first if there are too many."""
        self._terms.pop(address, None)
        if len(self._terms) >= UNRESPONSIVE_MAX:
            del self._terms[next(iter(self._terms))]
        self._terms[address] = term

    def discard(self, address: str) -> None:
        """Forget a server, as it has answered."""
        self._terms.pop(address, None)

    def term_of(self, address: str, default: int) -> int:
        """Return the term at which a server was unresponsive, or `default` if it was not."""
        return self._terms.get(address, default)


class ConnectionPool:
    """Opens and keeps the connections of a client; none is made once it is closed."""

    def __init__(
        self,
        group: str,
        cluster: str,
        limits: Limits,
        observer: ServerObserver,
        security: Security | None = None,
    ) -> None:
        self._group = group
        self._cluster = cluster
        self._limits = limits
        self._observer = observer
        # whoever has wrong files is told so before a server is asked
        self._tls = None if security is None else TlsOfClient(security)
        if self._tls is not None:
            self._tls.newest()
        self._login: LoginOfClient | None = None
        if security is not None and security.mechanism:
            self._login = LoginOfClient(security)
        self._resolver = Resolver()
        self._shared: dict[str, ServerConnection] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._login_refusals: dict[str, tuple[float, LoginError]] = {}
        # all that may be open or being opened, also those that callers have for themselves
        self._made: weakref.WeakSet[ServerConnection] = weakref.WeakSet()
        self._refused: dict[str, tuple[float, type[RequestError], str]] = {}
        self._identity = b""
        self._process = MakingProcess("client")
        self._is_closed = False
        self.unresponsive = UnresponsiveServers()

    async def shared(self, address: str) -> ServerConnection:
        """Return the open connection to a server that all callers share.

        Raises `NetworkError`, `LoginError`; see `check_open`.
        """
        self._process.check()  # before the lock: one taken at the fork is never released here
        lock = self._opening.setdefault(address, asyncio.Lock())
        waits, since = lock.locked(), asyncio.get_running_loop().time()
        async with lock:
            self.check_open()
            known = self._shared.get(address)
            if known is not None and known.is_open:
                return known
            # callers that wait do not all try in vain, one after the other
            if waits and address in self.unresponsive:
                raise NetworkError(f"cannot connect to {address}: it did not answer just now")
            refused_at, refusal = self._login_refusals.get(address, (since, None))
            if waits and refusal is not None and refused_at > since:
                raise refusal.again()
            try:
                fresh = self._shared[address] = await self.open(address)
            except LoginError as error:  # each is answered later than the one before
                self._login_refusals[address] = asyncio.get_running_loop().time(), error.again()
                raise
            self._login_refusals.pop(address, None)
            return fresh

    async def open(self, address: str) -> ServerConnection:
        """Return a new connection to a server, for the caller alone; `close` ends it too.

        Raises `NetworkError`, `LoginError`, `WrongClusterError` or `UnsupportedVersionError`; see
        `check_open`.
        """
        self.check_open()
        now = asyncio.get_running_loop().time()
        until, kind, said = self._refused.get(address, (now, RequestError, ""))
        if now < until:
            raise kind(said)
        fresh = ServerConnection(
            address,
            self._cluster,
            self._limits,
            group=self._group,
            identity=self._identity,
            on_silent=self._observer.fell_silent,
            on_notice=self._notified,
            tls=self._newest_tls(),
            login=self._login,
        )
        self._made.add(fresh)
        try:
            await fresh.open(CONNECT_TIMEOUT_S, self._resolver)
        except NetworkError as error:
            error.outcome = Outcome.DID_NOT_HAPPEN  # nothing was asked for yet
            self.check_open()
            self._observer.unreachable(address)
            raise
        except (WrongClusterError, UnsupportedVersionError) as error:
            self._observer.forget_leader(address)
            self._refused.pop(address, None)
            if len(self._refused) >= REFUSED_MAX:
                del self._refused[next(iter(self._refused))]
            self._refused[address] = now + REFUSED_S, type(error), str(error)
            raise
        if self._is_closed:  # just when it was open
            fresh.close()
        self.check_open()
        self.unresponsive.discard(address)
        return fresh

    def unanswered_logins(self, at: float) -> str:
        """See `LoginOfClient.unanswered`."""
        return "" if self._login is None else self._login.unanswered(at)

    def _notified(self, connection: ServerConnection, message: GroupIdentity | Response) -> None:
        """Handle a notice: the group's identity, or that the server is about to stop."""
        if not isinstance(message, GroupIdentity):
            self._observer.unreachable(connection.address)
        elif not connection.identity:  # a server that knows ours refuses requests itself
            try:
                self.check_identity(connection.address, message.identity)
            except WrongClusterError as error:
                connection.abort(str(error))

    def check_identity(self, address: str, identity: bytes) -> None:
        """Remember the group's identity. Raises `WrongClusterError` if it has changed."""
        if not self._identity:
            self._identity = identity
        elif identity and identity != self._identity:
            raise WrongClusterError(
                f"{address} serves a group {self._group} of identity {identity.hex()}, but this "
                f"client began with that of {self._identity.hex()}: it was founded again, or is "
                "another cluster's. Make a new client to use it"
            )

    def _newest_tls(self) -> OutgoingTls | None:
        """Return how a new connection is encrypted, None: not at all. Raises `NetworkError`."""
        try:
            return None if self._tls is None else self._tls.newest()
        except ConfigError as error:  # a file was there when the client was made
            raise NetworkError(str(error)) from None

    def check_process(self) -> None:
        """Raise `RequestError`, which says that nothing was done, in a forked child."""
        self._process.check()

    def check_open(self) -> None:
        """Raise as `check_process`, and the same error once the client is closed."""
        self._process.check()
        if self._is_closed:
            error = RequestError("this client is closed; make a new one")
            error.outcome = Outcome.DID_NOT_HAPPEN
            raise error

    def close(self) -> bool:
        """End all connections; return False, with nothing done, in a forked child."""
        if not self._process.is_this:
            return False
        self._is_closed = True
        for connection in list(self._made):
            if connection.is_open:
                connection.close()
            else:
                connection.abort("the client is closed")
        self._shared.clear()
        return True
