"""The admin port beyond loopback: who logs in by password or token, and has a right, sees all."""

import asyncio
import base64
import contextlib
import http.client
import json
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry

from certificates import Authority
from login_access import Issuer
from login_cluster import login_node
from quorumlog.auth.acls import (
    CLUSTER_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from quorumlog.auth.certificates import ANONYMOUS
from quorumlog.machine.cluster.commands import AlterAcls
from quorumlog.model.config import NodeConfig
from quorumlog.model.tls_config import TlsConfig
from quorumlog.node.node import wall_ms
from quorumlog.service.admin_access import (
    HOST_LOGINS_MAX,
    Access,
    AdminMembers,
    AdminRequest,
    access_of,
    message_of,
)
from quorumlog.service.http import AdminPort
from quorumlog.transport.tls_contexts import client_context

SECONDS = 60
PASSWORD = "a password: of bob"
CHALLENGES = ['Basic realm="quorumlog", charset="UTF-8"', 'Bearer realm="quorumlog"']


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def issuer():
    return Issuer(wall_ms)


@pytest.fixture(scope="module")
def node(tmp_path_factory, authority, issuer):
    pair, keys = authority.node("n0"), authority.directory / "keys.json"
    keys.write_bytes(issuer.jwks)
    tls = TlsConfig(certificate=str(pair.certificate), key=str(pair.key), ca=str(authority.file))
    with login_node(
        tmp_path_factory.mktemp("node"),
        tls,
        mechanisms=["SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"],
        oauth_jwks_file=str(keys),
        oauth_issuer="issuer",
        oauth_audience="log",
        authorization="on",
        super_users=["User:admin"],
    ) as made:
        for user in ("bob", "eve"):
            made.add_user(user, PASSWORD)
        allowed = [
            Acl(
                ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL, f"User:{user}", "*",
                Operation.DESCRIBE, Permission.ALLOW,
            )
            for user in ("bob", "token-user")
        ]  # fmt: skip
        made.run(made.broker.execute(AlterAcls("User:admin", "", allowed, []), SECONDS * 1_000))
        yield made


@contextmanager
def opened(node, anonymous="health", logins=True):
    """The admin port as if it were beyond loopback."""
    served = node.served
    config = NodeConfig(
        self_id="n0",
        store_base_dir="/nowhere",
        listen="127.0.0.1:1",
        admin_listen="0.0.0.0:0",
        admin_anonymous=anonymous,
        tls=served.node.config.tls,
    )
    members = AdminMembers(node._loop, served._logins if logins else None, served._kafka.authorizer)
    port = AdminPort(
        "127.0.0.1:0",
        served.node,
        CollectorRegistry(),
        tls=served.node.tls,
        access=access_of(config, members),
        stop_access=members.stop,
    )
    port.start()
    try:
        yield port
    finally:
        port.stop()


@pytest.fixture(scope="module")
def port(node):
    with opened(node) as made:
        yield made


def url_of(port, path):
    return f"https://127.0.0.1:{port._server.server_address[1]}{path}"


def asked(port, authority, path, authorization="", pair=None):
    """Return status, challenges and body of an answer to urllib."""
    files = (str(pair.certificate), str(pair.key)) if pair else ()
    request = urllib.request.Request(url_of(port, path))
    if authorization:
        request.add_header("Authorization", authorization)
    context = client_context(str(authority.file), *files)
    try:
        answer = urllib.request.urlopen(request, timeout=SECONDS, context=context)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        body = answer.read().decode()
        return answer.status, answer.headers.get_all("WWW-Authenticate") or [], body


def basic(user, password=PASSWORD):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_strangers_see_whether_the_node_is_well_and_are_told_how_to_log_in(port, authority):
    status, challenges, body = asked(port, authority, "/health")
    assert (status, challenges, json.loads(body)) == (200, [], {"healthy": True})
    for path in ("/metrics", "/other"):
        status, challenges, body = asked(port, authority, path)
        assert (status, challenges) == (401, CHALLENGES)
        assert "log in, or show a client certificate" in body


def test_a_user_with_the_right_sees_all(port, authority, issuer):
    for authorization in (basic("bob"), f"Bearer {issuer.token(sub='token-user')}"):
        status, _, body = asked(port, authority, "/health", authorization)
        assert (status, json.loads(body)["node"]) == (200, "n0")
        assert asked(port, authority, "/metrics", authorization)[0] == 200
        assert asked(port, authority, "/other", authorization)[0] == 404


def test_a_user_without_the_right_sees_what_strangers_do_and_is_told_why(port, authority):
    status, challenges, body = asked(port, authority, "/metrics", basic("eve"))
    assert (status, challenges) == (403, [])
    assert body.startswith("eve may not describe the cluster")
    assert "quorumlog acl add --user eve --operation describe --cluster" in body
    assert asked(port, authority, "/other", basic("eve"))[0] == 403
    assert json.loads(asked(port, authority, "/health", basic("eve"))[2]) == {"healthy": True}


def test_certificates_are_judged_alike(port, authority):
    for user, status in (("admin", 200), ("bob", 200), ("eve", 403)):
        assert asked(port, authority, "/metrics", pair=authority.user(user))[0] == status
    of_node = authority.node("n9")
    assert asked(port, authority, "/metrics", pair=of_node)[0] == 200


def test_who_logs_in_and_shows_a_certificate_is_who_has_logged_in(port, authority):
    eve = authority.user("eve")
    assert asked(port, authority, "/metrics", basic("bob"), eve)[0] == 200
    assert asked(port, authority, "/metrics", basic("eve"), authority.user("bob"))[0] == 403


def test_a_refused_login_is_answered_late_whatever_is_wrong_and_recorded(
    port, node, authority, issuer
):
    for authorization in (
        basic("bob", "wrong"),
        basic("nobody"),
        basic("admin"),  # a super user comes by a certificate
        f"Bearer {issuer.token(sub='token-user')}x",
    ):
        before = sum(node.counters.refused.values())
        status, challenges, body = asked(port, authority, "/health", authorization)
        assert (status, challenges, body) == (401, CHALLENGES, "login refused\n")
        assert sum(node.counters.refused.values()) == before + 1
    delays = node.served._logins.delays
    assert delays.until("127.0.0.1", "nobody") > 0


@pytest.mark.parametrize(
    "header", ["Basic", "Basic !", "Basic Ym9i", "Digest x", "Bearer", "Bearer  "]
)
def test_a_header_that_is_none_is_refused(port, authority, header):
    assert message_of(header) is None
    assert asked(port, authority, "/metrics", header)[0] == 400


def test_what_is_not_offered_is_not_asked_for(node, authority):
    with opened(node, logins=False) as port:
        status, challenges, body = asked(port, authority, "/metrics")
        assert (status, challenges) == (403, [])
        assert body == "show a client certificate of this cluster\n"
        assert asked(port, authority, "/metrics", basic("bob"))[0] == 403
        assert asked(port, authority, "/metrics", pair=authority.user("bob"))[0] == 200


@pytest.mark.parametrize("is_judged", [True, False])
def test_a_header_is_nobodys_login_where_none_is_offered(node, is_judged):
    """It may be of a proxy."""
    authorizer = node.served._kafka.authorizer if is_judged else None
    members = AdminMembers(node._loop, None, authorizer)
    for user, access in (("bob", Access.ALL), ("eve", Access.HEALTH if is_judged else Access.ALL)):
        asked = AdminRequest("GET", "/metrics", "10.0.0.1:1", f"User:{user}", basic("bob"))
        assert members.verdict(asked, anonymous=Access.HEALTH).access is access
    stranger = AdminRequest("GET", "/metrics", "10.0.0.1:1", ANONYMOUS, basic("bob"))
    assert members.verdict(stranger, anonymous=Access.HEALTH).access is Access.HEALTH


def test_whoever_needs_no_right_sees_all_though_the_loop_is_blocked(node):
    """That is when a node's own words about itself are needed most."""
    loop = asyncio.new_event_loop()  # it never runs
    try:
        for principal, authorizer in (
            ("User:eve", None),
            ("Node:n9", node.served._kafka.authorizer),
        ):
            for header in ("", basic("bob")):
                members = AdminMembers(loop, None, authorizer)
                asked = AdminRequest("GET", "/health", "10.0.0.1:1", principal, header)
                assert members.verdict(asked, anonymous=Access.HEALTH).access is Access.ALL
    finally:
        loop.close()


def test_a_port_for_everybody_asks_nobody(node, authority):
    with opened(node, "all") as port:
        assert asked(port, authority, "/metrics")[0] == 200
        assert asked(port, authority, "/metrics", basic("bob", "wrong"))[0] == 200


def test_one_host_has_few_logins_at_a_time_and_a_stop_waits_for_none(node, authority):
    """Guesses are answered late, and their threads wait: what is beyond is not begun."""
    delays = node.served._logins.delays
    for _ in range(5):
        delays.failed("127.0.0.1", "guessed", time.monotonic())  # now each takes 8 s
    statuses = []

    def guess():
        with contextlib.suppress(OSError, http.client.HTTPException):  # the port stops meanwhile
            statuses.append(asked(port, authority, "/metrics", basic("guessed", "wrong"))[0])

    guesses = [threading.Thread(target=guess) for _ in range(HOST_LOGINS_MAX)]
    with opened(node) as port:
        members = port._stop_access.__self__
        for one in guesses:
            one.start()
        deadline = time.monotonic() + SECONDS
        while len(members._pending) < HOST_LOGINS_MAX:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        status, _, body = asked(port, authority, "/metrics", basic("bob"))
        assert (status, "try again" in body) == (503, True)
        assert asked(port, authority, "/metrics", pair=authority.user("bob"))[0] == 200
    for one in guesses:
        one.join(SECONDS)
    assert 401 not in statuses
    assert not members._pending
    assert not members._by_host


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_logs_in(port, authority, issuer):
    def curl(*words):
        command = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--noproxy", "*"]
        where = ["--cacert", str(authority.file), url_of(port, "/metrics")]
        done = subprocess.run([*command, *words, *where], capture_output=True, check=True)
        return done.stdout.decode()

    assert curl() == "401"
    assert curl("--user", f"bob:{PASSWORD}") == "200"
    assert curl("--anyauth", "--user", f"bob:{PASSWORD}") == "200"
    assert curl("--oauth2-bearer", issuer.token(sub="token-user")) == "200"
    assert curl("--user", f"eve:{PASSWORD}") == "403"
