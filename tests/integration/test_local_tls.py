"""A local cluster that speaks TLS: its commands show the certificate of admin."""

import pytest

from integration.command_line import command, objects
from quorumlog import SyncClient
from quorumlog.cli.kafka_reach import Reach, reach_of
from quorumlog.errors import RequestError
from quorumlog.local import LocalCluster

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tls") / "c"
    status, out, err = command(
        "cluster", "up", "--secure", "--dir", directory, "--nodes", 1, "--kafka-port", 0
    )
    assert (status, err) == (0, "")
    assert f"certificate: {directory / 'tls' / 'admin.pem'}" in out
    cluster = LocalCluster.open(directory)
    yield cluster
    cluster.down()


def test_commands_find_their_way_in(cluster):
    where = ("--dir", cluster.directory)
    (appended,) = objects("append", "hello", *where)
    (entry,) = objects("get", appended["index"], *where)
    assert entry["index"] == appended["index"]
    assert [one["role"] for one in objects("status", *where)] == ["LEADER"]
    assert command("topic", "create", "flights", *where)[0] == 0
    assert [one["name"] for one in objects("topic", "list", *where)] == ["flights"]
    assert objects("user", "list", *where) == []  # admin has a certificate only
    (node,) = objects("cluster", "status", *where)
    assert node["answers"]


def test_no_command_of_ours_is_a_refused_connection_in_the_audit_log(cluster):
    tls, addresses = cluster.directory / "tls", (cluster.servers, cluster.bootstrap_servers)
    for address in addresses:
        status, out, _ = command("cert", "check", tls, "--servers", address)
        assert (status, out.splitlines()[-1]) == (0, "all accept each other")
    reached = reach_of(cluster.servers, cluster.context.open().security)
    assert [one.reach for one in reached] == [Reach.OF_NODES]
    assert objects("cluster", "status", "--dir", cluster.directory)[0]["answers"]
    (started, *_) = objects("audit-log", "--dir", cluster.directory)
    assert started["event"] == "node-started"
    refused = objects("audit-log", "--dir", cluster.directory, "--event", "connection-refused")
    assert [one["reason"] for one in refused] == []


def test_a_client_has_the_context_and_others_are_refused(cluster):
    with SyncClient(cluster.context, "default") as client:
        assert client.append(b"one").index >= 0
    with (
        SyncClient(cluster.servers, "default", timeout_ms=60_000) as plain,
        pytest.raises(RequestError, match="this port speaks TLS"),
    ):
        plain.append(b"two")


def test_the_node_is_stopped_and_started_again(cluster):
    assert command("cluster", "restart", "--dir", cluster.directory)[0] == 0
    status, out, _ = command(
        "cert", "check", cluster.directory / "tls", "--servers", cluster.servers
    )
    assert status == 0
    assert out.splitlines()[-1] == "all accept each other"
