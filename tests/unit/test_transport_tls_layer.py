"""The TLS layer, with a test between its two ends that decides which bytes arrive when."""

import asyncio
import ssl

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from certificates import DAY, Authority
from quorumlog.model.errors import RemoteProtocolError
from quorumlog.model.tls_config import TlsConfig
from quorumlog.transport import lingering
from quorumlog.transport.tls import IncomingTls, OutgoingTls
from quorumlog.transport.tls_contexts import client_context, server_context
from quorumlog.transport.tls_layer import (
    ANSWER_BYTES_MAX,
    HANDSHAKE_BYTES_MAX,
    UNSENT_BYTES_MAX,
)
from quorumlog.transport.tls_words import CUT_OFF, CUT_OFF_EARLY, NOT_TLS
from tls_ends import End, anybody, files_of, outgoing, pump, turns

SIZES = st.sampled_from([1, 7, 500, 16_384, 16_385, 70_000, 300_000])
LARGE = bytes(range(256)) * 20_000
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    made = Authority(tmp_path_factory.mktemp("pki"))
    made.node("n0")
    made.node("n1")
    made.user("alice")
    return made


def incoming(pki, name="n0", **options):
    config = config_of(pki, name, **options)
    return IncomingTls(server_context(config, serves_peers=True), anybody, f"{name}.pem")


def config_of(pki, name="n0", **options):
    certificate, key = files_of(pki, name)
    return TlsConfig(certificate=certificate, key=key, ca=str(pki.file), **options)


def ends(pki, space=64 * 1024):
    client, server = End(outgoing(pki), space), End(incoming(pki), space)
    server.start()
    client.start()
    return client, server


async def opened(pki, **options):
    client, server = ends(pki, **options)
    await pump(client, server)
    assert client.app.transport is client.layer
    assert server.app.transport is server.layer
    return client, server


# -- bytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 5, 17, 1_000, 20_000])
async def test_bytes_arrive_however_they_are_split(pki, size):
    client, server = ends(pki)
    await pump(client, server, size)
    client.layer.write(b"question")
    server.layer.writelines([b"a", b"", b"n" * 100, b"swer"])
    await pump(client, server, size)
    assert (bytes(server.app.received), len(client.app.received)) == (b"question", 105)


@pytest.mark.parametrize("space", [1, 100, 16_384, 64 * 1024, 8 * MIB])
async def test_large_frames_go_both_ways_at_the_same_time(pki, space):
    client, server = await opened(pki, space=space)
    sent = LARGE[:20_000] if space == 1 else LARGE
    client.layer.write(sent)
    server.layer.writelines([sent[:7], memoryview(sent)[7:]])
    await pump(client, server, 100_000)
    assert server.app.received == sent
    assert client.app.received == sent
    assert client.layer.get_write_buffer_size() == 0


async def test_what_is_unsent_is_counted_and_a_slow_reader_pauses_the_writer(pki):
    client, server = await opened(pki)
    client.layer.set_write_buffer_limits(high=MIB)
    for _ in range(8):
        client.layer.write(bytes(MIB))
    await turns(20)
    assert client.layer.get_write_buffer_size() >= 8 * MIB
    assert len(client.wire.sent) < UNSENT_BYTES_MAX + 128 * 1024  # the rest is not encrypted yet
    assert client.app.is_paused
    server.wire.give(client.wire.take(3 * MIB))
    await turns(20)
    assert 7 * MIB < client.layer.get_write_buffer_size() < 8 * MIB
    await pump(client, server)
    assert not client.app.is_paused
    assert client.layer.get_write_buffer_size() == 0
    assert len(server.app.received) == 8 * MIB


@pytest.mark.parametrize("high", [0, 1_000, 300_000])
async def test_a_writer_goes_on_whatever_its_limit_is(pki, high):
    client, server = await opened(pki)
    client.layer.set_write_buffer_limits(high=high)
    client.layer.write(bytes(high + 1))
    assert client.app.is_paused
    await pump(client, server, 50_000)
    assert not client.app.is_paused


async def test_whoever_pauses_receives_nothing_and_then_all(pki):
    client, server = await opened(pki)
    server.app.when_received = server.layer.pause_reading
    client.layer.write(LARGE[:150_000])
    await turns()
    rest = server.wire.give(client.wire.take())
    assert 0 < len(server.app.received) <= 64 * 1024
    assert server.wire.is_paused
    for _ in range(20):
        server.layer.resume_reading()
        await turns()
        rest = server.wire.give(rest or client.wire.take())
    assert server.app.received == LARGE[:150_000]


async def test_no_memory_is_asked_for_without_bytes_for_it(pki):
    client, server = await opened(pki)
    asked = []
    server.app.get_buffer = lambda hint: asked.append(hint) or server.app.space
    server.app.buffer_updated = lambda nbytes: asked.clear()
    client.layer.write(bytes(100_000))
    await turns()
    for byte in client.wire.take(40_000):
        server.wire.give(bytes([byte]))
        assert asked == []


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(SIZES, SIZES, st.sampled_from(["peer", "layer", "pause", "go on"])), max_size=25
    )
)
async def test_traffic_with_the_librarys_own_tls_arrives_as_sent(pki, steps):
    """The peer is `ssl.SSLObject` itself; writes, reads and pauses come in any order."""
    context = client_context(str(pki.file), *files_of(pki, "n1"))
    to_peer, from_peer = ssl.MemoryBIO(), ssl.MemoryBIO()
    peer = context.wrap_bio(to_peer, from_peer, server_hostname="localhost")
    server = End(incoming(pki))
    server.start()
    is_open, sent, received, expected = False, b"", bytearray(), b""
    for number, (taken, size, action) in enumerate(steps):
        to_peer.write(server.wire.take(taken))
        try:
            if not is_open:
                peer.do_handshake()
                is_open = True
            while piece := peer.read(100_000):
                received += piece
        except ssl.SSLWantReadError:
            pass
        if action == "peer" and is_open:
            sent += bytes([number]) * size
            peer.write(bytes([number]) * size)
        elif action == "layer" and server.app.transport is not None:
            expected += bytes([number]) * size
            server.layer.write(bytes([number]) * size)
        elif action == "pause":
            server.layer.pause_reading()
        elif action == "go on":
            server.layer.resume_reading()
        await turns()
        if not server.wire.is_paused:
            raw = from_peer.read()
            for at in range(0, len(raw), 50_000):
                rest = server.wire.give(raw[at : at + 50_000])
                while rest:
                    server.layer.resume_reading()
                    await turns()
                    rest = server.wire.give(rest)
        await turns()
    for _ in range(100):
        server.layer.resume_reading()
        await turns()
        to_peer.write(server.wire.take())
        server.wire.give(from_peer.read())
        try:
            if not is_open:
                peer.do_handshake()
                is_open = True
            while piece := peer.read(100_000):
                received += piece
        except ssl.SSLWantReadError:
            pass
    assert server.app.received == sent
    assert received == expected


# -- ends -----------------------------------------------------------------------------------------


async def test_what_was_written_before_the_end_arrives_and_the_end_is_said(pki):
    client, server = await opened(pki)
    client.layer.write(LARGE)
    client.layer.close()
    client.layer.write(b"too late")
    assert client.layer.is_closing()
    await pump(client, server, 100_000)
    assert server.app.received == LARGE
    assert client.wire.is_closed
    assert server.wire.is_closed
    client.wire.end()
    server.wire.end()
    assert (client.app.error, server.app.error) == (None, None)


async def test_a_client_that_goes_on_sending_reads_why_the_server_ends_the_connection(pki):
    """A socket that is closed with something unread resets the connection."""
    client, server = await opened(pki)
    server.layer.write(b"why")
    server.layer.close()
    client.layer.write(b"a request")
    await pump(client, server)
    assert client.app.received == b"why"
    assert server.app.received == b""
    assert (server.wire.is_eof, server.wire.is_closed) == (True, False)
    server.wire.end()
    assert server.app.error is None


async def test_who_ends_a_connection_while_it_receives_says_so_once(pki):
    """What was written in this turn has its end flushed, too, when the end was said already."""
    failed = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, what: failed.append(what))
    client, server = await opened(pki)
    server.layer.write(b"before")
    server.app.when_received = server.layer.close
    client.layer.write(b"a request")
    server.wire.give(client.wire.take())
    client.wire.give(server.wire.take())
    await turns()
    assert not failed
    assert client.app.received == b"before"
    assert (server.wire.is_eof, server.wire.is_aborted, bytes(server.wire.sent)) == (
        True,
        False,
        b"",
    )
    server.wire.end()
    assert server.app.error is None


async def test_a_slow_reader_gets_all_that_was_written_before_the_end(pki, monkeypatch):
    """The time to read why it was refused begins when all was sent."""
    monkeypatch.setattr(lingering, "LINGER_S", 0)
    client, server = await opened(pki)
    server.layer.write(LARGE)
    server.layer.close()
    client.layer.write(b"a request")
    while server.layer._outbox.size:
        client.wire.give(server.wire.take(100_000))
        await turns(1)
    assert server.wire.get_write_buffer_size()
    await turns(10)
    assert not server.wire.is_aborted, "nobody has had the time to read the rest"
    client.wire.give(server.wire.take())
    assert client.app.received == LARGE
    await turns(10)
    assert server.wire.is_aborted, "the other side does not close"


async def test_who_reads_nothing_has_some_seconds_for_what_was_written(pki, monkeypatch):
    monkeypatch.setattr(lingering, "CLOSE_GRACE_SECONDS", 0)
    _, server = await opened(pki)
    server.layer.write(b"an answer")
    server.layer.close()
    await turns(10)
    assert server.wire.is_aborted


async def test_an_end_that_nobody_said_is_an_error(pki):
    client, server = await opened(pki)
    client.layer.write(b"half of a fra")
    await pump(client, server)
    server.wire.end()
    assert str(server.app.error) == CUT_OFF
    early = End(incoming(pki))
    early.start()
    early.wire.end()
    assert str(early.app.error) == CUT_OFF_EARLY


async def test_an_error_of_the_socket_is_passed_on(pki):
    client, _ = await opened(pki)
    client.wire.end(ConnectionResetError("reset"))
    assert str(client.app.error) == "reset"


async def test_a_changed_byte_ends_the_connection_and_what_came_before_it_is_passed_on(pki):
    client, server = await opened(pki)
    client.layer.write(b"first")
    await turns()
    client.layer.write(b"second")
    await turns()
    raw = bytearray(client.wire.take())
    raw[-1] ^= 1
    server.wire.give(raw)
    assert server.app.received == b"first"
    assert server.wire.sent  # an alert
    server.wire.end()
    assert "decryption failed or bad record mac" in str(server.app.error)


async def test_nothing_is_encrypted_for_an_end_that_is_gone(pki):
    client, _ = await opened(pki)
    client.layer.write(b"x")
    client.layer.abort()
    client.wire.end()
    client.layer.write(b"y")
    await turns()
    assert client.app.has_ended


# -- strangers ------------------------------------------------------------------------------------


async def test_few_bytes_are_taken_before_the_handshake_is_done(pki):
    server = End(incoming(pki))
    server.start()
    server.wire.give(b"\x16\x03\x01\x40\x00\x01\x00\xff\xff" + bytes(HANDSHAKE_BYTES_MAX))
    assert server.wire.is_eof
    server.wire.end()
    assert f"{HANDSHAKE_BYTES_MAX} bytes" in str(server.app.error)


async def test_whoever_speaks_no_tls_is_recognised(pki):
    told = []
    client = End(outgoing(pki, when_plain=lambda: told.append(True)))
    client.start()
    client.wire.give(b"QLOG\1\1")
    client.wire.end()
    assert (str(client.app.error), told) == (NOT_TLS, [True])


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(min_size=1, max_size=2_000), is_open=st.booleans(), as_record=st.booleans())
async def test_any_bytes_are_survived(pki, raw, is_open, as_record):
    server = End(incoming(pki))
    server.start()
    if is_open:
        client = End(outgoing(pki))
        client.start()
        await pump(client, server)
    if as_record:
        raw = b"\x16\x03\x03" + len(raw).to_bytes(2, "big") + raw
    server.wire.give(raw)
    await turns()
    assert not server.app.received
    assert server.layer.get_write_buffer_size() < 4_096
    server.wire.end()
    assert server.app.has_ended
    assert isinstance(server.app.error, ConnectionError)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damages=st.lists(st.none() | st.floats(0, 0.999), min_size=12, max_size=12))
async def test_a_damaged_handshake_ends_both_sides(pki, damages):
    client, server = ends(pki)
    for _ in range(6):
        for source, target in ((client, server), (server, client)):
            raw, place = bytearray(source.wire.take()), damages.pop()
            if raw and place is not None:
                raw[int(place * len(raw))] ^= 1
            if not target.wire.is_closed:
                target.wire.give(raw)
        await turns()
    for end in (client, server):
        end.wire.end()
        assert end.app.has_ended


async def test_answers_that_nobody_reads_are_bounded(pki):
    client, server = await opened(pki)
    server.layer._is_below_full = True
    server.wire.write = server.wire.sent.extend
    for _ in range(ANSWER_BYTES_MAX // 1_000 + 1):
        server.layer._outgoing.write(bytes(1_000))
        client.layer.write(b"x")
        await turns()
        server.wire.give(client.wire.take())
    server.wire.end()
    assert "changes keys again and again" in str(server.app.error)


# -- who somebody is ------------------------------------------------------------------------------


def refuse(ssl_object):
    raise RemoteProtocolError("not you")


async def test_whoever_is_refused_by_name_sends_and_receives_nothing(pki):
    tls = incoming(pki)
    server = End(IncomingTls(tls.context, refuse))
    client = End(outgoing(pki))
    server.start()
    client.start()
    client_began = client.app.begin
    client.app.begin = lambda transport, identity: (
        client_began(transport, identity),
        transport.write(b"secret"),
    )
    await pump(client, server)
    assert server.app.transport is None
    assert not server.app.received
    server.wire.end()
    assert str(server.app.error) == "not you"


async def test_the_identity_of_the_server_is_known_before_anything_is_sent_to_it(pki):
    def check(certificate):
        raise RemoteProtocolError("another node")

    client, server = End(outgoing(pki, check=check)), End(incoming(pki))
    server.start()
    client.start()
    await pump(client, server)
    client.wire.end()
    assert client.app.transport is None
    assert str(client.app.error) == "another node"


async def failure_of(client_tls, server_tls):
    """Let them fail; return what the client and the server say about it."""
    told = []
    server_tls = IncomingTls(
        server_tls.context, server_tls.identify_object, server_tls.certificate, told.append
    )
    client, server = End(client_tls), End(server_tls)
    server.start()
    client.start()
    await pump(client, server)
    client.wire.end()
    server.wire.end()
    assert server.app.transport is None
    assert told == [str(server.app.error)] or told == []
    return str(client.app.error), str(server.app.error)


async def test_a_server_that_is_not_accepted_knows_why(pki, tmp_path):
    stranger = Authority(tmp_path, "stranger")
    stranger.node("n1")
    here, there = await failure_of(outgoing(stranger), incoming(pki))
    assert here == "its certificate is of an authority that is not trusted here"
    assert there == "the other side does not trust the authority of the certificate n0.pem"


@pytest.mark.parametrize(
    ("times", "here", "there"),
    [
        ({"end": -DAY / 2}, "its certificate has expired (the clock here: 20", "n0.pem: expired"),
        ({"begin": DAY}, "its certificate is not valid yet (the clock here: 20", "not valid yet"),
    ],
)
async def test_a_certificate_out_of_its_time_is_refused(pki, tmp_path, times, here, there):
    other = Authority(tmp_path)
    other.node("n0", **times)
    other.node("n1")
    client, server = await failure_of(outgoing(other), incoming(other))
    assert client.startswith(here)
    assert there in server


async def test_a_name_that_does_not_fit_is_refused(pki):
    context = client_context(str(pki.file), *files_of(pki, "alice"))
    tls = OutgoingTls(context).to("elsewhere.example")
    client, _ = await failure_of(tls, incoming(pki))
    assert client.startswith("its certificate is for another name")
    assert "elsewhere.example" in client


async def test_a_client_that_is_not_accepted_is_told_why(pki, tmp_path):
    revoked = pki.revoke(pki.node("n2"))
    tls = outgoing(pki, "n2")
    client, server = End(tls), End(incoming(pki, crl=str(revoked)))
    server.start()
    client.start()
    await pump(client, server)
    client.wire.end()
    server.wire.end()
    assert str(server.app.error) == "its certificate is revoked"
    assert str(client.app.error) == "the other side refuses the certificate n2.pem: revoked"


async def test_a_certificate_that_is_required_is_asked_for(pki):
    client, server = End(outgoing(pki, "")), End(incoming(pki, client_auth="required"))
    server.start()
    client.start()
    await pump(client, server)
    client.wire.end()
    server.wire.end()
    assert str(server.app.error) == "it shows no certificate, and one is required here"
    assert str(client.app.error) == ("the other side asks for a certificate, and none was given")


async def test_a_certificate_is_for_the_use_that_it_names(pki):
    context = client_context(str(pki.file), *files_of(pki, "n1"))
    context.check_hostname = False
    tls = outgoing(pki)
    here, _ = await failure_of(tls, incoming(pki, "alice"))
    assert here == "its certificate is not for this use (extended key usage)"


@pytest.mark.parametrize("version", ["1.2", "1.3"])
async def test_no_session_is_resumed_by_a_newer_context(pki, version):
    maximum = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[version]
    context = client_context(str(pki.file), *files_of(pki, "n1"), min_version="1.2")
    context.check_hostname, context.maximum_version = False, maximum
    session = None
    for _ in range(2):
        config = config_of(pki, min_version="1.2")
        server = End(IncomingTls(server_context(config), anybody))
        server.start()
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(to_client, to_server, session=session)
        for _ in range(4):
            try:
                client.do_handshake()
                client.read(1)
            except ssl.SSLWantReadError:
                pass
            server.wire.give(to_server.read())
            to_client.write(server.wire.take())
        assert server.app.transport is not None
        assert not client.session_reused
        session = client.session
    if version == "1.3":
        assert session is None or not session.has_ticket
