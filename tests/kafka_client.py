"""A client of Kafka's protocol that sends what a test says, with kafka-python's codec."""

import asyncio

from kafka_peer import answered, sent
from quorumlog.kafka.requests import ApiKey, RequestHeader


class Client:
    """Asks one request after the other."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def ask(self, key, version, **values):
        self.writer.write(sent(key, version, values))
        return await self.answer(key, version)

    async def answer(self, key, version):
        return answered(RequestHeader(key, version, 7), await self.frame())

    async def frame(self):
        """Return the next answer as it came."""
        size = await self.reader.readexactly(4)
        return size + await self.reader.readexactly(int.from_bytes(size, "big"))

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


async def connected(cluster):
    """Yield a client of the first node."""
    async for client in connected_to(cluster.nodes[0].listener.port):
        yield client


async def connected_to(port):
    """Yield a client of the node with this port."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    yield Client(reader, writer)
    writer.close()


async def until(is_done):
    """Wait until a condition holds."""
    while True:
        if is_done():
            return
        await asyncio.sleep(0.001)
