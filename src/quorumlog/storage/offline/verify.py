"""Checking a whole store while nobody, or only its node, uses it: reads only, changes nothing."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from quorumlog.model.block import HEADER_SIZE, headers
from quorumlog.model.codes import Magic
from quorumlog.model.errors import CorruptionError
from quorumlog.model.hard_state import HardState
from quorumlog.storage.entries.index_records import differs, following_records, records_of
from quorumlog.storage.entries.scanner import ScannedRun, looks_torn
from quorumlog.storage.files.os_files import FileSystem
from quorumlog.storage.log.hard_state import FILE_NAME as STATE_NAME
from quorumlog.storage.log.hard_state import HardStateStore
from quorumlog.storage.log.layout import (
    INDEX,
    Identity,
    damaged_identities,
    has_identity,
    read_identity,
)
from quorumlog.storage.metadata.checkpoint import CHECKPOINT_NAME
from quorumlog.storage.metadata.config_entries import FILE_NAME as MEMBERSHIP_NAME
from quorumlog.storage.metadata.config_entries import SLOT_SIZE as MEMBERSHIP_SLOT
from quorumlog.storage.metadata.damaged_ranges import FILE_NAME as DAMAGE_NAME
from quorumlog.storage.metadata.dledger import committed_index_of
from quorumlog.storage.metadata.dual_slot_file import DualSlotFile
from quorumlog.storage.metadata.tables_file import TablesFile
from quorumlog.storage.offline.partitions import PartitionScan
from quorumlog.storage.offline.store_files import StoreFiles, lost_after, open_files
from quorumlog.storage.recovery.recovery import derived_records

FINDINGS_MAX = 1_000
"""Findings reported one by one; more are only counted."""


@dataclass(frozen=True, slots=True)
class VerifyFinding:
    """Something that is not as it should be. `index` None: no entry is concerned."""

    kind: str
    path: str
    offset: int
    text: str
    index: int | None = None
    last_index: int | None = None


@dataclass(slots=True)
class StoreReport:
    """What a store holds and what is wrong with it."""

    directory: str
    identity: Identity | None = None
    hard_state: HardState | None = None
    begin_index: int = -1
    end_index: int = -1
    committed_index: int = -1
    entries: int = 0
    unchecked_entries: int = 0
    body_bytes: int = 0
    smallest_body: int = 0
    largest_body: int = 0
    data_files: int = 0
    data_file_bytes: int = 0
    index_files: int = 0
    terms: list[tuple[int, int]] = field(default_factory=list)
    magics: Counter[int] = field(default_factory=Counter)
    channels: Counter[int] = field(default_factory=Counter)
    findings: list[VerifyFinding] = field(default_factory=list)
    findings_total: int = 0
    partitions: int = 0
    """How many partitions of topics it holds."""
    tail_text: str = ""
    """What follows the last entry, if anything does: opening would cut it."""

    def add(self, finding: VerifyFinding) -> None:
        """Take a finding."""
        self.findings_total += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)


def verify_store(
    files: FileSystem,
    directory: str,
    data_directories: Sequence[str] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> StoreReport:
    """Read every byte of a store and return what it holds and what is wrong.

    `progress` is called with bytes read and bytes in all. Raises `StorageError` without a store.
    """
    report = StoreReport(directory)
    _small_files(files, directory, report)
    try:
        store = open_files(files, directory, data_directories)
    except CorruptionError as error:
        report.add(_finding_of("unreadable", error))
        return report
    try:
        _entries(files, store, report, progress)
    finally:
        store.close()
    return report


def _finding_of(kind: str, error: CorruptionError) -> VerifyFinding:
    return VerifyFinding(kind, error.file, error.position, error.reason, error.index)


def _small_files(files: FileSystem, directory: str, report: StoreReport) -> None:
    for file in (
        DualSlotFile(files, directory, STATE_NAME, mirrored=True),
        DualSlotFile(files, directory, CHECKPOINT_NAME),
        DualSlotFile(files, directory, DAMAGE_NAME, mirrored=True),
        DualSlotFile(files, directory, MEMBERSHIP_NAME, slot_size=MEMBERSHIP_SLOT, mirrored=True),
    ):
        good, copies = file.copies() or (0, 0)
        if good < copies:
            text = f"{copies - good} of {copies} copies are damaged"
            report.add(VerifyFinding("damaged copy", file.path, 0, text))
    for path, reason in damaged_identities(files, directory):
        report.add(VerifyFinding("damaged copy", path, 0, reason))
    for path in TablesFile(files, directory).damaged():
        report.add(VerifyFinding("damaged copy", path, 0, "its CRC does not fit"))
    try:
        report.hard_state = HardStateStore(files, directory).load(read_only=True)
        if has_identity(files, directory):
            report.identity = read_identity(files, directory)
    except CorruptionError as error:
        report.add(_finding_of("unreadable", error))


def _entries(
    files: FileSystem,
    store: StoreFiles,
    report: StoreReport,
    progress: Callable[[int, int], None],
) -> None:
    starts = store.data.starts
    total = len(starts) * store.data.file_size
    report.data_files, report.data_file_bytes = len(starts), store.data.file_size
    report.index_files = len(store.index)
    committed = store.metadata.checkpoint.committed_index if store.metadata.checkpoint else -1
    if not len(store.index):
        path = f"{report.directory}/{INDEX}"
        report.add(
            VerifyFinding("index", path, 0, "there are no index files; opening makes them again")
        )
    last: ScannedRun | None = None
    scan, is_unfinished = store.scan(), False
    partitions = PartitionScan(files, store.directory)
    try:
        for run in scan:
            if last is not None and run.first_index != last.last_index + 1:
                partitions.skip()
            last = run
            _check_batches(store, partitions, run, report)
            _count(report, run)
            _check_index(store, run, report)
            _check_positions(store, run, report)
            progress(run.end - starts[0], total)
    except CorruptionError as error:
        is_unfinished = True
        report.add(_finding_of("damaged, the rest was not read", error))
    for damage in scan.damages:
        is_blank = damage.last_index < damage.first_index
        report.add(
            VerifyFinding(
                "damaged blank record" if is_blank else "damaged",
                damage.path,
                damage.position - store.data.start_of(damage.position),
                damage.reason,
                None if is_blank else damage.first_index,
                None if is_blank else damage.last_index,
            )
        )
    report.end_index = max(report.end_index, scan.end.index)
    report.committed_index = min(
        max(committed, committed_index_of(files, report.directory)), report.end_index
    )
    if scan.stop.reason and not scan.damages and not is_unfinished:
        report.tail_text = f"byte {scan.stop.position}: {scan.stop.reason}"
    if not is_unfinished:
        _check_index_after(files, store, report)
    if last is not None and not last.checked:
        _check_unchecked_tail(store, last, report)
    progress(total, total)


def _check_batches(
    store: StoreFiles, partitions: PartitionScan, run: ScannedRun, report: StoreReport
) -> None:
    """Check the record batches of partitions: their own CRC-32C, offsets without gaps, epochs."""
    for wrong in partitions.take(run.block, run.first_index):
        path, start = store.data.path_at(run.position), store.data.start_of(run.position)
        offset = int(run.position + run.block.offsets[wrong.row] - start)
        index = run.first_index + wrong.row
        report.add(VerifyFinding("record batch", path, offset, wrong.text, index))
    report.partitions = len(partitions.table.partitions)


def _count(report: StoreReport, run: ScannedRun) -> None:
    table = headers(run.block)
    bodies = run.block.sizes - HEADER_SIZE
    if not report.entries:
        report.begin_index = run.first_index
        report.smallest_body = int(bodies.min())
    report.entries += run.block.count
    report.end_index = run.last_index
    report.body_bytes += int(bodies.sum())
    report.smallest_body = min(report.smallest_body, int(bodies.min()))
    report.largest_body = max(report.largest_body, int(bodies.max()))
    report.unchecked_entries += int(((table["chain_crc"] | table["body_crc"]) == 0).sum())
    for name, counter in (("magic", report.magics), ("channel", report.channels)):
        values, counts = np.unique(table[name], return_counts=True)
        counter.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    terms, firsts = np.unique(table["term"], return_index=True)
    for term, row in sorted(zip(terms.tolist(), firsts.tolist(), strict=True)):
        if not report.terms or report.terms[-1][0] != term:
            report.terms.append((term, run.first_index + row))


def _check_index(store: StoreFiles, run: ScannedRun, report: StoreReport) -> None:
    """Compare index records with the entries."""
    if not len(store.index):
        return  # reported once
    derived = derived_records(run)
    on_disk = records_of(store.index, run.first_index, run.last_index)
    for row in np.flatnonzero(differs(on_disk, derived)).tolist():
        index = run.first_index + row
        place = index * 32
        path = store.index.path_at(place)
        there = bool(on_disk["size"][row])
        text = "the index record does not fit the entry" if there else "no index record"
        report.add(VerifyFinding("index", path, place - store.index.start_of(place), text, index))


def _check_positions(store: StoreFiles, run: ScannedRun, report: StoreReport) -> None:
    """Compare `pos` in headers, which no CRC covers, with where the entries lie.

    It is what the leader wrote, and a replica whose log was started again elsewhere has other
    places. But entries that one leader appended lie one after the other there, too, up to the end
    of a file: one that disagrees with all its neighbours of the same term is wrong.
    """
    table = headers(run.block)
    stated = table["pos"].astype(np.int64)
    shift = stated - (run.position + run.block.offsets)
    if not shift.any():
        return
    same_term = table["term"][1:] == table["term"][:-1]
    agrees = same_term & (shift[1:] == shift[:-1])
    breaks = same_term & (shift[1:] != shift[:-1]) & (stated[1:] % store.data.file_size != 0)
    none = np.zeros(1, dtype=bool)
    has_witness = np.concatenate((none, agrees)) | np.concatenate((agrees, none))
    is_odd = np.concatenate((none, breaks)) | np.concatenate((breaks, none))
    path, start = store.data.path_at(run.position), store.data.start_of(run.position)
    for row in np.flatnonzero((shift != 0) & is_odd & ~has_witness).tolist():
        offset = int(run.position + run.block.offsets[row] - start)
        text = f"its header says that it lies at {stated[row]}, and it lies at {start + offset}"
        report.add(VerifyFinding("position", path, offset, text, run.first_index + row))


def _check_index_after(files: FileSystem, store: StoreFiles, report: StoreReport) -> None:
    """Find entries that only the index still names: the file that held them is gone."""
    first = report.end_index + 1
    lost = lost_after(files, store, first)
    named = len(following_records(store.index, first))
    if lost is not None:
        report.add(
            VerifyFinding("lost", lost.file, lost.position, lost.reason, first, first + named - 1)
        )
    elif named and not report.tail_text:
        report.tail_text = (
            f"index records name entries {first} to {first + named - 1}, which are not in the data"
        )


def _check_unchecked_tail(store: StoreFiles, last: ScannedRun, report: StoreReport) -> None:
    start, view = store.data.map_at(last.position)
    offset, size = int(last.block.offsets[-1]), int(last.block.sizes[-1])
    if looks_torn(view, last.position - start + offset, size):
        report.tail_text = f"entry {last.last_index} ends in zeros: it looks torn"


def magic_names(magics: Counter[int]) -> dict[str, int]:
    """Return how many entries there are of each kind, by name."""
    known = {int(magic): magic.name for magic in Magic}
    return {known.get(magic, str(magic)): count for magic, count in sorted(magics.items())}
