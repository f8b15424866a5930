"""Batches of a broker on this machine are read from its files; others are fetched."""

import logging
import shutil
from dataclasses import replace

import pytest

from damage_access import SIZES, flip
from quorumlog.model.errors import CorruptionError, IndexRemovedError, StorageError
from quorumlog.records.batch import batch_header, stamp_batch
from quorumlog.records.markers import encode_marker
from quorumlog.spark.topics import local_reads
from quorumlog.spark.topics.local_reads import (
    AbortedRange,
    LocatedBatches,
    local_batches,
    read_located,
)
from quorumlog.spark.topics.part import Part
from quorumlog.spark.topics.tasks import visible
from quorumlog.storage.files.location import location_of
from record_batches import batch_of
from store_access import Opened

PART = Part("t", 0)
ONE, TWO = 7, 8
"""Producers."""
CHANNEL, OTHER = 3, 4
"""Of the partition, and of others of its group."""


class Log:
    """A partition group's log that is open in its node; `index_of` is where batches of `t-0` are.

    Entries of other partitions lie between them, except in the middle.
    """

    def __init__(self, directory, **sizes):
        self.directory = directory
        self.opened = Opened(directory, **{**SIZES, **sizes})
        self.index_of = {}
        """By base offset."""
        self.batches = []
        self.end = 0
        self.aborted = []
        self._entries = 0

    def append(self, batch):
        stamp_batch(batch, 0, self.end, 1)
        self.index_of[self.end] = self._append(bytes(batch), CHANNEL)
        self.end += batch_header(batch).count
        self.batches.append(bytes(batch))
        return self.end

    def other(self, size=40):
        self._append(b"of another partition".ljust(size), OTHER)

    def twin(self, base_offset):
        """Append the batch at an offset to another partition; return the index of its entry."""
        row = list(self.index_of).index(base_offset)
        return self._append(self.batches[row], OTHER)

    def _append(self, body, channel):
        self.opened.append([body], channel=channel)
        self._entries += 1
        return self._entries - 1

    def records(self, count, producer=-1, **options):
        is_transactional = producer >= 0
        batch = batch_of(
            range(count), producer_id=producer, is_transactional=is_transactional, **options
        )
        self.append(batch)

    def mark(self, producer, first, *, commits):
        if not commits:
            self.aborted.append(AbortedRange(producer, first, self.end))
        self.append(memoryview(bytearray(encode_marker(producer, 0, 1, 1, commits=commits))))

    def located(self, first=0, beyond=None):
        """What the leader answers."""
        beyond = self.end if beyond is None else beyond
        lasts = [*list(self.index_of)[1:], self.end]
        rows = [
            (base, index, end)
            for (base, index), end in zip(self.index_of.items(), lasts, strict=True)
            if end > first and base < beyond
        ]
        end = rows[-1][2]
        directories = [str(self.directory / room) for room in ("", "index", "data")]
        aborted = [one for one in self.aborted if one.last_offset >= first]
        return LocatedBatches(
            location_of(directories),
            CHANNEL,
            [base for base, _, _ in rows],
            [index for _, index, _ in rows],
            end,
            [one for one in aborted if one.first_offset < end],
        )


@pytest.fixture
def log(tmp_path):
    """Transactions of two producers, committed and aborted, that lie over each other."""
    made = Log(tmp_path / "g")
    for turn in range(12):
        first = {ONE: made.end}
        made.records(3, ONE)
        made.other(300)
        first[TWO] = made.end
        made.records(2, TWO, value=b"large" * 50)
        made.records(1)
        for _ in range(turn % 3):
            made.other()
        made.records(2, ONE)
        made.mark(ONE, first[ONE], commits=turn % 2 == 0)
        made.records(4, ONE if turn == 5 else TWO)
        made.mark(TWO, first[TWO], commits=turn % 3 == 0)
        if turn == 5:
            made.mark(ONE, made.end - 5, commits=True)
    for _ in range(20):
        made.records(1)
    yield made
    made.opened.close()


def bodies(found):
    return [bytes(one.data[at : at + head.size_bytes]) for one in found for at, head in one.batches]


def seen(found):
    """Return the first offset of each batch that a reader of committed records sees."""
    return [header.base_offset for one in found for _, header in visible(one.batches, one.aborted)]


def from_network(log):
    """The same, of one answer that has everything."""
    headers = [(0, batch_header(one)) for one in log.batches]
    pairs = [(one.producer_id, one.first_offset) for one in log.aborted]
    return [header.base_offset for _, header in visible(headers, pairs)]


@pytest.mark.parametrize("enough", [1, 400, 1 << 20])
@pytest.mark.parametrize("around", [1, 500, 64 * 1024])
@pytest.mark.parametrize("together", [2, 1_000])
def test_batches_in_files_are_read_as_they_are_and_aborted_ones_are_told(
    log, monkeypatch, enough, around, together
):
    monkeypatch.setattr(local_reads, "ENOUGH_BYTES", enough)
    monkeypatch.setattr(local_reads, "AROUND_BYTES", around)
    monkeypatch.setattr(local_reads, "TOGETHER", together)
    found = list(read_located(log.located()))
    assert bodies(found) == log.batches
    assert seen(found) == from_network(log)
    assert len(seen(found)) < len(log.batches) - 24, "markers and aborted ones are left out"
    ends = [one.next_offset for one in found]
    assert ends == [one.batches[-1][1].last_offset + 1 for one in found]
    assert ends[-1] == log.end


@pytest.mark.parametrize("first", [1, 3, 17, 40, 100])
def test_a_read_that_begins_within_a_transaction_leaves_out_what_was_aborted(
    log, monkeypatch, first
):
    monkeypatch.setattr(local_reads, "ENOUGH_BYTES", 1)
    offsets = seen(read_located(log.located(first)))
    assert offsets == [at for at in from_network(log) if at >= offsets[0]]
    assert offsets[0] <= first + 10


def reading(log, answers, first=0):
    """Read with what the leader answers, one after the other; return (batches, where it ended)."""
    found = list(local_batches(lambda machine, at, end: answers.pop(0)(at), PART, first, log.end))
    return bodies(found), found[-1].next_offset if found else first


def test_the_leader_is_asked_again_for_what_comes_after(log):
    answers = [lambda at: log.located(at, 30), lambda at: log.located(at, 90), log.located]
    assert reading(log, answers) == (log.batches, log.end)
    assert answers == []


def test_what_is_not_in_files_or_elsewhere_is_left_to_a_fetch(log, monkeypatch):
    assert reading(log, [lambda at: None]) == ([], 0)
    found, end = reading(log, [lambda at: log.located(at, 30), lambda at: None])
    assert found == log.batches[: len(found)]
    assert 30 <= end < log.end
    monkeypatch.setattr(local_reads, "is_here", lambda location: False)
    assert reading(log, [log.located]) == ([], 0)


def test_from_a_damaged_batch_on_they_are_fetched(log, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(local_reads, "ENOUGH_BYTES", 1)
    index = log.located(90).indexes[0]
    flip(log.directory, log.opened.entries(index)[0].pos + 60)
    with pytest.raises(CorruptionError):
        list(read_located(log.located()))
    found, end = reading(log, [log.located])
    assert found == log.batches[: len(found)]
    assert 60 < end <= 90
    (record,) = caplog.records
    assert f"batches of t-0 from offset {end} on are fetched: " in record.message


def test_an_entry_that_is_another_batch_is_not_taken(log, caplog):
    right = log.located()
    shifted = replace(right, base_offsets=right.base_offsets[:-1], indexes=right.indexes[1:])
    with pytest.raises(StorageError, match="is not the record batch at offset 0"):
        list(read_located(shifted))
    assert reading(log, [lambda at: shifted]) == ([], 0)


def test_a_batch_of_another_partition_with_the_same_offset_is_not_taken(log, caplog):
    twin = log.twin(0)
    other = replace(log.located(beyond=1), indexes=[twin])
    with pytest.raises(StorageError, match=f"entry {twin} is in channel 4, not in channel 3"):
        list(read_located(other))
    assert reading(log, [lambda at: other]) == ([], 0), "it is fetched"
    assert [bytes(one) for one in bodies(read_located(replace(other, channel=OTHER)))] == [
        log.batches[0]
    ]


def test_batches_that_were_removed_meanwhile_are_not_taken_for_damaged(log, tmp_path, caplog):
    shutil.copytree(log.directory, tmp_path / "later")
    later = Opened(tmp_path / "later", **SIZES)
    later.log.note_committed(60)
    later.submit(later.log.reset(59))
    later.close()
    log.directory = tmp_path / "later"
    with pytest.raises(IndexRemovedError):
        list(read_located(log.located()))
    assert reading(log, [log.located]) == ([], 0)
    assert caplog.records == []
