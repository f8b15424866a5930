"""Reads that wait for no disk: those of a few entries that are in the page cache."""

import mmap
import os
from contextlib import closing

import pytest

from quorumlog.model.errors import CorruptionError, IndexOutOfRangeError
from quorumlog.storage.entries.disk_reader import RESIDENT_BYTES_MAX, RESIDENT_ENTRIES_MAX
from quorumlog.storage.files import os_files
from quorumlog.storage.files.os_files import RESIDENT_PAGES_MAX, OsFileSystem, is_resident
from store_access import Opened

PAGE = mmap.PAGESIZE


def bodies(count, size=100):
    return [b"%05d" % number + bytes(size - 5) for number in range(count)]


@pytest.fixture
def make(tmp_path):
    """Return a function that makes a log which keeps in memory only the last of its blocks."""
    with closing(Opened(tmp_path / "g", cache=100)) as opened:

        def made(*blocks):
            for block in (*blocks, [b"the last"]):
                opened.append(block)
            return opened.log

        yield made


def drop_from_page_cache(directory, *maps):
    """Have what is in files be on the disk alone."""
    for view in maps:
        view.obj.madvise(mmap.MADV_DONTNEED)
    for path in directory.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def same(one, other):
    return (one.first_index, one.count, bytes(one.data), bytes(one.records)) == (
        other.first_index,
        other.count,
        bytes(other.data),
        bytes(other.records),
    )


@pytest.mark.parametrize(
    ("first", "last", "bytes_max"),
    [(0, 0, 1), (0, 9, 1 << 20), (5, 5, 1), (5, 60, 1_000), (7, 199, 300), (199, 199, 1)],
)
def test_what_is_in_the_page_cache_is_read_as_from_the_disk(make, first, last, bytes_max):
    log = make(bodies(200))
    expected = log.read(first, last, bytes_max)
    found = log.read_resident(first, last, bytes_max)
    assert same(found, expected)
    assert not found.from_memory


def test_what_the_log_has_in_memory_needs_no_file(make):
    log = make(bodies(3))
    assert same(log.read_resident(3, 3, 1), log.read(3, 3, 1))


def test_files_that_were_never_read_are_left_to_a_thread(make):
    """To open one may wait for the disk."""
    log = make(bodies(3))
    assert log.read_resident(0, 0, 1) is None
    log.read(0, 0, 1)
    assert log.read_resident(0, 0, 1) is not None


@pytest.mark.parametrize("room", ["data", "index"])
def test_what_only_the_disk_has_is_left_to_a_thread(make, tmp_path, room):
    log = make(bodies(3))
    log.read(0, 2, 1_000)
    files = log._data if room == "data" else log._index
    drop_from_page_cache(tmp_path / "g" / room, *files._maps.values())
    assert log.read_resident(0, 2, 1_000) is None
    log.read(0, 2, 1_000)
    assert log.read_resident(0, 2, 1_000).count == 3


def test_the_two_entries_before_are_looked_at_too(make, tmp_path):
    log = make(bodies(5, size=2 * PAGE))
    log.read(0, 4, 1 << 20)
    (view,) = log._data._maps.values()
    drop_from_page_cache(tmp_path / "g" / "data", view)
    (path,) = (tmp_path / "g" / "data").iterdir()
    with path.open("rb", buffering=0) as file:  # all pages but those of the first entry's header
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(file.fileno(), 10 * PAGE, 2 * PAGE)
    assert not is_resident(view, 0, 1)
    assert log.read_resident(1, 1, 1) is None
    assert log.read_resident(2, 2, 1) is None
    assert log.read_resident(3, 3, 1).count == 1


def test_a_read_of_many_entries_or_bytes_is_left_to_a_thread_and_not_cut(make):
    log = make(bodies(RESIDENT_ENTRIES_MAX + 1), [bytes(RESIDENT_BYTES_MAX)])
    log.read(0, 0, 1)
    most = RESIDENT_ENTRIES_MAX
    assert log.read_resident(0, most - 1, 1 << 20).count == most
    assert log.read_resident(0, most, 1 << 20) is None
    assert log.read_resident(most + 1, most + 1, 1) is None


def test_damaged_entries_are_not_served(make, tmp_path):
    log = make(bodies(10))
    log.read(0, 0, 1)
    (path,) = (tmp_path / "g" / "data").iterdir()
    with path.open("r+b") as file:
        file.seek(5 * 148 + 60)
        file.write(b"!")
    with pytest.raises(CorruptionError) as caught:
        log.read_resident(3, 7, 1_000)
    assert caught.value.index == 5
    with pytest.raises(IndexOutOfRangeError):
        log.read_resident(11, 11, 1)


@pytest.fixture
def view(tmp_path):
    """Return a mapped file of many pages, all in the page cache."""
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * RESIDENT_PAGES_MAX * PAGE))
    with closing(OsFileSystem().open(str(path), writable=False)) as file:
        yield file.map()


def test_pages_are_resident_until_the_cache_drops_them(view, tmp_path):
    assert is_resident(view, 3 * PAGE - 1, 3 * PAGE + 1)
    drop_from_page_cache(tmp_path, view)
    assert not is_resident(view, 3 * PAGE - 1, 3 * PAGE + 1)
    assert view[3 * PAGE] == 0
    assert is_resident(view, 3 * PAGE, 3 * PAGE + 1)


def test_no_more_pages_than_so_many_are_looked_up(view):
    assert is_resident(view, 0, RESIDENT_PAGES_MAX * PAGE)
    assert not is_resident(view, 1, RESIDENT_PAGES_MAX * PAGE + 1)


def test_where_the_system_tells_nothing_nothing_is_resident(view, monkeypatch):
    """It says of files that the process may not write that all of their pages are."""
    assert not is_resident(memoryview(bytes(PAGE)), 0, 1)
    monkeypatch.setattr(view.obj, "is_writable", False)
    assert not is_resident(view, 0, 1)
    monkeypatch.setattr(view.obj, "is_writable", True)
    monkeypatch.setattr(os_files, "_mincore", None)
    assert not is_resident(view, 0, 1)
