"""The journal that the groups of a real node share: kills, lost pages, tools, clean stops."""

import asyncio
import itertools
import os

import pytest

from quorumlog.cli.main import main
from quorumlog.client import Client
from quorumlog.local import LocalCluster
from quorumlog.model.errors import RequestError
from quorumlog.storage.files.os_files import OsFileSystem
from quorumlog.storage.journal.reader import read_journal
from quorumlog.storage.log.layout import UnsettledIdentity, incarnation_number, read_identity
from quorumlog.storage.metadata.checkpoint import CheckpointFile

pytestmark = pytest.mark.processes

GROUPS = tuple(f"g{number}" for number in range(5))
FILE_BYTES = 16 << 20
IN_FLIGHT = 4


def journal_of(cluster, node_id):
    return cluster.group_directory(node_id, GROUPS[0]).parent / "quorumlog.journal"


def is_in_use(cluster, node_id):
    path = journal_of(cluster, node_id) / "segment.0"
    if not path.exists():
        return False
    with path.open("rb") as file:
        file.seek(4_096)
        return file.read(4) == b"QLJR"


async def appended(cluster, enough):
    """Append to all groups at once until `enough()`; return what was acknowledged, by group."""
    acknowledged = {group: set() for group in GROUPS}
    numbers = itertools.count()

    async def work(client, group):
        while not enough():
            body = b"%d of %s" % (next(numbers), group.encode())
            try:
                await client.append(body)
            except RequestError:
                continue  # of unknown outcome
            acknowledged[group].add(body)

    clients = [Client(cluster.servers, group, timeout_ms=30_000) for group in GROUPS]
    try:
        pairs = zip(clients * IN_FLIGHT, GROUPS * IN_FLIGHT, strict=True)
        await asyncio.gather(*(work(client, group) for client, group in pairs))
    finally:
        for client in clients:
            await client.close()
    return acknowledged


def take_back_pages(cluster, node_id):
    """Zero what only the journal keeps durable: what a loss of power may do to the page cache.

    Returns how many bytes of the groups' files are gone.
    """
    gone, files = 0, OsFileSystem()
    for group in GROUPS:
        directory = str(cluster.group_directory(node_id, group))
        identity = read_identity(files, directory)
        if not isinstance(identity, UnsettledIdentity):
            continue
        content = read_journal(files, str(journal_of(cluster, node_id)), identity.journal)
        point = CheckpointFile(files, directory).load(read_only=True).point
        parts = content.parts.get(incarnation_number(identity.incarnation), [])
        for _, item, _ in parts:
            if item.position >= point.position:
                start = item.position - item.position % FILE_BYTES
                path = f"{directory}/data/{start:020d}"
                descriptor = os.open(path, os.O_RDWR)
                os.pwrite(descriptor, bytes(item.length), item.position - start)
                os.close(descriptor)
                gone += item.length
    return gone


async def read_all(cluster, group):
    async with Client(cluster.servers, group, timeout_ms=30_000) as client:
        return {entry.body async for entry in client.read(0, follow=False)}


@pytest.mark.timeout(180)
async def test_pages_lost_on_all_nodes_at_once_cost_nothing_that_was_acknowledged(tmp_path):
    cluster = LocalCluster.create(tmp_path / "c", groups=GROUPS, data_file_bytes=FILE_BYTES)
    await asyncio.to_thread(cluster.up)
    nodes, more = cluster.node_ids, itertools.count()
    try:
        acknowledged = await appended(
            cluster, lambda: all(is_in_use(cluster, n) for n in nodes) and next(more) > 400
        )
        for node_id in nodes:
            await asyncio.to_thread(cluster.kill, node_id)
        assert sum(take_back_pages(cluster, node_id) for node_id in nodes) > 0
        await asyncio.to_thread(cluster.up)
        for group in GROUPS:
            assert acknowledged[group] <= await read_all(cluster, group)
        text = "".join(cluster.log_file(node_id).read_text() for node_id in nodes)
        assert "journal settled" in text
        assert "quarantined" not in text
        await asyncio.to_thread(cluster.down)
        assert not any(list(journal_of(cluster, node_id).glob("segment*")) for node_id in nodes)
    finally:
        await asyncio.to_thread(cluster.down)


@pytest.mark.timeout(180)
async def test_after_a_kill_tools_ask_for_store_settle_and_work_after_it(tmp_path, capsys):
    cluster = LocalCluster.create(tmp_path / "c", groups=GROUPS, data_file_bytes=FILE_BYTES)
    await asyncio.to_thread(cluster.up)
    victim, more = cluster.node_ids[0], itertools.count()
    directory = str(cluster.group_directory(victim, GROUPS[0]))
    node_directory = os.path.dirname(directory)
    try:
        await appended(cluster, lambda: is_in_use(cluster, victim) and next(more) > 100)
        assert main(["store", "stats", directory]) == 0  # the node runs
        assert main(["store", "settle", node_directory]) == 1
        assert "is in use by another process" in capsys.readouterr().err
        await asyncio.to_thread(cluster.kill, victim)
        take_back_pages(cluster, victim)
        assert main(["store", "verify", directory]) == 1
        assert f"quorumlog store settle {node_directory}" in capsys.readouterr().err
        assert main(["store", "settle", node_directory]) == 0
        assert f"{directory}: settled, " in capsys.readouterr().out
        assert main(["store", "verify", directory]) == 0
        capsys.readouterr()
        assert main(["store", "settle", node_directory]) == 0
        assert "nothing to settle" in capsys.readouterr().out
        await asyncio.to_thread(cluster.start, victim)
    finally:
        await asyncio.to_thread(cluster.down)


@pytest.mark.timeout(280)
async def test_nodes_killed_again_and_again_lose_nothing_of_any_group(tmp_path):
    cluster = LocalCluster.create(tmp_path / "c", groups=GROUPS, data_file_bytes=FILE_BYTES)
    await asyncio.to_thread(cluster.up)
    done = asyncio.Event()
    try:
        running = asyncio.ensure_future(appended(cluster, done.is_set))
        lost = 0
        for number in range(4):
            victim = cluster.node_ids[number % 3]
            while not is_in_use(cluster, victim):
                assert not running.done()
                await asyncio.sleep(0.05)
            await asyncio.to_thread(cluster.kill, victim)
            lost += await asyncio.to_thread(take_back_pages, cluster, victim)
            await asyncio.to_thread(cluster.start, victim)
        assert lost > 0
        done.set()
        acknowledged = await running
        for group in GROUPS:
            assert acknowledged[group] <= await read_all(cluster, group)
    finally:
        await asyncio.to_thread(cluster.down)


def remove_journal(cluster, node_id):
    for path in journal_of(cluster, node_id).iterdir():
        path.unlink()


@pytest.mark.timeout(180)
async def test_a_lone_replica_goes_on_without_its_lost_journal_if_told_to(tmp_path, capsys):
    cluster = LocalCluster.create(
        tmp_path / "c", nodes=1, groups=GROUPS, data_file_bytes=FILE_BYTES
    )
    await asyncio.to_thread(cluster.up)
    more = itertools.count()
    directory = str(cluster.group_directory("n0", GROUPS[0]))
    settle = ["store", "settle", os.path.dirname(directory)]
    try:
        kept = await appended(cluster, lambda: is_in_use(cluster, "n0") and next(more) > 100)
        # at once: what is settled meanwhile would not need the journal any more
        await asyncio.to_thread(cluster.kill, "n0")
        remove_journal(cluster, "n0")
        assert main(settle) == 1
        refused = capsys.readouterr().err
        assert f"{directory}: " in refused
        assert "the journal that this group used is gone" in refused
        assert f"{directory} has no other member; with --discard it goes on" in refused
        assert "is given up permanently" in refused
        assert main([*settle, "--discard"]) == 0
        assert f"{directory}: goes on without the journal: " in capsys.readouterr().out
        assert main(settle) == 0
        assert "nothing to settle" in capsys.readouterr().out
        await asyncio.to_thread(cluster.start, "n0")
        for group in GROUPS:  # the process was killed, and the machine went on
            assert await read_all(cluster, group) >= kept[group]
    finally:
        await asyncio.to_thread(cluster.down)


@pytest.mark.timeout(180)
async def test_a_member_of_a_group_does_not_forget_what_it_acknowledged(tmp_path, capsys):
    cluster = LocalCluster.create(tmp_path / "c", groups=GROUPS, data_file_bytes=FILE_BYTES)
    await asyncio.to_thread(cluster.up)
    victim, more = cluster.node_ids[0], itertools.count()
    directory = str(cluster.group_directory(victim, GROUPS[0]))
    settle = ["store", "settle", os.path.dirname(directory)]
    try:
        await appended(cluster, lambda: is_in_use(cluster, victim) and next(more) > 100)
        await asyncio.to_thread(cluster.kill, victim)
        remove_journal(cluster, victim)
        assert main([*settle, "--discard"]) == 1
        refused = capsys.readouterr().err
        assert f"not discarded: {directory}: n1, n2 belong to the group, too" in refused
        assert main(["store", "verify", directory]) == 1
        assert "store settle" in capsys.readouterr().err
    finally:
        await asyncio.to_thread(cluster.down)
