"""A node that starts from the files of `cluster init`, and what `cert check` says of it."""

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest
from confluent_kafka import KafkaError, Producer

from integration.command_line import command, objects
from quorumlog.client import Context
from quorumlog.client.kafka_security import librdkafka_settings
from quorumlog.local.ports import free_ports
from quorumlog.pki.authority import AuthorityDirectory
from quorumlog.pki.files import Pair, pair_in
from quorumlog.pki.names import user_subject
from small_files import directory_in_memory

pytestmark = pytest.mark.processes
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Start a cluster of one node; yields its directory, address and process."""
    with directory_in_memory(tmp_path_factory.mktemp("init")) as place:
        yield from started(place / "prod")


def started(made):
    port, kafka = free_ports(2)
    address = f"127.0.0.1:{port}"
    options = ("--secure", "--dir", made, "--kafka-port", kafka)
    assert command("cluster", "init", *options, f"n0={address}")[0] == 0
    arguments = [sys.executable, "-P", "-m", "quorumlog.service", "n0.toml"]
    with (made / "log").open("wb") as log:
        process = subprocess.Popen(arguments, cwd=made / "n0", stdout=log, stderr=log)
    try:
        yield made, (address, f"127.0.0.1:{kafka}"), process
    finally:
        process.kill()
        process.wait()


def shown(made, address, whose="admin"):
    """Return what a server shows, once somebody listens there, and what was found."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        ca = ("--ca", made / "ca" / "ca.pem")
        _, out, _ = command("cert", "check", made / whose, *ca, "--servers", address)
        if "Connection refused" not in out:
            return out
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_nodes_started_from_it_show_their_certificates_on_both_ports(node):
    made, addresses, _ = node
    for address in addresses:
        out = shown(made, address)
        assert f"{address}   node n0   " in out
        assert out.splitlines()[-1] == "all accept each other"


def test_admin_gives_a_user_rights_by_the_context_and_kafkas_clients_have_them(
    node, monkeypatch, tmp_path
):
    made, (address, kafka), _ = node
    shown(made, address)
    monkeypatch.setenv("QUORUMLOG_CONTEXTS", str(made / "admin" / "contexts.toml"))
    password = tmp_path / "password"
    password.write_text("correct horse, battery staple\n")
    password.chmod(0o600)
    prod = ("--context", "quorumlog")
    for words in (
        ("status", *prod),
        ("user", "add", "alice", "--password-file", password, *prod),
        ("acl", "add", "--user", "alice", "--role", "writer", "--topic", "flights", *prod),
        ("quota", "list"),
        ("topic", "create", "flights", "--partitions", "1", "--replication-factor", "1", *prod),
    ):
        status, _, err = command(*words)
        assert status == 0, (words, err)
    as_alice = Context(ca=str(made / "ca" / "ca.pem"), user="alice", password_file=str(password))
    settings = librdkafka_settings(as_alice.open().security)
    producer = Producer({"bootstrap.servers": kafka, **settings})
    told = []
    for topic in ("flights", "others"):
        producer.produce(topic, b"value", on_delivery=lambda error, _: told.append(error))
        producer.flush(TIMEOUT_S)
    assert told[0] is None
    assert told[1].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_user_of_topics_alone_and_whoever_mistypes_are_told_what_is_wrong(
    node, monkeypatch, tmp_path
):
    made, (address, kafka), _ = node
    shown(made, address)
    contexts = tmp_path / "contexts.toml"
    monkeypatch.setenv("QUORUMLOG_CONTEXTS", str(made / "admin" / "contexts.toml"))
    password, wrong = tmp_path / "password", tmp_path / "wrong"
    for file in (password, wrong):
        file.write_text(f"the {file.name} of carol\n")
        file.chmod(0o600)
    assert command("user", "add", "carol", "--password-file", password)[0] == 0
    writes = ("acl", "add", "--role", "writer", "--topic", "rain")
    assert command(*writes, "--user", "carol")[2] == ""
    assert "no user carl has a password here" in command(*writes, "--user", "carl")[2]
    status, _, err = command("user", "add", "admin", "--password-file", password)
    assert (status, "User:admin is a super user" in err) == (1, True)
    assert "the host" not in command("acl", "check", "--user", "carol", "--operation", "write",
                                     "--topic", "rain", "--host", "127.0.0.1")[2]  # fmt: skip
    status, _, err = command("acl", "check", "--user", "carol", "--operation", "write",
                             "--topic", "rain", "--host", "127.0.0.300")  # fmt: skip
    assert (status, "not '127.0.0.300'" in err) == (1, True)
    monkeypatch.setenv("QUORUMLOG_CONTEXTS", str(contexts))
    for name, file in (("carol", password), ("wrong", wrong)):
        status, _, err = command(
            "context", "add", name, "--servers", address, "--kafka", kafka,
            "--ca", made / "ca" / "ca.pem", "--user", "carol", "--password-file", file,
        )  # fmt: skip
        assert status == 0
        assert f"'quorumlog context use {name}' makes it the default" in err
    missing = "carol may not describe group 'default': no ACL allows it, or one denies it"
    for words in (("status",), ("append", "x"), ("tail",), ("kv", "get", "x")):
        status, _, err = command(*words, "--context", "carol")
        assert (status, missing in err) == (1, True), (words, err)
    status, out, err = command("broker-config", "describe", "--context", "carol")
    assert (status, out) == (1, "")
    assert "carol may not describe configs the cluster" in err
    status, _, err = command("topic", "describe", "hail", "--context", "carol")
    assert (status, "you may not describe topic 'hail', if there is one" in err) == (1, True)
    for _ in range(2):
        status, _, err = command("user", "list", "--context", "wrong")
        assert (status, f"login of carol at {address}: login refused" in err) == (1, True)
    status, _, err = command("status", "--context", "wrong", "--timeout", "1")
    assert status == 1
    assert f"{address} has not answered the login of carol within 1000 ms" in err
    passwd = ("user", "passwd", "carol", "--password-file", wrong, "--context", "carol")
    status, _, err = command(*passwd)
    assert (status, f"still has the former one: change {password}, too" in err) == (0, True)


def test_a_certificate_of_another_authority_of_the_cluster_is_refused_until_that_is_trusted(node):
    made, (address, _), _ = node
    shown(made, address)
    now = datetime.now(UTC)
    (authority,) = objects("cert", "show", made / "ca" / "ca.pem")
    newer = AuthorityDirectory(made / "newer", now, os.urandom)
    newer.make(authority["cluster_id"], "ec-p256", 10, force=False)
    subject = user_subject("bob", authority["cluster_id"])
    newer.issue(subject, pair_in(made / "newer", "bob"), "ec-p256", 1, force=False)
    out = shown(made, address, "newer")
    assert f"problem: {address}: the other side does not trust the authority of the cert" in out


def test_a_running_node_takes_a_renewed_certificate(node):
    made, (address, _), process = node
    shown(made, address)
    files = made / "n0" / "tls"
    authority = AuthorityDirectory(made / "ca", datetime.now(UTC), os.urandom)
    renewed = authority.renew(Pair(files / "node.pem", files / "node.key"), None, None, 30)
    process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + TIMEOUT_S
    while "in 30 days" not in shown(made, address):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert renewed.former is not None
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 0
