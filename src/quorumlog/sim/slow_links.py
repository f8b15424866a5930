"""Links that are slow or stand still for a while, so that their outboxes fill.

The faults have a random source and times of their own, so that they do not change what else happens
in a run.
"""

from collections.abc import Callable, Collection
from random import Random
from typing import Protocol

from quorumlog.sim.links import Link
from quorumlog.sim.simulation_clock import SimulationClock

CHOSEN = 0.4
"""Share of runs in which links are slow."""
PAUSE_MS = (50, 1_500)
"""From one fault to the next."""
SLOW_MS = (200, 8_000)
PACES = (0, 0, 20, 200)
"""Bytes that a slow link takes in 10 ms; 0: it stands still."""
BULK_ALONE = 0.5
"""Share of faults that leave the link for votes and heartbeats as it is."""


class Network(Protocol):
    """The network of a cluster; see `Wires`."""

    paces: dict[Link, int]
    clock: SimulationClock

    @property
    def nodes(self) -> Collection[str]:
        """The ids of all nodes."""
        ...


class SlowLinks:
    """Makes links slow from `start` to `end`, if the run is chosen for it."""

    def __init__(self, network: Network, random: Random) -> None:
        self._network = network
        self._random = random
        self.are_chosen = random.random() < CHOSEN
        self.is_on = False
        self.happened: list[str] = []

    def start(self) -> None:
        """Start to make links slow."""
        if self.are_chosen:
            self.is_on = True
            self._after(PAUSE_MS, self._disturb)

    def end(self) -> None:
        """Let all links take everything at once again."""
        self.is_on = False
        self._network.paces.clear()

    def _after(self, range_ms: tuple[float, float], action: Callable[[], object]) -> None:
        delay_ms = self._random.uniform(*range_ms)
        self._network.clock.after_ms(delay_ms, lambda: action() if self.is_on else None)

    def _disturb(self) -> None:
        random, network = self._random, self._network
        one, two = random.sample(list(network.nodes), 2)
        pace = random.choice(PACES)
        links = [(one, two, True)]
        if random.random() >= BULK_ALONE:
            links.append((one, two, False))
        network.paces.update(dict.fromkeys(links, pace))
        self.happened.append(f"{network.clock.now_ms} ms {one} to {two}: {pace} bytes a step")
        self._after(SLOW_MS, lambda: [network.paces.pop(link, None) for link in links])
        self._after(PAUSE_MS, self._disturb)
