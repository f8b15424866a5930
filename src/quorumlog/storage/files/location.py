"""Says where a group's files are, and whether this process sees the same files, not just a path.

Two processes see the same files if one kernel knows their directories by the same numbers. A path
may lead elsewhere in another container, and a file system that is mounted on several machines may
show what another one wrote a while ago.
"""

from collections.abc import Sequence

from quorumlog.model.errors import StorageError
from quorumlog.model.messages.client import StoreLocation
from quorumlog.storage.files.os_files import boot_id, device_and_inode, may_list


def location_of(paths: Sequence[str]) -> StoreLocation | None:
    """Return where directories are (by absolute paths); None if it is not known on which machine.

    Raises `StorageError` if there is no such directory.
    """
    boot = boot_id()
    if not boot:
        return None
    return StoreLocation(boot, [(path, *device_and_inode(path)) for path in paths])


def is_here(location: StoreLocation) -> bool:
    """Whether the paths here name a group's own directories, and this process may read them."""
    if location.machine != boot_id():
        return False
    try:
        return all(
            device_and_inode(path) == (device, inode) and may_list(path)
            for path, device, inode in location.directories
        )
    except StorageError:
        return False
