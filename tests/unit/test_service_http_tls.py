"""The admin port with TLS: who sees what, and who holds up nobody else."""

import http.client
import json
import socket
import ssl

import pytest
from prometheus_client import CollectorRegistry

from certificates import OTHER_CLUSTER_ID, Authority
from quorumlog.model.audit_events import NO_AUDIT
from quorumlog.model.config import NodeConfig
from quorumlog.model.tls_config import TlsConfig
from quorumlog.service import admin_server
from quorumlog.service.admin_access import Access, AdminRequest, access_of
from quorumlog.service.admin_server import CONNECTIONS_MAX
from quorumlog.service.http import AdminPort
from quorumlog.transport.node_tls import NodeTls
from quorumlog.transport.tls_contexts import client_context

PATIENCE_S = 60.0
NOW_S = 1_800_000_000.0


class Config:
    self_id = "n0"


class Node:
    def __init__(self):
        self.config, self.replicas, self.failed_groups = Config(), {}, {}


class Kept(type(NO_AUDIT)):
    def __init__(self):
        super().__init__()
        self.events = []

    def record(self, event):
        self.events.append(event)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def own(authority):
    return authority.node("n0")


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch):
    monkeypatch.setattr(admin_server, "REQUEST_SECONDS", PATIENCE_S)
    monkeypatch.setattr(admin_server.QuietHandler, "timeout", PATIENCE_S)


@pytest.fixture
def opened(authority, own):
    ports = []

    def open_port(anonymous="health", address="127.0.0.1:0", **keys):
        tls_config = TlsConfig(
            certificate=str(own.certificate), key=str(own.key), ca=str(authority.file), **keys
        )
        config = NodeConfig(
            self_id="n0",
            store_base_dir="/nowhere",
            listen="127.0.0.1:1",
            admin_listen="0.0.0.0:0",
            admin_anonymous=anonymous,
            tls=tls_config,
        )
        port = AdminPort(
            address,
            Node(),
            CollectorRegistry(),
            tls=NodeTls(tls_config, "n0", lambda: NOW_S),
            access=access_of(config),
            audit=Kept(),
        )
        port.start()
        ports.append(port)
        return port

    yield open_port
    for port in ports:
        port.stop()


def connected(port):
    return socket.create_connection(port._server.server_address, timeout=PATIENCE_S)


def asked(port, authority, path, pair=None):
    files = (str(pair.certificate), str(pair.key)) if pair else ()
    context = client_context(str(authority.file), *files)
    host, number = port._server.server_address[:2]
    connection = http.client.HTTPSConnection(host, number, timeout=PATIENCE_S, context=context)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_a_certificate_of_the_cluster_shows_everything(opened, authority):
    port, alice = opened(), authority.user("alice")
    status, body = asked(port, authority, "/health", alice)
    assert (status, json.loads(body)) == (200, {"node": "n0", "healthy": True, "groups": {}})
    assert asked(port, authority, "/metrics", alice)[0] == 200
    assert asked(port, authority, "/other", alice)[0] == 404
    assert port._audit.events == []


@pytest.mark.parametrize(
    ("anonymous", "expected"),
    [("none", [403, 403, 403]), ("health", [200, 403, 403]), ("all", [200, 200, 404])],
)
def test_who_shows_no_certificate_sees_what_is_configured(opened, authority, anonymous, expected):
    port = opened(anonymous)
    found = [asked(port, authority, path) for path in ("/health", "/metrics", "/other")]
    assert [status for status, _ in found] == expected
    if anonymous == "health":
        assert json.loads(found[0][1]) == {"healthy": True}
    refused = [event for event in port._audit.events if not event.allowed]
    assert len(refused) == expected.count(403)
    assert {event.event.value for event in refused} <= {"request-refused"}
    assert all(event.address.startswith("127.0.0.1:") for event in refused)


def test_a_certificate_of_another_cluster_is_none(opened, authority):
    strange = authority.issue("mallory", f"URI:quorumlog://{OTHER_CLUSTER_ID}/user/mallory")
    status, body = asked(opened(), authority, "/metrics", strange)
    assert status == 403
    assert f"is of cluster {OTHER_CLUSTER_ID}" in body


def test_plain_http_is_told_to_use_tls(opened):
    port = opened()
    with connected(port) as connection:
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        came = b""
        while piece := connection.recv(4_096):
            came += piece
    assert came.startswith(b"HTTP/1.0 400 Bad Request")
    assert b"this port speaks TLS: ask with https://" in came


def test_plain_http_is_answered_while_a_cluster_changes_over(opened):
    host, number = opened(mode="optional")._server.server_address
    connection = http.client.HTTPConnection(host, number, timeout=PATIENCE_S)
    connection.request("GET", "/health")
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())) == (200, {"healthy": True})
    connection.close()


def test_a_handshake_that_fails_is_recorded(opened, authority, tmp_path):
    port, stranger = opened(), Authority(tmp_path, name="stranger")
    with pytest.raises(ssl.SSLError):
        asked(port, stranger, "/health")
    while not port._audit.events:
        pass
    (event,) = port._audit.events
    assert event.event.value == "connection-refused"
    assert "does not trust the authority" in event.reason


@pytest.mark.usefixtures("_has_ipv6")
def test_a_handshake_over_ipv6_that_fails_is_recorded_with_brackets(opened):
    port = opened(address="[::1]:0")
    with socket.create_connection(port._server.server_address[:2], PATIENCE_S) as connection:
        connection.sendall(b"\x16no handshake")
        while connection.recv(4_096):
            pass
    port.stop()
    (event,) = port._audit.events
    assert event.address.startswith("[::1]:")


def test_who_is_silent_before_or_in_the_handshake_holds_up_nobody(opened, authority):
    port = opened()
    silent = []
    for number in range(2 * CONNECTIONS_MAX):
        silent.append(connected(port))
        if number % 2:
            silent[-1].sendall(b"\x16\x03\x01\x02\x00\x01")
    assert asked(port, authority, "/health")[0] == 200
    assert len(port._server._open) <= CONNECTIONS_MAX
    for one in silent:
        one.close()


@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01\x02\x00\x01"])
def test_a_handshake_that_takes_too_long_is_cut_off(opened, monkeypatch, begun):
    monkeypatch.setattr(admin_server, "REQUEST_SECONDS", 0.2)
    with connected(opened()) as connection:
        connection.sendall(begun)
        assert connection.recv(1) == b""


def test_a_newer_certificate_counts_for_the_next_connection(opened, authority):
    port = opened()
    before = port._server.tls.current
    asked(port, authority, "/health")
    newer = authority.node("n0", file="newer")
    port._server.tls.current = type(before)(
        TlsConfig(certificate=str(newer.certificate), key=str(newer.key), ca=str(authority.file)),
        "n0",
        lambda: NOW_S,
        lambda certificate: False,
    )
    host, number = port._server.server_address
    shown = ssl.get_server_certificate((host, number))
    assert shown.strip() == newer.certificate.read_text().strip()


def test_loopback_and_plain_ports_show_all_as_ever(own, authority):
    tls = TlsConfig(certificate=str(own.certificate), key=str(own.key), ca=str(authority.file))
    stranger = AdminRequest("GET", "/metrics", "127.0.0.1:1", "User:ANONYMOUS")
    given = {"self_id": "n0", "store_base_dir": "/nowhere", "listen": "127.0.0.1:1"}
    for admin, with_tls, expected in (
        ("127.0.0.1:0", tls, Access.ALL),
        ("0.0.0.0:0", None, Access.ALL),
        ("0.0.0.0:0", tls, Access.HEALTH),
    ):
        config = NodeConfig(**given, admin_listen=admin, tls=with_tls)
        assert access_of(config)(stranger).access is expected
