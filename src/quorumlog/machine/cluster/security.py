"""Users, ACLs and quotas in the state of `__cluster`: commands of administrators.

What is given by people is checked, and brought to one form, before it becomes a command: by the
node that was asked. Here nothing may depend on the version of Python, as names in Unicode do.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from quorumlog.auth.acls import Acl, check_acl
from quorumlog.auth.decoys import LikeUsers, Parameters, usual_parameters
from quorumlog.auth.quotas import QuotaEntity, check_entity, check_quota
from quorumlog.auth.rules import PrincipalRules
from quorumlog.auth.scram import Verifier
from quorumlog.auth.verifiers import check_verifier
from quorumlog.auth.view import SecurityView
from quorumlog.machine.cluster.commands import (
    AlterAcls,
    AlterQuotas,
    AlterUsers,
    QuotaChange,
    SecurityAltered,
    UserChange,
)
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import UnexpectedArgumentError

USERS_MAX: Final = 10_000
"""Users of a cluster."""
ACLS_MAX: Final = 100_000
"""ACLs of a cluster."""
PRINCIPAL_ACLS_MAX: Final = 10_000
"""ACLs of one principal: they are compiled anew with each change of one of them (0.1 s)."""
ENTITIES_MAX: Final = 10_000
"""Entities that have quotas."""

Outcome: TypeAlias = tuple[ResponseCode, str]
_DONE: Final[Outcome] = (ResponseCode.SUCCESS, "")


class SavedSecurity(msgspec.Struct, frozen=True, array_like=True):
    """Users, ACLs and quotas as a snapshot has them; `version` is that of the view.

    `decoy_secret`: see `AlterUsers`.
    """

    version: int = 0
    users: tuple[tuple[str, dict[str, Verifier]], ...] = ()
    acls: tuple[Acl, ...] = ()
    quotas: tuple[tuple[QuotaEntity, dict[str, float]], ...] = ()
    decoy_secret: bytes = b""


@dataclass(slots=True)
class Security:
    """All of it. What a user, a principal or an entity has is replaced, never changed.

    `verifiers_removed`: how many changes took a verifier away that was there before. It is not
    saved: if there have ever been users, it begins with the number of all changes that a snapshot
    has.

    `rules` are compiled when a view is asked for, of the principals that have changed since.
    """

    version: int = 0
    users: dict[str, dict[str, Verifier]] = field(default_factory=dict)
    acls: dict[str, dict[Acl, None]] = field(default_factory=dict)
    quotas: dict[QuotaEntity, dict[str, float]] = field(default_factory=dict)
    acl_count: int = 0
    decoy_secret: bytes = b""
    verifiers_removed: int = 0
    _parameters: dict[str, Parameters] | None = None
    _rules: dict[str, PrincipalRules] = field(default_factory=dict)
    _changed: set[str] = field(default_factory=set)
    _view: SecurityView | None = None

    # -- users --------------------------------------------------------------------------------

    def alter_users(self, command: AlterUsers) -> SecurityAltered:
        """Add, change and remove what is known of users' passwords."""
        before = self.version
        altered = self._altered(command.changes, self._alter_user)
        if self.version > before:
            self.decoy_secret = self.decoy_secret or command.decoy_secret
            self._parameters = None
        return altered

    def _alter_user(self, change: UserChange) -> Outcome:
        name, before = change.name, self.users.get(change.name)
        if change.exists is False and before is not None:
            return ResponseCode.USER_EXISTS, f"there is a user {name!a} already"
        if change.exists and before is None:
            return ResponseCode.UNKNOWN_USER, f"there is no user {name!a}"
        after = {} if change.replaces else dict(before or {})
        for mechanism, verifier in change.verifiers.items():
            if verifier is not None:
                check_verifier(verifier, mechanism)
                after[mechanism] = verifier
            elif before is None or mechanism not in before:
                text = f"there is no user {name!a} with a password for {mechanism}"
                return ResponseCode.UNKNOWN_USER, text
            else:
                after.pop(mechanism, None)
        if after and before is None and len(self.users) >= USERS_MAX:
            return ResponseCode.CLUSTER_FULL, f"a cluster has at most {USERS_MAX} users"
        self.verifiers_removed += any(after.get(how) != one for how, one in (before or {}).items())
        if after:
            self.users[name] = after
        else:
            self.users.pop(name, None)
        self._note()
        return _DONE

    # -- ACLs ---------------------------------------------------------------------------------

    def alter_acls(self, command: AlterAcls) -> SecurityAltered:
        """Remove and add ACLs: what is removed makes room."""
        removed = self._altered(command.removed, self._remove_acl)
        added = self._altered(command.added, self._add_acl)
        return SecurityAltered([*added.outcomes, *removed.outcomes])

    def _add_acl(self, acl: Acl) -> Outcome:
        check_acl(acl)
        before = self.acls.get(acl.principal, {})
        if acl in before:
            return _DONE
        if self.acl_count >= ACLS_MAX:
            return ResponseCode.CLUSTER_FULL, f"a cluster has at most {ACLS_MAX} ACLs"
        if len(before) >= PRINCIPAL_ACLS_MAX:
            text = f"{acl.principal} has {PRINCIPAL_ACLS_MAX} ACLs, and no room for more"
            return ResponseCode.CLUSTER_FULL, f"{text}: give one for a prefix instead of many"
        self._own_acls(acl.principal)[acl] = None
        self.acl_count += 1
        self._note()
        return _DONE

    def _remove_acl(self, acl: Acl) -> Outcome:
        principal = acl.principal
        if acl in self.acls.get(principal, ()):
            left = self._own_acls(principal)
            del left[acl]
            if not left:
                del self.acls[principal]
            self.acl_count -= 1
            self._note()
        return _DONE

    def _own_acls(self, principal: str) -> dict[Acl, None]:
        """Return the ACLs of a principal, to be changed: views have those that were before."""
        if principal not in self._changed:
            self._changed.add(principal)
            self.acls[principal] = dict(self.acls.get(principal, ()))
        return self.acls.setdefault(principal, {})

    # -- quotas -------------------------------------------------------------------------------

    def alter_quotas(self, command: AlterQuotas) -> SecurityAltered:
        """Set and remove quotas."""
        return self._altered(command.changes, self._alter_quota)

    def _alter_quota(self, change: QuotaChange) -> Outcome:
        check_entity(change.entity)
        check_quota(change.entity, change.key, change.value)
        before = self.quotas.get(change.entity, {})
        if change.value is None:
            after = {key: value for key, value in before.items() if key != change.key}
        elif not before and len(self.quotas) >= ENTITIES_MAX:
            text = f"a cluster has quotas for at most {ENTITIES_MAX} users, client ids, addresses"
            return ResponseCode.CLUSTER_FULL, text
        else:
            after = {**before, change.key: change.value}
        if after != before:
            if after:
                self.quotas[change.entity] = after
            else:
                del self.quotas[change.entity]
            self._note()
        return _DONE

    # -- as a whole ---------------------------------------------------------------------------

    def _altered(self, changes: Iterable[Any], alter: Callable[[Any], Outcome]) -> SecurityAltered:
        outcomes = []
        for change in changes:
            try:
                outcomes.append(alter(change))
            except UnexpectedArgumentError as error:
                outcomes.append((error.code, str(error)))
        return SecurityAltered(outcomes)

    def _note(self) -> None:
        self.version += 1
        self._view = None

    def view(self) -> SecurityView:
        """Return what others may read while this goes on; the same one if nothing has changed."""
        if self._view is None:
            for principal in self._changed:
                self._rules.pop(principal, None)
                if principal in self.acls:
                    self._rules[principal] = PrincipalRules(self.acls[principal])
            self._changed.clear()
            if self._parameters is None:
                self._parameters = usual_parameters(self.users.values())
            self._view = SecurityView(
                self.version,
                dict(self.users),
                dict(self.acls),
                dict(self._rules),
                dict(self.quotas),
                self.verifiers_removed,
                LikeUsers(self.decoy_secret, self._parameters),
            )
        return self._view

    def saved(self) -> SavedSecurity:
        """Return what `restored` takes; equal histories lead to equal values."""
        return SavedSecurity(
            self.version,
            tuple(self.users.items()),
            tuple(acl for acls in self.acls.values() for acl in acls),
            tuple(self.quotas.items()),
            self.decoy_secret,
        )

    @classmethod
    def restored(cls, saved: SavedSecurity) -> "Security":
        """Return what a snapshot has."""
        found = cls(
            saved.version,
            dict(saved.users),
            {},
            dict(saved.quotas),
            len(saved.acls),
            saved.decoy_secret,
        )
        for acl in saved.acls:
            found.acls.setdefault(acl.principal, {})[acl] = None
        found._changed = set(found.acls)
        if saved.decoy_secret:  # some may have been removed that are still in files of this node
            found.verifiers_removed = saved.version
        return found


def takes_away(command: object) -> bool:
    """Whether a command only removes users, ACLs or quotas."""
    if isinstance(command, AlterUsers):
        verifiers = (one for change in command.changes for one in change.verifiers.values())
        return all(one is None for one in verifiers)
    if isinstance(command, AlterAcls):
        return not command.added
    return isinstance(command, AlterQuotas) and all(one.value is None for one in command.changes)
