"""`client.admin.groups`: which nodes a new group goes to."""

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest

from quorumlog.client.group_answers import FORGET_S, NodeGroups
from quorumlog.client.groups import Groups
from quorumlog.errors import (
    LeaderNotReadyError,
    NetworkError,
    NotLeaderError,
    Outcome,
    UnexpectedArgumentError,
)
from quorumlog.model.codes import ResponseCode
from quorumlog.model.messages.base import Response
from quorumlog.model.messages.groups import CreateGroupRequest, GroupInfo, ListGroupsRequest

NODES = {f"n{number}": f"127.0.0.1:{number + 1}" for number in range(5)}


class Cluster(Groups):
    """Five nodes without groups, of which those in `refusing` refuse to take part in one."""

    def __init__(self):
        super().__init__(requester=None)
        self._known.addresses.update(NODES)
        self.refusing, self.silent, self.made = set(), set(), Counter()

    async def nodes(self):
        await asyncio.sleep(0)
        return [
            NodeGroups(node_id, address, 0, 100, error="no answer" * (node_id in self.silent))
            for node_id, address in NODES.items()
        ]

    async def _find(self, request):
        return await self.nodes()

    async def _ask(self, address, request, kind):
        await asyncio.sleep(0)
        node_id = next(one for one, its in NODES.items() if its == address)
        if isinstance(request, CreateGroupRequest):
            if node_id in self.refusing:
                raise NotLeaderError("no")
            self.made[node_id] += 1
        return Response(code=200, text="", leader_id=None, term=0)

    async def _wait_for_leader(self, name, identity, chosen, timeout_s):
        return chosen


@pytest.fixture
async def cluster():
    return Cluster()


class Requester:
    """Asks a node that answers at first that it is not ready."""

    def __init__(self, unready, limit_ms):
        self.metadata, self.unready, self._limit_ms = self, unready, limit_ms

    def check_open(self):
        pass

    async def connection(self, address):
        return address

    def limit_ms(self, given):
        return self._limit_ms

    async def answer_within(self, connection, request, attachments, limit_ms):
        self.unready -= 1
        code = ResponseCode.LEADER_NOT_READY if self.unready >= 0 else ResponseCode.SUCCESS
        return SimpleNamespace(response=Response(code=code, text="", leader_id=None, term=0))


async def test_a_node_that_has_just_started_is_asked_again_within_the_clients_time():
    request = ListGroupsRequest(group="g")
    patient = Groups(Requester(3, 60_000))
    assert (await patient._ask("h:1", request, Response)).code == ResponseCode.SUCCESS
    hasty = Groups(Requester(3, 0))
    with pytest.raises(LeaderNotReadyError):
        await hasty._ask("h:1", request, Response)


async def test_groups_made_at_the_same_time_are_spread_over_all_nodes(cluster):
    await asyncio.gather(*(cluster.create(f"g{number}") for number in range(10)))
    assert cluster.made == dict.fromkeys(NODES, 6)


async def test_a_node_that_refused_a_group_is_chosen_again(cluster):
    cluster.refusing = {"n0"}
    with pytest.raises(NotLeaderError):
        await cluster.create("g")
    cluster.refusing, cluster.made = set(), Counter()
    assert "n0" in await cluster.create("h")


async def test_a_member_named_twice_is_refused(cluster):
    with pytest.raises(UnexpectedArgumentError, match="a node twice: n0, n0, n1"):
        await cluster.create("g", members=["n0", "n0", "n1"])


@pytest.mark.parametrize("members", [5, [1, 2], "n0,n1", b"n0", {"n0": 7101}, {0: "127.0.0.1:1"}])
async def test_members_of_a_wrong_type_are_refused_in_words(cluster, members):
    with pytest.raises(UnexpectedArgumentError, match=r"members are node ids|an address is a str"):
        await cluster.create("g", members=members)


async def test_a_number_of_replicas_of_a_wrong_type_is_refused_in_words(cluster):
    with pytest.raises(UnexpectedArgumentError, match="replicas is a number of nodes, not '3'"):
        await cluster.create("g", replicas="3")


@pytest.mark.parametrize("unset", ["retentionBytes", 7, [7]])
async def test_keys_to_unset_of_a_wrong_type_are_refused_in_words(cluster, unset):
    with pytest.raises(UnexpectedArgumentError, match="unset is a sequence of keys"):
        await cluster.alter("g", unset=unset)


@pytest.mark.parametrize("identity", ["abc", "G" * 32, 7])
async def test_what_is_no_identity_is_refused_before_anybody_is_asked(cluster, identity):
    with pytest.raises(UnexpectedArgumentError, match="an identity is 32 hexadecimal digits"):
        await cluster.delete("g", identity=identity)


@pytest.mark.parametrize("name", ["pg-7", "__cluster"])
async def test_a_name_that_is_the_brokers_is_refused_before_anybody_is_asked(cluster, name):
    with pytest.raises(UnexpectedArgumentError, match="belongs to the brokers"):
        await cluster.create(name)
    assert not cluster.made


async def test_a_group_of_the_brokers_is_not_deleted_also_where_a_node_would_do_it(cluster):
    settings = {"kind": "partitions"}
    info = GroupInfo(
        "pg-0", b"i" * 16, "HOSTED", NODES, {}, "n0", 1, 9, False, settings, 0, 0, 0, False, ""
    )
    node = NodeGroups("n0", NODES["n0"], 1, 100, groups=[info])

    async def find(_):
        return [node]

    cluster._find = find
    with pytest.raises(UnexpectedArgumentError, match="belongs to the brokers"):
        await cluster.delete("pg-0", force=True)


@pytest.mark.parametrize("members", [[], {}, ()])
async def test_a_group_needs_a_member(cluster, members):
    with pytest.raises(UnexpectedArgumentError, match="members names no node"):
        await cluster.create("g", members=members)


async def test_a_member_without_a_name_is_shown_as_it_was_given(cluster):
    with pytest.raises(UnexpectedArgumentError, match="no node '' was found; there are n0, n1"):
        await cluster.create("g", members=[""])


@pytest.mark.parametrize("settings", [5, "abc", [("retentionBytes", 1)]])
async def test_settings_that_are_no_mapping_are_refused_in_words(cluster, settings):
    for call in (cluster.create("g", settings=settings), cluster.alter("g", settings)):
        with pytest.raises(UnexpectedArgumentError, match="settings are a mapping of keys"):
            await call


@pytest.mark.parametrize("settings", [{"deleteWhen": "\udcff"}, {"\udcff": 1}])
async def test_settings_that_are_not_valid_unicode_are_refused_with_their_key(cluster, settings):
    for call in (cluster.create("g", settings=settings), cluster.alter("g", settings)):
        with pytest.raises(UnexpectedArgumentError, match=r"of key '(deleteWhen|\\udcff)'"):
            await call
    with pytest.raises(UnexpectedArgumentError, match=r"of key '\\udcff'"):
        await cluster.alter("g", unset=["\udcff"])


@pytest.mark.parametrize("settings", [None, {}])
async def test_a_change_that_changes_nothing_is_refused(cluster, settings):
    with pytest.raises(UnexpectedArgumentError, match="names a key to change"):
        await cluster.alter("g", settings)


class Found(Groups):
    """Nodes that are found from n0 on; those in `gone` do not answer."""

    def __init__(self):
        metadata = SimpleNamespace(addresses=lambda: [NODES["n0"]])
        super().__init__(requester=SimpleNamespace(metadata=metadata))
        self.members, self.gone, self.asked = dict(NODES), set(), []

    async def _node_at(self, address, request):
        node_id = next(one for one, its in NODES.items() if its == address)
        self.asked.append(node_id)
        if node_id in self.gone:
            raise NetworkError("no answer")
        info = GroupInfo(
            "g", b"i" * 16, "HOSTED", self.members, {}, "n0", 1, 9, False, {}, 0, 0, 0, False, ""
        )
        return NodeGroups(node_id, address, 1, 100, groups=[info])

    async def find(self):
        self.asked = []
        return {node.node_id: node.error for node in await self.nodes()}


@pytest.fixture
async def later(monkeypatch):
    """Return what lets time pass."""
    loop, passed_s = asyncio.get_running_loop(), [0.0]
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + passed_s[0])

    def later(seconds):
        passed_s[0] += seconds

    return later


async def test_a_node_that_is_gone_for_good_is_forgotten_after_some_time(later):
    groups = Found()
    assert await groups.find() == dict.fromkeys(NODES, "")
    del groups.members["n4"]
    groups.gone = {"n4"}
    assert (await groups.find())["n4"] == "no answer", "by its name"
    later(FORGET_S / 2)
    assert "n4" in await groups.find()
    later(FORGET_S / 2)
    await groups.find()
    assert "n4" not in await groups.find()
    assert "n4" not in groups.asked


async def test_a_node_that_answers_again_is_not_forgotten(later):
    groups = Found()
    await groups.find()
    del groups.members["n4"]
    for gone in ({"n4"}, set(), {"n4"}):
        groups.gone = gone
        assert "n4" in await groups.find()
        later(FORGET_S - 1)
    groups.gone = set()
    assert (await groups.find())["n4"] == ""


async def test_a_member_is_asked_however_long_it_is_silent(later):
    groups = Found()
    groups.gone = {"n4"}
    for _ in range(3):
        assert (await groups.find())["n4"] == "no answer"
        later(FORGET_S)


async def test_too_few_nodes_that_answer_are_an_error_that_may_pass(cluster):
    cluster.silent = {"n0", "n1", "n2"}
    with pytest.raises(
        NetworkError, match="replicas is 3, and 2 nodes were found; n0: no"
    ) as found:
        await cluster.create("g")
    assert found.value.outcome is Outcome.DID_NOT_HAPPEN
    with pytest.raises(UnexpectedArgumentError, match=r"2 nodes were found.*Ask for no more"):
        await cluster.create("g", replicas=6)
