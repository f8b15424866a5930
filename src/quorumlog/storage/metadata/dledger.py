"""Files that only stores of DLedger have (spec 20 sections 3 and 9)."""

import re

from quorumlog.storage.files.os_files import FileSystem

CHECKPOINT_NAME = "checkpoint"
BYTES_MAX = 4_096
_COMMITTED = re.compile(r"^\s*committedIndex\s*=\s*(\d+)\s*$", re.MULTILINE)


def committed_index_of(files: FileSystem, directory: str) -> int:
    """Return the committed index that version 0.2.7 wrote about every three seconds; -1 if none.

    It is a lower bound, written without a checksum: an unreadable file says nothing.
    """
    path = f"{directory}/{CHECKPOINT_NAME}"
    if not files.exists(path):
        return -1
    file = files.open(path, writable=False)
    try:
        text = file.read_at(BYTES_MAX, 0).decode("utf-8", errors="replace")
    finally:
        file.close()
    found = _COMMITTED.search(text)
    return int(found[1]) if found else -1
