"""The coordinator of consumer groups: which groups it has in memory, and which it forgets."""

from types import SimpleNamespace

import pytest

from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.groups import coordinator as module
from quorumlog.kafka.groups.coordinator import EXPIRE_EVERY_MS, GroupCoordinator
from quorumlog.kafka.groups.members import GroupProtocol, JoinRequest
from quorumlog.machine.cluster.commands import ForgetGroups
from quorumlog.machine.cluster.consumer_groups import ConsumerGroupRecord

DAY_MS = 86_400_000
RETENTION_DAYS = 7


class World:
    """A broker that coordinates, and the time, which is the wall clock's, too."""

    def __init__(self, *records):
        self.now_ms, self.due, self.ordered = 30 * DAY_MS, [], []
        self.broker = SimpleNamespace(
            coordinator_term=1,
            consumer_groups={one.name: one for one in records},
            defaults={},
            order=lambda command, timeout_ms, done: self.ordered.append(command),
        )
        self.coordinator = GroupCoordinator(
            self.broker,
            lambda: self.now_ms,
            lambda: self.now_ms,
            lambda: "unique",
            lambda seconds, call: self.due.append(call),
        )
        assert self.coordinator.is_current()

    def join(self, name, session_ms):
        answers = []
        protocols = (GroupProtocol("range", b""),)
        request = JoinRequest("c", "h", "", None, session_ms, session_ms, "consumer", protocols)
        self.coordinator.join(name, request, answers.append)
        return answers[0].error

    def wait(self, time_ms):
        self.now_ms += time_ms
        due, self.due = self.due, []
        for call in due:
            call()


def test_c4_groups_that_nobody_could_join_take_no_place(monkeypatch):
    monkeypatch.setattr(module, "GROUPS_MAX", 3)
    world = World()
    for number in range(5):
        assert world.join(f"refused-{number}", 1) is ErrorCode.INVALID_SESSION_TIMEOUT
    assert world.join("g", 10_000) is ErrorCode.MEMBER_ID_REQUIRED


@pytest.mark.parametrize(("age_days", "is_old"), [(RETENTION_DAYS - 1, False), (8, True)])
def test_b5_a_group_without_members_is_forgotten_after_its_time_also_if_it_was_looked_at(
    age_days, is_old
):
    world = World(ConsumerGroupRecord("g", changed_ms=(30 - age_days) * DAY_MS))
    assert world.coordinator.find("g").is_unused
    world.wait(EXPIRE_EVERY_MS)
    forgotten = [one.groups for one in world.ordered if isinstance(one, ForgetGroups)]
    assert forgotten == ([["g"]] if is_old else [])
