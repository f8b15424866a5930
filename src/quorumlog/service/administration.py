"""Which requests of our own protocol administer something, and what the audit log has of each."""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from quorumlog.model.audit_events import (
    ADMINISTRATION_REFUSED,
    Audit,
    AuditedEvent,
    AuditEvent,
    acl_resource,
    acl_words,
    quota_resource,
)
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import error_for
from quorumlog.model.messages.admin import ChangeMembersRequest, MemberAction, TransferRequest
from quorumlog.model.messages.base import Message, Request, Response
from quorumlog.model.messages.client import AppendRequest, FetchRequest
from quorumlog.model.messages.groups import (
    AlterGroupRequest,
    CreateGroupRequest,
    DeleteGroupRequest,
)
from quorumlog.model.messages.machine import QueryRequest, SnapshotRequest
from quorumlog.model.messages.security import (
    AlterAclsRequest,
    AlteredResponse,
    AlterQuotasRequest,
    AlterUsersRequest,
)

Asked: TypeAlias = Iterator[tuple[str, str]]
"""Resources that a request names, and what is asked for besides the kind of the request."""


class Administered(NamedTuple):
    """What a request does: Kafka's word for the right, and what is done to which resources."""

    operation: str
    asked: Callable[[Any], Asked]


def _keys(request: CreateGroupRequest | AlterGroupRequest) -> str:
    return ", ".join(request.settings)


def _created(request: CreateGroupRequest) -> str:
    return " ".join(filter(None, (request.peers, _keys(request))))


def _altered(request: AlterGroupRequest) -> str:
    return f"prepare {_keys(request)}" if request.prepares else _keys(request)


def _deleted(request: DeleteGroupRequest) -> str:
    return "purge" if request.purge else ""


def _changed_members(request: ChangeMembersRequest) -> str:
    learner = "learner" if request.learner else ""
    word = MemberAction(request.action).name.lower()
    return " ".join(filter(None, (word, request.node_id, request.address, learner)))


def _transferred(request: TransferRequest) -> str:
    return request.transferee_id


def _on_group(detail: Callable[[Any], str]) -> Callable[[Any], Asked]:
    def asked(request: Request) -> Asked:
        yield f"group:{request.group}", detail(request)

    return asked


def _users(request: AlterUsersRequest) -> Asked:
    for one in request.changes:
        words = [
            f"{'remove' if verifier is None else 'set'} {mechanism}"
            for mechanism, verifier in one.verifiers.items()
        ]
        if one.replaces:
            words.append("remove all others" if words else "remove")
        yield f"user:{one.name}", ", ".join(words)


def _acls(request: AlterAclsRequest) -> Asked:
    for verb, acls in (("add", request.added), ("remove", request.removed)):
        for one in acls:
            yield (
                acl_resource(one.principal),
                acl_words(
                    verb,
                    one.permission,
                    one.operation,
                    one.resource_type,
                    one.name,
                    one.pattern,
                    one.host,
                ),
            )


def _quotas(request: AlterQuotasRequest) -> Asked:
    for one in request.changes:
        verb = "remove" if one.value is None else "set"
        yield quota_resource(one.entity), f"{verb} {one.key}"


ADMINISTRATION: Final[dict[type[Message], Administered]] = {
    CreateGroupRequest: Administered("Create", _on_group(_created)),
    AlterGroupRequest: Administered("Alter", _on_group(_altered)),
    DeleteGroupRequest: Administered("Delete", _on_group(_deleted)),
    ChangeMembersRequest: Administered("Alter", _on_group(_changed_members)),
    TransferRequest: Administered("Alter", _on_group(_transferred)),
    SnapshotRequest: Administered("Alter", _on_group(lambda request: "")),
    AlterUsersRequest: Administered("Alter", _users),
    AlterAclsRequest: Administered("Alter", _acls),
    AlterQuotasRequest: Administered("Alter", _quotas),
}
"""Requests that administer groups, users, ACLs or quotas."""
DATA_REQUESTS: Final = (AppendRequest, FetchRequest, QueryRequest)
"""Requests that write or read what a group holds."""


class Asking(Protocol):
    """The connection of a client, as the audit log sees it."""

    @property
    def principal(self) -> str:
        """Who the client has proved to be."""
        ...

    @property
    def mechanism(self) -> str:
        """How that was proved."""
        ...

    @property
    def remote_address(self) -> str:
        """Host and port of the client."""
        ...


class _Asker(NamedTuple):
    """Who has asked, how that was proved, and from where."""

    principal: str
    mechanism: str
    address: str


class RecordedRequests:
    """Tells the audit log of the requests of one connection.

    What administers is that of whoever the client was when it asked: until it is answered, somebody
    else may have logged in over the connection.
    """

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._begun: dict[int, tuple[Message, _Asker]] = {}
        """Administration that is not answered yet, by the identity of its message: no more than
        requests may be under way."""

    def begins(self, connection: Asking, message: Message) -> None:
        """Note who asks. Raise `RequestError` if a request administers, and could not be recorded.

        What begins is answered once.
        """
        if type(message) not in ADMINISTRATION:
            return
        if not self._audit.has_room:
            raise error_for(ResponseCode.LEADER_PENDING_FULL, ADMINISTRATION_REFUSED)
        self._begun[id(message)] = message, _asker(connection)

    def accessed(self, connection: Asking, message: Message) -> None:
        """Tell of an access to data that is under way, or done: nothing refuses it any more."""
        if isinstance(message, DATA_REQUESTS) and self._audit.is_accessed("group", message.group):
            operation = "Write" if isinstance(message, AppendRequest) else "Read"
            resource = f"group:{message.group}"
            asker = _asker(connection)
            self._record(asker, AuditedEvent.DATA_ACCESS, message, operation, resource)

    def answered(self, connection: Asking, message: Message, response: Response) -> None:
        """Tell of a request that administers, and is answered now.

        Nothing is told of one that the client may not have (that is another event), or that was
        refused as there is no room to tell of it.
        """
        administered = ADMINISTRATION.get(type(message))
        if administered is None or not isinstance(message, Request):
            return
        _, asker = self._begun.pop(id(message), (message, None))
        if response.code == ResponseCode.NOT_AUTHORIZED or response.text == ADMINISTRATION_REFUSED:
            return
        of_all = _reason_of(response.code, response.text)
        outcomes = response.outcomes if isinstance(response, AlteredResponse) else []
        for place, (resource, detail) in enumerate(administered.asked(message)):
            reason = of_all
            if not reason and place < len(outcomes):
                reason = _reason_of(*outcomes[place])
            self._record(
                asker or _asker(connection),
                AuditedEvent.ADMINISTRATION,
                message,
                administered.operation,
                resource,
                detail=detail,
                reason=reason,
            )

    def _record(
        self,
        asker: _Asker,
        event: AuditedEvent,
        request: Request,
        operation: str,
        resource: str,
        *,
        detail: str = "",
        reason: str = "",
    ) -> None:
        name = type(request).__name__.removesuffix("Request")
        self._audit.record(
            AuditEvent(
                event=event,
                principal=asker.principal,
                mechanism=asker.mechanism,
                address=asker.address,
                resource=resource,
                operation=operation,
                reason=reason,
                request=f"{name} {detail}".rstrip(),
                failed=bool(reason),
            )
        )


def _asker(connection: Asking) -> _Asker:
    return _Asker(connection.principal, connection.mechanism, connection.remote_address)


def _reason_of(code: int, text: str) -> str:
    """Return why something failed; empty: it was done."""
    if code == ResponseCode.SUCCESS:
        return ""
    name = ResponseCode(code).name if code in ResponseCode.__members__.values() else str(code)
    return f"{name}: {text}" if text else name
