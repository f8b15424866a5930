"""Batching by turn of the event loop: items that come in the same turn travel together."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeAlias, TypeVar

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")

Defer: TypeAlias = Callable[[Callable[[], None]], object]
"""Calls a function after the present turn of the event loop, such as `loop.call_soon`."""


class TurnBatcher(Generic[Key, Item]):
    """Collects items and delivers them as batches, in order, once the present turn is over.

    No item waits for further ones: the first one after a flush schedules the next flush. A batch
    has items of one key, at most `bytes_max` bytes (of which the start of the batch takes
    `lead_bytes`) and at most `entries_max` entries; an item above these bounds is a batch alone.
    Each flush calls `deliver` once, with all batches, when nothing is held any more.
    """

    def __init__(
        self,
        defer: Defer,
        deliver: Callable[[list[tuple[Key, list[Item]]]], None],
        *,
        bytes_max: int,
        entries_max: int,
        lead_bytes: int = 0,
    ) -> None:
        self._defer = defer
        self._deliver = deliver
        self._bytes_max = bytes_max - lead_bytes
        self._entries_max = entries_max
        self._held: dict[Key, list[tuple[Item, int, int]]] = {}
        self.count = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return self.count

    def add(self, key: Key, item: Item, size_bytes: int, entries: int = 1) -> None:
        """Hold an item until the next flush."""
        if not self.count:
            self._defer(self.flush)
        self.count += 1
        self.size_bytes += size_bytes
        self._held.setdefault(key, []).append((item, size_bytes, entries))

    def flush(self) -> None:
        """Deliver everything that is held now; a deferred flush that finds nothing does nothing."""
        if not self.count:
            return
        held, self._held = self._held, {}
        self.count = self.size_bytes = 0
        self._deliver([(key, batch) for key, items in held.items() for batch in self._cut(items)])

    def _cut(self, items: list[tuple[Item, int, int]]) -> list[list[Item]]:
        """Return the items of one key in batches within the bounds."""
        batches: list[list[Item]] = []
        size_bytes = entries = 0
        for item, item_bytes, item_entries in items:
            size_bytes += item_bytes
            entries += item_entries
            if not batches or size_bytes > self._bytes_max or entries > self._entries_max:
                batches.append([])
                size_bytes, entries = item_bytes, item_entries
            batches[-1].append(item)
        return batches
