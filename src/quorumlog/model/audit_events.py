"""What the audit log of a node holds: who did what from where, and whether that was allowed.

A module that has something to record is given an `Audit`; it knows no file.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from quorumlog.model.errors import ConfigError

BY_CERTIFICATE: Final = "certificate"
"""The mechanism of whoever shows a certificate."""
_ANY: Final = "any"
DATA_KINDS: Final = ("group", "topic")
"""Kinds of resources whose reads and writes may be recorded."""
ADMINISTRATION_REFUSED: Final = (
    "the audit log has no room for what is to be done, as its disk is full, slow or failing: see "
    "the node's log; nothing was done"
)


class AuditedEvent(StrEnum):
    """Kinds of events, as the file names them."""

    NODE_STARTED = "node-started"
    NODE_STOPPED = "node-stopped"
    ADMINISTRATION = "administration"
    """Groups, members, topics, configs, users, ACLs … are made, altered or deleted."""
    CONNECTION_REFUSED = "connection-refused"
    """A connection is ended, as what came over it is not accepted."""
    LOGIN_REFUSED = "login-refused"
    """Somebody who is not who they say, or may not log in so."""
    REQUEST_REFUSED = "request-refused"
    """The principal may not do what it asks for."""
    DATA_ACCESS = "data-access"
    """Entries or records are read or written (only where `auditData` says so)."""


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that somebody did, or tried to do."""

    event: AuditedEvent
    principal: str = ""
    """Who it was, such as `User:alice`; empty: nobody who asked for it."""
    mechanism: str = ""
    """How the principal proved who it is; empty: it did not."""
    address: str = ""
    """`host:port` of the client; empty: nobody asked over a connection."""
    client: str = ""
    """What the client calls itself; anybody may call himself anything."""
    resource: str = ""
    """What it was done to, as `kind:name`, such as `group:flights` or `topic:orders`."""
    operation: str = ""
    """Kafka's word for the right that it takes: Create, Alter, Delete, Read, Write …"""
    allowed: bool = True
    reason: str = ""
    """Why it was refused, or why it failed; empty: it was done."""
    request: str = ""
    """The kind of request, and what it asks for."""
    failed: bool = False
    """Whether nothing was done, as far as is known. Anybody can fail any number of times: such
    events are counted, as refusals are. No line has this value, as `reason` says it."""


class AuditCounters:
    """Totals of an audit log; any thread may read them."""

    def __init__(self) -> None:
        self.lines = 0
        self.lost = 0
        self.is_failing = False


class Audit(Protocol):
    """Takes events. Its calls never wait, and raise nothing."""

    def record(self, event: AuditEvent) -> None:
        """Have an event written."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether administration can be recorded now; if not, it is to be refused."""
        ...

    def is_accessed(self, kind: str, name: str) -> bool:
        """Whether reads and writes of a resource are recorded. `kind`: one of `DATA_KINDS`."""
        ...


class NodeAudit(Audit, Protocol):
    """That of a node, which opens and closes it; see `Audit`."""

    counters: AuditCounters

    def open(self) -> None:
        """Begin to write: nobody else uses the node's directory now."""
        ...

    def close(self) -> None:
        """Write what is left; it may take seconds, so not on the loop."""
        ...


class NoAudit:
    """Records nothing."""

    has_room = True

    def __init__(self) -> None:
        self.counters = AuditCounters()

    def record(self, event: AuditEvent) -> None:
        """See `Audit`."""

    def is_accessed(self, kind: str, name: str) -> bool:
        """See `Audit`."""
        return False

    def open(self) -> None:
        """See `NodeAudit`."""

    def close(self) -> None:
        """See `NodeAudit`."""


NO_AUDIT: Final = NoAudit()


def acl_resource(principal: str) -> str:
    """Return the resource of an event that changes ACLs; without a principal: of any."""
    return f"acl:{principal or _ANY}"


def acl_words(
    verb: str,
    permission: str,
    operation: str,
    resource_type: str,
    name: str,
    pattern: str,
    host: str,
) -> str:
    """Return what was done with an ACL (see `auth.acls`); an empty name or host stands for any."""
    what = f"{verb} {permission} {operation} {resource_type}:{name or _ANY} {pattern}"
    return f"{what} from {host or _ANY}"


def quota_resource(entity: Iterable[tuple[str, str | None]]) -> str:
    """Return the resource of an event that changes a quota: `quota:user=alice,client-id=app`.

    `entity`: type and name of each part; None: all that have no quota of their own.
    """
    parts = [f"{kind}={'<default>' if name is None else name}" for kind, name in entity]
    return f"quota:{','.join(parts)}"


class DataPatterns:
    """Which groups and topics have their reads and writes recorded.

    Raises `ConfigError` for a pattern that is not `group:NAME`, `topic:NAME`, or one of these with
    `*` at its end, for all names that begin so.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._names: set[tuple[str, str]] = set()
        self._prefixes: dict[str, tuple[str, ...]] = {}
        for pattern in patterns:
            kind, _, name = pattern.partition(":")
            if kind not in DATA_KINDS or not name or "*" in name[:-1]:
                raise ConfigError(
                    f"auditData: {pattern!r} is not group:NAME, group:PREFIX*, topic:NAME or "
                    "topic:PREFIX*"
                )
            if name.endswith("*"):
                self._prefixes[kind] = (*self._prefixes.get(kind, ()), name[:-1])
            else:
                self._names.add((kind, name))

    def match(self, kind: str, name: str) -> bool:
        """Whether a resource is meant by a pattern."""
        prefixes = self._prefixes.get(kind, ())
        return (kind, name) in self._names or name.startswith(prefixes)
