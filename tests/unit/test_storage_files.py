"""Files of the size of one entry each, as DLedger's tests of its file lists have them."""

import os

import pytest

from quorumlog.model.codes import Magic
from quorumlog.storage.files import os_files
from store_access import Opened

FILE = 512
ENTRY = 504
BODY = b"x" * (ENTRY - 48)


def opened(tmp_path):
    return Opened(tmp_path / "g", data_file=FILE, index_file=32 * 4)


def data_files(tmp_path):
    """Starts of the data files that hold entries or their blanks."""
    return sorted(int(path.name) for path in (tmp_path / "g" / "data").iterdir())


def of_ten(tmp_path):
    log = opened(tmp_path)
    log.append([BODY] * 10)
    return log


def cut_to_three(tmp_path):
    """Return a log of ten entries in ten files, cut back to the first three."""
    log = of_ten(tmp_path)
    log.truncate(3)
    return log


@pytest.fixture
def three(tmp_path):
    log = cut_to_three(tmp_path)
    yield log
    log.close()


def test_48_ten_entries_of_504_bytes_take_ten_files_of_512(tmp_path):
    log = of_ten(tmp_path)

    assert data_files(tmp_path) == [FILE * number for number in range(10)]
    assert [entry.pos for entry in log.entries()] == data_files(tmp_path)
    assert log.entries()[-1].pos + ENTRY == 9 * 512 + 504
    log.close()


def test_49_after_a_truncation_to_1536_writes_continue_there(three, tmp_path):
    assert data_files(tmp_path) == [0, 512, 1_024]
    ((index, position),) = three.append([BODY], term=2)

    assert (index, position) == (3, 1_536)
    assert data_files(tmp_path) == [0, 512, 1_024, 1_536]


def test_50_a_reset_to_1024_drops_the_files_before_it(three, tmp_path):
    three.append([BODY], term=2)
    three.log.note_committed(2)
    three.submit(three.log.reset(1))

    assert data_files(tmp_path) == [1_024, 1_536]
    assert [entry.pos for entry in three.entries()] == [1_024, 1_536]
    assert three.log.before_begin_index == 1


def test_51_positions_are_the_same_when_it_is_opened_again(tmp_path):
    log = cut_to_three(tmp_path)
    log.append([BODY], term=2)
    log.close()
    again = opened(tmp_path)

    assert [entry.pos for entry in again.entries()] == [0, 512, 1_024, 1_536]
    ((_, position),) = again.append([BODY], term=2)
    assert position == 2_048
    again.close()


def test_52_everything_can_be_removed(three, tmp_path):
    three.truncate(0)
    assert three.log.end_index == -1
    assert three.entries() == []
    ((index, position),) = three.append([BODY], term=3)

    assert (index, position) == (0, 0)
    assert [(entry.term, entry.magic) for entry in three.entries()] == [(3, Magic.NORMAL)]


def test_a_file_that_does_not_exist_yet_holds_nothing(three):
    """A wrong index record may tell of a place in it: that is no file that cannot be opened."""
    data = three.log._data
    planned = data.file_starting(max(data.made_starts) + FILE)
    assert not data.has(planned.start)
    planned.prepare()
    assert data.has(planned.start)


@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_a_write_of_many_buffers_goes_on_after_each_short_write(tmp_path, monkeypatch, most):
    pwritev, calls = os.pwritev, []

    def short(descriptor, buffers, offset):
        calls.append(len(buffers))
        return pwritev(descriptor, [b"".join(buffers)[:most]], offset)

    monkeypatch.setattr(os, "pwritev", short)
    monkeypatch.setattr(os_files, "IO_VECTOR_MAX", 3)
    buffers = [b"ab", b"", memoryview(b"cdefg"), b"h", bytearray(b"ij"), b"", b"klm"]
    file = os_files.OsFileSystem().open(f"{tmp_path}/file", create=True)
    file.write_at(buffers, 5)
    assert file.read_at(100, 0) == bytes(5) + b"abcdefghijklm"
    assert buffers[2] == b"cdefg", "the caller's list stays as it is"
    assert max(calls) == 3
    file.close()
