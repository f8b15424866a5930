"""Followers of a log and of keys, of every kind, beside a producer, while a test hurts the cluster.

The producer stores commands `key = number`. Whatever happens meanwhile, each follower must have
seen every number once and in order, and have raised nothing.
"""

import asyncio
import base64
import itertools
import json
import sys
from contextlib import aclosing

from quorumlog.client import KV, Client, Producer, SyncClient, SyncKV
from quorumlog.machine.kv_commands import Put, Transaction, decode_command, encode_command

TIMEOUT_MS = 60_000
"""Beyond every outage of the tests, also on a busy machine."""
COUNT = 800
"""Entries in all: some before, some during and some after what a test does."""
PAUSE_S = 0.005
"""Between two entries; it spreads them over what a test does, nothing waits for it."""
END_S = 60.0


def command_of(number):
    return encode_command(Transaction(then=(Put(b"key", b"%d" % number),)))


def number_of(body):
    (put,) = decode_command(body).then
    return int(put.value)


class Following:
    """`async with Following(servers) as load:` starts everything; `await load.verify()` ends it."""

    def __init__(self, servers, group="g", count=COUNT):
        self.servers = servers
        self.group = group
        self.count = count
        self.seen = {}
        self.sent = 0
        self._followers = []
        self._producing = None
        self._loop = None
        self._progress = asyncio.Condition()

    async def __aenter__(self):
        jobs = {
            "read from the leader": self._read(leader_only=True),
            "read from anyone": self._read(leader_only=False),
            "read linearizable": self._read(leader_only=False, linearizable=True),
            "watch": self._watch(),
            "sync read": self._in_thread(self._sync_read),
            "sync watch": self._in_thread(self._sync_watch),
            "tail": self._command("tail", "--follow", field="body_base64", of=number_of),
            "kv watch": self._command("kv", "watch", field="value_base64", of=int),
        }
        self._loop = asyncio.get_running_loop()
        self.seen = {name: [] for name in jobs}
        self._followers = [
            asyncio.create_task(self._note(name, job), name=name) for name, job in jobs.items()
        ]
        self._producing = asyncio.create_task(self._produce(), name="producer")
        return self

    async def __aexit__(self, kind, error, trace):
        for task in (*self._followers, self._producing):
            task.cancel()
        await asyncio.gather(*self._followers, self._producing, return_exceptions=True)

    async def _note(self, name, numbers):
        async with aclosing(numbers):
            async for number in first_of(numbers, self.count):
                self.seen[name].append(number)
                async with self._progress:
                    self._progress.notify_all()

    async def _produce(self):
        """Send entries one after the other; each is stored once, whatever happens."""
        async with Producer(self.servers, self.group, delivery_timeout_ms=TIMEOUT_MS) as producer:
            for number in range(self.count):
                await producer.send(command_of(number))
                async with self._progress:
                    self.sent = number + 1
                    self._progress.notify_all()
                await asyncio.sleep(PAUSE_S)

    async def under_way(self):
        """Wait until a quarter is sent, and every follower has seen some of it."""

        def is_under_way():
            return self.sent >= self.count // 4 and all(self.seen.values())

        async with asyncio.timeout(END_S), self._progress:
            await self._progress.wait_for(is_under_way)

    async def verify(self):
        """Wait for the end of all, and compare what each saw; raise what any of them raised."""
        tasks = [self._producing, *self._followers]
        _, waiting = await asyncio.wait(tasks, timeout=END_S, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
        assert not waiting, f"no end after {END_S:g} s: {[task.get_name() for task in waiting]}"
        expected = list(range(self.count))
        for name, seen in self.seen.items():
            assert seen == expected, f"{name}: {differences(seen, self.count)}"

    # -- followers --------------------------------------------------------------------------

    def _client(self):
        return Client(self.servers, self.group, timeout_ms=TIMEOUT_MS)

    async def _read(self, **options):
        async with self._client() as client, aclosing(client.read(**options)) as entries:
            async for entry in entries:
                yield number_of(entry.body)

    async def _watch(self):
        async with self._client() as client, aclosing(KV(client).watch(first_index=0)) as events:
            async for event in events:
                yield int(event.value)

    async def _in_thread(self, follow):
        """Yield what a thread finds; it ends by itself after so many."""
        found = asyncio.Queue()

        def work():
            for number in itertools.islice(follow(), self.count):
                self._loop.call_soon_threadsafe(found.put_nowait, number)

        working = asyncio.ensure_future(asyncio.to_thread(work))
        while True:
            taking = asyncio.ensure_future(found.get())
            await asyncio.wait([working, taking], return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                taking.cancel()
                await working
                return
            yield taking.result()

    def _sync_read(self):
        with SyncClient(self.servers, self.group, timeout_ms=TIMEOUT_MS) as client:
            for entry in client.read():
                yield number_of(entry.body)

    def _sync_watch(self):
        with SyncKV(self.servers, self.group, timeout_ms=TIMEOUT_MS) as kv:
            for event in kv.watch(first_index=0):
                yield int(event.value)

    async def _command(self, *command, field, of):
        begin = "0" if command[0] == "kv" else "earliest"
        where = ["--servers", self.servers, "--group", self.group, "--json", "--from", begin]
        options = ["--count", str(self.count), "--timeout", str(TIMEOUT_MS // 1_000)]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "quorumlog", *command, *where, *options),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            while line := await process.stdout.readline():
                yield of(base64.b64decode(json.loads(line)[field]))
            assert await process.wait() == 0, (await process.stderr.read()).decode()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def first_of(items, count):
    """Yield so many."""
    left = count
    async for item in items:
        yield item
        left -= 1
        if not left:
            return


def differences(seen, count):
    missing = sorted(set(range(count)) - set(seen))
    doubled = sorted(number for number in set(seen) if seen.count(number) > 1)
    return f"{len(seen)} seen, missing {missing[:10]}, doubled {doubled[:10]}"
