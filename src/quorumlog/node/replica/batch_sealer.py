"""Sealing a replica's index of batches, so that it needs bounded memory and a start little reading.

The columns are made on the event loop, written on a thread, and take the place of what is in memory
once they are durable (`quorumlog.topics.batch_index`).
"""

import logging
from functools import partial

from quorumlog.log_events import describe_error, log_event
from quorumlog.node.replica.context import ReplicaContext
from quorumlog.node.replica.tables import Tables
from quorumlog.storage.log.batch_files import BatchFiles
from quorumlog.topics.batch_columns import SealedBatches

logger = logging.getLogger(__name__)


class BatchSealer:
    """The part of a replica that seals its index of batches; `files`: None, it is in memory.

    All methods run on the event loop's thread.
    """

    def __init__(self, context: ReplicaContext, tables: Tables, files: BatchFiles | None) -> None:
        self._context = context
        self._tables = tables
        self._files = files
        self._in_files = list(tables.batches.sealed)
        self._is_busy = False

    def check(self) -> None:
        """Seal what is due, and remove the files of what the log does not hold any more."""
        batches, context = self._tables.batches, self._context
        if self._is_busy or context.health_text or context.is_broken:
            return
        last = min(context.core.committed_index, context.core.durable_index, self._tables.as_of)
        is_whole = self._tables.is_trusted and not self._tables.is_incomplete
        if is_whole and batches.is_due and last > batches.sealed_index:
            self._run(batches.to_seal(last))
        elif any(one not in batches.sealed for one in self._in_files):
            self._run(None)

    def _run(self, columns: SealedBatches | None) -> None:
        """Write columns, if there are new ones, and remove files that are not needed any more."""
        sealed = self._tables.batches.sealed
        gone = [one for one in self._in_files if one not in sealed]
        if self._files is None:
            self._done(columns, gone, None)
            return
        self._is_busy = True
        work = partial(_write, self._files, columns, gone)
        done = partial(self._done, columns, gone)
        self._context.environment.executor.run(work, done, self._failed)

    def _done(self, columns: SealedBatches | None, gone: list[SealedBatches], _: None) -> None:
        self._is_busy = False
        self._in_files = [one for one in self._in_files if one not in gone]
        if columns is not None:
            batches = self._tables.batches
            batches.seal(columns)
            # entries may have been removed while the columns were being written
            batches.removed(self._context.log.before_begin_index)
            self._in_files.append(columns)

    def _failed(self, error: Exception) -> None:
        self._is_busy = False
        log_event(
            logger,
            logging.WARNING,
            "an index of batches was not written; it is tried again",
            group=self._context.config.group,
            reason=describe_error(error),
        )


def _write(files: BatchFiles, columns: SealedBatches | None, gone: list[SealedBatches]) -> None:
    if columns is not None:
        files.write(columns)
    files.remove(gone)
