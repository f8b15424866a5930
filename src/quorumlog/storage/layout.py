"""Directories of a node and of a group: names, the lock, and whose data it is."""

from collections.abc import Sequence

import msgspec
from isal.isal_zlib import crc32

from quorumlog.model.errors import CorruptionError, StorageError
from quorumlog.storage.file_sequence import stored_file_size
from quorumlog.storage.files import FileSystem
from quorumlog.storage.hard_state import HardStateStore
from quorumlog.storage.space import used_ratio

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
    crc: int = 0
    """CRC-32 over all other fields; 0 in directories of early versions, which had none."""

    def checksum(self) -> int:
        """Return what `crc` should be."""
        return crc32(msgspec.json.encode(msgspec.structs.replace(self, crc=0)))


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


class DataPlaces:
    """The directories that data files are spread over (spec 20 section 14).

    File number n goes to `sorted(available)[n mod count]`; available are those neither read-only
    nor fuller than `ratio_max`, and if there is none, those not read-only.
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
        self._ratio_max = ratio_max
        self.all = list(dict.fromkeys([*paths, *read_only]))

    def place(self, number: int) -> str:
        """Return the directory for a new file."""
        available = self._writable
        if len(available) > 1:
            emptier = [
                path for path in available if used_ratio(self._files.space(path)) <= self._ratio_max
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
    for path in (directory, *data_directories, f"{directory}/{INDEX}"):
        files.make_directory(path)
        files.sync_directory(path)  # names made just before a crash count from now on
    path = f"{directory}/{IDENTITY_NAME}"
    if files.exists(path):
        identity = read_identity(files, directory)
        if (identity.group, identity.self_id) != (group, self_id):
            raise StorageError(
                f"{directory} holds data of group {identity.group!r}, member {identity.self_id!r}, "
                f"not of group {group!r}, member {self_id!r}; point storeBaseDir elsewhere"
            )
        return identity
    HardStateStore(files, directory).establish()
    identity = Identity(
        group,
        self_id,
        files.random_bytes(16).hex(),
        stored_file_size(files, data_directories) or data_file_bytes,
        stored_file_size(files, [f"{directory}/{INDEX}"]) or index_file_bytes,
    )
    identity = msgspec.structs.replace(identity, crc=identity.checksum())
    beside = f"{path}.new"
    file = files.open(beside, create=True)
    file.resize(0)
    file.write_at([msgspec.json.encode(identity)], 0)
    file.sync()
    file.close()
    files.replace(beside, path)
    files.sync_directory(directory)
    return identity


def read_identity(files: FileSystem, directory: str) -> Identity:
    """Return whose data a group directory holds.

    Raises `CorruptionError` when the file that says so is damaged.
    """
    path = f"{directory}/{IDENTITY_NAME}"
    file = files.open(path, writable=False)
    try:
        identity = msgspec.json.decode(file.read_at(IDENTITY_BYTES_MAX, 0), type=Identity)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(f"{path}: {error}; restore the file", path, 0) from error
    finally:
        file.close()
    if identity.crc and identity.crc != identity.checksum():
        raise CorruptionError(f"{path}: its CRC does not fit; restore the file", path, 0)
    return identity
