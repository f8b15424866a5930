"""The brokers as the data source sees them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from quorumlog.records.batch import BatchHeader
from quorumlog.spark.access import AnyAccess
from quorumlog.spark.topics.part import Part

FETCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes that are asked for at a time; one batch may have more."""


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Record batches of a partition. `aborted`: producer id and first offset of transactions.

    `batches` are where each starts in `data`, and its header. `next_offset` comes after them.
    `is_checked`: their bytes are known to be those that the leader checked when it took them.
    """

    data: memoryview
    batches: Sequence[tuple[int, BatchHeader]]
    aborted: Sequence[tuple[int, int]]
    next_offset: int
    is_checked: bool = False


class Brokers(Protocol):
    """What the data source asks of a cluster.

    All methods ride out an outage for as long as they were given, then raise `NetworkError`.
    """

    def cluster_id(self) -> str:
        """Return the id of the cluster, which no other one has."""
        ...

    def topics(self, *, unconfirmed: bool = False) -> dict[str, list[int]]:
        """Return all topics with their partitions, those of Kafka's own excepted.

        `unconfirmed` as in `partitions`.
        """
        ...

    def partitions(
        self, topics: Sequence[str], *, unconfirmed: bool = False
    ) -> dict[str, list[int]]:
        """Return the partitions of topics; a topic that is not there is left out.

        A majority of the brokers is asked, as one may be cut off from the others: what one of them
        names is there, unless a majority say that it is not. `unconfirmed`: one broker is asked,
        which may lack what is new; it is asked for again soon.
        """
        ...

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the ids of topics, as text, "" for none; a topic that is not there is left out.

        A topic that is deleted and made again has another id. What is read from now on is of the
        topics with these ids, as a majority of the brokers name them, or of later ones.
        """
        ...

    def existing(self, parts: Iterable[Part]) -> set[Part]:
        """Return those of some partitions that are there, and learn who leads them.

        One is not there if a majority of the brokers say so: some may be cut off from the others.
        """
        ...

    def offsets(
        self, times: Mapping[Part, int], *, reads_committed: bool, unconfirmed: bool = False
    ) -> dict[Part, int | None]:
        """Return the first offset of partitions that is not older than a time, None: there is none.

        A time is milliseconds since 1970, `EARLIEST` or `LATEST`: the end of what may be read.
        The leader is asked that a majority of the brokers and of the replicas know, as another
        broker may take itself for it. `unconfirmed`: the one that was known last, which may lack
        what is new; it is asked for again soon. Raises `UnknownTopicError`.
        """
        ...

    def batches(
        self,
        part: Part,
        first: int,
        beyond: int,
        *,
        reads_committed: bool,
        bytes_max: int,
        local_reads: bool,
    ) -> Iterator[FetchedBatches]:
        """Yield the batches with offsets from `first` on, up to `beyond`.

        The first one may begin before, and the last one end after. `local_reads`: what the leader
        has in files of this machine is read there. Raises `OffsetOutOfRangeError`
        if they are not there, `UnknownTopicError`.
        """
        ...


Connect: TypeAlias = Callable[[AnyAccess, int, str], Brokers]
"""(servers, milliseconds that an outage is ridden out, client id) → the brokers; opens nothing."""
