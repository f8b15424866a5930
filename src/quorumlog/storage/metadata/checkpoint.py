"""How much of a log is known to be good without reading it.

`quorumlog.checkpoint` (slots, fsynced now and then, and before anything is removed) says where the
log starts, and names a point up to which data and index are durable: opening reads only what lies
after it. `quorumlog.durable` is written soon after a group commit without fsync: it states only
what was durable already, so it may be old but is never wrong. It distinguishes a torn
tail (after it) from corruption (at or below it). It also says where the log starts, in case the
checkpoint is lost.
"""

import struct
from dataclasses import dataclass
from typing import Final

import msgspec
from isal.isal_zlib import crc32

from quorumlog.model.errors import CorruptionError, NoSpaceError
from quorumlog.storage.files.os_files import File, FileSystem
from quorumlog.storage.files.reserve import Reserve
from quorumlog.storage.metadata.dual_slot_file import DualSlotFile

CHECKPOINT_NAME = "quorumlog.checkpoint"
DURABLE_NAME = "quorumlog.durable"
TERM_RUNS_MAX = 150
"""Newest runs of terms that a checkpoint names; they fit one slot with all else."""
UNKNOWN_CRC = -1
"""Stands for the chain CRC of an entry that was removed and whose chain CRC was not recorded."""
_HINT = struct.Struct(">4sqqqqqqqq")
_HINT_MAGIC = b"QDU3"
_JOURNAL_HINT = struct.Struct(">4sqqqqqqqqqq")
_JOURNAL_HINT_MAGIC = b"QDU4"
"""With `journal` and `journal_from` of the checkpoint; only while there is a journal."""
_OLDER_HINT = struct.Struct(">4sqqqqqq")
_OLDER_HINT_MAGIC = b"QDU2"
"""Without term and chain CRC of the entry before the first."""


class LogPoint(msgspec.Struct, frozen=True, array_like=True):
    """A point in the log: entries up to `index` end at byte `position`.

    `chain_crc` and `term` are those of the last one.
    """

    index: int = -1
    position: int = 0
    chain_crc: int = 0
    term: int = -1


class LogStart(msgspec.Struct, frozen=True, array_like=True):
    """Where the log starts: at byte `position`, after an entry that is not there any more.

    `chain_crc` is that entry's, UNKNOWN_CRC if it was never recorded.
    """

    before_begin_index: int = -1
    before_begin_term: int = -1
    position: int = 0
    chain_crc: int = 0

    @property
    def point(self) -> LogPoint:
        """The point that the first entry follows."""
        return LogPoint(
            self.before_begin_index, self.position, self.chain_crc, self.before_begin_term
        )


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """What is durable. `is_end`: everything after `point` is being removed.

    `term_runs` are the newest runs of terms as (term, first index). `kept` names the other small
    files that exist: if one of them is missing later, it was lost. Of the journal with the number
    `journal` records below `journal_from` hold entries that were removed.
    """

    log_start: LogStart
    point: LogPoint
    committed_index: int
    term_runs: list[tuple[int, int]] = []
    is_end: bool = False
    kept: tuple[str, ...] = ()
    journal: int = 0
    journal_from: int = 0


_CHECKPOINTS: Final = msgspec.msgpack.Decoder(Checkpoint)


class CheckpointFile:
    """The checkpoint of one group."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._slots = DualSlotFile(files, directory, CHECKPOINT_NAME)

    def load(self, *, read_only: bool = False) -> Checkpoint | None:
        """Return the last checkpoint; None: there is none, or (`is_lost`) no copy is whole.

        Raises `CorruptionError` when another version wrote it.
        """
        raw = self._slots.read_or_lose(read_only=read_only)
        if raw is None:
            return None
        try:
            return _CHECKPOINTS.decode(raw)
        except msgspec.MsgspecError as error:
            raise CorruptionError(
                f"{self._slots.path}: written by another version of quorumlog ({error}); start "
                "that version",
                self._slots.path,
                0,
            ) from error

    @property
    def is_lost(self) -> bool:
        """Whether what was saved could not be read."""
        return self._slots.is_lost

    def write(self, checkpoint: Checkpoint) -> None:
        """Replace it, durably."""
        self._slots.write(msgspec.msgpack.encode(checkpoint))


class DurableHint:
    """What was durable, and where the log started, at the last group commit that reached disk."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._files = files
        self._path = f"{directory}/{DURABLE_NAME}"
        self._reserve = Reserve(files, directory)
        self._file: File | None = None
        self.journal = (0, 0)
        """`journal` and `journal_from` of the checkpoint, in case that is lost."""

    def load(self) -> tuple[LogPoint, LogStart] | None:
        """Return what was durable, and where the log started.

        None if nothing was ever written, or if the hint itself is damaged.
        """
        if self._files.obstacle(self._path) or not self._files.exists(self._path):
            return None
        file = self._files.open(self._path, writable=False)
        try:
            raw = file.read_at(_JOURNAL_HINT.size + 4, 0)
        finally:
            file.close()
        for form, magic in (
            (_JOURNAL_HINT, _JOURNAL_HINT_MAGIC),
            (_HINT, _HINT_MAGIC),
            (_OLDER_HINT, _OLDER_HINT_MAGIC),
        ):
            body, crc = raw[: form.size], raw[form.size : form.size + 4]
            if raw[:4] == magic and len(crc) == 4 and crc32(body) == int.from_bytes(crc, "big"):
                _, index, position, term, chain_crc, before, begin, *rest = form.unpack(body)
                unknown = (-1, 0 if before < 0 else UNKNOWN_CRC)
                before_term, before_crc = rest[:2] or unknown
                if rest[2:]:
                    self.journal = (rest[2], rest[3])
                point = LogPoint(index, position, chain_crc, term)
                return point, LogStart(before, before_term, begin, before_crc)
        return None

    def write(self, point: LogPoint, log_start: LogStart, *, durable: bool = False) -> None:
        """State that entries up to the point are durable; `durable` makes the statement so, too."""
        fields = (
            point.index,
            point.position,
            point.term,
            point.chain_crc,
            log_start.before_begin_index,
            log_start.position,
            log_start.before_begin_term,
            log_start.chain_crc,
        )
        if self.journal[0]:
            body = _JOURNAL_HINT.pack(_JOURNAL_HINT_MAGIC, *fields, *self.journal)
        else:
            body = _HINT.pack(_HINT_MAGIC, *fields)
        raw = body + crc32(body).to_bytes(4, "big")
        if self._file is None:
            self._reserve.use(lambda: self._create(raw))
        else:
            self._file.write_at([raw], 0)
        if durable and self._file is not None:
            self._file.sync()

    def _create(self, raw: bytes) -> None:
        file = self._files.open(self._path, create=True)
        try:
            file.write_at([raw], 0)
        except NoSpaceError:
            file.close()
            raise
        self._file = file

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


@dataclass(frozen=True, slots=True)
class LogMetadata:
    """What was saved about a log before: its last checkpoint and its last durable point."""

    checkpoint: Checkpoint | None = None
    durable: LogPoint | None = None
    log_start: LogStart | None = None
    is_recent: bool = False
    """Whether `durable` is of the last group commit, not merely of the last checkpoint."""

    @classmethod
    def of(
        cls, checkpoint: Checkpoint | None, hint: tuple[LogPoint, LogStart] | None
    ) -> "LogMetadata":
        """Join both: the newer one says what was durable."""
        durable = log_start = None
        if hint is not None:
            durable, log_start = hint
        if checkpoint is not None:
            log_start = checkpoint.log_start
            stale = durable is None or durable.index < checkpoint.point.index
            if stale or checkpoint.is_end:
                durable = checkpoint.point
        return cls(checkpoint, durable, log_start, hint is not None)
