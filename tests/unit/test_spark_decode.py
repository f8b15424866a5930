"""Blocks to Arrow, and what is checked of them, without Spark or a cluster."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.model.block import (
    block_from_index_records,
    decode_entries,
    encode_block,
    parse_block,
)
from quorumlog.model.errors import CorruptionError
from quorumlog.spark.source import arrow as decoding
from quorumlog.spark.source.arrow import decode, decode_block
from quorumlog.spark.source.batch import LogReader
from quorumlog.spark.source.options import parse_options
from quorumlog.spark.source.planning import IndexRange
from quorumlog.spark.source.schema import HEADER_COLUMNS, PLAIN_COLUMNS, arrow_schema
from quorumlog.spark.source.verify import Verify, verify_block
from quorumlog.storage.entries.checksums import header_words
from quorumlog.storage.log.memory_log import MemoryLog
from spark_fakes import FakeCluster, filled, rows_of
from store_access import block_of

ALL_COLUMNS = PLAIN_COLUMNS + HEADER_COLUMNS


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
        run = log.read(index, index, 1)
        data += run.data
        records += run.records
    return memoryview(data), memoryview(records)


def rows_in(batches):
    return [row for batch in batches for row in batch.to_pylist()]


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=50))
def test_decoding_gives_what_the_entries_say(bodies):
    log = log_with(bodies)
    data, records = joined(log)
    rows = rows_in(decode(data, records, ALL_COLUMNS, verify_crc=True))
    expected = [
        entry
        for index in range(len(bodies))
        for entry in decode_entries(block_from_index_records(*log_piece(log, index)))
    ]
    assert [row["body"] for row in rows] == bodies
    for row, entry in zip(rows, expected, strict=True):
        assert (row["index"], row["term"], row["pos"]) == (entry.index, entry.term, entry.pos)
        assert (row["body_crc"], row["chain_crc"]) == (entry.body_crc, entry.chain_crc)
        assert (row["magic"], row["size"], row["channel"]) == (1, 48 + len(entry.body), 0)


def log_piece(log, index):
    run = log.read(index, index, 1)
    return run.data, run.records


def test_129_noops_are_no_rows():
    data, records = joined(log_with([b"a", b"b", b"c"], noop_after=1))
    rows = rows_in(decode(data, records, ("index", "body"), verify_crc=True))
    assert [(row["index"], row["body"]) for row in rows] == [(0, b"a"), (1, b"b"), (3, b"c")]


def test_f93_with_a_channel_only_its_entries_are_rows():
    log = MemoryLog()
    for number in range(6):
        raw = memoryview(bytearray(encode_block([b"%d" % number], channel=number % 2)))
        log.append(parse_block(raw, count=1, entry_bytes_max=1_000), 1)
    block = block_from_index_records(*joined(log))
    batches = decode_block(block, header_words(block), ("index", "channel", "body"), channel=1)
    assert [(row["index"], row["channel"]) for row in rows_in(batches)] == [(1, 1), (3, 1), (5, 1)]


def test_rejected_entries_are_no_rows():
    data, records = joined(log_with([b"a", b"b", b"c", b"d"]))
    rows = rows_in(decode(data, records, ("body",), verify_crc=False, rejected=[(1, 2)]))
    assert [row["body"] for row in rows] == [b"a", b"d"]


@pytest.mark.parametrize(
    "columns", [("body",), ("term", "index"), ("chain_crc", "body", "index"), ("group", "body")]
)
def test_any_columns_in_any_order_have_sparks_schema(columns):
    data, records = joined(log_with([b"a", b"b"]))
    (batch,) = decode(data, records, columns, verify_crc=False, group="flights")
    assert batch.schema.equals(arrow_schema(columns))
    assert batch.num_rows == 2
    if "group" in columns:
        assert batch.column("group").to_pylist() == ["flights", "flights"]


def test_a_block_becomes_several_batches_of_bounded_size(monkeypatch):
    monkeypatch.setattr(decoding, "BATCH_BYTES_MAX", 1_000)
    bodies = [b"x" * 100] * 20 + [b"y" * 5_000] + [b"z"]
    data, records = joined(log_with(bodies))
    batches = list(decode(data, records, ("body",), verify_crc=True))
    assert [row["body"] for row in rows_in(batches)] == bodies
    assert len(batches) == 6


def test_74_a_damaged_body_is_named_and_not_returned():
    data, records = joined(log_with([b"good", b"damaged", b"good"]))
    data[48 + 4 + 48 + 2] ^= 1
    with pytest.raises(CorruptionError, match="entry 1 does not fit"):
        list(decode(data, records, ("body",), verify_crc=True))
    assert len(rows_in(decode(data, records, ("body",), verify_crc=False))) == 3


def test_a_block_of_noops_gives_an_empty_batch():
    log = MemoryLog()
    log.append_noop(1)
    (batch,) = decode(*joined(log), ("index", "body"), verify_crc=True)
    assert (batch.num_rows, batch.schema) == (0, arrow_schema(("index", "body")))


# -- what is checked ------------------------------------------------------------------------------

BODIES = [b"x" * 40, b"", b"y", b"z" * 40, b"w" * 40]
STARTS = [0, 88, 136, 185, 273]
CHECKED = [Verify.ALL, Verify.SCREEN]


def verified(change, verify, *, bodies=True, first=0):
    data, records = joined(log_with(BODIES))
    change(data)
    block = block_from_index_records(data, records)
    verify_block(block, header_words(block), first, verify, bodies=bodies)


@pytest.mark.parametrize("verify", CHECKED)
@pytest.mark.parametrize("entry", [0, 2, 3, 4])
def test_a_damaged_body_is_found_and_named(entry, verify):
    def damage(data):
        data[STARTS[entry] + 48] ^= 4

    with pytest.raises(CorruptionError, match=f"entry {entry} does not fit its body CRC"):
        verified(damage, verify)
    verified(damage, verify, bodies=False)
    verified(damage, Verify.NONE)


@pytest.mark.parametrize("verify", CHECKED)
def test_the_same_damage_in_two_bodies_is_found(verify):
    def damage(data):
        data[STARTS[0] + 50] ^= 4
        data[STARTS[3] + 50] ^= 4

    with pytest.raises(CorruptionError, match="entry 0 does not fit its body CRC"):
        verified(damage, verify)


@pytest.mark.parametrize("verify", CHECKED)
@pytest.mark.parametrize("offset", [0, 15, 23, 47])
def test_a_header_that_is_not_its_own_is_found(offset, verify):
    def damage(data):
        data[STARTS[2] + offset] ^= 8

    with pytest.raises(CorruptionError, match="entr"):
        verified(damage, verify, bodies=False)
    verified(damage, Verify.NONE)


@pytest.mark.parametrize("offset", [35, 39])
def test_a_channel_or_chain_crc_that_was_changed_is_found(offset):
    def damage(data):
        data[STARTS[2] + offset] ^= 8

    for verify in CHECKED:
        with pytest.raises(CorruptionError, match="entries 0 to 4 do not fit their chain CRCs"):
            verified(damage, verify)


def test_entries_of_another_place_in_the_log_are_found():
    with pytest.raises(CorruptionError, match="entry 7 has a header that is not its own"):
        verified(lambda data: None, Verify.SCREEN, first=7)


def test_entries_of_the_original_have_no_crcs_and_pass():
    def without_crcs(data):
        for start in STARTS:
            data[start + 36 : start + 44] = bytes(8)

    for verify in CHECKED:
        verified(without_crcs, verify)


@pytest.mark.parametrize("kind", ["all", "screen", "none"])
def test_the_option_says_what_is_checked(kind):
    cluster = FakeCluster(g=filled(3))
    cluster.content["g"].log.read(1, 1, 1).data[-1] ^= 1
    options = parse_options({"servers": "h:1", "group": "g", "verifyCrc": kind})
    reader = LogReader(options, ("index", "body"), cluster.connect)
    if kind == "none":
        assert len(rows_of(reader, [IndexRange("g", 0, 2)])) == 3
    else:
        with pytest.raises(CorruptionError, match="entry 1 does not fit its body CRC"):
            rows_of(reader, [IndexRange("g", 0, 2)])
    bodiless = LogReader(options, ("index",), cluster.connect)
    assert len(rows_of(bodiless, [IndexRange("g", 0, 2)])) == 3
