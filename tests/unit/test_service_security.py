"""Requests about users, ACLs and quotas, as one node answers them."""

from types import SimpleNamespace

import pytest

from quorumlog.auth.acls import Acl, Operation, PatternType, Permission, ResourceType
from quorumlog.auth.view import SecurityView
from quorumlog.errors import RequestError, UnexpectedArgumentError
from quorumlog.machine.cluster.commands import AlterAcls
from quorumlog.machine.cluster.security import Security
from quorumlog.model.codes import ResponseCode
from quorumlog.model.limits import Limits
from quorumlog.model.messages.security import (
    AclFields,
    AclsRequest,
    AlterAclsRequest,
    AlteredResponse,
    AlterUsersRequest,
    CheckAclRequest,
    UserAlteration,
    UsersRequest,
    VerifierFields,
)
from quorumlog.service.security import Asker, SecurityService, _alter_acls, _user_change

ROOT = Asker("User:root", "192.0.2.1:5000")
ALICES = AclFields("User:alice", "allow", "read", "topic", "flights", "literal", "*")


class Broker:
    """A broker that carries out commands at once, or says why not."""

    def __init__(self):
        self.security = SecurityView()
        self.state = Security()
        self.ordered = []
        self.has_leader = True

    def order(self, command, timeout_ms, done):
        self.ordered.append(command)
        if not self.has_leader:
            done(ResponseCode.TIMEOUT, "no leader", None)
            return
        result = self.state.alter_acls(command)
        self.security = self.state.view()
        done(ResponseCode.SUCCESS, "", result)

    def ask_barrier(self, timeout_ms, done):
        done(self.has_leader)


class Node:
    def __init__(self, has_group=True, super_users=(), **limits):
        config = SimpleNamespace(
            self_id="n0",
            cluster_group=object() if has_group else None,
            security=SimpleNamespace(super_users=list(super_users)),
            limits=Limits(**limits),
        )
        self.broker = Broker()
        self.service = SecurityService(config, self.broker)

    def ask(self, request):
        found = []
        self.service.answer(request, ROOT, found.append)
        (answer,) = found
        return answer


@pytest.fixture
def node():
    return Node()


def check(operation="read", name="flights", **fields):
    return CheckAclRequest(
        group="__cluster",
        principal="User:alice",
        operation=operation,
        resource_type="topic",
        name=name,
        **fields,
    )


def test_a_node_without_the_cluster_group_says_what_is_missing():
    with pytest.raises(RequestError, match="the group __cluster, which its configuration lacks"):
        Node(has_group=False).ask(UsersRequest(group="__cluster"))


def test_a_node_that_stops_is_not_the_one_to_ask(node):
    node.service.broker = None
    with pytest.raises(RequestError, match="n0 starts, or stops") as caught:
        node.ask(UsersRequest(group="__cluster"))
    assert caught.value.retriable


def test_changes_say_who_asked_for_them(node):
    answer = node.ask(AlterAclsRequest(group="__cluster", added=[ALICES]))
    assert answer == AlteredResponse(outcomes=[(ResponseCode.SUCCESS, "")])
    (command,) = node.broker.ordered
    acl = Acl(
        ResourceType.TOPIC,
        "flights",
        PatternType.LITERAL,
        "User:alice",
        "*",
        Operation.READ,
        Permission.ALLOW,
    )
    assert command == AlterAcls(*ROOT, [acl], [])
    assert node.ask(AclsRequest(group="__cluster")).acls == [ALICES]


GOOD = VerifierFields(b"saltsalt", bytes(32), bytes(32), 4_096)


def test_what_cannot_be_is_refused_before_it_becomes_a_command(node):
    weak = VerifierFields(b"salt-of-tests", bytes(32), bytes(32), 1)
    for request in (
        AlterAclsRequest(group="__cluster", added=[AclFields("alice", "allow", "read", "topic")]),
        AlterAclsRequest(group="__cluster", added=[acl_fields("User: ")]),
        AlterUsersRequest(
            group="__cluster", changes=[UserAlteration("alice", {"SCRAM-SHA-256": weak})]
        ),
        AlterUsersRequest(group="__cluster", changes=[UserAlteration("*", {}, replaces=True)]),
        *(
            AlterUsersRequest(
                group="__cluster", changes=[UserAlteration(name, {"SCRAM-SHA-256": GOOD})]
            )
            for name in ("ANONYMOUS", " ")
        ),
        check(operation="any"),
        check(operation="fly"),
    ):
        with pytest.raises(UnexpectedArgumentError):
            node.ask(request)
    assert node.broker.ordered == []


def test_users_of_names_that_are_reserved_may_be_removed():
    gone = _user_change(UserAlteration("ANONYMOUS", {}, True, True))
    assert (gone.name, gone.verifiers) == ("ANONYMOUS", {})


def test_acls_for_blank_names_may_be_removed():
    request = AlterAclsRequest(group="__cluster", removed=[acl_fields("User: ")])
    (removed,) = _alter_acls(request, ROOT).removed
    assert removed.principal == "User: "


def acl_fields(principal):
    return AclFields(principal, "allow", "read", "topic", "t", "literal", "*")


def test_without_a_leader_nothing_is_told_or_changed(node):
    node.broker.has_leader = False
    assert node.ask(UsersRequest(group="__cluster")).code == ResponseCode.LEADER_NOT_READY
    answer = node.ask(AlterAclsRequest(group="__cluster", added=[ALICES]))
    assert (answer.code, answer.text) == (ResponseCode.TIMEOUT, "no leader")


def test_lists_are_told_in_pages():
    node = Node(message_bytes_max=4_096)
    for number in range(100):
        acl = AclFields(f"User:u{number:02}", "allow", "read", "topic", "t", "literal", "*")
        node.ask(AlterAclsRequest(group="__cluster", added=[acl]))
    found, more = [], True
    while more:
        page = node.ask(AclsRequest(group="__cluster", skipped=len(found)))
        assert page.version == 100
        found += page.acls
        more = page.more
        assert len(page.acls) < 100
    assert [one.principal for one in found] == [f"User:u{number:02}" for number in range(100)]


def test_a_check_says_who_decides(node):
    assert node.ask(check()).reason == "no ACL allows it"
    node.ask(AlterAclsRequest(group="__cluster", added=[ALICES]))
    found = node.ask(check(host="192.0.2.7"))
    assert (found.is_allowed, found.acl) == (True, ALICES)
    chief = Node(super_users=["User:alice"]).ask(check())
    assert (chief.is_allowed, chief.acl, chief.reason) == (True, None, "User:alice is a super user")
