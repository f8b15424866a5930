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
from socketserver import TCPServer
from typing import Any, Final, TextIO, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from quorumlog.log_events import log_event
from quorumlog.model.wording import foreign
from quorumlog.transport.node_tls import NodeTls
from quorumlog.transport.tls import Identity
from quorumlog.transport.tls_words import in_words

logger = logging.getLogger(__name__)

REQUEST_SECONDS = 10.0
"""Seconds for a connection in all, and for each of its pauses."""
CONNECTIONS_MAX = 16
"""Connections answered at a time."""
ACCEPT_PAUSE_S = 0.2
LINGER_S: Final = 1.0
"""How long somebody who is refused has to read why, in seconds."""
LINGER_BYTES_MAX: Final = 64 * 1024
"""Bytes that it may still send meanwhile."""
_TLS_HANDSHAKE: Final = b"\x16"
_GONE: Final = (ssl.SSLError, ConnectionError, TimeoutError)
"""What writing an answer raises if nobody reads it any more."""
IDENTITY: Final = "quorumlog.identity"
"""In the environment of a request: whose certificate was shown; None: nothing is encrypted."""
REMOTE_PORT: Final = "quorumlog.remote_port"


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

    request_queue_size = 16

    def __init__(self, *arguments: Any) -> None:
        self.tls: NodeTls | None = None
        self.refused: Callable[[str, str], None] = lambda address, reason: None
        """Called with the address of whoever makes no TLS connection, and why."""
        self._open: dict[socket.socket, _Open] = {}
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        super().__init__(*arguments)

    def server_bind(self) -> None:
        """Bind as `http.server` does, but without asking a name server who this host is."""
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
            if isinstance(connection, ssl.SSLSocket):
                with suppress(OSError, ValueError):  # the other side need not answer
                    connection.settimeout(0)
                    connection.unwrap()
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
            self.refused(":".join(map(str, client_address[:2])), reason)
            raise
        return secured

    def identity_of(self, connection: socket.socket) -> Identity | None:
        """Return who has shown a certificate; None: nothing is encrypted."""
        if self.tls is None or not isinstance(connection, ssl.SSLSocket):
            return None
        return self.tls.current.admin.identify_object(cast(ssl.SSLObject, connection))

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
        """Log at DEBUG only: that a client disconnects early is no error of the node."""
        remote, error = ":".join(map(str, client_address[:2])), sys.exception()
        log_event(logger, logging.DEBUG, "answering failed", exc_info=error, remote=remote)


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


class _ErrorStream(io.StringIO):
    """Writes the traceback that `wsgiref` reports for an error as one log line.

    That somebody has gone before the answer is no error of the node: strangers could fill the log.
    """

    def flush(self) -> None:
        """See `io.IOBase`; it is the end of a traceback, and the error is being handled."""
        if text := self.getvalue():
            self.seek(0)
            self.truncate()
            level = logging.DEBUG if isinstance(sys.exception(), _GONE) else logging.WARNING
            log_event(logger, level, "answering failed", traceback=text)


class QuietHandler(WSGIRequestHandler):
    """Answers one request, with no line of its own on standard error."""

    timeout = REQUEST_SECONDS

    def get_environ(self) -> dict[str, Any]:
        """See `WSGIRequestHandler`; besides, whose certificate was shown."""
        environ = super().get_environ()
        environ[REMOTE_PORT] = str(self.client_address[1])
        server = cast(AdminServer, self.server)
        environ[IDENTITY] = server.identity_of(self.connection)
        return environ

    def get_stderr(self) -> TextIO:
        """See `WSGIRequestHandler`: standard error is for log lines."""
        return _ErrorStream()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base's name)
        """See `BaseHTTPRequestHandler`."""
        log_event(logger, logging.DEBUG, "admin request", text=foreign(format % args))
