"""Writes that were decided but not yet carried out, and how many are carried out together.

A plan is a list of steps. A `Write` puts bytes into a file; neighbouring writes to one file become
one pwritev, and each written data file is fsynced once at the end of a group commit. An `Action` is
carried out in its place, after the writes before it.

Why plans: the log's thread decides what is written and goes on at once, while the disk thread joins
the plans of all groups that wait, so that they share the fsyncs. Order is kept within a plan and
between plans, because a later write may overwrite what an earlier one wrote.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from quorumlog.model.block import Buffer
from quorumlog.storage.files.os_files import File


class Preparable(Protocol):
    """A file that will be needed soon."""

    path: str

    def prepare(self) -> None:
        """Make it; on any thread. Raises `NoSpaceError` when the disk is full."""
        ...


class WritePlan(Protocol):
    """A write that was decided and numbered but not yet carried out."""

    @property
    def size_bytes(self) -> int:
        """Bytes it will write."""
        ...

    def completed(self) -> None:
        """Note that the write is durable; called on the owner's thread, in order."""
        ...


class Store(Protocol):
    """Carries out plans of the logs and hard states that were opened from it."""

    def execute(self, plans: Sequence[WritePlan], *, sync: bool) -> None:
        """Write all plans in order and, with `sync`, make them durable with few fsyncs.

        Raises `StorageError` on the first failure; nothing may be retried after it.
        """
        ...

    def idle(self) -> bool:
        """Do what was put off, if it is due: nothing waits. True: something is still put off.

        Raises `StorageError` like `execute`.
        """
        ...

    def close(self) -> None:
        """Leave everything as it is read by programs that know the files alone; nothing follows.

        Raises `StorageError`: then the next start does it. No file of its own is open afterwards.
        """
        ...

    def abandon(self) -> None:
        """Close what it has open, and leave everything else to the next start: a write failed."""
        ...


class Target(Protocol):
    """Something that can be opened for writing: made, if need be, when first written.

    `start` is the position of its first byte among all that its owner writes.
    """

    path: str
    start: int

    def writable(self) -> File:
        """Return the open file; called on the disk thread."""
        ...


class Write(msgspec.Struct):
    """Put buffers into a file. `durable`: the plan is not done before the file is fsynced."""

    target: Target
    offset: int
    buffers: list[Buffer]
    durable: bool


class Action(msgspec.Struct):
    """Something else that must happen between writes; `action` makes its effects durable itself."""

    action: Callable[[], None]


Step: TypeAlias = Write | Action


class JournaledGroup(Protocol):
    """A group whose entries may be in a journal before they are durable in its own files."""

    incarnation: int
    """Of its data directory: one that was emptied has another."""
    is_in: bool
    """Whether it is noted that a journal holds entries of it."""

    def enter(self, path: str, journal: int) -> None:
        """Note durably that this journal holds entries which the files may lack, if possible."""
        ...

    def leave(self) -> None:
        """Note durably that the group's own files hold everything."""
        ...


class Appended(msgspec.Struct, frozen=True):
    """What a plan appends: after it the log ends with entry `index`, before byte `position`."""

    group: JournaledGroup
    index: int
    position: int
    chain_crc: int
    term: int


class JournalItem(msgspec.Struct):
    """Bytes that one plan puts at a position of its group."""

    appended: Appended
    target: Target
    offset: int
    buffers: list[Buffer]


def _nothing() -> None:
    pass


class Plan(msgspec.Struct):
    """Steps in order. `done` is called on the owner's thread; `synced` on the disk thread after the
    fsync: of the plans of one `owner`, that of the last that has one, and not always at once.

    `appended`: its durable writes are new entries and nothing else. `removes`: it removes entries;
    called on the disk thread first, with the journal that is in use and the sequence of its next
    record (0, 0: none): no earlier one counts for this owner any more. `leaves`: this group, which
    is about to be closed, needs no journal after the plan.
    """

    owner: object
    steps: list[Step]
    size_bytes: int = 0
    done: Callable[[], None] = _nothing
    synced: Callable[[], None] | None = None
    appended: Appended | None = None
    removes: Callable[[int, int], None] | None = None
    leaves: JournaledGroup | None = None

    def completed(self) -> None:
        """See `WritePlan`."""
        self.done()
