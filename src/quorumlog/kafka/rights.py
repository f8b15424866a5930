"""What a Kafka client may do, and how it is told that it may not (KIP-11, and Kafka's table of
operations for each request).
"""

from typing import Final

from quorumlog.auth.acls import CLUSTER_NAME, OPERATIONS, Operation, ResourceType
from quorumlog.auth.permits import Permit, Right, refusal_text
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.led_partitions import Refusal
from quorumlog.machine.cluster.consumer_groups import LOG_PREFIX

_ERRORS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.CONSUMER_GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
}
"""What clients are told. A group of quorumlog stands where others name topics (`log:NAME`)."""


def topic_or_log(name: str) -> tuple[ResourceType, str]:
    """Return the resource that a request names as a topic, which may be a log (`log:NAME`)."""
    if name.startswith(LOG_PREFIX):
        return ResourceType.GROUP, name.removeprefix(LOG_PREFIX)
    return ResourceType.TOPIC, name


class Rights:
    """What the client of one connection may do. `permit` None: everything, and nothing is judged.

    What begins with `sees` is for what the client did not ask for by name: a refusal is not told.
    """

    __slots__ = ("permit",)

    def __init__(self, permit: Permit | None) -> None:
        self.permit = permit

    # -- topics -------------------------------------------------------------------------------

    def may_topic(self, operation: Operation, name: str) -> bool:
        """Whether the client may do something with a topic, or with a log."""
        return self.permit is None or self.permit.may(operation, *topic_or_log(name))

    def sees_topic(self, operation: Operation, name: str) -> bool:
        """Whether the client may do something with a topic, or with a log."""
        return self.permit is None or self.permit.sees(operation, *topic_or_log(name))

    def refused_topic(self, operation: Operation, name: str) -> Refusal | None:
        """Return why a client may not do something with a topic; None: it may."""
        if self.permit is None or self.permit.may(operation, *topic_or_log(name)):
            return None
        return self.refusal(operation, *topic_or_log(name))

    def may_create(self, name: str) -> bool:
        """Whether the client may create a topic: this one, or any."""
        on_topic = Right(Operation.CREATE, ResourceType.TOPIC, name)
        on_cluster = Right(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)
        return self.permit is None or self.permit.may_one_of((on_topic, on_cluster))

    # -- anything else ------------------------------------------------------------------------

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether the client may do what it asks for."""
        return self.permit is None or self.permit.may(operation, kind, name)

    def sees(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether the client may do something."""
        return self.permit is None or self.permit.sees(operation, kind, name)

    def may_group(self, operation: Operation, name: str) -> bool:
        """Whether the client may do something with a consumer group."""
        return self.may(operation, ResourceType.CONSUMER_GROUP, name)

    def sees_group(self, operation: Operation, name: str) -> bool:
        """Whether the client may do something with a consumer group."""
        return self.sees(operation, ResourceType.CONSUMER_GROUP, name)

    def sees_cluster(self, operation: Operation) -> bool:
        """Whether the client may do something with the cluster."""
        return self.sees(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def refused(self, right: Right) -> Refusal | None:
        """Return why a client may not do something; None: it may."""
        if self.permit is None or self.permit.may(*right):
            return None
        return self.refusal(*right)

    def refused_idempotence(self) -> Refusal | None:
        """Return why a client may not be an idempotent producer; None: it may (KIP-679)."""
        permit = self.permit
        if permit is None or permit.may_somewhere(Operation.WRITE, ResourceType.TOPIC):
            return None
        return self.refused(Right(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME))

    def refusal(self, operation: Operation, kind: ResourceType, name: str) -> Refusal:
        """Return that the client may not do something."""
        principal = "" if self.permit is None else self.permit.principal
        return Refusal(_ERRORS[kind], refusal_text(principal, Right(operation, kind, name)))

    def operations(self, kind: ResourceType, name: str) -> frozenset[Operation]:
        """Return all that the client may do with a resource (KIP-430)."""
        if self.permit is not None:
            return self.permit.operations(kind, name)
        return OPERATIONS[kind] - {Operation.ALL}


def bits_of(operations: frozenset[Operation]) -> int:
    """Return operations as the bits of a number."""
    return sum(1 << one for one in operations)
