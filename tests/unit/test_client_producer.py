"""Producer and client against scripted servers: retries, redirects, order, honest outcomes."""

import asyncio

import pytest

from quorumlog.client import Client, Producer
from quorumlog.client.connection import ServerConnection
from quorumlog.client.retry import Backoff
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import (
    ConfigError,
    DeadlineExceededError,
    LeaderPendingFullError,
    NoLeaderError,
    Outcome,
    QuorumAckTimeoutError,
    RequestError,
    UnexpectedArgumentError,
    UnknownGroupError,
    error_for,
)
from scripted_cluster import DROP, LIMITS, LOSE_ANSWER, SILENT, passed


@pytest.fixture
async def client(world):
    async with Client(world.addresses, "g", timeout_ms=3_000) as made:
        yield made


def bodies_of(count):
    return [f"{number:06d}".encode() for number in range(count)]


# -- client ---------------------------------------------------------------------------------------


async def test_156_any_one_address_is_enough(world):
    async with Client(world.servers["n1"].address, "g") as client:
        assert (await client.append(b"x")).index == 0


async def test_157_a_leader_change_is_followed(world, client):
    await client.append(b"one")
    world.leader_id = "n1"
    assert (await client.append(b"two")).index == 1
    assert world.stored == [b"one", b"two"]


async def test_158_the_error_for_no_leader_says_what_each_server_answered(world):
    world.leader_id = None
    async with Client(world.addresses, "g", timeout_ms=400) as client:
        with pytest.raises(NoLeaderError) as caught:
            await client.append(b"x")
    assert caught.value.outcome is Outcome.DID_NOT_HAPPEN
    for server in world.servers.values():
        assert f"{server.address}: knows no leader" in str(caught.value)


async def test_refusals_are_retried_within_the_deadline(world, client):
    world.script(*[ResponseCode.LEADER_PENDING_FULL] * 4)
    assert (await client.append(b"x")).index == 0
    assert world.requests == 5


async def test_a_refusal_is_raised_as_itself_when_no_time_is_left(world, client, monkeypatch):
    monkeypatch.setattr(Backoff, "next_pause_s", lambda _: 10.0)  # longer than the deadline
    world.script(*[ResponseCode.LEADER_PENDING_FULL] * 1_000)
    with pytest.raises(LeaderPendingFullError) as caught:
        await client.append(b"x", timeout_ms=5_000)
    assert caught.value.outcome is Outcome.DID_NOT_HAPPEN
    assert world.stored == []


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, QuorumAckTimeoutError),
        (LOSE_ANSWER, RequestError),
        (DROP, RequestError),
    ],
)
async def test_unknown_outcomes_are_raised_and_never_repeated(world, client, step, kind):
    world.script(step)
    with pytest.raises(kind) as caught:
        await client.append(b"x")
    assert caught.value.outcome is Outcome.UNKNOWN
    assert world.requests == 1


@pytest.mark.parametrize("is_idempotent", [False, True])
async def test_a_producer_says_that_a_committed_block_that_not_all_voters_have_is_in_the_log(
    world, is_idempotent
):
    world.script(*[ResponseCode.WAIT_ALL_ACK_TIMEOUT] * 1_000)
    options = {"idempotent": is_idempotent, "delivery_timeout_ms": 500}

    async def send():
        async with Producer(world.addresses, "g", level="all", **options) as producer:
            await (await producer.send(b"x"))

    with pytest.raises(RequestError) as caught:
        await send()
    assert caught.value.outcome is Outcome.HAPPENED


async def test_who_leads_is_in_the_text_of_a_refusal():
    error = error_for(ResponseCode.NOT_LEADER, "not the leader of g", "n1")
    assert str(error) == "not the leader of g; n1 leads"
    assert str(error_for(ResponseCode.NOT_LEADER, "not the leader of g")) == "not the leader of g"


async def test_a_silent_server_ends_in_an_unknown_outcome(world, client):
    world.script(SILENT)
    with pytest.raises(DeadlineExceededError) as caught:
        await client.append(b"x", timeout_ms=100)
    assert caught.value.outcome is Outcome.UNKNOWN


async def test_unknown_outcomes_are_repeated_on_request(world):
    world.script(LOSE_ANSWER)
    async with Client(world.addresses, "g", retry_unknown=True) as client:
        assert (await client.append(b"x")).index == 1
    assert world.stored == [b"x", b"x"]


async def test_an_unknown_group_is_not_waited_for(world):
    async with Client(world.addresses, "nope", timeout_ms=60_000) as client:
        with pytest.raises(UnknownGroupError, match="nope"):
            await client.append(b"x")


async def test_too_large_is_refused_before_anything_is_sent(world, client):
    with pytest.raises(UnexpectedArgumentError, match="the largest that can be appended"):
        await client.append(bytes(LIMITS.entry_bytes_max))
    with pytest.raises(UnexpectedArgumentError, match="several batches"):
        await client.append_batch([bytes(1 << 20)] * 5)
    assert world.requests == 0


@pytest.mark.parametrize("servers", ["", "localhost", "h:1,h", []])
def test_wrong_servers_are_refused(servers):
    with pytest.raises(ConfigError):
        Client(servers, "g")


# -- producer -------------------------------------------------------------------------------------


async def produce(world, count, **options):
    bodies = bodies_of(count)
    settings = {"batch_bytes": 540, "linger_ms": 1, "idempotent": False, **options}
    async with Producer(world.addresses, "g", **settings) as producer:
        deliveries = [await producer.send(body) for body in bodies]
        await producer.flush()
        places = [await delivery for delivery in deliveries]
    return bodies, places, producer.stats


async def test_entries_are_appended_in_order_and_each_learns_its_index(world):
    bodies, places, stats = await produce(world, 1_000)
    assert world.stored == bodies
    assert [place.index for place in places] == list(range(1_000))
    assert stats.entries_acknowledged == 1_000
    assert stats.entries_resent_after_unknown == 0


async def test_refused_blocks_are_sent_again_in_order_and_never_twice(world):
    refused, accepted = ResponseCode.LEADER_PENDING_FULL, None
    world.script(*[refused, accepted, accepted, refused, refused, accepted] * 5)
    bodies, places, stats = await produce(world, 1_000)
    assert world.stored == bodies
    assert [place.index for place in places] == list(range(1_000))
    assert stats.blocks_resent_after_refusal > 0
    assert stats.entries_resent_after_unknown == 0


async def test_a_leader_change_keeps_the_order(world):
    world.script(None, None, ResponseCode.NOT_LEADER, None)
    bodies, _, stats = await produce(world, 500)
    assert world.stored == bodies
    assert stats.entries_resent_after_unknown == 0


@pytest.mark.parametrize("step", [LOSE_ANSWER, DROP, ResponseCode.TERM_CHANGED])
async def test_unknown_blocks_are_sent_again_and_counted(world, step):
    world.script(None, None, step)
    bodies, _, stats = await produce(world, 300)
    first_copies = list(dict.fromkeys(world.stored))
    assert first_copies == bodies
    extra = len(world.stored) - len(bodies)
    assert 0 <= extra <= stats.entries_resent_after_unknown
    assert stats.entries_resent_after_unknown > 0


async def test_with_retry_unknown_off_everything_from_there_on_fails(world):
    world.script(None, LOSE_ANSWER)
    bodies = bodies_of(100)
    producer = Producer(
        world.addresses,
        "g",
        batch_bytes=540,
        linger_ms=1,
        in_flight_blocks=1,
        retry_unknown=False,
        idempotent=False,
    )
    deliveries = [await producer.send(body) for body in bodies]
    with pytest.raises(RequestError) as caught:
        await producer.flush()
    assert caught.value.outcome is Outcome.UNKNOWN
    assert (await deliveries[0]).index == 0
    with pytest.raises(RequestError):
        await deliveries[-1]
    with pytest.raises(RequestError):
        await producer.send(b"later")
    assert world.stored == bodies[:20]
    with pytest.raises(RequestError):
        await producer.close()


async def test_what_is_not_delivered_in_time_fails(world):
    world.leader_id = None
    producer = Producer(
        world.addresses, "g", idempotent=False, delivery_timeout_ms=300, linger_ms=1
    )
    delivery = await producer.send(b"x")
    with pytest.raises(DeadlineExceededError) as caught:
        await delivery
    assert caught.value.outcome is Outcome.DID_NOT_HAPPEN
    with pytest.raises(DeadlineExceededError):
        await producer.close()


async def test_memory_is_bounded_while_the_leader_is_silent(world):
    world.script(*[SILENT] * 100)
    producer = Producer(
        world.addresses, "g", batch_bytes=1_000, buffer_bytes=10_000, delivery_timeout_ms=60_000
    )
    for _ in range(10_000 // 148):
        producer.send_nowait(bytes(100))
    with pytest.raises(LeaderPendingFullError, match="buffer of 10000 bytes is full"):
        producer.send_nowait(bytes(100))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await producer.send(bytes(100))
    await producer.close(flush=False)


async def test_a_body_above_the_limit_is_refused_and_the_rest_goes_on(world):
    async with Producer(world.addresses, "g", idempotent=False, linger_ms=1) as producer:
        await producer.send(b"before")
        with pytest.raises(UnexpectedArgumentError):
            await producer.send(bytes(LIMITS.entry_bytes_max))
        await producer.send(b"after")
    assert world.stored == [b"before", b"after"]


def test_impossible_sizes_are_refused():
    with pytest.raises(ConfigError, match="batch_bytes"):
        Producer("h:1", "g", batch_bytes=0)
    with pytest.raises(ConfigError, match="batch_bytes"):
        Producer("h:1", "g", buffer_bytes=10)


# -- how large blocks are --------------------------------------------------------------------------

KIB = 1024


@pytest.fixture
def sizes(monkeypatch):
    """Bytes of each block that was sent, in order."""
    found = []
    request = ServerConnection.request

    def recorded(self, message, attachments=()):
        answer = request(self, message, attachments)
        if attachments:
            found.append(sum(map(len, attachments)))
        return answer

    monkeypatch.setattr(ServerConnection, "request", recorded)
    return found


async def test_a_block_grows_while_all_slots_are_taken(world, sizes):
    world.script(*[SILENT] * 2)
    bodies = [bytes([number]) * (16 * KIB) for number in range(200)]
    producer = Producer(world.addresses, "g", in_flight_blocks=1, idempotent=False, linger_ms=1)
    deliveries = [await producer.send(body) for body in bodies[:40]]
    await passed(lambda: len(sizes) == 1)
    deliveries += [await producer.send(body) for body in bodies[40:]]
    for connection in list(world.servers["n0"].listener.connections):
        connection.abort("scripted")
    await passed(lambda: len(sizes) == 2)
    for connection in list(world.servers["n0"].listener.connections):
        connection.abort("scripted")
    await producer.close()
    assert world.stored == bodies
    assert sizes[0] == sizes[1] == sizes[2] < 272 * KIB  # it could leave, and is sent as it was
    assert max(sizes) > 900 * KIB
    assert max(sizes) <= 1024 * KIB
    assert [(await delivery).index for delivery in deliveries] == list(range(200))


async def test_a_block_that_can_be_sent_does_not_grow(world, sizes):
    async with Producer(world.addresses, "g", idempotent=False, linger_ms=60_000) as producer:
        for number in range(40):
            await producer.send(bytes(16 * KIB))
            await passed(lambda number=number: len(sizes) >= (number + 1) // 16)
    assert max(sizes) <= 272 * KIB


async def test_a_size_that_is_asked_for_is_the_bound(world, sizes):
    async with Producer(
        world.addresses, "g", idempotent=False, in_flight_blocks=1, batch_bytes=100 * KIB
    ) as producer:
        for _ in range(100):
            await producer.send(bytes(16 * KIB))
    assert max(sizes) <= 100 * KIB


@pytest.mark.parametrize("buffer_bytes", [256 * KIB, 300 * KIB, 1_100 * KIB])
@pytest.mark.parametrize("in_flight_blocks", [1, 8])
async def test_a_small_buffer_never_delays_what_is_in_it(world, buffer_bytes, in_flight_blocks):
    bodies = [number.to_bytes(2, "big") * (5 * KIB) for number in range(500)]
    async with Producer(
        world.addresses,
        "g",
        buffer_bytes=buffer_bytes,
        in_flight_blocks=in_flight_blocks,
        linger_ms=60_000,
        idempotent=False,
    ) as producer:
        async with asyncio.timeout(30):
            for body in bodies:
                await producer.send(body)
    assert world.stored == bodies


async def test_a_block_that_is_due_is_sent_when_a_session_ends_with_nothing_else_to_send(world):
    world.script(LOSE_ANSWER, None)
    async with Producer(
        world.addresses, "g", in_flight_blocks=1, idempotent=False, linger_ms=1
    ) as producer:
        first = await producer.send(b"one")
        await passed(lambda: world.requests > 0)
        second = await producer.send(b"two")
        async with asyncio.timeout(30):
            await first
            await second
    assert list(dict.fromkeys(world.stored)) == [b"one", b"two"]
