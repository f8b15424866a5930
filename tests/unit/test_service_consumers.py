"""How far consumers of a log have come, as its leader shows it."""

from types import SimpleNamespace

import pytest

from quorumlog.machine.cluster.consumer_groups import (
    CommittedOffset,
    ConsumerGroupRecord,
    LogToRead,
)
from quorumlog.machine.cluster.state import ClusterView
from quorumlog.model.codes import Role
from quorumlog.model.messages.client import ConsumerPosition
from quorumlog.service.consumers import POSITIONS_SHOWN, ConsumerService
from quorumlog.service.metrics import _ends_of_logs

IDENTITY, TOPIC = b"i" * 16, bytes(16)
NOW_MS = 1_000_000


def record(name, positions, *, log="flights", identity=IDENTITY, others=()):
    read = LogToRead(log, identity, 8)
    offsets = {
        (read.topic_id, number): CommittedOffset(index, -1, "", at_ms)
        for number, index, at_ms in positions
    }
    offsets |= {place: CommittedOffset(90_000, -1, "", NOW_MS) for place in others}
    return ConsumerGroupRecord(name, offsets=offsets, log=read)


def replica(role=Role.LEADER, *, log="flights", identity=IDENTITY):
    return SimpleNamespace(
        config=SimpleNamespace(group=log),
        core=SimpleNamespace(role=role, identity=identity, committed_index=41),
        tables=SimpleNamespace(stable_index=40),
    )


class Cluster:
    def __init__(self):
        self.view = ClusterView()
        self.service = ConsumerService(None, lambda: self.view, lambda: NOW_MS)

    def have(self, *records):
        self.view = ClusterView(consumer_groups={one.name: one for one in records})

    def positions(self, **of):
        return self.service.positions(replica(**of))


@pytest.fixture
def cluster():
    return Cluster()


def test_the_leader_of_a_log_shows_the_positions_in_it_the_newest_last(cluster):
    cluster.have(
        record("g", [(0, 8, NOW_MS - 5), (3, 9, NOW_MS - 70)]),
        record("h", [(0, 7, NOW_MS - 30)]),
        record("other", [(0, 7, NOW_MS)], log="orders"),
        record("former", [(0, 7, NOW_MS)], identity=b"j" * 16),
        ConsumerGroupRecord("topics", offsets={(TOPIC, 0): CommittedOffset(5, -1, "", NOW_MS)}),
    )
    assert cluster.positions() == [
        ConsumerPosition("g", 9, 70, 3),
        ConsumerPosition("h", 7, 30, 0),
        ConsumerPosition("g", 8, 5, 0),
    ]
    assert cluster.positions(role=Role.FOLLOWER) == []
    assert cluster.positions(log="bills") == []


def test_offsets_of_topics_are_not_shown_as_positions(cluster):
    cluster.have(record("g", [(0, 8, NOW_MS)], others=[(TOPIC, 0), (TOPIC, 7_000)]))
    assert cluster.positions() == [ConsumerPosition("g", 8, 0, 0)]


def test_what_was_committed_last_is_shown_of_many_positions(cluster):
    count = 3 * POSITIONS_SHOWN
    cluster.have(*(record(f"g{n}", [(0, n, n)]) for n in range(count)))
    shown = [one.index for one in cluster.positions()]
    assert shown == list(range(count - POSITIONS_SHOWN, count))


def test_the_next_view_counts(cluster):
    for index in (8, 9):
        cluster.have(record("g", [(0, index, NOW_MS)]))
        assert [one.index for one in cluster.positions()] == [index]


def test_a_log_has_one_end_however_many_partitions_its_groups_have():
    logs = [LogToRead("flights", IDENTITY, partitions) for partitions in (1, 1_000)]
    groups = [ConsumerGroupRecord(f"g{one.partitions}", log=one) for one in logs]
    node = SimpleNamespace(replicas={"flights": replica()})
    view = ClusterView(consumer_groups={one.name: one for one in groups})
    assert _ends_of_logs(node, view) == {logs[0].topic_id: ("log:flights", 41)}
