"""Faults of disks, clocks and links, of which half of the runs of groups and of brokers have some.

They have a random source and times of their own, so that they change nothing of the other runs. The
budget keeps to what is promised (docs/guarantees.md): bits flip on one node only, while its process
runs, and only in files that a checkpoint covers, since damage after it looks like a torn tail.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from quorumlog.sim.disk import DISK_BYTES, SimulatedFileSystem
from quorumlog.sim.faults import CLOCK_RATES, CLOCK_STEPS_MS
from quorumlog.sim.group_cluster import GroupCluster
from quorumlog.sim.group_node import GroupNode
from quorumlog.sim.process import DIRECTORY

CHOSEN: Final = 0.5
"""Share of runs that have some of these faults."""
KINDS_ON: Final = 0.4
PAUSES_MS: Final = ((100, 1_500), (300, 4_000))
"""From one fault to the next; each run has one of these ranges."""
LEFT_BYTES: Final = (0, 8_192, 40_960)
"""What a full disk has left."""
FULL_MS: Final = (500, 5_000)
ROOM_MS: Final = 2_000
"""All disks have room for this time at least before one is filled again: something is to happen."""
SUSPENDED_MS: Final = (10, 8_000)
CUT_MS: Final = (200, 5_000)
FLAPS: Final = 6
FLAP_MS, FLAPPED_MS = 300, (20, 250)
"""From one brief cut of a link that flaps to the next, and how long each one lasts."""


class EnvironmentFaults:
    """Injects the faults from `start` to `end`, if the run is chosen for it."""

    def __init__(self, cluster: GroupCluster, random: Random, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._clock = cluster.clock
        self._random = random
        self._say = say
        is_chosen = random.random() < CHOSEN
        every: tuple[Callable[[], None], ...] = (
            *(self.fill_disk, self.flip_bit, self.drift, self.suspend, self.set_clocks),
            *(self.one_way, self.flap),
        )
        found = [kind for kind in every if random.random() < KINDS_ON]
        self._kinds = (found or [self.fill_disk]) if is_chosen else []
        self._pause_ms = random.choice(PAUSES_MS)
        self._damaged = random.choice(cluster.ids)
        self._fills_from_ms = 0
        self.is_on = False

    @property
    def names(self) -> list[str]:
        """The names of the kinds of faults that are on."""
        return [kind.__name__ for kind in self._kinds]

    def start(self) -> None:
        """Start to inject faults."""
        if self._kinds:
            self.is_on = True
            if self.drift in self._kinds:
                for node in self._cluster.nodes.values():
                    node.clock.run_at(self._random.choice(CLOCK_RATES))
            self._after(self._pause_ms, self._disturb)

    def end(self) -> None:
        """Stop all faults. Calendars stay as they are set: nothing depends on them."""
        self.is_on = False
        cluster = self._cluster
        for pair in cluster.one_way:
            cluster.break_connection(*pair)
        cluster.one_way.clear()
        cluster.severed.clear()
        for node in cluster.nodes.values():
            node.resume()
            node.clock.run_at(1.0)
            _free(node.files)

    def _disturb(self) -> None:
        self._random.choice(self._kinds)()
        self._after(self._pause_ms, self._disturb)

    def _after(self, range_ms: tuple[int, int], action: Callable[[], object]) -> None:
        """Plan an action for later; it is dropped if faults have ended by then."""
        delay_ms = self._random.randint(*range_ms)
        self._clock.after_ms(delay_ms, lambda: action() if self.is_on else None)

    def _some(self) -> list[GroupNode]:
        """Return one node, some of them or all, whether they run or not."""
        random, nodes = self._random, list(self._cluster.nodes.values())
        return random.sample(
            nodes, random.choice((1, 1, random.randint(1, len(nodes)), len(nodes)))
        )

    def _one_up(self) -> GroupNode | None:
        node = self._cluster.nodes[self._random.choice(self._cluster.ids)]
        return node if node.is_up else None

    def _pair(self) -> tuple[str, str]:
        one, other = self._random.sample(self._cluster.ids, 2)
        return one, other

    # -- disks ------------------------------------------------------------------------------------

    def fill_disk(self) -> None:
        """Leave machines nearly no disk space, and free it later."""
        if self._clock.now_ms < self._fills_from_ms:
            return
        self._fills_from_ms = self._clock.now_ms + FULL_MS[1] + ROOM_MS
        self._cluster.has_filled = True
        for node in self._some():
            files, left = node.files, self._random.choice(LEFT_BYTES)
            files.total_bytes = files.total_bytes - files.free_bytes + left
            self._say(f"the disk of {node.node_id} has {left} bytes left")
            self._after(FULL_MS, partial(_free, files))

    def flip_bit(self) -> None:
        """Flip a bit in an older file of a group that has begun, on the one node that rots."""
        node, random = self._cluster.nodes[self._damaged], self._random
        if not node.is_up or node.is_paused or node.files.is_off:
            return
        begun = [one for one in node.replicas.values() if one.core.committed_index >= 0]
        if not begun:
            return
        config = random.choice(begun).config
        names = node.covered_files(config, random)
        if names:
            path = f"{DIRECTORY}/{config.group}/data/{random.choice(names)}"
            position = random.randrange(node.files.size_of(path))
            node.files.flip(path, position, 1 << random.randrange(8))
            node.is_damaged = True
            self._say(f"a bit of {path}, byte {position}, flips on {node.node_id}")

    # -- clocks -----------------------------------------------------------------------------------

    def drift(self) -> None:
        """Let a machine's clock run faster or slower."""
        node, rate = self._cluster.nodes[self._pair()[0]], self._random.choice(CLOCK_RATES)
        node.clock.run_at(rate)
        self._say(f"the clock of {node.node_id} runs at {rate}")

    def suspend(self) -> None:
        """Suspend a whole machine for a while: its clock stands still."""
        node = self._one_up()
        if node is not None:
            node.pause()
            node.clock.stop()
            self._say(f"suspend {node.node_id}")
            self._after(SUSPENDED_MS, node.resume)

    def set_clocks(self) -> None:
        """Set the calendars of machines by minutes to days, also of those that are down."""
        random = self._random
        step_ms = random.choice((-1, 1, 1)) * random.choice(CLOCK_STEPS_MS)
        for node in self._some():
            node.clock.skew_ms += step_ms
            self._say(f"the calendar of {node.node_id} is set by {step_ms} ms")

    # -- links ------------------------------------------------------------------------------------

    def one_way(self) -> None:
        """Let nothing through from one machine to another; what comes back does for a while."""
        pair = self._pair()
        if pair in self._cluster.one_way:
            return
        self._cluster.one_way.add(pair)
        self._say(f"{pair[0]} does not reach {pair[1]}")

        def heal() -> None:
            self._cluster.break_connection(*pair)
            self._cluster.one_way.discard(pair)

        self._after(CUT_MS, heal)

    def flap(self) -> None:
        """Cut two machines off from each other again and again, briefly."""
        pair = self._pair()
        self._say(f"the link between {pair[0]} and {pair[1]} flaps")
        for number in range(FLAPS):
            start_ms = number * FLAP_MS
            self._after((start_ms, start_ms + FLAP_MS), lambda: self._sever(frozenset(pair)))

    def _sever(self, pair: frozenset[str]) -> None:
        self._cluster.severed.add(pair)
        self._after(FLAPPED_MS, lambda: self._cluster.severed.discard(pair))


def _free(files: SimulatedFileSystem) -> None:
    files.total_bytes = DISK_BYTES
