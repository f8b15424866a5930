"""What Kafka clients are answered: a node in the program of the test, and kafka-python's codec."""

import asyncio
import threading
from contextlib import AsyncExitStack, aclosing
from uuid import UUID, uuid4

import pytest
from crc32c import crc32c

from kafka_broker import GROUP, kafka_cluster
from kafka_client import connected, fetch_values, produce_request, until
from quorumlog.kafka.connection import KafkaConnection
from quorumlog.kafka.context import ELEMENTS_PER_TURN, RequestContext
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.frames import FrameReader
from quorumlog.kafka.handlers.fetch import GATHERED_BYTES_MAX, gathered
from quorumlog.kafka.requests import ApiKey, RequestHeader
from quorumlog.model.block import HEADER_SIZE
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import error_for
from quorumlog.model.limits import Limits
from quorumlog.node.replica.partition_reads import BATCHES_PER_READ_MAX
from quorumlog.records.batch import batch_header
from quorumlog.topics.produced_batch import block_around
from record_batches import batch_of


@pytest.fixture(autouse=True)
async def exceptions():
    """Fail a test in which the loop has met an exception that nobody took."""
    found = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    yield found
    assert found == []


@pytest.fixture
async def cluster(tmp_path):
    async with kafka_cluster(tmp_path) as cluster:
        await cluster.create_topic("t", 2)
        yield cluster


@pytest.fixture
async def client(cluster):
    async for one in connected(cluster):
        yield one


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


async def test_a_producer_asks_again_for_an_id_while_the_cluster_gives_none(cluster, client):
    async def allocate(count):
        raise error_for(ResponseCode.DISK_FULL, "the disk of node n0 is full")

    cluster.nodes[0].listener._services.producer_ids._allocate = allocate
    values = {"transactional_id": None, "transaction_timeout_ms": 1_000}
    found = await client.ask(
        ApiKey.INIT_PRODUCER_ID, 4, producer_id=-1, producer_epoch=-1, **values
    )
    error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # aiokafka's producers end with any other
    assert (found.error_code, found.producer_id, found.producer_epoch) == (error, -1, -1)


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
    assert (found.error_code, found.error_message) == (3, "there is no topic 'x'")
    assert (await client.fetch(0, topic="x")).error_code == 3
    assert (await client.fetch(0, partition=7)).error_code == 3


async def test_a_leader_takes_batches_before_it_hears_that_everybody_knows_the_partition(
    cluster, client
):
    for partition in cluster.known.topics["t"].partitions:
        partition.is_open = False
    (found,) = await client.produce(batch_of(range(1)))
    assert (found.error_code, found.base_offset) == (0, 0)
    cluster.known.topics["t"].partitions[1].channel = 99
    assert [one.error_code for one in await client.produce(b"", batch_of(range(1)))] == [87, 6]


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


async def test_producers_of_several_connections_wait_for_room_in_turn(tmp_path):
    async with kafka_cluster(tmp_path, limits=Limits(pending_requests_max=1)) as cluster:
        await cluster.create_topic("t")
        async with AsyncExitStack() as stack:
            clients = []
            for _ in range(4):
                connection = aclosing(connected(cluster))
                clients.append(await anext(await stack.enter_async_context(connection)))
            for client in clients:
                client.writer.write(produce_request(batch_of(range(1)), timeout_ms=60_000) * 10)
            answers = [
                (await client.answer(ApiKey.PRODUCE, 9)).responses[0].partition_responses[0]
                for client in clients
                for _ in range(10)
            ]
        assert cluster.nodes[0].listener.counters.waited_for_room > 0
    assert [one.error_code for one in answers] == [0] * 40
    assert sorted(one.base_offset for one in answers) == list(range(40))


async def test_long_work_of_a_handler_is_done_on_a_thread(cluster):
    header = RequestHeader(ApiKey.METADATA, 12, 1)
    context = RequestContext(cluster.nodes[0].listener._services, header, "127.0.0.1:1", None)
    here = threading.get_ident()
    assert await context.on_thread(threading.get_ident) != here
    with pytest.raises(ZeroDivisionError):
        await context.on_thread(lambda: 1 // 0)


async def test_a_fetch_ends_its_wait_when_its_partition_grows(cluster, client):
    waiting = asyncio.create_task(client.fetch(0, wait_ms=300_000))
    async for other in connected(cluster):
        await other.produce(batch_of(range(2)))
    assert (await waiting).high_watermark == 2


async def test_a_fetch_waits_for_the_bytes_that_it_wants(cluster, client):
    batch = batch_of(range(2))
    waiting = asyncio.create_task(client.fetch(0, wait_ms=300_000, bytes_min=2 * len(batch)))
    async for other in connected(cluster):
        await other.produce(batch)
        await other.produce(batch)
    assert len((await waiting).records) == 2 * len(batch)


async def test_a_fetch_ends_its_wait_with_the_batch_that_goes_beyond_what_it_wants(cluster, client):
    batch = batch_of(range(2))
    for offset, wanted in ((0, len(batch) + 1), (4, 2 * len(batch) - 1)):
        fields = {"wait_ms": 300_000, "bytes_min": wanted}
        waiting = asyncio.create_task(client.fetch(offset, **fields))
        async for other in connected(cluster):
            for _ in range(2):
                await other.produce(batch)
        assert len((await waiting).records) == 2 * len(batch)


async def test_a_fetch_that_wants_more_than_an_answer_has_ends_with_a_full_answer(client):
    batch = batch_of(range(2))
    await client.produce(batch)
    size = len(batch)
    found = await client.fetch(0, wait_ms=300_000, bytes_min=1 << 30, bytes_max=size)
    assert len(found.records) == size


async def test_a_fetch_that_wants_more_batches_than_an_answer_has_ends_with_these(client):
    for _ in range(BATCHES_PER_READ_MAX):
        await client.produce(batch_of(range(1)))
    found = await client.fetch(0, wait_ms=300_000, bytes_min=1 << 20)
    assert len(found.records) == BATCHES_PER_READ_MAX * len(batch_of(range(1)))


async def test_a_fetch_without_news_is_answered_when_its_wait_is_over(client):
    found = await client.fetch(0, wait_ms=20)
    assert (found.error_code, bytes(found.records)) == (0, b"")


async def test_no_fetch_waits_longer_than_the_node_lets_clients_wait(tmp_path):
    async with kafka_cluster(tmp_path, limits=Limits(fetch_wait_ms_max=5)) as cluster:
        await cluster.create_topic("t", 1)
        async with aclosing(connected(cluster)) as clients:
            client = await anext(clients)
            found = await client.fetch(0, wait_ms=2**31 - 1, bytes_min=1_400)
            assert (found.error_code, found.records) == (0, b"")


async def test_a_fetch_has_one_batch_at_least_and_otherwise_what_fits(client):
    for _ in range(3):
        await client.produce(batch_of(range(2)))
    size = len(batch_of(range(2)))
    for least in (1, 0, -1):
        assert len((await client.fetch(0, bytes_max=least)).records) == size
    assert len((await client.fetch(0, partition_bytes_max=1)).records) == size
    assert len((await client.fetch(1, bytes_max=2 * size)).records) == 2 * size
    assert len((await client.fetch(3)).records) == 2 * size


async def test_b7_only_the_first_batch_of_an_answer_may_be_larger_than_that_shall_be(
    cluster, client
):
    count = ELEMENTS_PER_TURN + 1  # more than are read at once
    await cluster.create_topic("many", count)
    small, large = bytes(batch_of(range(1))), bytes(batch_of(range(1), value=bytes(1_000)))
    await client.produce(small, *[small] * (count - 2), large, topic="many")
    values = fetch_values(0, topic="many", bytes_max=len(small) + 1)
    (asked,) = values["topics"][0]["partitions"]
    values["topics"][0]["partitions"] = [{**asked, "partition": at} for at in range(count)]
    answer = await client.ask(ApiKey.FETCH, 12, **values)
    found = answer.responses[0].partitions
    assert [bool(one.records) for one in (found[0], found[-1])] == [True, False]


async def test_a_fetch_may_name_a_topic_by_its_id(cluster, client):
    await client.produce(batch_of(range(2)))
    topic_id = UUID(bytes=cluster.known.topics["t"].topic_id)
    found = await client.fetch(0, version=13, topic_id=topic_id)
    assert (found.error_code, found.high_watermark) == (0, 2)
    assert (await client.fetch(0, version=13, topic_id=uuid4())).error_code == 100


async def test_leader_epochs_are_fenced(cluster, client):
    epoch = cluster.nodes[0].broker.leader_of(GROUP).epoch
    codes = [(await client.fetch(0, epoch=epoch + more)).error_code for more in (-1, 0, 1)]
    assert codes == [74, 0, 75]


async def test_readers_of_committed_records_see_no_aborted_transactions(client):
    await client.produce(batch_of(range(2)))
    found = await client.fetch(0, isolation_level=1)
    assert (found.last_stable_offset, found.aborted_transactions) == (2, [])


async def test_fetch_sessions_are_declined(client):
    found = await client.ask(ApiKey.FETCH, 12, **fetch_values(0, session_id=5))
    assert (found.error_code, found.session_id) == (70, 0)


def changed(place, value):
    batch = batch_of(range(2))
    batch[place] = value
    if place > 20:
        batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
    return batch


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (changed(-1, 255), 2),
        (changed(16, 1), 43),
        (changed(22, 7), 76),
        (changed(22, 32), 87),
        (changed(26, 5), 87),
        (b"", 87),
        (bytes(batch_of(range(1))) * 2, 87),
        (batch_of(range(1), producer_id=4, epoch=0, sequence=0, is_transactional=True), 49),
        (batch_of(range(1), value=bytes(1 << 20)), 10),
    ],
)
async def test_a_batch_that_cannot_be_stored_is_refused_with_the_reason(client, batch, code):
    await client.ask(ApiKey.API_VERSIONS, 0)  # a first request is small
    (found,) = await client.produce(batch)
    assert found.error_code == code
    assert found.error_message
    assert (await client.fetch(0)).high_watermark == 0


async def test_a_repeated_batch_of_an_idempotent_producer_has_the_same_offset(client, monkeypatch):
    first, second = (
        batch_of(range(2), producer_id=4, epoch=0, sequence=sequence) for sequence in (0, 2)
    )
    found = [(await client.produce(one))[0].base_offset for one in (first, second, first)]
    assert found == [0, 2, 0]
    gap = batch_of(range(2), producer_id=4, epoch=0, sequence=9)
    await is_out_of_order(client, gap, monkeypatch)


async def is_out_of_order(client, batch, monkeypatch):
    """A batch is to be sent again, as those before it may come; later it is out of order."""
    for _ in range(2):
        (found,) = await client.produce(batch)
        assert found.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert "is to be sent again first" in found.error_message
    with monkeypatch.context() as patched:
        patched.setattr("quorumlog.kafka.refused_batches.GAP_S", -1.0)
        assert (await client.produce(batch))[0].error_code == 45


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_batch_that_comes_before_those_that_another_leader_refused_is_to_come_again(
    client, is_known
):
    batches = [batch_of(range(2), producer_id=4, epoch=0, sequence=at) for at in (0, 2, 4, 6)]
    if is_known:
        assert (await client.produce(batches[0]))[0].error_code == 0
    first, *later = batches[is_known:]
    for one in later:
        (found,) = await client.produce(one)
        assert found.error_code == ErrorCode.NOT_ENOUGH_REPLICAS, "45: librdkafka's epoch grows"
    found = [(await client.produce(one))[0] for one in (first, *later)]
    begin = 2 * is_known
    ends = [(0, begin + 2 * number) for number in range(len(found))]
    assert [(one.error_code, one.base_offset) for one in found] == ends


async def test_a_producer_that_was_forgotten_goes_on_after_a_while(client, monkeypatch):
    batch = batch_of(range(2), producer_id=4, epoch=0, sequence=9)
    assert (await client.produce(batch))[0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    monkeypatch.setattr("quorumlog.kafka.refused_batches.GAP_S", -1.0)
    (found,) = await client.produce(batch)
    assert (found.error_code, found.base_offset) == (0, 0)


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_batch_after_one_that_was_refused_is_refused_alike_until_that_comes_again(
    cluster, client, is_known, monkeypatch
):
    batches = [batch_of(range(2), producer_id=4, epoch=0, sequence=at) for at in (0, 2, 4)]
    if is_known:
        assert (await client.produce(batches[0]))[0].error_code == 0
    first, second = batches[is_known : is_known + 2]
    begin = 2 * is_known
    broker = cluster.nodes[0].broker
    replica, broker.replica = broker.replica, lambda group: None
    assert (await client.produce(first))[0].error_code == 6
    broker.replica = replica
    (found,) = await client.produce(second)
    assert found.error_code == 6, "librdkafka takes a new epoch at 45"
    assert "is to be sent again first" in found.error_message
    found = [(await client.produce(one))[0] for one in (first, second)]
    assert [(one.error_code, one.base_offset) for one in found] == [(0, begin), (0, begin + 2)]
    gap = batch_of(range(2), producer_id=4, epoch=0, sequence=9)
    await is_out_of_order(client, gap, monkeypatch)


async def test_a_batch_that_follows_what_is_in_the_log_is_taken_whatever_was_refused(
    cluster, client
):
    batches = [batch_of(range(2), producer_id=4, epoch=0, sequence=at) for at in (0, 2, 4)]
    for one in batches[:2]:
        assert (await client.produce(one))[0].error_code == 0
    services = cluster.nodes[0].listener._services
    error = ErrorCode.NOT_LEADER_OR_FOLLOWER  # before another leader took it
    services.refused_batches.refused((4, "t", 0), 0, 2, error, services.now())
    (found,) = await client.produce(batches[2])
    assert (found.error_code, found.base_offset) == (0, 4)
    assert not services.refused_batches


async def test_a_group_that_may_still_be_given_up_takes_no_batch(cluster, client):
    broker, (partition, _) = cluster.nodes[0].broker, cluster.known.topics["t"].partitions
    partition.is_open, broker.makes = False, GROUP
    (found,) = await client.produce(batch_of(range(1)), timeout_ms=20)
    assert found.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert "was not made within 20 ms; nothing was appended" in found.error_message
    replica = cluster.nodes[0].node.replicas[GROUP]
    assert replica.partition_reads.partition(partition.channel).next_offset == 0
    waiting = asyncio.create_task(client.produce(batch_of(range(1))))
    await until(lambda: cluster.nodes[0].listener._services.rooms.waiting)
    broker.makes = ""
    assert [(one.error_code, one.base_offset) for one in await waiting] == [(0, 0)]


@pytest.mark.parametrize(("acks", "code"), [(1, 0), (-1, 0), (2, 21)])
async def test_acks_are_as_in_kafka(client, acks, code):
    assert (await client.produce(batch_of(range(1)), acks=acks))[0].error_code == code


async def test_acks_0_has_no_answer_and_an_error_ends_the_connection(cluster):
    async for client in connected(cluster):
        client.writer.write(produce_request(batch_of(range(1)), acks=0))
        found = await client.ask(ApiKey.API_VERSIONS, 0)
        assert found.error_code == 0
        while (await client.fetch(0, wait_ms=10_000)).high_watermark == 0:
            pass
        client.writer.write(produce_request(batch_of(range(1)), acks=0, topic="x"))
        assert await client.reader.read() == b""


async def test_acks_all_asks_for_as_many_replicas_as_the_topic_wants(cluster, client):
    await cluster.create_topic("two", min_insync_replicas="2")
    codes = [
        (await client.produce(batch_of(range(1)), acks=acks, topic="two"))[0].error_code
        for acks in (1, -1)
    ]
    assert codes == [0, 19]


async def test_a_topic_may_give_records_the_time_at_which_they_are_appended(cluster, client):
    await cluster.create_topic("timed", message_timestamp_type="LogAppendTime")
    (found,) = await client.produce(batch_of([5]), topic="timed")
    assert found.log_append_time_ms > 5
    records = bytes((await client.fetch(0, topic="timed")).records)
    assert batch_header(records).max_timestamp == found.log_append_time_ms


async def test_a_large_batch_is_copied_nowhere_on_its_way_in_and_out(client, monkeypatch):
    # the first answer shows that the client is one: from then on frames have their memory at once
    await client.produce(batch_of(range(1)))
    sizes, blocks, sent = [], [], []
    allocate, send = FrameReader._allocate, KafkaConnection.send

    def allocated(self, size):
        sizes.append(size)
        return allocate(self, size)

    def made(buffer, start, stop, channel):
        blocks.append(stop - start)
        return block_around(buffer, start, stop, channel)

    monkeypatch.setattr(FrameReader, "_allocate", allocated)
    monkeypatch.setattr("quorumlog.kafka.handlers.produce.block_around", made)
    monkeypatch.setattr(
        KafkaConnection, "send", lambda self, parts: (sent.extend(parts), send(self, parts))
    )
    batch = batch_of(range(1), value=bytes(900_000))
    assert (await client.produce(batch))[0].error_code == 0
    assert len(sizes) == 1
    assert blocks == [len(batch)]
    await client.fetch(1)
    assert [type(one) for one in sent if len(one) >= len(batch)] == [memoryview]


async def test_a_small_batch_does_not_keep_the_memory_of_a_large_request(client, monkeypatch):
    await client.ask(ApiKey.API_VERSIONS, 0)  # a first request is small
    kept = []

    def made(buffer, start, stop, channel):
        kept.append(len(buffer))
        return block_around(buffer, start, stop, channel)

    monkeypatch.setattr("quorumlog.kafka.handlers.produce.block_around", made)
    small, refused = batch_of(range(1)), bytes(1 << 20)
    assert [one.error_code for one in await client.produce(small, refused)] == [0, 43]
    assert kept == [HEADER_SIZE + len(small)]


def test_small_batches_are_gathered_and_large_ones_stay():
    small, large = memoryview(b"s" * 10), memoryview(b"l" * GATHERED_BYTES_MAX)
    found = gathered([small, small, large, large, small])
    assert found == [b"s" * 20, large, large, b"s" * 10]
    assert found[1] is large


async def test_a_request_of_many_elements_is_read_on_a_thread(client):
    topics = [{"name": "t", "partition_data": []} for _ in range(3_000)]
    values = {"transactional_id": None, "acks": -1, "timeout_ms": 1, "topic_data": topics}
    assert len((await client.ask(ApiKey.PRODUCE, 9, **values)).responses) == 3_000
