"""What this machine does without us: its disk, its loopback address, its memory.

Measured by plain calls in the same run as everything else, since machines differ and change.
"""

import asyncio
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import uvloop

from quorumlog.bench.figures import MEGABYTE, Figure, pause_figure, value_figure
from quorumlog.local.ports import LOOPBACK
from quorumlog.model.limits import MIB

SYNCED_BYTES = 4_096
SEQUENTIAL_BYTES = 256 * MIB
CHUNK_BYTES = MIB
COPIED_BYTES = 64 * MIB
COPIES = 8
ECHO_SECONDS = 10.0
"""A process that only echoes has started within this, or something is very wrong."""


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Seconds of an fdatasync and of a round trip; bytes a second written and copied.

    `synced_s` is one appended piece of 4 KiB with its fdatasync, `written` one file with a single
    fdatasync at its end.
    """

    synced_s: float
    round_trip_s: float
    written: float
    copied: float

    @property
    def append_s(self) -> float:
        """The least an append can take: client to leader, leader to follower, one fdatasync."""
        return 2 * self.round_trip_s + self.synced_s


def measure_limits(directory: Path, seconds: float) -> tuple[MachineLimits, list[Figure]]:
    """Measure for about four times `seconds`, on the disk of `directory`; also as figures."""
    synced = _sync_again_and_again(directory / "limits.dat", seconds)
    trips = uvloop.run(_round_trips(seconds))
    written = [_write_once(directory / "limits.dat") for _ in range(3)]
    copied = [_copy_once() for _ in range(3)]
    limits = MachineLimits(
        float(np.median(synced)),
        float(np.median(trips)),
        float(np.median(written)),
        float(np.median(copied)),
    )
    return limits, [
        pause_figure("machine: append 4 KiB, fdatasync", synced),
        pause_figure("machine: round trip over loopback", trips),
        value_figure(
            "machine: sequential write, one fdatasync", "MB/s", [x / MEGABYTE for x in written]
        ),
        value_figure("machine: memcpy", "MB/s", [x / MEGABYTE for x in copied]),
    ]


def _sync_again_and_again(path: Path, seconds: float) -> list[float]:
    """Append to a file and wait until that is on disk; return how long each time took."""
    data = os.urandom(SYNCED_BYTES)
    fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    taken: list[float] = []
    end = time.perf_counter() + seconds
    try:
        while (started := time.perf_counter()) < end:
            os.write(fd, data)
            os.fdatasync(fd)
            taken.append(time.perf_counter() - started)
    finally:
        os.close(fd)
        path.unlink()
    return taken


def _write_once(path: Path) -> float:
    """Return bytes a second."""
    data = os.urandom(CHUNK_BYTES)
    fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    try:
        started = time.perf_counter()
        for _ in range(SEQUENTIAL_BYTES // CHUNK_BYTES):
            os.write(fd, data)
        os.fdatasync(fd)
        return SEQUENTIAL_BYTES / (time.perf_counter() - started)
    finally:
        os.close(fd)
        path.unlink()


def _copy_once() -> float:
    """Return bytes a second, of memory that is there already."""
    source = np.ones(COPIED_BYTES, dtype=np.uint8)
    target = np.zeros(COPIED_BYTES, dtype=np.uint8)
    started = time.perf_counter()
    for _ in range(COPIES):
        np.copyto(target, source)
    return COPIES * COPIED_BYTES / (time.perf_counter() - started)


# -- loopback ----------------------------------------------------------------------------------


class _Echo(asyncio.Protocol):
    """Sends back what comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._answer: Callable[[bytes], None] = transport.write  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._answer(data)


def _echo_process(pipe: Connection) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(_Echo, LOOPBACK, 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with suppress(KeyboardInterrupt):
        uvloop.run(serve())


class _PingClient(asyncio.Protocol):
    """Sends a byte when the one before has come back, until its time is over."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds
        self.taken: list[float] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ask: Callable[[bytes], None] = transport.write  # type: ignore[attr-defined]
        self._started = time.perf_counter()
        self._ask(b"?")

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.taken.append(now - self._started)
        if now >= self._end:
            self.ended.set_result(None)
            return
        self._started = time.perf_counter()
        self._ask(b"?")

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(exc or ConnectionError("the echo ended"))


async def _round_trips(seconds: float) -> list[float]:
    """Return the seconds of round trips to another process and back."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_echo_process, args=(there,), daemon=True)
    process.start()
    try:
        if not await asyncio.to_thread(here.poll, ECHO_SECONDS):
            raise TimeoutError("the process that echoes did not start")
        port = here.recv()
        loop = asyncio.get_running_loop()
        transport, pinging = await loop.create_connection(
            lambda: _PingClient(seconds), LOOPBACK, port
        )
        await pinging.ended
        transport.close()
        return pinging.taken
    finally:
        process.kill()
        process.join()
