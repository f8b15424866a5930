"""Nodes that are asked to stop: they transfer leadership, answer open requests, and close.

The steps are those of a real node (`Node.stop`). They draw from a random source of their own, so
that runs in which no node is asked to stop are not changed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from quorumlog.model.codes import Role
from quorumlog.model.wording import counted
from quorumlog.node.node import FLUSH_MS, PREPARE_STOP_MS, PREPARE_STOP_STEP_MS
from quorumlog.sim.finding import Finding

if TYPE_CHECKING:
    from quorumlog.sim.cluster import SimulatedCluster
    from quorumlog.sim.node import SimulatedNode

PAUSE_MS = (100, 2_500)
"""From one stop to the next."""
RESTART_MS = (1, 2_000)
LEADERS = 0.7
"""Share of stops that stop the leader."""


@dataclass(slots=True)
class _Stop:
    """One stop of one life of a node; `is_prepared`: it serves no more and writes a checkpoint."""

    node: "SimulatedNode"
    life: int
    deadline_ms: int
    is_prepared: bool = False
    is_recorded: bool = False

    @property
    def is_over(self) -> bool:
        """Whether the process ended, whoever ended it."""
        return not self.node.is_up or self.node.life != self.life


class CleanStops:
    """Stops one node after the other until `end` is called; `start` starts a node again."""

    def __init__(
        self, cluster: "SimulatedCluster", start: "Callable[[SimulatedNode], None]", random: Random
    ) -> None:
        self._cluster = cluster
        self._start_node = start
        self._random = random
        self._stop: _Stop | None = None
        self.is_on = False
        self.happened: list[str] = []

    def start(self) -> None:
        """Start to stop nodes."""
        self.is_on = True
        self._after(PAUSE_MS, self._begin)

    def end(self) -> None:
        """Stop no more; a node that is about to stop ends at once, as it would never lead again."""
        self.is_on = False
        if self._stop is not None and not self._stop.is_over:
            self._stop.node.stop(power=False, why="killed while it was about to stop")

    def _after(self, range_ms: tuple[float, float], action: Callable[[], None]) -> None:
        delay_ms = self._random.uniform(*range_ms)
        self._cluster.clock.after_ms(delay_ms, lambda: action() if self.is_on else None)

    def _begin(self) -> None:
        """Ask a node to stop, mostly the leader."""
        leader, random = self._cluster.leader(), self._random
        up = [node for node in self._cluster.nodes.values() if node.is_up and not node.is_paused]
        if not up:
            self._after(PAUSE_MS, self._begin)
            return
        node = random.choice(up)
        if leader is not None and leader in up and random.random() < LEADERS:
            node = leader
        now_ms = self._cluster.clock.now_ms
        self._stop = stop = _Stop(node, node.life, now_ms + PREPARE_STOP_MS)
        self.happened.append(f"{now_ms} ms {node.node_id} ({node.core.role.value}) is to stop")
        node.enter(node.running.prepare_stop)
        self._check_later(stop)

    def _check_later(self, stop: _Stop) -> None:
        def check() -> None:
            if self.is_on:
                self._check(stop)

        self._cluster.clock.after_ms(PREPARE_STOP_STEP_MS, check)

    def _check(self, stop: _Stop) -> None:
        """Go on with a stop as far as it may."""
        if not stop.is_over and not stop.node.is_paused and not stop.node.running.is_broken:
            self._go_on(stop)
        if stop.is_over:
            self._after(PAUSE_MS, self._begin)
        else:
            self._check_later(stop)

    def _go_on(self, stop: _Stop) -> None:
        node, now_ms = stop.node, self._cluster.clock.now_ms
        replica, is_late = node.running, now_ms >= stop.deadline_ms
        if not stop.is_prepared and (replica.may_stop or is_late):
            if not is_late:
                self._require_answered(node)
            stop.is_prepared, stop.deadline_ms, is_late = True, now_ms + FLUSH_MS, False
        if stop.is_prepared and not stop.is_recorded:
            is_durable = replica.core.durable_index >= replica.log.end_index
            if (is_durable and not replica.maintenance.is_busy) or is_late:
                stop.is_recorded = True
                node.enter(replica.maintenance.checkpoint)
        elif stop.is_prepared and (not replica.maintenance.is_busy or is_late):
            node.stop(power=False, why="stopped in order", closes=True)
            self._after(RESTART_MS, lambda: self._start_node(node))

    def _require_answered(self, node: "SimulatedNode") -> None:
        """Raise `Finding` if a node that need not wait any more owes answers to appends.

        A leader that cannot reach a majority need not answer: no other node could lead either.
        """
        replica, owed = node.running, node.unanswered
        is_hopeless = replica.core.role is Role.LEADER and not replica.core.may_commit
        is_excused = is_hopeless or replica.health_text
        self.happened.append(f"{self._cluster.clock.now_ms} ms {node.node_id} may stop")
        if owed and not is_excused:
            raise Finding(
                "clean_stop",
                f"{node.node_id} may stop, and owes {counted(owed, 'append')} an answer",
            )
