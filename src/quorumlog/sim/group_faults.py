"""What goes wrong while groups come and go: each seed turns another set of faults on (swarm)."""

from collections.abc import Callable

from quorumlog.sim.group_cluster import GroupCluster
from quorumlog.sim.group_node import GroupNode

PAUSE_MS = (200, 6_000)
"""From one fault to the next."""
KINDS_ON = 0.6
CUT_MS = (200, 4_000)
DOWN_MS = (1, 1_600)
PAUSED_MS = (10, 5_000)
STALLED_US = (10_000, 5_000_000)
CRASH_CALLS = (1, 30)
STARTING_CALLS = (1, 200)
ERROR_CALLS = (1, 60)
CHECKPOINT_MS = 60
"""How long a node that is asked to stop has for its last checkpoints."""


class GroupFaults:
    """Injects faults from `start` to `end`, and starts nodes that are down."""

    def __init__(self, cluster: GroupCluster, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._clock = cluster.clock
        self._random = random = cluster.random
        self._say = say
        self._pause_ms = PAUSE_MS
        chosen = [kind for kind in self._every() if random.random() < KINDS_ON]
        self._kinds = chosen or [self.crash_inside_a_call]
        self._starts_ms: dict[str, int] = {}
        self._crashes_at_start: set[str] = set()
        self._is_on = False

    def _every(self) -> list[Callable[[GroupNode], None]]:
        return [
            *(self.kill, self.power_loss, self.crash_inside_a_call, self.crash_while_starting),
            *(self.stop_in_order, self.cut_off, self.pause),
            *(self.slow_disk, self.stall_disk, self.disk_error),
        ]

    def _victim(self) -> GroupNode:
        return self._cluster.nodes[self._random.choice(self._cluster.ids)]

    @property
    def names(self) -> list[str]:
        """The names of the kinds of faults that are on."""
        return ["groups", *(kind.__name__ for kind in self._kinds)]

    def start(self) -> None:
        """Start to inject faults."""
        self._is_on = True
        self._disturb()

    def end(self) -> None:
        """Stop all faults; what is down starts soon."""
        self._is_on = False
        self._cluster.cut.clear()
        self._crashes_at_start.clear()
        for node in self._cluster.nodes.values():
            node.resume()
            node.slow, node.stalled_until_us = 1, 0
            node.files.crash_at = None
            node.files.forgive()

    def _disturb(self) -> None:
        if not self._is_on:
            return
        node = self._victim()
        kind = self._random.choice(self._kinds)
        if node.is_up and node.node_id not in self._cluster.cut:
            self._say(f"{kind.__name__} {node.node_id}")
            kind(node)
        self._after(self._pause_ms, self._disturb)

    def _after(self, range_ms: tuple[int, int], action: Callable[[], object]) -> None:
        self._clock.after_ms(
            self._random.randint(*range_ms), lambda: action() if self._is_on else None
        )

    def start_nodes(self) -> None:
        """Start what has been down for long enough, as an operator would."""
        now_ms = self._clock.now_ms
        for node_id, node in self._cluster.nodes.items():
            if node.is_up:
                self._starts_ms.pop(node_id, None)
                continue
            due_ms = self._starts_ms.setdefault(node_id, now_ms + self._random.randint(*DOWN_MS))
            if now_ms < due_ms and self._is_on:
                continue
            del self._starts_ms[node_id]
            node.files.crash_at = None
            if node.files.is_off:
                node.files.restart()
            if node_id in self._crashes_at_start:
                self._crashes_at_start.discard(node_id)
                node.files.crash_at = node.files.calls + self._random.randint(*STARTING_CALLS)
            node.start()
            self._say(f"{node_id} starts{node.why_stopped and ': ' + node.why_stopped}")

    # -- kinds of faults --------------------------------------------------------------------------

    def kill(self, node: GroupNode) -> None:
        """End a process as kill -9 does."""
        node.stop(power=False, why="killed")

    def power_loss(self, node: GroupNode) -> None:
        """Lose what is not durable of a machine."""
        node.stop(power=True, why="lost its power")

    def crash_inside_a_call(self, node: GroupNode) -> None:
        """Stop a machine in the middle of one of its next calls of the file system."""
        node.files.crash_at = node.files.calls + self._random.randint(*CRASH_CALLS)

    def crash_while_starting(self, node: GroupNode) -> None:
        """Stop a machine, and again while it opens its groups."""
        self._crashes_at_start.add(node.node_id)
        node.stop(power=self._random.random() < 0.5, why="killed, and will crash again")

    def stop_in_order(self, node: GroupNode) -> None:
        """Stop a process as a real one stops: checkpoints, then the journal is closed."""
        life = node.life

        def checkpoint() -> None:
            for replica in node.replicas.values():
                replica.maintenance.checkpoint()

        def stop() -> None:
            if node.is_up and node.life == life:
                node.stop(power=False, why="stopped in order", closes=True)

        node.enter(checkpoint)
        self._clock.after_ms(CHECKPOINT_MS, stop)

    def cut_off(self, node: GroupNode) -> None:
        """Let nothing through to and from a machine for a while."""
        self._cluster.cut.add(node.node_id)
        self._after(CUT_MS, lambda: self._cluster.cut.discard(node.node_id))

    def pause(self, node: GroupNode) -> None:
        """Pause a process for a while; it then resumes with a state that is out of date."""
        node.pause()
        self._after(PAUSED_MS, node.resume)

    def slow_disk(self, node: GroupNode) -> None:
        """Make a machine's disk slower, or fast again."""
        node.slow = self._random.choice((1, 1, 20, 100))

    def stall_disk(self, node: GroupNode) -> None:
        """Let no write of a machine end for a while."""
        node.stalled_until_us = self._clock.now_us + self._random.randint(*STALLED_US)

    def disk_error(self, node: GroupNode) -> None:
        """Fail one of a machine's next writes or syncs."""
        node.files.fail(node.files.calls + self._random.randint(*ERROR_CALLS), "EIO")
