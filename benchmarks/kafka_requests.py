"""Processor time of a node's loop for each Produce, Fetch and OffsetCommit of a Kafka client.

    python benchmarks/kafka_requests.py [REQUESTS [BATCH_BYTES]]    # default: 3000, of 1 KiB

One node in this process; requests come to a connection as bytes, and answers are dropped, so that
no client and no socket is counted; of the disk only what the loop does. Goals: 60 µs for a Produce
of one batch, 60 µs and 6 for each partition for a Fetch. An OffsetCommit is of one offset, beside
63 others; those that wait go into the log together. Figures are the least of some rounds, in
microseconds and as a ratio to a loop of known cost, which says how fast the machine is at present.
`tests/unit/test_kafka_request_cost.py` counts calls instead, which no other load changes.
"""

import asyncio
import os
import socket
import struct
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import uvloop
from crc32c import crc32c

from quorumlog.broker.broker import Broker
from quorumlog.kafka.connection import KafkaConnection
from quorumlog.kafka.listener import KafkaListener
from quorumlog.kafka.requests import ApiKey
from quorumlog.machine.cluster.commands import CreateTopics, NewTopic
from quorumlog.model.config import CLUSTER_GROUP, GroupConfig, NodeConfig
from quorumlog.node.node import Node
from quorumlog.records.batch import HEADER
from quorumlog.service.kafka_clients import kafka_listener, serve_kafka
from quorumlog.service.requests import ClientRequests

PARTITIONS = 64
IN_FLIGHT = 32
WITHIN_MS = 60_000
BATCH_BYTES = 1_024
ROUNDS = 3
KNOWN_LOOPS = 20_000
FETCHED_TOGETHER = (1, 16, 64)
COMMITTERS = 64
"""Connections that commit offsets, each one after the other."""


class Transport(asyncio.Transport):
    """A connection whose answers are counted and dropped."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "socket": socket.socket()})
        self.answers = 0
        self.is_paused = False
        self.when_answered: Callable[[], None] = lambda: None
        self.when_resumed: Callable[[], None] = lambda: None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Drop an answer."""
        self.writelines((data,))

    def writelines(self, parts: Sequence[object]) -> None:
        """Drop an answer of several parts."""
        self.answers += 1
        self.when_answered()

    def is_closing(self) -> bool:
        """Say that the connection goes on."""
        return False

    def get_write_buffer_size(self) -> int:
        """Say that the client reads everything at once."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is nothing to be bounded."""

    def pause_reading(self) -> None:
        """Have nothing more come."""
        self.is_paused = True

    def resume_reading(self) -> None:
        """Have what is left come."""
        self.is_paused = False
        asyncio.get_running_loop().call_soon(self.when_resumed)

    def abort(self) -> None:
        """There is nothing to be ended."""


def batch(size: int) -> bytes:
    """Return a record batch of this size, whose record nobody reads."""
    body = os.urandom(size - HEADER.size)
    tail = HEADER.pack(0, size - 12, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)[21:] + body
    return struct.pack(">qiibI", 0, size - 12, 0, 2, crc32c(tail)) + tail


def framed(key: ApiKey, version: int, body: bytes) -> bytes:
    """Return a request of a version that is not flexible."""
    content = struct.pack(">hhih", key, version, 1, 1) + b"c" + body
    return len(content).to_bytes(4, "big") + content


def produce(size: int, partition: int) -> bytes:
    """Return a Produce of one batch, with acks=all."""
    records = batch(size)
    head = struct.pack(">hhiih", -1, -1, 30_000, 1, 1) + b"t"
    return framed(
        ApiKey.PRODUCE, 7, head + struct.pack(">iii", 1, partition, len(records)) + records
    )


def fetch(partitions: int) -> bytes:
    """Return a Fetch of one batch of each of some partitions."""
    head = struct.pack(">iiiibiiih", -1, 0, 1, 1 << 24, 0, 0, -1, 1, 1) + b"t"
    rows = b"".join(struct.pack(">iiqqi", one, -1, 0, -1, BATCH_BYTES) for one in range(partitions))
    return framed(
        ApiKey.FETCH, 11, head + struct.pack(">i", partitions) + rows + struct.pack(">ih", 0, 0)
    )


def commit(group: str) -> bytes:
    """Return an OffsetCommit of one offset, by who is no member of the group."""
    name = group.encode()
    head = struct.pack(f">h{len(name)}sihqi", len(name), name, -1, 0, -1, 1)
    return framed(ApiKey.OFFSET_COMMIT, 2, head + struct.pack(">h1siiqh", 1, b"t", 1, 0, 5, -1))


def connected(listener: KafkaListener) -> tuple[KafkaConnection, Transport]:
    """Return a connection of a client without a socket."""
    connection, transport = listener._make(), Transport()
    connection.connection_made(transport)
    return connection, transport


async def spent(
    connection: KafkaConnection,
    transport: Transport,
    requests: Sequence[bytes],
    in_flight: int = IN_FLIGHT,
) -> float:
    """Return the seconds of processor time of the loop's thread for each of some requests."""
    wanted, done = transport.answers + len(requests), asyncio.Event()
    left, unread = iter(requests), deque[memoryview]()

    def receive() -> None:
        while unread and not transport.is_paused:
            space = connection.get_buffer(-1)
            count = min(len(space), len(unread[0]))
            space[:count] = unread[0][:count]
            unread[0] = unread[0][count:]
            if not unread[0]:
                unread.popleft()
            connection.buffer_updated(count)

    def send() -> None:
        raw = next(left, None)
        if raw is not None:
            unread.append(memoryview(raw))
            receive()
        if transport.answers == wanted:
            done.set()

    transport.when_answered = lambda: asyncio.get_running_loop().call_soon(send) and None
    transport.when_resumed = receive
    began = time.thread_time()
    for _ in range(in_flight):
        send()
    await done.wait()
    return (time.thread_time() - began) / len(requests)


async def spent_on_commits(
    clients: Sequence[tuple[KafkaConnection, Transport]], each: int
) -> float:
    """Return the same for each commit of clients that commit at the same time."""
    began = time.thread_time()
    commits = [[commit(f"group-{number}")] * each for number in range(len(clients))]
    await asyncio.gather(
        *(spent(*one, asked, 1) for one, asked in zip(clients, commits, strict=True))
    )
    return (time.thread_time() - began) / (each * len(clients))


def known_loop() -> float:
    """Return the seconds of processor time of a hundredth of a loop of known cost."""
    began, values = time.thread_time(), dict[int, tuple[int, str]]()
    for number in range(KNOWN_LOOPS):
        values[number & 1_023] = (number, str(number))
    return (time.thread_time() - began) / KNOWN_LOOPS * 100


async def measure(listener: KafkaListener, requests: int, size: int) -> None:
    """Print what each kind of request costs."""
    connection, transport = connected(listener)
    produces = [produce(size, number % PARTITIONS) for number in range(requests)]
    await spent(connection, transport, [produce(BATCH_BYTES, 0)])  # the first frame must be small
    await spent(connection, transport, produces[: PARTITIONS * 2])
    found = dict[str, tuple[float, float]]()

    async def note(name: str, measured: Callable[[], Awaitable[float]]) -> None:
        for _ in range(ROUNDS):
            known, seconds = known_loop(), await measured()
            found[name] = min(found.get(name, (seconds, known)), (seconds, known))

    await note("produce, one batch", partial(spent, connection, transport, produces))
    for count in FETCHED_TOGETHER:
        asked = [fetch(count)] * (requests // count)
        await note(f"fetch, partitions: {count}", partial(spent, connection, transport, asked))
    clients = [connected(listener) for _ in range(COMMITTERS)]
    each = max(1, requests // COMMITTERS)
    await spent_on_commits(clients, each)
    await note("offset commit", partial(spent_on_commits, clients, each))
    for name, (seconds, known) in found.items():
        print(f"{name:24} {seconds * 1e6:8.1f} µs {seconds / known:8.2f} known loops")


async def main(requests: int, size: int) -> None:
    """Start a node with a topic, and measure."""
    with tempfile.TemporaryDirectory() as directory:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
        peers = f"n0-127.0.0.1:{port}"
        group = GroupConfig(group=CLUSTER_GROUP, kind="cluster", peers=peers)
        config = NodeConfig(
            self_id="n0", store_base_dir=directory, groups=[group], kafka_listen="127.0.0.1:0"
        )
        broker = Broker(config)
        node = Node(config, ClientRequests, broker.attachments)
        await node.start()
        broker.start(node)
        listener = kafka_listener(node, broker)
        await serve_kafka(node, broker, listener)
        topic_id = os.urandom(16)
        await broker.until(lambda: broker.broker_id >= 0, WITHIN_MS)
        await broker.execute(CreateTopics([NewTopic("t", topic_id, PARTITIONS)]), WITHIN_MS)
        await broker.wait_open([topic_id], WITHIN_MS)
        await measure(listener, requests, size)
        await listener.stop()
        broker.stop()
        await node.stop()


if __name__ == "__main__":
    numbers = [int(one) for one in sys.argv[1:]]
    uvloop.run(main(*(numbers + [3_000, BATCH_BYTES][len(numbers) :])))
