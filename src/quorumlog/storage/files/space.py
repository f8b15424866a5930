"""How full disks are, and what follows from it (spec 20 section 13)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from quorumlog.model.config import GroupConfig
from quorumlog.storage.files.os_files import FileSystem, Space

FULL_ABOVE_FORCE_CLEAN = 0.05
FULL_RATIO_MAX = 0.95


def used_ratio(space: Space) -> float:
    """Return the used share of a disk, rounded up to whole percents."""
    if not space.total_bytes:
        return 1.0
    return math.ceil((space.total_bytes - space.free_bytes) * 100 / space.total_bytes) / 100


@dataclass(frozen=True, slots=True)
class DiskState:
    """What a group's disks allow. Texts are empty where there is nothing to say.

    `deletes_old`: old files may go at any hour. `deletes_any`: files of any age may go.
    `is_tight`: append only into files that are made already.
    """

    full_text: str = ""
    deletes_old: bool = False
    deletes_any: bool = False
    is_tight: bool = False


def read_disk_state(
    files: FileSystem, base: str, data_directories: Sequence[str], config: GroupConfig
) -> DiskState:
    """Return the state of a group: of the base directory and the emptiest data directory."""
    spaces = {path: files.space(path) for path in (base, *data_directories)}
    emptiest = min(data_directories, key=lambda path: used_ratio(spaces[path]), default=base)
    measured = {path: spaces[path] for path in (base, emptiest)}
    ratios = {
        path: used_ratio(space)
        for path, space in measured.items()
        if space.free_bytes < config.disk_ample_bytes
    }
    highest = max(ratios.values(), default=0.0)
    forced = config.disk_space_ratio_to_force_clean
    full = min(FULL_RATIO_MAX, forced + FULL_ABOVE_FORCE_CLEAN)
    least_free, scarce = min((space.free_bytes, path) for path, space in measured.items())
    file_bytes = config.data_file_bytes + config.mapped_file_size_for_entry_index
    text = ""
    if highest > full:
        used = max(ratios, key=lambda path: ratios[path])
        text = f"the disk of {used} is used to {highest:.0%}, more than {full:.0%}"
    elif least_free < config.disk_reserve_bytes:
        reserved = config.disk_reserve_bytes
        text = f"the disk of {scarce} has {least_free} bytes left, less than {reserved}"
    return DiskState(
        text,
        highest > config.disk_space_ratio_to_check_expired,
        highest > forced and config.enable_disk_force_clean,
        bool(text) or least_free < 2 * file_bytes + config.disk_reserve_bytes,
    )
