"""A bounded number of groups campaigns at a time."""

import heapq
import random

import pytest

from quorumlog.model.hard_state import HardState
from quorumlog.node.election_throttle import CAMPAIGNS_MAX, WAITS_MAX, ElectionThrottle
from raft_cluster import Cluster


def full():
    election_throttle = ElectionThrottle()
    assert all(election_throttle.admits(f"g{n}", 100, 1_000) for n in range(CAMPAIGNS_MAX))
    return election_throttle


def test_one_more_must_wait_until_another_is_over():
    election_throttle = full()
    assert election_throttle.admits("g3", 100, 1_000), "it has its slot"
    assert not election_throttle.admits("late", 100, 1_000)
    election_throttle.over("g3")
    assert election_throttle.admits("late", 100, 1_000)
    assert not election_throttle.admits("g3", 100, 1_000)


def test_whoever_asks_again_while_others_wait_loses_its_slot():
    election_throttle = full()
    assert not election_throttle.admits("late", 100, 1_000)
    assert all(election_throttle.admits("g3", now_ms, 1_000) for now_ms in (800, 1_500))
    assert not election_throttle.admits("late", 1_000, 1_000)
    assert not election_throttle.admits("g3", 2_200, 1_000)
    assert election_throttle.admits("late", 2_300, 1_000)


@pytest.mark.parametrize("seed", range(5))
def test_groups_that_can_never_win_do_not_keep_another_from_campaigning(seed):
    """They ask again within each time-out, as cores do, and so are never late themselves."""
    chance, election_throttle = random.Random(seed), ElectionThrottle()
    asks = [(chance.randrange(900), f"hopeless{number}") for number in range(3 * CAMPAIGNS_MAX)]
    asks.append((5_000, "winner"))
    heapq.heapify(asks)
    while asks:
        now_ms, group = heapq.heappop(asks)
        admitted = election_throttle.admits(group, now_ms, 900)
        if group == "winner" and admitted:
            break
        pause_ms = chance.randrange(500, 900) if admitted else chance.randrange(100, 200)
        heapq.heappush(asks, (now_ms + pause_ms, group))
        assert now_ms < 10_000, "it waits for ever"


def test_whoever_cannot_win_loses_its_slot_in_time():
    election_throttle = full()
    assert not election_throttle.admits("late", 1_099, 1_000)
    assert election_throttle.admits("late", 1_100, 1_000)


def test_whoever_waits_is_woken_up_when_another_is_over_and_those_that_are_first_before_others():
    election_throttle, woken = full(), []

    def wait(group, *, is_first, is_due=True):
        assert not election_throttle.admits(group, 100, 1_000)
        election_throttle.wait(group, lambda: woken.append(group) or is_due, is_first=is_first)

    wait("other", is_first=False)
    wait("gone", is_first=True)
    wait("elected", is_first=True, is_due=False)
    wait("first", is_first=True)
    election_throttle.over("gone")  # it follows a leader now, and held no slot
    assert woken == []
    election_throttle.over("g3")
    assert woken == ["elected", "first"]
    assert election_throttle.admits("first", 100, 1_000)
    election_throttle.over("first")
    assert woken == ["elected", "first", "other"]
    election_throttle.over("g4")
    assert woken == ["elected", "first", "other"], "nobody waits any more"


def test_the_more_groups_wait_the_less_often_each_asks_again():
    election_throttle = full()
    pauses = []
    for number in range(1_000):
        election_throttle.wait(f"late{number}", lambda: True, is_first=number % 2 == 0)
        pauses.append(election_throttle.pause_ms(500))
    assert pauses[0] == 500
    assert pauses == sorted(pauses)
    assert pauses[2 * CAMPAIGNS_MAX] == 3 * 500
    assert pauses[-1] == WAITS_MAX * 500
    for number in range(1_000):
        election_throttle.over(f"late{number}")
    assert election_throttle.pause_ms(500) == 500


@pytest.mark.parametrize("vote", [None, "n0", "n1"])
def test_whoever_voted_for_another_lets_that_one_campaign_first(vote):
    cluster = Cluster(3, states={"n0": HardState(3, vote)}).start()
    pause_ms = cluster.core("n0").next_deadline_ms() - cluster.now
    assert (pause_ms >= 500) if vote == "n1" else (pause_ms < 200)
