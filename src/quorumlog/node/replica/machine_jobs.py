"""Jobs of a state machine, and batches of entries that record where a machine failed."""

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, overload

from quorumlog.log_events import describe_error
from quorumlog.machine.base import StateMachine
from quorumlog.model.block import Block, decode_entries
from quorumlog.model.entry import SYSTEM_CHANNEL, Entry
from quorumlog.model.errors import TRANSIENT_ERRORS, QuorumlogError, StorageError
from quorumlog.model.wording import counted, entries_text
from quorumlog.node.replica.command_results import CommandResults
from quorumlog.sessions.entries import SessionEntry
from quorumlog.storage.files.os_files import is_out_of_descriptors, storage_error


class MachineError(QuorumlogError):
    """A state machine raised, or did not do what it must; the text has index and traceback."""


class MachineDamagedError(QuorumlogError):
    """A state machine's own files are damaged, so it has to be rebuilt."""


@contextmanager
def damage_of_machine() -> Iterator[None]:
    """Turn damage that a machine finds in its own files into `MachineDamagedError`.

    So it is not mistaken for damage of the log. Errors that will pass are not damage.
    """
    try:
        yield
    except TRANSIENT_ERRORS:
        raise
    except StorageError as error:
        raise MachineDamagedError(str(error)) from error
    except OSError as error:
        if not is_out_of_descriptors(error):
            raise
        raise storage_error(str(error.filename or "a file"), "opening", error) from error


@dataclass(frozen=True, slots=True)
class MachineJob:
    """Work for a machine on its thread; `done` is called on the loop with the result.

    `refused` is called instead if no thread was free: then nothing has happened.
    """

    run: Callable[[], Any]
    done: Callable[[Any], None] = lambda _: None
    refused: Callable[[], None] = lambda: None


class MachineControl(Protocol):
    """What the other parts of a machine may ask of the applier, which drives it."""

    @property
    def is_eligible(self) -> bool:
        """Whether the machine works, and has what it once had."""
        ...

    @property
    def condition_text(self) -> str:
        """What keeps the machine from being given entries; empty: nothing does."""
        ...

    def advance(self) -> None:
        """Give the machine its next job, if it is free and there is one."""
        ...

    def rebuild(self, why: str, *, trusted_index: int | None = None) -> None:
        """Rebuild the machine: its state cannot be trusted."""
        ...


class ApplyBatch(Sequence[Entry]):
    """The users' entries of several blocks; remembers which of them was read last."""

    def __init__(
        self, entries: list[Entry], sessions: Sequence[tuple[int, SessionEntry]] = ()
    ) -> None:
        self._entries = entries
        self._sessions = sessions
        self._last = 0

    @classmethod
    def of(cls, blocks: list[Block]) -> "ApplyBatch":
        """Return the users' entries of stamped blocks."""
        entries, sessions = [], []
        for entry in (entry for block in blocks for entry in decode_entries(block)):
            if entry.is_data:
                entries.append(entry)
            elif entry.channel == SYSTEM_CHANNEL and (found := SessionEntry.decode(entry.body)):
                sessions.append((entry.index, found))
        return cls(entries, sessions)

    @overload
    def __getitem__(self, position: int) -> Entry: ...
    @overload
    def __getitem__(self, position: slice) -> list[Entry]: ...
    def __getitem__(self, position: int | slice) -> Entry | list[Entry]:
        found = self._entries[position]  # past the last one it raises: no entry was read
        if isinstance(position, int):
            self._last = position % len(self._entries)
        return found

    def __len__(self) -> int:
        return len(self._entries)

    def apply_to(self, machine: StateMachine, known: CommandResults) -> dict[int, bytes]:
        """Apply all; return index → result. Raises `MachineError` if the machine does.

        `MachineDamagedError` says that its files are damaged, `TRANSIENT_ERRORS` that it cannot
        now.

        `known` takes the results of commands that were sent in sessions.
        """
        if not self._entries:
            known.take(self._sessions, {})
            return {}
        kept: list[tuple[dict[int, bytes], Mapping[bytes, bytes | None]]] = []

        def keep(results: Sequence[bytes]) -> Mapping[bytes, bytes | None]:
            if not kept:  # a machine may try its transaction again
                found = self._by_index(machine, results)
                kept.append((found, known.take(self._sessions, found)))
            return kept[0][1]

        try:
            with damage_of_machine():
                keep(machine.apply_keeping(self, keep))
        except (MachineError, MachineDamagedError, *TRANSIENT_ERRORS):
            raise
        except Exception as error:
            index = self._entries[self._last].index
            text = "".join(traceback.format_exception(error))
            raise MachineError(f"{describe_error(error)} at entry {index}\n{text}") from error
        return kept[0][0]

    def _by_index(self, machine: StateMachine, results: Sequence[bytes]) -> dict[int, bytes]:
        results = list(results)
        if len(results) != len(self._entries) or not all(
            isinstance(result, bytes | bytearray | memoryview) for result in results
        ):
            raise MachineError(
                f"{type(machine).__name__}.apply gave {counted(len(results), 'result')} for "
                f"{entries_text(len(self._entries))} from {self._entries[0].index} on; it must "
                "give bytes for each"
            )
        indexes = (entry.index for entry in self._entries)
        return {index: bytes(result) for index, result in zip(indexes, results, strict=True)}
