"""One connection of a client: requests out, answers paired by correlation id."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quorumlog.client.login import LoginOfClient
from quorumlog.client.login_steps import LOGIN_TIMEOUT_S
from quorumlog.client.silence_watch import SilenceWatch
from quorumlog.log_events import reason_of
from quorumlog.model.block import Buffer
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import parse_address
from quorumlog.model.errors import (
    HandshakeError,
    LeaderPendingFullError,
    LoginError,
    NetworkError,
    Outcome,
    RemoteProtocolError,
    RequestError,
    WrongClusterError,
    error_for,
)
from quorumlog.model.limits import Limits
from quorumlog.model.messages.base import Hello, Message, Request, Response, Responses
from quorumlog.model.messages.client import (
    FetchRequest,
    GroupIdentity,
    MetadataRequest,
    Throttled,
)
from quorumlog.model.messages.login import Authenticate, Authenticated
from quorumlog.model.messages.machine import QueryRequest
from quorumlog.transport.connection import Connection
from quorumlog.transport.resolver import Resolver, connect_to
from quorumlog.transport.stream import TransportCounters
from quorumlog.transport.tls import OutgoingTls
from quorumlog.wire.frame import Frame, RefusedFrame
from quorumlog.wire.joined import split
from quorumlog.wire.versions import stating_versions

NAME_SHARE = 2
"""A lookup takes at most this share (1/2) of the time to connect; then an older result is used."""

_CLOSED_AT_ONCE = (
    "closed during the handshake: this may be its kafkaListen; --servers needs the node's own port"
)
_NO_LOGIN = "it takes none: [security] of its configuration says none, or is not there"
_LONG_POLLS = (FetchRequest, QueryRequest)
"""Requests that wait at the server if their `wait_ms` is above 0; all others are prompt."""
_FINAL_REFUSALS = (
    ResponseCode.UNSUPPORTED_VERSION,
    ResponseCode.WRONG_CLUSTER,
    ResponseCode.TLS_REQUIRED,
    ResponseCode.LOGIN_REFUSED,
)
"""Refusals of a Hello that the same server would repeat."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response with the bytes attached to it."""

    response: Response
    attachment: memoryview


class ServerConnection:
    """An open connection to one server. When it ends, unanswered requests fail as unknown.

    While a request (or the handshake) waits, a `SilenceWatch` checks the server: `on_silent` is
    called with this connection at each check that finds it silent. `identity` is that of the
    group, if it is known: a server whose group has another one refuses.

    `on_notice` is called with messages that answer no request: the identity of the server's group,
    and that the server is about to stop. After the latter the connection takes no more requests,
    and ends when those in flight are answered. `tls`: how the connection is encrypted; None: not
    at all. `login`: how the client logs in; None: not at all.
    """

    def __init__(  # noqa: PLR0913
        self,
        address: str,
        cluster: str,
        limits: Limits,
        *,
        group: str,
        identity: bytes = b"",
        on_silent: "Callable[[ServerConnection], None] | None" = None,
        on_notice: "Callable[[ServerConnection, GroupIdentity | Response], None] | None" = None,
        tls: OutgoingTls | None = None,
        login: LoginOfClient | None = None,
    ) -> None:
        self.address = address
        self._tls = tls
        self._login = login
        self._logging_in: asyncio.Future[Authenticated] | None = None
        self._group = group
        self.identity = identity
        self._on_silent = on_silent
        self._on_notice = on_notice
        self._is_stopping = False
        self._hello = stating_versions(
            Hello(
                cluster=cluster,
                node_id="",
                role="client",
                group=group,
                identity=identity,
                takes_joined=True,
            )
        )
        self._limits = limits
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._numbers = itertools.count(1)
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection: Connection | None = None
        self._opening: asyncio.Timeout | None = None
        self._polls: set[int] = set()
        self._watch = SilenceWatch(self)
        self._wrong_cluster: WrongClusterError | None = None
        self.node_id = ""

    async def open(self, timeout_s: float, resolver: Resolver | None = None) -> None:
        """Connect, exchange Hellos, and log in; `resolver` looks up names of hosts.

        Raises `NetworkError`, `WrongClusterError` for a server of another cluster,
        `UnsupportedVersionError` for one that speaks no version that this client speaks, and what
        `LoginOfClient.run` raises.
        """
        resolver = resolver or Resolver()
        host, port = parse_address(self.address)
        try:
            async with asyncio.timeout(timeout_s) as self._opening:
                self._watch.start()
                found = await resolver.resolve(host, port, timeout_s / NAME_SHARE)
                tls = None if self._tls is None else self._tls.to(host)
                _, self._connection = await connect_to(found, self._make, tls)
                await self._ready
            if self._login is not None:
                self._watch.stop()  # a refusal is held back for seconds
                async with asyncio.timeout(LOGIN_TIMEOUT_S) as self._opening:
                    await self._log_in(self._login)
        except (OSError, TimeoutError) as error:
            is_mute = isinstance(error, TimeoutError) and self._connection is not None
            self.close()
            reason = reason_of(error)
            if is_mute and self._logging_in is not None:
                reason = f"it has not answered the login within {LOGIN_TIMEOUT_S:g} s"
            elif is_mute:  # the admin port waits for a line of HTTP
                reason += ", though it accepts connections (a node that hangs, or its admin port?)"
            raise NetworkError(f"cannot connect to {self.address}: {reason}") from error
        except BaseException:
            self.close()
            raise
        finally:
            self._opening = None
            self._watch.stop()

    async def _log_in(self, login: LoginOfClient) -> None:
        is_encrypted = self._tls is not None
        await login.run(self._authenticate, address=self.address, is_encrypted=is_encrypted)

    async def _authenticate(self, message: Authenticate) -> Authenticated:
        """Send a message of a login; return its answer."""
        connection = self._connection
        if connection is None or not connection.is_open:
            raise _not_sent(self.address)
        self._logging_in = asyncio.get_running_loop().create_future()
        connection.send(message, correlation_id=next(self._numbers))
        return await self._logging_in

    def _make(self) -> Connection:
        return Connection(
            self._hello, self._greet, self._limits, TransportCounters(), on_lost=self._lost
        )

    def _greet(self, hello: Hello) -> "ServerConnection":
        if self._hello.cluster and hello.cluster != self._hello.cluster:
            text = f"{self.address} is of cluster {hello.cluster!r}, not {self._hello.cluster!r}"
            self._wrong_cluster = WrongClusterError(text)
            raise RemoteProtocolError(text)
        self.node_id = hello.node_id
        return self

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        connection = self._connection
        return connection is not None and connection.is_open and not self._is_stopping

    @property
    def unanswered(self) -> int:
        """Requests that somebody still waits for."""
        return len(self._waiting)

    def request(
        self, message: Request, attachments: Sequence[Buffer] = ()
    ) -> "asyncio.Future[Answer]":
        """Send a request; the future resolves with the answer or fails with `NetworkError`.

        Raises `NetworkError` when the connection has ended, `LeaderPendingFullError` when too much
        is unsent, `UnexpectedArgumentError` when the request is above a limit, `UnsupportedError`
        when the server has not said that it takes such requests.
        """
        connection = self._connection
        if connection is None or not self.is_open:
            raise _not_sent(self.address)
        number = next(self._numbers)
        is_poll = isinstance(message, _LONG_POLLS) and message.wait_ms > 0
        self._watch.before_request(connection, is_poll=is_poll)
        if not self._send(connection, message, number, attachments):
            if not connection.is_open:
                raise _not_sent(self.address)
            raise LeaderPendingFullError(f"{self.address} does not take bytes fast enough")
        # not before: what could not be sent has nobody who waits for an answer
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        # also when the caller gives up: its place must not be kept until the connection ends
        future.add_done_callback(lambda _: self._waiting.pop(number, None))
        if is_poll:
            self._polls.add(number)
            future.add_done_callback(lambda _: self._polls.discard(number))
        return future

    def _send(
        self,
        connection: Connection,
        message: Request,
        number: int,
        attachments: Sequence[Buffer] = (),
    ) -> bool:
        before = connection.outbox_bytes
        is_sent = connection.send(message, correlation_id=number, attachments=attachments)
        self._watch.sent(connection.outbox_bytes - before)
        return is_sent

    # -- is the server there? (see `SilenceWatch`) ------------------------------------------

    @property
    def throttled_until(self) -> float:
        """Until when the server has told this client to wait, by the loop's clock."""
        return self._watch.throttled_until

    @property
    def is_silent(self) -> bool:
        """Whether the last check found the server silent, and nothing has come since."""
        return self._watch.is_silent

    @property
    def transport(self) -> Connection | None:
        """See `Watched`."""
        return self._connection

    @property
    def is_opening(self) -> bool:
        """See `Watched`."""
        return self._opening is not None

    @property
    def waits_for_polls_only(self) -> bool:
        """See `Watched`."""
        return bool(self._polls) and self._waiting.keys() <= self._polls

    def ping(self) -> None:
        """See `Watched`."""
        if self._connection is not None and self._opening is None:
            self._send(self._connection, MetadataRequest(group=self._group), next(self._numbers))

    def fell_silent(self) -> None:
        """See `Watched`."""
        if self._on_silent is not None:
            self._on_silent(self)

    # -- events of the connection -----------------------------------------------------------

    def opened(self, connection: Connection, hello: Hello) -> None:
        """See `ConnectionHandler`."""
        if not self._ready.done():
            self._ready.set_result(None)

    def frame_received(self, connection: Connection, frame: Frame) -> None:
        """See `ConnectionHandler`."""
        message = frame.message
        if self._answers_login(message):
            return
        if isinstance(message, Throttled):
            self._watch.throttled(message.ms)
            return
        if isinstance(message, Responses):
            for part in split(message, frame.attachment):
                if isinstance(part, RefusedFrame):
                    self._cannot_be_read(part)
                else:
                    self.frame_received(connection, part)
            return
        if isinstance(message, Hello):  # it has sent a first one before it knew ours
            if message.code != ResponseCode.SUCCESS:
                connection.refused(message)
            return
        if isinstance(message, GroupIdentity):
            if self._on_notice is not None and message.group == self._group:
                self._on_notice(self, message)
            return
        future = self._waiting.pop(frame.correlation_id, None)
        if future is not None and not future.done() and isinstance(message, Response):
            future.set_result(Answer(message, frame.attachment))
        if isinstance(message, Response) and _says_it_stops(frame.correlation_id, message):
            self._on_server_stopping(message)
        if self._is_stopping and not self._waiting:
            self.close()

    def _answers_login(self, message: Message) -> bool:
        waiting = self._logging_in
        if waiting is None or waiting.done():
            return isinstance(message, Authenticated)
        if isinstance(message, Authenticated):
            waiting.set_result(message)
            return True
        if isinstance(message, Response) and message.code == ResponseCode.UNSUPPORTED:
            waiting.set_exception(LoginError(_NO_LOGIN))
            return True
        return False

    def _cannot_be_read(self, answer: RefusedFrame) -> None:
        future = self._waiting.pop(answer.correlation_id, None)
        if future is not None and not future.done():
            text = f"{self.address}: its answer cannot be read ({answer.text})"
            future.set_exception(NetworkError(f"{text}; the request may have been executed"))

    def _on_server_stopping(self, notice: Response) -> None:
        """End requests that wait for an event at a server that is about to stop."""
        self._is_stopping = True
        if self._on_notice is not None:
            self._on_notice(self, notice)
        for number in list(self._polls):
            future = self._waiting.pop(number, None)
            if future is not None and not future.done():
                future.set_exception(NetworkError(f"{self.address}: {notice.text}"))

    def closed(self, connection: Connection, reason: str) -> None:
        """See `ConnectionHandler`."""
        self._fail(reason, connection.refused_with)

    def _lost(self, connection: Connection) -> None:
        if not self._ready.done():
            self._ready.set_exception(self._wrong_cluster or self._not_opened(connection))
        self._fail("connection lost")

    def _not_opened(self, connection: Connection) -> RequestError:
        text = f"{self.address}: {connection.reason or _CLOSED_AT_ONCE}"
        if connection.has_no_tls:
            return HandshakeError(text)
        if connection.refused_with in _FINAL_REFUSALS:
            return error_for(connection.refused_with, text)
        return NetworkError(text)

    def _fail(self, reason: str, refused_with: int = ResponseCode.SUCCESS) -> None:
        """Fail whatever waits; `refused_with`: the server has not taken any of it."""
        if self._logging_in is not None and not self._logging_in.done():
            self._logging_in.set_exception(NetworkError(f"{self.address}: {reason}"))
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(self._error(reason, refused_with))

    def _error(self, reason: str, refused_with: int) -> RequestError:
        text = f"{self.address}: {reason}"
        if refused_with in _FINAL_REFUSALS:
            return error_for(refused_with, text)
        if refused_with == ResponseCode.SUCCESS:
            return NetworkError(f"{text}; the request may have been executed")
        error = NetworkError(text)
        error.outcome = Outcome.DID_NOT_HAPPEN
        return error

    def abort(self, reason: str) -> None:
        """End the connection at once; waiting requests fail with `reason`, a verb phrase."""
        if self._opening is not None and not self._opening.expired():
            self._opening.reschedule(asyncio.get_running_loop().time())
        if self._connection is not None:
            self._connection.abort(reason)
        self._fail(reason)

    def close(self) -> None:
        """End the connection; requests given to it are still sent, but nobody waits for answers."""
        self._watch.stop()
        if self._connection is not None:
            self._connection.close("the client is done")
        self._fail("the client is done")
        if self._ready.done() and not self._ready.cancelled():
            self._ready.exception()
        else:
            self._ready.cancel()


def _says_it_stops(correlation_id: int, message: Response) -> bool:
    """Whether a message is no answer, but a notice that the node is about to stop."""
    return correlation_id == 0 and message.code == ResponseCode.NODE_STOPPING


def _not_sent(address: str) -> NetworkError:
    error = NetworkError(f"the connection to {address} has ended; nothing was sent")
    error.outcome = Outcome.DID_NOT_HAPPEN
    return error
