"""A request of each kind that clients send, and who may have it: what is meant, whatever the
product's table has. Names: group `g`, consumer group `c`.
"""

import uuid

from quorumlog.model.messages import (
    admin,
    client,
    consumers,
    groups,
    machine,
    security,
    transactions,
)
from quorumlog.wire.kinds import CLIENT_KINDS, LOGIN_KINDS

ID = uuid.UUID(int=7)
ALICE = "User:alice"
ROLES = {
    "anonymous": (),
    "nothing": ("read group other", "write group other", "describe group other"),
    "describe": (
        "describe group g",
        "describe cluster",
        "describe consumers c",
        "describe transaction *",
    ),
    "read": ("read group g", "read consumers c"),
    "write": ("write group g", f"write transaction {ID}"),
    "operate": (
        "alter group g",
        "create group g",
        "delete group g",
        "alter cluster",
    ),
    "super": (),
}
CONSUMER = {
    "group": "__cluster",
    "consumer_group": "c",
    "log": "g",
    "identity": b"",
    "partitions": 1,
}
G = {"group": "g"}
CLUSTER = {"group": "__cluster"}
REMOVE = admin.MemberAction.REMOVE
SEES = {"describe", "read", "write", "operate"}
TABLE = [
    (30, client.MetadataRequest(group="g"), SEES),
    (30, client.MetadataRequest(group=""), {*SEES, "anonymous", "nothing"}),
    (30, client.MetadataRequest(group="__cluster"), {*SEES, "anonymous", "nothing"}),
    (70, client.WatchLeaderRequest(group="__cluster"), {*SEES, "anonymous", "nothing"}),
    (32, client.AppendRequest(**G, count=1), {"write"}),
    (32, client.AppendRequest(**G, count=1, wants_results=True), set()),
    (34, client.FetchRequest(**G, begin_index=0), {"read"}),
    (34, client.FetchRequest(**G, begin_index=0, wait_ms=9, machine="m"), {"read"}),
    (36, client.StatusRequest(**G), {"describe", "operate"}),
    (38, admin.TransferRequest(**G, transferee_id="n1"), {"operate"}),
    (
        39,
        admin.ChangeMembersRequest(**G, action=admin.MemberAction.REMOVE, node_id="n1"),
        {"operate"},
    ),
    (40, admin.HistoryRequest(**G), {"describe", "operate"}),
    (42, machine.QueryRequest(**G), {"read"}),
    (44, machine.SnapshotRequest(**G), {"operate"}),
    (
        46,
        transactions.TransactionalRequest(**G, transactional_id=ID.bytes, run_id=bytes(16)),
        {"describe", "write"},
    ),
    (60, groups.CreateGroupRequest(**G, identity=bytes(16), peers="n0-h:1"), {"operate"}),
    (61, groups.DeleteGroupRequest(**G), {"operate"}),
    (62, groups.AlterGroupRequest(**G, identity=b"", settings={}, revision=1), {"operate"}),
    (64, groups.ListGroupsRequest(**G), SEES),
    (64, groups.ListGroupsRequest(group=""), {*SEES, "anonymous", "nothing"}),
    (70, client.WatchLeaderRequest(**G), SEES),
    (80, consumers.ConsumerHeartbeatRequest(**CONSUMER, member_id="m", epoch=0), {"read"}),
    (82, consumers.CommitPositionsRequest(**CONSUMER, positions=[]), {"read"}),
    (83, consumers.PositionsRequest(**CONSUMER), {"read", "describe"}),
    (90, security.UsersRequest(**CLUSTER), {"describe", "operate"}),
    (92, security.AlterUsersRequest(**CLUSTER, changes=[]), {"operate"}),
    (93, security.AclsRequest(**CLUSTER), {"describe", "operate"}),
    (95, security.AlterAclsRequest(**CLUSTER), {"operate"}),
    (
        96,
        security.CheckAclRequest(
            **CLUSTER, principal=ALICE, operation="read", resource_type="group", name="g"
        ),
        {"describe", "operate"},
    ),
    (98, security.QuotasRequest(**CLUSTER), {"describe", "operate"}),
    (100, security.AlterQuotasRequest(**CLUSTER, changes=[]), {"operate"}),
    (102, security.CheckSecurityRequest(**CLUSTER), {"describe", "operate"}),
]
"""Kind, request, and who may have it besides super users."""
JUDGED = CLIENT_KINDS - LOGIN_KINDS
"""Logins come before (`login_gate`)."""
