"""How much of a log is known to be good without reading it.

`quorumlog.checkpoint` (slots, fsynced about once a second) names a point up to which data and index
are durable: opening reads only what lies behind it. `quorumlog.durable` is written after every
group commit without fsync: it states only what was durable before, so it is never wrong, merely
old; it tells a torn tail (behind it) from corruption (at or below it).
"""

import struct

import msgspec
from isal.isal_zlib import crc32

from quorumlog.storage.files import File, FileSystem
from quorumlog.storage.slots import SlotFile

CHECKPOINT_NAME = "quorumlog.checkpoint"
DURABLE_NAME = "quorumlog.durable"
_HINT = struct.Struct(">4sqq")
_HINT_MAGIC = b"QDUR"


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """Entries up to `index` end at byte `position`; `chain_crc` is that of the last one."""

    index: int
    position: int
    chain_crc: int
    term: int
    before_begin_index: int
    before_begin_term: int
    committed_index: int


class CheckpointFile:
    """The checkpoint of one group."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._slots = SlotFile(files, directory, CHECKPOINT_NAME)

    def load(self) -> Checkpoint | None:
        """Return the last checkpoint, or None. Raises `CorruptionError` if it is unreadable."""
        raw = self._slots.read()
        return None if raw is None else msgspec.msgpack.decode(raw, type=Checkpoint)

    def write(self, checkpoint: Checkpoint) -> None:
        """Replace it, durably."""
        self._slots.write(msgspec.msgpack.encode(checkpoint))

    def close(self) -> None:
        """Give the file back."""
        self._slots.close()


class DurableHint:
    """The last index known to be durable, as of the last group commit whose hint reached disk."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._path = f"{directory}/{DURABLE_NAME}"
        self._file: File | None = None

    def load(self) -> int:
        """Return the index, -1 if there is none (or the hint itself is torn)."""
        if not self._files.exists(self._path):
            return -1
        file = self._files.open(self._path, writable=False)
        raw = file.read_at(_HINT.size + 4, 0)
        file.close()
        if len(raw) < _HINT.size + 4:
            return -1
        body, crc = raw[: _HINT.size], int.from_bytes(raw[_HINT.size :], "big")
        magic, index, _ = _HINT.unpack(body)
        return int(index) if magic == _HINT_MAGIC and crc32(body) == crc else -1

    def write(self, index: int, position: int, *, durable: bool = False) -> None:
        """State that entries up to index are durable; `durable` also makes the statement so."""
        if self._file is None:
            self._file = self._files.open(self._path, create=True)
        body = _HINT.pack(_HINT_MAGIC, index, position)
        self._file.write_at([body + crc32(body).to_bytes(4, "big")], 0)
        if durable:
            self._file.sync()

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()
            self._file = None
