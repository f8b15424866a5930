"""What logins have to know of a connection."""

import asyncio
import ipaddress

from quorumlog.auth.login import Origin


def origin_of(transport: asyncio.BaseTransport | None, address: str) -> Origin:
    """Return what logins have to know of a connection. `address`: host and port of the client."""
    host = address.rpartition(":")[0]
    is_encrypted = transport is not None and transport.get_extra_info("ssl_object") is not None
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    return Origin(host, is_encrypted, is_loopback)
