"""Streaming the records into the log, with the fail-over in the middle of it."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from quorumlog.client import Client, Context, Delivery, Producer, ProducerStats

CHUNK = 500
"""Records whose acknowledgements are awaited together."""
CHUNKS_UNDER_WAY = 40
DELIVERY_TIMEOUT_MS = 60_000


@dataclass(slots=True)
class Loaded:
    """What was acknowledged: digests of the bodies, and how fast."""

    digests: list[bytes] = field(default_factory=list)
    body_bytes: int = 0
    seconds: float = 0.0
    longest_pause_seconds: float = 0.0
    """Longest time between two acknowledgements from the kill on."""
    stats: ProducerStats = field(default_factory=ProducerStats)

    @property
    def entries(self) -> int:
        """How many records were acknowledged."""
        return len(self.digests)


class RateColumn(ProgressColumn):
    """Entries and megabytes a second."""

    def render(self, task: Task) -> Text:
        """Return the text of the column."""
        speed = task.finished_speed or task.speed or 0.0
        done = max(1.0, task.completed)
        megabytes = speed * task.fields.get("body_bytes", 0) / done / 1e6
        return Text(f"{speed:>9,.0f} entries/s {megabytes:6.1f} MB/s")


def progress_bar(console: Console) -> Progress:
    """Return the bar shown while records are loaded."""
    return Progress(
        TextColumn("  {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def body_digest(body: bytes) -> bytes:
    """Return the digest by which bodies are compared (SHA-256)."""
    return hashlib.sha256(body).digest()


class _Acknowledgements:
    """Waits for chunks of deliveries in the order they were sent."""

    def __init__(self, loaded: Loaded, progress: Progress, total: int) -> None:
        self._loaded = loaded
        self._progress = progress
        self._task = progress.add_task("appending", total=total, body_bytes=0)
        self._queue: asyncio.Queue[list[tuple[bytes, int, Delivery]] | None] = asyncio.Queue(
            CHUNKS_UNDER_WAY
        )
        self._last = time.monotonic()
        self.watching = False

    async def put(self, chunk: list[tuple[bytes, int, Delivery]] | None) -> None:
        await self._queue.put(chunk)

    async def run(self) -> None:
        while (chunk := await self._queue.get()) is not None:
            for digest, size, delivery in chunk:
                await delivery
                self._loaded.digests.append(digest)
                self._loaded.body_bytes += size
            now = time.monotonic()
            if self.watching:
                pause = now - self._last
                self._loaded.longest_pause_seconds = max(self._loaded.longest_pause_seconds, pause)
            self._last = now
            self._progress.update(
                self._task, completed=self._loaded.entries, body_bytes=self._loaded.body_bytes
            )


async def _load(
    cluster: Context,
    group: str,
    bodies: Iterable[bytes],
    total: int,
    half_way: Callable[[], "Future[None]"],
    console: Console,
) -> Loaded:
    loaded = Loaded()
    started = time.monotonic()
    iterator = iter(bodies)
    trouble: Future[None] | None = None
    with progress_bar(console) as progress:
        acknowledgements = _Acknowledgements(loaded, progress, total)
        async with (
            Client(cluster, group) as client,
            Producer(client, delivery_timeout_ms=DELIVERY_TIMEOUT_MS) as producer,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(acknowledgements.run())
            sent = 0
            while chunk := list(islice(iterator, CHUNK)):
                if trouble is None and sent >= total // 2:
                    acknowledgements.watching = True
                    trouble = half_way()
                taken = [
                    (body_digest(body), len(body), await producer.send(body)) for body in chunk
                ]
                sent += len(taken)
                await acknowledgements.put(taken)
            await acknowledgements.put(None)
            loaded.stats = producer.stats
    loaded.seconds = time.monotonic() - started
    if trouble is not None:
        await asyncio.wrap_future(trouble)
    return loaded


def load(
    cluster: Context,
    group: str,
    bodies: Iterable[bytes],
    total: int,
    half_way: Callable[[], "Future[None]"],
    console: Console,
) -> Loaded:
    """Append all bodies; after the first half call `half_way`, while the load goes on.

    Raises `RequestError` when records cannot be delivered, and what the work of `half_way` raises.
    """
    return asyncio.run(_load(cluster, group, bodies, total, half_way, console))
