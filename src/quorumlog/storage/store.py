"""Opening a group: its directory, hard state and log, in one call."""

from collections.abc import Callable
from dataclasses import dataclass

from quorumlog.model.config import GroupConfig
from quorumlog.model.hard_state import HardState
from quorumlog.model.limits import Limits
from quorumlog.storage.base import Log
from quorumlog.storage.checkpoint import CheckpointFile, DurableHint
from quorumlog.storage.file_log import FileLog
from quorumlog.storage.file_sequence import FileSequence
from quorumlog.storage.files import FileSystem
from quorumlog.storage.hard_state import HardStates, HardStateStore, MemoryHardStateStore
from quorumlog.storage.layout import DATA, INDEX, claim_group_directory
from quorumlog.storage.memory_log import MemoryLog
from quorumlog.storage.plans import GroupStore
from quorumlog.storage.recovery import Recovery, RecoveryReport

__all__ = ["GroupStore", "OpenedGroup", "open_group", "open_memory_group"]


@dataclass(frozen=True, slots=True)
class OpenedGroup:
    """An open group. `committed_index` is a lower bound remembered from before."""

    log: Log
    hard_state: HardState
    hard_states: HardStates
    committed_index: int
    report: RecoveryReport
    close: Callable[[], None]


def open_group(
    files: FileSystem, directory: str, config: GroupConfig, limits: Limits, *, self_id: str
) -> OpenedGroup:
    """Open a group directory, ours or one of the original, and make it usable.

    Raises `CorruptionError` with file and byte when durable bytes are damaged, `StorageError` when
    the directory belongs to someone else or cannot be read or written.
    """
    identity = claim_group_directory(
        files,
        directory,
        group=config.group,
        self_id=self_id,
        data_file_bytes=config.mapped_file_size_for_entry_data,
        index_file_bytes=config.mapped_file_size_for_entry_index,
    )
    hard_states = HardStateStore(files, directory)
    hard_state = hard_states.load()
    data = FileSequence(files, f"{directory}/{DATA}", identity.data_file_bytes)
    index = FileSequence(files, f"{directory}/{INDEX}", identity.index_file_bytes)
    data.load()
    index.load()
    checkpoints, hint = CheckpointFile(files, directory), DurableHint(files, directory)
    checkpoint = checkpoints.load()
    recovered = Recovery(data, index, checkpoint, hint.load()).run()
    hint.write(recovered.end_index, recovered.end_position, durable=True)
    log = FileLog(data, index, recovered, checkpoints, checkpoint, hint, limits.tail_cache_bytes)
    committed = min(checkpoint.committed_index if checkpoint else -1, log.end_index)
    if committed >= 0:
        log.note_committed(committed)

    def close() -> None:
        log.close()
        hard_states.close()

    return OpenedGroup(log, hard_state, hard_states, committed, recovered.report, close)


def open_memory_group(config: GroupConfig, limits: Limits) -> OpenedGroup:
    """Return an empty group that keeps nothing."""
    report = RecoveryReport(0, False, 0, "", 0)
    return OpenedGroup(MemoryLog(), HardState(), MemoryHardStateStore(), -1, report, lambda: None)
