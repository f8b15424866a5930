"""Groups whose members read a log: what else may use them, who may commit, and what is kept."""

import pytest

from cluster_commands import BILLS, ORDERS, TERM, Coordinated
from quorumlog.kafka.counters import KafkaCounters
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.consumers import ConsumerHeartbeat
from quorumlog.kafka.groups.coordinator import GroupCoordinator
from quorumlog.kafka.groups.log_consumers import LogConsumers
from quorumlog.kafka.groups.members import GroupProtocol, JoinRequest
from quorumlog.machine.cluster.commands import CommitOffsets, OffsetToCommit
from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.consumers import (
    CommitPositionsRequest,
    ConsumerHeartbeatRequest,
    PositionsRequest,
)

SESSION_MS = 45_000


class World(Coordinated):
    """A broker that coordinates, with a machine that carries out its commands at once."""

    def __init__(self):
        super().__init__()
        self.now_ms, self.coordinator_term, self.version, self.calls = 0, TERM, 1, []
        self.defaults, self.held, self.holds = {}, [], False
        self.coordinator = GroupCoordinator(
            self,
            lambda: self.now_ms,
            lambda: self.now_ms,
            lambda: "unique",
            lambda seconds, call: self.calls.append(call),
            KafkaCounters(),
        )
        self.consumers = LogConsumers(self.coordinator, self, lambda: "n0")

    @property
    def topics(self):
        return self.machine.view.topics

    @property
    def consumer_groups(self):
        return self.machine.view.consumer_groups

    def order(self, command, timeout_ms, done):
        def carry_out():
            done(ResponseCode.SUCCESS, "", self.do(command, at_ms=self.now_ms))

        self.held.append(carry_out) if self.holds else carry_out()

    def ask_barrier(self, timeout_ms, done):
        done(True)

    def go_on(self):
        self.holds, held, self.held = False, self.held, []
        for call in held:
            call()

    def wait(self, time_ms):
        self.now_ms += time_ms
        calls, self.calls = self.calls, []
        for call in calls:
            call()

    def ask(self, kind, *, group="g", log="flights", identity=b"i" * 16, partitions=1, **more):
        answers = []
        request = kind(
            group="__cluster",
            consumer_group=group,
            log=log,
            identity=identity,
            partitions=partitions,
            **more,
        )
        self.consumers.answer(request, "host", answers.append)
        return answers[0] if answers else None

    def beat(self, member_id="m", epoch=0, owned=(), **more):
        fields = {"member_id": member_id, "epoch": epoch, "owned": list(owned)}
        return self.ask(ConsumerHeartbeatRequest, **fields, **more)

    def commit(self, *positions, member_id="m", epoch=1, **more):
        fields = {"member_id": member_id, "epoch": epoch, "positions": list(positions)}
        return self.ask(CommitPositionsRequest, **fields, **more).code

    def positions(self, **more):
        return self.ask(PositionsRequest, **more).positions


@pytest.fixture
def world():
    return World()


OK, FENCED = ResponseCode.SUCCESS, ResponseCode.CONSUMER_FENCED
REFUSED = ResponseCode.UNEXPECTED_ARGUMENT


def test_one_member_has_the_log_and_the_next_one_takes_over(world):
    assert world.beat("a").assigned == [0]
    assert world.beat("b").assigned == []
    world.wait(SESSION_MS - 1)
    other = world.beat("b", 2)
    world.wait(1)
    assert world.beat("a", 1, [0]).code == FENCED
    assert world.beat("b", other.epoch).assigned == [0]


def test_a_log_is_split_and_a_member_that_leaves_frees_its_part_at_once(world):
    one = world.beat("a", partitions=4)
    assert one.assigned == [0, 1, 2, 3]
    two = world.beat("b", partitions=4)
    one = world.beat("a", one.epoch, one.assigned, partitions=4)
    assert len(one.assigned) == 2
    one = world.beat("a", one.epoch, one.assigned, partitions=4)
    two = world.beat("b", two.epoch, partitions=4)
    assert sorted(one.assigned + two.assigned) == [0, 1, 2, 3]
    assert world.beat("a", -1, partitions=4).code == OK
    assert world.beat("b", two.epoch, two.assigned, partitions=4).assigned == [0, 1, 2, 3]


@pytest.mark.parametrize("other", [{"partitions": 2}, {"log": "orders"}, {"identity": b"j" * 16}])
def test_another_log_or_number_is_refused_while_the_group_has_members(world, other):
    world.beat("a")
    refused = world.beat("b", **other)
    assert refused.code == REFUSED
    assert "consumer-group delete" in refused.text


def test_without_members_and_positions_a_group_may_read_something_else(world):
    epoch = world.beat("a").epoch
    world.beat("a", -1)
    found = world.beat("b", partitions=3)
    assert (found.code, found.assigned) == (OK, [0, 1, 2])
    assert found.epoch > epoch


def test_positions_keep_the_number_of_partitions_and_go_with_their_log(world):
    epoch = world.beat("a").epoch
    assert world.commit((0, 8), member_id="a", epoch=epoch) == OK
    world.beat("a", -1)
    assert world.beat("b", partitions=3).code == REFUSED
    assert world.beat("b", identity=b"j" * 16).code == OK, "the log was founded again"
    assert world.positions(identity=b"j" * 16) == []


def test_a_committed_position_does_not_go_back_unless_nobody_is_a_member(world):
    epoch = world.beat("a").epoch
    for index in (8, 5):
        assert world.commit((0, index), member_id="a", epoch=epoch) == OK
        assert world.positions() == [(0, 8)]
    assert world.commit((0, 2), member_id="") == FENCED
    world.beat("a", -1)
    assert world.commit((0, 2), member_id="") == OK
    assert world.positions() == [(0, 2)]


def test_who_is_not_a_member_any_more_or_has_another_epoch_cannot_commit(world):
    epoch = world.beat("a", partitions=2).epoch
    assert world.commit((0, 1), member_id="a", epoch=epoch + 1, partitions=2) == FENCED
    assert world.commit((0, 1), member_id="z", epoch=epoch, partitions=2) == FENCED
    assert world.commit((5, 1), member_id="a", epoch=epoch, partitions=9) == FENCED
    world.wait(SESSION_MS)
    assert world.commit((0, 1), member_id="a", epoch=epoch, partitions=2) == FENCED
    assert world.positions(partitions=2) == []


def test_a_member_commits_only_what_it_has(world):
    world.beat("a", partitions=2)
    waiting = world.beat("b", partitions=2)
    assert world.commit((0, 1), member_id="b", epoch=waiting.epoch, partitions=2) == FENCED


def test_consumers_of_topics_cannot_join_a_group_that_reads_a_log(world):
    world.beat("a")
    answers = []
    asked = ConsumerHeartbeat("b", 0, None, None, 1_000, ("orders",), owned=frozenset())
    world.coordinator.heartbeat("g", asked, answers.append)
    classic = JoinRequest(
        "c", "h", "", None, 10_000, 10_000, "consumer", (GroupProtocol("range", b""),)
    )
    world.coordinator.join("g", classic, answers.append)
    assert [one.error for one in answers] == [ErrorCode.INCONSISTENT_GROUP_PROTOCOL] * 2
    assert world.do(CommitOffsets(TERM, "g", -1, [OffsetToCommit(ORDERS, 0, 3)])).codes == [
        ResponseCode.UNKNOWN_TOPIC
    ]


def test_a_group_that_consumes_topics_cannot_read_a_log(world):
    world.do(CommitOffsets(TERM, "g", -1, [OffsetToCommit(BILLS, 0, 3)]))
    assert world.beat("a").code == REFUSED
    assert world.consumer_groups["g"].log is None


def test_nobody_joins_while_it_is_not_known_what_a_group_reads(world):
    world.holds = True
    assert world.beat("a") is None
    answers = []
    asked = ConsumerHeartbeat("b", 0, None, None, 1_000, ("orders",), owned=frozenset())
    world.coordinator.heartbeat("g", asked, answers.append)
    assert answers[0].error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.beat("c").code == ResponseCode.LEADER_NOT_READY
    world.go_on()
    assert world.beat("c").code == OK


def test_another_node_that_leads_is_named(world):
    world.coordinator_term = -1
    answer = world.beat("a")
    assert (answer.code, answer.leader_id) == (ResponseCode.NOT_LEADER, "n0")


def test_what_a_group_reads_is_part_of_snapshots(world):
    epoch = world.beat("a", partitions=2).epoch
    world.commit((1, 9), member_id="a", epoch=epoch, partitions=2)
    before = world.consumer_groups["g"]
    state = world.machine._state
    restored = type(state).decode(state.encode())
    assert restored.consumer_groups.records["g"] == before
    assert restored.consumer_groups.size_bytes == state.consumer_groups.size_bytes
