"""Free ports on the loopback address."""

import errno
import random
import socket
from collections.abc import Collection, Sequence
from contextlib import ExitStack

from quorumlog.local.errors import LocalClusterError
from quorumlog.log_events import reason_of
from quorumlog.model.wording import counted

LOOPBACK = "127.0.0.1"
PORT_FIRST = 10_000
PORT_LAST = 32_767
"""Below the ports that systems give to outgoing connections (32768 and up on Linux): otherwise the
port of a node that is down could be taken by a peer that tries to reach it."""
PORT_MAX = 65_535
TRIES_MAX = 1_000
KAFKA_PORT = 9_092
"""Where Kafka's clients expect a broker."""
ADMIN_OFFSET = 100
"""From a node's port to its admin port, when the ports are chosen by the user."""


def free_ports(count: int, besides: Collection[int] = ()) -> list[int]:
    """Return distinct ports that nothing listens on now, none of `besides`.

    Raises `LocalClusterError` when there are not as many.
    """
    chance = random.Random()  # noqa: S311  (keeps two clusters apart; nothing secret)
    ports: list[int] = []
    with ExitStack() as held:
        for _ in range(TRIES_MAX):
            if len(ports) == count:
                return ports
            port = chance.randint(PORT_FIRST, PORT_LAST)
            if port in besides:
                continue
            try:
                held.enter_context(socket.create_server((LOOPBACK, port)))
            except OSError:
                continue
            ports.append(port)
    raise LocalClusterError(
        f"fewer than {counted(count, 'free port')} between {PORT_FIRST} and {PORT_LAST} on "
        f"{LOOPBACK}"
    )


def ports_from(first: int, count: int) -> list[int]:
    """Return pairs of listening and admin port: first, first + 100, first + 1, first + 101, …

    Raises `LocalClusterError` when one of them is taken or there are not as many.
    """
    ports = [port for node in range(count) for port in (first + node, first + ADMIN_OFFSET + node)]
    if max(ports) > PORT_MAX:
        raise LocalClusterError(
            f"{counted(count, 'node needs', 'nodes need')} from port {first} on ports up to "
            f"{max(ports)} (admin ports are {ADMIN_OFFSET} higher), and {PORT_MAX} is the last "
            "one; choose a lower --port"
        )
    refused = unusable(ports)
    if refused:
        raise LocalClusterError(
            f"{unusable_text(refused)}; choose other ports with --port (n0 gets that one, n1 the "
            f"next …; admin ports are {ADMIN_OFFSET} higher)"
        )
    return ports


def kafka_ports(first: int | None, count: int, besides: Collection[int] = ()) -> list[int]:
    """Return ports for Kafka's clients: `first` and those after it, 0: any that are free.

    None: 9092 and those after it if they are free, else any. `besides` are the nodes' other ports.
    Raises `LocalClusterError` when one that was asked for is taken, or there are not as many.
    """
    if first is None:
        usual = list(range(KAFKA_PORT, KAFKA_PORT + count))
        is_free = not set(usual) & set(besides) and not unusable(usual)
        return usual if is_free else free_ports(count, besides)
    if first == 0:
        return free_ports(count, besides)
    ports = list(range(first, first + count))
    refused = {port: "not a port" for port in ports if port > PORT_MAX} or unusable(ports)
    refused |= {port: "a port of the nodes themselves" for port in ports if port in besides}
    if refused:
        raise LocalClusterError(
            f"{unusable_text(refused)}; choose others with --kafka-port (n0 gets that one, n1 the "
            "next …; 0: any that are free)"
        )
    return ports


def unusable(ports: Sequence[int]) -> dict[int, str]:
    """Return those that a node could not listen on now, each with the reason."""
    refused: dict[int, str] = {}
    with ExitStack() as held:
        for port in ports:
            try:
                held.enter_context(socket.create_server((LOOPBACK, port)))
            except OSError as error:
                in_use = error.errno == errno.EADDRINUSE
                refused[port] = "in use" if in_use else f"not to be had ({reason_of(error)})"
    return refused


def unusable_text(refused: dict[int, str]) -> str:
    """Return unusable ports in words."""
    return ", ".join(f"port {port} on {LOOPBACK} is {why}" for port, why in refused.items())
