"""How much clients have used of their quotas, and how long they have to wait for that.

Each entity has a token bucket for each of its quotas: it fills with the quota's rate up to what one
second brings, and a request may take more than is in it. Then the bucket is in debt, and whoever
has used it waits until the debt is paid. So a request of any size is served, and over time no more
comes through a connection than the rate. Times are seconds of a clock that never goes back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from quorumlog.auth.hosts import names_of
from quorumlog.auth.principals import USER as USER_PREFIX
from quorumlog.auth.quotas import CLIENT_ID, IP, THROTTLED, USER, QuotaEntity

BURST_S: Final = 1.0
"""A bucket that nobody has used for a while holds what its rate brings in this time."""
BUCKETS_MAX: Final = 10_000
"""Buckets of a node. Beyond, one goes that was not used for long, and is not in debt if there is
such a one: whoever has other names all the time does not pay the debts of others."""
LOOKS_MAX: Final = 64
"""How many are looked at for that; if all are in debt, the one used the longest ago goes."""
READ_S: Final = 0.1
"""Who need not wait may read what the rate brings in this time, though less be left: to read by
single bytes would be slower than the quota."""
STEP_S: Final = 1.0
"""A connection that has to wait is looked at again after this time at the latest: quotas change,
and others may have used the same bucket meanwhile."""
WAIT_MS_MAX: Final = (1 << 31) - 1
"""The longest time that a client can be told."""
Quotas: TypeAlias = Mapping[QuotaEntity, Mapping[str, float]]
BucketOwner: TypeAlias = tuple[str, str | None, str | None]
"""The key of a quota, the user and the client id whose bucket it is; with None as the user, the
address."""


def wait_ms(seconds: float) -> int:
    """Return a wait in whole milliseconds, not less than it is."""
    return min(WAIT_MS_MAX, -int(-min(seconds, WAIT_MS_MAX) * 1000 // 1))


class TokenBuckets:
    """The buckets of a node, at most `buckets_max`."""

    def __init__(self, buckets_max: int = BUCKETS_MAX) -> None:
        self._buckets_max = buckets_max
        self._known: dict[BucketOwner, tuple[float, float, float]] = {}
        """What each held, when, and at which rate; below 0: a debt. The one used the longest ago is
        the first."""

    def __len__(self) -> int:
        return len(self._known)

    def left(self, owner: BucketOwner, rate: float, now: float) -> float:
        """Return what a bucket holds that fills with `rate` a second; below 0: a debt.

        If the rate is another one than before, it fills with that from now on; a lower one makes
        no debt last longer.
        """
        found = self._known.get(owner)
        if found is None:
            return rate * BURST_S
        left, former = _left(*found, now), found[2]
        if rate != former:
            left = left * rate / former if left < 0 and rate < former else min(rate * BURST_S, left)
            self._known[owner] = left, now, rate
        return left

    def take(self, owner: BucketOwner, rate: float, amount: float, now: float) -> None:
        """Take an amount out of a bucket, however much it holds."""
        left = self.left(owner, rate, now) - amount
        self._known.pop(owner, None)
        self._known[owner] = left, now, rate
        if len(self._known) > self._buckets_max:
            some = islice(self._known.items(), LOOKS_MAX)
            paid = (one for one, found in some if _left(*found, now) >= 0)
            del self._known[next(paid, next(iter(self._known)))]

    def wait_s(self, owner: BucketOwner, rate: float, now: float) -> float:
        """Return how long it takes until a bucket is in debt no more."""
        return max(0.0, -self.left(owner, rate, now) / rate)


def _left(held: float, at: float, rate: float, now: float) -> float:
    return min(rate * BURST_S, held + rate * max(0.0, now - at))


class Rate(NamedTuple):
    """The quota that counts for a client, and whose bucket it uses."""

    owner: BucketOwner
    rate: float


def rate_of(quotas: Quotas, key: str, user: str, client_id: str) -> Rate | None:
    """Return which quota counts for a client, in Kafka's order (KIP-55); None: none does.

    One of a user and a client id goes before that of the user, that before one of the client id
    alone; one by name before that of all that have none of their own. What is given to all users,
    or client ids, each of them has, by itself. So each user has what is given to a client id: users
    choose what they call their clients, and must not use up what others have.
    """
    both, of_user = (user, client_id), (user, None)
    order: tuple[tuple[QuotaEntity, tuple[str | None, str | None]], ...] = (
        (((CLIENT_ID, client_id), (USER, user)), both),
        (((CLIENT_ID, None), (USER, user)), both),
        (((USER, user),), of_user),
        (((CLIENT_ID, client_id), (USER, None)), both),
        (((CLIENT_ID, None), (USER, None)), both),
        (((USER, None),), of_user),
        (((CLIENT_ID, client_id),), both),
        (((CLIENT_ID, None),), both),
    )
    for entity, owner in order:
        rate = quotas.get(entity, {}).get(key)
        if rate is not None:
            return Rate((key, *owner), rate)
    return None


def rate_of_address(quotas: Quotas, key: str, exact: str, host: str) -> Rate | None:
    """Return which quota counts for an address, besides that of the client; None: none does.

    `exact`, `host`: see `names_of`. One that names the address goes before that of all, of which
    each host has its own.
    """
    for entity, name in ((((IP, exact),), exact), (((IP, None),), host)):
        rate = quotas.get(entity, {}).get(key)
        if rate is not None:
            return Rate((key, None, name), rate)
    return None


@dataclass(slots=True)
class ThrottleCounters:
    """How often clients were told to wait, and for how many seconds in all, by key of the quota."""

    waits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(THROTTLED, 0))
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(THROTTLED, 0.0))


class Throttles:
    """What clients of one node have used of their quotas.

    Attributes:
        is_active: whether there is any quota by which requests are delayed; while there is none,
            nothing is counted.
        quotas: those that count now, also those of addresses.
        version: another one whenever there are other quotas.
    """

    def __init__(self, buckets_max: int = BUCKETS_MAX) -> None:
        self.is_active = False
        self.quotas: Quotas = {}
        self.version = 0
        self.buckets = TokenBuckets(buckets_max)
        self.counters = ThrottleCounters()

    def use(self, quotas: Quotas) -> None:
        """Have these quotas count from now on, also for connections that are open."""
        self.quotas = quotas
        self.version += 1
        self.is_active = any(not values.keys().isdisjoint(THROTTLED) for values in quotas.values())


class Meter:
    """What the client of one connection uses.

    It has to wait for the buckets that it has taken from, not for others of the same user.
    `address`: where it is, without a port.
    """

    __slots__ = ("_address", "_names", "_owed", "_rates", "_throttles", "_version")

    def __init__(self, throttles: Throttles, address: str = "") -> None:
        self._throttles = throttles
        self._address = address
        self._names: tuple[str, str] | None = None
        self._version = -1
        self._rates: dict[str, list[Rate]] = {}
        self._owed: dict[str, None] = {}

    def name(self, principal: str, client_id: str) -> None:
        """Say who the client is, and what it calls itself, before it uses anything."""
        names = principal.removeprefix(USER_PREFIX), client_id
        if names != self._names or self._version != self._throttles.version:
            self._names = names
            self._find()

    def _find(self) -> None:
        throttles, names = self._throttles, self._names
        self._version = throttles.version
        if names is not None:
            quotas, address, found = throttles.quotas, names_of(self._address), {}
            for key in THROTTLED:
                both = rate_of(quotas, key, *names), rate_of_address(quotas, key, *address)
                found[key] = [rate for rate in both if rate is not None]
            self._rates = {key: rates for key, rates in found.items() if rates}

    def take(self, key: str, amount: float, now: float) -> None:
        """The client has used an amount of what a quota is for."""
        for rate in self._rates.get(key, ()):
            self._throttles.buckets.take(*rate, amount, now)
            self._owed[key] = None

    def left(self, key: str, now: float) -> float | None:
        """Return how much the client may read now; below 0: it has to wait. None: any amount."""
        least: float | None = None
        for rate in self._rates.get(key, ()):
            left = self._throttles.buckets.left(*rate, now)
            if left < 0:
                self._owed[key] = None
            else:
                left = max(left, rate.rate * READ_S)
            least = left if least is None else min(least, left)
        return least

    def wait_s(self, now: float) -> float:
        """Return how long the client has to wait by the quotas that count now; 0: it need not."""
        return self._longest(now)[0]

    def begin_wait(self, now: float) -> float:
        """Return how long the client has to wait, and count it."""
        seconds, key = self._longest(now)
        if seconds:
            counters = self._throttles.counters
            counters.waits[key] += 1
            counters.seconds[key] += seconds
        return seconds

    def _longest(self, now: float) -> tuple[float, str]:
        if self._version != self._throttles.version:
            self._find()
        longest, why = 0.0, ""
        for key in list(self._owed):
            rates = self._rates.get(key, ())
            waits = (self._throttles.buckets.wait_s(*rate, now) for rate in rates)
            seconds = max(waits, default=0.0)
            if not seconds:
                del self._owed[key]
            elif seconds > longest:
                longest, why = seconds, key
        return longest, why
