"""Why no broker answers at the addresses of `--bootstrap-server`, found out by trying them."""

import socket
from enum import Enum
from typing import Final, NamedTuple

from quorumlog.client import SyncClient
from quorumlog.log_events import reason_of
from quorumlog.model.config import parse_address
from quorumlog.model.errors import QuorumlogError

PROBE_S: Final = 1.0
"""An address is tried for so long."""


class Reach(Enum):
    """What comes of a connection to an address."""

    TAKEN = "something takes connections there"
    OF_NODES = "a node takes those of other nodes and of quorumlog's own clients there"
    REFUSED = "nothing listens there"
    UNKNOWN = "the host has no address"
    SILENT = "it is not known in time"


class Found(NamedTuple):
    """What comes of a connection to one address, and why; empty: there is one."""

    address: str
    reach: Reach
    why: str


def reach_of(servers: str) -> list[Found]:
    """Try all addresses; return what comes of it."""
    return [_tried(address.strip()) for address in servers.split(",")]


def _tried(address: str) -> Found:
    host, port = parse_address(address)
    try:
        socket.create_connection((host, port), PROBE_S).close()
    except socket.gaierror as error:
        text = f"host {host!r} cannot be found: {reason_of(error)}"
        return Found(address, Reach.UNKNOWN, text)
    except OSError as error:
        refused = isinstance(error, ConnectionRefusedError)
        return Found(address, Reach.REFUSED if refused else Reach.SILENT, reason_of(error))
    try:
        with SyncClient(address, timeout_ms=PROBE_S * 1_000) as client:
            client.metadata(address)
    except QuorumlogError:
        return Found(address, Reach.TAKEN, "")
    return Found(address, Reach.OF_NODES, "")


def is_hopeless(found: list[Found]) -> bool:
    """Whether no broker can be expected to answer at any address soon."""
    return not any(one.reach in {Reach.TAKEN, Reach.SILENT} for one in found)


def words_of(found: list[Found], within: str) -> str:
    """Return why no broker answered; `within`: how long that was waited for, or empty."""
    at = {reach: [one for one in found if one.reach is reach] for reach in Reach}
    if at[Reach.TAKEN]:
        where = ", ".join(one.address for one in at[Reach.TAKEN])
        return (
            f"{where} takes connections and names no broker{within}: __cluster has no leader, "
            "which takes a majority of its nodes ('quorumlog status' shows it), or the node has "
            "only just started"
        )
    if at[Reach.OF_NODES]:
        where = ", ".join(one.address for one in at[Reach.OF_NODES])
        return (
            f"{where} is a node's port for quorumlog's own clients (--servers); Kafka's clients "
            "are served at its kafkaListen"
        )
    if at[Reach.UNKNOWN]:
        return "; ".join(one.why for one in at[Reach.UNKNOWN])
    where = ", ".join(one.address for one in found)
    why = "; ".join(dict.fromkeys(one.why for one in found))
    return f"no broker answers at {where}{within} ({why}): is it kafkaListen of a node that runs?"
