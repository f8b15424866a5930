"""What a Produce and a Fetch cost a node, counted: calls of Python functions, and copied bytes.

Counts do not depend on how fast or busy the machine is. Only calls are counted that requests cause,
on the thread of the loop; the clock of the listener stands still, so that nobody's time is over.
"""

import asyncio
import importlib.util
import struct
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType

import pytest

from kafka_broker import kafka_cluster
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.handlers.fetch import _Fetching
from quorumlog.kafka.request_queue import RequestQueue
from quorumlog.kafka.requests import ApiKey
from quorumlog.node import node
from quorumlog.node.executor import ThreadExecutor
from quorumlog.node.turn import Turn
from quorumlog.transport.stream import StreamConnection

ROOT = Path(__file__).parents[2]
WITHIN_S = 60
REPEATS = 6
QUIET_S = 0.02
CALLS_WHEN_QUIET_MAX = 100
TOGETHER = 33
CALLS_PER_PRODUCE_MAX = 176
CALLS_PER_COMMIT_MAX = 170
CALLS_PER_FETCH_MAX = 167
CALLS_PER_PARTITION_MAX = 16
CALLS_PER_WAITING_PARTITION_MAX = 8
PARTITIONS = 10, 1_000, 10_000
GROWTH_MAX = 1.3
SIZE = 300
LARGE = 1_000_000


def _benchmark():
    """Return the module of the benchmark, which measures the same in microseconds."""
    path = ROOT / "benchmarks" / "kafka_requests.py"
    spec = importlib.util.spec_from_file_location("kafka_requests", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bench = _benchmark()


class Calls:
    """Counts calls of Python functions below those that the loop calls because of requests."""

    ROOTS = frozenset(
        one.__code__
        for one in (
            StreamConnection.buffer_updated,
            Turn.run,
            ThreadExecutor._finish,
            RequestQueue._answer,
            _Fetching._resolve_in_turns,
            _Fetching._guard,
        )
    )

    def __init__(self) -> None:
        self.count = self._depth = 0

    def hook(self, frame: FrameType, event: str, _: object) -> None:
        """See `sys.setprofile`."""
        if event == "call":
            code: CodeType = frame.f_code
            if self._depth or code in self.ROOTS:
                self._depth += 1
                self.count += 1
        elif event == "return" and self._depth:
            self._depth -= 1


@contextmanager
def counted() -> Iterator[Calls]:
    calls = Calls()
    sys.setprofile(calls.hook)
    try:
        yield calls
    finally:
        sys.setprofile(None)


class Client:
    """A connection without a socket: requests go in as bytes, and answers are kept."""

    def __init__(self, listener) -> None:
        listener.shared.now = listener.shared.scheduler.now = lambda: 1.0
        self.answers: list[list] = []
        self._answered: Callable[[], None] = lambda: None
        client = self

        class Transport(bench.Transport):
            def writelines(self, parts):
                client.answers.append(list(parts))
                client._answered()

        self._listener = listener
        self._connection = listener._make()
        self._connection.connection_made(Transport())

    async def ask(self, *requests: bytes) -> None:
        """Ask until nothing is refused.

        A leader that is alone steps down for a moment when the disk of a busy machine stalls.
        """
        async with asyncio.timeout(WITHIN_S):
            while not await self._ask(requests):
                pass

    async def _ask(self, requests: Sequence[bytes]) -> bool:
        """Ask for the answers to requests that come at once; return whether none is an error."""
        done, errors = asyncio.Event(), self._errors()
        self.answers = []

        def look() -> None:
            if len(self.answers) == len(requests):
                done.set()

        self._answered = look
        rest = memoryview(b"".join(requests))
        while rest:
            space = self._connection.get_buffer(-1)
            count = min(len(space), len(rest))
            space[:count] = rest[:count]
            self._connection.buffer_updated(count)
            rest = rest[count:]
        await done.wait()
        await asyncio.sleep(0)  # what is put off until the end of the turn is done
        return self._errors() == errors

    async def _quiet(self) -> None:
        """Wait until the node does nothing by itself, such as saving its tables."""
        while True:
            with counted() as calls:
                await asyncio.sleep(QUIET_S)
            if calls.count <= CALLS_WHEN_QUIET_MAX:
                return

    def _errors(self) -> int:
        found = self._listener.counters.requests
        return sum(count for (_, error), count in found.items() if error != ErrorCode.NONE.name)

    async def calls(self, *requests: bytes, before: Callable[[], None] = lambda: None) -> int:
        """Return how many calls the requests cost: the least of some times without errors."""
        found = []
        async with asyncio.timeout(WITHIN_S):
            while len(found) < REPEATS:
                await self._quiet()
                before()
                with counted() as calls:
                    is_right = await self._ask(requests)
                if is_right:
                    found.append(calls.count)
        return min(found)


def fetch(name: str, partitions: int, *, bytes_max: int = SIZE, wait_ms: int = 0) -> bytes:
    """Return a Fetch of the first batch of the first partitions of a topic."""
    head = (
        struct.pack(">iiiibiiih", -1, wait_ms, 1, 1 << 24, 0, 0, -1, 1, len(name)) + name.encode()
    )
    rows = b"".join(struct.pack(">iiqqi", one, -1, 0, -1, bytes_max) for one in range(partitions))
    body = head + struct.pack(">i", partitions) + rows + struct.pack(">ih", 0, 0)
    return bench.framed(ApiKey.FETCH, 11, body)


def produce(name: str, partition: int = 0, size: int = SIZE) -> bytes:
    """Return a Produce of one batch, with acks=all."""
    records = bench.batch(size)
    head = struct.pack(">hhiih", -1, -1, 30_000, 1, len(name)) + name.encode()
    body = head + struct.pack(">iii", 1, partition, len(records)) + records
    return bench.framed(ApiKey.PRODUCE, 7, body)


def metadata(name: str) -> bytes:
    """Return a Metadata request for one topic, which is not to be created."""
    body = struct.pack(">ih", 1, len(name)) + name.encode() + b"\0"
    return bench.framed(ApiKey.METADATA, 5, body)


@pytest.mark.real_time
async def test_the_calls_of_a_produce_and_of_a_fetch_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(node, "time", time)  # calls of tests are not counted
    async with kafka_cluster(tmp_path) as cluster:
        await cluster.create_topic("t", 100)
        await cluster.create_topic("empty", 100)
        client = Client(cluster.nodes[await cluster.leader()].listener)
        await client.ask(*(produce("t", number) for number in range(100)))

        one = await client.calls(produce("t"))
        many = await client.calls(*(produce("t", number) for number in range(TOGETHER)))
        per_produce = (many - one) / (TOGETHER - 1)
        assert per_produce <= CALLS_PER_PRODUCE_MAX
        assert one - per_produce <= CALLS_PER_COMMIT_MAX

        alone = await client.calls(fetch("t", 1))
        assert alone <= CALLS_PER_FETCH_MAX
        together = await client.calls(fetch("t", 100))
        assert (together - alone) / 99 <= CALLS_PER_PARTITION_MAX

        await client.ask(fetch("empty", 1, wait_ms=1))
        alone = await client.calls(fetch("empty", 1, wait_ms=1))
        together = await client.calls(fetch("empty", 100, wait_ms=1))
        assert (together - alone) / 99 <= CALLS_PER_WAITING_PARTITION_MAX


@pytest.fixture
def traced():
    tracemalloc.start()
    yield
    tracemalloc.stop()


async def allocated(act) -> int:
    """Return the most bytes that were allocated at a time during something, beyond those before."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    await act
    return tracemalloc.get_traced_memory()[1] - before


async def test_a_large_batch_is_copied_neither_when_produced_nor_when_fetched(tmp_path, traced):
    async with kafka_cluster(tmp_path) as cluster:
        await cluster.create_topic("t")
        client = Client(cluster.nodes[await cluster.leader()].listener)
        await client.ask(produce("t"))
        request = produce("t", size=LARGE)
        await client.ask(request)

        received = await allocated(client.ask(request))
        assert received < 1.1 * LARGE + len(request), "the request of the test, and where it stays"

        asked = fetch("t", 1, bytes_max=2 * LARGE)
        await client.ask(asked)
        assert sum(map(len, client.answers[0])) > LARGE
        assert await allocated(client.ask(asked)) < 0.1 * LARGE


async def test_the_calls_of_requests_do_not_grow_with_the_partitions_there_are(tmp_path):
    async with kafka_cluster(tmp_path) as cluster:
        for count in PARTITIONS:
            await cluster.create_topic(f"t{count}", count)
        client = Client(cluster.nodes[await cluster.leader()].listener)

        broker = cluster.nodes[0].broker

        def changed() -> None:
            broker.version += 1  # what is kept of answers is made again

        async def costs(count: int) -> dict[str, float]:
            name = f"t{count}"
            await client.ask(produce(name))
            one, all_of_them = fetch(name, 1), fetch(name, count)
            alone = await client.calls(one)
            told = await client.calls(metadata(name), before=changed)
            # leaders may change meanwhile, and then it is made again
            kept = min([await client.calls(metadata(name)) for _ in range(3)])
            return {
                "produce": await client.calls(produce(name)),
                "fetch": alone,
                "fetch, each partition": (await client.calls(all_of_them) - alone) / (count - 1),
                "metadata": kept,
                "metadata, each partition": (told - kept) / count,
            }

        # the largest first: meanwhile ends what was to be done about new partitions
        found = [await costs(count) for count in reversed(PARTITIONS)][::-1]
        for kind in found[0]:
            values = [one[kind] for one in found]
            for fewer, more in pairwise(values):
                assert more <= GROWTH_MAX * fewer, (kind, values)
