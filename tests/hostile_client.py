"""One hostile connection: comes to a door, logs in if that is behind a login, does its worst."""

import asyncio
import hashlib
import os
import socket
import ssl
import struct
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from hostile_inputs import CLIENT_HELLO, kafka_request, plain_frame, tampered
from quorumlog.client.login_steps import ScramSteps
from quorumlog.model.limits import DEFAULT_LIMITS
from quorumlog.model.messages.login import Authenticate, Authenticated
from quorumlog.wire.decoder import FrameDecoder

WAIT_S = 20.0
"""A connection whose input asks for no answer is ended by a node within this: 5 s for a login, 10 s
for a frame, and up to 8 s for a refusal that is held back."""
DRIBBLE_S = 0.05
READ_BYTES = 65_536
MECHANISM = "SCRAM-SHA-256"
RESET = struct.pack("ii", 1, 0)


class Password(NamedTuple):
    """A user of whom the password is known, as `ScramSteps` wants it."""

    user: str
    text: str
    mechanism: str = MECHANISM
    token: None = None

    @property
    def password(self):
        return self

    def reveal(self):
        return self.text


@lru_cache
def _salted(text, salt, iterations):
    return hashlib.pbkdf2_hmac("sha256", text.encode(), salt, iterations)


class ClosedError(Exception):
    """The node has ended the connection."""


class Line:
    """A connection to a port; with a context it speaks TLS, whose records can be tampered with."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer
        self._tls = self._incoming = self._outgoing = None

    @classmethod
    async def to(cls, address, source="127.0.0.1"):
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), local_addr=(source, 0)))

    async def secure(self, context):
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._write(self._outgoing.read())
                self._incoming.write(await self._received())
            else:
                self._write(self._outgoing.read())
                return

    def send(self, data, tamper=None):
        """Send bytes; `tamper` changes the records that carry them."""
        if self._tls is not None and data:
            self._tls.write(data)
            data = self._outgoing.read()
        self._write(data if tamper is None else tamper(data))

    def _write(self, data):
        try:
            self._writer.write(data)
        except RuntimeError as error:  # uvloop's way to say that it is closed
            raise ClosedError from error

    async def drain(self):
        await self._writer.drain()

    async def _received(self):
        data = await self._reader.read(READ_BYTES)
        if not data:
            raise ClosedError
        return data

    async def hear(self):
        """Return some bytes. Raises `ClosedError` at the end."""
        if self._tls is None:
            return await self._received()
        while True:
            try:
                data = self._tls.read(READ_BYTES)
            except ssl.SSLWantReadError:
                self._incoming.write(await self._received())
            else:
                if not data:
                    raise ClosedError
                return data

    async def hear_exactly(self, count, before=b""):
        data = bytearray(before)
        while len(data) < count:
            data += await self.hear()
        return bytes(data)

    async def hear_until_end(self):
        with suppress(ClosedError, ssl.SSLError):
            while True:
                await self.hear()

    def shut(self):
        with suppress(OSError, RuntimeError):
            self._writer.write_eof()

    def reset(self):
        found = self._writer.get_extra_info("socket")
        if found is not None:
            with suppress(OSError):
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._writer.transport.abort()

    def close(self):
        self._writer.close()


async def log_in_natively(line, who):
    """Say Hello, and log in with a password; None: a certificate has done that."""
    decoder = FrameDecoder(DEFAULT_LIMITS)

    async def answer():
        while (found := decoder.next_frame()) is None:
            decoder.receive_data(await line.hear())
        return found.message

    line.send(plain_frame(CLIENT_HELLO, 0))
    await answer()
    if who is None:
        return
    steps = ScramSteps(who, os.urandom(12).hex())
    line.send(plain_frame(Authenticate(mechanism=MECHANISM, data=steps.first())))
    first = await answer()
    assert isinstance(first, Authenticated), first
    assert first.more, first.text
    steps.take_first(first.data)
    salted = _salted(who.text, steps.salt, steps.iterations)
    line.send(plain_frame(Authenticate(mechanism=MECHANISM, data=steps.final(salted))))
    last = await answer()
    assert isinstance(last, Authenticated), last
    assert last.principal, last.text


async def log_in_to_kafka(line, who):
    """Log in with a password; None: a certificate has done that."""
    if who is None:
        return
    rest = b""

    async def ask(key, version, body):
        nonlocal rest
        line.send(kafka_request(key, version, body))
        head = await line.hear_exactly(4, rest)
        size = 4 + int.from_bytes(head[:4], "big")
        whole = await line.hear_exactly(size, head)
        rest = whole[size:]
        found = whole[8:size]
        assert found[:2] == b"\0\0", found
        return found

    async def step(data):
        found = await ask(36, 1, struct.pack(">i", len(data)) + data)
        return found[8 : 8 + int.from_bytes(found[4:8], "big")]

    name = MECHANISM.encode()
    await ask(17, 1, struct.pack(">h", len(name)) + name)
    steps = ScramSteps(who, os.urandom(12).hex())
    steps.take_first(await step(steps.first()))
    await step(steps.final(_salted(who.text, steps.salt, steps.iterations)))


LOG_IN = {"native": log_in_natively, "kafka": log_in_to_kafka}


class Way(NamedTuple):
    """How a door is reached: where it is, TLS if it has that, and who logs in by a password."""

    address: str
    context: ssl.SSLContext | None = None
    who: Password | None = None


async def try_inputs(random, door, way, inputs, source="127.0.0.1"):
    """Do what inputs say on one connection, until one ends it; return what became of each.

    "silent": the node has neither ended the connection within `WAIT_S` nor was it to stay. "not let
    in": it ended the connection in the handshake or the login, as others had its place or it was
    too slow.
    """
    found, is_in = [], False
    try:
        line = await Line.to(way.address, source)
    except OSError:
        return ["not accepted"]
    try:
        async with asyncio.timeout(WAIT_S * 3):
            if way.context is not None and not inputs[0].below:
                await line.secure(way.context)
            if door.stage == "after" and door.port in LOG_IN:
                await LOG_IN[door.port](line, way.who)
        is_in = True
        for hostile in inputs:
            found.append(await _carry_out(line, random, door, hostile))
            if found[-1] != "left" or hostile.ending != "close":
                break
    except (OSError, ClosedError, ssl.SSLError):
        found.append("ended by the node" if is_in else "not let in")
    finally:
        line.close()
    return found


async def _carry_out(line, random, door, hostile):
    def tamper(raw):
        return tampered(random, raw, hostile.tampering)

    for piece in hostile.pieces:
        line.send(piece, tamper if hostile.tampering else None)
        if hostile.dribbles:
            await asyncio.sleep(DRIBBLE_S)
    with suppress(TimeoutError):  # the node reads no more
        async with asyncio.timeout(1):
            await line.drain()
    match hostile.ending:
        case "reset":
            line.reset()
        case "shut" | "wait":
            if hostile.ending == "shut":
                line.shut()
            return await _outcome(line, door)
    return "left"


async def _outcome(line, door):
    """Wait for the end; who has logged in may stay, so only for a moment."""
    try:
        async with asyncio.timeout(WAIT_S if door.stage == "before" else DRIBBLE_S):
            await line.hear_until_end()
    except TimeoutError:
        return "silent" if door.stage == "before" else "left"
    return "ended by the node"
