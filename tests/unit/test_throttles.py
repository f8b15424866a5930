"""Token buckets of quotas, and which quota counts for whom."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.auth.quotas import CONSUMED, PRODUCED, REQUEST_RATE, checked_entity
from quorumlog.auth.throttles import (
    BURST_S,
    WAIT_MS_MAX,
    Meter,
    Rate,
    Throttles,
    TokenBuckets,
    rate_of,
    wait_ms,
)

OWNER = (PRODUCED, "alice", None)


def quotas(*given):
    """Return quotas: (parts of an entity, key, value)."""
    found = {}
    for parts, key, value in given:
        found.setdefault(checked_entity(parts.items()), {})[key] = value
    return found


def meter_of(throttles, user="alice", client_id="c"):
    meter = Meter(throttles)
    meter.name(f"User:{user}", client_id)
    return meter


# -- buckets ------------------------------------------------------------------------------------


class NaiveBucket:
    """Fills drop by drop, exactly: each event is looked at from the first one on."""

    def __init__(self, rate):
        self.rate, self.taken = Fraction(rate), []

    def left(self, now):
        level, at = self.rate * Fraction(BURST_S), Fraction(0)
        for when, amount in self.taken:
            level = min(self.rate * Fraction(BURST_S), level + self.rate * (when - at)) - amount
            at = when
        return min(self.rate * Fraction(BURST_S), level + self.rate * (Fraction(now) - at))

    def wait_s(self, now):
        return max(Fraction(0), -self.left(now) / self.rate)


STEPS = st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 100_000)), max_size=40)


@given(st.integers(1, 50_000), STEPS)
def test_a_bucket_is_what_a_naive_one_is(rate, steps):
    buckets, naive, now = TokenBuckets(), NaiveBucket(rate), 0
    for pause_ms, amount in steps:
        now += Fraction(pause_ms, 1000)
        buckets.take(OWNER, rate, amount, float(now))
        naive.taken.append((now, amount))
        assert buckets.left(OWNER, rate, float(now)) == pytest.approx(float(naive.left(now)))
        assert buckets.wait_s(OWNER, rate, float(now)) == pytest.approx(float(naive.wait_s(now)))


@given(st.integers(1, 50_000), st.lists(st.integers(1, 100_000), min_size=1, max_size=40))
def test_who_waits_as_told_gets_no_more_than_the_rate_and_a_burst(rate, amounts):
    buckets, now = TokenBuckets(), 0.0
    for amount in amounts:
        buckets.take(OWNER, rate, amount, now)
        now += buckets.wait_s(OWNER, rate, now)
    assert sum(amounts) <= rate * (now + BURST_S) * (1 + 1e-9)
    assert now <= sum(amounts) / rate, "nobody waits longer than what was taken takes"


def test_a_quota_that_becomes_another_one_counts_for_the_debt():
    buckets = TokenBuckets()
    buckets.take(OWNER, 100, 1_100, 0.0)
    assert buckets.wait_s(OWNER, 100, 0.0) == 10
    assert buckets.wait_s(OWNER, 1_000, 5.0) == pytest.approx(0.5)
    assert buckets.wait_s(OWNER, 1_000, 5.5) == 0, "it fills with the newer rate"
    buckets.take(OWNER, 1_000, 11_000, 60.0)
    assert buckets.wait_s(OWNER, 1_000, 60.0) == 10
    assert buckets.wait_s(OWNER, 10, 60.0) == 10, "who was told to wait waits no longer"
    assert buckets.wait_s(OWNER, 10, 70.0) == 0
    assert buckets.left(OWNER, 1_000, 71.0) == 10


def test_names_that_others_take_do_not_pay_a_debt():
    buckets = TokenBuckets(buckets_max=10)
    buckets.take(OWNER, 10, 200, 0.0)
    for number in range(1_000):
        buckets.take((REQUEST_RATE, "mallory", str(number)), 10, 1, 0.0)
    assert len(buckets) == 10
    assert buckets.wait_s(OWNER, 10, 0.0) == 19


def test_a_clock_that_stands_still_or_goes_back_fills_nothing():
    buckets = TokenBuckets()
    buckets.take(OWNER, 100, 300, 5.0)
    assert buckets.left(OWNER, 100, 5.0) == buckets.left(OWNER, 100, 4.0) == -200


def test_buckets_have_a_bound_and_the_one_used_longest_ago_goes():
    buckets = TokenBuckets(buckets_max=2)
    first, second, third = ((PRODUCED, name, None) for name in "abc")
    for owner in (first, second, first, third):
        buckets.take(owner, 10, 50, 0.0)
    assert len(buckets) == 2
    assert buckets.left(first, 10, 0.0) == -90
    assert buckets.left(third, 10, 0.0) == -40
    assert buckets.left(second, 10, 0.0) == 10, "it begins anew"


@pytest.mark.parametrize(
    ("seconds", "ms"), [(0.0, 0), (0.0001, 1), (1.0, 1000), (1.0011, 1002), (1e300, WAIT_MS_MAX)]
)
def test_a_wait_is_told_in_milliseconds_not_shorter_than_it_is(seconds, ms):
    assert wait_ms(seconds) == ms


# -- which quota counts -------------------------------------------------------------------------

ORDER = [
    ({"user": "alice", "client-id": "c"}, ("alice", "c")),
    ({"user": "alice", "client-id": None}, ("alice", "c")),
    ({"user": "alice"}, ("alice", None)),
    ({"user": None, "client-id": "c"}, ("alice", "c")),
    ({"user": None, "client-id": None}, ("alice", "c")),
    ({"user": None}, ("alice", None)),
    ({"client-id": "c"}, ("alice", "c")),  # not shared with others who call themselves so
    ({"client-id": None}, ("alice", "c")),
]


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_most_specific_quota_counts_in_the_order_of_kafka(first):
    given = [(entity, PRODUCED, 10 + rank) for rank, (entity, _) in enumerate(ORDER)][first:]
    others = [({"user": "bob"}, PRODUCED, 1), ({"user": "alice"}, CONSUMED, 1)]
    found = rate_of(quotas(*given, *others), PRODUCED, "alice", "c")
    assert found == Rate((PRODUCED, *ORDER[first][1]), 10 + first)


def test_without_a_quota_of_the_key_none_counts():
    assert rate_of(quotas(({"user": "bob"}, PRODUCED, 1)), PRODUCED, "alice", "c") is None
    assert rate_of(quotas(({"user": "alice"}, CONSUMED, 1)), PRODUCED, "alice", "c") is None


# -- meters -------------------------------------------------------------------------------------


def test_connections_of_a_user_share_what_the_user_has():
    throttles = Throttles()
    throttles.use(quotas(({"user": "alice"}, PRODUCED, 100)))
    one, other = meter_of(throttles), meter_of(throttles, client_id="d")
    one.take(PRODUCED, 300, 0.0)
    assert one.wait_s(0.0) == 2
    assert other.wait_s(0.0) == 0, "who has asked for nothing need not wait"
    other.take(PRODUCED, 100, 0.0)
    assert other.wait_s(0.0) == one.wait_s(0.0) == 3


def test_a_quota_of_all_users_is_one_of_each():
    throttles = Throttles()
    throttles.use(quotas(({"user": None}, PRODUCED, 100)))
    alice, bob = meter_of(throttles), meter_of(throttles, "bob")
    alice.take(PRODUCED, 300, 0.0)
    bob.take(PRODUCED, 100, 0.0)
    assert (alice.wait_s(0.0), bob.wait_s(0.0)) == (2, 0)


def test_an_address_has_a_quota_besides_that_of_the_user():
    throttles = Throttles()
    of_all, of_one = ({"ip": None}, PRODUCED, 100), ({"ip": "10.0.0.2"}, PRODUCED, 10)
    throttles.use(quotas(of_all, of_one, ({"user": "alice"}, PRODUCED, 50)))

    def meter(user, address):
        made = Meter(throttles, address)
        made.name(f"User:{user}", "c")
        return made

    alice, bob = meter("alice", "10.0.0.1"), meter("bob", "::ffff:10.0.0.1")
    bob.take(PRODUCED, 400, 0.0)
    assert (alice.wait_s(0.0), bob.wait_s(0.0)) == (0, 3)
    alice.take(PRODUCED, 100, 0.0)
    assert (alice.wait_s(0.0), bob.wait_s(0.0)) == (4, 4), "the longer of both waits"
    other = meter("10.0.0.1", "10.0.0.2")
    assert other.left(PRODUCED, 0.0) == 10, "a user who is called as an address is nobody else's"
    network = meter("carol", "2001:db8::1"), meter("carol", "2001:db8::2")
    network[0].take(PRODUCED, 300, 0.0)
    assert network[1].left(PRODUCED, 0.0) == -200, "a network of 64 bits is one host"


def test_the_longest_wait_of_what_was_used_counts():
    throttles = Throttles()
    throttles.use(quotas(({"user": "alice"}, PRODUCED, 100), ({"client-id": "c"}, REQUEST_RATE, 1)))
    meter = meter_of(throttles)
    meter.take(PRODUCED, 200, 0.0)
    meter.take(REQUEST_RATE, 5, 0.0)
    assert meter.begin_wait(0.0) == 4
    assert throttles.counters.waits == {PRODUCED: 0, CONSUMED: 0, REQUEST_RATE: 1}
    assert throttles.counters.seconds[REQUEST_RATE] == 4
    assert meter.wait_s(4.0) == 0


def test_a_change_of_quotas_counts_at_once():
    throttles = Throttles()
    meter = meter_of(throttles)
    meter.take(PRODUCED, 1_000, 0.0)
    assert not throttles.is_active
    assert meter.wait_s(0.0) == 0
    throttles.use(quotas(({"user": "alice"}, PRODUCED, 100)))
    assert throttles.is_active
    meter.name("User:alice", "c")
    meter.take(PRODUCED, 600, 0.0)
    assert meter.wait_s(0.0) == 5
    throttles.use(quotas(({"user": "alice"}, PRODUCED, 500)))
    assert meter.wait_s(0.0) == 1
    throttles.use({})
    assert (meter.wait_s(0.0), throttles.is_active) == (0, False)


def test_who_logs_in_as_another_user_uses_that_ones_quota():
    throttles = Throttles()
    throttles.use(quotas(({"user": "bob"}, PRODUCED, 100)))
    meter = meter_of(throttles)
    meter.take(PRODUCED, 1_000, 0.0)
    meter.name("User:bob", "c")
    meter.take(PRODUCED, 200, 0.0)
    assert meter.wait_s(0.0) == 1


def test_quotas_of_connections_alone_delay_no_request():
    throttles = Throttles()
    throttles.use(quotas(({"ip": None}, "connections", 5), ({"user": None}, "connections", 5)))
    assert not throttles.is_active


def test_what_is_left_to_read_is_a_debt_at_times():
    throttles = Throttles()
    throttles.use(quotas(({"user": "alice"}, CONSUMED, 100)))
    meter = meter_of(throttles)
    assert (meter.left(PRODUCED, 0.0), meter.left(CONSUMED, 0.0)) == (None, 100)
    other = meter_of(throttles)
    other.take(CONSUMED, 150, 0.0)
    assert meter.left(CONSUMED, 0.0) == -50
    assert meter.wait_s(0.0) == 0.5, "who asks while there is a debt has to wait for it"
