"""Hostile inputs for the three ports of a node, from a seed: what strangers and users may send.

A door is a port, whether it speaks TLS, and whether the client has logged in. An input is what a
connection to a door does: pieces of bytes, and how it ends.
"""

import ssl
import struct
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

import msgspec
from isal.isal_zlib import crc32

from kafka_mutations import damaged, request
from quorumlog.kafka.requests import SPOKEN, ApiKey
from quorumlog.model.messages.base import Hello
from quorumlog.model.messages.login import Authenticate
from quorumlog.wire.frame import HEADER, MAGIC, encode_frame
from quorumlog.wire.kinds import CLIENT_KINDS, MESSAGE_OF_KIND
from wire_samples import sample_of

PORTS = ("native", "kafka", "admin")
STAGES = ("before", "after")
GROUP, TOPIC = "hostile", "t"
"""What the hostile user has rights on. The topic is one of those in `kafka_mutations`."""
LENGTHS = (0, 1, 31, 8_192, 8_193, 16_385, 65_537, 1 << 23, 1 << 24, (1 << 31) - 1, 0xFFFF_FFFF)
SCRAM = (
    b"n,,n=bob,r=abc",
    b"n,a=root,n=bob,r=abc",
    b"y,,n=bob,r=abc",
    b"p=tls-unique,,n=bob,r=abc",
    b"n,,n=,r=",
    b"n,,n=bob,r=abc,m=x",
    b"n,,n=bo=2Cb,r=\0\0",
    b"n,,n=" + b"b" * 3_000 + b",r=abc",
    b"c=biws,r=abcdef,p=AAAA",
    b"c=biws,r=abc,p=" + b"A" * 4_000,
    b"\0bob\0pencil",
    b"bob\0alice\0pencil",
    b"\0" * 300,
    b"n,,\x01auth=Bearer e30.e30.\x01\x01",
    b"n,,\x01auth=Bearer " + b"." * 5_000 + b"\x01\x01",
    b"",
    b"\xff\xfe\xfd",
)
"""Messages of mechanisms, few of them in their place."""
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER", "GSSAPI", "", "x" * 250)
CLIENT_HELLO = Hello(cluster="", node_id="", role="client")
ODD = (None, True, -1, 0, 1 << 63, 1.5, "", "client", "bulk", "x" * 5_000, b"\0", [], [[[]]], {})


class Door(NamedTuple):
    """Where hostile inputs go. `stage`: before or after a login."""

    port: str
    has_tls: bool
    stage: str

    def __str__(self):
        return f"{self.port} {'TLS' if self.has_tls else 'plain'} {self.stage} login"


class Input(NamedTuple):
    """What a connection does. `ending`: how it ends after the pieces.

    `below`: the pieces are sent without TLS, in its place. `tampering`: what becomes of the records
    that carry the pieces; "": nothing. `dribbles`: each piece waits for a moment.
    """

    kind: str
    pieces: list[bytes]
    ending: str = "close"
    below: bool = False
    tampering: str = ""
    dribbles: bool = False


ENDINGS = (*("close",) * 6, *("reset",) * 3, *("shut",) * 2, "wait")
"""close: at once. reset: by RST. shut: half of the connection. wait: until the node ends it."""
TAMPERINGS = ("flip", "cut", "twice", "insert", "swap", "length", "type", "many")


def doors(ports=PORTS, tls=(True, False)):
    """Return all doors; nobody logs in at an admin port without TLS."""
    return [
        Door(port, has_tls, stage)
        for port in ports
        for has_tls in tls
        for stage in STAGES
        if port != "admin" or has_tls or stage == "before"
    ]


def input_for(random, door):
    """Return a hostile input for a door."""
    if door.stage == "before" and random.random() < (0.5 if door.has_tls else 0.1):
        kind, raw = random.choice(HELLOS)(random)
        pieces, below = [raw], True
    else:
        maker = MAKERS[door.port, door.stage]
        kind, pieces = maker(random)
        below = False
    ending, tampering = random.choice(ENDINGS), ""
    if random.random() < 0.1:  # close in mid-frame
        whole = b"".join(pieces)
        kind, pieces = f"{kind}, cut", [whole[: random.randrange(len(whole) + 1)]]
    if door.has_tls and not below and random.random() < 0.25:
        tampering = random.choice(TAMPERINGS)
        kind = f"{kind}, record {tampering}"
    dribbles = random.random() < 0.02
    if dribbles:
        whole = b"".join(pieces)
        pieces = [whole[at : at + 1] for at in range(min(len(whole), 12))] + [whole[12:]]
    return Input(kind, pieces, ending, below, tampering, dribbles)


def noise(random, most=400):
    """Return random bytes."""
    return random.randbytes(random.randint(1, most))


def bent(random, raw):
    """Return bytes that are damaged at up to four places."""
    return damaged(random, b"\0\0\0\0" + raw)[4:]


# -- TLS -------------------------------------------------------------------------------------------


def client_hello(random):
    """Return what a client of TLS sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if random.random() < 0.3:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
    if random.random() < 0.2:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if random.random() < 0.3:
        names = ["h2", "http/1.1", "x" * 200, "kafka"]
        context.set_alpn_protocols(random.choices(names, k=random.randint(1, 60)))
    outgoing = ssl.MemoryBIO()
    name = random.choice(("localhost", "x", "a" * 60 + ".example", "127.0.0.1"))
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def record(kind, body, version=0x0303):
    """Return a record of TLS."""
    return struct.pack(">BHH", kind, version, len(body) & 0xFFFF) + body


def _flipped_hello(random):
    raw = bytearray(client_hello(random))
    for _ in range(random.randint(1, 3)):
        raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)
    return "ClientHello with flipped bits", bytes(raw)


def _bent_hello(random):
    raw = bent(random, client_hello(random)[9:])
    body = b"\x01" + len(raw).to_bytes(3, "big") + raw
    return "ClientHello, damaged, lengths right", record(0x16, body, 0x0301)


def _hello_of_odd_length(random):
    raw = client_hello(random)
    claimed = random.choice(LENGTHS) & 0xFFFFFF
    return (
        "ClientHello of another length",
        raw[:6] + claimed.to_bytes(3, "big") + raw[9:] + bytes(random.choice((0, 900, 20_000))),
    )


def _hello_in_small_records(random):
    body = client_hello(random)[5:]
    size = random.randint(1, 40)
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return "ClientHello in small records", b"".join(record(0x16, one, 0x0301) for one in pieces)


def _several_hellos(random):
    return "several ClientHellos", client_hello(random) * random.randint(2, 40)


def _record_of_odd_type(random):
    kind = random.randrange(256)
    return "a record that begins nothing", record(
        kind, noise(random), random.choice((0x0300, 0x0303))
    )


def _hello_then_noise(random):
    return "ClientHello, then noise", client_hello(random) + noise(random, 3_000)


def _hello_then_records(random):
    raw = client_hello(random)
    for _ in range(random.randint(1, 200)):
        raw += record(random.choice((0x14, 0x15, 0x17)), random.choice((b"\1", b"\1\0", b"")))
    return "ClientHello, then many small records", raw


def _plain_noise(random):
    return "noise", noise(random, 2_000)


def _ssl2_hello(random):
    return "ClientHello of SSL 2", b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + noise(random)


HELLOS = (
    _flipped_hello,
    _bent_hello,
    _hello_of_odd_length,
    _hello_in_small_records,
    _several_hellos,
    _record_of_odd_type,
    _hello_then_noise,
    _hello_then_records,
    _plain_noise,
    _ssl2_hello,
)


def tampered(random, raw, tampering):
    """Return TLS records that were changed on their way."""
    raw = bytearray(raw)
    place = random.randrange(len(raw)) if raw else 0
    match tampering:
        case "flip" if raw:
            raw[place] ^= 1 << random.randrange(8)
        case "cut":
            del raw[place:]
        case "twice":
            raw = raw + raw
        case "insert":
            raw[place:place] = noise(random)
        case "swap":
            raw = raw[place:] + raw[:place]
        case "length":
            raw[3:5] = random.choice(LENGTHS).to_bytes(4, "big")[2:]
        case "type":
            raw[:1] = bytes([random.randrange(256)])
        case "many":
            raw[:0] = record(0x14, b"\1") * random.randint(1, 400)
    return bytes(raw)


# -- the native port -------------------------------------------------------------------------------


def frame(kind, body, attachment=b"", *, number=1, version=1, lengths=None):
    """Return a frame with right checksums, whatever is in it."""
    length, attached = lengths or (len(body), len(attachment))
    crc = crc32(attachment, crc32(body))
    header = HEADER.pack(MAGIC, version, kind, 0, length, attached, number, crc)
    return header + crc32(header).to_bytes(4, "big") + body + attachment


def plain_frame(message, number=1):
    """Return the frame of a message."""
    return b"".join(map(bytes, encode_frame(message, correlation_id=number)))


def _authenticate(random):
    mechanism = random.choice(MECHANISMS)
    data = random.choice(SCRAM)
    body = msgspec.msgpack.encode(Authenticate(mechanism=mechanism, data=data))
    if random.random() < 0.4:
        body = bent(random, body)
    return frame(4, body, number=random.randrange(1 << 32))


@lru_cache
def _sample(kind):
    message = sample_of(MESSAGE_OF_KIND[kind])
    if "group" in message.__struct_fields__:
        message = msgspec.structs.replace(message, group=GROUP)
    return msgspec.msgpack.encode(message)


def _message(random, kinds, *, is_bent):
    kind = random.choice(kinds)
    body = _sample(kind)
    attachment = noise(random, 2_000) if random.random() < 0.2 else b""
    return frame(
        kind, bent(random, body) if is_bent else body, attachment, number=random.randrange(9)
    )


def _odd_hello(random):
    body = msgspec.msgpack.encode(CLIENT_HELLO)
    match random.randrange(4):
        case 0:
            return "Hello with flipped bits", [bent(random, plain_frame(CLIENT_HELLO))]
        case 1:
            return "Hello, damaged, checksum right", [frame(1, bent(random, body))]
        case 2:
            body = msgspec.msgpack.encode(random.choices(ODD, k=random.randint(0, 20)))
            return "Hello of odd fields", [frame(1, body)]
        case _:
            odd = Hello(
                cluster=random.choice(("", "x" * 200, "\0")),
                node_id=random.choice(("", "n0", "n1", "../n0", "x" * 200)),
                role=random.choice(("client", "control", "bulk", "node", "")),
                group=random.choice(("", GROUP, "__cluster", "../../x")),
            )
            return "Hello of another role or cluster", [plain_frame(odd), _authenticate(random)]


def _native_before(random):
    hello = plain_frame(CLIENT_HELLO)
    match random.randrange(11):
        case 0 | 1:
            return "noise", [random.choice((b"", MAGIC)) + noise(random, 2_000)]
        case 2 | 3 | 4 | 5:
            return _odd_hello(random)
        case 6:
            steps = [_authenticate(random) for _ in range(random.randint(1, 6))]
            return "SASL out of order", [hello, *steps]
        case 7:
            return "Authenticate before Hello", [_authenticate(random), hello]
        case 8:
            asked = _message(random, list(MESSAGE_OF_KIND), is_bent=random.random() < 0.5)
            return "a message before the login", [hello, asked]
        case 9:
            lengths = (random.choice(LENGTHS), random.choice(LENGTHS))
            odd = frame(random.randrange(256), noise(random), lengths=lengths)
            return "a frame of a huge length", [random.choice((b"", hello)), odd]
        case _:
            return "several Hellos", [hello * random.randint(2, 50)]


def _native_after(random):
    clients = [kind for kind in CLIENT_KINDS if kind in MESSAGE_OF_KIND]
    match random.randrange(8):
        case 0 | 1 | 2:
            count = random.randint(1, 20)
            return "requests, damaged, checksums right", [
                _message(random, clients, is_bent=True) for _ in range(count)
            ]
        case 3:
            count = random.randint(1, 20)
            return "requests of odd values", [
                _message(random, clients, is_bent=False) for _ in range(count)
            ]
        case 4:
            return "a request with flipped bits", [
                bent(random, _message(random, clients, is_bent=False))
            ]
        case 5:
            others = [kind for kind in MESSAGE_OF_KIND if kind not in clients]
            return "what only members send", [
                _message(random, others, is_bent=random.random() < 0.5) for _ in range(3)
            ]
        case 6:
            lengths = (random.choice(LENGTHS), random.choice(LENGTHS))
            return "a frame of a huge length", [
                frame(random.randrange(256), noise(random), lengths=lengths)
            ]
        case _:
            return "SASL after the login", [_authenticate(random) for _ in range(3)]


# -- Kafka's port ----------------------------------------------------------------------------------


def kafka_frame(content):
    """Return a frame of Kafka's protocol."""
    return struct.pack(">i", len(content)) + content


def kafka_request(key, version, body, number=7):
    """Return the frame of a request with a header of version 1."""
    return kafka_frame(struct.pack(">hhih", key, version, number, 1) + b"h" + body)


def _sasl_step(random):
    data = random.choice(SCRAM)
    data = bent(random, data) if random.random() < 0.3 else data
    claimed = random.choice((len(data), len(data), -1, 1 << 30))
    version = random.randint(-1, 3)
    return kafka_request(36, version, struct.pack(">i", claimed) + data)


def _sasl_handshake(random):
    name = random.choice(MECHANISMS).encode()
    return kafka_request(17, random.randint(0, 1), struct.pack(">h", len(name)) + name)


def _any_request(random):
    key = ApiKey(random.choice(list(SPOKEN)))
    versions = SPOKEN[key]
    return request(random, key, random.randint(versions.first, versions.last))


def _kafka_before(random):
    match random.randrange(9):
        case 0:
            return "noise", [noise(random, 2_000)]
        case 1:
            length = random.choice((*LENGTHS[:-1], -1, -(1 << 31)))
            return "a frame of an odd length", [struct.pack(">i", length) + noise(random)]
        case 2:
            return "a request before the login", [_any_request(random)]
        case 3:
            return "a damaged request before the login", [damaged(random, _any_request(random))]
        case 4:
            steps = [_sasl_step(random) for _ in range(random.randint(1, 6))]
            return "SASL without its beginning", steps
        case 5 | 6:
            steps = [_sasl_step(random) for _ in range(random.randint(1, 6))]
            return "SASL out of order", [_sasl_handshake(random), *steps]
        case 7:
            raw = [kafka_frame(random.choice(SCRAM)) for _ in range(random.randint(1, 4))]
            return "SASL without requests", [_sasl_handshake(random), *raw]
        case _:
            key = random.choice((ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE))
            versions = SPOKEN[key]
            made = request(random, key, random.randint(versions.first, versions.last))
            return "damaged requests that are answered", [damaged(random, made) for _ in range(9)]


def _kafka_after(random):
    match random.randrange(6):
        case 0 | 1 | 2 | 3:
            count = random.randint(1, 8)
            return "damaged requests", [damaged(random, _any_request(random)) for _ in range(count)]
        case 4:
            length = random.choice((*LENGTHS[:-1], -1, -(1 << 31)))
            return "a frame of an odd length", [struct.pack(">i", length) + noise(random)]
        case _:
            return "SASL after the login", [
                _sasl_handshake(random),
                *(_sasl_step(random) for _ in range(3)),
            ]


# -- the admin port --------------------------------------------------------------------------------

HTTP = (
    b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /health HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\nbody",
    b"GET /health HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
    b"GET /../../etc/passwd HTTP/1.0\r\n\r\n",
    b"GET /%00%ff%c0%ae HTTP/1.1\r\n\r\n",
    b"GET /metrics?name[]=" + b"x" * 3_000 + b" HTTP/1.1\r\n\r\n",
    b"GET http://h/metrics HTTP/9.9\r\n\r\n",
    b"GET /health\r\n\r\n",
    b"GET " + b"/" * 70_000 + b" HTTP/1.1\r\n\r\n",
    b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
    b"GET /health HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
    b"GET /health HTTP/1.1\r\nX",
    b"GET /health HTTP/1.1\r\n folded\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    b"\r\n\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nAccept: " + b"application/openmetrics-text;" * 500 + b"\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)


def _admin(random):
    match random.randrange(4):
        case 0:
            return "noise", [noise(random, 2_000)]
        case 1:
            return "odd HTTP", [random.choice(HTTP)]
        case 2:
            return "several requests", random.choices(HTTP[:12], k=random.randint(2, 5))
        case _:
            return "damaged HTTP", [bent(random, random.choice(HTTP))]


MAKERS = {
    ("native", "before"): _native_before,
    ("native", "after"): _native_after,
    ("kafka", "before"): _kafka_before,
    ("kafka", "after"): _kafka_after,
    ("admin", "before"): _admin,
    ("admin", "after"): _admin,
}
