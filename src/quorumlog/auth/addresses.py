"""Addresses and networks of clients, in the one form in which they are compared.

A client that reaches an IPv6 socket by IPv4 has an address such as `::ffff:10.0.0.1` (RFC 4291,
2.5.5.2). It is the same as 10.0.0.1, in whichever way it is written.
"""

from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
_MAPPED_BITS: Final = 96
"""Bits before the IPv4 address in a mapped one."""


def address_at(text: str) -> Address:
    """Return an address. Raises `ValueError`."""
    found = ip_address(text)
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found


def network_at(text: str) -> Network:
    """Return a network, or that of one address. Raises `ValueError`."""
    found = ip_network(text)
    if isinstance(found, IPv6Network) and found.prefixlen >= _MAPPED_BITS:
        mapped = found.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((mapped, found.prefixlen - _MAPPED_BITS))
    return found
