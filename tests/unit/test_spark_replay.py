"""A replay without a cluster: an archive on disk, a target in memory that judges as a leader."""

import hashlib
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_access import LogInMemory, TargetInMemory, run_here
from quorumlog.model.block import decode_entries, parse_block
from quorumlog.model.errors import NetworkError
from quorumlog.spark.jobs.archive.run import ArchiveOptions, ArchiveRun
from quorumlog.spark.jobs.output_files import OutputFileSystem
from quorumlog.spark.jobs.packing import EntryDigest, packed_entries
from quorumlog.spark.jobs.replay.replay import Replay
from quorumlog.spark.jobs.tasks import PipelineError

FILES = OutputFileSystem()
BODIES = [f"body {number} ".encode() * (number % 7) for number in range(120)]


class Killed(BaseException):
    """Ends a replay as a kill does."""


def archive(log, directory, **options):
    options = ArchiveOptions(**{"file_bytes": 6_000, "cores": 2, **options})
    ArchiveRun(log, FILES, directory, options, run_here).run()


@pytest.fixture
def log():
    made = LogInMemory().append_noop(1).append(*BODIES[:70], channel=3)
    return made.append_bookkeeping().append(*BODIES[70:], term=2)


@pytest.fixture
def directory(tmp_path, log):
    path = str(tmp_path / "archive")
    archive(log, path)
    return path


def replay(directory, target, **options):
    return Replay(FILES, directory, target, **{"block_bytes": 1_000, **options}).run()


def content(log):
    return [(entry.channel, entry.body) for entry in log.entries() if entry.is_data]


def digest_of(log):
    found = hashlib.sha256()
    for channel, body in content(log):
        found.update(struct.pack(">II", channel, len(body)) + body)
    return found.hexdigest()


# -- once, in order, proved ------------------------------------------------------------------------


def test_a_replay_has_the_same_entries_in_the_same_order(directory, log):
    target = TargetInMemory()
    result = replay(directory, target)
    assert content(target) == content(log)
    assert result.digest == digest_of(log) == digest_of(target)
    assert (result.entries, result.found_entries, result.appended_entries) == (120, 0, 120)
    assert result.last_index == target.log.end_index
    assert target.appends > 5


def test_a_second_replay_only_compares(directory, log):
    target = TargetInMemory()
    first = replay(directory, target)
    second = replay(directory, target)
    assert (second.found_entries, second.appended_entries) == (120, 0)
    assert second.digest == first.digest
    assert content(target) == content(log)


def test_entries_archived_meanwhile_are_appended(directory, log):
    target = TargetInMemory()
    replay(directory, target)
    log.append(b"later", b"and later", term=2)
    archive(log, directory)
    assert replay(directory, target).appended_entries == 2
    assert content(target) == content(log)


@pytest.mark.parametrize(("moment", "repeated"), [("before_append", 1), ("after_append", 0)])
def test_a_replay_killed_at_any_block_continues_there(directory, log, moment, repeated):
    whole = TargetInMemory()
    replay(directory, whole)
    for killed_at in range(whole.appends):
        target = TargetInMemory()

        def kill(number, killed_at=killed_at):
            if number == killed_at:
                raise Killed

        setattr(target, moment, kill)
        with pytest.raises(Killed):
            replay(directory, target)
        setattr(target, moment, lambda number: None)
        result = replay(directory, target)
        assert content(target) == content(log)
        assert result.digest == digest_of(log)
        assert target.appends == whole.appends + repeated


def test_a_block_of_a_dead_replay_that_arrives_late_is_appended_once(directory, log):
    """The dead one's block comes after the next replay has looked, before it appends."""
    target, late = TargetInMemory(), []

    class Lost(TargetInMemory):
        def store(self, *block):
            if self.appends == 3:
                late.append(block)
                raise NetworkError("the connection broke")
            super().store(*block)

    target.__class__ = Lost
    with pytest.raises(NetworkError):
        replay(directory, target)
    target.__class__ = TargetInMemory
    target.before_append = lambda number: late and target.store(*late.pop())
    result = replay(directory, target)
    assert result.digest == digest_of(log)
    assert content(target) == content(log)


def test_a_block_of_which_only_a_part_is_committed_is_read_to_its_end(directory, log):
    target = TargetInMemory()

    def kill(number):
        if number == 3:
            raise Killed

    target.after_append = kill
    with pytest.raises(Killed):
        replay(directory, target)
    end, bounds = target.log.end_index, target.bounds
    target.bounds = lambda: (0, end - 2) if target.log.end_index == end else bounds()
    result = replay(directory, target)
    assert content(target) == content(log)
    assert result.found_entries == end - 3  # four blocks have a session entry each


def test_a_producer_that_the_group_forgot_starts_again_and_continues_after_a_kill(directory, log):
    target = TargetInMemory()

    def kill_and_forget(number):
        if number in (2, 5):
            target.producers.clear()
            raise Killed

    target.after_append = kill_and_forget
    for _ in range(2):
        with pytest.raises(Killed):
            replay(directory, target)
    assert replay(directory, target).found_entries > 0
    assert content(target) == content(log)


def test_another_replay_at_the_same_time_fails_and_appends_nothing_twice(directory, log):
    target = TargetInMemory()

    def overtake(number):
        if number == 2:
            target.before_append = lambda number: None
            replay(directory, target, block_bytes=1_500)

    target.before_append = overtake
    with pytest.raises(PipelineError, match="another replay of"):
        replay(directory, target)
    assert content(target) == content(log)


# -- what is refused -------------------------------------------------------------------------------


def test_a_group_that_holds_something_else_is_not_changed(directory):
    target = TargetInMemory().append(*BODIES[:10], channel=3).append(b"stranger")
    with pytest.raises(PipelineError, match="entry 10 is not row 10 of the archive"):
        replay(directory, target)
    assert target.log.end_index == 10
    same_bodies_elsewhere = TargetInMemory().append(*BODIES[:10], channel=4)
    with pytest.raises(PipelineError, match="entry 0 is not row 0"):
        replay(directory, same_bodies_elsewhere)


def test_a_group_that_holds_more_is_refused(directory):
    target = TargetInMemory()
    replay(directory, target)
    index = target.log.end_index + 1
    target.append(b"more")
    with pytest.raises(PipelineError, match=rf"holds more than .* from entry {index} on"):
        replay(directory, target)


def test_a_group_that_has_the_first_entries_of_the_archive_gets_the_rest(directory, log):
    target = TargetInMemory().append(*BODIES[:10], channel=3)
    assert replay(directory, target).found_entries == 10
    assert content(target) == content(log)


def test_a_group_without_its_first_entries_is_refused(directory):
    target = TargetInMemory()
    replay(directory, target)
    target.begin = 5
    with pytest.raises(PipelineError, match="has removed entries below 5"):
        replay(directory, target)


def test_entries_of_others_in_between_are_found_by_the_digest(directory):
    target = TargetInMemory()
    target.after_append = lambda number: target.log and number == 2 and target.append(b"stranger")
    with pytest.raises(PipelineError, match=r"121 entries with digest .* else append"):
        replay(directory, target)


def test_a_damaged_archive_is_refused_before_its_rows_are_appended(directory, tmp_path):
    (first, *_) = sorted(tmp_path.glob("archive/*.parquet"))
    raw = bytearray(first.read_bytes())
    raw[len(raw) // 2] ^= 1
    first.write_bytes(raw)
    target = TargetInMemory()
    with pytest.raises(PipelineError, match="is damaged"):
        replay(directory, target)
    assert target.log.end_index == -1


def test_an_archive_with_gaps_is_replayed_only_if_that_is_allowed(tmp_path):
    log, path = LogInMemory().append(*BODIES[:10]), str(tmp_path / "gappy")
    archive(log, path)
    log.append(*BODIES[10:30])
    log.begin = 15
    archive(log, path, fail_on_data_loss=False)
    target = TargetInMemory()
    with pytest.raises(PipelineError, match="gaps of 5 entries"):
        replay(path, target)
    assert replay(path, target, allow_gaps=True).entries == 25
    assert [body for _, body in content(target)] == BODIES[:10] + BODIES[15:30]


# -- packing ---------------------------------------------------------------------------------------

ROWS = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=100)), min_size=1)


def batch_of(rows, crcs=True):
    return pa.RecordBatch.from_pydict(
        {
            "channel": pa.array([channel for channel, _ in rows], pa.int32()),
            "body": pa.array([body for _, body in rows], pa.binary()),
            "body_crc": pa.array([zlib.crc32(body) * crcs for _, body in rows], pa.int64()),
        }
    )


@given(ROWS, st.booleans(), st.integers(0, 3))
def test_packed_rows_are_entries(rows, has_crcs, start):
    batch = batch_of(rows, has_crcs).slice(start)
    rows = rows[start:]
    if not rows:
        return
    data, crcs = packed_entries(batch)
    block = parse_block(data, count=len(rows), entry_bytes_max=1_000)
    found = [(entry.channel, entry.body, entry.body_crc) for entry in decode_entries(block)]
    assert found == [(channel, body, zlib.crc32(body)) for channel, body in rows]
    assert crcs.tolist() == [zlib.crc32(body) for _, body in rows]


@given(ROWS, st.integers(1, 5))
def test_a_digest_does_not_depend_on_batches_but_on_all_else(rows, piece):
    whole, pieces, other = EntryDigest(), EntryDigest(), EntryDigest()
    batch = batch_of(rows)
    whole.update(batch)
    for start in range(0, len(rows), piece):
        pieces.update(batch.slice(start, piece))
    expected = hashlib.sha256()
    for channel, body in rows:
        expected.update(struct.pack(">II", channel, len(body)) + body)
    assert whole.hexdigest() == pieces.hexdigest() == expected.hexdigest()
    assert whole.entries == pieces.entries == len(rows)
    other.update(batch_of([*rows[:-1], (rows[-1][0] ^ 1, rows[-1][1])]))
    assert other.hexdigest() != whole.hexdigest()


def test_channels_are_unsigned_as_in_headers():
    batch = pa.RecordBatch.from_pydict(
        {
            "channel": pa.array(np.array([0xFFFFFFF0], np.uint32).view(np.int32)),
            "body": pa.array([b"x"], pa.binary()),
            "body_crc": pa.array([zlib.crc32(b"x")], pa.int64()),
        }
    )
    data, _ = packed_entries(batch)
    (entry,) = decode_entries(parse_block(data, count=1, entry_bytes_max=100))
    assert entry.channel == 0xFFFFFFF0
