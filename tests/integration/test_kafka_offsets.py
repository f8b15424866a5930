"""B7: what a Fetch at any offset begins with, and where leader epochs end."""

import asyncio
import random

import pytest

from kafka_broker import GROUP, kafka_cluster
from kafka_client import connected, connected_to
from quorumlog.client import Client
from quorumlog.kafka.requests import ApiKey
from record_batches import batch_of

EPOCHS = 5
UNKNOWN = (-1, -1)
OUT_OF_RANGE, NOT_LEADER = 1, 6


async def test_b7_a_fetch_at_any_offset_begins_with_the_batch_that_holds_it(tmp_path):
    sizes = [random.Random(7).choice([1, 2, 3, 50, 500]) for _ in range(15)]
    holder = []
    async with kafka_cluster(tmp_path) as cluster:
        await cluster.create_topic("t")
        async for client in connected(cluster):
            for size in sizes:
                (answer,) = await client.produce(batch_of(range(size)))
                assert answer.base_offset == len(holder)
                holder += [answer.base_offset] * size
            for offset, base in enumerate(holder):
                found = await client.fetch(offset, bytes_max=1)
                assert int.from_bytes(found.records[:8], "big") == base
                length = int.from_bytes(found.records[8:12], "big")
                assert len(found.records) == 12 + length, "one batch, however little is wanted"
            end = await client.fetch(len(holder), bytes_max=1)
            assert (end.error_code, end.high_watermark, end.records) == (0, len(holder), b"")


def expected(first_offsets, epoch, end):
    """Return the largest epoch with records up to one, and where it ends; as Kafka's brokers do.

    Before the first epoch with records there are none: it ends where that one begins.
    """
    known = [one for one in first_offsets if one <= epoch]
    largest = max(known, default=epoch)
    later = [offset for one, offset in first_offsets.items() if one > largest]
    return largest, min(later, default=end)


async def answers_of_epochs(client, epochs):
    partitions = [
        {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch} for epoch in epochs
    ]
    topics = [{"topic": "t", "partitions": partitions}]
    found = await client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, replica_id=-1, topics=topics)
    return found.topics[0].partitions


async def ends_of_epochs(client, epochs):
    answers = await answers_of_epochs(client, epochs)
    assert {one.error_code for one in answers} == {0}
    return [(one.leader_epoch, one.end_offset) for one in answers]


@pytest.mark.timeout(120)
async def test_b7_leader_epochs_end_where_those_of_the_next_one_begin(tmp_path):
    first_offsets, end = {}, 0
    async with kafka_cluster(tmp_path, 3) as cluster:
        await cluster.create_topic("t")
        peers = cluster.nodes[0].node.config.groups[0].peers.split(";")
        servers = ",".join(one.partition("-")[2] for one in peers)
        for round_number in range(EPOCHS):
            leader = cluster.nodes[await cluster.leader()]
            async for client in connected_to(leader.listener.port):
                for size in range(round_number % 3):  # the first epoch has no records
                    (answer,) = await client.produce(batch_of(range(size + 1)))
                    assert (answer.error_code, answer.base_offset) == (0, end)
                    first_offsets.setdefault(leader.node.replicas[GROUP].core.term, end)
                    end += size + 1
                term = leader.node.replicas[GROUP].core.term
                wanted = [expected(first_offsets, epoch, end) for epoch in range(term)]
                wanted += [(term, end), UNKNOWN]
                assert await ends_of_epochs(client, range(term + 2)) == wanted
            async with Client(servers, group=GROUP) as native:
                await native.admin.transfer()


@pytest.mark.timeout(60)
async def test_b7_a_former_leader_does_not_send_consumers_back_to_the_beginning(tmp_path):
    """It knows neither the newest records nor their leader epoch, and must not say so."""
    async with kafka_cluster(tmp_path, 3) as cluster:
        await cluster.create_topic("t")
        number = await cluster.leader()
        leader = cluster.nodes[number]
        term = leader.node.replicas[GROUP].core.term
        async for fetcher in connected_to(leader.listener.port):
            await fetcher.produce(batch_of(range(3)))
            assert (await fetcher.fetch(4)).error_code == OUT_OF_RANGE
            async for validator in connected_to(leader.listener.port):
                for other in [one for at, one in cluster.nodes.items() if at != number]:
                    await other.stop(clean=False)
                fetching = asyncio.ensure_future(fetcher.fetch(4))
                before, own, later = await answers_of_epochs(validator, [term - 1, term, term + 1])
                assert (before.error_code, before.end_offset) in ((0, 0), (NOT_LEADER, -1))
                assert [own.error_code, later.error_code] == [NOT_LEADER] * 2
                assert (await fetching).error_code == NOT_LEADER
