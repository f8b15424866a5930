"""What a local cluster's directory holds, without starting anything."""

import os
import socket
from datetime import UTC, datetime

import msgspec
import pytest

from quorumlog.cli.cluster import _note_other_ports
from quorumlog.cli.local_certificates import make_missing
from quorumlog.cli.main import main
from quorumlog.local import LocalCluster, LocalClusterError, ports
from quorumlog.local.cluster import _needs_help
from quorumlog.local.health import NodeHealth
from quorumlog.local.ports import free_ports, kafka_ports
from quorumlog.model.config import CLUSTER_GROUP, load_config, parse_address
from quorumlog.model.errors import ConfigError
from quorumlog.pki.probe import check_all
from quorumlog.storage.files.os_files import open_to_others


def test_a_new_cluster_is_found_again_as_it_was_made(tmp_path):
    made = LocalCluster.create(tmp_path / "c", nodes=3, groups=("flights", "weather"))
    opened = LocalCluster.open(tmp_path / "c")
    assert opened.node_ids == made.node_ids == ["n0", "n1", "n2"]
    assert opened.groups == ["flights", "weather"]
    assert opened.servers == made.servers
    assert opened.running() == {}
    assert opened.group_directory("n1", "flights") == tmp_path / "c" / "n1" / "flights"


def test_every_node_has_a_configuration_that_fits_the_others(tmp_path):
    cluster = LocalCluster.create(tmp_path, groups=("g",), data_file_bytes=8 << 20)
    configs = [load_config(tmp_path / f"{node_id}.toml") for node_id in cluster.node_ids]
    assert {config.cluster for config in configs} == {configs[0].cluster}
    assert [config.listen_address for config in configs] == cluster.servers.split(",")
    assert [config.admin_listen for config in configs] == list(
        map(cluster.admin_address, cluster.node_ids)
    )
    for config in configs:
        assert config.store_base_dir == str(tmp_path / config.self_id)
        assert config.groups[0].mapped_file_size_for_entry_data == 8 << 20
        assert config.groups[0].members == dict(
            zip(cluster.node_ids, cluster.servers.split(","), strict=True)
        )


def test_two_clusters_share_no_name(tmp_path):
    LocalCluster.create(tmp_path / "a")
    LocalCluster.create(tmp_path / "b")
    names = {load_config(tmp_path / place / "n0.toml").cluster for place in "ab"}
    assert len(names) == 2


def test_ports_are_distinct_and_below_those_of_outgoing_connections():
    ports = free_ports(18)
    assert len(set(ports)) == 18
    assert max(ports) < 32_768


def test_ports_can_be_chosen_and_are_checked(tmp_path):
    first = free_ports(1)[0]
    cluster = LocalCluster.create(tmp_path / "c", nodes=2, first_port=first)
    assert cluster.servers == f"127.0.0.1:{first},127.0.0.1:{first + 1}"
    assert cluster.admin_address("n1") == f"127.0.0.1:{first + 101}"
    with (
        socket.create_server(("127.0.0.1", first)),
        pytest.raises(LocalClusterError, match=f"port {first} on"),
    ):
        LocalCluster.create(tmp_path / "d", first_port=first)
    with pytest.raises(LocalClusterError, match=r"up to 65637.*lower --port"):
        LocalCluster.create(tmp_path / "d", first_port=65_535)


def test_the_nodes_of_a_cluster_with_topics_are_brokers(tmp_path):
    cluster = LocalCluster.create(tmp_path / "c", topics=True, kafka_port=0, groups=("a",))
    configs = [load_config(tmp_path / "c" / f"{node_id}.toml") for node_id in cluster.node_ids]
    assert [config.kafka_listen for config in configs] == cluster.bootstrap_servers.split(",")
    assert len(set(cluster.bootstrap_servers.split(","))) == 3
    for config in configs:
        own, shared = config.groups
        assert (own.group, shared.group) == ("a", CLUSTER_GROUP)
        assert shared.members == own.members
        size = shared.mapped_file_size_for_entry_data
        assert config.partition_groups["mappedFileSizeForEntryData"] == size
    assert LocalCluster.open(tmp_path / "c").groups == ["a"]
    assert cluster.machines == {"a": ""}


def test_a_cluster_without_topics_has_the_file_that_earlier_versions_wrote(tmp_path):
    cluster = LocalCluster.create(tmp_path / "c")
    assert cluster.bootstrap_servers == ""
    assert load_config(tmp_path / "c" / "n0.toml").cluster_group is None
    assert b"kafka" not in (tmp_path / "c" / "cluster.json").read_bytes()


def test_ports_for_kafkas_clients_can_be_chosen_and_are_checked(tmp_path):
    first = free_ports(1)[0]
    cluster = LocalCluster.create(tmp_path / "c", nodes=2, topics=True, kafka_port=first)
    assert cluster.bootstrap_servers == f"127.0.0.1:{first},127.0.0.1:{first + 1}"
    with (
        socket.create_server(("127.0.0.1", first)),
        pytest.raises(LocalClusterError, match=f"port {first} on .* is in use; .*--kafka-port"),
    ):
        LocalCluster.create(tmp_path / "d", topics=True, kafka_port=first)
    with pytest.raises(LocalClusterError, match=r"port 65536 on .* is not a port"):
        LocalCluster.create(tmp_path / "d", topics=True, kafka_port=65_535)


def test_the_usual_port_is_left_to_whoever_listens_there(monkeypatch):
    [taken] = free_ports(1)
    monkeypatch.setattr("quorumlog.local.ports.KAFKA_PORT", taken)
    assert kafka_ports(None, 2) == [taken, taken + 1]
    with socket.create_server(("127.0.0.1", taken)):
        assert taken not in kafka_ports(None, 2)


def test_it_is_said_why_kafkas_clients_connect_to_other_ports(tmp_path, monkeypatch, capsys):
    [taken] = free_ports(1)
    for module in ("local.ports", "cli.cluster"):
        monkeypatch.setattr(f"quorumlog.{module}.KAFKA_PORT", taken)
    _note_other_ports(LocalCluster.create(tmp_path / "usual", nodes=1, topics=True), None)
    assert capsys.readouterr().err == ""
    with socket.create_server(("127.0.0.1", taken)):
        cluster = LocalCluster.create(tmp_path / "other", nodes=1, topics=True)
        _note_other_ports(cluster, None)
    text = f"port {taken} on 127.0.0.1 is in use: Kafka's clients connect elsewhere"
    assert capsys.readouterr().err == f"quorumlog: {text}\n"


def test_no_port_is_given_to_a_node_twice(tmp_path, monkeypatch):
    with pytest.raises(LocalClusterError, match="fewer than 1 free port"):
        free_ports(1, besides=range(ports.PORT_FIRST, ports.PORT_LAST + 1))
    first = free_ports(1)[0]
    with pytest.raises(LocalClusterError, match=f"port {first} on .* a port of the nodes themselv"):
        LocalCluster.create(tmp_path, topics=True, first_port=first, kafka_port=first)
    monkeypatch.setattr("quorumlog.local.ports.KAFKA_PORT", first)
    assert first + 1 not in kafka_ports(None, 2, besides=[first + 1])


@pytest.mark.parametrize(
    ("topics", "asked", "said"),
    [
        (False, ["--topics"], "was made without topics and goes on as it is"),
        (False, ["--kafka-port", "9092"], "was made without topics and goes on as it is"),
        (True, ["--no-topics"], "has topics; choose another directory"),
        (True, ["--kafka-port", "65000"], "begin at 127.0.0.1:"),
    ],
)
def test_a_cluster_keeps_its_brokers_or_that_it_has_none(tmp_path, capsys, topics, asked, said):
    LocalCluster.create(tmp_path / "c", topics=topics, kafka_port=0)
    assert main(["cluster", "up", "--dir", str(tmp_path / "c"), *asked]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("nodes", [0, 10])
def test_a_cluster_of_an_odd_size_is_refused_before_anything_is_made(tmp_path, nodes):
    with pytest.raises(LocalClusterError, match="1 to 9 nodes"):
        LocalCluster.create(tmp_path / "c", nodes=nodes)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("groups", [("../up",), ("g", "g")])
def test_a_group_that_cannot_be_is_refused_before_anything_is_made(tmp_path, groups):
    with pytest.raises(ConfigError):
        LocalCluster.create(tmp_path / "c", groups=groups)
    assert not (tmp_path / "c").exists()


def test_a_directory_with_a_cluster_is_not_made_into_another(tmp_path):
    LocalCluster.create(tmp_path)
    with pytest.raises(LocalClusterError, match="already holds a cluster"):
        LocalCluster.create(tmp_path)


def test_a_file_is_no_place_for_a_cluster(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LocalClusterError, match="is a file"):
        LocalCluster.create(tmp_path / "file")
    with pytest.raises(LocalClusterError, match="holds no cluster"):
        LocalCluster.open(tmp_path / "file")


def test_a_damaged_cluster_file_is_named(tmp_path):
    LocalCluster.create(tmp_path)
    for raw in (b"", b'{"format": "quorumlog-local-clu', b"\0" * 40, b'{"cluster": "\xff"}'):
        (tmp_path / "cluster.json").write_bytes(raw)
        with pytest.raises(LocalClusterError, match=r"cluster\.json.*write it again"):
            LocalCluster.open(tmp_path)
    (tmp_path / "cluster.json").write_text('{"format": "something else"}')
    with pytest.raises(LocalClusterError, match=r"cluster\.json"):
        LocalCluster.open(tmp_path)


def test_a_moved_cluster_does_not_write_to_its_old_place(tmp_path):
    LocalCluster.create(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    with pytest.raises(LocalClusterError, match=r"storeBaseDir.*a copy, do not.* never run both"):
        LocalCluster.open(tmp_path / "new").up()


def test_unknown_nodes_and_groups_are_named(tmp_path):
    cluster = LocalCluster.create(tmp_path)
    with pytest.raises(LocalClusterError, match="no node 'n7', only n0, n1, n2"):
        cluster.kill("n7")
    with pytest.raises(LocalClusterError, match="no group 'g'"):
        cluster.leader("g")
    with pytest.raises(LocalClusterError, match="n0 does not run"):
        cluster.kill("n0")


def test_a_recycled_pid_is_not_taken_for_a_node(tmp_path):
    cluster = LocalCluster.create(tmp_path)
    (tmp_path / "n0.pid").write_text(f'{{"pid": {os.getpid()}, "begun": "1"}}')
    assert cluster.running() == {}
    with pytest.raises(LocalClusterError, match="does not run"):
        cluster.kill("n0")
    assert cluster.down() == []


def test_addresses_are_on_the_loopback_only(tmp_path):
    cluster = LocalCluster.create(tmp_path)
    for node_id in cluster.node_ids:
        assert parse_address(cluster.address(node_id))[0] == "127.0.0.1"
        assert parse_address(cluster.admin_address(node_id))[0] == "127.0.0.1"


def health_with(**groups):
    said = {"healthy": False, "role": "CANDIDATE", **groups.pop("g")}
    return msgspec.convert({"node": "n", "healthy": False, "groups": {"g": said}}, NodeHealth)


LEADER = health_with(g={"role": "LEADER", "term": 3})
COPY = health_with(g={"misplaced": True})
FAILED = health_with(g={"role": "FAILED", "text": "its files are no good"})
ELECTING = health_with(g={})


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        (COPY, COPY, True),
        (COPY, None, True),
        (COPY, LEADER, False),  # which may tell it where it was added
        (FAILED, LEADER, True),
        (ELECTING, COPY, False),
        (None, COPY, False),
    ],
)
def test_a_copied_or_failed_node_is_not_waited_for(own, other, expected):
    assert _needs_help(own, {"n0": own, "n1": other}) is expected


def test_nobody_but_the_owner_may_use_the_files_of_a_cluster_whatever_the_umask_says(tmp_path):
    before = os.umask(0)
    try:
        cluster = LocalCluster.create(tmp_path / "c", groups=("g",))
        with cluster._layout.locked():
            pass
    finally:
        os.umask(before)
    assert {path.name for path in (tmp_path / "c").iterdir()} >= {"cluster.json", "cluster.lock"}
    assert list(open_to_others(str(tmp_path / "c"), 1_000)) == []


def test_a_secure_cluster_speaks_tls_with_certificates_that_are_made_when_it_starts(tmp_path):
    cluster = LocalCluster.create(tmp_path / "c", nodes=2, secure=True)
    tls = cluster.tls_directory
    assert tls == tmp_path / "c" / "tls"
    assert LocalCluster.open(tmp_path / "c").tls_directory == tls
    configs = [load_config(tmp_path / "c" / f"{one}.toml") for one in cluster.node_ids]
    assert [one.tls.certificate for one in configs] == [str(tls / "n0.pem"), str(tls / "n1.pem")]
    assert {one.security.login for one in configs} == {"required"}
    assert configs[0].security.super_users == ["User:admin"]
    with pytest.raises(LocalClusterError, match=r"'quorumlog cluster up --dir .*c' makes those"):
        cluster.health()
    make_missing(tls, cluster.node_ids)
    assert cluster.health() == {"n0": None, "n1": None}
    names = ["user admin", "node n0", "node n1"]
    checked = check_all([tls], None, [], datetime.now(UTC))
    assert [one.label for one in checked.parties] == names
    assert checked.findings == []
    assert cluster.context.certificate == str(tls / "admin.pem")
    assert cluster.context.servers == cluster.servers


def test_only_what_is_missing_of_certificates_is_made(tmp_path):
    make_missing(tmp_path, ["n0", "n1"])
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.*")}
    make_missing(tmp_path, ["n0", "n1"])
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.*")} == before
    (tmp_path / "n0.pem").unlink()
    make_missing(tmp_path, ["n0", "n1"])
    after = {path.name: path.read_bytes() for path in tmp_path.glob("*.*")}
    changed = [name for name in after if after[name] != before[name]]
    assert sorted(changed) == ["n0.key", "n0.pem"]
    assert check_all([tmp_path], None, [], datetime.now(UTC)).findings == []


def test_a_plain_cluster_has_no_certificates_and_stays_plain(tmp_path, capsys):
    cluster = LocalCluster.create(tmp_path / "c")
    assert cluster.tls_directory is None
    assert not cluster.context.is_secure
    assert main(["cluster", "up", "--secure", "--dir", str(tmp_path / "c")]) == 1
    assert "was made without TLS" in capsys.readouterr().err
