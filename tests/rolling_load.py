"""Appends to a group and reads it until standard input ends: a client of whichever release runs it.

Usage: rolling_load.py NAME SERVERS GROUP [CONTEXT]

With the name of a context it is used in place of SERVERS.

Prints a line with the number of each entry that was acknowledged, then all that it knows as JSON.
"""

import asyncio
import json
import sys
import time

from quorumlog import Client, Producer

PAUSE_S = 0.05
READ_S = 30.0


class Load:
    """What was appended and read."""

    def __init__(self, name):
        self.name = name
        self.indexes = {}
        self.read = []
        self.slowest_s = 0.0
        self._is_over = asyncio.Event()
        self._has_come = asyncio.Event()

    def end(self):
        self._is_over.set()

    async def append(self, producer):
        async with asyncio.TaskGroup() as group:
            number = 0
            while not self._is_over.is_set():
                delivery = await producer.send(f"{self.name} {number}".encode())
                group.create_task(self._acknowledged(number, delivery, time.monotonic()))
                number += 1
                await asyncio.sleep(PAUSE_S)

    async def _acknowledged(self, number, delivery, begun):
        at = await delivery
        self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
        self.indexes[number] = at.index
        print(number, flush=True)

    async def follow(self, client):
        async for entry in client.read():
            name, _, number = entry.body.decode().partition(" ")
            if name == self.name:
                self.read.append((int(number), entry.index))
                self._has_come.set()

    async def has_read_all(self):
        while len(self.read) < len(self.indexes):
            self._has_come.clear()
            await self._has_come.wait()

    async def run(self, servers, group):
        async with Client(servers, group) as client, Producer(client) as producer:
            reader = asyncio.create_task(self.follow(client))
            await self.append(producer)
            async with asyncio.timeout(READ_S):
                await self.has_read_all()
            reader.cancel()
        report = {"indexes": self.indexes, "read": self.read, "slowest_s": self.slowest_s}
        print(json.dumps(report), flush=True)


async def main(name, servers, group, context=""):
    load = Load(name)
    if context:
        from quorumlog.client import find_context  # noqa: PLC0415  (earlier releases have none)

        servers = find_context(context)
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), load.end)  # it ends, or anything comes
    await load.run(servers, group)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
