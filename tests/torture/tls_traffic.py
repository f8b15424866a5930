"""The same random traffic through the TLS layer and through asyncio's own TLS: results are equal.

    python tests/torture/tls_traffic.py --seconds 300 --seed 1

Two servers on this machine, one with `TlsLayer`, the other with `create_server(ssl=…)`, and two
clients of the layer and of asyncio likewise. The other side is `ssl.SSLObject` over a plain socket,
whose bytes are cut at random places, held back, and read slowly. Of each plan, which comes from a
seed, both have to deliver the same bytes in the same order, each way, and end alike: told, or cut
off. If a byte of TLS was changed, both have to end with an error after the same bytes, or fewer.
"""

import argparse
import asyncio
import random
import ssl
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

import uvloop  # noqa: E402

from certificates import Authority  # noqa: E402
from quorumlog.transport.tls import Identity, IncomingTls, OutgoingTls  # noqa: E402
from quorumlog.transport.tls_layer import TlsLayer  # noqa: E402

HOST = "127.0.0.1"
SECONDS = 30.0
PLANS_AT_ONCE = 8
SIZES = (1, 2, 100, 1_448, 16_383, 16_384, 16_385, 65_536, 65_537, 200_000, 1_000_000)
READS = (1, 1_000, 16_384, 1 << 20)
ENDS = ("told", "told", "told", "cut", "changed")
LAST = b"\0the end\0"
"""What the tested side is sent last of all; it answers what it still has to send, and ends."""


class Plan(NamedTuple):
    """What both sides do. `to`, `back`: what the library's side sends, and the tested one."""

    seed: int
    to: list[bytes]
    back: list[bytes]
    cuts: list[int]
    reads: int
    is_slow: bool
    pauses: bool
    end: str
    by_server: bool


def plan_of(seed):
    """Return the plan of a seed."""
    chance = random.Random(seed)
    reads = chance.choice(READS)

    def pieces():
        weights = (4, 4, 4, 4, 3, 3, 3, 3, 2, 1, 0.3)
        sizes = chance.choices(SIZES, weights, k=chance.randint(0, 12))
        return [chance.randbytes(min(size, 1_000 * reads)) for size in sizes]

    return Plan(
        seed,
        pieces(),
        pieces(),
        [chance.choice((1, 5, 50, 1_000, 16_000, 70_000, 1 << 20)) for _ in range(5)],
        reads,
        chance.random() < 0.2,
        chance.random() < 0.3,
        chance.choice(ENDS),
        chance.random() < 0.5,
    )


class Outcome(NamedTuple):
    """What arrived at either side, and how the tested side ended."""

    to: bytes
    back: bytes
    is_error: bool


class Tested(asyncio.BufferedProtocol):
    """The tested side: sends its part as its buffers allow, keeps what comes, may pause."""

    def __init__(self, plan):
        self._plan = plan
        self.received = bytearray()
        self._space = memoryview(bytearray(max(plan.reads, 1)))
        self._left = list(plan.back)
        self._is_paused = False
        self.transport = None
        self.ended = asyncio.get_running_loop().create_future()

    def attach(self, transport):
        """See `SecuredProtocol`."""

    def begin(self, transport, identity=None):
        """See `SecuredProtocol`."""
        self.transport = transport
        transport.set_write_buffer_limits(high=100_000)
        self._send()

    connection_made = begin

    def get_buffer(self, sizehint):
        """See `asyncio.BufferedProtocol`."""
        return self._space

    def buffer_updated(self, nbytes):
        """See `asyncio.BufferedProtocol`."""
        self.received += self._space[:nbytes]
        if self._plan.pauses and len(self.received) % 3 == 0:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(0.001, self._go_on)
        self._end_if_due()

    def _go_on(self):
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def _send(self):
        while self._left and not self._is_paused and not self.transport.is_closing():
            self.transport.write(self._left.pop(0))
        self._end_if_due()

    def _end_if_due(self):
        if not self._left and self.received.endswith(LAST):
            self.transport.close()

    def pause_writing(self):
        """See `asyncio.BaseProtocol`."""
        self._is_paused = True

    def resume_writing(self):
        """See `asyncio.BaseProtocol`."""
        self._is_paused = False
        self._send()

    def eof_received(self):
        """See `asyncio.BufferedProtocol`."""

    def connection_lost(self, exc):
        """See `asyncio.BaseProtocol`."""
        if not self.ended.done():
            self.ended.set_result(exc)


class Library:
    """The library's side: `ssl.SSLObject` over a plain socket."""

    def __init__(self, plan, context, *, is_server):
        self._plan, self._is_server = plan, is_server
        self._chance = random.Random(plan.seed + 1)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        options = {"server_side": True} if is_server else {"server_hostname": "localhost"}
        self._tls = context.wrap_bio(self._incoming, self._outgoing, **options)
        self.received = bytearray()
        self._is_over = asyncio.Event()

    async def run(self, reader, writer):
        """Carry out the plan."""
        await self._shake_hands(reader, writer)
        await asyncio.gather(self._write(writer), self._read(reader, writer))
        writer.close()

    async def _shake_hands(self, reader, writer):
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush(writer)
                data = await reader.read(self._plan.reads)
                if not data:
                    raise ConnectionError("it ended in the handshake") from None
                self._incoming.write(data)
            else:
                return await self._flush(writer)

    async def _flush(self, writer, change=False):
        raw = bytearray(self._outgoing.read())
        if change and raw:
            raw[self._chance.randrange(5, len(raw))] ^= 1
        at = 0
        while at < len(raw):
            size = self._chance.choice(self._plan.cuts)
            if len(raw) - at > 100 * size:
                size = len(raw)
            writer.write(raw[at : at + size])
            at += size
            await writer.drain()
            await asyncio.sleep(0)

    async def _write(self, writer):
        plan = self._plan
        count = len(plan.to)
        try:
            for number, piece in enumerate(plan.to):
                self._tls.write(piece)
                await self._flush(writer, plan.end == "changed" and number == count - 1)
            if plan.end == "cut":
                writer.write_eof()
            elif plan.end == "changed" and not count:
                self._tls.write(LAST)
                await self._flush(writer, change=True)
            else:
                self._tls.write(LAST)
                await self._flush(writer)
        except (OSError, ssl.SSLError, RuntimeError):
            pass

    async def _read(self, reader, writer):
        while True:
            try:
                data = self._tls.read(self._plan.reads)
                if not data:
                    return
                self.received += data
                if self._plan.is_slow and self._chance.random() < 0.05:
                    await asyncio.sleep(0.005)
            except ssl.SSLWantReadError:
                raw = await self._raw(reader)
                if not raw:
                    return
                self._incoming.write(raw)
            except ssl.SSLError:
                return

    async def _raw(self, reader):
        try:
            return await reader.read(max(self._plan.reads, 4_096))
        except OSError:
            return b""


class Ways:
    """The contexts of both sides, and how the tested side is made."""

    def __init__(self, directory):
        authority = Authority(directory)
        pair = authority.node("n0")
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.minimum_version = ssl.TLSVersion.TLSv1_3
        self.server.load_cert_chain(pair.certificate, pair.key)
        self.client = ssl.create_default_context(cafile=str(authority.file))

    def layer(self, app, *, is_server):
        """Return the layer for one side of a connection."""
        if is_server:
            return TlsLayer(app, IncomingTls(self.server, lambda tls: Identity()))
        return TlsLayer(app, OutgoingTls(self.client).to("localhost"))

    async def play(self, plan, *, is_ours):
        """Carry out a plan; return its outcome."""
        try:
            async with asyncio.timeout(SECONDS):
                if plan.by_server:
                    return await self._tested_server(plan, is_ours)
                return await self._tested_client(plan, is_ours)
        except TimeoutError:
            who = "layer" if is_ours else "asyncio"
            raise AssertionError(f"seed {plan.seed}, {plan.end}: {who} does not end") from None

    async def _tested_server(self, plan, is_ours):
        loop, made = asyncio.get_running_loop(), []

        def make():
            made.append(Tested(plan))
            return self.layer(made[0], is_server=True) if is_ours else made[0]

        server = await loop.create_server(make, HOST, 0, ssl=None if is_ours else self.server)
        try:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            library = Library(plan, self.client, is_server=False)
            return await self._result(plan, library, reader, writer, lambda: made[0])
        finally:
            server.close()

    async def _tested_client(self, plan, is_ours):
        loop = asyncio.get_running_loop()
        accepted = loop.create_future()
        server = await asyncio.start_server(lambda *streams: accepted.set_result(streams), HOST, 0)
        tested = Tested(plan)
        try:
            place = server.sockets[0].getsockname()[:2]
            if is_ours:
                await loop.create_connection(lambda: self.layer(tested, is_server=False), *place)
                dialling = None
            else:
                dialling = asyncio.ensure_future(
                    loop.create_connection(
                        lambda: tested, *place, ssl=self.client, server_hostname="localhost"
                    )
                )
            library = Library(plan, self.server, is_server=True)
            result = await self._result(plan, library, *await accepted, lambda: tested)
            if dialling is not None:
                await dialling
            return result
        finally:
            server.close()

    async def _result(self, plan, library, reader, writer, tested):
        await library.run(reader, writer)
        error = await tested().ended
        return Outcome(bytes(tested().received), bytes(library.received), error is not None)


def differences(plan, ours, theirs):
    """Return what is wrong with what a plan has led to; empty: nothing."""
    sent, answer = b"".join(plan.to), b"".join(plan.back)
    wrong = []
    if plan.end == "told":
        for name, outcome in (("layer", ours), ("asyncio", theirs)):
            if outcome.to != sent + LAST:
                wrong.append(f"{name}: {len(outcome.to)} bytes arrived, not {len(sent + LAST)}")
            if outcome.back != answer:
                wrong.append(f"{name}: {len(outcome.back)} bytes of {len(answer)} were answered")
            if outcome.is_error:
                wrong.append(f"{name}: an error at the end")
        return wrong
    for name, outcome in (("layer", ours), ("asyncio", theirs)):
        if not (sent + LAST).startswith(outcome.to) or not answer.startswith(outcome.back):
            wrong.append(f"{name}: other bytes arrived than were sent")
    if plan.end == "cut" and ours.to != sent:
        wrong.append(f"layer: {len(ours.to)} of {len(sent)} bytes arrived before the cut")
    if not ours.is_error:
        wrong.append("layer: no error, though nobody has said that this is the end")
    return wrong


async def torture(directory, options):
    """Play plans until the time is over. Raises `AssertionError` if results differ."""
    ways, found, seed = Ways(directory), Counter(), options.seed
    until = time.monotonic() + options.seconds
    moved = 0
    while time.monotonic() < until:
        plans = [plan_of(seed + number) for number in range(PLANS_AT_ONCE)]
        seed += PLANS_AT_ONCE
        for plan, ours, theirs in zip(
            plans,
            await asyncio.gather(*(ways.play(one, is_ours=True) for one in plans)),
            await asyncio.gather(*(ways.play(one, is_ours=False) for one in plans)),
            strict=True,
        ):
            wrong = differences(plan, ours, theirs)
            assert not wrong, f"seed {plan.seed}, {plan.end}: {'; '.join(wrong)}"
            found[f"{plan.end}, {'server' if plan.by_server else 'client'}"] += 1
            moved += len(ours.to) + len(ours.back)
    return found, moved


def main():
    """Torture, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    for name, run in (("asyncio", asyncio.run), ("uvloop", uvloop.run)):
        with tempfile.TemporaryDirectory() as directory:
            half = argparse.Namespace(seconds=options.seconds / 2, seed=options.seed)
            found, moved = run(torture(Path(directory), half))
        told = ", ".join(f"{count:,} {what}" for what, count in sorted(found.items()))
        print(f"{name}'s loop, seed {options.seed}: {told}; {moved / 1e6:,.0f} MB each: equal")


if __name__ == "__main__":
    main()
