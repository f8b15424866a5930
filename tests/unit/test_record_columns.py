"""Records as columns, against what aiokafka wrote, and with bytes that are no records."""

import random

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.records import columns
from quorumlog.records.batch import HEADER_SIZE, RecordBatchError, set_log_append_time, stamp_batch
from quorumlog.records.columns import record_columns, whole_batches
from record_batches import BATCH_SIZE, CODECS

TEXT = st.binary(max_size=200)
HEADER = st.tuples(st.text(max_size=8), st.none() | TEXT)
RECORD = st.tuples(
    st.integers(0, 1 << 41), st.none() | TEXT, st.none() | TEXT, st.lists(HEADER, max_size=3)
)
BATCH = st.tuples(st.sampled_from(sorted(CODECS.values())), st.lists(RECORD, min_size=1))


def built(batches, base=0):
    """Return batches as a broker gives them: (codec, records) back to back from an offset on."""
    data, offset = bytearray(), base
    for codec, records in batches:
        builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, BATCH_SIZE)
        for number, (timestamp, key, value, headers) in enumerate(records):
            assert builder.append(number, timestamp, key, value, headers) is not None
        batch = memoryview(bytearray(builder.build()))
        stamp_batch(batch, 0, offset, 1)
        data += batch
        offset += len(records)
    return memoryview(data)


def read(data):
    """Return (offset, timestamp, key, value, headers) of all records."""
    found = []
    for one in record_columns(data, whole_batches(data)):
        buffer, headers = one.data.tobytes(), one.headers()

        def text(texts, at, buffer=buffer):
            start, size = int(texts.starts[at]), int(texts.sizes[at])
            return None if size < 0 else buffer[start : start + size]

        number = 0
        for row in range(one.count):
            pairs = []
            for _ in range(headers.counts[row]):
                pairs.append((text(headers.keys, number).decode(), text(headers.values, number)))
                number += 1
            offset, timestamp = int(one.offsets[row]), int(one.timestamps[row])
            found.append((offset, timestamp, text(one.keys, row), text(one.values, row), pairs))
    return found


@given(st.lists(BATCH, max_size=4), st.integers(0, 1 << 60))
def test_records_are_read_as_they_were_written(batches, base):
    written = [record for _, records in batches for record in records]
    expected = [(base + number, *record) for number, record in enumerate(written)]
    assert read(built(batches, base)) == expected


def test_long_records_and_far_timestamps_are_read():
    records = [
        (0, b"k" * size, b"v" * (size * 3), [("h" * 100, b"x" * size)])
        for size in (1, 63, 64, 127, 128, 8_191, 8_192, 20_000)
    ] + [(1 << 60, None, b"", [])]
    assert [one[1:] for one in read(built([(0, records)]))] == records


@pytest.mark.parametrize("seed", range(20))
def test_records_of_one_size_are_read_as_they_were_written_wherever_another_size_comes(seed):
    choice = random.Random(seed)
    sizes = [choice.choice((0, 10, 56, 57, 58, 59, 300)) for _ in range(4)]
    records, most = [], choice.choice((9, 40, 2_100))
    while len(records) < most:
        value = choice.randbytes(choice.choice(sizes))
        records += [(7, None, value, [])] * choice.choice((1, 2, 8, 9, 10, 30))
    data = built([(0, records[: most // 2]), (0, records[most // 2 :])])
    assert [one[1:] for one in read(data)] == records


def test_a_record_with_many_headers_is_read_soon():
    headers = [(f"h{number}", None if number % 3 else b"x" * number) for number in range(500)]
    records = [(1, None, b"a", headers), (2, None, b"b", []), (3, b"k", None, headers[:65])]
    assert [one[1:] for one in read(built([(0, records)]))] == records


def test_c3_a_record_does_not_reach_into_the_next_batch():
    data = built([(0, [(1, None, b"0123456789", [])])] * 2)
    first = bytearray(data[: len(data) // 2])
    place = HEADER_SIZE + 5  # the size of the value, after those of the record and of the key
    assert first[place] == 20
    first[HEADER_SIZE] += 40
    first[place] += 40
    with pytest.raises(RecordBatchError, match="has no end"):
        read(memoryview(first + bytearray(data[len(first) :])))


def test_a_leaders_time_is_that_of_all_records():
    data = built([(0, [(5, None, b"a", []), (9, None, b"b", [])])])
    set_log_append_time(data, 77)
    (one,) = record_columns(data, whole_batches(data))
    assert one.timestamps.tolist() == [77, 77]
    assert one.log_append_times.all()


def test_a_last_batch_that_is_cut_off_is_left_out():
    data = built([(0, [(1, None, b"a", [])]), (0, [(2, None, b"b", [])])])
    first = data[: len(data) // 2]
    for size in range(len(first), len(data)):
        assert read(data[:size]) == read(first)
    assert list(whole_batches(data[: HEADER_SIZE - 1])) == []


def test_several_batches_become_columns_together(monkeypatch):
    batches = [(0, [(1, None, b"a", [])] * 10)] * 5 + [(4, [(1, None, b"b", [])] * 10)] * 2
    data = built(batches)
    assert [one.count for one in record_columns(data, whole_batches(data))] == [50, 20]
    monkeypatch.setattr(columns, "STRETCH_BYTES", 1)
    assert [one.count for one in record_columns(data, whole_batches(data))] == [10] * 7


def damaged(data, rng):
    """Return a copy with some bytes changed, in what is no header of the first batch."""
    copy = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(HEADER_SIZE, len(copy))
        copy[place] = rng.choice((0, 0xFF, 0x80, copy[place] ^ (1 << rng.randrange(8))))
    return memoryview(copy)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_c3_damaged_records_are_refused_or_read_within_their_bounds(codec, monkeypatch):
    monkeypatch.setattr(columns, "UNPACKED_MAX", 1 << 20)  # room is made for what is damaged, too
    rng = random.Random(codec)
    records = [(n, b"key", b"value" * n, [("h", b"x")] * (n % 3)) for n in range(12)]
    data = built([(codec, records), (codec, records)])
    refused = 0
    for _ in range(500):
        try:
            read(damaged(data, rng))
        except RecordBatchError:
            refused += 1
        except UnicodeDecodeError:
            pass  # the key of a header, which is this test's own to decode
    assert refused > 50


def test_c3_a_batch_cannot_claim_more_records_than_it_has_bytes_for():
    data = built([(0, [(1, None, b"a", [])])])
    data[57:61] = (1 << 30).to_bytes(4, "big")
    with pytest.raises(RecordBatchError, match="batch at offset 0: 1,073,741,824 records in"):
        read(data)


def test_c3_records_that_unpack_to_too_much_are_refused(monkeypatch):
    monkeypatch.setattr(columns, "UNPACKED_MAX", 10_000)
    data = built([(CODECS["zstd"], [(1, None, bytes(100_000), [])])])
    with pytest.raises(RecordBatchError, match="zstd"):
        read(data)
