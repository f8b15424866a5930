"""What a running cluster does about full disks, old files, damage and several data paths."""

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from quorumlog.client.client import Client
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import GroupConfig
from quorumlog.model.errors import DiskFullError, IndexRemovedError, RequestError
from quorumlog.node import node as node_module
from quorumlog.node.replica.repair import Repairer
from quorumlog.storage.files.os_files import OsFileSystem, Space
from quorumlog.storage.log.layout import DATA
from quorumlog.storage.metadata.checkpoint import CHECKPOINT_NAME

DATA_FILE = 600 * 1_024


def directory_of(cluster, node_id):
    return Path(cluster.configs[node_id].store_base_dir) / "g"


def files_of(cluster, node_id):
    return sorted((directory_of(cluster, node_id) / DATA).iterdir())


def forget_checkpoint(cluster, node_id):
    """Have everything read again at the next start."""
    (directory_of(cluster, node_id) / CHECKPOINT_NAME).unlink()


def flip(path, offset):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x20]))


async def filled(client, count, size=1_000):
    """Append entries that name themselves; return the last index."""
    last = -1
    for start in range(0, count, 100):
        numbers = range(start, min(start + 100, count))
        batch = [str(number).encode().ljust(size, b".") for number in numbers]
        last = (await client.append_batch(batch)).last_index
    return last


def in_step(cluster, last):
    logs = set(cluster.logs().values())
    return len(logs) == 1 and next(iter(logs))[1] >= last


# -- damage -----------------------------------------------------------------------------------


async def test_a_linearizable_read_of_a_replica_with_damage_misses_nothing(
    make_cluster, until, monkeypatch
):
    """Not what became of transactions behind the damage, on which it depends where it ends."""
    async with make_cluster(scrub_bytes_per_second=0) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            last = await filled(client, 100)
            await until(lambda: in_step(cluster, last))
            follower = next(node for node in cluster.ids if node != cluster.leader_id())
            await cluster.stop(follower)
            forget_checkpoint(cluster, follower)
            flip(files_of(cluster, follower)[0], 1_048 * 50)
            with monkeypatch.context() as context:
                context.setattr(Repairer, "answered", lambda self, *repaired: None)
                await cluster.start(follower)
                assert cluster.replica(follower).log.damaged
                last = await filled(client, 100)
                await until(lambda: in_step(cluster, last))
                alone = {"leader_only": False, "linearizable": True}
                async with Client(cluster.addresses[follower], "g", timeout_ms=1_000) as other:
                    with pytest.raises(RequestError):
                        await other.bounds(**alone)
                    _, end = await other.bounds(**alone, isolation="read_uncommitted")
                    assert end >= last
            async with Client(cluster.addresses[follower], "g", timeout_ms=20_000) as other:
                _, end = await other.bounds(**alone)
                assert end >= last


async def test_replicas_with_damage_in_different_places_heal_one_another(make_cluster, until):
    """RELIABILITY 2.3 rule 3."""
    async with make_cluster(scrub_bytes_per_second=0) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            last = await filled(client, 300)
            await until(lambda: in_step(cluster, last))
        await cluster.stop()
        pristine = files_of(cluster, "n0")[0].read_bytes()
        for number, node_id in enumerate(cluster.ids):
            forget_checkpoint(cluster, node_id)
            for entry in range(5):
                flip(files_of(cluster, node_id)[0], 1_048 * (40 * number + 20 + entry) + 500)
        await cluster.start()
        await until(lambda: not any(cluster.replica(n).log.damaged for n in cluster.ids))
        for node_id in cluster.ids:
            repaired = files_of(cluster, node_id)[0].read_bytes()
            assert repaired[: 300 * 1_048] == pristine[: 300 * 1_048]
            assert cluster.replica(node_id).counters.entries_repaired == 5
        async with cluster.client() as client:
            found = [entry.body async for entry in client.read(0, follow=False)]
            assert len(found) == 300
            await client.append(b"and goes on")


async def test_74_the_scrub_finds_damage_nobody_reads_and_peers_repair_it(make_cluster, until):
    options = {"scrub_bytes_per_second": 64 << 20, "scrub_interval_hours": 0.00002}
    async with make_cluster(**options) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            last = await filled(client, 300)
            await until(lambda: in_step(cluster, last))
            await until(lambda: cluster.replica("n0").repairer.scrubber.passes > 0)
            victim = next(node for node in cluster.ids if node != cluster.leader_id())
            replica = cluster.replica(victim)
            path = files_of(cluster, victim)[0]
            before = path.read_bytes()[: 300 * 1_048]
            flip(path, 1_048 * 77 + 600)
            await until(lambda: replica.counters.entries_repaired == 1)
            await until(lambda: not replica.log.damaged)
            assert path.read_bytes()[: len(before)] == before
            assert replica.repairer.scrubber.damage_found >= 1
            passes = replica.repairer.scrubber.passes
            await until(lambda: replica.repairer.scrubber.passes > passes)
            assert replica.repairer.scrubber.last_pass_ms > 0
            (status,) = [s for s in await client.status() if s.node_id == victim]
            assert (status.healthy, status.damaged_entries, status.scrub_found) == (True, 0, 1)


async def test_a_whole_bad_file_comes_back_from_the_peers(make_cluster, until):
    options = {
        "mapped_file_size_for_entry_data": DATA_FILE,
        "scrub_bytes_per_second": 64 << 20,
        "scrub_interval_hours": 0.00002,
    }
    async with make_cluster(**options) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            last = await filled(client, 2_000)
            await until(lambda: in_step(cluster, last))
            victim = next(node for node in cluster.ids if node != cluster.leader_id())
            replica = cluster.replica(victim)
            path = files_of(cluster, victim)[1]
            before = path.read_bytes()
            path.write_bytes(random.Random(1).randbytes(len(before)))
            await until(lambda: replica.counters.entries_repaired > 500)
            await until(lambda: not replica.log.damaged)
            assert path.read_bytes()[: DATA_FILE - 2_000] == before[: DATA_FILE - 2_000]
            await client.append(b"and goes on")


async def test_a_damaged_replica_does_not_lead(make_cluster, until):
    """With its only peer down it is damaged and alone: it neither leads nor serves the entry."""
    async with make_cluster(scrub_bytes_per_second=0, count=2) as cluster:
        await cluster.start()
        async with cluster.client(timeout_ms=1_500) as client:
            last = await filled(client, 50)
            await until(lambda: in_step(cluster, last))
            await cluster.stop("n1")
            replica = cluster.replica("n0")
            flip(files_of(cluster, "n0")[0], 1_048 * 20 + 500)
            await cluster.stop("n0")
            forget_checkpoint(cluster, "n0")
            await cluster.start()
            await until(lambda: not cluster.replica("n0").log.damaged)
            replica = cluster.replica("n0")
            assert replica.counters.entries_repaired == 1
            found = [entry async for entry in client.read(0, follow=False)]
            assert len(found) == 50


# -- full disks -------------------------------------------------------------------------------


class Disks:
    """Stands in for statvfs: how many bytes are free below each node's directory."""

    def __init__(self, monkeypatch):
        self.free = {}
        monkeypatch.setattr(OsFileSystem, "space", lambda files, path: self.space(path))

    def space(self, path):
        free = next((free for name, free in self.free.items() if f"/{name}/" in path), 50 << 30)
        return Space(100 << 30, free)


@pytest.fixture
def disks(monkeypatch):
    return Disks(monkeypatch)


def refusals_of(cluster, node_id):
    return cluster.replica(node_id).counters.appends_refused.get("DISK_FULL", 0)


async def test_68_a_full_disk_refuses_appends_serves_reads_and_recovers(make_cluster, until, disks):
    async with make_cluster(clean_interval=50) as cluster:
        await cluster.start()
        async with cluster.client() as client, cluster.client(timeout_ms=2_000) as hasty:
            last = await filled(client, 100)
            disks.free = dict.fromkeys(cluster.ids, 1 << 20)
            for node_id in cluster.ids:
                space = cluster.replica(node_id).maintenance.space
                await until(lambda space=space: space.disk.full_text)
            with pytest.raises(DiskFullError, match="is used to"):
                await hasty.append(b"no room")
            assert len([entry async for entry in client.read(0, follow=False)]) == 100
            # it need not be the first: that hands over to one that takes itself to have room yet
            leader = cluster.leader_id()
            refused = {node_id: refusals_of(cluster, node_id) for node_id in cluster.ids}
            # elections go on: a new leader appends its NOOP from the reserve
            await cluster.stop(leader)
            await until(lambda: cluster.leader_id() not in (None, leader))
            new = cluster.leader_id()
            await until(lambda: cluster.replica(new).core.committed_index > last)
            assert refusals_of(cluster, new) == refused[new]
            with pytest.raises(DiskFullError):
                await hasty.append(b"still no room")
            disks.free = {}
            await until(lambda: not cluster.replica(new).maintenance.space.disk.full_text)
            assert (await client.append(b"room again")).index > last


async def test_68_a_full_follower_waits_and_catches_up(make_cluster, until, disks):
    """It fills the files that it has made, and makes no more."""
    options = {"mapped_file_size_for_entry_data": DATA_FILE, "clean_interval": 50}
    async with make_cluster(max_push_time_out_ms=100, **options) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            await filled(client, 50)
            victim = next(node for node in cluster.ids if node != cluster.leader_id())
            disks.free = {victim: 1 << 20}
            await until(lambda: cluster.replica(victim).maintenance.space.disk.full_text)
            for _ in range(4):
                last = await filled(client, 50, size=DATA_FILE // 100)
            assert cluster.replica(victim).log.end_index < last
            assert not cluster.nodes[victim].failure.done()
            leader = cluster.replica(cluster.leader_id())
            refused = f"{victim} has no room for more entries"
            await until(lambda: any(refused in text for _, text in leader.core.history.lines()))
            assert not leader.counters.alarms
            disks.free = {}
            await until(lambda: in_step(cluster, last))


# -- retention --------------------------------------------------------------------------------


async def test_67_old_files_go_begin_moves_and_readers_are_told(make_cluster, until):
    options = {
        "mapped_file_size_for_entry_data": DATA_FILE,
        "retention_bytes": 2 * DATA_FILE,
        "clean_interval": 50,
    }
    async with make_cluster(**options) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            last = await filled(client, 3_000)
            await until(lambda: in_step(cluster, last))
            for node_id in cluster.ids:
                replica = cluster.replica(node_id)
                await until(lambda r=replica: r.log.size_bytes <= 3 * DATA_FILE)
                assert replica.log.before_begin_index > 0
                await until(lambda n=node_id: int(files_of(cluster, n)[0].name) > 0)
                assert replica.counters.segments_removed > 0
            first, committed = await client.bounds()
            assert first > 0
            with pytest.raises(IndexRemovedError, match=f"the first index kept, {first}") as caught:
                await client.get(0)
            assert caught.value.code is ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN
            found = [entry.index async for entry in client.read("earliest", follow=False)]
            assert found[0] >= first
            assert found[-1] == committed
        before = {n: cluster.replica(n).log.before_begin_index for n in cluster.ids}
        await cluster.stop()
        await cluster.start()
        for node_id, kept in before.items():
            assert cluster.replica(node_id).log.before_begin_index >= kept
        async with cluster.client() as client:
            await client.append(b"and goes on")


async def test_r12_a_follower_that_is_away_a_moment_finds_what_it_needs(make_cluster, until):
    options = {
        "mapped_file_size_for_entry_data": DATA_FILE,
        "retention_bytes": DATA_FILE,
        "clean_interval": 20,
    }
    async with make_cluster(**options) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            last = await filled(client, 200)
            await until(lambda: in_step(cluster, last))
            away = next(node for node in cluster.ids if node != cluster.leader_id())
            await cluster.stop(away)
            last = await filled(client, 3_000)
            await cluster.start(away)
            await until(lambda: in_step(cluster, last))


@pytest.mark.parametrize("emptied", [False, True])
async def test_109_110_a_follower_that_needs_removed_entries_begins_where_the_leader_does(
    make_cluster, until, emptied
):
    options = {
        "mapped_file_size_for_entry_data": DATA_FILE,
        "retention_bytes": DATA_FILE,
        "follower_retention_bytes": 0,
        "clean_interval": 20,
    }
    async with make_cluster(**options) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            last = await filled(client, 200)
            await until(lambda: in_step(cluster, last))
            away = next(node for node in cluster.ids if node != cluster.leader_id())
            await cluster.stop(away)
            last = await filled(client, 3_000)
            leader = cluster.replica(cluster.leader_id())
            await until(lambda: leader.log.before_begin_index > 300)
            if emptied:
                shutil.rmtree(directory_of(cluster, away))
            await cluster.start(away)
            await until(lambda: in_step(cluster, last), what="the follower has caught up")
            replica = cluster.replica(away)
            assert replica.counters.log_resets == 1
            begin = replica.log.before_begin_index + 1
            assert begin > 200
            await cluster.stop(away)
            await cluster.start(away)
            await until(lambda: in_step(cluster, last))
            assert cluster.replica(away).log.before_begin_index + 1 >= begin
            assert cluster.replica(away).counters.log_resets == 0
            assert set(cluster.replica(away).core.membership.ids) == set(cluster.ids)
            await client.append(b"goes on")


class Clocks:
    """The calendar's clock and its hour: both can be set."""

    def __init__(self, monkeypatch):
        self.set_ms = 0
        self.hour = 12
        wall_ms = node_module.wall_ms
        monkeypatch.setattr(node_module, "wall_ms", lambda: wall_ms() + self.set_ms)
        monkeypatch.setattr(node_module, "hour_of_day", lambda: self.hour)


@pytest.fixture
def clocks(monkeypatch):
    return Clocks(monkeypatch)


AGED = {"mapped_file_size_for_entry_data": DATA_FILE, "clean_interval": 20}
DAY_MS = 86_400_000


def looks(cluster):
    """A condition: every replica looked at its disk and removed what it may, twice."""
    seen = dict.fromkeys(cluster.ids, 0)
    for node_id in cluster.ids:
        retention = cluster.replica(node_id).maintenance.retention
        clean = retention.clean

        def counted(clean=clean, node_id=node_id):
            clean()
            seen[node_id] += 1

        retention.clean = counted
    return lambda: min(seen.values()) >= 2


@pytest.mark.parametrize("stopped", [False, True])
async def test_all_clocks_four_days_forward_in_the_cleaning_hour_delete_nothing(
    make_cluster, until, clocks, stopped
):
    async with make_cluster(**AGED) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            last = await filled(client, 2_000)
            await until(lambda: in_step(cluster, last))
            await until(looks(cluster), what="both clocks are known")
            if stopped:
                await cluster.stop()
            clocks.set_ms, clocks.hour = 4 * DAY_MS, 4
            if stopped:
                await cluster.start()
            await until(looks(cluster), what="all have cleaned")
            for status in await client.status():
                assert status.begin_index == 0
                assert ("wall clock was set by +345600 s" in status.retention_text) != stopped
                assert status.healthy
            for node_id in cluster.ids:
                assert cluster.replica(node_id).counters.segments_removed == 0
            bodies = [entry.body async for entry in client.read(0, follow=False)]
            assert len(bodies) == 2_000


async def test_old_files_go_once_the_time_has_passed_and_their_hour_has_come(
    make_cluster, until, clocks, monkeypatch
):
    """The time is three seconds instead of hours."""
    kept_s = 3
    monkeypatch.setattr(GroupConfig, "reserved_ms", property(lambda config: 1_000 * kept_s))
    async with make_cluster(**AGED) as cluster:
        await cluster.start()
        async with cluster.client() as client:
            begun_s = asyncio.get_running_loop().time()
            last = await filled(client, 2_000)
            await until(lambda: in_step(cluster, last))
            replicas = [cluster.replica(node_id) for node_id in cluster.ids]

            def ages():
                return [
                    replica.maintenance.retention.group_time.age_ms(500) or 0
                    for replica in replicas
                ]

            await until(lambda: min(ages()) > 1_000 * kept_s, what="the first file is old")
            assert asyncio.get_running_loop().time() - begun_s >= kept_s
            await until(looks(cluster))
            assert all(replica.log.before_begin_index == -1 for replica in replicas)
            clocks.hour = 4
            await until(lambda: all(replica.log.before_begin_index > 0 for replica in replicas))
            assert (await client.append(b"goes on")).index > last
