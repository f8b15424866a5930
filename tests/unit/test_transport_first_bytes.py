"""What a port that speaks TLS does with whoever connects, by the first bytes."""

import asyncio
import ssl
import time

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from certificates import OTHER_CLUSTER_ID, Authority
from group_machine import Now
from quorumlog.log_events import EVENT_FIELDS
from quorumlog.model.codes import ResponseCode
from quorumlog.model.limits import Limits
from quorumlog.model.messages.base import Hello
from quorumlog.model.tls_config import TlsConfig
from quorumlog.transport.connection import Connection
from quorumlog.transport.first_bytes import TlsPort
from quorumlog.transport.handshake_turns import TURN_S, HandshakeTurns
from quorumlog.transport.listener import Listener
from quorumlog.transport.node_tls import NodeTls
from quorumlog.transport.resolver import connect_to, literal
from quorumlog.transport.stream import TLS_ALERT, TransportCounters
from quorumlog.transport.tls import OutgoingTls
from quorumlog.transport.tls_contexts import client_context
from quorumlog.transport.tls_words import NOT_TLS
from quorumlog.wire.decoder import FrameDecoder
from quorumlog.wire.frame import MAGIC
from tls_ends import App, End, Wire, files_of, outgoing, turns

LIMITS = Limits(handshake_ms=2_000)


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    made = Authority(tmp_path_factory.mktemp("pki"))
    for name in ("n0", "n1"):
        made.node(name)
    made.user("alice")
    return made


def tls_of(pki, **options):
    certificate, key = files_of(pki, "n0")
    config = TlsConfig(certificate=certificate, key=key, ca=str(pki.file), **options)
    return NodeTls(config, "n0", time.time)


class Handler:
    """Either side: keeps the other one's Hello, or why there was none."""

    def __init__(self):
        self.hello = asyncio.get_running_loop().create_future()
        self.refusal = ""

    def greet(self, hello):
        return self

    def opened(self, connection, hello):
        if not self.hello.done():
            self.hello.set_result(hello)

    def frame_received(self, connection, frame):
        self.refusal = frame.message.text

    def closed(self, connection, reason):
        pass


async def listening(tls, **limits):
    served = []

    def handler_for(hello):
        served.append(hello)
        return Handler()

    listener = Listener(
        "127.0.0.1", 0, handler_for, cluster="c", node_id="n0", accepts=lambda hello: True,
        limits=Limits(**limits) if limits else LIMITS, tls=tls,
    )  # fmt: skip
    await listener.start()
    listener.served = served
    return listener


class Dialled:
    """A connection to the listener, and how it went."""

    def __init__(self, connection, handler, lost):
        self.connection, self.handler, self.lost = connection, handler, lost

    async def end(self):
        async with asyncio.timeout(60):
            await self.lost.wait()
        return self.connection.reason or self.handler.refusal


async def dial(listener, role="client", node_id="", tls=None):
    handler, lost = Handler(), asyncio.Event()
    hello = Hello(cluster="c", node_id=node_id, role=role, address="127.0.0.1:1")

    def make():
        return Connection(
            hello, handler.greet, LIMITS, TransportCounters(), on_lost=lambda _: lost.set()
        )

    _, connection = await connect_to(literal("127.0.0.1", listener.port), make, tls)
    return Dialled(connection, handler, lost)


async def greeted(listener, **options):
    made = await dial(listener, **options)
    async with asyncio.timeout(60):
        hello = await made.handler.hello
    made.connection.abort("done")
    return hello


async def talk(listener, raw):
    """Send bytes and return what comes back until the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(raw)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    return answer


def on_both_loops(main):
    """Run a test on the loop of nodes, and on that of Python."""

    def test(pki, caplog):
        uvloop.run(main(pki, caplog))
        asyncio.run(main(pki, caplog))

    test.__name__ = main.__name__
    return test


@on_both_loops
async def test_a_port_with_tls_serves_tls_and_tells_plain_clients(pki, caplog):
    caplog.clear()
    listener = await listening(tls_of(pki))
    assert (await greeted(listener, tls=outgoing(pki, "alice"))).node_id == "n0"
    assert (await greeted(listener, tls=outgoing(pki, ""))).node_id == "n0"
    plain = await dial(listener)
    assert "this port speaks TLS: give the certificate of its authority" in await plain.end()
    raw = await talk(listener, MAGIC + bytes(60_000))
    decoder = FrameDecoder(LIMITS)
    decoder.receive_data(raw)
    hello = decoder.next_frame().message
    assert (hello.code, hello.cluster, hello.node_id) == (ResponseCode.TLS_REQUIRED, "", "")
    assert b"400 Bad Request" in await talk(listener, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await talk(listener, b"\0\0\0\x0c garbage") == b""
    assert len([r for r in caplog.records if r.getMessage() == "connection refused"]) == 1
    assert len(listener.served) == 2
    await listener.stop()
    assert not listener.connections


@on_both_loops
async def test_a_port_with_optional_tls_serves_both(pki, caplog):
    listener = await listening(tls_of(pki, mode="optional"))
    assert (await greeted(listener)).node_id == "n0"
    assert (await greeted(listener, tls=outgoing(pki, "alice"))).node_id == "n0"
    assert (await greeted(listener, role="bulk", node_id="n1")).node_id == "n0"  # believed
    await listener.stop()


@on_both_loops
async def test_a_port_without_tls_says_so(pki, caplog):
    caplog.clear()
    listener = await listening(None)
    told = []
    tls = outgoing(pki, "alice", when_plain=lambda: told.append(True))
    assert await (await dial(listener, tls=tls)).end() == NOT_TLS
    assert told == [True]
    assert (await talk(listener, b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00")).endswith(TLS_ALERT)
    lines = [getattr(r, EVENT_FIELDS)["reason"] for r in caplog.records]
    assert "a TLS handshake: this port does not speak TLS (no [tls])" in lines
    await listener.stop()


@pytest.mark.parametrize(
    ("certificate", "role", "node_id", "why"),
    [
        ("", "control", "n1", "no node's certificate was shown for n1"),
        ("alice", "bulk", "n1", "a user's certificate (alice) was shown for node n1"),
        ("n1", "control", "n2", "the certificate of node n1 was shown for node n2"),
        ("n1", "client", "", "the certificate of node n1 was shown by a client"),
    ],
)
async def test_a_certificate_has_to_fit_the_role(pki, certificate, role, node_id, why):
    listener = await listening(tls_of(pki))
    made = await dial(listener, role, node_id, outgoing(pki, certificate))
    await made.end()
    assert why in made.handler.refusal
    assert listener.served == []
    await listener.stop()


async def test_a_member_that_shows_its_certificate_is_known(pki):
    listener = await listening(tls_of(pki))
    made = await dial(listener, "control", "n1", outgoing(pki, "n1"))
    async with asyncio.timeout(60):
        await made.handler.hello
    (connection,) = listener.connections
    assert (connection.principal, made.connection.principal) == ("Node:n1", "Node:n0")
    assert connection.is_encrypted
    await listener.stop()


async def test_whoever_is_of_another_cluster_is_told_so_in_words(pki):
    pki.issue("eve", f"URI:quorumlog://{OTHER_CLUSTER_ID}/user/eve")
    listener = await listening(tls_of(pki))
    made = await dial(listener, tls=outgoing(pki, "eve"))
    assert f"the certificate of eve is of cluster {OTHER_CLUSTER_ID}" in await made.end()
    await listener.stop()


async def test_open_connections_of_revoked_certificates_are_ended(pki):
    tls = tls_of(pki, crl=str(pki.revoke()))
    listener = await listening(tls)
    mallory = pki.user("mallory")
    ended = await dial(listener, tls=outgoing(pki, "mallory"))
    kept = await dial(listener, tls=outgoing(pki, "alice"))
    async with asyncio.timeout(60):
        await asyncio.gather(ended.handler.hello, kept.handler.hello)
    pki.revoke(mallory)
    tls.check(Now().run)
    await ended.end()
    assert [one.principal for one in listener.connections] == ["User:alice"]
    await listener.stop()


async def test_silent_strangers_are_ended_within_one_deadline_for_everything(pki):
    listener = await listening(tls_of(pki), handshake_ms=300)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    context = client_context(str(pki.file))
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = to_server.read()
    answers = await asyncio.gather(
        talk(listener, b""), talk(listener, hello[:6]), talk(listener, hello[:100]),
        talk(listener, hello), talk(listener, b"QL"),
    )  # fmt: skip
    assert loop.time() - begun < Limits().handshake_ms / 1_000  # the default
    assert [len(answer) > 0 for answer in answers] == [False, False, False, True, False]
    assert not listener.connections
    await listener.stop()


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"\x16\x03\x01\x40\x00\x01\x00\x40\x01", "a TLS ClientHello of 16385 bytes"),
        (b"\x16\x03\x01\x00\x03\x01\x00\x40\x01", "no ClientHello"),
        (b"\x16\x02\x01\x00\x40\x01\x00\x00\x40", "no ClientHello"),
        (b"\x16\x03\x01\x00\x40\x02\x00\x00\x40", "no ClientHello"),
    ],
)
async def test_a_hello_that_is_too_long_or_none_is_refused_by_its_first_bytes(
    pki, caplog, raw, why
):
    listener = await listening(tls_of(pki))
    assert await talk(listener, raw) == b""
    assert why in getattr(caplog.records[-1], EVENT_FIELDS)["reason"]
    await listener.stop()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(st.binary(min_size=1, max_size=40), max_size=6), optional=st.booleans())
async def test_any_first_bytes_are_survived(pki, pieces, optional):
    tls = tls_of_module(pki, optional)
    wire, app = Wire(), App()
    wire.protocol = TlsPort(tls, lambda: tls.current.native).protocol_for(app)
    wire.protocol.connection_made(wire)
    for piece in pieces:
        if not wire.is_closed and not wire.is_eof:
            wire.give(piece)
    await turns()
    sent = b"".join(pieces)
    if app.received:
        assert optional
        assert bytes(app.received) == sent
    wire.end()
    assert app.has_ended


_made = {}


def tls_of_module(pki, optional):
    if optional not in _made:
        _made[optional] = tls_of(pki, mode="optional" if optional else "required")
    return _made[optional]


async def test_handshakes_of_many_at_once_leave_the_loop_time_for_others(pki):
    """Strangers who all send a ClientHello in one moment are answered over many turns."""
    tls, now = tls_of(pki), [0.0]

    def passing():
        now[0] += 0.6 * TURN_S
        return now[0]

    tls.handshakes = HandshakeTurns(passing, lambda: 0.0, tls.members)
    port = TlsPort(tls, lambda: tls.current.native)
    clients, servers = [], []
    for _ in range(10):
        client, server = End(outgoing(pki, "alice")), End(None)
        server.layer = server.wire.protocol = port.protocol_for(server.app)
        server.start()
        client.start()
        server.wire.give(client.wire.take())
        clients.append(client)
        servers.append(server)

    def answered():
        return sum(bool(server.wire.sent) for server in servers)

    assert (answered(), len(tls.handshakes)) == (0, 10)
    await asyncio.sleep(0)
    assert (answered(), len(tls.handshakes)) == (1, 9)
    assert all(server.wire.is_paused for server in servers if not server.wire.sent)
    servers[1].wire.end()  # it waits no longer
    while len(tls.handshakes):  # noqa: ASYNC110
        await asyncio.sleep(TURN_S)
    assert answered() == 9
    client, server = clients[0], servers[0]
    client.wire.give(server.wire.take())
    server.wire.give(client.wire.take())
    assert server.app.identity is None, "the second step waits for a turn, too"
    while len(tls.handshakes):  # noqa: ASYNC110
        await asyncio.sleep(TURN_S)
    assert server.app.identity.principal == "User:alice"
    for server in servers[2:]:
        server.wire.end()


async def test_a_failed_handshake_is_written_into_the_log(pki, tmp_path, caplog):
    stranger = Authority(tmp_path)
    stranger.user("eve")
    listener = await listening(tls_of(pki))
    context = client_context(str(pki.file), *files_of(stranger, "eve"))
    made = await dial(listener, tls=OutgoingTls(context, certificate="eve.pem").to("localhost"))
    assert await made.end() == (
        "the other side does not trust the authority of the certificate eve.pem"
    )
    fields = getattr(caplog.records[-1], EVENT_FIELDS)
    assert fields["reason"] == "its certificate is of an authority that is not trusted here"
    assert fields["remote"].startswith("127.0.0.1:")
    await listener.stop()
