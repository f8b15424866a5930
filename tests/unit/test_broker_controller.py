"""The controller: which partition groups there shall be, and when commands may go on."""

import os

import pytest

from quorumlog.broker.controller import (
    DEFAULT_SETTINGS,
    HELD_MAX,
    REPEAT_MS,
    UNLED_MS,
    Controller,
)
from quorumlog.broker.leaders import SILENT_MS, Leaders
from quorumlog.machine.cluster.commands import (
    AddGroups,
    AllocateProducerIds,
    CreateTopics,
    Envelope,
    GroupsLed,
    NewTopic,
    RegisterBroker,
    ReplaceGroup,
)
from quorumlog.machine.cluster.machine import execute
from quorumlog.machine.cluster.state import EMPTY_VIEW, ClusterState
from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.cluster import LedGroup

OK = ResponseCode.SUCCESS


class Case:
    """A controller whose orders are carried out at once, or lost."""

    def __init__(self, brokers=3, alive=None, voters=3):
        self.time_ms, self.is_controller, self.loses = 0, True, False
        self.settings = {"flush": "async"}
        self.state, self.asked, self.number_of_voters = ClusterState(), [], voters
        self.leaders = Leaders(self.now_ms, lambda: None)
        self.controller = Controller(self, self.leaders)
        for number in range(brokers):
            address = f"127.0.0.1:{7100 + number}"
            self.do(RegisterBroker(f"n{number}", address, "h", 9092, "", "c"))
        for number in range(brokers) if alive is None else alive:
            self.leaders.told(f"n{number}", [])
        self.went, self.led, self.dead = [], {}, set()

    def do(self, command):
        execute(self.state, Envelope(os.urandom(16), self.time_ms, command))

    def now_ms(self):
        return self.time_ms

    def view(self):
        return self.state.view(EMPTY_VIEW)

    def controls(self):
        return self.is_controller

    def voters(self):
        return self.number_of_voters

    def ask_for(self, command):
        self.asked.append(command)
        if not self.loses:
            self.do(command)

    def admit(self, timeout_ms=1_000):
        command = CreateTopics([NewTopic("t", os.urandom(16))])
        self.controller.admit(command, timeout_ms, lambda *found: self.went.append(found))

    def pass_time(self, by_ms):
        """Let time pass in which all nodes are heard."""
        alive = self.leaders.alive - self.dead
        self.time_ms += by_ms
        for node_id in alive:
            leads = [LedGroup(name, 1, [node_id]) for name in self.led.get(node_id, ())]
            self.leaders.told(node_id, leads)
        self.leaders.tick()
        self.controller.tick()


@pytest.fixture
def case():
    return Case()


def test_the_first_topic_has_a_group_made_for_each_live_broker(case):
    case.admit()
    assert case.went == [(OK, "")]
    groups = case.view().groups.values()
    assert [group.members for group in groups] == [(0, 1, 2), (1, 0, 2), (2, 0, 1)]
    first = next(iter(groups))
    assert first.peers == "n0-127.0.0.1:7100;n1-127.0.0.1:7101;n2-127.0.0.1:7102"
    assert first.settings == {
        **DEFAULT_SETTINGS,
        "flush": "async",
        "kind": "partitions",
        "preferredLeaderIds": "n0",
    }
    case.admit()
    case.pass_time(10 * REPEAT_MS)
    assert len([one for one in case.asked if isinstance(one, AddGroups)]) == 1


def test_groups_of_many_brokers_are_spread_evenly():
    case = Case(brokers=6, voters=6)
    case.admit()
    groups = case.view().groups.values()
    loads = [sum(number in group.members for group in groups) for number in range(6)]
    assert loads == [3] * 6
    assert all(len(group.members) == 3 for group in groups)


def test_a_broker_that_joins_later_gets_a_group():
    case = Case(brokers=4, alive=[0, 1, 2], voters=4)
    case.admit()
    assert len(case.view().groups) == 3
    case.leaders.told("n3", [])
    case.pass_time(REPEAT_MS)
    assert [group.members[0] for group in case.view().groups.values()] == [0, 1, 2, 3]


def test_a_topic_waits_for_brokers_and_says_so_if_they_do_not_come():
    case = Case(alive=[0, 1])
    case.admit()
    assert not case.went
    assert not case.asked
    case.leaders.told("n2", [])
    case.controller.tick()
    assert case.went == [(OK, "")]
    assert len(case.view().groups) == 3
    late = Case(alive=[0])
    late.admit(timeout_ms=500)
    late.pass_time(500)
    code, text = late.went[0]
    assert code is ResponseCode.TIMEOUT
    assert "made of 3 brokers, and there are 1" in text


def test_a_cluster_of_one_node_needs_no_others():
    case = Case(brokers=1, voters=1)
    case.admit()
    assert [group.members for group in case.view().groups.values()] == [(0,)]


def test_other_commands_wait_for_nothing():
    case = Case(alive=[])
    case.controller.admit(AllocateProducerIds(1), 10, lambda *found: case.went.append(found))
    assert case.went == [(OK, "")]


def test_commands_that_wait_are_bounded_and_answered_by_who_leads_next_or_at_the_end():
    case = Case(alive=[])
    for _ in range(HELD_MAX + 1):
        case.admit()
    assert case.went == [(ResponseCode.LEADER_PENDING_FULL, case.went[0][1])]
    case.is_controller = False
    case.controller.tick()
    assert {code for code, _ in case.went[1:]} == {ResponseCode.NOT_LEADER}
    case.admit()
    case.controller.end()
    assert case.went[-1][0] is ResponseCode.NODE_STOPPING


def test_a_group_that_has_a_leader_is_made(case):
    case.admit()
    case.led = {"n0": ["pg-0"]}
    case.pass_time(1)
    assert GroupsLed(["pg-0"]) in case.asked
    assert {group.phase for group in case.view().groups.values()} == {"led", "making"}


def test_a_group_without_a_leader_is_given_up_and_made_of_live_brokers():
    case = Case(brokers=4, alive=[0, 1, 2, 3], voters=4)
    case.admit()
    case.led = {"n0": ["pg-0"], "n1": ["pg-1"]}
    case.pass_time(0)
    case.pass_time(UNLED_MS - 10_000)
    case.dead = {"n3"}
    case.pass_time(SILENT_MS + 1)
    case.pass_time(5_998)
    assert not [one for one in case.asked if isinstance(one, ReplaceGroup)]
    case.pass_time(1)
    replaced = [one for one in case.asked if isinstance(one, ReplaceGroup)]
    assert sorted(one.group for one in replaced) == ["pg-2", "pg-3"]
    assert case.leaders.alive == {"n0", "n1", "n2"}
    assert all(3 not in one.replacement.members for one in replaced)
    case.pass_time(REPEAT_MS)
    preferred = sorted(group.members[0] for group in case.view().groups.values())
    assert preferred == [0, 1, 2, 2], "no broker is left without a group, and no more are made"


def test_what_was_lost_is_asked_for_again_but_not_at_once(case):
    case.loses = True
    case.admit()
    case.admit()
    assert len(case.asked) == 1
    case.time_ms += REPEAT_MS
    case.admit()
    assert len(case.asked) == 2


def test_a_node_that_leads_no_more_does_nothing(case):
    case.admit()
    case.is_controller = False
    before = len(case.asked)
    case.pass_time(2 * UNLED_MS)
    assert len(case.asked) == before
