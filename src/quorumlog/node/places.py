"""Whether two addresses lead to the same place: a host may be a name or an IP address."""

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from contextlib import suppress

from quorumlog.model.config import is_written_alike, parse_address
from quorumlog.model.errors import ConfigError
from quorumlog.transport.resolver import Resolver

RESOLVE_TIMEOUT_S = 1.5
"""A name that takes longer to resolve counts as not known for now."""
RETRY_S = 10.0
"""Pause before names that differed, or were not resolved, are looked up again."""
PAIRS_MAX = 1_024
"""Pairs of addresses that are resolved. Further pairs differ, unless they are written alike, until
those that nobody asks for any more are forgotten."""
FORGET_S = 10.0
"""Pause before these are forgotten."""


class Places:
    """What one node knows of places.

    `changed` is called when it becomes known, or is no longer known, that two addresses lead to the
    same place. It then asks for all pairs that matter.
    """

    def __init__(self, resolver: Resolver, changed: Callable[[], None]) -> None:
        self._resolver = resolver
        self._changed = changed
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._known: dict[tuple[str, str], bool | None] = {}
        self._is_known = asyncio.Event()
        self._asked: set[tuple[str, str]] = set()
        self._forgetting: asyncio.TimerHandle | None = None
        self._is_stopped = False

    def is_same(self, one: str, other: str) -> bool | None:
        """Return whether two addresses lead to the same place; None: a name is not resolved yet.

        Two that were once found to be the same stay so, and a name that stops resolving changes
        nothing.
        """
        if is_written_alike(one, other):
            return True
        pair = (one, other)
        if pair not in self._tasks:
            if not _may_be_same(one, other):
                return False
            if len(self._tasks) >= PAIRS_MAX:
                self._forget_later()
                return False
            if self._is_stopped:
                return None
            self._tasks[pair] = asyncio.create_task(self._resolve(pair), name=f"where is {one}")
        self._asked.add(pair)
        return self._known.get(pair)

    def _forget_later(self) -> None:
        if self._forgetting is None:
            self._forgetting = asyncio.get_running_loop().call_later(FORGET_S, self._forget)

    def _forget(self) -> None:
        """Forget the pairs that nobody asks for any more, and let those be asked that had no room.

        Before the node takes part nobody asks for any; then all are kept.
        """
        self._forgetting = None
        self._asked.clear()
        self._changed()
        gone = self._tasks.keys() - self._asked if self._asked else ()
        for pair in gone:
            self._tasks.pop(pair).cancel()
            self._known.pop(pair, None)
        if gone:
            self._changed()

    async def resolved(self) -> None:
        """Wait until every requested name was resolved, or was not in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * RESOLVE_TIMEOUT_S):
                while self._known.keys() != self._tasks.keys():
                    self._is_known.clear()
                    await self._is_known.wait()

    async def stop(self) -> None:
        """Stop resolving names; none is resolved any more."""
        self._is_stopped = True
        if self._forgetting is not None:
            self._forgetting.cancel()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _resolve(self, pair: tuple[str, str]) -> None:
        while not self._known.get(pair):
            one, other = await asyncio.gather(*map(self._hosts, pair))
            before = self._known.get(pair)
            self._known[pair] = bool(one & other) if one and other else before
            self._is_known.set()
            if self._known[pair] is not before:
                self._changed()
            if not self._known[pair]:
                await asyncio.sleep(RETRY_S)

    async def _hosts(self, address: str) -> set[ipaddress.IPv4Address | ipaddress.IPv6Address]:
        """Return the IP addresses of a host; none if they cannot be found now."""
        found = []
        with suppress(OSError):
            found = await self._resolver.resolve(*parse_address(address), RESOLVE_TIMEOUT_S)
        return {ipaddress.ip_address(host) for _, (host, _) in found}


def is_here(address: str, listen_address: str) -> bool:
    """Return whether a node that listens at `listen_address` is at `address`, without any lookup.

    It is if the host is an IP address of this machine (port 0 can be bound there), unless the node
    listens at another one.
    """
    host, listens_at = _number(address), _number(listen_address)
    if host is None or (listens_at and not listens_at.is_unspecified and listens_at != host):
        return False
    family = socket.AF_INET6 if host.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((str(host), 0))
    except OSError:
        return False
    return not host.is_unspecified


def is_of_one_host(address: str) -> bool:
    """Whether a node that listens at an address is there: not if that stands for any interface."""
    number = _number(address)
    return bool(address) and not (number is not None and number.is_unspecified)


def _number(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(parse_address(address)[0])
    except (ConfigError, ValueError):
        return None


def _may_be_same(one: str, other: str) -> bool:
    try:
        return parse_address(one)[1] == parse_address(other)[1]
    except ConfigError:
        return False
