"""Where batches are: looked up by offset and by time, in memory and sealed, against a list."""

import random

import pytest

from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.records.batch import batch_header
from quorumlog.topics.batch_columns import PlacedBatch, SealedBatches
from quorumlog.topics.batch_index import DEFAULT_SEAL_LIMITS, BatchIndex, SealLimits
from record_batches import batch_of


def header_of(base_offset, count, newest):
    header = batch_header(batch_of([max(0, newest)] * count))
    fields = {"base_offset": base_offset, "max_timestamp": newest}
    return type(header)(
        **{name: getattr(header, name) for name in header.__struct_fields__} | fields
    )


class Model:
    """The same as lists: (index, channel, batch) of all batches that the log holds."""

    def __init__(self, choice, limits=DEFAULT_SEAL_LIMITS):
        self.choice = choice
        self.index = BatchIndex(limits=limits)
        self.batches = []
        self.next_offsets = {}
        self.end = self.begin = 0

    def append(self):
        channel = self.choice.randrange(5)
        count, newest = self.choice.randint(1, 4), self.choice.randint(-1, 50)
        offset = self.next_offsets.get(channel, 0)
        header = header_of(offset, count, newest)
        self.end += self.choice.randint(1, 3)
        self.index.add(channel, self.end, header)
        placed = PlacedBatch(offset, offset + count - 1, self.end, header.size_bytes, newest)
        self.batches.append((channel, placed))
        self.next_offsets[channel] = offset + count

    def truncate(self):
        begin = max(self.index.sealed_index + 1, self.begin)
        if begin > self.end:
            return
        cut = self.choice.randint(begin, self.end)
        self.index.truncate(cut)
        for channel, batch in self.batches:
            if batch.index >= cut:
                self.next_offsets[channel] = min(self.next_offsets[channel], batch.base_offset)
        self.batches = [pair for pair in self.batches if pair[1].index < cut]
        self.end = cut - 1

    def seal(self):
        if self.end <= self.index.sealed_index:
            return
        columns = self.index.to_seal(self.choice.randint(self.index.sealed_index + 1, self.end))
        if self.choice.random() < 0.3:
            self.append()
        self.index.seal(SealedBatches.decode(columns.encode()))

    def remove(self):
        """Remove entries up to one; what is looked up afterwards begins after it."""
        if self.begin < self.end:
            self.begin = self.choice.randint(self.begin, self.end)
            self.index.removed(self.begin - 1)
            self.batches = [pair for pair in self.batches if pair[1].index >= self.begin]

    def of(self, channel):
        return [batch for at, batch in self.batches if at == channel]

    def check_space(self, channel, kept, begin):
        """What retention asks, for one place in a partition."""
        end = self.next_offsets.get(channel, 0)
        offset, stop = sorted((self.choice.randint(begin, end), end))
        rest = [batch for batch in kept if batch.last_offset >= offset]
        sizes = [batch.size_bytes for batch in rest]
        first = rest[0].index if rest else None
        assert self.index.extent_of(channel, offset, stop) == (first, sum(sizes))
        index = self.choice.randint(-1, self.end)
        after = [batch.base_offset for batch in rest if batch.index > index]
        assert self.index.offset_after(channel, offset, index) == (after[0] if after else None)
        room = self.choice.randint(0, sum(sizes))
        sums = [sum(sizes[: at + 1]) for at in range(len(sizes))]
        kept_from = [one.base_offset for one, size in zip(rest, sums, strict=True) if size > room]
        found = self.index.offset_at_bytes(channel, offset, room)
        assert found == (kept_from[0] if kept_from else None)

    def check_within(self, channel, offset, expected):
        """What a read asks: batches that lie before an offset, and fit."""
        end = self.choice.randint(offset, self.next_offsets.get(channel, 0) + 2)
        most, count = self.choice.randint(0, 400), self.choice.randint(1, 5)
        at_least, room, fitting = self.choice.random() < 0.5, most, []
        for batch in expected[:count]:
            room -= batch.size_bytes
            fits = room >= 0 or (at_least and not fitting)
            if batch.last_offset >= end or not fits:
                break
            fitting.append(batch)
        found = self.index.batches_within(
            channel, offset, end, most, count_max=count, at_least=at_least
        )
        assert found == fitting

    def check_needed(self):
        starts = {at: self.choice.randint(0, 60) for at in range(5) if self.choice.random() < 0.7}
        needed = [
            batch.index
            for channel, batch in self.batches
            if channel in starts and batch.last_offset >= starts[channel]
        ]
        assert self.index.first_needed(starts, self.begin) == min(needed, default=None)

    def check(self):
        for _ in range(3):
            self.check_needed()
        for channel in range(5):
            kept = self.of(channel)
            begin = kept[0].base_offset if kept else self.next_offsets.get(channel, 0)
            self.check_space(channel, kept, begin)
            for offset in range(begin, self.next_offsets.get(channel, 0) + 2):
                expected = [batch for batch in kept if batch.last_offset >= offset]
                assert list(self.index.batches_from(channel, offset)) == expected
                self.check_within(channel, offset, expected)
                for time in (-1, 10, 25, 50, 51):
                    since = [batch for batch in expected if batch.newest_time >= time]
                    assert list(self.index.batches_since(channel, offset, time)) == since
                for end in {offset, (begin + offset) // 2, self.next_offsets.get(channel, 0)}:
                    before = [batch for batch in expected if batch.base_offset < end]
                    newest = max(before, key=lambda one: one.newest_time, default=None)
                    assert self.index.newest_within(channel, offset, end) == newest


@pytest.mark.parametrize("seed", range(40))
def test_b6_b7_batches_are_found_as_in_a_list(seed):
    model = Model(random.Random(seed), SealLimits(batches=20))
    steps = [model.append] * 12 + [model.truncate, model.seal, model.seal, model.remove]
    for number in range(200):
        model.choice.choice(steps)()
        if number % 10 == 0:
            model.check()
    model.check()
    assert model.end > 100


def test_a_start_with_sealed_columns_adds_only_what_follows():
    model = Model(random.Random(1))
    for _ in range(30):
        model.append()
    columns = model.index.to_seal(model.end - 5)
    started = BatchIndex([SealedBatches.decode(columns.encode())])
    for channel, batch in model.batches:
        count = batch.last_offset - batch.base_offset + 1
        started.add(channel, batch.index, header_of(batch.base_offset, count, batch.newest_time))
    model.index = started
    model.check()
    assert started.unsealed < 10


def test_columns_that_are_not_full_are_sealed_again_with_what_follows():
    model = Model(random.Random(1))
    for _ in range(3):
        for _ in range(10):
            model.append()
        model.index.seal(model.index.to_seal(model.end))
    (columns,) = model.index.sealed
    assert columns.count == 30
    assert (columns.first_index, columns.last_index) == (0, model.end)


def test_columns_that_go_with_the_log_are_named():
    model = Model(random.Random(1))
    for _ in range(10):
        model.append()
    (columns,) = [model.index.to_seal(model.end)]
    model.index.seal(columns)
    assert model.index.removed(model.end - 1) == []
    assert model.index.removed(model.end) == [columns]
    assert model.index.sealed_index == -1
    model.append()
    model.index.seal(model.index.to_seal(model.end))
    assert len(model.index.clear()) == 1
    assert list(model.index.batches_from(0, 0)) == []


@pytest.mark.parametrize("place", range(0, 200, 3))
def test_damaged_columns_are_refused(place):
    model = Model(random.Random(1))
    for _ in range(5):
        model.append()
    raw = bytearray(model.index.to_seal(model.end).encode())
    if place < len(raw):
        raw[place] ^= 4
    else:
        raw.append(0)
    with pytest.raises(UnexpectedArgumentError):
        SealedBatches.decode(bytes(raw))
    for size in (0, 3, 20, len(raw) - 1):
        with pytest.raises(UnexpectedArgumentError):
            SealedBatches.decode(bytes(raw[:size]))


def test_an_empty_run_has_columns_too():
    columns = BatchIndex().to_seal(100)
    decoded = SealedBatches.decode(columns.encode())
    assert (decoded.first_index, decoded.last_index, decoded.count) == (0, 100, 0)
    assert decoded.rows_of(3) is None
