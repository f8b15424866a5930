"""What `__cluster` holds: brokers, partition groups, topics, configs, consumer groups,
transactions, sinks, users and what they may do; as tables that change, and as a view that does not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final, Literal, TypeAlias

import msgspec

from quorumlog.auth.view import NO_SECURITY, SecurityView
from quorumlog.machine.cluster.answers import Answers
from quorumlog.machine.cluster.command_time import CommandTime
from quorumlog.machine.cluster.commands import ID_BYTES
from quorumlog.machine.cluster.consumer_groups import (
    ConsumerGroupRecord,
    ConsumerGroups,
)
from quorumlog.machine.cluster.security import SavedSecurity, Security
from quorumlog.machine.cluster.sinks import SinkRecord, Sinks
from quorumlog.machine.cluster.transactions import (
    TransactionRecord,
    Transactions,
    TransactionView,
)
from quorumlog.model.config import PARTITION_GROUP
from quorumlog.model.retention_classes import MIXED

BROKERS_MAX: Final = 50
"""Brokers of a cluster."""
PARTITIONS_MAX: Final = 10_000
"""Partitions of all topics."""
TOPIC_PARTITIONS_MAX: Final = 4_000
"""Partitions of one topic."""
GROUPS_MAX: Final = 64
"""Partition groups."""


class BrokerRecord(msgspec.Struct, frozen=True, array_like=True):
    """A node that serves Kafka's clients; see `RegisterBroker`."""

    broker_id: int
    node_id: str
    address: str
    host: str
    port: int
    rack: str


GroupPhase: TypeAlias = Literal["making", "led"]


class PartitionGroup(msgspec.Struct, frozen=True, array_like=True):
    """A group of partitions: `members` are the brokers that it was made at, preferred leader first.

    It is "making" until it has had a leader; `since_ms` is when it got to its phase.
    `next_channel` is the lowest channel that no partition was ever given. `retention_class` is that
    of the topics that it is for, as far as there are groups for each.
    """

    name: str
    members: tuple[int, ...]
    peers: str
    settings: dict[str, str]
    phase: GroupPhase
    since_ms: int
    next_channel: int = 1
    retention_class: int = MIXED


class TopicPartition(msgspec.Struct, frozen=True, array_like=True):
    """Where a partition is. It is open once the log of its group says so."""

    number: int
    group: str
    channel: int
    is_open: bool = False


class Topic(msgspec.Struct, frozen=True, array_like=True):
    """A topic; `configs` are those that were set for it."""

    name: str
    topic_id: bytes
    partitions: tuple[TopicPartition, ...]
    configs: dict[str, str]
    created_ms: int


class Assignment(msgspec.Struct, frozen=True):
    """Which partition is on a channel of a group."""

    topic_id: bytes
    topic: str
    number: int
    is_open: bool


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All of the state at one moment. `assignments`: group → channel → partition. `folded`: see
    `ClusterState`. `consumer_group_bytes`: what all consumer groups take.

    `version` rises with every change, but not with those of consumer groups and transactions: these
    come with each commit, and concern nobody else. `security` has a version of its own.
    """

    version: int = 0
    cluster_id: str = ""
    brokers: Mapping[int, BrokerRecord] = field(default_factory=dict)
    groups: Mapping[str, PartitionGroup] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)
    topics_by_id: Mapping[bytes, Topic] = field(default_factory=dict)
    folded: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[str, Mapping[int, Assignment]] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    groups_made: int = 0
    partition_count: int = 0
    consumer_groups: Mapping[str, ConsumerGroupRecord] = field(default_factory=dict)
    consumer_group_bytes: int = 0
    transactions: TransactionView = field(default_factory=TransactionView)
    sinks: Mapping[str, SinkRecord] = field(default_factory=dict)
    security: SecurityView = NO_SECURITY

    def broker_of(self, node_id: str) -> BrokerRecord | None:
        """Return the broker that a node is, if it has registered."""
        return next((one for one in self.brokers.values() if one.node_id == node_id), None)

    def has_given_up(self, group: str) -> bool:
        """Whether a partition group was given up: it was made before, and is not there."""
        found = PARTITION_GROUP.fullmatch(group)
        is_old = found is not None and int(found.group(1)) < self.groups_made
        return is_old and group not in self.groups


EMPTY_VIEW: Final = ClusterView()


class _SavedPlain(msgspec.Struct, frozen=True, array_like=True):
    """The state as a snapshot has it while nobody ever made a user, an ACL or a quota.

    Everything else is derived from this. It is what releases without users save: nodes of both must
    come to the same digest, and load each other's snapshots.
    """

    cluster_id: str
    brokers: list[BrokerRecord]
    groups: list[PartitionGroup]
    topics: list[Topic]
    defaults: dict[str, str]
    groups_made: int
    next_producer_id: int
    results: list[tuple[bytes, bytes]]
    sessions: list[tuple[bytes, int]] = []
    consumer_groups: list[ConsumerGroupRecord] = []
    transactions: list[TransactionRecord] = []
    sinks: list[SinkRecord] = []
    latest_ms: int = 0
    latest_term: int = 0
    offsets_added: int = 0


class _Saved(_SavedPlain, frozen=True, array_like=True):
    """The state as a snapshot has it once there were users, ACLs or quotas."""

    security: SavedSecurity = SavedSecurity()


_STATES: Final = msgspec.msgpack.Decoder(_Saved)


@dataclass(slots=True)
class ClusterState:
    """The tables. `folded` has each topic by its name with `_` for `.`: no two may be alike."""

    cluster_id: str = ""
    brokers: dict[int, BrokerRecord] = field(default_factory=dict)
    groups: dict[str, PartitionGroup] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    topics_by_id: dict[bytes, Topic] = field(default_factory=dict)
    folded: dict[str, str] = field(default_factory=dict)
    assignments: dict[str, dict[int, Assignment]] = field(default_factory=dict)
    defaults: dict[str, str] = field(default_factory=dict)
    groups_made: int = 0
    next_producer_id: int = 0
    partition_count: int = 0
    answers: Answers = field(default_factory=Answers)
    consumer_groups: ConsumerGroups = field(default_factory=ConsumerGroups)
    transactions: Transactions = field(default_factory=Transactions)
    sinks: Sinks = field(default_factory=Sinks)
    security: Security = field(default_factory=Security)
    time: CommandTime = field(default_factory=CommandTime)
    changes: int = 0
    """Commands that were applied here about brokers, groups, topics and configs."""

    # -- topics -------------------------------------------------------------------------------

    def put_topic(self, topic: Topic) -> None:
        """Add a topic, or put it in the place of the one with its id."""
        before = self.topics_by_id.get(topic.topic_id)
        if before is not None:
            self._unassign(before, topic)
        known = set(before.partitions) if before is not None else set()
        for one in topic.partitions:
            if one not in known:
                assignment = Assignment(topic.topic_id, topic.name, one.number, one.is_open)
                self.assignments.setdefault(one.group, {})[one.channel] = assignment
        self.partition_count += len(topic.partitions)
        self.partition_count -= 0 if before is None else len(before.partitions)
        self.topics[topic.name] = self.topics_by_id[topic.topic_id] = topic
        self.folded[folded(topic.name)] = topic.name

    def _unassign(self, before: Topic, after: Topic | None) -> None:
        kept = {(one.group, one.channel) for one in after.partitions} if after else set()
        for one in before.partitions:
            if (one.group, one.channel) not in kept:
                self.assignments[one.group].pop(one.channel, None)

    def remove_topic(self, topic: Topic) -> None:
        """Remove a topic with its partitions."""
        self._unassign(topic, None)
        self.partition_count -= len(topic.partitions)
        del self.topics[topic.name], self.topics_by_id[topic.topic_id]
        del self.folded[folded(topic.name)]
        self.consumer_groups.forget_topic(topic.topic_id)
        self.transactions.forget_topic(topic.topic_id, self.consumer_groups)

    def put_group(self, group: PartitionGroup) -> None:
        """Add a partition group, or put it in the place of the one of its name."""
        self.groups[group.name] = group
        self.assignments.setdefault(group.name, {})

    # -- as a whole ---------------------------------------------------------------------------

    def view(self, before: ClusterView) -> ClusterView:
        """Return what others may read while the state goes on; `before` is the last one."""
        return ClusterView(
            version=before.version + 1,
            cluster_id=self.cluster_id,
            brokers=dict(self.brokers),
            groups=dict(self.groups),
            topics=dict(self.topics),
            topics_by_id=dict(self.topics_by_id),
            folded=dict(self.folded),
            assignments={name: dict(found) for name, found in self.assignments.items()},
            defaults=dict(self.defaults),
            groups_made=self.groups_made,
            partition_count=self.partition_count,
            consumer_groups=dict(self.consumer_groups.records),
            consumer_group_bytes=self.consumer_groups.taken_bytes,
            transactions=self.transactions.view(),
            sinks=self.sinks.view(),
            security=self.security.view(),
        )

    def view_of_commits(self, before: ClusterView) -> ClusterView:
        """Return a view as the last one, of its version, but for all that this does not count."""
        return replace(
            before,
            consumer_groups=dict(self.consumer_groups.records),
            consumer_group_bytes=self.consumer_groups.taken_bytes,
            transactions=self.transactions.view(),
            sinks=self.sinks.view(),
            security=self.security.view(),
        )

    def encode(self) -> bytes:
        """Return the whole state; equal states have equal bytes."""
        fields = (
            self.cluster_id,
            list(self.brokers.values()),
            list(self.groups.values()),
            list(self.topics.values()),
            self.defaults,
            self.groups_made,
            self.next_producer_id,
            *self.answers.saved(),
            list(self.consumer_groups.records.values()),
            list(self.transactions.records.values()),
            list(self.sinks.records.values()),
            self.time.latest_ms,
            self.time.term,
            self.transactions.offsets_added,
        )
        if self.security.version:
            return msgspec.msgpack.encode(_Saved(*fields, self.security.saved()))
        return msgspec.msgpack.encode(_SavedPlain(*fields))

    @classmethod
    def decode(cls, data: bytes) -> "ClusterState":
        """Read what `encode` returned. Raises `msgspec.MsgspecError`."""
        saved = _STATES.decode(data)
        state = cls(
            cluster_id=saved.cluster_id,
            brokers={one.broker_id: one for one in saved.brokers},
            defaults=saved.defaults,
            groups_made=saved.groups_made,
            next_producer_id=saved.next_producer_id,
            answers=Answers.restored(saved.results, saved.sessions),
            consumer_groups=ConsumerGroups.restored(saved.consumer_groups),
            sinks=Sinks({one.name: one for one in saved.sinks}),
            security=Security.restored(saved.security),
            time=CommandTime(saved.latest_ms, saved.latest_term),
        )
        state.transactions = Transactions.restored(
            saved.transactions, state.consumer_groups, saved.offsets_added
        )
        for group in saved.groups:
            state.put_group(group)
        for topic in saved.topics:
            state.put_topic(topic)
        return state


def folded(name: str) -> str:
    """Return a topic's name as names of metrics have it: two that are alike then collide."""
    return name.replace(".", "_")


def group_name(number: int) -> str:
    """Return the name of the partition group of this number."""
    return f"pg-{number}"


def group_identity(cluster_id: str, name: str) -> bytes:
    """Return the identity of a partition group: no other cluster has such a group."""
    return blake2b(f"{cluster_id}/{name}".encode(), digest_size=ID_BYTES).digest()
