"""A broker that coordinates one group by the consumer protocol, without sockets and files."""

from types import SimpleNamespace

from quorumlog.kafka.counters import KafkaCounters
from quorumlog.kafka.groups.consumers import JOINING, ConsumerHeartbeat
from quorumlog.kafka.groups.coordinator import GroupCoordinator
from quorumlog.machine.cluster.commands import ForgetGroups, SaveConsumers, SaveGroup
from quorumlog.machine.cluster.consumer_groups import ConsumerGroups
from quorumlog.model.codes import ResponseCode

A, B = bytes(15) + b"\1", bytes(15) + b"\2"
REBALANCE_MS = 20_000


class World:
    """A broker that coordinates, its topics, its time, and the groups of `__cluster`.

    `outcome` is that of saves: None has them wait in `held`.
    """

    authorizer = None

    def __init__(self):
        self.now_ms, self.version, self.term = 0, 1, 1
        self.topics, self.defaults = {}, {}
        self.groups = ConsumerGroups()
        self.outcome = ResponseCode.SUCCESS
        self.held, self.saves, self.calls = [], [], []
        self.put("a", A, 4)
        self.coordinate()

    def coordinate(self):
        """Have another node coordinate, which knows what is saved."""
        self.coordinator = GroupCoordinator(
            self,
            lambda: self.now_ms,
            lambda: self.now_ms,
            lambda: "unique",
            lambda seconds, call: self.calls.append(call),
            KafkaCounters(),
            self.authorizer,
        )
        assert self.coordinator.is_current()

    def take_over(self):
        """Have another node coordinate, and take over all groups now."""
        self.term += 1
        self.coordinate()
        self.wait(0)

    def put(self, name, topic_id, count):
        topic = SimpleNamespace(topic_id=topic_id, partitions=range(count))
        self.topics = {**self.topics, name: topic}
        self.version += 1

    @property
    def coordinator_term(self):
        return self.term

    @property
    def consumer_groups(self):
        return self.groups.records

    @property
    def consumer_group_bytes(self):
        return self.groups.taken_bytes

    def order(self, command, timeout_ms, done):
        self.saves.append(command)
        if self.outcome is None:
            self.held.append((command, done))
        else:
            self.end(command, done, self.outcome)

    def end(self, command, done, outcome):
        if outcome is not ResponseCode.SUCCESS:
            done(outcome, "", None)
            return
        does = {
            SaveConsumers: self.groups.save_consumers,
            SaveGroup: self.groups.save_group,
            ForgetGroups: lambda command, at_ms: self.groups.forget(command),
        }[type(command)]
        done(ResponseCode.SUCCESS, "", does(command, self.now_ms))

    def end_held(self, outcome=ResponseCode.SUCCESS):
        held, self.held = self.held, []
        for command, done in held:
            self.end(command, done, outcome)

    def ask_barrier(self, timeout_ms, done):
        done(True)

    def wait(self, time_ms):
        self.now_ms += time_ms
        calls, self.calls = self.calls, []
        for call in calls:
            call()

    @property
    def group(self):
        return self.coordinator.find("g")

    def told(self, asked):
        """Return what a heartbeat is answered; None: nothing yet."""
        answers = []
        self.coordinator.heartbeat("g", asked, answers.append)
        return answers[0] if answers else None

    def set_session(self, session_ms):
        """Have members be removed after another time without a heartbeat."""
        self.defaults = {"group.consumer.session.timeout.ms": str(session_ms)}
        self.version += 1

    def join(self, name, *topics, instance_id=None, pattern=None, **more):
        asked = ConsumerHeartbeat(
            name,
            JOINING,
            instance_id,
            None,
            REBALANCE_MS,
            topics or (() if pattern else ("a",)),
            pattern,
            owned=frozenset(),
        )
        return self.told(asked._replace(**more))

    def beat(self, name, epoch, owned=None, **more):
        owned = None if owned is None else frozenset(owned)
        return self.told(ConsumerHeartbeat(name, epoch, owned=owned, **more))

    def settle(self, *names):
        """Have members do what they are told until nothing changes."""
        for _ in range(8):
            for name in names:
                member = self.group.members.by_id[name]
                self.beat(
                    name, member.held.epoch, member.held.assigned, instance_id=member.instance_id
                )

    def has(self, name):
        return numbers(self.group.members.by_id[name].held.assigned)


def numbers(partitions):
    return sorted(number for _, number in partitions)
