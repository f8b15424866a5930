"""Record batches: what is stored and what is refused, and how records are found by time."""

import random
import struct
import zlib

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumlog.records import timestamps
from quorumlog.records.batch import (
    HEADER,
    HEADER_SIZE,
    RECORD_BYTES_MIN,
    BatchFault,
    Codec,
    RecordBatchError,
    batch_header,
    check_batch,
    set_log_append_time,
    stamp_batch,
)
from quorumlog.records.timestamps import first_newest, first_since
from record_batches import CODECS, batch_of

MAX = 4 << 20
FIELDS = [
    "base_offset",
    "length",
    "leader_epoch",
    "magic",
    "crc",
    "attributes",
    "last_offset_delta",
    "first_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "count",
]


def changed(batch, *, keeps_crc=False, **fields):
    """Return a batch with other fields in its header, and a CRC that fits them."""
    header = dict(zip(FIELDS, HEADER.unpack_from(batch), strict=True)) | fields
    data = memoryview(bytearray(HEADER.pack(*header.values()) + bytes(batch[HEADER_SIZE:])))
    if not keeps_crc and "crc" not in fields:
        struct.pack_into(">I", data, 17, crc32c(data[21:]))
    return data


def fault_of(batch, bytes_max=MAX):
    with pytest.raises(RecordBatchError) as caught:
        check_batch(memoryview(batch), bytes_max)
    return caught.value.fault


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_batch_of_a_client_is_taken_as_it_is(codec):
    batch = batch_of([5, 3, 9], codec=codec, producer_id=77, epoch=3, sequence=11)
    header = check_batch(batch, MAX)
    assert (header.count, header.last_offset_delta, header.size_bytes) == (3, 2, len(batch))
    assert (header.first_timestamp, header.max_timestamp) == (5, 9)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 11)
    assert header.codec is Codec(codec)
    assert not header.is_transactional
    assert not header.is_control
    assert not header.is_log_append_time


def test_a_transactional_batch_says_so():
    batch = batch_of([1], producer_id=7, epoch=0, sequence=0, is_transactional=True)
    assert check_batch(batch, MAX).is_transactional


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"crc": 1}, BatchFault.CORRUPT),
        ({"magic": 1}, BatchFault.MAGIC),
        ({"magic": 0}, BatchFault.MAGIC),
        ({"magic": 3}, BatchFault.MAGIC),
        ({"length": 48}, BatchFault.INVALID),
        ({"length": -1}, BatchFault.INVALID),
        ({"length": 1 << 30}, BatchFault.INVALID),
        ({"count": 4}, BatchFault.INVALID),
        ({"count": 0, "last_offset_delta": -1}, BatchFault.INVALID),
        ({"last_offset_delta": -1}, BatchFault.INVALID),
        ({"last_offset_delta": 7}, BatchFault.INVALID),
        ({"attributes": 0x20}, BatchFault.INVALID),
        ({"attributes": 0x10}, BatchFault.INVALID),
        ({"attributes": 5}, BatchFault.CODEC),
        ({"attributes": 7}, BatchFault.CODEC),
        ({"producer_id": -2}, BatchFault.INVALID),
        ({"producer_id": 7}, BatchFault.INVALID),
        ({"producer_id": 7, "producer_epoch": 0}, BatchFault.INVALID),
    ],
)
def test_c3_a_batch_that_cannot_be_true_is_refused(fields, fault):
    assert fault_of(changed(batch_of([1, 2, 3]), **fields)) is fault


def test_c3_a_batch_does_not_state_more_records_than_its_bytes_can_hold():
    without_key_and_value = b"".join(bytes([12, 0, 0, 2 * at, 1, 1, 0]) for at in range(3))
    smallest = changed(
        bytes(batch_of([1])[:HEADER_SIZE]) + without_key_and_value,
        length=HEADER_SIZE - 12 + 3 * 7,
        count=3,
        last_offset_delta=2,
    )
    assert check_batch(smallest, MAX).count == 3
    assert [one.offset for one in DefaultRecordBatch(bytearray(smallest))] == [0, 1, 2]
    many = {"count": 4, "last_offset_delta": 3}
    assert fault_of(changed(smallest, **many)) is BatchFault.INVALID
    most = {"count": 2**31 - 1, "last_offset_delta": 2**31 - 2}
    assert fault_of(changed(batch_of([1], value=bytes(1_000)), **most)) is BatchFault.INVALID
    packed = changed(batch_of([1] * 1_000, codec=CODECS["gzip"]), **many)
    assert check_batch(packed, MAX).count == 4, "what is compressed is not looked at"


def test_c3_two_batches_and_half_a_batch_are_refused():
    one = bytes(batch_of([1, 2, 3]))
    with pytest.raises(RecordBatchError, match="more than one record batch"):
        check_batch(memoryview(one + one), MAX)
    for size in range(len(one)):
        assert fault_of(one[:size]) in (BatchFault.INVALID, BatchFault.MAGIC)


def test_c3_a_batch_above_the_bound_is_refused():
    batch = batch_of([1], value=bytes(1000))
    assert check_batch(batch, len(batch)).count == 1
    assert fault_of(batch, len(batch) - 1) is BatchFault.TOO_LARGE


def test_every_flipped_bit_that_matters_is_found():
    batch = batch_of([1, 2, 3], producer_id=7, epoch=1, sequence=0)
    for place in range(len(batch)):
        for bit in range(8):
            flipped = memoryview(bytearray(batch))
            flipped[place] ^= 1 << bit
            if place < 8 or 12 <= place < 16:  # the leader stamps these
                assert check_batch(flipped, MAX).count == 3
            else:
                assert isinstance(fault_of(flipped), BatchFault)


def test_a_leader_stamps_a_batch_without_touching_what_the_client_sent():
    batch = batch_of([1, 2, 3])
    before = bytes(batch)
    stamp_batch(batch, 0, 1_000, 12)
    header = check_batch(batch, MAX)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (1_000, 1_002, 12)
    assert bytes(batch[8:12]) + bytes(batch[16:]) == before[8:12] + before[16:]
    read = DefaultRecordBatch(bytes(batch))
    assert read.validate_crc()
    assert [record.offset for record in read] == [1_000, 1_001, 1_002]


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_log_append_time_is_what_clients_read(codec):
    batch = batch_of([1, 2, 3], codec=codec)
    set_log_append_time(batch, 5_000)
    stamp_batch(batch, 0, 10, 1)
    assert check_batch(batch, MAX).is_log_append_time
    read = DefaultRecordBatch(bytes(batch))
    assert read.validate_crc()
    assert [record.timestamp for record in read] == [5_000] * 3
    assert first_since(batch, 0, 5_000) == (10, 5_000)
    assert first_since(batch, 11, 5_000) == (11, 5_000)
    assert first_since(batch, 0, 5_001) is None
    assert first_newest(batch, 0) == (10, 5_000)
    assert first_newest(batch, 12) == (12, 5_000)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_b6_records_are_found_by_time_as_by_brute_force(codec):
    chance = random.Random(codec)
    for _ in range(30):
        times = [chance.randrange(40) for _ in range(chance.randint(1, 500))]
        batch = batch_of(times, codec=codec, headers=[("h", b"1"), ("h", b"")])
        stamp_batch(batch, 0, 100, 1)
        begin = chance.randrange(len(times))
        kept = list(enumerate(times, 100))[begin:]
        for time in range(42):
            expected = next((at for at in kept if at[1] >= time), None)
            assert first_since(batch, 100 + begin, time) == expected
        newest = max(kept, key=lambda at: (at[1], -at[0]))
        assert first_newest(batch, 100 + begin) == newest


def packed(codec, records):
    """Return a batch whose records are these bytes."""
    batch = bytes(batch_of([1, 2, 3]))[:HEADER_SIZE] + records
    return changed(batch, attributes=codec, length=len(batch) - 12, max_timestamp=100)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@settings(max_examples=30)
@given(records=st.binary(max_size=200))
def test_c3_bytes_that_are_no_records_are_an_error_and_nothing_else(codec, records):
    batch = packed(codec, records)
    if codec or len(records) >= 3 * RECORD_BYTES_MIN:
        check_batch(batch, MAX)
    try:
        found = first_since(batch, 0, 50)
    except RecordBatchError:
        return
    assert found is None or isinstance(found, tuple)


def bombs():
    zeros = bytes(300 << 20)
    pack = zlib.compressobj(wbits=31)
    yield Codec.GZIP, pack.compress(zeros) + pack.flush()
    yield Codec.ZSTD, bytes(cramjam.zstd.compress(zeros))
    yield Codec.LZ4, bytes(cramjam.lz4.compress(zeros))
    yield Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(zeros))


def test_c3_a_batch_that_unpacks_to_too_much_is_not_read():
    for codec, records in bombs():
        with pytest.raises(RecordBatchError, match=codec.name.lower()):
            first_since(packed(codec, records), 0, 50)


@pytest.mark.parametrize(
    ("records", "text"),
    [
        (b"\x00" * 60, "ends before its fields"),
        (b"\x0c\x00\x00\x06\x01\x01\x00" * 3, "offset delta 3"),
        (b"\x0c\x00\x00\x01\x01\x01\x00" * 3, "offset delta -1"),
    ],
)
def test_c3_records_that_do_not_fit_their_batch_are_not_believed(records, text):
    with pytest.raises(RecordBatchError, match=text):
        first_since(packed(Codec.NONE, records), 0, 100)


def test_c3_a_batch_of_too_many_records_is_not_walked_through(monkeypatch):
    monkeypatch.setattr(timestamps, "RECORDS_MAX", 3)
    assert first_since(batch_of([1, 2, 3]), 0, 3) == (2, 3)
    with pytest.raises(RecordBatchError, match="the count 4 is above 3"):
        first_since(batch_of([1, 2, 3, 4]), 0, 3)


def test_c3_blocks_of_snappy_together_are_bounded(monkeypatch):
    monkeypatch.setattr(timestamps, "UNPACKED_MAX", 10_000)
    block = bytes(cramjam.snappy.compress_raw(bytes(4_000)))
    framed = b"\x82SNAPPY\x00" + bytes(8) + (len(block).to_bytes(4) + block) * 3
    with pytest.raises(RecordBatchError, match="more bytes than may be unpacked"):
        first_since(packed(Codec.SNAPPY, framed), 0, 50)


def test_a_header_has_the_fields_of_kafka():
    batch = batch_of([7], producer_id=5, epoch=6, sequence=8)
    read = DefaultRecordBatch(bytes(batch))
    header = batch_header(batch)
    assert header.crc == read.crc
    assert header.attributes == read.attributes
    assert header.base_offset == read.base_offset
    assert header.last_offset_delta == read.last_offset_delta
    assert header.first_timestamp == read.first_timestamp
    assert header.max_timestamp == read.max_timestamp
