"""kafkajs at a secure node: it gets in by each login, or says why not."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from certificates import DAY, OTHER_CLUSTER_ID, Authority
from kafka_load import KAFKAJS as PACKAGE
from login_access import Issuer
from login_cluster import login_node
from quorumlog.auth.acls import ResourceType
from quorumlog.auth.roles import Pattern, acls_of_role
from quorumlog.model.tls_config import TlsConfig
from quorumlog.node.node import wall_ms

SCRIPT = Path(__file__).with_name("kafkajs_secured.js")
SECONDS = 120
PASSWORD = "of = all, of them"
ALL = ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"]

pytestmark = [
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"),
    pytest.mark.skipif(not PACKAGE.exists(), reason="kafkajs is not there (make test-clients)"),
]


@pytest.fixture(scope="module")
def issuer():
    return Issuer(wall_ms)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def revoked(authority):
    return authority.user("alice", file="revoked")


@pytest.fixture(scope="module")
def node(tmp_path_factory, authority, issuer, revoked):
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    keys.write_bytes(issuer.jwks)
    own, crl = authority.node("n0"), authority.revoke(revoked)
    files = {"certificate": str(own.certificate), "key": str(own.key), "ca": str(authority.file)}
    with login_node(
        tmp_path_factory.mktemp("node"),
        TlsConfig(**files, crl=str(crl)),
        authorization="on",
        mechanisms=ALL,
        oauth_jwks_file=str(keys),
        oauth_issuer="issuer",
        oauth_audience="log",
    ) as node:
        node.create_topic("t", os.urandom(16))
        node.add_user("alice", PASSWORD)
        topic, group = Pattern(ResourceType.TOPIC, "t"), Pattern(ResourceType.CONSUMER_GROUP, "c")
        node.give(acls_of_role("reader", "User:alice", [topic, group]))
        node.give(acls_of_role("writer", "User:alice", [topic]))
        yield node


def kafkajs(node, authority, pair=None, **given):
    """Return what kafkajs has read, or what it says."""
    if pair is not None:
        given |= {"certificate": str(pair.certificate), "key": str(pair.key)}
    asked = {"broker": node.kafka, "topic": "t", "group": "c", "value": "value", **given}
    if authority is not None:
        asked["ca"] = str(authority.file)
    done = subprocess.run(
        ["node", SCRIPT, PACKAGE],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("how", [*ALL, "certificate"])
def test_kafkajs_produces_and_consumes(node, authority, issuer, how):
    given = {"mechanism": how, "user": "alice", "password": PASSWORD}
    if how == "OAUTHBEARER":
        given = {"token": issuer.token(sub="alice")}
    elif how == "certificate":
        given = {"pair": authority.user("alice")}
    assert kafkajs(node, authority, value=how, **given) == {"value": how}


def test_kafkajs_says_why_it_does_not_get_in(node, authority, revoked, tmp_path):
    stranger = Authority(tmp_path, "stranger")
    other = authority.issue("other", f"URI:quorumlog://{OTHER_CLUSTER_ID}/user/alice")
    expired = authority.user("alice", file="expired", begin=-2 * DAY, end=-DAY)
    early = authority.user("alice", file="early", begin=DAY, end=2 * DAY)
    wrong = {"mechanism": "SCRAM-SHA-256", "user": "guest", "password": "wrong"}
    for trusted, given, words in (
        (stranger, {}, "self-signed certificate in certificate chain"),
        (authority, {"pair": stranger.user("alice", file="strange")}, "alert unknown ca"),
        (authority, {"pair": expired}, "alert certificate expired"),
        (authority, {"pair": early}, "alert bad certificate"),
        (authority, {"pair": revoked}, "alert certificate revoked"),
        (authority, {"pair": other}, "Client network socket disconnected|Closed connection"),
        (authority, {"pair": authority.node("n1")}, "Closed connection|disconnected"),
        (authority, wrong, "login refused"),
        (None, {}, "Closed connection"),
    ):
        found = kafkajs(node, trusted, **given)
        assert any(word in found["error"] for word in words.split("|")), (words, found)


def test_kafkajs_says_which_right_it_lacks(node, authority):
    node.add_user("eve", PASSWORD)
    given = {"mechanism": "SCRAM-SHA-256", "user": "eve", "password": PASSWORD}
    found = kafkajs(node, authority, **given)
    assert "Not authorized to access topics" in found["error"]
