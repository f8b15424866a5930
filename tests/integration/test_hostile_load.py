"""Strangers in numbers: they take no node's descriptors, memory or time from those who use it."""

import asyncio
import multiprocessing
import time

import pytest

from integration.hostile_process import (
    CLIENT_HELLO,
    NodeProcess,
    Strangers,
    percentile,
    shout,
    shout_together,
)
from quorumlog.client.client import Client
from quorumlog.local.ports import free_ports
from quorumlog.model.messages.client import AppendRequest, FetchRequest
from quorumlog.model.messages.machine import QueryRequest
from quorumlog.wire.frame import encode_frame
from raft_messages import long_push

pytestmark = pytest.mark.processes

MIB = 1 << 20
RSS_MIB_MAX = 300


@pytest.fixture
def node_of(tmp_path):
    made = []

    def make(**options):
        (port,) = free_ports(1)
        made.append(NodeProcess(tmp_path / "cluster", port, **options))
        return made[-1]

    yield make
    for node in made:
        node.process.kill()
        node.process.wait()


async def appends(client, count=20):
    """Append, and return the latencies in seconds."""
    took = []
    for number in range(count):
        started = time.perf_counter()
        place = await client.append(b"%d" % number)
        took.append(time.perf_counter() - started)
        assert (await client.get(place.index)).body == b"%d" % number
    return took


def tell(most, quiet, hostile):
    before, during = percentile(quiet, 0.99), percentile(hostile, 0.99)
    print(f"RSS {most:.0f} MiB; p99 {before * 1000:.1f} → {during * 1000:.1f} ms")


@pytest.mark.parametrize("first", [b"", CLIENT_HELLO], ids=["silent", "after a Hello"])
async def test_idle_connections_neither_end_a_node_nor_lock_anyone_out(node_of, first):
    node = node_of(descriptors=1_024)
    strangers = Strangers(node.address)
    try:
        async with Client(node.server, "g") as early:
            await appends(early)
            await asyncio.to_thread(strangers.connect, 1_100, first)
            await appends(early)  # it keeps its place
            async with Client(node.server, "g") as late:
                await appends(late)  # it gets one
                for _ in range(4):  # more than a data file: files are opened, made and mapped
                    await late.append_batch([bytes(1 << 20)] * 3)
        assert node.is_alive(), node.log.read_text()
        assert "Too many open files" not in node.log.read_text()
    finally:
        strangers.close()
    assert node.stop() == 0


async def test_frames_that_never_end_take_a_bounded_memory(node_of):
    node = node_of()
    request = AppendRequest(group="g", count=1)
    raw = b"".join(encode_frame(request, attachments=[bytes(8 * MIB - 100_000)]))
    async with Client(node.server, "g", retry_unknown=True) as client:
        await appends(client, 5)
        quiet = await appends(client, 50)
        strangers = multiprocessing.get_context("spawn").Process(
            target=shout_together, args=(node.address, CLIENT_HELLO + raw[:-1], 150), daemon=True
        )
        strangers.start()
        try:
            most, hostile = 0.0, []
            while len(hostile) < 300 or most < 70:
                hostile += await appends(client, 5)
                most = max(most, node.rss_mib)
            await client.append(bytes(2 * MIB))  # an honest large one gets through among them
            most = max(most, node.rss_mib)
        finally:
            strangers.kill()
            strangers.join()
    tell(most, quiet, hostile)
    assert most < RSS_MIB_MAX
    assert node.is_alive()


async def test_clients_that_never_read_take_neither_memory_nor_time(node_of):
    node = node_of()
    async with Client(node.server, "g", retry_unknown=True) as client:
        for _ in range(8):
            await client.append_batch([bytes(512 * 1024)] * 6)
        quiet = await appends(client, 50)
        request = FetchRequest(group="g", begin_index=0, bytes_max=4 * MIB)
        raw = CLIENT_HELLO + b"".join(
            part for number in range(200) for part in encode_frame(request, correlation_id=number)
        )
        strangers = Strangers(node.address)
        try:
            await asyncio.to_thread(strangers.connect, 24, raw)
            hostile, most = [], 0.0
            for _ in range(20):
                hostile += await appends(client, 5)
                most = max(most, node.rss_mib)
            (status,) = await client.status()
        finally:
            strangers.close()
    tell(most, quiet, hostile)
    print(f"lag {status.loop_lag_ms} ms")
    assert most < RSS_MIB_MAX
    assert node.is_alive()


async def test_small_requests_in_numbers_wait_for_their_turn(node_of):
    node = node_of()
    raw = CLIENT_HELLO + b"".join(
        part
        for number in range(20_000)
        for part in encode_frame(FetchRequest(group="g", begin_index=0), correlation_id=number)
    )
    async with Client(node.server, "g", retry_unknown=True) as client:
        await appends(client, 20)
        shouts = [asyncio.create_task(shout(node.address, raw, seconds=60)) for _ in range(20)]
        hostile, most = [], 0.0
        while len(hostile) < 50:
            hostile += await appends(client, 5)
            most = max(most, node.rss_mib)
        for task in shouts:
            task.cancel()
        await asyncio.gather(*shouts, return_exceptions=True)
    assert most < RSS_MIB_MAX
    assert node.is_alive()


WAITING = {"group": "g", "begin_index": 1 << 40, "wait_ms": 30_000}
LATE = {"group": "g", "linearizable": False, "after_index": 1 << 40, "wait_ms": 30_000}
SAID = {
    "long polls": ([FetchRequest(**WAITING, machine="m" * 1_000)] * 2_500, 0),
    "polls with endless names": ([FetchRequest(**WAITING, machine="m" * 250_000)] * 40, 0),
    "polls with something attached": ([FetchRequest(**WAITING)] * 16, 2 * MIB),
    "queries that wait": ([QueryRequest(**LATE)] * 16, 2 * MIB),
    "queries": ([QueryRequest(group="g")] * 16, 2 * MIB),
    "groups that do not exist": ([FetchRequest(group="none", begin_index=0)] * 5_000, 0),
    "lists that only members send": ([long_push()] * 40, 0),
}


@pytest.mark.parametrize(("said", "attached"), SAID.values(), ids=SAID.keys())
async def test_whatever_many_strangers_ask_memory_is_bounded_and_others_are_served(
    node_of, said, attached
):
    node = node_of(state_machine="kv")
    raw = CLIENT_HELLO + b"".join(
        bytes(part)
        for number, message in enumerate(said, 1)
        for part in encode_frame(
            message, correlation_id=number, attachments=[bytes(attached)] if attached else ()
        )
    )
    async with Client(node.server, "g", retry_unknown=True) as client:
        await appends(client, 20)
        shouts = [asyncio.create_task(shout(node.address, raw, seconds=60)) for _ in range(16)]
        most = 0.0
        for _ in range(20):
            await appends(client, 5)
            most = max(most, node.rss_mib)
        for task in shouts:
            task.cancel()
        await asyncio.gather(*shouts, return_exceptions=True)
        await appends(client, 5)
    assert most < RSS_MIB_MAX
    assert node.is_alive()
