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
from quorumlog.model.errors import InvariantViolation
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


class Target(Protocol):
    """Something that can be opened for writing: made, if need be, when first written."""

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


def _nothing() -> None:
    pass


class Plan(msgspec.Struct):
    """Steps in order. `done` is called on the owner's thread; `synced` on the disk thread after the
    fsync: of the plans of one `owner` in a group commit, that of the last that has one.
    """

    owner: object
    steps: list[Step]
    size_bytes: int = 0
    done: Callable[[], None] = _nothing
    synced: Callable[[], None] | None = None

    def completed(self) -> None:
        """See `WritePlan`."""
        self.done()


class GroupStore:
    """Carries out plans of any number of groups in one data directory; used by one thread."""

    def __init__(self) -> None:
        self._unsynced: dict[File, None] = {}
        self._newest: dict[int, Callable[[], None]] = {}

    def execute(self, plans: Sequence[WritePlan], *, sync: bool) -> None:
        """See `Store`."""
        run = _Run(self._unsynced)
        for plan in plans:
            if not isinstance(plan, Plan):
                raise InvariantViolation(f"a plan of this store: {plan}")
            for step in plan.steps:
                run.take(step)
            if plan.synced is not None:
                self._newest[id(plan.owner)] = plan.synced
        run.flush()
        if sync:
            for file in self._unsynced:
                if file.is_open:  # else a later plan removed it
                    file.sync()
            self._unsynced.clear()
            for synced in self._newest.values():
                synced()
            self._newest.clear()


class _Run:
    """Joins neighbouring writes to one file."""

    def __init__(self, unsynced: dict[File, None]) -> None:
        self._unsynced = unsynced
        self._open: dict[Target, tuple[int, int, list[Buffer]]] = {}

    def take(self, step: Step) -> None:
        if isinstance(step, Action):
            self.flush()
            step.action()
            return
        length = sum(map(len, step.buffers))
        start, end, buffers = self._open.get(step.target, (step.offset, step.offset, []))
        if end != step.offset:
            step.target.writable().write_at(buffers, start)
            start, end, buffers = step.offset, step.offset, []
        buffers.extend(step.buffers)
        self._open[step.target] = (start, end + length, buffers)
        if step.durable:
            self._unsynced[step.target.writable()] = None

    def flush(self) -> None:
        for target, (start, _, buffers) in self._open.items():
            target.writable().write_at(buffers, start)
        self._open.clear()
