"""Directories of a node and of a group: names, the lock, and whose data it is."""

import logging
import posixpath
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec
from isal.isal_zlib import crc32

from quorumlog.model.block import INDEX_RECORD_SIZE
from quorumlog.model.config import CLUSTER_ID_NAME
from quorumlog.model.errors import (
    CorruptionError,
    StorageError,
    StoreLockedError,
    UnsettledError,
)
from quorumlog.storage.files.file_sequence import existing_file_size
from quorumlog.storage.files.os_files import FileSystem, move_aside, not_a_file
from quorumlog.storage.files.reserve import FILE_NAME as RESERVE_NAME
from quorumlog.storage.files.reserve import Reserve
from quorumlog.storage.files.space import used_ratio
from quorumlog.storage.log.hard_state import FILE_NAME as STATE_NAME
from quorumlog.storage.log.hard_state import HardStateStore
from quorumlog.storage.metadata.advice import EMPTYING_IS_SAFE_WHEN
from quorumlog.storage.metadata.checkpoint import CHECKPOINT_NAME, DURABLE_NAME
from quorumlog.storage.metadata.config_entries import FILE_NAME as MEMBERSHIP_NAME
from quorumlog.storage.metadata.damaged_ranges import FILE_NAME as DAMAGE_NAME
from quorumlog.storage.metadata.dledger import ORIGINAL_NAMES
from quorumlog.storage.metadata.dual_slot_file import COPY, restore
from quorumlog.storage.metadata.tables_file import FILE_NAME as TABLES_NAME

logger = logging.getLogger(__name__)

DATA = "data"
INDEX = "index"
LOCK_NAME = "quorumlog.lock"
IDENTITY_NAME = "quorumlog.identity"
IDENTITY_BYTES_MAX = 4_096
CLUSTER_ID_BYTES_MAX = 256
_KNOWN_FROM_NOWHERE_ELSE = (STATE_NAME, IDENTITY_NAME)
_FOUND_AGAIN = (MEMBERSHIP_NAME, TABLES_NAME, DAMAGE_NAME)
_SMALL_FILES = (
    *(name + end for name in (*_KNOWN_FROM_NOWHERE_ELSE, *_FOUND_AGAIN) for end in ("", COPY)),
    *(CHECKPOINT_NAME, DURABLE_NAME, RESERVE_NAME),
)


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose data a group directory holds, and how large its files are; kept in two files.

    A wiped disk comes back as a new incarnation.
    """

    group: str
    self_id: str
    incarnation: str
    data_file_bytes: int
    index_file_bytes: int
    format: int = 1
    crc: int = 0
    """CRC-32 over all other fields; 0 in directories of early versions, which had none."""

    def checksum(self) -> int:
        """Return what `crc` should be."""
        return crc32(msgspec.json.encode(msgspec.structs.replace(self, crc=0)))


class UnsettledIdentity(Identity, frozen=True, forbid_unknown_fields=True):
    """That of a group of which a journal holds entries that its own files may lack.

    Versions without a journal refuse a directory that says so. `data_directories` are where its
    data files are.
    """

    journal_path: str = ""
    """Directory of the journal; empty: in the node's directory."""
    journal: int = 0
    """Number of the journal."""
    data_directories: list[str] = []


_IDENTITIES: Final = msgspec.json.Decoder(Identity)
_UNSETTLED: Final = msgspec.json.Decoder(UnsettledIdentity)


class NodeDirectory:
    """A node's data directory, held by one process at a time.

    Raises `StoreLockedError` when another process holds it.
    """

    def __init__(self, files: FileSystem, path: str) -> None:
        self.path = path
        files.make_directory(path)
        self._files = files
        self._lock = files.lock(f"{path}/{LOCK_NAME}")

    def claim_for(self, cluster_id: str) -> None:
        """Check that the data are of a cluster; note that they are, if nothing says so yet.

        Raises `StorageError` if they are another's, or that cannot be known or noted.
        """
        path = f"{self.path}/{CLUSTER_ID_NAME}"
        if not self._files.exists(path):
            _replace_file(self._files, self.path, path, f"{cluster_id}\n".encode())
            return
        file = self._files.open(path, writable=False)
        try:
            known = file.read_at(CLUSTER_ID_BYTES_MAX, 0).decode(errors="replace").strip()
        finally:
            file.close()
        if known != cluster_id:
            raise StorageError(
                f"the data in {self.path} are of cluster {known!a}, and the node's certificate is "
                f"of cluster {cluster_id!a}: start the node with a certificate of the former, or "
                "with an empty storeBaseDir. If it is sure that all of these data are to be the "
                f"latter's, as its authority was made anew, remove {path} on each node"
            )

    def close(self) -> None:
        """Let other processes have it."""
        self._lock.release()


class DataDirectories:
    """The directories that data files are spread over (spec 20 section 14).

    File number n goes to `sorted(available)[n mod count]`; available are those neither read-only
    nor fuller than `ratio_max`, which may be set, and if there is none, those not read-only.
    """

    def __init__(
        self,
        files: FileSystem,
        paths: Sequence[str],
        read_only: Sequence[str],
        ratio_max: float,
    ) -> None:
        self._files = files
        self._writable = sorted(set(paths) - set(read_only))
        self.ratio_max = ratio_max
        self.all = list(dict.fromkeys([*paths, *read_only]))

    def directory_for(self, number: int) -> str:
        """Return the directory for a new file."""
        available = self._writable
        if len(available) > 1:
            emptier = [
                path for path in available if used_ratio(self._files.space(path)) <= self.ratio_max
            ]
            available = emptier or available
        return available[number % len(available)]


def claim_group_directory(
    files: FileSystem,
    directory: str,
    data_directories: Sequence[str],
    *,
    group: str,
    self_id: str,
    data_file_bytes: int,
    index_file_bytes: int,
) -> Identity:
    """Make a group directory if it is new, and check that its data belongs here.

    The sizes are those for new files; files that are there already keep theirs.
    Raises `StorageError` when it is another group's or member's.
    """
    paths = [directory, *data_directories, f"{directory}/{INDEX}"]
    for path in paths:
        if not files.is_directory(path):
            files.make_directory(path)
    parents = [posixpath.dirname(path.rstrip("/")) or "." for path in paths]
    for path in dict.fromkeys([*parents, *paths]):
        files.sync_directory(path)  # names made just before a crash count from now on
    clear_obstacles(files, directory)
    if has_identity(files, directory):
        identity = read_identity(files, directory)
        if (identity.group, identity.self_id) != (group, self_id):
            raise StorageError(
                f"{directory} holds data of group {identity.group!r}, member {identity.self_id!r}, "
                f"not of group {group!r}, member {self_id!r}; point storeBaseDir elsewhere"
            )
        require_settled(directory, identity)
        _restore_identity(files, directory, identity)
        return identity
    if files.exists(f"{directory}/{CHECKPOINT_NAME}"):
        raise _identity_error(directory, "it is gone, and so is its copy")
    HardStateStore(files, directory).establish()
    index_paths = [f"{directory}/{INDEX}"]
    identity = Identity(
        group,
        self_id,
        files.random_bytes(16).hex(),
        existing_file_size(files, data_directories) or data_file_bytes,
        existing_file_size(files, index_paths, record_bytes=INDEX_RECORD_SIZE) or index_file_bytes,
    )
    identity = msgspec.structs.replace(identity, crc=identity.checksum())
    _write_identities(files, directory, identity)
    return identity


def incarnation_number(text: str) -> int:
    """Return the number, never 0, that stands for an incarnation in messages and memberships."""
    return int(text[:15], 16) + 1


def require_settled(directory: str, identity: Identity) -> None:
    """Raise `UnsettledError` if a journal holds entries that the group's own files may lack."""
    if isinstance(identity, UnsettledIdentity):
        raise UnsettledError(
            f"{directory}: its newest entries may be only in the journal of its node, which did "
            f"not stop cleanly. Start the node, or run: quorumlog store settle "
            f"{directory.rstrip('/').rpartition('/')[0] or '.'}"
        )


def require_readable(files: FileSystem, directory: str) -> None:
    """Raise `UnsettledError` if a group's files may lack entries: its node is down, and crashed.

    While the node runs, its files show everything.
    """
    if not has_identity(files, directory):
        return
    try:
        identity = read_identity(files, directory)
    except CorruptionError:
        return  # who needs to know whose data it is says so
    if isinstance(identity, UnsettledIdentity):
        try:
            files.lock(directory).release()
        except StoreLockedError:
            return
        require_settled(directory, identity)


def note_unsettled(
    files: FileSystem,
    directory: str,
    journal_path: str,
    journal: int,
    data_directories: Sequence[str],
) -> None:
    """Note durably that a journal holds entries which the files of a group may lack."""
    known = read_identity(files, directory)
    noted = UnsettledIdentity(
        known.group,
        known.self_id,
        known.incarnation,
        known.data_file_bytes,
        known.index_file_bytes,
        known.format,
        journal_path=journal_path,
        journal=journal,
        data_directories=list(data_directories),
    )
    noted = msgspec.structs.replace(noted, crc=noted.checksum())
    reserve = Reserve(files, directory)
    reserve.use(lambda: _write_identities(files, directory, noted))


def note_settled(files: FileSystem, directory: str) -> None:
    """Note durably that the files of a group hold everything; nothing happens if they say so."""
    known = read_identity(files, directory)
    if not isinstance(known, UnsettledIdentity):
        return
    noted = Identity(
        known.group,
        known.self_id,
        known.incarnation,
        known.data_file_bytes,
        known.index_file_bytes,
        known.format,
    )
    noted = msgspec.structs.replace(noted, crc=noted.checksum())
    reserve = Reserve(files, directory)
    reserve.use(lambda: _write_identities(files, directory, noted))


def _write_identities(files: FileSystem, directory: str, identity: Identity) -> None:
    for path in reversed(_identity_paths(directory)):  # what is looked for comes last
        _write_identity(files, directory, path, identity)


def clear_obstacles(files: FileSystem, directory: str) -> None:
    """Rename anything that is in the place of a small file; that file then counts as lost.

    Raises `NotAFileError`, and moves nothing, if the file has no other copy.
    """
    for name in _KNOWN_FROM_NOWHERE_ELSE:
        paths = (f"{directory}/{name}", f"{directory}/{name}{COPY}")
        obstacles = [path for path in paths if files.obstacle(path)]
        whole = [path for path in paths if path not in obstacles and files.exists(path)]
        if obstacles and not whole:
            raise not_a_file(obstacles[0], files.obstacle(obstacles[0]))
    names = (*_SMALL_FILES, *(ORIGINAL_NAMES if has_identity(files, directory) else ()))
    for name in names:
        for path in (f"{directory}/{name}", f"{directory}/{name}.new"):
            if files.obstacle(path):
                move_aside(files, path)


def _identity_paths(directory: str) -> tuple[str, str]:
    path = f"{directory}/{IDENTITY_NAME}"
    return path, path + COPY


def has_identity(files: FileSystem, directory: str) -> bool:
    """Whether a group directory is one of ours, and not DLedger's or new."""
    return any(files.exists(path) for path in _identity_paths(directory))


def read_identity(files: FileSystem, directory: str) -> Identity:
    """Return whose data a group directory holds.

    Raises `CorruptionError` when both files that say so are damaged or gone.
    """
    reasons = []
    for path in _identity_paths(directory):
        found = _identity_at(files, path)
        if isinstance(found, Identity):
            return found
        reasons.append(found)
    raise _identity_error(directory, f"{reasons[0]}; its copy: {reasons[1]}")


def damaged_identities(files: FileSystem, directory: str) -> list[tuple[str, str]]:
    """Return path and reason of each file that says whose data it is, and is damaged."""
    found = [(path, _identity_at(files, path)) for path in _identity_paths(directory)]
    return [
        (path, reason) for path, reason in found if isinstance(reason, str) and files.exists(path)
    ]


def _identity_at(files: FileSystem, path: str) -> Identity | str:
    """Return what a file says, or why it does not."""
    if obstacle := files.obstacle(path):
        return f"it is {obstacle}, not a file; move it away"
    if not files.exists(path):
        return "it is gone"
    file = files.open(path, writable=False)
    try:
        identity = _decoded(file.read_at(IDENTITY_BYTES_MAX, 0))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return str(error)
    finally:
        file.close()
    if identity.crc and identity.crc != identity.checksum():
        return "its CRC does not fit"
    return identity


def _decoded(raw: bytes) -> Identity:
    try:
        return _IDENTITIES.decode(raw)
    except msgspec.ValidationError:
        return _UNSETTLED.decode(raw)


def _restore_identity(files: FileSystem, directory: str, identity: Identity) -> None:
    """Make both files say the same; directories of earlier versions have one."""
    first, _ = _identity_paths(directory)
    for path in _identity_paths(directory):
        if _identity_at(files, path) != identity:
            if path == first or files.exists(path):
                logger.warning("%s was damaged; it is restored from its other copy", path)
            write = partial(_write_identity, files, directory, path, identity)
            restore(path, partial(Reserve(files, directory).use, write))


def _write_identity(files: FileSystem, directory: str, path: str, identity: Identity) -> None:
    _replace_file(files, directory, path, msgspec.json.encode(identity))


def _replace_file(files: FileSystem, directory: str, path: str, content: bytes) -> None:
    beside = f"{path}.new"
    file = files.open(beside, create=True)
    try:
        file.resize(0)
        file.write_at([content], 0)
        file.sync()
    finally:
        file.close()
    files.replace(beside, path)
    files.sync_directory(directory)


def _identity_error(directory: str, reason: str) -> CorruptionError:
    path = f"{directory}/{IDENTITY_NAME}"
    return CorruptionError(
        f"{path}: {reason}. Which incarnation of its member this replica is, is not known any "
        f"more. Restore the file from the moment the node stopped. {EMPTYING_IS_SAFE_WHEN}",
        path,
        0,
    )
