"""Commands, clients and Spark's readers that are given a context reach a node that speaks TLS."""

import asyncio
import json
import socket
import threading

import msgspec
import pytest
import uvloop
from confluent_kafka import Producer

from certificates import CLUSTER_ID, OTHER_CLUSTER_ID, Authority
from quorumlog.cli.app import run
from quorumlog.client import Client, Context, Security, SyncClient, SyncConsumer, SyncProducer
from quorumlog.client.contexts import Access
from quorumlog.client.kafka_security import librdkafka_settings
from quorumlog.local.ports import free_ports
from quorumlog.machine.cluster.sinks import attempt_id
from quorumlog.model.config import CLUSTER_GROUP, GroupConfig, NodeConfig
from quorumlog.model.errors import LoginError, NetworkError, RemoteProtocolError, RequestError
from quorumlog.model.tls_config import TlsConfig
from quorumlog.service.served_node import ServedNode
from quorumlog.spark.access import options_of
from quorumlog.spark.jobs.topics.target import ConfluentTarget
from quorumlog.spark.sink.topics.coordinator import SinkBatch, SinkCoordinator
from quorumlog.spark.sink.topics.options import SERVERS, parse_topic_options
from quorumlog.spark.sink.topics.producer import TopicProducer
from quorumlog.spark.source import clusters
from quorumlog.spark.source.clusters import RemoteCluster, check_cluster, client_for
from quorumlog.spark.topics.part import EARLIEST, Part
from quorumlog.spark.topics.remote_brokers import brokers_for
from small_files import SMALL_FILES, SMALL_SETTINGS

SECONDS = 30


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    made = Authority(tmp_path_factory.mktemp("pki"))
    for name in ("alice", "bob"):
        made.user(name)
    made.node("n0")
    return made


@pytest.fixture(scope="module")
def node(pki, tmp_path_factory):
    """Serve one node, broker and all, that takes nobody without a certificate."""
    port, kafka_port = free_ports(2)
    peers = f"n0-127.0.0.1:{port}"
    groups = [
        GroupConfig(group="g", peers=peers, **SMALL_FILES),
        GroupConfig(group=CLUSTER_GROUP, peers=peers, kind="cluster", **SMALL_FILES),
    ]
    own = {name: str(pki.directory / f"n0.{name}") for name in ("pem", "key")}
    tls = TlsConfig(
        certificate=own["pem"], key=own["key"], ca=str(pki.file), client_auth="required"
    )
    config = NodeConfig(
        self_id="n0", store_base_dir=str(tmp_path_factory.mktemp("n0")), groups=groups, tls=tls,
        kafka_listen=f"127.0.0.1:{kafka_port}", partition_groups=SMALL_SETTINGS,
    )  # fmt: skip
    stop, started = threading.Event(), threading.Event()

    async def serve():
        served = ServedNode(config, {})
        await served.start()
        started.set()
        await asyncio.to_thread(stop.wait)
        await served.stop()

    thread = threading.Thread(target=lambda: uvloop.run(serve()))
    thread.start()
    assert started.wait(SECONDS)
    yield config
    stop.set()
    thread.join(SECONDS)


def context_of(pki, node, user="alice", **keys):
    files = {"certificate": f"{user}.pem", "key": f"{user}.key"} if user else {}
    return Context(
        servers=node.listen_address,
        kafka=node.kafka_listen,
        ca=str(pki.file),
        **{key: str(pki.directory / name) for key, name in files.items()},
        **keys,
    )


@pytest.fixture(scope="module", autouse=True)
def spark_clients():
    """Close what Spark's jobs keep for the next one."""
    yield
    while clusters._clients:
        clusters._clients.popitem()[1].close()


@pytest.fixture
def prod(pki, node, tmp_path, monkeypatch):
    """Have a file of contexts with one of them."""
    path = tmp_path / "contexts.toml"
    keys = msgspec.to_builtins(context_of(pki, node, cluster_id=CLUSTER_ID))
    path.write_bytes(msgspec.toml.encode({"contexts": {"prod": keys}}))
    path.chmod(0o600)
    monkeypatch.setenv("QUORUMLOG_CONTEXTS", str(path))
    return Access(context="prod")


def test_commands_find_the_cluster_and_speak_its_tls(prod, capsys, monkeypatch):
    assert run(["append", "--context", "prod", "--group", "g", "one"]) == 0
    assert run(["context", "use", "prod"]) == 0
    capsys.readouterr()
    assert run(["get", "--group", "g", "--json", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["body_base64"] == "b25l"
    assert run(["topic", "create", "t", "--partitions", "1", "--replication-factor", "1"]) == 0
    assert run(["topic", "list"]) == 0
    assert "t" in capsys.readouterr().out
    monkeypatch.setenv("QUORUMLOG_CONTEXT", "other")
    assert run(["status"]) == 1
    assert "there is no context 'other'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [["topic", "create", "never"], ["consumer-group", "list"], ["transaction", "list"]],
)
def test_commands_about_topics_speak_to_no_other_cluster(
    prod, pki, node, command, tmp_path, capsys, monkeypatch
):
    keys = msgspec.to_builtins(context_of(pki, node, cluster_id=OTHER_CLUSTER_ID))
    path = tmp_path / "others.toml"
    path.write_bytes(msgspec.toml.encode({"contexts": {"other": keys}}))
    path.chmod(0o600)
    assert run(["topic", "list", "--context", "prod"]) == 0
    monkeypatch.setenv("QUORUMLOG_CONTEXTS", str(path))
    assert run([*command, "--context", "other"]) == 1
    said = capsys.readouterr().err
    assert f"{node.kafka_listen}: " in said
    assert f"not of cluster {OTHER_CLUSTER_ID}" in said


def test_sparks_readers_speak_tls_where_they_run(prod, pki, node):
    check_cluster(prod, "g", 10_000)
    with SyncProducer(context_of(pki, node), "g") as producer:
        producer.send(b"two")
    assert RemoteCluster(prod, 10_000).bounds("g", "read_committed").beyond >= 1
    settings = librdkafka_settings(context_of(pki, node).open().security)
    made = Producer({"bootstrap.servers": node.kafka_listen, **settings})
    made.produce("spark", b"value")
    assert made.flush(SECONDS) == 0
    brokers = brokers_for(prod, 10_000, "test")
    part = Part("spark", 0)
    assert brokers.existing([part]) == {part}
    assert brokers.offsets({part: EARLIEST}, reads_committed=True) == {part: 0}
    brokers.close()


@pytest.mark.parametrize(
    ("user", "keys", "said"),
    [
        ("", {}, "asks for a certificate, and none was given"),
        ("alice", {"cluster_id": OTHER_CLUSTER_ID}, f"not of cluster {OTHER_CLUSTER_ID}"),
    ],
)
def test_certificates_that_do_not_fit_end_a_job_of_spark_at_once(pki, node, user, keys, said):
    """They are not tried again until the time is over, here an hour."""
    where = Access(given=context_of(pki, node, user, **keys))
    brokers = brokers_for(where, 3_600_000, "test")
    with pytest.raises(RemoteProtocolError, match=f"{node.kafka_listen} .*{said}"):
        brokers.topics()
    brokers.close()
    with (
        SinkCoordinator(where, 3_600_000) as coordinator,
        pytest.raises(NetworkError, match=f"{node.kafka_listen}: .*{said}"),
    ):
        coordinator.join(SinkBatch("sink", "run", 0), attempt_id("sink", "a"))


def sink_options(where):
    return parse_topic_options({**options_of(where, SERVERS), "topic": "spark"})


def test_the_libraries_of_kafka_get_no_broker_of_another_cluster(pki, node):
    """They would take each whose certificate is of the authority."""
    where = Access(given=context_of(pki, node, cluster_id=OTHER_CLUSTER_ID))
    said = f"{node.kafka_listen}: .*not of cluster {OTHER_CLUSTER_ID}"
    with pytest.raises(NetworkError, match=said):
        TopicProducer(sink_options(where), None)
    with pytest.raises(NetworkError, match=said):
        ConfluentTarget(where, "replay", 10_000)
    own = Access(given=context_of(pki, node, cluster_id=CLUSTER_ID))
    TopicProducer(sink_options(own), None).finish()


def test_two_users_share_no_connection(pki, node):
    alice, bob = (Access(given=context_of(pki, node, user)) for user in ("alice", "bob"))
    assert client_for(alice, "g", 5_000) is client_for(alice, "g", 5_000)
    assert client_for(alice, "g", 5_000) is not client_for(bob, "g", 5_000)


def test_a_consumer_asks_its_coordinator_by_tls(pki, node):
    context = context_of(pki, node, verify_name="cluster", cluster_id=CLUSTER_ID)
    with SyncProducer(context, "g") as producer:
        producer.send(b"three")
    with SyncConsumer(context, group="c", log="g", timeout_ms=SECONDS * 1_000) as consumer:
        assert next(iter(consumer)).index >= 0


@pytest.mark.parametrize(
    ("user", "keys", "said"),
    [
        ("", {}, "asks for a certificate, and none was given|certificate"),
        ("alice", {"cluster_id": OTHER_CLUSTER_ID}, f"not of cluster {OTHER_CLUSTER_ID}"),
    ],
)
def test_whom_a_node_or_a_client_does_not_want_is_said(pki, node, user, keys, said):
    with (
        SyncClient(context_of(pki, node, user, **keys), "g", timeout_ms=SECONDS * 1_000) as client,
        pytest.raises(NetworkError, match=said),
    ):
        client.metadata()


def test_a_client_of_another_authority_is_told_why(pki, node, tmp_path):
    other = Authority(tmp_path, "other")
    security = Security(ca=str(other.file))
    with (
        SyncClient(
            node.listen_address, "g", security=security, timeout_ms=SECONDS * 1_000
        ) as client,
        pytest.raises(NetworkError, match="is of an authority that is not trusted here"),
    ):
        client.metadata()


def test_a_plain_client_is_told_what_to_give(node):
    with (
        SyncClient(node.listen_address, "g", timeout_ms=SECONDS * 1_000) as client,
        pytest.raises(NetworkError, match=r"this port speaks TLS: give .*\(ca\), or a context"),
    ):
        client.metadata()


def test_a_client_with_a_security_never_speaks_plain(pki):
    """A port that speaks no TLS gets a ClientHello, and nothing after it."""
    received = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept():
            connection, _ = server.accept()
            with connection:
                received.append(connection.recv(65536))
                connection.sendall(b"no TLS here, and much more text than a record's head has")

        thread = threading.Thread(target=accept)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with (
            SyncClient(
                address, "g", security=Security(ca=str(pki.file)), timeout_ms=SECONDS * 1_000
            ) as client,
            pytest.raises(RequestError, match="it does not speak TLS"),
        ):
            client.metadata()
        thread.join(SECONDS)
    assert received[0][:2] == b"\x16\x03"


def test_a_client_takes_new_files_for_its_next_connection(pki, node, tmp_path):
    for name in ("pem", "key"):
        (tmp_path / f"own.{name}").write_bytes((pki.directory / f"alice.{name}").read_bytes())
        (tmp_path / f"own.{name}").chmod(0o600)
    own = {"certificate": str(tmp_path / "own.pem"), "key": str(tmp_path / "own.key")}
    context = msgspec.structs.replace(context_of(pki, node), **own)

    async def scenario():
        async with Client(context, "g", timeout_ms=5_000) as client:
            await client.metadata()
            pool = client._requester.metadata.connections
            before = pool._newest_tls()
            assert pool._newest_tls() is before
            for name in ("pem", "key"):
                (tmp_path / f"own.{name}").write_bytes((pki.directory / f"bob.{name}").read_bytes())
            assert pool._newest_tls() is not before
            (await client._requester.metadata.open(node.listen_address)).close()
            (tmp_path / "own.key").unlink()
            with pytest.raises(NetworkError, match=r"own.key cannot be read: No such file"):
                await client._requester.metadata.open(node.listen_address)

    asyncio.run(scenario())


def test_a_node_that_takes_no_logins_is_told_no_password(pki, node, tmp_path):
    (tmp_path / "pw").write_text("canary-7f3a\n")
    (tmp_path / "pw").chmod(0o600)
    context = msgspec.structs.replace(
        context_of(pki, node), user="alice", password_file=str(tmp_path / "pw")
    )

    async def ask():
        async with Client(context, "g", timeout_ms=SECONDS * 1_000) as client:
            await client.metadata()

    with pytest.raises(LoginError, match="it takes none") as raised:
        asyncio.run(ask())
    assert "canary" not in str(raised.value)
    settings = librdkafka_settings(context.open().security)
    assert settings["sasl.password"] == "canary-7f3a"
    assert settings["security.protocol"] == "SASL_SSL"
