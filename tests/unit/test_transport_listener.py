"""Who may connect when many have, and how long connections of hosts that vanished are kept."""

import asyncio
import errno
import gc
import re
import socket
import weakref
from contextlib import asynccontextmanager

import pytest

from quorumlog.log_events import EVENT_FIELDS
from quorumlog.model.audit_events import NO_AUDIT, AuditedEvent
from quorumlog.model.errors import RemoteProtocolError
from quorumlog.model.limits import Limits
from quorumlog.model.messages.base import Hello
from quorumlog.model.wording import FOREIGN_LENGTH_MAX
from quorumlog.transport import listener as listeners
from quorumlog.transport.connection import Connection
from quorumlog.transport.listener import Listener
from quorumlog.transport.stream import TransportCounters
from quorumlog.transport.tls_words import TlsError
from quorumlog.wire.frame import encode_frame

LIMITS = Limits(connections_max=2)


class Side:
    """Either side of a connection."""

    def __init__(self):
        self.ended = asyncio.get_running_loop().create_future()
        self.greeted = asyncio.get_running_loop().create_future()

    def greet(self, hello):
        return self

    def opened(self, connection, hello):
        if not self.greeted.done():
            self.greeted.set_result(hello)

    def frame_received(self, connection, frame):
        if frame.message.code != 200:
            self.ended.set_result(frame.message.text)

    def closed(self, connection, reason):
        pass


@pytest.fixture
async def listening(monkeypatch):
    async with listening_on("127.0.0.1", monkeypatch) as listener:
        yield listener


@asynccontextmanager
async def listening_on(host, monkeypatch):
    monkeypatch.setattr(listeners, "PEERS_RESERVE", 1)
    served = asyncio.Queue()

    def handler_for(hello):
        served.put_nowait(hello)
        return Side()

    listener = Listener(
        host,
        0,
        handler_for,
        cluster="c",
        node_id="n0",
        accepts=lambda hello: True,
        limits=LIMITS,
    )
    await listener.start()
    listener.served = served
    try:
        yield listener
    finally:
        await listener.stop()


async def connected(listener, role):
    """Connect; return what the listener refused it with, or "" once it is served."""
    side = Side()
    hello = Hello(cluster="c", node_id="n1", role=role)
    await asyncio.get_running_loop().create_connection(
        lambda: Connection(hello, side.greet, LIMITS, TransportCounters()),
        "127.0.0.1",
        listener.port,
    )
    served = asyncio.ensure_future(listener.served.get())
    await asyncio.wait({served, side.ended}, return_when=asyncio.FIRST_COMPLETED)
    served.cancel()
    return side.ended.result() if side.ended.done() else ""


def all_asked_something(listener):
    for connection in listener.connections:
        connection.answered = 1
    listener._unproven.clear()


async def test_clients_do_not_lock_peers_out(listening):
    assert await connected(listening, "client") == ""
    assert await connected(listening, "client") == ""
    all_asked_something(listening)
    assert "more than 2 connections" in await connected(listening, "client")
    assert await connected(listening, "control") == ""
    assert "more than 2 connections" in await connected(listening, "control")


async def test_who_never_asked_anything_makes_room_the_oldest_first(listening):
    assert await connected(listening, "client") == ""
    (oldest,) = listening.connections
    assert await connected(listening, "client") == ""
    assert await connected(listening, "client") == ""
    assert oldest not in listening.connections
    assert len(listening.connections) == 2
    assert listening.counters.ended_for_places == 1


async def test_one_peer_has_few_connections_and_the_silent_one_goes(listening, monkeypatch):
    monkeypatch.setattr(listeners, "PEER_CONNECTIONS_MAX", 1)
    assert await connected(listening, "control") == ""
    (older,) = listening.connections
    assert await connected(listening, "control") == ""
    for _ in range(100):
        await asyncio.sleep(0)
    assert older not in listening.connections
    assert len(listening.connections) == 1


async def test_accepting_goes_on_when_a_descriptor_is_free_again(listening, monkeypatch):
    (own,) = listening._acceptor._sockets

    class NoneFree:
        def accept(self):
            raise OSError(errno.EMFILE, "Too many open files")

    listening._acceptor._accept(NoneFree())  # as the loop would call it
    assert listening.counters.accept_failures == 1
    assert await connected(listening, "client") == ""  # it waited in the backlog
    assert own.fileno() >= 0


async def test_a_host_that_vanished_is_noticed(listening):
    await connected(listening, "client")
    (connection,) = listening.connections
    accepted = connection._transport.get_extra_info("socket")
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    if hasattr(socket, "TCP_KEEPIDLE"):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60


async def test_a_strange_cluster_is_refused(listening):
    with pytest.raises(RemoteProtocolError, match="cluster"):
        listening._greet(Hello(cluster="other", node_id="n1", role="client"))


async def test_a_connection_that_has_ended_is_freed_at_once(listening):
    """Not when all objects of the process are looked at for garbage, which nobody waits for."""
    gc.collect()
    gc.disable()
    try:
        await connected(listening, "client")
        (accepted,) = listening.connections
        freed = asyncio.Event()
        weakref.finalize(accepted, freed.set)
        accepted.abort("the test is over")
        del accepted
        async with asyncio.timeout(60):
            await freed.wait()
    finally:
        gc.enable()


# -- what strangers write into the logs -----------------------------------------------------------

NASTY = '\x1b[2J\r\n{"event": "forged"}\u202e\u2028'


class Kept(type(NO_AUDIT)):
    def __init__(self):
        super().__init__()
        self.events = []

    def record(self, event):
        self.events.append(event)


def hello_of(**values):
    hello = Hello(**{"cluster": "c", "node_id": "n1", "role": "client", **values})
    return b"".join(encode_frame(hello, limits=LIMITS))


@pytest.mark.parametrize(
    ("sent", "event"),
    [
        (NASTY.encode(), "closing a connection"),
        (hello_of(cluster=NASTY * 3), "refusing a connection"),
        (hello_of(role=NASTY * 3), "refusing a connection"),
        (hello_of()[:5] + b"\xff" + hello_of()[6:], "closing a connection"),
    ],
)
async def test_what_a_stranger_sends_is_text_in_one_line_a_minute(listening, caplog, sent, event):
    listening.shared.audit = audit = Kept()
    count = 5
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
        writer.write(sent)
        await reader.read()
        writer.close()
        await writer.wait_closed()
    (line,) = [record for record in caplog.records if record.message == event]
    said = getattr(line, EVENT_FIELDS)
    assert said["reason"].isprintable()
    assert len(said["reason"]) <= FOREIGN_LENGTH_MAX
    assert "\x1b" not in str(said)
    refused = [one for one in audit.events if one.event is AuditedEvent.CONNECTION_REFUSED]
    assert len(refused) == count, "the audit log counts them all"
    assert {one.allowed for one in refused} == {False}
    assert all(one.reason == said["reason"] for one in refused)


@pytest.mark.usefixtures("_has_ipv6")
async def test_addresses_of_ipv6_have_brackets_in_the_log_and_the_audit_log(monkeypatch, caplog):
    async with listening_on("::1", monkeypatch) as listener:
        listener.shared.audit = audit = Kept()
        reader, writer = await asyncio.open_connection("::1", listener.port)
        writer.write(hello_of(cluster="other"))
        await reader.read()
        writer.close()
        await writer.wait_closed()
    (line,) = [one for one in caplog.records if one.message == "refusing a connection"]
    (event,) = audit.events
    for address in (getattr(line, EVENT_FIELDS)["remote"], event.address):
        assert re.fullmatch(r"\[::1\]:\d+", address)


async def test_the_next_line_says_how_many_were_left_out(listening, caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(listening.shared.lines, "_now", lambda: now[0])
    for _ in range(4):
        listening.shared.lines.warn("refusing", "", "10.0.0.1:1", reason="r")
    listening.shared.lines.warn("refusing", "", "10.0.0.2:1", reason="r")
    now[0] = 60.0
    listening.shared.lines.warn("refusing", "", "10.0.0.1:9", reason="r")
    told = [getattr(record, EVENT_FIELDS) for record in caplog.records]
    assert [(one["remote"], one.get("lines_left_out")) for one in told] == [
        ("10.0.0.1:1", None),
        ("10.0.0.2:1", None),
        ("10.0.0.1:9", 3),
    ]


async def test_a_tls_handshake_that_fails_is_in_the_audit_log(listening):
    listening.shared.audit = audit = Kept()
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
    assert await reader.readexactly(1), "the listener greets at once"
    (connection,) = listening.connections
    transport = connection._transport
    connection.connection_lost(TlsError("it begins like TLS, but with no ClientHello"))
    (event,) = audit.events
    assert event.event is AuditedEvent.CONNECTION_REFUSED
    assert event.reason == "it begins like TLS, but with no ClientHello"
    assert event.address == "127.0.0.1:{}".format(writer.get_extra_info("sockname")[1])
    transport.abort()
    writer.close()
