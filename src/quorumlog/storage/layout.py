"""Directories of a node and of a group: names, the lock, and whose data it is."""

import msgspec

from quorumlog.model.errors import CorruptionError, StorageError
from quorumlog.storage.file_sequence import stored_file_size
from quorumlog.storage.files import FileSystem

DATA = "data"
INDEX = "index"
LOCK_NAME = "quorumlog.lock"
IDENTITY_NAME = "quorumlog.identity"
IDENTITY_BYTES_MAX = 4_096


class Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose data a group directory holds, and how large its files are.

    A wiped disk comes back as a new incarnation.
    """

    group: str
    self_id: str
    incarnation: str
    data_file_bytes: int
    index_file_bytes: int
    format: int = 1


class NodeDirectory:
    """A node's data directory, held by one process at a time.

    Raises `StoreLockedError` when another process holds it.
    """

    def __init__(self, files: FileSystem, path: str) -> None:
        self.path = path
        files.make_directory(path)
        self._lock = files.lock(f"{path}/{LOCK_NAME}")

    def close(self) -> None:
        """Let other processes have it."""
        self._lock.release()


def claim_group_directory(
    files: FileSystem,
    directory: str,
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
    for name in ("", f"/{DATA}", f"/{INDEX}"):
        files.make_directory(directory + name)
        files.sync_directory(directory + name)  # names made just before a crash count from now on
    path = f"{directory}/{IDENTITY_NAME}"
    if files.exists(path):
        identity = _read_identity(files, path)
        if (identity.group, identity.self_id) != (group, self_id):
            raise StorageError(
                f"{directory} holds data of group {identity.group!r}, member {identity.self_id!r}, "
                f"not of group {group!r}, member {self_id!r}; point storeBaseDir elsewhere"
            )
        return identity
    identity = Identity(
        group,
        self_id,
        files.random_bytes(16).hex(),
        stored_file_size(files, f"{directory}/{DATA}") or data_file_bytes,
        stored_file_size(files, f"{directory}/{INDEX}") or index_file_bytes,
    )
    beside = f"{path}.new"
    file = files.open(beside, create=True)
    file.resize(0)
    file.write_at([msgspec.json.encode(identity)], 0)
    file.sync()
    file.close()
    files.replace(beside, path)
    files.sync_directory(directory)
    return identity


def _read_identity(files: FileSystem, path: str) -> Identity:
    file = files.open(path, writable=False)
    try:
        return msgspec.json.decode(file.read_at(IDENTITY_BYTES_MAX, 0), type=Identity)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"{path}: {error}; restore the file", path, 0) from error
    finally:
        file.close()
