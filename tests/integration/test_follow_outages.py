"""Followers ride out outages of every kind: no gap, nothing doubled, no error."""

import asyncio
import contextlib

import pytest

from integration.conftest import DATA_FILE_BYTES, SMALL_LIMITS
from integration.following import TIMEOUT_MS, Following
from integration.network import Network, NetworkCluster, NotPermittedError
from quorumlog.client import KV, Client, EventsForgottenError
from quorumlog.local import LocalCluster
from quorumlog.model.errors import IndexRemovedError, QuorumlogError, UnexpectedArgumentError
from quorumlog.model.limits import Limits
from scripted_cluster import metadata_of
from small_files import SMALL_FILES

pytestmark = pytest.mark.processes

OUTAGE_S = 4.0
"""How long nodes are gone; beyond every election and heartbeat."""
FREEZE_S = 6.0
"""A leader that stands still for longer than its followers, and a client's connection, wait."""


@contextlib.contextmanager
def kv_cluster_in(directory, groups):
    made = LocalCluster.create(
        directory,
        groups=groups,
        state_machine="kv",
        data_file_bytes=DATA_FILE_BYTES,
        index_file_bytes=SMALL_FILES["mapped_file_size_for_entry_index"],
        limits=Limits(**SMALL_LIMITS),
    )
    made.up()
    try:
        yield made
    finally:
        for node_id in made.running():
            made.resume(node_id)
        made.down()


@pytest.fixture
def kv_cluster(tmp_path):
    with kv_cluster_in(tmp_path / "cluster", ("g",)) as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A cluster that has a group for each outage."""
    directory = tmp_path_factory.mktemp("shared") / "cluster"
    with kv_cluster_in(directory, tuple(outage.__name__ for outage in OUTAGES)) as made:
        yield made


async def gone(cluster, node_ids, seconds=OUTAGE_S):
    """Kill nodes at the same time, and start them after a while."""
    for node_id in node_ids:
        await asyncio.to_thread(cluster.kill, node_id)
    await asyncio.sleep(seconds)
    for node_id in node_ids:
        await asyncio.to_thread(cluster.start, node_id)


async def all_killed(cluster, group):
    await gone(cluster, cluster.node_ids)


async def leader_killed(cluster, group):
    await gone(cluster, [await asyncio.to_thread(cluster.leader, group)])


async def majority_killed(cluster, group):
    leader = await asyncio.to_thread(cluster.leader, group)
    other = next(node_id for node_id in cluster.node_ids if node_id != leader)
    await gone(cluster, [leader, other])


async def leader_frozen(cluster, group):
    leader = await asyncio.to_thread(cluster.leader, group)
    cluster.pause(leader)
    await asyncio.sleep(FREEZE_S)
    cluster.resume(leader)


async def followers_frozen(cluster, group):
    leader = await asyncio.to_thread(cluster.leader, group)
    others = [node_id for node_id in cluster.node_ids if node_id != leader]
    for node_id in others:
        cluster.pause(node_id)
    await asyncio.sleep(FREEZE_S)
    for node_id in others:
        cluster.resume(node_id)


async def killed_behind_snapshots(cluster, group):
    """What was applied is in snapshots only, when all nodes come back."""
    async with Client(cluster.servers, group, timeout_ms=TIMEOUT_MS) as client:
        await client.admin.save_snapshot()
    await all_killed(cluster, group)


OUTAGES = (
    all_killed,
    leader_killed,
    majority_killed,
    leader_frozen,
    followers_frozen,
    killed_behind_snapshots,
)


@pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: outage.__name__)
async def test_followers_ride_out(shared, outage):
    async with Following(shared.servers, outage.__name__) as load:
        await load.under_way()
        await outage(shared, outage.__name__)
        await load.verify()


@pytest.mark.parametrize("cut", ["the leader", "everybody"])
async def test_followers_ride_out_a_network_that_takes_everything(tmp_path, cut):
    network = Network(["n0", "n1", "n2"])
    cluster = None
    try:
        try:
            network.make()
        except NotPermittedError as error:
            pytest.skip(f"network namespaces cannot be made here: {error}")
        cluster = NetworkCluster(tmp_path, network, state_machine="kv")
        cluster.up()
        async with Following(cluster.servers) as load:
            await load.under_way()
            async with Client(cluster.servers, "g", timeout_ms=TIMEOUT_MS) as client:
                await client.bounds()
                leader = (await metadata_of(client).leader()).node_id
            node_ids = cluster.node_ids if cut == "everybody" else [leader]
            for node_id in node_ids:
                network.unplug(node_id)
            await asyncio.sleep(FREEZE_S)
            for node_id in node_ids:
                network.plug(node_id)
            await load.verify()
    finally:
        if cluster is not None:
            cluster.down()
        network.remove()


async def test_a_follower_whose_entries_are_removed_is_told(kv_cluster):
    """In an outage, or while it was busy: it must neither wait for ever nor skip them."""
    async with Client(kv_cluster.servers, "g", timeout_ms=TIMEOUT_MS) as client:
        kv = KV(client)
        await kv.put("key", "first")
        entries, events = client.read(include_all=True), kv.watch(first_index=0)
        first, _ = await anext(entries), await anext(events)
        for node_id in kv_cluster.node_ids:  # each saves snapshots, and removes, by itself
            with contextlib.suppress(UnexpectedArgumentError):  # it leads already
                await client.admin.transfer(node_id)
            await removed(client, kv, first.index + 1)
        await all_killed(kv_cluster, "g")
        with pytest.raises(IndexRemovedError, match="below the first index kept"):
            await asyncio.wait_for(anext(client.read(first.index + 1)), 60)
        # what was fetched before is still good; behind it comes the error, not a later entry
        error = await asyncio.wait_for(end_of(entries, first.index + 1), 60)
        assert isinstance(error, IndexRemovedError)
        # a key-value machine keeps its changes beside the log
        async with asyncio.timeout(60):
            found = [(await anext(events)).key for _ in range(64)]
        assert found == [b"key %d" % number for number in range(64)]


async def removed(client, kv, index):
    """Write and save snapshots until the leader does not have an entry any more."""
    async with asyncio.timeout(60):
        while (await client.bounds())[0] <= index:
            for number in range(64):
                await kv.put(f"key {number}", bytes(20_000))
            await client.admin.save_snapshot()


async def end_of(entries, index):
    """Read on without a gap until an error; return it."""
    try:
        async for entry in entries:
            assert entry.index == index, "entries are missing"
            index += 1
    except QuorumlogError as error:
        return error


def test_changes_forgotten_are_an_index_removed():
    """So that whoever follows either catches one kind."""
    assert issubclass(EventsForgottenError, IndexRemovedError)
