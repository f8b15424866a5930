"""A simulated machine whose groups come and go: real lifecycle, sync, replicas and storage.

Its groups share one disk worker and journal, one turn and the heartbeats between nodes, as those of
a real node do. Its connections are ordered, as TCP's are, and begin with introductions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

from quorumlog.machine.base import StateMachine
from quorumlog.model.config import GroupConfig, NodeConfig
from quorumlog.model.errors import StorageError
from quorumlog.model.hooks import RoleChange
from quorumlog.model.limits import Limits
from quorumlog.model.messages.base import Hello, Message
from quorumlog.model.messages.cluster import ClusterMessage
from quorumlog.model.messages.peer import Introduction
from quorumlog.node.bootstrap import boot_state, raft_config
from quorumlog.node.deleted_groups import LifecycleEnvironment
from quorumlog.node.environment import Environment
from quorumlog.node.group_catalog import GroupCatalog
from quorumlog.node.group_executor import GroupExecutor
from quorumlog.node.group_lifecycle import GroupLifecycle
from quorumlog.node.group_sync import GroupSync, SyncEnvironment
from quorumlog.node.groups import HostedReplicas, close_replica, reconfigure
from quorumlog.node.liveness import NodeLiveness
from quorumlog.node.machines import open_machine
from quorumlog.node.peer_handler import ConnectionEvents, PeerHandler, PeerHandlerCounters
from quorumlog.node.replica.replica import Replica
from quorumlog.node.turn import Turn
from quorumlog.raft.core import RaftCore
from quorumlog.sim.links import SimulatedLinks, Wires
from quorumlog.sim.process import DIRECTORY, SimulatedProcess, SimulatedTimer
from quorumlog.sim.simulation_clock import SimulationClock
from quorumlog.sim.workers import SimulatedDiskWorker
from quorumlog.storage.journal.writer import JournalLimits
from quorumlog.storage.log.store import OpenedGroup
from quorumlog.storage.metadata.group_files import GroupFiles
from quorumlog.wire.frame import Frame

JOURNAL = JournalLimits(
    segment_bytes=16_384,
    segments_max=3,
    commit_bytes_max=8_192,
    group_bytes_max=2_048,
    group_wanted_min=1,
    wanted_min=1,
    wanted_again=64,
)
"""So small that its segments are used again and again. It takes two groups, as in a real node."""


class GroupNetwork(Wires, Protocol):
    """What a node needs of the network."""

    clock: SimulationClock

    def peers_of(self, node_id: str) -> list[str]:
        """Return the nodes that a node is connected to."""
        ...

    def touch(self, node: "GroupNode") -> None:
        """Something happens in a node: it is to be checked after the present event."""
        ...


@dataclass(frozen=True, slots=True)
class _Hosted:
    """A group that is open."""

    opened: OpenedGroup
    replica: Replica
    executor: GroupExecutor
    timer: SimulatedTimer


class GroupNode(SimulatedProcess, HostedReplicas):
    """A machine with any number of groups."""

    def __init__(self, network: GroupNetwork, config: NodeConfig) -> None:
        self.network = network
        HostedReplicas.__init__(self, {})
        self._hosted: dict[str, _Hosted] = {}
        self.is_damaged = False
        """Whether bits of its files were flipped."""
        self._is_up = False
        self._handlers: dict[str, PeerHandler] = {}
        random = Random(f"{network.clock.random.random()}{config.self_id}")  # noqa: S311
        super().__init__(config, network.clock, random)

    @property
    def is_up(self) -> bool:
        """Whether the process runs."""
        return self._is_up

    def _touched(self) -> None:
        self.network.touch(self)

    # -- its process ----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process; it stays down, with the reason, if it cannot open its groups."""
        self.files.kill()
        self._is_up, self.why_stopped = True, ""
        self.enter(self._start)

    def _start(self) -> None:
        turn = self._turn_of_life = Turn(lambda action: self.later(0, action))
        self.catalog = GroupCatalog(self.config)
        records = GroupFiles(self.files, DIRECTORY, self.files.remove_tree)
        due, query, beat = SimulatedTimer(self), SimulatedTimer(self), SimulatedTimer(self)
        self.links = SimulatedLinks(
            self, self.network, self.config.limits, self._introduce_to_peers
        )
        self.liveness = self._make_liveness(beat)
        self._environment = environment = self._make_environment(
            turn,
            SimulatedDiskWorker(self, turn, JOURNAL, turn.at_end),
            self.links,
            self.liveness,
            lambda deadline_ms: None,
            role_changed=self._role_changed,
        )
        self.lifecycle = GroupLifecycle(
            self.catalog,
            records,
            self,
            LifecycleEnvironment(
                environment.executor,
                environment.wall_ms,
                lambda wall_ms: due.wake_at(self.clock.now_ms + wall_ms - self.clock.wall_ms),
            ),
        )
        self.sync = GroupSync(
            self.lifecycle,
            SyncEnvironment(self.links, self, environment.now_ms, query.wake_at, environment.nonce),
        )
        due.tick, query.tick = self.lifecycle.tick, self.sync.tick
        try:
            found = records.load(self.clock.wall_ms)
            self._settle()
            found = records.finish(found)
            for reason in (*found.unreadable.values(), *found.doubtful.values()):
                raise StorageError(reason)  # until somebody has mended it, or it can be read again
            self.lifecycle.loaded(found)
            for name, config in list(self.catalog.configs.items()):
                record = self.catalog.records.get(name)
                self._open(config, b"" if record is None else record.identity)
        except StorageError as error:
            self.stop(power=False, why=str(error))
            return
        self._groups_changed()
        for replica in self.replicas.values():
            replica.start()
        self.liveness.start()
        self.sync.start()
        self.lifecycle.tick()

    def _make_liveness(self, timer: SimulatedTimer) -> NodeLiveness:
        liveness = NodeLiveness(
            self.node_id,
            self.replicas,
            self.links,
            lambda: self.clock.now_ms,
            timer.wake_at,
            run=self.life + 1,
            groups=[],
        )
        timer.tick = liveness.tick
        return liveness

    def _ends(self, *, power: bool, closes: bool) -> None:
        self._is_up = False
        self.replicas.clear()
        self._hosted.clear()
        self._handlers.clear()

    # -- what a broker on it hears of (see `broker_node`) -----------------------------------------

    def _role_changed(self, change: RoleChange) -> None:
        """A replica has another role."""

    def _applied(self, machine: StateMachine) -> None:
        """A state machine has applied entries, or loaded a snapshot."""

    def _cluster_received(self, message: ClusterMessage, attachment: memoryview) -> None:
        """Another broker has sent something."""

    def disconnected(self, peer: str) -> None:
        """The connection to another node has ended."""

    # -- its replicas (see `ReplicaHost`) ---------------------------------------------------------

    def room_for(self, config: GroupConfig, being_made: int) -> str:
        """See `ReplicaHost`: there is always room."""
        return ""

    def open(
        self, config: GroupConfig, identity: bytes, done: Callable[[StorageError | None], None]
    ) -> None:
        """See `ReplicaHost`. If it fails an operator starts the process again."""

        def open_it() -> None:
            try:
                self._open(config, identity)
            except StorageError as error:
                done(error)
                self.broken(f"group {config.group}: {error}")
                return
            self._groups_changed()
            self.replicas[config.group].start()
            done(None)

        self.later(self.disk_us(), open_it)

    def _open(self, config: GroupConfig, identity: bytes) -> None:
        """Open a group and make its replica. Raises `StorageError`."""
        opened = self._open_group(config)
        timer, executor = SimulatedTimer(self), GroupExecutor(self._environment.executor)
        environment: Environment = replace(
            self._environment,
            executor=executor,
            machines=executor,
            wake_at=timer.wake_at,
            applied=self._applied,
        )
        raft = raft_config(config, self.config, opened, identity)
        core = RaftCore(raft, boot_state(opened), self._random, self.clock.now_ms)
        machine = open_machine(config, "/nowhere")
        replica = Replica(config, core, opened, environment, self.config.limits, machine)
        timer.tick = replica.tick
        self._hosted[config.group] = _Hosted(opened, replica, executor, timer)
        self.replicas[config.group] = replica

    def _groups_changed(self) -> None:
        self.liveness.set_timing(self.catalog.configs.values())

    def close(self, name: str, done: Callable[[], None]) -> None:
        """See `ReplicaHost`."""
        found = self._hosted.pop(name, None)
        if found is None:
            done()
            return
        del self.replicas[name]

        def closed() -> None:
            found.timer.end()
            found.opened.close()
            self._groups_changed()
            done()

        close_replica(found.replica, [found.executor], "deleted", closed)

    def change(self, config: GroupConfig) -> None:
        """See `ReplicaHost`."""
        if config.group in self.replicas:
            reconfigure(self.replicas[config.group], config)
        self._groups_changed()

    def why_not_open(self, name: str) -> str:
        """See `ReplicaHost`: its process ends with it."""
        return ""

    def keeps_failed(self, name: str, reason: str) -> None:
        """See `ReplicaHost`: its process ends with it."""

    def peers(self) -> list[str]:
        """See `GroupViews`."""
        return self.network.peers_of(self.node_id)

    # -- its connections --------------------------------------------------------------------------

    def _introduce_to_peers(self, group: str) -> None:
        """A group has come, or has other members."""
        for peer in self.peers():
            self.introduce(peer, [group])

    def introduce(self, peer: str, groups: Sequence[str]) -> None:
        """Say which groups are here, and of which identity."""
        for name in groups:
            replica = self.replicas.get(name)
            if replica is not None and replica.core.membership.member(peer) is not None:
                core = replica.core
                known = [(name, core.membership.identity, core.membership_index)]
                address = replica.placement.own_address
                names = {"local_id": self.node_id, "remote_id": peer}
                self.links.send(peer, Introduction(**names, address=address, groups=known))

    def connected(self, peer: str) -> None:
        """There is a new connection, in both directions."""
        hello = Hello(cluster="sim", node_id=peer, role="control", address="")
        events = ConnectionEvents(
            groups_received=self.sync.received, cluster_received=self._cluster_received
        )
        self._handlers[peer] = PeerHandler(
            self.node_id, self.replicas, self.liveness, hello, PeerHandlerCounters(), events
        )
        self.introduce(peer, list(self.replicas))
        for replica in list(self.replicas.values()):
            replica.peer_connected(peer)
        self.sync.peer_connected()

    def receive(self, peer: str, message: Message, data: bytes) -> None:
        """Take a message that came over a connection."""
        handler = self._handlers.get(peer)
        if handler is not None:
            frame = Frame(0, message, memoryview(bytearray(data)))
            handler.frame_received(_Answers(), frame)  # type: ignore[arg-type]


class _Answers:
    """Where refusals go: nobody reads them."""

    def send(self, message: Message, **_: object) -> bool:
        """See `Connection`."""
        return True


def node_config(node_id: str, address: str, limits: Limits) -> NodeConfig:
    """Return the configuration of a node that has no group of its own. Raises `ConfigError`."""
    return NodeConfig(
        self_id=node_id,
        store_base_dir=DIRECTORY,
        listen=address,
        limits=limits,
        deleted_group_reserved_hours=0.001,
    )
