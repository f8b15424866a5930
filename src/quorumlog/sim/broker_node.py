"""A simulated machine with a broker: real controller, coordinators and handlers of requests.

Its network, disk, time and chance are simulated. Requests of clients are given to their handlers as
they are once they were decoded, but for Produce, which is given as bytes.
"""

import logging
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple, TypeAlias

from quorumlog.broker.broker import Broker
from quorumlog.broker.environment import BrokerEnvironment
from quorumlog.kafka.context import RequestContext, Services
from quorumlog.kafka.counters import KafkaCounters
from quorumlog.kafka.frames import ReceivedFrame
from quorumlog.kafka.handlers.offset_commit import OffsetCommit
from quorumlog.kafka.handlers.produce import start_produce
from quorumlog.kafka.handlers.registry import HANDLERS
from quorumlog.kafka.pending_request import PendingRequest
from quorumlog.kafka.requests import ApiKey, RequestHeader, read_header
from quorumlog.kafka.services import ServiceEnvironment, broker_changed, make_services
from quorumlog.machine.base import StateMachine
from quorumlog.machine.cluster.machine import ClusterMachine
from quorumlog.model.config import NodeConfig
from quorumlog.model.errors import RequestError
from quorumlog.model.hooks import RoleChange
from quorumlog.model.messages.cluster import ClusterMessage
from quorumlog.node.group_lifecycle import GroupLifecycle
from quorumlog.service.kafka_clients import allocator_of
from quorumlog.sim.event_loop import SimulatedLoop
from quorumlog.sim.group_node import GroupNetwork, GroupNode
from quorumlog.sim.process import SimulatedTimer
from quorumlog.sim.workers import SimulatedExecutor

logger = logging.getLogger(__name__)

CLIENT_ADDRESS: Final = "127.0.0.1:1"
UNIQUE_BITS: Final = 64
ANSWER_BYTES_MAX: Final = 1 << 20
Answer: TypeAlias = Callable[[Any], None]
"""Called with the answer of a handler; with None if the connection ends instead."""


class PlaceOfPartition(NamedTuple):
    """Where a partition is, as a broker knows it: its leader (a node), group and channel."""

    leader: str
    group: str
    channel: int


class _Hosting:
    """See `BrokerHosting`."""

    def __init__(self, node: GroupNode) -> None:
        self._node = node
        self.cluster_received: Callable[[ClusterMessage, memoryview], None] = lambda *_: None
        self.role_changed: Callable[[RoleChange], None] = lambda change: None
        self.peer_reached: Callable[[str], None] = lambda peer_id: None
        self.peer_silent: Callable[[str], None] = lambda peer_id: None

    @property
    def lifecycle(self) -> GroupLifecycle:
        """See `BrokerHosting`."""
        return self._node.lifecycle


class _Executor(SimulatedExecutor):
    def forget(self, client: object) -> None:
        """See `RequestExecutor`: no client of a simulation leaves work behind."""


class BrokerNode(GroupNode):
    """A machine with a broker. What follows a start has another event loop, broker and services."""

    def __init__(self, network: GroupNetwork, config: NodeConfig) -> None:
        self.loop = SimulatedLoop(lambda delay_us, call: None, lambda: 0)
        self.hosting = _Hosting(self)
        self._chance = Random(f"{config.self_id} chooses ids")  # noqa: S311  (nothing secret)
        super().__init__(network, config)

    # -- its process ------------------------------------------------------------------------------

    def enter(self, action: Callable[[], object]) -> None:
        """See `SimulatedProcess`: its loop is the one that runs meanwhile."""
        self.loop.run(partial(super().enter, action))

    def start(self) -> None:
        """See `GroupNode`."""
        self._chance = self._random_of_life()
        self.loop = SimulatedLoop(self._planned, lambda: self.clock.now_us)
        self.hosting = _Hosting(self)
        self.broker = Broker(
            self.config,
            BrokerEnvironment(
                lambda: self.clock.now_ms, lambda: self.clock.wall_ms, self._chance.randbytes
            ),
        )
        super().start()

    def _planned(self, delay_us: int, call: Callable[[], None]) -> None:
        """Plan a call of the loop, which is never made before the node's clock shows its time."""
        clock = self.clock
        due_us = clock.now_us + delay_us

        def fire() -> None:
            if delay_us and clock.now_us < due_us:  # it ran slower meanwhile, or stood still
                self.later(clock.simulation_delay_us(due_us), fire)
            else:
                call()

        self.later(clock.simulation_delay_us(due_us) if delay_us else 0, fire)

    def _start(self) -> None:
        super()._start()
        if not self.is_up:
            return
        self.services = self._make_services()
        self.broker.when_changed(lambda: broker_changed(self.services))
        self.broker.start(self)

    def _make_services(self) -> Services:
        environment = ServiceEnvironment(
            _Executor(self),
            self._turn_of_life.at_end,
            lambda: self.clock.now_us / 1e6,
            lambda: self.clock.wall_ms,
            lambda: f"{self._chance.getrandbits(UNIQUE_BITS):016x}",
        )
        return make_services(
            self.broker,
            self.config,
            allocator_of(self.broker),
            KafkaCounters(),
            environment,
            logger,
            lambda: ANSWER_BYTES_MAX,
        )

    def _ends(self, *, power: bool, closes: bool) -> None:
        self.loop.close()
        super()._ends(power=power, closes=closes)

    # -- what a broker needs of its node (see `HostNode`) ------------------------------------------

    @property
    def own_address(self) -> str:
        """See `HostNode`."""
        return self.config.listen_address

    def new_timer(self) -> SimulatedTimer:
        """See `HostNode`."""
        return SimulatedTimer(self)

    def _role_changed(self, change: RoleChange) -> None:
        self.hosting.role_changed(change)

    def _applied(self, machine: StateMachine) -> None:
        if isinstance(machine, ClusterMachine):
            for attached in self.broker.attachments.values():
                attached.applied(machine)

    def _cluster_received(self, message: ClusterMessage, attachment: memoryview) -> None:
        self.hosting.cluster_received(message, attachment)

    def connected(self, peer: str) -> None:
        """See `GroupNode`."""
        super().connected(peer)
        self.hosting.peer_reached(peer)

    def disconnected(self, peer: str) -> None:
        """See `GroupNode`."""
        if self.is_up:
            self.enter(lambda: self.hosting.peer_silent(peer))

    # -- requests of clients -----------------------------------------------------------------------

    def handle(self, key: int, version: int, request: Any, answer: Answer) -> None:
        """Have a request answered. Until the broker knows all topics its client waits in vain."""
        if not self.broker.is_complete:
            answer(None)
            return
        header = RequestHeader(key, version, 0, "simulated", 1)
        context = RequestContext(self.services, header, CLIENT_ADDRESS, self)
        if key == ApiKey.OFFSET_COMMIT:
            OffsetCommit(context, request, answer, _fail).start()
            return
        task = self.loop.create_task(HANDLERS[key](context, request))  # type: ignore[arg-type]

        def done(ended: Any) -> None:
            try:
                found = ended.result()
            except RequestError:
                found = None
            answer(found)

        task.add_done_callback(done)

    def produce(self, data: bytes, answer: Answer) -> None:
        """Have a Produce answered, with the bytes of its answer."""
        if not self.broker.is_complete:
            answer(None)
            return
        frame = ReceivedFrame(memoryview(bytearray(data)), 0)
        context = RequestContext(self.services, read_header(frame), CLIENT_ADDRESS, self)
        start_produce(PendingRequest(_ProduceOwner(answer), frame, context))

    def place_of(self, topic: str, number: int) -> PlaceOfPartition | None:
        """Return where a partition is that can be produced to, as far as is known here."""
        found = self.broker.topics.get(topic)
        if found is None or number >= len(found.partitions) or not found.partitions[number].is_open:
            return None
        partition = found.partitions[number]
        leader = self.broker.registered.get(self.broker.leader_of(partition.group).broker_id)
        if leader is None:
            return None
        return PlaceOfPartition(leader.node_id, partition.group, partition.channel)


def _fail(error: Exception) -> None:
    """Handling a request has raised an exception: a handler must not."""
    raise error


class _ProduceOwner:
    """See `pending_request.Owner`: a connection with one request."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def answered(self, request: PendingRequest) -> None:
        """See `Owner`."""
        self._answer(b"".join(bytes(one) for one in request.answer or ()))

    def failed(self, request: PendingRequest, error: Exception) -> None:
        """See `Owner`: a handler must not fail."""
        raise error

    def changed(self) -> None:
        """See `Owner`: there is no other request."""

    @staticmethod
    def bytes_left() -> None:
        """See `Owner`: there are no quotas."""

    def close_connection(self, reason: str) -> None:
        """See `Owner`."""
        self._answer(None)
