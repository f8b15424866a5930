"""A stranger's damaged requests: each is answered, or ends its connection, and nothing else."""

import asyncio
import random
from types import SimpleNamespace

import pytest

from kafka_broker import kafka_cluster
from kafka_mutations import damaged, request, requests
from quorumlog.kafka.requests import ApiKey
from scripted_cluster import passed

ROUNDS = 20
"""Damaged forms of each request in each version; `tests/torture/kafka_requests.py` tries more."""
TURNS = 50
"""Turns of the loop in which an answer is awaited before the stranger leaves."""
KEYS = (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.API_VERSIONS, ApiKey.INIT_PRODUCER_ID)


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
async def node(tmp_path):
    async with kafka_cluster(tmp_path) as cluster:
        await cluster.create_topic("t")
        yield cluster.nodes[await cluster.leader()]


def failures(listener):
    return [one for one in listener.counters.requests if one[1] == "UNKNOWN_SERVER_ERROR"]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
async def test_a_damaged_request_is_answered_or_ends_its_connection(node, key):
    seeded = random.Random(int(key))
    listener = node.listener
    for _ in range(ROUNDS):
        for _, version, frame in requests(seeded, [key]):
            stranger, raw = Stranger(listener), damaged(seeded, frame)
            stranger.send(raw)
            for _ in range(TURNS):  # a Fetch may wait for records, as long as it likes
                if stranger.is_answered:
                    break
                await asyncio.sleep(0)
            stranger.leave()
            assert not failures(listener), f"version {version}: {raw.hex()}"
    await passed(lambda: not listener._memory._held)
    assert not failures(listener)
    assert listener.connections == set()
    assert listener.shared.budgets.answers.used == 0


async def test_well_formed_requests_of_every_version_are_answered(node):
    seeded = random.Random(1)
    for key, version, frame in requests(seeded, KEYS):
        stranger = Stranger(node.listener)
        stranger.send(frame)
        if key == ApiKey.PRODUCE:  # those with acks = 0 have no answer; the next request has
            stranger.send(request(seeded, ApiKey.API_VERSIONS, 0))
        await passed(lambda one=stranger: one.is_answered)
        reason = stranger.connection.reason
        assert not reason or "acks=0 failed" in reason, f"{key.name} {version}: {reason}"
        stranger.leave()
    assert not failures(node.listener)
