"""Faults that happen to brokers at random times: kills, and all else one by one beside them."""

import asyncio
import contextlib
import random
import signal
from collections import Counter

from quorumlog import Client
from quorumlog.model.errors import QuorumlogError

HOUR_S = 3_600
USUAL = ("freeze", "transfer", "transfer", "clocks", "cut", "cut")
"""What happens beside kills, by the names of methods of `Nemesis`; twice: it is as frequent."""
ALL = (*USUAL, "flap", "flap", "fill", "flip", "roll")
NETWORKS = {"cut", "flap"}
LEFT_BYTES = (24 << 20, 8 << 20, 64 << 10, 0)
"""What is left of a disk that is full, all less than the reserve that nodes keep."""
FLAP_S = (0.05, 0.2)


class Nemesis:
    """Kills and, beside that, other faults; all of them end when `stopping` is set."""

    def __init__(self, brokers, seed, faults=USUAL, kill_pauses=(2, 4)):
        self.brokers = brokers
        self.stopping = asyncio.Event()
        self.done = Counter()
        self._kill_pauses = kill_pauses
        self._kills, self._others = (random.Random(f"{seed} {kind}") for kind in ("kills", "rest"))
        has_network = brokers.network is not None
        self._faults = [getattr(self, one) for one in faults if has_network or one not in NETWORKS]

    async def run(self):
        await asyncio.gather(self._kill_often(), self._hurt_otherwise())
        if self.brokers.network is not None:
            self.brokers.network.heal()

    async def pause(self, seconds):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), seconds)

    async def _kill_often(self):
        generator, restarts = self._kills, set()
        while not self.stopping.is_set():
            await self.pause(generator.uniform(*self._kill_pauses))
            victim, down_s = generator.choice(self.brokers.ids), generator.uniform(1, 5)
            loses_power, loses_majority = (generator.random() < share for share in (0.5, 0.1))
            if not self._may_end(victim, loses_majority) or self.stopping.is_set():
                continue
            self.done["power lost" if loses_power else "killed"] += 1
            self.brokers.kill(victim)
            if loses_power:
                await asyncio.to_thread(self.brokers.lose_power, victim, generator)
            restart = asyncio.ensure_future(self._restart(victim, down_s))
            restarts.add(restart)
        await asyncio.gather(*restarts)

    def _may_end(self, victim, loses_majority=False):
        """Whether a node has started, and a majority is left without it, if there must be one."""
        up = [node_id for node_id in self.brokers.ids if self.brokers.has_started(node_id)]
        is_kept = 2 * (len(up) - 1) > len(self.brokers.ids)
        return victim in up and (is_kept or loses_majority)

    async def _restart(self, node_id, seconds):
        await self.pause(seconds)
        self.brokers.start(node_id)

    async def _hurt_otherwise(self):
        generator = self._others
        while not self.stopping.is_set():
            await self.pause(generator.uniform(0.5, 3))
            fault = generator.choice(self._faults)
            self.done[fault.__name__] += 1
            await fault(generator)

    # -- faults, each by a name of its own ------------------------------------------------------

    async def freeze(self, generator):
        victim = generator.choice(self.brokers.ids)
        self.brokers.signal(victim, signal.SIGSTOP)
        await self.pause(3)
        self.brokers.signal(victim, signal.SIGCONT)

    async def cut(self, generator):
        network = self.brokers.network
        first, second = generator.sample(self.brokers.ids, 2)
        network.cut(first, second)
        if generator.random() < 0.7:
            network.cut(second, first)
        await self.pause(3)
        network.heal()

    async def flap(self, generator):
        """A slow link: for some seconds what a node sends is lost every other moment."""
        network = self.brokers.network
        victim = generator.choice(self.brokers.ids)
        others = [node_id for node_id in self.brokers.ids if node_id != victim]
        for _ in range(20):
            for change in (network.cut, network.join):
                for other in others:
                    change(victim, other)
                await self.pause(generator.uniform(*FLAP_S))
        network.heal()

    async def clocks(self, generator):
        victim = generator.choice(self.brokers.ids)
        self.brokers.wrong_by(victim, generator.choice((-HOUR_S, -5, 0, 5, HOUR_S)))

    async def transfer(self, generator):
        group, target = generator.choice(self.brokers.groups), generator.choice(self.brokers.ids)
        async with Client(self.brokers.servers, group, timeout_ms=3_000) as client:
            with contextlib.suppress(QuorumlogError):
                await client.admin.transfer(target)
                self.done["leaders transferred"] += 1

    async def fill(self, generator):
        """A disk is full for some seconds."""
        victim = generator.choice(self.brokers.ids)
        self.brokers.fill_disk(victim, generator.choice(LEFT_BYTES))
        await self.pause(5)
        self.brokers.empty_disk(victim)

    async def flip(self, generator):
        """A bit flips in a data file that is full, of whichever replica has one.

        Only one node's files are damaged in a run: what all replicas have lost nobody can repair.
        """
        group = generator.choice(self.brokers.partition_groups)
        victim = self.brokers.members(group)[0]
        files = sorted((self.brokers.store(victim, group) / "data").iterdir())[:-2]
        if not files:
            return
        with contextlib.suppress(FileNotFoundError), generator.choice(files).open("r+b") as file:
            place = generator.randrange(file.seek(0, 2))
            file.seek(place)
            (byte,) = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ 1 << generator.randrange(8)]))
            self.done["bits flipped"] += 1

    async def roll(self, _):
        """All nodes are stopped and started again, one after the other."""
        for node_id in self.brokers.ids:
            if self.stopping.is_set() or not self._may_end(node_id):
                continue
            await asyncio.to_thread(self.brokers.stop_one(node_id))
            self.brokers.start(node_id)
            while self.brokers.is_up(node_id) and not self.brokers.has_started(node_id):
                await self.pause(0.1)
            self.done["nodes restarted"] += 1
