"""Consumer groups under random events: members come, leave, stall; coordinators change and fail.

Assertions: in a generation a partition has one owner, whoever coordinated; what is committed is not
overwritten by a member of an earlier generation; once it is quiet, all members have all partitions.
"""

import heapq
import random

import pytest

from quorumlog.kafka.counters import KafkaCounters
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.coordinator import GroupCoordinator
from quorumlog.kafka.groups.group import GroupState
from quorumlog.kafka.groups.members import GroupProtocol, JoinRequest, SyncRequest
from quorumlog.kafka.groups.membership import size_of
from quorumlog.machine.cluster.answers import command_id
from quorumlog.machine.cluster.commands import (
    CommitOffsets,
    Envelope,
    OffsetToCommit,
    decode_result,
)
from quorumlog.machine.cluster.machine import execute
from quorumlog.machine.cluster.state import ClusterState, Topic
from quorumlog.model.codes import ResponseCode

SEEDS = range(100)
PARTITIONS = 6
TOPIC_ID = bytes(15) + b"\1"
SESSION_MS, REBALANCE_MS = 6_000, 8_000
STORM_MS, QUIET_MS = 120_000, 60_000
STEP_MS = 50


class World:
    """The state of `__cluster`, its time, and who coordinates; commands take some time."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.now_ms, self.term = 0, 1
        self.state = ClusterState()
        self.state.put_topic(Topic("t", TOPIC_ID, (), {}, 0))
        self.under_way, self.answers, self.numbers = [], [], 0
        self.committed = {}
        self.nodes = [Node(self, number) for number in range(2)]

    @property
    def coordinator(self):
        return self.nodes[self.term % 2].coordinator

    def order(self, term, command, done):
        """Take a command from a node; it comes later, or not at all."""
        self.numbers += 1
        due_ms = self.now_ms + self.random.choice((0, 10, 60, 400, 3_000))
        heapq.heappush(self.under_way, (due_ms, self.numbers, command, done))

    def step(self):
        self.now_ms += STEP_MS
        while self.under_way and self.under_way[0][0] <= self.now_ms:
            _, number, command, done = heapq.heappop(self.under_way)
            envelope = Envelope(command_id(number.to_bytes(8), 0), self.now_ms, command)
            result = decode_result(execute(self.state, envelope, self.term))
            if isinstance(command, CommitOffsets) and result.code is ResponseCode.SUCCESS:
                self.note_commit(command)
            if self.random.random() < 0.02:
                done(ResponseCode.TIMEOUT, "the answer is lost", None)
            else:
                done(ResponseCode.SUCCESS, "", result)
        for node in self.nodes:
            node.tick()
        answers, self.answers = self.answers, []
        for answer in answers:
            answer()

    def note_commit(self, command):
        for one in command.offsets:
            before = self.committed.get(one.partition, 0)
            assert before <= command.generation, "an earlier generation committed later"
            self.committed[one.partition] = command.generation


class Node:
    """What a coordinator has of its broker. It may hear late that it leads no more."""

    def __init__(self, world, number):
        self.world, self.number, self.heard_term = world, number, 0
        self.calls = []
        self.defaults = {"group.initial.rebalance.delay.ms": "500"}
        self.coordinator = GroupCoordinator(
            self,
            lambda: world.now_ms,
            lambda: world.now_ms,
            self.unique,
            lambda seconds, call: self.calls.append((world.now_ms + seconds * 1000, call)),
            KafkaCounters(),
        )

    def unique(self):
        self.world.numbers += 1
        return str(self.world.numbers)

    @property
    def coordinator_term(self):
        return self.heard_term if self.heard_term % 2 == self.number and self.heard_term else -1

    @property
    def consumer_groups(self):
        return self.world.state.consumer_groups.records

    @property
    def consumer_group_bytes(self):
        return self.world.state.consumer_groups.taken_bytes

    def order(self, command, timeout_ms, done):
        self.world.order(self.heard_term, command, done)

    def tick(self):
        is_late = self.world.random.random() < 0.985 and self.coordinator_term >= 0
        if self.heard_term != self.world.term and not is_late:
            self.heard_term = self.world.term
        due = [call for at_ms, call in self.calls if at_ms <= self.world.now_ms]
        self.calls = [one for one in self.calls if one[0] > self.world.now_ms]
        for call in due:
            call()


class Consumer:
    """A client of the protocol that assigns in turns; `instance_id` if it is a static member."""

    def __init__(self, world, name, told, instance_id):
        self.world, self.name, self.told, self.instance_id = world, name, told, instance_id
        self.member_id, self.generation, self.owned = "", -1, None
        self.node = world.nodes[0]
        self.is_waiting, self.wake_ms, self.calls = False, 0, 0

    def act(self):
        if self.is_waiting or self.world.now_ms < self.wake_ms:
            return
        if not self.node.coordinator.is_current():
            self.find()
        elif self.owned is None:
            self.join()
        elif self.world.random.random() < 0.3:
            self.commit()
        else:
            self.heartbeat()

    def later(self, take):
        """Answers come after the call that gives them, as over a network; old ones to nobody."""
        self.calls += 1
        number = self.calls

        def answered(answer):
            self.world.answers.append(lambda: take(answer) if number == self.calls else None)

        return answered

    def find(self):
        """Connect to whoever coordinates; an answer of another one does not arrive any more."""
        if self.is_waiting:
            self.calls, self.is_waiting, self.owned = self.calls + 1, False, None
        self.node = self.world.nodes[self.world.term % 2]
        self.wake_ms = self.world.now_ms + 100

    def join(self):
        self.is_waiting = True
        protocols = (GroupProtocol("range", self.name.encode()),)
        request = JoinRequest(
            self.name,
            "here",
            self.member_id,
            self.instance_id,
            SESSION_MS,
            REBALANCE_MS,
            "consumer",
            protocols,
        )
        self.node.coordinator.join("g", request, self.later(self.joined))

    def joined(self, answer):
        self.is_waiting = False
        if answer.error is ErrorCode.NONE:
            self.member_id, self.generation = answer.member_id, answer.generation
            assignments = {}
            if answer.leader == answer.member_id and not answer.skips_assignment:
                ids = [one.member_id for one in answer.members]
                for number in range(PARTITIONS):
                    at = number % len(ids)
                    assignments[ids[at]] = assignments.get(ids[at], b"") + bytes([number])
            self.sync(assignments)
        elif answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        else:
            self.fail(answer.error)

    def sync(self, assignments):
        group = self.node.coordinator.find("g")
        if group is None:
            self.fail(ErrorCode.UNKNOWN_MEMBER_ID)
            return
        self.is_waiting = True
        request = SyncRequest(
            self.member_id, self.instance_id, self.generation, None, None, assignments
        )
        group.sync(request, self.world.now_ms, self.later(self.synced))
        self.node.coordinator.touch(group)

    def synced(self, answer):
        self.is_waiting = False
        if answer.error is not ErrorCode.NONE:
            self.fail(answer.error)
            return
        self.owned = set(answer.assignment)
        for number in self.owned:
            owner = self.instance_id or self.member_id
            before = self.told.setdefault((self.generation, number), owner)
            assert before == owner, "two members were told that they own a partition"

    def heartbeat(self):
        group = self.node.coordinator.find("g")
        error = (
            ErrorCode.UNKNOWN_MEMBER_ID
            if group is None
            else group.heartbeat(
                self.member_id, self.instance_id, self.generation, self.world.now_ms
            )
        )
        self.wake_ms = self.world.now_ms + 1_000
        if error is not ErrorCode.NONE:
            self.fail(error)

    def commit(self):
        group = self.node.coordinator.find("g")
        error = ErrorCode.UNKNOWN_MEMBER_ID
        if group is not None:
            error = group.may_commit(
                self.member_id, self.instance_id, self.generation, self.world.now_ms
            )
        if error is not ErrorCode.NONE:
            self.fail(error)
            return
        self.wake_ms = self.world.now_ms + 300
        offsets = [OffsetToCommit(TOPIC_ID, number, 1) for number in sorted(self.owned)]
        command = CommitOffsets(self.node.coordinator.term, "g", self.generation, offsets)
        self.node.order(command, 0, lambda code, text, result: None)

    def fail(self, error):
        self.owned = None
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = ""
        self.wake_ms = self.world.now_ms + 100

    def restart(self):
        """Come back as a new process; what the old one waits for is answered to nobody."""
        self.calls += 1
        return Consumer(self.world, self.name, self.told, self.instance_id)


def storm(world, consumers):
    chance, told = world.random, consumers[0].told
    roll = chance.random()
    if roll < 0.02:
        world.term += 1
    elif roll < 0.04 and len(consumers) < 7:
        instance_id = f"s{len(told)}-{world.now_ms}" if chance.random() < 0.4 else None
        consumers.append(Consumer(world, f"c{world.now_ms}", told, instance_id))
    elif roll < 0.05 and len(consumers) > 1:
        gone = consumers.pop(chance.randrange(len(consumers)))
        gone.restart()
        group = gone.node.coordinator.find("g")
        if group is not None and chance.random() < 0.5:
            group.leave(gone.member_id, gone.instance_id, world.now_ms)
            gone.node.coordinator.touch(group)
    elif roll < 0.07:
        chance.choice(consumers).wake_ms = world.now_ms + chance.choice((2_000, 9_000, 20_000))
    elif roll < 0.11:
        chance.choice(consumers).find()
    elif roll < 0.13:
        at = chance.randrange(len(consumers))
        consumers[at] = consumers[at].restart()


@pytest.mark.parametrize("seed", SEEDS)
def test_b4_a_partition_has_one_owner_in_a_generation_and_all_are_owned_in_the_end(seed):
    world = World(seed)
    consumers = [Consumer(world, "first", {}, None)]
    for at_ms in range(0, STORM_MS + QUIET_MS, STEP_MS):
        if at_ms < STORM_MS:
            storm(world, consumers)
        world.step()
        for one in consumers:
            one.act()
    group = world.coordinator.find("g")
    assert group.state is GroupState.STABLE
    assert {one.generation for one in consumers} == {group.generation}
    owned = sorted(number for one in consumers for number in one.owned)
    assert owned == list(range(PARTITIONS))
    assert group.generation > 1
    assert group.members.size_bytes == size_of(group.members)
    assert world.committed
