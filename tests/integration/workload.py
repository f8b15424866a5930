"""Clients that append and read all the time while a test hurts the cluster, all recorded."""

import asyncio
import contextlib
import time

from integration.history import Fate, Read, Recorder, check
from quorumlog.client import Client
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import RequestError

APPENDERS = 4
THINK_S = 0.005
"""What an appender does between two appends; it bounds the load, nothing waits for it."""
OUTAGE_S = 0.05
"""Pause before a reader tries again, and between looks at the replicas."""
READ_PAUSE_S = 0.05
"""What a linearizable reader does between two reads; less than a heartbeat."""
SETTLE_S = 60.0


class Workload:
    """Appenders, a follower of the log and a linearizable reader, each with a client of its own.

    `async with Workload(servers) as load:` runs them; `await load.verify()` then ends them, waits
    until the replicas agree, reads each of them whole and checks the history.
    """

    def __init__(self, servers, group="g", *, timeout_ms=2_000, read_pause_s=READ_PAUSE_S):
        self.recorder = Recorder()
        self.servers = servers
        self._group = group
        self._timeout_ms = timeout_ms
        self._read_pause_s = read_pause_s
        self._progress = asyncio.Event()
        self._stopping = asyncio.Event()
        self._tasks = []

    @property
    def history(self):
        return self.recorder.history

    def client(self, servers=None, **options):
        options = {"timeout_ms": self._timeout_ms, **options}
        return Client(servers or self.servers, self._group, **options)

    async def __aenter__(self):
        jobs = [self._append(f"a{number}") for number in range(APPENDERS)]
        jobs += [self._follow("follower"), self._linearizable("linearizable")]
        self._tasks = [asyncio.ensure_future(job) for job in jobs]
        return self

    async def __aexit__(self, kind, error, trace):
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _append(self, name):
        number = 0
        async with self.client() as client:
            while not self._stopping.is_set():
                record = await self.recorder.append(client, f"{name}-{number}".encode())
                number += 1
                if record.fate is Fate.ACKNOWLEDGED:
                    self._progress.set()
                await asyncio.sleep(THINK_S)

    async def _follow(self, name):
        """Read everything, from whichever replica answers; go on where an outage left it."""
        read = Read(name, 0)
        self.history.reads.append(read)
        async with self.client() as client:
            while not self._stopping.is_set():
                with contextlib.suppress(RequestError):
                    await self.recorder.read(
                        client, name, into=read, follow=True, leader_only=False
                    )
                await asyncio.sleep(OUTAGE_S)

    async def _linearizable(self, name):
        async with self.client() as client:
            while not self._stopping.is_set():
                with contextlib.suppress(RequestError):
                    await self.recorder.bound(client, name, leader_only=False)
                await asyncio.sleep(self._read_pause_s)

    async def acknowledged_after(self, count=1, *, seconds=60.0):
        """Wait for `count` acknowledgements of appends that begin after now; return the last."""
        started = self.recorder.clock()
        seen = len(self.history.appends)
        async with asyncio.timeout(seconds):
            while True:
                self._progress.clear()
                fresh = [
                    append
                    for append in self.history.appends[seen:]
                    if append.fate is Fate.ACKNOWLEDGED and append.invoked >= started
                ]
                if len(fresh) >= count:
                    return max(fresh, key=lambda append: append.completed)
                await self._progress.wait()

    async def verify(self, servers=None, *, least=100):
        """End the clients, wait until these replicas agree, and check what everybody saw.

        At least `least` appends must have been acknowledged, or the history would say nothing.
        """
        self._stopping.set()
        *ending, follower, _ = self._tasks
        follower.cancel()
        await asyncio.gather(*ending)
        addresses = (servers or self.servers).split(",")
        started = time.monotonic()
        await self.until_agreed(addresses)
        print(f"the replicas agreed {time.monotonic() - started:.2f} s after the last append")
        final = None
        for address in addresses:
            async with self.client(address) as client:
                final = await self.recorder.read(client, address, leader_only=False)
        check(self.history, final)
        assert self.history.fates()[Fate.ACKNOWLEDGED] >= least
        return final

    async def until_agreed(self, addresses, seconds=SETTLE_S):
        """Wait until these replicas hold the same log, all of it committed."""
        states = []
        async with self.client(addresses) as client:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while True:
                        found = [s for s in await client.status() if s.address in addresses]
                        states = [state_of(status) for status in found]
                        if len(states) == len(addresses) and len(set(states)) == 1:
                            code, end, committed, _ = states[0]
                            if code == ResponseCode.SUCCESS and end == committed:
                                return
                        await asyncio.sleep(OUTAGE_S)
        raise AssertionError(f"after {seconds:g} s the replicas do not agree: {states}")


def state_of(status):
    return status.code, status.end_index, status.committed_index, status.committed_chain_crc
