"""The synchronous form of the producer, and what happens to its entries if nobody closes it.

What was sent outlives the `SyncProducer` that took it: when that is dropped, or the interpreter
ends, its entries are still delivered, for `EXIT_SECONDS` at most; what is missing then is logged.
"""

import asyncio
import atexit
import logging
import sys
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from types import TracebackType
from typing import Unpack

from quorumlog.client.buffers import as_bytes
from quorumlog.client.contexts import Servers
from quorumlog.client.delivery import ProducerStats, not_delivered, require_flushed
from quorumlog.client.loop_thread import LoopThread
from quorumlog.client.process import MakingProcess
from quorumlog.client.producer import Producer
from quorumlog.client.producer_options import ProducerOptions
from quorumlog.model.block import HEADER_SIZE, Buffer
from quorumlog.model.errors import (
    LeaderPendingFullError,
    QuorumlogError,
    RequestError,
    Undelivered,
)
from quorumlog.sessions.entries import AcceptedAttempt

logger = logging.getLogger(__name__)

SEND_BYTES = 128 * 1024
"""Bytes that may wait for the loop's thread before `SyncProducer.send` waits as well."""
EXIT_SECONDS = 10.0
"""How long what was sent is still delivered for when nobody closes its producer."""
MARGIN_SECONDS = 2.0
"""How much longer the end of the interpreter waits for the threads that do so."""


class _Outbox:
    """A producer in a thread of its own, and what is on its way there.

    The caller's thread appends to the queue, the loop's thread takes from its front; an entry is
    removed from the queue once the producer has taken it, so none is lost in between.
    """

    def __init__(self, producer: Producer, group: str) -> None:
        self.producer = producer
        self.group = group
        self.process = MakingProcess("SyncProducer")
        self.is_closed = False
        self._thread = LoopThread()
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0  # ever; written by the caller's thread only
        self._taken_bytes = 0  # ever; written by the loop's thread only
        self._taking = asyncio.Lock()
        self._is_take_scheduled = False
        self._finishing: Future[None] | None = None

    def check(self) -> None:
        """Raise unless entries may be sent."""
        self.process.check()
        failure = self.producer.failure(len(self._queue))
        if failure is not None:
            raise failure
        if self.is_closed:
            raise not_delivered("the producer is closed")

    def send(self, body: bytes) -> None:
        """Queue an entry that the producer would take."""
        self._queue.append(body)
        self._queued_bytes += HEADER_SIZE + len(body)
        if self._queued_bytes - self._taken_bytes >= SEND_BYTES:
            self.take()
        elif not self._is_take_scheduled:
            self._is_take_scheduled = True
            self._thread.submit(self._take())

    def send_batch(self, bodies: Sequence[bytes], channels: Sequence[int] | None) -> None:
        """Pass entries to the producer, after those that are queued."""
        self.take()
        try:
            self._thread.wait(self.producer.send_batch(bodies, channels))
        except RequestError:
            self.check()
            raise

    def take(self) -> None:
        """Wait until the producer has all that is queued. Raises the error that ended it."""
        try:
            self._thread.wait(self._take())
        except RequestError:
            self.check()
            raise

    async def _take(self) -> None:
        """Pass all that is queued to the producer, in order; what it cannot take stays queued."""
        async with self._taking:
            self._is_take_scheduled = False  # what is queued from now on may come too late for this
            queue = self._queue
            while queue:
                body = queue[0]
                try:
                    self.producer.send_nowait(body)
                except LeaderPendingFullError:
                    await self.producer.send(body)
                queue.popleft()
                self._taken_bytes += HEADER_SIZE + len(body)

    def flush(self) -> None:
        """See `Producer.flush`."""
        self.process.check()
        self.take()
        self._thread.wait(self.producer.flush())

    def close(self, *, flush: bool) -> None:
        """See `Producer.close`."""
        if flush:
            self.process.check()
        if self.is_closed or not self.process.is_this:
            return
        self.is_closed = True
        _unclosed.discard(self)
        try:
            if flush:
                self.take()
            self._thread.wait(self.producer.close(flush=flush))
        except KeyboardInterrupt:
            if missing := self.missing():
                logger.error(
                    "closing a SyncProducer of group %s was interrupted: %s", self.group, missing
                )
            raise
        finally:
            self._thread.stop()

    @property
    def is_ended(self) -> bool:
        """Whether it can send nothing more, as the caller knows: closed, failed, or forked."""
        return self.is_closed or not self.process.is_this or self.producer.failure() is not None

    def missing(self) -> str:
        """Return a text about the entries not known to be in the log; "" if there are none."""
        lost = self.undelivered()
        return str(lost) if lost.count else ""

    def undelivered(self) -> Undelivered:
        """See `Producer.undelivered`: of what is queued here, too."""
        return self.producer.undelivered(len(self._queue))

    # -- nobody closed it -------------------------------------------------------------------

    def dropped(self) -> None:
        """Deliver what is left after the object is gone, then end the thread. Never waits."""
        if self.is_closed or not self.process.is_this:
            return
        if missing := self.missing():
            logger.warning(
                "a SyncProducer of group %s was dropped without being closed; %s yet, and that is "
                "tried for %g s more",
                self.group,
                missing,
                EXIT_SECONDS,
            )
        self.finish()

    def finish(self) -> "Future[None]":
        """Start to deliver what is left and to end the thread."""
        self.is_closed = True
        if self._finishing is None:
            self._finishing = self._thread.submit(self._finish())
        return self._finishing

    async def _finish(self) -> None:
        said = "no reason is known"
        try:
            async with asyncio.timeout(EXIT_SECONDS):
                await self._take()
                await self.producer.flush()
        except TimeoutError:
            said = f"not delivered within {EXIT_SECONDS:g} s"
        except Exception as error:
            said = str(error)
        if missing := self.missing():
            reason = said.removesuffix(f"; {missing}")
            logger.error(
                "a SyncProducer of group %s was not closed, and entries may be lost: %s; %s. "
                "Close it, or use it in a with block",
                self.group,
                missing,
                reason,
            )
        _unclosed.discard(self)
        await self.producer.close(flush=False)
        await self._thread.stop_from_within()


_unclosed: set[_Outbox] = set()
"""The producers that nobody has closed yet."""


def _finish_all() -> None:
    """Deliver what is left in all producers that nobody closed; called when the process ends."""
    finishing: list[Future[None]] = []
    for outbox in [each for each in list(_unclosed) if each.process.is_this]:
        with suppress(QuorumlogError):  # another thread is closing it just now
            finishing.append(outbox.finish())
    for unfinished in wait(finishing, EXIT_SECONDS + MARGIN_SECONDS).not_done:
        unfinished.cancel()
        logger.error("a SyncProducer did not end in time; entries may be lost")


class _ExitWatch:
    """Registers `_finish_all`, to be called once when this process ends."""

    def __init__(self) -> None:
        self._process: MakingProcess | None = None

    def register(self) -> None:
        """Register it, unless that was done in this process."""
        if self._process is not None and self._process.is_this:
            return
        self._process = MakingProcess("exit")
        atexit.register(_finish_all)
        # a process of multiprocessing that was forked ends without calling what atexit knows
        if "multiprocessing.process" in sys.modules:
            from multiprocessing import parent_process, util  # noqa: PLC0415

            if parent_process() is not None:
                util.Finalize(None, _finish_all, exitpriority=0)


_exit_watch = _ExitWatch()


class SyncProducer:
    """`Producer` for code without an event loop; only one thread at a time may use it.

    See `Producer` for options and errors. Entries are sent by themselves, as there. `flush` (or the
    end of the `with` block) waits until all are acknowledged. `send` refuses what cannot be taken,
    which changes nothing. An error that ends the producer later is raised by the next `send`,
    `flush` or `close`, and says how many entries, and which, are not known to be in the log.

    Differences: `send` returns nothing, as it would have to wait for a place, and there is no
    `send_nowait`, as it could not see how full the buffer in the other thread is. There is no
    `failure` and no `undelivered`: the error that the next call raises says the same.

    A `SyncProducer` that nobody closes still delivers its entries when it is dropped or the
    interpreter exits, for at most 10 s (`EXIT_SECONDS`); what is missing then is logged as an
    error.
    """

    def __init__(
        self,
        servers: Servers,
        group: str = "default",
        **options: Unpack[ProducerOptions],
    ) -> None:
        self._producer = Producer(servers, group, **options)
        self._outbox = _Outbox(self._producer, group)
        _exit_watch.register()
        _unclosed.add(self._outbox)
        self._dropped = weakref.finalize(self, self._outbox.dropped)
        self._dropped.atexit = False  # `_finish_all` comes then

    def __enter__(self) -> "SyncProducer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        is_reported = kind is None or self._outbox.is_ended
        self.close(flush=kind is None)
        if kind is not None and not is_reported and (missing := self._outbox.missing()):
            logger.warning("a SyncProducer was closed because of %s: %s", kind.__name__, missing)

    @property
    def stats(self) -> ProducerStats:
        """See `Producer.stats`."""
        return self._producer.stats

    def attempt(self) -> AcceptedAttempt | None:
        """See `Producer.attempt`."""
        require_flushed(self._outbox.undelivered())
        return self._producer.attempt()

    def send_batch(self, bodies: Iterable[Buffer], channels: Iterable[int] | None = None) -> None:
        """Take many entries, all or none; waits while the producer's buffer is full.

        `channels`: one for each body; without, they go to the producer's. Raises as `send`.
        """
        self._outbox.check()
        given, numbers = self._producer._checked_batch(bodies, channels)
        self._outbox.send_batch(given, numbers)

    def send(self, body: Buffer) -> None:
        """Take one entry; waits while the producer's buffer is full. Raises as `Producer.send`."""
        raw = body if type(body) is bytes else as_bytes("body", body)
        self._outbox.check()
        self._producer._check(raw)
        self._outbox.send(raw)

    def flush(self) -> None:
        """See `Producer.flush`."""
        self._outbox.check()
        self._outbox.flush()

    def close(self, *, flush: bool = True) -> None:
        """See `Producer.close`."""
        self._outbox.close(flush=flush)
