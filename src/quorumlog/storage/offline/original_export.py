"""Writing a log once more, as DLedger 0.2.7 to 0.4.0 reads it (decision 0034)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from quorumlog.model.block import (
    COMPATIBLE_CONFIG,
    COMPATIBLE_NOOP,
    decode_entries,
    encode_entry,
    parse_block,
)
from quorumlog.model.codes import Magic
from quorumlog.model.entry import SYSTEM_CHANNEL
from quorumlog.model.errors import StorageError
from quorumlog.model.hard_state import HardState
from quorumlog.model.limits import Limits
from quorumlog.model.wording import counted
from quorumlog.storage.files.os_files import FileSystem, remove_tree
from quorumlog.storage.log.file_log import FileLog
from quorumlog.storage.log.hard_state import HardStateStore
from quorumlog.storage.log.layout import (
    DATA,
    INDEX,
    DataDirectories,
    Identity,
    has_identity,
    read_identity,
    require_settled,
)
from quorumlog.storage.log.store import OWN_PREFIX, open_log
from quorumlog.storage.metadata.dledger import (
    CHECKPOINT_NAME,
    TERM_NAME,
    OriginalFile,
    checkpoint_values,
    committed_index_of,
    term_values,
)
from quorumlog.storage.metadata.store_metadata import StoreMetadata
from quorumlog.storage.offline.repair import Progress, execute
from quorumlog.storage.offline.store_files import StoreFiles, open_files

_MARK: Final = f"{OWN_PREFIX}export"
"""The name of an empty file in the directory of an export that is not finished."""
_PREFIX_OF = {int(Magic.NOOP): COMPATIBLE_NOOP, int(Magic.CONFIG_CHANGE): COMPATIBLE_CONFIG}
"""What the body of an entry that earlier versions of DLedger do not know starts with instead."""


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What was written: from which index to which, in which term it ends, and what is rewritten."""

    begin_index: int
    end_index: int
    committed_index: int
    term: int
    entries: int
    rewritten_entries: int
    """NOOPs and memberships that got another form."""
    system_entries: int
    """Entries on the system channel there, these among them: applications must skip them."""


def export_original(
    files: FileSystem,
    directory: str,
    target: str,
    data_directories: Sequence[str] = (),
    progress: Progress = lambda done, total: None,
) -> ExportReport:
    """Write the log of a group directory to `target`, as a member directory of DLedger.

    All indexes, terms and bodies stay, committed or not. Positions and CRCs are new, since NOOPs
    and memberships get another form. Term, vote and committed index go along. The node must be
    stopped.
    What an interrupted export has left in `target`.part is removed first. Raises `StorageError` if
    `target` exists, or `target`.part is anything else, `UnsettledError` if the newest entries may
    be in the journal of the node alone, and `CorruptionError` at the first damaged entry; then
    there is no `target`.
    """
    target = target.rstrip("/")
    if files.exists(target):
        raise StorageError(f"{target} exists already; name a new directory")
    beside = f"{target}.part"
    if files.exists(beside) and not files.exists(f"{beside}/{_MARK}"):
        raise StorageError(f"{beside} is in the way; remove it, or name another directory")
    lock = files.lock(directory)
    try:
        if has_identity(files, directory):
            # here, since reading takes a lock for the sign of a node that runs: this one, too
            require_settled(directory, read_identity(files, directory))
        remove_tree(beside)
        store = open_files(files, directory, data_directories)
        try:
            report = _write_log(files, store, beside, progress)
        finally:
            store.close()
        hard_state = _hard_state(files, directory)
        for name, values in (
            (TERM_NAME, term_values(hard_state)),
            (CHECKPOINT_NAME, checkpoint_values(report.end_index, report.committed_index)),
        ):
            OriginalFile(files, beside, name).write(values, durable=True)
        files.remove(f"{beside}/{_MARK}")
        files.replace(beside, target)
        files.sync_directory(target.rpartition("/")[0] or ".")
    except StorageError:
        remove_tree(beside)
        raise
    finally:
        lock.release()
    return report


def _hard_state(files: FileSystem, directory: str) -> HardState:
    return HardStateStore(files, directory).load(read_only=True)


def _write_log(
    files: FileSystem, store: StoreFiles, target: str, progress: Progress
) -> ExportReport:
    """Write all entries as a log of ours, then leave only what DLedger knows of it."""
    if store.damaged:
        raise StorageError(
            f"{store.directory}: "
            f"{counted(store.damaged.count, 'damaged entry', 'damaged entries')}, from "
            f"{store.damaged.ranges[0][0]} on; repair them first (quorumlog store repair)"
        )
    files.make_directory(target)
    files.open(f"{target}/{_MARK}", create=True).close()
    for path in (f"{target}/{DATA}", f"{target}/{INDEX}"):
        files.make_directory(path)
    identity = Identity("", "", "", store.data.file_size, store.index.file_size)
    directories = DataDirectories(files, [f"{target}/{DATA}"], (), 1.0)
    saved = StoreMetadata(files, target)
    log, _ = open_log(files, target, directories, identity, saved, Limits())
    try:
        rewritten, of_system = _copy_entries(store, log, progress)
        checkpoint = log.checkpoint()
        if checkpoint is not None:  # index files become durable with it
            execute(checkpoint)
    finally:
        log.close()
    for name in files.names(target):
        if name.startswith(OWN_PREFIX) and name != _MARK:
            files.remove(f"{target}/{name}")
    files.sync_directory(target)
    begin, end = log.before_begin_index + 1, log.end_index
    known = store.metadata.checkpoint.committed_index if store.metadata.checkpoint else -1
    committed = min(max(known, committed_index_of(files, store.directory)), end)
    return ExportReport(
        begin, end, committed, log.end_point.term, end - begin + 1, rewritten, of_system
    )


def _copy_entries(store: StoreFiles, log: FileLog, progress: Progress) -> tuple[int, int]:
    """Append all entries to another log; return how many have another form there, and how many
    are on the system channel.
    """
    rewritten, of_system, total = 0, 0, len(store.data) * store.data.file_size
    is_first = True
    scan = store.scan()
    for run in scan:
        if scan.damages:
            break
        if is_first and run.first_index > 0:
            execute(log.reset(run.first_index - 1))
        is_first = False
        parts: list[bytes] = []
        term = -1
        for entry in decode_entries(run.block):
            if entry.term != term:
                _append(log, parts, term)
                parts, term = [], entry.term
            prefix = _PREFIX_OF.get(entry.magic)
            rewritten += prefix is not None
            of_system += prefix is not None or entry.channel == SYSTEM_CHANNEL
            parts.append(
                encode_entry(entry.body, channel=entry.channel)
                if prefix is None
                else encode_entry(prefix + entry.body, channel=SYSTEM_CHANNEL)
            )
        _append(log, parts, term)
        progress(run.end - store.data.starts[0], total)
    if scan.damages:
        raise scan.error_of(scan.damages[0])
    return rewritten, of_system


def _append(log: FileLog, parts: list[bytes], term: int) -> None:
    if parts:
        data = memoryview(bytearray(b"".join(parts)))
        block = parse_block(data, count=len(parts), entry_bytes_max=len(data))
        execute(log.append(block, term)[0])
