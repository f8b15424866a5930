"""Why commands that speak Kafka's protocol reach no broker that speaks TLS."""

import socket
import ssl
import threading
from contextlib import contextmanager, suppress

import pytest
from kafka.errors import KafkaConfigurationError, KafkaTimeoutError

from certificates import CLUSTER_ID, OTHER_CLUSTER_ID, Authority
from quorumlog.cli.errors import CommandError
from quorumlog.cli.kafka_admin import KafkaAdmin
from quorumlog.cli.kafka_reach import Reach, is_hopeless, reach_of, words_of
from quorumlog.cli.pipeline_topics import wanted_topics
from quorumlog.client import Security

SECONDS = 30


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    made = Authority(tmp_path_factory.mktemp("pki"))
    made.user("alice")
    made.node("n0")
    return made


@contextmanager
def tls_port(pki, *, asks=False):
    """Answer the first bytes of each connection with some, by TLS; yields the address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki.directory / "n0.pem", pki.directory / "n0.key")
    context.load_verify_locations(pki.file)
    context.verify_mode = ssl.CERT_REQUIRED if asks else ssl.CERT_NONE
    listening = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                plain, _ = listening.accept()
            except OSError:
                return
            plain.settimeout(SECONDS)
            with (
                context.wrap_socket(
                    plain, server_side=True, do_handshake_on_connect=False
                ) as connection,
                suppress(OSError),
            ):
                try:
                    connection.do_handshake()
                    connection.sendall(connection.recv(100)[:4])
                except OSError:  # what was said of it reaches the client if all it sent is read
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(100):
                        pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(SECONDS)


def security(pki, user="", **keys):
    files = {"certificate": f"{user}.pem", "key": f"{user}.key"} if user else {}
    own = {key: str(pki.directory / name) for key, name in files.items()}
    return Security(**{"ca": str(pki.file), **own, **keys})


def never(_connect_s, _request_s):
    raise KafkaTimeoutError


def test_why_tls_fails_is_said_in_place_of_that_nobody_leads(pki, tmp_path):
    other = Authority(tmp_path, "other")
    with tls_port(pki) as address:
        (found,) = reach_of(address, security(pki, cluster_id=CLUSTER_ID))
        assert found.reach is Reach.TAKEN
        for given, said in (
            (security(other), "is of an authority that is not trusted here"),
            (security(pki, cluster_id=OTHER_CLUSTER_ID), f"not of cluster {OTHER_CLUSTER_ID}"),
        ):
            with pytest.raises(CommandError, match=said) as raised:
                KafkaAdmin(never, address, SECONDS, given)
            assert str(raised.value).startswith(f"{address}: its certificate is of ")


def test_a_certificate_that_a_node_asks_for_is_missed_at_once(pki):
    with tls_port(pki, asks=True) as address:
        found = reach_of(address, security(pki))
        assert is_hopeless(found)
        assert words_of(found, "") == (
            f"{address}: the other side asks for a certificate, and none was given"
        )
        (found,) = reach_of(address, security(pki, "alice"))
        assert found.reach is Reach.TAKEN


def test_a_plain_client_is_told_what_to_give(pki):
    with tls_port(pki) as address:
        (found,) = reach_of(address)
        assert found.reach is Reach.NOT_LET_IN
        assert found.why.endswith("without TLS: give --context NAME, which says how to speak to it")


def test_pipelines_look_for_brokers_as_the_context_says(pki, tmp_path, monkeypatch):
    contexts = tmp_path / "contexts.toml"
    with tls_port(pki) as address:
        contexts.write_text(
            f'[contexts.prod]\nkafka = "{address}"\nca = "{pki.file}"\n'
            f'clusterId = "{OTHER_CLUSTER_ID}"\n'
        )
        contexts.chmod(0o600)
        monkeypatch.setenv("QUORUMLOG_CONTEXTS", str(contexts))
        with pytest.raises(CommandError, match=f"not of cluster {OTHER_CLUSTER_ID}"):
            wanted_topics(None, None, "prod", "flights")


def test_what_will_never_work_is_said_at_once_and_as_it_is():
    made = []

    def wrong(connect_s, _request_s):
        made.append(connect_s)
        raise KafkaConfigurationError("no such mechanism")

    with pytest.raises(CommandError, match="no such mechanism"):
        KafkaAdmin(wrong, "127.0.0.1:1", SECONDS)
    assert len(made) == 1
