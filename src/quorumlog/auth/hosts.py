"""What stands for a host, where each of them has a share or a delay of its own."""

import ipaddress
from typing import Final

from quorumlog.auth.addresses import address_at

_PREFIX_V6: Final = 64
"""Bits of the network that one host of IPv6 has to itself: it can use each address of it."""


def without_port(address: str) -> str:
    """Return the host in `host:port`, without the brackets of IPv6."""
    return address.rpartition(":")[0].strip("[]")


def names_of(address: str) -> tuple[str, str]:
    """Return an address (without a port) as quotas name it, and what stands for its host."""
    try:
        exact = str(address_at(address.partition("%")[0]))
    except ValueError:
        return address, address
    return exact, host_of(exact)


def host_of(address: str) -> str:
    """Return an address (without a port) as one text; of IPv6, the network that it is in."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found), _PREFIX_V6), strict=False))
