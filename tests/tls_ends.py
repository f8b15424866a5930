"""Two ends of an encrypted connection in memory: a test decides which bytes arrive when."""

import asyncio

from quorumlog.transport.tls import Identity, OutgoingTls
from quorumlog.transport.tls_contexts import client_context
from quorumlog.transport.tls_layer import TlsLayer

MAX = 1 << 62


class Wire:
    """The transport of a socket: what is written stays here until the test takes it."""

    def __init__(self):
        self.sent = bytearray()
        self.protocol = None
        self.is_paused = self.is_eof = self.is_closed = self.is_aborted = False
        self.high, self.low = 64 * 1024, 16 * 1024
        self.has_paused = False

    def set_protocol(self, protocol):
        self.protocol = protocol

    def set_write_buffer_limits(self, high=None, low=None):
        self.high = 64 * 1024 if high is None else high
        self.low = self.high // 4 if low is None else low
        self._pause_if_full()

    def get_write_buffer_size(self):
        return len(self.sent)

    def write(self, data):
        assert not self.is_closed
        assert not self.is_eof, "uvloop raises an error"
        self.sent += data
        self._pause_if_full()

    def _pause_if_full(self):
        if len(self.sent) > self.high and not self.has_paused:
            self.has_paused = True
            self.protocol.pause_writing()

    def take(self, size=MAX):
        """Take some of what was written, as a socket does."""
        data = bytes(self.sent[:size])
        del self.sent[:size]
        if self.has_paused and len(self.sent) <= self.low:
            self.has_paused = False
            self.protocol.resume_writing()
        return data

    def give(self, data):
        """Let bytes arrive; return those that cannot, as nothing is read."""
        rest = memoryview(data)
        while rest and not self.is_paused and not self.is_aborted:
            space = self.protocol.get_buffer(-1)
            count = min(len(space), len(rest))
            space[:count] = rest[:count]
            rest = rest[count:]
            self.protocol.buffer_updated(count)
        return bytes(rest)

    def end(self, error=None):
        """The connection ends."""
        self.is_closed = True
        self.protocol.connection_lost(error)

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False

    def is_closing(self):
        return self.is_closed

    def write_eof(self):
        self.is_eof = True

    def close(self):
        self.is_closed = True

    def abort(self):
        self.is_closed = self.is_aborted = True

    def get_extra_info(self, name, default=None):
        return default


class App:
    """A connection that keeps what it receives; `space` is how much it takes at a time."""

    def __init__(self, space=64 * 1024):
        self.received = bytearray()
        self.space = memoryview(bytearray(space))
        self.asked = 0
        self.transport = self.identity = None
        self.is_attached = self.is_paused = self.has_ended = False
        self.error = None
        self.when_received = lambda: None

    def attach(self, transport):
        self.is_attached = True

    def begin(self, transport, identity):
        self.transport, self.identity = transport, identity

    def get_buffer(self, sizehint):
        self.asked += 1
        return self.space

    def buffer_updated(self, nbytes):
        self.asked -= 1
        assert self.asked == 0, "it was asked for memory that was not used"
        self.received += self.space[:nbytes]
        self.when_received()

    def pause_writing(self):
        assert not self.is_paused
        self.is_paused = True

    def resume_writing(self):
        assert self.is_paused
        self.is_paused = False

    def connection_lost(self, exc):
        assert not self.has_ended
        self.has_ended, self.error = True, exc


class End:
    """One end: a connection, its layer, and the transport below."""

    def __init__(self, tls, space=64 * 1024):
        self.app, self.wire = App(space), Wire()
        if tls is not None:  # else the test sets the layer
            self.layer = self.wire.protocol = TlsLayer(self.app, tls)

    def start(self):
        self.layer.connection_made(self.wire)


def outgoing(pki, name="n1", **options):
    context = client_context(str(pki.file), *files_of(pki, name))
    context.check_hostname = False
    return OutgoingTls(context, certificate=f"{name}.pem", **options)


def files_of(pki, name):
    return (str(pki.directory / f"{name}.pem"), str(pki.directory / f"{name}.key")) if name else ()


def anybody(ssl_object):
    return Identity()


async def turns(count=3):
    """Let the loop carry out what is due."""
    for _ in range(count):
        await asyncio.sleep(0)


async def pump(one, other, size=MAX, rounds=10_000):
    """Carry bytes both ways, `size` at a time, until nothing moves."""
    rest = {one: b"", other: b""}
    for _ in range(rounds):
        await turns()
        moved = False
        for source, target in ((one, other), (other, one)):
            data = rest[target] or source.wire.take(size)
            if data and not target.wire.is_paused and not target.wire.is_closed:
                rest[target] = target.wire.give(data)
                moved = True
            elif data:
                rest[target] = data
        if not moved:
            return
