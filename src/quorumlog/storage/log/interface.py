"""What the rest of the program asks of a log, in files or in memory.

All methods of a `Log` but `read` and `verify` are called from one thread and return at once: writes
come back as a `WritePlan`, which another thread carries out with `execute` (many plans at a time,
one fsync), and whose `completed` is then called on the first thread.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from quorumlog.model.block import Block, Int64s
from quorumlog.model.errors import IndexOutOfRangeError, IndexRemovedError
from quorumlog.storage.entries.entry_runs import EntryRun
from quorumlog.storage.files.write_plans import Preparable, WritePlan
from quorumlog.storage.log.tail_cache import TailCache
from quorumlog.storage.metadata.damaged_ranges import DamagedRanges


@dataclass(frozen=True, slots=True)
class Segment:
    """Entries up to `last_index` that can only be removed together, `size_bytes` on disk."""

    last_index: int
    size_bytes: int
    path: str


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """What can be appended without asking the disk for more."""

    size_bytes: int
    entries: int


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
    def tail(self) -> TailCache:
        """The newest entries, in memory."""
        ...

    @property
    def file_sizes(self) -> tuple[int, int]:
        """Bytes of a data file and of an index file; 0: there are no files."""
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

        Returns the write, and (first index, position) of each run that is contiguous on disk.
        """
        ...

    def positions_of(self, sizes: Int64s) -> Int64s:
        """Return where entries of these sizes would lie if they were appended now."""
        ...

    def append_noop(self, term: int, *, compatible: bool = False) -> WritePlan:
        """Stage one NOOP entry: magic 2 and no body, or in the form that DLedger reads."""
        ...

    def append_config(self, body: bytes, term: int, *, compatible: bool = False) -> WritePlan:
        """Stage one CONFIG_CHANGE entry with this body: magic 3, or in the form DLedger reads."""
        ...

    def config_entries(self) -> list[tuple[int, bytes]]:
        """Return (index, body) of the newest committed CONFIG_CHANGE entry and of all later ones.

        The committed one is returned even if the log starts after it.
        """
        ...

    def append_received(self, block: Block) -> WritePlan:
        """Stage stamped entries as they are (follower); the first must be end_index + 1."""
        ...

    def truncate(self, from_index: int) -> WritePlan:
        """Remove from_index and all after it. Readers see the truncated log at once."""
        ...

    def reset(
        self,
        before_begin_index: int,
        before_begin_term: int = -1,
        chain_crc: int = -1,
        config: tuple[int, bytes] | None = None,
    ) -> WritePlan:
        """Remove everything up to before_begin_index; readers see the shorter log at once.

        If before_begin_index is beyond the end, the log becomes empty and goes on after it. The
        caller then passes the term and chain CRC at that index (-1: not known) and, if it is known,
        the newest CONFIG_CHANGE entry up to there as (index, body). If it is inside the log, only
        committed entries may go. Nothing happens when the log starts after it already.
        """
        ...

    def chain_crc_at(self, index: int) -> int | None:
        """Return the chain CRC of the entry at an index (0 before the first entry of all).

        None where it is not known: the entry is damaged, or gone. Raises `IndexOutOfRangeError`
        beyond the end.
        """
        ...

    def segments(self) -> list[Segment]:
        """Return the segments that `reset` can remove, oldest first; never the newest data."""
        ...

    def closed_index(self) -> int:
        """Return the last index in data files that no append touches any more.

        It is before_begin_index while there is only one data file.
        """
        ...

    def free_space(self) -> FreeSpace:
        """Return what can be appended into files that are made already."""
        ...

    def upcoming(self) -> list[Preparable]:
        """Return the files to make now, so that appends never wait for it."""
        ...

    # -- damage -----------------------------------------------------------------------------

    @property
    def damaged(self) -> DamagedRanges:
        """Entries that cannot be read until they are repaired."""
        ...

    def verify(self, first_index: int, last_index: int, bytes_max: int) -> int:
        """Check entries on disk, at least one; return the last one checked. On any thread.

        Raises `CorruptionError` naming the first damaged one.
        """
        ...

    def quarantine(self, index: int, *, is_readable: bool = True) -> WritePlan:
        """Find out what is wrong with a damaged entry: repair its index record, or quarantine it.

        If `is_readable` is False, the disk cannot read the entry's bytes, and nobody tries to.

        Raises `CorruptionError` when it is no longer known which entry it was.
        """
        ...

    def repair(self, block: Block) -> WritePlan:
        """Put entries of another replica in the place of damaged ones.

        Raises `CorruptionError`, and changes nothing, unless they are exactly those; it names the
        entry after them if they show that this one is damaged, too. Raises
        `UnexpectedArgumentError` when such entries are not damaged here.
        """
        ...

    def is_in_memory(self, first_index: int) -> bool:
        """Whether `read` from first_index touches no disk; False for removed entries."""
        ...

    def read(self, first_index: int, last_index: int, bytes_max: int) -> EntryRun:
        """Return entries from first_index on, as many as are contiguous and fit the bounds.

        Always at least one entry. Bytes that come from disk are checked against their CRCs before
        they are returned. May be called from another thread when not `is_in_memory`.
        Raises `IndexOutOfRangeError`, `IndexRemovedError`, or `CorruptionError`.
        """
        ...

    def read_resident(self, first_index: int, last_index: int, bytes_max: int) -> EntryRun | None:
        """Return what `read` returns if that is little and waits for no disk; else None.

        Raises what `read` raises.
        """
        ...

    def note_committed(self, index: int) -> None:
        """Remember the committed index for the next checkpoint."""
        ...

    def keep_tables(self, to_save: Callable[[], bytes | None]) -> None:
        """Have `to_save` asked, before each checkpoint, for the tables to go with it.

        If it returns None, nothing has changed: the log saves the last value until that is durable.
        A log in memory keeps it in memory.
        """
        ...

    def checkpoint(self) -> WritePlan | None:
        """Return a write that bounds what the next opening must read; None if nothing is new."""
        ...

    def settle(self) -> WritePlan:
        """Return a write after which no journal is needed for the log, which is closed then."""
        ...


def check_holds(log: Log, index: int) -> None:
    """Raise `IndexRemovedError` or `IndexOutOfRangeError` unless a log holds an index."""
    if index <= log.before_begin_index:
        raise IndexRemovedError(
            f"index {index} is below the first index kept, {log.before_begin_index + 1}"
        )
    if index > log.end_index:
        raise IndexOutOfRangeError(f"index {index} is beyond the end, {log.end_index}")
