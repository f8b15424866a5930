"""Term and vote on disk: durable before any answer that depends on them (spec 10 section 7, REQ).

A directory of DLedger has a text file `currterm` instead. It is read when ours is missing, or when
DLedger has raised the term since, and is kept true.
"""

import logging
from typing import Final, Protocol

import msgspec

from quorumlog.model.errors import CorruptionError, NoSpaceError
from quorumlog.model.hard_state import HardState
from quorumlog.storage.files.os_files import FileSystem
from quorumlog.storage.files.write_plans import Action, Plan, WritePlan
from quorumlog.storage.metadata.dledger import TERM_NAME, OriginalFile, OriginalText, term_values
from quorumlog.storage.metadata.dual_slot_file import DualSlotFile

logger = logging.getLogger(__name__)

FILE_NAME = "quorumlog.state"
_STATES: Final = msgspec.msgpack.Decoder(tuple[int, str | None])


class HardStates(Protocol):
    """Where term and vote are kept."""

    def plan_save(self, hard_state: HardState, *, original_compatible: bool = False) -> WritePlan:
        """Return the write that makes term and vote durable; for DLedger, too, if that may go on
        with the group's log.
        """
        ...


class HardStateStore:
    """The hard state of one group."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._slots = DualSlotFile(files, directory, FILE_NAME, mirrored=True)
        self._original = OriginalFile(files, directory, TERM_NAME)
        self._saved: HardState | None = None

    def load(self, *, read_only: bool = False) -> HardState:
        """Return what was last saved; term 0 and no vote in a new directory.

        Raises `CorruptionError` when it cannot be known.
        """
        raw = self._slots.read(read_only=read_only)
        if raw is None:
            return self._load_original()
        try:
            term, vote = _STATES.decode(raw)
        except msgspec.MsgspecError as error:
            raise CorruptionError(f"{self._slots.path}: {error}", self._slots.path, 0) from error
        self._saved = HardState(term, vote)
        text = self._original.read()
        if text is None or text.is_ours:
            return self._saved
        original = _state_in(text)
        # in a term in which this replica has not voted here, it may have voted as one of DLedger
        is_newer = original.term > term or (original.term == term and vote is None)
        return original if is_newer else self._saved

    def exists(self) -> bool:
        """Whether term and vote were ever saved here."""
        return self._slots.exists()

    def establish(self) -> None:
        """Save what `load` returns: from now on a missing file is a loss, not a new replica."""
        state = self.load()
        if not self.exists():
            self._slots.write(msgspec.msgpack.encode((state.term, state.vote)))

    def _load_original(self) -> HardState:
        self._original.require_no_obstacle()
        text = self._original.read()
        if text is None:
            return HardState()
        if text.number("currTerm") < 0:
            path = self._original.path
            raise CorruptionError(
                f"{path}: no currTerm in it; its term cannot be guessed: restore the file, or "
                "currterm.bak under this name",
                path,
                0,
            )
        return _state_in(text)

    def equalize(self, loaded: HardState) -> None:
        """Save what `load` returned in our files and in DLedger's, where they say otherwise."""
        if loaded != self._saved:
            self._slots.write(msgspec.msgpack.encode((loaded.term, loaded.vote)))
        text, values = self._original.read(), term_values(loaded)
        if text is None or not text.is_ours or text.values != values:
            self._write_original(loaded, durable=True)

    def plan_save(self, hard_state: HardState, *, original_compatible: bool = False) -> WritePlan:
        """See `HardStates`."""
        raw = msgspec.msgpack.encode((hard_state.term, hard_state.vote))

        def write() -> None:
            self._slots.write(raw)
            self._write_original(hard_state, durable=original_compatible)

        return Plan(self, [Action(write)], len(raw))

    def _write_original(self, hard_state: HardState, *, durable: bool) -> None:
        """Write `currterm` after ours, which alone decides what this program does."""
        try:
            self._original.write(term_values(hard_state), durable=durable)
        except NoSpaceError as error:
            text = "%s is old until there is room: DLedger must not start here before: %s"
            logger.warning(text, self._original.path, error)


def _state_in(text: OriginalText) -> HardState:
    """Return term and vote as `currterm` has them."""
    return HardState(text.number("currTerm"), text.values.get("voteLeader") or None)


class MemoryHardStateStore:
    """The same for a group that keeps nothing."""

    def plan_save(self, hard_state: HardState, *, original_compatible: bool = False) -> WritePlan:
        """Return a write of nothing."""
        return Plan(self, [])
