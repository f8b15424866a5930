"""Which member of a group has which partitions, as its coordinator decides: `uniform` and `range`.

The names and what they promise are those of KIP-848. `range` gives each member consecutive numbers
of each topic, so that topics with as many partitions are cut alike. `uniform` gives all about as
many partitions, and leaves those where they are that need not move.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from quorumlog.machine.cluster.consumer_groups import Partition

PASSES_MAX: Final = 8
"""Rounds in which partitions are moved from members with many to members with few. One is enough if
all are subscribed to the same topics."""

Partitions: TypeAlias = frozenset[Partition]
Targets: TypeAlias = dict[str, Partitions]
"""What members shall have, by their ids."""
NOTHING: Final[Partitions] = frozenset()


class Subscriber(NamedTuple):
    """A member: the topics that it is subscribed to, as far as there are such, and what it has."""

    topics: frozenset[bytes]
    partitions: Partitions = NOTHING
    instance_id: str | None = None


def assign_range(subscribers: Mapping[str, Subscriber], counts: Mapping[bytes, int]) -> Targets:
    """Return what each member shall have; `counts`: of the partitions of the topics."""
    order = {member: place for place, member in enumerate(_in_order(subscribers))}
    found: dict[str, list[Partition]] = {member: [] for member in subscribers}
    for members, topics in _alike(subscribers, order):
        members.sort(key=order.__getitem__)
        for topic in topics:
            each, more = divmod(counts[topic], len(members))
            first = 0
            for place, member in enumerate(members[: counts[topic]]):
                end = first + each + (place < more)
                found[member] += [(topic, number) for number in range(first, end)]
                first = end
    return {member: frozenset(some) for member, some in found.items()}


def assign_uniform(subscribers: Mapping[str, Subscriber], counts: Mapping[bytes, int]) -> Targets:
    """Return what each member shall have; `counts`: of the partitions of the topics.

    If all are subscribed to the same topics, no two differ by more than one partition, and no more
    partitions move than that takes. Otherwise no move of one partition makes it more even, but for
    what more than `PASSES_MAX` rounds would.
    """
    loads = dict.fromkeys(subscribers, 0)
    order = {member: place for place, member in enumerate(_in_order(subscribers))}
    pools = _pools(subscribers, counts, order)
    for pool in pools:
        for member, some in pool.owned.items():
            loads[member] += len(some)
    for pool in sorted(pools, key=lambda one: len(one.members)):
        pool.fill(loads, order)
    for _ in range(PASSES_MAX):
        moved = [pool.level(loads, order) for pool in pools]
        if not any(moved):
            break
    found: dict[str, list[Partition]] = {member: [] for member in subscribers}
    for pool in pools:
        for member, some in pool.owned.items():
            found[member] += some
    return {member: frozenset(some) for member, some in found.items()}


Assignor: TypeAlias = Callable[[Mapping[str, Subscriber], Mapping[bytes, int]], Targets]
ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}


def _in_order(subscribers: Mapping[str, Subscriber]) -> list[str]:
    """Return the members in an order that a restart of a static one does not change."""

    def key(member: str) -> tuple[bool, str]:
        instance_id = subscribers[member].instance_id
        return instance_id is None, member if instance_id is None else instance_id

    return sorted(subscribers, key=key)


class _Pool:
    """Partitions of topics that the same members are subscribed to, and who owns them."""

    def __init__(self, members: list[str]) -> None:
        self.members = members
        self.owned: defaultdict[str, list[Partition]] = defaultdict(list)
        self.free: list[Partition] = []

    def fill(self, loads: dict[str, int], order: Mapping[str, int]) -> None:
        """Give what nobody has to those who have least."""
        least = [(loads[member], order[member], member) for member in self.members]
        heapq.heapify(least)
        for one in self.free:
            load, place, member = least[0]
            self.owned[member].append(one)
            loads[member] = load + 1
            heapq.heapreplace(least, (load + 1, place, member))

    def level(self, loads: dict[str, int], order: Mapping[str, int]) -> bool:
        """Move partitions until no two members differ by two or more, as far as that is possible;
        return whether any was moved.
        """
        owners = [one for one, some in self.owned.items() if some]
        heaviest = max(map(loads.__getitem__, owners), default=0)
        if heaviest - min(map(loads.__getitem__, self.members)) < 2:
            return False
        least = [(loads[member], order[member], member) for member in self.members]
        most = [(-loads[one], order[one], one) for one in owners]
        heapq.heapify(least)
        heapq.heapify(most)
        has_moved = False
        while most:
            load, place, donor = most[0]
            if -load != loads[donor] or not self.owned[donor]:
                heapq.heappop(most)
                if self.owned[donor]:
                    heapq.heappush(most, (-loads[donor], place, donor))
                continue
            while least[0][0] != loads[least[0][2]]:
                _, at, stale = least[0]
                heapq.heapreplace(least, (loads[stale], at, stale))
            fewest, at, receiver = least[0]
            if loads[donor] - fewest < 2:
                break
            self.owned[receiver].append(self.owned[donor].pop())
            loads[donor] -= 1
            loads[receiver] += 1
            has_moved = True
            heapq.heapreplace(least, (fewest + 1, at, receiver))
            heapq.heappush(most, (-loads[receiver], at, receiver))
        return has_moved


def _alike(
    subscribers: Mapping[str, Subscriber], members: Iterable[str]
) -> list[tuple[list[str], list[bytes]]]:
    """Return topics that the same members are subscribed to, and these members, each time."""
    alike: dict[frozenset[bytes], list[str]] = {}
    for member in members:
        alike.setdefault(subscribers[member].topics, []).append(member)
    groups = list(alike.values())
    groups_of: dict[bytes, list[int]] = {}
    for number, topics in enumerate(alike):
        for topic in topics:
            groups_of.setdefault(topic, []).append(number)
    found: dict[tuple[int, ...], list[bytes]] = {}
    for topic in sorted(groups_of):
        found.setdefault(tuple(groups_of[topic]), []).append(topic)
    return [
        ([one for number in key for one in groups[number]], some) for key, some in found.items()
    ]


def _pools(
    subscribers: Mapping[str, Subscriber],
    counts: Mapping[bytes, int],
    order: Mapping[str, int],
) -> list[_Pool]:
    """Return all partitions by who is subscribed to their topics; each stays where it is."""
    pools: list[_Pool] = []
    pool_of: dict[bytes, _Pool] = {}
    for members, topics in _alike(subscribers, order):
        pools.append(_Pool(members))
        pool_of.update(dict.fromkeys(sorted(topics), pools[-1]))
    taken = _keep(subscribers, counts, order, pool_of)
    for topic, pool in pool_of.items():
        places = ((topic, number) for number in range(counts[topic]))
        pool.free += [one for one in places if one not in taken]
    return pools


def _keep(
    subscribers: Mapping[str, Subscriber],
    counts: Mapping[bytes, int],
    members: Iterable[str],
    pool_of: Mapping[bytes, _Pool],
) -> set[Partition]:
    """Have members own what they have and are still subscribed to; return all of that."""
    taken: set[Partition] = set()
    for member in members:
        topics = subscribers[member].topics
        for one in sorted(subscribers[member].partitions):
            if one[0] in topics and one[1] < counts[one[0]] and one not in taken:
                taken.add(one)
                pool_of[one[0]].owned[member].append(one)
    return taken
