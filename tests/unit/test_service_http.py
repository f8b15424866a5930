"""The admin port answers a bounded number of connections, each for a bounded time."""

import http.client
import json
import logging
import re
import socket
import ssl
import threading

import pytest
from prometheus_client import CollectorRegistry

from quorumlog.auth.login import origin_of
from quorumlog.log_events import EVENT_FIELDS
from quorumlog.model.audit_events import NO_AUDIT
from quorumlog.model.errors import ConfigError
from quorumlog.service import admin_server
from quorumlog.service.admin_access import Access, Verdict
from quorumlog.service.admin_server import CONNECTIONS_MAX, IS_OPEN
from quorumlog.service.http import REST_MAX_S, AdminPort, PacedMetrics

PATIENCE_S = 60.0
"""For what happens on another thread; nothing is judged by it."""


class Config:
    self_id = "n0"


class Node:
    def __init__(self):
        self.config, self.replicas, self.failed_groups = Config(), {}, {}


class BrokenNode:
    config = Config()

    @property
    def replicas(self):
        raise RuntimeError("as in a bug")


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch):
    monkeypatch.setattr(admin_server, "REQUEST_SECONDS", PATIENCE_S)
    monkeypatch.setattr(admin_server.QuietHandler, "timeout", PATIENCE_S)


@pytest.fixture
def opened():
    ports = []

    def open_port(node=None, address="127.0.0.1:0", **more):
        ports.append(AdminPort(address, node or Node(), CollectorRegistry(), **more))
        ports[-1].start()
        return ports[-1]

    yield open_port
    for port in ports:
        port.stop()


def connected(port):
    return socket.create_connection(port._server.server_address[:2], timeout=PATIENCE_S)


def asked(port, path):
    host, number = port._server.server_address[:2]
    connection = http.client.HTTPConnection(host, number, timeout=PATIENCE_S)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def ended(connection):
    """Wait until the other side has ended a connection; return what came before."""
    came = b""
    with connection:
        while piece := connection.recv(4_096):
            came += piece
    return came


def test_pages_and_what_is_none(opened):
    port = opened()
    status, body = asked(port, "/health")
    assert (status, json.loads(body)) == (200, {"node": "n0", "healthy": True, "groups": {}})
    assert asked(port, "/metrics")[0] == 200
    assert asked(port, "/other") == (404, "try /metrics or /health\n")


def test_a_connection_beyond_the_bound_replaces_the_oldest(opened):
    port = opened()
    idle = [connected(port) for _ in range(CONNECTIONS_MAX + 3)]
    for connection in idle[:3]:
        assert ended(connection) == b""
    for connection in idle[3:]:
        connection.sendall(b"GET /other HTTP/1.0\r\n\r\n")
        assert b"404" in ended(connection), "the others are still there"


def test_any_number_of_connections_takes_no_more_than_those_places(opened):
    port = opened()
    idle = []
    for _ in range(3 * CONNECTIONS_MAX):
        idle.append(connected(port))
        assert len(port._server._open) <= CONNECTIONS_MAX
    assert asked(port, "/health")[0] == 200
    for connection in idle:
        connection.close()


@pytest.mark.parametrize("started", [b"", b"G", b"GET / HTTP/1.0\r\nHost: slow\r\n"])
def test_a_request_that_takes_too_long_is_cut_off(opened, monkeypatch, started):
    monkeypatch.setattr(admin_server, "REQUEST_SECONDS", 0.0)
    connection = connected(opened())
    connection.sendall(started)
    ended(connection)


@pytest.mark.parametrize(
    "request_sent",
    [
        b"G" * 65_537,
        b"GET / HTTP/1.0\r\n" + b"A: b\r\n" * 101 + b"\r\n",
    ],
)
def test_an_oversized_request_is_refused(opened, request_sent):
    connection = connected(opened())
    connection.sendall(request_sent)
    assert ended(connection).split()[1] in {b"414", b"431"}


def test_no_name_is_looked_up(opened, monkeypatch):
    def never(*_):
        raise AssertionError("asks a name server")

    for name in ("getfqdn", "gethostbyaddr", "getnameinfo"):
        monkeypatch.setattr(socket, name, never)
    assert asked(opened(), "/health")[0] == 200


def test_a_page_that_cannot_be_made_is_a_log_line_and_nothing_else(opened, caplog, capfd):
    caplog.set_level(logging.WARNING)
    port = opened(BrokenNode())
    for _ in range(3):
        assert asked(port, "/health")[0] == 500
    (record,) = caplog.records
    assert record.message == "answering failed"
    assert str(record.exc_info[1]) == "as in a bug"
    assert capfd.readouterr().err == ""


class Kept(type(NO_AUDIT)):
    def __init__(self):
        self.events = []

    def record(self, event):
        self.events.append(event)


@pytest.mark.usefixtures("_has_ipv6")
def test_addresses_of_ipv6_have_brackets_in_the_log_and_the_audit_log(opened, caplog):
    caplog.set_level(logging.WARNING)
    audit, by_path = Kept(), {"/health": Verdict(Access.ALL), "/metrics": Verdict(Access.NONE)}
    port = opened(
        BrokenNode(), "[::1]:0", access=lambda request: by_path[request.path], audit=audit
    )
    assert asked(port, "/health")[0] == 500
    assert asked(port, "/metrics")[0] == 403
    remote = getattr(caplog.records[0], EVENT_FIELDS)["remote"]
    for address in (remote, audit.events[0].address):
        assert re.fullmatch(r"\[::1\]:\d+", address)
        assert origin_of(address, is_encrypted=False).is_loopback


@pytest.mark.usefixtures("_has_ipv6")
def test_a_port_of_ipv6_leaves_that_of_ipv4_to_others(opened):
    port = opened(address="[::]:0")
    assert asked(port, "/health")[0] == 200
    taken = port._server.server_address[1]
    opened(address=f"0.0.0.0:{taken}")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "TRACE", "OPTIONS", "get", "XX"])
def test_pages_are_read_and_nothing_else(opened, method):
    connection = connected(opened())
    connection.sendall(f"{method} /health HTTP/1.1\r\n\r\n".encode())
    answer = ended(connection)
    assert answer.split()[1] == b"405"
    assert b"\r\nAllow: GET, HEAD\r\n" in answer


@pytest.mark.parametrize("path", ["/health", "/metrics", "/other"])
def test_the_headers_alone_can_be_had_and_tell_no_version(opened, path):
    port = opened()
    answers = []
    for method in ("GET", "HEAD"):
        connection = connected(port)
        connection.sendall(f"{method} {path} HTTP/1.1\r\n\r\n".encode())
        answers.append(ended(connection))
    headers = [
        sorted(line for line in one.partition(b"\r\n\r\n")[0].splitlines() if b"Date" not in line)
        for one in answers
    ]
    assert headers[0] == headers[1]
    assert answers[1].endswith(b"\r\n\r\n")
    assert b"Python" not in answers[0].partition(b"\r\n\r\n")[0]


@pytest.mark.parametrize("line", [b"GET /health", b"XX /", b"GET /health HTTP/9.9", b"\xff \0"])
def test_what_is_no_request_is_answered_at_once_and_told_no_version(opened, line):
    connection = connected(opened())
    connection.sendall(line + b"\r\n")  # and nothing follows
    answer = ended(connection)
    assert answer.split()[1] in {b"400", b"505"}
    assert b"Python" not in answer


@pytest.mark.parametrize(("page_s", "rest_s"), [(0.004, 0.012), (1.0, REST_MAX_S)])
def test_pages_of_metrics_take_a_quarter_of_the_time_however_many_are_asked_for(page_s, rest_s):
    now, rests = [100.0], []

    def computed(environ, start_response):
        now[0] += page_s
        return [b"page"]

    def sleep(seconds):
        rests.append(seconds)
        now[0] += seconds

    metrics = PacedMetrics(computed, lambda: now[0], sleep)
    asked, left = {IS_OPEN: lambda: True}, {IS_OPEN: lambda: False}
    assert [metrics.page(asked, None) for _ in range(3)] == [[b"page"]] * 3
    assert rests == pytest.approx([rest_s, rest_s])
    now[0] += 15  # as Prometheus does
    metrics.page(asked, None)
    for _ in range(100):
        metrics.page(left, lambda status, headers: None)
    assert len(rests) == 2


def test_who_is_gone_before_the_answer_leaves_no_line(opened, monkeypatch, caplog):
    def broken(self, data):
        raise ssl.SSLEOFError(8, "EOF occurred in violation of protocol")

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(admin_server._Answering, "_write", broken)
    connection = connected(opened())
    connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
    ended(connection)
    assert caplog.records == []


def test_a_port_that_is_taken_is_named(opened):
    host, number = opened()._server.server_address
    with pytest.raises(ConfigError, match=f"adminListen {host}:{number}: Address already in use"):
        AdminPort(f"{host}:{number}", Node(), CollectorRegistry())


class HeldNode(Node):
    """A node whose page is being made until `go_on`."""

    def __init__(self):
        self.begun, self.go_on = threading.Event(), threading.Event()
        super().__init__()

    @property
    def replicas(self):
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)
        return {}

    @replicas.setter
    def replicas(self, _):
        pass


def threads_of_the_port():
    return [one for one in threading.enumerate() if one.name.startswith("quorumlog-admin")]


def test_a_port_that_has_stopped_has_no_thread_left_that_reads_the_node(opened):
    node = HeldNode()
    port = opened(node)
    idle, asking = connected(port), connected(port)
    asking.sendall(b"GET /health HTTP/1.0\r\n\r\n")
    assert node.begun.wait(PATIENCE_S)
    stopping = threading.Thread(target=port.stop)
    stopping.start()
    assert ended(idle) == b"", "connections that ask nothing are ended"
    assert threads_of_the_port(), "one is still reading the node"
    node.go_on.set()
    stopping.join(PATIENCE_S)
    assert threads_of_the_port() == []
    asking.close()


def test_what_a_stranger_asks_for_is_text_in_the_log(opened, caplog):
    caplog.set_level(logging.DEBUG)
    connection = connected(opened())
    connection.sendall(b"GET /\x1b[2J\xe2\x80\xae" + b"y" * 5_000 + b" HTTP/1.0\r\n\r\n")
    ended(connection)
    said = [
        getattr(one, EVENT_FIELDS)["text"]
        for one in caplog.records
        if "text" in vars(one).get(EVENT_FIELDS, {})
    ]
    assert said
    assert all(text.isprintable() and len(text) <= 200 for text in said)
