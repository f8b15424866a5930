"""Bringing a journal's entries into the groups' own files after a crash.

This happens before any group is opened. Afterwards a group's files hold everything, and opening
them needs to know nothing of a journal.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from quorumlog.model.config import JOURNAL_NAME
from quorumlog.model.errors import CorruptionError, StorageError
from quorumlog.storage.files.file_sequence import FileSequence
from quorumlog.storage.files.os_files import FileSystem
from quorumlog.storage.files.sequence_file import SequenceFile
from quorumlog.storage.journal.reader import JournalContent, read_journal
from quorumlog.storage.journal.records import Item
from quorumlog.storage.journal.segments import is_journal_file, remove_segments
from quorumlog.storage.journal.writer import LOCK_NAME
from quorumlog.storage.log.layout import (
    DATA,
    DataDirectories,
    UnsettledIdentity,
    clear_obstacles,
    has_identity,
    incarnation_number,
    note_settled,
    read_identity,
)
from quorumlog.storage.log.layout import LOCK_NAME as NODE_LOCK_NAME
from quorumlog.storage.metadata.advice import EMPTYING_IS_SAFE_WHEN, ONLY_MEMBER
from quorumlog.storage.metadata.checkpoint import CHECKPOINT_NAME, DURABLE_NAME, LogPoint
from quorumlog.storage.metadata.store_metadata import StoreMetadata


@dataclass(slots=True)
class Settled:
    """What became of the groups of a node that used a journal, by directory.

    `groups`: how many of the journal's bytes were written to the group's files. `failed`: why it
    could not be done; the journal is kept for them, and they cannot be opened. `lost`: those of
    them whose journal cannot be read any more, whatever is tried.
    """

    groups: dict[str, int] = field(default_factory=dict)
    failed: dict[str, StorageError] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)


def why_no_node(files: FileSystem, directory: str, journal_path: str = "") -> str:
    """Return why a directory, or the one given as its journal, is not a node's; "": it is."""
    names = files.names(directory)
    if has_identity(files, directory):
        return f"{directory} is the directory of one group; give the node's directory above it"
    is_node = {NODE_LOCK_NAME, JOURNAL_NAME} & set(names) or any(
        has_identity(files, f"{directory}/{name}") for name in names
    )
    if not is_node:
        return f"{directory} is no node's directory: no group of quorumlog is in it"
    if not journal_path:
        return ""
    strange = [
        name
        for name in files.names(journal_path)
        if name != LOCK_NAME and not is_journal_file(name)
    ]
    if strange:
        return f"{journal_path} is no journal's directory: {strange[0]} is no part of a journal"
    return "" if files.is_directory(journal_path) else f"{journal_path}: no such directory"


def settle_node(files: FileSystem, node_directory: str, journal_path: str = "") -> Settled:
    """Write what only a journal holds to the files of all groups in a node's directory.

    No node may use the directory. It may be repeated after a failure. `journal_path` is where the
    node has its journal, if not in its directory. Raises `StorageError` if a journal is in use.
    """
    result = Settled()
    path = journal_path or f"{node_directory}/{JOURNAL_NAME}"
    unsettled: dict[str, dict[str, UnsettledIdentity]] = {path: {}}
    keeps = False
    for name in files.names(node_directory):
        directory = f"{node_directory}/{name}"
        if not files.is_directory(directory) or not has_identity(files, directory):
            continue
        try:
            identity = read_identity(files, directory)
        except CorruptionError:
            keeps = True  # it may need the journal; opening it says what to do
            continue
        if isinstance(identity, UnsettledIdentity):
            its_path = identity.journal_path or f"{node_directory}/{JOURNAL_NAME}"
            unsettled.setdefault(its_path, {})[directory] = identity
    for path, groups in unsettled.items():
        if files.is_directory(path):
            lock = files.lock(f"{path}/{LOCK_NAME}")
            try:
                _settle_groups(files, path, groups, result)
                if not keeps and not any(directory in result.failed for directory in groups):
                    remove_segments(files, path)
            finally:
                lock.release()
        else:
            _settle_groups(files, path, groups, result)
    return result


def _settle_groups(
    files: FileSystem, path: str, groups: dict[str, UnsettledIdentity], result: Settled
) -> None:
    content: dict[int, JournalContent] = {}
    for directory, identity in groups.items():
        number, is_read = identity.journal, False
        try:
            if number not in content:
                content[number] = read_journal(files, path, number)
            if not content[number].number:
                raise CorruptionError(
                    f"{path}: the journal that this group used is gone, and with it entries that "
                    f"may have been acknowledged. Bring it back, or empty the group's directory. "
                    f"{EMPTYING_IS_SAFE_WHEN}. {ONLY_MEMBER}",
                    path,
                    0,
                )
            is_read = True
            parts = content[number].parts.get(incarnation_number(identity.incarnation), [])
            result.groups[directory] = _Replay(files, directory, identity).run(parts)
            note_settled(files, directory)
        except StorageError as error:
            result.failed[directory] = error
            if isinstance(error, CorruptionError) and not is_read:
                result.lost.append(directory)


class _Replay:
    """Writes a journal's entries to the files of one group, and makes them durable there."""

    def __init__(self, files: FileSystem, directory: str, identity: UnsettledIdentity) -> None:
        self._files = files
        self._directory = directory
        self._identity = identity

    def run(self, parts: Sequence[tuple[int, Item, memoryview]]) -> int:
        """Return how many bytes were written. Raises `StorageError`."""
        clear_obstacles(self._files, self._directory)
        saved = StoreMetadata(self._files, self._directory)
        try:
            return self._replayed(saved, parts)
        finally:
            saved.close()

    def _replayed(self, saved: StoreMetadata, parts: Sequence[tuple[int, Item, memoryview]]) -> int:
        metadata, _ = saved.load()
        number, sequence = saved.journal
        first = sequence if number == self._identity.journal else 0
        valid = [part for part in parts if part[0] >= first]
        log_start = metadata.log_start
        if log_start is None:
            return self._write(valid, 0, 0, is_certain=False)
        durable = log_start.position
        if metadata.checkpoint is not None:
            durable = max(durable, metadata.checkpoint.point.position)
        written = self._write(valid, log_start.position, durable, is_certain=True)
        if valid:
            last = valid[-1][1]
            point = LogPoint(last.index, last.end, last.chain_crc, last.term)
            if metadata.durable is None or point.index > metadata.durable.index:
                saved.write_hint(point, log_start, durable=True)
        return written

    def _write(
        self,
        parts: Sequence[tuple[int, Item, memoryview]],
        origin: int,
        durable: int,
        *,
        is_certain: bool,
    ) -> int:
        """Write all that lies after position `durable`, whatever the files show of it.

        After a failed fsync they may show what is not on the disk. `is_certain`: it is known which
        entries were removed since; else only what the files have, or have nothing instead of, is
        written. Raises `CorruptionError` if they have something else.
        """
        identity = self._identity
        paths = identity.data_directories or [f"{self._directory}/{DATA}"]
        directories = DataDirectories(self._files, paths, (), 1.0)
        data = FileSequence(
            self._files,
            directories.all,
            identity.data_file_bytes,
            directories.directory_for,
        )
        data.load()
        if not len(data):
            data.set_origin(origin)
        touched: dict[int, SequenceFile] = {}
        written = 0
        try:
            for _, item, block in parts:
                if item.position + item.length <= durable:
                    continue
                if not is_certain and not data.has(item.position):
                    continue
                file = data.file_at(item.position)
                if item.position + item.length > file.end:
                    raise CorruptionError(
                        f"{file.path}: entries of the journal do not fit into it: files of "
                        "another size were put here; restore those of this replica",
                        file.path,
                        item.position - file.start,
                    )
                if not is_certain:
                    self._require_same_or_nothing(file, item, block)
                file.writable().write_at([block], item.position - file.start)
                touched[file.start] = file
                written += item.length
            for file in touched.values():
                file.writable().sync()
        finally:
            data.close()
        return written

    def _require_same_or_nothing(self, file: SequenceFile, item: Item, block: memoryview) -> None:
        found = file.writable().read_at(item.length, item.position - file.start)
        if found != bytes(block) and any(found):
            path = f"{self._directory}/{CHECKPOINT_NAME}"
            raise CorruptionError(
                f"{path} and {DURABLE_NAME} are lost, and without them nobody knows whether the "
                f"entries in the journal or those in {file.path} are newer. Restore one of the two "
                f"files. {EMPTYING_IS_SAFE_WHEN}",
                path,
                0,
            )
