"""A simulated machine whose groups come and go: real lifecycle, sync, replicas and storage.

Its connections are ordered, as TCP's are, and begin with introductions.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Protocol, TypeVar

from quorumlog.model.block import Buffer
from quorumlog.model.config import GroupConfig, NodeConfig
from quorumlog.model.errors import ConfigError, StorageError
from quorumlog.model.limits import Limits
from quorumlog.model.messages.base import Hello, Message
from quorumlog.model.messages.peer import Introduction, NodeMessage, PeerMessage
from quorumlog.node.bootstrap import boot_state, raft_config
from quorumlog.node.disk import Barrier, Submission, report_commit
from quorumlog.node.environment import Environment, WriteOwner
from quorumlog.node.group_catalog import GroupCatalog
from quorumlog.node.group_executor import GroupExecutor
from quorumlog.node.group_lifecycle import GroupLifecycle, LifecycleEnvironment
from quorumlog.node.group_sync import GroupSync, GroupView, SyncEnvironment
from quorumlog.node.groups import end_replica, reconfigure, view_of, write_owners
from quorumlog.node.liveness import NodeLiveness
from quorumlog.node.peer_handler import ConnectionEvents, PeerHandler, PeerHandlerCounters
from quorumlog.node.replica.replica import Replica
from quorumlog.raft.core import RaftCore
from quorumlog.sim.clock import EPOCH_MS
from quorumlog.sim.disk import SimulatedCrash, SimulatedFileSystem
from quorumlog.sim.simulation_clock import SimulationClock
from quorumlog.storage.files.write_plans import WritePlan
from quorumlog.storage.log.store import GroupStore, OpenedGroup, open_group
from quorumlog.storage.metadata.group_files import GroupFiles
from quorumlog.wire.frame import Frame

T = TypeVar("T")
DIRECTORY = "/node"
DISK_US = (100, 1_500)
NONCE_BITS = 62


class GroupNetwork(Protocol):
    """What a node needs of the network."""

    clock: SimulationClock

    def carry(self, sender: str, receiver: str, message: Message, data: bytes) -> None:
        """Carry a message over the connection from one node to another, if it is open."""
        ...

    def peers_of(self, node_id: str) -> list[str]:
        """Return the nodes that a node is connected to."""
        ...


@dataclass(frozen=True, slots=True)
class _Open:
    """A group that is open."""

    opened: OpenedGroup
    replica: Replica
    executor: GroupExecutor


class GroupNode:
    """A machine with any number of groups. `took` counts the entries that were looked at."""

    def __init__(self, network: GroupNetwork, config: NodeConfig) -> None:
        self.network = network
        self.node_id = config.self_id
        self.config = config
        self.life = 0
        self.is_up = False
        self.why_stopped = ""
        self.replicas: dict[str, Replica] = {}
        self._random = Random(f"{network.clock.random.random()}{self.node_id}")  # noqa: S311
        self._open: dict[str, _Open] = {}
        self._handlers: dict[str, PeerHandler] = {}
        self._query_ms: int | None = None
        self.wipe()

    def wipe(self) -> None:
        """Put an empty disk into a machine that is down."""
        self.files = SimulatedFileSystem(self._random, now_ms=lambda: self.wall_ms)
        self.files.make_directory(DIRECTORY)

    @property
    def now_ms(self) -> int:
        """Milliseconds of its clock."""
        return self.network.clock.now_ms

    @property
    def wall_ms(self) -> int:
        """Milliseconds of the calendar's clock."""
        return EPOCH_MS + self.now_ms

    # -- its process ----------------------------------------------------------------------------

    def later(self, delay_us: int, action: Callable[[], object]) -> None:
        """Plan an action in this life of the process."""
        life = self.life

        def happen() -> None:
            if self.life == life and self.is_up:
                self.enter(action)

        self.network.clock.after_us(delay_us, happen)

    def enter(self, action: Callable[[], object]) -> None:
        """Run an action in this process."""
        try:
            action()
        except SimulatedCrash:
            self.stop(power=True)

    def run(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        client: object = None,
    ) -> None:
        """See `Executor`: as a thread would, a little later."""

        def happen() -> None:
            try:
                result = work()
            except Exception as error:
                failed(error)
                return
            done(result)

        self.later(self._random.randint(*DISK_US), happen)

    def start(self) -> None:
        """Start the process; it stays down, with the reason, if it cannot read its groups."""
        self.files.kill()
        self.is_up, self.life, self.why_stopped = True, self.life + 1, ""
        self.catalog = GroupCatalog(self.config)
        records = GroupFiles(self.files, DIRECTORY, self.files.remove_tree)
        self.lifecycle = GroupLifecycle(
            self.catalog, records, self, LifecycleEnvironment(self, lambda: self.wall_ms, self._due)
        )
        self.sync = GroupSync(
            self.lifecycle,
            SyncEnvironment(
                self,
                self,
                lambda: self.now_ms,
                self._query_at,
                partial(self._random.getrandbits, NONCE_BITS),
            ),
        )
        self.enter(lambda: self._open_all(records))

    def _open_all(self, records: GroupFiles) -> None:
        try:
            self.catalog.loaded(*records.load())
        except StorageError as error:
            self.stop(power=False, why=str(error))
            return
        for name, config in list(self.catalog.configs.items()):
            record = self.catalog.records[name]
            self._open_now(config, record.identity)
        self.sync.start()
        self.lifecycle.tick()

    def stop(self, *, power: bool, why: str = "") -> None:
        """End the process; with `power` the machine goes off, too."""
        self.is_up, self.life, self.why_stopped = False, self.life + 1, why
        self._query_ms = None
        self.replicas.clear()
        self._open.clear()
        self._handlers.clear()
        if power:
            self.files.power_loss()
        else:
            self.files.kill()

    def _due(self, wall_ms: int) -> None:
        self.later(max(0, wall_ms - self.wall_ms) * 1_000, self.lifecycle.tick)

    def _query_at(self, due_ms: int) -> None:
        if self._query_ms is not None and self._query_ms <= due_ms:
            return
        self._query_ms = due_ms

        def tick() -> None:
            if self._query_ms == due_ms:
                self._query_ms = None
                self.sync.tick()

        self.later(max(0, due_ms - self.now_ms) * 1_000, tick)

    # -- its replicas (see `ReplicaHost`) ---------------------------------------------------------

    def room_for(self, config: GroupConfig, being_made: int) -> str:
        """See `ReplicaHost`: there is always room."""
        return ""

    def open(
        self, config: GroupConfig, identity: bytes, done: Callable[[StorageError | None], None]
    ) -> None:
        """See `ReplicaHost`."""
        self.later(self._random.randint(*DISK_US), lambda: done(self._open_now(config, identity)))

    def _open_now(self, config: GroupConfig, identity: bytes) -> StorageError | None:
        limits, directory = self.config.limits, f"{DIRECTORY}/{config.group}"
        try:
            opened = open_group(self.files, directory, config, limits, self_id=self.node_id)
        except StorageError as error:
            return error
        executor = GroupExecutor(self)
        core = RaftCore(
            raft_config(config, self.config, opened, identity),
            boot_state(opened),
            self._random,
            self.now_ms,
        )
        replica = Replica(
            config, core, opened, self._environment(config.group, executor), limits, None
        )
        self.replicas[config.group] = replica
        self._open[config.group] = _Open(opened, replica, executor)
        replica.start()
        return None

    def _environment(self, name: str, executor: GroupExecutor) -> Environment:
        def tick(life: Replica) -> None:
            if self.replicas.get(name) is life:
                life.tick()

        def tick_made() -> None:
            if name in self.replicas:
                self.replicas[name].tick()

        def wake_at(due_ms: int) -> None:
            replica = self.replicas.get(name)
            delay_us = max(0, due_ms * 1_000 - self.network.clock.now_us)
            if replica is not None:
                self.later(delay_us, partial(tick, replica))
            else:  # it is being made
                self.later(delay_us, tick_made)

        return Environment(
            disk=_Disk(self),
            network=self,
            executor=executor,
            machines=executor,
            now_ms=lambda: self.now_ms,
            now_us=lambda: self.network.clock.now_us,
            wall_ms=lambda: self.wall_ms,
            hour_of_day=lambda: 0,
            defer=lambda action: self.later(0, action),
            wake_at=wake_at,
            broken=lambda reason: self.later(0, lambda: self.stop(power=False, why=reason)),
            nonce=partial(self._random.getrandbits, NONCE_BITS),
        )

    def close(self, name: str, done: Callable[[], None]) -> None:
        """See `ReplicaHost`."""
        found = self._open.pop(name, None)
        if found is None:
            done()
            return
        del self.replicas[name]
        end_replica(found.replica, "deleted")

        def close() -> None:
            found.replica.context.is_broken = True
            found.opened.close()
            done()

        environment = found.replica.context.environment
        owners, last = write_owners(found.replica), found.replica.log.settle()
        found.executor.end("deleted", lambda: environment.disk.end(owners, last, close))

    def change(self, config: GroupConfig) -> None:
        """See `ReplicaHost`."""
        if config.group in self.replicas:
            reconfigure(self.replicas[config.group], config)

    def identity_of(self, name: str) -> bytes:
        """See `ReplicaHost`."""
        replica = self.replicas.get(name)
        return b"" if replica is None else replica.core.identity

    def view(self, name: str) -> GroupView | None:
        """See `GroupViews`."""
        return view_of(self.replicas.get(name))

    def peers(self) -> list[str]:
        """See `GroupViews`."""
        return self.network.peers_of(self.node_id)

    # -- its connections --------------------------------------------------------------------------

    def send(
        self,
        peer_id: str,
        message: PeerMessage | NodeMessage,
        attachments: Sequence[Buffer] = (),
        *,
        bulk: bool = False,
    ) -> bool:
        """See `Network`."""
        data = b"".join(bytes(part) for part in attachments)
        self.network.carry(self.node_id, peer_id, message, data)
        return True

    def update_members(self, group: str, addresses: Mapping[str, str]) -> None:
        """See `Network`: peers are introduced to a group that has come, or has other members."""
        for peer in self.peers():
            self.introduce(peer, [group])

    def introduce(self, peer: str, groups: Sequence[str]) -> None:
        """Say which groups are here, and of which identity."""
        for name in groups:
            replica = self.replicas.get(name)
            if replica is not None:
                core = replica.core
                known = [(name, core.membership.identity, core.membership_index)]
                address = replica.placement.own_address
                names = {"local_id": self.node_id, "remote_id": peer}
                self.send(peer, Introduction(**names, address=address, groups=known))

    def connected(self, peer: str) -> None:
        """There is a new connection, in both directions."""
        hello = Hello(cluster="sim", node_id=peer, role="control", address="")
        events = ConnectionEvents(groups_received=self.sync.received)
        liveness = NodeLiveness(
            self.node_id, {}, self, lambda: self.now_ms, lambda due_ms: None, run=1, groups=[]
        )
        self._handlers[peer] = PeerHandler(
            self.node_id, self.replicas, liveness, hello, PeerHandlerCounters(), events
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


class _Disk:
    """Carries out the waiting writes of one group a little later, with one fsync."""

    def __init__(self, node: GroupNode) -> None:
        self._node = node
        self._store = GroupStore()
        self._queue: deque[Submission] = deque()
        self._owners: dict[WriteOwner, None] = {}
        self._is_busy = self._has_failed = False
        self.queued_bytes = 0

    def submit(self, owner: WriteOwner, token: int | None, plan: WritePlan) -> None:
        """See `Disk`."""
        self._owners[owner] = None
        if not self._has_failed:
            self.queued_bytes += plan.size_bytes
            self._queue.append(Submission(owner, token, plan))
            self._begin()

    def end(self, owners: Sequence[WriteOwner], last: WritePlan, done: Callable[[], None]) -> None:
        """See `Disk`."""
        self.submit(Barrier(done), None, last)

    def _begin(self) -> None:
        if not self._is_busy and self._queue:
            self._is_busy = True
            self._node.run(lambda: None, lambda _: self._commit(), lambda error: None)

    def _commit(self) -> None:
        batch = [*self._queue]
        self._queue.clear()
        try:
            self._store.execute([item.plan for item in batch], sync=True)
        except StorageError as error:
            self._has_failed = True
            for owner in list(self._owners):
                owner.write_failed(error)
            self._node.stop(power=False, why=str(error))
            return
        self._is_busy = False
        self.queued_bytes -= sum(item.plan.size_bytes for item in batch)
        report_commit(batch)
        self._begin()


def node_config(node_id: str, limits: Limits) -> NodeConfig:
    """Return the configuration of a node that has no group of its own. Raises `ConfigError`."""
    if not node_id:
        raise ConfigError("a node has an id")
    return NodeConfig(
        self_id=node_id,
        store_base_dir=DIRECTORY,
        listen="127.0.0.1:7101",
        limits=limits,
        deleted_group_reserved_hours=0.001,
    )
