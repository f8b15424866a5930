"""The protocol of a replicated state machine: a user's class, driven by committed entries.

Every replica of a group has its own instance. All instances get the same entries in the same order,
so `apply` must depend on the entries and the state alone: no clock, no randomness, no other input.
The methods of an instance are called one at a time and never on the node's event loop, so they may
take long.
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
    """Returns the bytes of a snapshot."""

    def read(self, length: int = -1, /) -> bytes:
        """Return up to `length` bytes (-1: all that are left); none at the end."""
        ...


class FrozenState(Protocol):
    """A machine's state as it was at one moment, while the machine continues."""

    def save_snapshot(self, writer: SnapshotWriter) -> None:
        """Write the state; called once, on another thread than the machine's methods.

        Raises `CorruptionError` if the state is damaged.
        """
        ...

    def close(self) -> None:
        """Release the state, whether it was saved or not."""
        ...


class StateMachine(ABC):
    """Base of all machines; `apply`, `save_snapshot` and `load_snapshot` must be written.

    An instance starts empty and gets all entries after the newest snapshot. One that stores its own
    state (`applied_index`) gets only those that it does not have.
    """

    linger_ms: int = 20
    """How long a follower waits for more entries before it applies those there are, unless a client
    waits for a result, in milliseconds: larger batches cost less. A node that acts on what its
    machine says wants it sooner."""

    @classmethod
    def open(cls, directory: str) -> "StateMachine":
        """Return an instance for a replica; `directory` (may not exist yet) is its own."""
        return cls()

    def recover(self) -> None:
        """Read and verify what is stored in the directory; called once, before all other methods.

        Raises `CorruptionError` if it is damaged, as every other method may: the replica then
        closes the machine, removes the directory, opens another machine and has it load the newest
        snapshot. `StorageError` has the same effect, except `NoSpaceError` and
        `OutOfDescriptorsError` (or an `OSError` with EMFILE): after these the replica calls the
        method again later, so nothing may have changed.
        """
        self.check()

    def check(self) -> None:  # noqa: B027  (optional)
        """Read all of the state and verify it. Raises `CorruptionError` if any of it is damaged.

        A machine with files may check a checksum of each record and the number of records. The
        replica calls it before a snapshot is saved, unless the state is frozen for that, and with
        each scrub. A frozen state must verify what it saves instead.
        """

    @property
    def applied_index(self) -> int:
        """Index of the last entry that the state contains after `recover`; -1 if it is empty."""
        return -1

    def kept(self) -> Iterable[tuple[bytes, bytes]]:
        """Return the pairs of `apply_keeping`, after `recover`; see there."""
        return ()

    def releases(self, body: memoryview) -> bool:
        """Whether a command leads to less being kept, as a deletion does; nothing else may matter.

        While disks are full, only such commands are taken. Called on the event loop's thread.
        """
        return False

    @abstractmethod
    def apply(self, entries: Sequence[Entry]) -> Sequence[bytes]:
        """Apply committed entries in order; return one result for each, which its client receives.

        It gets only entries that users appended. An exception stops the machine: this replica
        applies nothing more, reports the exception and does not lead. So a command that cannot be
        applied must lead to a result that says so, not to an exception.
        """

    def apply_keeping(
        self,
        entries: Sequence[Entry],
        keep: Callable[[Sequence[bytes]], Mapping[bytes, bytes | None]],
    ) -> Sequence[bytes]:
        """Like `apply`, which it calls; for a machine that stores its own state.

        `keep(results)` returns pairs (None: removed) that belong to the state: the answers to
        repeated commands. They must become durable together with the applied entries. A machine
        without them cannot repeat the result of a command that it executed before it was opened.
        """
        return self.apply(entries)

    def query(self, query: bytes) -> bytes:
        """Answer a query about the present state without changing it.

        An exception becomes the answer to the query, and does no harm.
        """
        raise UnexpectedArgumentError(f"{type(self).__name__} answers no queries")

    @abstractmethod
    def save_snapshot(self, writer: SnapshotWriter) -> None:
        """Write the whole present state; no entries are applied meanwhile (but see `freeze`)."""

    @abstractmethod
    def load_snapshot(self, reader: SnapshotReader) -> None:
        """Replace the whole state by a saved one."""

    def freeze(self) -> FrozenState | None:
        """Return the present state, so that it can be saved while further entries are applied.

        None: the machine cannot do this; then `save_snapshot` is called, and entries wait for it.
        """
        return None

    def digest(self) -> bytes:
        """Return a few bytes that are equal for equal states, and very likely differ otherwise.

        Empty: unknown. Replicas compare digests after every `digestEntries` entries, and a loaded
        snapshot's with the one at its save; a replica that differs from a majority starts again
        from a snapshot. So `apply` should keep the digest up to date, and `load_snapshot` should
        compute it from what was read: a digest that was itself loaded proves nothing.
        """
        return b""

    def on_role_change(self, term: int, role: Role) -> None:  # noqa: B027  (optional)
        """The replica has another role now. The state must not depend on it."""

    def close(self) -> None:  # noqa: B027  (optional)
        """Release everything: the replica stops, and no method is called after this one."""
