"""One simulated machine: the real replica, core and storage in a simulated environment."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Protocol, TypeVar

from quorumlog.machine.base import StateMachine
from quorumlog.model.block import Block, Buffer
from quorumlog.model.bounds import SIZE_MAX
from quorumlog.model.config import JOURNAL_NAME, GroupConfig, NodeConfig
from quorumlog.model.errors import InvariantViolation, StorageError
from quorumlog.model.hooks import AppendHook
from quorumlog.model.limits import Limits
from quorumlog.model.messages.client import AppendResponse
from quorumlog.model.messages.peer import HeartBeats, NodeMessage, PeerMessage, PeerTurn
from quorumlog.node.bootstrap import boot_state, raft_config
from quorumlog.node.disk import Barrier, Submission, report_commit
from quorumlog.node.environment import Environment, WriteOwner
from quorumlog.node.liveness import NodeLiveness
from quorumlog.node.peer_turns import PeerTurns
from quorumlog.node.replica.proposals import Answer
from quorumlog.node.replica.replica import Replica
from quorumlog.node.turn import Turn
from quorumlog.raft.config import BootState, RaftConfig
from quorumlog.raft.core import RaftCore
from quorumlog.raft.events import Event
from quorumlog.sessions.entries import SystemEntry
from quorumlog.sim.clock import Clock
from quorumlog.sim.disk import SimulatedCrash, SimulatedFileSystem
from quorumlog.sim.machines import Machines
from quorumlog.sim.views import ClusterView, Remains
from quorumlog.storage.files.write_plans import WritePlan
from quorumlog.storage.journal.writer import JournalLimits, NodeJournal
from quorumlog.storage.log.group_store import HINT_PAUSE_MS, GroupStore
from quorumlog.storage.log.interface import Log
from quorumlog.storage.log.settle import settle_node
from quorumlog.storage.log.store import OpenedGroup, open_group
from quorumlog.storage.metadata.checkpoint import CheckpointFile
from quorumlog.wire.frame import Frame
from quorumlog.wire.joined import split

T = TypeVar("T")
DIRECTORY = "/node"
HISTORIES_KEPT = 3
"""Earlier lives of a process whose histories are kept."""
ALARMS_KEPT = 64
NONCE_BITS = 62
STALL_CHECK_US = 20_000
"""How often a stalled disk is polled."""
JOURNAL = JournalLimits(
    segment_bytes=24_576,
    segments_max=3,
    groups_min=1,
    commit_bytes_max=8_192,
    group_bytes_max=1_024,
    wanted_min=1,
    wanted_again=64,
)
"""So small that it is full often; about half of all commits go through it."""


class Simulation(ClusterView, Protocol):
    """What a node needs of the cluster it belongs to. `touched`: the node of the present event."""

    touched: "SimulatedNode | None"
    append_hook: AppendHook | None

    def send(
        self,
        node: "SimulatedNode",
        receiver: str,
        message: PeerMessage | NodeMessage,
        data: bytes,
    ) -> None:
        """Carry a message to another node."""
        ...

    def takes_joined(self, receiver: str) -> bool:
        """Whether another node understands joined frames."""
        ...

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


class _Disk:
    """Carries out all waiting writes as one group commit, a little later.

    Writes that are submitted meanwhile go into the next one, as with a thread.
    """

    def __init__(self, node: "SimulatedNode", turn: Turn) -> None:
        self._node = node
        self._turn = turn
        self._journal = NodeJournal(
            node.files, f"{DIRECTORY}/{JOURNAL_NAME}", _Background(node), limits=JOURNAL
        )
        self._store = GroupStore(self._journal, lambda: node.cluster.clock.now_ms)
        self._queue: deque[tuple[Submission, int]] = deque()
        self._owners: dict[WriteOwner, None] = {}
        self._busy = False
        self._batch = 0
        self._failed = False
        self.queued_bytes = 0

    @property
    def waits_us(self) -> int:
        """How long the oldest write that the core waits for has been waiting."""
        now_us = self._node.cluster.clock.now_us
        waiting = (since_us for item, since_us in self._queue if item.token is not None)
        return now_us - next(waiting, now_us)

    def submit(self, owner: WriteOwner, token: int | None, plan: WritePlan) -> None:
        """See `Disk`."""
        self._owners[owner] = None
        if not self._failed:
            self.queued_bytes += plan.size_bytes
            submission = Submission(owner, token, plan)
            self._queue.append((submission, self._node.cluster.clock.now_us))
            self._begin()

    def end(self, owners: Sequence[WriteOwner], last: WritePlan, done: Callable[[], None]) -> None:
        """See `Disk`."""
        submitted = Barrier(done)
        self.submit(submitted, None, last)
        for owner in (submitted, *owners):
            self._owners.pop(owner, None)

    def _begin(self) -> None:
        if not self._busy and self._queue:
            self._busy = True
            self._batch = len(self._queue)
            self._node.later(self._node.disk_us(), self._commit)

    def _commit(self) -> None:
        if self._node.is_stalled:
            self._node.later(STALL_CHECK_US, self._commit)
            return
        batch = [self._queue.popleft()[0] for _ in range(self._batch)]
        try:
            self._store.execute([item.plan for item in batch], sync=True)
        except StorageError as error:
            self.fail(error)
            return
        self._busy = False
        self._node.later(HINT_PAUSE_MS * 1_000, self._idle)
        self.queued_bytes -= sum(item.plan.size_bytes for item in batch)
        self._turn.run(report_commit, batch)
        self._begin()

    def _idle(self) -> None:
        if not self._busy and not self._failed:
            self._store.idle()

    def fail(self, error: StorageError) -> None:
        """Tell everybody that nothing is written any more."""
        self._failed = True
        for owner in list(self._owners):
            owner.write_failed(error)
        self._node.broken(str(error))

    def close(self) -> None:
        """End as an orderly stop does, if nothing failed."""
        if not self._failed and not self._busy:
            with suppress(StorageError):
                self._store.close()


class _Background:
    """Carries out steps one after the other, each a little later, as a thread would."""

    def __init__(self, node: "SimulatedNode") -> None:
        self._node = node
        self._steps: deque[Callable[[], bool]] = deque()

    def run(self, step: Callable[[], bool]) -> None:
        """See `Background`."""
        self._steps.append(step)
        if len(self._steps) == 1:
            self._node.later(self._node.disk_us(), self._next)

    def _next(self) -> None:
        if not self._steps:
            return
        if self._node.is_stalled:
            self._node.later(STALL_CHECK_US, self._next)
            return
        try:
            if not self._steps[0]():
                self._steps.popleft()
        except StorageError as error:
            self._node.disk_failed(error)
            return
        if self._steps:
            self._node.later(self._node.disk_us(), self._next)

    def finish(self) -> None:
        """See `Background`."""
        self._steps.clear()


class _Executor:
    """Runs work a little later, as a thread would."""

    def __init__(self, node: "SimulatedNode") -> None:
        self._node = node

    def run(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        client: object = None,
    ) -> None:
        """See `Executor`."""

        def happen() -> None:
            try:
                result = work()
            except Exception as error:
                failed(error)
                return
            done(result)

        self._node.later(self._node.disk_us(), happen)


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
        self._node.cluster.send(self._node, peer_id, message, data)
        return True

    def joined_room(self, peer_id: str, *, bulk: bool) -> int | None:
        """See `Links`."""
        return SIZE_MAX if self._node.cluster.takes_joined(peer_id) else None

    def update_members(self, group: str, addresses: Mapping[str, str]) -> None:
        """See `Network`: a simulated network reaches everyone."""


class SimulatedNode:
    """A machine that can be stopped, paused and started; its disk outlives its process.

    `slow` multiplies the time of writes; none ends before the simulation reaches
    `stalled_until_us`.
    `unanswered` counts the appends of clients to which this life of the process owes an answer.
    """

    def __init__(self, cluster: Simulation, node_id: str, config: NodeConfig) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.config = config
        self.life = 0
        self.incarnation = 0
        self.clock = Clock(lambda: cluster.clock.now_us)
        self.replica: Replica | None = None
        self.liveness: NodeLiveness | None = None
        self.why_stopped = ""
        self.slow = 1
        self.stalled_until_us = 0
        self.histories: deque[list[tuple[int, str]]] = deque(maxlen=HISTORIES_KEPT)
        self.alarms: list[str] = []
        self.unanswered = 0
        self.machines = Machines()
        self._paused: deque[Callable[[], object]] | None = None
        self._disk: _Disk | None = None
        self._wake_us: int | None = None
        self._alarms_seen = 0
        self.wipe()

    def wipe(self) -> None:
        """Put an empty disk into a machine that is down; its incarnation is not known yet."""
        random, clock = self.cluster.clock.random, self.clock
        self.incarnation = -1
        self.files = SimulatedFileSystem(random, now_ms=lambda: clock.wall_ms)
        self.files.make_directory(DIRECTORY)
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

    @property
    def disk_waits_ms(self) -> int:
        """How long a write has waited, by the machine's own clock."""
        return int(self._disk.waits_us * self.clock.rate) // 1_000 if self._disk else 0

    def disk_us(self) -> int:
        """Return how long the next group commit, or read, takes."""
        return self.cluster.clock.random.randint(100, 1_500) * self.slow

    @property
    def is_stalled(self) -> bool:
        """Whether no write ends at present."""
        return self.cluster.clock.now_us < self.stalled_until_us

    # -- events ---------------------------------------------------------------------------

    def later(self, delay_us: int, action: Callable[[], object]) -> None:
        """Plan an action in this life of the process; it is dropped when the process ends."""
        life = self.life

        def happen() -> None:
            if self.life == life and self.is_up:
                self.enter(action)

        self.cluster.clock.after_us(delay_us, happen)

    def enter(self, action: Callable[[], object]) -> None:
        """Run an action in this process now, or once it is no longer paused."""
        if self._paused is not None:
            self._paused.append(action)
            return
        self.cluster.touched = self
        try:
            action()
        except SimulatedCrash:
            self.stop(power=True, why="the machine crashed")

    def ask(self, make_event: Callable[[int], Event]) -> None:
        """Ask the replica for a leadership transfer or a change; nobody waits for the answer."""

        def ask() -> None:
            if not self.running.is_broken:
                self.running.pending_requests.ask(make_event, lambda code, text, index: None)

        if self.is_up:
            self.enter(ask)

    @property
    def is_paused(self) -> bool:
        """Whether the process is paused: actions wait until it resumes."""
        return self._paused is not None

    def pause(self) -> None:
        """Stop the process without ending it; it does not notice."""
        if self._paused is None and self.is_up:
            self._paused = deque()

    def resume(self) -> None:
        """Resume the process, which then handles everything that arrived meanwhile."""
        waiting, self._paused = self._paused, None
        self.clock.go_on()
        for action in waiting or ():
            if self.is_up:
                self.enter(action)

    def start(self) -> None:
        """Open the data and start; a node that cannot open its data stays down, with the reason."""
        if self.is_up:
            return
        self.cluster.touched = self
        group = self.config.groups[0]
        self.files.kill()
        try:
            for error in settle_node(self.files, DIRECTORY).failed.values():
                raise error
            opened = open_group(
                self.files, f"{DIRECTORY}/g", group, self.config.limits, self_id=self.node_id
            )
        except SimulatedCrash:
            self.stop(power=True, why="the machine crashed while it opened its data")
            return
        except StorageError as error:
            self.stop(power=False, why=str(error))
            return
        self.incarnation, self.why_stopped = opened.incarnation, ""
        replicas: dict[str, Replica] = {}
        self.liveness = liveness = self._make_liveness(replicas)
        try:
            self.replica = replica = self._make_replica(group, opened, liveness)
        except StorageError as error:
            self.stop(power=False, why=str(error))
            return
        replicas[group.group] = replica

        def start() -> None:
            replica.start()
            liveness.start()

        self.enter(start)

    def _make_liveness(self, replicas: dict[str, Replica]) -> NodeLiveness:
        return NodeLiveness(
            self.node_id,
            replicas,
            _Network(self),
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

    def propose(self, block: Block, answer: Answer, entry: SystemEntry | None) -> None:
        """Take a client's append."""
        life = self.life
        self.unanswered += 1

        def answered(response: AppendResponse, results: Sequence[bytes]) -> None:
            if self.life == life:
                self.unanswered -= 1
            answer(response, results)

        self.running.propose(block, answered, entry)

    def _make_replica(
        self, group: GroupConfig, opened: OpenedGroup, liveness: NodeLiveness
    ) -> Replica:
        clock = self.clock
        config = raft_config(group, self.config, opened)
        core = self.cluster.make_core(
            config, boot_state(opened), self.cluster.clock.random, clock.now_ms
        )
        turn = Turn(lambda action: self.later(0, action))
        self._disk = disk = _Disk(self, turn)
        environment = Environment(
            disk=disk,
            network=PeerTurns(self.node_id, _Network(self), turn.at_end, self.config.limits),
            executor=_Executor(self),
            machines=_Executor(self),
            now_ms=lambda: clock.now_ms,
            now_us=lambda: clock.now_us,
            wall_ms=lambda: clock.wall_ms,
            hour_of_day=lambda: clock.hour_of_day,
            defer=turn.defer,
            wake_at=self._wake_at,
            broken=self.broken,
            nonce=partial(self._random_of_life().getrandbits, NONCE_BITS),
            liveness=liveness,
            rebuild_machine=lambda machine: self.machines.rebuild(machine, group),
            append_hook=self.cluster.append_hook,
        )
        machine = self.machines.open(group)
        return self.cluster.make_replica(
            group, core, opened, environment, self.config.limits, machine
        )

    def _random_of_life(self) -> Random:
        return Random(f"{self.node_id}/{self.life}")  # noqa: S311  (nothing secret)

    def _wake_at(self, deadline_ms: int) -> None:
        simulation = self.cluster.clock
        deadline_us = simulation.now_us + self.clock.simulation_delay_us(deadline_ms * 1_000)
        if self._wake_us is not None and self._wake_us <= deadline_us:
            return
        self._wake_us = deadline_us

        def tick() -> None:
            if self._wake_us == deadline_us and self.replica is not None:
                self._wake_us = None
                self.replica.tick()

        self.later(deadline_us - simulation.now_us, tick)

    def broken(self, reason: str) -> None:
        """The replica must not go on: the process ends, and an operator starts it again."""
        self.why_stopped = reason
        self.later(0, lambda: self.stop(power=False, why=reason))

    def disk_failed(self, error: StorageError) -> None:
        """The data directory must not be written to any more."""
        if self._disk is not None:
            self._disk.fail(error)

    def stop(self, *, power: bool, why: str = "", closes: bool = False) -> None:
        """End the process; with `power` the machine goes off, too.

        `closes`: the process closes its journal and state machine first, as in an orderly stop.
        """
        if closes and self.is_up and self._disk is not None:
            try:
                self._disk.close()
            except SimulatedCrash:
                power = True
        if self.replica is not None:
            self.histories.append(self.replica.core.history.lines())
            if not power:
                self.cluster.ended(self)
        self.life += 1
        self.why_stopped = why
        self.replica = self.liveness = self._wake_us = self._paused = None
        self.clock.go_on()
        self.machines.ended(closes=closes)
        self.alarms, self._alarms_seen, self.unanswered = [], 0, 0
        if power:
            self.files.power_loss()
        else:
            self.files.kill()

    # -- what invariants read ---------------------------------------------------------------

    def record_alarms(self) -> None:
        """Take over the alarms that the replica raised since the last call."""
        replica = self.running
        if replica.counters.alarms != self._alarms_seen:
            self._alarms_seen = replica.counters.alarms
            lines = [text for _, text in replica.core.history.lines() if text.startswith("ALARM")]
            self.alarms = lines[-ALARMS_KEPT:]

    def covered_files(self, random: Random) -> list[str]:
        """Return the names of data files that the last durable checkpoint covers wholly."""
        files = self.files.copy(random)
        files.survival = "none"
        files.power_loss()
        directory = f"{DIRECTORY}/g"
        checkpoint = CheckpointFile(files, directory).load(read_only=True)
        covered = -1 if checkpoint is None else checkpoint.point.position
        size = self.config.groups[0].mapped_file_size_for_entry_data
        return [
            name
            for name in files.names(f"{directory}/data")
            if name.isdigit() and int(name) + size <= covered
        ]

    def after_power_loss(self, random: Random, index: int = -1) -> Remains | None:
        """Return what a loss of power now would leave, with the chain CRC at an index.

        None if the data could not be opened: bits may have flipped.
        """
        files = self.files.copy(random)
        files.survival = "none"
        files.power_loss()
        group, limits = self.config.groups[0], self.config.limits
        try:
            settle_node(files, DIRECTORY)
            opened = open_group(files, f"{DIRECTORY}/g", group, limits, self_id=self.node_id)
        except StorageError:
            return None
        damaged = bool(opened.log.damaged)
        state, log = opened.hard_state, opened.log
        chain_crc = log.chain_crc_at(index) if 0 <= index <= log.end_index else None
        remains = Remains(state.term, state.vote, log.end_index, chain_crc)
        opened.close()
        return None if damaged else remains

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
