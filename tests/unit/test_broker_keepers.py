"""How a node brings its groups, and the partitions in their logs, in line with `__cluster`."""

import os
from types import SimpleNamespace

import pytest

from quorumlog.broker.group_keeper import REASON_MAX, RETRY_MS, GroupKeeper
from quorumlog.broker.partition_keeper import BLOCK_BYTES_MAX, ORDER_MS, PartitionKeeper
from quorumlog.broker.retention_rules import rules_of
from quorumlog.machine.cluster.commands import (
    AddGroups,
    AlterConfigs,
    AlterResource,
    ConfigChange,
    CreateTopics,
    DeleteTopics,
    Envelope,
    GroupsLed,
    NewGroup,
    NewTopic,
    PartitionsLost,
    PartitionsOpened,
    RegisterBroker,
    ReplaceGroup,
    TopicToDelete,
)
from quorumlog.machine.cluster.machine import execute
from quorumlog.machine.cluster.state import EMPTY_VIEW, ClusterState, group_identity
from quorumlog.model.codes import ResponseCode, Role
from quorumlog.model.limits import DEFAULT_LIMITS
from quorumlog.sessions.entries import system_entries_in
from quorumlog.topics.partition_table import PartitionTable
from quorumlog.topics.retention import RetentionRule

OK = ResponseCode.SUCCESS


class State:
    """A state of `__cluster` with two groups."""

    def __init__(self):
        self.state, self.time_ms = ClusterState(), 0
        for number in range(3):
            self.do(RegisterBroker(f"n{number}", f"h:{number}", "h", 1, "", "c"))
        self.do(AddGroups(0, [NewGroup([0, 1, 2], "peers", {"kind": "partitions"})] * 2))

    def do(self, command):
        execute(self.state, Envelope(os.urandom(16), 0, command))

    def now_ms(self):
        return self.time_ms

    @property
    def view(self):
        return self.state.view(EMPTY_VIEW)

    def create(self, name, count):
        self.do(CreateTopics([NewTopic(name, os.urandom(16), count)]))

    def delete(self, name):
        self.do(DeleteTopics([TopicToDelete(name)]))


# -- groups ---------------------------------------------------------------------------------------


class Host(State):
    """Makes and deletes groups; each waits until the test says what came of it."""

    def __init__(self):
        super().__init__()
        self.hosted, self.waiting, self.identities = {}, {}, {}
        self.keeper = GroupKeeper(self, self.hosted, self.now_ms)

    def create(self, record, done):
        self.waiting["make", record.group] = record, done

    def delete_group(self, name, identity, done, purge):
        self.waiting["delete", name] = identity, done

    def identity_of(self, name):
        return self.identities.get(name, b"")

    def reconcile(self, broker_id=0):
        self.keeper.reconcile(self.view, broker_id)
        return sorted(self.waiting)

    def end(self, what, name, code=OK, text="why"):
        record, done = self.waiting.pop((what, name))
        if code is OK and what == "make":
            self.hosted[name], self.identities[name] = object(), record.identity
        elif code is OK:
            self.hosted.pop(name)
        done(code, text)


class GroupHost(Host):
    def delete(self, name, identity, done, *, purge=False):
        self.delete_group(name, identity, done, purge)


@pytest.fixture
def host():
    return GroupHost()


def test_members_make_what_is_to_be_made_once_and_others_nothing(host):
    assert host.reconcile(broker_id=7) == []
    assert host.reconcile() == [("make", "pg-0"), ("make", "pg-1")]
    record, _ = host.waiting["make", "pg-0"]
    assert record.identity == group_identity("c", "pg-0")
    assert (record.peers, record.settings) == ("peers", {"kind": "partitions"})
    host.end("make", "pg-0")
    assert host.reconcile() == [("make", "pg-1")]


def test_why_groups_could_not_be_made_is_forgotten_with_them(host):
    """A full disk would have one more group given up each half minute."""
    host.reconcile()
    for name in ("pg-0", "pg-1"):
        host.end("make", name, ResponseCode.GROUP_REFUSED)
    host.reconcile()
    assert host.keeper._said.keys() == {"pg-0", "pg-1"}
    host.do(ReplaceGroup("pg-0", NewGroup([1, 2], "peers", {"kind": "partitions"})))
    host.reconcile()
    assert host.keeper._said.keys() == {"pg-1"}


def test_others_are_told_what_could_not_be_made_as_long_as_it_is_to_be_made(host):
    host.reconcile()
    host.end("make", "pg-1")
    host.end("make", "pg-0", ResponseCode.GROUP_REFUSED, "no descriptors " + "x" * 1_000)
    ((name, text),) = host.keeper.not_made(host.view).items()
    assert (name, text) == ("pg-0", ("no descriptors " + "x" * 1_000)[:REASON_MAX])
    host.do(GroupsLed(["pg-0"]))
    assert host.keeper.not_made(host.view) == {}


def test_a_group_that_could_not_be_made_is_tried_again_later(host):
    host.reconcile()
    host.end("make", "pg-0", ResponseCode.GROUP_REFUSED)
    assert host.reconcile() == [("make", "pg-1")]
    host.time_ms = RETRY_MS
    assert host.reconcile() == [("make", "pg-0"), ("make", "pg-1")]


def test_a_group_that_has_had_a_leader_is_not_made_anew(host):
    host.do(GroupsLed(["pg-0", "pg-1"]))
    assert host.reconcile() == []


def test_a_group_that_was_given_up_is_deleted_and_none_of_another_cluster(host):
    host.reconcile()
    host.end("make", "pg-0")
    host.end("make", "pg-1")
    host.hosted["pg-2"], host.hosted["mine"] = object(), object()
    host.do(ReplaceGroup("pg-0", NewGroup([1, 2], "peers", {})))
    assert host.reconcile() == [("delete", "pg-0")], "pg-2 is another's: it has no such identity"
    assert host.waiting["delete", "pg-0"][0] == group_identity("c", "pg-0")
    host.end("delete", "pg-0")
    assert host.reconcile() == []


def test_a_group_that_an_old_view_does_not_know_is_not_deleted(host):
    old = host.view
    host.do(AddGroups(2, [NewGroup([0], "peers", {})]))
    host.reconcile()
    host.end("make", "pg-2")
    host.keeper.reconcile(old, 0)
    assert ("delete", "pg-2") not in host.waiting
    assert not old.has_given_up("pg-2")
    host.do(ReplaceGroup("pg-2", NewGroup([1], "peers", {})))
    names = ["pg-0", "pg-2", "pg-3", "pg-4", "orders"]
    assert [name for name in names if host.view.has_given_up(name)] == ["pg-2"]


# -- partitions -----------------------------------------------------------------------------------


class Log(State):
    """The leader of pg-0: what it appends is in its table, and committed when the test says so."""

    def __init__(self):
        super().__init__()
        self.core = SimpleNamespace(role=Role.LEADER, is_ready=True)
        self.tables = SimpleNamespace(
            partitions=PartitionTable(),
            partitions_at_end=PartitionTable(),
            is_incomplete=False,
            is_trusted=True,
        )
        self.appended, self.orders, self.entries = [], [], []
        self.keeper = PartitionKeeper("pg-0", DEFAULT_LIMITS, self.order, self.now_ms)

    def propose(self, block, answer, entry):
        assert len(block.data) <= BLOCK_BYTES_MAX
        found = [one for _, one in system_entries_in(block, 0)]
        assert found[0] == entry
        self.appended.append((found, answer))

    def order(self, command, timeout_ms, done):
        self.orders.append((command, done))

    def reconcile(self, view=None):
        self.keeper.reconcile(view or self.view, self)

    def commit(self, code=OK):
        found, answer = self.appended.pop(0)
        for entry in found if code is OK else ():
            self.tables.partitions_at_end.apply(0, entry)
            self.tables.partitions.apply(0, entry)
            self.entries.append(entry)
        answer(SimpleNamespace(code=code), ())

    def carry_out(self, code=OK):
        command, done = self.orders.pop(0)
        if code is OK:
            self.do(command)
        done(code, "", None)
        return command

    def settle(self):
        for _ in range(100):
            self.reconcile()
            if not self.appended and not self.orders:
                return
            while self.appended:
                self.commit()
            while self.orders:
                self.carry_out()
        raise AssertionError("it goes on and on")

    @property
    def channels(self):
        return sorted(self.tables.partitions.partitions)


@pytest.fixture
def log():
    return Log()


def test_channels_are_opened_in_their_order_and_then_told(log):
    log.create("t", 6)
    log.settle()
    assert log.channels == [1, 2, 3]
    topic = log.view.topics["t"]
    assert [one.is_open for one in topic.partitions if one.group == "pg-0"] == [True] * 3
    opened = log.tables.partitions.partitions[2]
    assert (opened.topic, opened.number, opened.topic_id) == ("t", 2, topic.topic_id)
    assert log.keeper.is_settled


def test_thousands_are_opened_in_a_few_blocks(log):
    log.create("t" * 200, 4_000)
    log.settle()
    assert log.channels == list(range(1, 2_001))


def test_a_deleted_topics_channels_are_closed_whether_they_were_told_or_not(log):
    log.create("t", 4)
    log.reconcile()
    log.commit()
    log.delete("t")
    log.create("u", 2)
    log.settle()
    assert log.channels == [3]


def test_a_view_that_is_old_closes_nothing_that_it_does_not_know(log):
    old = log.view
    log.create("t", 2)
    log.settle()
    log.reconcile(old)
    assert not log.appended


def test_a_follower_or_a_leader_that_is_not_ready_does_nothing(log):
    log.create("t", 2)
    log.core.is_ready = False
    log.reconcile()
    log.core.is_ready, log.core.role = True, Role.FOLLOWER
    log.reconcile()
    assert not log.appended
    assert not log.orders


def test_a_refused_append_and_an_order_without_an_answer_are_repeated(log):
    log.create("t", 2)
    log.reconcile()
    log.commit(ResponseCode.NOT_LEADER)
    log.reconcile()
    assert not log.appended, "not at once"
    log.time_ms += 1_000
    log.reconcile()
    log.commit()
    log.reconcile()
    assert log.carry_out(ResponseCode.TIMEOUT) == PartitionsOpened("pg-0", [1])
    log.reconcile()
    assert log.carry_out() == PartitionsOpened("pg-0", [1])


def test_what_was_told_is_not_told_again_before_it_can_be_seen(log):
    log.create("t", 2)
    log.reconcile()
    log.commit()
    old = log.view
    log.reconcile(old)
    log.carry_out()
    log.reconcile(old)
    assert not log.orders
    log.time_ms += ORDER_MS
    log.reconcile(old)
    assert log.orders, "it was lost, perhaps"


def test_partitions_of_a_log_that_has_lost_its_tables_begin_again_on_new_channels(log):
    log.create("t", 4)
    log.settle()
    assert log.channels == [1, 2]
    log.tables.partitions = PartitionTable()
    log.tables.partitions_at_end = PartitionTable()
    for lacks in ({"is_incomplete": True}, {"is_trusted": False}):
        whole = vars(log.tables).copy()
        vars(log.tables).update(lacks)
        log.reconcile()
        assert not log.orders, "others may know them"
        assert not log.keeper.is_settled, "it is looked at again and again"
        vars(log.tables).update(whole)
    log.reconcile()
    assert not log.appended, "channels 1 and 2 were used"
    assert log.carry_out() == PartitionsLost("pg-0", [1, 2], -1)
    log.settle()
    assert log.channels == [3, 4]


# -- retention ------------------------------------------------------------------------------------


def test_what_is_kept_of_a_partition_follows_from_its_topics_configs_and_the_clusters():
    state = State()
    configs = {
        "a": {},
        "b": {"retention.ms": "-1"},
        "c": {"cleanup.policy": "compact", "retention.ms": "5"},
        "d": {"cleanup.policy": "compact,delete", "retention.bytes": "9"},
    }
    for name, own in configs.items():
        state.do(CreateTopics([NewTopic(name, os.urandom(16), 2, configs=own)]))
    state.do(AlterConfigs([AlterResource(None, [ConfigChange("set", "log.retention.ms", "7")])]))
    view = state.view
    assert rules_of(view, "pg-0") == {
        1: RetentionRule(7, None),
        2: RetentionRule(None, None),
        3: RetentionRule(None, None),
        4: RetentionRule(7, 9),
    }
    assert rules_of(view, "pg-9") == {}
