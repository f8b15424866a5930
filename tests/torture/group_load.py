"""Consumer groups that read a topic beside all else that happens to brokers."""

import asyncio
import random
from collections import Counter

from torture.brokers import SETTLE_S, counted
from torture.group_history import TOLD_MAX
from torture.group_members import QUICK
from torture.kafka_groups import Group, alter, look, until_committed, until_owned

KINDS = ("range", "sticky", "cooperative-sticky", "consumer")
MEMBERS = 5
PAUSE_S = (1.0, 6.0)
LOOK_S = 1.0
"""Pause between two questions for committed offsets, which are many."""


class GroupLoad:
    """Groups of each kind with this number of members, which come, go, die and stall.

    As disks may be full, groups go on unsaved: another coordinator may then begin a generation of
    the same number, so that owners are judged by times alone.
    """

    def __init__(self, brokers, topic, partitions, seed):
        self.topics = []
        self.done = Counter()
        self._brokers, self._partitions, self._seed = brokers, partitions, seed
        self._topic = topic
        self._random = random.Random(f"{seed} groups")
        self._stopping, self._looked = asyncio.Event(), asyncio.Event()
        self._groups, self._working = [], []

    async def begin(self):
        """Have all members join."""
        servers = self._brokers.bootstrap_servers
        await asyncio.to_thread(alter, servers, QUICK)
        self._groups += [Group(servers, kind, self._topic, None, self._seed) for kind in KINDS]
        for group in self._groups:
            for _ in range(MEMBERS):
                group.start()
        self._working += [
            asyncio.ensure_future(self._disturb()),
            asyncio.ensure_future(look(self._brokers, self._groups, self._looked, LOOK_S)),
        ]

    async def _disturb(self):
        events = (self._join, self._leave, self._leave, self._kill, self._kill, self._stall)
        while not self._stopping.is_set():
            await asyncio.sleep(self._random.uniform(*PAUSE_S))
            group = self._random.choice(self._groups)
            group.check()
            while len(group.members) < MEMBERS - 1:
                await self._join(group)
            await self._random.choice(events)(group)

    async def _join(self, group):
        self.done["members joined"] += 1
        group.start()

    async def _leave(self, group):
        self.done["members left"] += 1
        one = group.members.pop(self._random.randrange(len(group.members)))
        await one.leave()

    async def _kill(self, group):
        if group.processes:
            self.done["members killed"] += 1
            one = self._random.choice(group.processes)
            group.members.remove(one)
            await one.kill()

    async def _stall(self, group):
        self.done["members stalled"] += 1
        await self._random.choice(group.members).stall()

    def check(self):
        """Raise what has failed meanwhile."""
        for one in self._working:
            if one.done():
                one.result()

    async def calm(self):
        """Let members stay as they are, and wait until each partition has one owner."""
        self._stopping.set()
        await self._working[0]
        owned_s = await until_owned(self._groups, self._partitions)
        print(f"groups: all partitions owned {owned_s:.1f} s later")

    async def judge(self):
        """Have all members leave, once all is committed. Raises `AssertionError`."""
        found = []
        for group in self._groups:
            ends = await asyncio.to_thread(until_committed, group, self._partitions)
            await asyncio.gather(*(one.leave() for one in group.members))
            group.members.clear()
            told = [*group.faults, *group.history.faults(ends, has_generations=False)]
            found += [f"{group.name}: {one}" for one in told]
        self._looked.set()
        await asyncio.wait_for(self._working[1], SETTLE_S)
        if found:
            raise AssertionError("\n".join([*found[:TOLD_MAX], f"{len(found)} faults in all"]))

    def tell(self):
        """Print what there was."""
        print(f"groups: {counted(self.done)}")
        for group in self._groups:
            print(f"  {group.name}: {counted(group.history.counts() | dict(group.done))}")

    def end(self):
        """End all members: the run is over."""
        for one in self._working:
            one.cancel()
        for group in self._groups:
            lines = [f"{line}\n" for line in group.history.told]
            (self._brokers.directory / f"{group.name}.told").write_text("".join(lines))
            for member in group.members:
                member.end()
