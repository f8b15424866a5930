"""Free ports on the loopback address."""

import random
import socket
from contextlib import ExitStack

from quorumlog.local.errors import LocalClusterError

LOOPBACK = "127.0.0.1"
PORT_FIRST = 10_000
PORT_LAST = 32_767
"""Below the ports that systems give to outgoing connections (32768 and up on Linux): otherwise the
port of a node that is down could be taken by a peer that tries to reach it."""
TRIES_MAX = 1_000
ADMIN_OFFSET = 100
"""From a node's port to its admin port, when the ports are chosen by the user."""


def free_ports(count: int) -> list[int]:
    """Return distinct ports that nothing listens on now.

    Raises `LocalClusterError` when there are not as many.
    """
    chance = random.Random()  # noqa: S311  (keeps two clusters apart; nothing secret)
    ports: list[int] = []
    with ExitStack() as held:
        for _ in range(TRIES_MAX):
            if len(ports) == count:
                return ports
            port = chance.randint(PORT_FIRST, PORT_LAST)
            try:
                held.enter_context(socket.create_server((LOOPBACK, port)))
            except OSError:
                continue
            ports.append(port)
    raise LocalClusterError(
        f"no {count} free ports between {PORT_FIRST} and {PORT_LAST} on {LOOPBACK}"
    )


def ports_from(first: int, count: int) -> list[int]:
    """Return pairs of listening and admin port: first, first + 100, first + 1, first + 101, …

    Raises `LocalClusterError` when one of them is taken or there are not as many.
    """
    ports = [port for node in range(count) for port in (first + node, first + ADMIN_OFFSET + node)]
    with ExitStack() as held:
        for port in ports:
            try:
                held.enter_context(socket.create_server((LOOPBACK, port)))
            except (OSError, OverflowError) as error:
                raise LocalClusterError(
                    f"port {port} on {LOOPBACK} cannot be used ({error}); choose another first port"
                ) from error
    return ports
