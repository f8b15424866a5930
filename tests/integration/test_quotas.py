"""Quotas of a node that runs: clients above theirs become slow, and lose nothing."""

import asyncio

import confluent_kafka
import pytest

from kafka_client import until
from login_cluster import SECONDS, login_node
from quorumlog.auth.quotas import CONSUMED, PRODUCED, REQUEST_RATE, checked_entity
from quorumlog.client import connection as connections
from quorumlog.client.client import Client
from quorumlog.client.producer import Producer
from quorumlog.client.silence_watch import GONE_S
from quorumlog.machine.cluster.commands import AlterQuotas, QuotaChange
from quorumlog.model.codes import ResponseCode
from quorumlog.model.features import SECURITY
from quorumlog.model.limits import DEFAULT_LIMITS

LOG = "log"
RATE = 9_000
"""Less than one entry has: whoever appends one, or reads it, has to wait on any machine."""
BODY = b"x" * 10_000
ENTRIES = 3
PLACES = 5
"""More connections than a client makes to a node."""


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with login_node(tmp_path_factory.mktemp("quotas"), groups=[LOG], login="none") as node:
        yield node


@pytest.fixture
def limit(node):
    """Set quotas, which count until the test is over."""
    given = []

    def alter(entity, key, value):
        change = QuotaChange(checked_entity(entity.items()), key, value)
        node.run(node.broker.execute(AlterQuotas("User:admin", "", [change]), SECONDS * 1000))

    def limit(key, value, **entity):
        parts = {name.replace("_", "-"): one for name, one in entity.items()}
        alter(parts, key, value)
        given.append((parts, key))

    yield limit
    for parts, key in given:
        alter(parts, key, None)


def waits(node, key):
    return node.served._kafka.throttles.counters.waits[key]


def producer(node, **settings):
    return confluent_kafka.Producer({"bootstrap.servers": node.kafka, "linger.ms": 5, **settings})


def produce(node, topic, **settings):
    """Produce records; return the errors of their delivery."""
    errors = []
    one = producer(node, **settings)
    for number in range(ENTRIES):
        one.produce(
            topic,
            BODY,
            str(number),
            partition=0,
            on_delivery=lambda error, _: errors.append(error),
        )
    assert one.flush(SECONDS) == 0
    return errors


def test_a_producer_of_kafka_above_its_quota_is_told_so_and_delivers_all(node, limit):
    limit(PRODUCED, RATE, client_id="slow")
    told = []
    errors = produce(
        node,
        "produced",
        **{"client.id": "slow", "batch.size": 50_000, "throttle_cb": told.append},
    )
    assert errors == [None] * ENTRIES
    assert max(one.throttle_time for one in told) > 0
    before = waits(node, PRODUCED)
    assert before > 0
    assert produce(node, "produced", **{"client.id": "other"}) == [None] * ENTRIES
    assert waits(node, PRODUCED) == before, "a quota is of whom it was given to"


@pytest.mark.parametrize("address", ["127.0.0.1", None])
def test_an_address_above_its_quota_waits_on_both_ports(node, limit, address):
    limit(PRODUCED, RATE, ip=address)
    before = waits(node, PRODUCED)
    assert produce(node, f"of-{address}") == [None] * ENTRIES
    between = waits(node, PRODUCED)
    assert between > before
    asyncio.run(append_and_read(node, ENTRIES))
    assert waits(node, PRODUCED) > between


def test_a_consumer_of_kafka_above_its_quota_is_told_so_and_reads_all(node, limit):
    assert produce(node, "consumed") == [None] * ENTRIES
    limit(CONSUMED, RATE, client_id="slow reader")
    told = []
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": node.kafka,
            "group.id": "g",
            "client.id": "slow reader",
            "auto.offset.reset": "earliest",
            "throttle_cb": told.append,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition("consumed", 0, 0)])
    keys = []
    while len(keys) < ENTRIES:
        found = consumer.poll(SECONDS)
        assert found is not None, f"nothing came after {keys}"
        assert found.error() is None
        keys.append(int(found.key()))
    assert keys == list(range(ENTRIES))
    assert waits(node, CONSUMED) > 0
    while not told:
        consumer.poll(0.1)
    consumer.close()


async def append_and_read(node, count, **settings):
    """Append entries by a producer and read them; return the number of connections made."""
    counters = node.served.node.listener.counters
    before = counters.accepted
    async with Client([node.address], LOG, timeout_ms=SECONDS * 1000) as client:
        first = (await client.append(b"first")).index
        async with Producer(client, **{"batch_bytes": 50_000, **settings}) as producer:
            for number in range(count):
                await producer.send(BODY + b"%d" % number)
            await producer.flush()
            stats = producer.stats
        bodies = [one.body async for one in client.read(first + 1, follow=False)]
    assert bodies == [BODY + b"%d" % number for number in range(count)]
    assert stats.blocks_resent_after_unknown == stats.blocks_resent_after_refusal == 0
    return counters.accepted - before


def test_our_own_clients_wait_for_their_quotas_and_keep_their_connections(node, limit):
    unlimited = asyncio.run(append_and_read(node, ENTRIES))
    limit(PRODUCED, RATE, user="ANONYMOUS")
    limit(CONSUMED, RATE, user="ANONYMOUS")
    assert asyncio.run(append_and_read(node, ENTRIES)) == unlimited
    assert waits(node, PRODUCED) > 0
    assert waits(node, CONSUMED) > 0


def test_a_client_of_the_last_release_is_not_read_and_does_not_take_the_node_for_dead(
    node, limit, monkeypatch
):
    """It waits longer than it would for a node that says nothing (`GONE_S`)."""
    stated = connections.stating_versions
    monkeypatch.setattr(
        connections,
        "stating_versions",
        lambda hello: type(hello)(
            **{
                **{name: getattr(stated(hello), name) for name in hello.__struct_fields__},
                "features": SECURITY,
            }
        ),
    )
    settings = {"batch_bytes": len(BODY) + 1_000, "request_timeout_ms": SECONDS * 1000}
    unlimited = asyncio.run(append_and_read(node, 2, **settings))
    limit(PRODUCED, len(BODY) / (GONE_S + 1.5), user=None)
    assert asyncio.run(append_and_read(node, 2, **settings)) == unlimited


def test_requests_a_second_are_bounded_on_the_own_port(node, limit):
    limit(REQUEST_RATE, 0.9, user="ANONYMOUS")

    async def ask():
        async with Client([node.address], LOG, timeout_ms=SECONDS * 1000) as client:
            for number in range(2):
                await client.append(b"%d" % number)

    before = waits(node, REQUEST_RATE)
    asyncio.run(ask())
    assert waits(node, REQUEST_RATE) > before


# -- connections --------------------------------------------------------------------------------


def refused(node):
    return node.served._kafka.admissions.refused


async def connected(node, count, timeout_ms):
    """Have clients ask something by the own port, all at once; return the errors."""
    clients = [Client([node.address], LOG, timeout_ms=timeout_ms) for _ in range(count)]
    asked = [client.append(b"one of many") for client in clients]
    found = await asyncio.gather(*asked, return_exceptions=True)
    for client in clients:
        await client.close()
    return [one for one in found if isinstance(one, Exception)]


def test_an_address_has_so_many_connections_to_both_ports(node, limit):
    limit("connections", 3, ip="127.0.0.1")
    errors = asyncio.run(connected(node, 5, timeout_ms=1_500))
    assert len(errors) >= 2
    assert refused(node)["address_connections"] >= 2
    assert asyncio.run(connected(node, 1, timeout_ms=SECONDS * 1000)) == [], "they have ended"


async def opened(node):
    """Return an open connection to the own port."""
    one = connections.ServerConnection(node.address, "", DEFAULT_LIMITS, group=LOG)
    await one.open(SECONDS)
    return one


async def test_a_producer_waits_for_a_place_of_its_address(node, limit):
    admissions = node.served._kafka.admissions
    await until(lambda: not admissions._open)
    limit("connections", PLACES, ip=None)
    held = [await opened(node) for _ in range(PLACES)]
    before = admissions.refused["address_connections"]
    client = Client([node.address], LOG, timeout_ms=SECONDS * 1000)
    async with client, Producer(client) as producer:
        sent = await producer.send(BODY)
        await until(lambda: admissions.refused["address_connections"] > before)
        for one in held:
            one.close()
        assert (await sent).index >= 0


async def test_a_client_hears_that_its_user_has_too_many(node, limit):
    """A request that is on its way did not happen then, and may be sent again."""
    admissions = node.served._kafka.admissions
    await until(lambda: not admissions._open)
    limit("connections", 1, user=None)
    held, refused = await opened(node), (await opened(node)).transport
    await until(lambda: refused.reason)
    assert "ANONYMOUS has used up its quota: connections 1" in refused.reason
    assert refused.refused_with == ResponseCode.UNEXPECTED_MEMBER
    held.close()


async def kafka_connections(node, count):
    """Connect to the port for Kafka's clients; return how many were closed at once.

    Those of earlier tests have ended first.
    """
    of_earlier_tests = node.served._kafka.admissions._open
    await until(lambda: not of_earlier_tests)
    host, port = node.kafka.split(":")
    opened = [await asyncio.open_connection(host, port) for _ in range(count)]
    ask = (18).to_bytes(2, "big") + bytes(6) + b"\xff\xff"
    answers = []
    for _, writer in opened:
        writer.write(len(ask).to_bytes(4, "big") + ask)
    for reader, _ in opened:
        try:
            answers.append(await reader.read(4))
        except ConnectionError:
            answers.append(b"")
    for _, writer in opened:
        writer.close()
    return answers.count(b"")


def test_a_user_has_so_many_connections(node, limit):
    limit("connections", 2, user="ANONYMOUS")
    assert asyncio.run(kafka_connections(node, 5)) == 3
    assert refused(node)["user_connections"] >= 3


def test_an_address_makes_so_many_connections_a_second(node, limit):
    limit("connection_creation_rate", 0.001, ip=None)
    assert asyncio.run(kafka_connections(node, 5)) == 4
    assert refused(node)["address_rate"] == 4
