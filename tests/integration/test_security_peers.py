"""Clients of others, and ours, at a secure node: they get in, or both sides say why not.

Each line of `docs/security.md#what-both-sides-say` is here. kafkajs is in tests/clients.
"""

import asyncio
import logging
import os
import re
import shutil
import ssl
import time
from contextlib import contextmanager

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from certificates import CLUSTER_ID, DAY, OTHER_CLUSTER_ID, Authority
from login_access import Issuer
from login_cluster import login_node
from peer_programs import PASS, SECONDS, Trust, clients, curl, fail, s_client
from quorumlog.auth.acls import ResourceType
from quorumlog.auth.roles import Pattern, acls_of_role
from quorumlog.client import Client, Security
from quorumlog.errors import HandshakeError, LoginError, Outcome, RequestError
from quorumlog.log_events import EVENT_FIELDS
from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.base import Hello
from quorumlog.model.secrets import Secret
from quorumlog.model.tls_config import TlsConfig
from quorumlog.node.node import wall_ms
from quorumlog.service import admin_access, audit
from quorumlog.transport import client_lines, node_tls
from secured_peers import client_hello, context_of, native

ALL = ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"]
PASSWORD = "of = all, of them"
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is lacking")
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is lacking")


class Pki:
    """An authority, another one that nobody here trusts, and certificates of both."""

    def __init__(self, directory, other_directory):
        self.ca = Authority(directory)
        self.stranger = Authority(other_directory, "stranger")
        user = f"URI:quorumlog://{CLUSTER_ID}/user/alice"
        server_alone = (ExtendedKeyUsageOID.SERVER_AUTH,)
        of_another = f"URI:quorumlog://{OTHER_CLUSTER_ID}/user/alice"
        self.pairs = {
            "alice": self.ca.user("alice"),
            "wrong authority": self.stranger.user("alice", file="wrong"),
            "expired": self.ca.user("alice", file="expired", begin=-2 * DAY, end=-DAY),
            "not yet valid": self.ca.user("alice", file="early", begin=DAY, end=2 * DAY),
            "wrong use": self.ca.issue("use", user, usage=server_alone),
            "revoked": self.ca.user("alice", file="revoked"),
            "another cluster": self.ca.issue("other", of_another),
            "a node's": self.ca.node("n1"),
        }
        self.crl = self.ca.revoke(self.pairs["revoked"])
        host = "DNS:elsewhere.example"
        self.of_node = {
            "own": self.ca.node("n0"),
            "expired": self.ca.node("n0", file="late-n0", begin=-2 * DAY, end=-DAY),
            "not yet valid": self.ca.node("n0", file="early-n0", begin=DAY, end=2 * DAY),
            "wrong name": self.ca.issue("name", f"URI:quorumlog://{CLUSTER_ID}/node/n0", host),
        }

    def tls(self, which="own"):
        pair = self.of_node[which]
        return TlsConfig(
            certificate=str(pair.certificate), key=str(pair.key), ca=str(self.ca.file),
            crl=str(self.crl),
        )  # fmt: skip


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return Pki(tmp_path_factory.mktemp("ca"), tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="module")
def issuer():
    return Issuer(wall_ms)


@pytest.fixture(scope="module")
def _each_has_its_line():
    """All clients of these tests have one address: without this only the first has a line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_lines, "PAUSE_S", 0.0)
        patch.setattr(audit, "SUMMED_S", 0.0)
        patch.setattr(admin_access, "is_loopback", lambda host: False)
        yield


@pytest.fixture(scope="module")
def node(tmp_path_factory, pki, issuer, _each_has_its_line):
    """A node of TLS, certificates, all logins, and rights."""
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    keys.write_bytes(issuer.jwks)
    with login_node(
        tmp_path_factory.mktemp("node"),
        pki.tls(),
        groups=["g"],
        has_admin=True,
        authorization="on",
        mechanisms=ALL,
        oauth_jwks_file=str(keys),
        oauth_issuer="issuer",
        oauth_audience="log",
    ) as node:
        node.create_topic("t", os.urandom(16))
        node.add_user("alice", PASSWORD)
        own = [Pattern(ResourceType.TOPIC, "t"), Pattern(ResourceType.GROUP, "g")]
        consumers = Pattern(ResourceType.CONSUMER_GROUP, "unused")
        node.give(acls_of_role("reader", "User:alice", [*own, consumers]))
        node.give(acls_of_role("writer", "User:alice", own))
        node.give(acls_of_role("monitor", "User:alice"))
        yield node


@pytest.fixture(scope="module")
def plain(tmp_path_factory, _each_has_its_line):
    """A node without TLS."""
    place = tmp_path_factory.mktemp("plain")
    with login_node(place, groups=["g"], has_admin=True, login="none") as node:
        yield node


@contextmanager
def showing(node, pki, which):
    """Have the node show another certificate, as if that had come to be so while it runs.

    Nodes do not start with certificates that their peers would refuse.
    """
    tls = node.served.node.tls
    before, pair = tls.current, pki.of_node[which]
    decoded = ssl._ssl._test_decode_cert(str(pair.certificate))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_tls, "_shake_hands", lambda *given: decoded)
        tls.current = node_tls.TlsState(pki.tls(which), "n0", time.time, before.is_revoked)
    try:
        yield
    finally:
        tls.current = before


@pytest.fixture
def lines(caplog, monkeypatch):
    """What nodes write into their logs and audit logs, and what libraries of clients log."""
    caplog.set_level(logging.WARNING, "kafka")  # our command line lets it log nothing
    return Lines(caplog, monkeypatch)


class Lines:
    def __init__(self, caplog, monkeypatch):
        self._caplog = caplog
        self._audited = []
        record = audit.AuditLog.record

        def kept(log, event):
            self._audited.append(f"{event.event.value}: {event.reason}")
            record(log, event)

        monkeypatch.setattr(audit.AuditLog, "record", kept)

    @property
    def of_libraries(self):
        found = [one for one in self._caplog.records if not hasattr(one, EVENT_FIELDS)]
        return "\n".join(one.getMessage() for one in found)

    @property
    def logged(self):
        """The lines of nodes' logs, with their fields."""
        return [
            f"{one.getMessage()}: {getattr(one, EVENT_FIELDS)}"
            for one in list(self._caplog.records)
            if hasattr(one, EVENT_FIELDS)
        ]

    def await_line(self, pattern):
        """Wait until the log and the audit log of the node have a line each."""
        self.await_log(pattern)
        self.await_audit(pattern)

    def await_log(self, pattern):
        self._await(pattern, lambda: self.logged)

    def await_audit(self, pattern):
        self._await(pattern, lambda: list(self._audited))

    def _await(self, pattern, lines):
        until = time.monotonic() + SECONDS
        while not any(re.search(pattern, one) for one in lines()):
            assert time.monotonic() < until, (pattern, self.logged, self._audited)
            time.sleep(0.005)


async def appended(node, security, timeout_ms=SECONDS * 1000):
    """Append by our own client and read back; return the body and what the node says of itself."""
    async with Client(node.address, "g", security=security, timeout_ms=timeout_ms) as client:
        at = await client.append(b"value")
        (status,) = await client.status()
        return (await client.get(at.index)).body, status


def refused(node, trust):
    """Return the error of our own client."""
    security = None
    if trust.ca:
        security = Security(ca=trust.ca, certificate=trust.certificate, key=trust.key)
    with pytest.raises(RequestError) as raised:
        asyncio.run(appended(node, security))
    assert raised.value.outcome is Outcome.DID_NOT_HAPPEN
    assert not raised.value.retriable
    return raised.value


# -- who gets in ----------------------------------------------------------------------------------


def trust_by(how, pki, issuer):
    if how == "certificate":
        return Trust(pki.ca, pki.pairs["alice"])
    if how == "OAUTHBEARER":
        return Trust(pki.ca, mechanism=how, token=issuer.token(sub="alice"))
    return Trust(pki.ca, mechanism=how, user="alice", password=PASSWORD)


@pytest.mark.parametrize("client", PASS)
@pytest.mark.parametrize("how", [*ALL, "certificate"])
def test_clients_of_kafka_produce_and_consume(node, pki, issuer, client, how):
    value = f"{client} {how}".encode()
    assert PASS[client](node, trust_by(how, pki, issuer), "t", value) == value


@pytest.mark.parametrize("how", [*ALL, "certificate"])
async def test_our_client_appends_and_reads(node, pki, issuer, how):
    trust = trust_by(how, pki, issuer)
    security = Security(
        ca=trust.ca,
        certificate=trust.certificate,
        key=trust.key,
        mechanism=trust.mechanism,
        user=trust.user,
        password=Secret(trust.password) if trust.password else None,
        token=Secret(trust.token) if trust.token else None,
    )
    body, status = await appended(node, security)
    assert body == b"value"
    assert (status.code, status.node_id) == (ResponseCode.SUCCESS, "n0")


@needs_curl
def test_curl_sees_the_pages(node, pki):
    trust = Trust(pki.ca, pki.pairs["alice"])
    assert curl(node, trust).startswith("HTTP/1.0 200 OK")
    assert '"groups"' in curl(node, trust, "/health")


@needs_openssl
@pytest.mark.parametrize("port", ["address", "kafka", "admin"])
def test_openssl_speaks_tls_1_3_with_each_port_and_nothing_older(node, pki, lines, port):
    address, trust = getattr(node, port), Trust(pki.ca, pki.pairs["alice"])
    said = s_client(address, trust, given=b"\r\n" * 20)  # is no request of any port: it ends
    assert "New, TLSv1.3" in said
    assert "Verify return code: 0 (ok)" in said
    for version in ("-tls1_2", "-tls1_1"):
        said = s_client(address, trust, version, "-cipher", "ALL:@SECLEVEL=0")
        assert "alert protocol version" in said
        assert "New, TLSv1" not in said
    lines.await_audit("connection-refused: there is no common version of TLS")


# -- whom the node does not let in ----------------------------------------------------------------

REFUSED = {
    "wrong authority": (
        "unknown ca",
        "does not trust the authority of the certificate",
        "its certificate is of an authority that is not trusted here",
    ),
    "expired": (
        "certificate expired",
        "refuses the certificate .*: expired",
        "its certificate has expired .the clock here: 20",
    ),
    "not yet valid": (
        "bad certificate",
        "refuses the certificate .*: it is malformed, not valid yet, or",
        "its certificate is not valid yet .the clock here: 20",
    ),
    "wrong use": (
        "unsupported certificate",
        "refuses the certificate .*: it is not for this use",
        "its certificate is not for this use",
    ),
    "revoked": (
        "certificate revoked",
        "refuses the certificate .*: revoked",
        "its certificate is revoked",
    ),
}
"""By what is wrong with a user's certificate: TLS's word for it, what our client says, and the
node's line."""


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("client", clients())
def test_a_client_whose_certificate_is_refused_says_so(node, pki, lines, client, case):
    alert, _, line = REFUSED[case]
    said = fail(client, node, Trust(pki.ca, pki.pairs[case])) + lines.of_libraries
    if client == "aiokafka":  # it does not tell
        assert re.search("Connection at .* closed", said)
    else:
        assert alert in said.lower().replace("_", " ")
    if client == "curl":  # the admin port has no lines of its own in the log
        lines.await_audit(f"connection-refused: {line}")
    else:
        lines.await_line(line)


@pytest.mark.parametrize("case", REFUSED)
def test_our_client_whose_certificate_is_refused_says_so_at_once(node, pki, lines, case):
    error = refused(node, Trust(pki.ca, pki.pairs[case]))
    assert isinstance(error, HandshakeError)
    assert re.match(f"{node.address}: the other side {REFUSED[case][1]}", str(error))
    lines.await_line(REFUSED[case][2])


NO_CLIENTS = {
    "another cluster": f"the certificate of alice is of cluster {OTHER_CLUSTER_ID}, this is "
    f"{CLUSTER_ID}",
    "a node's": "the certificate of node n1 was shown by a client, which needs a user's "
    "certificate or none",
}
"""What TLS accepts, and the node does not: TLS has no word for it."""


@pytest.mark.parametrize("case", NO_CLIENTS)
@pytest.mark.parametrize("client", clients("curl"))
def test_kafkas_clients_with_a_certificate_of_somebody_else_are_closed(
    node, pki, lines, client, case
):
    said = fail(client, node, Trust(pki.ca, pki.pairs[case])) + lines.of_libraries
    assert re.search("closed|disconnected|brokers are down|unexpected eof", said)
    lines.await_line(re.escape(NO_CLIENTS[case]).replace("'", "."))


@pytest.mark.parametrize("case", NO_CLIENTS)
def test_our_client_with_a_certificate_of_somebody_else_is_told_whose(node, pki, lines, case):
    error = refused(node, Trust(pki.ca, pki.pairs[case]))
    assert isinstance(error, LoginError)
    assert str(error).endswith(NO_CLIENTS[case])
    lines.await_line(re.escape(NO_CLIENTS[case]).replace("'", "."))


@needs_curl
def test_curl_with_a_certificate_of_another_cluster_is_told_whose(node, pki, lines):
    said = curl(node, Trust(pki.ca, pki.pairs["another cluster"]))
    assert re.match("HTTP/1.0 40[13] ", said)
    assert NO_CLIENTS["another cluster"] in said
    lines.await_audit(f"request-refused: {NO_CLIENTS['another cluster']}")


PEERS = {
    "alice": "a user's certificate (alice) was shown for node n2",
    "a node's": "the certificate of node n1 was shown for node n2",
    "another cluster's node": f"the certificate of n2 is of cluster {OTHER_CLUSTER_ID}, this is "
    f"{CLUSTER_ID}",
    "none": f"no node's certificate was shown for n2: it needs the URI quorumlog://{CLUSTER_ID}"
    "/node/n2",
}
"""Whose certificate is shown by who says that it is the node n2."""


@pytest.mark.parametrize("shows", PEERS)
@pytest.mark.parametrize("role", ["control", "bulk"])
async def test_a_peer_that_is_another_one_is_told_so(node, pki, lines, shows, role):
    pair = pki.pairs.get(shows)
    if shows == "another cluster's node":
        pair = pki.ca.issue("n2", f"URI:quorumlog://{OTHER_CLUSTER_ID}/node/n2")
    hello = client_hello(role, "n2", cluster="quorumlog")
    async with native(node, context_of(pki.ca, pair), hello) as peer:
        *_, told = await peer.all()
    assert isinstance(told, Hello)
    assert (told.code, told.text) == (ResponseCode.LOGIN_REFUSED, PEERS[shows])
    await asyncio.to_thread(lines.await_line, re.escape(PEERS[shows]).replace("'", "."))


# -- nodes that a client does not accept ----------------------------------------------------------

STRANGE = {
    "wrong authority": (
        "self-signed certificate in certificate chain",
        "its certificate is of an authority that is not trusted here",
        "does not trust the authority of the certificate",
    ),
    "expired": (
        "certificate has expired",
        "its certificate has expired .the clock here: 20",
        "refuses the certificate .*: expired",
    ),
    "not yet valid": (
        "certificate is not yet valid",
        "its certificate is not valid yet .the clock here: 20",
        "refuses the certificate .*: it is malformed, not valid yet, or for another name",
    ),
    "wrong name": (
        "IP address mismatch|hostname mismatch|no alternative certificate subject name",
        "its certificate is for another name: IP address mismatch",
        "refuses the certificate .*: it is malformed, not valid yet, or for another name",
    ),
}
"""By what is wrong with a node's certificate: OpenSSL's words, ours, and the node's line."""
GONE = "the other side ended the connection during the TLS handshake"


@contextmanager
def strange(node, pki, case):
    """Yield whom a client trusts, for which the node's certificate is no good."""
    if case == "wrong authority":
        yield Trust(pki.stranger)
    else:
        with showing(node, pki, case):
            yield Trust(pki.ca)


@pytest.mark.parametrize("case", STRANGE)
@pytest.mark.parametrize("client", clients())
def test_a_client_that_does_not_accept_the_node_says_why(node, pki, lines, client, case):
    words, _, line = STRANGE[case]
    with strange(node, pki, case) as trust:
        said = fail(client, node, trust) + lines.of_libraries
    if client == "confluent-kafka":  # all are one to it
        words = "certificate verify failed"
    assert re.search(words, said)
    if (client, case) != ("curl", "wrong name"):  # it looks when TLS is through, and says nothing
        lines.await_audit(f"connection-refused: .*({line}|{GONE})")


@pytest.mark.parametrize("case", STRANGE)
def test_our_client_that_does_not_accept_the_node_says_why_at_once(node, pki, lines, case):
    with strange(node, pki, case) as trust:
        error = refused(node, trust)
    assert isinstance(error, HandshakeError)
    assert re.match(f"{node.address}: {STRANGE[case][1]}", str(error))
    lines.await_line(STRANGE[case][2])


def test_our_client_does_not_accept_a_node_of_another_cluster(node, pki, lines):
    security = Security(ca=str(pki.ca.file), cluster_id=OTHER_CLUSTER_ID)
    with pytest.raises(HandshakeError) as raised:
        asyncio.run(appended(node, security))
    assert str(raised.value) == (
        f"{node.address}: its certificate is of node n0 of cluster {CLUSTER_ID}, not of cluster "
        f"{OTHER_CLUSTER_ID}"
    )


# -- TLS to a plain port, and the reverse ---------------------------------------------------------


@pytest.mark.parametrize("client", clients("openssl"))
def test_a_plain_client_of_a_tls_port_is_refused(node, lines, client):
    said = fail(client, node, Trust("")) + lines.of_libraries
    if client == "curl":
        assert said.startswith("HTTP/1.0 400 ")
        assert "this port speaks TLS: ask with https://" in said
    else:
        assert re.search("closed|disconnected|brokers are down", said)
        lines.await_line("a plain connection; this port speaks TLS only")


def test_our_plain_client_of_a_tls_port_is_told_so_at_once(node, lines):
    error = refused(node, Trust(""))
    assert isinstance(error, HandshakeError)
    assert "this port speaks TLS: give the certificate of its authority (ca)" in str(error)
    assert error.code == ResponseCode.TLS_REQUIRED
    lines.await_line("a plain connection; this port speaks TLS only")


@pytest.mark.parametrize("client", clients())
def test_a_tls_client_of_a_plain_port_is_refused(plain, pki, lines, client):
    said = fail(client, plain, Trust(pki.ca)) + lines.of_libraries
    assert re.search("(?i)protocol.version|wrong version number", said), said
    if client != "curl":
        lines.await_line(
            "begins with a TLS handshake; set security.protocol=PLAINTEXT: this port speaks"
        )


def test_our_client_with_tls_does_not_go_on_without_it(plain, pki, lines):
    error = refused(plain, Trust(pki.ca))
    assert isinstance(error, HandshakeError)
    assert str(error) == (
        f"{plain.address}: it does not speak TLS (a node without [tls] in its configuration)"
    )


# -- logins ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "user", "why"),
    [
        ("SCRAM-SHA-256", "guest", "unknown_user"),
        ("SCRAM-SHA-512", "visitor", "unknown_user"),
        ("PLAIN", "alice", "password"),
        ("OAUTHBEARER", "", "token"),
    ],
)
async def test_wrong_logins_of_our_client_read_alike_and_the_node_says_why(
    node, pki, issuer, lines, how, user, why
):
    given = {"user": user, "password": Secret("wrong")}
    if how == "OAUTHBEARER":
        given = {"token": Secret(issuer.token(sub="alice", iss="somebody else"))}
    security = Security(ca=str(pki.ca.file), mechanism=how, **given)
    with pytest.raises(LoginError, match=r": login refused$") as raised:
        await appended(node, security)
    assert raised.value.outcome is Outcome.DID_NOT_HAPPEN
    await asyncio.to_thread(lines.await_log, f"refused a login: .*'why': '{why}'")
    await asyncio.to_thread(lines.await_audit, f"login-refused: {why}")
