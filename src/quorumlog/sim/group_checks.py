"""The invariants of many groups on the same simulated nodes: each group has all of them.

A group is known by its identity: one that was made anew under the name of a deleted one is another.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from random import Random
from types import MappingProxyType

from msgspec.structs import replace

from quorumlog.model.codes import ResponseCode
from quorumlog.model.config import GroupConfig, NodeConfig
from quorumlog.model.errors import Outcome, error_for
from quorumlog.model.messages.client import AppendResponse
from quorumlog.model.messages.peer import PeerMessage
from quorumlog.node.replica.replica import Replica
from quorumlog.raft.core import RaftCore
from quorumlog.sim.client_requests import Append, Attempt
from quorumlog.sim.clock import Clock
from quorumlog.sim.disk import SimulatedFileSystem
from quorumlog.sim.finding import Finding
from quorumlog.sim.group_node import GroupNode
from quorumlog.sim.invariants import all_invariants
from quorumlog.sim.invariants.base import Invariant
from quorumlog.sim.operations import Operation
from quorumlog.sim.partition_batches import SentBatch
from quorumlog.sim.process import alarms_of
from quorumlog.sim.simulation_clock import SimulationClock
from quorumlog.sim.views import Remains
from quorumlog.storage.log.interface import Log
from quorumlog.topics.retention import RetentionRule

UNCHANGED_CHECKED = 0.01
"""Share of events after which a replica is checked although nothing of it has changed."""


class ReplicaOnNode:
    """One group's replica on one node, as invariants see a node; see `NodeView`."""

    def __init__(self, cluster: "CheckedGroup", node: GroupNode, group: GroupConfig) -> None:
        self.cluster = cluster
        self.node_id = node.node_id
        self.config: NodeConfig = replace(node.config, groups=[group], kafka_listen="")
        self.checked: object = None
        """What of it was seen at the last check."""
        self.checking: Replica | None = None
        """The replica, while it is being checked; it needs not be looked up then."""
        self._node = node
        self._incarnation = -1

    @property
    def is_up(self) -> bool:
        """Whether the group is open there."""
        return self._replica is not None

    @property
    def _replica(self) -> Replica | None:
        replica = self._node.replicas.get(self.cluster.name) if self._node.is_up else None
        is_its = replica is not None and replica.core.given_identity == self.cluster.identity
        return replica if is_its else None

    @property
    def running(self) -> Replica:
        """See `NodeView`."""
        replica = self.checking or self._replica
        if replica is None:
            raise Finding("no_error", f"{self.cluster.name} is not open on {self.node_id}")
        return replica

    @property
    def core(self) -> RaftCore:
        """See `NodeView`."""
        return self.running.core

    @property
    def log(self) -> Log:
        """See `NodeView`."""
        return self.running.log

    @property
    def life(self) -> int:
        """See `NodeView`: a group is opened once in a life of its process."""
        return self._node.life

    @property
    def incarnation(self) -> int:
        """See `NodeView`: a group keeps its directory."""
        if self.checking is not None or self.is_up:
            self._incarnation = self.core.config.incarnation
        return self._incarnation

    @property
    def clock(self) -> Clock:
        """See `NodeView`."""
        return self._node.clock

    @property
    def files(self) -> SimulatedFileSystem:
        """See `NodeView`."""
        return self._node.files

    @property
    def alarms(self) -> list[str]:
        """See `NodeView`."""
        replica = self.running
        return alarms_of(replica) if replica.counters.alarms else []

    @property
    def disk_waits_ms(self) -> int:
        """See `NodeView`."""
        return self._node.disk_waits_ms_of(self.running)

    def after_power_loss(self, random: Random, index: int = -1) -> Remains | None:
        """See `NodeView`. Where no bits were flipped, the data must be whole."""
        remains = self._node.remains(self.config.groups[0], random, index)
        if remains is None and not self._node.is_damaged:
            text = f"{self.node_id} could not open its data whole after a loss of power"
            raise Finding("promises", text)
        return remains


class CheckedGroup:
    """One group on all nodes, as invariants see a cluster and its clients."""

    has_hook = False
    attempts: list[Attempt] | None = None
    batches: Mapping[int, SentBatch] | None = None
    rules: Mapping[int, RetentionRule] = MappingProxyType({})
    starts_asked: AbstractSet[tuple[int, int]] = frozenset()

    def __init__(
        self,
        name: str,
        identity: bytes,
        group: GroupConfig,
        nodes: Mapping[str, GroupNode],
        clock: SimulationClock,
        random: Random,
    ) -> None:
        self.name = name
        self.kind = group.kind
        self.identity = identity
        self.clock = clock
        self.nodes = {node_id: ReplicaOnNode(self, node, group) for node_id, node in nodes.items()}
        self.damaged_machines: set[str] = set()
        self.asked: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.operations: list[Operation] = []
        self.invariants: list[Invariant] = all_invariants(random)
        self._overriding: dict[str, list[Invariant]] = {}
        """By method: the invariants that have one of their own."""
        self.appended = 0
        self._floor = -1

    @property
    def clients(self) -> "CheckedGroup":
        """See `ClusterView`."""
        return self

    def members(self) -> list[ReplicaOnNode]:
        """See `ClusterView`."""
        return list(self.nodes.values())

    def appending(self, bodies: list[bytes]) -> Callable[[AppendResponse, Sequence[bytes]], None]:
        """A client appends these, each of which is unique; return what takes the answer."""
        self.asked.update(bodies)
        append = Append(bodies, self._floor)

        def answered(response: AppendResponse, results: Sequence[bytes]) -> None:
            if response.code == ResponseCode.SUCCESS:
                append.first_index = response.first_index
                self.check(lambda invariant: invariant.acknowledged(append))
                self._floor = max(self._floor, response.last_index)
                self.appended += len(bodies)
            elif error_for(response.code, "").outcome is Outcome.DID_NOT_HAPPEN:
                self.refused.update(bodies)

        return answered

    def check(self, ask: Callable[[Invariant], None], method: str = "") -> None:
        """Ask all invariants. Raises `Finding`, which says of which group.

        `method`: what is called, if it is called so often that those without are left out.
        """
        try:
            for invariant in self._with(method) if method else self.invariants:
                ask(invariant)
        except Finding as found:
            text = f"group {self.name} {self.identity.hex()[:6]}: {found.text}"
            raise Finding(found.invariant, text) from found

    def _with(self, method: str) -> list[Invariant]:
        found = self._overriding.get(method)
        if found is None:
            plain = getattr(Invariant, method)
            found = [one for one in self.invariants if getattr(type(one), method) is not plain]
            self._overriding[method] = found
        return found


class GroupChecks:
    """The groups of a run, by identity. `prepare` is called with each that is seen first."""

    def __init__(
        self,
        nodes: Mapping[str, GroupNode],
        clock: SimulationClock,
        seed: int,
        prepare: Callable[[CheckedGroup], None] = lambda group: None,
    ) -> None:
        self._nodes = nodes
        self._clock = clock
        self._prepare = prepare
        # a random source of its own: what is checked must not change what happens
        self._random = Random(f"checks {seed}")  # noqa: S311  (nothing secret)
        self._groups: dict[bytes, CheckedGroup] = {}
        self._views: dict[tuple[str, str], tuple[Replica, bytes, ReplicaOnNode]] = {}
        """By node and group: its replica when it was seen last, its identity, and its view."""

    @property
    def appended(self) -> int:
        """How many values were acknowledged."""
        return sum(group.appended for group in self._groups.values())

    def group_of(self, replica: Replica) -> CheckedGroup:
        """Return the group that a replica belongs to."""
        identity, config = replica.core.given_identity, replica.config
        if identity not in self._groups:
            self._groups[identity] = CheckedGroup(
                config.group, identity, config, self._nodes, self._clock, self._random
            )
            self._prepare(self._groups[identity])
        return self._groups[identity]

    def _view_of(self, node: GroupNode, replica: Replica) -> ReplicaOnNode:
        key = node.node_id, replica.config.group
        known, identity = self._views.get(key), replica.core.given_identity
        if known is None or known[0] is not replica or known[1] != identity:
            view = self.group_of(replica).nodes[node.node_id]
            known = self._views[key] = replica, identity, view
        return known[2]

    def sent(self, node: GroupNode, parts: Sequence[PeerMessage]) -> None:
        """A node sends messages of its groups. Raises `Finding`."""
        for part in parts:
            replica = node.replicas.get(part.group)
            if replica is not None:
                view = self._view_of(node, replica)
                view.checking = replica
                view.cluster.check(lambda one: one.sent(view, part), "sent")  # noqa: B023
                view.checking = None

    def after_event(self, node: GroupNode) -> None:
        """Something happened on a node. Raises `Finding`."""
        for replica in list(node.replicas.values()) if node.is_up else ():
            if replica.is_broken:
                continue
            view = self._view_of(node, replica)
            core, log = replica.core, replica.log
            state = (
                *(node.life, core.term, core.role, core.membership_index, core.committed_index),
                *(core.durable_index, log.end_index, log.end_chain_crc),
            )
            if state != view.checked or self._random.random() < UNCHANGED_CHECKED:
                view.checked, view.checking = state, replica
                view.cluster.check(lambda one: one.after_event(view), "after_event")  # noqa: B023
                view.checking = None

    def ended(self, identities: set[bytes]) -> None:
        """Nothing happens any more, and these groups are left. Raises `Finding`."""
        for identity in identities:
            group = self._groups[identity]
            group.check(lambda invariant: invariant.ended(group))  # noqa: B023
