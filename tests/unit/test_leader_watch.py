"""Requests that wait for a leader, on a replica."""

import sys
from types import SimpleNamespace

import pytest

from quorumlog.model.config import GroupConfig
from quorumlog.node.replica import leader_watch
from quorumlog.node.replica.leader_watch import LeaderWatch
from replica_context import Surroundings


class Watched(Surroundings):
    """A replica that follows n1 in term 3; `told` are the names of requests that were answered."""

    def __init__(self):
        core = SimpleNamespace(leader_id="n1", term=3)
        super().__init__(GroupConfig(group="g", peers="n0-127.0.0.1:1"), core=core)
        self.told, self.later = [], []
        object.__setattr__(self.context.environment, "defer", self.later.append)
        self.watch = LeaderWatch(self.context)

    def wait(self, name, above_term=3, wait_ms=100, client="c"):
        self.watch.wait(above_term, wait_ms, lambda: self.told.append(name), client)

    def becomes(self, leader_id, term):
        core = self.context.core
        core.leader_id, core.term = leader_id, term
        self.watch.changed()


@pytest.fixture
def watched():
    return Watched()


def test_whoever_does_not_know_the_leader_is_told_at_once(watched):
    watched.wait("first", above_term=-1)
    watched.wait("does not wait", wait_ms=0)
    assert watched.told == ["first", "does not wait"]


def test_whoever_knows_it_is_told_of_the_next_one(watched):
    watched.wait("a")
    watched.wait("knows more", above_term=9)
    watched.becomes(None, 4)
    assert watched.told == [], "nobody leads yet"
    watched.becomes("n2", 4)
    assert watched.told == ["a"]
    watched.becomes("n2", 4)
    assert watched.told == ["a"]
    watched.becomes("n0", 10)
    assert watched.told == ["a", "knows more"]


def test_a_request_is_answered_when_its_time_is_over(watched):
    watched.wait("late", wait_ms=50)
    watched.wait("later", wait_ms=90)
    watched.now_ms = 50
    watched.tick()
    assert watched.told == ["late"]
    watched.now_ms = 90
    watched.tick()
    assert watched.told == ["late", "later"]


def test_those_whose_time_is_over_are_answered_without_a_look_at_the_others(watched):
    """Counted in calls of functions: 1,000 that wait have 1,000 deadlines."""
    for number in range(1_000):
        watched.wait(number, wait_ms=5_000 - number)
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for now_ms in range(4_001, 5_001):
            watched.now_ms = now_ms
            watched.tick()
    finally:
        sys.setprofile(None)
    assert watched.told == list(reversed(range(1_000)))
    assert calls < 100 * 1_000


def test_a_client_that_has_gone_is_told_nothing(watched):
    watched.wait("gone", client="other")
    watched.wait("there")
    watched.watch.forget("other")
    watched.becomes("n2", 4)
    assert watched.told == ["there"]


def test_many_are_answered_in_several_turns_of_the_loop(watched, monkeypatch):
    monkeypatch.setattr(leader_watch, "ANSWERED_PER_TURN", 2)
    for number in range(5):
        watched.wait(number)
    watched.becomes("n2", 4)
    assert watched.told == [0, 1]
    watched.wait("told at once")
    assert watched.told == [0, 1, "told at once"]
    while watched.later:
        watched.later.pop()()
    assert watched.told == [0, 1, "told at once", 2, 3, 4]


def test_beyond_the_bound_nobody_waits(watched, monkeypatch):
    monkeypatch.setattr(leader_watch, "WAITING_MAX", 1)
    watched.wait("waits")
    watched.wait("one too many")
    assert watched.told == ["one too many"]
