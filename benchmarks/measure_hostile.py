"""What hostile clients do to a well-behaved one, and to a node's memory.

    python benchmarks/measure_hostile.py [SECONDS [LOAD …]]

Starts three nodes of its own on this machine. A good client appends 1 KiB and gets it back 200
times a second, whatever the answers do (latencies count from when each was due). Each hostile load
is aimed at the leader: SECONDS (6) of quiet, as many in which the hostile process only computes, as
many of the load, `ROUNDS` times.

The leader has processor 0 for itself. All others, which are the followers, the good client and the
hostile process, share processor 1, of which the hostile process has only what nobody else wants
(SCHED_IDLE). What it does to the good client by computing alone is nothing that it does to a node.
"""

import asyncio
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import numpy as np
import uvloop

from quorumlog.bench.processes import peak_bytes, reset_peak
from quorumlog.client import Client
from quorumlog.local import LocalCluster, guarded_directory
from quorumlog.model.block import encode_block
from quorumlog.model.codes import PushType
from quorumlog.model.limits import DEFAULT_LIMITS
from quorumlog.model.messages.base import Hello, Message
from quorumlog.model.messages.client import (
    AppendRequest,
    FetchRequest,
    FetchResponse,
    MetadataRequest,
    StatusRequest,
)
from quorumlog.model.messages.peer import PushRequest
from quorumlog.wire.decoder import FrameDecoder
from quorumlog.wire.frame import Frame, encode_frame

ROUNDS = 3
RATE = 200
BODY = b"x" * 1024
GROUP = "default"
DESCRIPTORS = 16_384
MIB = 1 << 20
SETTLE_S = 1.0
"""From the start of a load, or of a pause, to the first latency that counts."""

CLIENT = Hello(cluster="", node_id="", role="client")
Address = tuple[str, int]
Load = Callable[[Address], Awaitable[None]]


def raw(*messages: Message, attachment: bytes = b"") -> bytes:
    """Return the frames of messages, numbered from 1 on."""
    return b"".join(
        bytes(part)
        for number, message in enumerate(messages, 1)
        for part in encode_frame(
            message, correlation_id=number, attachments=[attachment] if attachment else ()
        )
    )


HELLO = raw(CLIENT)


# -- hostile loads -----------------------------------------------------------------------------


async def again_and_again(work: Callable[[], Awaitable[None]], pause_s: float = 0.01) -> None:
    """Repeat something whenever it ends."""
    while True:
        with suppress(OSError):
            await work()
        await asyncio.sleep(pause_s)


async def side_by_side(count: int, work: Callable[[], Awaitable[None]]) -> None:
    """Do the same on so many connections."""
    await asyncio.gather(*(again_and_again(work) for _ in range(count)))


async def talk(address: Address, first: bytes, then: bytes = b"", *, reads: bool = True) -> None:
    """Connect, say something once and something again and again, reading the answers or not."""
    reader, writer = await asyncio.open_connection(*address, limit=MIB)

    async def listen() -> None:
        while reads and await reader.read(MIB):
            pass

    listening = asyncio.create_task(listen())
    try:
        writer.write(first)
        await writer.drain()
        while then and not (reads and listening.done()):
            writer.write(then)
            await writer.drain()
        await (listening if reads else asyncio.Event().wait())
    finally:
        listening.cancel()
        writer.close()


def saying(count: int, first: bytes, then: bytes = b"", *, reads: bool = True) -> Load:
    """Return a load of so many connections that say the same."""

    async def load(address: Address) -> None:
        await side_by_side(count, lambda: talk(address, first, then, reads=reads))

    return load


async def come_and_go(address: Address) -> None:
    """Connect, say Hello, go: in a tight loop."""

    async def once() -> None:
        _, writer = await asyncio.open_connection(*address)
        writer.write(HELLO)
        writer.close()

    await asyncio.gather(*(again_and_again(once, 0) for _ in range(20)))


def bursts(count: int, fetched: int) -> Load:
    """Return a load of connections that each send a burst, wait for its answers, and repeat."""

    async def once(address: Address) -> None:
        reader, writer = await asyncio.open_connection(*address, limit=MIB)
        decoder = FrameDecoder(DEFAULT_LIMITS)
        writer.write(HELLO)
        try:
            while True:
                writer.write(fetches(fetched))
                unanswered = fetched
                while unanswered:
                    data = await reader.read(MIB)
                    if not data:
                        return
                    decoder.receive_data(data)
                    while (frame := decoder.next_frame()) is not None:
                        unanswered -= bool(frame.correlation_id)
        finally:
            writer.close()

    async def load(address: Address) -> None:
        await side_by_side(count, lambda: once(address))

    return load


async def await_entries(address: Address) -> None:
    """Have a thousand fetches wait for the next entry on each of ten connections."""

    async def once() -> None:
        reader, writer = await asyncio.open_connection(*address)
        decoder, index = FrameDecoder(DEFAULT_LIMITS), 0
        writer.write(HELLO)
        while True:
            writer.write(fetches(1_000, begin_index=index, wait_ms=30_000))
            answers = 0
            while answers < 1_000:
                decoder.receive_data(await reader.readexactly(1) + await reader.read(MIB))
                while (frame := decoder.next_frame()) is not None:
                    if isinstance(frame, Frame) and isinstance(frame.message, FetchResponse):
                        answers += 1
                        index = max(index, frame.message.committed_index + 1)

    await side_by_side(10, once)


def fetches(count: int, **options: object) -> bytes:
    """Return the frames of so many fetches."""
    request = {"group": GROUP, "begin_index": 0, "bytes_max": 1} | options
    return raw(*[FetchRequest(**request)] * count)  # type: ignore[arg-type]


def huge_push() -> bytes:
    """Return a frame that only members send, all of it a list that is large once decoded."""
    request = PushRequest(
        group=GROUP,
        local_id="n1",
        remote_id="n0",
        term=1,
        type=PushType.APPEND,
        request_id=1,
        prev_index=0,
        prev_term=0,
        commit_index=0,
        term_runs=[(1, 1)] * 80_000,
    )
    return raw(request)


def block(count: int) -> bytes:
    """Return a block of so many entries of 1 KiB."""
    return bytes(encode_block([BODY] * count))


def loads() -> dict[str, Load]:
    """Return all loads by name."""
    whole = raw(AppendRequest(group=GROUP, count=1), attachment=bytes(8 * MIB - 100_000))
    flood = raw(AppendRequest(group=GROUP, count=64), attachment=block(64))
    largest = raw(
        AppendRequest(group=GROUP, count=1), attachment=bytes(encode_block([bytes(4 * MIB - 4096)]))
    )
    small = raw(
        *[AppendRequest(group=GROUP, count=1)] * 50, attachment=bytes(encode_block([BODY[:100]]))
    )
    known = HELLO + fetches(1)  # a client whose requests are answered is no stranger
    refused = AppendRequest(group="no-such-group", count=1)
    polls = {"begin_index": 1 << 40, "wait_ms": 30_000}
    return {
        "idle": saying(2_500, b""),
        "idle-hello": saying(5_000, HELLO),
        "half-hello": saying(2_000, HELLO[:-3]),
        "come-and-go": come_and_go,
        "half-frames": saying(150, HELLO + whole[:-1]),
        "unread": saying(24, HELLO, fetches(200, bytes_max=4 * MIB), reads=False),
        "one-pipeline": saying(1, HELLO, fetches(1_000)),
        "pipelines": saying(20, HELLO, fetches(1_000)),
        "pipelines-300": saying(300, HELLO, fetches(100)),
        "bursts-40": bursts(40, 400),
        "bursts-300": bursts(300, 20),
        "appends-20": saying(20, HELLO, small),
        "appends-300": saying(300, HELLO, small),
        "large-40": saying(40, known, raw(refused, attachment=bytes(256 * 1024))),
        "large-300": saying(300, known, raw(refused, attachment=bytes(100 * 1024))),
        "no-such-group": saying(20, HELLO, fetches(1_000, group="no-such-group")),
        "huge-lists": saying(20, HELLO, huge_push()),
        "metadata": saying(20, HELLO, raw(*[MetadataRequest(group="")] * 500)),
        "status": saying(20, HELLO, raw(*[StatusRequest(group=GROUP)] * 500)),
        "polls": await_entries,
        "polls-strings": saying(50, HELLO + fetches(200, **polls, machine="m" * 200_000)),
        "polls-far": saying(20, HELLO, fetches(1_000, **polls)),
        "flood": saying(8, HELLO, flood),
        "flood-4m": saying(12, HELLO, largest),
        "read-all": saying(8, HELLO, fetches(20, bytes_max=4 * MIB)),
        "linearizable": saying(50, HELLO, fetches(200, linearizable=True)),
    }


def hostile(address: Address, name: str, pipe: Connection) -> None:
    """In a process of its own: compute from the first word on, be hostile from the second."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    pin(os.getpid(), -1)
    load = loads()[name]
    pipe.send("ready")

    pipe.recv()
    while not pipe.poll():
        sum(range(10_000))

    async def run() -> None:
        await load(address)

    uvloop.run(run())


# -- the good client ---------------------------------------------------------------------------


@dataclass
class Latencies:
    """Of appends and gets, in seconds."""

    appends: list[float] = field(default_factory=list)
    gets: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def add(self, other: "Latencies") -> None:
        """Take those of another, too."""
        self.appends += other.appends
        self.gets += other.gets
        self.failed += other.failed


async def behave(client: Client, seconds: float) -> Latencies:
    """Append and get at a steady rate."""
    found = Latencies()

    async def one(due: float) -> None:
        try:
            place = await client.append(BODY)
            done = time.perf_counter()
            found.appends.append(done - due)
            await client.get(place.index)
            found.gets.append(time.perf_counter() - done)
        except Exception as error:  # counted, and shown
            found.failed.append(repr(error))

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(int(seconds * RATE)):
            due = started + number / RATE
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(one(due))
    return found


def pin(pid: int, which: int) -> None:
    """Keep all threads of a process on the first or last processor."""
    processors = sorted(os.sched_getaffinity(0))
    ALL.extend(processors if not ALL else ())
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), {ALL[which]})


ALL: list[int] = []


class Measured:
    """A cluster with its leader on a processor of its own."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.leader = ""

    def place(self) -> Address:
        """Pin everybody; return where the leader listens."""
        self.leader = self.cluster.leader(GROUP)
        for node_id, pid in self.cluster.running().items():
            pin(pid, 0 if node_id == self.leader else -1)
        host, port = self.cluster.address(self.leader).rsplit(":", 1)
        return host, int(port)

    @property
    def rss_mib(self) -> float:
        """The most memory that a node held since it was last asked."""
        pids = self.cluster.running().values()
        most = max(map(peak_bytes, pids))
        for pid in pids:
            reset_peak(pid)
        return most / MIB

    async def round(self, name: str, seconds: float) -> tuple[list[Latencies], float]:
        """Return latencies in quiet, beside computing and under a load, and the memory under it."""
        address = self.place()
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=hostile, args=(address, name, there), daemon=True)
        process.start()
        try:
            await asyncio.to_thread(here.recv)
            async with Client(self.cluster.servers, GROUP) as client:
                found = [await settled(client, seconds)]
                for word in ("compute", "go"):
                    self.rss_mib  # noqa: B018  (resets the peak)
                    here.send(word)
                    found.append(await settled(client, seconds))
            return found, self.rss_mib
        finally:
            process.kill()
            process.join()
            await asyncio.sleep(SETTLE_S)


async def settled(client: Client, seconds: float) -> Latencies:
    """Behave for a moment, then for so long; the latencies of the moment do not count."""
    moment = await behave(client, SETTLE_S)
    found = await behave(client, seconds)
    found.failed += moment.failed
    return found


def p99(values: list[float]) -> float:
    """Return the 99th percentile in milliseconds."""
    return float(np.percentile(values, 99)) * 1_000 if values else float("nan")


async def measure(measured: Measured, names: list[str], seconds: float) -> None:
    """Measure and print a line for each load."""
    print("p99 in ms, quiet, computing → hostile")
    print(f"{'load':15}{'append':31}{'get':31}MiB failed")
    for name in names:
        all_rounds, rss = [Latencies() for _ in range(3)], 0.0
        for _ in range(ROUNDS):
            found, most = await measured.round(name, seconds)
            for total, one in zip(all_rounds, found, strict=True):
                total.add(one)
            rss = max(rss, most)
        line = f"{name:15}"
        for values in ([one.appends for one in all_rounds], [one.gets for one in all_rounds]):
            quiet, computing, loud = map(p99, values)
            cell = f"{quiet:.1f}, {computing:.1f} → {loud:.1f} ({loud / quiet:.1f} x)"
            line += f"{cell:31}"
        failed = [text for one in all_rounds for text in one.failed]
        print(f"{line}{rss:3.0f} {len(failed)} {failed[0][:60] if failed else ''}", flush=True)


def main() -> None:
    """Measure and print."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 6.0
    known = list(loads())
    names = sys.argv[2:] or known
    if unknown := set(names) - set(known):
        raise SystemExit(f"{', '.join(unknown)}: not one of {', '.join(known)}")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    with guarded_directory("quorumlog-measure-") as guard:
        cluster = LocalCluster.create(guard.directory / "cluster", groups=[GROUP])
        cluster.up()
        pin(os.getpid(), -1)
        try:
            uvloop.run(measure(Measured(cluster), names, seconds))
        finally:
            cluster.down()


if __name__ == "__main__":
    main()
