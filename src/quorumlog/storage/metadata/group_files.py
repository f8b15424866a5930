"""The records of a node's groups on disk, and the directories of deleted groups.

STORE/GROUP/quorumlog.group                         of a group that is hosted, or just deleted
STORE/quorumlog.deleted/GROUP.IDENTITY/             a deleted group's directory, until it is purged
STORE/quorumlog.deleted/GROUP.IDENTITY/quorumlog.group   its tombstone, for members that were away

A group is deleted once its record says so, whatever a crash leaves to be done: `finish` does it. A
record that cannot be read concerns its group alone.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from quorumlog.model.errors import CorruptionError, StorageError
from quorumlog.model.group_records import IDENTITY_BYTES, GroupRecord, GroupState
from quorumlog.storage.files.os_files import FileSystem, move_aside
from quorumlog.storage.metadata.dual_slot_file import COPY, DualSlotFile

logger = logging.getLogger(__name__)
UNDONE: Final = ".undone"
"""How directories of groups end whose making was undone."""

WITHOUT_IDENTITY: Final = "file"
"""How directories end of deleted groups of the configuration file that were not founded."""

RECORD_NAME: Final = "quorumlog.group"
DELETED_NAME: Final = "quorumlog.deleted"
SLOT_SIZE: Final = 16_384
TOMBSTONES_MAX: Final = 4_096
"""Deleted groups that are remembered; the oldest that are purged are forgotten first."""
REFUSED_MAX: Final = 1_024
"""Groups that were never here and must not be made here; the oldest are forgotten first."""
_RECORD_FILES = frozenset((RECORD_NAME, RECORD_NAME + COPY))
_UNMADE_FILES = _RECORD_FILES | {f"{name}.new" for name in _RECORD_FILES}
"""What the creation of a group may leave that ended before its record was durable."""
_RECORDS: Final = msgspec.msgpack.Decoder(GroupRecord)
NAMED_MAX: Final = 3
"""Files that an error names."""


class OccupiedError(StorageError):
    """The directory of a new group is not empty: what is in it is somebody's."""


@dataclass(frozen=True, slots=True)
class LoadedGroups:
    """What the records of a node say.

    `hosted` are those of groups that are here, `tombstones` those of deleted ones, oldest first.
    The directories of `unmoved` ones are still where they were. Each group that one of these
    concerns must not be opened: `unreadable` maps names to the reason why their record cannot be
    read, `doubtful` maps those of which only a tombstone is here that cannot be read.
    """

    hosted: list[GroupRecord]
    tombstones: list[GroupRecord]
    unmoved: list[GroupRecord]
    unreadable: dict[str, str]
    doubtful: dict[str, str]


class GroupFiles:
    """Reads and writes the records below a node's directory; its methods may wait for the disk.

    `remove_tree` removes a directory with all that is in it.
    """

    def __init__(self, files: FileSystem, base: str, remove_tree: Callable[[str], None]) -> None:
        self._files = files
        self._base = base
        self._remove_tree = remove_tree
        self._deleted = f"{base}/{DELETED_NAME}"
        self._lock = threading.Lock()

    def load(self, now_ms: int) -> LoadedGroups:
        """Return what the records say; `now_ms` is the wall clock's time. Nothing is moved yet.

        A directory without a record stays, even an empty one: it may be somebody's, such as a mount
        point or `lost+found`.
        """
        files, found = self._files, LoadedGroups([], [], [], {}, {})
        for name in files.names(self._base):
            directory = f"{self._base}/{name}"
            if name == DELETED_NAME or not files.is_directory(directory):
                continue
            try:
                record = self._read(directory)
            except StorageError as error:
                found.unreadable[name] = f"{error}. It may say that the group was deleted"
                continue
            if record is not None and record.group != name:
                text = "%s is ignored: it is a copy of the files of group %r"
                logger.warning(text, directory, record.group)
            elif record is not None and record.state is GroupState.DELETED:
                found.unmoved.append(record)
            elif record is not None:
                found.hosted.append(record)
        for name in files.names(self._deleted):
            self._load_tombstone(name, now_ms, found)
        found.tombstones.extend(found.unmoved)
        found.tombstones.sort(key=lambda record: record.deleted_ms)
        return found

    def _load_tombstone(self, name: str, now_ms: int, found: LoadedGroups) -> None:
        directory, is_undone = f"{self._deleted}/{name}", name.endswith(UNDONE)
        try:
            record = self._read(directory)
            if record is None or is_undone:
                self._remove_tree(directory)  # it was being forgotten or undone
            elif record.state is GroupState.DELETED:
                found.tombstones.append(record)
            else:
                text = "%s is ignored: it has the files of a group that was not deleted"
                logger.warning(text, directory)
        except StorageError as error:
            logger.error("%s: %s", directory, error)
            group, identity = _named(name)
            if not group or is_undone:
                return
            if not self._files.is_directory(f"{self._base}/{group}"):
                found.doubtful[group] = f"{error}. It may say that group {group} was deleted"
            found.tombstones.append(
                GroupRecord(
                    group=group,
                    identity=identity,
                    state=GroupState.DELETED,
                    deleted_ms=now_ms,
                    was_refused=True,
                )
            )

    def finish(self, found: LoadedGroups) -> LoadedGroups:
        """Finish the deletions that a crash interrupted; return what is so afterwards.

        What only the journal holds has to be in the groups' files before: it cannot follow them.
        """
        unmoved = []
        for record in found.unmoved:
            try:
                self.bury(record)
            except StorageError as error:
                text = "the files of deleted group %s cannot be moved, and will be tried again: %s"
                logger.error(text, record.group, error)
                unmoved.append(record)
        return replace(found, unmoved=unmoved)

    def _read(self, directory: str) -> GroupRecord | None:
        file = self._file(directory)
        raw = file.read(read_only=True)
        record = None if raw is None else self._decode(directory, raw)
        if record is not None and record.state is GroupState.DELETED:
            file.read()  # what follows from it cannot be undone: it must be durable
        return record

    def _decode(self, directory: str, raw: bytes) -> GroupRecord:
        try:
            return _RECORDS.decode(raw)
        except msgspec.MsgspecError as error:
            path = f"{directory}/{RECORD_NAME}"
            raise CorruptionError(
                f"{path}: {error}; a newer version may have written it", path, 0
            ) from error

    def _file(self, directory: str) -> DualSlotFile:
        return DualSlotFile(self._files, directory, RECORD_NAME, slot_size=SLOT_SIZE, mirrored=True)

    def save(self, record: GroupRecord) -> None:
        """Make the record of a group that is here durable, also one that says that it is deleted.

        Its files stay where they are until `bury`.
        """
        self._write(f"{self._base}/{record.group}", record)

    def create(self, record: GroupRecord) -> None:
        """Make the record of a new group durable. Its directory is made, or is there and empty.

        If it fails, all is as before. Raises `OccupiedError` when the directory holds anything.
        """
        directory = f"{self._base}/{record.group}"
        is_new = not self._files.is_directory(directory)
        strange = sorted(set(self._files.names(directory)) - _UNMADE_FILES)
        if strange or (is_new and self._files.exists(directory)):
            what = ", ".join(strange[:NAMED_MAX]) + (", …" if strange[NAMED_MAX:] else "")
            raise OccupiedError(
                f"{directory} is there already"
                + (f", and not empty ({what})" if strange else ", and no directory")
                + ": a new group begins with an empty directory; move it away, or name the group "
                "otherwise"
            )
        try:
            self._write(directory, record)
        except StorageError:
            self._remove_unmade(directory, is_new=is_new)
            raise

    def _remove_unmade(self, directory: str, *, is_new: bool) -> None:
        """Remove what is there of a record that could not be written."""
        try:
            for name in _UNMADE_FILES.intersection(self._files.names(directory)):
                self._files.remove(f"{directory}/{name}")
            if is_new:
                self._remove_tree(directory)
        except StorageError as error:
            logger.warning("%s cannot be removed: %s", directory, error)

    def undo(self, record: GroupRecord) -> None:
        """Remove the directory of a group that was just made and cannot be opened.

        Nothing is remembered of it: that it was deleted would be learned by other members.
        """
        source, aside = f"{self._base}/{record.group}", f"{self._grave(record)}{UNDONE}"
        self._make_deleted()
        self._remove_tree(aside)
        if self._files.is_directory(source):
            self._files.replace(source, aside)
        self._files.sync_directory(self._deleted)
        self._files.sync_directory(self._base)
        self._remove_tree(aside)

    def _write(self, directory: str, record: GroupRecord) -> None:
        raw = record.encode()
        self._files.make_directory(directory)
        file = self._file(directory)
        file.read_or_lose()  # its number goes on from there
        file.write(raw)

    # -- deletion -----------------------------------------------------------------------------

    def bury(self, record: GroupRecord) -> None:
        """Move the directory of a deleted group out of the way of a successor of that name.

        It may be repeated, whatever failed before.
        """
        source, target = f"{self._base}/{record.group}", self._grave(record)
        self._make_deleted()
        if self._files.is_directory(source):
            if self._files.exists(target):  # refused before, then here all the same
                move_aside(self._files, target)
            self._files.replace(source, target)
        elif not self._files.is_directory(target):
            self._write(target, record)  # somebody removed it: what is remembered stays
        self._files.sync_directory(self._deleted)
        self._files.sync_directory(self._base)

    def _make_deleted(self) -> None:
        """Make the directory of deleted groups; groups are deleted by several threads."""
        with self._lock:
            self._files.make_directory(self._deleted)

    def purge(self, record: GroupRecord) -> None:
        """Remove all files of a deleted group but its tombstone, which says so."""
        directory = self._grave(record)
        self._files.make_directory(directory)
        for name in self._files.names(directory):
            if name not in _RECORD_FILES:
                self._remove_tree(f"{directory}/{name}")
        self._files.sync_directory(directory)
        self._write(directory, record)

    def refuse(self, record: GroupRecord) -> None:
        """Make it durable that a group that is not here must never be made here."""
        self._make_deleted()
        self._write(self._grave(record), record)

    def forget(self, record: GroupRecord) -> None:
        """Remove a tombstone, and whatever is left of its group."""
        self._remove_tree(self._grave(record))
        self._files.sync_directory(self._deleted)

    def _grave(self, record: GroupRecord) -> str:
        return f"{self._deleted}/{record.group}.{record.identity.hex() or WITHOUT_IDENTITY}"


def _named(directory: str) -> tuple[str, bytes]:
    """Return the group and identity after which a tombstone's directory is named; "": none."""
    group, _, identity = directory.rpartition(".")
    if identity == WITHOUT_IDENTITY:
        return group, b""
    try:
        known = bytes.fromhex(identity)
    except ValueError:
        return "", b""
    return (group, known) if len(known) == IDENTITY_BYTES else ("", b"")
