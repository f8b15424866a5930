"""Numbered records by producers of several client libraries, and what must be read of them.

Each producer numbers its records for each partition. An acknowledged record must be read once, at
the offset that was told, and in order; one that was not acknowledged at most once.
"""

import asyncio
import contextlib
import ctypes
import random
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition as AioTopicPartition
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from kafka import KafkaProducer

KAFKAJS_SCRIPT = Path(__file__).with_name("clients") / "kafkajs_client.js"
KAFKAJS = Path(__file__).parents[1] / "build/kafkajs/package"
DELIVERY_MS = 300_000
"""No outage of a run is as long, so that a client never gives up."""
BACKOFF_MS = 500
FILL_BYTES_MAX = 400
PASSING = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
}
"""What librdkafka reports of outages, after which it goes on."""

LEADERLESS = {
    *PASSING,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._DESTROY_BROKER,
    KafkaError._UNKNOWN_PARTITION,
}
"""What a question of librdkafka to the leader may be answered with while another one is elected."""


STILL_S = 30
"""How long a client's main thread must stand still; one that is well wakes each second."""

_creating = threading.Lock()
"""Held while a client of librdkafka is made, so that its threads are known from others'."""


class Records:
    """What was sent to a topic, what was acknowledged, and at which offset."""

    def __init__(self, topic, partitions, seed=0):
        self.topic = topic
        self.partitions = partitions
        self.sent = Counter()
        self.acknowledged = defaultdict(dict)
        self.failed = Counter()
        self.told_twice = []
        """What was acknowledged twice: clients swallow what is raised in their callbacks."""
        self._seed = seed

    def paced(self, name, count, seconds):
        """Yield a partition and the next record for it, `count` times, spread over the time."""
        generator = random.Random(f"{self._seed} {name}")
        begun = time.monotonic()
        for at in range(count):
            early = begun + at * seconds / count - time.monotonic()
            if early > 0:
                time.sleep(early + 0.01)  # some records at once, then none
            partition = generator.randrange(self.partitions)
            number = self.sent[name, partition]
            self.sent[name, partition] += 1
            fill = "x" * generator.randrange(FILL_BYTES_MAX)
            yield partition, f"{name} {partition} {number} {fill}".encode()

    def acknowledge(self, value, offset):
        """Note the offset of a record; None: librdkafka got the answer to a later batch instead."""
        name, partition, number = key_of(value)
        known = self.acknowledged[name, partition]
        if number in known:
            self.told_twice.append(f"{name} was told twice of {number} in partition {partition}")
        known[number] = offset

    def fail(self, name, error):
        self.failed[f"{name}: {type(error).__name__} {error}"] += 1

    def counts(self):
        acknowledged = sum(map(len, list(self.acknowledged.values())))
        return self.sent.total(), acknowledged, self.failed.total()

    def faults_in(self, contents):
        """Return what is wrong with the values of each partition, which begin at offset 0, and with
        the acknowledgements.
        """
        found = list(self.told_twice)
        for partition, values in contents.items():
            last = {}
            for offset, value in enumerate(values):
                name, own, number = key_of(value)
                if own != partition or number <= last.get(name, -1):
                    told = f"{partition}@{offset}: {name} {own} {number}"
                    found.append(f"{told} after {last.get(name)}")
                last[name] = number
        for (name, partition), known in self.acknowledged.items():
            values = contents[partition]
            stored = {key_of(value)[2] for value in values if value.startswith(f"{name} ".encode())}
            for number, offset in known.items():
                if offset is None:
                    if number not in stored:
                        found.append(f"{name} {number} was acknowledged, and is not in {partition}")
                    continue
                held = values[offset] if 0 <= offset < len(values) else b"nothing"
                if not held.startswith(f"{name} {partition} {number} ".encode()):
                    told = f"{name} {number} was acknowledged at {partition}@{offset}"
                    found.append(f"{told}, where {held[:30]} is")
        return found


def key_of(value):
    """Return the producer, partition and number of a record."""
    name, partition, number, _ = value.decode().split(" ", 3)
    return name, int(partition), int(number)


# -- producers: each runs in a thread of its own -------------------------------------------------


def confluent_producer(servers, **options):
    """Return librdkafka's idempotent producer, patient, with small batches."""
    settings = {
        "bootstrap.servers": servers,
        "enable.idempotence": True,
        "linger.ms": 5,
        "batch.num.messages": 50,
        "message.timeout.ms": DELIVERY_MS,
        "reconnect.backoff.max.ms": BACKOFF_MS,
        "log_level": 2,
        **options,
    }
    with _creating:
        return Producer(settings)


def produce_by_confluent(servers, records, name, count, seconds):
    producer = confluent_producer(servers)

    def report(error, message):
        if error is not None:
            records.fail(name, error)
        else:
            records.acknowledge(message.value(), message.offset())

    for partition, value in records.paced(name, count, seconds):
        while True:
            try:
                producer.produce(records.topic, value, partition=partition, on_delivery=report)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(DELIVERY_MS / 1000) == 0, f"{name}: some are not delivered"


def produce_by_kafka_python(servers, records, name, count, seconds):
    producer = KafkaProducer(
        bootstrap_servers=servers.split(","),
        acks="all",
        enable_idempotence=True,
        delivery_timeout_ms=DELIVERY_MS,
        max_block_ms=DELIVERY_MS,
        reconnect_backoff_max_ms=BACKOFF_MS,
        linger_ms=5,
        batch_size=4_096,
    )
    for partition, value in records.paced(name, count, seconds):
        future = producer.send(records.topic, value, partition=partition)
        future.add_callback(lambda at, value=value: records.acknowledge(value, at.offset))
        future.add_errback(lambda error: records.fail(name, error))
    producer.flush(DELIVERY_MS / 1000)
    producer.close()


def produce_by_aiokafka(servers, records, name, count, seconds):
    asyncio.run(_produce_by_aiokafka(servers, records, name, count, seconds))


async def _produce_by_aiokafka(servers, records, name, count, seconds):
    producer = AIOKafkaProducer(
        bootstrap_servers=servers,
        enable_idempotence=True,
        request_timeout_ms=DELIVERY_MS,
        linger_ms=5,
        max_batch_size=4_096,
    )
    await producer.start()
    pending = set()

    def settle(future, value):
        pending.discard(future)
        if future.exception() is not None:
            records.fail(name, future.exception())
        else:
            records.acknowledge(value, future.result().offset)

    paced = records.paced(name, count, seconds)
    while (following := await asyncio.to_thread(next, paced, None)) is not None:
        partition, value = following
        future = await producer.send(records.topic, value, partition=partition)
        pending.add(future)
        future.add_done_callback(lambda done, value=value: settle(done, value))
    await producer.flush()
    await asyncio.sleep(0)
    await producer.stop()
    assert not pending, f"{name}: {len(pending)} are not delivered"


def produce_by_kafkajs(servers, records, name, count, seconds):
    """Have node produce what it reads line by line; it prints the offset of each."""
    command = ["node", KAFKAJS_SCRIPT, KAFKAJS, servers, "records", records.topic]
    pipe = subprocess.PIPE
    with subprocess.Popen([*map(str, command)], stdin=pipe, stdout=pipe, text=True) as process:
        try:
            printed = Job(_acknowledge_lines, process.stdout, records)
            for partition, value in records.paced(name, count, seconds):
                process.stdin.write(f"{partition} {value.decode()}\n")
                process.stdin.flush()
            process.stdin.close()
            printed.result(DELIVERY_MS / 1000)
            assert process.wait(DELIVERY_MS / 1000) == 0, f"{name} failed"
        finally:
            process.kill()


def _acknowledge_lines(lines, records):
    for line in lines:
        if line.startswith("{"):
            return  # the result of the step
        offset, value = line.rstrip("\n").split(" ", 1)
        records.acknowledge(value.encode(), int(offset))


PRODUCERS = {
    "confluent-kafka": produce_by_confluent,
    "aiokafka": produce_by_aiokafka,
    "kafka-python": produce_by_kafka_python,
}


def has_kafkajs():
    """Whether node is installed, and `make test-clients` has fetched kafkajs."""
    return shutil.which("node") is not None and KAFKAJS.exists()


class Job(threading.Thread):
    """A thread whose exception is that of whoever joins it."""

    def __init__(self, work, *arguments):
        super().__init__(daemon=True)
        self.error = None
        self._work, self._arguments = work, arguments
        self.start()

    def run(self):
        try:
            self._work(*self._arguments)
        except BaseException as error:
            self.error = error

    def result(self, seconds):
        self.join(seconds)
        if self.is_alive():
            frame = sys._current_frames().get(self.ident)
            where = "".join(traceback.format_stack(frame)) if frame is not None else ""
            raise AssertionError(f"{self._work.__name__} did not end within {seconds} s\n{where}")
        if self.error is not None:
            raise self.error


# -- consumers -----------------------------------------------------------------------------------


class Seen:
    """What a consumer saw of each partition, offset by offset."""

    def __init__(self, name, partitions):
        self.name = name
        self.values = {partition: [] for partition in range(partitions)}
        self.faults = []
        self.deadlocks = 0

    def add(self, partition, offset, value):
        values = self.values[partition]
        if offset != len(values):
            self.faults.append(f"{self.name}: {partition}@{offset} came after {len(values)}")
            return
        values.append(value)

    def ends(self):
        """Return the next offset of each partition."""
        return {partition: len(values) for partition, values in self.values.items()}

    def has_all_of(self, contents):
        """Whether it has come to the end of what is there."""
        return all(len(self.values[one]) >= len(values) for one, values in contents.items())

    def faults_in(self, contents):
        """Return what is not as the final content has it."""
        return self.faults + [
            f"{self.name} saw {value[:30]} at {partition}@{offset}, where {final[:1]} is at the end"
            for partition, values in self.values.items()
            for offset, value in enumerate(values)
            if (final := contents[partition][offset : offset + 1]) != [value]
        ]


class LibrdkafkaConsumer:
    """A consumer of librdkafka that may be deadlocked.

    That happens to librdkafka 2.16 if a broker leaves the metadata while OffsetForLeaderEpoch is
    under way (its issue 5476): its threads wait for each other's locks for good, whatever brokers
    do. Such a client is left where it stands, and never freed, as that would wait, too.
    """

    def __init__(self, settings):
        with _creating:
            before = _main_threads()
            self.consumer = Consumer(settings)
            self._threads = set(_main_threads()) - set(before)
        self._turns = {}

    def is_deadlocked(self):
        """Whether its main thread has not had a turn for `STILL_S`; ask it now and then."""
        now_s, turns = time.monotonic(), _main_threads()
        for thread in self._threads & turns.keys():
            turn, since_s = self._turns.get(thread, (None, now_s))
            if turn != turns[thread]:
                since_s = now_s
            elif now_s - since_s >= STILL_S:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.consumer))
                return True
            self._turns[thread] = turns[thread], since_s
        return False

    def close(self):
        """Close it, unless it is deadlocked; return whether it was closed."""
        closing = Job(self.consumer.close)
        while closing.is_alive():
            if self.is_deadlocked():
                return False
            closing.join(1)
        closing.result(0)
        return True


def _main_threads():
    """Return how often each main thread of a librdkafka client in this process had its turn."""
    turns = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            if (task / "comm").read_text().strip() == "rdk:main":
                lines = (task / "status").read_text().splitlines()
                turns[task.name] = [line for line in lines if "ctxt_switches" in line]
    return turns


def reader_of(servers):
    """Return librdkafka's consumer, patient, that commits nothing and resets no offset."""
    return LibrdkafkaConsumer(
        {
            "bootstrap.servers": servers,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "reconnect.backoff.max.ms": BACKOFF_MS,
            "fetch.wait.max.ms": 100,
            "log_level": 2,
        }
    )


def consumer_of(servers, topic, positions):
    """Return a consumer of partitions of a topic, each from an offset on."""
    client = reader_of(servers)
    assigned = [TopicPartition(topic, one, offset) for one, offset in positions.items()]
    client.consumer.assign(assigned)
    return client


def consume_by_confluent(servers, records, seen, stopping):
    """Read all partitions until told to stop; a deadlocked client is replaced by another."""
    positions = dict.fromkeys(range(records.partitions), OFFSET_BEGINNING)
    client = consumer_of(servers, records.topic, positions)
    while not stopping.is_set():
        _consume_some(client.consumer, seen)
        if client.is_deadlocked():
            seen.deadlocks += 1
            client = consumer_of(servers, records.topic, seen.ends())
    seen.deadlocks += not client.close()


def _consume_some(consumer, seen):
    for message in consumer.consume(500, 0.2):
        error = message.error()
        if error is None:
            seen.add(message.partition(), message.offset(), message.value())
        elif error.code() not in PASSING:
            seen.faults.append(f"{seen.name}: {error}")


def consume_by_aiokafka(servers, records, seen, stopping):
    """Read all partitions until told to stop."""
    asyncio.run(_consume_by_aiokafka(servers, records, seen, stopping))


async def _consume_by_aiokafka(servers, records, seen, stopping):
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="none")
    await consumer.start()
    assigned = [AioTopicPartition(records.topic, one) for one in range(records.partitions)]
    consumer.assign(assigned)
    for one in assigned:
        consumer.seek(one, 0)
    while not stopping.is_set():
        for one, messages in (await consumer.getmany(timeout_ms=200)).items():
            for message in messages:
                seen.add(one.partition, message.offset, message.value)
    await consumer.stop()


def read_all(servers, topic, partitions, seconds):
    """Return the values of each partition, from the beginning to the high watermark."""
    client = consumer_of(servers, topic, dict.fromkeys(range(partitions), OFFSET_BEGINNING))
    consumer = client.consumer
    seen, deadline = Seen("final reader", partitions), time.monotonic() + seconds
    ends = {one: ends_of(consumer, topic, one, deadline) for one in range(partitions)}
    if any(begin for begin, _ in ends.values()):
        raise AssertionError(f"not all partitions begin at 0: {ends}")
    while any(len(seen.values[one]) < end for one, (_, end) in ends.items()):
        _consume_some(client.consumer, seen)
        if client.is_deadlocked():
            client = consumer_of(servers, topic, seen.ends())
        if seen.faults or time.monotonic() > deadline:
            held = {one: len(values) for one, values in seen.values.items()}
            raise AssertionError(f"read {held} of {ends}; {seen.faults}")
    client.close()
    return seen.values


def ends_of(consumer, topic, partition, deadline):
    """Return the log start offset and the high watermark, once the leader tells them."""
    while True:
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, partition), 10)
        except KafkaException as error:  # a leader that is no more, or not yet
            if error.args[0].code() not in LEADERLESS or time.monotonic() > deadline:
                raise
