"""Who may do what: one function, whose rules are Kafka's (KIP-11).

What an ACL denies is denied, whatever others allow. Nothing is allowed without an ACL, but to super
users, which the configuration of a node names. Read, Write, Delete and Alter allow Describe, too,
and AlterConfigs allows DescribeConfigs; to deny one of them denies nothing else.
"""

from collections.abc import Container, Iterable
from typing import Final, NamedTuple

from quorumlog.auth.acls import (
    ANY_NAME,
    Acl,
    Operation,
    PatternType,
    Resource,
    network_of,
)
from quorumlog.auth.principals import ANY_USER
from quorumlog.auth.rules import allows, denies, has_host
from quorumlog.auth.view import SecurityView
from quorumlog.model.errors import UnexpectedArgumentError

NOBODY: Final[frozenset[str]] = frozenset()


def judge(
    view: SecurityView,
    principal: str,
    operation: Operation,
    resource: Resource,
    host: str = "",
    super_users: Container[str] = NOBODY,
) -> bool:
    """Return whether a principal may do something with a resource.

    `host` is the address of the client. If it is not known (""), an ACL for certain addresses
    allows nothing, and denies.
    """
    if principal in super_users:
        return True
    kind, name = int(resource[0]), resource[1]
    allowed = denied = 0
    own, everybodys = view.rules.get(principal), view.rules.get(ANY_USER)
    if own is not None:
        allowed, denied, _ = own.masks(kind, name, host)
    if everybodys is not None:
        also_allowed, also_denied, _ = everybodys.masks(kind, name, host)
        allowed |= also_allowed
        denied |= also_denied
    return (allowed & ~denied) >> operation & 1 == 1


class Judgement(NamedTuple):
    """What `judge` returns, with the ACL that decides; None: there is none, or a super user asks.

    `text` says the same for people.
    """

    is_allowed: bool
    acl: Acl | None
    text: str


def explain(
    view: SecurityView,
    principal: str,
    operation: Operation,
    resource: Resource,
    host: str = "",
    super_users: Container[str] = NOBODY,
) -> Judgement:
    """Return what `judge` does, and why."""
    if principal in super_users:
        return Judgement(True, None, f"{principal} is a super user")
    about = [
        one
        for who in (principal, ANY_USER)
        for one in view.acls.get(who, ())
        if _is_about(one, resource)
    ]
    denying = _first(one for one in about if denies(one, operation) and _is_at(one, host, True))
    if denying is not None:
        return Judgement(False, denying, f"denied by: {denying.text}")
    allowing = _first(one for one in about if allows(one, operation) and _is_at(one, host, False))
    if allowing is not None:
        return Judgement(True, allowing, f"allowed by: {allowing.text}")
    return Judgement(False, None, "no ACL allows it")


def _is_about(acl: Acl, resource: Resource) -> bool:
    if acl.resource_type is not resource.type:
        return False
    if acl.pattern is PatternType.PREFIXED:
        return resource.name.startswith(acl.name)
    return acl.name in (resource.name, ANY_NAME)


def _is_at(acl: Acl, host: str, if_unknown: bool) -> bool:
    try:
        network = network_of(acl.host)
    except UnexpectedArgumentError:  # see `rules`: it allows nothing, and denies
        return if_unknown
    return has_host(network, host, if_unknown=if_unknown)


def _first(acls: Iterable[Acl]) -> Acl | None:
    return next(iter(acls), None)
