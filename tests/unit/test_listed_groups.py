"""What a node answers when it is asked for its groups, and how clients put that together."""

from types import SimpleNamespace

import msgspec
import pytest

from quorumlog.client.group_answers import NodeGroups, summaries
from quorumlog.client.groups import Groups
from quorumlog.errors import NetworkError, RequestError, UnknownGroupError
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import NodeConfig
from quorumlog.model.group_records import RECORD_BYTES_MAX, GroupRecord, GroupState
from quorumlog.model.limits import DEFAULT_LIMITS, Limits
from quorumlog.model.messages.base import Response
from quorumlog.model.messages.groups import GroupInfo, ListGroupsRequest, ListGroupsResponse
from quorumlog.node.group_catalog import GroupCatalog
from quorumlog.service.groups import list_groups
from quorumlog.storage.metadata.group_files import TOMBSTONES_MAX
from quorumlog.wire.decoder import FrameDecoder
from quorumlog.wire.frame import encode_frame

PEERS = "n0-127.0.0.1:7101;n1-127.0.0.1:7102"
LONG = {"preferredLeaderIds": "n0", "stateMachine": "x" * 1_000, "logLevel": "y" * 1_000}
GONE = b"gone".ljust(16, b".")


def node_with(hosted=(), deleted=(), limits=DEFAULT_LIMITS):
    """Return a node with groups of long settings; `deleted`: (name, identity)."""
    config = NodeConfig(
        self_id="n0", store_base_dir="/base", listen="127.0.0.1:7101", limits=limits
    )
    catalog = GroupCatalog(config)
    for name in hosted:
        record = GroupRecord(group=name, identity=name.encode()[:16], peers=PEERS, settings=LONG)
        catalog.hosts(record, catalog.config_of(GroupRecord(group=name, peers=PEERS)))
    for name, identity in deleted:
        record = GroupRecord(
            group=name, identity=identity, peers=PEERS, settings=LONG, state=GroupState.DELETED
        )
        assert len(record.encode()) < RECORD_BYTES_MAX
        catalog.deleted(record)
    identity_of = lambda name: catalog.records[name].identity  # noqa: E731
    return SimpleNamespace(
        config=config,
        catalog=catalog,
        replicas={},
        failed_groups={},
        own_address="127.0.0.1:7101",
        hosting=SimpleNamespace(lifecycle=SimpleNamespace(identity_of=identity_of)),
    )


def answer_of(node, request):
    """Ask a node over the wire, with the limits that it and the client have."""
    answers = []
    try:
        list_groups(node, request, answers.append, lambda _: True)
    except RequestError as error:
        return Response(code=error.code, text=str(error))
    decoder = FrameDecoder(DEFAULT_LIMITS)
    for part in encode_frame(answers[0], limits=node.config.limits):
        decoder.receive_data(part)
    return decoder.next_frame().message


class Asked(Groups):
    """A client of nodes at some addresses; those in `failing` raise what is given instead."""

    def __init__(self, nodes, failing=None):
        addresses = [*nodes, *(failing or {})]
        connection_of = self._connect
        super().__init__(
            SimpleNamespace(
                metadata=SimpleNamespace(
                    addresses=lambda: addresses,
                    check_open=lambda: None,
                    connection=connection_of,
                ),
                limit_ms=lambda timeout_ms: 1_000,
                answer_within=self._answer,
            )
        )
        self.at, self.failing, self.requests = nodes, failing or {}, []

    async def _connect(self, address):
        failure = self.failing.get(address)
        if isinstance(failure, Exception):
            raise failure
        if address not in self.at and failure is None:
            raise NetworkError(f"cannot connect to {address}: Connection refused")
        return address

    async def _answer(self, connection, request, attachments, limit_ms):
        self.requests.append(request)
        if connection in self.failing:
            return SimpleNamespace(response=self.failing[connection])
        return SimpleNamespace(response=answer_of(self.at[connection], request))


HOSTED = [f"g{number:04}" for number in range(600)]
DELETED = [(f"g{number % 700:04}", number.to_bytes(16, "big")) for number in range(TOMBSTONES_MAX)]


@pytest.mark.parametrize("limits", [DEFAULT_LIMITS, Limits(message_bytes_max=32 * 1024)])
async def test_all_groups_are_listed_however_many_there_are_and_however_long_their_settings(limits):
    client = Asked({"127.0.0.1:7101": node_with(HOSTED, DELETED, limits)})
    (node,) = [one for one in await client.nodes(deleted=True) if not one.error]
    assert [one.group for one in node.groups if one.state != "DELETED"] == HOSTED
    found = [(one.group, one.identity) for one in node.groups if one.state == "DELETED"]
    assert found == sorted(DELETED)
    (node,) = [one for one in await client.nodes() if not one.error]
    assert [one.group for one in node.groups] == HOSTED


async def test_thousands_of_deleted_groups_of_one_name_are_listed_and_describe_asks_for_none():
    former = [("orders", identity) for _, identity in DELETED]
    client = Asked({"127.0.0.1:7101": node_with(["orders"], former)})
    summary, settings = await client.describe("orders")
    assert summary.states == {"n0": "FAILED"}
    assert {one.key for one in settings["n0"]} > {"retentionBytes"}
    answered = [one for one in client.requests if one.wants_deleted]
    assert not answered
    nodes = await client._find(ListGroupsRequest(group="orders", wants_deleted=True))
    assert len(nodes[0].groups) == 1 + len(former)
    assert [one.key for one in nodes[0].settings] == [one.key for one in settings["n0"]]


def test_a_client_of_an_earlier_version_gets_all_hosted_groups_and_what_has_room_of_the_deleted():
    node, names, after, deleted = node_with(HOSTED, DELETED), [], "", 0
    while True:
        request = msgspec.msgpack.decode(
            msgspec.msgpack.encode(["", after, True]), type=ListGroupsRequest
        )
        answer = answer_of(node, request)
        hosted = [one.group for one in answer.groups if one.state != "DELETED"]
        names += hosted
        deleted += len(answer.groups) - len(hosted)
        if not answer.more:
            break
        after = answer.groups[-1].group
    assert names == HOSTED
    assert deleted > 0


async def test_a_server_of_an_earlier_version_lists_everything_at_once():
    info = GroupInfo(
        "g", GONE, "DELETED", {}, {}, None, -1, -1, False, {}, 0, 0, 7, purged=False, text=""
    )
    answer = msgspec.msgpack.decode(
        msgspec.msgpack.encode(
            [200, "", None, -1, "", "n0", "127.0.0.1:7101", 0, 9, [info], [], False]
        ),
        type=ListGroupsResponse,
    )
    client = Asked({}, {"127.0.0.1:7101": answer})
    assert [one.groups for one in await client.nodes(deleted=True)] == [[info]]


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (NetworkError("cannot connect to 127.0.0.1:9: Connection refused"), "refused"),
        (OSError("no route"), "no route"),
        (ListGroupsResponse(more=True), "more groups, but not which"),
        (Response(), "with Response"),
        (Response(code=ResponseCode.DISK_ERROR, text="the disk is gone"), "the disk is gone"),
    ],
)
async def test_a_node_that_does_not_answer_well_is_named_and_the_others_are_listed(failure, said):
    client = Asked({"127.0.0.1:7101": node_with(["orders"])}, {"127.0.0.1:9": failure})
    nodes = await client.nodes()
    assert [one.group for one in nodes[0].groups] == ["orders"]
    failed = {one.address: one.error for one in nodes if one.error}
    assert said in failed["127.0.0.1:9"]
    (summary,) = await client.list()
    assert set(summary.silent) == {"n1"}  # a member, at an address where nobody listens
    assert "refused" in summary.silent["n1"]


async def test_a_group_that_no_node_has_is_said_to_be_unknown_though_some_do_not_answer():
    client = Asked(
        {"127.0.0.1:7101": node_with(["orders"])}, {"127.0.0.1:9": NetworkError("refused")}
    )
    with pytest.raises(UnknownGroupError, match="'other'"):
        await client.describe("other")


def test_a_replica_that_cannot_be_read_is_listed_with_the_group_of_its_name():
    known = info(b"i" * 16, "HOSTED", {"n0": "127.0.0.1:7101", "n1": "127.0.0.1:7102"}, "")
    unread = info(b"", "FAILED", {}, "quorumlog.group cannot be read")
    nodes = [NodeGroups("n0", "", 1, 9, [known]), NodeGroups("n1", "", 1, 9, [unread])]
    (summary,) = summaries(nodes)
    assert summary.states == {"n0": "HOSTED", "n1": "FAILED"}
    assert summary.problems == {"n1": "quorumlog.group cannot be read"}
    assert list(summary.members) == ["n0", "n1"]
    other = NodeGroups("n2", "", 1, 9, [info(b"o" * 16, "HOSTED", {"n2": "127.0.0.1:7103"}, "")])
    assert len(summaries([*nodes, other])) == 3  # it could be the one or the other


def info(identity, state, peers, text):
    return GroupInfo(
        "g", identity, state, peers, {}, None, -1, -1, False, {}, 0, 0, 0, purged=False, text=text
    )
