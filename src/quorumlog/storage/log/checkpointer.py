"""The writes by which a log's ends become what the next opening relies on."""

import logging
from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from quorumlog.model.block import INDEX_RECORD_SIZE
from quorumlog.model.errors import NoSpaceError
from quorumlog.storage.files.file_sequence import FileSequence
from quorumlog.storage.files.sequence_file import SequenceFile, sync_made
from quorumlog.storage.files.write_plans import Action, JournaledGroup, Plan
from quorumlog.storage.metadata.checkpoint import Checkpoint, LogPoint
from quorumlog.storage.metadata.config_entries import ConfigEntries
from quorumlog.storage.metadata.damaged_ranges import DamagedRanges
from quorumlog.storage.metadata.store_metadata import StoreMetadata

logger = logging.getLogger(__name__)

NO_END = 1 << 62


class Checkpointer:
    """Makes the plans that write checkpoints of one log, whose files were durable up to `end`.

    `owner` is the log: a plan must not be taken apart from those that append to it.

    A checkpoint may name only what is durable: index records are never fsynced otherwise, and
    entries may not be with flush=async. So each plan fsyncs the files in between first.
    """

    def __init__(
        self,
        owner: object,
        data: FileSequence,
        index: FileSequence,
        metadata: StoreMetadata,
        configs: ConfigEntries,
        end: LogPoint,
    ) -> None:
        self._owner = owner
        self._data = data
        self._index = index
        self._metadata = metadata
        self._configs = configs
        self._synced = end
        self._planned: Checkpoint | None = None
        self._tables_to_save: Callable[[], bytes | None] = lambda: None
        self._unsaved_tables: bytes | None = None
        self._is_put_off = False

    def keep_tables(self, to_save: Callable[[], bytes | None]) -> None:
        """See `Log`."""
        self._tables_to_save = to_save

    def saved(self, checkpoint: Checkpoint) -> None:
        """Note that a checkpoint is durable, and all that goes with it."""
        self._planned = checkpoint

    def plan(self, checkpoint: Checkpoint) -> Plan | None:
        """Return the write of a checkpoint; None if the last one planned says the same."""
        if checkpoint == self._planned:
            return None
        self._planned = checkpoint
        index, data = self._covered_files(checkpoint.point)
        configs, tables = self._configs_until(checkpoint.point), self._tables()
        put_off: list[NoSpaceError] = []

        def write() -> None:
            _sync(index, data)
            try:
                self._metadata.save_tables(tables)
                self._metadata.save_checkpoint(checkpoint, configs)
            except NoSpaceError as error:
                put_off.append(error)

        def done() -> None:
            if not put_off:
                self._tables_saved(tables)
                return
            if not self._is_put_off:
                text = "no checkpoint is written while the disk is full: %s"
                logger.warning(text, put_off[0])
            # the checkpoint before holds as well: the next opening only reads more
            self._planned, self._is_put_off = None, True

        return Plan(self._owner, [Action(write)], done=done)

    def plan_removal(
        self,
        checkpoint: Checkpoint,
        damaged: DamagedRanges,
        cut: Callable[[], None],
        completed: Callable[[], None],
    ) -> Plan:
        """Return the write that checkpoints the log's new ends, and removes the rest.

        `cut` removes it, on the disk thread; `damaged` are the damaged entries that stay. The first
        of two checkpoints is the point of no return: after a crash before it the log is as it was,
        and after a later crash the next opening finishes the removal. The second one says that the
        removal is done, so that opening does not take later entries for removed ones.
        """
        point = checkpoint.point
        index, data = self._covered_files(point)
        ended = replace(checkpoint, is_end=True)
        self._planned = checkpoint
        configs, tables = self._configs_until(point), self._tables()

        def remove() -> None:
            _sync(index, data)
            self._metadata.save_tables(tables)
            self._metadata.start_removal(ended, checkpoint.log_start, configs)
            cut()
            self._metadata.save_damage(damaged)
            self._metadata.save_checkpoint(checkpoint, configs)

        def done() -> None:
            self._tables_saved(tables)
            completed()

        return Plan(self._owner, [Action(remove)], done=done, removes=self._metadata.void_journal)

    def plan_settling(self, group: JournaledGroup) -> Plan:
        """Return the write after which a journal is not needed for the log.

        Its index is durable then, too: whoever looks into the files of a deleted group opens no
        log, which would make lost index records again.
        """

        def settle() -> None:
            sync_made(self._index.files_over(0, NO_END))
            if group.is_in:
                sync_made(self._data.files_over(0, NO_END))
                with suppress(NoSpaceError):  # then a journal is asked for if it is opened again
                    group.leave()

        return Plan(self._owner, [Action(settle)], leaves=group)

    def _configs_until(self, point: LogPoint) -> list[tuple[int, bytes]]:
        return [pair for pair in self._configs.pairs if pair[0] <= point.index]

    def _tables(self) -> bytes | None:
        """Return the derived tables that the next write has to save; None: they are durable."""
        self._unsaved_tables = self._tables_to_save() or self._unsaved_tables
        return self._unsaved_tables

    def _tables_saved(self, tables: bytes | None) -> None:
        """Record that these are durable; later ones are not."""
        self._is_put_off = False
        if self._unsaved_tables is tables:
            self._unsaved_tables = None

    def _covered_files(self, point: LogPoint) -> tuple[list[SequenceFile], list[SequenceFile]]:
        """Return the index and data files to fsync before a checkpoint may name a point."""
        before, self._synced = self._synced, point
        first = max(0, min(before.index, point.index)) * INDEX_RECORD_SIZE
        position = min(before.position, point.position)
        return (
            self._index.files_over(first, max(0, point.index) * INDEX_RECORD_SIZE),
            self._data.files_over(position, point.position),
        )


def _sync(index: list[SequenceFile], data: list[SequenceFile]) -> None:
    """Make files durable, and close those to which nothing is appended any more."""
    sync_made([*index, *data])
    for full in (*index[:-1], *data[:-1]):
        full.close()
