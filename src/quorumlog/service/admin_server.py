"""The server of the admin port: a bounded number of connections, each for a bounded time.

Each has a thread of its own, in which also its TLS handshake takes place: who is silent holds up
nobody else.
"""

import io
import logging
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from socketserver import TCPServer
from typing import Any, Final, cast
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, WSGIServer

from quorumlog.log_events import log_event, reason_of
from quorumlog.model.config import host_port
from quorumlog.model.wording import foreign
from quorumlog.transport.client_lines import ClientLines
from quorumlog.transport.node_tls import NodeTls
from quorumlog.transport.tls import Identity
from quorumlog.transport.tls_contexts import say_close
from quorumlog.transport.tls_words import in_words

logger = logging.getLogger(__name__)

REQUEST_SECONDS = 10.0
"""Seconds for a connection in all, and for each of its pauses."""
CONNECTIONS_MAX = 16
"""Connections answered at a time."""
WAITING_MAX: Final = 1_024
"""Connections that wait to be accepted: one more is tried again by its sender after a second."""
ACCEPT_PAUSE_S = 0.2
LINGER_S: Final = 1.0
"""How long somebody who is refused has to read why, in seconds."""
LINGER_BYTES_MAX: Final = 64 * 1024
"""Bytes that it may still send meanwhile."""
_WORDS_OF_HTTP_0_9: Final = 2
LINE_BYTES_MAX: Final = 65_536
"""Bytes of the first line of a request."""
METHODS: Final = ("GET", "HEAD")
_TLS_HANDSHAKE: Final = b"\x16"
IDENTITY: Final = "quorumlog.identity"
"""In the environment of a request: whose certificate was shown; None: nothing is encrypted."""
IS_OPEN: Final = "quorumlog.is_open"
"""In the same: says whether anybody still waits for the answer."""
REMOTE: Final = "quorumlog.remote"
"""In the same: the host and the port of whoever asks."""


class _Open:
    """A connection that is open, and until when it may be."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self.socket = connection
        self.until = until


class AdminServer(WSGIServer):
    """Answers a bounded number of connections at a time, each for a bounded time.

    Each has a thread of its own. One connection more replaces the oldest. No host name is looked
    up.
    """

    request_queue_size = WAITING_MAX

    def __init__(self, *arguments: Any) -> None:
        self.tls: NodeTls | None = None
        self.refused: Callable[[str, str], None] = lambda address, reason: None
        """Called with the address of whoever makes no TLS connection, and why."""
        self._open: dict[socket.socket, _Open] = {}
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._lines, self._lines_lock = ClientLines(logger, time.monotonic), threading.Lock()
        (host, _), *_ = arguments
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__(*arguments)

    def server_bind(self) -> None:
        """Bind as `http.server` does, but without asking a name server who this host is.

        An address of IPv6 is for IPv6 only, as on the node's other ports.
        """
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; if no descriptor is free, pause before the next attempt."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(ACCEPT_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread of its own."""
        with self._lock:
            while len(self._open) >= CONNECTIONS_MAX:
                self._cut_off(next(iter(self._open)))
            self._open[request] = _Open(request, time.monotonic() + REQUEST_SECONDS)
        thread = threading.Thread(
            target=self._answer,
            args=(request, client_address),
            name="quorumlog-admin-answer",
            daemon=True,
        )
        thread.start()
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]

    def _answer(self, request: Any, client_address: Any) -> None:
        connection = request
        try:
            connection = self._secured(request, client_address)
            self.finish_request(connection, client_address)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)
            say_close(connection)
            self.shutdown_request(connection)

    def _secured(self, request: socket.socket, client_address: Any) -> socket.socket:
        """Return the connection to speak over: with TLS, if the other side begins so.

        Raises `OSError` if the handshake fails, or takes too long.
        """
        if self.tls is None:
            return request
        request.settimeout(REQUEST_SECONDS)
        if request.recv(1, socket.MSG_PEEK) != _TLS_HANDSHAKE:
            return request
        with self._lock:
            place = self._open.get(request)
            if place is None:
                raise ConnectionAbortedError("it was cut off")
            secured = self.tls.current.admin.context.wrap_socket(
                request, server_side=True, do_handshake_on_connect=False
            )
            place.socket = secured
        try:
            secured.do_handshake()
        except OSError as error:
            _let_read(secured)
            secured.close()
            reason = "the TLS handshake did not end in time"
            if isinstance(error, ssl.SSLError) and not isinstance(error, TimeoutError):
                reason = in_words(error, self.tls.config.certificate, time.time())
            self.refused(host_port(*client_address[:2]), reason)
            raise
        return secured

    def identity_of(self, connection: socket.socket) -> Identity | None:
        """Return who has shown a certificate; None: nothing is encrypted.

        Raises `OSError` if the connection has ended meanwhile.
        """
        if self.tls is None or not isinstance(connection, ssl.SSLSocket):
            return None
        try:
            return self.tls.current.admin.identify_object(cast(ssl.SSLObject, connection))
        except ValueError as error:  # what the socket says once it has ended
            raise ConnectionAbortedError("it was cut off") from error

    def is_open(self, connection: socket.socket) -> bool:
        """Whether somebody still waits for the answer: the connection was not cut off."""
        with self._lock:
            return any(place.socket is connection for place in self._open.values())

    def server_close(self) -> None:
        """End all connections, once no more are accepted; return when their threads have ended."""
        super().server_close()
        with self._lock:
            for request in list(self._open):
                self._cut_off(request)
        for thread in self._threads:
            thread.join()

    def service_actions(self) -> None:
        """End connections that take too long; called twice a second."""
        now = time.monotonic()
        with self._lock:
            for late in [one for one, place in self._open.items() if now > place.until]:
                self._cut_off(late)

    def _cut_off(self, request: socket.socket) -> None:
        place = self._open.pop(request)
        with suppress(OSError):  # it has ended by itself
            socket.socket.shutdown(place.socket, socket.SHUT_RDWR)  # below TLS

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Have a line about what was raised: one a minute and host, with a traceback.

        That a client disconnects early, or was cut off, is no error of the node.
        """
        remote, error = host_port(*client_address[:2]), sys.exception()
        if isinstance(error, OSError):
            log_event(
                logger, logging.DEBUG, "answering failed", remote=remote, reason=reason_of(error)
            )
        elif isinstance(error, Exception):
            with self._lines_lock:  # each connection has a thread of its own
                self._lines.fault("answering failed", "", remote, error)


def _let_read(refused: ssl.SSLSocket) -> None:
    """Wait a moment until the other side has read why it was refused, and ends the connection.

    What it has sent meanwhile would else reset the connection, and with it what was sent to it.
    """
    until, left = time.monotonic() + LINGER_S, LINGER_BYTES_MAX
    with suppress(OSError, ValueError):
        refused.shutdown(socket.SHUT_WR)  # below TLS, from now on
        while left > 0 and (wait := until - time.monotonic()) > 0:
            refused.settimeout(wait)
            came = len(refused.recv(LINGER_BYTES_MAX))
            if not came:
                return
            left -= came


class _Answering(ServerHandler):
    """Answers one request by the application. It tells nobody what runs here, nor which version.

    `is_head`: only the headers are asked for. `failed` is told of what is raised meanwhile.
    """

    server_software = ""
    headers_sent: bool
    request_handler: WSGIRequestHandler

    def __init__(
        self,
        stdin: Any,
        stdout: Any,
        environ: dict[str, Any],
        *,
        is_head: bool,
        failed: Callable[[], None],
    ) -> None:
        errors = io.StringIO()  # what is raised is told of otherwise
        super().__init__(stdin, stdout, errors, environ, multithread=True)
        self._is_head, self._failed = is_head, failed

    def write(self, data: bytes) -> None:
        """See `BaseHandler`; the headers go before the first bytes."""
        if not self._is_head:
            super().write(data)
        elif not self.headers_sent:
            self.bytes_sent = len(data)
            self.send_headers()

    def log_exception(self, exc_info: Any) -> None:
        """See `BaseHandler`."""
        self._failed()


class QuietHandler(WSGIRequestHandler):
    """Answers one request, with no line of its own on standard error."""

    timeout = REQUEST_SECONDS
    default_request_version = "HTTP/1.0"
    error_content_type = "text/plain"
    error_message_format = "%(code)d %(message)s\n"

    def handle(self) -> None:
        """See `WSGIRequestHandler`. HTTP/0.9 is not answered, nor what changes something."""
        self.raw_requestline = self.rfile.readline(LINE_BYTES_MAX + 1)
        self.requestline, self.request_version, self.command = "", self.default_request_version, ""
        if len(self.raw_requestline) > LINE_BYTES_MAX:
            self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
        elif len(self.raw_requestline.split()) == _WORDS_OF_HTTP_0_9:  # no headers would follow
            self.send_error(HTTPStatus.BAD_REQUEST, "a request ends with HTTP/1.0 or HTTP/1.1")
        elif not self.parse_request():
            pass  # it has been answered
        elif self.command not in METHODS:
            self._refuse_method()
        else:
            self._answer()

    def _answer(self) -> None:
        server, environ = cast(AdminServer, self.server), self.get_environ()
        environ["REQUEST_METHOD"] = METHODS[0]
        answering = _Answering(
            self.rfile,
            self.wfile,
            environ,
            is_head=self.command != METHODS[0],
            failed=lambda: server.handle_error(self.request, self.client_address),
        )
        answering.request_handler = self
        answering.run(cast(Any, server.get_app()))

    def _refuse_method(self) -> None:
        allowed = ", ".join(METHODS)
        body = f"the pages here are read: {allowed}\n".encode()
        self.send_response(HTTPStatus.METHOD_NOT_ALLOWED)
        self.send_header("Allow", allowed)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        """See `BaseHTTPRequestHandler`: no version is told."""
        return "quorumlog"

    def get_environ(self) -> dict[str, Any]:
        """See `WSGIRequestHandler`; besides, whose certificate was shown."""
        environ = super().get_environ()
        environ[REMOTE] = host_port(*self.client_address[:2])
        server = cast(AdminServer, self.server)
        environ[IDENTITY] = server.identity_of(self.connection)
        environ[IS_OPEN] = partial(server.is_open, self.connection)
        return environ

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base's name)
        """See `BaseHTTPRequestHandler`."""
        log_event(logger, logging.DEBUG, "admin request", text=foreign(format % args))
