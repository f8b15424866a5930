"""What the Kafka server asks of the node's broker: topics, where their partitions are, commands."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from quorumlog.auth.view import SecurityView
from quorumlog.broker.broker import GroupLeader
from quorumlog.broker.commands import Done
from quorumlog.machine.cluster.consumer_groups import ConsumerGroupRecord
from quorumlog.machine.cluster.sinks import SinkRecord
from quorumlog.machine.cluster.transactions import TransactionView
from quorumlog.node.replica.replica import Replica


class PartitionView(Protocol):
    """One partition: its number in the topic, and the channel of the group that it is."""

    @property
    def number(self) -> int:
        """Its number in the topic."""
        ...

    @property
    def group(self) -> str:
        """The partition group that holds it."""
        ...

    @property
    def channel(self) -> int:
        """Its channel in the log of the group."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether the leader of the group has opened it."""
        ...


class TopicView(Protocol):
    """One topic; `configs` are those that were set."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def topic_id(self) -> bytes:
        """Its id, 16 bytes."""
        ...

    @property
    def partitions(self) -> Sequence[PartitionView]:
        """Its partitions, by their numbers."""
        ...

    @property
    def configs(self) -> Mapping[str, str]:
        """Its configs that were set."""
        ...


class BrokerAddress(Protocol):
    """One broker, and where clients reach it; `rack` may be empty."""

    @property
    def broker_id(self) -> int:
        """Its number."""
        ...

    @property
    def host(self) -> str:
        """The host that clients connect to."""
        ...

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        ...

    @property
    def rack(self) -> str:
        """Where it is."""
        ...


class BrokerView(Protocol):
    """The broker of this node, as the Kafka server sees it."""

    @property
    def version(self) -> int:
        """Rises with every change of what Metadata answers."""
        ...

    @property
    def cluster_id(self) -> str:
        """The id of the cluster; empty until a broker has registered."""
        ...

    @property
    def broker_id(self) -> int:
        """The number of this broker; -1: it has none yet."""
        ...

    @property
    def controller_id(self) -> int:
        """The broker whose node leads the cluster group; this one if none is known to."""
        ...

    @property
    def brokers(self) -> Mapping[int, BrokerAddress]:
        """The brokers that are alive, by number."""
        ...

    @property
    def registered(self) -> Mapping[int, BrokerAddress]:
        """All brokers by number."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether it knows all topics; until then requests are held."""
        ...

    @property
    def refusal(self) -> str:
        """Why the cluster does not take it as a broker; empty: it does, or was not asked yet."""
        ...

    @property
    def topics(self) -> Mapping[str, TopicView]:
        """All topics by name."""
        ...

    @property
    def topics_by_id(self) -> Mapping[bytes, TopicView]:
        """All topics by id."""
        ...

    @property
    def defaults(self) -> Mapping[str, str]:
        """The configs of the cluster that were set."""
        ...

    @property
    def replicas_at_least(self) -> int:
        """How many replicas a new partition has at least."""
        ...

    def in_sync_of(self, group: str) -> tuple[int, ...]:
        """Return the brokers whose replica of a group is in sync."""
        ...

    def replicas_of(self, group: str) -> tuple[int, ...]:
        """Return the brokers that have a replica of a group."""
        ...

    def is_made(self, group: str) -> bool:
        """Whether a group has had a leader, as far as is known here: then it is never given up."""
        ...

    def leader_of(self, group: str) -> GroupLeader:
        """Return who leads a group."""
        ...

    def replica(self, group: str) -> Replica | None:
        """Return this node's replica of a group."""
        ...

    def when_changed(self, call: Callable[[], None]) -> Callable[[], None]:
        """Have a function called with each change; returns what ends that."""
        ...

    async def until(self, condition: Callable[[], bool], timeout_ms: int) -> bool:
        """Wait until something holds that depends on the metadata; return whether it does."""
        ...

    def is_open(self, topic_id: bytes) -> bool:
        """Whether all partitions of a topic can be produced to, as far as is known here."""
        ...

    def why_not_open(self, topic_id: bytes) -> str:
        """Say why partitions of a topic have no leader; empty: no broker says so."""
        ...

    async def wait_elected(self) -> None:
        """Wait for the new leaders of groups that have just lost theirs, but not long."""
        ...

    async def wait_open(self, topic_ids: Iterable[bytes], timeout_ms: int) -> bool:
        """Wait until all partitions of some topics have leaders; return whether they have."""
        ...

    @property
    def security(self) -> SecurityView:
        """Users, ACLs and quotas."""
        ...

    @property
    def coordinator_term(self) -> int:
        """The term of `__cluster` in which this node coordinates; -1: it does not."""
        ...

    @property
    def consumer_groups(self) -> Mapping[str, ConsumerGroupRecord]:
        """The consumer groups as they were saved."""
        ...

    @property
    def consumer_group_bytes(self) -> int:
        """What all consumer groups take as they were saved."""
        ...

    @property
    def transactions(self) -> TransactionView:
        """All transactional ids."""
        ...

    @property
    def sinks(self) -> Mapping[str, SinkRecord]:
        """All sinks, by name."""
        ...

    async def until_committed(self, condition: Callable[[], bool], timeout_ms: int) -> bool:
        """Wait as `until` does for what also depends on consumer groups and transactions."""
        ...

    def order(self, command: Any, timeout_ms: int, done: Done) -> None:
        """Do as `execute` does; `done` is called once."""
        ...

    def ask_barrier(self, timeout_ms: int, done: Callable[[bool], None]) -> None:
        """Do as `barrier` does; `done` is called once."""
        ...

    async def barrier(self, timeout_ms: int) -> bool:
        """Wait until all that was committed in `__cluster` is known; return whether it is."""
        ...

    async def execute(self, command: Any, timeout_ms: int) -> Any:
        """Have the leader of the cluster group apply a command. Raises `RequestError`."""
        ...
