"""The values that the core computes with: terms by run, durable writes, majorities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.model.errors import ConfigError, InvariantViolation
from quorumlog.raft.config import RaftConfig
from quorumlog.raft.log_index import LogIndex
from quorumlog.raft.quorum import majority, majority_index
from quorumlog.raft.write_tracker import WriteTracker


def shape(*terms, base=-1, base_term=-1):
    """A log whose entry base + 1 + i has terms[i]."""
    runs = [
        (term, base + 1 + at) for at, term in enumerate(terms) if at == 0 or terms[at - 1] != term
    ]
    return LogIndex(base, base_term, runs, base + len(terms))


def runs_of(terms, first):
    return [(term, first + at) for at, term in enumerate(terms) if at == 0 or terms[at - 1] != term]


def test_an_empty_log_ends_at_its_boundary():
    assert (shape().end_index, shape().end_term) == (-1, -1)
    trimmed = shape(base=9, base_term=3)
    assert (trimmed.end_index, trimmed.end_term, trimmed.term_at(9)) == (9, 3, 3)


def test_terms_are_known_inside_the_log_only():
    log = shape(1, 1, 3, base=4, base_term=1)

    assert [log.term_at(index) for index in range(4, 8)] == [1, 1, 1, 3]
    for index in (3, 8):
        with pytest.raises(InvariantViolation):
            log.term_at(index)


def test_a_run_is_found_from_any_of_its_entries():
    log = shape(1, 1, 1, 4, 4, 6)

    assert [(log.run_start(i), log.run_end(i)) for i in (0, 2, 4, 5)] == [
        (0, 2),
        (0, 2),
        (3, 4),
        (5, 5),
    ]
    assert [log.last_index_of_term(term) for term in (1, 4, 6, 5, 9)] == [2, 4, 5, None, None]


def test_terms_never_fall_along_a_log():
    with pytest.raises(InvariantViolation):
        shape(2).append(1, 1)
    with pytest.raises(InvariantViolation):
        LogIndex(-1, -1, [(2, 0), (1, 1)], 5)


terms_lists = st.lists(st.integers(1, 4), max_size=12).map(sorted)


@given(terms_lists, st.integers(-1, 3), st.data())
def test_appending_and_cutting_is_what_it_is_on_a_list(terms, base, data):
    log, model = shape(*terms, base=base, base_term=0), list(terms)
    for _ in range(5):
        if model and data.draw(st.booleans()):
            kept = data.draw(st.integers(0, len(model) - 1))
            log.truncate(base + 1 + kept)
            del model[kept:]
        else:
            term = data.draw(st.integers(model[-1] if model else 0, 9))
            count = data.draw(st.integers(1, 3))
            log.append(log.end_index + count, term)
            model += [term] * count
        log.validate()
        assert [log.term_at(base + 1 + at) for at in range(len(model))] == model
        assert log.end_index == base + len(model)
        for first in range(len(model)):
            last = data.draw(st.integers(first, len(model) - 1))
            found = log.runs_between(base + 1 + first, base + 1 + last)
            assert found == runs_of(model[first : last + 1], base + 1 + first)


@given(terms_lists, terms_lists.filter(bool), st.integers(0, 12))
def test_the_first_entry_to_store_is_the_first_that_differs(mine, theirs, first):
    first = min(first, len(mine))
    last = first + len(theirs) - 1
    expected = first
    while expected <= last and expected < len(mine) and mine[expected] == theirs[expected - first]:
        expected += 1

    assert shape(*mine).first_conflict(runs_of(theirs, first), last) == expected


def test_entries_below_the_boundary_are_taken_as_stored():
    log = shape(2, 2, base=9, base_term=2)

    assert log.first_conflict([(1, 3), (2, 8)], 9) == 10
    assert log.first_conflict([(1, 3), (2, 8)], 11) == 12
    assert log.first_conflict([(1, 3), (2, 8)], 14) == 12


def test_122_majority_index_of_watermarks():
    assert majority_index([9, 5, 3]) == 5
    assert majority_index([9, 9, -1]) == 9
    assert majority_index([7, 3, 2, 1]) == 2
    assert majority_index([9, 8, 7, 6, 5]) == 7
    assert majority_index([4]) == 4


@given(st.lists(st.integers(-1, 50), min_size=1, max_size=7))
def test_the_majority_index_is_the_largest_that_a_majority_has(values):
    index = majority_index(values)

    assert sum(value >= index for value in values) >= majority(len(values))
    assert sum(value > index for value in values) < majority(len(values))


def test_a_write_makes_only_entries_durable_that_were_not_removed_since():
    """RELIABILITY R20: entries 5 … 9 were staged, removed, and others took their place."""
    writes = WriteTracker(4)
    old = writes.issue(9, now_ms=10)
    writes.truncated(5)
    cut = writes.issue(4, now_ms=20)
    new = writes.issue(9, now_ms=30)

    writes.durable(old)
    assert writes.durable_index == 4
    writes.durable(cut)
    assert writes.durable_index == 4
    assert writes.oldest_ms == 30
    writes.durable(new)
    assert writes.durable_index == 9
    assert writes.oldest_ms is None


def test_durable_entries_that_are_removed_are_not_durable():
    writes = WriteTracker(9)
    writes.truncated(5)

    assert writes.durable_index == 4


def test_a_write_that_was_never_issued_cannot_be_durable():
    with pytest.raises(InvariantViolation):
        WriteTracker(-1).durable(1)


GOOD = {
    "group": "g",
    "self_id": "n0",
    "members": ("n0", "n1"),
    "heartbeat_ms": 100,
    "election_timeout_min_ms": 500,
    "election_timeout_max_ms": 1_000,
    "push_timeout_ms": 1_000,
    "push_bytes_max": 10,
    "push_window_bytes": 40,
    "push_window_requests": 8,
    "push_quota_bytes": 20 << 20,
    "transfer_timeout_ms": 1_000,
    "transfer_lag_max": 1_000,
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"self_id": "n9"},
        {"members": ("n0", "n0")},
        {"heartbeat_ms": 0},
        {"heartbeat_ms": 500},
        {"heartbeat_ms": 600},
        {"election_timeout_max_ms": 500},
        {"push_timeout_ms": 0},
        {"push_window_bytes": 9},
        {"push_window_requests": 0},
    ],
)
def test_impossible_configurations_are_refused(wrong):
    assert RaftConfig(**GOOD).founders.voters == ("n0", "n1")
    with pytest.raises(ConfigError):
        RaftConfig(**{**GOOD, **wrong})
