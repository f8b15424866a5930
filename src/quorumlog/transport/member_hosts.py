"""Hosts of members, whose connections come first and have no bound of strangers."""

from collections.abc import Container
from typing import Final

from quorumlog.auth.hosts import host_of

MEMBER_HOSTS_MAX: Final = 256
"""Hosts that are known; beyond, the one that was met the longest ago is forgotten."""


class MemberHosts:
    """The hosts at which members were met, on any port of a node; the longest ago first."""

    def __init__(self) -> None:
        self._hosts: dict[str, None] = {}

    def __contains__(self, host: str) -> bool:
        return host in self._hosts

    def note(self, address: str) -> None:
        """A member is at an address (without a port)."""
        host = host_of(address)
        self._hosts.pop(host, None)
        self._hosts[host] = None
        if len(self._hosts) > MEMBER_HOSTS_MAX:
            del self._hosts[next(iter(self._hosts))]

    def first_of(self, hosts: Container[str]) -> str:
        """Return the member's host among these that was met the longest ago; none: empty."""
        return next((one for one in self._hosts if one in hosts), "")
