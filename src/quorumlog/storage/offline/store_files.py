"""Looking into a store without its node: reads only, takes no lock, works while a node runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from quorumlog.model.block import HEADER_SIZE, INDEX_RECORD_SIZE, decode_entries, headers
from quorumlog.model.entry import Entry
from quorumlog.model.errors import CorruptionError, StorageError
from quorumlog.model.wording import counted
from quorumlog.storage.entries.index_records import (
    differs,
    following_records,
    record_at,
    records_of,
)
from quorumlog.storage.entries.scanner import ScannedRun
from quorumlog.storage.files.file_sequence import FileSequence, existing_file_size
from quorumlog.storage.files.os_files import FileSystem
from quorumlog.storage.log.layout import DATA, INDEX, require_readable
from quorumlog.storage.metadata.advice import RESTORE
from quorumlog.storage.metadata.checkpoint import LogMetadata, LogPoint
from quorumlog.storage.metadata.damaged_ranges import DamagedRanges
from quorumlog.storage.metadata.dledger import committed_index_of
from quorumlog.storage.metadata.store_metadata import StoreMetadata
from quorumlog.storage.recovery.damage_scan import DamageScan
from quorumlog.storage.recovery.recovery import derived_records


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """A store's files, open for reading, and their metadata."""

    directory: str
    data: FileSequence
    index: FileSequence
    metadata: LogMetadata
    damaged: DamagedRanges
    is_original_compatible: bool = False

    def scan(self) -> DamageScan:
        """Return a scan of all entries, from the first on."""
        log_start = self.metadata.log_start
        return self.scan_after(
            log_start.point if log_start is not None and len(self.data) else None
        )

    def scan_after(self, start: LogPoint | None) -> DamageScan:
        """Return a scan of the entries after a point; None: of a log whose start is not known."""
        scan = DamageScan(self.data, self.index, start, self.metadata)
        scan.takes_foreign = self.is_original_compatible
        return scan

    def close(self) -> None:
        """Close the files."""
        self.data.close()
        self.index.close()


def open_files(
    files: FileSystem, directory: str, data_directories: Sequence[str] = ()
) -> StoreFiles:
    """Open a group directory (ours or DLedger's) for reading.

    `data_directories` are where its data files are, if not in `data/`. Raises `StorageError` when
    there is no store, and `UnsettledError` if entries may be only in the journal of its node.
    """
    require_readable(files, directory)
    return open_unsettled(files, directory, data_directories)


def open_unsettled(
    files: FileSystem, directory: str, data_directories: Sequence[str] = ()
) -> StoreFiles:
    """Open a group directory as `open_files`, also if a journal may have more of its entries."""
    paths = list(data_directories) or [f"{directory}/{DATA}"]
    file_size = existing_file_size(files, paths)
    if file_size is None:
        raise StorageError(
            f"{directory}: no data files in {', '.join(paths)}; is this a group directory?"
        )
    data = FileSequence(files, paths, max(file_size, HEADER_SIZE))
    data.load(read_only=True)
    index_path = f"{directory}/{INDEX}"
    index_size = existing_file_size(files, [index_path], record_bytes=INDEX_RECORD_SIZE)
    index = FileSequence(files, [index_path], index_size or INDEX_RECORD_SIZE)
    if index_size is not None:
        index.load(read_only=True)
    store_metadata = StoreMetadata(files, directory)
    try:
        metadata, damaged = store_metadata.load(read_only=True)
    finally:
        store_metadata.close()
    compatible = store_metadata.is_original_compatible
    return StoreFiles(directory, data, index, metadata, damaged, compatible)


def scan_store(
    files: FileSystem, directory: str, data_directories: Sequence[str] = ()
) -> Iterator[tuple[Entry, str, int]]:
    """Yield every entry of a group directory with its file and the byte it starts at.

    Works on stores of DLedger too. Raises `StorageError` when there is no store, and, after
    the entries before it, `CorruptionError` when a damaged or missing entry was once durable; a
    torn tail just ends. An entry that only its index record could prove, and does not, counts as
    damaged, too: DLedger writes no CRCs.
    """
    store = open_files(files, directory, data_directories)
    try:
        scan = store.scan()
        for run in scan:
            if scan.damages:
                break
            path, start = (
                store.data.path_at(run.position),
                store.data.start_of(run.position),
            )
            offsets = (run.position - start + run.block.offsets).tolist()
            doubtful = _doubtful_row(store, run)
            for row, entry in enumerate(decode_entries(run.block)):
                if row == doubtful:
                    raise _doubt(store, entry, path, offsets[row])
                yield entry, path, offsets[row]
        if scan.damages:
            raise scan.error_of(scan.damages[0])
        first = scan.end.index + 1
        lost = lost_after(files, store, first)
        if lost is not None and committed_index_of(files, directory) >= first:
            raise lost
    finally:
        store.close()


def lost_after(files: FileSystem, store: StoreFiles, first: int) -> CorruptionError | None:
    """Return the evidence of entries from `first` on that the index names and no data file holds.

    None if there are none, or if the file that should hold the first of them has its full size:
    then this is a torn tail, or DLedger truncated the log and left such records. If DLedger cut
    the log where a file starts, only a committed index distinguishes this from a loss.
    """
    named = following_records(store.index, first)
    if not len(named):
        return None
    # a node that runs may have made a file since: what is there now counts
    now = FileSequence(files, store.data.directories, store.data.file_size)
    now.load(read_only=True)
    position = int(named["pos"][0])
    if not now.gaps(position, position + int(named["size"][0]) - 1):
        return None
    path = now.path_at(position)
    reason = (
        f"missing or cut short, but named by {counted(len(named), 'index record')}, of entries "
        f"{first} to {first + len(named) - 1}"
    )
    if committed_index_of(files, store.directory) < first:
        reason += " (or DLedger truncated its log there, if it was a follower then)"
    return CorruptionError(f"{path}: {reason}. {RESTORE}", path, 0, first, reason)


def _doubtful_row(store: StoreFiles, run: ScannedRun) -> int:
    """Return the first entry without CRCs whose header contradicts its index record, or -1.

    The last entries of a store may not have their records yet.
    """
    if run.checked or not len(store.index):
        return -1
    table = headers(run.block)
    on_disk = records_of(store.index, run.first_index, run.last_index)
    wrong = differs(on_disk, derived_records(run)) & (on_disk["size"] != 0)
    wrong &= (table["chain_crc"] | table["body_crc"]) == 0
    found = np.flatnonzero(wrong)
    return int(found[0]) if len(found) else -1


def _doubt(store: StoreFiles, entry: Entry, path: str, offset: int) -> CorruptionError:
    record = record_at(store.index, entry.index)
    stated = "" if record is None else f"term {record['term']}, size {record['size']}"
    reason = (
        f"its header says term {entry.term}, size {HEADER_SIZE + len(entry.body)}, its index "
        f"record {stated}: one of them is damaged"
    )
    return CorruptionError(
        f"{path}: byte {offset}, entry {entry.index}: {reason}. {RESTORE}",
        path,
        offset,
        entry.index,
        reason,
    )
