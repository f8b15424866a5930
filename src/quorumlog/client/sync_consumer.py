"""`Consumer` for code without an event loop."""

import asyncio
import warnings
import weakref
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Unpack

from quorumlog.client.consumer import Consumer, ConsumerOptions, Start, plain_function
from quorumlog.client.contexts import Servers
from quorumlog.client.loop_thread import LoopThread
from quorumlog.model.entry import Entry
from quorumlog.model.errors import QuorumlogError


def _dropped(consumer: Consumer, thread: LoopThread, which: str) -> None:
    """Have a consumer that was garbage-collected without being closed leave its group."""
    if not thread.is_running or thread.is_stopping:
        return
    with suppress(QuorumlogError):  # it is being closed
        thread.submit(_close_and_stop(consumer, thread))
    warnings.warn(f"{which} was not closed; it leaves its group now", ResourceWarning, stacklevel=2)


async def _close_and_stop(consumer: Consumer, thread: LoopThread) -> None:
    try:
        await consumer.close()
    finally:
        await thread.stop_from_within()


# Callbacks may refer to the consumer, which its thread must not keep alive.


def _assigned(owner: "weakref.ref[SyncConsumer]", partitions: frozenset[int]) -> None:
    consumer = owner()
    if consumer is not None and consumer._on_assigned is not None:
        consumer._on_assigned(partitions)


async def _revoked(owner: "weakref.ref[SyncConsumer]", partitions: frozenset[int]) -> None:
    """Call what may wait for the consumer, outside of the thread that the consumer runs in."""
    consumer = owner()
    if consumer is not None and consumer._on_revoked is not None:
        await asyncio.to_thread(consumer._on_revoked, partitions)


class SyncConsumer:
    """`Consumer` for code without an event loop; see there for arguments, results and errors.

        with SyncConsumer(servers, group="billing", log="flights") as consumer:
            for entry in consumer:
                handle(entry)
                consumer.commit()

    Heartbeats are sent in a daemon thread of its own, also while the program handles an entry.
    `on_assigned` is called in that thread, too, so it cannot call the consumer, which raises
    `QuorumlogError`. `on_revoked` is called in another one, and may call `commit`; the program gets
    no entry meanwhile. Calls during or after `close` raise `QuorumlogError`. A consumer that is
    garbage-collected without being closed leaves its group, with a `ResourceWarning`.

    Attributes:
        group: name of the consumer group.
        log: name of the log.
    """

    def __init__(
        self,
        servers: Servers,
        *,
        group: str,
        log: str,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self._on_assigned = plain_function("on_assigned", options.get("on_assigned"))
        self._on_revoked = plain_function("on_revoked", options.get("on_revoked"))
        owner = weakref.ref(self)
        if self._on_assigned is not None:
            options["on_assigned"] = partial(_assigned, owner)
        if self._on_revoked is not None:
            options["on_revoked"] = partial(_revoked, owner)
        self._consumer = Consumer(servers, group=group, log=log, **options)
        self._thread = LoopThread("consumer")
        self.group = self._consumer.group
        self.log = self._consumer.log
        self._closed = False
        which = f"a SyncConsumer of the group {self.group!r}"
        dropped = weakref.finalize(self, _dropped, self._consumer, self._thread, which)
        dropped.atexit = False  # its thread ends with the process

    def __enter__(self) -> "SyncConsumer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """See `Consumer.close`; in a forked child, which is no member, do nothing.

        If Ctrl-C, or what else a signal handler raises, ends the wait, the consumer leaves the
        group all the same as long as the process goes on, and its thread ends then. Further calls
        wait for that.
        """
        self._closed = True
        thread = self._thread
        if not thread.is_running or thread.is_stopping:
            return
        try:
            thread.wait(self._close())
        except QuorumlogError:
            if not thread.is_stopping:  # else it has been closed meanwhile
                raise
        except BaseException:
            with suppress(QuorumlogError):  # it has been closed meanwhile
                thread.submit(_close_and_stop(self._consumer, thread))
            raise
        thread.stop()

    async def _close(self) -> None:
        await self._consumer.close()  # in the thread, where there is an event loop

    def __iter__(self) -> Iterator[Entry]:
        return self.read()

    def read(self) -> Iterator[Entry]:
        """See `Consumer.read`."""
        return self._thread.each(self._consumer.read(), lambda: self._closed)

    def read_blocks(self) -> Iterator[list[Entry]]:
        """See `Consumer.read_blocks`."""
        return self._thread.each(self._consumer.read_blocks(), lambda: self._closed)

    def poll(self, timeout_ms: float) -> list[Entry]:
        """See `Consumer.poll`."""
        return self._thread.wait(self._consumer.poll(timeout_ms))

    @property
    def positions(self) -> dict[int, int]:
        """See `Consumer.positions`."""
        return self._consumer.positions

    def commit(self) -> None:
        """See `Consumer.commit`."""
        self._thread.wait(self._consumer.commit())

    def committed(self) -> dict[int, int]:
        """See `Consumer.committed`."""
        return self._thread.wait(self._consumer.committed())

    def seek(self, index: Start) -> None:
        """See `Consumer.seek`."""
        self._thread.wait(self._consumer.seek(index))
