"""What a replicated state machine is: a class of a user's, driven by the committed entries.

Every replica of a group has its own instance. All of them are given the same entries in the same
order, so whatever `apply` does must follow from the entries and the state alone: no clock, no
chance, no input from elsewhere. All methods of an instance are called one at a time, never on the
node's loop; they may take their time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from quorumlog.model.block import Buffer
from quorumlog.model.codes import Role
from quorumlog.model.entry import Entry
from quorumlog.model.errors import UnexpectedArgumentError


class SnapshotWriter(Protocol):
    """Takes the bytes of a snapshot."""

    def write(self, data: Buffer) -> object:
        """Append bytes. Raises `StorageError`, which must not be caught."""
        ...


class SnapshotReader(Protocol):
    """Gives them back."""

    def read(self, length: int = -1, /) -> bytes:
        """Return up to `length` bytes (-1: all that are left); none at the end."""
        ...


class FrozenState(Protocol):
    """A machine's state as it was at one moment, while the machine goes on."""

    def save_snapshot(self, writer: SnapshotWriter) -> None:
        """Write it; called once, on another thread than the machine's methods.

        Raises `CorruptionError` if it is damaged.
        """
        ...

    def close(self) -> None:
        """It is needed no more, saved or not."""
        ...


class StateMachine(ABC):
    """Base of all machines; `apply`, `save_snapshot` and `load_snapshot` must be written.

    An instance starts empty and is given all entries from the newest snapshot on. One that keeps
    its state itself (`applied_index`) is given only those it does not have.
    """

    @classmethod
    def open(cls, directory: str) -> "StateMachine":
        """Return an instance for a replica; `directory` (may not exist yet) is its own."""
        return cls()

    def recover(self) -> None:
        """Read and verify what is kept in the directory; called once, before all that follows.

        Raises `CorruptionError` if it is damaged, as every other method may: the replica then
        closes the machine, removes the directory, opens another and has it load the newest
        snapshot. `StorageError` counts as that, too, but not `NoSpaceError` and
        `OutOfDescriptorsError` (or an `OSError` with EMFILE): after them the same is tried again
        later, so nothing may have changed.
        """
        self.check()

    def check(self) -> None:  # noqa: B027  (optional)
        """Read all of the state and verify it. Raises `CorruptionError` if any of it is damaged.

        For a machine that keeps files, say, with a checksum of each record and their number. It is
        called before a snapshot is saved, unless the state is frozen for that, and with each scrub.
        A frozen state is to verify what it saves instead.
        """

    @property
    def applied_index(self) -> int:
        """Index of the last entry that the state contains after `recover`; -1: it is empty."""
        return -1

    def kept(self) -> Iterable[tuple[bytes, bytes]]:
        """Return the pairs of `apply_keeping`, after `recover`; see there."""
        return ()

    @abstractmethod
    def apply(self, entries: Sequence[Entry]) -> Sequence[bytes]:
        """Apply committed entries in order; return one result each, for whoever appended it.

        Only entries that users appended are given. An exception ends the machine: nothing more is
        applied by this replica, which reports it and leaves leading to others. What cannot be
        carried out for reasons of its own must so be a result, not an exception.
        """

    def apply_keeping(
        self,
        entries: Sequence[Entry],
        keep: Callable[[Sequence[bytes]], Mapping[bytes, bytes | None]],
    ) -> Sequence[bytes]:
        """As `apply`, which it calls; for a machine that keeps its state itself.

        `keep(results)` returns pairs (None: removed) that belong to the state: what repeated
        commands are answered with. They must become durable together with what was applied. A
        machine without them cannot tell a client whose command it executed before it was opened
        what the result was.
        """
        return self.apply(entries)

    def query(self, query: bytes) -> bytes:
        """Answer a question about the present state without changing it.

        An exception is told to whoever asked, and does no harm.
        """
        raise UnexpectedArgumentError(f"{type(self).__name__} answers no queries")

    @abstractmethod
    def save_snapshot(self, writer: SnapshotWriter) -> None:
        """Write the whole present state. The machine waits meanwhile; see `freeze`."""

    @abstractmethod
    def load_snapshot(self, reader: SnapshotReader) -> None:
        """Replace the whole state by a saved one."""

    def freeze(self) -> FrozenState | None:
        """Return the present state, to be saved while further entries are applied.

        None: it cannot be had so; `save_snapshot` is called instead, and entries wait for it.
        """
        return None

    def digest(self) -> bytes:
        """Return a few bytes that are equal where states are equal, else very likely not.

        Empty: unknown. Replicas compare it after every `digestEntries` entries, and when a snapshot
        is loaded with what it was when that was saved; who differs from a majority starts again
        from a snapshot. So it should be kept up to date by `apply`, and made from what was read by
        `load_snapshot`: a digest that is loaded proves nothing about what was loaded with it.
        """
        return b""

    def on_role_change(self, term: int, role: Role) -> None:  # noqa: B027  (optional)
        """The replica has another role now; for information, the state must not depend on it."""

    def close(self) -> None:  # noqa: B027  (optional)
        """The replica stops; nothing is called after it."""
