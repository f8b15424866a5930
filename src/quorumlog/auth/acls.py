"""ACLs: who may, or may not, do what with which resource (Kafka's model, KIP-11 and KIP-290).

Numbers are Kafka's, as on its wire. Kafka's `Group` is a consumer group. A group of quorumlog, that
is a log or a state machine, is a resource that Kafka does not have: its number has no room on
Kafka's wire.
"""

from collections.abc import Mapping
from enum import IntEnum
from ipaddress import ip_address
from typing import Annotated, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from quorumlog.auth.addresses import Network, network_at
from quorumlog.auth.principals import is_blank, principal
from quorumlog.model.errors import UnexpectedArgumentError

ANY_NAME: Final = "*"
"""Instead of the name of a resource in a literal pattern: every resource of the type."""
ANY_HOST: Final = "*"
"""Instead of an address: from everywhere."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of type `CLUSTER` (Kafka's)."""
RESOURCE_NAME_MAX: Final = 1_024
"""Characters of the name of a resource; those of consumer groups may be as long."""
HOST_MAX: Final = 64
"""Characters of an address or a network."""


class Operation(IntEnum):
    """What is done with a resource, with Kafka's numbers."""

    ANY = 1
    """Of a filter: whatever the operation is."""
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class ResourceType(IntEnum):
    """What kind of thing is used. All but `GROUP` have Kafka's numbers."""

    ANY = 1
    """Of a filter: whatever the type is."""
    TOPIC = 2
    CONSUMER_GROUP = 3
    """What Kafka calls a group."""
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    GROUP = 1_000
    """A group of quorumlog: a log, or a state machine. On Kafka's wire a type is one byte."""

    @property
    def is_kafkas(self) -> bool:
        """Whether Kafka's clients know it."""
        return self is not ResourceType.GROUP


class PatternType(IntEnum):
    """How the name of a resource is compared, with Kafka's numbers."""

    ANY = 1
    """Of a filter: whatever the pattern is, its name has to be the same one."""
    MATCH = 2
    """Of a filter: the pattern is one that applies to the resource of this name."""
    LITERAL = 3
    """It is the name, or `*` for all names."""
    PREFIXED = 4
    """Names that begin so."""


class Permission(IntEnum):
    """Whether an ACL allows or denies, with Kafka's numbers."""

    ANY = 1
    """Of a filter: either."""
    DENY = 2
    ALLOW = 3


OPERATIONS: Final[Mapping[ResourceType, frozenset[Operation]]] = {
    ResourceType.TOPIC: frozenset(
        {
            Operation.ALL,
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        }
    ),
    ResourceType.CONSUMER_GROUP: frozenset(
        {Operation.ALL, Operation.READ, Operation.DELETE, Operation.DESCRIBE}
    ),
    ResourceType.CLUSTER: frozenset(
        {
            Operation.ALL,
            Operation.CREATE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.CLUSTER_ACTION,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
            Operation.IDEMPOTENT_WRITE,
        }
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset({Operation.ALL, Operation.WRITE, Operation.DESCRIBE}),
    ResourceType.GROUP: frozenset(
        {
            Operation.ALL,
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
        }
    ),
}
"""The operations that there are on each type (Kafka: `AclEntry.supportedOperations`)."""


class Resource(NamedTuple):
    """One thing that somebody wants to use."""

    type: ResourceType
    name: str


CLUSTER: Final = Resource(ResourceType.CLUSTER, CLUSTER_NAME)

ResourceName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=RESOURCE_NAME_MAX)]
PrincipalText: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
HostText: TypeAlias = Annotated[str, Meta(min_length=1, max_length=HOST_MAX)]


class Acl(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One rule. `host` is `*`, an address, or a network such as `10.1.0.0/16`.

    The order of the fields is the format in the log. `checked_acl` says what is wrong with one.
    """

    resource_type: ResourceType
    name: ResourceName
    pattern: PatternType
    principal: PrincipalText
    host: HostText
    operation: Operation
    permission: Permission

    @property
    def text(self) -> str:
        """The rule for people, in one line."""
        name = self.name if self.pattern is PatternType.LITERAL else f"{self.name}*"
        where = "" if self.host == ANY_HOST else f" from {self.host}"
        return (
            f"{self.permission.name.lower()} {self.principal} {word_of(self.operation)} "
            f"{word_of(self.resource_type)} {name}{where}"
        )


def network_of(host: str) -> Network | None:
    """Return the network of an ACL's host; None: everywhere. Raises `UnexpectedArgumentError`."""
    if host == ANY_HOST:
        return None
    try:
        return network_at(host)
    except ValueError:
        raise UnexpectedArgumentError(
            f"the host of an ACL is {ANY_HOST}, an address or a network such as 10.1.0.0/16, "
            f"not {host!a}"
        ) from None


def address_text(host: str) -> str:
    """Return a client's address in the form in which it is kept.

    Raises `UnexpectedArgumentError` for what is no address, also for a network.
    """
    try:
        return str(ip_address(host))
    except ValueError:
        text = f"a client comes from an address such as 10.1.0.7, not {host!a}"
        raise UnexpectedArgumentError(text) from None


def check_acl(acl: Acl) -> None:
    """Raise `UnexpectedArgumentError` for a rule that cannot be: of a filter's type, say.

    The state of `__cluster` calls it, so nothing here depends on the version of Python: the host is
    read by `checked_acl` alone.
    """
    if ResourceType.ANY is acl.resource_type or Operation.ANY is acl.operation:
        raise UnexpectedArgumentError("an ACL is for one type of resource and one operation")
    if acl.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise UnexpectedArgumentError("the pattern of an ACL is literal or prefixed")
    if acl.permission is Permission.ANY:
        raise UnexpectedArgumentError("an ACL allows or denies")
    if not 0 < len(acl.name) <= RESOURCE_NAME_MAX:
        text = f"the name of a resource has 1 to {RESOURCE_NAME_MAX} characters"
        raise UnexpectedArgumentError(f"{text}, not {len(acl.name)}")
    is_cluster = acl.resource_type is ResourceType.CLUSTER
    if is_cluster and (acl.name, acl.pattern) != (CLUSTER_NAME, PatternType.LITERAL):
        raise UnexpectedArgumentError(f"the only cluster is {CLUSTER_NAME}, not {acl.name!a}")


def checked_acl(acl: Acl) -> Acl:
    """Return a rule with its principal and host in the form in which they are compared.

    Raises `UnexpectedArgumentError` for one that cannot be (`check_acl`), or whose host is none.
    """
    check_acl(acl)
    return msgspec.structs.replace(
        acl, principal=principal(acl.principal), host=host_text(acl.host)
    )


def new_acl(acl: Acl) -> Acl:
    """Return a rule that is to be added, as `checked_acl`; its user's name can be seen.

    One with another name may be there from before, and is listed and removed.
    """
    found = checked_acl(acl)
    if is_blank(found.principal.partition(":")[2]):
        raise UnexpectedArgumentError(f"the principal {acl.principal!a} has a blank name")
    return found


def host_text(host: str) -> str:
    """Return a host in the form in which it is kept. Raises `UnexpectedArgumentError`."""
    network = network_of(host)
    if network is None:
        return ANY_HOST
    is_single = network.prefixlen == network.max_prefixlen
    return str(network.network_address) if is_single else str(network)


class AclFilter(msgspec.Struct, frozen=True, array_like=True):
    """Which rules are meant; None stands for any name, principal or host (KIP-140, KIP-290)."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def has(self, acl: Acl) -> bool:
        """Whether a rule is meant."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self._has_pattern(acl)
        )

    def _has_pattern(self, acl: Acl) -> bool:
        if self.pattern is PatternType.MATCH:
            if self.name is None:
                return True
            if acl.pattern is PatternType.PREFIXED:
                return self.name.startswith(acl.name)
            return acl.name in (self.name, ANY_NAME)
        return self.pattern in (PatternType.ANY, acl.pattern) and self.name in (None, acl.name)


ALL_ACLS: Final = AclFilter()

_Word = TypeVar("_Word", Operation, ResourceType, PatternType, Permission)


def word_of(value: Operation | ResourceType | PatternType | Permission) -> str:
    """Return the word of a value for people and programs, such as `describe-configs`."""
    return value.name.lower().replace("_", "-")


def value_of(kind: type[_Word], word: str) -> _Word:
    """Return the value of a word. Raises `UnexpectedArgumentError`, which names all words."""
    for one in kind:
        if word_of(one) == word.lower():
            return one
    known = ", ".join(map(word_of, kind))
    raise UnexpectedArgumentError(f"there is no {_NOUNS[kind]} {word!a}; there are {known}")


_NOUNS: Final[Mapping[type[IntEnum], str]] = {
    Operation: "operation",
    ResourceType: "type of resource",
    PatternType: "type of pattern",
    Permission: "permission",
}
