"""The rules of one principal, compiled so that a look-up takes a microsecond."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from quorumlog.auth.acls import (
    ANY_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    network_of,
)
from quorumlog.auth.addresses import Network, address_at
from quorumlog.model.errors import UnexpectedArgumentError


def _bits(*operations: Operation) -> int:
    return sum(1 << one for one in operations)


_EVERYTHING: Final = _bits(*Operation)
_ALLOWED: Final[Mapping[Operation, int]] = {
    **{one: _bits(one) for one in Operation},
    Operation.ALL: _EVERYTHING,
    Operation.READ: _bits(Operation.READ, Operation.DESCRIBE),
    Operation.WRITE: _bits(Operation.WRITE, Operation.DESCRIBE),
    Operation.DELETE: _bits(Operation.DELETE, Operation.DESCRIBE),
    Operation.ALTER: _bits(Operation.ALTER, Operation.DESCRIBE),
    Operation.ALTER_CONFIGS: _bits(Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS),
}
"""What an ACL allows that allows an operation: some operations imply others (Kafka's rule)."""


def allows(acl: Acl, operation: Operation) -> bool:
    """Whether an ACL that allows is about an operation, or implies it."""
    return acl.permission is Permission.ALLOW and bool(_ALLOWED[acl.operation] >> operation & 1)


def denies(acl: Acl, operation: Operation) -> bool:
    """Whether an ACL that denies is about an operation; it implies no other one."""
    return acl.permission is Permission.DENY and acl.operation in (Operation.ALL, operation)


def has_host(network: Network | None, host: str, *, if_unknown: bool) -> bool:
    """Whether a client at an address is in the network of an ACL.

    `if_unknown`: what is returned of a client whose address is not known, and of a network.
    """
    if network is None:
        return True
    try:
        return address_at(host) in network
    except ValueError:
        return if_unknown


class Masks(NamedTuple):
    """Operations, a bit each, that are allowed and denied from everywhere.

    `has_hosts`: there are rules for certain addresses beside.
    """

    allowed: int
    denied: int
    has_hosts: bool

    def with_those(self, other: "Masks") -> "Masks":
        """Return both together."""
        return Masks(
            self.allowed | other.allowed,
            self.denied | other.denied,
            self.has_hosts or other.has_hosts,
        )


_NOTHING: Final = Masks(0, 0, False)
_HostRule: TypeAlias = tuple[Network, int, int]
"""A network, and the operations that are allowed and denied from there."""


@dataclass(slots=True)
class _Collected:
    """The rules of one pattern."""

    masks: Masks = _NOTHING
    host_rules: list[_HostRule] = field(default_factory=list)

    def add(self, acl: Acl) -> None:
        is_allow = acl.permission is Permission.ALLOW
        allowed = _ALLOWED[acl.operation] if is_allow else 0
        denied = 0 if is_allow else _EVERYTHING
        if not is_allow and acl.operation is not Operation.ALL:
            denied = _bits(acl.operation)
        try:
            network = network_of(acl.host)
        except UnexpectedArgumentError:  # only another version of Python can read it
            allowed, network = 0, None
        if network is None:
            self.masks = self.masks.with_those(Masks(allowed, denied, False))
        else:
            self.masks = self.masks.with_those(Masks(0, 0, True))
            self.host_rules.append((network, allowed, denied))


class _TypeRules:
    """The rules of one principal about one type of resource.

    Prefixes are sorted, and each has the masks of those that it begins with, too. Of a name that
    begins with some of them, the last one that is not after the name in this order is the longest
    of these, or begins with it.
    """

    __slots__ = ("_any", "_exact", "_masks", "_parents", "_prefixed", "_prefixes", "exact_masks")

    def __init__(self, acls: Iterable[Acl]) -> None:
        self._any = _Collected()
        self._exact: dict[str, _Collected] = {}
        found: dict[str, _Collected] = {}
        for acl in acls:
            if acl.pattern is PatternType.PREFIXED:
                found.setdefault(acl.name, _Collected()).add(acl)
            elif acl.name == ANY_NAME:
                self._any.add(acl)
            else:
                self._exact.setdefault(acl.name, _Collected()).add(acl)
        self._prefixes = sorted(found)
        self._prefixed = [found[one] for one in self._prefixes]
        self._parents: list[int] = []
        self._masks: list[Masks] = []
        for number, prefix in enumerate(self._prefixes):
            parent = self._longest(prefix, number - 1)
            above = self._any.masks if parent < 0 else self._masks[parent]
            self._parents.append(parent)
            self._masks.append(above.with_those(self._prefixed[number].masks))
        self.exact_masks = {
            name: one.masks.with_those(self.masks(name)) for name, one in self._exact.items()
        }

    def _longest(self, name: str, number: int) -> int:
        """Return the longest prefix of a name, among a prefix and those it begins with; -1: none.

        `number`: of the last prefix that is not after the name.
        """
        while number >= 0 and not name.startswith(self._prefixes[number]):
            number = self._parents[number]
        return number

    def masks(self, name: str) -> Masks:
        """Return what is allowed and denied of a name that has no rules of its own."""
        number = self._longest(name, bisect_right(self._prefixes, name) - 1)
        return self._any.masks if number < 0 else self._masks[number]

    def masks_at(self, name: str, host: str) -> Masks:
        """Return what is allowed and denied of a name to a client at an address."""
        collected = [self._any]
        if name in self._exact:
            collected.append(self._exact[name])
        number = self._longest(name, bisect_right(self._prefixes, name) - 1)
        while number >= 0:
            collected.append(self._prefixed[number])
            number = self._parents[number]
        allowed, denied, _ = self.exact_masks.get(name) or self.masks(name)
        for one in collected:
            for network, also_allowed, also_denied in one.host_rules:
                if has_host(network, host, if_unknown=False):
                    allowed |= also_allowed
                if has_host(network, host, if_unknown=True):
                    denied |= also_denied
        return Masks(allowed, denied, False)


class PrincipalRules:
    """The rules of one principal; immutable, so any thread may read them."""

    __slots__ = ("_by_type",)

    def __init__(self, acls: Iterable[Acl]) -> None:
        by_type: dict[int, list[Acl]] = {}
        for acl in acls:
            by_type.setdefault(int(acl.resource_type), []).append(acl)
        self._by_type = {kind: _TypeRules(found) for kind, found in by_type.items()}

    def masks(self, kind: int, name: str, host: str) -> Masks:
        """Return what is allowed and denied of a resource to a client at an address.

        `kind`: the number of the type: to look up an enum takes longer than all the rest.
        """
        rules = self._by_type.get(kind)
        if rules is None:
            return _NOTHING
        found = rules.exact_masks.get(name) or rules.masks(name)
        return rules.masks_at(name, host) if found[2] else found
