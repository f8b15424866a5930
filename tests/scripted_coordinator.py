"""A scripted coordinator of durable consumers, and what their tests wait for."""

import asyncio

from quorumlog.errors import ConsumerFencedError
from quorumlog.model.entry import Entry
from quorumlog.model.messages.consumers import ConsumerHeartbeatResponse

SECONDS = 10
FENCED = ConsumerFencedError("removed")


class Coordinator:
    """Answers what the test says: assignments, or errors that are raised."""

    def __init__(self, *answers, committed=None):
        self.answers = list(answers)
        self.assigned = frozenset()
        self.epoch, self.session_ms = 0, 60_000
        self.interval_ms, self.rebalance_ms = 5, 60_000
        self.positions_of = dict(committed or {})
        self.beats, self.commits, self.left = [], [], 0
        self.refusals = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def heartbeat(self, epoch, owned):
        self.beats.append((epoch, frozenset(owned)))
        answer = self.answers.pop(0) if self.answers else self.assigned
        if isinstance(answer, Exception):
            raise answer
        if answer != self.assigned or not epoch:
            self.epoch += 1
        self.assigned = frozenset(answer)
        return ConsumerHeartbeatResponse(
            epoch=self.epoch,
            assigned=sorted(self.assigned),
            interval_ms=self.interval_ms,
            session_ms=self.session_ms,
            rebalance_ms=self.rebalance_ms,
        )

    async def positions(self):
        await self.may_answer.wait()
        return dict(self.positions_of)

    async def commit(self, positions, epoch):
        self.commits.append(dict(positions))
        if self.refusals:
            raise self.refusals.pop(0)
        if epoch != self.epoch:
            raise FENCED
        self.positions_of |= positions

    async def leave(self, timeout_ms):
        self.left += 1


def entry(index, channel=0):
    return Entry(index=index, term=1, pos=0, body=b"", channel=channel)


async def until(condition):
    """Wait until something holds that the member brings about by itself."""
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)


async def told(member, partitions):
    """Wait until a member has these partitions."""
    await until(lambda: member.partitions == frozenset(partitions))


async def zero():
    """Return where a log begins that is empty."""
    return 0
