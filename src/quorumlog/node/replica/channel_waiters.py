"""Fetches that wait for an entry on their channel: a commit is looked through once for all of them.

Otherwise each of a thousand readers of silent channels would look through every entry: with 100 of
them appends took three times as long, with 500 the leader lost its leadership.
"""

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")

ChannelsIn: TypeAlias = Callable[[int, int], dict[int, int] | None]
"""Returns the last entry on each channel, of the entries first … last; None: that is not known
without waiting for a disk."""


class ChannelWaiters(Generic[T]):
    """What waits, by channel, for entries up to one limit, such as the committed index.

    Up to `_seen` no entry on the channel of anything that waits can be read, from where it begins.
    """

    def __init__(self, channels_in: ChannelsIn) -> None:
        self._channels_in = channels_in
        self._waiting: dict[int, dict[int, tuple[int, T]]] = {}
        self._seen = -1

    def add(self, channel: int, begin_index: int, number: int, waiter: T, limit: int) -> None:
        """Wait for an entry at or after `begin_index`; `limit` is the present one, before it."""
        # the limit falls when a replica doubts its tables
        self._seen = min(self._seen, limit) if self._waiting else limit
        self._waiting.setdefault(channel, {})[number] = (begin_index, waiter)

    def drop(self, channel: int, begin_index: int, number: int) -> int:
        """Forget one; return from where on entries may matter to it."""
        found = self._waiting.get(channel)
        if found is not None:
            found.pop(number, None)
            if not found:
                del self._waiting[channel]
        return max(begin_index, self._seen + 1)

    def reached(self, limit: int) -> list[tuple[T, int]]:
        """Return those for whom there may be entries up to a limit, and from where on."""
        first = self._seen + 1
        if not self._waiting or limit < first:
            return []
        last_of = self._channels_in(first, limit)
        if last_of is None:
            last_of = dict.fromkeys(self._waiting, limit)
        found = [
            (waiter, max(begin_index, first))
            for channel, last in last_of.items()
            for begin_index, waiter in self._waiting.get(channel, {}).values()
            if begin_index <= last
        ]
        self._seen = limit
        return found
