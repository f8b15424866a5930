"""Quotas of Kafka's clients: what a client is told, and when its requests are begun."""

import time
from types import SimpleNamespace

import pytest

from kafka_broker import kafka_cluster
from kafka_client import connected, fetch_values, produce_request, until
from kafka_peer import MESSAGES, SPOKEN_VERSIONS, answered, sent
from quorumlog.auth.quotas import CONSUMED, PRODUCED, REQUEST_RATE, checked_entity
from quorumlog.kafka import listener as listeners
from quorumlog.kafka import throttling
from quorumlog.kafka.codec import encode_response, with_throttle_time
from quorumlog.kafka.fetch import FetchedPartition, FetchedTopic, fetch_answer
from quorumlog.kafka.produce import ProducedPartition, produce_answer
from quorumlog.kafka.requests import SPOKEN, ApiKey, RequestHeader
from record_batches import batch_of

RATE = 500
SIZE = 5_000


class Clock:
    """Stands still until a test moves it."""

    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now

    def wait(self, ms):
        """Let a time pass, and a moment for what floats lose."""
        self.now += ms / 1000 + 1e-6


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(listeners, "time", SimpleNamespace(monotonic=clock, time=time.time))
    monkeypatch.setattr(throttling, "STEP_S", 0.001)
    return clock


@pytest.fixture
async def cluster(tmp_path, clock):
    async with kafka_cluster(tmp_path) as cluster:
        await cluster.create_topic("t", 1)
        yield cluster


@pytest.fixture
async def client(cluster):
    async for one in connected(cluster):
        yield one


@pytest.fixture
async def other(cluster):
    async for one in connected(cluster):
        yield one


def throttles_of(cluster):
    return cluster.nodes[0].listener._services.throttles


def limit(cluster, key, value, **entity):
    parts = (entity or {"user": "ANONYMOUS"}).items()
    throttles_of(cluster).use({checked_entity(parts): {key: value}})


def connections(cluster):
    return list(cluster.nodes[0].listener.connections)


def large_batch():
    return batch_of([1], value=b"x" * SIZE)


async def told_by_produce(client):
    return (await client.answer(ApiKey.PRODUCE, 9)).throttle_time_ms


async def fetched(client, offset):
    """Return the records and the high watermark of partition 0, and the throttle time."""
    found = await client.ask(ApiKey.FETCH, 12, **fetch_values(offset))
    partition = found.responses[0].partitions[0]
    return bytes(partition.records or b""), partition.high_watermark, found.throttle_time_ms


@pytest.mark.parametrize(("key", "version"), SPOKEN_VERSIONS)
def test_every_answer_that_has_a_throttle_time_tells_it(key, version):
    is_flexible = version >= SPOKEN[key].first_flexible
    header = RequestHeader(key, version, 7, body=1, is_flexible=is_flexible)
    if key == ApiKey.FETCH:
        topic = FetchedTopic("t", bytes(range(16)), [FetchedPartition(0, records=[b"r" * SIZE])])
        before = fetch_answer(header, [topic])
    elif key == ApiKey.PRODUCE:
        before = [produce_answer(header, [("t", [ProducedPartition(0)])])]
    else:
        before = [encode_response(header, {})]
    after = with_throttle_time(header, before, 12_345)
    found = answered(header, b"".join(after))
    names = [one.name for one in MESSAGES[key, False]._struct.untagged_fields(version)]
    if "throttle_time_ms" in names:
        assert found.throttle_time_ms == 12_345
        assert b"".join(with_throttle_time(header, after, 0)) == b"".join(before)
    else:
        assert after is before


async def test_a_producer_above_its_quota_is_told_to_wait_and_is_not_read_until_then(
    cluster, client, clock
):
    limit(cluster, PRODUCED, RATE)
    request = produce_request(large_batch())
    client.writer.write(request)
    told = await told_by_produce(client)
    assert told == (len(request) - 4 - RATE) * 1000 // RATE
    (connection,) = connections(cluster)
    assert connection.is_kept_waiting
    client.writer.write(sent(ApiKey.API_VERSIONS, 3, {"client_software_name": "x",
                                                      "client_software_version": "1"}))  # fmt: skip
    clock.wait(told - 1)
    connection._queue._throttling._look()
    assert connection.is_kept_waiting
    clock.wait(1)
    found = await client.answer(ApiKey.API_VERSIONS, 3)
    assert (found.error_code, found.throttle_time_ms) == (0, 0)
    counters = throttles_of(cluster).counters
    assert counters.waits[PRODUCED] == 1
    assert counters.seconds[PRODUCED] == pytest.approx(told / 1000)


async def test_names_of_clients_are_counted_for_each_user_and_connection_once(
    cluster, client, other
):
    """Whoever calls himself as others do uses up nothing of theirs, nor room for their debts."""
    limit(cluster, REQUEST_RATE, 1_000, **{"client-id": None})
    for number in range(5):
        request = sent(ApiKey.API_VERSIONS, 3, {"client_software_name": "x",
                       "client_software_version": "1"}, client_id=f"name{number}")  # fmt: skip
        client.writer.write(request)
        await client.answer(ApiKey.API_VERSIONS, 3)
    owners = list(throttles_of(cluster).buckets._known)
    assert [owner[:2] for owner in owners] == [(REQUEST_RATE, "ANONYMOUS")]


async def test_requests_sent_at_once_are_served_one_after_the_other_and_none_is_lost(
    cluster, client, clock
):
    limit(cluster, PRODUCED, RATE)
    request = produce_request(large_batch())
    client.writer.write(request * 3)
    for count in (1, 2, 3):
        told = await told_by_produce(client)
        assert told > 0
        assert cluster.nodes[0].listener.counters.requests["PRODUCE", "NONE"] == count
        clock.wait(told)
    _, high_watermark, _ = await fetched(client, 0)
    assert high_watermark == 3


async def test_a_producer_that_wants_no_answers_is_held_back_too(cluster, client, clock):
    limit(cluster, PRODUCED, RATE)
    client.writer.write(produce_request(large_batch(), acks=0))
    (connection,) = connections(cluster)
    await until(lambda: connection._queue.is_muted)
    clock.wait(10_000 * SIZE / RATE)
    await until(lambda: not connection._queue.is_muted)
    assert (await client.produce(large_batch()))[0].base_offset == 1


async def test_a_fetch_gets_what_is_left_but_a_whole_batch_and_then_nothing_for_a_while(
    cluster, client, other, clock
):
    for _ in range(3):
        await client.produce(large_batch())
    limit(cluster, CONSUMED, RATE)
    records, high_watermark, told = await fetched(client, 0)
    assert SIZE < len(records) < 2 * SIZE, "one batch, though the quota is smaller than it"
    assert (high_watermark, told) == (3, (len(records) - RATE) * 1000 // RATE)
    assert await fetched(other, 1) == (b"", 3, told), "all clients of the user share it"
    clock.wait(told)  # both have looked at it before one has used up what there is
    await until(lambda: not any(one._queue.is_muted for one in connections(cluster)))
    found = await fetched(other, 1)
    assert len(found[0]) == len(records)
    assert found[2] > 0
    assert await fetched(client, 1) == (b"", 3, found[2])


async def test_a_fetch_has_no_more_batches_than_the_quota_has_room_for(cluster, client):
    for _ in range(5):
        await client.produce(large_batch())
    limit(cluster, CONSUMED, int(2.5 * SIZE))
    records, _, told = await fetched(client, 0)
    assert 2 * SIZE < len(records) < 3 * SIZE
    assert told == 0


async def test_a_client_has_so_many_requests_a_second(cluster, client, clock):
    limit(cluster, REQUEST_RATE, 2, user=None)
    told = [(await client.ask(ApiKey.API_VERSIONS, 3, client_software_name="x",
                              client_software_version="1")).throttle_time_ms
            for _ in range(3)]  # fmt: skip
    assert told == [0, 0, 500]
    clock.wait(500)
    assert (await client.ask(ApiKey.METADATA, 3, topics=[])).throttle_time_ms == 500


async def test_who_waits_goes_on_when_the_quota_is_taken_away(cluster, client):
    limit(cluster, PRODUCED, RATE)
    client.writer.write(produce_request(large_batch()))
    assert await told_by_produce(client) > 0
    throttles_of(cluster).use({})
    assert (await client.produce(large_batch()))[0].base_offset == 1


async def test_an_answer_without_room_for_it_is_left_as_it_is(cluster, client, clock):
    limit(cluster, REQUEST_RATE, 1)
    await client.ask(ApiKey.METADATA, 0, topics=[])
    assert (await client.ask(ApiKey.METADATA, 0, topics=[])).brokers
    (connection,) = connections(cluster)
    assert connection.is_kept_waiting


async def test_a_connection_that_ends_while_it_waits_leaves_nothing_behind(cluster, client):
    limit(cluster, PRODUCED, RATE)
    client.writer.write(produce_request(large_batch()) * 3)
    await told_by_produce(client)
    (connection,) = connections(cluster)
    client.writer.close()
    connection.abort("for this test")
    await until(lambda: not connections(cluster))
    assert connection._queue._throttling._timer.cancelled()
    assert cluster.nodes[0].listener._memory._total.used == 0
