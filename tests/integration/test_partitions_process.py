"""Real processes with cut networks between them: the majority goes on, and there is one log."""

import asyncio
import random
import time

import pytest

from integration.conftest import PATIENCE
from integration.history import Fate
from integration.network import Network, NetworkCluster, NotPermittedError
from integration.workload import Workload
from quorumlog.model.errors import RequestError

pytestmark = pytest.mark.processes

FAILOVER_SECONDS = 5.0
FLAPPING_SECONDS = 5.0
CAMPAIGN_SECONDS = PATIENCE["election_timeout_max_ms"] / 1_000 + 1.5
"""Within this, a member of a patient cluster campaigns that hears of no leader."""


@pytest.fixture
def make_cluster(tmp_path):
    """`make_cluster(count)`: a running cluster; processes and networks are removed at the end."""
    made = []

    def make(count=3, **group_options):
        network = Network([f"n{number}" for number in range(count)])
        made.append(network)
        try:
            network.make()
        except NotPermittedError as error:
            pytest.skip(f"network namespaces cannot be made here: {error}")
        cluster = NetworkCluster(tmp_path, network, **group_options)
        made.append(cluster)
        cluster.up()
        return cluster

    try:
        yield make
    finally:
        for one in reversed(made):
            one.down() if isinstance(one, NetworkCluster) else one.remove()


async def leader_among(load, cluster, node_ids, seconds=60.0):
    """Wait until exactly one of these nodes leads, of the highest term; return (id, term, when)."""
    addresses = [cluster.addresses[node_id] for node_id in node_ids]
    async with load.client(addresses) as client, asyncio.timeout(seconds):
        while True:
            found = {s.node_id: s for s in await client.status() if s.node_id in node_ids}
            leading = [s for s in found.values() if s.role == "LEADER"]
            if len(leading) == 1 and leading[0].term == max(s.term for s in found.values()):
                return leading[0].node_id, leading[0].term, time.monotonic()
            await asyncio.sleep(0.01)


def others(cluster, *node_ids):
    return [node_id for node_id in cluster.node_ids if node_id not in node_ids]


async def elected_by_majority(load, cluster, majority, what):
    """A leader among these nodes, and acknowledgements, in time after the cut just made."""
    started = time.monotonic()
    _, _, when = await leader_among(load, cluster, majority)
    elected = when - started
    await load.acknowledged_after()
    acknowledged = time.monotonic() - started
    print(f"{what}: new leader after {elected:.2f} s, acknowledgement after {acknowledged:.2f} s")
    assert elected < FAILOVER_SECONDS
    assert acknowledged < 2 * FAILOVER_SECONDS


async def test_an_isolated_leader_is_replaced_and_serves_nothing_stale(make_cluster):
    cluster = make_cluster()
    async with Workload(cluster.servers) as load:
        await load.acknowledged_after(50, seconds=40)
        leader, _, _ = await leader_among(load, cluster, cluster.node_ids)
        address = cluster.addresses[leader]
        async with load.client(address) as alone, load.client(address) as appender:
            assert (await load.recorder.append(appender, b"before")).fate is Fate.ACKNOWLEDGED
            await load.recorder.bound(alone, "before", leader_only=False)
            cluster.network.split([leader], others(cluster, leader))
            pending = asyncio.ensure_future(load.recorder.append(appender, b"to the isolated"))
            majority = others(cluster, leader)
            await elected_by_majority(load, cluster, majority, "isolated leader")
            lonely = await pending
            print(f"an append to the isolated leader: {lonely.fate.value} {lonely.error}")
            newest = await load.acknowledged_after(50)
            with pytest.raises(RequestError):
                await load.recorder.bound(alone, "isolated", leader_only=False)
            cluster.network.heal()
            async with asyncio.timeout(30):
                while True:
                    try:
                        bound = await load.recorder.bound(alone, "healed", leader_only=False)
                    except RequestError:
                        continue
                    assert bound.index >= newest.index
                    break
        await load.verify()


@pytest.mark.parametrize("direction", ["sends", "receives"])
async def test_a_leader_cut_one_way_is_replaced(make_cluster, direction):
    cluster = make_cluster()
    async with Workload(cluster.servers) as load:
        await load.acknowledged_after(50, seconds=40)
        leader, _, _ = await leader_among(load, cluster, cluster.node_ids)
        for other in others(cluster, leader):
            pair = (leader, other) if direction == "receives" else (other, leader)
            cluster.network.cut(*pair)
        what = f"the leader only {direction}"
        await elected_by_majority(load, cluster, others(cluster, leader), what)
        await load.acknowledged_after(50)
        cluster.network.heal()
        await load.acknowledged_after(50)
        await load.verify()


async def test_a_follower_that_only_misses_the_leader_disturbs_nobody(make_cluster):
    """It hears the other follower, who hears the leader: no election, no pause."""
    cluster = make_cluster(**PATIENCE)  # a busy machine has no elections of its own
    async with Workload(cluster.servers) as load:
        await load.acknowledged_after(50, seconds=40)
        leader, term, _ = await leader_among(load, cluster, cluster.node_ids)
        cut_off = others(cluster, leader)[0]
        cluster.network.cut(leader, cut_off)
        started = time.monotonic()
        while time.monotonic() - started < CAMPAIGN_SECONDS:
            await load.acknowledged_after(20)
        assert (await leader_among(load, cluster, others(cluster, cut_off)))[:2] == (leader, term)
        cluster.network.heal()
        await load.verify()
        now = await leader_among(load, cluster, cluster.node_ids)
        assert now[:2] == (leader, term)


async def test_the_larger_half_of_five_goes_on(make_cluster):
    cluster = make_cluster(5)
    async with Workload(cluster.servers) as load:
        await load.acknowledged_after(50, seconds=40)
        leader, _, _ = await leader_among(load, cluster, cluster.node_ids)
        smaller = [leader, others(cluster, leader)[0]]
        larger = others(cluster, *smaller)
        cluster.network.split(smaller, larger)
        await elected_by_majority(load, cluster, larger, "two of five with the leader cut off")
        await load.acknowledged_after(50)
        cluster.network.heal()
        await load.acknowledged_after(50)
        await load.verify()


async def until_nobody_leads(client, seconds=60.0):
    async with asyncio.timeout(seconds):
        while True:
            if not any(status.role == "LEADER" for status in await client.status()):
                return
            await asyncio.sleep(0.05)


async def test_nobody_reaches_anybody_and_then_all_do(make_cluster):
    cluster = make_cluster()
    async with Workload(cluster.servers) as load:
        await load.acknowledged_after(50, seconds=40)
        cluster.network.split(*([node_id] for node_id in cluster.node_ids))
        async with load.client() as client:
            await until_nobody_leads(client)
            refused = await load.recorder.append(client, b"to nobody")
            assert refused.fate is Fate.FAILED
        cluster.network.heal()
        await elected_by_majority(load, cluster, cluster.node_ids, "all healed")
        await load.acknowledged_after(50)
        await load.verify()


async def test_flapping_links(make_cluster):
    generator = random.Random(104)
    cluster = make_cluster()
    async with Workload(cluster.servers) as load:
        await load.acknowledged_after(50, seconds=40)
        started, cuts = time.monotonic(), 0
        while time.monotonic() - started < FLAPPING_SECONDS:
            for pair in cluster.network.pairs():
                if generator.random() < 0.3:
                    cluster.network.cut(*pair)
                    cuts += 1
                else:
                    cluster.network.join(*pair)
            await asyncio.sleep(generator.uniform(0.1, 0.7))  # how long these links last
        cluster.network.heal()
        await elected_by_majority(load, cluster, cluster.node_ids, f"after {cuts} cuts")
        await load.verify(least=50)
        print(f"{load.history.fates()}, at most {load.history.longest_stall_s():.2f} s")
