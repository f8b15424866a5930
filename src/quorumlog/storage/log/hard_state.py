"""Term and vote on disk: durable before any answer that depends on them (spec 10 section 7, REQ).

A directory of DLedger has a text file `currterm` instead, which is read when ours is missing.
"""

import re
from typing import Protocol

import msgspec

from quorumlog.model.errors import CorruptionError
from quorumlog.model.hard_state import HardState
from quorumlog.storage.files.os_files import FileSystem
from quorumlog.storage.files.write_plans import Action, Plan, WritePlan
from quorumlog.storage.metadata.dual_slot_file import DualSlotFile

FILE_NAME = "quorumlog.state"
DLEDGER_FILE_NAME = "currterm"
DLEDGER_BYTES_MAX = 4_096
_LINE = re.compile(r"(currTerm|voteLeader)\s*=\s*(\S*)\s*")


class HardStates(Protocol):
    """Where term and vote are kept."""

    def plan_save(self, hard_state: HardState) -> WritePlan:
        """Return the write that makes term and vote durable."""
        ...


class HardStateStore:
    """The hard state of one group."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._slots = DualSlotFile(files, directory, FILE_NAME, mirrored=True)

    def load(self, *, read_only: bool = False) -> HardState:
        """Return what was last saved; term 0 and no vote in a new directory.

        Raises `CorruptionError` when it cannot be known.
        """
        raw = self._slots.read(read_only=read_only)
        if raw is not None:
            try:
                term, vote = msgspec.msgpack.decode(raw, type=tuple[int, str | None])
            except msgspec.MsgspecError as error:
                raise CorruptionError(
                    f"{self._slots.path}: {error}", self._slots.path, 0
                ) from error
            return HardState(term, vote)
        return self._load_dledger()

    def exists(self) -> bool:
        """Whether term and vote were ever saved here."""
        return self._slots.exists()

    def establish(self) -> None:
        """Save what `load` returns: from now on a missing file is a loss, not a new replica."""
        state = self.load()
        if not self.exists():
            self._slots.write(msgspec.msgpack.encode((state.term, state.vote)))
        self.close()

    def _load_dledger(self) -> HardState:
        path = f"{self._directory}/{DLEDGER_FILE_NAME}"
        if not self._files.exists(path):
            return HardState()
        file = self._files.open(path, writable=False)
        try:
            text = file.read_at(DLEDGER_BYTES_MAX, 0).decode("utf-8", errors="replace")
        finally:
            file.close()
        values: dict[str, str] = {}
        for line in text.splitlines():
            match = _LINE.fullmatch(line.strip())
            if match:
                values[match[1]] = match[2]
        if not values.get("currTerm", "").isdecimal():
            raise CorruptionError(
                f"{path}: no currTerm in it; its term cannot be guessed: restore the file, or "
                "currterm.bak under this name",
                path,
                0,
            )
        return HardState(int(values["currTerm"]), values.get("voteLeader") or None)

    def plan_save(self, hard_state: HardState) -> WritePlan:
        """Return the write that makes term and vote durable."""
        raw = msgspec.msgpack.encode((hard_state.term, hard_state.vote))
        return Plan(self, [Action(lambda: self._slots.write(raw))], len(raw))

    def close(self) -> None:
        """Close the file."""
        self._slots.close()


class MemoryHardStateStore:
    """The same for a group that keeps nothing."""

    def plan_save(self, hard_state: HardState) -> WritePlan:
        """Return a write of nothing."""
        return Plan(self, [])
