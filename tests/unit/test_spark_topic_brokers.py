"""Brokers over the network as Spark sees them, with connections that the test answers for."""

from collections import Counter
from types import SimpleNamespace

import pytest

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.requests import ApiKey
from quorumlog.model.errors import NetworkError
from quorumlog.spark.topics import remote_brokers
from quorumlog.spark.topics.errors import PassingError, UnknownTopicError
from quorumlog.spark.topics.part import LATEST, Part
from quorumlog.spark.topics.remote_brokers import RemoteBrokers

T0, T1 = Part("t", 0), Part("t", 1)


class Cluster:
    """Brokers h:1, h:2 … by what they know: leader's epoch and id of each partition; None: dead."""

    def __init__(self, monkeypatch, *views):
        self.views = dict(enumerate(views, start=1))
        self.asked = Counter()
        monkeypatch.setattr(remote_brokers, "BrokerConnection", self._connect)
        monkeypatch.setattr(remote_brokers, "RETRY_S", 0)

    def _connect(self, address, timeout_s, client_id):
        number = int(address.removeprefix("h:"))
        if self.views[number] is None:
            raise PassingError(f"{address} cannot be reached")

        def ask(key, version, values):
            self.asked[key, number] += 1
            return self._answer(number, key, values)

        return SimpleNamespace(ask=ask, close=lambda: None, address=address)

    def _answer(self, number, key, values):
        if key == ApiKey.LIST_OFFSETS:
            return self._offsets(values["topics"])
        assert key == ApiKey.METADATA
        view, names = self.views[number], [one["name"] for one in values["topics"]]
        topics = []
        for name in names:
            parts = {part: at for part, at in view.items() if part.topic == name}
            rows = [
                SimpleNamespace(partition_index=part.partition, leader_epoch=epoch, leader_id=who)
                for part, (epoch, who) in parts.items()
            ]
            code = 0 if rows else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topics.append(
                SimpleNamespace(name=name, error_code=code, is_internal=False, partitions=rows)
            )
        brokers = [SimpleNamespace(node_id=one, host="h", port=one) for one in self.views]
        return SimpleNamespace(topics=topics, brokers=brokers, cluster_id="c")

    def _offsets(self, topics):
        """The offset of a partition is its number."""
        count = sum(len(one["partitions"]) for one in topics)
        assert count <= remote_brokers.ASKED_MAX
        found = []
        for one in topics:
            numbers = [asked["partition_index"] for asked in one["partitions"]]
            rows = [SimpleNamespace(partition_index=n, error_code=0, offset=n) for n in numbers]
            found.append(SimpleNamespace(name=one["name"], partitions=rows))
        return SimpleNamespace(topics=found)

    def brokers(self, timeout_ms=1_000):
        return RemoteBrokers("h:1", timeout_ms, "test")


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


def test_offsets_of_many_partitions_are_asked_for_bit_by_bit(monkeypatch):
    monkeypatch.setattr(remote_brokers, "ASKED_MAX", 7)
    parts = [Part("t", number) for number in range(50)]
    cluster = Cluster(monkeypatch, dict.fromkeys(parts, (1, 1)))
    found = cluster.brokers().offsets(dict.fromkeys(parts, LATEST), reads_committed=True)
    assert found == {part: part.partition for part in parts}
    assert cluster.asked[ApiKey.LIST_OFFSETS, 1] == 8
