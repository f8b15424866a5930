"""Settings of a group that several clients change at the same time, at several members."""

import asyncio
from random import Random
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from group_machine import ONE, Machine, Now
from quorumlog.client.groups import Groups
from quorumlog.errors import NetworkError, Outcome, RequestError
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import error_for
from quorumlog.model.group_records import GroupRecord
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
