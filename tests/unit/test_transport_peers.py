"""Links to peers, over real sockets: made again when they end, and what the node learns of it."""

import asyncio
import random
from types import SimpleNamespace

import msgspec
import pytest

from quorumlog.log_events import EVENT_FIELDS
from quorumlog.model.features import OWN_FEATURES
from quorumlog.model.limits import DEFAULT_LIMITS, KIB, MIB
from quorumlog.model.messages.base import Hello, Response
from quorumlog.model.messages.peer import Introduction, ReadIndexRequest
from quorumlog.model.release import RELEASE
from quorumlog.transport import peers
from quorumlog.transport.connection import Connection
from quorumlog.transport.listener import Listener
from quorumlog.transport.peers import PeerLinks, Spoken
from quorumlog.transport.stream import TransportCounters
from quorumlog.wire.kinds import KIND_OF_MESSAGE
from quorumlog.wire.versions import NEEDS, WIRE_MAX, Need


class Peer:
    """Takes whatever comes."""

    def __init__(self):
        self.listener = self.port = None
        self.came = asyncio.Queue()
        self.accepted = True

    async def listen(self):
        self.listener = Listener(
            "127.0.0.1",
            self.port or 0,
            lambda hello: self,
            cluster="c",
            node_id="n1",
            accepts=lambda hello: self.accepted,
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
        self.news, self.reached = asyncio.Queue(), asyncio.Queue()

    def peer_connected(self, peer_id):
        self.news.put_nowait(("connected", peer_id))

    def peer_reached(self, peer_id):
        self.reached.put_nowait(peer_id)

    def peer_lost(self, peer_id):
        self.news.put_nowait(("lost", peer_id))

    def introductions(self, peer_id, group=None):
        return [Introduction(local_id="n0", remote_id=peer_id, address="h:1", groups=[])]

    def inbox_of(self, hello):
        return self

    def frame_received(self, connection, frame):
        self.news.put_nowait(("answered", frame.message))


def links_to(peer, watcher):
    return PeerLinks(
        "n0",
        "c",
        "127.0.0.1:1",
        {"n1": f"127.0.0.1:{peer.port}"},
        DEFAULT_LIMITS,
        watcher=watcher,
        generator=random.Random(1),
    )


@pytest.fixture
async def linked(monkeypatch):
    """A peer, links to it, and who is told of them; the first connection is up."""
    monkeypatch.setattr(peers, "STEADY_S", 0.0)
    peer, watcher = Peer(), Watcher()
    await peer.listen()
    links = peer.links = links_to(peer, watcher)
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


async def test_the_links_to_a_member_that_was_removed_end(linked, monkeypatch):
    peer, _ = linked
    gone = asyncio.Event()
    monkeypatch.setattr(peer, "closed", lambda connection, reason: gone.set(), raising=False)
    monkeypatch.setattr(peers, "REMOVED_S", 0.05)
    peer.links.update_members("g", {"n0": "127.0.0.1:1"})
    assert peer.links.knows("n1"), "it is told first"
    await asyncio.wait_for(gone.wait(), 10)
    assert not peer.links.knows("n1")


async def test_a_member_that_is_added_again_keeps_its_links(linked, monkeypatch):
    peer, _ = linked
    later = asyncio.Event()
    monkeypatch.setattr(peers, "REMOVED_S", 0.0)
    peer.links.update_members("g", {"n0": "127.0.0.1:1"})
    peer.links.update_members("g", {"n1": f"127.0.0.1:{peer.port}"})
    asyncio.get_running_loop().call_later(0.0, later.set)
    await later.wait()
    assert peer.links.knows("n1")
    assert peer.listener.connections


async def test_a_member_that_is_removed_twice_keeps_its_links_for_the_whole_time(
    linked, monkeypatch
):
    peer, _ = linked
    address, later = {"n1": f"127.0.0.1:{peer.port}"}, asyncio.Event()
    monkeypatch.setattr(peers, "REMOVED_S", 0.0)
    peer.links.update_members("g", {"n0": "127.0.0.1:1"})
    peer.links.update_members("g", address)
    monkeypatch.setattr(peers, "REMOVED_S", 60.0)
    peer.links.update_members("g", {"n0": "127.0.0.1:1"})
    asyncio.get_running_loop().call_later(0.0, later.set)
    await later.wait()
    assert peer.links.knows("n1"), "the time since the first removal does not count"


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


async def test_a_connection_that_is_made_too_late_is_given_up_and_made_anew(linked, monkeypatch):
    peer, watcher = linked
    loop_type, late, given_up = type(asyncio.get_running_loop()), [], asyncio.Event()
    connect = loop_type.create_connection

    async def opened_and_late(loop, *arguments, **options):
        made, _ = await connect(loop, *arguments, **options)
        if len(late) < 2:
            late.append(made)
            if len(late) == 1:
                assert await watcher.news.get() == ("connected", "n1")
            else:
                given_up.set()
            raise TimeoutError("nobody waits for it any more")
        return made, _

    monkeypatch.setattr(peers, "BACKOFF_MAX_S", 0.01)
    monkeypatch.setattr(loop_type, "create_connection", opened_and_late)
    bulk = peer.links._bulk["n1"]
    bulk.connection.abort("broken")
    await given_up.wait()
    assert await watcher.news.get() == ("connected", "n1")
    assert bulk.connection.is_open
    assert [made.is_closing() for made in late] == [True, True]


async def test_a_peer_that_refuses_us_is_asked_less_and_less_often(monkeypatch):
    pauses, refusing = [], Peer()

    async def paused(seconds):
        pauses.append(seconds)
        if len(pauses) >= 40:
            await asyncio.Event().wait()

    refusing.accepted = False
    await refusing.listen()
    monkeypatch.setattr(peers.asyncio, "sleep", paused)
    links = links_to(refusing, Watcher())
    links.start()
    try:
        while len(pauses) < 40:
            await asyncio.wait(links._tasks["n1"], timeout=0.01)
    finally:
        monkeypatch.undo()  # what stops may sleep, too
        await links.stop()
        await refusing.listener.stop()
    assert max(pauses) > 0.4
    assert sum(pause < 0.1 for pause in pauses) <= 8


async def test_a_message_that_no_frame_takes_is_not_sent_and_said_once(linked, caplog):
    peer, _ = linked
    whole = memoryview(bytes(DEFAULT_LIMITS.frame_bytes_max))
    message = ReadIndexRequest(group="g", local_id="n0", remote_id="n1", term=1, request_id=1)
    for _ in range(3):
        assert not peer.links.send("n1", message, [whole])
    assert peer.links.send("n1", message)
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "above" in getattr(record, EVENT_FIELDS)["reason"]


async def test_a_transport_that_ended_without_a_word_takes_nothing():
    """uvloop may close one and tell nobody; whoever writes to it then is told: RuntimeError."""

    class Ended:
        def write(self, data):
            raise RuntimeError("unable to perform operation; the handler is closed")

        def get_extra_info(self, name):
            return None

        def set_write_buffer_limits(self, high):
            pass

        def is_closing(self):
            return False

        def get_write_buffer_size(self):
            return 0

    lost = []
    connection = Connection(
        Hello(cluster="c", node_id="n0", role="node"),
        lambda hello: None,
        DEFAULT_LIMITS,
        TransportCounters(),
        on_lost=lost.append,
    )
    connection._transport = Ended()
    assert not connection.send(Response())
    assert lost == [connection]
    assert not connection.is_open


async def test_a_link_takes_joined_frames_while_it_is_up_and_the_peer_said_so(linked):
    peer, watcher = linked
    most = DEFAULT_LIMITS.outbox_bytes_max
    for bulk in (False, True):
        assert peer.links.joined_room("n1", bulk=bulk) == most
    assert peer.links.joined_room("n7", bulk=True) is None
    await peer.listener.stop()
    assert await watcher.news.get() == ("lost", "n1")
    assert peer.links.joined_room("n1", bulk=False) is None


async def test_a_full_link_takes_what_had_room_before_and_nothing_else(linked):
    peer, watcher = linked
    links = peer.links
    most = DEFAULT_LIMITS.frame_bytes_max
    links.limits = msgspec.structs.replace(DEFAULT_LIMITS, outbox_bytes_max=most)
    peer.break_connections()
    assert await watcher.news.get() == ("connected", "n1")
    message = ReadIndexRequest(group="g", local_id="n0", remote_id="n1", term=1, request_id=1)
    while links.send("n1", message, [bytes(MIB)], bulk=True):
        assert links.joined_room("n1", bulk=False) == most, "the other link is not concerned"
    while links.joined_room("n1", bulk=True) >= 0:
        assert links.send("n1", message, [bytes(links.joined_room("n1", bulk=True))], bulk=True)
    assert not links.send("n1", message, bulk=True)
    assert links.send("n1", message, [bytes(KIB)], bulk=True, has_room=True)


async def test_a_peer_of_an_earlier_version_does_not_say_that_it_takes_joined_frames(linked):
    peer, watcher = linked
    hello = peer.listener._hello
    peer.listener._hello = msgspec.structs.replace(hello, takes_joined=False)
    peer.break_connections()
    assert await watcher.news.get() == ("connected", "n1")
    assert peer.links.joined_room("n1", bulk=True) is None


async def test_a_peer_is_heard_until_its_newest_control_connection_ends(linked):
    peer, _ = linked

    def made(role):
        return SimpleNamespace(hello=SimpleNamespace(role=role))

    bulk, old, new = made("bulk"), made("control"), made("control")
    for one in (old, bulk, new):
        peer.links.incoming_opened("n1", one)
    closed = [peer.links.incoming_closed("n1", one) for one in (old, bulk, new, new)]
    assert closed == [False, False, True, False]


async def test_what_a_peer_runs_is_kept_and_said_once(linked, caplog):
    peer, watcher = linked
    assert peer.links.spoken == {"n1": Spoken(RELEASE, WIRE_MAX, OWN_FEATURES)}
    hello = peer.listener._hello
    caplog.set_level("INFO")
    for release in ("9.9", "9.9", ""):
        peer.listener._hello = msgspec.structs.replace(hello, release=release)
        peer.break_connections()
        assert await watcher.news.get() == ("connected", "n1")
        assert peer.links.spoken["n1"].release == release
    said = [
        getattr(record, EVENT_FIELDS)["release"]
        for record in caplog.records
        if record.message == "peer speaks"
    ]
    assert said == ["9.9", "an earlier one"]


async def test_a_message_that_the_peer_does_not_take_is_not_sent_and_said_once(
    linked, caplog, monkeypatch
):
    peer, watcher = linked
    message = ReadIndexRequest(group="g", local_id="n0", remote_id="n1", term=1, request_id=1)
    need = Need("9.0", version=WIRE_MAX + 1)
    monkeypatch.setitem(NEEDS, KIND_OF_MESSAGE[ReadIndexRequest], need)
    peer.break_connections()
    assert await watcher.news.get() == ("connected", "n1")
    caplog.clear()
    for _ in range(3):
        assert not peer.links.send("n1", message, bulk=True)
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "needs quorumlog 9.0" in getattr(record, EVENT_FIELDS)["reason"]
