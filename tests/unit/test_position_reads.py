"""Finding an entry by its physical position, in files and in memory."""

import random

import pytest

from quorumlog.model.block import encode_block, parse_block
from quorumlog.model.errors import (
    IndexOutOfRangeError,
    IndexRemovedError,
    UnexpectedArgumentError,
)
from quorumlog.node.replica.position_reads import find_entry
from quorumlog.storage.log.memory_log import MemoryLog


def appended(log, bodies, term=1):
    data = memoryview(bytearray(encode_block(bodies)))
    plan, _ = log.append(parse_block(data, count=len(bodies), entry_bytes_max=1 << 20), term)
    return plan


def test_each_entry_is_found_by_its_position_and_no_byte_in_between_is_one():
    chance, log = random.Random(7), MemoryLog()
    sizes = [chance.choice((0, 5, 5, 5, 3_000)) for _ in range(2_000)]
    for begin in range(0, len(sizes), 40):
        appended(log, [bytes(size) for size in sizes[begin : begin + 40]])
    position, last = 0, len(sizes) - 1
    for index, size in enumerate(sizes):
        assert find_entry(log, position, last).index == index
        with pytest.raises(UnexpectedArgumentError, match="no entry starts at"):
            find_entry(log, position + 1 + chance.randrange(47 + size), last)
        position += 48 + size
    with pytest.raises(IndexOutOfRangeError, match="beyond the last committed entry"):
        find_entry(log, position, last)


def test_what_is_not_committed_is_not_found():
    log = MemoryLog()
    appended(log, [b"a", b"b"])
    assert find_entry(log, 49, 1).body == b"b"
    with pytest.raises(IndexOutOfRangeError):
        find_entry(log, 49, 0)
    with pytest.raises(IndexOutOfRangeError):
        find_entry(log, 0, -1)


def test_what_was_removed_is_said_to_be_removed():
    log = MemoryLog()
    appended(log, [b"a"])
    appended(log, [b"b"])
    log.note_committed(1)
    log.reset(0)
    with pytest.raises(IndexRemovedError):
        find_entry(log, 0, 1)
    assert find_entry(log, 49, 1).body == b"b"


def test_an_entry_that_its_leader_placed_elsewhere_is_not_given_for_another():
    """A replica whose log was reset beyond its end goes on in a new file (storage.md)."""
    leader, log = MemoryLog(), MemoryLog()
    appended(leader, [b"x" * 500, b"y"])
    log.reset(0, 1, 0)
    log.append_received(leader.read(1, 1, 1).block())
    with pytest.raises(UnexpectedArgumentError, match="according to the leader that appended it"):
        find_entry(log, 0, 1)
