"""Users, ACLs and quotas as they are at one moment: what a node judges by, from memory."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from quorumlog.auth.acls import Acl, AclFilter
from quorumlog.auth.decoys import LikeUsers
from quorumlog.auth.quotas import QuotaEntity
from quorumlog.auth.rules import PrincipalRules
from quorumlog.auth.scram import Verifier

_NONE: Final[Mapping[str, Verifier]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SecurityView:
    """Immutable, so that any thread may read it; a change makes another one.

    Attributes:
        version: rises with every change.
        users: the verifiers of each user, by mechanism.
        acls: the ACLs of each principal, in the order in which they were added.
        rules: the same, compiled.
        quotas: the quotas of each entity, by their keys.
        verifiers_removed: how many changes took a verifier away since the snapshot that the node
            began with.
        decoys: what users who do not exist are like to whoever logs in.
    """

    version: int = 0
    users: Mapping[str, Mapping[str, Verifier]] = field(default_factory=dict)
    acls: Mapping[str, Mapping[Acl, None]] = field(default_factory=dict)
    rules: Mapping[str, PrincipalRules] = field(default_factory=dict)
    quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    verifiers_removed: int = field(default=0, compare=False)
    decoys: LikeUsers = field(default=LikeUsers(), repr=False)

    @property
    def has_users(self) -> bool:
        """Whether anybody can log in with a password."""
        return bool(self.users)

    def verifier(self, user: str, mechanism: str) -> Verifier | None:
        """Return by what the password of a user is checked; None: there is nothing."""
        return self.users.get(user, _NONE).get(mechanism)

    def acls_of(self, asked: AclFilter) -> Iterator[Acl]:
        """Yield the ACLs that a filter means."""
        if asked.principal is None:
            of_each = iter(self.acls.values())
        else:
            of_each = iter([self.acls.get(asked.principal, {})])
        return (one for acls in of_each for one in acls if asked.has(one))


NO_SECURITY: Final = SecurityView()
"""Without users, ACLs and quotas."""
