"""A stranger's damaged requests: each is answered, or ends its connection, and nothing else."""

import asyncio
import random
from types import SimpleNamespace

import pytest

from kafka_mutations import damaged, request, requests
from quorumlog.broker.broker import Broker
from quorumlog.kafka.requests import ApiKey
from quorumlog.local.ports import free_ports
from quorumlog.machine.cluster.commands import CreateTopics, NewTopic
from quorumlog.model.config import CLUSTER_GROUP, GroupConfig, NodeConfig
from quorumlog.node.node import Node
from quorumlog.service.kafka_clients import kafka_listener, serve_kafka
from quorumlog.service.requests import ClientRequests
from scripted_cluster import passed
from small_files import SMALL_FILES, SMALL_SETTINGS

ROUNDS = 20
"""Damaged forms of each request in each version; `tests/torture/kafka_requests.py` tries more."""
TURNS = 50
"""Turns of the loop in which an answer is awaited before the stranger leaves."""
WITHIN_MS = 60_000


class Wire(asyncio.Transport):
    """The other side of a connection: what was sent to it, and whether it was closed."""

    def __init__(self):
        super().__init__()
        self.sent, self.is_closed = bytearray(), False

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def get_extra_info(self, name, default=None):
        return SimpleNamespace(setsockopt=lambda *_: None) if name == "socket" else default

    def write(self, data):
        self.sent += data

    def writelines(self, parts):
        for part in parts:
            self.sent += part

    def get_write_buffer_size(self):
        return 0

    def is_closing(self):
        return self.is_closed

    def is_reading(self):
        return True

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass

    def close(self):
        self.is_closed = True

    abort = close


class Stranger:
    """A connection without a socket."""

    def __init__(self, listener):
        self.wire = Wire()
        self.connection = listener._make()
        self.connection.connection_made(self.wire)

    def send(self, raw):
        while raw and not self.wire.is_closed:
            space = self.connection.get_buffer(-1)
            count = min(len(space), len(raw))
            space[:count] = raw[:count]
            self.connection.buffer_updated(count)
            raw = raw[count:]

    @property
    def is_answered(self):
        return self.wire.is_closed or bool(self.wire.sent)

    def leave(self):
        self.wire.is_closed = True
        self.connection.connection_lost(None)


@pytest.fixture
async def listener(memory_path):
    """The door of a node that is the only broker of a cluster with topic t."""
    (port,) = free_ports(1)
    peers = f"n0-127.0.0.1:{port}"
    group = GroupConfig(group=CLUSTER_GROUP, kind="cluster", peers=peers, **SMALL_FILES)
    config = NodeConfig(
        self_id="n0",
        store_base_dir=str(memory_path),
        groups=[group],
        kafka_listen="127.0.0.1:0",
        partition_groups=SMALL_SETTINGS,
    )
    broker = Broker(config)
    node = Node(config, ClientRequests, broker.attachments)
    await node.start()
    broker.start(node)
    listener = kafka_listener(node, broker, None)
    await serve_kafka(node, broker, listener)
    assert await broker.until(lambda: broker.broker_id >= 0 and broker.is_complete, WITHIN_MS)
    topic_id = bytes(range(16))
    await broker.execute(CreateTopics([NewTopic("t", topic_id, 2)]), WITHIN_MS)
    assert await broker.wait_open([topic_id], WITHIN_MS)
    yield listener
    await listener.stop()
    broker.stop()
    await node.stop(clean=False)


def failures(listener):
    return [one for one in listener.counters.requests if one[1] == "UNKNOWN_SERVER_ERROR"]


async def test_a_damaged_request_is_answered_or_ends_its_connection(listener):
    seeded = random.Random(1)
    for _ in range(ROUNDS):
        for key, version, frame in requests(seeded, ApiKey):
            stranger, raw = Stranger(listener), damaged(seeded, frame)
            stranger.send(raw)
            for _ in range(TURNS):  # a Fetch may wait for records, as long as it likes
                if stranger.is_answered:
                    break
                await asyncio.sleep(0)
            stranger.leave()
            assert not failures(listener), f"{key.name} {version}: {raw.hex()}"
    await passed(lambda: not listener._memory._held)
    assert not failures(listener)
    assert listener.connections == set()
    assert listener.shared.budgets.answers.used == 0


async def test_well_formed_requests_of_every_version_are_answered(listener):
    seeded = random.Random(1)
    for key, version, frame in requests(seeded, ApiKey):
        stranger = Stranger(listener)
        stranger.send(frame)
        if key == ApiKey.PRODUCE:  # those with acks = 0 have no answer; the next request has
            stranger.send(request(seeded, ApiKey.API_VERSIONS, 0))
        await passed(lambda one=stranger: one.is_answered)
        reason = stranger.connection.reason
        assert not reason or "acks=0 failed" in reason, f"{key.name} {version}: {reason}"
        stranger.leave()
    assert not failures(listener)
