"""One simulated machine: the real replica, core and storage in a simulated environment."""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from quorumlog.machine.base import StateMachine
from quorumlog.model.block import Block
from quorumlog.model.codes import WriteLevel
from quorumlog.model.config import GroupConfig, NodeConfig
from quorumlog.model.errors import InvariantViolation, StorageError
from quorumlog.model.hooks import AppendHook
from quorumlog.model.limits import Limits
from quorumlog.model.messages.client import AppendResponse
from quorumlog.model.messages.peer import HeartBeats, NodeMessage, PeerMessage, PeerTurn
from quorumlog.node.bootstrap import boot_state, raft_config
from quorumlog.node.environment import Environment
from quorumlog.node.liveness import NodeLiveness
from quorumlog.node.replica.proposals import Answer, Checked
from quorumlog.node.replica.replica import Replica
from quorumlog.node.turn import Turn
from quorumlog.raft.config import BootState, RaftConfig
from quorumlog.raft.core import RaftCore
from quorumlog.raft.events import Event
from quorumlog.sim.disk import SimulatedCrash
from quorumlog.sim.links import SimulatedLinks, Wires
from quorumlog.sim.machines import Machines
from quorumlog.sim.process import SimulatedProcess, SimulatedTimer, alarms_of
from quorumlog.sim.views import ClusterView, Remains
from quorumlog.sim.workers import SimulatedDiskWorker
from quorumlog.storage.journal.writer import JournalLimits
from quorumlog.storage.log.interface import Log
from quorumlog.storage.log.store import OpenedGroup
from quorumlog.topics.batch_index import SealLimits
from quorumlog.wire.frame import Frame
from quorumlog.wire.joined import split

HISTORIES_KEPT = 3
"""Earlier lives of a process whose histories are kept."""
JOURNAL = JournalLimits(
    segment_bytes=24_576,
    segments_max=3,
    groups_min=1,
    commit_bytes_max=8_192,
    group_bytes_max=1_024,
    group_wanted_min=1,
    wanted_min=1,
    wanted_again=64,
)
"""So small that it is full often; about half of all commits go through it."""


class Simulation(ClusterView, Wires, Protocol):
    """What a node needs of the cluster it belongs to. `touched`: the node of the present event."""

    touched: "SimulatedNode | None"
    append_hook: AppendHook | None
    seal_limits: SealLimits

    def ended(self, gone: "SimulatedNode") -> None:
        """Record that a process has ended while its machine goes on."""
        ...

    def make_core(
        self, config: RaftConfig, boot: BootState, random: Random, now_ms: int
    ) -> RaftCore:
        """Return the core of a node that starts."""
        ...

    def make_replica(
        self,
        group: GroupConfig,
        core: RaftCore,
        opened: OpenedGroup,
        environment: Environment,
        limits: Limits,
        machine: StateMachine | None,
    ) -> Replica:
        """Return the replica of a node that starts."""
        ...


class SimulatedNode(SimulatedProcess):
    """A machine with a replica of one group.

    `unanswered` counts the appends of clients to which this life of the process owes an answer.
    """

    def __init__(self, cluster: Simulation, config: NodeConfig) -> None:
        self.cluster = cluster
        self.incarnation = 0
        self.replica: Replica | None = None
        self.liveness: NodeLiveness | None = None
        self.histories: deque[list[tuple[int, str]]] = deque(maxlen=HISTORIES_KEPT)
        self.alarms: list[str] = []
        self.unanswered = 0
        self.checked: object = None
        """What of it was seen when invariants were checked last."""
        self.machines = Machines()
        self._alarms_seen = 0
        super().__init__(config, cluster.clock, cluster.clock.random)

    def wipe(self) -> None:
        """Put an empty disk into a machine that is down; its incarnation is not known yet."""
        super().wipe()
        self.incarnation = -1
        self.machines.wiped()

    # -- its state --------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Its own address as its configuration has it."""
        return self.config.groups[0].members[self.node_id]

    @property
    def is_up(self) -> bool:
        """Whether the process runs."""
        return self.replica is not None

    @property
    def running(self) -> Replica:
        """The replica of a process that runs."""
        if self.replica is None:
            raise InvariantViolation(f"{self.node_id} is down")
        return self.replica

    @property
    def core(self) -> RaftCore:
        """Its core, while it runs."""
        return self.running.core

    @property
    def log(self) -> Log:
        """Its log, while it runs."""
        return self.running.log

    # -- events ---------------------------------------------------------------------------

    def _touched(self) -> None:
        self.cluster.touched = self

    def ask(self, make_event: Callable[[int], Event]) -> None:
        """Ask the replica for a leadership transfer or a change; nobody waits for the answer."""

        def ask() -> None:
            if not self.running.is_broken:
                self.running.pending_requests.ask(make_event, lambda code, text, index: None)

        if self.is_up:
            self.enter(ask)

    def start(self) -> None:
        """Open the data and start; a node that cannot open its data stays down, with the reason."""
        if self.is_up:
            return
        self.cluster.touched = self
        group = self.config.groups[0]
        self.files.kill()
        try:
            self._settle()
            opened = self._open_group(group)
        except SimulatedCrash:
            self.stop(power=True, why="the machine crashed while it opened its data")
            return
        except StorageError as error:
            self.stop(power=False, why=str(error))
            return
        self.incarnation, self.why_stopped = opened.incarnation, ""
        replicas: dict[str, Replica] = {}
        links = SimulatedLinks(self, self.cluster, self.config.limits)
        self.liveness = liveness = self._make_liveness(replicas, links)
        try:
            self.replica = replica = self._make_replica(group, opened, links, liveness)
        except StorageError as error:
            self.stop(power=False, why=str(error))
            return
        replicas[group.group] = replica

        def start() -> None:
            replica.start()
            replica.partition_retention.set_rules(self.cluster.rules)
            liveness.start()

        self.enter(start)

    def _make_liveness(self, replicas: dict[str, Replica], links: SimulatedLinks) -> NodeLiveness:
        return NodeLiveness(
            self.node_id,
            replicas,
            links,
            lambda: self.clock.now_ms,
            self._wake_liveness_at,
            run=self.life + 1,
            groups=self.config.groups,
        )

    def _wake_liveness_at(self, deadline_ms: int) -> None:
        liveness = self.liveness
        delay_us = self.clock.simulation_delay_us(deadline_ms * 1_000)
        self.later(delay_us, lambda: None if liveness is None else liveness.tick())

    def receive(self, message: PeerMessage | NodeMessage, attachment: memoryview) -> None:
        """Take a message of another node."""
        if isinstance(message, HeartBeats):
            for part in (*message.requests, *message.responses):
                self.receive(part, attachment)
        elif isinstance(message, PeerTurn):
            is_known = self.cluster.takes_joined(self.node_id)
            for frame in split(message, attachment) if is_known else ():
                if isinstance(frame, Frame) and isinstance(frame.message, PeerMessage):
                    self.receive(frame.message, frame.attachment)
        elif isinstance(message, NodeMessage):
            if self.liveness is not None:
                self.liveness.received(message)
        elif not self.running.is_broken:
            self.running.receive(message, attachment)

    def propose(
        self,
        block: Block,
        answer: Answer,
        entry: Checked | None,
        level: WriteLevel = WriteLevel.REPLICATION,
    ) -> None:
        """Take a client's append."""
        life = self.life
        self.unanswered += 1

        def answered(response: AppendResponse, results: Sequence[bytes]) -> None:
            if self.life == life:
                self.unanswered -= 1
            answer(response, results)

        self.running.propose(block, answered, entry, level)

    def _make_replica(
        self,
        group: GroupConfig,
        opened: OpenedGroup,
        links: SimulatedLinks,
        liveness: NodeLiveness,
    ) -> Replica:
        now_ms, random = self.clock.now_ms, self.cluster.clock.random
        config = raft_config(group, self.config, opened)
        core = self.cluster.make_core(config, boot_state(opened), random, now_ms)
        turn, timer = Turn(lambda action: self.later(0, action)), SimulatedTimer(self)
        environment = self._make_environment(
            turn,
            SimulatedDiskWorker(self, turn, JOURNAL),
            links,
            liveness,
            timer.wake_at,
            rebuild_machine=lambda machine: self.machines.rebuild(machine, group),
            append_hook=self.cluster.append_hook,
            seal_limits=self.cluster.seal_limits,
        )
        machine = self.machines.open(group)
        replica = self.cluster.make_replica(
            group, core, opened, environment, self.config.limits, machine
        )
        timer.tick = replica.tick
        return replica

    def _ends(self, *, power: bool, closes: bool) -> None:
        if self.replica is not None:
            self.histories.append(self.replica.core.history.lines())
            if not power:
                self.cluster.ended(self)
        self.replica = self.liveness = None
        self.machines.ended(closes=closes)
        self.alarms, self._alarms_seen, self.unanswered = [], 0, 0

    # -- what invariants read ---------------------------------------------------------------

    def record_alarms(self) -> None:
        """Take over the alarms that the replica raised since the last call."""
        replica = self.running
        if replica.counters.alarms != self._alarms_seen:
            self._alarms_seen = replica.counters.alarms
            self.alarms = alarms_of(replica)

    def checked_state(self) -> object:
        """Return what of the replica invariants look at, as far as it is read quickly."""
        replica = self.running
        core, log, counters = replica.core, replica.log, replica.counters
        return (
            *(self.life, core.term, core.role, core.membership_index, core.committed_index),
            *(core.durable_index, core.is_transferring, log.before_begin_index, log.end_index),
            *(log.end_chain_crc, replica.applied_index, replica.tables.as_of),
            *(counters.alarms, counters.segments_removed, counters.machine_rebuilds),
        )

    def after_power_loss(self, random: Random, index: int = -1) -> Remains | None:
        """See `NodeView`."""
        return self.remains(self.config.groups[0], random, index)

    def history(self) -> list[str]:
        """Return the newest events of this node, including those of its last few lives."""
        lives = [*self.histories]
        if self.replica is not None:
            lives.append(self.replica.core.history.lines())
        shown = [
            f"{at_ms:>8} ms  {text}" for lines in lives for at_ms, text in [*lines, (0, "---")]
        ]
        if self.replica is None:
            shown.append(f"down: {self.why_stopped or 'stopped'}")
        return shown
