"""Groups by the consumer protocol under random events: members come, leave, stall, restart, and
change what they are subscribed to; topics grow and go; coordinators change and fail.

Assertions: a partition that a member uses is its own, and nobody else's, as long as it is not
fenced; who commits has the partition; epochs never go back; in the end all members have their share
of everything.
"""

import heapq
import random

import pytest

from quorumlog.kafka.counters import KafkaCounters
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups.consumer_protocol import ProtocolGroup, ProtocolGroupState
from quorumlog.kafka.groups.consumers import (
    AWAY,
    JOINING,
    LEAVING,
    ConsumerHeartbeat,
    Subscription,
    flat,
)
from quorumlog.kafka.groups.coordinator import GroupCoordinator
from quorumlog.machine.cluster.answers import command_id
from quorumlog.machine.cluster.commands import (
    CommitOffsets,
    Envelope,
    OffsetToCommit,
    decode_result,
)
from quorumlog.machine.cluster.machine import execute
from quorumlog.machine.cluster.state import ClusterState, Topic, TopicPartition
from quorumlog.model.codes import ResponseCode

SEEDS = range(30)
SESSION_MS, REBALANCE_MS, INTERVAL_MS = 6_000, 4_000, 1_000
STORM_MS, QUIET_MS = 60_000, 40_000
STEP_MS = 50
SUBSCRIPTIONS = (Subscription(("a", "b")), Subscription(("a",)), Subscription((), "[ab]|new.*"))
REJOINED = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.UNRELEASED_INSTANCE_ID,
)


class World:
    """The state of `__cluster`, its time, and who coordinates; commands take some time."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.now_ms, self.term, self.version = 0, 1, 1
        self.state = ClusterState()
        self.under_way, self.answers, self.numbers = [], [], 0
        self.is_disk_full = self.is_quiet = False
        self.commits = self.epoch = 0
        self.put_topic("a", 5)
        self.put_topic("b", 3)
        self.nodes = [Node(self, number) for number in range(2)]

    def put_topic(self, name, count):
        before = self.state.topics.get(name)
        self.numbers += 1
        topic_id = self.numbers.to_bytes(16) if before is None else before.topic_id
        partitions = tuple(
            TopicPartition(number, "pg-0", self.numbers * 100 + number) for number in range(count)
        )
        self.state.put_topic(Topic(name, topic_id, partitions, {}, 0))
        self.version += 1

    def remove_topic(self, name):
        self.state.remove_topic(self.state.topics[name])
        self.version += 1

    @property
    def coordinator(self):
        return self.nodes[self.term % 2].coordinator

    @property
    def members(self):
        record = self.state.consumer_groups.records.get("g")
        return {} if record is None else record.consumers

    def order(self, command, done):
        """Take a command from a node; it comes later, and what came of it may not be told."""
        self.numbers += 1
        delays = (0, 10, 60, 400) if self.is_quiet else (0, 10, 60, 400, 3_000)
        due_ms = self.now_ms + self.random.choice(delays)
        if self.random.random() < 0.05 and not self.is_quiet:
            done(ResponseCode.TIMEOUT, "it may come yet", None)
            done = lambda code, text, result: None  # noqa: E731
        heapq.heappush(self.under_way, (due_ms, self.numbers, command, done))

    def step(self):
        self.now_ms += STEP_MS
        while self.under_way and self.under_way[0][0] <= self.now_ms:
            _, number, command, done = heapq.heappop(self.under_way)
            if self.is_disk_full:
                done(ResponseCode.DISK_FULL, "", None)
                continue
            envelope = Envelope(command_id(number.to_bytes(8), 0), self.now_ms, command)
            result = decode_result(execute(self.state, envelope, self.term))
            if isinstance(command, CommitOffsets) and result.code is ResponseCode.SUCCESS:
                self.look_at_commit(command)
            if self.random.random() < 0.02 and not self.is_quiet:
                done(ResponseCode.TIMEOUT, "the answer is lost", None)
            else:
                done(ResponseCode.SUCCESS, "", result)
        for node in self.nodes:
            node.tick()
        answers, self.answers = self.answers, []
        for answer in answers:
            answer()

    def look_at_commit(self, command):
        member = self.members[command.member_id]
        for one in command.offsets:
            has = [*member.assigned.get(one.topic_id, ()), *member.revoking.get(one.topic_id, ())]
            assert one.partition in has, "who does not have a partition any more has committed"
        self.commits += 1

    def look(self, consumers):
        """What members use is theirs as it was saved, and nobody else's, unless they are fenced."""
        record = self.state.consumer_groups.records.get("g")
        if record is None:
            return
        assert record.generation >= self.epoch, "the epoch of the group has gone back"
        self.epoch = record.generation
        owners = set()
        for member in record.consumers.values():
            assert member.epoch <= record.generation
            theirs = flat(member.assigned) | flat(member.revoking)
            assert not owners & theirs, "two members have a partition"
            owners |= theirs
        for one in consumers:
            member = record.consumers.get(one.member_id)
            if member is not None and 0 < one.epoch <= member.epoch:
                theirs = flat(member.assigned) | flat(member.revoking)
                assert one.owned <= theirs, "a member uses what it does not have"


class Node:
    """What a coordinator has of its broker. It may hear late that it leads no more."""

    def __init__(self, world, number):
        self.world, self.number, self.heard_term = world, number, 0
        self.calls = []
        self.defaults = {
            "group.consumer.session.timeout.ms": str(SESSION_MS),
            "group.consumer.heartbeat.interval.ms": str(INTERVAL_MS),
        }
        self.coordinator = GroupCoordinator(
            self,
            lambda: world.now_ms,
            lambda: world.now_ms,
            lambda: "unused",
            lambda seconds, call: self.calls.append((world.now_ms + seconds * 1000, call)),
            KafkaCounters(),
        )

    @property
    def version(self):
        return self.world.version

    @property
    def topics(self):
        return self.world.state.topics

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
        self.world.order(command, done)

    def ask_barrier(self, timeout_ms, done):
        done(self.heard_term == self.world.term)

    def tick(self):
        is_late = self.world.random.random() < 0.985 and self.coordinator_term >= 0
        if self.heard_term != self.world.term and not is_late:
            self.heard_term = self.world.term
        due = [call for at_ms, call in self.calls if at_ms <= self.world.now_ms]
        self.calls = [one for one in self.calls if one[0] > self.world.now_ms]
        for call in due:
            call()


class Client:
    """A client of the protocol; `instance_id` if it is a static member."""

    def __init__(self, world, name, instance_id, subscription):
        self.world, self.name, self.instance_id = world, name, instance_id
        self.subscription = subscription
        self.starts = self.calls = 0
        self.start()

    def start(self):
        """Begin as a new process."""
        self.starts += 1
        self.member_id = f"{self.name}-{self.starts}"
        self.node = self.world.nodes[self.world.term % 2]
        self.is_waiting, self.wake_ms, self.sent_ms = False, 0, 0
        self.calls += 1  # what its predecessor waits for is answered to nobody
        self.rejoin()

    def rejoin(self):
        self.epoch, self.owned, self.wanted = JOINING, frozenset(), None
        self.says_all = True

    def act(self):
        if self.is_waiting and self.world.now_ms - self.sent_ms > 8_000:
            self.reconnect()
        if self.is_waiting or self.world.now_ms < self.wake_ms:
            return
        if not self.node.coordinator.is_current():
            self.reconnect()
        elif self.owned and self.world.random.random() < 0.3:
            self.commit()
            self.wake_ms = self.world.now_ms + 300
        else:
            self.heartbeat()

    def reconnect(self):
        """Ask who coordinates; an answer that is under way does not arrive any more."""
        self.calls, self.is_waiting, self.says_all = self.calls + 1, False, True
        self.node = self.world.nodes[self.world.term % 2]
        self.wake_ms = self.world.now_ms + 100

    def heartbeat(self):
        if self.wanted is not None:  # it has given up what it shall not use, and uses the rest
            self.owned, self.wanted, is_changed = self.wanted, None, True
        else:
            is_changed = False
        topics, pattern = self.subscription
        asked = ConsumerHeartbeat(
            self.member_id,
            self.epoch,
            self.instance_id,
            owned=self.owned if self.says_all or is_changed else None,
        )
        if self.says_all:
            asked = asked._replace(
                topics=topics, pattern=pattern, rebalance_timeout_ms=REBALANCE_MS
            )
        self.is_waiting, self.sent_ms, self.says_all = True, self.world.now_ms, False
        self.calls += 1
        number = self.calls

        def answered(answer):
            self.world.answers.append(
                lambda: self.answered(answer) if number == self.calls else None
            )

        self.node.coordinator.heartbeat("g", asked, answered)

    def answered(self, answer):
        self.is_waiting = False
        self.wake_ms = self.world.now_ms + INTERVAL_MS
        if answer.error is not ErrorCode.NONE:
            self.wake_ms, self.says_all = self.world.now_ms + 100, True
            if answer.error in REJOINED:
                self.rejoin()
            return
        assert answer.epoch >= self.epoch, "the epoch of a member has gone back"
        self.epoch = answer.epoch
        if answer.assigned is not None and answer.assigned != self.owned:
            self.wanted = answer.assigned
            self.owned |= answer.assigned  # it uses what is new at once; the rest it gives up later
            self.wake_ms = self.world.now_ms + self.world.random.choice((0, 50, 500, 2_000))

    def commit(self):
        group = self.node.coordinator.find("g")
        if not isinstance(group, ProtocolGroup):
            return
        error = group.may_commit(self.member_id, self.instance_id, self.epoch, self.world.now_ms)
        if error is not ErrorCode.NONE:
            assert error in (*REJOINED, ErrorCode.STALE_MEMBER_EPOCH)
            return
        offsets = [OffsetToCommit(*one, 1) for one in sorted(self.owned)]
        term = self.node.coordinator.term
        command = CommitOffsets(term, "g", self.epoch, offsets, self.member_id)
        self.node.order(command, 0, lambda code, text, result: None)

    def leave(self, epoch):
        if self.node.coordinator.is_current():
            asked = ConsumerHeartbeat(self.member_id, epoch, self.instance_id)
            self.node.coordinator.heartbeat("g", asked, lambda answer: None)


def storm(world, clients):
    chance = world.random
    roll = chance.random()
    if roll < 0.02:
        world.term += 1
    elif roll < 0.04 and len(clients) < 7:
        name = f"c{world.now_ms}"
        instance_id = f"s-{name}" if chance.random() < 0.4 else None
        clients.append(Client(world, name, instance_id, chance.choice(SUBSCRIPTIONS)))
    elif roll < 0.05 and len(clients) > 1:
        gone = clients.pop(chance.randrange(len(clients)))
        if chance.random() < 0.5:
            gone.leave(LEAVING)
    elif roll < 0.07:
        chance.choice(clients).wake_ms = world.now_ms + chance.choice((2_000, 5_000, 9_000))
    elif roll < 0.09:
        chance.choice(clients).reconnect()
    elif roll < 0.11:
        again = chance.choice(clients)
        if again.instance_id is not None and chance.random() < 0.7:
            again.leave(AWAY)
        again.start()
    elif roll < 0.12:
        changed = chance.choice(clients)
        changed.subscription, changed.says_all = chance.choice(SUBSCRIPTIONS), True
    elif roll < 0.13:
        change_topics(world)
    elif roll < 0.14:
        world.is_disk_full = not world.is_disk_full


def change_topics(world):
    topics = world.state.topics
    if "new-one" not in topics:
        world.put_topic("new-one", 2)
    elif world.random.random() < 0.5:
        world.remove_topic("new-one")
    elif len(topics["a"].partitions) < 9:
        world.put_topic("a", len(topics["a"].partitions) + 1)


def entitled(world, subscription):
    """Return the partitions of the topics that somebody is subscribed to."""
    names = set(subscription.topics)
    names |= {one for one in world.state.topics if subscription.pattern}
    return {
        (topic.topic_id, one.number)
        for name, topic in world.state.topics.items()
        if name in names
        for one in topic.partitions
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_b4_a_partition_has_one_owner_who_is_not_fenced_and_all_are_owned_in_the_end(seed):
    world = World(seed)
    clients = [Client(world, "first", None, SUBSCRIPTIONS[0])]
    for at_ms in range(0, STORM_MS + QUIET_MS, STEP_MS):
        if at_ms < STORM_MS:
            storm(world, clients)
        else:
            world.is_disk_full, world.is_quiet = False, True
        world.step()
        for one in clients:
            one.act()
        world.look(clients)
    group = world.coordinator.find("g")
    assert group.state is ProtocolGroupState.STABLE
    assert {one.epoch for one in clients} == {group.epoch}
    owned = [one for client in clients for one in client.owned]
    assert len(owned) == len(set(owned))
    assert set(owned) == set().union(*(entitled(world, one.subscription) for one in clients))
    for client in clients:
        assert client.owned <= entitled(world, client.subscription)
        assert client.owned == flat(world.members[client.member_id].assigned)
    assert world.commits > 0
    assert world.epoch > 1
