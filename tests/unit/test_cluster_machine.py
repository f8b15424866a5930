"""The state of `__cluster`: what each command does, and that it is the same everywhere."""

import io
import os

import msgspec
import pytest

from quorumlog.machine.cluster.answers import (
    BYTES_MAX,
    COMMANDS_MAX,
    SESSIONS_MAX,
    command_id,
)
from quorumlog.machine.cluster.commands import (
    AddGroups,
    AllocateProducerIds,
    AlterConfigs,
    AlterResource,
    ConfigChange,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    Envelope,
    Forgotten,
    GroupsLed,
    MorePartitions,
    NewGroup,
    NewTopic,
    PartitionsLost,
    PartitionsOpened,
    RegisterBroker,
    ReplaceGroup,
    TopicToDelete,
    decode_result,
    encode,
)
from quorumlog.machine.cluster.machine import ClusterMachine
from quorumlog.machine.cluster.state import PartitionGroup, group_identity
from quorumlog.model.codes import ResponseCode
from quorumlog.model.entry import Entry
from quorumlog.model.errors import CorruptionError
from quorumlog.model.retention_classes import MIXED, SHORTEST, UNLIMITED

OK = ResponseCode.SUCCESS


def entry(body):
    return Entry(index=0, term=1, pos=0, body=body)


class Cluster:
    """A machine, and the commands that it was given."""

    def __init__(self, brokers=3, groups=3, classes=()):
        self.machine = ClusterMachine()
        self.log = []
        for number in range(brokers):
            self.register(f"n{number}")
        if groups:
            ids = [*range(brokers)]
            rings = [ids[first:] + ids[:first] for first in range(groups)]
            self.do(AddGroups(0, [NewGroup(members, "", {}) for members in rings]))
        for one in classes:
            self.do(AddGroups(self.view.groups_made, [NewGroup([0], "", {}, one)]))

    @property
    def view(self):
        return self.machine.view

    def do(self, command, identity=None, at_ms=5, lowest=None):
        body = encode(Envelope(identity or os.urandom(16), at_ms, command, lowest))
        self.log.append(body)
        return decode_result(self.machine.apply([entry(body)])[0])

    def register(self, node_id, port=9092, address="h:1"):
        return self.do(RegisterBroker(node_id, address, "h", port, "", "cluster-a"))

    def create(self, name, partitions=3, **fields):
        topic = NewTopic(name, os.urandom(16), partitions, **fields)
        return self.do(CreateTopics([topic])).topics[0]

    def channels(self, name):
        return [(one.group, one.channel) for one in self.view.topics[name].partitions]


def test_a_broker_has_the_number_at_the_end_of_its_nodes_name_and_keeps_it():
    cluster = Cluster(brokers=0, groups=0)
    assert cluster.register("n2").broker_id == 2
    assert cluster.register("east2").broker_id == 3
    assert cluster.register("n2", port=9999, address="other:1").broker_id == 2
    assert cluster.view.brokers[2].port == 9999
    assert cluster.view.cluster_id == "cluster-a"
    for number in range(48):
        cluster.register(f"b{number + 100}")
    refused = cluster.register("one-too-many")
    assert refused.code is ResponseCode.CLUSTER_FULL
    assert "one-too-many cannot be a broker: 50 are registered already" in refused.text


def test_partitions_take_turns_over_groups_and_those_with_the_fewest_come_first():
    cluster = Cluster()
    cluster.create("a", 4)
    assert cluster.channels("a") == [("pg-0", 1), ("pg-1", 1), ("pg-2", 1), ("pg-0", 2)]
    cluster.create("b", 2)
    assert cluster.channels("b") == [("pg-1", 2), ("pg-2", 2)]
    assert cluster.view.topics["b"].created_ms == 5
    assert cluster.view.partition_count == 6


def test_partitions_go_to_groups_of_their_topics_retention_class():
    cluster = Cluster(groups=0, classes=[12, 15, UNLIMITED, 15])
    cluster.create("weeks", 2)
    assert cluster.channels("weeks") == [("pg-1", 1), ("pg-3", 1)]
    cluster.create("hours", 2, configs={"retention.ms": "7200000"})
    assert cluster.channels("hours") == [("pg-0", 1), ("pg-0", 2)]
    cluster.create("compacted", 1, configs={"cleanup.policy": "compact"})
    assert cluster.channels("compacted") == [("pg-2", 1)]
    cluster.do(AlterConfigs([AlterResource("weeks", [ConfigChange("set", "retention.ms", "-1")])]))
    cluster.do(CreatePartitions([MorePartitions("weeks", 3)]))
    assert cluster.channels("weeks") == [("pg-1", 1), ("pg-3", 1), ("pg-2", 2)], "nothing moves"
    cluster.do(AlterConfigs([AlterResource(None, [ConfigChange("set", "log.retention.ms", "9")])]))
    cluster.create("minutes", 1)
    assert cluster.channels("minutes") == [("pg-0", 3)], "the nearest class that has a group"


def test_groups_from_before_there_were_classes_are_used_if_there_are_no_others():
    cluster = Cluster(groups=1)
    cluster.create("t", 1)
    assert cluster.channels("t") == [("pg-0", 1)]
    cluster.do(AddGroups(1, [NewGroup([0], "", {}, SHORTEST)]))
    cluster.do(CreatePartitions([MorePartitions("t", 2)]))
    assert cluster.channels("t") == [("pg-0", 1), ("pg-1", 1)]
    cluster.do(ReplaceGroup("pg-1", NewGroup([1], "", {}, SHORTEST)))
    assert cluster.view.groups["pg-2"].retention_class == SHORTEST


def test_what_was_saved_before_there_were_classes_is_read_as_mixed():
    before = ["pg-0", [0], "peers", {}, "led", 5, 3]
    group = msgspec.msgpack.decode(msgspec.msgpack.encode(before), type=PartitionGroup)
    assert (group.next_channel, group.retention_class) == (3, MIXED)
    new = msgspec.msgpack.decode(msgspec.msgpack.encode([[0], "peers", {}]), type=NewGroup)
    assert new.retention_class == MIXED


def test_a_deleted_topics_name_is_free_at_once_and_its_channels_are_never_used_again():
    cluster = Cluster(groups=1)
    first = cluster.create("t", 2)
    assert cluster.do(DeleteTopics([TopicToDelete("t")])).topics[0].topic_id == first.topic_id
    assert cluster.view.topics == {}
    assert cluster.view.assignments["pg-0"] == {}
    second = cluster.create("t", 1)
    assert second.topic_id != first.topic_id
    assert cluster.channels("t") == [("pg-0", 3)]
    gone = cluster.do(DeleteTopics([TopicToDelete(topic_id=first.topic_id)])).topics[0]
    assert gone.code is ResponseCode.UNKNOWN_TOPIC
    assert "t" in cluster.view.topics


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a" * 250, "thé", "a b", "a\0", "__cluster", "a/b", "\ud7ff"]
)
def test_names_that_kafka_refuses_are_refused(name):
    assert Cluster().create(name).code is ResponseCode.INVALID_TOPIC


def test_names_that_are_alike_in_metrics_collide_until_the_first_is_deleted():
    cluster = Cluster()
    assert cluster.create("a.b").code is OK
    assert cluster.create("a_b").code is ResponseCode.INVALID_TOPIC
    assert cluster.create("a.b").code is ResponseCode.TOPIC_EXISTS
    cluster.do(DeleteTopics([TopicToDelete("a.b")]))
    assert cluster.create("a_b").code is OK
    assert cluster.create("a" * 249).code is OK


def test_what_a_topic_cannot_have_is_said_and_nothing_is_made():
    cluster = Cluster()
    assert cluster.create("t", 0).code is ResponseCode.INVALID_PARTITIONS
    assert cluster.create("t", 4_001).code is ResponseCode.INVALID_PARTITIONS
    factor = cluster.create("t", replication_factor=4)
    assert factor.code is ResponseCode.INVALID_REPLICATION_FACTOR
    assert "replication factor 4: the cluster has 3 brokers" in factor.text
    config = cluster.create("t", configs={"retention.ms": "x"})
    assert config.code is ResponseCode.INVALID_CONFIG
    assert cluster.view.topics == {}
    assert cluster.create("t", replication_factor=1).replication_factor == 3


def test_there_are_at_most_10_000_partitions():
    cluster = Cluster()
    assert [cluster.create(f"t{n}", 4_000).code for n in range(2)] == [OK, OK]
    assert cluster.create("t3", 2_001).code is ResponseCode.CLUSTER_FULL
    assert cluster.create("t3", 2_000).code is OK
    assert cluster.do(CreatePartitions([MorePartitions("t3", 2_001)])).topics[0].code is (
        ResponseCode.CLUSTER_FULL
    )
    cluster.do(DeleteTopics([TopicToDelete("t0")]))
    assert cluster.create("t4", 4_000).code is OK


def test_the_default_number_of_partitions_can_be_altered():
    cluster = Cluster()
    assert cluster.create("a", -1).partitions == 4
    change = ConfigChange("set", "num.partitions", "2")
    assert cluster.do(AlterConfigs([AlterResource(None, [change])])).outcomes == [(OK, "")]
    assert cluster.create("b", -1).partitions == 2
    assert cluster.view.defaults == {"num.partitions": "2"}


def test_validating_changes_nothing_and_says_what_would_be():
    cluster = Cluster()
    asked = CreateTopics([NewTopic("t", os.urandom(16), 5)], validate_only=True)
    outcome = cluster.do(asked).topics[0]
    assert (outcome.code, outcome.partitions, outcome.replication_factor) == (OK, 5, 3)
    assert cluster.view.topics == {}
    cluster.create("t", 1)
    more = CreatePartitions([MorePartitions("t", 3)], validate_only=True)
    assert cluster.do(more).topics[0].partitions == 3
    change = AlterResource("t", [ConfigChange("set", "retention.ms", "9")])
    cluster.do(AlterConfigs([change], validate_only=True))
    assert len(cluster.channels("t")) == 1
    assert cluster.view.topics["t"].configs == {}


def test_partitions_are_added_and_never_taken_away():
    cluster = Cluster(groups=2)
    cluster.create("t", 1)
    before = cluster.channels("t")
    assert cluster.do(CreatePartitions([MorePartitions("t", 3)])).topics[0].code is OK
    assert cluster.channels("t")[:1] == before
    assert [one.number for one in cluster.view.topics["t"].partitions] == [0, 1, 2]
    codes = [
        cluster.do(CreatePartitions([MorePartitions(name, count)])).topics[0].code
        for name, count in (("t", 3), ("t", 4_001), ("u", 9))
    ]
    assert codes == [
        ResponseCode.INVALID_PARTITIONS,
        ResponseCode.INVALID_PARTITIONS,
        ResponseCode.UNKNOWN_TOPIC,
    ]


def test_a_partition_is_open_once_its_groups_leader_says_so():
    cluster = Cluster(groups=1)
    cluster.create("t", 3)
    assert cluster.do(PartitionsOpened("pg-0", [1, 3, 77])).count == 2
    assert [one.is_open for one in cluster.view.topics["t"].partitions] == [True, False, True]
    assert cluster.view.assignments["pg-0"][3].is_open
    assert cluster.do(PartitionsOpened("pg-9", [1])).count == 0


def test_partitions_that_a_group_has_lost_get_channels_that_were_never_used():
    cluster = Cluster(groups=1)
    cluster.create("t", 2)
    cluster.do(PartitionsOpened("pg-0", [1, 2]))
    assert cluster.do(PartitionsLost("pg-0", [1], 7)).count == 1
    assert cluster.channels("t") == [("pg-0", 8), ("pg-0", 2)]
    assert [one.is_open for one in cluster.view.topics["t"].partitions] == [False, True]
    assert cluster.do(PartitionsLost("pg-0", [1], 7)).count == 0


def test_a_group_that_never_had_a_leader_is_replaced_and_its_partitions_move():
    cluster = Cluster(groups=2)
    cluster.create("t", 3)
    cluster.do(GroupsLed(["pg-1"]))
    assert cluster.do(ReplaceGroup("pg-0", NewGroup([2], "", {}))).count == 1
    assert cluster.channels("t") == [("pg-2", 1), ("pg-1", 1), ("pg-2", 2)]
    assert set(cluster.view.groups) == {"pg-1", "pg-2"}
    assert cluster.do(PartitionsOpened("pg-0", [1])).count == 0
    assert cluster.do(ReplaceGroup("pg-1", NewGroup([2], "", {}))).count == 0, "it had a leader"


def test_replicas_that_were_restored_move_partitions_of_a_replaced_group_alike():
    """Channels are given in the order of commands, and were moved in that of topics."""
    cluster = Cluster(groups=1)
    for name in ("b", "a"):
        cluster.create(name, 1)
    cluster.do(CreatePartitions([MorePartitions("b", 2)]))
    body = encode(Envelope(os.urandom(16), 5, ReplaceGroup("pg-0", NewGroup([2], "", {})), None))
    restored, saved = ClusterMachine(), io.BytesIO()
    cluster.machine.save_snapshot(saved)
    saved.seek(0)
    restored.load_snapshot(saved)
    for machine in (restored, cluster.machine):
        machine.apply([entry(body)])
    places = [
        {name: topic.partitions for name, topic in one.view.topics.items()}
        for one in (restored, cluster.machine)
    ]
    assert places[0] == places[1]


def test_a_group_with_an_open_partition_is_never_replaced():
    cluster = Cluster(groups=2)
    cluster.create("t", 3)
    cluster.do(PartitionsOpened("pg-0", [1]))
    assert cluster.view.groups["pg-0"].phase == "led"
    assert cluster.do(ReplaceGroup("pg-0", NewGroup([2], "", {}))).count == 0
    assert "pg-0" in cluster.view.groups


def test_groups_are_not_added_twice_by_leaders_that_looked_at_the_same_state():
    cluster = Cluster(groups=0)
    group = NewGroup([0, 1, 2], "", {})
    assert cluster.do(AddGroups(0, [group])).count == 1
    assert cluster.do(AddGroups(0, [group])).count == 0
    assert cluster.do(AddGroups(1, [group] * 64)).count == 63
    assert group_identity("a", "pg-0") != group_identity("b", "pg-0")


def test_a_topic_needs_a_group():
    outcome = Cluster(groups=0).create("t")
    assert outcome.code is ResponseCode.CHANGE_IN_PROGRESS


def test_configs_of_a_topic_are_set_deleted_and_replaced_all_or_none():
    cluster = Cluster()
    cluster.create("t", configs={"retention.ms": "1", "cleanup.policy": "delete"})

    def alter(*changes, topic="t", replaces=False):
        resource = AlterResource(topic, [ConfigChange(*one) for one in changes], replaces)
        return cluster.do(AlterConfigs([resource])).outcomes[0][0]

    assert alter(("append", "cleanup.policy", "compact"), ("delete", "retention.ms")) is OK
    assert cluster.view.topics["t"].configs == {"cleanup.policy": "delete,compact"}
    assert alter(("subtract", "cleanup.policy", "delete")) is OK
    assert alter(("set", "retention.ms", "3"), ("set", "nothing", "3")) is (
        ResponseCode.INVALID_CONFIG
    )
    assert alter(("append", "retention.ms", "3")) is ResponseCode.INVALID_CONFIG
    assert cluster.view.topics["t"].configs == {"cleanup.policy": "compact"}
    assert alter(("subtract", "cleanup.policy", "compact")) is OK
    assert cluster.view.topics["t"].configs == {"cleanup.policy": ""}
    assert alter(("set", "retention.ms", "3"), replaces=True) is OK
    assert cluster.view.topics["t"].configs == {"retention.ms": "3"}
    assert alter(("set", "retention.ms", "3"), topic="u") is ResponseCode.UNKNOWN_TOPIC


def test_producer_ids_are_given_once():
    cluster = Cluster()
    assert cluster.do(AllocateProducerIds(1_000)).first == 0
    assert cluster.do(AllocateProducerIds(5)).first == 1_000


def test_a_command_that_comes_again_is_carried_out_once_and_answered_alike():
    cluster = Cluster()
    command, identity = AllocateProducerIds(10), b"i" * 16
    assert cluster.do(command, identity) == cluster.do(command, identity)
    assert cluster.do(AllocateProducerIds(1)).first == 10


class Sender:
    """A node that numbers its commands."""

    def __init__(self, cluster, name=b"sender.0"):
        self.cluster, self.name = cluster, name

    def do(self, number, lowest, command=None):
        command = command or AllocateProducerIds(1)
        return self.cluster.do(command, command_id(self.name, number), lowest=lowest)


def test_a_command_that_waits_comes_again_after_any_number_of_others():
    cluster = Cluster()
    sender, other = Sender(cluster), Sender(cluster, b"sender.1")
    alter = AlterConfigs([AlterResource(None, [ConfigChange("set", "num.partitions", "7")])])
    first = sender.do(1, 1, alter)
    cluster.do(AlterConfigs([AlterResource(None, [ConfigChange("set", "num.partitions", "9")])]))
    for number in range(1, 1_500):
        other.do(number, number)
        sender.do(1 + number, 1)
    assert sender.do(1, 1, alter) == first
    assert cluster.view.defaults == {"num.partitions": "9"}


def test_a_command_that_its_node_waits_for_no_more_is_not_carried_out():
    cluster = Cluster()
    sender = Sender(cluster)
    assert sender.do(1, 1).first == 0
    assert sender.do(3, 3).first == 1
    for number in (1, 2):
        assert "does not wait" in sender.do(number, 1).text
    assert sender.do(3, 3).first == 1
    assert sender.do(4, 3).first == 2
    assert "at most" in sender.do(3 + COMMANDS_MAX, 3).text


def test_results_are_bounded_by_sessions_and_by_bytes():
    cluster = Cluster()
    first = Sender(cluster)
    first.do(1, 1)
    for number in range(SESSIONS_MAX):
        Sender(cluster, number.to_bytes(8)).do(1, 1)
    assert first.do(1, 1).first == SESSIONS_MAX + 1, "it was forgotten, as the oldest"
    big = DeleteTopics([TopicToDelete("x" * 900)] * 1_000)
    found = [first.do(number, 1, big).topics[0].code for number in range(2, 10)]
    assert found == [ResponseCode.UNKNOWN_TOPIC] * 8
    saved = io.BytesIO()
    cluster.machine.save_snapshot(saved)
    assert len(saved.getvalue()) < BYTES_MAX + 100_000
    body = encode(Envelope(command_id(first.name, 2), 5, big, 1))
    assert decode_result(*cluster.machine.apply([entry(body)])) == Forgotten()


def test_an_entry_that_is_no_command_changes_nothing():
    cluster = Cluster()
    before = cluster.machine.digest()
    result = decode_result(cluster.machine.apply([entry(b"\xff")])[0])
    assert "no command" in result.text
    assert cluster.machine.digest() == before


def test_a_snapshot_holds_all_of_the_state():
    cluster = Cluster(groups=2)
    cluster.create("a", 3, configs={"retention.ms": "7"})
    cluster.create("b", 2)
    cluster.do(PartitionsOpened("pg-0", [1]))
    cluster.do(DeleteTopics([TopicToDelete("b")]))
    cluster.do(AllocateProducerIds(3), b"k" * 16)
    sender = Sender(cluster)
    for number in (1, 2, 3):
        sender.do(number, 2)
    saved, other = io.BytesIO(), ClusterMachine()
    cluster.machine.save_snapshot(saved)
    saved.seek(0)
    other.load_snapshot(saved)
    assert other.digest() == cluster.machine.digest()
    for name in ("topics", "topics_by_id", "groups", "brokers", "assignments", "partition_count"):
        assert getattr(other.view, name) == getattr(cluster.view, name), name
    more = [encode(Envelope(b"k" * 16, 9, AllocateProducerIds(3)))]
    more += [
        encode(Envelope(command_id(sender.name, n), 9, AllocateProducerIds(3), 2)) for n in (1, 2)
    ]
    more.append(encode(Envelope(os.urandom(16), 9, CreateTopics([NewTopic("c", b"c" * 16, 2)]))))
    for body in more:
        assert other.apply([entry(body)]) == cluster.machine.apply([entry(body)])
    assert other.digest() == cluster.machine.digest()
    with pytest.raises(CorruptionError, match="__cluster"):
        other.load_snapshot(io.BytesIO(b"\xff\x00"))


def test_entries_applied_one_by_one_or_together_lead_to_the_same_state():
    cluster = Cluster()
    cluster.create("a", 5)
    cluster.create("a.a", 5)
    cluster.do(ReplaceGroup("pg-1", NewGroup([0, 2], "", {})))
    other = ClusterMachine()
    other.apply([entry(body) for body in cluster.log])
    assert other.digest() == cluster.machine.digest()


def test_a_view_is_never_changed():
    cluster = Cluster()
    cluster.create("a", 2)
    before = cluster.view
    seen = dict(before.topics), {name: dict(one) for name, one in before.assignments.items()}
    cluster.create("b", 2)
    cluster.do(PartitionsOpened("pg-0", [1]))
    assert (before.topics, before.assignments) == seen
    assert cluster.view.version > before.version


def test_the_shortest_session_is_not_above_the_longest():
    cluster = Cluster()

    def altered(*changes, replaces=False):
        pairs = [ConfigChange("set", name, value) for name, value in changes]
        command = AlterConfigs([AlterResource(None, pairs, replaces)])
        return cluster.do(command).outcomes[0]

    longest, shortest = "group.max.session.timeout.ms", "group.min.session.timeout.ms"
    code, text = altered((longest, "5999"))
    assert code is ResponseCode.INVALID_CONFIG
    assert text == f"{shortest} would be 6000, above {longest}, 5999"
    assert altered((longest, "5999"), (shortest, "5999")) == (OK, "")
    assert altered((shortest, "6000"))[0] is ResponseCode.INVALID_CONFIG
    assert cluster.view.defaults == {longest: "5999", shortest: "5999"}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("group.consumer.session.timeout.ms", "44999", "min.session.timeout.ms would be 45000"),
        ("group.consumer.session.timeout.ms", "60001", "session.timeout.ms would be 60001"),
        ("group.consumer.heartbeat.interval.ms", "499", "min.heartbeat.interval.ms would be 500"),
        ("group.consumer.max.heartbeat.interval.ms", "999", "heartbeat.interval.ms would be 1000"),
        ("group.consumer.max.size", "1001", "'1001' is not a whole number from 1 to 1000"),
        ("group.consumer.assignors", "uniform,best", "is not one of uniform, range"),
        ("group.consumer.assignors", "", "must name at least 1 of uniform, range"),
    ],
)
def test_configs_of_the_consumer_protocol_have_bounds(name, value, text):
    cluster = Cluster()
    command = AlterConfigs([AlterResource(None, [ConfigChange("set", name, value)])])
    code, problem = cluster.do(command).outcomes[0]
    assert code is ResponseCode.INVALID_CONFIG
    assert text in problem
