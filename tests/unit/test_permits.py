"""What one client may do: remembered, until rights, users or the principal change."""

from types import SimpleNamespace

import pytest

from quorumlog.auth.acls import RESOURCE_NAME_MAX, Operation, ResourceType
from quorumlog.auth.hosts import without_port
from quorumlog.auth.permits import KNOWN_MAX, Right, refusal_text
from rights import RightsOfTest, acl

READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC


@pytest.fixture
def rights():
    return RightsOfTest()


def test_without_an_acl_only_super_users_may_do_anything(rights):
    assert not rights.permit("User:alice").may(READ, GROUP, "g")
    assert rights.permit("User:root").may(READ, GROUP, "g")


def test_a_right_that_is_taken_away_is_gone_at_once(rights):
    rights.give("User:alice", "read group g")
    permit = rights.permit("User:alice")
    assert permit.may(READ, GROUP, "g")
    rights.take("User:alice", "read group g")
    assert not permit.may(READ, GROUP, "g")


def test_who_logs_in_as_somebody_else_has_the_rights_of_that_one(rights):
    rights.give("User:alice", "read group g")
    client = SimpleNamespace(principal="User:alice", mechanism="", remote_address="192.0.2.1:5")
    permit = rights.authorizer.permit(client)
    assert permit.may(READ, GROUP, "g")
    client.principal = "User:bob"
    assert not permit.may(READ, GROUP, "g")


def test_an_acl_for_an_address_is_for_that_address(rights):
    rights.acls.append(acl("User:alice", "read group g", host="192.0.2.0/24"))
    rights.give("User:bob", "read group other")
    assert rights.permit("User:alice", "192.0.2.9:1").may(READ, GROUP, "g")
    assert not rights.permit("User:alice", "198.51.100.9:1").may(READ, GROUP, "g")
    assert without_port("[2001:db8::1]:80") == without_port("2001:db8::1:80") == "2001:db8::1"


def test_what_is_remembered_is_bounded_and_stays_right(rights):
    rights.give("User:alice", "read group g*")
    permit = rights.permit("User:alice")
    for number in range(2 * KNOWN_MAX):
        assert permit.may(READ, GROUP, f"g{number}")
        assert not permit.sees(READ, GROUP, f"h{number}")
        assert len(permit._known) <= KNOWN_MAX
    assert rights.refused == []


def test_names_that_no_resource_has_are_judged_but_not_remembered(rights):
    rights.give("User:alice", "read group g*")
    permit = rights.permit("User:alice")
    for length in (RESOURCE_NAME_MAX, RESOURCE_NAME_MAX + 1, 1_000_000):
        assert permit.may(READ, GROUP, "g" * length)
        assert not permit.sees(READ, GROUP, "h" * length)
    assert max(len(name) for _, _, name in permit._known) == RESOURCE_NAME_MAX


def test_what_a_client_asks_for_and_does_not_get_is_reported(rights):
    permit = rights.permit("User:alice")
    assert not permit.sees(DESCRIBE, GROUP, "g")
    assert rights.refused == []
    assert not permit.may_one_of([Right(READ, GROUP, "g"), Right(WRITE, GROUP, "g")])
    (one,) = rights.refused
    assert (one.principal, one.address, one.is_enforced) == ("User:alice", "192.0.2.1:5", True)
    assert one.right == Right(READ, GROUP, "g")


def test_where_refusals_are_only_reported_everything_is_allowed():
    rights = RightsOfTest(only_reports=True)
    permit = rights.permit("User:alice")
    assert permit.may(READ, GROUP, "g")
    assert permit.sees(READ, GROUP, "g")
    assert permit.may_somewhere(WRITE, TOPIC)
    assert [one.is_enforced for one in rights.refused] == [False]


@pytest.mark.parametrize(
    ("acls", "may"),
    [
        ([], False),
        (["read topic t"], False),
        (["write topic t"], True),
        (["write topic t", "deny write topic t"], False),
        (["write topic t*"], True),
        (["write topic t*", "deny write topic *"], False),
        (["write topic *", "deny write topic t"], True),
        (["all topic *"], True),
        (["write group t"], False),
    ],
)
def test_who_may_write_to_any_topic_may_be_an_idempotent_producer(rights, acls, may):
    rights.give("User:alice", *acls)
    assert rights.permit("User:alice").may_somewhere(WRITE, TOPIC) is may


def test_a_refusal_says_who_may_not_do_what_and_what_helps():
    text = refusal_text("User:alice", Right(WRITE, GROUP, "flights"))
    assert text.startswith("alice may not write group 'flights': ")
    assert text.endswith("(quorumlog acl add --user alice --operation write --group flights)")
    nobody = Right(Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster")
    text = refusal_text("User:ANONYMOUS", nobody)
    assert text.startswith("a client that has not logged in may not describe the cluster: ")
    strange = refusal_text("User:alice", Right(READ, TOPIC, "x\n" * 10_000))
    assert "\n" not in strange
    assert len(strange) < 1_000


def test_a_refusal_offers_no_command_that_would_allow_more():
    literal = refusal_text("User:alice", Right(WRITE, ResourceType.TRANSACTIONAL_ID, "spark*"))
    assert "its * is part of the name" in literal
    assert "--transactional-id" not in literal
    assert "acl add" not in refusal_text("User:User:eve", Right(READ, TOPIC, "t"))
