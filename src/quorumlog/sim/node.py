"""One simulated machine: the real replica, core and storage, behind simulated doors."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from quorumlog.model.block import Buffer
from quorumlog.model.config import GroupConfig, NodeConfig
from quorumlog.model.errors import CorruptionError, StorageError
from quorumlog.model.message import NodeMessage, PeerMessage
from quorumlog.node.beats import Beats
from quorumlog.node.boot import boot_state, raft_config
from quorumlog.node.doors import Doors, WriteOwner
from quorumlog.node.replica import Replica
from quorumlog.raft.core import RaftCore
from quorumlog.sim.disk import SimulatedFileSystem
from quorumlog.storage.base import WritePlan
from quorumlog.storage.store import GroupStore, OpenedGroup, open_group

if TYPE_CHECKING:
    from quorumlog.sim.cluster import SimulatedCluster

T = TypeVar("T")


class _Disk:
    """Carries out all that waits as one group commit, a little later."""

    def __init__(self, node: "SimulatedNode") -> None:
        self._node = node
        self._life = node.life
        self._store = GroupStore()
        self._queue: deque[tuple[WriteOwner, int | None, WritePlan]] = deque()
        self._owners: dict[WriteOwner, None] = {}
        self._busy = False
        self._failed = False
        self.queued_bytes = 0

    def submit(self, owner: WriteOwner, token: int | None, plan: WritePlan) -> None:
        """See `Disk`."""
        self._owners[owner] = None
        if not self._failed:
            self.queued_bytes += plan.size_bytes
            self._queue.append((owner, token, plan))
            self._begin()

    def _begin(self) -> None:
        if not self._busy and self._queue:
            self._busy = True
            self._node.later(self._node.cluster.disk_us(), self._commit)

    def _commit(self) -> None:
        batch = list(self._queue)
        self._queue.clear()
        try:
            self._store.execute([plan for _, _, plan in batch], sync=True)
        except StorageError as error:
            self._failed = True
            for owner in list(self._owners):
                owner.write_failed(error)
            self._node.broken(str(error))
            return
        self._busy = False
        owners: dict[WriteOwner, None] = {}
        for owner, token, plan in batch:
            self.queued_bytes -= plan.size_bytes
            plan.completed()
            owner.written(token, plan)
            owners[owner] = None
        for owner in owners:
            owner.writes_completed()
        self._begin()


class _Background:
    """Runs work a little later, as a thread would."""

    def __init__(self, node: "SimulatedNode") -> None:
        self._node = node

    def run(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """See `Background`."""

        def happen() -> None:
            try:
                result = work()
            except Exception as error:
                failed(error)
                return
            done(result)

        self._node.later(self._node.cluster.disk_us(), happen)


class _Network:
    """Sends through the cluster's network."""

    def __init__(self, node: "SimulatedNode") -> None:
        self._node = node

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
        self._node.cluster.carry(self._node.node_id, peer_id, message, data)
        return True

    def meet(self, group: str, addresses: Mapping[str, str]) -> None:
        """See `Network`: a simulated network reaches everyone."""


class _Nobody:
    def append_answered(self, group: str, seconds: float, entries: int, size_bytes: int) -> None:
        """See `Observer`."""


class SimulatedNode:
    """A machine that can be stopped and started; its disk outlives it."""

    def __init__(self, cluster: "SimulatedCluster", node_id: str, config: NodeConfig) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.config = config
        self.life = 0
        self.files = SimulatedFileSystem(cluster.world.random, now_ms=lambda: cluster.world.now_ms)
        self.files.make_directory("/node")
        self.replica: Replica | None = None
        self.beats: Beats | None = None
        self.why_stopped = ""
        self._opened: OpenedGroup | None = None
        self._wake_us: int | None = None

    @property
    def is_up(self) -> bool:
        """Whether the process runs."""
        return self.replica is not None

    def later(self, delay_us: int, action: Callable[[], None]) -> None:
        """Have something happen in this life of the process, or not at all."""
        life = self.life

        def happen() -> None:
            if self.life == life and self.is_up:
                action()

        self.cluster.world.after_us(delay_us, happen)

    def start(self) -> None:
        """Open the data and take part; what cannot be opened stays down, with the reason."""
        group = self.config.groups[0]
        try:
            opened = open_group(
                self.files, "/node/g", group, self.config.limits, self_id=self.node_id
            )
        except CorruptionError as error:
            self.why_stopped = str(error)
            return
        self._opened = opened
        self.beats = self._make_beats()
        self.replica = self._make_replica(group, opened, self.beats)
        self._replicas[group.group] = self.replica
        self.replica.start()
        self.beats.start()

    def _make_beats(self) -> Beats:
        world = self.cluster.world
        self._replicas: dict[str, Replica] = {}
        return Beats(
            self.node_id,
            self._replicas,
            _Network(self),
            lambda: world.now_ms,
            self._wake_beats_at,
            run=self.life + 1,
            groups=self.config.groups,
        )

    def _wake_beats_at(self, deadline_ms: int) -> None:
        beats = self.beats
        delay_us = max(0, deadline_ms * 1_000 - self.cluster.world.now_us)
        self.later(delay_us, lambda: None if beats is None else beats.tick())

    def receive(self, message: PeerMessage | NodeMessage, attachment: memoryview) -> None:
        """Take a message of another node."""
        if isinstance(message, NodeMessage):
            if self.beats is not None:
                self.beats.received(message)
        elif self.replica is not None and not self.replica.broken:
            self.replica.receive(message, attachment)

    def _make_replica(self, group: GroupConfig, opened: OpenedGroup, beats: Beats) -> Replica:
        world = self.cluster.world
        config = raft_config(group, self.config, opened.incarnation)
        core = RaftCore(config, boot_state(opened), world.random, world.now_ms)
        doors = Doors(
            disk=_Disk(self),
            network=_Network(self),
            background=_Background(self),
            observer=_Nobody(),
            now_ms=lambda: world.now_ms,
            now_us=lambda: world.now_us,
            wall_ms=lambda: world.now_ms,
            hour_of_day=lambda: 12,
            defer=lambda action: self.later(0, action),
            wake_at=self._wake_at,
            broken=self.broken,
            beats=beats,
        )
        return Replica(group, core, opened, doors, self.config.limits)

    def _wake_at(self, deadline_ms: int) -> None:
        deadline_us = max(deadline_ms * 1_000, self.cluster.world.now_us)
        if self._wake_us is not None and self._wake_us <= deadline_us:
            return
        self._wake_us = deadline_us

        def tick() -> None:
            if self._wake_us == deadline_us and self.replica is not None:
                self._wake_us = None
                self.replica.tick()

        self.later(deadline_us - self.cluster.world.now_us, tick)

    def broken(self, reason: str) -> None:
        """The replica must not go on: the process ends, and an operator starts it again."""
        self.why_stopped = reason
        self.later(0, lambda: self.stop(power=False))

    def stop(self, *, power: bool) -> None:
        """End the process; with `power` the machine goes off, too."""
        self.life += 1
        self.replica = self.beats = self._opened = None
        self._wake_us = None
        if power:
            self.files.power_loss()
        else:
            self.files.kill()
