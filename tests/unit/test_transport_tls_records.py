"""Sealed records that are legal and unusual, or not legal at all, at the TLS layer of a node."""

import ssl
from contextlib import suppress

import pytest

from certificates import Authority
from quorumlog.model.tls_config import TlsConfig
from quorumlog.transport.tls import IncomingTls
from quorumlog.transport.tls_contexts import client_context, server_context
from quorumlog.transport.tls_layer import ANSWER_BYTES_MAX, UNSENT_BYTES_MAX
from tls_ends import End, anybody, files_of, turns
from tls_records import (
    ALERT,
    ASKED,
    CERTIFICATE,
    CHANGE_CIPHER_SPEC,
    CIPHERS,
    CLIENT_HELLO,
    CLOSE_NOTIFY,
    DATA,
    END_OF_EARLY_DATA,
    FINISHED,
    HANDSHAKE,
    KEY_UPDATE,
    NEW_SESSION_TICKET,
    NOT_ASKED,
    PLAIN_MAX,
    USER_CANCELED,
    Sealer,
    handshake,
)


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    made = Authority(tmp_path_factory.mktemp("pki"))
    made.node("n0")
    made.node("n1")
    return made


class Peer:
    """The library's own client, whose keys are known."""

    def __init__(self, pki, keylog):
        certificate, key = files_of(pki, "n0")
        config = TlsConfig(certificate=certificate, key=key, ca=str(pki.file))
        self.end = End(IncomingTls(server_context(config, serves_peers=True), anybody))
        self.end.start()
        context = client_context(str(pki.file), *files_of(pki, "n1"))
        context.keylog_filename = str(keylog)
        self._incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, outgoing, server_hostname="localhost")
        for _ in range(3):
            with suppress(ssl.SSLWantReadError):
                self.tls.do_handshake()
            self.end.wire.give(outgoing.read())
            self._incoming.write(self.end.wire.take())
        assert self.end.app.transport is not None
        self.seal = Sealer(keylog, self.tls.cipher()[0])

    async def give(self, *raw):
        for one in raw:
            if not self.end.wire.is_closed:
                self.end.wire.give(one)
                await turns()

    def read(self):
        """Return what the node has sent since, decrypted."""
        self._incoming.write(self.end.wire.take())
        found = bytearray()
        try:
            while piece := self.tls.read(100_000):
                found += piece
        except ssl.SSLWantReadError:
            pass
        return bytes(found)

    @property
    def received(self):
        return bytes(self.end.app.received)


@pytest.fixture
def peer(pki, tmp_path):
    return Peer(pki, tmp_path / "keys")


async def test_keys_may_change_at_any_time_on_either_side(peer):
    assert peer.tls.cipher()[0] in CIPHERS
    for number in range(40):
        asked = ASKED if number % 2 else NOT_ASKED
        await peer.give(peer.seal.record(DATA, b"%d " % number), peer.seal.key_update(asked))
        peer.end.layer.write(b"answer %d " % number)
        await turns()
        assert peer.read() == b"answer %d " % number
    assert peer.received == b"".join(b"%d " % number for number in range(40))


async def test_a_message_in_pieces_of_every_size_arrives(peer):
    raw = peer.seal.record(DATA, b"one", padding=1_000) + peer.seal.record(DATA, b"")
    raw += peer.seal.key_update(ASKED) + peer.seal.record(DATA, b" two")
    await peer.give(*(raw[at : at + 1] for at in range(len(raw))))
    assert peer.received == b"one two"


async def test_the_largest_record_is_taken(peer):
    await peer.give(peer.seal.record(DATA, bytes(PLAIN_MAX)))
    assert peer.received == bytes(PLAIN_MAX)


async def test_changes_of_keys_that_are_not_read_are_bounded(peer):
    peer.end.layer.pause_writing()  # as the socket does when nothing more fits in
    kept = 0
    for _ in range(10_000):
        await peer.give(peer.seal.key_update(ASKED))
        kept = max(kept, len(peer.end.wire.sent))
        if peer.end.wire.is_eof or peer.end.wire.is_closed:
            break
    assert kept <= ANSWER_BYTES_MAX + UNSENT_BYTES_MAX
    peer.end.wire.end()
    assert isinstance(peer.end.app.error, ConnectionError)


LARGE = (1 << 24) - 1
ILLEGAL = {
    "a record above the limit": lambda seal: [seal.record(DATA, bytes(PLAIN_MAX + 1))],
    "ciphertext above the limit": lambda seal: [seal.record(DATA, bytes(PLAIN_MAX + 300))],
    "padding alone": lambda seal: [seal.record(0, b"")],
    "an unknown kind": lambda seal: [seal.record(0x63, b"x")],
    "ChangeCipherSpec, sealed": lambda seal: [seal.record(CHANGE_CIPHER_SPEC, b"\1")],
    "ChangeCipherSpec, plain": lambda seal: [b"\x14\x03\x03\x00\x01\x01"] * 40,
    "plain data": lambda seal: [b"\x17\x03\x03\x00\x11" + bytes(17)],
    "a plain alert": lambda seal: [b"\x15\x03\x03\x00\x02\x01\x00"],
    "empty records without end": lambda seal: [seal.record(DATA, b"") for _ in range(200)],
    "warnings without end": lambda seal: [seal.record(ALERT, USER_CANCELED) for _ in range(200)],
    "half of an alert": lambda seal: [seal.record(ALERT, b"\1")],
    "an empty message": lambda seal: [seal.record(HANDSHAKE, b"")],
    "a KeyUpdate of odd content": lambda seal: [
        seal.record(HANDSHAKE, handshake(KEY_UPDATE, b"\7"))
    ],
    "a long KeyUpdate": lambda seal: [seal.record(HANDSHAKE, handshake(KEY_UPDATE, bytes(9)))],
    "data within a message": lambda seal: [
        seal.record(HANDSHAKE, handshake(KEY_UPDATE, ASKED)[:3]),
        seal.record(DATA, b"x"),
    ],
    "data with the keys of before": lambda seal: [
        seal.record(HANDSHAKE, handshake(KEY_UPDATE, NOT_ASKED)),
        seal.record(DATA, b"x"),
    ],
    "a record twice": lambda seal: [seal.record(DATA, b"")] * 2,
    "another handshake": lambda seal: [seal.record(HANDSHAKE, handshake(CLIENT_HELLO, bytes(60)))],
    "a message of 16 MiB": lambda seal: [
        seal.record(HANDSHAKE, bytes([CLIENT_HELLO]) + LARGE.to_bytes(3, "big") + bytes(16_000)),
        *(seal.record(HANDSHAKE, bytes(PLAIN_MAX)) for _ in range(400)),
    ],
    "a certificate that nobody asked for": lambda seal: [
        seal.record(HANDSHAKE, handshake(CERTIFICATE, bytes(300)))
    ],
    "what only servers send": lambda seal: [
        seal.record(HANDSHAKE, handshake(NEW_SESSION_TICKET, bytes(60)))
    ],
    "Finished again": lambda seal: [seal.record(HANDSHAKE, handshake(FINISHED, bytes(48)))],
    "the end of data that was not early": lambda seal: [
        seal.record(HANDSHAKE, handshake(END_OF_EARLY_DATA, b""))
    ],
}


@pytest.mark.parametrize("records", ILLEGAL.values(), ids=ILLEGAL)
async def test_what_is_not_legal_ends_the_connection_and_keeps_no_memory(peer, records):
    await peer.give(peer.seal.record(DATA, b"before "))
    given = records(peer.seal)
    await peer.give(*given)
    await peer.give(peer.seal.record(DATA, b"after"))
    assert peer.received == b"before "
    assert peer.end.layer._incoming.pending <= 1 << 17
    assert len(peer.end.wire.sent) <= 4_096, "it answers with an alert, and no more"
    peer.end.wire.end()
    assert isinstance(peer.end.app.error, ConnectionError)


async def test_nothing_is_taken_after_the_end_was_said(peer):
    await peer.give(peer.seal.record(DATA, b"all"), peer.seal.record(ALERT, CLOSE_NOTIFY))
    await peer.give(peer.seal.record(DATA, b" and more"))
    assert peer.received == b"all"
    peer.end.wire.end()
    assert peer.end.app.error is None


def test_renegotiation_tickets_and_compression_are_off(pki):
    certificate, key = files_of(pki, "n0")
    config = TlsConfig(certificate=certificate, key=key, ca=str(pki.file), min_version="1.2")
    options = server_context(config).options
    for one in (ssl.OP_NO_RENEGOTIATION, ssl.OP_NO_TICKET, ssl.OP_NO_COMPRESSION):
        assert options & one
