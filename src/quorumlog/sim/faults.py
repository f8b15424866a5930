"""What goes wrong in a simulation: each seed turns a different set of faults on (swarm).

The budget keeps to what is promised (docs/guarantees.md): bits flip on one node only, and one
disk at a time is emptied, while all others hold what they held.
"""

from collections.abc import Callable
from random import Random

from quorumlog.model.membership import Member
from quorumlog.raft.events import (
    AddMember,
    ChangeRequested,
    PromoteMember,
    RemoveMember,
    TransferRequested,
)
from quorumlog.raft.quorum import has_quorum
from quorumlog.sim.cluster import DATA_FILE_BYTES, SimulatedCluster
from quorumlog.sim.disk import DISK_BYTES
from quorumlog.sim.emptied_disks import EmptiedDisks
from quorumlog.sim.node import SimulatedNode
from quorumlog.sim.process import DIRECTORY
from quorumlog.storage.log.hard_state import FILE_NAME as STATE_NAME

CLOCK_RATES = (0.9, 0.97, 1.0, 1.0, 1.03, 1.1)
RESTART_MS = (1, 2_000)
PAUSE_MS_MIN, PAUSES_MS_MAX = 100, (700, 1_500, 3_000)
"""From one fault to the next; each seed has a longest pause of its own."""
KINDS_ON = 0.4
"""Share of the kinds of faults that a seed turns on."""
WEIGHTS = (1, 1, 1, 4)
"""How often a kind that is on happens, beside others."""
MEMBERS_CHANGED, BITS_FLIPPED = 0.4, 0.4
"""Shares of seeds that mostly change members, or flip bits: such faults are rare otherwise."""
FLIP_WEIGHTS = (4, 12)
FLIPS = 0.6
"""Share of seeds in which bits flip at all."""
CLOCKS_SET = 0.5
"""Share of seeds in which calendars' clocks are set by minutes to days."""
CLOCK_STEPS_MS = (120_000, 5_000_000, 20 * 3_600_000, 4 * 86_400_000, 400 * 86_400_000)
CLOCK_PAUSE_MS = (300, 5_000)

NAMES = {"flip_bit": "rot", "calm_period": "lull"}
"""Printed names that are not those of the methods: recorded runs have them."""


def name_of(kind: Callable[[], None]) -> str:
    """Return the printed name of a kind of fault."""
    return NAMES.get(kind.__name__, kind.__name__)


class Faults:
    """Injects faults into a cluster from `start` to `end`."""

    def __init__(self, cluster: SimulatedCluster, seed: int) -> None:
        self._cluster = cluster
        # a random source of its own: what clocks show changes nothing else that happens
        self._clock_random = Random(f"clocks {seed}")  # noqa: S311  (nothing secret)
        self._clock = cluster.clock
        self._random: Random = cluster.clock.random
        every: list[Callable[[], None]] = [
            *(self.kill, self.power_loss, self.crash_inside_a_call, self.stop_all),
            *(self.partition, self.split, self.one_way, self.flap, self.break_connections),
            *(self.slow_disk, self.stall_disk, self.disk_error, self.fill_disk, self.flip_bit),
            *(self.pause, self.suspend, self.jump_clock, self.drift),
            *(self.transfer, self.change_members, self.wipe, self.calm_period),
        ]
        random = self._random
        weights = {kind: random.choice(WEIGHTS) for kind in every if random.random() < KINDS_ON}
        self.flips = random.random() < FLIPS
        self.victim = random.choice(cluster.founders)
        self._emptied = EmptiedDisks(cluster, self.victim if self.flips else None)
        if random.random() < MEMBERS_CHANGED:
            reshaping = (self.wipe, self.kill, self.transfer)
            weights |= {self.change_members: 2, **dict.fromkeys(reshaping, 1)}
        if self.flips and random.random() < BITS_FLIPPED:
            weights[self.flip_bit] = random.choice(FLIP_WEIGHTS)
        self._pause_ms_max = random.choice(PAUSES_MS_MAX)
        self.kinds = list(weights)
        self._weights = list(weights.values())
        self.is_on = False
        self.happened: list[str] = []

    def start(self) -> None:
        """Start to inject faults."""
        self.is_on = True
        random, network = self._random, self._cluster.network
        if random.random() < 0.6:
            network.loss, network.repeat = random.choice((0.01, 0.05, 0.25)), 0.05
        if random.random() < 0.5:
            network.delay_us = (100, random.choice((10_000, 150_000)))
        if random.random() < 0.4:
            network.straggler, network.straggler_us = 0.02, 4_000_000
        if self._has(self.drift):
            for node in self._cluster.nodes.values():
                node.clock.run_at(random.choice(CLOCK_RATES))
        self._disturb()
        if self._clock_random.random() < CLOCKS_SET:
            self._set_clocks()

    def _has(self, kind: Callable[[], None]) -> bool:
        return kind in self.kinds

    def _disturb(self) -> None:
        if not self.is_on:
            return
        self._emptied.check_return()
        if self.kinds:
            [kind] = self._random.choices(self.kinds, self._weights)
            self.happened.append(f"{self._clock.now_ms} ms {name_of(kind)}")
            kind()
        self._after((PAUSE_MS_MIN, self._pause_ms_max), self._disturb)

    def _after(self, range_ms: tuple[float, float], action: Callable[[], object]) -> None:
        """Plan an action for later; it is dropped if faults have ended by then."""
        self._clock.after_ms(
            self._random.uniform(*range_ms), lambda: action() if self.is_on else None
        )

    def end(self) -> None:
        """Stop all faults and start all nodes that are down; called again until everything runs."""
        self.is_on = False
        cluster = self._cluster
        cluster.network.calm()
        for node in cluster.nodes.values():
            node.resume()
            node.slow, node.stalled_until_us = 1, 0
            node.clock.run_at(1.0)
            node.files.total_bytes = DISK_BYTES
            node.files.crash_at = None
            node.files.forgive()
            if not node.is_up and (node.life or node.node_id in cluster.founders):
                self.start_node(node)

    def calm_period(self) -> None:
        """Let clients ask nothing for a while, so that groups quiesce in the midst of faults."""
        self._cluster.clients.pause_until(self._clock.now_ms + self._random.randint(500, 8_000))

    # -- machines ---------------------------------------------------------------------------

    def _any_up(self) -> SimulatedNode | None:
        up = [node for node in self._cluster.nodes.values() if node.is_up]
        return self._random.choice(up) if up else None

    def _stop(self, node: SimulatedNode, *, power: bool) -> None:
        may_flip = self.flips and not power and _has_started(node)
        node.stop(power=power, why="killed" if not power else "lost its power")
        if may_flip and node.node_id == self.victim:
            self._flip(node, node.files.names(f"{DIRECTORY}/g/data"))
        self._after(RESTART_MS, lambda: self.start_node(node))

    def start_node(self, node: SimulatedNode) -> None:
        """Start a node as an operator would, who gives up data that cannot be opened."""
        node.start()
        if not node.is_up and node.why_stopped and self._emptied.may_empty(node):
            self._emptied.empty(node)
            node.start()
        if not node.is_up and self.is_on:
            self._after(RESTART_MS, lambda: self.start_node(node))

    def kill(self) -> None:
        """End a process as kill -9 does."""
        node = self._any_up()
        if node is not None:
            self._stop(node, power=False)

    def power_loss(self) -> None:
        """Lose what is not durable of one machine."""
        node = self._any_up()
        if node is not None:
            self._stop(node, power=True)

    def stop_all(self) -> None:
        """Lose the power of all machines at once."""
        for node in self._cluster.nodes.values():
            if node.is_up:
                self._stop(node, power=True)

    def crash_inside_a_call(self) -> None:
        """Stop a machine in the middle of one of its next calls of the file system."""
        node = self._any_up()
        if node is not None:
            node.files.crash_at = node.files.calls + self._random.randint(1, 40)
            self._after((500, 3_000), lambda: self.start_node(node))

    def pause(self) -> None:
        """Pause a process for a while; it then resumes with a state that is out of date."""
        node = self._any_up()
        if node is not None:
            node.pause()
            self._after((10, 8_000), node.resume)

    def suspend(self) -> None:
        """Suspend a whole machine for a while: its clock stands still."""
        node = self._any_up()
        if node is not None:
            node.pause()
            node.clock.stop()
            self._after((10, 8_000), node.resume)

    def jump_clock(self) -> None:
        """Set the calendar's clock of a machine forward or back."""
        node = self._any_up()
        if node is not None:
            node.clock.skew_ms += self._random.randint(-10_000_000, 10_000_000)

    def _set_clocks(self) -> None:
        """Set the calendars of one machine, of some or of all, also of those that are down."""
        if not self.is_on:
            return
        random, nodes = self._clock_random, list(self._cluster.nodes.values())
        chosen = random.sample(nodes, random.choice((1, random.randint(1, len(nodes)), len(nodes))))
        step_ms = random.choice((-1, 1, 1)) * random.choice(CLOCK_STEPS_MS)
        for node in chosen:
            node.clock.skew_ms += step_ms
        names = " ".join(node.node_id for node in chosen)
        self.happened.append(f"{self._clock.now_ms} ms clocks of {names} set by {step_ms} ms")
        self._clock.after_ms(random.uniform(*CLOCK_PAUSE_MS), self._set_clocks)

    def drift(self) -> None:
        """Let a machine's clock run faster or slower."""
        node = self._any_up()
        if node is not None:
            node.clock.run_at(self._random.choice(CLOCK_RATES))

    # -- network ----------------------------------------------------------------------------

    def _cut_for(self, pairs: set[tuple[str, str]], range_ms: tuple[float, float]) -> None:
        self._cluster.network.cut |= pairs
        self._after(range_ms, lambda: self._cluster.network.cut.difference_update(pairs))

    def partition(self) -> None:
        """Cut one machine off, clients included; the leader more often than not."""
        leader, ids = self._cluster.leader(), list(self._cluster.nodes)
        alone = self._random.choice(ids)
        if leader is not None and self._random.random() < 0.5:
            alone = leader.node_id
        others = [node_id for node_id in ids if node_id != alone]
        pairs = {(alone, other) for other in others} | {(other, alone) for other in others}
        self._cut_for(pairs, (200, 5_000))

    def split(self) -> None:
        """Cut the cluster in two."""
        ids = list(self._cluster.nodes)
        self._random.shuffle(ids)
        at = self._random.randint(1, len(ids) - 1)
        pairs = {(one, two) for one in ids[:at] for two in ids[at:]}
        self._cut_for(pairs | {(two, one) for one, two in pairs}, (200, 5_000))

    def one_way(self) -> None:
        """Let nothing through from one machine to another, in one direction only."""
        one, two = self._random.sample(list(self._cluster.nodes), 2)
        self._cut_for({(one, two)}, (200, 5_000))

    def flap(self) -> None:
        """Cut a pair off again and again, briefly."""
        one, two = self._random.sample(list(self._cluster.nodes), 2)
        for number in range(6):
            start = number * 300
            self._after((start, start + 200), lambda: self._cut_for({(one, two)}, (20, 250)))

    def break_connections(self) -> None:
        """Lose messages in flight between two machines, which may take each other for dead."""
        one, two = self._random.sample(list(self._cluster.nodes), 2)
        self._cluster.reconnect(one, two)
        if self._random.random() < 0.5:
            self._cluster.lose(one, two, is_there=True)

    # -- disks ------------------------------------------------------------------------------

    def slow_disk(self) -> None:
        """Make a machine's disk slower, or fast again."""
        node = self._any_up()
        if node is not None:
            node.slow = self._random.choice((1, 1, 20, 300))

    def stall_disk(self) -> None:
        """Let no write of a machine end for a while."""
        node = self._any_up()
        if node is not None:
            duration_us = int(self._random.uniform(10_000, 6_000_000))
            node.stalled_until_us = self._clock.now_us + duration_us

    def disk_error(self) -> None:
        """Fail one of a machine's next writes or syncs; some times, of its term and vote."""
        node = self._any_up()
        if node is not None:
            if self._random.random() < 0.3:
                node.files.fail_next(STATE_NAME, "EIO")
            else:
                node.files.fail(node.files.calls + self._random.randint(1, 60), "EIO")
            self._after((500, 4_000), lambda: self.start_node(node))

    def flip_bit(self) -> None:
        """Flip a bit in an older file of a running machine; readers must notice."""
        node = self._cluster.nodes[self.victim]
        if self.flips and node.is_up and _has_started(node):
            self._flip(node, node.covered_files(node.config.groups[0], self._random))

    def fill_disk(self) -> None:
        """Leave a machine nearly no disk space, and free it later."""
        node = self._any_up()
        if node is None:
            return
        files = node.files
        left = self._random.choice((0, 8_192, 40_960))
        files.total_bytes = files.total_bytes - files.free_bytes + left

        def free() -> None:
            files.total_bytes = DISK_BYTES
            self.start_node(node)

        self._after((500, 6_000), free)

    def _flip(self, node: SimulatedNode, names: list[str]) -> None:
        """Flip a bit of a data file, where entries are likely to be.

        Never together with a loss of power, which also takes index records of the last second: a
        replica that can identify a damaged entry neither by header nor by index stays down, and
        damage after the checkpoint looks like a torn tail. So bits flip only while the replica
        runs, and only in files that a checkpoint covers.
        """
        random = self._random
        if names:
            path = f"{DIRECTORY}/g/data/{random.choice(names)}"
            node.files.flip(path, random.randrange(DATA_FILE_BYTES // 4), 1 << random.randrange(8))

    # -- members ----------------------------------------------------------------------------

    def wipe(self) -> None:
        """Empty a node's disk: it comes back as another incarnation, and must be readmitted."""
        self._emptied.check_return()
        node = self._any_up()
        if node is not None and self._emptied.may_empty(node):
            node.stop(power=False, why="its disk was emptied")
            self._emptied.empty(node)
            self._after(RESTART_MS, lambda: self.start_node(node))

    def keep_one_down(self) -> SimulatedNode | None:
        """Stop a voter if the others are an undamaged majority; None if there is no such voter."""
        nodes = self._cluster.nodes
        up = [node for node in nodes.values() if node.is_up]
        newest = max(up, key=lambda node: node.core.membership_index, default=None)
        if newest is None or any(node.log.damaged for node in up):
            return None
        named = [node.core.membership for node in up if node.core.membership_index >= 0]
        current = newest.core.membership
        absent = self._random.choice([*current.voters, *current.outgoing])
        sound = {
            node.node_id
            for node in up
            if node.node_id != absent
            and all(
                member.incarnation == node.incarnation
                for membership in named
                for member in membership.members
                if member.node_id == node.node_id and member.incarnation
            )
        }
        enough = all(has_quorum(membership, sound) for membership in named)
        if not enough or not nodes[absent].is_up:
            return None
        nodes[absent].stop(power=False, why="kept down")
        return nodes[absent]

    def wipe_a_follower(self) -> bool:
        """Empty the disk of a follower of a group in which all is well, and start it again."""
        leader = self._cluster.leader()
        for node in self._cluster.members():
            if node is not leader and self._emptied.may_empty(node):
                node.stop(power=False, why="its disk was emptied")
                self._emptied.empty(node)
                node.start()
                return True
        return False

    def transfer(self) -> None:
        """Ask the leader to transfer leadership to any other node, which may not hear of it."""
        leader = self._cluster.leader()
        if leader is not None:
            target = self._random.choice(list(self._cluster.nodes))
            leader.ask(lambda number: TransferRequested(number, target))
            if self._random.random() < 0.3:
                pairs = {(leader.node_id, target), (target, leader.node_id)}
                self._cut_for(pairs, (1_000, 5_000))

    def change_members(self) -> None:
        """Ask the leader to add, promote or remove a member."""
        cluster, random = self._cluster, self._random
        leader = cluster.leader()
        if leader is None:
            return
        current = leader.core.membership
        node_id = random.choice(list(cluster.nodes))
        node, member = cluster.nodes[node_id], current.member(node_id)
        if member is None:
            self.start_node(node)
            added = Member(node_id, node.address, joining=random.random() < 0.7)
            leader.ask(lambda number: ChangeRequested(number, AddMember(added)))
        elif not current.is_voter(node_id) and random.random() < 0.7:
            leader.ask(lambda number: ChangeRequested(number, PromoteMember(node_id)))
        elif not current.is_voter(node_id) or self._emptied.may_remove(node_id, current):
            leader.ask(lambda number: ChangeRequested(number, RemoveMember(node_id)))
        if random.random() < 0.3:  # and the one who was asked may not live to finish it
            self._after((1, 300), lambda: self._stop(leader, power=False) if leader.is_up else None)


def _has_started(node: SimulatedNode) -> bool:
    """Whether a node knows of a committed entry.

    Until then it may be the only one that has the first entry, so that no other node wins without
    its vote (docs/guarantees.md, what is not promised).
    """
    return node.core.committed_index >= 0
