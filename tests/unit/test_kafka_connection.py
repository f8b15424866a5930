"""Connections of Kafka clients: what is refused, in which order answers come, what is bounded."""

import asyncio
import logging
import struct

import pytest

from kafka_broker import GROUP, kafka_cluster
from kafka_client import connected, fetch_values, produce_request, until
from kafka_peer import answered, framed, sent
from quorumlog.kafka.counters import KafkaCounters
from quorumlog.kafka.frames import FIRST_FRAME_BYTES_MAX, FRAME_BYTES_MAX
from quorumlog.kafka.handlers.registry import HANDLERS
from quorumlog.kafka.memory import KafkaMemory
from quorumlog.kafka.requests import SPOKEN, ApiKey, RequestHeader
from quorumlog.log_events import EVENT_FIELDS
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import error_for
from quorumlog.model.limits import Limits
from quorumlog.model.wording import FOREIGN_LENGTH_MAX, TEXT_LENGTH_MAX
from quorumlog.transport import strangers
from quorumlog.transport.budget import RequestMemory
from quorumlog.transport.client_lines import CLIENTS_MAX, PAUSE_S, ClientLines
from quorumlog.transport.stream import TLS_ALERT
from record_batches import batch_of


@pytest.fixture
async def cluster(tmp_path):
    async with kafka_cluster(tmp_path) as cluster:
        await cluster.create_topic("t", 2)
        yield cluster


@pytest.fixture
async def client(cluster):
    async for one in connected(cluster):
        yield one


LONG = "x" * 32_760
VERSIONS = {"client_software_name": "x", "client_software_version": "1"}


def lines_of(caplog):
    return [
        getattr(record, EVENT_FIELDS)["reason"]
        for record in caplog.records
        if record.getMessage() == "closing the connection of a Kafka client"
    ]


def length(number):
    return number.to_bytes(4, "big", signed=True)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (length(0), "not the length of a first request"),
        (length(-1), "not the length of a first request"),
        (length(2**31 - 1), "not the length of a first request"),
        (length(FIRST_FRAME_BYTES_MAX + 1), "not the length of a first request"),
        (b"GET / HTTP/1.1\r\n", "an HTTP request"),
        (framed(b"\0"), "is no request, whose header has 8"),
        (framed(b"\0\3\0\0\0\0\0\7"), "header of a METADATA request"),
        (framed(b"\x03\xe7\0\0\0\0\0\7\xff\xff"), "API key 999 request, version 0 is not spoken"),
    ],
)
async def test_what_is_no_request_ends_the_connection_with_a_line(cluster, caplog, raw, text):
    async for client in connected(cluster):
        client.writer.write(raw)
        assert await client.reader.read() == b""
    (line,) = lines_of(caplog)
    assert text in line


async def test_a_tls_client_of_a_plain_port_is_told_by_an_alert(cluster, caplog):
    async for client in connected(cluster):
        client.writer.write(b"\x16\x03\x01\x02\x00\x01")
        assert await client.reader.read() == TLS_ALERT
    (line,) = lines_of(caplog)
    assert "a TLS handshake; set security.protocol=PLAINTEXT" in line


async def test_a_later_frame_above_the_bound_ends_the_connection(cluster, caplog):
    async for client in connected(cluster):
        await client.ask(ApiKey.API_VERSIONS, 3, **VERSIONS)
        client.writer.write(length(FRAME_BYTES_MAX + 1))
        assert await client.reader.read() == b""
    assert f"1 to {FRAME_BYTES_MAX} are taken" in lines_of(caplog)[0]


async def test_a_client_that_errs_again_and_again_has_one_line_a_minute(cluster, caplog):
    for _ in range(5):
        async for client in connected(cluster):
            client.writer.write(length(0))
            assert await client.reader.read() == b""
    assert len(lines_of(caplog)) == 1
    assert cluster.nodes[0].listener.counters.malformed == 5


async def test_a_client_that_says_nothing_is_closed(tmp_path):
    async with kafka_cluster(tmp_path, limits=Limits(handshake_ms=20)) as cluster:
        async for client in connected(cluster):
            assert await client.reader.read() == b""


async def test_a_request_may_come_byte_by_byte(client):
    for byte in sent(ApiKey.API_VERSIONS, 3, VERSIONS):
        client.writer.write(bytes((byte,)))
        await client.writer.drain()
        await asyncio.sleep(0)
    assert (await client.answer(ApiKey.API_VERSIONS, 3)).error_code == 0


async def test_thousands_of_requests_sent_at_once_are_answered_in_order(client):
    numbers = range(3_000)
    raw = sent(ApiKey.API_VERSIONS, 0, {})
    client.writer.write(b"".join(raw[:8] + length(number) + raw[12:] for number in numbers))
    for number in numbers:
        body = await client.frame()
        assert int.from_bytes(body[4:8], "big") == number


async def test_a_version_that_is_not_spoken_is_refused_and_the_connection_stays(
    cluster, client, caplog
):
    raw = bytearray(sent(ApiKey.API_VERSIONS, 3, VERSIONS))
    raw[6:8] = b"\0\x09"
    client.writer.write(raw)
    found = answered(RequestHeader(ApiKey.API_VERSIONS, 0, 7), await client.frame())
    assert (found.error_code, len(found.api_keys)) == (35, len(SPOKEN))
    assert caplog.messages == [], "clients negotiate versions like this"
    counted = cluster.nodes[0].listener.counters.requests
    assert counted["API_VERSIONS", "UNSUPPORTED_VERSION"] == 1
    assert (await client.ask(ApiKey.API_VERSIONS, 3, **VERSIONS)).error_code == 0


async def test_answers_come_in_the_order_of_their_requests(client):
    values = fetch_values(0, wait_ms=50)
    client.writer.write(sent(ApiKey.FETCH, 12, values, correlation_id=1))
    client.writer.write(produce_request(batch_of(range(1))))
    client.writer.write(sent(ApiKey.API_VERSIONS, 0, {}, correlation_id=3))
    numbers = [int.from_bytes((await client.frame())[4:8], "big") for _ in range(3)]
    assert numbers == [1, 7, 3]


async def test_batches_are_proposed_before_earlier_ones_are_answered(cluster, client):
    client.writer.write(produce_request(batch_of(range(2))) * 50)
    answers = [await client.answer(ApiKey.PRODUCE, 9) for _ in range(50)]
    offsets = [one.responses[0].partition_responses[0].base_offset for one in answers]
    assert offsets == list(range(0, 100, 2))
    assert cluster.nodes[0].listener.counters.requests["PRODUCE", "NONE"] == 50


async def test_requests_are_held_until_the_broker_knows_all_topics(cluster, client):
    broker = cluster.nodes[0].broker
    broker.is_complete = False
    assert (await client.ask(ApiKey.API_VERSIONS, 3, **VERSIONS)).error_code == 0
    waiting = asyncio.create_task(client.produce(batch_of(range(1))))
    services = cluster.nodes[0].listener._services
    await until(lambda: services.held)
    broker.is_complete = True
    cluster.known.changed()
    assert [one.error_code for one in await waiting] == [0]


@pytest.mark.parametrize("refusal", ["n50 cannot be a broker", ""])
async def test_requests_that_are_held_in_vain_or_for_too_long_end_their_connection(
    cluster, caplog, monkeypatch, refusal
):
    broker = cluster.nodes[0].broker
    broker.is_complete = False
    services = cluster.nodes[0].listener._services
    async for client in connected(cluster):
        client.writer.write(produce_request(batch_of(range(1))))
        await until(lambda: services.held)
        for queue in services.held.copy():
            queue.end_if_in_vain()
        assert services.held, "not yet"
        broker.refusal = refusal
        monkeypatch.setattr("quorumlog.kafka.request_queue.HELD_S", 60.0 if refusal else 0.0)
        assert await client.reader.read() == b""
        assert not services.held
    (line,) = lines_of(caplog)
    assert refusal or "did not learn within 0 s which topics there are" in line
    assert refusal in line


async def test_a_handler_that_raises_answers_with_an_error_and_a_line(client, monkeypatch, caplog):
    async def broken(context, request):
        raise ZeroDivisionError("a bug")

    async def refused(context, request):
        raise error_for(ResponseCode.DISK_FULL, "full")

    values = {"transactional_id": None, "transaction_timeout_ms": 1}
    values |= {"producer_id": -1, "producer_epoch": -1}
    monkeypatch.setitem(HANDLERS, ApiKey.INIT_PRODUCER_ID, broken)
    assert (await client.ask(ApiKey.INIT_PRODUCER_ID, 4, **values)).error_code == -1
    assert "handling a request of a Kafka client failed" in caplog.messages
    monkeypatch.setitem(HANDLERS, ApiKey.INIT_PRODUCER_ID, refused)
    assert (await client.ask(ApiKey.INIT_PRODUCER_ID, 4, **values)).error_code == 56
    assert (await client.produce(batch_of(range(1))))[0].error_code == 0


async def test_a_produce_handler_that_raises_does_not_stop_the_node(client, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("quorumlog.kafka.handlers.produce.check_batch", None)
        client.writer.write(produce_request(batch_of(range(1))))
        found = await client.answer(ApiKey.PRODUCE, 9)
        assert found.responses[0].partition_responses[0].error_code == -1
    assert (await client.produce(batch_of(range(1))))[0].error_code == 0


async def test_a_client_has_one_traceback_a_minute(client, monkeypatch, caplog):
    with monkeypatch.context() as patched:
        patched.setattr("quorumlog.kafka.handlers.produce.check_batch", None)
        for _ in range(5):
            assert (await client.produce(batch_of(range(1))))[0].error_code == -1
    assert caplog.messages.count("handling a request of a Kafka client failed") == 1


async def test_a_failed_produce_that_wants_no_answer_ends_the_connection(cluster, monkeypatch):
    monkeypatch.setattr("quorumlog.kafka.handlers.produce.check_batch", None)
    async for client in connected(cluster):
        client.writer.write(produce_request(batch_of(range(1)), acks=0))
        assert await client.reader.read() == b""


async def test_an_answer_that_cannot_be_written_does_not_stop_the_replica(
    cluster, client, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr("quorumlog.kafka.handlers.produce.produce_answer", None)
        assert (await client.produce(batch_of(range(1))))[0].error_code == -1
    assert not cluster.nodes[0].node.replicas[GROUP].is_broken
    assert (await client.produce(batch_of(range(1))))[0].base_offset == 1


async def test_a_batch_for_a_topic_with_a_very_long_name_does_not_stop_the_replica(cluster, client):
    batch = bytes(batch_of(range(1)))
    topics = [
        {"name": name, "partition_data": [{"index": 0, "records": batch}]} for name in ("t", LONG)
    ]
    values = {"transactional_id": None, "acks": -1, "timeout_ms": 10_000, "topic_data": topics}
    found = await client.ask(ApiKey.PRODUCE, 8, **values)
    (good,), (bad,) = (one.partition_responses for one in found.responses)
    assert (good.error_code, bad.error_code) == (0, 17)
    assert bad.error_message.startswith("a topic's name has at most 249 characters")
    assert len(bad.error_message) <= TEXT_LENGTH_MAX
    assert (await client.produce(batch))[0].base_offset == 1


@pytest.mark.parametrize(
    ("key", "version", "values"),
    [
        (
            ApiKey.DESCRIBE_CONFIGS,
            1,
            {
                "resources": [
                    {"resource_type": 2, "resource_name": LONG, "configuration_keys": None}
                ],
                "include_synonyms": False,
            },
        ),
        (
            ApiKey.ALTER_CONFIGS,
            0,
            {
                "resources": [{"resource_type": 2, "resource_name": LONG, "configs": []}],
                "validate_only": False,
            },
        ),
        (
            ApiKey.DELETE_TOPICS,
            5,
            {"topic_names": [LONG], "timeout_ms": 1},
        ),
        (
            ApiKey.CREATE_TOPICS,
            4,
            {
                "topics": [
                    {
                        "name": LONG,
                        "num_partitions": 1,
                        "replication_factor": 1,
                        "assignments": [],
                        "configs": [],
                    }
                ],
                "timeout_ms": 1,
                "validate_only": True,
            },
        ),
    ],
)
async def test_a_very_long_name_is_refused_in_a_short_text(client, caplog, key, version, values):
    found = await client.ask(key, version, **values)
    answers = next(
        getattr(found, name)
        for name in ("results", "responses", "topics")
        if getattr(found, name, None)
    )
    assert answers[0].error_code not in (0, -1)
    if key != ApiKey.DELETE_TOPICS:
        assert 0 < len(answers[0].error_message) <= TEXT_LENGTH_MAX
    assert "handling a request of a Kafka client failed" not in caplog.messages
    lines = [getattr(one, EVENT_FIELDS) for one in caplog.records if hasattr(one, EVENT_FIELDS)]
    assert all(len(text) <= TEXT_LENGTH_MAX for line in lines for text in map(str, line.values()))


def test_clients_with_ever_other_names_have_a_bounded_number_of_lines_a_minute(caplog):
    now = [0.0]
    lines = ClientLines(logging.getLogger("quorumlog.test"), lambda: now[0])
    for _ in range(2):
        for number in range(2 * CLIENTS_MAX):
            lines.warn("it errs", f"{number}", "127.0.0.1:1", reason="r")
        now[0] += PAUSE_S
    assert caplog.messages.count("it errs") == 2 * CLIENTS_MAX
    lines.warn("another", "x", "127.0.0.1:1", reason="r")
    assert caplog.messages.count("another") == 1


def test_clients_that_err_keep_no_fault_of_this_node_out_of_the_log(caplog):
    lines = ClientLines(logging.getLogger("quorumlog.test"), lambda: 0.0)
    for number in range(CLIENTS_MAX):
        lines.warn("it errs", f"{number}", "127.0.0.1:1", reason="r")
    lines.fault("a fault", "0", "127.0.0.1:1", ZeroDivisionError("a bug"))
    assert "a fault" in caplog.messages


async def test_a_client_that_does_not_read_its_answers_is_served_no_further(cluster):
    batch = batch_of(range(1), value=bytes(900_000))
    asked = 40  # far more than the buffers of sockets take
    async for client in connected(cluster):
        await client.ask(ApiKey.API_VERSIONS, 3, **VERSIONS)
        await client.produce(batch)
        (connection,) = cluster.nodes[0].listener.connections
        values = fetch_values(0)
        client.writer.transport.pause_reading()
        client.writer.write(sent(ApiKey.FETCH, 12, values) * asked)
        await until(lambda one=connection: not one.is_read_by_client)
        assert connection.outbox_bytes < 3 * len(batch)
        assert connection.answered < asked
        client.writer.transport.resume_reading()
        for _ in range(asked):
            assert len(await client.frame()) > len(batch)


class Holder:
    def __init__(self):
        self.changes = 0

    def memory_changed(self):
        self.changes += 1


def test_while_memory_is_short_those_that_hold_most_are_not_read():
    counters = KafkaCounters()
    memory = KafkaMemory(RequestMemory(100), counters)
    small, large = Holder(), Holder()
    memory.hold(small, 30)
    memory.hold(large, 60)
    assert not memory.is_paused(large)
    memory.hold(small, 20)
    assert memory.is_paused(large)
    assert not memory.is_paused(small)
    assert (large.changes, counters.paused, counters.request_bytes) == (1, 1, 110)
    memory.release(large, 30)
    assert memory.is_paused(large)
    memory.release(small, 10)
    assert not memory.is_paused(large)
    assert large.changes == 2


async def test_a_connection_that_ends_releases_what_it_held(cluster):
    memory = cluster.nodes[0].listener._memory
    async for client in connected(cluster):
        client.writer.write(sent(ApiKey.FETCH, 12, fetch_values(0, wait_ms=300_000)))
        client.writer.write(produce_request(batch_of(range(1))))
        await until(lambda: memory._held)
        client.writer.transport.abort()
    await until(lambda: not cluster.nodes[0].listener.connections)
    assert memory._held == {}


async def test_what_a_stranger_calls_itself_is_text_in_one_line_a_minute(cluster, caplog):
    for number in range(3):
        async for client in connected(cluster):
            name = f"{number}\x1b[2J\r\n\u202e" + "y" * 1_000
            raw = name.encode()
            head = struct.pack(">hhih", ApiKey.METADATA, 1, number, len(raw)) + raw
            client.writer.write(struct.pack(">i", len(head) + 1) + head + b"\xff")
            assert await client.reader.read() == b""
    event = "closing the connection of a Kafka client"
    (line,) = [record for record in caplog.records if record.message == event]
    said = getattr(line, EVENT_FIELDS)
    assert said["client"].startswith("0\\x1b")
    assert all(str(value).isprintable() for value in said.values())
    assert all(len(str(value)) <= FOREIGN_LENGTH_MAX for value in said.values())


async def test_silent_strangers_of_several_hosts_leave_room_for_others(tmp_path, monkeypatch):
    """They wait for their turn in a quarter of the places, and make room before all others."""
    monkeypatch.setattr(strangers, "CHECK_S", 3_600)
    limits = Limits(kafka_connections_max=16, strangers_per_address_max=1)
    api_versions = struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, 1, -1)
    async with kafka_cluster(tmp_path, limits=limits) as cluster, asyncio.timeout(60):
        listener, writers = cluster.nodes[0].listener, []

        async def come(host):
            where = {"local_addr": (host, 0)}
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, **where)
            writers.append(writer)
            return reader, writer

        silent = [await come(f"127.0.0.{2 + number % 4}") for number in range(24)]
        await until(lambda: listener.transport_counters.accepted == len(silent))
        assert listener.shared.strangers.waiting == limits.kafka_connections_max // 4
        for number in range(12):
            reader, writer = await come(f"127.0.0.{10 + number}")
            writer.write(api_versions)
            assert (await reader.readexactly(8))[4:] == struct.pack(">i", 1)
        assert listener.transport_counters.refused_places == 0
        ends = await asyncio.gather(
            *(reader.read() for reader, _ in silent), return_exceptions=True
        )
        assert all(end == b"" or isinstance(end, ConnectionError) for end in ends)
        for writer in writers:
            writer.close()
