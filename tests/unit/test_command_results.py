"""What is remembered of the results of commands, so that a repeated block is answered again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.node.replica.command_results import CommandResults
from quorumlog.sessions.entries import SessionEntry
from quorumlog.sessions.producer_table import SESSIONS_MAX


def entry(producer_id, count, *, sequence=0, keeps_results=True):
    return SessionEntry(producer_id, 0, sequence, count, 5, keeps_results)


def test_results_are_found_by_session_and_index():
    known = CommandResults()
    changed = known.take([(10, entry(1, 2)), (13, entry(2, 1))], {11: b"a", 12: b"b", 14: b"c"})
    assert known.find(1, 10) == [b"a", b"b"]
    assert known.find(2, 13) == [b"c"]
    assert known.find(1, 13) is None
    assert known.find(3, 10) is None
    assert len(changed) == 2
    assert None not in changed.values()


def test_what_a_plain_producer_appended_is_not_kept():
    known = CommandResults()
    assert known.take([(10, entry(1, 1, keeps_results=False))], {11: b"a", 12: b"b"}) == {}
    assert known.find(1, 10) is None
    assert known.pairs() == []


def test_the_newest_block_of_a_session_takes_the_place_of_the_one_before():
    known = CommandResults()
    known.take([(10, entry(1, 1))], {11: b"a"})
    known.take([(12, entry(1, 1, sequence=1))], {13: b"b"})
    assert known.find(1, 10) is None
    assert known.find(1, 12) == [b"b"]


def test_a_block_that_is_half_applied_has_no_results_yet():
    known = CommandResults()
    known.take([(10, entry(1, 3))], {11: b"a"})
    assert known.find(1, 10) is None
    again = CommandResults.of(known.pairs())
    for one in (known, again):
        one.take([], {12: b"b", 13: b"c"})
        assert one.find(1, 10) == [b"a", b"b", b"c"]


def test_the_oldest_are_forgotten_when_there_are_too_many_or_too_large_ones():
    known = CommandResults()
    for number in range(SESSIONS_MAX + 1):
        changed = known.take([(2 * number, entry(number, 1))], {2 * number + 1: b"x"})
    assert known.find(0, 0) is None
    assert known.find(1, 2) == [b"x"]
    assert list(changed.values()).count(None) == 1, "a machine is told to remove it"
    small = CommandResults(bytes_max=10)
    small.take([(0, entry(1, 1)), (2, entry(2, 1))], {1: b"12345", 3: b"12345"})
    small.take([(4, entry(3, 1))], {5: b"6"})
    assert (small.find(1, 0), small.find(2, 2), small.find(3, 4)) == (None, [b"12345"], [b"6"])
    small.take([(6, entry(4, 1))], {7: b"more than ten bytes"})
    assert small.pairs() == []


def test_garbage_is_no_table():
    with pytest.raises(UnexpectedArgumentError):
        CommandResults.of([(b"k", b"\xc1")])


@st.composite
def logs(draw):
    """Blocks of commands with their results, and where batches are cut."""
    sessions, results, index = [], {}, 0
    for _ in range(draw(st.integers(1, 12))):
        index += draw(st.integers(0, 2))
        count = draw(st.integers(1, 4))
        sessions.append((index, entry(draw(st.integers(1, 4)), count)))
        for number in range(index + 1, index + 1 + count):
            results[number] = bytes(draw(st.integers(0, 8)))
        index += 1 + count
    return sessions, results, sorted(draw(st.sets(st.integers(0, index), max_size=6)) | {index})


@given(logs(), st.booleans())
def test_batches_may_be_cut_anywhere_and_a_machine_that_keeps_the_changes_knows_the_same(
    log, opens
):
    sessions, results, cuts = log
    whole = CommandResults(bytes_max=20)
    whole.take(sessions, results)
    kept, parts, first = {}, CommandResults(bytes_max=20), 0
    for last in cuts:
        changed = parts.take(
            [pair for pair in sessions if first <= pair[0] <= last],
            {index: result for index, result in results.items() if first <= index <= last},
        )
        kept = {k: v for k, v in {**kept, **changed}.items() if v is not None}
        assert sorted(kept.items()) == sorted(parts.pairs())
        if opens:
            parts = CommandResults.of(kept.items(), bytes_max=20)
        first = last + 1
    assert parts.pairs() == whole.pairs()
