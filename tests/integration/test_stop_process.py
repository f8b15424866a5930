"""Clean stops of real processes: leadership is transferred, and all appends are answered."""

import asyncio
import json
import os
import re
import signal
from contextlib import asynccontextmanager

import pytest

from integration.conftest import have_patience
from quorumlog import KV
from quorumlog.bench import events
from quorumlog.client import Client, Producer
from quorumlog.local import LocalCluster
from quorumlog.model.errors import Outcome, RequestError
from scripted_cluster import metadata_of

pytestmark = pytest.mark.processes

IN_FLIGHT = 16


@pytest.fixture
def cluster(patient_cluster):
    """A cluster whose leaders change only because they are stopped."""
    return patient_cluster


class Load:
    """Tasks that append bodies of their own, one after the other; `fates` of what failed."""

    def __init__(self, client):
        self.client = client
        self.bodies = {}
        self.fates = []
        self._count = 0
        self._came = asyncio.Event()

    @asynccontextmanager
    async def running(self):
        tasks = [asyncio.ensure_future(self._work(number)) for number in range(IN_FLIGHT)]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(ended, asyncio.CancelledError), ended

    async def _work(self, worker):
        number = 0
        while True:
            number += 1
            body = f"{worker}-{number}".encode()
            try:
                appended = await self.client.append(body)
            except RequestError as error:
                self.fates.append((error.outcome, str(error)))
            else:
                self.bodies[body] = appended.index
                self._count += 1
                self._came.set()

    async def goes_on(self, count=200):
        """Wait until so many more were acknowledged."""
        wanted = self._count + count
        while self._count < wanted:
            self._came.clear()
            await self._came.wait()


def lines_of(cluster, node_id):
    return [json.loads(line) for line in cluster.log_file(node_id).read_text().splitlines()]


async def told(client):
    """Return what all nodes tell of the past: each line with its node and its time."""
    return [(one.node_id, *line) for one in await client.admin.history() for line in one.lines]


async def test_121_a_rolling_restart_under_load_loses_and_doubles_nothing(cluster):
    async with Client(cluster.servers, "g") as client, Client(cluster.servers, "g") as reader:
        load = Load(client)
        async with load.running():
            for node_id in ("leader", *cluster.node_ids):
                await load.goes_on()
                leader = await asyncio.to_thread(cluster.leader, "g")
                stopped = leader if node_id == "leader" else node_id
                before = set(await told(reader))  # a bystander may have lost an earlier leader
                await asyncio.to_thread(cluster.stop, stopped)
                await load.goes_on()
                if stopped == leader:
                    successor = await asyncio.to_thread(cluster.leader, "g")
                    lines = [line for line in await told(reader) if line not in before]
                    texts = [text for node, _, text in lines if node == successor]
                    assert f"takes leadership over from {leader}" in texts
                    assert not [text for text in texts if text.startswith("lost ")]
                await asyncio.to_thread(cluster.restart, stopped)
        assert load.fates == []
        found = {}
        async for entry in reader.read(follow=False, linearizable=True):
            assert entry.body not in found
            found[entry.body] = entry.index
        lost = {body: index for body, index in load.bodies.items() if found.get(body) != index}
        assert not lost
        assert len(found) - len(load.bodies) <= IN_FLIGHT  # those that nobody waited for any more


async def test_commands_executed_beside_a_stop_have_their_results(tmp_path):
    cluster = LocalCluster.create(tmp_path / "kv", groups=("g",), state_machine="kv")
    have_patience(cluster)
    cluster.up()
    try:
        async with Client(cluster.servers, "g") as client:
            kv = KV(client)
            done = asyncio.Event()

            async def put(worker):
                number = 0
                while not done.is_set():
                    before = str(number).encode() if number else None
                    number += 1
                    assert await kv.put(f"k{worker}", str(number)) == before

            tasks = [asyncio.ensure_future(put(worker)) for worker in range(IN_FLIGHT)]
            for _ in range(2):
                leader = await asyncio.to_thread(cluster.leader, "g")
                await asyncio.to_thread(cluster.restart, leader)
            done.set()
            await asyncio.gather(*tasks)
    finally:
        cluster.down()


async def test_a_client_at_rest_learns_that_the_leader_has_stopped(cluster):
    async with Client(cluster.servers, "g") as client:
        await client.append(b"one")
        leader = await asyncio.to_thread(cluster.leader, "g")
        address = cluster.address(leader)
        assert (await metadata_of(client).leader()).address == address
        await asyncio.to_thread(cluster.stop, leader)
        assert (await metadata_of(client).leader()).address != address
        assert (await client.append(b"two")).index > 0


async def test_a_producer_goes_on_at_the_next_leader(cluster):
    async with Producer(cluster.servers, "g", idempotent=False, retry_unknown=False) as producer:
        stopping = None
        for number in range(60):
            await producer.send_batch([b"%d" % number] * 500)
            if number == 20:
                leader = await asyncio.to_thread(cluster.leader, "g")
                stopping = asyncio.ensure_future(asyncio.to_thread(cluster.stop, leader))
            await asyncio.sleep(0)
        await producer.flush()
        await stopping
        assert producer.stats.entries_acknowledged == 30_000
        assert producer.stats.blocks_resent_after_unknown == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_changes_nothing(tmp_path, number):
    cluster = LocalCluster.create(tmp_path / "two", groups=("g",))
    cluster.up()
    try:
        leader = cluster.leader("g")
        child = cluster.running()[leader]
        os.kill(child, number)
        os.kill(child, number)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert '"event": "node stopped"' in cluster.log_file(leader).read_text()
    finally:
        cluster.down()


def test_no_line_of_a_log_shows_how_python_writes_values(cluster):
    cluster.kill(cluster.leader("g"))
    cluster.up()
    cluster.down()
    shown = re.compile(r"<[^>]*>|\b[A-Z]\w*\.[A-Z_]+\b|\b\w+\(\w+=|\(\)|\('|b'")
    moment = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
    for node_id in cluster.node_ids:
        lines = lines_of(cluster, node_id)
        assert {"group opened", "role changed", "membership changed"} <= {
            line["event"] for line in lines
        }
        for line in lines:
            assert moment.fullmatch(line["time"])
            assert not shown.search(json.dumps(line)), line


def test_all_nodes_stop_at_once(cluster):
    cluster.down()
    for node_id in cluster.node_ids:
        lines = lines_of(cluster, node_id)
        assert lines[-1]["event"] == "node stopped"
        assert "leadership not transferred" not in {line["event"] for line in lines}


def test_a_group_of_one_stops_with_what_it_acknowledged(tmp_path):
    cluster = LocalCluster.create(tmp_path / "one", nodes=1, groups=("g",))
    cluster.up()
    try:
        counted = asyncio.run(_stopped_beside_appends(cluster))
        cluster.up()
        assert counted <= asyncio.run(_entries(cluster))
        lines = lines_of(cluster, "n0")
        assert "leadership not transferred" not in {line["event"] for line in lines}
    finally:
        cluster.down()


async def _stopped_beside_appends(cluster):
    async with Client(cluster.servers, "g") as client:
        load = Load(client)
        async with load.running():
            await load.goes_on()
            await asyncio.to_thread(cluster.stop, "n0")
        assert all(outcome is Outcome.DID_NOT_HAPPEN for outcome, _ in load.fates), load.fates
        return len(load.bodies)


async def _entries(cluster):
    async with Client(cluster.servers, "g") as client:
        return len([entry async for entry in client.read(follow=False)])


async def test_the_bench_counts_what_a_clean_stop_leaves_unknown(cluster):
    stopped = await events.leader_stopped(cluster, "g")
    assert stopped.unknown == 0
    assert stopped.seconds > 0
