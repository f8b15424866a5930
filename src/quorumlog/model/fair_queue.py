"""A queue in which owners take turns, however much one of them has waiting."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
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

    def __iter__(self) -> Iterator[T]:
        """All items, owner by owner."""
        return (item for items in self._by_owner.values() for item in items)

    def count_of(self, owner: object) -> int:
        """Return how many items of an owner wait."""
        return len(self._by_owner.get(owner, ()))

    def add(self, owner: object, item: T) -> None:
        """Add an item after all others of its owner."""
        self._by_owner.setdefault(owner, deque()).append(item)
        self._count += 1

    def put_back(self, owner: object, item: T) -> None:
        """Undo a `pop`: the item is the next one. Put several back in the reverse order."""
        self._by_owner.setdefault(owner, deque()).appendleft(item)
        self._by_owner.move_to_end(owner, last=False)
        self._count += 1

    def pop(self) -> T:
        """Take the first item of the owner that has waited longest for its turn."""
        owner, items = self._by_owner.popitem(last=False)
        item = items.popleft()
        self._count -= 1
        if items:
            self._by_owner[owner] = items
        return item

    def take_all(self) -> list[T]:
        """Take all items, owner by owner."""
        items = list(self)
        self._by_owner.clear()
        self._count = 0
        return items

    def take_if(self, condition: Callable[[T], bool]) -> list[T]:
        """Take the items that meet a condition, owner by owner; the others keep their order."""
        taken: list[T] = []
        by_owner, self._by_owner, self._count = self._by_owner, OrderedDict(), 0
        for owner, items in by_owner.items():
            for item in items:
                if condition(item):
                    taken.append(item)
                else:
                    self.add(owner, item)
        return taken

    def drop(self, owner: object) -> None:
        """Drop all items of an owner."""
        self._count -= len(self._by_owner.pop(owner, ()))
