"""The admin port: /metrics for Prometheus and /health for people and load balancers."""

import json
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final
from wsgiref.simple_server import make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from quorumlog.auth.certificates import ANONYMOUS
from quorumlog.log_events import reason_of
from quorumlog.model.audit_events import (
    BY_CERTIFICATE,
    NO_AUDIT,
    Audit,
    AuditedEvent,
    AuditEvent,
)
from quorumlog.model.codes import FAILED, Role
from quorumlog.model.config import parse_address
from quorumlog.model.errors import ConfigError
from quorumlog.model.wording import foreign
from quorumlog.node.node import Node
from quorumlog.node.replica.status import status_of
from quorumlog.service.admin_access import Access, AdminRequest, Verdict, see_all
from quorumlog.service.admin_server import IDENTITY, IS_OPEN, REMOTE, AdminServer, QuietHandler
from quorumlog.transport.node_tls import NodeTls
from quorumlog.transport.tls import Identity

REST: Final = 3
"""After the page of metrics none is computed for this many times what it took."""
REST_MAX_S: Final = 1.0
"""But for no longer than this, in seconds."""
NOT_TLS: Final = "this port speaks TLS: ask with https://"


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


class PacedMetrics:
    """The page of metrics, which is computed once at a time, and for a quarter of the time at most,
    unless it takes longer than a third of `REST_MAX_S`.

    It takes milliseconds, for which the loop has to share the interpreter. `page` returns what
    `application` does. `now` and `sleep` are in seconds.
    """

    def __init__(
        self,
        application: Callable[..., Iterable[bytes]],
        now: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._application = application
        self._now, self._sleep = now, sleep
        self._lock = threading.Lock()
        self._rests_until = now()

    def page(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Compute the page when its time has come, unless nobody waits for it any more."""
        with self._lock:
            rest = self._rests_until - self._now()
            if rest > 0 and environ[IS_OPEN]():
                self._sleep(rest)
            if not environ[IS_OPEN]():
                return _answer(start_response, "503 Service Unavailable", "text/plain", "cut off")
            begun = self._now()
            answer = self._application(environ, start_response)
            ended = self._now()
            self._rests_until = ended + min(REST * (ended - begun), REST_MAX_S)
        return answer


class AdminPort:
    """Serves the two pages from threads of its own; reads the node, never changes it.

    `tls`: what is spoken; None: nothing is encrypted. `access` says how much of the pages whoever
    asks may see, and `stop_access` has it answer at once. `audit` is told of those who may not see
    what they ask for.
    Raises `ConfigError` if the address cannot be used.
    """

    def __init__(
        self,
        address: str,
        node: Node,
        registry: CollectorRegistry,
        *,
        tls: NodeTls | None = None,
        access: Callable[[AdminRequest], Verdict] = see_all,
        stop_access: Callable[[], None] = lambda: None,
        audit: Audit = NO_AUDIT,
    ) -> None:
        self._node = node
        self._access, self._stop_access = access, stop_access
        self._audit = audit
        self._metrics = PacedMetrics(make_wsgi_app(registry), time.monotonic, time.sleep)
        host, port = parse_address(address)
        try:
            self._server = make_server(
                host, port, self._page, server_class=AdminServer, handler_class=QuietHandler
            )
        except OSError as error:
            raise ConfigError(f"adminListen {address}: {reason_of(error)}") from error
        self._server.tls, self._server.refused = tls, self._record_broken
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
        self._stop_access()
        self._server.server_close()

    def _page(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path, identity = environ.get("PATH_INFO", "/"), environ[IDENTITY]
        tls = self._server.tls
        if tls is not None and identity is None and not tls.is_optional:
            return _answer(start_response, "400 Bad Request", "text/plain", NOT_TLS)
        request = AdminRequest(
            environ["REQUEST_METHOD"],
            path,
            environ[REMOTE],
            identity.principal if isinstance(identity, Identity) else ANONYMOUS,
            environ.get("HTTP_AUTHORIZATION", ""),
            identity is not None,
        )
        verdict = self._access(request)
        if path == "/health" and verdict.access is not Access.NONE:
            is_healthy, body = health_of(self._node)
            status = "200 OK" if is_healthy else "503 Service Unavailable"
            if verdict.access is not Access.ALL:
                body = {"healthy": is_healthy}
            return _answer(start_response, status, "application/json", json.dumps(body))
        if verdict.access is not Access.ALL:
            refusal = identity.refusal if isinstance(identity, Identity) else ""
            text = refusal or verdict.text
            if not verdict.is_recorded:
                self._record_refusal(request, text)
            return _answer(start_response, verdict.status, "text/plain", text, verdict.challenges)
        if path == "/metrics":
            return self._metrics.page(environ, start_response)
        return _answer(start_response, "404 Not Found", "text/plain", "try /metrics or /health")

    def _record_broken(self, address: str, reason: str) -> None:
        event = AuditedEvent.CONNECTION_REFUSED
        self._audit.record(
            AuditEvent(event=event, address=address, allowed=False, reason=foreign(reason))
        )

    def _record_refusal(self, request: AdminRequest, reason: str) -> None:
        self._audit.record(
            AuditEvent(
                event=AuditedEvent.REQUEST_REFUSED,
                principal=request.principal,
                mechanism="" if request.principal == ANONYMOUS else BY_CERTIFICATE,
                address=request.address,
                resource="cluster",
                operation="Describe",
                allowed=False,
                reason=reason,
                request=f"{request.method} {foreign(request.path)}",
            )
        )


def _answer(
    start_response: Any,
    status: str,
    content_type: str,
    body: str,
    challenges: Iterable[str] = (),
) -> list[bytes]:
    raw = (body + "\n").encode()
    headers = [("Content-Type", content_type), ("Content-Length", str(len(raw)))]
    headers += [("WWW-Authenticate", challenge) for challenge in challenges]
    start_response(status, headers)
    return [raw]
