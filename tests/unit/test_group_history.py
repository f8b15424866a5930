"""The judge of the torture of consumer groups: what is right passes, and each kind of wrong does
not.
"""

import pytest

from torture.group_history import GroupHistory


@pytest.fixture
def history():
    """One member has had partition 0, another one has it now; ten records, each committed once."""
    made = GroupHistory()
    made.assigned("a", 1.0, 1, [0], [0])
    made.committing("a", {0: (0, 4)})
    made.committed("a", 1.5, [0])
    made.looked(2.0, {0: 4})
    made.revoked("a", 2.5, [0])
    made.assigned("b", 3.0, 2, [0], [0])
    made.committing("b", {0: (4, 10)})
    made.committed("b", 3.5, [0])
    made.looked(4.0, {0: 10})
    return made


def test_b4_what_is_right_passes(history):
    assert history.faults({0: 10}) == []
    assert history.owners() == {0: ["b"]}


def test_b4_two_owners_in_one_generation_are_found(history):
    history.assigned("c", 5.0, 2, [0], [])
    (fault,) = history.faults({0: 10})
    assert "owners ['b', 'c'] in generation 2" in fault


def test_b4_two_owners_at_once_are_found_unless_one_is_told_that_it_is_late(history):
    history.assigned("c", 5.0, 3, [0], [0])
    (fault,) = history.faults({0: 10})
    assert "c had it from 5.000 s on, and b until inf s" in fault
    history.revoked("b", 6.0, [0], is_lost=True)
    assert history.faults({0: 10}) == []


def test_b4_an_owner_beside_one_of_long_ago_is_found(history):
    history.revoked("b", 9.0, [0])
    history.assigned("c", 9.5, 3, [0], [0])
    history.owned[0].until_s = 20.0
    assert len(history.faults({0: 10})) == 2


def test_b4_who_was_killed_owns_nothing(history):
    history.ended("b", 5.0)
    history.assigned("c", 6.0, 3, [0], [0])
    assert history.faults({0: 10}) == []


@pytest.mark.parametrize(
    ("span", "what"), [((9, 12), "twice"), ((0, 12), "twice"), ((11, 12), "never")]
)
def test_b5_records_that_are_committed_twice_or_never_are_found(history, span, what):
    history.committing("b", {0: span})
    history.committed("b", 5.0, [0])
    (fault,) = history.faults({0: 12})
    assert f"some records count {what}" in fault


def test_b5_a_commit_whose_answer_got_lost_may_count_or_not(history):
    history.committing("b", {0: (10, 12)})
    assert history.faults({0: 10}) == []
    assert history.faults({0: 12}) == []
    history.committing("b", {0: (12, 14)})
    history.committed("b", 5.0, [0])
    assert history.faults({0: 14}) == []


def test_b5_what_is_not_committed_in_the_end_is_found(history):
    (fault,) = history.faults({0: 11})
    assert "committed up to 10, and it ends at 11" in fault


@pytest.mark.parametrize(("at_s", "offset", "least"), [(4.5, 9, 10), (4.5, -1, 10), (3.6, 4, 10)])
def test_b5_what_is_committed_and_goes_back_is_found(history, at_s, offset, least):
    history.looked(at_s, {0: offset})
    (fault,) = history.faults({0: 10})
    assert f"{offset} was told as committed after {least}" in fault
