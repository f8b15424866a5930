"""Users, ACLs and quotas of a cluster: list and change them, and ask who may do what.

Any node that has the group `__cluster` answers. No password leaves this process: what is sent is
the verifier that is made of it (SCRAM, RFC 5802).
"""

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from quorumlog.auth.acls import (
    ALL_ACLS,
    Acl,
    AclFilter,
    Operation,
    Resource,
    address_text,
    new_acl,
    word_of,
)
from quorumlog.auth.fields import acl_of, fields_of, fields_of_filter
from quorumlog.auth.principals import new_user_name, principal, user_name
from quorumlog.auth.quotas import QuotaEntity, check_quota, checked_entity
from quorumlog.auth.verifiers import (
    ITERATIONS,
    MECHANISMS,
    SALT_BYTES,
    check_parameters,
    verifier_of,
)
from quorumlog.client.arguments import instance, number, several, takes, text
from quorumlog.client.connection import ServerConnection
from quorumlog.client.requester import Requester
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import CLUSTER_GROUP
from quorumlog.model.errors import (
    RequestError,
    UnexpectedArgumentError,
    UnsupportedError,
    error_for,
)
from quorumlog.model.messages.base import Response
from quorumlog.model.messages.security import (
    CHANGES_MAX,
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
    ListResponse,
    QuotaAlteration,
    QuotasRequest,
    QuotasResponse,
    SecurityRequest,
    UserAlteration,
    UsersRequest,
    UsersResponse,
    VerifierFields,
)

R = TypeVar("R", bound=Response)
P = TypeVar("P", bound=ListResponse)
LISTINGS_MAX: Final = 10
"""A list is read again if it changes meanwhile, but not for ever."""
ACLS_AT_ONCE: Final = 20
"""ACLs in one request, which may have long names."""
_NAME: Final = text(1, 128)
_ITERATIONS: Final = number(1)


@dataclass(frozen=True, slots=True)
class User:
    """A user that can log in with a password.

    Attributes:
        name: its name, without `User:`.
        iterations: by mechanism, such as SCRAM-SHA-256: how long it takes to try a password.
    """

    name: str
    iterations: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Quotas:
    """What clients of one entity may use.

    Attributes:
        entity: type (user, client-id, ip) and name of each part; without a name: all that have no
            quotas of their own.
        values: the quotas by their keys, such as producer_byte_rate, in bytes a second.
    """

    entity: QuotaEntity
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Access:
    """Whether somebody may do something.

    Attributes:
        is_allowed: whether it is allowed.
        acl: the ACL that decides; None: none does.
        reason: both in words.
    """

    is_allowed: bool
    acl: Acl | None
    reason: str


@dataclass(frozen=True, slots=True)
class UnsecuredClient:
    """Who was served over a plain connection, or without having said who it is.

    Attributes:
        principal: who it is, such as User:ANONYMOUS.
        host: the address that it came from.
        port: native or kafka.
        name: what it calls itself, which may be anything: a client id, or `node n1` of a peer.
        is_plain: whether its connection is not encrypted.
        ago_s: seconds since it was there last; 0: it is.
    """

    principal: str
    host: str
    port: str
    name: str
    is_plain: bool
    ago_s: int


@dataclass(frozen=True, slots=True)
class NodeSecurity:
    """What stands open at one node.

    Attributes:
        address: where the node was asked.
        node_id: its id; "" if that is not known.
        findings: what its configuration lacks: a word for each, such as tls-optional, and a
            sentence.
        clients: who comes plain or anonymous, since the node was started: of each port the last
            1,000.
        left_out: clients that are not told, as there are too many.
        error: why the node did not answer; "" if it did.
    """

    address: str
    node_id: str = ""
    findings: Sequence[tuple[str, str]] = ()
    clients: Sequence[UnsecuredClient] = ()
    left_out: int = 0
    error: str = ""

    @property
    def is_open(self) -> bool:
        """Whether there is something to be done, or it is not known."""
        return bool(self.findings or self.clients or self.error)


class _Pages(Protocol):
    """Makes the request for what comes after elements that are known."""

    def __call__(self, *, group: str, skipped: int) -> ListRequest: ...


class SecurityAdmin:
    """Users, ACLs and quotas of a client's cluster; get it as `client.security`.

    Every method raises `RequestError` (see `quorumlog.errors`), `UnsupportedError` if no node that
    answers has the group `__cluster`, in which they are kept, and `UnexpectedArgumentError` for an
    argument of a wrong type or value.
    """

    def __init__(self, requester: Requester) -> None:
        self._requester = requester

    # -- users --------------------------------------------------------------------------------

    async def users(self) -> list[User]:
        """Return all users, by name."""
        pages = await self._pages(UsersRequest, UsersResponse)
        return [User(one.name, one.iterations) for page in pages for one in page.users]

    @takes(name=_NAME, mechanisms=several, iterations=_ITERATIONS)
    async def add_user(
        self,
        name: str,
        password: str,
        *,
        mechanisms: Iterable[str] = tuple(MECHANISMS),
        iterations: int = ITERATIONS,
    ) -> None:
        """Add a user that can log in with a password.

        Args:
            name: 1 to 128 characters.
            password: it stays in this process.
            mechanisms: those that the user can log in by.
            iterations: 4,096 to 1,000,000: how long a guess of the password takes.

        Raises:
            RequestError: with code USER_EXISTS.
        """
        made = await _verifiers(password, list(mechanisms), iterations)
        await self._alter_user(UserAlteration(new_user_name(name), made, exists=False))

    @takes(name=_NAME, mechanisms=several, iterations=_ITERATIONS)
    async def change_password(
        self,
        name: str,
        password: str,
        *,
        mechanisms: Iterable[str] = tuple(MECHANISMS),
        iterations: int = ITERATIONS,
    ) -> None:
        """Give a user another password; the old one counts no more, by whatever mechanism.

        Arguments are those of `add_user`. Raises `RequestError` with code UNKNOWN_USER.
        """
        made = await _verifiers(password, list(mechanisms), iterations)
        change = UserAlteration(user_name(name), made, exists=True, replaces=True)
        await self._alter_user(change)

    @takes(name=_NAME)
    async def remove_user(self, name: str) -> None:
        """Remove a user. Its ACLs stay: remove them, too, before another one has the name.

        Raises `RequestError` with code UNKNOWN_USER.
        """
        await self._alter_user(UserAlteration(user_name(name), {}, exists=True, replaces=True))

    async def _alter_user(self, change: UserAlteration) -> None:
        request = AlterUsersRequest(group=CLUSTER_GROUP, changes=[change])
        await self._alter(request, repeat_unknown=False)

    # -- ACLs ---------------------------------------------------------------------------------

    @takes(asked=instance(AclFilter))
    async def acls(self, asked: AclFilter = ALL_ACLS) -> list[Acl]:
        """Return the ACLs that a filter means; those of each principal together."""
        fields = fields_of_filter(asked)

        def of(*, group: str, skipped: int) -> AclsRequest:
            return AclsRequest(group=group, skipped=skipped, filter=fields)

        pages = await self._pages(of, AclsResponse)
        return [acl_of(one) for page in pages for one in page.acls]

    @takes(acls=several)
    async def add_acls(self, acls: Iterable[Acl]) -> None:
        """Add ACLs; those that are there already stay.

        If one is refused, as the cluster has no room, others may have been added.
        """
        given = [fields_of(new_acl(one)) for one in acls]
        for first in range(0, len(given), ACLS_AT_ONCE):
            some = given[first : first + ACLS_AT_ONCE]
            await self._alter(AlterAclsRequest(group=CLUSTER_GROUP, added=some))

    @takes(asked=instance(AclFilter))
    async def remove_acls(self, asked: AclFilter) -> list[Acl]:
        """Remove the ACLs that a filter means; return them."""
        found = await self.acls(asked)
        given = [fields_of(one) for one in found]
        for first in range(0, len(given), ACLS_AT_ONCE):
            some = given[first : first + ACLS_AT_ONCE]
            await self._alter(AlterAclsRequest(group=CLUSTER_GROUP, removed=some))
        return found

    @takes(operation=instance(Operation), resource=instance(tuple), host=text(0, 64))
    async def check(
        self, who: str, operation: Operation, resource: Resource, *, host: str = ""
    ) -> Access:
        """Return whether a principal such as `User:alice` may do something, and why.

        `host`: the address that it asks from; without one, ACLs for certain addresses allow
        nothing, and deny.
        """
        request = CheckAclRequest(
            group=CLUSTER_GROUP,
            principal=principal(who),
            operation=word_of(operation),
            resource_type=word_of(resource.type),
            name=resource.name,
            host=address_text(host) if host else "",
        )
        found = await self._ask(request, CheckAclResponse)
        acl = None if found.acl is None else acl_of(found.acl)
        return Access(found.is_allowed, acl, found.reason)

    # -- quotas -------------------------------------------------------------------------------

    async def quotas(self) -> list[Quotas]:
        """Return all quotas."""
        pages = await self._pages(QuotasRequest, QuotasResponse)
        return [
            Quotas(checked_entity(entity), values)
            for page in pages
            for entity, values in page.quotas
        ]

    @takes(entity=several)
    async def alter_quotas(
        self, entity: Iterable[tuple[str, str | None]], values: Mapping[str, float | None]
    ) -> None:
        """Set quotas of an entity, or remove those whose value is None.

        Args:
            entity: type (user, client-id, ip) and name of each part; None: all without their own.
            values: quotas by their keys.
        """
        whom = checked_entity(entity)
        for key, value in values.items():
            check_quota(whom, key, value)
        changes = [QuotaAlteration(list(whom), key, value) for key, value in values.items()]
        for first in range(0, len(changes), CHANGES_MAX):
            some = changes[first : first + CHANGES_MAX]
            await self._alter(AlterQuotasRequest(group=CLUSTER_GROUP, changes=some))

    # -- what stands open ---------------------------------------------------------------------

    async def check_nodes(self) -> list[NodeSecurity]:
        """Return what stands open at each node of the cluster that is known, by address."""
        view = self._requester.metadata
        view.check_open()
        addresses = dict.fromkeys(view.addresses())
        for group in ("", CLUSTER_GROUP):
            for server in view.addresses():
                try:
                    found = await view.ask(server, group)
                except RequestError:
                    continue
                for one in found.groups:
                    addresses |= dict.fromkeys(one.peers.values())
                break
        return list(await asyncio.gather(*map(self._check_node, addresses)))

    async def _check_node(self, address: str) -> NodeSecurity:
        view = self._requester.metadata
        try:
            connection = await view.connection(address)
            future = connection.request(CheckSecurityRequest(group=CLUSTER_GROUP))
            answer = await view.wait(connection, future)
            found = self._requester.expect(connection, answer, CheckSecurityResponse)
        except RequestError as error:
            return NodeSecurity(address, error=str(error))
        clients = [
            UnsecuredClient(one.principal, one.host, one.port, one.name, one.is_plain, one.ago_s)
            for one in found.clients
        ]
        return NodeSecurity(address, found.node_id, found.findings, clients, found.left_out)

    # -- asking -------------------------------------------------------------------------------

    async def _alter(self, request: SecurityRequest, *, repeat_unknown: bool = True) -> None:
        """Have changes made; raise the error of the first one that is refused."""
        found = await self._ask(request, AlteredResponse, repeat_unknown=repeat_unknown)
        for code, why in found.outcomes:
            if code != ResponseCode.SUCCESS:
                raise error_for(code, why)

    async def _pages(self, request_of: _Pages, kind: type[P]) -> list[P]:
        """Return all pages of a list, as it was at one moment."""
        for _ in range(LISTINGS_MAX):
            pages: list[P] = []
            skipped = 0
            while True:
                page = await self._ask(request_of(group=CLUSTER_GROUP, skipped=skipped), kind)
                pages.append(page)
                skipped += _length_of(page)
                if page.version != pages[0].version or not page.more:
                    break
            if page.version == pages[0].version:
                return pages
        text = f"the list changed {LISTINGS_MAX} times while it was read; try again later"
        raise error_for(ResponseCode.LEADER_NOT_READY, text)

    async def _ask(
        self, request: SecurityRequest, kind: type[R], *, repeat_unknown: bool = True
    ) -> R:
        """Ask any node that has `__cluster`."""
        unable: dict[str, RequestError] = {}

        async def locate() -> ServerConnection:
            return await self._requester.any_server(without=unable)

        async def ask(connection: ServerConnection) -> R:
            answer = await connection.request(request)
            try:
                return self._requester.expect(connection, answer, kind)
            except UnsupportedError as error:
                unable[connection.address] = error
                if set(self._requester.metadata.addresses()) <= unable.keys():
                    raise
                raise error_for(ResponseCode.LEADER_NOT_READY, str(error)) from error

        return await self._requester.retrying(locate, ask, None, repeat_unknown=repeat_unknown)


def _length_of(page: Any) -> int:
    """Return how many elements a page has."""
    found: Sequence[Any] = getattr(page, _ELEMENTS[type(page)])
    return len(found)


_ELEMENTS: Final[dict[type[Any], str]] = {
    UsersResponse: "users",
    AclsResponse: "acls",
    QuotasResponse: "quotas",
}


async def _verifiers(
    password: str, mechanisms: Sequence[str], iterations: int
) -> dict[str, VerifierFields | None]:
    """Return the verifiers of a password, each with a salt of its own; no error shows it."""
    if not isinstance(password, str):
        raise UnexpectedArgumentError("password is a str")
    for mechanism in mechanisms:
        check_parameters(str(mechanism), bytes(SALT_BYTES), iterations)

    def made() -> dict[str, VerifierFields | None]:
        return {
            one: VerifierFields(*verifier_of(password, one, os.urandom(SALT_BYTES), iterations))
            for one in mechanisms
        }

    return await asyncio.to_thread(made)  # it takes some milliseconds, or a second
