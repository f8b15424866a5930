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
from quorumlog.broker.leaders import MAKES_NONE_MS, SILENT_MS, Leaders
from quorumlog.machine.cluster.commands import (
    AddGroups,
    AllocateProducerIds,
    AlterConfigs,
    AlterResource,
    ConfigChange,
    CreatePartitions,
    CreateTopics,
    Envelope,
    GroupsLed,
    MorePartitions,
    NewTopic,
    RegisterBroker,
    ReplaceGroup,
)
from quorumlog.machine.cluster.machine import execute
from quorumlog.machine.cluster.state import EMPTY_VIEW, GROUPS_MAX, ClusterState
from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.cluster import LedGroup
from quorumlog.model.retention_classes import SHORTEST, UNLIMITED

OK = ResponseCode.SUCCESS


class Case:
    """A controller whose orders are applied at once, or lost."""

    def __init__(self, brokers=3, alive=None, voters=3):
        self.time_ms, self.is_controller, self.loses = 0, True, False
        self.settings = {"flush": "async"}
        self.state, self.asked, self.number_of_voters = ClusterState(), [], voters
        self.leaders = Leaders(self.now_ms, lambda: None, lambda name: False)
        self.controller = Controller(self, self.leaders)
        for number in range(brokers):
            address = f"127.0.0.1:{7100 + number}"
            self.do(RegisterBroker(f"n{number}", address, "h", 9092, "", "c"))
        for number in range(brokers) if alive is None else alive:
            self.leaders.told(f"n{number}", [])
        self.went, self.led, self.dead, self.not_made = [], {}, set(), {}

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

    def admit(self, timeout_ms=1_000, **configs):
        """Have the controller admit a new topic, and see what it ordered."""
        configs = {name.replace("_", "."): str(value) for name, value in configs.items()}
        self.admit_command(
            CreateTopics([NewTopic("t", os.urandom(16), configs=configs)]), timeout_ms
        )

    def admit_command(self, command, timeout_ms=1_000):
        before = len(self.asked)
        self.controller.admit(command, timeout_ms, lambda *found: self.went.append(found))
        if len(self.asked) > before:
            self.controller.release()  # as whenever the view has changed

    def led_by_class(self):
        """Return the preferred leaders of the groups of each retention class."""
        found = {}
        for group in self.view().groups.values():
            found.setdefault(group.retention_class, []).append(group.members[0])
        return found

    def pass_time(self, by_ms):
        """Let time pass in which all nodes are heard."""
        alive = self.leaders.alive - self.dead
        self.time_ms += by_ms
        for node_id in alive:
            leads = [LedGroup(name, 1, [node_id]) for name in self.led.get(node_id, ())]
            self.leaders.told(node_id, leads, self.not_made.get(node_id, {}))
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
    case.controller.release()
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
    case.is_controller = True
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


def test_a_broker_that_could_not_make_a_group_is_left_out_if_others_suffice():
    case = Case(brokers=4, voters=4)
    case.not_made["n3"] = {"pg-9": "no descriptors"}
    case.pass_time(0)
    case.admit()
    assert all(3 not in group.members for group in case.view().groups.values())
    case.pass_time(MAKES_NONE_MS)
    assert len(case.view().groups) == 3, "it still says so"
    case.not_made.clear()
    for _ in range(MAKES_NONE_MS // REPEAT_MS + 1):
        case.pass_time(REPEAT_MS)
    assert any(3 in group.members for group in case.view().groups.values())


def test_groups_that_nobody_can_make_are_replaced_ever_more_seldom(case):
    case.admit()
    for node_id in case.leaders.alive:
        case.not_made[node_id] = {"pg-0": "no descriptors"}
    for _ in range(3_600):
        case.pass_time(1_000)
    replaced = [one for one in case.asked if isinstance(one, ReplaceGroup)]
    assert 3 <= len(replaced) <= 3 * 18, "three groups, in an hour"
    case.not_made.clear()
    case.led = {f"n{number}": list(case.view().groups) for number in range(3)}
    case.pass_time(REPEAT_MS)
    case.led = {}
    assert all(group.phase == "led" for group in case.view().groups.values())


def test_a_node_that_leads_no_more_does_nothing(case):
    case.admit()
    case.is_controller = False
    before = len(case.asked)
    case.pass_time(2 * UNLED_MS)
    assert len(case.asked) == before


DAY_MS = 86_400_000
WEEK, HOURS = 15, 12


def test_topics_that_keep_for_other_times_have_groups_of_their_own(case):
    case.admit()
    case.admit(retention_ms=3 * DAY_MS // 24)
    case.admit(retention_ms=10 * DAY_MS)
    assert case.went == [(OK, "")] * 3
    assert case.led_by_class() == {WEEK: [0, 1, 2], HOURS: [0, 1, 2]}
    members = [group.members for group in case.view().groups.values()]
    assert all(sorted(one) == [0, 1, 2] for one in members)


def test_a_topic_waits_until_its_groups_can_be_seen_and_says_so_if_they_do_not_come(case):
    case.admit()
    case.loses = True
    case.admit(timeout_ms=1_500, retention_ms=60_000)
    assert case.went == [(OK, "")]
    case.pass_time(REPEAT_MS)
    assert len(case.asked) == 3, "they were ordered again"
    case.pass_time(500)
    code, text = case.went[1]
    assert code is ResponseCode.TIMEOUT
    assert "were ordered, and are not there yet" in text
    case.loses = False
    case.admit(timeout_ms=5_000, retention_ms=60_000)
    case.pass_time(REPEAT_MS)
    case.controller.release()
    assert case.went[2] == (OK, "")


def test_more_partitions_go_to_groups_of_the_class_that_the_topic_has_by_now(case):
    case.admit(retention_ms=60_000)
    case.do(CreateTopics([NewTopic("t", os.urandom(16), configs={"retention.ms": "60000"})]))
    change = ConfigChange("set", "retention.ms", str(7 * DAY_MS))
    case.do(AlterConfigs([AlterResource("t", [change])]))
    case.admit_command(CreatePartitions([MorePartitions("t", 8)]))
    assert set(case.led_by_class()) == {SHORTEST, WEEK}
    assert case.went == [(OK, "")] * 2


def test_when_there_are_as_many_groups_as_may_be_topics_share_those_of_others():
    case = Case(brokers=40, voters=3)
    case.admit()
    case.admit(retention_ms=60_000)
    assert len(case.view().groups) == GROUPS_MAX
    assert len(case.led_by_class()[SHORTEST]) == GROUPS_MAX - 40
    case.admit(retention_ms=-1)
    assert case.went == [(OK, "")] * 3
    assert UNLIMITED not in case.led_by_class()


def test_too_few_brokers_for_more_groups_do_not_keep_a_topic_from_those_there_are(case):
    case.admit()
    case.dead = {"n2"}
    case.pass_time(SILENT_MS + 1)
    case.admit(retention_ms=-1)
    assert case.went == [(OK, "")] * 2


def test_a_broker_that_joins_later_gets_a_group_of_each_class():
    case = Case(brokers=4, alive=[0, 1, 2], voters=4)
    case.admit()
    case.admit(retention_ms=-1)
    case.leaders.told("n3", [])
    case.pass_time(REPEAT_MS)
    assert case.led_by_class() == {WEEK: [0, 1, 2, 3], UNLIMITED: [0, 1, 2, 3]}


def test_a_group_that_is_made_elsewhere_is_of_the_same_class():
    case = Case(brokers=4, alive=[0, 1, 2, 3], voters=4)
    case.admit(retention_ms=60_000)
    case.pass_time(0)
    case.dead = {"n3"}
    case.pass_time(UNLED_MS)
    replaced = [one for one in case.asked if isinstance(one, ReplaceGroup)]
    assert replaced
    assert set(case.led_by_class()) == {SHORTEST}


def topic(name="new", **fields):
    return NewTopic(name, os.urandom(16), **fields)


@pytest.mark.parametrize(
    "command",
    [
        CreateTopics([topic()], validate_only=True),
        CreateTopics([topic(configs={"retention.ms": "never"})]),
        CreateTopics([topic("no/name"), topic("old"), topic(partitions=0)]),
        CreateTopics([topic(replication_factor=4)]),
        CreatePartitions([MorePartitions("none", 3), MorePartitions("old", 1)]),
        CreatePartitions([MorePartitions("old", 3)], validate_only=True),
    ],
    ids=["check", "configs", "names", "replicas", "more", "check-more"],
)
def test_a3_what_only_checks_or_will_be_refused_has_no_group_made(case, command):
    case.admit(retention_ms=60_000)
    case.do(CreateTopics([topic("old", partitions=1)]))
    case.do(AlterConfigs([AlterResource("old", [ConfigChange("set", "retention.ms", "-1")])]))
    before = list(case.asked)
    case.admit_command(command)
    assert case.went == [(OK, ""), (OK, "")], "the machine says what is wrong"
    assert case.asked == before


def test_a_leader_that_does_not_know_all_topics_yet_has_no_group_made(case):
    case.is_controller = False
    case.admit()
    assert [code for code, _ in case.went] == [ResponseCode.LEADER_NOT_READY]
    assert not case.asked
