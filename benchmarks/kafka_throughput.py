"""Throughput and latency of Kafka's clients (librdkafka) against three nodes, beside the goals.

    python benchmarks/kafka_throughput.py [SECONDS]    # default: 8 for each measurement

Three processes on this machine, whose disks and processors they share with the client: measure
where nothing else runs. A table has each figure beside its goal and their ratio, and the processor
time of all nodes for it, which another load disturbs less. It takes below five minutes.
"""

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from quorumlog.bench.processes import cpu_seconds
from quorumlog.local import LocalCluster, guarded_directory

MB = 1_000_000
SECONDS = 8.0
WITHIN_S = 60.0
LARGE_PARTITIONS, SMALL_PARTITIONS = 2, 6
VALUE = bytes(range(256)) * 4
LARGE_VALUE = VALUE * 10
SINGLE_RECORDS = 1_000
CONSUMED_MB_MAX = 1_500
TAIL_CONSUMERS = 50
TAIL_MB = 40
PROCESSES = 2
AT_ONCE = 1_000
IN_A_ROW = 64
"""Records for one partition before the next one has its turn."""


class Row(NamedTuple):
    """One figure: `is_least` if the goal is to be reached, not to be kept below."""

    name: str
    value: float
    unit: str
    goal: float | None
    node_cpu: str
    is_least: bool = True

    @property
    def ratio(self) -> float | None:
        """Return how good it is; 1 or more: the goal is reached. None: there is no goal."""
        if self.goal is None:
            return None
        return self.value / self.goal if self.is_least else self.goal / self.value


def print_table(rows: Iterable[Row]) -> None:
    """Print each figure as soon as it is known."""
    heads = ("", "figure", "", "goal", "ratio", "processor time of all nodes")
    line: Callable[..., str] = "{:44}{:>9} {:5}{:>7}{:>8}  {}".format
    print(line(*heads), flush=True)
    for row in rows:
        value = f"{row.value:.1f}" if row.value >= 10 else f"{row.value:.2f}"
        goal = "" if row.goal is None else f"{'≥' if row.is_least else '≤'} {row.goal:g}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        print(line(row.name, value, row.unit, goal, ratio, row.node_cpu), flush=True)


class Cluster:
    """Three nodes, and the processor time that they take."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.servers = cluster.bootstrap_servers
        self._pids = list(cluster.running().values())
        self.admin = AdminClient({"bootstrap.servers": self.servers})

    def make(self, topic: str, partitions: int) -> None:
        """Make a topic, and wait until all its partitions have leaders."""
        wanted = NewTopic(topic, partitions, 3)
        self.admin.create_topics([wanted])[topic].result(WITHIN_S)
        deadline = time.monotonic() + WITHIN_S
        while time.monotonic() < deadline:
            known = self.admin.list_topics(topic, timeout=WITHIN_S).topics[topic].partitions
            if len(known) == partitions and all(one.leader >= 0 for one in known.values()):
                return
            time.sleep(0.05)
        raise TimeoutError(f"topic {topic} has partitions without a leader")

    def cpu(self) -> float:
        """Return the seconds of processor time that the nodes have taken."""
        return sum(map(cpu_seconds, self._pids))

    def producer(self, **settings: object) -> Producer:
        """Return a producer with acks=all."""
        return Producer({"bootstrap.servers": self.servers, "acks": "all", **settings})


def consumer(servers: str, topic: str, partitions: int, **settings: object) -> Consumer:
    """Return a consumer of all partitions of a topic, from their start."""
    made = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            **settings,
        }
    )
    made.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    return made


def consume(source: Consumer, size: int) -> None:
    """Take records until they have so many bytes. Raises `TimeoutError`."""
    last, taken = time.monotonic(), 0
    while taken < size:
        messages = source.consume(AT_ONCE, 1.0)
        taken += sum(len(one.value()) for one in messages if one.error() is None)
        now = time.monotonic()
        if messages:
            last = now
        elif now - last > WITHIN_S:
            raise TimeoutError(f"{taken} of {size} bytes came")


def produce_for(producer: Producer, topic: str, partitions: int, seconds: float) -> int:
    """Produce records of 1 KiB for a time, and wait for all of them; return their bytes."""
    sent, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for number in range(AT_ONCE):
            while True:
                try:
                    producer.produce(topic, VALUE, partition=sent // IN_A_ROW % partitions)
                    break
                except BufferError:
                    producer.poll(0.01)
            sent += 1
            if not number % 100:
                producer.poll(0)
    if producer.flush(WITHIN_S):
        raise TimeoutError("not all records were acknowledged")
    return sent * len(VALUE)


def throughput(
    cluster: Cluster,
    topic: str,
    partitions: int,
    batch: int,
    goal: float | None,
    seconds: float,
    **settings: object,
) -> Row:
    """Measure batches of a size, which the client waits for; acks=all unless `settings` differ."""
    producer = cluster.producer(
        **{
            "batch.size": batch,
            "batch.num.messages": 10_000,
            "linger.ms": 100,
            "queue.buffering.max.kbytes": 256 * 1024,
            "queue.buffering.max.messages": 500_000,
            **settings,
        }
    )
    produce_for(producer, topic, partitions, 0.5)
    began, cpu = time.monotonic(), cluster.cpu()
    size = produce_for(producer, topic, partitions, seconds)
    took, used = time.monotonic() - began, cluster.cpu() - cpu
    note = f"{used / size * MB * 1e3:.2f} ms/MB, {used / (size / batch) * 1e6:.0f} µs/batch"
    differs = "".join(f", {one}" for one in _words(settings))
    name = f"produce, batches of {batch:,} bytes{differs}"
    return Row(name, size / took / MB, "MB/s", goal, note)


def _words(settings: Mapping[str, object]) -> Iterator[str]:
    for key, value in settings.items():
        yield str(value) if key == "compression.type" else f"{key}={value}"


def _percentiles(name: str, taken: list[float], cpu: float, goals: tuple[int, int]) -> list[Row]:
    cuts = statistics.quantiles(taken, n=100)
    note = f"{cpu / len(taken) * 1e6:.0f} µs/record"
    return [
        Row(f"{name}, p50", cuts[49] * 1e3, "ms", goals[0], note, is_least=False),
        Row(f"{name}, p99", cuts[98] * 1e3, "ms", goals[1], "", is_least=False),
    ]


def single_records(cluster: Cluster, topic: str) -> list[Row]:
    """Measure one record after the other."""
    producer, taken = cluster.producer(**{"linger.ms": 0}), list[float]()
    for number in range(SINGLE_RECORDS + 100):
        if number == 100:
            taken, cpu = [], cluster.cpu()
        began = time.perf_counter()
        producer.produce(topic, VALUE, partition=0)
        if producer.flush(WITHIN_S):
            raise TimeoutError("a record was not acknowledged")
        taken.append(time.perf_counter() - began)
    return _percentiles("one record", taken, cluster.cpu() - cpu, (2, 6))


def end_to_end(cluster: Cluster, topic: str) -> list[Row]:
    """Measure from the call that produces a record to the one that returns it to a consumer."""
    producer, taken = cluster.producer(**{"linger.ms": 0}), list[float]()
    source = consumer(cluster.servers, topic, 1)
    for number in range(SINGLE_RECORDS + 100):
        if number == 100:
            taken, cpu = [], cluster.cpu()
        began = time.perf_counter()
        producer.produce(topic, b"%d" % number, partition=0)
        producer.poll(0)
        while (message := source.poll(WITHIN_S)) is None or message.error() is not None:
            if time.perf_counter() - began > WITHIN_S:
                raise TimeoutError("a record did not come")
        taken.append(time.perf_counter() - began)
    producer.flush(WITHIN_S)
    source.close()
    return _percentiles("producer to consumer", taken, cluster.cpu() - cpu, (3, 8))


def consumed(cluster: Cluster, topic: str, size: int) -> Row:
    """Measure one consumer of what was just produced."""
    source = consumer(
        cluster.servers, topic, LARGE_PARTITIONS, **{"queued.max.messages.kbytes": 65_536}
    )
    began, cpu = time.monotonic(), cluster.cpu()
    consume(source, size)
    took, used = time.monotonic() - began, cluster.cpu() - cpu
    source.close()
    return Row(
        "one consumer, warm", size / took / MB, "MB/s", 400, f"{used / size * MB * 1e3:.2f} ms/MB"
    )


def tail(cluster: Cluster, topic: str, megabytes: int) -> Row:
    """Measure many consumers of one partition whose records come while they read."""
    share = TAIL_CONSUMERS // PROCESSES
    arguments = [cluster.servers, topic, str(share), str(megabytes * MB)]
    readers = [
        subprocess.Popen(  # noqa: S603  (this program)
            [sys.executable, __file__, "--consumers", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]
    try:
        for reader in readers:
            if reader.stdout.readline().strip() != "ready":
                raise RuntimeError("a process of consumers has ended")
        producer = cluster.producer(**{"batch.size": MB, "linger.ms": 5})
        began, cpu = time.monotonic(), cluster.cpu()
        for _ in range(megabytes * MB // len(LARGE_VALUE) + 1):
            producer.produce(topic, LARGE_VALUE, partition=0)
            producer.poll(0)
        producer.flush(WITHIN_S)
        for reader in readers:
            json.loads(reader.stdout.readline())
        took, used = time.monotonic() - began, cluster.cpu() - cpu
    finally:
        for reader in readers:
            reader.terminate()
            reader.wait()
    size = megabytes * MB * TAIL_CONSUMERS
    note = f"{used / size * MB * 1e3:.2f} ms/MB"
    return Row(f"{TAIL_CONSUMERS} consumers of one tail", size / took / MB, "MB/s", 500, note)


def be_consumers(servers: str, topic: str, count: int, size: int) -> int:
    """Be some consumers: say when they read, and when all of them have so many bytes."""
    sources = [consumer(servers, topic, 1) for _ in range(count)]
    for source in sources:
        source.consume(1, 5.0)  # the record that makes sure that it reads
    print("ready", flush=True)
    threads = [threading.Thread(target=consume, args=(one, size)) for one in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"bytes": size}), flush=True)
    sys.stdin.read()
    return 0


def measured(cluster: Cluster, seconds: float) -> Iterator[Row]:
    """Yield all figures."""
    cluster.make("large", LARGE_PARTITIONS)
    row = throughput(cluster, "large", LARGE_PARTITIONS, MB, 150, seconds)
    yield row
    size = int(min(row.value * seconds, CONSUMED_MB_MAX)) * MB
    yield consumed(cluster, "large", size)
    for differs in ({"acks": "1"}, {"acks": "0"}, {"compression.type": "zstd"}):
        yield throughput(cluster, "large", LARGE_PARTITIONS, MB, None, seconds, **differs)
    cluster.make("medium", LARGE_PARTITIONS)
    yield throughput(cluster, "medium", LARGE_PARTITIONS, 65_536, None, seconds)
    cluster.make("small", SMALL_PARTITIONS)
    yield throughput(cluster, "small", SMALL_PARTITIONS, 16_384, 60, seconds)
    cluster.make("single", 1)
    yield from single_records(cluster, "single")
    cluster.make("through", 1)
    yield from end_to_end(cluster, "through")
    cluster.make("tail", 1)
    producer = cluster.producer()
    producer.produce("tail", b"first", partition=0)
    producer.flush(WITHIN_S)
    yield tail(cluster, "tail", max(1, int(TAIL_MB * seconds / SECONDS)))


def print_measured(measure: Callable[[Cluster, float], Iterable[Row]], seconds: float) -> None:
    """Start three nodes, print what is measured with them, and end them."""
    with guarded_directory("quorumlog-kafka-") as guard:
        cluster = LocalCluster.create(Path(guard.directory) / "cluster", topics=True, kafka_port=0)
        cluster.up()
        print_table(measure(Cluster(cluster), seconds))
        cluster.down()


def main() -> int:
    """Measure, or be consumers."""
    if sys.argv[1:2] == ["--consumers"]:
        servers, topic, count, size = sys.argv[2:]
        return be_consumers(servers, topic, int(count), int(size))
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    print_measured(measured, seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
