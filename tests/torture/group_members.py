"""Members of consumer groups: processes with librdkafka, tasks with aiokafka.

Each writes a `GroupHistory`, and can be told to stall, to leave and, if it is a process, be killed.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import KafkaError

from kafka_load import Job

PROGRAM = Path(__file__).with_name("group_member.py")
SESSION_MS, POLL_MS, HEARTBEAT_MS = 8_000, 10_000, 1_000
STALL_S = 13.0
"""Beyond the time in which a member must poll, after which it is to leave."""
COMMIT_S = 0.3
POLLED_S = 2.0
ENDED_S = 60.0
QUICK = {
    "group.min.session.timeout.ms": 500,
    "group.initial.rebalance.delay.ms": 500,
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.session.timeout.ms": SESSION_MS,
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.consumer.heartbeat.interval.ms": HEARTBEAT_MS,
}
"""Configs of the cluster, so that nothing takes as long as it usually does."""
CLASSIC = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
BY_LIBRDKAFKA = {
    "range": {**CLASSIC, "partition.assignment.strategy": "range"},
    "roundrobin": {**CLASSIC, "partition.assignment.strategy": "roundrobin"},
    "cooperative-sticky": {**CLASSIC, "partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
    "consumer-range": {"group.protocol": "consumer", "group.remote.assignor": "range"},
}
"""What members of each kind of group are told; the last two are of the consumer protocol."""
BY_AIOKAFKA = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}
KINDS = tuple(dict.fromkeys([*BY_LIBRDKAFKA, *BY_AIOKAFKA]))


class CallCancelledError(KafkaError):
    """aiokafka has cancelled a call itself, as it joins again or reconnects."""


async def asked(call):
    """Await a call of aiokafka.

    Raises `CallCancelledError` instead of `CancelledError` if nobody has cancelled this task.
    """
    try:
        return await call
    except asyncio.CancelledError:
        if asyncio.current_task().cancelling():
            raise
        raise CallCancelledError from None


class ProcessMember:
    """A member of librdkafka in a process of its own."""

    def __init__(self, name, group, instance_id=None):
        self.name, self.instance_id = name, instance_id
        self.is_wanted = True
        self._group = group
        self._leaving_s = None
        consumer = {
            "bootstrap.servers": group.servers,
            "group.id": group.name,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "max.poll.interval.ms": POLL_MS,
            "topic.metadata.refresh.interval.ms": 2_000,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
            **BY_LIBRDKAFKA[group.kind],
        }
        if instance_id is not None:
            consumer["group.instance.id"] = instance_id
        settings = {"topic": group.topic, "target": group.target, "consumer": consumer}
        command = [sys.executable, str(PROGRAM), json.dumps(settings)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe)
        self._reading = Job(self._read)

    def _read(self):
        with contextlib.closing(self._process.stdout):
            for line in self._process.stdout:
                if line.endswith(b"\n"):  # one that was killed may have begun a line
                    self._note(json.loads(line))

    def _note(self, told):
        history, name, what, at_s = self._group.history, self.name, told["is"], told["at"]
        if what == "assigned":
            partitions, added = told["partitions"], told["added"]
            generation, owner = told["generation"], self.instance_id
            history.assigned(name, at_s, generation, partitions, added, owner)
        elif what in ("revoked", "lost"):
            history.revoked(name, at_s, told["partitions"], is_lost=what == "lost")
        elif what == "committing":
            history.committing(name, {int(one): span for one, span in told["ranges"].items()})
        elif what == "committed":
            history.committed(name, at_s, told["partitions"])
            history.noted(name, at_s, f"has committed {len(told['partitions'])} partitions")
        elif what == "leaving":
            self._leaving_s = at_s
        elif what == "fault":
            self._group.faults.append(f"{name}: {told['text']}")
            history.noted(name, at_s, told["text"])
        elif what in ("error", "refused"):
            self._group.done[f"{what}: {told['code']}"] += 1
            history.noted(name, at_s, f"{what}: {told['code']}")

    @property
    def has_ended(self):
        """Whether it is no more, though nobody has told it to leave."""
        return self.is_wanted and self._process.poll() is not None

    async def stall(self):
        """Let it not poll for longer than it may."""
        self._tell(f"stall {STALL_S}")

    def _tell(self, line):
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    async def leave(self):
        """Have it leave, and wait until it has."""
        self.is_wanted = False
        self._tell("leave")
        status = await asyncio.to_thread(self._process.wait, ENDED_S)
        await self._has_been_read()
        if self._leaving_s is not None:  # librdkafka may leave without a call about what it had
            self._group.history.ended(self.name, self._leaving_s)
        if status:
            self._group.faults.append(f"{self.name} ended with status {status}")

    async def kill(self):
        """End it, whatever it does."""
        self.is_wanted = False
        at_s = time.monotonic()
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        await self._has_been_read()
        self._group.history.ended(self.name, at_s)

    async def _has_been_read(self):
        await asyncio.to_thread(self._reading.result, ENDED_S)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def end(self):
        """End it without waiting for what it says: the run is over."""
        self._process.kill()


class TaskMember(ConsumerRebalanceListener):
    """A member of aiokafka, in a task of this process."""

    instance_id = None

    def __init__(self, name, group):
        self.name = name
        self.is_wanted, self._has_left = True, False
        self._group = group
        self._ranges = {}
        self._owned = set()
        self._assignments = 0
        self._stalled_until_s = 0
        self._committing = asyncio.Lock()
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=group.servers,
            group_id=group.name,
            client_id=name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_interval_ms=POLL_MS,
            rebalance_timeout_ms=POLL_MS,
            metadata_max_age_ms=2_000,
            partition_assignment_strategy=(BY_AIOKAFKA[group.kind],),
        )
        self._producer = None
        if group.target is not None:
            self._producer = AIOKafkaProducer(
                bootstrap_servers=group.servers, enable_idempotence=True
            )
        self._working = asyncio.create_task(self._work())

    async def _work(self):
        await self._insist(self._consumer.start)
        if self._producer is not None:
            await self._insist(self._producer.start)
        self._consumer.subscribe([self._group.topic], listener=self)
        commit_s = 0
        while self.is_wanted:
            await asyncio.sleep(max(0, self._stalled_until_s - time.monotonic()))
            found, before = await self._polled(), self._assignments
            async with self._committing:
                if before == self._assignments:
                    await self._take(found)
                if time.monotonic() >= commit_s:
                    commit_s = time.monotonic() + COMMIT_S
                    await self._commit()

    async def _polled(self):
        """Return what was read; without an assignment aiokafka would wait for one."""
        try:
            call = asyncio.wait_for(self._consumer.getmany(timeout_ms=100), POLLED_S)
            return await asked(call)
        except (TimeoutError, CallCancelledError):
            return {}

    async def _insist(self, start):
        """Start a client; brokers may be down."""
        deadline = time.monotonic() + ENDED_S
        while True:
            try:
                return await asked(start())
            except KafkaError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)

    async def _take(self, found):
        sent = []
        for place, records in found.items():
            one = place.partition
            begin, end = self._ranges.get(one, (records[0].offset,) * 2)
            if records[0].offset != end:
                text = f"{self.name}: {one}@{records[0].offset} was consumed after {end}"
                self._group.faults.append(text)
            if self._producer is not None:
                for record in records:
                    call = self._producer.send(self._group.target, record.value, partition=one)
                    sent.append(await call)
            self._ranges[one] = begin, records[-1].offset + 1
        if sent:
            await asyncio.gather(*sent)

    async def _commit(self):
        ranges = {one: span for one, span in self._ranges.items() if one in self._owned}
        if not ranges:
            return
        self._group.history.committing(self.name, ranges)
        ends = {TopicPartition(self._group.topic, one): end for one, (_, end) in ranges.items()}
        try:
            await asked(self._consumer.commit(ends))
        except KafkaError as error:
            self._group.done[f"refused: {type(error).__name__}"] += 1
            return
        self._group.history.committed(self.name, time.monotonic(), list(ranges))
        for one in ranges:
            self._ranges.pop(one, None)

    # -- rebalances -----------------------------------------------------------------------------

    async def on_partitions_revoked(self, revoked):
        """See `ConsumerRebalanceListener`."""
        gone = sorted(one.partition for one in revoked)
        async with self._committing:
            is_lost = self._consumer._coordinator.generation < 0  # it is a member no more
            if not is_lost:
                await self._commit()
            self._forget()
            if gone:
                self._group.history.revoked(self.name, time.monotonic(), gone, is_lost=is_lost)

    async def on_partitions_assigned(self, assigned):
        """See `ConsumerRebalanceListener`."""
        self._forget()
        if self._has_left:  # aiokafka may join once more while it stops
            return
        self._owned = {one.partition for one in assigned}
        generation = self._consumer._coordinator.generation
        owned = sorted(self._owned)
        self._group.history.assigned(self.name, time.monotonic(), generation, owned, owned)

    def _forget(self):
        self._assignments += 1
        self._ranges.clear()
        self._owned = set()

    # -- what is done to it ---------------------------------------------------------------------

    @property
    def has_ended(self):
        """Whether it is no more, though nobody has told it to leave."""
        if self._working.done():
            self._working.result()
        return self.is_wanted and self._working.done()

    async def stall(self):
        """Let it not poll for longer than it may."""
        self._stalled_until_s = time.monotonic() + STALL_S

    async def leave(self):
        """Have it leave, and wait until it has."""
        self.is_wanted = False
        await asyncio.wait_for(self._working, ENDED_S)
        async with self._committing:
            await self._commit()
            self._forget()
            self._has_left = True
            self._group.history.ended(self.name, time.monotonic())
        for one in (self._consumer, self._producer):
            if one is not None:
                with contextlib.suppress(CallCancelledError):  # it has stopped all the same
                    await asked(asyncio.wait_for(one.stop(), ENDED_S))

    def end(self):
        """The run is over: this process ends."""
        self._working.cancel()
