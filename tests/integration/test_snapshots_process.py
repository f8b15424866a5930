"""Bits that rot in a node's snapshots: it repairs itself from others, its own or its peers'.

The node is killed, so that it must load one: its state is not kept then.
"""

import asyncio

import pytest

from quorumlog import KV, Client
from quorumlog.local import LocalCluster

pytestmark = pytest.mark.processes

VICTIM = "n1"
KEYS = 60
SECONDS = 30.0
SETTINGS = {"snapshotThreshold": 12, "followerRetentionBytes": 0}


@pytest.fixture
def cluster(tmp_path):
    made = LocalCluster.create(tmp_path / "cluster", groups=("g",), state_machine="kv")
    for path in (tmp_path / "cluster").glob("n*.toml"):
        lines = path.read_text().splitlines()
        keys = {line.partition(" = ")[0]: line for line in lines}
        changed = {keys[key]: f"{key} = {value}" for key, value in SETTINGS.items()}
        path.write_text("\n".join(changed.get(line, line) for line in lines) + "\n")
    made.up()
    yield made
    made.down()


def snapshots(cluster):
    directory = cluster.group_directory(VICTIM, "g") / "snapshot"
    return sorted(directory.glob("snapshot_*"))


def flip_a_bit(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


async def until(happens, what):
    """Wait until a coroutine function says yes; between two looks it waits for a node's answer."""
    try:
        async with asyncio.timeout(SECONDS):
            while not await happens():
                pass
    except TimeoutError:
        raise AssertionError(f"{what} did not come about in {SECONDS} s") from None


@pytest.mark.parametrize("broken", [1, 2, 3])
async def test_a_killed_node_heals_from_the_newest_whole_snapshot(cluster, broken):
    async with Client(cluster.servers, "g", timeout_ms=20_000) as client:
        kv = KV(client)
        for number in range(KEYS):
            await kv.put(f"{number:02}", f"value {number}")

        stored = max(status.committed_index for status in await client.status())

        async def has_three():
            (status,) = [s for s in await client.status() if s.node_id == VICTIM]
            # no further snapshot is due: it would be whole, and make the oldest of three go
            last_due = stored - SETTINGS["snapshotThreshold"]
            has_all = status.applied_index >= stored and status.snapshot_index > last_due
            return has_all and len(snapshots(cluster)) == 3

        await until(has_three, "three snapshots")
    await asyncio.to_thread(cluster.kill, VICTIM)
    started = cluster.log_file(VICTIM).stat().st_size
    damaged = snapshots(cluster)[-broken:]
    for path in damaged:
        flip_a_bit(path)
    await asyncio.to_thread(cluster.start, VICTIM)
    async with Client(cluster.address(VICTIM), "g", timeout_ms=20_000) as client:

        async def is_ready():
            (status,) = [s for s in await client.status() if s.node_id == VICTIM]
            is_whole = status.healthy and status.install_state == "ready"
            return is_whole and status.applied_index >= stored

        await until(is_ready, "the node is whole again")
        items = {item.key: item.value async for item in KV(client).scan(linearizable=False)}
        assert items == {b"%02d" % n: b"value %d" % n for n in range(KEYS)}
    said = cluster.log_file(VICTIM).read_text()[started:]
    assert all(path.name in said for path in damaged), "each is named"
    if broken == 3:  # the leader may offer its own before peers are asked, if its log begins later
        assert "peers are asked for a snapshot" in said or "installing a snapshot" in said
    else:
        assert "peers are asked for a snapshot" not in said
