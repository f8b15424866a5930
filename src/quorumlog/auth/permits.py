"""What the client of one connection may do: the judge, with a memory and with what it reports."""

from collections.abc import Callable, Container, Iterable
from shlex import quote
from typing import Final, NamedTuple, Protocol

from quorumlog.auth.acls import (
    CLUSTER,
    OPERATIONS,
    RESOURCE_NAME_MAX,
    Acl,
    Operation,
    PatternType,
    Permission,
    Resource,
    ResourceType,
    word_of,
)
from quorumlog.auth.certificates import ANONYMOUS
from quorumlog.auth.hosts import without_port
from quorumlog.auth.judge import judge
from quorumlog.auth.principals import ANY_USER, USER
from quorumlog.auth.rules import allows
from quorumlog.auth.view import SecurityView
from quorumlog.model.wording import shortened

KNOWN_MAX: Final = 1_024
"""Decisions that are remembered for one connection; then all of them are forgotten."""
_NAME_LENGTH_MAX: Final = 200
"""Characters of a name in a refusal; the client has sent it."""


class Right(NamedTuple):
    """To do something with a resource."""

    operation: Operation
    type: ResourceType
    name: str


class Refused(NamedTuple):
    """A client asked for what it may not do. `is_enforced`: it did not get it; else it is only
    told of (`authorization = "log"`). `mechanism`: how it was proved who the client is.
    """

    principal: str
    address: str
    right: Right
    is_enforced: bool
    mechanism: str = ""


class Client(Protocol):
    """Who asks: a connection. Its principal may change, as clients may log in again."""

    @property
    def principal(self) -> str:
        """Who the client has proved to be, such as `User:alice`."""
        ...

    @property
    def login_mechanism(self) -> str:
        """By which mechanism of SASL it has logged in; empty: it has not."""
        ...

    @property
    def mechanism(self) -> str:
        """How it proved who it is: that mechanism, or `certificate`; empty: it did not."""
        ...

    @property
    def remote_address(self) -> str:
        """Its `host:port`."""
        ...


def _ignore(refused: Refused) -> None:
    """Report nothing."""


class Authorizer:
    """What a node judges by, for all its connections.

    `view` returns the users and ACLs as they are now, as far as the node knows them. `super_users`
    may do everything. `refused` is told of each refusal; it must be quick, and bound what it
    writes. `only_reports`: everything is allowed, and `refused` is told what would not be.
    `is_ready`: whether the node knows all users and ACLs that there were when it started. Until it
    does, nobody but super users may do anything: rights that were taken away long ago would count.
    """

    def __init__(
        self,
        view: Callable[[], SecurityView],
        super_users: Container[str] = frozenset(),
        refused: Callable[[Refused], None] = _ignore,
        *,
        only_reports: bool = False,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self.view = view
        self.super_users = super_users
        self.refused = refused
        self.only_reports = only_reports
        self._is_ready = is_ready
        self._was_ready = False

    @property
    def is_ready(self) -> bool:
        """Whether rights are known here. Once so, always: a node that stops goes on judging."""
        self._was_ready = self._was_ready or self._is_ready()
        return self._was_ready

    def shows(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        """Whether somebody may do something, who did not ask for it now: nothing is told.

        Nothing is remembered, either. `host`: the address of the client.
        """
        if self.only_reports or principal in self.super_users:
            return True
        return self.is_ready and judge(self.view(), principal, operation, resource, host)

    def permit(self, client: Client) -> "Permit":
        """Return what the client of a connection may do."""
        return Permit(self, client)


class Permit:
    """What one client may do now.

    What was judged is remembered until ACLs or users change, or another principal logs in over the
    connection: then it is judged anew. So a right that is taken away is gone with the next request.
    """

    __slots__ = ("_authorizer", "_client", "_known", "_principal", "_version")

    def __init__(self, authorizer: Authorizer, client: Client) -> None:
        self._authorizer = authorizer
        self._client = client
        self._known: dict[tuple[Operation, ResourceType, str], bool] = {}
        self._principal = ""
        self._version = -1

    @property
    def principal(self) -> str:
        """Who the client has proved to be."""
        return self._client.principal

    @property
    def login_mechanism(self) -> str:
        """By which mechanism of SASL the client has logged in; empty: it has not."""
        return self._client.login_mechanism

    @property
    def only_reports(self) -> bool:
        """Whether everything is allowed, and what would be refused is told of."""
        return self._authorizer.only_reports

    @property
    def is_ready(self) -> bool:
        """Whether it is known what the client may do; else it should ask again a little later."""
        authorizer = self._authorizer
        return (
            authorizer.is_ready
            or authorizer.only_reports
            or self._client.principal in authorizer.super_users
        )

    def _has(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return what the ACLs say; as long as they are not known, that of super users."""
        view, client = self._authorizer.view(), self._client
        if not self._authorizer.is_ready:
            return client.principal in self._authorizer.super_users
        if view.version != self._version or client.principal != self._principal:
            self._known.clear()
            self._version, self._principal = view.version, client.principal
        known = self._known
        found = known.get((operation, kind, name))
        if found is None:
            found = judge(
                view,
                client.principal,
                operation,
                Resource(kind, name),
                without_port(client.remote_address),
                self._authorizer.super_users,
            )
            if len(name) <= RESOURCE_NAME_MAX:  # longer ones are no resource's; clients send any
                if len(known) >= KNOWN_MAX:
                    known.clear()
                known[operation, kind, name] = found
        return found

    def sees(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether the client may do something; if not, it did not ask for it: nothing is told."""
        return self._has(operation, kind, name) or self._authorizer.only_reports

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether the client may do what it asks for; if not, that is reported."""
        if self._has(operation, kind, name):
            return True
        return self._report(Right(operation, kind, name))

    def may_one_of(self, rights: Iterable[Right]) -> bool:
        """Whether the client has one of some rights; if not, the first of them is reported."""
        rights = list(rights)
        return any(self._has(*one) for one in rights) or self._report(rights[0])

    def may_somewhere(self, operation: Operation, kind: ResourceType) -> bool:
        """Whether the client may do something with any resource of a type (KIP-679).

        It looks at all ACLs of the principal, and is not remembered. Nothing is reported.
        """
        authorizer, view = self._authorizer, self._authorizer.view()
        if authorizer.only_reports or self.principal in authorizer.super_users:
            return True
        return any(
            self._has(operation, kind, _name_meant(one))
            for who in (self.principal, ANY_USER)
            for one in view.acls.get(who, ())
            if one.resource_type is kind
            and one.permission is Permission.ALLOW
            and allows(one, operation)
        )

    def operations(self, kind: ResourceType, name: str) -> frozenset[Operation]:
        """Return all that the client may do with a resource, but for `ALL`."""
        return frozenset(
            one
            for one in OPERATIONS[kind]
            if one is not Operation.ALL and self.sees(one, kind, name)
        )

    def first_refused(self, needed: Iterable[tuple[Right, ...]]) -> Right | None:
        """Return the first right that is needed and that the client lacks; None: it has all.

        Of each tuple one right is enough. What is refused is reported.
        """
        for rights in needed:
            if not self.may_one_of(rights):
                return rights[0]
        return None

    def refuse(self, right: Right, *, always: bool) -> bool:
        """Report that nobody has a right that the client asks for; True: it gets it all the same.

        `always`: not even where refusals are only reported.
        """
        return self._report(right, always=always)

    def _report(self, right: Right, *, always: bool = False) -> bool:
        authorizer, client = self._authorizer, self._client
        enforced = always or not authorizer.only_reports
        if not enforced and not authorizer.is_ready:
            return True  # it is not known whether it would be refused
        who, where, how = client.principal, client.remote_address, client.mechanism
        authorizer.refused(Refused(who, where, right, enforced, how))
        return not enforced


def _name_meant(acl: Acl) -> str:
    """Return a name that an ACL is about, such that an ACL that denies all of them denies it, too.

    That of a prefix is the prefix itself; that of all names is one that no ACL names.
    """
    is_any = acl.pattern is PatternType.LITERAL and acl.name == "*"
    return "" if is_any else acl.name


def who(principal: str) -> str:
    """Return a principal as a sentence begins with it."""
    if principal == ANONYMOUS:
        return "a client that has not logged in"
    return shortened(principal.removeprefix(USER), _NAME_LENGTH_MAX)


def refusal_text(principal: str, right: Right) -> str:
    """Return in words what somebody may not do, and the command that allows it."""
    operation, kind, name = right
    word = word_of(operation)
    resource = "the cluster"
    if kind is not CLUSTER.type:
        resource = f"{word_of(kind).replace('-', ' ')} {shortened(name, _NAME_LENGTH_MAX)!a}"
    text = f"{who(principal)} may not {word.replace('-', ' ')} {resource}"
    user = principal.removeprefix(USER)
    if len(name) > _NAME_LENGTH_MAX or not (name + user).isprintable():
        return f"{text}: no ACL allows it, or one denies it"
    if user.startswith(USER):  # the command takes it for a principal
        return f"{text}: no ACL allows it, or one denies it"
    if kind is not CLUSTER.type and name.endswith("*"):
        return (
            f"{text}: no ACL allows it, or one denies it (its * is part of the name: quorumlog acl "
            "add would allow all names that begin so)"
        )
    option = "--cluster" if kind is CLUSTER.type else f"--{word_of(kind)} {quote(name)}"
    command = f"quorumlog acl add --user {quote(user)} --operation {word} {option}"
    return f"{text}: no ACL allows it, or one denies it ({command})"
