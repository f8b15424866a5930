"""quorumlog as the harness that measures its peers knows them: one more module `peer_NAME`.

    python benchmarks/peers/peer_quorumlog.py --harness DIR [--op append|read|failover]

Prints one JSON line, as the harness does for its own peers; `compare.py` beside this file runs both
in turn. The harness is found by `--harness` or the environment variable PEERS_HARNESS; its module
`common` needs psutil.

Three nodes on the loopback address with the configuration of `quorumlog cluster up`. There is one
mode, `fsync`: an append is acknowledged when a majority has it on disk.

Clients, each with at most `inflight` entries unacknowledged:

- `append`: so many tasks, each with one `Client.append` after the other.
- `producer`: a `Producer`. Up to `BOUNDED_MAX` in flight its blocks are a quarter of them; above,
  it has the settings it has by itself, and nothing but its buffer bounds what is in flight.
- `batch`: four times `Client.append_batch` of a quarter of them.

Readers: `entries` makes a Python object of each entry and checks its CRC; `blocks` takes entries as
they come, many at a time, and only counts them.
"""

import argparse
import asyncio
import functools
import importlib
import importlib.util
import itertools
import os
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import uvloop

import quorumlog
from quorumlog import Client, Producer
from quorumlog.client import Delivery
from quorumlog.local import Guard, LocalCluster
from quorumlog.model.block import HEADER_SIZE
from quorumlog.model.limits import MIB

NAME = "quorumlog"
MODES = ["fsync"]
CLIENTS = ["append", "producer", "batch"]
READERS = ["entries", "blocks"]
BODY_BYTES = (256, 1_024, 16_384)
NODES = 3
GROUP = "default"

BOUNDED_MAX = 512
"""Up to so many entries in flight the producer is held to them."""
PARTS = 4
"""A bounded client has so many blocks under way: one fills while the others travel."""
SENT_BYTES = 256 * 1024
"""Entries sent together, with their headers, where nothing but the buffer bounds a producer."""
FETCH_BYTES = 4 * MIB
FETCH_WAIT_MS = 1_000
FAILOVER_BODY = b"x" * 1_024

HARNESS_VARIABLE = "PEERS_HARNESS"
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Meter(Protocol):
    """What the harness counts acknowledgements with; times in seconds of `time.perf_counter`."""

    t1: float
    """When the load ends."""

    def ack(self, sent: float, t: float, n: int = 1) -> None:
        """Count n entries that were sent and acknowledged at these times."""
        ...

    async def closed_loop(
        self, append: Callable[[], Awaitable[object]], workers: int, n: int = 1
    ) -> None:
        """Let so many tasks append n entries after the other until the load ends."""
        ...


def load_harness(directory: str | None = None) -> Any:
    """Return the harness' module `common`, from a directory or from PEERS_HARNESS.

    Processes started from this one find it too. Exits with a line of explanation when there is no
    harness, or no psutil for it.
    """
    found = directory or os.environ.get(HARNESS_VARIABLE)
    if not found:
        sys.exit(f"where is the harness? Name its directory: --harness or {HARNESS_VARIABLE}")
    path = Path(found).absolute()
    if not (path / "common.py").is_file():
        sys.exit(f"{path} is not the harness: it has no common.py")
    if importlib.util.find_spec("psutil") is None:
        sys.exit(f"the harness needs psutil: {sys.executable} -m pip install psutil")
    os.environ[HARNESS_VARIABLE] = str(path)
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))
    return importlib.import_module("common")


def matrix(mode: str) -> list[tuple[str, int, int, Sequence[int]]]:
    """Return what to measure in a mode: client, entries in flight, processes, sizes in bytes."""
    return [
        ("append", 1, 1, BODY_BYTES),
        ("append", 64, 1, BODY_BYTES),
        ("producer", 512, 1, BODY_BYTES),
        ("producer", 32_768, 1, BODY_BYTES),
        ("batch", 512, 1, (1_024,)),
        ("append", 64, 2, (1_024,)),
    ]


def version() -> str:
    """Return name and version."""
    return f"{NAME} {quorumlog.__version__}"


# -- servers ----------------------------------------------------------------------------------


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back until the end: no node may be left behind half-way."""
    held: list[int] = []
    before = {
        number: signal.signal(number, lambda given, _: held.append(given))
        for number in ENDING_SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        if held:
            signal.raise_signal(held[0])


class Cluster:
    """Three nodes, with what the harness calls on a cluster (its own `Cluster` is the pattern).

    The nodes end with this process, whatever ends it; `stop` ends them whoever started them.
    """

    name = NAME

    def __init__(self, mode: str) -> None:
        if mode not in MODES:
            raise ValueError(f"{NAME} has no mode {mode!r}, only {', '.join(MODES)}")
        self.mode = mode
        self.dir = f"{load_harness().ROOT}/run/{self.name}-{mode}"
        self._nodes: LocalCluster | None = None
        self._guard: Guard | None = None
        self._killed: set[str] = set()

    def start(self) -> None:
        """Start nodes with an empty log and wait for a leader. Raises `LocalClusterError`."""
        self.stop()
        shutil.rmtree(self.dir, ignore_errors=True)
        self._guard = Guard(self.dir)
        with uninterrupted():
            self._nodes = LocalCluster.create(self.dir, nodes=NODES, groups=(GROUP,))
            self._nodes.up()

    def fresh(self) -> None:
        """Begin again with an empty log."""
        self.start()

    def stop(self) -> None:
        """End all nodes, also those that another process has left in this directory."""
        if self._nodes is None and LocalCluster.exists(self.dir):
            self._nodes = LocalCluster.open(self.dir)
        if self._nodes is not None:
            with uninterrupted():
                self._nodes.down()
        if self._guard is not None:
            self._guard.close()
        self._nodes = self._guard = None
        self._killed.clear()

    def pids(self) -> list[int]:
        """Return the pids of the nodes. Raises `RuntimeError` if one ended that was not killed."""
        running = self._started().running()
        missing = set(self._started().node_ids) - running.keys() - self._killed
        if missing:
            raise RuntimeError(f"{', '.join(sorted(missing))} not running, see {self.dir}")
        return list(running.values())

    def kill9(self, node: str) -> float:
        """End a node with SIGKILL; return when, by `time.perf_counter` (seconds).

        Does not wait until it is gone: whoever measures fail-over runs in this thread.
        """
        pid = self._started().running()[node]
        self._killed.add(node)
        killed_at = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        return killed_at

    def leader(self) -> str:
        """Return the node that leads. Raises `LocalClusterError` when there is none for long."""
        return self._started().leader(GROUP)

    def target(self) -> dict[str, str]:
        """Return what clients need to connect: they know all nodes and find the leader."""
        return {"servers": self._started().servers}

    def _started(self) -> LocalCluster:
        if self._nodes is None:
            raise RuntimeError(f"{NAME} is not started")
        return self._nodes


# -- appends ----------------------------------------------------------------------------------


def produce(target: dict[str, str], size: int, inflight: int, meter: Meter, client: str) -> None:
    """Append bodies of `size` bytes until the load ends. Raises `RequestError` if one fails."""
    body = os.urandom(size)
    if client == "producer":
        uvloop.run(_produce_blocks(target["servers"], body, inflight, meter))
    elif client == "batch":
        uvloop.run(_append_batches(target["servers"], body, inflight, meter))
    elif client == "append":
        uvloop.run(_append_singly(target["servers"], body, inflight, meter))
    else:
        raise ValueError(f"{NAME} has no client {client!r}, only {', '.join(CLIENTS)}")


async def _append_singly(servers: str, body: bytes, inflight: int, meter: Meter) -> None:
    async with Client(servers, GROUP) as log:
        await meter.closed_loop(lambda: log.append(body), inflight)


async def _append_batches(servers: str, body: bytes, inflight: int, meter: Meter) -> None:
    parts = min(PARTS, inflight)
    bodies = [body] * (inflight // parts)
    async with Client(servers, GROUP) as log:
        await meter.closed_loop(lambda: log.append_batch(bodies), parts, len(bodies))


async def _produce_blocks(servers: str, body: bytes, inflight: int, meter: Meter) -> None:
    """Send and meter a few entries at a time.

    A clock read and a waiter for each entry would be measured rather than the producer. The last
    one of those sent together is not acknowledged before the others, and most share a block.
    """
    entry_bytes = HEADER_SIZE + len(body)
    if inflight <= BOUNDED_MAX:
        parts = min(PARTS, inflight)
        count = inflight // parts
        producer = Producer(servers, GROUP, batch_bytes=count * entry_bytes)
        room = asyncio.Semaphore(parts)
    else:
        count = max(1, SENT_BYTES // entry_bytes)
        producer = Producer(servers, GROUP)
        room = asyncio.Semaphore(inflight)  # never reached: the producer's buffer is smaller
    sent: asyncio.Queue[tuple[float, Delivery] | None] = asyncio.Queue()

    async def send() -> None:
        while time.perf_counter() < meter.t1:
            await room.acquire()
            delivery = await producer.send(body)  # waits while the buffer is full, as a caller does
            started = time.perf_counter()
            for _ in range(count - 1):
                delivery = await producer.send(body)
            sent.put_nowait((started, delivery))
        sent.put_nowait(None)

    async def count_acknowledged() -> None:
        while (waiting := await sent.get()) is not None:
            started, delivery = waiting
            await delivery
            meter.ack(started, time.perf_counter(), count)
            room.release()

    async with producer, asyncio.TaskGroup() as tasks:
        tasks.create_task(send())
        tasks.create_task(count_acknowledged())


def fill(target: dict[str, str], n: int, size: int) -> None:
    """Append n entries of `size` bytes; return when all are acknowledged."""

    async def go() -> None:
        async with Producer(target["servers"], GROUP) as producer:
            await producer.send_batch(itertools.repeat(os.urandom(size), n))

    uvloop.run(go())


# -- reads and fail-over ----------------------------------------------------------------------


def consume(target: dict[str, str], n: int, client: str) -> tuple[int, int]:
    """Read the log, which holds n entries, from its beginning; return entries and their bytes."""
    if client == "entries":
        return uvloop.run(_read_entries(target["servers"]))
    if client == "blocks":
        return uvloop.run(_read_blocks(target["servers"], n))
    raise ValueError(f"{NAME} has no reader {client!r}, only {', '.join(READERS)}")


async def _read_entries(servers: str) -> tuple[int, int]:
    count = size = 0
    async with Client(servers, GROUP) as log:
        async for entry in log.read(follow=False):
            count += 1
            size += len(entry.body)
    return count, size


async def _read_blocks(servers: str, n: int) -> tuple[int, int]:
    """Fetch all blocks; of the entries only the n that users appended are counted.

    The log's own ones among them (one in a block of a producer) are told apart by looking at each,
    which this reader does not; they are less than a thousandth of the bytes.
    """
    count = size = 0
    async with Client(servers, GROUP) as log:
        index, committed_index = await log.bounds()
        while index <= committed_index:
            fetched = await log.fetch(index, bytes_max=FETCH_BYTES, wait_ms=FETCH_WAIT_MS)
            if not fetched.count:
                raise RuntimeError(f"entry {index} of {committed_index} cannot be had")
            index = fetched.first_index + fetched.count
            count += fetched.count
            size += len(fetched.data) - fetched.count * HEADER_SIZE
    return min(count, n), size


def failover(cluster: Cluster) -> float:
    """Kill the leader; return the seconds until an append sent after that is acknowledged."""
    probe = load_harness().failover_probe

    async def go() -> float:
        node = cluster.leader()
        async with Client(cluster.target()["servers"], GROUP) as log:
            seconds: float = await probe(
                lambda: log.append(FAILOVER_BODY), lambda: cluster.kill9(node)
            )
            return seconds

    return uvloop.run(go())


# -- one figure -------------------------------------------------------------------------------


def measured_appends(common: Any, cluster: Cluster, given: argparse.Namespace) -> None:
    """Measure appends and print the figure."""
    client = given.client or CLIENTS[0]
    describe_error = {
        "client": client,
        "op": "append",
        "size": given.size,
        "inflight": given.inflight,
        "procs": given.procs,
        "seconds": given.seconds,
    }
    runs = common.append_runs(
        Path(__file__).stem,  # the producing processes import this file by its name
        cluster,
        given.size,
        given.inflight,
        given.procs,
        given.seconds,
        given.runs,
        client,
    )
    common.emit(_head(cluster) | describe_error, runs, given.out)


def measured_reads(common: Any, cluster: Cluster, given: argparse.Namespace) -> None:
    """Fill a log, measure reading it and print the figure."""
    client = given.client or READERS[0]
    runs = []
    with common.machine_lock():
        cluster.fresh()
        fill(cluster.target(), given.msgs, given.size)
        for _ in range(given.runs):
            runs.append(common.read_run(cluster, consume, given.msgs, given.size, client))
    describe_error = {"client": client, "op": "read", "size": given.size}
    common.emit(_head(cluster) | describe_error, runs, given.out)


def measured_failovers(common: Any, cluster: Cluster, given: argparse.Namespace) -> None:
    """Measure fail-over, each time of new nodes, and print the figure."""
    runs = []
    for _ in range(given.runs):
        with common.machine_lock():
            cluster.fresh()
            runs.append({"failover_ms": 1e3 * failover(cluster)})
            cluster.stop()
    common.emit(_head(cluster) | {"op": "failover"}, runs, given.out)


def _head(cluster: Cluster) -> dict[str, object]:
    return {"peer": NAME, "version": version(), "mode": cluster.mode}


OPERATIONS = {"append": measured_appends, "read": measured_reads, "failover": measured_failovers}


def arguments() -> argparse.Namespace:
    """Return the command line: the options of the harness' own run.py, as far as they apply."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = functools.partial(parser.add_argument, metavar="N", type=int)
    parser.add_argument("--harness", metavar="DIR", help=f"default: {HARNESS_VARIABLE}")
    parser.add_argument("--mode", default=MODES[0], choices=MODES)
    parser.add_argument("--client", choices=CLIENTS + READERS, help="default: the first that fits")
    parser.add_argument("--op", default="append", choices=list(OPERATIONS))
    add("--size", default=1_024, help="bytes of a body")
    add("--inflight", default=64, help="entries unacknowledged")
    add("--procs", default=1, help="producing processes, each with --inflight")
    add("--seconds", default=8.0, type=float, help="length of a window")
    add("--runs", default=3, help="windows, one after the other; reads; kills")
    add("--msgs", default=500_000, help="entries to read")
    parser.add_argument("--out", metavar="FILE", help="append the JSON line to this file too")
    given = parser.parse_args()
    fitting = {"append": CLIENTS, "read": READERS}.get(given.op, [])
    if given.client and given.client not in fitting:
        parser.error(f"--op {given.op} has no client {given.client}")
    return given


def main() -> None:
    """Measure one figure and print it."""
    given = arguments()
    common = load_harness(given.harness)
    cluster = Cluster(given.mode)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the nodes are ended below
    try:
        OPERATIONS[given.op](common, cluster, given)
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
