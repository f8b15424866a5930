"""Which parts of a file were written: those that were not are never read when a group is opened."""

import os

from quorumlog.storage.files.extents import written_ranges
from quorumlog.storage.files.os_files import OsFileSystem

MIB = 1 << 20


def made(path):
    """Return a file of 4 MiB with all its room reserved, as those of a log."""
    file = OsFileSystem().open(str(path), create=True)
    file.resize(4 * MIB)
    return file


def keeps_account(path):
    """Whether the file system under a path tells what was written."""
    file = made(path)
    return file.written_ranges(0, 4 * MIB) == []


def is_in(ranges, position):
    return any(begin <= position < end for begin, end in ranges)


def test_every_byte_that_was_written_is_in_a_range_synced_or_not(tmp_path):
    file = made(tmp_path / "data")
    written = [0, 4_095, 70_000, MIB + 17, 4 * MIB - 1]
    for position in written:
        file.write_at([b"x"], position)
    assert all(is_in(file.written_ranges(0, 4 * MIB), position) for position in written)
    file.sync()
    assert all(is_in(file.written_ranges(0, 4 * MIB), position) for position in written)


def test_ranges_are_within_what_was_asked_and_in_order(tmp_path):
    file = made(tmp_path / "data")
    for block in range(0, 4 * MIB, 65_536):
        file.write_at([b"x" * 4_096], block)
    ranges = file.written_ranges(5_000, 3 * MIB)
    flat = [place for pair in ranges for place in pair]
    assert flat == sorted(flat)
    assert flat[0] >= 5_000
    assert flat[-1] <= 3 * MIB
    assert all(is_in(ranges, block) for block in range(65_536, 3 * MIB, 65_536))


def test_more_extents_than_are_listed_count_as_written_to_the_end(tmp_path):
    file = made(tmp_path / "data")
    blocks = list(range(0, 4 * MIB, 3 * 8_192))
    for block in blocks:
        file.write_at([b"x"], block)
        file.sync()
    ranges = file.written_ranges(0, 4 * MIB)
    assert all(is_in(ranges, block) for block in blocks)


def test_reserved_room_that_was_never_written_is_no_range(tmp_path):
    file = made(tmp_path / "data")
    file.write_at([b"x"], 10)
    if keeps_account(tmp_path / "other"):
        assert not is_in(file.written_ranges(0, 4 * MIB), 2 * MIB)
    else:
        assert file.written_ranges(0, 4 * MIB) == [(0, 4 * MIB)]


def test_a_descriptor_of_no_file_counts_as_written_throughout():
    read, write = os.pipe()
    try:
        assert written_ranges(read, 3, 10) == [(3, 10)]
    finally:
        os.close(read)
        os.close(write)
