"""Requests about users, ACLs and quotas: answered from what `__cluster` holds, and changed there.

They are for those who may describe and alter the cluster; where nobody is judged, everybody may.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from quorumlog.auth.acls import Operation, Resource, ResourceType, address_text, new_acl, value_of
from quorumlog.auth.fields import acl_of, fields_of, filter_of
from quorumlog.auth.judge import explain
from quorumlog.auth.principals import (
    check_password_counts,
    new_user_name,
    principal,
    user_name,
)
from quorumlog.auth.quotas import check_quota, checked_entity
from quorumlog.auth.scram import Verifier
from quorumlog.auth.verifiers import check_verifier
from quorumlog.auth.view import SecurityView
from quorumlog.machine.cluster.commands import (
    AlterAcls,
    AlterQuotas,
    AlterUsers,
    AnyCommand,
    AnyResult,
    QuotaChange,
    SecurityAltered,
    UserChange,
)
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import CLUSTER_GROUP, NodeConfig
from quorumlog.model.errors import UnexpectedArgumentError, error_for
from quorumlog.model.messages.base import Response
from quorumlog.model.messages.security import (
    PAGE_BYTES_MAX,
    AclsRequest,
    AclsResponse,
    AlterAclsRequest,
    AlteredResponse,
    AlterQuotasRequest,
    AlterUsersRequest,
    CheckAclRequest,
    CheckAclResponse,
    CheckSecurityRequest,
    CheckSecurityResponse,
    ListRequest,
    QuotaAlteration,
    QuotasRequest,
    QuotasResponse,
    SecurityRequest,
    UserAlteration,
    UserFields,
    UsersRequest,
    UsersResponse,
)

WAIT_MS: Final = 8_000
"""How long the leader of `__cluster` is waited for: less than clients wait, as a rule 10 s."""
_NO_CLUSTER_GROUP: Final = (
    "node {} has no users, ACLs and quotas: these are kept in the group __cluster, which its "
    "configuration lacks (docs/security.md#users-and-rights); ask another node, or add the group "
    "to all nodes"
)
Answer: TypeAlias = Callable[[Response], None]
T = TypeVar("T")


class SecurityBroker(Protocol):
    """What is needed of a node's broker."""

    @property
    def security(self) -> SecurityView:
        """Users, ACLs and quotas, as far as they are known here."""
        ...

    def order(
        self,
        command: AnyCommand,
        timeout_ms: int,
        done: Callable[[ResponseCode, str, AnyResult | None], None],
    ) -> None:
        """Have the leader of `__cluster` apply a command; `done` is called once."""
        ...

    def ask_barrier(self, timeout_ms: int, done: Callable[[bool], None]) -> None:
        """Call `done` once all that was committed in `__cluster` shows here, or with False."""
        ...


class Asker(NamedTuple):
    """Who asks, and from where: for the audit log."""

    principal: str
    address: str


@dataclass(slots=True)
class SecurityService:
    """Answers these requests; `broker` is that of the node while it runs, if it has one.

    `check` says what stands open at the node, while it runs.
    """

    config: NodeConfig
    broker: SecurityBroker | None = None
    check: Callable[[], CheckSecurityResponse] | None = None

    @property
    def keeps_secrets(self) -> bool:
        """Whether `__cluster` has, or may come to have, what passwords are checked by."""
        if self.config.security is not None:
            return True
        return self.broker is not None and self.broker.security.has_users

    def answer(self, request: SecurityRequest, asker: Asker, answer: Answer) -> None:
        """Answer one of `SECURITY_REQUESTS` once, now or later. Raises `RequestError`."""
        if isinstance(request, CheckSecurityRequest) and self.check is not None:
            answer(self.check())
            return
        if self.config.cluster_group is None:
            text = _NO_CLUSTER_GROUP.format(self.config.self_id)
            raise error_for(ResponseCode.UNSUPPORTED, text)
        broker = self.broker
        if broker is None:
            text = f"node {self.config.self_id} starts, or stops"
            raise error_for(ResponseCode.NOT_LEADER, text)
        if isinstance(request, AlterUsersRequest):
            self._check_users(request)
        command_of = _COMMANDS.get(type(request))
        if command_of is None:
            self._tell(broker, request, answer)
            return

        def done(code: ResponseCode, text: str, result: AnyResult | None) -> None:
            outcomes = result.outcomes if isinstance(result, SecurityAltered) else []
            answer(AlteredResponse(code=code, text=text, outcomes=list(outcomes)))

        broker.order(command_of(request, asker), WAIT_MS, done)

    @property
    def super_users(self) -> frozenset[str]:
        """Principals whom the configuration lets do everything."""
        known = self.config.security
        return frozenset(() if known is None else known.super_users)

    def _check_users(self, request: AlterUsersRequest) -> None:
        """Raise `UnexpectedArgumentError` if a password is given to who cannot log in with it."""
        for one in request.changes:
            if any(one.verifiers.values()):
                check_password_counts(user_name(one.name), self.super_users)

    def _tell(self, broker: SecurityBroker, request: SecurityRequest, answer: Answer) -> None:
        tell = _TOLD[type(request)](request, self)

        def passed(has_passed: bool) -> None:
            if has_passed:
                answer(tell(broker.security))
            else:
                text = f"{CLUSTER_GROUP} has no leader that answers; try again"
                answer(Response(code=ResponseCode.LEADER_NOT_READY, text=text))

        broker.ask_barrier(WAIT_MS, passed)

    def page_of(self, request: ListRequest, elements: Iterable[T]) -> tuple[list[T], bool]:
        """Return a page of what is listed, and whether there is more."""
        room = min(PAGE_BYTES_MAX, self.config.limits.message_bytes_max // 2)
        page: list[T] = []
        for element in islice(elements, request.skipped, None):
            room -= len(msgspec.msgpack.encode(element))
            if page and room < 0:
                return page, True
            page.append(element)
        return page, False


Tell: TypeAlias = Callable[[SecurityView], Response]


def _users(request: UsersRequest, service: SecurityService) -> Tell:
    def tell(view: SecurityView) -> Response:
        found = (
            UserFields(name, {how: one.iterations for how, one in view.users[name].items()})
            for name in sorted(view.users)
        )
        users, more = service.page_of(request, found)
        return UsersResponse(version=view.version, users=users, more=more)

    return tell


def _acls(request: AclsRequest, service: SecurityService) -> Tell:
    asked = filter_of(request.filter)

    def tell(view: SecurityView) -> Response:
        acls, more = service.page_of(request, map(fields_of, view.acls_of(asked)))
        return AclsResponse(version=view.version, acls=acls, more=more)

    return tell


def _quotas(request: QuotasRequest, service: SecurityService) -> Tell:
    def tell(view: SecurityView) -> Response:
        found = ((list(entity), dict(values)) for entity, values in view.quotas.items())
        quotas, more = service.page_of(request, found)
        return QuotasResponse(version=view.version, quotas=quotas, more=more)

    return tell


def _check(request: CheckAclRequest, service: SecurityService) -> Tell:
    who = principal(request.principal)
    operation = value_of(Operation, request.operation)
    resource = Resource(value_of(ResourceType, request.resource_type), request.name)
    if operation is Operation.ANY or resource.type is ResourceType.ANY:
        raise UnexpectedArgumentError("one operation on one resource is checked, not any")
    if request.host:
        address_text(request.host)

    def tell(view: SecurityView) -> Response:
        found = explain(view, who, operation, resource, request.host, service.super_users)
        acl = None if found.acl is None else fields_of(found.acl)
        return CheckAclResponse(is_allowed=found.is_allowed, acl=acl, reason=found.text)

    return tell


_TOLD: Final[dict[type[Any], Callable[[Any, SecurityService], Tell]]] = {
    UsersRequest: _users,
    AclsRequest: _acls,
    QuotasRequest: _quotas,
    CheckAclRequest: _check,
}
"""What reads a request, and returns what answers it."""


def _user_change(given: UserAlteration) -> UserChange:
    verifiers: dict[str, Verifier | None] = {}
    for mechanism, one in given.verifiers.items():
        verifier = None
        if one is not None:
            verifier = Verifier(one.salt, one.stored_key, one.server_key, one.iterations)
            check_verifier(verifier, mechanism)
        verifiers[mechanism] = verifier
    named = new_user_name if any(verifiers.values()) else user_name  # such a one may be removed
    return UserChange(named(given.name), verifiers, given.exists, given.replaces)


def _alter_users(request: AlterUsersRequest, asker: Asker) -> AlterUsers:
    return AlterUsers(*asker, [_user_change(one) for one in request.changes])


def _alter_acls(request: AlterAclsRequest, asker: Asker) -> AlterAcls:
    added = [new_acl(acl_of(one)) for one in request.added]
    return AlterAcls(*asker, added, [*map(acl_of, request.removed)])


def _quota_change(given: QuotaAlteration) -> QuotaChange:
    entity = checked_entity(given.entity)
    check_quota(entity, given.key, given.value)
    return QuotaChange(entity, given.key, given.value)


def _alter_quotas(request: AlterQuotasRequest, asker: Asker) -> AlterQuotas:
    return AlterQuotas(*asker, [_quota_change(one) for one in request.changes])


_COMMANDS: Final[dict[type[Any], Callable[[Any, Asker], AnyCommand]]] = {
    AlterUsersRequest: _alter_users,
    AlterAclsRequest: _alter_acls,
    AlterQuotasRequest: _alter_quotas,
}
SECURITY_REQUESTS: Final[tuple[type[Any], ...]] = (*_TOLD, *_COMMANDS, CheckSecurityRequest)
