"""Quotas on the node's own port: what is told, what is not read, and what is served."""

from types import SimpleNamespace

import pytest

from quorumlog.auth.admissions import Admissions
from quorumlog.auth.quotas import CONSUMED, PRODUCED, REQUEST_RATE, checked_entity
from quorumlog.auth.throttles import Throttles
from quorumlog.model.features import OWN_FEATURES, SECURITY
from quorumlog.model.messages.base import Hello, Response
from quorumlog.model.messages.client import (
    AppendRequest,
    FetchRequest,
    MetadataRequest,
    Throttled,
)
from quorumlog.service import quota_gate
from quorumlog.service.quota_gate import QuotaGate
from quorumlog.wire.frame import Frame

APPEND = AppendRequest(group="g", count=1)


class Loop:
    """A clock, and calls that wait for their time."""

    def __init__(self):
        self.now, self.calls = 100.0, []

    def time(self):
        return self.now

    def call_later(self, seconds, call, *args):
        timer = SimpleNamespace(at=self.now + seconds, is_cancelled=False)
        timer.cancel = lambda: setattr(timer, "is_cancelled", True)
        self.calls.append((timer, lambda: call(*args)))
        return timer

    def run(self, seconds):
        """Let a time pass."""
        until = self.now + seconds
        while due := [one for one in self.calls if one[0].at <= until]:
            first = min(due, key=lambda one: one[0].at)
            self.calls.remove(first)
            self.now = first[0].at + 1e-6
            if not first[0].is_cancelled:
                first[1]()
        self.now = max(self.now, until)


class World:
    """A connection, its gate, and what comes through."""

    def __init__(self, loop, features=OWN_FEATURES):
        self.remote_address = "10.0.0.1:5"
        self.principal, self.agreed = "User:alice", SimpleNamespace(features=features)
        self.sent, self.served, self.is_muted, self.refused = [], [], False, []
        self.throttles = Throttles()
        self.gate = QuotaGate(self.throttles, Admissions(self.throttles), self, loop.time)
        self.gate.opened(self, Hello(cluster="c", node_id="", role="client", client="job"))

    def limit(self, key, value, **entity):
        parts = (entity or {"user": "alice"}).items()
        self.throttles.use({checked_entity(parts): {key: value}})

    def ask(self, message=APPEND, size=0):
        self.gate.frame_received(self, Frame(1, message, memoryview(bytes(size))))

    # -- the handler behind the gate, and the connection

    def opened(self, connection, hello):
        pass

    def frame_received(self, connection, frame):
        self.served.append(frame.message)

    def closed(self, connection, reason):
        pass

    def send(self, message):
        self.sent.append(message)

    def refuse(self, reason, *, has_taken):
        self.refused.append((reason, has_taken))

    def mute(self):
        self.is_muted = True

    def unmute(self):
        self.is_muted = False


@pytest.fixture
def loop(monkeypatch):
    loop = Loop()
    monkeypatch.setattr(quota_gate.asyncio, "get_running_loop", lambda: loop)
    return loop


def told(world):
    return [one.ms for one in world.sent if isinstance(one, Throttled)]


def test_who_is_above_the_quota_is_served_and_told_how_long_to_wait_each_second(loop):
    world = World(loop)
    world.limit(PRODUCED, 100)
    world.ask(size=350)
    assert (len(world.served), told(world), world.is_muted) == (1, [2500], False)
    loop.run(2.4)
    assert told(world) == [2500, 1500, 500]
    loop.run(1)
    assert told(world) == [2500, 1500, 500]
    world.ask(size=10)
    assert told(world) == [2500, 1500, 500], "there was something left again"


def test_who_does_not_wait_is_served_once_more_and_not_read_until_the_debt_is_paid(loop):
    world = World(loop)
    world.limit(PRODUCED, 100)
    world.ask(size=200)
    world.ask(size=100)
    assert (len(world.served), world.is_muted) == (2, True)
    loop.run(1.9)
    assert world.is_muted
    loop.run(0.2)
    assert not world.is_muted


def test_who_leads_is_told_meanwhile(loop):
    world = World(loop)
    world.limit(REQUEST_RATE, 1)
    for _ in range(3):
        world.ask()
    for _ in range(10):
        world.ask(MetadataRequest(group="g"))
    assert len(world.served) == 13
    assert world.throttles.buckets.left((REQUEST_RATE, "alice", None), 1, loop.now) == -2


def test_a_client_that_cannot_be_told_is_not_read_and_hears_that_the_node_is_there(loop):
    world = World(loop, features=SECURITY)
    world.limit(PRODUCED, 100)
    world.ask(size=200)
    assert world.is_muted
    loop.run(0.9)
    assert len(world.sent) > 4, "it asks after 0.2 s without a sign"
    assert set(map(type, world.sent)) == {Response}
    loop.run(0.3)
    assert not world.is_muted


def test_what_is_read_counts_when_it_was_answered_and_less_is_read_then(loop):
    world = World(loop)
    world.limit(CONSUMED, 1_000)
    fetch = FetchRequest(group="g", begin_index=0, bytes_max=5_000)
    world.ask(fetch)
    assert world.served[-1].bytes_max == 1_000
    world.gave(1_500)
    assert told(world) == [500]
    loop.run(0.6)
    world.ask(fetch)
    assert world.served[-1].bytes_max == 100, "at least what comes in a tenth of a second"
    world.ask(FetchRequest(group="g", begin_index=0, bytes_max=50))
    assert world.served[-1].bytes_max == 50


def test_a_quota_of_a_client_id_is_for_what_the_client_calls_itself(loop):
    world = World(loop)
    world.throttles.use({checked_entity([("client-id", "job")]): {PRODUCED: 100}})
    world.ask(size=200)
    assert told(world) == [1000]


def test_without_a_quota_nothing_is_counted_and_one_that_is_taken_away_ends_the_wait(loop):
    world = World(loop)
    world.ask(size=10_000)
    world.gave(10_000)
    assert len(world.throttles.buckets) == 0
    world.limit(PRODUCED, 1)
    world.ask(size=200)
    world.ask(size=200)
    assert world.is_muted
    world.throttles.use({})
    loop.run(1.1)
    assert not world.is_muted


@pytest.mark.parametrize("has_taken", [True, False])
def test_who_has_logged_in_as_a_user_with_too_many_gets_nothing(loop, has_taken):
    world = World(loop)
    if has_taken:
        world.ask()
    served = len(world.served)
    world.throttles.use({checked_entity([("user", "bob")]): {"connections": 0.5}})
    world.principal = "User:bob"
    world.ask()
    assert len(world.served) == served
    assert world.refused == [("bob has used up its quota: connections 0.5", has_taken)]


def test_a_connection_that_ends_is_looked_at_no_more(loop):
    world = World(loop)
    world.limit(PRODUCED, 1)
    world.ask(size=200)
    world.gate.closed(world, "for this test")
    before = len(world.sent)
    loop.run(5)
    assert len(world.sent) == before


def test_an_answer_that_comes_after_the_end_has_nobody_wait(loop):
    world = World(loop)
    world.limit(CONSUMED, 1)
    world.gate.closed(world, "for this test")
    world.gave(1_000)
    assert (world.sent, loop.calls) == ([], [])
    assert world.throttles.buckets.left((CONSUMED, "alice", None), 1, loop.now) < 0, "it counts"
