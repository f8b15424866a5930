"""A client that is closed stays closed: later calls fail at once and say so."""

import asyncio
import inspect
import signal
import threading

import pytest

from quorumlog.client import (
    Client,
    Producer,
    SyncClient,
    connection_pool,
    silence_watch,
)
from quorumlog.client import metadata as clusters
from quorumlog.client.connection import ServerConnection
from quorumlog.client.loop_thread import LoopThread
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import NetworkError, Outcome, QuorumlogError, RequestError
from scripted_cluster import SILENT, SOON_S, address_of, metadata_of, passed, soon

CLOSED = "this client is closed"


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Nothing ends because it took too long."""
    monkeypatch.setattr(silence_watch, "GONE_S", 10_000.0)
    monkeypatch.setattr(connection_pool, "CONNECT_TIMEOUT_S", 1_000.0)
    monkeypatch.setattr(clusters, "METADATA_TIMEOUT_S", 1_000.0)


@pytest.fixture
async def client(world):
    async with Client(world.addresses, "g", timeout_ms=1_000_000) as made:
        yield made


async def closed_error(awaitable):
    """Return the error that says that the client is closed."""
    with pytest.raises(RequestError, match=CLOSED) as caught:
        await soon(awaitable)
    assert not caught.value.retriable
    return caught.value


async def all_left(world):
    """Wait until no server has a connection."""
    await passed(lambda: not any(server.listener.connections for server in world.servers.values()))


def frames_to(server):
    return server.listener.counters.frames_in


# -- what comes afterwards ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda client: client.append(b"x"),
        lambda client: client.append_batch([b"x"]),
        lambda client: client.execute(b"x"),
        lambda client: client.query(b"x", linearizable=False),
        lambda client: client.get(0),
        lambda client: anext(client.read()),
        lambda client: client.metadata(),
        lambda client: client.status(),
        lambda client: client.admin.wait_until_voter("n0", timeout_s=1_000),
        lambda client: metadata_of(client).leader(),
    ],
)
async def test_a_closed_client_does_nothing_any_more(world, client, use):
    await client.append(b"before")
    await client.close()
    error = await closed_error(use(client))
    assert error.outcome is Outcome.DID_NOT_HAPPEN
    assert world.stored == [b"before"]
    await all_left(world)


async def test_closing_again_does_nothing(client):
    await client.append(b"x")
    await client.close()
    await client.close()
    await closed_error(client.append(b"y"))


async def test_a_producer_of_a_closed_client_gets_an_error(world, client):
    async with Producer(client, linger_ms=0, idempotent=False) as producer:
        await (await producer.send(b"before"))
        await client.close()
        error = await closed_error(await producer.send(b"after"))
        assert error.outcome is Outcome.DID_NOT_HAPPEN
        await closed_error(producer.send(b"later"))
        await closed_error(producer.flush())
        with pytest.raises(RequestError, match=CLOSED):
            await producer.close()
    assert world.stored == [b"before"]
    await all_left(world)


# -- what is under way ----------------------------------------------------------------------------


async def test_a_reader_that_waits_for_entries_ends(world, client):
    await client.append(b"x")
    n0 = world.servers["n0"]
    n0.keeps_fetches, count = True, frames_to(n0)
    reading = asyncio.ensure_future(anext(client.read(1)))
    await passed(lambda: frames_to(n0) > count)
    await client.close()
    await closed_error(reading)
    await all_left(world)


async def test_an_append_that_was_refused_is_not_tried_again(world, client, monkeypatch):
    world.script(ResponseCode.LEADER_PENDING_FULL)
    leader = metadata_of(client).leader

    async def leader_before_it_is_closed():
        if world.requests:
            await client.close()
        return await leader()

    monkeypatch.setattr(metadata_of(client), "leader", leader_before_it_is_closed)
    error = await closed_error(client.append(b"x"))
    assert error.outcome is Outcome.DID_NOT_HAPPEN
    assert world.requests == 1
    await all_left(world)


async def test_an_append_that_would_be_repeated_says_that_it_may_have_happened(world):
    world.script(SILENT)
    async with Client(world.addresses, "g", timeout_ms=1_000_000, retry_unknown=True) as client:
        waiting = asyncio.ensure_future(client.append(b"x"))
        await passed(lambda: world.requests > 0)
    error = await closed_error(waiting)
    assert error.outcome is Outcome.UNKNOWN
    assert world.requests == 1
    await all_left(world)


async def test_an_append_that_was_sent_may_have_happened(world, client):
    world.script(SILENT)
    waiting = asyncio.ensure_future(client.append(b"x"))
    await passed(lambda: world.requests > 0)
    await client.close()
    with pytest.raises(NetworkError, match="may have been executed") as caught:
        await soon(waiting)
    assert caught.value.outcome is Outcome.UNKNOWN


async def test_a_command_that_was_sent_may_have_happened_and_is_not_sent_again(world, client):
    world.script(SILENT)
    waiting = asyncio.ensure_future(client.execute(b"x"))
    await passed(lambda: world.requests > 0)
    await client.close()
    error = await closed_error(waiting)
    assert error.outcome is Outcome.UNKNOWN
    assert world.requests == 1
    await all_left(world)


async def test_what_a_producer_has_sent_may_have_happened_and_is_not_sent_again(world, client):
    world.script(SILENT)
    producer = Producer(client, linger_ms=0, idempotent=False, request_timeout_ms=1_000_000)
    delivery = await producer.send(b"x")
    await passed(lambda: world.requests > 0)
    await client.close()
    error = await closed_error(delivery)
    assert error.outcome is Outcome.UNKNOWN
    assert world.requests == 1
    await all_left(world)
    await producer.close(flush=False)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_caller_that_waits_for_a_connection_gets_an_error_and_none_is_made(mute):
    client = Client(address_of(mute), "g", timeout_ms=1_000_000)
    opening = [
        asyncio.ensure_future(metadata_of(client).connection(address_of(mute))) for _ in range(3)
    ]
    taken, _ = await soon(asyncio.get_running_loop().sock_accept(mute))
    with taken:
        await client.close()
        for each in opening:
            await closed_error(each)
        while await soon(asyncio.get_running_loop().sock_recv(taken, 1_000)):
            pass  # until the other side is closed
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_connection_that_is_made_while_its_client_is_closed_is_closed(
    world, client, monkeypatch
):
    opened = ServerConnection.open

    async def open_too_late(self, timeout_s, resolver):
        closing = asyncio.ensure_future(client.close())
        await asyncio.sleep(0)
        await opened(self, timeout_s, resolver)
        await closing

    monkeypatch.setattr(ServerConnection, "open", open_too_late)
    await closed_error(metadata_of(client).connection(world.servers["n0"].address))
    await all_left(world)


async def test_a_caller_that_waits_for_a_leader_gets_an_error(world, mute):
    world.leader_id = None
    n1 = world.servers["n1"]
    async with Client([address_of(mute), n1.address], "g", timeout_ms=1_000_000) as client:
        waiting = [asyncio.ensure_future(metadata_of(client).leader()) for _ in range(3)]
        await passed(lambda: n1.asked_count > 0)
    for each in waiting:
        await closed_error(each)
    await all_left(world)
    assert asyncio.all_tasks() == {asyncio.current_task()}


# -- threads --------------------------------------------------------------------------------------


class Call(threading.Thread):
    """Calls something in a thread of its own and keeps what it raised; never holds up the test."""

    def __init__(self, function):
        super().__init__(daemon=True)
        self.function = function
        self.error = None
        self.start()

    def run(self):
        try:
            self.function()
        except BaseException as error:
            self.error = error

    def is_told(self):
        """Whether it ended, by hearing that the client is closed."""
        self.join(SOON_S)
        return isinstance(self.error, QuorumlogError) and CLOSED in str(self.error)


def test_a_call_that_comes_while_another_thread_closes_gets_an_error():
    thread = LoopThread()
    joined = thread._thread.join
    calls = []

    def join():
        joined()  # the loop takes what it is given, and will never run it
        calls.append(Call(lambda: thread.wait(asyncio.sleep(0))))
        calls[0].join(SOON_S)

    thread._thread.join = join
    thread.stop()
    assert calls[0].is_told()


def test_a_call_in_progress_when_another_thread_closes_gets_an_error():
    thread = LoopThread()
    started = threading.Event()

    async def endless():
        started.set()
        await asyncio.Event().wait()

    call = Call(lambda: thread.wait(endless()))
    assert started.wait(SOON_S)
    thread.stop()
    assert call.is_told()


def test_a_call_that_ends_while_another_thread_closes_has_its_result():
    thread = LoopThread()
    started = threading.Event()

    async def obstinate():
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "result"

    results = []
    call = Call(lambda: results.append(thread.wait(obstinate())))
    assert started.wait(SOON_S)
    thread.stop()
    call.join(SOON_S)
    assert results == ["result"]


@pytest.mark.parametrize("start", [LoopThread.wait, LoopThread.submit])
def test_what_comes_too_late_is_refused_and_leaves_nothing(start):
    thread = LoopThread()
    thread.stop()
    work = asyncio.sleep(0)
    with pytest.raises(QuorumlogError, match=CLOSED):
        start(thread, work)
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED  # else its end is complained of
    thread.stop()


def test_an_interrupted_call_ends_before_the_interruption_is_seen():
    thread = LoopThread()
    ended = []

    async def endless(caller):
        signal.pthread_kill(caller, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        thread.wait(endless(threading.get_ident()))
    assert ended == [True]
    thread.stop()


async def test_a_reader_in_another_thread_ends_when_the_client_is_closed(world):
    n0 = world.servers["n0"]
    n0.keeps_fetches = True
    client = SyncClient(n0.address, "g", timeout_ms=1_000_000)
    call = Call(lambda: list(client.read(0)))
    await passed(lambda: frames_to(n0) >= 3)  # Hello, who leads, and the fetch
    await asyncio.to_thread(client.close)
    assert await asyncio.to_thread(call.is_told)
    await all_left(world)


@pytest.mark.timeout(30)
def test_a_client_that_is_closed_in_its_own_thread_says_so_and_can_be_closed_elsewhere():
    client = SyncClient("127.0.0.1:1", "g")
    told = []

    async def close():
        try:
            client.close()
        except QuorumlogError as error:
            told.append(str(error))

    client.wait(close())
    assert len(told) == 1
    assert "callback" in told[0]
    client.close()
    with pytest.raises(QuorumlogError, match="closed"):
        client.status()


@pytest.mark.timeout(30)
def test_a_call_that_comes_as_a_thread_ends_by_itself_does_not_wait_for_ever(monkeypatch):
    thread, is_queued = LoopThread("consumer"), threading.Event()
    call_soon = thread._call_soon

    def noted(callback):
        has_done = call_soon(callback)
        is_queued.set()
        return has_done

    monkeypatch.setattr(thread, "_call_soon", noted)

    async def end():
        is_queued.wait(10)  # the call comes within this turn of the loop
        await thread.stop_from_within()

    async def forever():
        await asyncio.Event().wait()

    ending = thread.submit(end())
    with pytest.raises(QuorumlogError, match="closed"):
        thread.wait(forever())
    ending.result(10)
