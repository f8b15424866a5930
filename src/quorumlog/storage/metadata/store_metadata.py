"""The small files of a log: its checkpoint, its durable hint, and the list of its damage.

A replica opens even if one of them is damaged or gone: opening finds again what the file said.
`lost` names what can be found only by reading the whole log, or not at all on this node.
"""

import logging
from contextlib import suppress

import msgspec

from quorumlog.model.errors import NoSpaceError, UnexpectedArgumentError
from quorumlog.model.membership import Membership
from quorumlog.storage.files.os_files import FileSystem
from quorumlog.storage.files.reserve import Reserve
from quorumlog.storage.metadata.checkpoint import (
    CHECKPOINT_NAME,
    DURABLE_NAME,
    Checkpoint,
    CheckpointFile,
    DurableHint,
    LogMetadata,
    LogPoint,
    LogStart,
)
from quorumlog.storage.metadata.config_entries import FILE_NAME as MEMBERSHIP_NAME
from quorumlog.storage.metadata.config_entries import ConfigEntriesFile
from quorumlog.storage.metadata.damaged_ranges import FILE_NAME as DAMAGE_NAME
from quorumlog.storage.metadata.damaged_ranges import DamagedRanges, DamageFile
from quorumlog.storage.metadata.dledger import CHECKPOINT_NAME as ORIGINAL_CHECKPOINT_NAME
from quorumlog.storage.metadata.dledger import OriginalFile, checkpoint_values
from quorumlog.storage.metadata.tables_file import FILE_NAME as TABLES_NAME
from quorumlog.storage.metadata.tables_file import TablesFile

logger = logging.getLogger(__name__)


class StoreMetadata:
    """The metadata files of one group; written on the disk thread, or while the group is opened."""

    def __init__(self, files: FileSystem, directory: str) -> None:
        self._directory = directory
        self._reserve = Reserve(files, directory)
        self._checkpoints = CheckpointFile(files, directory)
        self._original = OriginalFile(files, directory, ORIGINAL_CHECKPOINT_NAME)
        self._hint = DurableHint(files, directory)
        self._damage = DamageFile(files, directory)
        self._configs = ConfigEntriesFile(files, directory)
        self.checkpoint: Checkpoint | None = None
        self._on_disk: Checkpoint | None = None
        self.tables = TablesFile(files, directory)
        self._recorded_configs: list[tuple[int, bytes]] = []
        self.lost: set[str] = set()
        self._is_closed = False

    def load(self, *, read_only: bool = False) -> tuple[LogMetadata, DamagedRanges]:
        """Return what was saved before; `lost` names what was saved and cannot be read any more.

        Raises `CorruptionError` when another version wrote it.
        """
        self.checkpoint = self._on_disk = self._checkpoints.load(read_only=read_only)
        hint = self._hint.load()
        damaged = self._damage.load(read_only=read_only)
        self._recorded_configs = self._configs.load(read_only=read_only)
        kept = () if self.checkpoint is None else self.checkpoint.kept
        self._hint.journal = self._known_journal()
        for name, file in self._others():
            if file.is_lost or (name in kept and not file.exists()):
                self.lost.add(name)
        if not read_only:
            self._log_what_is_lost(is_hint_there=hint is not None)
        return LogMetadata.of(self.checkpoint, hint), damaged

    def _others(self) -> tuple[tuple[str, DamageFile | ConfigEntriesFile | TablesFile], ...]:
        return (
            (DAMAGE_NAME, self._damage),
            (MEMBERSHIP_NAME, self._configs),
            (TABLES_NAME, self.tables),
        )

    def _kept(self) -> tuple[str, ...]:
        """Return the names of the small files that exist, or are lost and not yet restored."""
        return tuple(name for name, file in self._others() if file.exists() or name in self.lost)

    def _log_what_is_lost(self, *, is_hint_there: bool) -> None:
        if self.checkpoint is None and (is_hint_there or self._checkpoints.is_lost):
            logger.error(
                "%s/%s is lost; where the log begins is taken from %s, the rest is read from the "
                "log",
                self._directory,
                CHECKPOINT_NAME,
                DURABLE_NAME if is_hint_there else "its first data file",
            )
        for name in sorted(self.lost & {DAMAGE_NAME, MEMBERSHIP_NAME}):
            logger.error(
                "%s/%s is lost; what it said is found again by reading the whole log",
                self._directory,
                name,
            )

    @property
    def needs_whole_log(self) -> bool:
        """Whether what was lost can only be found by reading all of the log."""
        return bool(self.lost & {DAMAGE_NAME, MEMBERSHIP_NAME})

    @property
    def is_original_compatible(self) -> bool:
        """Whether the newest membership that is known says that DLedger may go on with the log."""
        try:
            memberships = [Membership.decode(body) for _, body in self._recorded_configs[-1:]]
        except UnexpectedArgumentError:
            return False  # opening says what is wrong with it
        return any(membership.original_compatible for membership in memberships)

    @property
    def has_lost_memberships(self) -> bool:
        """Whether CONFIG_CHANGE entries were saved and cannot be read any more."""
        return MEMBERSHIP_NAME in self.lost

    def load_config_entries(self) -> list[tuple[int, bytes]]:
        """Return (index, body) of saved CONFIG_CHANGE entries that the last checkpoint covers."""
        if self.checkpoint is None:
            return self._recorded_configs
        until = self.checkpoint.point.index
        return [(index, body) for index, body in self._recorded_configs if index <= until]

    def load_tables(self) -> bytes | None:
        """Return the derived tables; None: nothing was saved, or they are in `lost`."""
        found = self.tables.load()
        if self.tables.is_lost:
            self.lost.add(TABLES_NAME)
        return found

    @property
    def has_lost_tables(self) -> bool:
        """Whether tables were saved and cannot be read any more."""
        return TABLES_NAME in self.lost

    def save_config_entries(self, pairs: list[tuple[int, bytes]]) -> None:
        """Replace what is known of CONFIG_CHANGE entries, durably."""
        self._configs.save(pairs)
        self.lost.discard(MEMBERSHIP_NAME)

    def start_removal(
        self, ended: Checkpoint, log_start: LogStart, configs: list[tuple[int, bytes]]
    ) -> None:
        """Make the ends that a log is to have durable, before anything is removed.

        CONFIG_CHANGE entries of before and after are kept until that is done: which of them count
        is up to the checkpoint.
        """
        self._configs.save(sorted(dict([*self._configs.saved, *configs]).items()))
        self.write_checkpoint(ended)
        self.write_hint(ended.point, log_start, durable=True)

    def save_tables(self, tables: bytes | None) -> None:
        """Replace the derived tables, durably; None: what was saved last will do."""
        if tables is None:
            tables = self.tables.saved_in_one_file
        if tables is not None:
            self.tables.save(tables)
            self.lost.discard(TABLES_NAME)

    def save_checkpoint(self, checkpoint: Checkpoint, configs: list[tuple[int, bytes]]) -> None:
        """Replace the checkpoint and the CONFIG_CHANGE entries that go with it, durably."""
        self.save_config_entries(configs)
        self.write_checkpoint(checkpoint)
        self.keep_reserve()

    def keep_reserve(self) -> None:
        """Have room to write all of these on a full disk, if there is as much now."""
        self._reserve.keep(self.tables.size_bytes)

    def _known_journal(self) -> tuple[int, int]:
        """Return which journal's records count from where on, by checkpoint and hint."""
        if self.checkpoint is None:
            return self._hint.journal
        stated = (self.checkpoint.journal, self.checkpoint.journal_from)
        return max(stated, self._hint.journal) if stated[0] == self._hint.journal[0] else stated

    @property
    def journal(self) -> tuple[int, int]:
        """Number of the journal of which records below a sequence do not count, and that sequence.

        (0, 0): no entries were removed while there was a journal.
        """
        return self._hint.journal

    def forget_journal(self) -> None:
        """Have nothing said of a journal any more: the group's files hold everything."""
        self._hint.journal = (0, 0)

    def void_journal(self, journal: int, sequence: int) -> None:
        """Have the next checkpoint say that no record of a journal below a sequence counts."""
        if journal:
            self._hint.journal = (journal, sequence)

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint, durably, if it differs. What it names must be durable."""
        number, sequence = self._hint.journal
        checkpoint = msgspec.structs.replace(
            checkpoint, kept=self._kept(), journal=number, journal_from=sequence
        )
        if checkpoint != self._on_disk:
            self._on_disk = None  # a write that fails may leave the new one in some copies
            self._checkpoints.write(checkpoint)
            self.checkpoint = self._on_disk = checkpoint
        values = checkpoint_values(checkpoint.point.index, checkpoint.committed_index)
        with suppress(NoSpaceError):  # an older one is as good
            self._original.write(values, durable=False)

    def write_hint(self, point: LogPoint, log_start: LogStart, *, durable: bool = False) -> None:
        """Replace the hint, durably if asked to; nothing happens once the files are closed."""
        if not self._is_closed:
            self._hint.write(point, log_start, durable=durable)

    def save_damage(self, damaged: DamagedRanges) -> None:
        """Replace what is known to be damaged, durably."""
        self._damage.save(damaged)
        self.lost.discard(DAMAGE_NAME)

    def close(self) -> None:
        """Close the hint: the other files are open only while they are read or written."""
        self._is_closed = True
        self._hint.close()
