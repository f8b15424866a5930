"""Blocks: layout, stamping, chain CRC, and what is refused."""

import random
import zlib
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quorumlog.model import block as blocks
from quorumlog.model.codes import Magic
from quorumlog.model.entry import SYSTEM_CHANNEL
from quorumlog.model.errors import InvariantViolation, UnexpectedArgumentError
from quorumlog.storage.entries import checksums

ENTRY_MAX = 1 << 20
bodies_strategy = st.lists(st.binary(max_size=300), min_size=1, max_size=40)


def made(bodies: list[bytes]) -> blocks.Block:
    data = memoryview(bytearray(blocks.encode_block(bodies)))
    return blocks.parse_block(data, count=len(bodies), entry_bytes_max=ENTRY_MAX)


def stamped(bodies: list[bytes], first: int = 0, term: int = 1, chain: int = 0) -> blocks.Block:
    block = made(bodies)
    blocks.stamp(block, first, term, block.offsets + 1000, chain)
    return block


@given(bodies_strategy)
def test_43_what_is_encoded_is_decoded(bodies):
    entries = list(blocks.decode_entries(stamped(bodies, first=7, term=3)))
    assert [entry.body for entry in entries] == bodies
    assert [entry.index for entry in entries] == list(range(7, 7 + len(bodies)))
    assert {entry.term for entry in entries} == {3}
    assert [entry.body_crc for entry in entries] == [zlib.crc32(body) for body in bodies]


def test_header_layout_to_the_byte():
    block = stamped([b"abc"], first=5, term=2)
    raw = bytes(block.data)
    assert raw[0:4] == (1).to_bytes(4, "big")
    assert raw[4:8] == (51).to_bytes(4, "big")
    assert raw[8:16] == (5).to_bytes(8, "big")
    assert raw[16:24] == (2).to_bytes(8, "big")
    assert raw[24:32] == (1000).to_bytes(8, "big")
    assert raw[32:36] == bytes(4)
    assert raw[40:44] == zlib.crc32(b"abc").to_bytes(4, "big")
    assert raw[44:48] == (3).to_bytes(4, "big")
    assert raw[48:] == b"abc"


@given(bodies_strategy, st.integers(0, 2**32 - 1))
def test_chain_crc_is_the_crc_of_the_identity_continued(bodies, before):
    chain = before
    for entry in blocks.decode_entries(stamped(bodies, first=9, term=4, chain=before)):
        identity = (
            entry.magic.to_bytes(4, "big")
            + entry.index.to_bytes(8, "big")
            + entry.term.to_bytes(8, "big")
            + entry.channel.to_bytes(4, "big")
            + len(entry.body).to_bytes(4, "big")
            + entry.body_crc.to_bytes(4, "big")
        )
        chain = zlib.crc32(identity, chain)
        assert entry.chain_crc == chain


@given(bodies_strategy, st.integers(1, 10))
def test_stamping_in_pieces_gives_the_same_bytes(bodies, piece):
    whole = stamped(bodies, first=3, term=2)
    block = made(bodies)
    chain = 0
    for start in range(0, len(bodies), piece):
        part = block.slice(start, min(start + piece, len(bodies)))
        positions = block.offsets[start : start + part.count] + 1000
        chain = blocks.stamp(part, 3 + start, 2, positions, chain)
    assert bytes(block.data) == bytes(whole.data)


@given(bodies_strategy)
def test_index_records_describe_the_block(bodies):
    block = stamped(bodies, first=11)
    records = blocks.index_records(block, block.offsets + 500)
    table = np.frombuffer(records, dtype=blocks.INDEX_RECORD_DTYPE)
    assert table["pos"].tolist() == (block.offsets + 500).tolist()
    assert table["index"].tolist() == list(range(11, 11 + len(bodies)))
    again = blocks.block_from_index_records(block.data, records)
    assert again.offsets.tolist() == block.offsets.tolist()


def test_records_of_other_bytes_are_refused():
    block = stamped([b"a", b"bb"])
    records = blocks.index_records(block, block.offsets)
    with pytest.raises(UnexpectedArgumentError):
        blocks.block_from_index_records(block.data[:-1], records)


@given(bodies_strategy, st.data())
def test_a_flipped_bit_in_a_body_is_found(bodies, data):
    block = stamped(bodies)
    filled = [i for i, body in enumerate(bodies) if body]
    if not filled:
        return
    victim = data.draw(st.sampled_from(filled))
    byte = data.draw(st.integers(0, len(bodies[victim]) - 1))
    block.data[int(block.offsets[victim]) + 48 + byte] ^= 1 << data.draw(st.integers(0, 7))
    assert checksums.first_damaged(block) == victim
    assert not blocks.bodies_fit(block)


def test_entries_of_the_original_without_crcs_are_not_called_damaged():
    block = stamped([b"old"])
    block.data[36:44] = bytes(8)
    assert checksums.first_damaged(block) is None
    assert not blocks.bodies_fit(block)


@given(st.binary(max_size=400), st.integers(-1, 8))
def test_garbage_is_refused_or_is_exactly_count_entries(garbage, count):
    data = memoryview(bytearray(garbage))
    try:
        block = blocks.parse_block(data, count=count, entry_bytes_max=ENTRY_MAX)
    except UnexpectedArgumentError:
        return
    assert block.count == count
    assert int(block.sizes.sum()) == len(garbage)


def test_69_an_entry_above_the_limit_is_refused():
    data = memoryview(bytearray(blocks.encode_block([b"x" * 100])))
    with pytest.raises(UnexpectedArgumentError, match="largest allowed 100"):
        blocks.parse_block(data, count=1, entry_bytes_max=100)


def test_bookkeeping_entries_are_not_for_users():
    for raw in (
        blocks.encode_entry(b"", magic=Magic.NOOP),
        blocks.encode_entry(b"x", channel=SYSTEM_CHANNEL),
    ):
        block = blocks.parse_block(memoryview(raw), count=1, entry_bytes_max=ENTRY_MAX)
        with pytest.raises(UnexpectedArgumentError, match="entry 0"):
            blocks.check_proposal(block)


def test_stamping_read_only_bytes_is_a_bug():
    raw = memoryview(blocks.encode_block([b"a"]))
    block = blocks.parse_block(raw, count=1, entry_bytes_max=ENTRY_MAX)
    with pytest.raises(InvariantViolation):
        blocks.stamp(block, 0, 1, block.offsets, 0)


LISTS_OF_SIZES = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 40)), min_size=1, max_size=12
).map(lambda runs: [size for size, times in runs for _ in range(times)])


@given(LISTS_OF_SIZES)
def test_entries_of_any_sizes_are_found_in_runs_or_one_by_one(sizes):
    data = memoryview(blocks.encode_block([b"x" * size for size in sizes]))
    block = blocks.parse_block(data, count=len(sizes), entry_bytes_max=ENTRY_MAX)
    assert (block.sizes - blocks.HEADER_SIZE).tolist() == sizes
    assert block.offsets.tolist() == [0, *accumulate(block.sizes.tolist())][:-1]


@given(LISTS_OF_SIZES, st.integers(-40, 40), st.integers(-3, 3))
def test_a_block_that_is_cut_short_or_counted_wrongly_is_refused(sizes, more_bytes, more_entries):
    data = blocks.encode_block([b"x" * size for size in sizes])
    data = data + bytes(more_bytes) if more_bytes > 0 else data[: len(data) + more_bytes]
    assume(more_bytes or more_entries)
    with pytest.raises(UnexpectedArgumentError):
        blocks.parse_block(
            memoryview(data), count=len(sizes) + more_entries, entry_bytes_max=ENTRY_MAX
        )


def test_term_runs_and_contiguity():
    data = bytearray()
    chain, first = 0, 0
    for term, count in ((1, 2), (3, 3)):
        block = made([b"x"] * count)
        chain = blocks.stamp(block, first, term, block.offsets, chain)
        data += block.data
        first += count
    joined = blocks.parse_block(memoryview(data), count=5, entry_bytes_max=ENTRY_MAX)
    assert blocks.term_runs_of(joined) == [(1, 0), (3, 2)]
    assert blocks.is_contiguous(joined, 0, [(1, 0), (3, 2)])
    assert not blocks.is_contiguous(joined, 1, [(1, 0), (3, 2)])
    assert not blocks.is_contiguous(joined, 0, [(1, 0)])
    assert blocks.first_index_of(joined.slice(2, 5)) == 2


def test_few_and_many_entries_are_stamped_alike():
    generator = random.Random(5)
    for count in range(1, 30):
        bodies = [generator.randbytes(generator.randrange(50)) for _ in range(count)]
        entries = list(blocks.decode_entries(stamped(bodies, first=1, term=1)))
        assert [entry.index for entry in entries] == list(range(1, count + 1))
        assert blocks.chain_crcs(stamped(bodies, first=1, term=1), 0) == [
            entry.chain_crc for entry in entries
        ]


SIZES_OF_BODIES = st.one_of(
    st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 100, 900]), min_size=1, max_size=12),
    st.tuples(st.integers(0, 60), st.integers(1, 12)).map(lambda pair: [pair[0]] * pair[1]),
)


@given(SIZES_OF_BODIES, st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
def test_all_crcs_are_checked_at_once_as_they_are_one_by_one(sizes, chain_before, generator):
    block = blocks.parse_block(
        memoryview(bytearray(blocks.encode_block([generator.randbytes(size) for size in sizes]))),
        count=len(sizes),
        entry_bytes_max=1 << 20,
    )
    blocks.stamp(block, 7, 3, block.offsets, chain_before)
    words = checksums.header_words(block)
    assert checksums.all_agree(block, words, chain_before)
    assert checksums.all_agree(block, words, None)
    assert not checksums.chain_agrees(words, chain_before ^ 1)
    place = generator.randrange(len(block.data))
    offset = place - max(start for start in block.offsets.tolist() if start <= place)
    block.data[place] ^= 1 << generator.randrange(8)
    in_body, in_body_crc = offset >= 48, 40 <= offset < 44
    covered = offset < 4 or 8 <= offset < 24 or 32 <= offset < 36 or 40 <= offset < 48
    in_chain_crc = 36 <= offset < 40
    words = checksums.header_words(block)
    assert checksums.bodies_agree(block, words) == (not (in_body or in_body_crc))
    assert checksums.chain_agrees(words, chain_before) == (not (covered or in_chain_crc))
