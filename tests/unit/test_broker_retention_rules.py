"""The rules of retention that a broker tells its replicas, and when they are the newest."""

import os
from types import SimpleNamespace

from quorumlog.broker.retention_rules import RetentionRules
from quorumlog.machine.cluster.commands import (
    AddGroups,
    AlterConfigs,
    AlterResource,
    ConfigChange,
    CreateTopics,
    Envelope,
    NewGroup,
    NewTopic,
    RegisterBroker,
    encode,
)
from quorumlog.machine.cluster.machine import ClusterMachine
from quorumlog.model.entry import Entry

HOUR_MS = 3_600_000


class Broker:
    """What a broker has committed, and what it shows of that."""

    def __init__(self):
        self.machine = ClusterMachine()
        self.do(RegisterBroker("n0", "h:1", "h", 9092, "", "cluster-a"))
        self.do(AddGroups(0, [NewGroup([0], "", {})]))
        configs = {"retention.ms": str(HOUR_MS)}
        self.do(CreateTopics([NewTopic("t", b"t" * 16, 1, 1, configs)]))
        self.view = self.machine.view
        self.told, self.barriers = [], []
        replica = SimpleNamespace(partition_retention=self)
        self.rules = RetentionRules(
            {"pg-0": replica},
            lambda: self.view,
            lambda _, done: self.barriers.append(done),
            lambda: 5_000,
        )

    def do(self, command):
        body = encode(Envelope(os.urandom(16), 5, command, None))
        self.machine.apply([Entry(index=0, term=1, pos=0, body=body)])

    def set_rules(self, rules, confirm):
        self.told.append([one.retention_ms for one in rules.values()])
        self.confirm = confirm

    def answer(self, has_passed):
        self.barriers.pop()(has_passed)


def test_b9_a_broker_that_has_not_heard_of_a_longer_time_learns_it_before_records_are_given_up():
    broker, answers = Broker(), []
    broker.rules.tick()
    assert broker.told == [[HOUR_MS]]
    longer = AlterResource("t", [ConfigChange("set", "retention.ms", str(9 * HOUR_MS))])
    broker.do(AlterConfigs([longer]))
    broker.confirm(answers.append)
    broker.answer(has_passed=False)
    assert (answers, broker.told) == ([False], [[HOUR_MS]])
    broker.confirm(answers.append)
    broker.view = broker.machine.view  # it comes as far as the barrier
    broker.answer(has_passed=True)
    assert (answers, broker.told) == ([False, True], [[HOUR_MS], [9 * HOUR_MS]])
