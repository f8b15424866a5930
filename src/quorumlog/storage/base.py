"""What the rest of the program asks of a log, whatever it is kept in.

All methods of a `Log` are called from one thread and return at once: writes come back as a
`WritePlan`, which another thread carries out with `execute` (many plans at a time, one fsync), and
whose `completed` is then called on the first thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from quorumlog.model.block import Block


@dataclass(frozen=True, slots=True)
class Span:
    """Entries first_index … first_index + count - 1, contiguous bytes, final and readable.

    `records` are their index records (32 bytes each), `from_memory` whether no disk was touched.
    """

    first_index: int
    count: int
    data: memoryview
    records: memoryview
    from_memory: bool

    @property
    def last_index(self) -> int:
        """Index of the last entry."""
        return self.first_index + self.count - 1


class WritePlan(Protocol):
    """A write that was decided and numbered but not yet carried out."""

    @property
    def size_bytes(self) -> int:
        """Bytes it will write."""
        ...

    def completed(self) -> None:
        """Tell the owner that the write is durable; called on the owner's thread, in order."""
        ...


class Store(Protocol):
    """Carries out plans of the logs and hard states that were opened from it."""

    def execute(self, plans: Sequence[WritePlan], *, sync: bool) -> None:
        """Write all plans in order and, with `sync`, make them durable with few fsyncs.

        Raises `StorageError` on the first failure; nothing may be retried after it.
        """
        ...


class Log(Protocol):
    """One group's entries. Indexes are consecutive; -1 stands for "none"."""

    @property
    def before_begin_index(self) -> int:
        """Index just before the first entry that is kept; -1 at the start."""
        ...

    @property
    def before_begin_term(self) -> int:
        """Term of that absent entry; -1 when there is none."""
        ...

    @property
    def end_index(self) -> int:
        """Last index, durable or not; before_begin_index when empty."""
        ...

    @property
    def end_chain_crc(self) -> int:
        """Chain CRC at end_index; 0 when empty."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes of all entries kept."""
        ...

    def term_runs(self) -> list[tuple[int, int]]:
        """Return (term, first index) of each run of equal terms, ascending."""
        ...

    def append(self, block: Block, term: int) -> tuple[WritePlan, list[tuple[int, int]]]:
        """Stamp a proposal's block in place (leader) and stage it after end_index.

        Returns the write and the spans (first index, position) that are contiguous on disk.
        """
        ...

    def append_noop(self, term: int) -> WritePlan:
        """Stage one NOOP entry (magic 2, empty body)."""
        ...

    def append_received(self, block: Block) -> WritePlan:
        """Stage stamped entries as they are (follower); the first must be end_index + 1."""
        ...

    def truncate(self, from_index: int) -> WritePlan:
        """Remove from_index and all after it. The log reads as truncated at once."""
        ...

    def chain_crc_at(self, index: int) -> int:
        """Return the chain CRC stored at an index (0 at or below before_begin_index).

        Raises `IndexOutOfRangeError` beyond the end.
        """
        ...

    def is_in_memory(self, first_index: int) -> bool:
        """Whether `read` from first_index will touch no disk."""
        ...

    def read(self, first_index: int, last_index: int, bytes_max: int) -> Span:
        """Return entries from first_index on, as many as are contiguous and fit the bounds.

        Always at least one entry. Bytes that come from disk are checked against their body CRC
        before they are returned. May be called from another thread when not `is_in_memory`.
        Raises `IndexOutOfRangeError`, `IndexRemovedError`, or `CorruptionError`.
        """
        ...

    def note_committed(self, index: int) -> None:
        """Remember the committed index for the next checkpoint."""
        ...

    def checkpoint(self) -> WritePlan | None:
        """Return a write that bounds what the next opening must read; None if nothing is new."""
        ...
