"""Roles: short names for ACLs that are often wanted together. Only their ACLs are kept."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from quorumlog.auth.acls import (
    ANY_HOST,
    ANY_NAME,
    CLUSTER_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from quorumlog.model.errors import UnexpectedArgumentError

_ALL: Final = (Operation.ALL,)
_SEEN: Final = (Operation.DESCRIBE,)
_RUN: Final = (Operation.DESCRIBE, Operation.ALTER)
_CONFIGURED: Final = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
_READ: Final = (Operation.READ,)
_WRITTEN: Final = (Operation.WRITE,)

ROLES: Final[Mapping[str, Mapping[ResourceType, tuple[Operation, ...]]]] = {
    "reader": {
        ResourceType.TOPIC: _READ,
        ResourceType.GROUP: _READ,
        ResourceType.CONSUMER_GROUP: _READ,
    },
    "writer": {
        ResourceType.TOPIC: _WRITTEN,
        ResourceType.GROUP: _WRITTEN,
        ResourceType.TRANSACTIONAL_ID: _WRITTEN,
    },
    "operator": {
        ResourceType.CLUSTER: (*_RUN, *_CONFIGURED),
        ResourceType.TOPIC: (*_RUN, *_CONFIGURED),
        ResourceType.GROUP: _RUN,
        ResourceType.CONSUMER_GROUP: _SEEN,
        ResourceType.TRANSACTIONAL_ID: _SEEN,
    },
    "monitor": {ResourceType.CLUSTER: _SEEN},
    "admin": {
        ResourceType.CLUSTER: _ALL,
        ResourceType.TOPIC: _ALL,
        ResourceType.GROUP: _ALL,
        ResourceType.CONSUMER_GROUP: _ALL,
        ResourceType.TRANSACTIONAL_ID: _ALL,
    },
}
"""What each role may do. Operators see and run everything, and are given no right to read records
or entries; but as they may alter the cluster, they may give themselves that, too."""
OF_CHOSEN: Final = frozenset({"reader", "writer"})
"""Roles that are for the resources that are named. The others are for the whole cluster."""


class Pattern(NamedTuple):
    """One resource, or those whose names begin alike."""

    type: ResourceType
    name: str
    pattern: PatternType = PatternType.LITERAL


ON_CLUSTER: Final = Pattern(ResourceType.CLUSTER, CLUSTER_NAME)


def acls_of_role(
    role: str, principal: str, patterns: Iterable[Pattern] = (), host: str = ANY_HOST
) -> list[Acl]:
    """Return the ACLs that a role consists of, for a principal.

    Raises `UnexpectedArgumentError` if the role has nothing to do with one of the patterns, needs
    some and there are none, or is unknown.
    """
    rights = ROLES.get(role)
    if rights is None:
        known = ", ".join(ROLES)
        raise UnexpectedArgumentError(f"there is no role {role!a}; there are {known}")
    chosen = list(patterns)
    if role in OF_CHOSEN and not chosen:
        text = "is for the topics or groups that are named: name some"
        raise UnexpectedArgumentError(f"the role {role} {text}")
    if role not in OF_CHOSEN and chosen:
        text = "is for the whole cluster: name no topics or groups"
        raise UnexpectedArgumentError(f"the role {role} {text}")
    found = chosen or [
        ON_CLUSTER if kind is ResourceType.CLUSTER else Pattern(kind, ANY_NAME) for kind in rights
    ]
    return list(_acls(role, rights, principal, found, host))


def _acls(
    role: str,
    rights: Mapping[ResourceType, tuple[Operation, ...]],
    principal: str,
    patterns: Iterable[Pattern],
    host: str,
) -> Iterator[Acl]:
    for kind, name, pattern in patterns:
        if kind not in rights:
            what = kind.name.lower().replace("_", " ")
            raise UnexpectedArgumentError(f"the role {role} has no rights on a {what}")
        for operation in rights[kind]:
            yield Acl(kind, name, pattern, principal, host, operation, Permission.ALLOW)
