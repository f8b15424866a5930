"""Opening a group: its directory, hard state and log, in one call."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from quorumlog.model.config import GroupConfig
from quorumlog.model.errors import CorruptionError, NoSpaceError
from quorumlog.model.hard_state import HardState
from quorumlog.model.limits import Limits
from quorumlog.model.messages.client import StoreLocation
from quorumlog.sessions.table_set import TableSet
from quorumlog.storage.files.file_sequence import MAPS_MAX, FileSequence
from quorumlog.storage.files.os_files import FileSystem
from quorumlog.storage.files.space import DiskState, read_disk_state
from quorumlog.storage.log.batch_files import BatchFiles
from quorumlog.storage.log.entry_scan import torn_block
from quorumlog.storage.log.file_log import FileLog
from quorumlog.storage.log.group_store import GroupStore
from quorumlog.storage.log.hard_state import FILE_NAME as STATE_NAME
from quorumlog.storage.log.hard_state import HardStates, HardStateStore, MemoryHardStateStore
from quorumlog.storage.log.interface import Log
from quorumlog.storage.log.layout import (
    DATA,
    INDEX,
    DataDirectories,
    Identity,
    claim_group_directory,
    incarnation_number,
)
from quorumlog.storage.log.memory_log import MemoryLog
from quorumlog.storage.log.snapshots import Snapshots
from quorumlog.storage.log.unsettled import GroupInJournal
from quorumlog.storage.metadata.advice import EMPTYING_IS_SAFE_WHEN
from quorumlog.storage.metadata.checkpoint import Checkpoint
from quorumlog.storage.metadata.config_entries import FILE_NAME as MEMBERSHIP_NAME
from quorumlog.storage.metadata.damaged_ranges import DamagedRanges
from quorumlog.storage.metadata.dledger import committed_index_of, has_original_run
from quorumlog.storage.metadata.store_metadata import StoreMetadata
from quorumlog.storage.metadata.tables_file import FILE_NAME as TABLES_NAME
from quorumlog.storage.recovery.recovery import Recovered, Recovery, RecoveryReport
from quorumlog.storage.recovery.take_over import TakeOver

logger = logging.getLogger(__name__)

NAMES = frozenset(
    (DATA, INDEX, "machine", "snapshot", "currterm", "currterm.bak", "checkpoint", "checkpoint.bak")
)
"""In a group's directory, ours and DLedger's."""
OWN_PREFIX = "quorumlog."

__all__ = ["GroupStore", "OpenedGroup", "open_group", "open_memory_group"]


@dataclass(frozen=True, slots=True)
class OpenedGroup:
    """An open group. `committed_index` is a lower bound remembered from before.

    `disk_state` reads how full its disks are, by the bounds of a configuration; on any thread. New
    data files are spread over directories by the last one that it was given.
    `incarnation` numbers the data directory: an emptied one gets another.
    """

    log: Log
    hard_state: HardState
    hard_states: HardStates
    committed_index: int
    report: RecoveryReport
    disk_state: Callable[[GroupConfig], DiskState]
    close: Callable[[], None]
    incarnation: int = 0
    snapshots: Snapshots | None = None
    """The snapshots of the group's state machine; None: it has none."""
    batches: BatchFiles | None = None
    """Where the index of its record batches is kept; None: it holds no partitions."""
    tables: bytes | None = None
    """The derived tables (`TableSet`) that were saved with the last checkpoint."""
    tables_lost: bool = False
    """Whether those were lost; then `tables` says only after which index the log has them."""
    location: StoreLocation | None = None
    """Where its files are; None: in memory, or nobody else may read them."""


def open_group(
    files: FileSystem,
    directory: str,
    config: GroupConfig,
    limits: Limits,
    *,
    self_id: str,
    maps_max: int = MAPS_MAX,
) -> OpenedGroup:
    """Open a group directory, ours or one of DLedger, and make it usable.

    Raises `CorruptionError` with file and byte when what is damaged cannot be quarantined,
    `StorageError` when the directory belongs to someone else or cannot be read or written.
    """
    directories = DataDirectories(
        files,
        config.data_directories or [f"{directory}/{DATA}"],
        config.read_only_directories,
        config.disk_space_ratio_to_force_clean,
    )
    identity = claim_group_directory(
        files,
        directory,
        directories.all,
        group=config.group,
        self_id=self_id,
        data_file_bytes=config.data_file_bytes,
        index_file_bytes=config.mapped_file_size_for_entry_index,
    )
    outside = [path for path in directories.all if path != f"{directory}/{DATA}"]
    locks = ExitStack()
    try:
        for path in (directory, *outside):
            locks.callback(files.lock(path).release)
        hard_states = _known_hard_states(files, directory)
        hard_state = hard_states.load()
        saved = StoreMetadata(files, directory)
        saved_tables = saved.load_tables()
        by_original = committed_index_of(files, directory)  # before we write that file
        log, report = open_log(
            files, directory, directories, identity, saved, limits, maps_max=maps_max
        )
        hard_states.equalize(hard_state)
        snapshots = _snapshots(files, directory, config)
        _warn_of_unknown_files(files, directory, directories.all)
    except BaseException:
        locks.close()
        raise
    in_checkpoint = saved.checkpoint.committed_index if saved.checkpoint is not None else -1
    recorded = max(in_checkpoint, by_original, log.before_begin_index)
    committed = min(max(recorded, _committed_by_snapshot(log, snapshots)), log.end_index)
    # without saved tables no entry had said anything up to the checkpoint; of entries that only a
    # later snapshot covers this says nothing
    known_until = log.before_begin_index if saved.has_lost_tables else recorded
    tables = saved_tables or TableSet(min(known_until, log.end_index)).encode()
    if saved.has_lost_tables:
        _log_lost_tables(directory, log.before_begin_index)
    if committed >= 0:
        log.note_committed(committed)

    def close() -> None:
        with locks:
            log.close()

    disk_state = partial(_disk_state, files, directory, directories)
    number = incarnation_number(identity.incarnation)
    base = (log, hard_state, hard_states, committed, report, disk_state, close)
    lost = saved.has_lost_tables and log.before_begin_index >= 0
    return OpenedGroup(*base, number, snapshots, _batches(files, directory, config), tables, lost)


def _disk_state(
    files: FileSystem, directory: str, directories: DataDirectories, config: GroupConfig
) -> DiskState:
    """Return how full the disks of a group are; new data files are spread by that bound, too."""
    directories.ratio_max = config.disk_space_ratio_to_force_clean
    return read_disk_state(files, directory, directories.all, config)


def _known_hard_states(files: FileSystem, directory: str) -> HardStateStore:
    """Return the hard states of a group. Raises `CorruptionError` when they are gone."""
    hard_states = HardStateStore(files, directory)
    if not hard_states.exists():
        path = f"{directory}/{STATE_NAME}"
        raise CorruptionError(
            f"{path} is gone: whom this replica voted for is not known any more, and a second "
            f"vote in that term could make two leaders. {EMPTYING_IS_SAFE_WHEN}",
            path,
            0,
        )
    return hard_states


def _log_lost_tables(directory: str, before_begin_index: int) -> None:
    where = "peers are asked" if before_begin_index >= 0 else "the whole log is read"
    logger.error(
        "%s/%s is lost: to find again what producers appended, %s", directory, TABLES_NAME, where
    )


def _warn_of_unknown_files(files: FileSystem, directory: str, data_directories: list[str]) -> None:
    """Warn of unknown files in a group's directory."""
    for name in files.names(directory):
        path = f"{directory}/{name}"
        is_ours = name in NAMES or name.startswith(OWN_PREFIX)
        if not is_ours and not any(f"{one}/".startswith(f"{path}/") for one in data_directories):
            logger.warning("%s is no part of a group's directory; it is ignored", path)


def _committed_by_snapshot(log: Log, snapshots: Snapshots | None) -> int:
    """Return up to where the newest snapshot shows that the log is committed; -1: it does not.

    It may be younger than the checkpoint. A log that holds the entry with which it ends, by index
    and term, holds all that was committed before it, too (Raft 5.3).
    """
    newest = snapshots.newest() if snapshots is not None else None
    index = -1 if newest is None else newest.last_included_index
    if newest is None or not log.before_begin_index < index <= log.end_index:
        return -1
    term = next(term for term, first in reversed(log.term_runs()) if first <= index)
    return index if term == newest.last_included_term else -1


def _snapshots(files: FileSystem, directory: str, config: GroupConfig) -> Snapshots | None:
    if not config.state_machine:
        return None
    snapshots = Snapshots(files, directory, logger.error)
    snapshots.clear_saving()
    return snapshots


def _batches(files: FileSystem, directory: str, config: GroupConfig) -> BatchFiles | None:
    if config.kind != "partitions":
        return None
    return BatchFiles(files, directory, logger.warning)


def open_log(  # noqa: PLR0913
    files: FileSystem,
    directory: str,
    directories: DataDirectories,
    identity: Identity,
    saved: StoreMetadata,
    limits: Limits,
    *,
    drops_foreign: bool = False,
    maps_max: int = MAPS_MAX,
) -> tuple[FileLog, RecoveryReport]:
    """Recover the log of a group directory that nobody else has open; see `Recovery`."""
    data = FileSequence(
        files,
        directories.all,
        identity.data_file_bytes,
        directories.directory_for,
        maps_max=maps_max,
    )
    index = FileSequence(
        files, [f"{directory}/{INDEX}"], identity.index_file_bytes, maps_max=maps_max
    )
    data.load()
    index.load()
    for path in (*data.unknown_files, *index.unknown_files):
        logger.warning("%s is no file of this log; it is ignored", path)
    metadata, damaged = saved.load()
    saved.forget_journal()
    if saved.is_original_compatible:
        has_run = has_original_run(files, directory)
        metadata = TakeOver(data, index, metadata, has_original_run=has_run).run()
        saved.checkpoint = metadata.checkpoint
        drops_foreign = True  # only what a crash tore is left of it
    recovered = Recovery(
        data, index, metadata, drops_foreign=drops_foreign, reads_all=saved.needs_whole_log
    ).run()
    for path in (*data.ignored_files(), *index.ignored_files()):
        text = "%s is no file of this log; it is ignored, and renamed once a file needs its name"
        logger.warning(text, path)
    _check_memberships(directory, saved, recovered)
    configs = _recorded_configs(saved, recovered)
    recovered = _with_saved(recovered, [*damaged, *recovered.damaged], configs)
    journaled = GroupInJournal(files, directory, directories.all, identity, saved)
    log = FileLog(data, index, recovered, saved, limits.tail_cache_bytes, journaled)
    durable = saved.checkpoint.point.index if saved.checkpoint is not None else -1
    torn = torn_block(log, durable + 1)
    if torn is not None:
        plan = log.truncate(torn)
        GroupStore().execute([plan], sync=True)
        plan.completed()
    checkpoint = Checkpoint(
        recovered.log_start,
        log.end_point,
        min(saved.checkpoint.committed_index, log.end_index) if saved.checkpoint else -1,
        log.noted_runs(),
    )
    _save_opened(directory, saved, log, checkpoint)
    saved.keep_reserve()
    return log, recovered.report


def _save_opened(
    directory: str, saved: StoreMetadata, log: FileLog, checkpoint: Checkpoint
) -> None:
    """Save what opening found, so that opening after a crash finds the same log.

    On a full disk the older checkpoint may stay: opening finds the same from it, unless it says
    that a removal was under way. Then opening would also remove what is appended from now on.
    """
    before = saved.checkpoint
    try:
        saved.save_damage(log.damaged)
        saved.save_config_entries(log.config_entries())
        saved.write_hint(log.end_point, checkpoint.log_start, durable=True)
        saved.write_checkpoint(checkpoint)
        if not saved.lost and saved.tables.saved_in_one_file is None:
            log.checkpointer.saved(checkpoint)
    except NoSpaceError as error:
        if before is not None and before.is_end:
            raise
        logger.warning("%s: what was found is saved once there is room: %s", directory, error)


def _check_memberships(directory: str, saved: StoreMetadata, recovered: Recovered) -> None:
    """Raise `CorruptionError` if the entries that said who the members are were lost."""
    committed = -1 if saved.checkpoint is None else saved.checkpoint.committed_index
    found = any(index <= committed for index, _ in recovered.config_entries)
    if saved.has_lost_memberships and recovered.log_start.before_begin_index >= 0 and not found:
        path = f"{directory}/{MEMBERSHIP_NAME}"
        raise CorruptionError(
            f"{path} and its copy are lost, and the log begins after the entry that says who the "
            f"members are. Restore one of them. {EMPTYING_IS_SAFE_WHEN}",
            path,
            0,
        )


def _recorded_configs(saved: StoreMetadata, recovered: Recovered) -> list[tuple[int, bytes]]:
    """Return the CONFIG_CHANGE entries in the membership file that still count.

    Without a checkpoint the whole log was read: only what it does not hold comes from the file.
    """
    recorded = saved.load_config_entries()
    if saved.checkpoint is not None:
        return recorded
    begin, damaged = recovered.log_start.before_begin_index, recovered.damaged
    return [pair for pair in recorded if pair[0] <= begin or damaged.range_at(pair[0])]


def _with_saved(
    recovered: Recovered, ranges: list[tuple[int, int]], recorded: list[tuple[int, bytes]]
) -> Recovered:
    """Join damage and memberships that were recorded before with what was found now."""
    first, last = recovered.log_start.before_begin_index + 1, recovered.end.index
    damaged = DamagedRanges(ranges).within(first, last)
    configs = dict([*recorded, *recovered.config_entries])
    return Recovered(
        recovered.log_start,
        recovered.end,
        damaged,
        recovered.report,
        sorted((index, body) for index, body in configs.items() if index <= last),
    )


def open_memory_group(files: FileSystem) -> OpenedGroup:
    """Return an empty group that keeps nothing; `files` gives it a number of its own."""
    return OpenedGroup(
        MemoryLog(),
        HardState(),
        MemoryHardStateStore(),
        -1,
        RecoveryReport(),
        lambda config: DiskState(),
        lambda: None,
        incarnation_number(files.random_bytes(16).hex()),
    )
