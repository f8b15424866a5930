"""Where a pipeline's entries come from: one group of a cluster, read by index ranges."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from quorumlog.client import SyncClient
from quorumlog.client.results import FetchedBlock, Isolation
from quorumlog.model.entry import Entry
from quorumlog.spark.access import AnyAccess
from quorumlog.spark.source.clusters import (
    PLAN_TIMEOUT_MS,
    RemoteCluster,
    check_cluster,
    client_for,
    is_in_use,
)

TIMEOUT_MS = 120_000
"""How long a task rides out an outage."""
RANGES_SMALLER = 8
"""So much smaller than asked may ranges be, for every core to have one."""
RANGES_LARGER = 8
"""Ranges may be larger by so small a part of what was asked, rather than one more for each core."""
RANGE_ENTRIES_MAX = 10_000_000


class LogSource(Protocol):
    """Entries of one group; an object of this kind travels to tasks."""

    @property
    def group(self) -> str:
        """The group's name."""
        ...

    @property
    def isolation(self) -> Isolation:
        """What is seen of transactions."""
        ...

    def cluster(self) -> str:
        """Return the cluster's name."""
        ...

    def bounds(self) -> tuple[int, int]:
        """Return the first index kept and the last that may be read.

        All that was acknowledged before counts.
        """
        ...

    def get(self, index: int) -> Entry:
        """Return one entry. Raises `IndexRemovedError`, `IndexOutOfRangeError`."""
        ...

    def blocks(self, first: int, last: int) -> Iterator[FetchedBlock]:
        """Yield all entries first … last. Raises `IndexRemovedError`."""
        ...


@dataclass(frozen=True, slots=True)
class ClusterSource:
    """A group as its servers have it. `leader_only=False`: any replica that answers is read."""

    servers: AnyAccess
    group: str
    isolation: Isolation = "read_committed"
    leader_only: bool = True
    timeout_ms: int = TIMEOUT_MS

    def client(self) -> SyncClient:
        """Return this process's client for the group."""
        return client_for(self.servers, self.group, self.timeout_ms)

    def check(self) -> None:
        """Raise within a few seconds if no server answers or the group is unknown.

        Not if this process has worked on it before: then that is an outage, to be ridden out.
        """
        if not is_in_use(self.servers, self.group, self.timeout_ms):
            check_cluster(self.servers, self.group, min(PLAN_TIMEOUT_MS, self.timeout_ms))

    def cluster(self) -> str:
        """See `LogSource`."""
        return self.client().metadata().cluster

    def bounds(self) -> tuple[int, int]:
        """See `LogSource`; the leader is asked, once a majority has confirmed that it leads."""
        return self.client().bounds(linearizable=True, isolation=self.isolation)

    def get(self, index: int) -> Entry:
        """See `LogSource`; the leader is asked."""
        return self.client().get(index)

    def blocks(self, first: int, last: int) -> Iterator[FetchedBlock]:
        """See `LogSource`."""
        cluster = RemoteCluster(self.servers, self.timeout_ms)
        return cluster.blocks(self.group, first, last, self.isolation, leader_only=self.leader_only)


def plan_ranges(
    source: LogSource, first: int, last: int, range_bytes: int, cores: int
) -> list[tuple[int, int]]:
    """Cut entries first … last into ranges of about `range_bytes`, by the mean size of an entry.

    They may be smaller, or a little larger, for each of `cores` to have as many.
    Raises `IndexRemovedError`.
    """
    count = last - first + 1
    total = source.get(last).pos - source.get(first).pos if count > 1 else 0
    wanted = max(1, -(-total // range_bytes), -(-count // RANGE_ENTRIES_MAX))
    if wanted > cores:  # all cores have work until the end
        fewer = wanted // cores * cores
        are_enough = total <= fewer * (range_bytes + range_bytes // RANGES_LARGER)
        wanted = fewer if are_enough and count <= fewer * RANGE_ENTRIES_MAX else fewer + cores
    shared = min(cores, total * RANGES_SMALLER // range_bytes)
    count_of_ranges = min(max(wanted, shared), count)
    edges = [first + count * number // count_of_ranges for number in range(count_of_ranges + 1)]
    return [(edges[i], edges[i + 1] - 1) for i in range(count_of_ranges)]
