"""Asking a node process how it is, over its admin port."""

import http.client
import ssl
from typing import Final

import msgspec

from quorumlog.model.config import parse_address

ANSWER_SECONDS = 2.0
ANSWER_BYTES_MAX = 4 * 1024 * 1024


class GroupHealth(msgspec.Struct, frozen=True):
    """One replica as its node describes it; `leader` is the leader it believes in.

    `misplaced`: its log has it at another address, so it takes no part. If the data of a group
    could not be opened, only role, health, text and kind are set.
    """

    healthy: bool
    role: str
    term: int = -1
    leader: str | None = None
    committed_index: int = -1
    text: str = ""
    misplaced: bool = False
    kind: str = "log"

    @property
    def is_own(self) -> bool:
        """Whether it is a group of users, none that brokers keep topics in."""
        return self.kind == "log"

    @property
    def first_line(self) -> str:
        """`text` without its further lines, such as a traceback."""
        return self.text.partition("\n")[0]


class NodeHealth(msgspec.Struct, frozen=True):
    """A node; `healthy` when all its groups are trusted and know a leader."""

    node: str
    healthy: bool
    groups: dict[str, GroupHealth]


_NODES: Final = msgspec.json.Decoder(NodeHealth)


def ask_health(address: str, tls: ssl.SSLContext | None = None) -> NodeHealth | None:
    """Return what the node at an admin address says; None when it does not answer.

    `tls`: what is trusted and shown, if the port speaks TLS.
    """
    host, port = parse_address(address)
    connection = (
        http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)
        if tls is None
        else http.client.HTTPSConnection(host, port, timeout=ANSWER_SECONDS, context=tls)
    )
    try:
        connection.request("GET", "/health")
        raw = connection.getresponse().read(ANSWER_BYTES_MAX)
        return _NODES.decode(raw)
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return None
    finally:
        connection.close()
