"""The partitions that a request names, if this node leads them, or why it does not answer."""

from typing import NamedTuple

from quorumlog.kafka.broker_view import BrokerView, PartitionView, TopicView
from quorumlog.kafka.errors import ErrorCode, error_of
from quorumlog.node.replica.replica import Replica

NO_EPOCH = -1
"""Instead of a leader epoch: the client knows none."""


class Refusal(NamedTuple):
    """Why there is no answer, as a code and for people."""

    error: ErrorCode
    text: str


class LedPartition(NamedTuple):
    """A partition that this node leads: its channel in the log of a group."""

    replica: Replica
    channel: int


def find_partition(broker: BrokerView, topic: str, number: int) -> PartitionView | Refusal:
    """Return a partition of a topic, wherever it is."""
    found = broker.topics.get(topic)
    if found is None:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}")
    return partition_of(found, number)


def partition_of(topic: TopicView, number: int) -> PartitionView | Refusal:
    """Return the partition of this number."""
    if not 0 <= number < len(topic.partitions):
        text = f"topic {topic.name!r} has no partition {number}"
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    return topic.partitions[number]


def led_partition(
    broker: BrokerView, topic: str, number: int, leader_epoch: int = NO_EPOCH
) -> LedPartition | Refusal:
    """Return a partition that this node leads, in the epoch that the client knows of."""
    partition = find_partition(broker, topic, number)
    if isinstance(partition, Refusal):
        return partition
    replica = broker.replica(partition.group)
    if replica is None:
        return not_here(topic, number)
    refusal = refusal_of(replica, leader_epoch)
    return LedPartition(replica, partition.channel) if refusal is None else refusal


def not_here(topic: str, number: int) -> Refusal:
    """Return the refusal of a node that has no replica of a partition."""
    text = f"this node has no replica of partition {number} of topic {topic!r}"
    return Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)


def refusal_of(replica: Replica, leader_epoch: int) -> Refusal | None:
    """Return why nothing can be read at a replica in the epoch that the client knows of, if so."""
    refused = replica.partition_reads.refusal()
    if refused is not None:
        return Refusal(error_of(refused[0]), refused[1])
    epoch = replica.core.term
    if NO_EPOCH < leader_epoch < epoch:
        text = f"leader epoch {leader_epoch} is over; it is {epoch}"
        return Refusal(ErrorCode.FENCED_LEADER_EPOCH, text)
    if leader_epoch > epoch:
        text = f"leader epoch {leader_epoch} is not known here; it is {epoch}"
        return Refusal(ErrorCode.UNKNOWN_LEADER_EPOCH, text)
    return None
