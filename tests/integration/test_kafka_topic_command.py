"""`quorumlog topic`: what it does to topics, and what it says when it cannot."""

import base64
import json
import socket
import time

import pytest
from kafka.errors import RequestTimedOutError

from embedding import free_ports
from kafka_nodes import kafka_nodes
from quorumlog.cli.kafka_admin import TIMEOUT_SECONDS
from quorumlog.cli.main import main
from quorumlog.cli.topic import _note_replicas, _places
from quorumlog.local import LocalCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with kafka_nodes(tmp_path_factory.mktemp("kafka")) as nodes:
        yield nodes


@pytest.fixture
def topic(cluster, capsys):
    """Run the command; return its exit status, its output and what it said on standard error."""

    def run(*arguments):
        status = main(["topic", *arguments, "--bootstrap-server", cluster.servers])
        return status, *capsys.readouterr()

    return run


def test_a_topic_is_created_described_altered_and_deleted(topic):
    assert topic("create", "a", "--partitions", "2", "--config", "retention.ms=1000")[:2] == (
        0,
        "topic a is created\n",
    )
    _, out, _ = topic("list")
    assert out.split() == [
        "TOPIC",
        "PARTITIONS",
        "REPLICAS",
        "WITHOUT",
        "LEADER",
        "a",
        "2",
        "1",
        "0",
    ]
    _, out, _ = topic("describe", "a")
    assert "  retention.ms=1000\n  retention class of new partitions: up to 17.5 min\n" in out
    assert max(map(len, out.splitlines())) <= 80
    options = ("--partitions", "3", "--config", "retention.bytes=5")
    assert topic("alter", "a", *options, "--delete-config", "retention.ms")[:2] == (
        0,
        "topic a is altered\ntopic a has 3 partitions now\n",
    )
    described = json.loads(topic("describe", "a", "--json")[1])
    assert described["configs"] == {"retention.bytes": "5"}
    assert topic("alter", "a", "--add-config", "retention.bytes=5")[0] == 0
    assert described["retention_class"] == "up to 12.4 d"
    assert [one["leader"] for one in described["partitions"]] == [0, 0, 0]
    assert json.loads(topic("list", "--json")[1])["partitions"] == 3
    assert topic("delete", "a")[:2] == (0, "topic a is deleted\n")
    assert topic("list", "--json")[:2] == (0, "")


def test_programs_read_what_was_altered_and_deleted(topic):
    assert topic("create", "j", "--partitions", "2")[0] == 0
    topic_id = json.loads(topic("describe", "j", "--json")[1])["topic_id"]
    options = ("--config", "retention.ms=5", "--delete-config", "retention.bytes")
    status, out, _ = topic("alter", "j", *options, "--partitions", "3", "--json")
    assert status == 0
    assert [json.loads(line) for line in out.splitlines()] == [
        {"name": "j", "configs": {"retention.ms": "5", "retention.bytes": None}},
        {"name": "j", "partitions": 3},
    ]
    status, out, error = topic("delete", "j", "none", "--json")
    assert (status, json.loads(out)) == (1, {"name": "j", "topic_id": topic_id})
    assert "there is no topic 'none'" in error


def test_a_policy_of_compaction_is_taken_with_a_word_of_warning(topic):
    warned = "quorumlog: cleanup.policy: topics are not compacted here: nothing is removed\n"
    policy = "cleanup.policy=compact"
    status, out, error = topic("create", "c", "--config", policy, "--json")
    assert (status, json.loads(out)["name"], error) == (0, "c", warned)
    status, _, error = topic("alter", "c", "--config", f"{policy},delete")
    assert (status, "only retention removes records" in error) == (0, True)
    assert topic("alter", "c", "--config", "cleanup.policy=delete")[2] == ""
    assert topic("delete", "c")[0] == 0


def test_what_cannot_be_done_is_said_in_words(topic):
    assert json.loads(topic("create", "b", "--json")[1])["num_partitions"] == 4
    status, _, error = topic("create", "b")
    assert status == 1
    assert "topic 'b' exists already" in error
    assert topic("create", "b", "--if-not-exists")[0] == 0
    unknown = "there is no topic 'none' ('quorumlog topic list' shows those there are)\n"
    for arguments in (["describe"], ["delete"], ["alter", "--partitions", "9"]):
        assert topic(*arguments, "none")[2] == f"quorumlog: {unknown}"
    assert topic("alter", "none", "--config", "retention.ms=1")[2].endswith(unknown)
    assert topic("delete", "none", "--if-exists")[0] == 0
    (error,) = topic("alter", "b", "--config", "retention.years=1")[2].splitlines()
    assert error.startswith("quorumlog: topic b: topics have no config 'retention.years'")
    (error,) = topic("alter", "b", "--partitions", "1")[2].splitlines()
    assert error.endswith("has 4 partitions, and cannot have 1: the number only rises")
    assert topic("alter", "b")[0] == 2


def test_a_topic_whose_partitions_have_no_leader_yet_is_said_to_be_made(
    topic, cluster, monkeypatch
):
    async def never(_ids, _timeout_ms):
        return False

    assert topic("create", "grown")[0] == 0
    broker = cluster.nodes[0].broker
    monkeypatch.setattr(broker, "wait_open", never)
    monkeypatch.setattr(broker, "is_open", lambda _: False)
    monkeypatch.setattr(broker, "why_not_open", lambda _: "n1 is down")
    lacks = "but some of its partitions have no leader yet: n1 is down"
    said = f"quorumlog: topic slow is created, {lacks}\n"
    assert topic("create", "slow") == (1, "", said)
    error = topic("create", "also-slow", "slow")[2].splitlines()
    assert error == [
        f"quorumlog: topic also-slow is created, {lacks}",
        "quorumlog: topic 'slow' exists already",
        "quorumlog: 1 of 2 topics not created; 1 of 2 topics created without all leaders",
    ]
    said = f"quorumlog: topic grown has 5 partitions now, {lacks}\n"
    assert topic("alter", "grown", "--partitions", "5") == (1, "", said)
    monkeypatch.undo()
    assert topic("delete", "slow", "also-slow", "grown")[0] == 0


def test_a_server_that_is_not_there_is_said_to_be_so(capsys):
    where = f"127.0.0.1:{free_ports(1)[0]}"
    before = time.monotonic()
    assert main(["topic", "list", "--bootstrap-server", where]) == 1
    assert time.monotonic() - before < TIMEOUT_SECONDS / 2
    said = "is it kafkaListen of a node that runs?"
    refused = f"no broker answers at {where} (Connection refused): {said}"
    assert refused in capsys.readouterr().err


def test_a_node_that_answers_nothing_is_not_said_to_be_down(capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"127.0.0.1:{server.getsockname()[1]}"
        assert main(["topic", "list", "--bootstrap-server", where, "--timeout", "4"]) == 1
    error = capsys.readouterr().err
    said = "takes connections and names no broker within 4 s: __cluster has no leader"
    assert f"{where} {said}" in error


def test_ports_that_are_taken_for_each_other_are_told_apart(cluster, capsys):
    node = cluster.nodes[0].broker.brokers[0].address
    assert main(["topic", "list", "--bootstrap-server", node]) == 1
    assert f"{node} is a node's port for quorumlog's own clients" in capsys.readouterr().err
    assert main(["group", "list", "--servers", cluster.servers]) == 1
    error = capsys.readouterr().err
    closed = "closed during the handshake: this may be its kafkaListen; --servers needs the node's"
    assert closed in error
    assert main(["status", "--servers", cluster.servers, "--group", "g"]) == 1
    assert capsys.readouterr().err.count(f"{cluster.servers}: ") == 1


def test_groups_of_brokers_are_listed_if_there_are_no_others(topic, cluster, capsys):
    assert topic("create", "listed")[0] == 0
    node = cluster.nodes[0].broker.brokers[0].address
    assert main(["status", "--servers", node]) == 2
    error = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "no groups but those of its brokers (__cluster, pg-0" in error
    assert "choose one of these with --group" in error
    assert topic("delete", "listed")[0] == 0


def test_a_local_cluster_that_does_not_run_is_said_to_be_so_at_once(tmp_path, capsys):
    LocalCluster.create(tmp_path / "c", nodes=1, topics=True)
    assert main(["topic", "list", "--dir", str(tmp_path / "c")]) == 1
    assert f"no node of the cluster in {tmp_path / 'c'} runs" in capsys.readouterr().err


def test_a_broker_that_does_not_answer_in_time_is_no_python_error(topic, monkeypatch):
    def late(*_arguments, **_options):
        raise RequestTimedOutError("Request timed out after 1000 ms")

    monkeypatch.setattr("kafka.KafkaAdminClient.delete_topics", late)
    status, _, error = topic("delete", "a", "--timeout", "1")
    assert status == 1
    assert "did not answer within 1 s; what was asked for may have been done" in error
    assert "Error" not in error


def test_more_replicas_than_were_asked_for_are_told(capsys):
    topics = [{"name": name, "error_code": 0, "replication_factor": 3} for name in ("a", "b")]
    _note_replicas([*topics, {"name": "c", "error_code": 36}], 2)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"quorumlog: topic {name} has 3 replicas, not 2: as many as its partition groups have"
        for name in ("a", "b")
    ]
    _note_replicas(topics, 3)
    _note_replicas(topics, None)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("server", ["localhost", "localhost:", "127.0.0.1:9092,other", ":9092"])
def test_a_server_has_a_port(server, capsys):
    assert main(["topic", "list", "--bootstrap-server", server]) == 2
    assert "is not HOST:PORT, such as" in " ".join(capsys.readouterr().err.split())


def test_a_host_that_cannot_be_found_is_named(capsys):
    where = "no-such-host.invalid:9092"
    assert main(["topic", "list", "--bootstrap-server", where, "--timeout", "1"]) == 1
    assert "host 'no-such-host.invalid' cannot be found" in capsys.readouterr().err


def test_f2_a_name_that_is_given_twice_counts_once_and_an_unknown_one_hides_no_other(topic):
    assert topic("create", "d", "d")[0] == 0
    status, out, error = topic("describe", "none", "d", "d")
    assert (status, out.count("topic d, id ")) == (1, 1)
    assert "there is no topic 'none'" in error
    assert topic("delete", "d", "d")[:2] == (0, "topic d is deleted\n")


def test_f2_a_topic_id_is_spelled_as_by_kafka_s_tools(topic, cluster):
    topic("create", "i")
    described = json.loads(topic("describe", "i", "--json")[1])
    broker = cluster.nodes[0].broker
    spelled = described["topic_id"]
    assert base64.urlsafe_b64decode(spelled + "==") == broker.topics["i"].topic_id
    assert f"topic i, id {spelled}\n" in topic("describe", "i")[1]
    topic("delete", "i")


def test_a_near_miss_of_a_name_is_pointed_out(topic):
    assert topic("create", "flights")[0] == 0
    said = "there is no topic 'fligths'; did you mean 'flights'? ("
    for arguments in (["describe"], ["delete"], ["alter", "--config", "retention.ms=1"]):
        assert said in topic(*arguments, "fligths")[2]


def test_f2_a_near_miss_of_a_config_is_pointed_out_and_units_are_said(topic):
    (error,) = topic("create", "m", "--config", "retention.m=1")[2].splitlines()
    text = "topics have no config 'retention.m'; did you mean retention.ms?"
    assert error == f"quorumlog: topic m: {text}"
    error = topic("create", "m", "n!", "--config", "retention.m=1")[2].splitlines()
    assert error[0] == f"quorumlog: topic m: {text}"
    assert error[1].startswith("quorumlog: topic 'n!': a name has letters")
    assert error[2:] == ["quorumlog: 2 of 2 topics not created"]
    refused = topic("create", "m", "--config", "retention.ms=7d")[2]
    assert "retention.ms (milliseconds): '7d' is not a whole number" in refused


def test_f2_configs_of_all_brokers_are_described_and_altered(cluster, capsys):
    def run(*arguments):
        status = main(["broker-config", *arguments, "--bootstrap-server", cluster.servers])
        return status, *capsys.readouterr()

    assert run("alter", "--add-config", "num.partitions=3") == (0, "altered: num.partitions\n", "")
    found = [json.loads(line) for line in run("describe", "--json")[1].splitlines()]
    assert {"name": "num.partitions", "value": "3", "is_set": True} in found
    assert [one["name"] for one in found if one["is_set"]] == ["num.partitions"]
    rows = [line.split() for line in run("describe")[1].splitlines()]
    assert ["num.partitions", "3", "set"] in rows
    assert run("alter", "--config", "num.partitions=5")[0] == 0
    assert run("alter", "--delete-config", "num.partitions")[0] == 0
    assert ["num.partitions", "4"] in [line.split() for line in run("describe")[1].splitlines()]
    status, _, error = run("alter", "--add-config", "num.partition=3")
    assert status == 1
    assert "did you mean num.partitions?" in error


def test_f2_a_partition_without_leader_is_described_as_such():
    partition = {"partition_index": 3, "leader_id": -1, "leader_epoch": 7}
    found = {"partitions": [{**partition, "replica_nodes": [0, 1, 2], "isr_nodes": [1]}]}
    assert _places(found) == [["3", "none", "7", "0,1,2", "1"]]
