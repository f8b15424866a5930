"""How many connections addresses and users have on a node, and who may have one more.

Of IPv6, the quota of all addresses is one of each network of 64 bits, whose addresses a host has to
itself; one that names an address is that of the address.
"""

from typing import Final

from quorumlog.auth.hosts import names_of
from quorumlog.auth.principals import USER as USER_PREFIX
from quorumlog.auth.quotas import CONNECTION_RATE, CONNECTIONS, IP, USER
from quorumlog.auth.throttles import Rate, Throttles, rate_of_address

ADDRESS_RATE, ADDRESS_CONNECTIONS, USER_CONNECTIONS = (
    "address_rate",
    "address_connections",
    "user_connections",
)
REASONS: Final = (ADDRESS_RATE, ADDRESS_CONNECTIONS, USER_CONNECTIONS)
"""Why connections are refused, as metrics have it."""


class Admissions:
    """The connections of clients to all ports of a node.

    `refused` counts those that a quota had no room for, by reason. `throttles`: what else clients
    have used of their quotas.
    """

    def __init__(self, throttles: Throttles) -> None:
        self.throttles = throttles
        self._open: dict[tuple[str, str], int] = {}
        """Connections by kind and name of whom they are of."""
        self._counted: dict[object, set[tuple[str, str]]] = {}
        self.refused = dict.fromkeys(REASONS, 0)

    def refusal_of_address(self, connection: object, address: str, now: float) -> str:
        """Count a client's connection from an address (without a port); return why it may not be.

        Empty: it may be. `now`: seconds of a clock that never goes back.
        """
        names, throttles = names_of(address), self.throttles
        bound = rate_of_address(throttles.quotas, CONNECTION_RATE, *names)
        if bound is not None:
            if throttles.buckets.left(*bound, now) <= 0:
                self.refused[ADDRESS_RATE] += 1
                return _text(bound)
            throttles.buckets.take(*bound, 1, now)
        bound = rate_of_address(throttles.quotas, CONNECTIONS, *names)
        if bound is not None and self._open.get((IP, str(bound.owner[2])), 0) + 1 > bound.rate:
            self.refused[ADDRESS_CONNECTIONS] += 1
            return _text(bound)
        for name in set(names):
            self._count(connection, (IP, name))
        return ""

    def refusal_of_user(self, connection: object, principal: str) -> str:
        """Count a connection as one of a principal, once, and of nobody else from now on.

        Returns why it may not be, and is to be closed; empty: it may.
        """
        name = principal.removeprefix(USER_PREFIX)
        key, counted = (USER, name), self._counted.get(connection, set())
        if key in counted:
            return ""
        quotas = self.throttles.quotas
        for entity in (((USER, name),), ((USER, None),)):
            most = quotas.get(entity, {}).get(CONNECTIONS)
            if most is not None:
                if self._open.get(key, 0) + 1 > most:
                    self.refused[USER_CONNECTIONS] += 1
                    return _text(Rate((CONNECTIONS, None, name), most))
                break
        for former in [one for one in counted if one[0] == USER]:
            counted.discard(former)
            self._uncount(former)
        self._count(connection, key)
        return ""

    def left(self, connection: object) -> None:
        """A connection has ended."""
        for key in self._counted.pop(connection, ()):
            self._uncount(key)

    def _count(self, connection: object, key: tuple[str, str]) -> None:
        self._counted.setdefault(connection, set()).add(key)
        self._open[key] = self._open.get(key, 0) + 1

    def _uncount(self, key: tuple[str, str]) -> None:
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]


def _text(bound: Rate) -> str:
    key, _, name = bound.owner
    return f"{name} has used up its quota: {key} {bound.rate:g}"
