"""Settings of a group that several clients change at the same time, at several members."""

import asyncio
from random import Random
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from group_machine import ONE, Machine, Now
from quorumlog.client.group_alteration import Alteration
from quorumlog.client.group_answers import NodeGroups
from quorumlog.client.groups import Groups
from quorumlog.errors import NetworkError, Outcome, RequestError
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import UnexpectedArgumentError, error_for
from quorumlog.model.group_records import GroupRecord
from quorumlog.model.messages.groups import AlterGroupRequest, AlterGroupResponse, GroupInfo
from quorumlog.service.groups import answer_groups_request

IDS = ["n0", "n1", "n2"]
ADDRESSES = {node_id: f"127.0.0.1:710{number + 1}" for number, node_id in enumerate(IDS)}
PEERS = ";".join(f"{node_id}-{address}" for node_id, address in ADDRESSES.items())
KEYS = ["cleanInterval", "retentionBytes", "fileReservedHours", "snapshotBytes", "peerPushQuota"]


class Turns(Now):
    """Once it is slow, does work in later turns of the loop: other requests come in between."""

    def __init__(self, random):
        self.random = random
        self.is_slow = False

    def run(self, work, done, failed, client=None):
        async def later():
            await turns(self.random)
            done(work())

        if self.is_slow:
            self.task = asyncio.ensure_future(later())
        else:
            super().run(work, done, failed)


async def turns(random):
    for _ in range(random.randrange(6)):
        await asyncio.sleep(0)


class Members:
    """Three nodes that have the group, and a network that loses some of what is sent."""

    def __init__(self, random, *, lost=0.0):
        self.random, self.lost = random, lost
        self.odd = {}
        self.nodes = {}
        for node_id in IDS:
            machine = Machine(executor=Turns(random))
            record = GroupRecord(group="g", identity=ONE, peers=PEERS)
            machine.lifecycle.create(record, lambda code, text: None)
            machine.executor.is_slow = True
            self.nodes[ADDRESSES[node_id]] = SimpleNamespace(
                config=SimpleNamespace(
                    self_id=node_id,
                    cluster="",
                    limits=machine.config.limits,
                ),
                catalog=machine.catalog,
                replicas={},
                failed_groups={},
                own_address=ADDRESSES[node_id],
                hosting=SimpleNamespace(lifecycle=machine.lifecycle),
            )

    async def ask(self, address, request):
        await turns(self.random)
        if self.random.random() < self.lost:
            raise NetworkError("the request is lost")
        if address in self.odd and isinstance(request, AlterGroupRequest):
            raise self.odd[address]
        answered = asyncio.get_running_loop().create_future()

        def said(response):
            if not answered.done():  # else whoever asked has died
                answered.set_result(response)

        answer_groups_request(self.nodes[address], request, said)
        answer = await answered
        await turns(self.random)
        if self.random.random() < self.lost:
            raise NetworkError("the answer is lost")
        if answer.code != ResponseCode.SUCCESS:
            raise error_for(answer.code, answer.text)
        return answer

    def refuses(self, node_id, error):
        """A member answers every request that changes something with an error."""
        self.odd[ADDRESSES[node_id]] = error

    def records(self):
        return {node.config.self_id: node.catalog.records["g"] for node in self.nodes.values()}

    def learn(self, giver, taker):
        """One member tells another what it has, as they do now and then."""
        record = self.nodes[ADDRESSES[giver]].catalog.records["g"]
        self.nodes[ADDRESSES[taker]].hosting.lifecycle.learn(record, lambda code, text: None)


class Client(Groups):
    def __init__(self, members):
        super().__init__(
            SimpleNamespace(
                metadata=SimpleNamespace(addresses=lambda: list(ADDRESSES.values())),
                limit_ms=lambda timeout_ms: 30_000,
            )
        )
        self.members = members

    async def _ask(self, address, request, kind):
        return await self.members.ask(address, request)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    no_pause = SimpleNamespace(next_pause_s=lambda: 0)
    monkeypatch.setattr("quorumlog.client.groups.Backoff", lambda generator: no_pause)


async def test_two_changes_of_different_settings_at_the_same_time_both_hold():
    members = Members(Random(1))
    await asyncio.gather(
        Client(members).alter("g", {"cleanInterval": 60}),
        Client(members).alter("g", {"retentionBytes": 70}),
    )
    await settled(members)
    for record in members.records().values():
        assert record.settings == {"cleanInterval": "60", "retentionBytes": "70"}


async def settled(members):
    """Let the members tell each other what they have until nothing is new."""
    for _ in range(4):
        for giver in IDS:
            for taker in IDS:
                members.learn(giver, taker)
                for _ in range(20):
                    await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(60))
async def test_what_is_acknowledged_holds_and_what_is_refused_does_not(seed):
    """Requests and answers are lost, clients die in the midst of a change, members gossip."""
    random = Random(seed)
    members = Members(random, lost=random.choice([0, 0.1, 0.3]))
    held, refused = {}, set()

    async def change(key):
        for _ in range(3):
            value = f"{1_000_000 + random.randrange(1 << 20)}"
            try:
                await Client(members).alter("g", {key: value})
            except RequestError as error:
                held.pop(key, None)
                if error.outcome is Outcome.DID_NOT_HAPPEN:
                    refused.add((key, value))
            else:
                held[key] = value

    async def gossip():
        while True:
            await turns(random)
            await asyncio.sleep(0)
            members.learn(*random.sample(IDS, 2))

    async def die(task):
        for _ in range(random.randrange(100)):
            await asyncio.sleep(0)
        task.cancel()

    talking = asyncio.ensure_future(gossip())
    changing = [asyncio.ensure_future(change(key)) for key in KEYS]
    await die(changing[0])
    await asyncio.gather(*changing, return_exceptions=True)
    talking.cancel()
    held.pop(KEYS[0], None)  # it was changing when its client died
    await settled(members)
    records = members.records()
    assert len({record.revision for record in records.values()}) == 1
    settings = records["n0"].settings
    assert held.items() <= settings.items()
    assert not refused & set(settings.items())


async def test_a_change_that_others_always_come_before_is_refused_and_not_made():
    members = Members(Random(3))
    client = Client(members)
    client._requester.limit_ms = lambda timeout_ms: 0
    for node in members.nodes.values():
        node.catalog.promised(replace(node.catalog.records["g"], promised=1 << 50))
    with pytest.raises(RequestError, match="others change the settings") as refused:
        await client.alter("g", {"cleanInterval": 60})
    assert refused.value.code is ResponseCode.CHANGE_IN_PROGRESS
    assert refused.value.outcome is Outcome.DID_NOT_HAPPEN


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (ResponseCode.UNKNOWN_GROUP, "n2 has no group 'g'"),
        (ResponseCode.DISK_FULL, "no space left"),
        (ResponseCode.DISK_ERROR, "the disk does not answer"),
        (ResponseCode.WRONG_CLUSTER, "group 'g' has another identity here"),
    ],
)
async def test_a_member_that_cannot_take_a_change_does_not_keep_the_others_from_it(code, text):
    members = Members(Random(4))
    members.refuses("n2", error_for(code, text))
    change = await Client(members).alter("g", {"cleanInterval": 60})
    assert (change.nodes, change.pending) == (["n0", "n1"], {"n2": text})
    assert members.records()["n0"].settings == {"cleanInterval": "60"}


async def test_a_value_that_one_member_finds_wrong_is_changed_nowhere():
    members = Members(Random(4))
    members.refuses("n2", error_for(ResponseCode.UNEXPECTED_ARGUMENT, "no key 'cleanInterval'"))
    with pytest.raises(RequestError, match="n2: no key 'cleanInterval'; nothing is changed"):
        await Client(members).alter("g", {"cleanInterval": 60})
    assert not any(record.settings for record in members.records().values())


async def test_a_change_that_most_members_cannot_take_is_refused_with_what_they_say():
    members = Members(Random(4))
    members.refuses("n1", error_for(ResponseCode.DISK_FULL, "no space left"))
    members.refuses("n2", NetworkError("it does not answer"))
    with pytest.raises(RequestError, match="n1: no space left; n2: it does not") as refused:
        await Client(members).alter("g", {"cleanInterval": 60})
    assert refused.value.code is ResponseCode.DISK_FULL
    assert refused.value.outcome is Outcome.DID_NOT_HAPPEN


def info(node_id, peers, **fields):
    """What one node says of group g. Unless given otherwise it follows nobody in term 1."""
    known = {
        "group": "g",
        "identity": ONE,
        "state": "HOSTED",
        "peers": peers,
        "founders": {},
        "leader_id": None,
        "term": 1,
        "end_index": 5,
        "is_from_file": False,
        "settings": {},
        "revision": 0,
        "made_ms": 0,
        "deleted_ms": 0,
        "purged": False,
        "text": "",
        **fields,
    }
    return NodeGroups(node_id, ADDRESSES.get(node_id, ""), 1, 9, groups=[GroupInfo(**known)])


class Asked:
    """Members that all take what they are asked to, but those that `refuse`."""

    def __init__(self, refuse=()):
        self.refuse = refuse
        self.asked = []

    async def __call__(self, members, request):
        self.asked.append(dict(members))
        lost = NetworkError("it does not answer")
        return {
            node_id: lost if node_id in self.refuse or not at else AlterGroupResponse()
            for node_id, at in members.items()
        }


async def test_an_attempt_after_one_that_reached_a_member_does_not_say_that_nothing_is_changed():
    rival = error_for(ResponseCode.CHANGE_IN_PROGRESS, "somebody else")
    lost = NetworkError("it does not answer")
    rounds = [[None] * 3, [None, rival, rival], [None, lost, lost]]

    async def ask(members, request):
        told = rounds.pop(0)
        return {one: why or AlterGroupResponse() for one, why in zip(IDS, told, strict=True)}

    nodes = [info(node_id, ADDRESSES) for node_id in IDS]
    alteration = Alteration("g", {"retentionBytes": "7"}, (), ask)
    assert await alteration.attempt(nodes) is None
    with pytest.raises(NetworkError) as refused:
        await alteration.attempt(nodes)
    assert "some members may have the new settings" in str(refused.value)
    assert "nothing is changed" not in str(refused.value)


async def test_the_members_are_those_that_the_newest_term_knows_not_the_newest_settings():
    """n0 was removed while it was away, with the newest settings; n3 took its place."""
    former = dict(ADDRESSES)
    present = {"n1": ADDRESSES["n1"], "n2": ADDRESSES["n2"], "n3": "127.0.0.1:7104"}
    newest = {"settings": {"cleanInterval": "70"}, "revision": 9 << 32}
    nodes = [
        info("n0", former, leader_id="n0", term=3, end_index=90, **newest),
        info("n1", present, leader_id="n2", term=4, end_index=50),
        info("n2", present, leader_id="n2", term=4, end_index=60),
    ]
    ask = Asked()
    change = await Alteration("g", {"retentionBytes": "7"}, (), ask).attempt(nodes)
    assert [sorted(members) for members in ask.asked] == [["n1", "n2", "n3"]] * 2
    assert change.nodes == ["n1", "n2", "n3"]


async def test_a_leader_knows_members_that_a_follower_of_its_term_does_not():
    behind = {"n0": ADDRESSES["n0"], "n1": ADDRESSES["n1"]}
    nodes = [
        info("n1", behind, leader_id="n0", term=2, end_index=9),
        info("n0", ADDRESSES, leader_id="n0", term=2, end_index=9),
    ]
    ask = Asked()
    await Alteration("g", {"retentionBytes": "7"}, (), ask).attempt(nodes)
    assert sorted(ask.asked[0]) == IDS


async def test_members_whose_address_is_not_known_count_in_the_majority():
    peers = {**ADDRESSES, "n3": "", "n4": ""}
    nodes = [info("n0", peers, leader_id="n0"), info("n1", peers)]
    ask = Asked(refuse=["n2"])
    with pytest.raises(NetworkError, match="no majority"):
        await Alteration("g", {"retentionBytes": "7"}, (), ask).attempt(nodes)
    change = await Alteration("g", {"retentionBytes": "7"}, (), Asked()).attempt(nodes)
    assert change.nodes == IDS
    assert sorted(change.pending) == ["n3", "n4"]


async def test_a_majority_is_one_of_the_voters_and_while_they_change_of_both_sets():
    peers = {f"n{number}": f"127.0.0.1:{number}" for number in range(5)}
    learners_lost = Asked(refuse=["n3", "n4"])
    nodes = [info("n0", peers, leader_id="n0", voters=[["n0", "n1", "n2"]])]
    change = await Alteration("g", {"logLevel": "DEBUG"}, (), learners_lost).attempt(nodes)
    assert sorted(change.pending) == ["n3", "n4"]
    joint = [["n0", "n1", "n2"], ["n2", "n3", "n4"]]
    nodes = [info("n0", peers, leader_id="n0", voters=joint)]
    with pytest.raises(NetworkError, match="no majority"):
        await Alteration("g", {"logLevel": "DEBUG"}, (), learners_lost).attempt(nodes)


async def test_of_two_groups_of_one_name_the_one_that_is_named_is_changed():
    other = {"n5": "127.0.0.1:7106"}
    nodes = [info("n0", ADDRESSES, leader_id="n0"), info("n5", other, identity=b"2" * 16, term=9)]
    with pytest.raises(RequestError, match="several groups 'g'"):
        await Alteration("g", {"logLevel": "DEBUG"}, (), Asked()).attempt(nodes)
    ask = Asked()
    await Alteration("g", {"logLevel": "DEBUG"}, (), ask, identity=ONE.hex()).attempt(nodes)
    assert sorted(ask.asked[0]) == IDS


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("retentionByte", "unknown key `retentionByte` in .*; did you mean retentionBytes?"),
        ("retentionBytes", "retentionBytes of group 'g' was not set while nodes ran; nothing to"),
    ],
)
def test_a_key_that_cannot_be_unset_is_said_to_be_unknown_or_not_set(key, said):
    with pytest.raises(UnexpectedArgumentError, match=said):
        Alteration("g", {}, [key], ask=None)._wanted({})
