"""A well-behaved client beside hostile ones, in a process of its own: it checks every answer.

It appends and gets entries, produces records of Kafka's, reads all of them at the end, and asks for
/health, each at a steady pace; times are kept with when they were measured.
"""

import asyncio
import contextlib
import http.client
import multiprocessing
import ssl
import time
from collections import defaultdict
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from quorumlog.client import Client, Security
from quorumlog.client.connection import ServerConnection
from quorumlog.client.login import LoginOfClient
from quorumlog.model.block import encode_block
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import error_for
from quorumlog.model.limits import DEFAULT_LIMITS
from quorumlog.model.messages.client import AppendRequest, FetchRequest

SECONDS = 60
APPENDS_PER_S = 40
PRODUCES_PER_S = 20
HEALTH_S = 1.0
TOPIC = "good"
SIZE = 1_024


class Behaved(NamedTuple):
    """Times in seconds by what was asked, and how often it failed."""

    times: dict
    failed: dict

    def p99(self, what):
        """Return the 99th percentile in milliseconds."""
        ordered = sorted(self.times[what])
        return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] * 1_000 if ordered else 0.0

    @staticmethod
    def compared(one, other):
        """Return the percentiles of two, in words."""
        told = []
        for what in sorted(set(one.times) | set(other.times)):
            before, after = one.p99(what), other.p99(what)
            ratio = after / before if before else float("nan")
            lost = f", {len(other.failed[what])} failed" if other.failed[what] else ""
            told.append(f"{what} {before:.1f} → {after:.1f} ms ({ratio:.1f} x{lost})")
        return "; ".join(told)


class Watch:
    """What the client in the other process has met so far."""

    def __init__(self, pipe):
        self._pipe = pipe
        self._found = []
        self._verdict = ""

    def take(self):
        """Read what the client has written, which else stands still at some time."""
        while self._pipe.poll():
            what, content = self._pipe.recv()
            if what == "end":
                self._verdict = content
            else:
                self._found.append((what, *content))

    def since(self, begin):
        """Return what was measured since then."""
        self.take()
        times, failed = defaultdict(list), defaultdict(list)
        for what, at, seconds, error in self._found:
            if at >= begin:
                (failed if error else times)[what].append(error or seconds)
        return Behaved(times, failed)

    def during(self, seconds):
        """Return what is measured in so many seconds from now on."""
        begin = time.monotonic()
        while time.monotonic() < begin + seconds:
            self._pipe.poll(0.1)
            self.take()
        return self.since(begin)

    def finish(self):
        """Have the client end, and read what it has to say."""
        self._pipe.send("end")
        until = time.monotonic() + SECONDS
        while not self._verdict:
            assert time.monotonic() < until, "the well-behaved client does not end"
            self._pipe.poll(0.1)
            self.take()

    def verdict(self):
        """Return what the client has done, in words. Raises `AssertionError` if it was wronged."""
        assert self._verdict.startswith("all right"), self._verdict
        return self._verdict


class _Found(NamedTuple):
    index: int
    body: bytes = b""


class _PlainLog:
    """Logs in without TLS, which no `Client` does, and appends to the leader it is given."""

    def __init__(self, leader, who):
        self._leader, self._who, self._connection = leader, who, None

    async def _ask(self, request, *blocks):
        if self._connection is None or not self._connection.is_open:
            login = LoginOfClient(self._who)
            self._connection = ServerConnection(
                self._leader, "", DEFAULT_LIMITS, group="default", login=login
            )
            await self._connection.open(SECONDS)
        answer = await asyncio.wait_for(self._connection.request(request, blocks), SECONDS)
        if answer.response.code != ResponseCode.SUCCESS:
            raise error_for(answer.response.code, answer.response.text)
        return answer

    async def append(self, body):
        answer = await self._ask(AppendRequest(group="default", count=1), encode_block([body]))
        return _Found(answer.response.first_index)

    async def get(self, index):
        request = FetchRequest(group="default", begin_index=index, bytes_max=1)
        block = bytes((await self._ask(request)).attachment)
        return _Found(index, block[-SIZE:])

    async def close(self):
        if self._connection is not None:
            self._connection.close()


class _Client:
    def __init__(self, servers, brokers, admin, leader, who, files, pipe):
        self.servers, self.brokers, self.admin, self.leader = servers, brokers, admin, leader
        self.who, self.files, self.pipe = who, files, pipe
        self.context = None
        if files is not None:
            self.context = ssl.create_default_context(cafile=files[0])
            self.context.load_cert_chain(*files[1:])
        self.appended = self.healths = 0
        self.produced, self.wrong = [], []

    def note(self, what, begun, error=""):
        now = time.monotonic()
        self.pipe.send((what, (now, now - begun, error)))

    async def steadily(self, per_s, what, work):
        """Do something at a steady pace until told to end; a failure is noted."""
        number, due = 0, time.monotonic()
        while not self.is_over:
            due = max(due + 1 / per_s, time.monotonic() - 1)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            begun = time.monotonic()
            try:
                await work(number)
            except Exception as error:  # it is shown, and what is wrong is judged below
                self.note(what, begun, repr(error))
            else:
                self.note(what, begun)
            number += 1

    @property
    def is_over(self):
        return self.pipe.poll()

    def native(self):
        if self.files is None:
            return _PlainLog(self.leader, self.who)
        ca, certificate, key = self.files
        security = Security(ca=ca, certificate=certificate, key=key)
        return Client(self.servers, "default", security=security)

    def kafka(self):
        options = {"bootstrap_servers": self.brokers}
        if self.files is not None:
            return {**options, "security_protocol": "SSL", "ssl_context": self.context}
        return {
            **options,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": self.who.user,
            "sasl_plain_password": self.who.text,
        }

    async def append(self, client, number):
        body = f"entry {number} ".encode().ljust(SIZE, b"x")
        place = await client.append(body)
        found = await client.get(place.index)
        if bytes(found.body) != body:
            self.wrong.append(f"entry {place.index} is {bytes(found.body[:40])!r}")
        self.appended += 1

    async def produce(self, producer, number):
        body = f"record {number} ".encode().ljust(SIZE, b"x")
        found = await producer.send_and_wait(TOPIC, body)
        self.produced.append((found.offset, body))

    async def health(self, number):
        def ask():
            host, _, port = self.admin.rpartition(":")
            kind = http.client.HTTPConnection
            options = {"timeout": 20}
            if self.context is not None:
                kind, options = http.client.HTTPSConnection, options | {"context": self.context}
            with contextlib.closing(kind(host, int(port), **options)) as connection:
                connection.request("GET", "/health")
                answer = connection.getresponse()
                if b'"healthy": true' not in answer.read():
                    self.wrong.append(f"/health answers {answer.status}")
            self.healths += 1

        await asyncio.to_thread(ask)

    async def check_records(self):
        """Read all records; each that was acknowledged is at its offset."""
        consumer = AIOKafkaConsumer(TOPIC, auto_offset_reset="earliest", **self.kafka())
        await consumer.start()
        wanted = dict(self.produced)
        try:
            async with asyncio.timeout(SECONDS):
                while wanted:
                    record = await consumer.getone()
                    if wanted.pop(record.offset, record.value) != record.value:
                        self.wrong.append(f"record {record.offset} is another one")
        except TimeoutError:
            self.wrong.append(f"{len(wanted)} records cannot be read")
        finally:
            await consumer.stop()

    async def run(self):
        producer = AIOKafkaProducer(enable_idempotence=False, acks="all", **self.kafka())
        await producer.start()
        client = self.native()
        tasks = [
            self.steadily(PRODUCES_PER_S, "produce", lambda n: self.produce(producer, n)),
            self.steadily(1 / HEALTH_S, "health", self.health),
            self.steadily(APPENDS_PER_S, "append", lambda n: self.append(client, n)),
        ]
        await asyncio.gather(*tasks)
        await producer.stop()
        await client.close()
        await self.check_records()
        done = f"{self.appended:,} appends, {len(self.produced):,} records, {self.healths} healths"
        self.pipe.send(("end", f"WRONG {self.wrong[:3]}" if self.wrong else f"all right: {done}"))


def _run(*arguments):
    asyncio.run(_Client(*arguments).run())


@contextlib.contextmanager
def watched(cluster, who, files):
    """Run the client beside something; yields a `Watch`."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    admin = cluster.admin_address(cluster.node_ids[0])
    leader = cluster.address(cluster.leader("default"))
    places = (cluster.servers, cluster.bootstrap_servers, admin, leader)
    arguments = (*places, who, files, there)
    process = context.Process(target=_run, args=arguments, daemon=True)
    process.start()
    watch = Watch(here)
    try:
        assert here.poll(SECONDS), "the well-behaved client does not begin"
        yield watch
        watch.finish()
    finally:
        process.kill()
        process.join()
