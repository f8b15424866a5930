"""Groups whose members read a log: what else may use them, who may commit, and what is kept."""

from types import SimpleNamespace

import pytest

from cluster_commands import BILLS, ORDERS, TERM, Coordinated
from quorumlog.kafka.counters import KafkaCounters
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.consumers import ConsumerHeartbeat
from quorumlog.kafka.groups.coordinator import GroupCoordinator
from quorumlog.kafka.groups.log_consumers import REBALANCE_MS, LogConsumers
from quorumlog.kafka.groups.members import GroupProtocol, JoinRequest
from quorumlog.kafka.groups.offset_commits import OffsetCommits
from quorumlog.machine.cluster.commands import (
    AddToTransaction,
    AddTransactionOffsets,
    CommitOffsets,
    DecideTransaction,
    InitTransaction,
    OffsetToCommit,
    SaveGroup,
)
from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.consumers import (
    CommitPositionsRequest,
    ConsumerHeartbeatRequest,
    PositionsRequest,
)

SESSION_MS = 45_000


class World(Coordinated):
    """A broker that coordinates, with a machine that applies its commands at once."""

    def __init__(self):
        super().__init__()
        self.now_ms, self.coordinator_term, self.version, self.calls = 0, TERM, 1, []
        self.defaults, self.held, self.holds, self.identities = {}, [], False, {}
        self.fails_with = None
        self.coordinator = GroupCoordinator(
            self,
            lambda: self.now_ms,
            lambda: self.now_ms,
            lambda: "unique",
            lambda seconds, call: self.calls.append(call),
            KafkaCounters(),
        )
        commits = OffsetCommits(self, lambda: self.now_ms)
        self.consumers = LogConsumers(self.coordinator, commits, self, lambda: "n0")

    @property
    def topics(self):
        return self.machine.view.topics

    @property
    def consumer_groups(self):
        return self.machine.view.consumer_groups

    @property
    def consumer_group_bytes(self):
        return self.machine.view.consumer_group_bytes

    def order(self, command, timeout_ms, done):
        if self.holds:
            self.held.append((command, done))
        else:
            self.carry_out(command, done)

    def carry_out(self, command, done):
        if self.fails_with is None:
            done(ResponseCode.SUCCESS, "", self.do(command, at_ms=self.now_ms))
        else:
            done(self.fails_with, "", None)

    def ask_barrier(self, timeout_ms, done):
        done(True)

    def replica(self, log):
        found = self.identities.get(log)
        return SimpleNamespace(core=SimpleNamespace(identity=found)) if found else None

    def go_on(self):
        self.holds, held, self.held = False, self.held, []
        for command, done in held:
            self.carry_out(command, done)

    def give_up(self):
        """Have all commands take too long, and return them: they may be applied yet."""
        held, self.held = self.held, []
        for _, done in held:
            done(ResponseCode.TIMEOUT, "", None)
        return [command for command, _ in held]

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

    def join_topics(self, member_id):
        answers = []
        asked = ConsumerHeartbeat(member_id, 0, None, None, 1_000, ("orders",), owned=frozenset())
        self.coordinator.heartbeat("g", asked, answers.append)
        return answers

    def join_classic(self, member_id=""):
        answers = []
        protocols = (GroupProtocol("range", b""),)
        classic = JoinRequest("c", "h", member_id, None, 10_000, 10_000, "consumer", protocols)
        self.coordinator.join("g", classic, answers.append)
        return answers

    def beat(self, member_id="m", epoch=0, owned=(), **more):
        fields = {"member_id": member_id, "epoch": epoch, "owned": list(owned)}
        return self.ask(ConsumerHeartbeatRequest, **fields, **more)

    def commit(self, *positions, member_id="m", epoch=1, **more):
        fields = {"member_id": member_id, "epoch": epoch, "positions": list(positions)}
        return self.ask(CommitPositionsRequest, **fields, **more).code

    def size_is_right(self):
        groups = self.machine._state.consumer_groups
        again = type(groups).restored(groups.records.values())
        return again == groups

    def positions(self, **more):
        return self.ask(PositionsRequest, **more).positions


class Producing:
    """The transaction of a Kafka producer that commits offsets of a consumer group."""

    def __init__(self, world, group="g"):
        self.world, self.group = world, group
        world.do(InitTransaction(TERM, "t", 0, 7, 0, 60_000, False))
        world.do(AddToTransaction(TERM, "t", 1, [], [group]))

    @property
    def version(self):
        return self.world.machine.view.transactions.records["t"].version

    def offset(self, *offset):
        found = [OffsetToCommit(*offset)]
        command = AddTransactionOffsets(TERM, "t", self.version, self.group, found)
        return self.world.do(command).codes

    def commit(self):
        assert self.world.do(DecideTransaction(TERM, "t", self.version, True, 0)).code is OK


@pytest.fixture
def world():
    return World()


NEW = b"j" * 16
"""The identity of the log once it was founded again."""
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
    assert ("flights" in refused.text) == ("log" not in other), "whoever asks may not know it"
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
    world.identities["flights"] = NEW
    assert world.beat("b", identity=NEW).code == OK, "the log was founded again"
    assert world.positions(identity=NEW) == []


def test_nobody_drops_positions_with_an_identity_that_is_not_sure_to_be_that_of_the_log(world):
    assert world.commit((0, 8), member_id="") == OK
    refused = world.beat("b", identity=NEW)
    assert refused.code == REFUSED
    assert "another identity" in refused.text
    assert "consumer-group delete g" in refused.text
    assert world.positions() == [(0, 8)]


def test_a_consumer_of_a_log_that_was_founded_again_since_can_leave_for_its_successor(world):
    world.beat("a")
    world.identities["flights"] = NEW
    assert world.beat("a").code == ResponseCode.WRONG_CLUSTER
    assert world.beat("a", -1).code == ResponseCode.SUCCESS
    assert world.beat("b", identity=NEW).code == ResponseCode.SUCCESS


def test_a_consumer_of_a_log_that_was_founded_again_since_is_refused(world):
    world.identities["flights"] = NEW
    world.beat("a", identity=NEW)
    world.commit((0, 8), member_id="a", identity=NEW)
    world.beat("a", -1, identity=NEW)
    for late in (world.beat("b"), world.ask(PositionsRequest)):
        assert late.code == ResponseCode.WRONG_CLUSTER
        assert "start the consumer anew" in late.text
    assert world.commit((0, 2), member_id="") == ResponseCode.WRONG_CLUSTER
    assert world.positions(identity=NEW) == [(0, 8)]


@pytest.mark.parametrize("here", [b"", b"i" * 16])
def test_who_does_not_know_the_identity_of_a_log_reads_the_one_that_the_group_reads(world, here):
    world.identities["flights"] = here
    assert world.commit((0, 8), member_id="") == OK
    epoch = world.beat("a", identity=b"").epoch
    assert world.commit((0, 9), member_id="a", epoch=epoch, identity=b"") == OK
    assert world.beat("b").code == OK, "both are members of one group"
    assert world.positions() == world.positions(identity=b"") == [(0, 9)]


def test_a_group_that_did_not_know_the_identity_learns_it_and_keeps_its_positions(world):
    epoch = world.beat("a", identity=b"").epoch
    assert world.commit((0, 8), member_id="a", epoch=epoch, identity=b"") == OK
    assert world.beat("b").code == OK, "it stands by"
    world.beat("a", -1, identity=b"")
    world.beat("b", -1)
    assert world.positions() == [(0, 8)]
    assert world.beat("c").assigned == [0]
    assert world.consumer_groups["g"].log.identity == b"i" * 16
    assert world.positions() == [(0, 8)]
    assert world.size_is_right()


def test_a_committed_position_does_not_go_back_unless_nobody_is_a_member(world):
    epoch = world.beat("a").epoch
    for index in (8, 5):
        assert world.commit((0, index), member_id="a", epoch=epoch) == OK
        assert world.positions() == [(0, 8)]
    refused = world.ask(CommitPositionsRequest, positions=[(0, 2)])
    assert refused.code == FENCED
    assert "stop them first" in refused.text
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
    answers = world.join_topics("b") + world.join_classic()
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
    answers = world.join_topics("b")
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


def test_positions_of_something_else_are_refused(world):
    world.commit((0, 8), member_id="")
    for other in ({"partitions": 2}, {"log": "orders"}, {"identity": NEW}):
        refused = world.ask(PositionsRequest, **other)
        assert refused.code == REFUSED
        assert "consumer-group delete g" in refused.text
        assert ("flights" in refused.text) == ("log" not in other), "whoever asks may not know it"


def test_a_position_of_a_partition_that_there_is_not_is_refused(world):
    refused = world.ask(CommitPositionsRequest, positions=[(3, 2)], partitions=3)
    assert refused.code == REFUSED
    assert "there is none 3" in refused.text


def test_offsets_of_topics_are_no_positions(world):
    world.commit((0, 500), member_id="")
    producer = Producing(world)
    assert producer.offset(ORDERS, 0, 90_000) == [ResponseCode.UNKNOWN_TOPIC]
    assert producer.offset(ORDERS, 7_000, 90_000) == [ResponseCode.UNKNOWN_TOPIC]
    producer.commit()
    assert world.positions() == [(0, 500)]
    assert world.consumer_groups["g"].offsets.keys() == {
        (world.consumer_groups["g"].log.topic_id, 0)
    }


def test_a_group_whose_offsets_a_transaction_may_commit_reads_no_log_before(world):
    producer = Producing(world)
    assert producer.offset(ORDERS, 0, 90_000) == [OK]
    assert world.beat("a").code == REFUSED
    producer.commit()
    assert world.beat("a").code == REFUSED, "it consumes topics"
    assert world.consumer_groups["g"].offsets[ORDERS, 0].offset == 90_000
    assert world.positions(group="other") == []


def test_a_command_that_comes_late_makes_no_group_of_two_kinds(world):
    world.holds = True
    assert world.beat("a") is None
    (late,) = world.give_up()
    joined = world.join_topics("b")
    world.do(late)
    world.go_on()
    record = world.consumer_groups["g"]
    assert (record.log is None, record.member_count) == (False, 0)
    assert [one.error for one in joined] == [ErrorCode.NOT_COORDINATOR]
    assert world.beat("a").assigned == [0]


def test_a_late_save_of_the_classic_protocol_does_not_make_a_group_forget_its_log(world):
    world.holds = True
    assert world.beat("a") is None
    (late,) = world.give_up()
    (named,) = world.join_classic()
    joined = world.join_classic(named.member_id)
    world.wait(10_000)
    assert [one.error for one in joined] == [ErrorCode.NONE]
    world.do(late)
    world.holds = False
    assert world.beat("a").assigned == [0], "no member of the classic protocol is in its way"
    save = SaveGroup(TERM, "g", 7, "consumer", "range", "c", [])
    assert world.do(save).code is ResponseCode.INCONSISTENT_TERM
    assert world.consumer_groups["g"].log.log == "flights"


def test_a_group_that_is_yet_to_be_saved_reads_no_log_meanwhile(world):
    world.coordinator.is_current()
    world.coordinator.to_save["g"] = None
    world.do(SaveGroup(TERM, "g", 1, "consumer", "range", "", []))
    assert world.beat("a").code == ResponseCode.LEADER_NOT_READY
    world.wait(2_000)
    world.wait(2_000)
    assert world.beat("a").code == OK


def test_who_joins_takes_nothing_from_the_one_that_has_the_log_whatever_the_default_is(world):
    world.defaults = {"group.consumer.assignors": "range"}
    one = world.beat("m")
    for other in ("a", "z"):
        assert world.beat(other).assigned == []
        one = world.beat("m", one.epoch, [0])
        assert one.assigned == [0]


def test_members_are_told_how_long_they_may_still_take_to_give_a_partition_up(world):
    one = world.beat("a", partitions=2)
    assert one.rebalance_ms == REBALANCE_MS
    two = world.beat("b", partitions=2)
    one = world.beat("a", one.epoch, [0, 1], partitions=2)
    (gone,) = {0, 1} - set(one.assigned)
    assert one.rebalance_ms == REBALANCE_MS
    world.wait(40_000)
    assert world.beat("b", two.epoch, partitions=2).code == OK
    one = world.beat("a", one.epoch, [0, 1], partitions=2)
    assert one.rebalance_ms == REBALANCE_MS - 40_000, "it goes on as before"
    world.wait(one.rebalance_ms - 1)
    one = world.beat("a", one.epoch, [0, 1], partitions=2)
    assert (one.rebalance_ms, gone in one.assigned) == (1, False)
    world.wait(1)
    refused = world.beat("a", one.epoch, [0, 1], partitions=2)
    assert refused.code == FENCED
    assert "has to join again" in refused.text


@pytest.mark.parametrize("late", [(0, 1), (1, 2)])
def test_a_copy_of_a_heartbeat_that_comes_late_gives_nothing_up(world, late):
    epoch, number = late
    one = world.beat("a", number=1, partitions=2)
    one = world.beat("a", one.epoch, number=2, partitions=2)  # nothing is used yet
    one = world.beat("a", one.epoch, [0, 1], number=3, partitions=2)
    two = world.beat("b", number=1, partitions=2)
    one = world.beat("a", one.epoch, [0, 1], number=4, partitions=2)
    assert len(one.assigned) == 1
    world.beat("a", epoch, number=number, partitions=2)  # while an entry of the other is handled
    assert world.beat("b", two.epoch, number=2, partitions=2).assigned == []
    one = world.beat("a", one.epoch, one.assigned, number=5, partitions=2)
    assert len(world.beat("b", two.epoch, number=3, partitions=2).assigned) == 1
    assert len(one.assigned) == 1


def test_who_joins_anew_uses_nothing_and_says_so(world):
    one = world.beat("a", number=1, partitions=2)
    two = world.beat("b", number=1, partitions=2)
    world.beat("a", one.epoch, [0, 1], number=2, partitions=2)
    assert len(world.beat("a", 0, number=3, partitions=2).assigned) == 1
    assert len(world.beat("b", two.epoch, number=2, partitions=2).assigned) == 1


def test_a_full_disk_is_named(world):
    world.fails_with = ResponseCode.DISK_FULL
    for refused in (world.beat("a"), world.ask(CommitPositionsRequest, positions=[(0, 1)])):
        assert refused.code == ResponseCode.DISK_FULL
        assert "free space" in refused.text
    world.fails_with = ResponseCode.TIMEOUT
    refused = world.beat("a")
    assert refused.code == ResponseCode.LEADER_NOT_READY
    assert "consumer group 'g'" in refused.text
