"""The admin port: /metrics for Prometheus and /health for people and load balancers."""

import io
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import TCPServer
from typing import Any, TextIO
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from quorumlog.log_events import log_event, reason_of
from quorumlog.model.codes import FAILED, Role
from quorumlog.model.config import parse_address
from quorumlog.model.errors import ConfigError
from quorumlog.node.node import Node
from quorumlog.node.replica.status import status_of

logger = logging.getLogger(__name__)

REQUEST_SECONDS = 10.0
"""Seconds for a connection in all, and for each of its pauses."""
CONNECTIONS_MAX = 16
"""Connections answered at a time."""
ACCEPT_PAUSE_S = 0.2


class _Server(WSGIServer):
    """Answers a bounded number of connections at a time, each for a bounded time.

    Each has a thread of its own. One connection more replaces the oldest. No host name is looked
    up.
    """

    request_queue_size = 16

    def __init__(self, *arguments: Any) -> None:
        self._open: dict[socket.socket, float] = {}
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
            self._open[request] = time.monotonic() + REQUEST_SECONDS
        thread = threading.Thread(
            target=self._answer,
            args=(request, client_address),
            name="quorumlog-admin-answer",
            daemon=True,
        )
        thread.start()
        self._threads = [one for one in self._threads if one.is_alive()] + [thread]

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            self.shutdown_request(request)

    def server_close(self) -> None:
        """End all connections, once no more are accepted; return when their threads have ended."""
        super().server_close()
        with self._lock:
            for request in list(self._open):
                self._cut_off(request)
        for thread in self._threads:
            thread.join()

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that was answered or cut off."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections that take too long; called twice a second."""
        now = time.monotonic()
        with self._lock:
            for late in [one for one, until in self._open.items() if now > until]:
                self._cut_off(late)

    def _cut_off(self, request: socket.socket) -> None:
        del self._open[request]
        with suppress(OSError):  # it has ended by itself
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log at DEBUG only: that a client disconnects early is no error of the node."""
        remote, error = ":".join(map(str, client_address[:2])), sys.exception()
        log_event(logger, logging.DEBUG, "answering failed", exc_info=error, remote=remote)


class _ErrorStream(io.StringIO):
    """Writes the traceback that `wsgiref` reports for an error as one log line."""

    def flush(self) -> None:
        """See `io.IOBase`; it is the end of a traceback."""
        if text := self.getvalue():
            self.seek(0)
            self.truncate()
            log_event(logger, logging.WARNING, "answering failed", traceback=text)


class _QuietHandler(WSGIRequestHandler):
    timeout = REQUEST_SECONDS

    def get_stderr(self) -> TextIO:
        """See `WSGIRequestHandler`: standard error is for log lines."""
        return _ErrorStream()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base's name)
        log_event(logger, logging.DEBUG, "admin request", text=format % args)


def health_of(node: Node) -> tuple[bool, dict[str, object]]:
    """Return whether the node is healthy, and for each group why or why not.

    A group is healthy when its replica is trusted and knows a leader.
    """
    groups: dict[str, object] = {}
    is_healthy = True
    for name, replica in list(node.replicas.items()):
        status = status_of(replica, node.config.self_id)
        group_is_healthy = status.healthy and status.leader_id is not None
        is_healthy = is_healthy and group_is_healthy
        groups[name] = {
            "healthy": group_is_healthy,
            "role": status.role,
            "term": status.term,
            "leader": status.leader_id,
            "committed_index": status.committed_index,
            "lag": [peer.lag for peer in status.peers] if status.role == Role.LEADER.value else [],
            "misplaced": replica.placement.is_elsewhere,
            "kind": replica.config.kind,
            "text": status.health_text or ("" if status.leader_id else "no leader known"),
        }
    for name, reason in node.failed_groups.items():
        is_healthy = False
        groups[name] = {"healthy": False, "role": FAILED, "text": reason}
    body: dict[str, object] = {"node": node.config.self_id, "healthy": is_healthy, "groups": groups}
    return is_healthy, body


class AdminPort:
    """Serves the two pages from threads of its own; reads the node, never changes it."""

    def __init__(self, address: str, node: Node, registry: CollectorRegistry) -> None:
        self._node = node
        self._metrics: Callable[..., Iterable[bytes]] = make_wsgi_app(registry)
        host, port = parse_address(address)
        try:
            self._server = make_server(
                host, port, self._page, server_class=_Server, handler_class=_QuietHandler
            )
        except OSError as error:
            raise ConfigError(f"adminListen {address}: {reason_of(error)}") from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="quorumlog-admin", daemon=True
        )

    def start(self) -> None:
        """Start to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving; returns once no thread reads the node any more."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def _page(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            return self._metrics(environ, start_response)
        if path == "/health":
            is_healthy, body = health_of(self._node)
            status = "200 OK" if is_healthy else "503 Service Unavailable"
            return _answer(start_response, status, "application/json", json.dumps(body))
        return _answer(start_response, "404 Not Found", "text/plain", "try /metrics or /health")


def _answer(start_response: Any, status: str, content_type: str, body: str) -> list[bytes]:
    raw = (body + "\n").encode()
    start_response(status, [("Content-Type", content_type), ("Content-Length", str(len(raw)))])
    return [raw]
