"""One node's part in what brokers share: topics, where their partitions are, and who leads them."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Final, NamedTuple

from quorumlog.auth.view import SecurityView
from quorumlog.broker.commands import Done
from quorumlog.broker.controller import DEFAULT_SETTINGS, replicas_at_least
from quorumlog.broker.environment import OF_THE_SYSTEM, BrokerEnvironment, HostNode
from quorumlog.broker.leaders import ELECTION_MS
from quorumlog.broker.running import Running
from quorumlog.machine.base import StateMachine
from quorumlog.machine.cluster.commands import AnyCommand, AnyResult
from quorumlog.machine.cluster.consumer_groups import ConsumerGroupRecord
from quorumlog.machine.cluster.machine import ClusterMachine
from quorumlog.machine.cluster.sinks import SinkRecord
from quorumlog.machine.cluster.state import EMPTY_VIEW, BrokerRecord, ClusterView, Topic
from quorumlog.machine.cluster.transactions import TransactionView
from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import CLUSTER_GROUP, NodeConfig, host_port, parse_address
from quorumlog.model.errors import ConfigError, UnexpectedArgumentError, error_for
from quorumlog.model.group_records import GroupRecord, config_of, text_of
from quorumlog.node.attachments import Attachments
from quorumlog.node.replica.replica import Replica

LISTENERS_MAX: Final = 65_536
"""Waiters for changes of the metadata."""


class GroupLeader(NamedTuple):
    """The broker that leads a partition group, and its leader epoch; -1: not known."""

    broker_id: int
    epoch: int


NO_LEADER: Final = GroupLeader(-1, -1)


def _check_partition_groups(config: NodeConfig, peers: str) -> None:
    given = {key: text_of(value) for key, value in config.partition_groups.items()}
    settings = {**DEFAULT_SETTINGS, **given, "kind": "partitions"}
    try:
        config.check_group(config_of(GroupRecord(group="pg-0", peers=peers, settings=settings)), {})
    except ConfigError as error:
        raise ConfigError(f"partitionGroups: {error}") from error


class Broker:
    """What a node knows of topics, and what it does for them beside carrying out requests.

    It is made before its node, which gets its `attachments`; `start` is called once that has been
    started. All methods run on the event loop's thread.

    Raises `ConfigError` if no partition group could have the settings that are configured.
    """

    def __init__(self, config: NodeConfig, environment: BrokerEnvironment = OF_THE_SYSTEM) -> None:
        if config.cluster_group is None:
            raise ConfigError(f"a broker needs the group {CLUSTER_GROUP}")
        _check_partition_groups(config, config.cluster_group.peers)
        self.config = config
        self._environment = environment
        self.attachments = {CLUSTER_GROUP: Attachments(applied=self._applied)}
        self.version = 0
        self.broker_id = -1
        """The number of this broker; -1: it has not registered yet."""
        self._view: ClusterView = EMPTY_VIEW
        self._listeners: dict[int, Callable[[], None]] = {}
        self._commit_listeners: dict[int, Callable[[], None]] = {}
        self._security_listeners: dict[int, Callable[[], None]] = {}
        self._numbers = count()
        self._address = config.kafka_address
        if self._address and not parse_address(self._address)[1]:
            self._address = ""  # the listener finds a port first
        self._parts: Running | None = None
        self._replicas: Mapping[str, Replica] = {}

    # -- what it knows ------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether all topics are known here that there were when this node started, and itself.

        Until then a topic that is not known here may exist, and clients would be told of no broker.
        """
        return self.knows_cluster and self.broker_id >= 0

    @property
    def knows_cluster(self) -> bool:
        """Whether all is known here that was committed in `__cluster` when this node started."""
        return self._parts is not None and self._parts.is_complete

    @property
    def refusal(self) -> str:
        """Why `__cluster` does not register this broker; empty: it does, or was not asked yet."""
        return "" if self._parts is None else self._parts.registration.refusal

    @property
    def cluster_id(self) -> str:
        """The id of the cluster; empty until a broker has registered."""
        return self._view.cluster_id

    @property
    def topics(self) -> Mapping[str, Topic]:
        """All topics by name."""
        return self._view.topics

    @property
    def topics_by_id(self) -> Mapping[bytes, Topic]:
        """All topics by id."""
        return self._view.topics_by_id

    @property
    def defaults(self) -> Mapping[str, str]:
        """The configs of the cluster that were set (`topic_configs.CLUSTER_CONFIGS`)."""
        return self._view.defaults

    @property
    def view(self) -> ClusterView:
        """All that `__cluster` holds, as far as it is known here."""
        return self._view

    @property
    def security(self) -> SecurityView:
        """Users, ACLs and quotas, as far as they are known here."""
        return self._view.security

    @property
    def registered(self) -> Mapping[int, BrokerRecord]:
        """All brokers by number, alive or not."""
        return self._view.brokers

    @property
    def brokers(self) -> Mapping[int, BrokerRecord]:
        """The brokers that are alive, as far as is known here."""
        alive = self._running.leaders.alive
        return {number: one for number, one in self._view.brokers.items() if one.node_id in alive}

    @property
    def controller_id(self) -> int:
        """The broker whose node leads `__cluster`; this one, if no live broker is known to.

        Every broker has commands applied by the leader. A client that is told of no controller
        waits until it asks for metadata again: librdkafka for five minutes.
        """
        leader = self._running.leader()
        found = self._id_of(leader) if self._running.leaders.is_connected(leader) else -1
        return self.broker_id if found < 0 else found

    def leader_of(self, group: str) -> GroupLeader:
        """Return who leads a partition group."""
        if self._parts is None:
            return NO_LEADER
        known = self._parts.leaders.of(group)
        return GroupLeader(self._id_of(known.node_id), known.term)

    @property
    def replicas_at_least(self) -> int:
        """How many replicas a new partition has at least."""
        return replicas_at_least(self._view, self._running.voters())

    def replicas_of(self, group: str) -> tuple[int, ...]:
        """Return the brokers that have a partition group, the preferred leader first."""
        found = self._view.groups.get(group)
        return () if found is None else found.members

    def in_sync_of(self, group: str) -> tuple[int, ...]:
        """Return the members of a partition group that are in sync, as its leader said last."""
        known = self._running.leaders.of(group)
        in_sync = set(known.in_sync)
        brokers = self._view.brokers
        return tuple(
            member
            for member in self.replicas_of(group)
            if member in brokers and brokers[member].node_id in in_sync
        )

    def is_made(self, group: str) -> bool:
        """Whether a partition group has had a leader, as far as is known here.

        Until then the controller may give it up, with what is in it.
        """
        found = self._view.groups.get(group)
        return found is not None and found.phase == "led"

    def replica(self, group: str) -> Replica | None:
        """Return this node's replica of a partition group."""
        return self._replicas.get(group)

    def _id_of(self, node_id: str | None) -> int:
        found = None if node_id is None else self._view.broker_of(node_id)
        return -1 if found is None else found.broker_id

    # -- changes ------------------------------------------------------------------------------

    def when_changed(self, call: Callable[[], None]) -> Callable[[], None]:
        """Have a function called after each change of `version`; return one that ends this.

        Raises `RequestError` when too many wait.
        """
        return self._listen(self._listeners, call)

    def when_security_changed(self, call: Callable[[], None]) -> Callable[[], None]:
        """Have a function called whenever `security` is another one; return what ends this.

        Raises `RequestError` when too many wait.
        """
        return self._listen(self._security_listeners, call)

    def _listen(
        self, listeners: dict[int, Callable[[], None]], call: Callable[[], None]
    ) -> Callable[[], None]:
        if len(listeners) >= LISTENERS_MAX:
            text = f"{LISTENERS_MAX} requests wait for changes already; try again later"
            raise error_for(ResponseCode.LEADER_PENDING_FULL, text)
        number = next(self._numbers)
        listeners[number] = call

        def end() -> None:
            listeners.pop(number, None)

        return end

    def _changed(self) -> None:
        self.version += 1
        _tell(self._listeners)

    def _applied(self, machine: StateMachine) -> None:
        """The machine of `__cluster` has another state."""
        if isinstance(machine, ClusterMachine) and machine.view is not self._view:
            before, self._view = self._view, machine.view
            _tell(self._commit_listeners)
            if self._view.security is not before.security:
                _tell(self._security_listeners)
            if self._view.version == before.version:
                if self._parts is not None:
                    self._parts.applied()
                return
            self.broker_id = self._id_of(self.config.self_id)
            if self._parts is not None:
                self._parts.view_changed()
            self._changed()

    async def until(self, condition: Callable[[], bool], timeout_ms: int) -> bool:
        """Wait until something holds that depends on the metadata; return whether it does."""
        return await self._until(condition, timeout_ms, self._listeners)

    async def until_committed(self, condition: Callable[[], bool], timeout_ms: int) -> bool:
        """Wait as `until` does for what also depends on consumer groups and transactions."""
        return await self._until(condition, timeout_ms, self._commit_listeners)

    async def _until(
        self,
        condition: Callable[[], bool],
        timeout_ms: int,
        listeners: dict[int, Callable[[], None]],
    ) -> bool:
        if condition():
            return True
        fulfilled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def look() -> None:
            if not fulfilled.done() and condition():
                fulfilled.set_result(None)

        end = self._listen(listeners, look)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await fulfilled
        except TimeoutError:
            return condition()
        finally:
            end()
        return True

    async def wait_elected(self) -> None:
        """Wait for the new leaders of partition groups that have just lost theirs, but not long."""
        leaders = self._running.leaders
        await self.until(lambda: not leaders.are_electing(), ELECTION_MS)

    async def wait_open(self, topic_ids: Iterable[bytes], timeout_ms: int) -> bool:
        """Wait until all partitions of some topics can be produced to, as far as is known here.

        Topics that were deleted meanwhile are not waited for.
        """
        ids, seen = list(topic_ids), set[bytes]()

        def are_open() -> bool:
            seen.update(one for one in ids if one in self._view.topics_by_id)
            known = self._view.topics_by_id
            return all(self.is_open(one) or (one in seen and one not in known) for one in ids)

        return await self.until(are_open, timeout_ms)

    def is_open(self, topic_id: bytes) -> bool:
        """Whether all partitions of a topic can be produced to, as far as is known here."""
        topic = self._view.topics_by_id.get(topic_id)
        return topic is not None and all(
            one.is_open and self.leader_of(one.group).broker_id >= 0 for one in topic.partitions
        )

    def why_not_open(self, topic_id: bytes) -> str:
        """Say why partitions of a topic have no leader; empty: no broker says so."""
        topic = self._view.topics_by_id.get(topic_id)
        groups = sorted({one.group for one in topic.partitions if not one.is_open} if topic else ())
        names: dict[str, list[str]] = {}
        for name in groups:
            names.setdefault(self._running.leaders.why_not_made(name), []).append(name)
        return "; ".join(
            f"{', '.join(some)} could not be made ({text})" for text, some in names.items() if text
        )

    # -- commands -----------------------------------------------------------------------------

    async def execute(self, command: AnyCommand, timeout_ms: int) -> AnyResult:
        """Have `__cluster` apply a command once; return its result once this is committed.

        What the command has changed shows in this node's view once that has come so far, which it
        has when this returns.

        Raises:
            RequestError: it could not be applied; with TIMEOUT, it may be applied later.
        """
        answered: asyncio.Future[AnyResult] = asyncio.get_running_loop().create_future()

        def done(code: ResponseCode, text: str, result: AnyResult | None) -> None:
            if answered.done():
                return
            if result is None:
                answered.set_exception(error_for(code, text))
            else:
                answered.set_result(result)

        self.order(command, timeout_ms, done)
        return await answered

    def order(self, command: AnyCommand, timeout_ms: int, done: Done) -> None:
        """Do as `execute` does; `done` is called once, maybe at once."""
        self._running.order(command, timeout_ms, done)

    # -- consumer groups ----------------------------------------------------------------------

    @property
    def consumer_groups(self) -> Mapping[str, ConsumerGroupRecord]:
        """The consumer groups as they were saved, as far as is known here."""
        return self._view.consumer_groups

    @property
    def consumer_group_bytes(self) -> int:
        """What all consumer groups take as they were saved."""
        return self._view.consumer_group_bytes

    @property
    def sinks(self) -> Mapping[str, SinkRecord]:
        """All sinks, by name."""
        return self._view.sinks

    @property
    def transactions(self) -> TransactionView:
        """All transactional ids, as far as is known here."""
        return self._view.transactions

    @property
    def coordinator_term(self) -> int:
        """The term in which this node leads `__cluster`; -1: it does not, or is not ready."""
        return -1 if self._parts is None else self._parts.control_term()

    def ask_barrier(self, timeout_ms: int, done: Callable[[bool], None]) -> None:
        """Do as `barrier` does; `done` is called once, maybe at once."""
        self._running.barrier(timeout_ms, done)

    async def barrier(self, timeout_ms: int) -> bool:
        """Wait until all that `__cluster` had committed shows here; return whether it does.

        If this node coordinates consumer groups, no other one did when that was asked.
        """
        passed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(has_passed: bool) -> None:
            if not passed.done():
                passed.set_result(has_passed)

        self._running.barrier(timeout_ms, done)
        return await passed

    # -- start and stop -----------------------------------------------------------------------

    def advertise(self, host: str, port: int) -> None:
        """Clients reach this broker here: its listener has found a port."""
        self._address = host_port(host, port)

    @property
    def advertised(self) -> str:
        """`host:port` where clients reach this broker; empty: not known, or it is none."""
        return self._address

    def start(self, node: HostNode) -> None:
        """Take part: the node was started."""
        self._parts = Running(self, node, self._changed, self._environment)
        self._replicas = node.replicas
        self._parts.start()

    def stop(self) -> None:
        """Take part no more; what waits for an answer gets one. The node may be stopped then."""
        if self._parts is not None:
            self._parts.stop()

    @property
    def _running(self) -> Running:
        if self._parts is None:
            raise UnexpectedArgumentError("the broker was not started")
        return self._parts


def _tell(listeners: dict[int, Callable[[], None]]) -> None:
    for number in list(listeners):
        call = listeners.get(number)  # another one may have ended it
        if call is not None:
            call()
