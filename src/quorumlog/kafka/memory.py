"""Memory of the requests of all Kafka connections: who holds most is not read when it is short."""

from typing import Final, Protocol

from quorumlog.kafka.counters import KafkaCounters
from quorumlog.transport.budget import RequestMemory

REQUEST_BYTES: Final = 1_024
"""Bytes added to each request: what the node keeps of it besides its frame."""


class Holder(Protocol):
    """A connection, as those see it that bound its memory."""

    def memory_changed(self) -> None:
        """It may be read again, or not any more."""
        ...


class KafkaMemory:
    """What requests hold until they are answered, by connection.

    `total` is for all of them. While it is above its bound, each request that comes has one more
    connection wait: the one that holds most. All go on at three quarters of the bound.
    """

    def __init__(self, total: RequestMemory, counters: KafkaCounters) -> None:
        self._total = total
        self._counters = counters
        self._held: dict[Holder, int] = {}
        self._paused: set[Holder] = set()

    def is_paused(self, holder: Holder) -> bool:
        """Whether a connection must not be read now."""
        return holder in self._paused

    def hold(self, holder: Holder, size: int) -> None:
        """A request of a connection was taken."""
        self._total.hold(size)
        self._counters.request_bytes = self._total.used
        self._held[holder] = self._held.get(holder, 0) + size
        if self._total.used > self._total.bytes_max:
            self._pause_largest()

    def _pause_largest(self) -> None:
        read = [(size, one) for one, size in self._held.items() if one not in self._paused]
        if read:
            _, largest = max(read, key=lambda entry: entry[0])
            self._paused.add(largest)
            self._counters.paused += 1
            largest.memory_changed()

    def release(self, holder: Holder, size: int) -> None:
        """A request was answered; the connection may have ended meanwhile."""
        left = self._held[holder] - size
        if left:
            self._held[holder] = left
        else:
            del self._held[holder]
        self._total.release(size)
        self._counters.request_bytes = self._total.used
        if self._paused and 4 * self._total.used <= 3 * self._total.bytes_max:
            paused, self._paused = self._paused, set()
            for one in paused:
                one.memory_changed()
