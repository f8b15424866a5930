"""One connection of a client: what is given up leaves nothing behind."""

import asyncio
import time

import pytest

from quorumlog.client import connection as connections
from quorumlog.client.connection import ServerConnection
from quorumlog.model.block import encode_block
from quorumlog.model.errors import NetworkError, Outcome
from quorumlog.model.message import AppendRequest
from quorumlog.transport.connection import Connection, TransportCounters
from scripted_cluster import LIMITS, SILENT


def appending():
    data = encode_block([b"x"])
    return AppendRequest(group="g", count=1), [data]


async def opened(world):
    connection = ServerConnection(world.servers["n0"].address, "", LIMITS, group="g")
    await connection.open(2.0)
    return connection


async def test_a_request_that_is_given_up_keeps_no_place(world):
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


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(connections, "SILENCE_S", 0.05)
    monkeypatch.setattr(connections, "GONE_S", 0.2)


async def test_a_frozen_server_is_given_up_although_its_connection_stays(world, quick):
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
        async with asyncio.timeout(5.0):
            await world.asked.wait()
    assert connection.is_open
    assert not waiting.done()
    connection.close()
    await asyncio.gather(waiting, return_exceptions=True)


def stand_still():
    """The whole process does, for longer than a silent server is waited for."""
    time.sleep(0.3)


async def test_a_client_that_did_not_run_itself_gives_nobody_up(world, quick):
    connection = await opened(world)
    world.script(SILENT)
    waiting = connection.request(*appending())
    for _ in range(3):
        stand_still()
        world.asked.clear()
        async with asyncio.timeout(5.0):
            await world.asked.wait()
    assert connection.is_open
    connection.close()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_nothing_is_sent_once_a_connection_ends(world):
    connection = await opened(world)
    assert connection.is_open
    connection.close()
    assert not connection.is_open
    with pytest.raises(NetworkError, match="nothing was sent"):
        connection.request(*appending())


async def test_an_opening_that_is_cancelled_leaves_no_connection(world, monkeypatch):
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


async def test_a_handler_that_fails_in_the_end_still_lets_the_connection_go(world):
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
