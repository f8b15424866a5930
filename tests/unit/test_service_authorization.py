"""What a node judges by, and the lines that it writes about refusals."""

import logging
from types import SimpleNamespace

import msgspec
import pytest

from quorumlog.auth.acls import Operation, ResourceType
from quorumlog.auth.permits import Refused, Right
from quorumlog.broker.broker import Broker
from quorumlog.model.audit_events import AuditedEvent
from quorumlog.model.config import CLUSTER_GROUP, GroupConfig, NodeConfig
from quorumlog.model.security_config import SecurityConfig
from quorumlog.service.authorization import (
    ONLY_REPORTED,
    PAUSE_S,
    REFUSALS_MAX,
    RefusalLines,
    authorizer_of,
)
from quorumlog.service.kafka_clients import KafkaService
from rights import view_of


def config(**security):
    group = GroupConfig(group="g", peers="n0-127.0.0.1:7101")
    table = SecurityConfig(**security) if security else None
    return NodeConfig(self_id="n0", store_base_dir="d", groups=[group], security=table)


def judged(**security):
    return authorizer_of(config(**security), lambda: view_of([]), lambda refused: None)


def test_rights_count_where_a_node_has_the_table_security_unless_it_says_otherwise():
    assert judged() is None
    assert judged(login="none", authorization="off") is None
    on = judged(login="none", super_users=["User:root"])
    assert not on.only_reports
    assert on.super_users == {"User:root"}
    assert judged(login="none", authorization="log").only_reports
    with pytest.raises(msgspec.ValidationError, match="authorization"):
        msgspec.convert({"authorization": "maybe"}, SecurityConfig)


def test_a_node_knows_rights_once_it_knows_what_its_group_of_the_cluster_has(monkeypatch):
    cluster = GroupConfig(group=CLUSTER_GROUP, kind="cluster", peers="n0-127.0.0.1:7101")
    security = SecurityConfig(login="none")
    served = KafkaService(
        NodeConfig(self_id="n0", store_base_dir="d", groups=[cluster], security=security)
    )
    assert not served.authorizer.is_ready
    monkeypatch.setattr(Broker, "knows_cluster", True)
    assert served.authorizer.is_ready
    without = KafkaService(config(login="none"))
    assert without.authorizer.is_ready  # it has no rights to learn: only super users count


class World:
    def __init__(self):
        self.now = 1_000.0
        self.audited = []
        audit = SimpleNamespace(record=self.audited.append)
        self.lines = RefusalLines(lambda: self.now, audit)

    def refuse(self, principal="User:alice", name="g", *, is_enforced=True):
        right = Right(Operation.WRITE, ResourceType.GROUP, name)
        self.lines(Refused(principal, "192.0.2.1:5", right, is_enforced, "SCRAM-SHA-256"))


@pytest.fixture
def world():
    return World()


def test_a_refusal_has_a_line_a_minute_for_each_principal_and_resource(world, caplog):
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        world.refuse()
    world.refuse("User:bob")
    world.refuse(name="other")
    assert len(caplog.records) == 3
    world.now += PAUSE_S
    world.refuse()
    assert len(caplog.records) == 4
    assert caplog.records[0].getMessage() == "a right is missing"
    world.refuse("User:carol", is_enforced=False)
    assert caplog.records[-1].getMessage() == "a right would be missing"
    assert [one.reason for one in world.audited] == [""] * 6 + [ONLY_REPORTED]
    first = world.audited[0]
    assert (first.event, first.allowed) == (AuditedEvent.REQUEST_REFUSED, False)
    assert (first.principal, first.operation, first.resource) == ("User:alice", "Write", "group:g")
    assert first.mechanism == "SCRAM-SHA-256"


def test_many_resources_fill_neither_memory_nor_the_log(world, caplog):
    caplog.set_level(logging.WARNING)
    for number in range(2 * REFUSALS_MAX):
        world.refuse(name=f"g{number}")
    assert len(caplog.records) == REFUSALS_MAX
    world.now += PAUSE_S
    world.refuse(name="new")
    assert len(caplog.records) == REFUSALS_MAX + 1
    assert len(world.lines._last) == REFUSALS_MAX


def test_of_a_long_name_only_the_beginning_is_kept(world):
    for number in range(10):
        world.refuse(name="g" * 1_000_000 + str(number))
    assert sum(len(name) for _, _, name in world.lines._last) < 10_000
    assert all(len(one.resource) < 10_000 for one in world.audited)
