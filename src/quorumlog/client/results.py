"""What client calls return."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from quorumlog.model.block import (
    HEADER_SIZE,
    Block,
    block_from_index_records,
    block_of_headers,
    parse_block,
)
from quorumlog.model.errors import RemoteProtocolError, UnexpectedArgumentError
from quorumlog.model.messages.client import AppendResponse, StoreLocation

Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]
"""What a reader sees of transactions: only what was accepted, up to the first that has not ended
(the last stable index); or everything a majority has. Other entries are seen by both."""


Level: TypeAlias = Literal["one_way", "receive", "persistence", "replication", "all"]
"""When an append is answered: at once, once the leader has it in memory, on its disk, once a
majority has it on disk (committed), or all voters have."""


@dataclass(frozen=True, slots=True)
class Appended:
    """Where one entry went: index and term in the log, byte position in the data files.

    Position and term are -1 for an entry that was appended before and has been removed. `level` is
    what was proved when the call returned; with "one_way" nothing was, and all numbers are -1.
    """

    index: int
    term: int
    pos: int
    level: Level = "replication"


@dataclass(frozen=True, slots=True)
class AppendedBatch:
    """Where a batch went: indexes first_index … last_index, one position each.

    See `Appended`.
    """

    first_index: int
    last_index: int
    term: int
    positions: list[int]
    level: Level = "replication"


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """Who leads a group in a term; a term has one leader at most.

    Attributes:
        term: the term.
        node_id: the leader's node.
        address: where it is reached, as host:port; "" if the members' addresses do not say.
    """

    term: int
    node_id: str
    address: str


@dataclass(frozen=True, slots=True)
class Executed:
    """Where a command went, and what the state machine made of it."""

    index: int
    term: int
    result: bytes


@dataclass(frozen=True, slots=True)
class Queried:
    """The state machine's answer, of the state after applied_index."""

    applied_index: int
    answer: bytes


@dataclass(frozen=True, slots=True)
class FetchedBlock:
    """Committed entries in their on-disk form: first_index … first_index + count - 1.

    `records` are index records (32 bytes an entry) if they were asked for, else empty. The server
    can serve begin_index … committed_index (read_committed: to the last stable index). `rejected`:
    (first, last) of those that belong to transactions and were not accepted. `headers_only`: the
    data has no bodies. With a `location` there is no data: the entries are in those files.
    `is_checked`: whoever read them here has compared them with their CRCs. `looked_until` ≥ 0: only
    entries of one channel were asked for; these are all up to this index.
    """

    first_index: int
    count: int
    data: memoryview
    records: memoryview
    begin_index: int
    committed_index: int
    rejected: Sequence[tuple[int, int]] = ()
    headers_only: bool = False
    location: StoreLocation | None = None
    is_checked: bool = False
    looked_until: int = -1

    @property
    def following(self) -> int:
        """The index from which a reader goes on."""
        return max(self.first_index + self.count, self.looked_until + 1)

    def block(self, entry_bytes_max: int) -> Block:
        """Return the entries. Raises `RemoteProtocolError` if the bytes do not hold them."""
        try:
            if self.headers_only:
                return block_of_headers(self.data)
            if len(self.records):
                return block_from_index_records(self.data, self.records)
            return parse_block(self.data, count=self.count, entry_bytes_max=entry_bytes_max)
        except UnexpectedArgumentError as error:
            raise RemoteProtocolError(f"a server sent entries that are none: {error}") from error

    def is_rejected(self, index: int) -> bool:
        """Whether an entry belongs to a transaction that was not accepted."""
        return any(first <= index <= last for first, last in self.rejected)


def positions_of(response: AppendResponse, sizes: list[int]) -> list[int]:
    """Return the position of each entry of an acknowledged block, from sizes of the bodies."""
    starts = dict(response.positions)
    positions: list[int] = []
    position = 0
    for ordinal, size in enumerate(sizes):
        position = starts.get(response.first_index + ordinal, position)
        positions.append(position)
        position += HEADER_SIZE + size
    return positions


def position_at(
    response: AppendResponse, offsets: list[int], ordinal: int, *, lead: int = 0
) -> int:
    """Return the position of one entry of an acknowledged block, from offsets in the block.

    `lead` entries of the block go before those. -1 if the server does not know any more.
    """
    own_first = response.first_index + lead
    first, position = max(one for one in response.positions if one[0] <= own_first + ordinal)
    if position < 0:
        return -1
    return position + offsets[ordinal] - (offsets[first - own_first] if first >= own_first else 0)
