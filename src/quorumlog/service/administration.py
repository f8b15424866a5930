"""Which requests of our own protocol administer something, and what the audit log has of each."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from quorumlog.model.audit_events import (
    ADMINISTRATION_REFUSED,
    Audit,
    AuditedEvent,
    AuditEvent,
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


class Administered(NamedTuple):
    """What a request does: Kafka's word for the right, and what is asked for besides its kind."""

    operation: str
    detail: Callable[[Any], str]


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


ADMINISTRATION: Final[dict[type[Message], Administered]] = {
    CreateGroupRequest: Administered("Create", _created),
    AlterGroupRequest: Administered("Alter", _altered),
    DeleteGroupRequest: Administered("Delete", _deleted),
    ChangeMembersRequest: Administered("Alter", _changed_members),
    TransferRequest: Administered("Alter", _transferred),
    SnapshotRequest: Administered("Alter", lambda request: ""),
}
"""Requests that administer a group."""
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


class RecordedRequests:
    """Tells the audit log of the requests of one connection."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def begins(self, connection: Asking, message: Message) -> None:
        """Tell of an access to data.

        Raises `RequestError` if the request administers, and could not be recorded.
        """
        if isinstance(message, DATA_REQUESTS):
            if self._audit.is_accessed("group", message.group):
                operation = "Write" if isinstance(message, AppendRequest) else "Read"
                self._record(connection, AuditedEvent.DATA_ACCESS, message, operation)
        elif type(message) in ADMINISTRATION and not self._audit.has_room:
            raise error_for(ResponseCode.LEADER_PENDING_FULL, ADMINISTRATION_REFUSED)

    def answered(self, connection: Asking, message: Message, response: Response) -> None:
        """Tell of a request that administers, and is answered now."""
        administered = ADMINISTRATION.get(type(message))
        if administered is not None and isinstance(message, Request):
            self._record(
                connection,
                AuditedEvent.ADMINISTRATION,
                message,
                administered.operation,
                detail=administered.detail(message),
                reason=_reason_in(response),
            )

    def _record(
        self,
        connection: Asking,
        event: AuditedEvent,
        request: Request,
        operation: str,
        *,
        detail: str = "",
        reason: str = "",
    ) -> None:
        name = type(request).__name__.removesuffix("Request")
        self._audit.record(
            AuditEvent(
                event=event,
                principal=connection.principal,
                mechanism=connection.mechanism,
                address=connection.remote_address,
                resource=f"group:{request.group}",
                operation=operation,
                reason=reason,
                request=f"{name} {detail}".rstrip(),
            )
        )


def _reason_in(response: Response) -> str:
    """Return why a request failed; empty: it was done."""
    if response.code == ResponseCode.SUCCESS:
        return ""
    known = response.code in ResponseCode.__members__.values()
    name = ResponseCode(response.code).name if known else str(response.code)
    return f"{name}: {response.text}" if response.text else name
