"""`quorumlog consumer-group`: what it shows of groups, what it does to them, what it refuses."""

import json

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import NotCoordinatorError, PolicyViolationError
from kafka.structs import OffsetAndMetadata

from kafka_nodes import SECONDS, kafka_nodes
from quorumlog.cli import consumer_group
from quorumlog.cli.consumer_group import NAMED_MAX, _has_members
from quorumlog.cli.kafka_admin import in_words
from quorumlog.cli.main import main

RECORDS, TAKEN = 6, 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with kafka_nodes(tmp_path_factory.mktemp("kafka")) as nodes:
        admin = KafkaAdminClient(bootstrap_servers=nodes.servers)
        admin.create_topics([NewTopic("orders", 2, -1)])
        admin.close()
        producer = KafkaProducer(bootstrap_servers=nodes.servers)
        for number in range(RECORDS):
            producer.send("orders", b"%d" % number, partition=0).get(30)
        producer.close()
        yield nodes


@pytest.fixture
def command(cluster, capsys):
    """Run the command; return its exit status, its output and what it said on standard error."""

    def run(*arguments):
        status = main(["consumer-group", *arguments, "--bootstrap-server", cluster.servers])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def consumer(cluster, request):
    """A member of a group that is named after the test, which has read and committed some."""
    made = KafkaConsumer(
        "orders",
        bootstrap_servers=cluster.servers,
        group_id=request.node.name,
        client_id="svc",
        auto_offset_reset="earliest",
    )
    for _ in range(TAKEN):
        next(made)
    made.commit()
    yield made
    made.close()


def described(command, group):
    status, out, error = command("describe", group, "--json")
    assert status == 0, error
    return json.loads(out)


def committed(command, group):
    return [one["committed"] for one in described(command, group)["partitions"]]


def test_f2_a_group_is_listed_and_described_with_its_members_and_lag(command, consumer, request):
    group = request.node.name
    listed = [json.loads(line) for line in command("list", "--json")[1].splitlines()]
    kinds = {"type": "classic", "state": "Stable", "protocol_type": "consumer"}
    assert {"group": group, **kinds} in listed
    found = described(command, group)
    (member,) = found["members"]
    assert (found["state"], member["client_id"]) == ("Stable", "svc")
    assert found["lag"] == RECORDS - TAKEN
    assert [(one["partition"], one["end"], one["lag"]) for one in found["partitions"]] == [
        (0, RECORDS, RECORDS - TAKEN),
        (1, 0, 0),
    ]
    assert {one["member_id"] for one in found["partitions"]} == {member["member_id"]}
    out = command("describe", group)[1]
    heading, protocol, names, *lines = out.splitlines()
    assert heading == f"consumer group {group}: Stable, 1 member, lag 2"
    assert protocol == "  classic protocol, assignor range"
    columns, *rows = (line.split() for line in (names, *lines))
    assert columns[-3:] == ["MEMBER", "CLIENT", "HOST"], "it is no static one, and has no epoch"
    assert [row[-3:] for row in rows] == [[member["member_id"], "svc", "127.0.0.1"]] * 2


def test_f2_offsets_are_reset_within_what_partitions_have(command, consumer, request):
    group = request.node.name
    consumer.close()
    status, out, error = command("reset", group, "--to-latest", "--dry-run")
    assert (status, "NEW OFFSET" in out) == (0, True)
    assert "nothing is changed, as --dry-run was given" in error
    assert committed(command, group) == [TAKEN, 0]
    steps = [
        (("--to-latest",), [RECORDS, 0]),
        (("--to-earliest",), [0, 0]),
        (("--to-offset", "3", "--topic", "orders:0"), [3, 0]),
        (("--to-offset", "999"), [RECORDS, 0]),
        (("--shift-by", "-2", "--topic", "orders:0"), [RECORDS - 2, 0]),
        (("--shift-by", "-99"), [0, 0]),
        (("--to-datetime", "2100-01-01T00:00:00"), [RECORDS, 0]),
        (("--to-datetime", "2020-01-01"), [0, 0]),
        (("--to-datetime", "2020-01-01T00:00:00.250+0100"), [0, 0]),
    ]
    for options, expected in steps:
        status, _, error = command("reset", group, *options)
        assert status == 0, error
        assert committed(command, group) == expected, options
    said = " ".join(command("reset", group, "--to-datetime", "2100-01-01", "--dry-run")[2].split())
    assert f"orders 0: no record is as new; to the end, {RECORDS}" in said
    said = " ".join(command("reset", group, "--shift-by", "-1", "--dry-run")[2].split())
    assert "orders 0: -1 is before the log start; to offset 0" in said
    status, out, _ = command("reset", group, "--to-offset", "5", "--topic", "orders:0", "--json")
    assert json.loads(out) == {"topic": "orders", "partition": 0, "before": 0, "committed": 5}


def test_f2_what_has_members_is_neither_reset_nor_deleted(command, consumer, request):
    group = request.node.name
    status, _, error = command("reset", group, "--to-latest")
    assert status == 1
    has = f"consumer group {group} has 1 member (svc at 127.0.0.1): stop them first"
    goes = "one that was killed goes by itself once its session time-out is over"
    assert f"{has}, as they would commit their own offsets; {goes}\n" in error
    status, _, error = command("delete", group)
    assert status == 1
    assert f"{has}; {goes}\n" in error
    assert committed(command, group) == [TAKEN, 0]
    consumer.close()
    assert command("delete", group)[:2] == (0, f"group {group} is deleted\n")
    assert f"there is no consumer group {group!r}" in command("describe", group)[2]


def test_f2_members_are_named_by_their_instances_too_and_not_all_of_many():
    one = {"client_id": "svc", "client_host": "10.0.0.1", "group_instance_id": "i7"}
    assert "has 1 member (svc at 10.0.0.1 as i7): stop it" in _has_members("g", [one], "stop it")
    others = [one | {"group_instance_id": None}] * (NAMED_MAX + 3)
    text = _has_members("g", others, "stop them")
    assert f"has {NAMED_MAX + 3} members (" in text
    assert f"{', '.join(['svc at 10.0.0.1'] * NAMED_MAX)}, 3 more): stop them" in text


@pytest.fixture
def leaderless(monkeypatch):
    """Say of these partitions of all topics that they have no leader; elections are over soon."""

    def without(*numbers):
        describe = KafkaAdminClient.describe_topics

        def described(admin, topics=None):
            found = describe(admin, topics)
            for each in (each for one in found for each in one["partitions"]):
                if each["partition_index"] in numbers:
                    each["leader_id"] = -1
            return found

        monkeypatch.setattr(KafkaAdminClient, "describe_topics", described)
        monkeypatch.setattr(consumer_group, "LEADERS_S", 0.1)

    return without


def test_f2_partitions_without_leader_are_named_and_those_that_can_be_reset(command, leaderless):
    leaderless(1)
    status, out, error = command("reset", "g", "--topic", "orders", "--to-latest")
    assert (status, out) == (1, "")
    said = "nothing is changed: topic orders has no leader of partition 1; start the nodes that"
    assert f"{said} have them, or choose the others only: --topic orders:0\n" in error
    assert command("reset", "g", "--topic", "orders:0", "--to-latest")[0] == 0
    assert command("delete", "g")[0] == 0


def test_f2_without_any_leader_none_are_offered(command, leaderless):
    leaderless(0, 1)
    error = command("reset", "g", "--topic", "orders", "--to-latest")[2]
    said = "topic orders has no leader of partitions 0, 1; start the nodes that have them\n"
    assert said in error


def test_f2_what_cannot_be_done_is_said_in_words(command):
    unknown = "no consumer group 'none' ('quorumlog consumer-group list' shows those there are)\n"
    assert unknown in command("describe", "none")[2]
    assert unknown in command("reset", "none", "--to-latest")[2]
    assert unknown in command("delete", "none")[2]
    assert command("delete", "none", "--if-exists")[0] == 0
    options = ("reset", "new", "--to-latest", "--topic")
    assert "there is no topic 'ordres'; did you mean 'orders'?" in command(*options, "ordres")[2]
    assert "topic orders has no partition 7; it has 2" in command(*options, "orders:7")[2]
    assert command(*options, "orders:x")[0] == 2
    assert command("reset", "new")[0] == 2
    shifted = command("reset", "new", "--shift-by", "1", "--topic", "orders:0")
    assert "nothing is committed of orders 0, so it cannot be shifted" in shifted[2]


def test_f2_one_unknown_group_does_not_hide_the_others(command, consumer, request):
    status, out, error = command("describe", request.node.name, "none")
    assert (status, out.split()[:3]) == (1, ["consumer", "group", f"{request.node.name}:"])
    assert "there is no consumer group 'none'" in error


def test_f2_lag_that_is_not_known_is_not_taken_for_none(command, cluster, request):
    made = KafkaConsumer(
        "orders",
        bootstrap_servers=cluster.servers,
        group_id=request.node.name,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    for _ in range(TAKEN):
        next(made)
    made.commit({TopicPartition("orders", 0): OffsetAndMetadata(TAKEN, "", -1)})
    out = command("describe", request.node.name)[1]
    assert described(command, request.node.name)["lag"] is None
    made.close()
    lag = f"lag {RECORDS - TAKEN} without the 1 partition where it is not known"
    assert lag in " ".join(out.split())


def test_f2_a_committed_offset_below_0_is_shown_as_none(command, cluster, request):
    admin = KafkaAdminClient(bootstrap_servers=cluster.servers)
    places = TopicPartition("orders", 0), TopicPartition("orders", 1)
    offsets = dict(zip(places, (OffsetAndMetadata(at, "", -1) for at in (2, -5)), strict=True))
    admin.alter_group_offsets(request.node.name, offsets)
    admin.close()
    found = described(command, request.node.name)["partitions"]
    assert [(one["committed"], one["lag"]) for one in found] == [(2, RECORDS - 2)]


def test_f2_a_reset_says_that_a_group_is_new_and_which_offsets_there_are(command):
    options = ("--topic", "orders:0", "--to-offset", "99", "--dry-run")
    status, _, error = command("reset", "ordres", *options)
    assert status == 0
    assert "there was no consumer group 'ordres'; it would be made" in error
    assert f"orders 0: 99 is beyond the end; to offset {RECORDS}" in error
    assert command("describe", "ordres")[0] == 1
    status, _, error = command("reset", "orders-2", *options[:-1])
    assert (status, "there was no consumer group 'orders-2'; it is made" in error) == (0, True)
    near = "there is no consumer group 'order-2'; did you mean 'orders-2'? ("
    assert near in command("describe", "order-2")[2]
    assert near in command("delete", "order-2")[2]
    assert command("delete", "orders-2")[0] == 0


def test_f2_a_reset_is_asked_again_if_the_coordinator_changes_meanwhile(
    command, monkeypatch, request
):
    group, alter, answered = request.node.name, KafkaAdminClient.alter_group_offsets, []

    def moved_once(admin, name, offsets):
        answered.append(offsets)
        if len(answered) == 1:
            return dict.fromkeys(offsets, NotCoordinatorError)
        return alter(admin, name, offsets)

    monkeypatch.setattr(KafkaAdminClient, "alter_group_offsets", moved_once)
    status, _, error = command("reset", group, "--topic", "orders", "--to-latest")
    assert (status, len(answered)) == (0, 2), error
    assert committed(command, group) == [RECORDS, 0]


def test_f2_errors_of_the_protocol_have_kafkas_names_and_what_they_mean():
    assert in_words("PolicyViolationError") == (
        "POLICY_VIOLATION: Request parameters do not satisfy the configured policy."
    )
    told = str(PolicyViolationError("at most 10 of these"))
    assert in_words("PolicyViolationError", told) == "POLICY_VIOLATION: at most 10 of these"
    assert in_words("SomethingElse", "text") == "SomethingElse: text"


@pytest.mark.parametrize(
    "action", [("list",), ("describe", "g"), ("delete", "g"), ("reset", "g", "--to-latest")]
)
def test_f2_without_a_coordinator_commands_fail_in_words(tmp_path, capsys, action):
    with kafka_nodes(tmp_path, 3) as cluster:
        left, *others = cluster.nodes
        for one in others:
            cluster.run(one.stop())
            cluster.nodes.remove(one)
        broker = left.broker
        assert cluster.run(broker.until(lambda: broker.coordinator_term < 0, SECONDS * 1_000))
        options = ("--bootstrap-server", cluster.servers, "--timeout", "6")
        assert main(["consumer-group", *action, *options]) == 1
        assert "consumer groups cannot be changed now" in capsys.readouterr().err


def test_f2_a_broker_that_just_died_is_asked_no_more(tmp_path, capsys):
    with kafka_nodes(tmp_path, 3) as cluster:
        options = ("--bootstrap-server", cluster.servers)
        assert main(["topic", "create", "t", *options]) == 0
        cluster.settle()
        cluster.run(cluster.nodes.pop().stop())
        for action in (("list",), ("reset", "g", "--topic", "t", "--to-latest")):
            assert main(["consumer-group", *action, *options]) == 0, capsys.readouterr().err


def test_too_few_brokers_for_a_partition_group_are_named_when_a_topic_is_not_made(tmp_path, capsys):
    with kafka_nodes(tmp_path, 3) as cluster:
        cluster.run(cluster.nodes.pop().stop())
        options = ("--bootstrap-server", cluster.servers, "--timeout", "5")
        assert main(["topic", "create", "t", *options]) == 1
        assert "a partition group is made of 3 brokers, and there are 2" in capsys.readouterr().err
