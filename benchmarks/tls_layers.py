"""Our TLS layer beside uvloop's own and beside plain sockets, in one run: `python tls_layers.py`.

Rates of frames of three sizes, each kind of connection in turn, best and worst of some rounds; time
of a request and its answer; memory that a node spends on each stranger that says nothing, or half
of a handshake; what each layer says is unsent when nobody reads. It needs two free cores and a
minute, makes its certificates in a temporary directory, and starts its server by itself.
"""

import argparse
import asyncio
import multiprocessing
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import uvloop

from quorumlog.model.limits import Limits
from quorumlog.model.messages.base import Hello, Response
from quorumlog.model.tls_config import TlsConfig
from quorumlog.transport.connection import Connection
from quorumlog.transport.first_bytes import TlsPort
from quorumlog.transport.node_tls import NodeTls
from quorumlog.transport.stream import TransportCounters
from quorumlog.transport.tls import OutgoingTls
from quorumlog.transport.tls_contexts import client_context, server_context
from quorumlog.transport.tls_layer import TlsLayer
from quorumlog.wire.frame import Frame

KINDS = ("plain", "ours", "uvloop")
LIMITS = Limits(handshake_ms=60_000)
CLUSTER_ID = "0123456789abcdefghijk_"
STRANGERS = 300
UNREAD_BYTES = 8 * 1024 * 1024
WINDOW_BYTES = 8 * 1024 * 1024
"""Bytes under way at a time while a rate is measured."""
HELLO = Hello(cluster="c", node_id="n0", role="client")
HOST = "127.0.0.1"


class Receiver:
    """The server's side of a connection: answers each frame with its size."""

    def greet(self, hello: Hello) -> "Receiver":
        """Accept anybody."""
        return self

    def opened(self, connection: Connection, hello: Hello) -> None:
        """See `ConnectionHandler`."""

    def frame_received(self, connection: Connection, frame: Frame) -> None:
        """Answer a frame."""
        connection.send(Response(), correlation_id=frame.correlation_id)

    def closed(self, connection: Connection, reason: str) -> None:
        """See `ConnectionHandler`."""


def certificates(directory: Path) -> None:
    """Make an authority and a node's certificate with OpenSSL's command."""
    uri = f"URI:quorumlog://{CLUSTER_ID}/node/n0,DNS:localhost,IP:127.0.0.1"
    (directory / "extensions").write_text(f"subjectAltName={uri}\n")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    for command in (
        ["req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca"],
        ["req", *key, "-keyout", "n0.key", "-out", "n0.csr", "-subj", "/CN=n0"],
        ["x509", "-req", "-in", "n0.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
         "-extfile", "extensions", "-out", "n0.pem"],
    ):  # fmt: skip
        subprocess.run(  # noqa: S603  (fixed words)
            ["openssl", *command],  # noqa: S607
            cwd=directory,
            check=True,
            capture_output=True,
        )
    (directory / "n0.key").chmod(0o600)


def config_of(directory: Path) -> TlsConfig:
    """Return the configuration of TLS with these certificates."""
    return TlsConfig(
        certificate=str(directory / "n0.pem"),
        key=str(directory / "n0.key"),
        ca=str(directory / "ca.pem"),
    )


async def _serve(directory: Path, ports: Any) -> None:
    tls = NodeTls(config_of(directory), "n0", time.time)
    counters, loop = TransportCounters(), asyncio.get_running_loop()
    port = TlsPort(tls, lambda: tls.current.native)

    def make() -> Connection:
        return Connection(HELLO, Receiver().greet, LIMITS, counters)

    def make_ours() -> asyncio.BaseProtocol:
        return port.protocol_for(make())

    context = server_context(config_of(directory), serves_peers=True)
    servers = [
        await loop.create_server(make, HOST, 0),
        await loop.create_server(make_ours, HOST, 0),
        await loop.create_server(make, HOST, 0, ssl=context),
    ]
    ports.send([server.sockets[0].getsockname()[1] for server in servers])
    await asyncio.Event().wait()


def _run(directory: Path, ports: Any) -> None:
    uvloop.run(_serve(directory, ports))


class Server:
    """A process that serves each kind of connection at a port of its own."""

    def __init__(self, directory: Path) -> None:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        self._process = context.Process(target=_run, args=(directory, there), daemon=True)
        self._process.start()
        self.ports: dict[str, int] = dict(zip(KINDS, here.recv(), strict=True))

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.join()

    @property
    def memory(self) -> int:
        """Bytes of memory that the process has."""
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @property
    def processor_s(self) -> float:
        """Seconds of processor time that it has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Client:
    """The client's side of a connection."""

    connection: Connection
    answers: "asyncio.Queue[int]"


class _Handler(Receiver):
    def __init__(self) -> None:
        self.ready = asyncio.get_running_loop().create_future()
        self.answers: asyncio.Queue[int] = asyncio.Queue()

    def opened(self, connection: Connection, hello: Hello) -> None:
        self.ready.set_result(None)

    def frame_received(self, connection: Connection, frame: Frame) -> None:
        self.answers.put_nowait(frame.correlation_id)


async def connect(kind: str, port: int, directory: Path) -> Client:
    """Connect by one of the kinds."""
    loop, handler = asyncio.get_running_loop(), _Handler()
    made = Connection(HELLO, handler.greet, LIMITS, TransportCounters())
    certificate, key = str(directory / "n0.pem"), str(directory / "n0.key")
    context = client_context(str(directory / "ca.pem"), certificate, key)
    context.check_hostname = False
    if kind == "plain":
        await loop.create_connection(lambda: made, HOST, port)
    elif kind == "ours":
        await loop.create_connection(lambda: TlsLayer(made, OutgoingTls(context)), HOST, port)
    else:
        await loop.create_connection(lambda: made, HOST, port, ssl=context)
    await handler.ready
    return Client(made, handler.answers)


async def rate(client: Client, size: int, seconds: float) -> float:
    """Send frames of a size with a bounded number under way; return bytes a second."""
    loop, body = asyncio.get_running_loop(), os.urandom(size)
    window = max(2, WINDOW_BYTES // size)
    sent = answered = 0
    begun = loop.time()
    while loop.time() - begun < seconds:
        while sent - answered < window:
            sent += 1
            client.connection.send(Response(), correlation_id=sent, attachments=(body,))
        await client.answers.get()
        answered += 1
    while answered < sent:
        await client.answers.get()
        answered += 1
    return sent * size / (loop.time() - begun)


async def latency(client: Client, count: int) -> float:
    """Return the median seconds from a small request to its answer."""
    taken = []
    for number in range(count):
        begun = time.perf_counter()
        client.connection.send(Response(), correlation_id=number + 1)
        await client.answers.get()
        taken.append(time.perf_counter() - begun)
    return sorted(taken)[count // 2]


async def rates(server: Server, directory: Path, rounds: int, seconds: float) -> None:
    """Print the rates and latencies of all kinds, which take turns."""
    clients = {kind: await connect(kind, server.ports[kind], directory) for kind in KINDS}
    for size, name in ((16 << 10, "16 KiB"), (1 << 20, "1 MiB"), (4 << 20, "4 MiB")):
        found: dict[str, list[float]] = {kind: [] for kind in KINDS}
        spent = dict.fromkeys(KINDS, (0.0, 0.0, 0.0))
        for _ in range(rounds):
            for kind in KINDS:
                here, there = time.process_time(), server.processor_s
                found[kind].append(await rate(clients[kind], size, seconds))
                gigabytes = found[kind][-1] * seconds / 1e9
                before = spent[kind]
                spent[kind] = (
                    before[0] + time.process_time() - here,
                    before[1] + server.processor_s - there,
                    before[2] + gigabytes,
                )
        for kind in KINDS:
            low, high = (f"{value / 1e6:,.0f}" for value in (min(found[kind]), max(found[kind])))
            here, there, total = spent[kind]
            print(
                f"frames of {name:7} {kind:7} {low:>6} to {high:>6} MB/s, processor "
                f"{here / total:.2f} + {there / total:.2f} s/GB"
            )
    medians: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind in KINDS:
            medians[kind].append(await latency(clients[kind], 2_000))
    for kind in KINDS:
        low, high = (value * 1e6 for value in (min(medians[kind]), max(medians[kind])))
        print(f"request and answer {kind:7} {low:.0f} to {high:.0f} microseconds")
    for one in clients.values():
        one.connection.abort("done")


def _first_flight(directory: Path) -> bytes:
    outgoing = ssl.MemoryBIO()
    context = client_context(str(directory / "ca.pem"))
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake without the other side")


def strangers(directory: Path) -> None:
    """Print what a node's memory grows by for each connection of a stranger."""
    hello = _first_flight(directory)
    long_hello = b"\x16\x03\x01\x40\x00\x01\x00\xfb\x00" + hello[9:] + bytes(16_000)
    cases = {
        "nothing": b"",
        "a ClientHello": hello,
        "half of a ClientHello": hello[: len(hello) // 2],
        "16 KB of a ClientHello of 64 KB": long_hello[:16_000],
    }
    for name, first in cases.items():
        for kind in KINDS[1:]:
            with Server(directory) as server:
                warm = socket.create_connection((HOST, server.ports[kind]))
                warm.sendall(hello)
                time.sleep(0.3)
                before, opened = server.memory, [warm]
                for _ in range(STRANGERS):
                    opened.append(socket.create_connection((HOST, server.ports[kind])))
                    opened[-1].sendall(first)
                time.sleep(1)
                grown = (server.memory - before) / STRANGERS / 1024
                print(f"stranger that says {name:32} {kind:7} {grown:5.1f} KiB")
                for one in opened:
                    one.close()


class _Mute(asyncio.Protocol):
    """A server that shakes hands, then reads nothing."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.pause_reading()  # type: ignore[attr-defined]


class _Writer(asyncio.BufferedProtocol):
    """A client that only writes, for both kinds."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.ready = asyncio.get_running_loop().create_future()
        self._space = memoryview(bytearray(65_536))

    def attach(self, transport: Any) -> None:
        """See `SecuredProtocol`."""

    def begin(self, transport: Any, identity: object = None) -> None:
        """See `SecuredProtocol`."""
        self.transport = transport
        self.ready.set_result(None)

    connection_made = begin  # type: ignore[assignment]

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""


async def unsent(directory: Path) -> None:
    """Print what each layer says is unsent after `UNREAD_BYTES` that nobody reads."""
    loop = asyncio.get_running_loop()
    context = server_context(config_of(directory), serves_peers=True)
    server = await loop.create_server(_Mute, HOST, 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    for kind in KINDS[1:]:
        client = client_context(str(directory / "ca.pem"))
        client.check_hostname = False
        writer = _Writer()
        if kind == "ours":
            await loop.create_connection(
                lambda: TlsLayer(writer, OutgoingTls(client)),  # noqa: B023
                HOST,
                port,
            )
        else:
            await loop.create_connection(lambda: writer, HOST, port, ssl=client)  # noqa: B023
        await writer.ready
        writer.transport.write(bytes(UNREAD_BYTES))
        await asyncio.sleep(0.5)
        size = writer.transport.get_write_buffer_size()
        taken = (UNREAD_BYTES - size) / 1e6
        print(
            f"unsent after {UNREAD_BYTES / 1e6:.1f} MB that nobody reads: {kind:7} "
            f"{size / 1e6:5.1f} MB ({taken:.1f} MB would be in the system's buffers)"
        )
        writer.transport.abort()
    server.close()


def main() -> int:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        certificates(directory)
        with Server(directory) as server:
            uvloop.run(rates(server, directory, arguments.rounds, arguments.seconds))
        uvloop.run(unsent(directory))
        strangers(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
