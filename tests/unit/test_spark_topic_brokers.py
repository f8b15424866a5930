"""Brokers over the network as Spark sees them, with connections that the test answers for."""

from collections import Counter
from types import SimpleNamespace
from uuid import UUID

import pytest

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.requests import ApiKey
from quorumlog.model.errors import NetworkError, NotAuthorizedError, RemoteProtocolError
from quorumlog.spark.access import open_brokers
from quorumlog.spark.topics import remote_brokers
from quorumlog.spark.topics.errors import PassingError, UnknownTopicError
from quorumlog.spark.topics.part import LATEST, Part
from quorumlog.spark.topics.remote_brokers import RemoteBrokers

T0, T1 = Part("t", 0), Part("t", 1)


ID, FORMER = UUID(int=1 << 64), UUID(int=2 << 64)
ID_TEXT = "AAAAAAAAAAEAAAAAAAAAAA"
OTHER = "a server that does not speak Kafka's protocol"


class Cluster:
    """Brokers h:1, h:2 … by what they know: leader's epoch and id of each partition; None: dead.

    `OTHER` in the place of what one knows: it is no broker.

    `replicas` of each partition are on all of them unless named; `named`: the brokers that one
    names, unless all. Each broker leads in the epoch that it knows, if it says that it leads.
    `former`: the brokers that know the topics by former ids.
    """

    def __init__(self, monkeypatch, *views, replicas=None, named=None, former=()):
        self.views = dict(enumerate(views, start=1))
        self.replicas = replicas or list(self.views)
        self.named = named or {}
        self.former = former
        self.asked = Counter()
        monkeypatch.setattr(remote_brokers, "BrokerConnection", self._connect)
        monkeypatch.setattr(remote_brokers, "RETRY_S", 0)

    def _connect(self, address, timeout_s, client_id, security):
        number = int(address.removeprefix("h:"))
        if self.views[number] is None:
            raise PassingError(f"{address} cannot be reached")

        def ask(key, values):
            self.asked[key, number] += 1
            if self.views[number] is OTHER:
                raise RemoteProtocolError(f"{address} does not speak Kafka's protocol")
            return self._answer(number, key, values)

        return SimpleNamespace(ask=ask, close=lambda: None, address=address)

    def _answer(self, number, key, values):
        if key == ApiKey.LIST_OFFSETS:
            return self._offsets(number, values["topics"])
        assert key == ApiKey.METADATA
        view, topics = self.views[number], []
        names = {part.topic for part in view}
        if values["topics"] is not None:
            names = [one["name"] for one in values["topics"]]
        for name in names:
            parts = {part: at for part, at in view.items() if part.topic == name}
            rows = [
                SimpleNamespace(
                    partition_index=part.partition,
                    leader_epoch=epoch,
                    leader_id=who,
                    replica_nodes=self.replicas,
                )
                for part, (epoch, who) in parts.items()
            ]
            code = 0 if rows else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topics.append(
                SimpleNamespace(
                    name=name,
                    error_code=code,
                    is_internal=name.startswith("_"),
                    partitions=rows,
                    topic_id=FORMER if number in self.former else ID,
                )
            )
        brokers = [one for one, view in self.views.items() if view is not OTHER]
        named = self.named.get(number, brokers)
        brokers = [SimpleNamespace(node_id=one, host="h", port=one) for one in named]
        return SimpleNamespace(topics=topics, brokers=brokers, cluster_id="c")

    def _offsets(self, number, topics):
        """The offset of a partition is its number, and 100 times the epoch."""
        count = sum(len(one["partitions"]) for one in topics)
        assert count <= remote_brokers.ASKED_MAX
        found = []
        for one in topics:
            rows = [self._offset(number, one["name"], asked) for asked in one["partitions"]]
            found.append(SimpleNamespace(name=one["name"], partitions=rows))
        return SimpleNamespace(topics=found)

    def _offset(self, number, topic, asked):
        index = asked["partition_index"]
        epoch, leader = self.views[number].get(Part(topic, index), (-1, -1))
        code = 0
        if leader != number:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif asked["current_leader_epoch"] not in {-1, epoch}:
            code = ErrorCode.UNKNOWN_LEADER_EPOCH
        offset = -1 if code else 100 * epoch + index
        return SimpleNamespace(partition_index=index, error_code=code, offset=offset)

    def brokers(self, timeout_ms=1_000, servers="h:1"):
        return RemoteBrokers(open_brokers(servers), timeout_ms, "test")

    def end(self, part=T0, **options):
        unconfirmed = options.pop("unconfirmed", False)
        brokers = self.brokers(**options)
        return brokers.offsets({part: LATEST}, reads_committed=True, unconfirmed=unconfirmed)[part]


def test_the_newest_leader_counts_whatever_one_broker_says(monkeypatch):
    cluster = Cluster(monkeypatch, {T0: (3, 1)}, {T0: (4, 2)}, {T0: (4, 2)})
    brokers = cluster.brokers()
    for _ in range(5):
        assert brokers.existing([T0]) == {T0}
        assert brokers.lend(T0).address == "h:2"


def test_a_partition_is_gone_if_a_majority_of_the_brokers_say_so(monkeypatch):
    old, new = {T0: (1, 2)}, {T0: (1, 2), T1: (1, 2)}
    for view, there in ((old, new), (new, old)):  # the first broker is cut off from the others
        brokers = Cluster(monkeypatch, view, there, there).brokers()
        for _ in range(5):
            assert brokers.existing([T0, T1]) == set(there)
    assert Cluster(monkeypatch, old, new, None).brokers().existing([T0, T1]) == {T0, T1}


def test_a_minority_of_the_brokers_does_not_say_what_is_gone(monkeypatch):
    brokers = Cluster(monkeypatch, {}, None, None).brokers(timeout_ms=0)
    with pytest.raises(NetworkError, match=r"h:[23] cannot be reached"):
        brokers.existing([T0])
    assert brokers.existing([]) == set()


def test_a_broker_that_knows_less_than_the_others_does_not_end_a_read(monkeypatch):
    new = {T0: (1, 2), T1: (1, 3)}
    brokers = Cluster(monkeypatch, {T0: (1, 2)}, new, new).brokers()
    assert brokers.lend(T1).address == "h:3"
    with pytest.raises(UnknownTopicError, match="there is no partition t-2"):
        brokers.lend(Part("t", 2))


def test_partitions_that_one_broker_does_not_know_are_found(monkeypatch):
    old, new = {T0: (1, 2)}, {T0: (1, 2), T1: (1, 2), Part("u", 0): (1, 3), Part("_o", 0): (1, 3)}
    found = {"t": [0, 1], "u": [0]}
    for _ in range(5):
        cluster = Cluster(monkeypatch, old, new, new, named={1: [1]})
        brokers = cluster.brokers(servers="h:1,h:2,h:3")
        assert brokers.topics() == found
        assert brokers.partitions(["t", "u", "_o"]) == {**found, "_o": [0]}
    assert Cluster(monkeypatch, new, None, new).brokers().topics() == found
    alone = Cluster(monkeypatch, old, new, new, named={1: [1]}).brokers()
    assert alone.topics(unconfirmed=True) == {"t": [0]}


def test_partitions_that_only_one_broker_names_are_there_unless_a_majority_say_not(monkeypatch):
    monkeypatch.setattr(remote_brokers, "UNKNOWN_S", 0)
    old, new = {T0: (1, 2)}, {T0: (1, 2), T1: (1, 2)}
    for _ in range(5):
        assert Cluster(monkeypatch, new, old, old).brokers().topics() == {"t": [0]}
        assert Cluster(monkeypatch, new, {}, {}).brokers().partitions(["t"]) == {}
        assert Cluster(monkeypatch, new, old, None).brokers().topics() == {"t": [0, 1]}


def test_a_minority_of_the_brokers_does_not_say_which_topics_there_are(monkeypatch):
    brokers = Cluster(monkeypatch, {T0: (1, 1)}, None, None).brokers(timeout_ms=0)
    with pytest.raises(NetworkError, match=r"h:[23] cannot be reached"):
        brokers.topics()
    with pytest.raises(NetworkError, match=r"h:[23] cannot be reached"):
        brokers.partitions(["nope"])
    assert brokers.partitions(["t"], unconfirmed=True) == {"t": [0]}


def test_a_broker_that_is_cut_off_does_not_keep_a_task_from_the_others(monkeypatch):
    new = {T0: (4, 2)}
    for cut_off in ({T0: (3, -1)}, {T0: (3, 3)}):  # it names no leader, or not where it is
        cluster = Cluster(monkeypatch, cut_off, new, new, named={1: [1]})
        for _ in range(10):
            assert cluster.brokers(servers="h:1,h:2,h:3").lend(T0).address == "h:2"


def test_an_address_that_does_not_speak_kafka_is_one_that_fails(monkeypatch):
    view, servers = {T0: (4, 2)}, "h:4,h:1,h:2,h:3"
    for _ in range(5):
        cluster = Cluster(monkeypatch, view, view, view, OTHER, replicas=[1, 2, 3])
        assert cluster.end(servers=servers) == 400
        assert cluster.brokers(servers=servers).topics() == {"t": [0]}
        assert cluster.end(servers=servers, unconfirmed=True) == 400
    alone = Cluster(monkeypatch, OTHER).brokers()
    for ask in (alone.topics, alone.cluster_id):
        with pytest.raises(RemoteProtocolError, match="h:1 does not speak Kafka's protocol"):
            ask()
    down = Cluster(monkeypatch, None, OTHER).brokers(timeout_ms=0, servers="h:1,h:2")
    with pytest.raises(NetworkError, match="h:1 cannot be reached"):
        down.topics()


def test_offsets_of_many_partitions_are_asked_for_bit_by_bit(monkeypatch):
    monkeypatch.setattr(remote_brokers, "ASKED_MAX", 7)
    parts = [Part("t", number) for number in range(50)]
    cluster = Cluster(monkeypatch, dict.fromkeys(parts, (1, 1)))
    found = cluster.brokers().offsets(dict.fromkeys(parts, LATEST), reads_committed=True)
    assert found == {part: 100 + part.partition for part in parts}
    assert cluster.asked[ApiKey.LIST_OFFSETS, 1] == 8


def test_a_leader_that_was_is_not_asked_for_offsets(monkeypatch):
    for _ in range(5):
        assert Cluster(monkeypatch, {T0: (3, 1)}, {T0: (4, 2)}, {T0: (4, 2)}).end() == 400
    stood_still = Cluster(monkeypatch, {T0: (3, 1)}, {T0: (4, 2)}, {T0: (4, 2)})
    assert stood_still.end(unconfirmed=True) in {300, 400}


def test_one_broker_does_not_replace_a_leader_by_a_former_one(monkeypatch):
    cluster = Cluster(monkeypatch, {T0: (3, 1)}, {T0: (4, 2)}, {T0: (4, 2)})
    brokers = cluster.brokers(servers="h:1,h:2,h:3")
    assert brokers.offsets({T0: LATEST}, reads_committed=True) == {T0: 400}
    for _ in range(10):
        assert brokers.partitions(["t"], unconfirmed=True) == {"t": [0]}
        assert brokers.offsets({T0: LATEST}, reads_committed=True, unconfirmed=True) == {T0: 400}


def test_a_leader_that_is_cut_off_is_not_believed_though_it_names_itself_only(monkeypatch):
    views = {T0: (3, 1)}, {T0: (4, 2)}, {T0: (4, 2)}
    cluster = Cluster(monkeypatch, *views, named={1: [1]})
    with pytest.raises(NetworkError, match="too few replicas of partition t-0 say who leads it"):
        cluster.end(timeout_ms=0)
    for _ in range(5):
        assert cluster.end(servers="h:1,h:2") == 400
        assert cluster.brokers(servers="h:1,h:2,h:3").existing([T1]) == set()


def test_a_majority_of_the_replicas_knows_who_leads_not_of_the_brokers(monkeypatch):
    """Here brokers 1 to 3 are a majority, of which none was asked for its vote."""
    old, new = {T0: (3, 1)}, {T0: (4, 5)}
    for _ in range(5):
        assert Cluster(monkeypatch, old, old, old, new, new, replicas=[1, 4, 5]).end() == 400
    cluster = Cluster(monkeypatch, old, old, old, None, None, replicas=[1, 4, 5])
    assert cluster.brokers().existing([T0]) == {T0}
    with pytest.raises(NetworkError, match="too few replicas"):
        cluster.end(timeout_ms=0)


def test_a_broker_that_leads_in_an_earlier_epoch_than_others_know_is_not_asked(monkeypatch):
    cluster = Cluster(monkeypatch, {T0: (3, 1)}, {T0: (4, 1)}, {T0: (4, 1)})
    with pytest.raises(NetworkError, match="UNKNOWN_LEADER_EPOCH"):
        cluster.end(timeout_ms=0)
    cluster.views[1] = {T0: (4, 1)}
    assert cluster.end() == 400


def test_offsets_of_a_partition_that_is_gone_are_an_error(monkeypatch):
    there = {T0: (1, 1)}
    cluster = Cluster(monkeypatch, there, {T0: (1, 1), T1: (1, 1)}, there)
    with pytest.raises(UnknownTopicError, match="there is no partition t-1"):
        cluster.end(T1)


def test_one_broker_that_is_down_is_asked_last(monkeypatch):
    view = {T0: (1, 2)}
    brokers = Cluster(monkeypatch, None, view, view).brokers(servers="h:1,h:2,h:3")
    for _ in range(5):
        assert brokers.offsets({T0: LATEST}, reads_committed=True) == {T0: 100}
    assert brokers._silent <= {"h:1"}
    assert brokers.offsets({}, reads_committed=True) == {}


def test_a_topic_is_the_one_that_a_majority_names(monkeypatch):
    view = {T0: (4, 2)}
    for _ in range(5):
        cluster = Cluster(monkeypatch, {T0: (9, 1)}, view, view, former=[1])
        assert cluster.brokers().topic_ids(["t", "nope"]) == {"t": ID_TEXT}
        assert cluster.end() == 400, "what is said of the former topic does not count"
    assert Cluster(monkeypatch, view, view, None).brokers().topic_ids(["t"]) == {"t": ID_TEXT}
    assert cluster.brokers().topic_ids([]) == {}


def test_brokers_that_do_not_agree_which_topic_it_is_are_asked_again(monkeypatch):
    view = {T0: (4, 2)}
    cluster = Cluster(monkeypatch, {T0: (9, 1)}, view, None, former=[1])
    for ask in (
        lambda: cluster.brokers(timeout_ms=0).topic_ids(["t"]),
        lambda: cluster.end(timeout_ms=0),
    ):
        with pytest.raises(NetworkError, match=r"agree which topic 't' is|too few replicas"):
            ask()
    cluster.former = []
    assert cluster.brokers().topic_ids(["t"]) == {"t": ID_TEXT}


def test_a_broker_that_knows_the_former_topic_only_is_not_read(monkeypatch):
    view = {T0: (4, 2)}
    for _ in range(10):
        cluster = Cluster(monkeypatch, {T0: (9, 1)}, view, view, former=[1], named={1: [1]})
        brokers = cluster.brokers(servers="h:1,h:2,h:3")
        assert brokers.topic_ids(["t"]) == {"t": ID_TEXT}
        brokers._leaders.clear()  # as after an outage
        assert brokers.lend(T0).address == "h:2"


def test_brokers_that_name_no_ids_are_believed_without(monkeypatch):
    monkeypatch.setattr("test_spark_topic_brokers.ID", UUID(int=0))
    view = {T0: (4, 2)}
    cluster = Cluster(monkeypatch, view, view, view)
    assert cluster.brokers().topic_ids(["t"]) == {"t": ""}
    assert cluster.end() == 400


def test_who_may_not_read_a_topic_is_told_so_at_once(monkeypatch):
    cluster = Cluster(monkeypatch, {T0: (1, 1)})
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refused = SimpleNamespace(partition_index=0, error_code=code, offset=-1)
    monkeypatch.setattr(cluster, "_offset", lambda *_: refused)
    with pytest.raises(NotAuthorizedError, match="topic 't' cannot be read"):
        cluster.end(timeout_ms=60_000)
    assert cluster.asked[ApiKey.LIST_OFFSETS, 1] == 1
