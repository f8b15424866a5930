"""One connection of a client: what is given up leaves nothing behind."""

import asyncio
import gc
import socket
import time

import pytest

from quorumlog.client import silence_watch
from quorumlog.client.connection import ServerConnection
from quorumlog.model.block import encode_block
from quorumlog.model.errors import NetworkError, Outcome, UnexpectedArgumentError
from quorumlog.model.messages.base import Responses
from quorumlog.model.messages.client import AppendRequest, AppendResponse, FetchRequest
from quorumlog.transport.connection import Connection
from quorumlog.transport.stream import TransportCounters
from quorumlog.wire.frame import Frame
from quorumlog.wire.joined import Outgoing, runs_of
from scripted_cluster import LIMITS, SILENT


def appending():
    data = encode_block([b"x"])
    return AppendRequest(group="g", count=1), [data]


def polling():
    return FetchRequest(group="g", begin_index=0, wait_ms=60_000)


async def opened(world, on_silent=None):
    address = world.servers["n0"].address
    connection = ServerConnection(address, "", LIMITS, group="g", on_silent=on_silent)
    await connection.open(60.0)
    return connection


async def ended(connection, *waiting):
    connection.close()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_cancelled_request_takes_no_place(world):
    connection = await opened(world)
    world.script(SILENT, SILENT)
    message, parts = appending()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await connection.request(message, parts)
    assert connection.unanswered == 0
    kept = connection.request(message, parts)
    assert connection.unanswered == 1
    connection.close()
    with pytest.raises(NetworkError, match="may have been executed"):
        await kept
    assert connection.unanswered == 0


async def test_a_port_that_accepts_and_never_answers_is_reported_as_such():
    async def mute(reader, _):
        await reader.read(1)
        while connection._connection is None:  # noqa: ASYNC110  (set in this loop's next turn)
            await asyncio.sleep(0)
        connection._opening.reschedule(asyncio.get_running_loop().time())

    async with await asyncio.start_server(mute, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        connection = ServerConnection(f"{host}:{port}", "", LIMITS, group="g")
        with pytest.raises(NetworkError, match=r"no answer in time, though it accepts.*admin port"):
            await connection.open(60.0)


async def test_a_request_that_cannot_be_sent_takes_no_place(world):
    unheard = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    connection = await opened(world)
    message, _ = appending()
    with pytest.raises(UnexpectedArgumentError, match="above"):
        connection.request(message, [bytes(LIMITS.frame_bytes_max)])
    assert connection.unanswered == 0
    connection._watch.stop()
    connection._watch.check()
    assert not connection._watch.is_running  # nobody waits, so nobody is asked whether it is there
    await connection.request(*appending())
    connection.close()
    gc.collect()
    await asyncio.sleep(0)
    assert not unheard


async def test_waiting_requests_fail_at_once_when_the_connection_is_closed(world):
    connection = await opened(world)
    for taken in world.servers["n0"].listener.connections:
        taken.pause_reading()  # what is unsent is kept for some seconds
    block = encode_block([bytes(1 << 20)] * 3)
    waiting = [connection.request(AppendRequest(group="g", count=3), [block]) for _ in range(5)]
    connection.close()
    assert all(future.done() for future in waiting)
    for future in waiting:
        with pytest.raises(NetworkError, match="may have been executed") as raised:
            await future
        assert raised.value.outcome is Outcome.UNKNOWN


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(silence_watch, "CHECK_S", 0.05)
    monkeypatch.setattr(silence_watch, "POLL_CHECK_S", 0.05)
    monkeypatch.setattr(silence_watch, "GONE_S", 0.2)


async def test_a_frozen_server_is_abandoned_although_its_connection_stays(world, quick):
    connection = await opened(world)
    world.servers["n0"].is_frozen = True
    with pytest.raises(NetworkError, match=r"not said anything.*may have been executed") as raised:
        await connection.request(*appending())
    assert raised.value.outcome is Outcome.UNKNOWN
    assert not connection.is_open


async def test_a_server_that_is_there_may_take_its_time(world, quick):
    connection = await opened(world)
    world.script(SILENT)
    waiting = connection.request(*appending())
    for _ in range(6):
        world.asked.clear()
        async with asyncio.timeout(60):
            await world.asked.wait()
    assert connection.is_open
    assert not waiting.done()
    connection.close()
    await asyncio.gather(waiting, return_exceptions=True)


def stand_still():
    """The whole process does, for longer than a silent server is waited for."""
    time.sleep(0.3)


@pytest.mark.real_time
async def test_a_client_that_was_frozen_itself_abandons_no_server(world, quick):
    connection = await opened(world)
    world.script(SILENT)
    waiting = connection.request(*appending())
    for _ in range(3):
        stand_still()
        world.asked.clear()
        async with asyncio.timeout(60):
            await world.asked.wait()
    assert connection.is_open
    connection.close()
    await asyncio.gather(waiting, return_exceptions=True)


@pytest.fixture
def patient(monkeypatch):
    """Prompt requests are looked after often, long polls never, and nobody is given up."""
    monkeypatch.setattr(silence_watch, "CHECK_S", 0.02)
    monkeypatch.setattr(silence_watch, "RECHECK_S", 0.02)
    monkeypatch.setattr(silence_watch, "POLL_CHECK_S", 1_000.0)
    monkeypatch.setattr(silence_watch, "GONE_S", 10_000.0)


async def test_the_owner_is_notified_of_every_check_that_finds_a_server_silent(world, patient):
    notified = asyncio.Queue()
    connection = await opened(world, notified.put_nowait)
    world.servers["n0"].is_frozen = True
    waiting = connection.request(*appending())
    async with asyncio.timeout(60):
        assert [await notified.get() for _ in range(3)] == [connection] * 3
    assert connection.is_silent
    assert not waiting.done()
    connection.abort("is given up")
    with pytest.raises(NetworkError, match=r"is given up.*may have been executed"):
        await waiting
    assert not connection.is_open


async def test_the_owner_is_not_notified_of_a_server_that_answers(world, patient):
    notified = []
    connection = await opened(world, notified.append)
    world.script(SILENT)
    waiting = connection.request(*appending())
    for _ in range(6):
        world.asked.clear()
        async with asyncio.timeout(60):
            await world.asked.wait()
    assert not notified
    await ended(connection, waiting)


async def test_a_silent_server_is_pinged_once(world, patient):
    notified = asyncio.Queue()
    connection = await opened(world, notified.put_nowait)
    sent = []
    world.servers["n0"].is_frozen = True
    send = connection._connection.send

    def counting(message, **options):
        sent.append(message)
        return send(message, **options)

    connection._connection.send = counting
    waiting = connection.request(*appending())
    async with asyncio.timeout(60):
        for _ in range(3):
            await notified.get()
    assert len(sent) == 2
    await ended(connection, waiting)


async def test_a_server_is_checked_less_often_during_a_long_poll(world, monkeypatch):
    monkeypatch.setattr(silence_watch, "CHECK_S", 0.01)
    monkeypatch.setattr(silence_watch, "POLL_CHECK_S", 0.3)
    world.servers["n0"].keeps_fetches = True
    connection = await opened(world)
    started = asyncio.get_running_loop().time()
    waiting = connection.request(polling())
    async with asyncio.timeout(60):
        await world.asked.wait()
    assert asyncio.get_running_loop().time() - started >= 0.29
    assert not waiting.done()
    await ended(connection, waiting)


async def test_a_server_is_checked_as_often_if_a_prompt_request_waits_beside_a_long_poll(
    world, patient
):
    world.servers["n0"].keeps_fetches = True
    connection = await opened(world)
    poll = connection.request(polling())
    world.script(SILENT)
    waiting = connection.request(*appending())
    async with asyncio.timeout(60):
        await world.asked.wait()
    waiting.cancel()
    looked = asyncio.Event()
    met = connection._watch.start

    def look_later(*, is_slow=False):
        if is_slow:
            looked.set()
        met(is_slow=is_slow)

    connection._watch.start = look_later
    async with asyncio.timeout(60):
        await looked.wait()  # once nothing prompt waits any more
    await ended(connection, poll)


async def test_a_connection_that_nobody_uses_has_no_timer(world, patient):
    connection = await opened(world)
    assert not connection._watch.is_running
    await connection.request(*appending())
    connection._watch.stop()
    connection._watch.check()
    assert not connection._watch.is_running
    assert not connection.is_silent
    connection.close()


async def test_a_cancelled_request_still_shows_that_a_server_is_silent(world, patient):
    notified = asyncio.Event()
    connection = await opened(world, lambda _: notified.set())
    world.servers["n0"].is_frozen = True
    while not connection.is_silent:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await connection.request(*appending())
    connection._watch.stop()
    connection._watch.check()  # nobody waits
    assert not connection._watch.is_running
    notified.clear()
    waiting = connection.request(*appending())
    connection._watch.check()
    assert notified.is_set()
    await ended(connection, waiting)


async def test_bytes_that_cannot_be_sent_do_not_hide_that_a_server_is_gone(world, quick):
    connection = await opened(world)
    for taken in world.servers["n0"].listener.connections:
        taken.pause_reading()
    data = encode_block([bytes(1 << 20)] * 3)
    message = AppendRequest(group="g", count=3)
    waiting = [connection.request(message, [data]) for _ in range(5)]
    async with asyncio.timeout(60):
        found = await asyncio.gather(*waiting, return_exceptions=True)
    assert all("has not said anything" in str(error) for error in found)


async def test_bytes_that_are_sent_slowly_are_no_silence(patient):
    class Slow:
        is_open = True
        bytes_in = outbox_bytes = 0

        def send(self, message, *, correlation_id, attachments):
            self.outbox_bytes += 1_000
            return True

    connection = ServerConnection("h:1", "", LIMITS, group="g")
    slow = connection._connection = Slow()
    connection.request(*appending())
    connection._watch.stop()
    assert not connection._watch.has_progress(slow)  # given, and not taken
    slow.outbox_bytes -= 100
    assert connection._watch.has_progress(slow)
    connection.request(*appending())
    connection._watch.stop()
    slow.outbox_bytes -= 100  # more was given than taken
    assert connection._watch.has_progress(slow)
    assert not connection._watch.has_progress(slow)
    slow.outbox_bytes = 0
    assert connection._watch.has_progress(slow)
    connection.request(*appending())
    connection._watch.stop()
    slow.outbox_bytes = 0  # the operating system takes a little at once, whoever is there
    assert not connection._watch.has_progress(slow)


async def test_a_request_cancelled_before_a_ping_shows_nothing(world, patient):
    connection = await opened(world)
    connection.request(polling()).cancel()
    await asyncio.sleep(0)
    connection._watch.stop()
    connection._watch.check()
    assert not connection.is_silent
    connection.close()


async def test_opening_a_connection_can_be_aborted(patient):
    notified = asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        connection = ServerConnection(
            address, "", LIMITS, group="g", on_silent=lambda _: notified.set()
        )
        opening = asyncio.ensure_future(connection.open(60.0))
        async with asyncio.timeout(60):
            await notified.wait()
            assert connection.is_silent
            connection.abort("is given up")
            with pytest.raises(NetworkError, match=address):
                await opening
    assert not connection._watch.is_running


async def test_nothing_is_sent_once_a_connection_ends(world):
    connection = await opened(world)
    assert connection.is_open
    connection.close()
    assert not connection.is_open
    with pytest.raises(NetworkError, match="nothing was sent"):
        connection.request(*appending())


async def test_a_cancelled_opening_leaves_no_connection(world, monkeypatch):
    made, connected = [], asyncio.Event()

    def connection_made(self, transport):
        made.append(transport)
        connected.set()

    monkeypatch.setattr(Connection, "connection_made", connection_made)
    connection = ServerConnection(world.servers["n0"].address, "", LIMITS, group="g")
    opening = asyncio.ensure_future(connection.open(30.0))
    await connected.wait()
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    assert not connection.is_open
    for transport in made:
        transport.abort()


async def test_a_connection_closes_even_if_its_handler_fails_at_the_end(world):
    lost = []

    class Failing:
        def opened(self, connection, hello):
            pass

        def frame_received(self, connection, frame):
            pass

        def closed(self, connection, reason):
            raise ValueError(reason)

    connection = Connection(
        None, lambda hello: Failing(), LIMITS, TransportCounters(), on_lost=lost.append
    )
    connection._handler = Failing()
    with pytest.raises(ValueError, match="closed by the other side"):
        connection.connection_lost(None)
    assert lost == [connection]
    connection._handler = Failing()
    with pytest.raises(ValueError, match=r"^Connection reset by peer$"):
        connection.connection_lost(ConnectionResetError(104, "Connection reset by peer"))


def joined(*answers):
    (run,) = runs_of([Outgoing(one, [], 0, number) for number, one in answers], 1)
    return run.parts


async def test_answers_that_come_in_one_frame_reach_those_who_wait(world):
    connection = await opened(world)
    world.script(SILENT, SILENT, SILENT)
    message, parts = appending()
    waiting = [connection.request(message, parts) for _ in range(3)]
    answers = [AppendResponse(first_index=number, last_index=number) for number in (1, 2, 3)]
    damaged = joined(*enumerate(answers, 1))
    damaged[1] = (*damaged[1][:2], b"\xc1", 0)
    frame = Frame(0, Responses(parts=damaged), memoryview(b""))
    connection.frame_received(connection.transport, frame)
    assert (await waiting[0]).response == answers[0]
    assert (await waiting[2]).response == answers[2]
    with pytest.raises(NetworkError, match="cannot be read") as unread:
        await waiting[1]
    assert unread.value.outcome is Outcome.UNKNOWN
    await ended(connection)
