"""The load of tests in which a running cluster is changed node by node, and what has to come of it.

Clients of a log are processes (`tests/rolling_load.py`), of whichever release and context; Kafka's
are in the test's own.
"""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from quorumlog import SyncClient
from quorumlog.model.codes import ResponseCode

LOAD = Path(__file__).parents[1] / "rolling_load.py"
STEP = 10
"""Entries of each client, and records, that are acknowledged in each step, at least."""
STEP_S = 60.0
SLOWEST_S = 10.0
"""The time-out of a client's calls: no append takes longer."""
PAUSE_S = 0.05


class LogClient:
    """A client of a log that appends and follows it, in a process of its own.

    `where`: SERVERS and GROUP, and a CONTEXT if it has one.
    """

    def __init__(self, name, where, environment):
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(LOAD), name, *where],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._lines = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self):
        for line in self._process.stdout:
            self._lines.append(line)

    def progress(self):
        return {self.name: len(self._lines)}

    def end(self):
        """Let it end; return what it knows."""
        self._process.stdin.close()
        self._thread.join(2 * STEP_S)
        return json.loads(self._lines[-1])

    def kill(self):
        self._process.kill()
        self._process.wait()


class KafkaClient:
    """A producer of the topic `t`, and a consumer that commits: `__cluster` has commands.

    `settings` are librdkafka's.
    """

    def __init__(self, name, settings):
        self.name = name
        self.records = {}
        """Value → partition and offset of what was acknowledged."""
        self.refused = []
        self.pending = 0
        """What was still not acknowledged at the end."""
        self._commits = 0
        self._is_over = threading.Event()
        self._producer = Producer(settings | {"enable.idempotence": True})
        more = {"group.id": "load", "enable.auto.commit": False, "on_commit": self._committed}
        self._consumer = Consumer(settings | more)
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._produce, self._commit)
        ]
        for thread in self._threads:
            thread.start()

    def _produce(self):
        number = 0
        while not self._is_over.wait(PAUSE_S):
            value = f"{self.name} {number}"
            self._producer.produce("t", value, partition=number % 2, callback=self._done)
            self._producer.poll(0)
            number += 1
        self.pending = self._producer.flush(STEP_S)

    def _done(self, error, message):
        if error is not None:
            self.refused.append(str(error))
        else:
            self.records[message.value().decode()] = message.partition(), message.offset()

    def _commit(self):
        while not self._is_over.wait(PAUSE_S):
            self._consumer.commit(offsets=[TopicPartition("t", 0, self._commits)])
            self._consumer.poll(0)
        self._consumer.close()

    def _committed(self, error, partitions):
        self._commits += error is None  # a commit is not sent again while its coordinator moves

    def progress(self):
        return {f"{self.name}: records": len(self.records), f"{self.name}: commits": self._commits}

    def end(self):
        """Let it end, once all is acknowledged that it has sent."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(2 * STEP_S)

    def kill(self):
        self._is_over.set()


def go_on(clients):
    """Wait until all have got further answers."""

    def progress():
        return {name: count for one in clients for name, count in one.progress().items()}

    begun, deadline = progress(), time.monotonic() + STEP_S
    while any(now < begun[name] + STEP for name, now in progress().items()):
        assert time.monotonic() < deadline, f"from {begun} to {progress()} only"
        time.sleep(0.02)


def check_log(cluster, reports, least):
    """What was acknowledged to each client is there once, where it was told, and was read.

    `reports`: by the name of the client. Each has at least so many entries.
    """
    with SyncClient(cluster.context, "g") as client:
        entries = {entry.index: entry.body.decode() for entry in client.read(follow=False)}
    assert max(Counter(entries.values()).values()) == 1, "an entry was appended twice"
    for name, report in reports.items():
        numbers = {int(number): index for number, index in report["indexes"].items()}
        assert len(numbers) >= least
        assert sorted(numbers) == list(range(len(numbers))), "all were acknowledged"
        assert all(entries.get(at) == f"{name} {number}" for number, at in numbers.items())
        assert report["read"] == [list(one) for one in sorted(numbers.items())]
        assert report["slowest_s"] < SLOWEST_S


def check_topic(settings, clients):
    """The topic has what was acknowledged to Kafka's clients, once, and nothing else."""
    wanted = {}
    for one in clients:
        assert one.refused == []
        assert not one.pending, f"{one.name}: {one.pending} records are under way for ever"
        numbers = sorted(int(value.split()[1]) for value in one.records)
        assert numbers == list(range(len(numbers)))
        wanted |= one.records
    consumer = Consumer(settings | {"group.id": "check", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition("t", number, 0) for number in (0, 1)])
        read, deadline = [], time.monotonic() + STEP_S
        while len(read) < len(wanted) and time.monotonic() < deadline:
            read += consumer.consume(1_000, timeout=0.2)
        assert consumer.poll(0.2) is None
    finally:
        consumer.close()
    found = [(one.value().decode(), (one.partition(), one.offset())) for one in read]
    assert sorted(found) == sorted(wanted.items())


def check_replicas(cluster):
    """All replicas of all groups come to be the same."""
    deadline = time.monotonic() + STEP_S
    for group in cluster.hosted_groups():
        with SyncClient(cluster.context, group) as client:
            while True:
                found = client.status()
                ends = {(one.end_index, one.end_chain_crc, one.committed_index) for one in found}
                is_same = len(ends) == 1 and all(
                    one.committed_index == one.end_index for one in found
                )
                if is_same and all(one.code == ResponseCode.SUCCESS for one in found):
                    break
                assert time.monotonic() < deadline, f"{group}: {ends}"
                time.sleep(0.05)
