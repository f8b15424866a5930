"""Blocks of producers are pushed as a whole, and what a crash left of one is removed."""

import pytest
from test_sessions import block_of as session_block

from quorumlog.node.replica.pushes import gather_whole
from quorumlog.storage.log.memory_log import MemoryLog
from quorumlog.storage.log.store import GroupStore
from store_access import Opened, block_of

SIZES = {"data_file": 4_096, "index_file": 32 * 64}


@pytest.fixture(params=["file", "file without cache", "memory"])
def log(request, tmp_path):
    if request.param == "memory":
        yield MemoryLog()
        return
    cache = 1 if "without" in request.param else 1 << 20
    opened = Opened(tmp_path / "g", cache=cache, **SIZES)
    yield opened.log
    opened.close()


def fill(log, *counts):
    """Append blocks of so many entries of 200 bytes, each with a session entry before them."""
    firsts, sequence = [], 0
    for count in counts:
        _, block = session_block(1, sequence, [bytes(152)] * count)
        firsts.append(log.end_index + 1)
        plan, _ = log.append(block, 1)
        GroupStore().execute([plan], sync=True)
        plan.completed()
        sequence += count
    return firsts


def pushes(log, bytes_max):
    found, index = [], 0
    while index <= log.end_index:
        runs = gather_whole(log, index, log.end_index, bytes_max)
        found.append((index, runs[-1].last_index))
        assert [run.first_index for run in runs[1:]] == [run.last_index + 1 for run in runs[:-1]]
        index = runs[-1].last_index + 1
    return found


@pytest.mark.parametrize("bytes_max", [1, 300, 700, 1_000, 2_500, 5_000, 100_000])
def test_a_push_ends_where_a_block_ends(log, bytes_max):
    firsts = fill(log, 3, 1, 8, 2, 12, 1, 5)
    begins = {begin for begin, _ in pushes(log, bytes_max)}
    assert begins <= set(firsts)
    assert len(begins) == (len(firsts) if bytes_max == 1 else len(begins))


def test_entries_of_no_producer_are_cut_anywhere(log):
    plan, _ = log.append(block_of([bytes(152)] * 20), 1)
    GroupStore().execute([plan], sync=True)
    plan.completed()
    assert len(pushes(log, 1)) == 20


@pytest.mark.parametrize("kept", [1, 2, 5])
def test_what_a_crash_left_of_a_block_is_removed_when_the_log_is_opened(tmp_path, kept):
    opened = Opened(tmp_path / "g", **SIZES)
    fill(opened.log, 3, 2)
    _, block = session_block(1, 5, [bytes(152)] * 5)
    whole = opened.log.end_index
    part = block.slice(0, kept)  # what got through of the write
    plan, _ = opened.log.append(part, 1)
    GroupStore().execute([plan], sync=True)
    opened.close()
    for _ in range(2):
        opened = Opened(tmp_path / "g", **SIZES)
        assert opened.log.end_index == whole
        opened.close()


def test_a_whole_block_at_the_end_stays(tmp_path):
    opened = Opened(tmp_path / "g", **SIZES)
    fill(opened.log, 3, 5)
    end = opened.log.end_index
    opened.close()
    opened = Opened(tmp_path / "g", **SIZES)
    assert opened.log.end_index == end
    opened.close()
