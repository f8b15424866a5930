"""`quorumlog cluster init`: what it writes, and that each node can start from it."""

from datetime import UTC, datetime

import pytest

from quorumlog.cli import cluster_init
from quorumlog.cli.main import main
from quorumlog.client.contexts import read_contexts
from quorumlog.model.config import load_config
from quorumlog.pki.errors import PkiError
from quorumlog.pki.probe import check_all

NODES = ("n0=h0.example.org:7101", "n1=10.0.0.11:7101", "n2=[::1]:7101")


@pytest.fixture
def run(capsys):
    def run(*arguments):
        status = main(["cluster", "init", *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_each_node_has_a_configuration_that_loads_and_certificates_that_fit(run, tmp_path):
    made = tmp_path / "prod"
    status, out, err = run("--secure", "--dir", made, "--kafka-port", 9092, *NODES)
    assert (status, err) == (0, "")
    assert "cd n0 && quorumlog serve --config n0.toml" in out
    for number in range(3):
        config = load_config(made / f"n{number}" / f"n{number}.toml")
        assert config.self_id == f"n{number}"
        assert [group.group for group in config.groups] == ["default", "__cluster"]
        assert config.groups[0].members == {
            "n0": "h0.example.org:7101",
            "n1": "10.0.0.11:7101",
            "n2": "[::1]:7101",
        }
        assert config.kafka_listen.endswith(":9092")
        assert config.security.login == "required"
        assert config.security.super_users == ["User:admin"]
        assert config.tls.certificate == str(made / f"n{number}" / "tls" / "node.pem")
        assert sorted(path.name for path in (made / f"n{number}").rglob("*")) == sorted(
            [f"n{number}.toml", "tls", "node.pem", "node.key", "ca.pem"]
        )
    folders = [made / f"n{number}" / "tls" for number in range(3)]
    checked = check_all([*folders, made / "admin"], None, [], datetime.now(UTC))
    assert [one.label for one in checked.parties] == ["node n0", "node n1", "node n2", "user admin"]
    assert checked.findings == []
    contexts = read_contexts(made / "admin" / "contexts.toml")
    context = contexts.named(contexts.default)
    assert context.servers == "h0.example.org:7101,10.0.0.11:7101,[::1]:7101"
    assert context.kafka == "h0.example.org:9092,10.0.0.11:9092,[::1]:9092"
    assert context.certificate == str(made / "admin" / "admin.pem")
    assert context.cluster_id == checked.parties[0].subject.cluster_id
    assert context.is_secure
    assert [set(one.subject.hosts) for one in checked.parties] == [
        {"h0.example.org", "localhost", "127.0.0.1"},  # its port of metrics is at 127.0.0.1
        {"10.0.0.11", "localhost", "127.0.0.1"},
        {"::1", "localhost", "127.0.0.1"},
        set(),
    ]


def test_groups_a_name_and_a_place_for_data_are_taken_over(run, tmp_path):
    options = ("--group", "a", "--group", "b", "--cluster", "prod", "--data", '/var/lib/"q"')
    assert run("--secure", "--dir", tmp_path / "new" / "prod", *options, *NODES)[0] == 0
    config = load_config(tmp_path / "new" / "prod" / "n0" / "n0.toml")
    assert [group.group for group in config.groups] == ["a", "b", "__cluster"]
    assert (config.cluster, config.store_base_dir) == ("prod", '/var/lib/"q"')
    assert config.kafka_listen == ""


def test_brokers_on_one_host_have_ports_of_their_own(run, tmp_path):
    nodes = ("n0=127.0.0.1:7101", "n1=127.0.0.1:7102", "n2=127.0.0.2:7101")
    assert run("--secure", "--dir", tmp_path / "prod", "--kafka-port", 9092, *nodes)[0] == 0
    found = [load_config(tmp_path / "prod" / one / f"{one}.toml") for one in ("n0", "n1", "n2")]
    assert [one.kafka_listen for one in found] == [
        "127.0.0.1:9092",
        "127.0.0.1:9093",
        "127.0.0.2:9092",
    ]
    assert [one.admin_listen for one in found] == [
        "127.0.0.1:7201",
        "127.0.0.1:7202",
        "127.0.0.1:7203",  # as 127.0.0.2 is the same machine
    ]


@pytest.mark.parametrize(
    ("nodes", "admin"),
    [
        (["n0=h0:7101", "n1=h0:7201", "n2=h1:7101"], [7202, 7301, 7201]),
        (["n0=h0:7101", "n1=H0:7102", "n2=h0:7001"], [7201, 7202, 7103]),
        (["n0=h0:65501", "n1=h0:65301"], [65401, 65402]),
        (["n0=h0:8992", "n1=h0:8993"], [9094, 9095]),
    ],
)
def test_no_two_nodes_on_a_machine_have_one_port(run, tmp_path, nodes, admin):
    assert run("--secure", "--dir", tmp_path / "prod", "--kafka-port", 9092, *nodes)[0] == 0
    names = [text.partition("=")[0] for text in nodes]
    found = [load_config(tmp_path / "prod" / one / f"{one}.toml") for one in names]
    assert [one.admin_listen for one in found] == [f"127.0.0.1:{port}" for port in admin]


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (["h0:7101"], "is not NODE=HOST:PORT"),
        (["n0=h0"], "is not host:port"),
        (["n0=h0:0"], "a port that is chosen later"),
        (["n0=h0:1", "n0=h1:1"], "node n0 is given twice"),
        (["n0=h0:1", "n1=H0:1"], "address h0:1 is given twice"),
        (["n0=h0:1", "n1=h0:9092"], "address h0:9092 is given twice"),
        (["n-0=h0:1"], "is not usable"),
        (["ca=h0:1"], "no node may be called ca"),
    ],
)
def test_what_is_no_node_is_a_wrong_command_line(run, tmp_path, nodes, said):
    options = ("--secure", "--dir", tmp_path / "prod", "--kafka-port", 9092)
    status, _, err = run(*options, *nodes)
    assert status == 2
    assert said in " ".join(err.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_without_tls_it_is_said_what_to_do(run, tmp_path):
    status, _, err = run("--dir", tmp_path / "prod", *NODES)
    assert status == 2
    assert "give --secure" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--group", "a b"), "group 'a b' is not usable"), (("--group", "a", "-g", "a"), "twice")],
)
def test_what_a_node_could_not_start_with_is_not_written(run, tmp_path, options, said):
    status, out, err = run("--secure", "--dir", tmp_path / "prod", *options, *NODES)
    assert (status, out) == (1, "")
    assert said in err
    assert list(tmp_path.iterdir()) == []


def test_what_is_in_a_directory_is_kept(run, tmp_path):
    made = tmp_path / "prod"
    made.mkdir()
    assert run("--secure", "--dir", made, *NODES)[0] == 0  # an empty one is taken
    before = (made / "ca" / "ca.key").read_bytes()
    status, _, err = run("--secure", "--dir", made, *NODES)
    assert status == 1
    assert "is not empty" in err
    assert (made / "ca" / "ca.key").read_bytes() == before


@pytest.mark.parametrize("given", [".", "../here", "link"])
def test_an_empty_directory_is_filled_and_stays_itself(run, tmp_path, monkeypatch, given):
    here = tmp_path / "here"
    here.mkdir()
    if given == "link":
        (tmp_path / "link").symlink_to(here)
    monkeypatch.chdir(tmp_path if given == "link" else here)
    before = here.stat().st_ino
    status, _, err = run("--secure", "--dir", given, *NODES)
    assert (status, err) == (0, "")
    assert here.stat().st_ino == before
    assert {path.name for path in here.iterdir()} == {"admin", "ca", "n0", "n1", "n2"}
    load_config(here / "n0" / "n0.toml")


def test_nothing_is_left_if_it_fails_half_way(run, tmp_path, monkeypatch):
    def failing(config):
        raise PkiError("no room")

    monkeypatch.setattr(cluster_init, "toml_of", failing)
    assert run("--secure", "--dir", tmp_path / "prod", *NODES)[0] == 1
    assert list(tmp_path.iterdir()) == []
    assert run("--secure", "--dir", tmp_path, *NODES)[0] == 1
    assert list(tmp_path.iterdir()) == []
