"""Every damage to the files of a stopped key-value replica: it repairs itself, and never
answers anything but what was put.
"""

import asyncio
from pathlib import Path

import pytest

from quorumlog import KV

KEYS = 40
MACHINE = ["state.mdb", "closed", "state.mdb-lock"]
VALUE = b"a value that is easily found %02d"


def flipped(data, at):
    place = int(at * (len(data) - 1))
    return data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :]


def zeroed(data, at):
    sector = int(at * (len(data) - 1)) // 512 * 512
    return data[:sector] + bytes(len(data[sector : sector + 512])) + data[sector + 512 :]


HOW = {
    "flipped at the start": lambda data: flipped(data, 0),
    "flipped in a meta page": lambda data: flipped(data, 0.004),
    "flipped in the middle": lambda data: flipped(data, 0.5),
    "flipped at the end": lambda data: flipped(data, 1),
    "a sector zeroed": lambda data: zeroed(data, 0.5),
    "the last sector zeroed": lambda data: zeroed(data, 1),
    "halved": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
    "deleted": lambda data: None,
}


def directory(cluster, node_id, name):
    return Path(cluster.configs[node_id].store_base_dir) / "g" / name


async def fill(cluster, first=0):
    async with cluster.client() as client:
        kv = KV(client)
        for number in range(first, first + KEYS):
            await kv.put(b"%02d" % number, VALUE % number)


async def read_all(cluster, count=KEYS):
    async with cluster.client() as client:
        kv = KV(client)
        found = await asyncio.gather(*(kv.get(b"%02d" % number) for number in range(count)))
        assert found == [VALUE % number for number in range(count)]
        items = {item.key: item.value async for item in kv.scan()}
        assert items == {b"%02d" % number: VALUE % number for number in range(count)}


async def all_equal(cluster, until):
    appliers = [cluster.replica(node_id).applier for node_id in cluster.ids]
    await until(lambda: all(applier.is_eligible for applier in appliers), what="all are fit")
    await until(lambda: len({applier.state.applied_index for applier in appliers}) == 1)
    assert len({applier.state.machine.digest() for applier in appliers}) == 1


def damage(path, how):
    data = HOW[how](path.read_bytes())
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)


@pytest.mark.parametrize("how", HOW)
async def test_a_machines_files_are_made_again_whatever_happens_to_them(make_cluster, until, how):
    async with make_cluster(state_machine="kv", count=1) as cluster:
        for name in MACHINE:
            await cluster.start()
            if name == MACHINE[0]:
                await fill(cluster)
            await cluster.stop()
            path = directory(cluster, "n0", "machine") / name
            if path.exists() and path.stat().st_size:
                damage(path, how)
        directory(cluster, "n0", "machine").joinpath("stray").write_bytes(b"of somebody's")
        await cluster.start()
        await read_all(cluster)


@pytest.mark.parametrize("how", HOW)
async def test_a_damaged_snapshot_heals_from_an_older_one_and_the_log(make_cluster, until, how):
    options = {"snapshot_threshold": 12, "state_machine": "kv", "count": 1}
    async with make_cluster(**options) as cluster:
        await cluster.start()
        await fill(cluster)
        applier = cluster.replica("n0").applier
        await until(lambda: not applier.snapshotter.should_save and applier.snapshotter.saved >= 3)
        assert cluster.replica("n0").log.before_begin_index >= 0, "entries are only in snapshots"
        await cluster.stop()
        damage(sorted(directory(cluster, "n0", "snapshot").iterdir())[-1], how)
        directory(cluster, "n0", "machine").joinpath("state.mdb").unlink()
        await cluster.start()
        await read_all(cluster)


async def test_a_bit_of_a_value_at_rest_is_never_served_nor_spread(make_cluster, until):
    options = {
        "snapshot_threshold": 12,
        "max_snapshot_reserved_num": 1,
        "follower_retention_bytes": 0,
        "state_machine": "kv",
        "preferred_leader_ids": "n0",
    }
    async with make_cluster(**options) as cluster:
        await cluster.start()
        await fill(cluster)
        await all_equal(cluster, until)
        await cluster.stop()
        path = directory(cluster, "n0", "machine") / "state.mdb"
        data = bytearray(path.read_bytes())
        at = data.index(VALUE % 7)
        while at >= 0:  # LMDB may have left earlier copies of a page
            data[at] ^= 1
            at = data.find(VALUE % 7, at + 1)
        path.write_bytes(data)
        await cluster.start()
        await read_all(cluster)
        await all_equal(cluster, until)
        await until(lambda: cluster.leader_id() == "n0", what="the damaged one leads again")
        await read_all(cluster)
        await cluster.stop("n2")
        await fill(cluster, KEYS)
        async with cluster.client() as client:
            await client.admin.save_snapshot()
        await cluster.start("n2")
        await read_all(cluster, 2 * KEYS)
        await all_equal(cluster, until)


async def test_a_record_that_rots_under_a_running_leader_is_not_served(make_cluster, until):
    async with make_cluster(state_machine="kv") as cluster:
        await cluster.start()
        await fill(cluster)
        leader = cluster.leader_id()
        replica = cluster.replica(leader)
        environment = replica.applier.state.machine._database.environment
        with environment.begin(write=True) as transaction:
            items = environment.open_db(b"items", transaction)
            record = bytearray(transaction.get(b"07", db=items))
            record[-1] ^= 1
            transaction.put(b"07", bytes(record), db=items)
        await read_all(cluster)
        await all_equal(cluster, until)
        assert replica.counters.machine_rebuilds == 1
