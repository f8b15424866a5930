"""Removing what comes first: resets at any index, in files and in memory, and across restarts."""

import pytest

from quorumlog.model.errors import IndexRemovedError, InvariantViolation
from quorumlog.storage.log.memory_log import MemoryLog
from quorumlog.storage.log.store import GroupStore
from store_access import Opened, block_of, entries_of

SIZES = {"data_file": 1_024, "index_file": 32 * 4}
NOTES = ["quorumlog.checkpoint", "quorumlog.durable"]


@pytest.fixture(params=["file", "file without cache", "memory"])
def log(request, tmp_path):
    store = GroupStore()

    def run(plan):
        store.execute([plan], sync=True)
        plan.completed()

    if request.param == "memory":
        yield MemoryLog(), run
    else:
        cache = 1 if "without" in request.param else 1 << 20
        opened = Opened(tmp_path / "g", cache=cache, **SIZES)
        yield opened.log, run
        opened.close()


def fill(log, run, count=20, terms=4):
    for index in range(count):
        plan, _ = log.append(block_of([f"body {index}".encode() * 5]), 1 + index * terms // count)
        run(plan)


@pytest.mark.parametrize("before", range(20))
def test_64_reset_at_each_index_keeps_what_follows(log, before):
    log, run = log
    fill(log, run)
    chain, terms = log.chain_crc_at(before), log.term_runs()
    log.note_committed(19)
    run(log.reset(before))
    assert (log.before_begin_index, log.end_index) == (before, 19)
    assert log.before_begin_term == [term for term, first in terms if first <= before][-1]
    assert log.chain_crc_at(before) == chain
    assert [entry.index for entry in entries_of(log)] == list(range(before + 1, 20))
    for index in (0, before):
        with pytest.raises(IndexRemovedError, match=f"the first index kept, {before + 1}"):
            log.read(index, index, 1)
    plan, _ = log.append(block_of([b"later"]), 9)
    run(plan)
    assert entries_of(log)[-1].body == b"later"
    assert log.term_runs()[-1] == (9, 20)


def test_64_reset_beyond_the_end_goes_on_behind_it(log):
    log, run = log
    fill(log, run)
    run(log.reset(99, 7, 1234))
    assert (log.before_begin_index, log.before_begin_term, log.end_index) == (99, 7, 99)
    assert (log.term_runs(), log.size_bytes, log.chain_crc_at(99)) == ([], 0, 1234)
    assert log.chain_crc_at(50) is None
    plan, _ = log.append(block_of([b"first", b"second"]), 8)
    run(plan)
    assert [(entry.index, entry.body) for entry in entries_of(log)] == [
        (100, b"first"),
        (101, b"second"),
    ]


def test_a_reset_backwards_does_nothing_and_uncommitted_entries_stay(log):
    log, run = log
    fill(log, run)
    log.note_committed(10)
    run(log.reset(8))
    run(log.reset(5))
    assert log.before_begin_index == 8
    with pytest.raises(InvariantViolation, match="only committed"):
        log.reset(12)


def test_truncating_everything_behind_a_reset_and_going_on(log):
    log, run = log
    fill(log, run)
    log.note_committed(12)
    run(log.reset(12))
    run(log.truncate(13))
    assert (log.before_begin_index, log.end_index, log.term_runs()) == (12, 12, [])
    plan, _ = log.append(block_of([b"again"]), 9)
    run(plan)
    assert [entry.body for entry in entries_of(log)] == [b"again"]


def test_segments_are_removed_whole_and_never_the_newest(log):
    log, run = log
    fill(log, run)
    log.note_committed(19)
    for segment in log.segments():
        assert segment.last_index < 19
        run(log.reset(segment.last_index))
        assert log.before_begin_index == segment.last_index
    assert len(entries_of(log)) == 19 - log.before_begin_index > 0


# -- what only files can do -------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 3, 7, 12, 18, 19])
def test_64_a_reset_survives_a_restart(tmp_path, before):
    opened = Opened(tmp_path / "g", **SIZES)
    fill(opened.log, opened.submit)
    chain, expected = opened.log.chain_crc_at(before), entries_of(opened.log)[before + 1 :]
    opened.log.note_committed(19)
    opened.submit(opened.log.reset(before))
    term = opened.log.before_begin_term
    opened.close()
    for _ in range(2):
        opened = Opened(tmp_path / "g", **SIZES)
        assert opened.log.before_begin_index == before
        assert opened.log.before_begin_term == term
        assert opened.log.chain_crc_at(before) == chain
        assert entries_of(opened.log) == expected
        assert opened.group.committed_index >= before
        opened.close()


def entry_of(size):
    return b"x" * (size - 48)


@pytest.mark.parametrize("size", [560, 500])
def test_spec_20_12_the_containing_file_begins_with_a_blank_record(tmp_path, size):
    """Spec 20 section 12: 560-byte entries, one a file; 500-byte entries, two a file."""
    opened = Opened(tmp_path / "g", **SIZES)
    for _ in range(10):
        opened.append([entry_of(size)])
    opened.log.note_committed(9)
    opened.submit(opened.log.reset(8))
    names = sorted(path.name for path in (tmp_path / "g" / "data").iterdir())
    position = opened.log._place_of(9)[0]
    raw = (tmp_path / "g" / "data" / f"{position // 1_024 * 1_024:020d}").read_bytes()
    if position % 1_024:
        assert raw[:8] == b"\xff\xff\xff\xff" + (position % 1_024).to_bytes(4, "big")
    assert len(names) == 1
    assert opened.log.size_bytes == size
    opened.close()


@pytest.mark.parametrize("without", [[], NOTES[:1], NOTES[1:], NOTES])
def test_the_first_header_is_not_believed_alone(tmp_path, without):
    """A flipped bit in the first index must not make all that follows look like a torn tail."""
    opened = Opened(tmp_path / "g")
    opened.append([b"x"] * 10)
    opened.close()
    path = tmp_path / "g" / "data" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    raw[14] ^= 1
    path.write_bytes(bytes(raw))
    for name in without:
        (tmp_path / "g" / name).unlink()
    again = Opened(tmp_path / "g")
    assert again.log.end_index == 9
    assert again.log.damaged.ranges == ((0, 0),)
    again.close()


def test_a_membership_is_kept_until_a_newer_one_that_is_committed_is_durable_here(tmp_path):
    opened = Opened(tmp_path / "g", **SIZES)
    opened.submit(opened.log.append_config(b"first", 1))
    opened.submit(opened.log.append_config(b"second", 1), run=False)
    opened.log.note_committed(1)
    assert [body for _, body in opened.log.config_entries()] == [b"first", b"second"]
    opened.run()
    assert [body for _, body in opened.log.config_entries()] == [b"second"]
    opened.close()


def test_64_a_log_that_begins_anew_knows_the_membership_that_it_left_out(tmp_path):
    store = GroupStore()
    opened = Opened(tmp_path / "g", **SIZES)
    for log in (MemoryLog(), opened.log):
        fill(log, lambda plan: (store.execute([plan], sync=True), plan.completed()))
        plan = log.reset(99, 7, 1234, (42, b"members"))
        store.execute([plan], sync=True)
        plan.completed()
        assert log.config_entries() == [(42, b"members")]
    opened.close()
    opened = Opened(tmp_path / "g", **SIZES)
    assert opened.log.config_entries() == [(42, b"members")]
    opened.close()


def test_a_crash_between_an_append_and_the_reset_behind_it_leaves_the_append(tmp_path):
    """What is said to be durable must be: the log that starts again is not, before it is."""
    store = GroupStore()
    opened = Opened(tmp_path / "g", **SIZES)
    fill(opened.log, lambda plan: (store.execute([plan], sync=True), plan.completed()))
    plan, _ = opened.log.append(block_of([b"the last"]), 5)
    opened.log.reset(99, 7, 1234)  # decided, not carried out
    store.execute([plan], sync=True)
    opened.close()

    opened = Opened(tmp_path / "g", **SIZES)
    assert (opened.log.before_begin_index, opened.log.end_index) == (-1, 20)
    assert entries_of(opened.log)[-1].body == b"the last"
    opened.close()
