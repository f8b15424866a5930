"""What groups of tests have in common: files that fill no disk, on a disk that is not theirs alone.

The machine that runs the tests may be used to any share, so that only what is free counts. Tests
about full disks give their nodes other disks.
"""

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
