"""Who may do what at a node: what its connections are judged by, and lines about refusals."""

import logging
from collections.abc import Callable
from typing import Final

from quorumlog.auth.acls import Operation, ResourceType, word_of
from quorumlog.auth.needs import DATA_REQUESTS, NEEDS, is_own_password
from quorumlog.auth.permits import Authorizer, Permit, Refused, Right, refusal_text
from quorumlog.auth.view import SecurityView
from quorumlog.log_events import log_event
from quorumlog.model.audit_events import Audit, AuditedEvent, AuditEvent
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import CLUSTER_GROUP, PARTITION_GROUP, NodeConfig
from quorumlog.model.errors import error_for
from quorumlog.model.messages.base import Message, Request
from quorumlog.model.messages.client import AppendRequest, MetadataRequest, WatchLeaderRequest
from quorumlog.model.wording import shortened

logger = logging.getLogger(__name__)

REFUSALS_MAX: Final = 1_024
"""Principals and resources whose last line is remembered. While all had it within the last minute,
no other one has a line."""
PAUSE_S: Final = 60.0
"""Time between two lines about the same principal and resource, in seconds."""
ONLY_REPORTED: Final = "served nevertheless: authorization is log"
"""Of a refusal in the audit log: nothing was refused."""
AUDITED_KINDS: Final = {
    ResourceType.TOPIC: "topic",
    ResourceType.CONSUMER_GROUP: "consumer-group",
    ResourceType.CLUSTER: "cluster",
    ResourceType.TRANSACTIONAL_ID: "transactional-id",
    ResourceType.GROUP: "group",
}
"""Words of types of resources in the audit log."""
_LEADERS: Final = (MetadataRequest, WatchLeaderRequest)
"""Requests that everybody may have about `__cluster` (`auth.needs`)."""
_UNKNOWN: Final = "{} is not allowed to anybody, as it is not known which rights it needs"
_NOT_READY: Final = (
    "this node has just started and does not know yet who may do what: it learns that from the "
    "leader of {}; try again"
)
_CLOSED: Final = (
    "nobody reads or writes group {} but the brokers: use topics, by the Kafka protocol; "
    "'quorumlog acl' and 'quorumlog user' show who may do what"
)


def why_not_ready(permit: Permit, message: Message) -> str:
    """Return why a request cannot be judged yet, for people; empty: it can be, or need not be.

    What everybody may have is answered: by it clients find the leader, who may know rights already.
    """
    if permit.is_ready:
        return ""
    is_for_all = isinstance(message, _LEADERS) and message.group == CLUSTER_GROUP
    return "" if is_for_all else _NOT_READY.format(CLUSTER_GROUP)


def refusal_of(permit: Permit, message: Message) -> str:
    """Return why a request is refused, for people; empty: the client may have it."""
    needs = NEEDS.get(type(message)) if isinstance(message, Request) else None
    if needs is None or not isinstance(message, Request):
        return _UNKNOWN.format(type(message).__name__)
    if isinstance(message, DATA_REQUESTS) and is_of_brokers(message.group):
        is_writing = isinstance(message, AppendRequest)
        operation = Operation.WRITE if is_writing else Operation.READ
        right = Right(operation, ResourceType.GROUP, message.group)
        if not permit.refuse(right, always=message.group == CLUSTER_GROUP):
            return _CLOSED.format(message.group)
    if is_own_password(message, permit.principal, permit.login_mechanism):
        return ""
    missing = permit.first_refused(needs(message))
    return "" if missing is None else refusal_text(permit.principal, missing)


def refusal_of_secrets(message: Message) -> str:
    """Return why a request is refused where nobody is judged, but passwords are checked.

    Whoever reads `__cluster` has what these are checked by, and can guess them elsewhere.
    """
    is_of_cluster = isinstance(message, DATA_REQUESTS) and message.group == CLUSTER_GROUP
    return _CLOSED.format(CLUSTER_GROUP) if is_of_cluster else ""


def check_right(permit: Permit, rights: tuple[Right, ...], about: str = "") -> None:
    """Raise `NotAuthorizedError` unless a client has one of some rights.

    `about`: what they are needed for, if the request alone does not say it.
    """
    right = permit.first_refused((rights,))
    if right is not None:
        text = refusal_text(permit.principal, right)
        raise error_for(ResponseCode.NOT_AUTHORIZED, f"{about}: {text}" if about else text)


def is_of_brokers(group: str) -> bool:
    """Whether a group is one that brokers keep topics in, or `__cluster`."""
    return group == CLUSTER_GROUP or PARTITION_GROUP.fullmatch(group) is not None


def audited_operation(operation: Operation) -> str:
    """Return the word of an operation in the audit log, such as `DescribeConfigs`."""
    return operation.name.title().replace("_", "")


class RefusalLines:
    """Writes a line about a refusal, one a minute about a principal and resource.

    `now` reads a clock that never goes back, in seconds. `audit` is told of all.
    """

    def __init__(self, now: Callable[[], float], audit: Audit) -> None:
        self._now = now
        self._audit = audit
        self._last: dict[tuple[str, ResourceType, str], tuple[float, int]] = {}
        """When the last line was written, the longest ago first, and how many were left out."""

    def __call__(self, refused: Refused) -> None:
        """Take a refusal (see `Authorizer`)."""
        operation, kind, name = refused.right
        name = shortened(name)  # the client has sent it, of any length
        self._audit.record(
            AuditEvent(
                event=AuditedEvent.REQUEST_REFUSED,
                principal=refused.principal,
                mechanism=refused.mechanism,
                address=refused.address,
                resource=f"{AUDITED_KINDS[kind]}:{name}",
                operation=audited_operation(operation),
                allowed=False,
                reason="" if refused.is_enforced else ONLY_REPORTED,
            )
        )
        left_out = self._left_out((refused.principal, kind, name))
        if left_out is None:
            return
        log_event(
            logger,
            logging.WARNING,
            "a right is missing" if refused.is_enforced else "a right would be missing",
            principal=refused.principal,
            operation=word_of(operation),
            resource=f"{word_of(kind)}:{name}",
            remote=refused.address,
            lines_left_out=left_out,
        )

    def _left_out(self, key: tuple[str, ResourceType, str]) -> int | None:
        """Return how many lines were left out before this one; None: it is left out, too."""
        now, last = self._now(), self._last
        since, left_out = last.get(key, (-PAUSE_S, 0))
        if now - since < PAUSE_S:
            last[key] = since, left_out + 1
            return None
        if key not in last and len(last) >= REFUSALS_MAX:
            first = next(iter(last))
            if now - last[first][0] < PAUSE_S:
                return None
            del last[first]
        last.pop(key, None)
        last[key] = now, 0
        return left_out


def authorizer_of(
    config: NodeConfig,
    view: Callable[[], SecurityView],
    refused: Callable[[Refused], None],
    is_ready: Callable[[], bool] = lambda: True,
) -> Authorizer | None:
    """Return what a node with a configuration judges by; None: everybody may do everything.

    `is_ready`: whether the node knows all rights that there were when it started.
    """
    security = config.security
    if security is None or security.authorization == "off":
        return None
    only_reports = security.authorization == "log"
    return Authorizer(
        view,
        frozenset(security.super_users),
        refused,
        only_reports=only_reports,
        is_ready=is_ready,
    )
