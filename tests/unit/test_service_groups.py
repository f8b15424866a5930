"""Which groups a node makes and deletes for clients."""

from types import SimpleNamespace

import pytest

from quorumlog.errors import UnexpectedArgumentError
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import CLUSTER_GROUP, NodeConfig
from quorumlog.model.group_records import GroupRecord, GroupState
from quorumlog.model.messages.groups import (
    CreateGroupRequest,
    DeleteGroupRequest,
    ListGroupsRequest,
)
from quorumlog.node.group_catalog import GroupCatalog
from quorumlog.service.groups import answer_groups_request

PEERS = "n0-127.0.0.1:7101"
IDENTITY, FORMER = bytes(16), b"former".ljust(16, b".")


class Lifecycle:
    """Notes what it is told to do, and does it at once."""

    def __init__(self):
        self.done = []

    def create(self, record, done):
        self.done.append(("create", record.group))
        if record.group == "orders":
            done(ResponseCode.GROUP_EXISTS, "it exists already, with the identity 00")
        else:
            done(ResponseCode.SUCCESS, "")

    def delete(self, name, identity, done, *, purge):
        self.done.append(("delete", name))
        done(ResponseCode.SUCCESS, "")


@pytest.fixture
def node():
    """A node with a group of each kind, and one of kind log whose name is as those of brokers."""
    config = NodeConfig(self_id="n0", store_base_dir="/base", listen="127.0.0.1:7101")
    catalog = GroupCatalog(config)
    kinds = {"orders": {}, "pg-3": {}, "pg-0": {"kind": "partitions"}, "p": {"kind": "partitions"}}
    kinds[CLUSTER_GROUP] = {"kind": "cluster", "stateMachine": "cluster"}
    for name, settings in kinds.items():
        record = GroupRecord(group=name, identity=IDENTITY, peers=PEERS, settings=settings)
        catalog.hosts(record, catalog.config_of(record))
    catalog.deleted(
        GroupRecord(group="pg-0", identity=FORMER, peers=PEERS, state=GroupState.DELETED)
    )
    return SimpleNamespace(
        config=config,
        catalog=catalog,
        own_address="127.0.0.1:7101",
        hosting=SimpleNamespace(lifecycle=Lifecycle()),
    )


def ask(node, request):
    answer_groups_request(node, request, lambda response: None)
    return node.hosting.lifecycle.done


@pytest.mark.parametrize("identity", [b"", IDENTITY])
@pytest.mark.parametrize("name", [CLUSTER_GROUP, "pg-0", "p", "pg-7"])
def test_a_group_of_the_brokers_is_not_deleted_by_a_client(node, name, identity):
    request = DeleteGroupRequest(group=name, identity=identity, purge=True)
    with pytest.raises(UnexpectedArgumentError, match="belongs to the brokers"):
        ask(node, request)
    assert node.hosting.lifecycle.done == []


@pytest.mark.parametrize(
    ("name", "identity"), [("orders", b""), ("pg-3", b""), ("other", IDENTITY), ("pg-0", FORMER)]
)
def test_groups_of_clients_are_deleted_and_files_of_deleted_groups_removed(node, name, identity):
    request = DeleteGroupRequest(group=name, identity=identity, purge=True)
    assert ask(node, request) == [("delete", name)]


@pytest.mark.parametrize(
    ("name", "settings"),
    [("pg-7", {}), (CLUSTER_GROUP, {"kind": "cluster"}), ("mine", {"kind": "partitions"})],
)
def test_a_client_makes_no_group_for_the_brokers(node, name, settings):
    request = CreateGroupRequest(group=name, identity=IDENTITY, peers=PEERS, settings=settings)
    with pytest.raises(UnexpectedArgumentError, match=f"group {name} belongs to the brokers"):
        ask(node, request)
    assert node.hosting.lifecycle.done == []


@pytest.mark.parametrize(("sees", "said"), [(True, "with the identity 00"), (False, "")])
def test_who_may_not_describe_a_group_is_not_told_its_identity(node, sees, said):
    request, told = CreateGroupRequest(group="orders", identity=IDENTITY, peers=PEERS), []
    answer_groups_request(node, request, told.append, lambda group: sees)
    assert told[0].code is ResponseCode.GROUP_EXISTS
    assert told[0].text.partition("exists already")[2].removeprefix(", ") == said


def test_groups_are_counted_that_the_client_may_describe(node):
    node.catalog.unusable.clear()
    told = []
    for seen in ({"pg-3"}, set(node.catalog.configs)):
        request = ListGroupsRequest(group="", after="zzz")
        answer_groups_request(node, request, told.append, seen.__contains__)
    assert [one.group_count for one in told] == [1, 5]


def test_a_client_makes_a_group_of_any_other_name(node):
    request = CreateGroupRequest(group="pg-orders", identity=IDENTITY, peers=PEERS)
    assert ask(node, request) == [("create", "pg-orders")]
