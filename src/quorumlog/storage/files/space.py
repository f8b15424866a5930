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
    base_space = files.space(base)
    data_space = min(
        (files.space(path) for path in data_directories), key=used_ratio, default=base_space
    )
    ratios = [
        used_ratio(space)
        for space in (base_space, data_space)
        if space.free_bytes < config.disk_ample_bytes
    ]
    highest = max(ratios, default=0.0)
    forced = config.disk_space_ratio_to_force_clean
    full = min(FULL_RATIO_MAX, forced + FULL_ABOVE_FORCE_CLEAN)
    least_free = min(base_space.free_bytes, data_space.free_bytes)
    file_bytes = config.data_file_bytes + config.mapped_file_size_for_entry_index
    text = ""
    if highest > full:
        text = f"the disk is used to {highest:.0%}, more than {full:.0%}"
    elif least_free < config.disk_reserve_bytes:
        text = f"the disk has {least_free} bytes left, less than {config.disk_reserve_bytes}"
    return DiskState(
        text,
        highest > config.disk_space_ratio_to_check_expired,
        highest > forced and config.enable_disk_force_clean,
        bool(text) or least_free < 2 * file_bytes + config.disk_reserve_bytes,
    )
