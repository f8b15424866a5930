"""A simulated machine and the process on it, whatever groups that has."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from quorumlog.model.config import GroupConfig, NodeConfig
from quorumlog.model.errors import StorageError
from quorumlog.node.environment import Environment, Liveness
from quorumlog.node.replica.replica import Replica
from quorumlog.node.turn import Turn
from quorumlog.sim.checked_turns import CheckedTurns
from quorumlog.sim.clock import Clock
from quorumlog.sim.disk import DISK_BYTES, SimulatedCrash, SimulatedFileSystem
from quorumlog.sim.links import SimulatedLinks
from quorumlog.sim.simulation_clock import SimulationClock
from quorumlog.sim.views import Remains
from quorumlog.sim.workers import SimulatedDiskWorker, SimulatedExecutor
from quorumlog.storage.log.settle import settle_node
from quorumlog.storage.log.store import OpenedGroup, open_group
from quorumlog.storage.metadata.checkpoint import CheckpointFile

DIRECTORY = "/node"
NONCE_BITS = 62
DISK_US = (100, 1_500)
ALARMS_KEPT = 64


class SimulatedTimer:
    """See `quorumlog.node.timers.Timer`; its process's clock decides when it fires."""

    def __init__(self, process: "SimulatedProcess") -> None:
        self._process = process
        self._due_us: int | None = None
        self.tick: Callable[[], None] = lambda: None

    def wake_at(self, deadline_ms: int) -> None:
        """Call `tick` at the deadline, or at an earlier one already asked for."""
        process = self._process
        now_us = process.simulated_us
        due_us = now_us + process.clock.simulation_delay_us(deadline_ms * 1_000)
        if self._due_us is not None and self._due_us <= due_us:
            return
        self._due_us = due_us

        def fire() -> None:
            if self._due_us == due_us:
                self._due_us = None
                self.tick()

        process.later(due_us - now_us, fire)

    def end(self) -> None:
        """Call `tick` no more."""
        self.tick, self._due_us = lambda: None, None


class SimulatedProcess(ABC):
    """A machine that can be stopped, paused and started; its disk outlives its process.

    `slow` multiplies the time of writes; none ends before the simulation reaches
    `stalled_until_us`.
    """

    directory = DIRECTORY

    def __init__(self, config: NodeConfig, simulation: SimulationClock, random: Random) -> None:
        self.node_id = config.self_id
        self.config = config
        self.life = 0
        self.clock = Clock(lambda: simulation.now_us)
        self.why_stopped = ""
        self.slow = 1
        self.stalled_until_us = 0
        self._simulation = simulation
        self._random = random
        self._paused: deque[Callable[[], object]] | None = None
        self._disk: SimulatedDiskWorker | None = None
        self.wipe()

    def wipe(self) -> None:
        """Put an empty disk into a machine that is down."""
        clock = self.clock
        self.files = SimulatedFileSystem(self._random, now_ms=lambda: clock.wall_ms)
        self.files.make_directory(DIRECTORY)

    # -- its state --------------------------------------------------------------------------

    @property
    @abstractmethod
    def is_up(self) -> bool:
        """Whether the process runs."""

    @property
    def simulated_us(self) -> int:
        """The time of the simulation, whatever the machine's clock shows."""
        return self._simulation.now_us

    @property
    def disk_waits_ms(self) -> int:
        """How long a write has waited, by the machine's own clock."""
        return int(self._disk.waits_us * self.clock.rate) // 1_000 if self._disk else 0

    def disk_waits_ms_of(self, replica: Replica) -> int:
        """Return how long a write of one replica has waited, by the machine's own clock.

        One that has nothing to write does not notice that the disk does not answer.
        """
        waits_us = 0 if self._disk is None else self._disk.waits_us_of(replica)
        return int(waits_us * self.clock.rate) // 1_000

    def disk_us(self) -> int:
        """Return how long the next group commit, or read, takes."""
        return self._random.randint(*DISK_US) * self.slow

    @property
    def is_stalled(self) -> bool:
        """Whether no write ends at present."""
        return self.simulated_us < self.stalled_until_us

    # -- what happens in it -------------------------------------------------------------------

    def later(self, delay_us: int, action: Callable[[], object]) -> None:
        """Plan an action in this life of the process; it is dropped when the process ends."""
        life = self.life

        def happen() -> None:
            if self.life == life and self.is_up:
                self.enter(action)

        self._simulation.after_us(delay_us, happen)

    def enter(self, action: Callable[[], object]) -> None:
        """Run an action in this process now, or once it is no longer paused."""
        if self._paused is not None:
            self._paused.append(action)
            return
        self._touched()
        try:
            action()
        except SimulatedCrash:
            self.stop(power=True, why="the machine crashed")

    @abstractmethod
    def _touched(self) -> None:
        """Something happens in this process: it is to be checked after this event."""

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

    # -- its beginning and end ----------------------------------------------------------------

    def _settle(self) -> None:
        """Do as every node that starts. Raises `StorageError` if a group cannot be settled.

        A real node goes on without such a group, or one that cannot be opened, until it is started
        again. Here that is at once: the process ends, and an operator starts it.
        """
        for error in settle_node(self.files, DIRECTORY).failed.values():
            raise error

    def _open_group(self, group: GroupConfig) -> OpenedGroup:
        return open_group(
            self.files,
            f"{DIRECTORY}/{group.group}",
            group,
            self.config.limits,
            self_id=self.node_id,
        )

    def _make_environment(
        self,
        turn: Turn,
        disk: SimulatedDiskWorker,
        links: SimulatedLinks,
        liveness: Liveness,
        wake_at: Callable[[int], None],
        **others: Any,
    ) -> Environment:
        """Return what the replicas of this process share, with what `others` has beside."""
        clock, executor = self.clock, SimulatedExecutor(self)
        self._disk = disk
        return Environment(
            disk=disk,
            network=CheckedTurns(self.node_id, links, turn.at_end, self.config.limits),
            executor=executor,
            machines=executor,
            now_ms=lambda: clock.now_ms,
            now_us=lambda: clock.now_us,
            wall_ms=lambda: clock.wall_ms,
            hour_of_day=lambda: clock.hour_of_day,
            defer=turn.defer,
            wake_at=wake_at,
            broken=self.broken,
            nonce=partial(self._random_of_life().getrandbits, NONCE_BITS),
            liveness=liveness,
            **others,
        )

    def _random_of_life(self) -> Random:
        return Random(f"{self.node_id}/{self.life}")  # noqa: S311  (nothing secret)

    def broken(self, reason: str) -> None:
        """The process must not go on: it ends, and an operator starts it again."""
        self.why_stopped = reason
        self.later(0, lambda: self.stop(power=False, why=reason))

    def stop(self, *, power: bool, why: str = "", closes: bool = False) -> None:
        """End the process; with `power` the machine goes off, too.

        `closes`: the process closes its journal and state machines first, as in an orderly stop.
        """
        if closes and self.is_up and self._disk is not None:
            try:
                self._disk.close()
            except SimulatedCrash:
                power = True
        self._ends(power=power, closes=closes)
        self.life += 1
        self.why_stopped = why
        self._paused = None
        self.clock.go_on()
        if power:
            self.files.power_loss()
        else:
            self.files.kill()

    @abstractmethod
    def _ends(self, *, power: bool, closes: bool) -> None:
        """Forget what the process had; see `stop`."""

    def covered_files(self, group: GroupConfig, random: Random) -> list[str]:
        """Return the names of a group's data files that its last durable checkpoint covers."""
        files = self.files.copy(random)
        files.survival = "none"
        files.power_loss()
        directory = f"{DIRECTORY}/{group.group}"
        checkpoint = CheckpointFile(files, directory).load(read_only=True)
        covered = -1 if checkpoint is None else checkpoint.point.position
        size = group.mapped_file_size_for_entry_data
        return [
            name
            for name in files.names(f"{directory}/data")
            if name.isdigit() and int(name) + size <= covered
        ]

    # -- what invariants read -------------------------------------------------------------------

    def remains(self, group: GroupConfig, random: Random, index: int) -> Remains | None:
        """Return what a loss of power now would leave of a group, with the chain CRC at an index.

        None if the data could not be opened: bits may have flipped. A full disk is given room
        first, as its operator would: to open takes some, such as for the file that is locked.
        """
        files = self.files.copy(random)
        files.total_bytes = DISK_BYTES
        files.survival = "none"
        files.power_loss()
        directory, limits = f"{DIRECTORY}/{group.group}", self.config.limits
        try:
            settle_node(files, DIRECTORY)
            opened = open_group(files, directory, group, limits, self_id=self.node_id)
        except StorageError:
            return None
        damaged = bool(opened.log.damaged)
        state, log = opened.hard_state, opened.log
        chain_crc = log.chain_crc_at(index) if 0 <= index <= log.end_index else None
        remains = Remains(state.term, state.vote, log.end_index, chain_crc)
        opened.close()
        return None if damaged else remains


def alarms_of(replica: Replica) -> list[str]:
    """Return the newest alarms that a replica raised."""
    lines = [text for _, text in replica.core.history.lines() if text.startswith("ALARM")]
    return lines[-ALARMS_KEPT:]
