"""Damage to the state machine of one node: its files at rest, its records, its snapshots.

A damaged machine must be rebuilt by itself, and nothing may be served or saved from it. The faults
have a random source and times of their own, so that they do not change what else happens in a run.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from quorumlog.sim.machines import KEY_VALUES
from quorumlog.sim.process import DIRECTORY
from quorumlog.storage.log.snapshots import DIRECTORY as SNAPSHOTS
from quorumlog.storage.log.snapshots import PREFIX

if TYPE_CHECKING:
    from quorumlog.sim.cluster import SimulatedCluster
    from quorumlog.sim.node import SimulatedNode

PAUSE_MS = (300, 2_500)
RESTART_MS = (1, 1_000)


class MachineFaults:
    """Damages the machine of `victim` from `start` to `end`."""

    def __init__(self, cluster: "SimulatedCluster", victim: str, random: Random) -> None:
        self._cluster = cluster
        self._node = cluster.nodes[victim]
        self._random = random
        self._kinds: list[Callable[[SimulatedNode], None]] = [self.snapshot]
        if cluster.state_machine == KEY_VALUES:
            self._kinds += [self.at_rest, self.in_memory, self.in_memory]
        self.is_on = False

    def start(self) -> None:
        """Start to inject faults."""
        if self._cluster.state_machine:
            self.is_on = True
            self._cluster.damaged_machines.add(self._node.node_id)
            self._after(PAUSE_MS, self._disturb)

    def end(self) -> None:
        """Inject no more faults."""
        self.is_on = False

    def _after(self, range_ms: tuple[float, float], action: Callable[[], None]) -> None:
        delay_ms = self._random.uniform(*range_ms)
        self._cluster.clock.after_ms(delay_ms, lambda: action() if self.is_on else None)

    def _disturb(self) -> None:
        node = self._node
        if node.is_up and not node.is_paused:
            self._random.choice(self._kinds)(node)
        self._after(PAUSE_MS, self._disturb)

    def at_rest(self, node: "SimulatedNode") -> None:
        """Stop the process in order, damage a file of its machine, and start it again."""
        node.stop(power=False, why="stopped in order", closes=True)
        node.machines.damage_at_rest(self._random)
        self._after(RESTART_MS, node.start)

    def in_memory(self, node: "SimulatedNode") -> None:
        """Flip a bit of a record while the process runs."""
        node.machines.flip_bit_in_memory(self._random)

    def snapshot(self, node: "SimulatedNode") -> None:
        """Flip a bit of a snapshot."""
        directory = f"{DIRECTORY}/g/{SNAPSHOTS}"
        names = [name for name in node.files.names(directory) if name.startswith(PREFIX)]
        if names:
            path = f"{directory}/{self._random.choice(names)}"
            position = self._random.randrange(node.files.size_of(path))
            node.files.flip(path, position, 1 << self._random.randrange(8))
