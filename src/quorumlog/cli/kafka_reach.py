"""Why no broker answers at the addresses of `--bootstrap-server`, found out by trying them."""

import socket
import ssl
import struct
import time
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from quorumlog.client import Security, SyncClient
from quorumlog.client.kafka_security import secured
from quorumlog.log_events import reason_of
from quorumlog.model.config import parse_address
from quorumlog.model.errors import ConfigError, LoginError, QuorumlogError
from quorumlog.transport.tls_contexts import close_socket
from quorumlog.transport.tls_words import TlsError, in_words

PROBE_S: Final = 1.0
"""An address is tried for so long."""
_API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""A request that brokers answer without a login: ApiVersions, version 0, of no client id."""
_NO_ANSWER: Final = (b"", b"\x15")
"""How an answer to it does not begin: the connection is ended, perhaps by an alert of TLS."""
_WANTS_TLS: Final = (
    "it ends connections that begin without TLS: give --context NAME, which says how to speak to it"
)


class Reach(Enum):
    """What comes of a connection to an address."""

    TAKEN = "something takes connections there"
    OF_NODES = "a node takes those of other nodes and of quorumlog's own clients there"
    NOT_LET_IN = "TLS or a login fails there"
    REFUSED = "nothing listens there"
    UNKNOWN = "the host has no address"
    SILENT = "it is not known in time"


class Found(NamedTuple):
    """What comes of a connection to one address, and why; empty: there is one."""

    address: str
    reach: Reach
    why: str


def reach_of(servers: str, security: Security | None = None) -> list[Found]:
    """Try all addresses; return what comes of it. `security`: how they are spoken to."""
    return [_tried(address.strip(), security) for address in servers.split(",")]


def _tried(address: str, security: Security | None) -> Found:
    host, port = parse_address(address)
    try:
        plain = socket.create_connection((host, port), PROBE_S)
    except socket.gaierror as error:
        text = f"host {host!r} cannot be found: {reason_of(error)}"
        return Found(address, Reach.UNKNOWN, text)
    except OSError as error:
        refused = isinstance(error, ConnectionRefusedError)
        return Found(address, Reach.REFUSED if refused else Reach.SILENT, reason_of(error))
    plain.close()
    try:
        with SyncClient(address, security=security, timeout_ms=PROBE_S * 1_000) as client:
            client.metadata(address)
        return Found(address, Reach.OF_NODES, "")
    except LoginError:
        return Found(address, Reach.OF_NODES, "")
    except QuorumlogError:
        why = _why_not_let_in((host, port), security)
    return Found(address, Reach.NOT_LET_IN if why else Reach.TAKEN, why)


def _why_not_let_in(address: tuple[str, int], security: Security | None) -> str:
    """Return why TLS, or else the login, fails at an address; empty: neither does."""
    steps = [security]
    if security is not None and security.mechanism:
        tls = msgspec.structs.replace(security, mechanism="", user="", password=None, token=None)
        steps.insert(0, tls)
    for each in steps:
        try:
            plain = socket.create_connection(address, PROBE_S)
            connection = secured(plain, address[0], each)
            try:
                # only with its first answer a node of TLS 1.3 says that it refuses a certificate
                connection.sendall(_API_VERSIONS)
                answer = connection.recv(1)
            finally:
                close_socket(connection)
        except TlsError as error:
            return str(error)
        except ssl.SSLError as error:
            return in_words(error, each.certificate if each else "", time.time())
        except (OSError, ConfigError):
            return ""  # it is silent, or busy; files of no use are told where they are needed
        except QuorumlogError as error:
            return str(error)
        if each is None and answer in _NO_ANSWER:
            return _WANTS_TLS
    return ""


def is_hopeless(found: list[Found]) -> bool:
    """Whether no broker can be expected to answer at any address soon."""
    return not any(one.reach in {Reach.TAKEN, Reach.SILENT} for one in found)


def words_of(found: list[Found], within: str) -> str:
    """Return why no broker answered; `within`: how long that was waited for, or empty."""
    at = {reach: [one for one in found if one.reach is reach] for reach in Reach}
    if at[Reach.NOT_LET_IN]:
        return "; ".join(f"{one.address}: {one.why}" for one in at[Reach.NOT_LET_IN])
    if at[Reach.TAKEN]:
        where = ", ".join(one.address for one in at[Reach.TAKEN])
        return (
            f"{where} takes connections and names no broker{within}: __cluster has no leader, "
            "which takes a majority of its nodes ('quorumlog status' shows it), the node has only "
            "just started, or it wants a login (--context NAME)"
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
