"""Blocks to Arrow, options and plans of the data source, without Spark or a cluster."""

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, StructField, StructType

from quorumlog.model.block import decode_entries
from quorumlog.model.errors import CorruptionError, UnexpectedArgumentError
from quorumlog.spark import decode as decoding
from quorumlog.spark.batch import IndexRange, LogReader
from quorumlog.spark.decode import decode
from quorumlog.spark.options import parse_options
from quorumlog.spark.schema import (
    HEADER_COLUMNS,
    PLAIN_COLUMNS,
    arrow_schema,
    default_schema,
    wanted_columns,
)
from quorumlog.storage.memory_log import MemoryLog
from store_access import block_of

ALL_COLUMNS = PLAIN_COLUMNS + HEADER_COLUMNS
REQUIRED = {"servers": "h:1", "group": "g"}


def log_with(bodies, noop_after=None):
    log = MemoryLog()
    for number, body in enumerate(bodies):
        log.append(block_of([body]), 1)
        if number == noop_after:
            log.append_noop(2)
    return log


def joined(log):
    """All of a log as one packed block with its records, as a server sends it."""
    data, records = bytearray(), bytearray()
    for index in range(log.end_index + 1):
        span = log.read(index, index, 1)
        data += span.data
        records += span.records
    return memoryview(data), memoryview(records)


def rows_of(batches):
    return [row for batch in batches for row in batch.to_pylist()]


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=50))
def test_decoding_gives_what_the_entries_say(bodies):
    log = log_with(bodies)
    data, records = joined(log)
    rows = rows_of(decode(data, records, ALL_COLUMNS, verify_crc=True))
    expected = [
        entry
        for index in range(len(bodies))
        for entry in decode_entries(decoding.block_from_index_records(*log_piece(log, index)))
    ]
    assert [row["body"] for row in rows] == bodies
    for row, entry in zip(rows, expected, strict=True):
        assert (row["index"], row["term"], row["pos"]) == (entry.index, entry.term, entry.pos)
        assert (row["body_crc"], row["chain_crc"]) == (entry.body_crc, entry.chain_crc)
        assert (row["magic"], row["size"], row["channel"]) == (1, 48 + len(entry.body), 0)


def log_piece(log, index):
    span = log.read(index, index, 1)
    return span.data, span.records


def test_129_noops_are_left_out():
    data, records = joined(log_with([b"a", b"b", b"c"], noop_after=1))
    rows = rows_of(decode(data, records, ("index", "body"), verify_crc=True))
    assert [(row["index"], row["body"]) for row in rows] == [(0, b"a"), (1, b"b"), (3, b"c")]


@pytest.mark.parametrize("columns", [("body",), ("term", "index"), ("chain_crc", "body", "index")])
def test_any_columns_in_any_order_have_sparks_schema(columns):
    data, records = joined(log_with([b"a", b"b"]))
    (batch,) = decode(data, records, columns, verify_crc=False)
    assert batch.schema.equals(arrow_schema(columns))
    assert batch.num_rows == 2


def test_a_block_becomes_several_batches_of_bounded_size(monkeypatch):
    monkeypatch.setattr(decoding, "BATCH_BYTES_MAX", 1_000)
    bodies = [b"x" * 100] * 20 + [b"y" * 5_000] + [b"z"]
    data, records = joined(log_with(bodies))
    batches = list(decode(data, records, ("body",), verify_crc=True))
    assert [row["body"] for row in rows_of(batches)] == bodies
    assert len(batches) == 6


def test_74_a_damaged_body_is_named_and_not_returned():
    data, records = joined(log_with([b"good", b"damaged", b"good"]))
    data[48 + 4 + 48 + 2] ^= 1
    with pytest.raises(CorruptionError, match="entry 1 does not fit"):
        list(decode(data, records, ("body",), verify_crc=True))
    assert len(rows_of(decode(data, records, ("body",), verify_crc=False))) == 3


def test_a_block_of_noops_gives_an_empty_batch():
    log = MemoryLog()
    log.append_noop(1)
    (batch,) = decode(*joined(log), ("index", "body"), verify_crc=True)
    assert (batch.num_rows, batch.schema) == (0, arrow_schema(("index", "body")))


# -- options --------------------------------------------------------------------------------------


def test_defaults():
    options = parse_options(REQUIRED)
    assert (options.start, options.end) == ("earliest", "latest")
    assert options.verify_crc
    assert options.leader_only
    assert not options.include_headers


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("startingIndex", "17", "start", 17),
        ("startingOffsets", "latest", "start", "latest"),
        ("STARTINGOFFSETS", '{"g": 5}', "start", 5),
        ("startingOffsets", '{"g": -2}', "start", "earliest"),
        ("endingOffsets", '{"g": -1}', "end", "latest"),
        ("endingIndex", "9", "end", 9),
        ("minPartitions", "8", "min_partitions", 8),
        ("includeHeaders", "TRUE", "include_headers", True),
        ("verifyCrc", "none", "verify_crc", False),
        ("readFrom", "any", "leader_only", False),
    ],
)
def test_options_are_understood(name, value, field, expected):
    assert getattr(parse_options({**REQUIRED, name: value}), field) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": "g"}, "'servers' is missing"),
        ({"servers": "h:1"}, "'group' is missing"),
        ({**REQUIRED, "topic": "x"}, "'topic' is not known"),
        ({**REQUIRED, "minPartitions": "0"}, "minPartitions='0' is wrong"),
        ({**REQUIRED, "minPartitions": "many"}, "minPartitions='many' is wrong"),
        ({**REQUIRED, "startingIndex": "-3"}, "startingIndex='-3' is wrong"),
        ({**REQUIRED, "startingIndex": "{"}, "is wrong"),
        ({**REQUIRED, "startingIndex": '{"other": 1}'}, "is wrong"),
        ({**REQUIRED, "endingIndex": "earliest"}, "endingIndex='earliest' is wrong"),
        ({**REQUIRED, "verifyCrc": "some"}, "verifyCrc='some' is wrong"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(UnexpectedArgumentError, match=message):
        parse_options(options)


def test_wrong_columns_are_named():
    with pytest.raises(UnexpectedArgumentError, match="column 'value' does not exist"):
        wanted_columns(StructType([StructField("value", IntegerType())]))
    with pytest.raises(UnexpectedArgumentError, match="column index is bigint, not int"):
        wanted_columns(StructType([StructField("index", IntegerType())]))


def test_headers_are_columns_on_request():
    assert default_schema(include_headers=False).names == list(PLAIN_COLUMNS)
    assert default_schema(include_headers=True).names == list(ALL_COLUMNS)


# -- plans ----------------------------------------------------------------------------------------


def planned(first, beyond, **options):
    reader = LogReader(parse_options({**REQUIRED, **options}), ("index",))
    reader._range = lambda: (first, beyond)
    return [(part.first, part.last) for part in reader.partitions()]


def test_a_range_is_cut_into_even_partitions():
    assert planned(10, 20) == [(10, 14), (15, 19)]
    assert planned(0, 10, minPartitions="3") == [(0, 2), (3, 5), (6, 9)]
    assert planned(0, 10, maxEntriesPerPartition="4") == [(0, 2), (3, 5), (6, 9)]
    assert planned(0, 1, minPartitions="8") == [(0, 0)]


def test_an_empty_range_is_one_partition_without_entries():
    assert planned(5, 5) == [(0, -1)]
    reader = LogReader(parse_options(REQUIRED), ("index",))
    assert list(reader.read(IndexRange(0, -1))) == []
    assert list(reader.read(None)) == []


def test_readers_travel_to_executors():
    reader = LogReader(parse_options(REQUIRED), ("index", "body"))
    assert pickle.loads(pickle.dumps(reader))._columns == ("index", "body")
    assert pa.schema([pa.field("index", pa.int64())]) == arrow_schema(("index",))
