"""The CONFIG_CHANGE entries of a log that may still count, kept apart from it.

The newest committed one counts, and every later one may. The log may have removed the former, and
opening does not read back that far, so a file of their own keeps them. It is written before any
checkpoint that goes past such an entry; entries after the checkpoint are read from the log itself.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from quorumlog.model.block import Block, config_entries_of
from quorumlog.model.errors import CorruptionError
from quorumlog.storage.files.os_files import FileSystem
from quorumlog.storage.metadata.dual_slot_file import DualSlotFile

FILE_NAME = "quorumlog.membership"
SLOT_SIZE = 16_384
_ENTRIES: Final = msgspec.msgpack.Decoder(list[tuple[int, bytes]])


class ConfigEntries:
    """(index, body) of each, ascending."""

    def __init__(self, pairs: Iterable[tuple[int, bytes]] = ()) -> None:
        self.pairs = list(pairs)

    def append(self, block: Block) -> None:
        """Add the CONFIG_CHANGE entries of a block that is added to the log."""
        self.pairs += config_entries_of(block)

    def truncate(self, from_index: int) -> None:
        """Forget from_index and everything after it."""
        while self.pairs and self.pairs[-1][0] >= from_index:
            self.pairs.pop()

    def replace(self, pair: tuple[int, bytes] | None) -> None:
        """The log starts again after this one, if it is known and newer than those here."""
        if pair is not None and (not self.pairs or pair[0] > self.pairs[-1][0]):
            self.pairs = [pair]

    def committed(self, index: int) -> None:
        """Forget what is older than the newest committed one."""
        while len(self.pairs) > 1 and self.pairs[1][0] <= index:
            self.pairs.pop(0)


class ConfigEntriesFile:
    """The CONFIG_CHANGE entries of one group on disk; the first of them makes the file."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._slots = DualSlotFile(files, directory, FILE_NAME, slot_size=SLOT_SIZE, mirrored=True)
        self.saved: list[tuple[int, bytes]] = []

    def load(self, *, read_only: bool = False) -> list[tuple[int, bytes]]:
        """Return what was saved last; empty, and `is_lost`, when no copy of it is whole.

        Raises `CorruptionError` when another version wrote it.
        """
        raw = self._slots.read_or_lose(read_only=read_only)
        if raw is not None:
            try:
                self.saved = _ENTRIES.decode(raw)
            except msgspec.MsgspecError as error:
                path = self._slots.path
                raise CorruptionError(f"{path}: {error}", path, 0) from error
        return self.saved

    @property
    def is_lost(self) -> bool:
        """Whether what was saved could not be read."""
        return self._slots.is_lost

    def exists(self) -> bool:
        """Whether anything was ever saved."""
        return self._slots.exists()

    def save(self, pairs: list[tuple[int, bytes]]) -> None:
        """Replace it, durably, if it differs; only the newest are kept when they do not all fit."""
        if pairs == self.saved and not self.is_lost:
            return
        kept = list(pairs)
        while len(raw := msgspec.msgpack.encode(kept)) > self._slots.value_bytes_max:
            kept.pop(0)
        self._slots.write(raw)
        self.saved = list(pairs)
