"""What groups of tests have in common: files that fill no disk, on a disk that is not theirs alone.

The machine that runs the tests may be used to any share, so that only what is free counts. Tests
about full disks give their nodes other disks.
"""

import shutil
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

MEMORY = Path("/dev/shm")
MEMORY_FREE_MIN = 4 << 30
"""A directory in memory is used only if it has so much room."""
SMALL_FILES = {
    "mapped_file_size_for_entry_data": 8 << 20,
    "mapped_file_size_for_entry_index": 32 * 1024,
    "disk_ample_bytes": 1 << 30,
}
SMALL_SETTINGS = {
    "mappedFileSizeForEntryData": SMALL_FILES["mapped_file_size_for_entry_data"],
    "mappedFileSizeForEntryIndex": SMALL_FILES["mapped_file_size_for_entry_index"],
    "diskAmpleBytes": SMALL_FILES["disk_ample_bytes"],
}
"""The same for groups that are made while nodes run."""


@contextmanager
def directory_in_memory(directory):
    """Yield a directory whose disk never stalls where there is one, else one in `directory`.

    A leader that has no peer steps down when its disk stalls, as disks of busy machines do.
    """
    is_roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_FREE_MIN
    with TemporaryDirectory(dir=MEMORY if is_roomy else directory) as path:
        yield Path(path)
