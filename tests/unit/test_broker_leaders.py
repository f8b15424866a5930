"""Who leads partition groups, as one node pieces it together."""

import pytest

from quorumlog.broker.leaders import (
    ELECTION_MS,
    MAKES_NONE_MS,
    NOBODY,
    SILENT_MS,
    Leaders,
)
from quorumlog.model.messages.cluster import LedGroup


class Clock:
    def __init__(self):
        self.ms = 0
        self.changes = 0
        self.given_up = set()

    def changed(self):
        self.changes += 1


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def leaders(clock):
    return Leaders(lambda: clock.ms, clock.changed, lambda name: name in clock.given_up)


def led(term, name="pg-0", in_sync=("n0",)):
    return [LedGroup(name, term, list(in_sync))]


def test_the_leader_of_the_highest_term_counts_whoever_says_it_last(leaders):
    leaders.told("n1", led(5, in_sync=("n1", "n0")))
    leaders.told("n0", led(4))
    assert leaders.of("pg-0") == ("n1", 5, ("n0", "n1"))
    leaders.told("n0", led(6))
    assert leaders.of("pg-0")[:2] == ("n0", 6)
    assert leaders.of("pg-9") == NOBODY


def test_a_node_that_says_it_leads_no_more_leaves_its_term_behind(leaders):
    leaders.told("n1", led(5, in_sync=("n1", "n2")))
    leaders.told("n1", [])
    assert leaders.of("pg-0") == (None, 5, ("n1", "n2"))
    leaders.told("n2", led(4))
    assert leaders.of("pg-0")[:2] == (None, 5), "older than what is known"


def test_a_node_whose_connection_has_ended_leads_nothing_until_it_says_so_again(leaders, clock):
    leaders.told("n0", [])
    leaders.told("n1", led(5, in_sync=("n0", "n1")))
    leaders.observed({"pg-0": (5, "n1")})
    changes = clock.changes
    leaders.lost("n1")
    assert leaders.of("pg-0") == (None, 5, ("n0", "n1"))
    assert (leaders.alive, clock.changes) == ({"n0", "n1"}, changes + 1)
    leaders.lost("n1")
    leaders.lost("n7")
    assert clock.changes == changes + 1
    leaders.told("n1", led(5, in_sync=("n0", "n1")))
    assert leaders.of("pg-0")[:2] == ("n1", 5)


def test_it_is_known_why_groups_are_not_made_and_who_makes_none_for_a_while(leaders, clock):
    leaders.told("n0", [])
    leaders.told("n1", [], {"pg-1": "no descriptors", "pg-2": "no room"})
    leaders.told("n2", [], {"pg-1": "no room"})
    assert leaders.why_not_made("pg-1") == "n1: no descriptors; n2: no room"
    assert leaders.why_not_made("pg-0") == ""
    assert [leaders.makes_groups(node_id) for node_id in ("n0", "n1", "n3")] == [True, False, False]
    leaders.told("n1", [])
    assert leaders.why_not_made("pg-2") == ""
    assert not leaders.makes_groups("n1"), "it gave its group up, and would fail again"
    leaders.lost("n2")
    leaders.told("n2", [])
    assert leaders.makes_groups("n2"), "it was restarted"
    for _ in range(MAKES_NONE_MS // 1_000):
        clock.ms += 1_000
        leaders.told("n1", [])
    assert leaders.makes_groups("n1")


def test_a_silent_node_is_dead_and_leads_nothing(leaders, clock):
    leaders.told("n0", [])
    leaders.told("n1", led(5))
    clock.ms = SILENT_MS
    leaders.told("n0", [])
    leaders.tick()
    assert leaders.alive == {"n0", "n1"}
    clock.ms += 1
    leaders.tick()
    assert leaders.alive == {"n0"}
    assert leaders.of("pg-0")[:2] == (None, 5)


def test_what_an_own_replica_knows_of_a_later_term_counts(leaders):
    leaders.told("n1", led(5, in_sync=("n1",)))
    leaders.observed({"pg-0": (5, None)})
    assert leaders.of("pg-0")[:2] == ("n1", 5)
    leaders.observed({"pg-0": (6, None)})
    assert leaders.of("pg-0") == (None, 6, ("n1",))
    leaders.observed({"pg-0": (6, "n2")})
    assert leaders.of("pg-0")[:2] == (None, 6), "nothing was heard of it"
    leaders.told("n2", [])
    assert leaders.of("pg-0")[:2] == ("n2", 6)


def test_groups_that_were_given_up_are_forgotten(leaders, clock):
    leaders.told("n1", [*led(5), *led(2, "pg-1")])
    leaders.told("n1", led(5))
    assert leaders.of("pg-1") == (None, 2, ("n0",))
    clock.given_up.add("pg-1")
    leaders.groups_changed()
    assert leaders.of("pg-1") == NOBODY
    leaders.told("n2", led(3, "pg-1"))  # it does not know yet
    leaders.observed({"pg-1": (4, None)})
    assert leaders.of("pg-1") == NOBODY
    assert not leaders.are_electing()
    assert leaders.of("pg-0")[:2] == ("n1", 5)


def test_only_what_is_new_is_a_change(leaders, clock):
    leaders.told("n1", led(5))
    before = clock.changes
    leaders.told("n1", led(5))
    leaders.observed({})
    leaders.tick()
    assert clock.changes == before
    leaders.told("n1", led(5, in_sync=("n0", "n1")))
    assert clock.changes == before + 1


def test_a_group_that_has_just_lost_its_leader_is_electing_for_a_while(leaders, clock):
    leaders.told("n0", [])
    leaders.told("n1", led(5))
    assert not leaders.are_electing()
    leaders.lost("n1")
    clock.ms = ELECTION_MS - 1
    assert leaders.are_electing()
    leaders.told("n0", led(6))
    assert not leaders.are_electing()
    leaders.told("n0", [])
    clock.ms += ELECTION_MS
    assert not leaders.are_electing(), "nobody waits for a leader that does not come"


def test_a_group_that_has_had_no_election_yet_is_not_waited_for(leaders):
    leaders.observed({"pg-0": (0, None)})
    assert not leaders.are_electing()
    leaders.observed({"pg-0": (1, None)})
    assert leaders.are_electing()
