"""What Kafka clients are answered: a node in the program of the test, and kafka-python's codec."""

import asyncio
import threading

import pytest

from kafka_broker import kafka_cluster
from kafka_peer import answered, sent
from quorumlog.kafka.context import RequestContext
from quorumlog.kafka.requests import ApiKey, RequestHeader
from quorumlog.model.limits import Limits
from record_batches import batch_of


class Client:
    """Asks one request after the other."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def ask(self, key, version, **values):
        self.writer.write(sent(key, version, values))
        return await self.answer(key, version)

    async def answer(self, key, version):
        size = await self.reader.readexactly(4)
        body = await self.reader.readexactly(int.from_bytes(size, "big"))
        return answered(RequestHeader(key, version, 7), size + body)

    async def produce(self, *batches, acks=-1, topic="t", timeout_ms=10_000):
        """Return the answers for partitions 0, 1, …"""
        self.writer.write(produce_request(*batches, acks=acks, topic=topic, timeout_ms=timeout_ms))
        found = await self.answer(ApiKey.PRODUCE, 9)
        return found.responses[0].partition_responses

    async def fetch(self, offset, *, version=12, **fields):
        """Return the answer for partition 0."""
        found = await self.ask(ApiKey.FETCH, version, **fetch_values(offset, **fields))
        return found.responses[0].partitions[0]


def produce_request(*batches, acks=-1, topic="t", timeout_ms=10_000):
    partitions = [{"index": at, "records": bytes(one)} for at, one in enumerate(batches)]
    values = {
        "transactional_id": None,
        "acks": acks,
        "timeout_ms": timeout_ms,
        "topic_data": [{"name": topic, "partition_data": partitions}],
    }
    return sent(ApiKey.PRODUCE, 9, values)


def fetch_values(offset, *, topic="t", epoch=-1, wait_ms=0, bytes_min=1, bytes_max=1 << 20, **more):
    return {
        "replica_id": -1,
        "max_wait_ms": wait_ms,
        "min_bytes": bytes_min,
        "max_bytes": bytes_max,
        "isolation_level": more.get("isolation_level", 0),
        "session_id": more.get("session_id", 0),
        "session_epoch": -1,
        "topics": [
            {
                "topic": topic,
                "topic_id": more.get("topic_id"),
                "partitions": [
                    {
                        "partition": more.get("partition", 0),
                        "current_leader_epoch": epoch,
                        "fetch_offset": offset,
                        "last_fetched_epoch": -1,
                        "log_start_offset": -1,
                        "partition_max_bytes": more.get("partition_bytes_max", 1 << 20),
                    }
                ],
            }
        ],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


@pytest.fixture
async def cluster(tmp_path):
    async with kafka_cluster(tmp_path) as cluster:
        await cluster.create_topic("t", 2)
        yield cluster


@pytest.fixture
async def client(cluster):
    async for one in connected(cluster):
        yield one


async def connected(cluster):
    reader, writer = await asyncio.open_connection("127.0.0.1", cluster.nodes[0].listener.port)
    yield Client(reader, writer)
    writer.close()


async def test_api_versions_says_what_is_spoken(client):
    found = await client.ask(
        ApiKey.API_VERSIONS, 3, client_software_name="x", client_software_version="1"
    )
    assert found.error_code == 0
    assert {one.api_key for one in found.api_keys} >= {ApiKey.PRODUCE, ApiKey.FETCH}


async def test_every_producer_gets_an_id_of_its_own(client):
    values = {
        "transactional_id": None,
        "transaction_timeout_ms": 1_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    found = [await client.ask(ApiKey.INIT_PRODUCER_ID, 4, **values) for _ in range(3)]
    assert [(one.producer_id, one.producer_epoch) for one in found] == [
        (1_000, 0),
        (1_001, 0),
        (1_002, 0),
    ]


async def test_batches_of_several_partitions_get_offsets_and_are_fetched_as_they_were_sent(client):
    batch = bytes(batch_of(range(3)))
    assert [(one.error_code, one.base_offset) for one in await client.produce(batch, batch)] == [
        (0, 0),
        (0, 0),
    ]
    assert [(one.error_code, one.base_offset) for one in await client.produce(batch)] == [(0, 3)]
    found = await client.fetch(0)
    assert (found.error_code, found.high_watermark, found.log_start_offset) == (0, 6, 0)
    records = bytes(found.records)
    assert len(records) == 2 * len(batch)
    assert records[16 : len(batch)] == batch[16:]
    assert (await client.fetch(0, partition=1)).high_watermark == 3


async def test_a_fetch_beyond_the_end_is_out_of_range(client):
    assert (await client.fetch(1)).error_code == 1


async def test_what_is_not_there_is_unknown(client):
    (found,) = await client.produce(batch_of(range(1)), topic="x")
    assert (found.error_code, found.error_message) == (3, "there is no partition 0 of topic 'x'")
    assert (await client.fetch(0, topic="x")).error_code == 3
    assert (await client.fetch(0, partition=7)).error_code == 3


async def test_a_produce_waits_for_room_in_its_group_instead_of_being_refused(tmp_path):
    async with kafka_cluster(tmp_path, limits=Limits(pending_requests_max=1)) as cluster:
        await cluster.create_topic("t")
        async for client in connected(cluster):
            client.writer.write(produce_request(batch_of(range(1))) * 20)
            found = [await client.answer(ApiKey.PRODUCE, 9) for _ in range(20)]
            answers = [one.responses[0].partition_responses[0] for one in found]
            assert [(one.error_code, one.base_offset) for one in answers] == [
                (0, offset) for offset in range(20)
            ]
        assert cluster.nodes[0].listener.counters.waited_for_room > 0


async def test_long_work_of_a_handler_is_done_on_a_thread(cluster):
    header = RequestHeader(ApiKey.METADATA, 12, 1)
    context = RequestContext(cluster.nodes[0].listener._services, header, "127.0.0.1:1", None)
    here = threading.get_ident()
    assert await context.on_thread(threading.get_ident) != here
    with pytest.raises(ZeroDivisionError):
        await context.on_thread(lambda: 1 // 0)
