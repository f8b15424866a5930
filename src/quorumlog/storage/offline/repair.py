"""Changing a store whose node is stopped: repair from other replicas' files, and truncation."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from quorumlog.model.block import HEADER_SIZE, INDEX_RECORD_SIZE, Block, headers, parse_block
from quorumlog.model.errors import (
    CorruptionError,
    IndexOutOfRangeError,
    RequestError,
    StorageError,
)
from quorumlog.model.limits import Limits
from quorumlog.storage.entries.disk_reader import DiskReader
from quorumlog.storage.files.file_sequence import existing_file_size
from quorumlog.storage.files.os_files import FileSystem
from quorumlog.storage.files.write_plans import WritePlan
from quorumlog.storage.log.group_store import GroupStore
from quorumlog.storage.log.interface import Log
from quorumlog.storage.log.layout import (
    DATA,
    INDEX,
    DataDirectories,
    Identity,
    has_identity,
    read_identity,
    require_settled,
)
from quorumlog.storage.log.store import open_log
from quorumlog.storage.metadata.checkpoint import UNKNOWN_CRC, LogStart
from quorumlog.storage.metadata.dledger import committed_index_of
from quorumlog.storage.metadata.store_metadata import StoreMetadata
from quorumlog.storage.offline.store_files import StoreFiles, open_files

READ_BYTES = 1024 * 1024
COMPARED_ENTRIES = 16
"""The oldest 16 entries that two replicas have must be the same in both. One would do where there
are CRCs: that of the chain covers all entries before."""
_COMPARED = ("term", "size", "chain_crc", "body_crc")
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class RepairReport:
    """Which entries were repaired, which are still damaged, and why."""

    found: list[tuple[int, int]]
    left: list[tuple[int, int]]
    repaired_entries: int = 0
    mended_index_records: int = 0  # a key of `--json`, which keeps its name
    reasons: list[str] | None = None


@contextmanager
def opened_for_change(
    files: FileSystem,
    directory: str,
    data_directories: Sequence[str] = (),
    *,
    drops_foreign: bool = False,
) -> Iterator[tuple[Log, int, int]]:
    """Open a store, ours or DLedger's, that no node uses.

    Yields the log, the recorded committed index, and how many index records were repaired.
    Raises `StoreLockedError` when a node has it open.
    """
    paths = list(data_directories) or [f"{directory}/{DATA}"]
    data_bytes = existing_file_size(files, paths)
    if data_bytes is None:
        raise StorageError(f"{directory}: no data files in {', '.join(paths)}")
    if has_identity(files, directory):
        identity = read_identity(files, directory)
        require_settled(directory, identity)
    else:
        index_bytes = existing_file_size(
            files, [f"{directory}/{INDEX}"], record_bytes=INDEX_RECORD_SIZE
        )
        if index_bytes is None:
            raise StorageError(f"{directory}: no index files, and their size is recorded nowhere")
        identity = Identity(
            "", "", "", max(data_bytes, HEADER_SIZE), max(index_bytes, INDEX_RECORD_SIZE)
        )
    directories = DataDirectories(files, paths, (), 1.0)
    lock = files.lock(directory)
    try:
        store_metadata = StoreMetadata(files, directory)
        by_original = committed_index_of(files, directory)  # before we write that file
        log, report = open_log(
            files,
            directory,
            directories,
            identity,
            store_metadata,
            Limits(),
            drops_foreign=drops_foreign,
        )
        try:
            in_checkpoint = (
                store_metadata.checkpoint.committed_index
                if store_metadata.checkpoint is not None
                else -1
            )
            recorded = max(in_checkpoint, by_original)
            committed = min(recorded, log.end_index)
            log.note_committed(committed)
            yield log, committed, report.repaired_index_records
        finally:
            log.close()
    finally:
        lock.release()


def execute(plan: WritePlan) -> None:
    """Execute a plan, and report it as completed."""
    GroupStore().execute([plan], sync=True)
    plan.completed()


def find_damage(log: Log, progress: Progress = lambda done, total: None) -> int:
    """Check every entry, quarantine damaged ones; return how many index records were repaired."""
    index, repaired_records = log.before_begin_index + 1, 0
    first, count = index, log.end_index - log.before_begin_index
    while index <= log.end_index:
        try:
            index = log.verify(index, log.end_index, READ_BYTES) + 1
        except CorruptionError as error:
            if error.index is None:
                raise
            execute(log.quarantine(error.index))
            repaired_records += log.damaged.range_at(error.index) is None
        progress(index - first, count)
    return repaired_records


def repair_store(
    files: FileSystem,
    directory: str,
    sources: Sequence[str],
    data_directories: Sequence[str] = (),
    progress: Progress = lambda done, total: None,
) -> RepairReport:
    """Find all damage and repair it with other replicas' entries.

    Raises `StorageError` when a directory is no store or a source holds another log,
    `StoreLockedError` when the node of the store runs.
    """
    for source in sources:
        _check_same_group(files, directory, source)
    with opened_for_change(files, directory, data_directories) as (log, committed, repaired_before):
        repaired_records = repaired_before + find_damage(log, progress)
        for source in sources:
            _check_same_log(files, log, committed, directory, source)
        report = RepairReport(
            list(log.damaged), [], mended_index_records=repaired_records, reasons=[]
        )
        before = log.damaged.count
        for source in sources:
            if log.damaged:
                report.reasons = _repair_from(files, log, source)
        save_checkpoint(log)
        report.left = list(log.damaged)
        report.repaired_entries = before - log.damaged.count
        return report


def save_checkpoint(log: Log) -> None:
    """Save the state of a log before it is closed."""
    plan = log.checkpoint()
    if plan is not None:
        execute(plan)


def _check_same_group(files: FileSystem, directory: str, source: str) -> None:
    """Raise `StorageError` if a source says that it is another group's."""
    if not (has_identity(files, directory) and has_identity(files, source)):
        return
    own, other = read_identity(files, directory).group, read_identity(files, source).group
    if own != other:
        raise StorageError(
            f"{source} holds group {other!r}, but {directory} group {own!r}; nothing was repaired"
        )


def _check_same_log(
    files: FileSystem, log: Log, committed: int, directory: str, source: str
) -> None:
    """Raise `StorageError` if a source has other committed entries than the log.

    The founding of a group is in its first entry, so that two groups of one name differ, too.
    """
    store = open_files(files, source)
    try:
        reader = _reader_of(store)
        index = max(log.before_begin_index, reader.log_start.before_begin_index) + 1
        # both know of these that they are committed: others may differ between replicas
        last = min(committed, _committed_of(files, store), index + COMPARED_ENTRIES - 1)
        for compared in range(index, last + 1):
            try:
                own = headers(log.read(compared, compared, READ_BYTES).block())[0]
                other = headers(reader.read(compared, compared, READ_BYTES).block())[0]
            except (StorageError, RequestError):
                continue  # a damaged entry proves nothing
            # one of them may have been written by DLedger, without CRCs
            stated = _COMPARED if own["chain_crc"] and other["chain_crc"] else _COMPARED[:2]
            if any(own[name] != other[name] for name in stated):
                raise StorageError(
                    f"{source} is no replica of {directory}: entry {compared}, committed in both, "
                    "is not the same; is it another cluster's, or was the group founded again? "
                    "Nothing was repaired"
                )
    finally:
        store.close()


def _committed_of(files: FileSystem, store: StoreFiles) -> int:
    checkpoint = store.metadata.checkpoint
    in_checkpoint = checkpoint.committed_index if checkpoint is not None else -1
    return max(in_checkpoint, committed_index_of(files, store.directory))


def _reader_of(store: StoreFiles) -> DiskReader:
    return DiskReader(
        store.data, store.index, store.metadata.log_start or LogStart(chain_crc=UNKNOWN_CRC)
    )


def _repair_from(files: FileSystem, log: Log, source: str) -> list[str]:
    """Repair damaged entries with those of a source; return why the rest was not repaired."""
    store = open_files(files, source)
    reasons: list[str] = []
    try:
        reader = _reader_of(store)
        index = log.damaged.next_from(0)
        while index is not None:
            try:
                execute(log.quarantine(index))  # after what was repaired it may be whole now
                if log.damaged.range_at(index):
                    _repair_range(reader, log, index)
            except (StorageError, RequestError) as error:
                reasons.append(f"{source}, entry {index}: {error}")
                index += 1
            index = log.damaged.next_from(index)
    finally:
        store.close()
    return reasons


def _repair_range(reader: DiskReader, log: Log, index: int) -> None:
    """Repair damaged entries with those of a source, or quarantine the one after them, too.

    Raises `StorageError` or `RequestError` if nothing has changed.
    """
    _, last = log.damaged.range_at(index) or (index, index)
    block = _read(reader, index, last)
    after = index + block.count
    try:
        execute(log.repair(block))
    except CorruptionError as error:
        if error.index != after:
            raise
        execute(log.quarantine(after, is_readable=error.is_readable))
        if log.damaged.range_at(after) is None:
            raise


def _read(reader: DiskReader, first: int, last: int) -> Block:
    """Return entries from `first` on, up to what is damaged there as well."""
    try:
        run = reader.read(first, last, READ_BYTES)
    except CorruptionError as error:
        if error.index is None or error.index <= first:
            raise
        run = reader.read(first, error.index - 1, READ_BYTES)
    return parse_block(run.data, count=run.count, entry_bytes_max=len(run.data))


def truncate_store(
    files: FileSystem, directory: str, from_index: int, data_directories: Sequence[str] = ()
) -> int:
    """Remove from_index and all that follows; return how many entries that were.

    Raises `IndexOutOfRangeError` when the log ends before from_index, `StorageError` when it starts
    after it or from_index is known to be committed.
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
            end = f"its last index is {log.end_index}" if log.end_index >= 0 else "it has no entry"
            raise IndexOutOfRangeError(
                f"index {from_index} is beyond the end of {directory}: {end}; nothing was removed"
            )
        execute(log.truncate(from_index))
        return removed
