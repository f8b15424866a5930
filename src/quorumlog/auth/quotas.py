"""Quotas of clients: whom they are for, and what they bound (Kafka's model, KIP-546)."""

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from quorumlog.auth.addresses import address_at
from quorumlog.auth.principals import user_name
from quorumlog.model.errors import UnexpectedArgumentError

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
PRODUCED: Final = "producer_byte_rate"
CONSUMED: Final = "consumer_byte_rate"
REQUEST_RATE: Final = "request_rate"
CONNECTION_RATE: Final = "connection_creation_rate"
CONNECTIONS: Final = "connections"
CLIENT_ID_MAX: Final = 1_024
"""Characters of what a client calls itself."""

EntityName: TypeAlias = Annotated[str, Meta(max_length=CLIENT_ID_MAX)]
QuotaEntity: TypeAlias = tuple[tuple[EntityName, EntityName | None], ...]
"""Type and name of each part, in order of the types; without a name: all that have no quota of
their own."""

KEYS: Final[Mapping[str, str]] = {
    PRODUCED: "bytes a second that clients may send",
    CONSUMED: "bytes a second that clients may read",
    REQUEST_RATE: "requests a second that clients may send",
    "request_percentage": "share of a thread's time that requests may take, in percent",
    "controller_mutation_rate": "partitions a second that clients may make or delete",
    CONNECTION_RATE: "connections a second that may be made from an address",
    CONNECTIONS: "connections that a user, or an address, may have open at a time",
}
"""The keys there are, and what each bounds. Those that Kafka does not have are ours."""
THROTTLED: Final = (PRODUCED, CONSUMED, REQUEST_RATE)
"""Those by which requests are delayed."""
NOT_ENFORCED: Final = ("request_percentage", "controller_mutation_rate")
"""Those that are kept and shown for Kafka's tools, and bound nothing."""


_ENTITIES: Final = {
    CONNECTION_RATE: (IP,),
    CONNECTIONS: (IP, USER),
    **dict.fromkeys(THROTTLED, (USER, CLIENT_ID, IP)),
}
"""The first part of whom a key can be for, where that is not a user, a client id or both."""


def checked_entity(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """Return whom a quota is for, in the form in which it is kept.

    It is a user, a client id, both, or an address. Raises `UnexpectedArgumentError`.
    """
    given = tuple(sorted(parts, key=lambda part: part[0]))
    check_entity(given)
    return tuple((kind, None if name is None else _checked(kind, name)) for kind, name in given)


def check_entity(entity: QuotaEntity) -> None:
    """Raise `UnexpectedArgumentError` unless a quota can be for such an entity."""
    kinds = [kind for kind, _ in entity]
    if kinds not in ([USER], [CLIENT_ID], [CLIENT_ID, USER], [IP]):
        said = ", ".join(map(ascii, kinds)) or "nobody"
        raise UnexpectedArgumentError(
            f"a quota is for a {USER}, a {CLIENT_ID}, both, or an {IP}, not for {said}"
        )


def _checked(kind: str, name: str) -> str:
    if kind == USER:
        return user_name(name)
    if kind == CLIENT_ID:
        if not 0 < len(name) <= CLIENT_ID_MAX:
            text = f"a {CLIENT_ID} has 1 to {CLIENT_ID_MAX} characters"
            raise UnexpectedArgumentError(text)
        return name
    try:
        return str(address_at(name))
    except ValueError:
        raise UnexpectedArgumentError(f"a quota is for one address, not for {name!a}") from None


def check_quota(entity: QuotaEntity, key: str, value: float | None) -> None:
    """Raise `UnexpectedArgumentError` unless an entity can have this quota.

    `value` None: it shall have none.
    """
    if key not in KEYS:
        text = f"there is no quota {key!a}; there are {', '.join(KEYS)}"
        raise UnexpectedArgumentError(text)
    if entity[0][0] not in _ENTITIES.get(key, (USER, CLIENT_ID)):
        raise UnexpectedArgumentError(
            f"{CONNECTION_RATE} is for an {IP}, {CONNECTIONS} for an {IP} or a {USER}, "
            f"{' and '.join(NOT_ENFORCED)} for users and client ids, all others for each of them"
        )
    if value is not None and not (math.isfinite(value) and value > 0):
        raise UnexpectedArgumentError(f"{key} is a number above 0, not {value:g}")
