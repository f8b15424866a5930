"""What producers of each write level are told while followers are stopped, and what is consumed."""

import asyncio
import time
from contextlib import contextmanager

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_client import connected_to
from quorumlog.local import LocalCluster, guarded
from quorumlog.local.cluster import leader_of
from record_batches import batch_of

pytestmark = pytest.mark.processes

SECONDS = 60
NOT_LEADER = 6
LEASE = "electionTimeoutMinMs = 3000\nelectionTimeoutMaxMs = 3500\nmaxWaitAckTimeMs = 60000\n"
"""A leader goes on for so long without its followers."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("brokers")
    with guarded(directory):
        cluster = LocalCluster.create(
            directory / "c", topics=True, kafka_port=0, data_file_bytes=8 << 20
        )
        for node_id in cluster.node_ids:
            config = directory / "c" / f"{node_id}.toml"
            text = config.read_text()
            config.write_text(text.replace("[partitionGroups]\n", "[partitionGroups]\n" + LEASE))
        cluster.up(SECONDS)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        topics = [NewTopic("t", 1), NewTopic("u", 1, config={"quorumlog.write.level": "all"})]
        for made in admin.create_topics(topics, operation_timeout=SECONDS).values():
            made.result(SECONDS)
        yield cluster
        cluster.down()


def leading(cluster, deadline):
    """Return the node that leads all partitions, and its port."""
    while (leader := leader_of("pg-0", cluster.health())) is None:
        assert time.monotonic() < deadline, "pg-0 has no leader"
        time.sleep(0.05)
    return leader, int(cluster.kafka_address(leader).rpartition(":")[2])


@contextmanager
def stopped(cluster, node_ids):
    for node_id in node_ids:
        cluster.pause(node_id)
    try:
        yield
    finally:
        for node_id in node_ids:
            cluster.resume(node_id)


class LostLeadershipError(Exception):
    """The machine was so slow that the leader had to step down before all was asked."""


def told(found):
    if found.error_code == NOT_LEADER:
        raise LostLeadershipError
    assert found.error_code == 0
    return found


async def ask_without_followers(cluster, leader, port):
    """Produce with acks=1 and acks=all to a leader alone; return the answers to both."""
    followers = [node_id for node_id in cluster.node_ids if node_id != leader]
    async for client in connected_to(port):
        (before,) = await client.produce(batch_of(range(2)), acks=-1)
        end = told(before).base_offset + 2
        async for patient in connected_to(port):
            with stopped(cluster, followers):
                (one,) = await client.produce(batch_of(range(3)), acks=1)
                assert told(one).base_offset == end
                waiting = asyncio.ensure_future(
                    patient.produce(batch_of(range(4)), acks=-1, timeout_ms=60_000)
                )
                assert told(await client.fetch(end - 2)).high_watermark == end
                beyond = told(await client.fetch(end, wait_ms=200))
                assert (beyond.high_watermark, beyond.records or b"") == (end, b"")
                if waiting.done():  # else what it was told is checked below
                    (found,) = waiting.result()
                    assert told(found) is None, "acks=all was answered by a leader alone"
            (found,) = await asyncio.wait_for(waiting, SECONDS)
            assert told(found).base_offset == end + 3
            read = told(await client.fetch(end, wait_ms=10_000))
            assert (read.high_watermark, len(read.records) > 0) == (end + 7, True)


@pytest.mark.timeout(240)
async def test_a_leader_alone_answers_acks_1_but_not_acks_all_and_nothing_uncommitted_is_read(
    cluster,
):
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return await ask_without_followers(cluster, *leading(cluster, deadline))
        except LostLeadershipError:
            assert time.monotonic() < deadline


async def ask_without_one_follower(cluster, leader, port):
    """Produce to a topic whose level is all while one follower is stopped."""
    slow = next(node_id for node_id in cluster.node_ids if node_id != leader)
    async for client in connected_to(port):
        (before,) = await client.produce(batch_of(range(2)), topic="u")
        end = told(before).base_offset + 2
        async for patient in connected_to(port):
            with stopped(cluster, [slow]):
                waiting = asyncio.ensure_future(
                    patient.produce(batch_of(range(3)), acks=1, topic="u", timeout_ms=60_000)
                )
                found = told(await client.fetch(end, topic="u", wait_ms=60_000))
                assert found.high_watermark == end + 3, "a majority has it"
                assert not waiting.done(), "write.level=all was answered without all"
            (found,) = await asyncio.wait_for(waiting, SECONDS)
            assert told(found).base_offset == end


def leading_second_topic(cluster, deadline):
    """Return the node that leads the topic `u`, and its port."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    while True:
        found = admin.list_topics("u", timeout=SECONDS)
        if (leader := found.topics["u"].partitions[0].leader) >= 0:
            port = found.brokers[leader].port
            addresses = {node_id: cluster.kafka_address(node_id) for node_id in cluster.node_ids}
            (node_id,) = [one for one, where in addresses.items() if where.endswith(f":{port}")]
            return node_id, port
        assert time.monotonic() < deadline, "u has no leader"


@pytest.mark.timeout(240)
async def test_b8_a_topic_whose_level_is_all_answers_no_produce_before_all_replicas_have_it(
    cluster,
):
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            leader, port = leading_second_topic(cluster, deadline)
            return await ask_without_one_follower(cluster, leader, port)
        except LostLeadershipError:
            assert time.monotonic() < deadline
