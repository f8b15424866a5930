"""Changing a store whose node is stopped: repair from other replicas' files, and truncation."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from quorumlog.model.block import Block, parse_block
from quorumlog.model.errors import CorruptionError, RequestError, StorageError
from quorumlog.model.limits import Limits
from quorumlog.storage.base import Log, WritePlan
from quorumlog.storage.checkpoint import UNKNOWN_CRC, Boundary
from quorumlog.storage.disk_reader import DiskReader
from quorumlog.storage.file_sequence import stored_file_size
from quorumlog.storage.files import FileSystem
from quorumlog.storage.layout import (
    DATA,
    INDEX,
    DataPlaces,
    Identity,
    has_identity,
    read_identity,
)
from quorumlog.storage.notes import Notes
from quorumlog.storage.offline import open_files
from quorumlog.storage.original import committed_index_of
from quorumlog.storage.plans import GroupStore
from quorumlog.storage.store import open_log

PIECE_BYTES = 1024 * 1024
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class RepairReport:
    """What was damaged and is whole now, what still is damaged, and why."""

    found: list[tuple[int, int]]
    left: list[tuple[int, int]]
    repaired_entries: int = 0
    mended_index_records: int = 0
    reasons: list[str] | None = None


@contextmanager
def opened_for_change(
    files: FileSystem,
    directory: str,
    data_directories: Sequence[str] = (),
    *,
    drops_foreign: bool = False,
) -> Iterator[tuple[Log, int, int]]:
    """Open a store, ours or the original's, that no node uses.

    Yields the log, the committed index that was noted, and how many index records were mended.
    Raises `StoreLockedError` when a node has it open.
    """
    paths = list(data_directories) or [f"{directory}/{DATA}"]
    data_bytes = stored_file_size(files, paths)
    if data_bytes is None:
        raise StorageError(f"{directory}: no data files in {', '.join(paths)}")
    if has_identity(files, directory):
        identity = read_identity(files, directory)
    else:
        index_bytes = stored_file_size(files, [f"{directory}/{INDEX}"])
        if index_bytes is None:
            raise StorageError(f"{directory}: no index files, and no note of how large they were")
        identity = Identity("", "", "", data_bytes, index_bytes)
    places = DataPlaces(files, paths, (), 1.0)
    lock = files.lock(directory)
    try:
        notes = Notes(files, directory)
        log, report = open_log(
            files, directory, places, identity, notes, Limits(), drops_foreign=drops_foreign
        )
        try:
            noted = notes.checkpoint.committed_index if notes.checkpoint is not None else -1
            committed = min(max(noted, committed_index_of(files, directory)), log.end_index)
            log.note_committed(committed)
            yield log, committed, report.mended_index_records
        finally:
            log.close()
    finally:
        lock.release()


def carry_out(plan: WritePlan) -> None:
    """Do what a plan says, and report it as done."""
    GroupStore().execute([plan], sync=True)
    plan.completed()


def find_damage(log: Log, progress: Progress = lambda done, total: None) -> int:
    """Check every entry; set aside what is damaged. Returns how many index records were mended."""
    index, mended = log.before_begin_index + 1, 0
    first, count = index, log.end_index - log.before_begin_index
    while index <= log.end_index:
        try:
            index = log.verify(index, log.end_index, PIECE_BYTES) + 1
        except CorruptionError as error:
            if error.index is None:
                raise
            carry_out(log.quarantine(error.index))
            mended += log.damaged.range_at(error.index) is None
        progress(index - first, count)
    return mended


def repair_store(
    files: FileSystem,
    directory: str,
    sources: Sequence[str],
    data_directories: Sequence[str] = (),
    progress: Progress = lambda done, total: None,
) -> RepairReport:
    """Find everything that is damaged and put other replicas' entries in its place.

    Raises `StorageError` when a directory is no store, `StoreLockedError` when its node runs.
    """
    with opened_for_change(files, directory, data_directories) as (log, _, mended_before):
        mended = mended_before + find_damage(log, progress)
        report = RepairReport(list(log.damaged), [], mended_index_records=mended, reasons=[])
        before = log.damaged.count
        for source in sources:
            if log.damaged:
                report.reasons = _repair_from(files, log, source)
        carry_out_checkpoint(log)
        report.left = list(log.damaged)
        report.repaired_entries = before - log.damaged.count
        return report


def carry_out_checkpoint(log: Log) -> None:
    """Note the state of a log before it is closed."""
    plan = log.checkpoint()
    if plan is not None:
        carry_out(plan)


def _repair_from(files: FileSystem, log: Log, source: str) -> list[str]:
    """Take what a source has of the damaged entries; return why the rest was not taken."""
    store = open_files(files, source)
    reasons: list[str] = []
    try:
        reader = DiskReader(
            store.data, store.index, store.known.boundary or Boundary(chain_crc=UNKNOWN_CRC)
        )
        index = log.damaged.next_from(0)
        while index is not None:
            try:
                carry_out(log.quarantine(index))  # behind what was repaired it may be whole now
                if log.damaged.range_at(index):
                    _take(reader, log, index)
            except (StorageError, RequestError) as error:
                reasons.append(f"{source}, entry {index}: {error}")
                index += 1
            index = log.damaged.next_from(index)
    finally:
        store.close()
    return reasons


def _take(reader: DiskReader, log: Log, index: int) -> None:
    """Put a source's entries in the place of damaged ones, or set the one behind aside as well.

    Raises `StorageError` or `RequestError` if nothing has changed.
    """
    _, last = log.damaged.range_at(index) or (index, index)
    block = _read(reader, index, last)
    behind = index + block.count
    try:
        carry_out(log.repair(block))
    except CorruptionError as error:
        if error.index != behind:
            raise
        carry_out(log.quarantine(behind, is_readable=error.is_readable))
        if log.damaged.range_at(behind) is None:
            raise


def _read(reader: DiskReader, first: int, last: int) -> Block:
    """Return entries from `first` on, up to what is damaged there as well."""
    try:
        span = reader.read(first, last, PIECE_BYTES)
    except CorruptionError as error:
        if error.index is None or error.index <= first:
            raise
        span = reader.read(first, error.index - 1, PIECE_BYTES)
    return parse_block(span.data, count=span.count, entry_bytes_max=len(span.data))


def truncate_store(
    files: FileSystem, directory: str, from_index: int, data_directories: Sequence[str] = ()
) -> int:
    """Remove from_index and all that follows; return how many entries that were.

    Raises `StorageError` when from_index is known to be committed, or is not in the log.
    """
    with opened_for_change(files, directory, data_directories, drops_foreign=True) as (
        log,
        committed,
        _,
    ):
        if from_index <= committed:
            raise StorageError(
                f"entry {from_index} is committed (up to {committed}): a majority has promised to "
                "keep it, so it is not removed here"
            )
        if from_index <= log.before_begin_index:
            raise StorageError(f"the log begins at {log.before_begin_index + 1}")
        removed = log.end_index - from_index + 1
        if removed <= 0:
            return 0
        carry_out(log.truncate(from_index))
        return removed
