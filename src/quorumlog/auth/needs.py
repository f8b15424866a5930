"""Which rights each request of our own protocol needs.

A kind of request that is not in the table is refused. Some requests name resources only in what is
attached to them, or ask for a list of which each sees a part: `service.requests` has these judged
by the same `Permit`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias
from uuid import UUID

from quorumlog.auth.acls import CLUSTER_NAME, Operation, ResourceType
from quorumlog.auth.permits import Right
from quorumlog.auth.principals import USER
from quorumlog.model.config import CLUSTER_GROUP
from quorumlog.model.messages import (
    admin,
    base,
    client,
    consumers,
    groups,
    machine,
    security,
    transactions,
)
from quorumlog.model.security_config import PASSWORD_MECHANISMS

_UUID_BYTES: Final = 16
Needed: TypeAlias = tuple[tuple[Right, ...], ...]
"""All rights that are needed; of each tuple within, one is enough."""
Needs: TypeAlias = Callable[[Any], Needed]


def on_group(operation: Operation, name: str) -> tuple[Right]:
    """Return the right to do something with a group."""
    return (Right(operation, ResourceType.GROUP, name),)


def on_cluster(operation: Operation) -> tuple[Right]:
    """Return the right to do something with the cluster."""
    return (Right(operation, ResourceType.CLUSTER, CLUSTER_NAME),)


def transactional_name(transactional_id: bytes) -> str:
    """Return the name of a transactional id of our own protocol in ACLs: the text of a UUID.

    Clients send 16 bytes, those of a UUID or of the SHA-256 of a text. Ids of Kafka's protocol are
    texts, and their own names.
    """
    is_uuid = len(transactional_id) == _UUID_BYTES
    return str(UUID(bytes=transactional_id)) if is_uuid else transactional_id.hex()


def on_transactional_id(operation: Operation, transactional_id: bytes) -> tuple[Right]:
    """Return the right to do something with a transactional id of our own protocol."""
    name = transactional_name(transactional_id)
    return (Right(operation, ResourceType.TRANSACTIONAL_ID, name),)


def _of_group(operation: Operation) -> Needs:
    return lambda request: (on_group(operation, request.group),)


def _of_cluster(operation: Operation) -> Needs:
    return lambda request: (on_cluster(operation),)


def _of_group_and_cluster(operation: Operation) -> Needs:
    return lambda request: (on_group(operation, request.group), on_cluster(operation))


def _leader(request: client.MetadataRequest | client.WatchLeaderRequest) -> Needed:
    """Without a group the answer has those that may be described.

    Who leads `__cluster`, everybody is told, as Kafka's clients are told of brokers and controller:
    consumers of logs turn to it.
    """
    if request.group in ("", CLUSTER_GROUP):
        return ()
    return (on_group(Operation.DESCRIBE, request.group),)


def _listed(request: groups.ListGroupsRequest) -> Needed:
    """Without a group the answer has those that may be described."""
    return (on_group(Operation.DESCRIBE, request.group),) if request.group else ()


def _append(request: client.AppendRequest) -> Needed:
    """Results of a state machine may have in them what it holds: who wants them reads."""
    writes = on_group(Operation.WRITE, request.group)
    if not request.wants_results:
        return (writes,)
    return writes, on_group(Operation.READ, request.group)


def _transactional(request: transactions.TransactionalRequest) -> Needed:
    return (
        on_group(Operation.DESCRIBE, request.group),
        on_transactional_id(Operation.DESCRIBE, request.transactional_id),
    )


def _create(request: groups.CreateGroupRequest) -> Needed:
    """Whoever may create groups in the cluster, or this one (as with topics)."""
    return ((*on_group(Operation.CREATE, request.group), *on_cluster(Operation.CREATE)),)


def _consumer(operation: Operation) -> Needs:
    def needs(request: consumers.ConsumerRequest) -> Needed:
        group = Right(operation, ResourceType.CONSUMER_GROUP, request.consumer_group)
        return (group,), on_group(operation, request.log)

    return needs


NEEDS: Final[Mapping[type[base.Request], Needs]] = {
    client.MetadataRequest: _leader,
    client.AppendRequest: _append,
    client.FetchRequest: _of_group(Operation.READ),
    client.StatusRequest: _of_group_and_cluster(Operation.DESCRIBE),
    client.WatchLeaderRequest: _leader,
    admin.TransferRequest: _of_group_and_cluster(Operation.ALTER),
    admin.ChangeMembersRequest: _of_group_and_cluster(Operation.ALTER),
    admin.HistoryRequest: _of_group_and_cluster(Operation.DESCRIBE),
    machine.QueryRequest: _of_group(Operation.READ),
    machine.SnapshotRequest: _of_group_and_cluster(Operation.ALTER),
    transactions.TransactionalRequest: _transactional,
    groups.CreateGroupRequest: _create,
    groups.DeleteGroupRequest: _of_group(Operation.DELETE),
    groups.AlterGroupRequest: _of_group(Operation.ALTER),
    groups.ListGroupsRequest: _listed,
    consumers.ConsumerHeartbeatRequest: _consumer(Operation.READ),
    consumers.CommitPositionsRequest: _consumer(Operation.READ),
    consumers.PositionsRequest: _consumer(Operation.DESCRIBE),
    security.UsersRequest: _of_cluster(Operation.DESCRIBE),
    security.AlterUsersRequest: _of_cluster(Operation.ALTER),
    security.AclsRequest: _of_cluster(Operation.DESCRIBE),
    security.AlterAclsRequest: _of_cluster(Operation.ALTER),
    security.CheckAclRequest: _of_cluster(Operation.DESCRIBE),
    security.QuotasRequest: _of_cluster(Operation.DESCRIBE),
    security.AlterQuotasRequest: _of_cluster(Operation.ALTER),
    security.CheckSecurityRequest: _of_cluster(Operation.DESCRIBE),
}
DATA_REQUESTS: Final = (
    client.AppendRequest,
    client.FetchRequest,
    machine.QueryRequest,
    transactions.TransactionalRequest,
)
"""Requests about what a group holds. Nobody sends them about groups of the brokers, super users
neither: rights on topics count for these, and `__cluster` has what passwords are checked by."""

OWN_ITERATIONS_MAX: Final = 100_000
"""Iterations of a verifier that a user may set for the own password."""


def is_own_password(request: base.Request, principal: str, mechanism: str) -> bool:
    """Whether a user does nothing but change the own password, for which no right is needed.

    Who has logged in by `mechanism` has to have shown the present one. A certificate or a token,
    which are valid for a time, would become a lasting password; a user who has none yet does not
    make one so. More than `OWN_ITERATIONS_MAX` take the right to alter the cluster: with PLAIN
    each login costs the node their time.
    """
    if mechanism not in PASSWORD_MECHANISMS:
        return False
    if not isinstance(request, security.AlterUsersRequest) or len(request.changes) != 1:
        return False
    (change,) = request.changes
    return (
        f"{USER}{change.name}" == principal
        and change.exists is True
        and all(
            one is not None and one.iterations <= OWN_ITERATIONS_MAX
            for one in change.verifiers.values()
        )
        and bool(change.verifiers)
    )
