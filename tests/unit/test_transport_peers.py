"""Links to peers, over real sockets: made again when they end, and who is told of it."""

import asyncio
import random

import pytest

from quorumlog.model.limits import DEFAULT_LIMITS
from quorumlog.transport import peers
from quorumlog.transport.listener import Listener
from quorumlog.transport.peers import PeerLinks


class Peer:
    """Takes whatever comes."""

    def __init__(self):
        self.listener = self.port = None
        self.came = asyncio.Queue()

    async def listen(self):
        self.listener = Listener(
            "127.0.0.1",
            self.port or 0,
            lambda hello: self,
            cluster="c",
            node_id="n1",
            accepts=lambda hello: True,
            limits=DEFAULT_LIMITS,
        )
        await self.listener.start()
        self.port = self.listener.port

    def break_connections(self):
        for connection in list(self.listener.connections):
            connection.abort("broken")

    def opened(self, connection, hello):
        self.came.put_nowait(hello.role)

    def frame_received(self, connection, frame):
        pass

    def closed(self, connection, reason):
        pass


class Watcher:
    def __init__(self):
        self.news = asyncio.Queue()

    def peer_connected(self, peer_id):
        self.news.put_nowait(("connected", peer_id))

    def peer_lost(self, peer_id):
        self.news.put_nowait(("lost", peer_id))


@pytest.fixture
async def linked(monkeypatch):
    """A peer, links to it, and who is told of them; the first connection is up."""
    monkeypatch.setattr(peers, "STEADY_S", 0.0)
    peer, watcher = Peer(), Watcher()
    await peer.listen()
    links = PeerLinks(
        "n0",
        "c",
        "127.0.0.1:1",
        {"n1": f"127.0.0.1:{peer.port}"},
        DEFAULT_LIMITS,
        watcher=watcher,
        generator=random.Random(1),
    )
    links.start()
    try:
        assert await watcher.news.get() == ("connected", "n1")
        for _ in ("control", "bulk"):
            await peer.came.get()
        yield peer, watcher
    finally:
        await links.stop()
        await peer.listener.stop()


async def test_a_peer_whose_process_ended_is_lost_once_and_found_again(linked):
    peer, watcher = linked
    await peer.listener.stop()
    assert await watcher.news.get() == ("lost", "n1")
    await peer.listen()
    assert await watcher.news.get() == ("connected", "n1")
    assert watcher.news.empty()


class ClosedSocket:
    def setsockopt(self, *option):
        raise ValueError("negative file descriptor")


class ClosedTransport:
    """Of a connection that its other side ended in the moment in which it was made (uvloop)."""

    def __init__(self, closing):
        self.closing = closing

    def is_closing(self):
        return self.closing

    def get_extra_info(self, name):
        return {"socket": ClosedSocket()}[name]


@pytest.mark.parametrize("closing", [True, False])
async def test_a_connection_that_ends_while_it_is_made_is_made_again(linked, monkeypatch, closing):
    peer, watcher = linked
    loop_type, tried = type(asyncio.get_running_loop()), asyncio.Queue()
    connect = loop_type.create_connection

    async def made_and_ended(loop, *arguments, **options):
        made, protocol = await connect(loop, *arguments, **options)
        made.abort()
        tried.put_nowait(protocol)
        return ClosedTransport(closing), protocol

    monkeypatch.setattr(peers, "BACKOFF_MAX_S", 0.01)
    with monkeypatch.context() as dying:
        dying.setattr(loop_type, "create_connection", made_and_ended)
        peer.break_connections()
        for _ in ("control", "bulk"):
            await tried.get()
    assert await watcher.news.get() == ("connected", "n1")


async def test_a_peer_that_still_listens_is_not_lost(linked):
    peer, watcher = linked
    for _ in range(3):
        peer.break_connections()
        assert await watcher.news.get() == ("connected", "n1")
    assert watcher.news.empty()
