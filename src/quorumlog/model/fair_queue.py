"""A queue in which owners take turns, however much one of them has waiting."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items of several owners: one of each owner in turn, in order for each owner.

    Owners are compared as keys of a dictionary; None is an owner like any other.
    """

    def __init__(self) -> None:
        self._by_owner: OrderedDict[object, deque[T]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        """How many items wait."""
        return self._count

    def count_of(self, owner: object) -> int:
        """Return how many items of an owner wait."""
        return len(self._by_owner.get(owner, ()))

    def add(self, owner: object, item: T) -> None:
        """Add an item after all others of its owner."""
        self._by_owner.setdefault(owner, deque()).append(item)
        self._count += 1

    def pop(self) -> T:
        """Take the first item of the owner that has waited longest for its turn."""
        owner, items = self._by_owner.popitem(last=False)
        item = items.popleft()
        self._count -= 1
        if items:
            self._by_owner[owner] = items
        return item

    def drop(self, owner: object) -> None:
        """Drop all items of an owner."""
        self._count -= len(self._by_owner.pop(owner, ()))
