"""What many partitions cost: three nodes with 100 topics of 100 partitions, beside the goals.

    python benchmarks/kafka_partitions.py [--topics 100] [--partitions 100] [--parts idle,kill]

Three processes on this machine, whose disks and processors they share with the client: measure
where nothing else runs. Parts: `create` (always), `idle`, `metadata`, `each` (a record to each
partition), `consume`, `restart` (of all nodes), `kill` (a leader, ten times) and `growth`, which
compares requests to a cluster of 10, 1,000 and 10,000 partitions. Prints a table of figures beside
goals. All parts take six minutes, one of them without anything connected.
"""

import argparse
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from crc32c import crc32c
from kafka_throughput import LARGE_VALUE, MB, VALUE, WITHIN_S, Row, consume, print_table

from quorumlog.bench.processes import cpu_seconds, resident_bytes
from quorumlog.kafka.requests import ApiKey
from quorumlog.local import LocalCluster, guarded_directory
from quorumlog.model.config import parse_address
from quorumlog.records.batch import HEADER

PARTS = ("create", "idle", "metadata", "each", "consume", "restart", "kill", "growth")
REST_S = IDLE_S = 30.0
POLL_S = 0.02
ASKED_AGAIN = 50
CONSUMED_PARTITIONS = 1_000
CONSUMED_MB = 200
KILLS = 10
SETTLE_S = 2.0
"""After a killed node leads again: what is left of its restart is not measured."""
FIRST, COUNTED, POLLED = 8, 7, 1
"""Versions of Metadata: answers are encoded for each by itself, at the first question."""
GROWN = (10, 1_000, 10_000)
GROWTH_REQUESTS, GROWTH_ROUNDS = 100, 5
GROWTH_TOPIC = "grown"
GROUP = "group"
CLIENT = b"partitions"
QUIET = {"log_level": 2}
"""Librdkafka says nothing of connections that are lost, as they shall be."""
_PARTITION = struct.Struct(">hii")
_INT32 = struct.Struct(">i")
_PRODUCE_ERROR = slice(14 + len(GROWTH_TOPIC), 16 + len(GROWTH_TOPIC))
"""Where the answer to a Produce has the error code of its first partition."""


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


class Connection:
    """One connection to a broker, on which one request after the other is answered."""

    def __init__(self, address: str) -> None:
        self._socket = socket.create_connection(parse_address(address), WITHIN_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._numbers = count()

    def ask(self, key: ApiKey, version: int, body: bytes) -> memoryview:
        """Return the answer to a request of a version that is not flexible, after its header."""
        head = struct.pack(">hhih", key, version, next(self._numbers), len(CLIENT)) + CLIENT
        self._socket.sendall(_INT32.pack(len(head) + len(body)) + head + body)
        (size,) = _INT32.unpack(self._read(4))
        return self._read(size)[4:]

    def _read(self, size: int) -> memoryview:
        data = memoryview(bytearray(size))
        have = 0
        while have < size:
            got = self._socket.recv_into(data[have:])
            if not got:
                raise ConnectionError("the broker closed a connection")
            have += got
        return data

    def metadata(self, version: int, topic: str = "") -> memoryview:
        """Ask for the metadata of a topic, or of all."""
        named = _INT32.pack(1) + _string(topic) if topic else _INT32.pack(-1)
        options = {1: b"", 7: b"\0"}.get(version, b"\0\0\0")
        return self.ask(ApiKey.METADATA, version, named + options)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class Place(NamedTuple):
    """Where a partition is led, as a broker says; -1: nowhere."""

    topic: str
    partition: int
    leader: int


class Known(NamedTuple):
    """What a broker knows: the addresses of brokers, and all partitions that were asked for."""

    addresses: dict[int, str]
    places: list[Place]


def known(answer: memoryview) -> Known:
    """Read an answer to Metadata of version 1."""
    at, addresses, found = 4, dict[int, str](), list[Place]()
    for _ in range(_INT32.unpack_from(answer)[0]):
        (broker,) = _INT32.unpack_from(answer, at)
        end = _after_string(answer, at + 4)
        (port,) = _INT32.unpack_from(answer, end)
        addresses[broker] = f"{bytes(answer[at + 6 : end]).decode()}:{port}"
        at = _after_string(answer, end + 4)  # the rack
    (topics,) = _INT32.unpack_from(answer, at + 4)  # after the controller
    at += 8
    for _ in range(topics):
        begin, at = at + 4, _after_string(answer, at + 2)
        topic = bytes(answer[begin:at]).decode()
        (partitions,) = _INT32.unpack_from(answer, at + 1)
        at += 5
        for _ in range(partitions):
            _, number, leader = _PARTITION.unpack_from(answer, at)
            at += _PARTITION.size
            for _ in range(2):  # replicas, and those in sync
                at += 4 + 4 * _INT32.unpack_from(answer, at)[0]
            found.append(Place(topic, number, leader))
    return Known(addresses, found)


def _after_string(answer: memoryview, at: int) -> int:
    return at + 2 + max(0, *struct.unpack_from(">h", answer, at))


class Cluster:
    """Three nodes, asked by the smallest client there is."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.local = cluster
        self.servers = cluster.bootstrap_servers

    def cpu(self) -> float:
        """Return the seconds of processor time that the nodes which run have taken."""
        return sum(map(cpu_seconds, self.local.running().values()))

    @contextmanager
    def connections(self) -> Iterator[dict[str, Connection]]:
        """Connect to each node that runs."""
        made: dict[str, Connection] = {}
        try:
            for node_id in self.local.running():
                made[node_id] = Connection(self.local.kafka_address(node_id))
            yield made
        finally:
            for one in made.values():
                one.close()

    def create(self, topics: dict[str, int]) -> None:
        """Make topics with a number of partitions, and wait until all of them are led."""
        admin = AdminClient({"bootstrap.servers": self.servers})
        new = [NewTopic(name, partitions, 3) for name, partitions in topics.items()]
        asked = admin.create_topics(new, operation_timeout=WITHIN_S, request_timeout=WITHIN_S)
        for one in asked.values():
            one.result(WITHIN_S)
        self.wait_led(sum(topics.values()))

    def wait_led(self, least: int) -> None:
        """Wait until each node that runs says that all partitions are led by nodes that run."""
        deadline = time.monotonic() + WITHIN_S
        running = {self.local.kafka_address(node_id) for node_id in self.local.running()}
        for address in running:
            while not _knows_leaders(address, least, running):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{address} knows partitions without a leader")
                time.sleep(POLL_S)


def _knows_leaders(address: str, least: int, among: Collection[str]) -> bool:
    """Whether a broker knows this number of partitions, and who leads each."""
    try:
        with closing(Connection(address)) as connection:
            addresses, places = known(connection.metadata(POLLED))
    except OSError:
        return False
    return len(places) >= least and {addresses.get(one.leader, "") for one in places} <= set(among)


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def idle(cluster: Cluster) -> Iterator[Row]:
    """Measure nodes to which nothing is connected."""
    time.sleep(REST_S)
    began, cpu = time.monotonic(), cluster.cpu()
    time.sleep(IDLE_S)
    used = (cluster.cpu() - cpu) / (time.monotonic() - began)
    yield Row("idle, three nodes", used * 100, "%", 8, "of a processor", is_least=False)
    memory = max(map(resident_bytes, cluster.local.running().values()))
    yield Row("memory of a node, the most", memory / MB, "MB", 250, "", is_least=False)


def metadata(cluster: Cluster) -> Iterator[Row]:
    """Measure metadata of all partitions: the first answers of nodes, and later ones."""
    first, later = list[float](), list[float]()
    with cluster.connections() as connections:
        for one in connections.values():
            one.metadata(FIRST, "none")
            first.append(_timed(lambda one=one: one.metadata(FIRST)))  # type: ignore[misc]
        cpu = cluster.cpu()
        for one in connections.values():
            later += [_timed(lambda one=one: one.metadata(FIRST)) for _ in range(ASKED_AGAIN)]
        note = f"{(cluster.cpu() - cpu) / len(later) * 1e3:.2f} ms/answer"
    yield Row("metadata of all, first answer", max(first) * 1e3, "ms", 50, "", is_least=False)
    again = statistics.median(later) * 1e3
    yield Row("metadata of all, later, p50", again, "ms", 50, note, is_least=False)


def each(cluster: Cluster, topics: dict[str, int]) -> Iterator[Row]:
    """Measure one record to each partition."""
    failed = list[str]()

    def note(error: object, message: Message) -> None:
        if error is not None:
            failed.append(f"{message.topic()} {message.partition()}: {error}")

    producer = Producer({"bootstrap.servers": cluster.servers, "acks": "all", "linger.ms": 5})
    began, cpu = time.monotonic(), cluster.cpu()
    for topic, partitions in topics.items():
        for number in range(partitions):
            producer.produce(topic, VALUE, partition=number, on_delivery=note)
        producer.poll(0)
    if producer.flush(WITHIN_S) or failed:
        raise TimeoutError(f"records were not acknowledged: {failed[:3]}")
    took, used = time.monotonic() - began, cluster.cpu() - cpu
    spent = f"{used / sum(topics.values()) * 1e6:.0f} µs/record"
    yield Row("one record to each partition", took, "s", None, spent, is_least=False)


def consumed(cluster: Cluster, topics: dict[str, int]) -> Iterator[Row]:
    """Measure a consumer of many partitions, from their start."""
    chosen = [(topic, number) for topic, most in topics.items() for number in range(most)]
    chosen = chosen[:CONSUMED_PARTITIONS]
    producer = Producer({"bootstrap.servers": cluster.servers, "linger.ms": 50})
    share = max(1, CONSUMED_MB * MB // len(LARGE_VALUE) // len(chosen))
    for topic, number in chosen:
        for _ in range(share):
            while True:
                try:
                    producer.produce(topic, LARGE_VALUE, partition=number)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.poll(0)
    if producer.flush(WITHIN_S):
        raise TimeoutError("not all records were acknowledged")
    source = Consumer(
        {"bootstrap.servers": cluster.servers, "group.id": GROUP, "enable.auto.commit": False}
    )
    size = share * len(LARGE_VALUE) * len(chosen)
    began, cpu = time.monotonic(), cluster.cpu()
    source.assign([TopicPartition(*one, 0) for one in chosen])
    consume(source, size)
    took, used = time.monotonic() - began, cluster.cpu() - cpu
    source.close()
    note = f"{used / size * MB * 1e3:.2f} ms/MB"
    yield Row(f"consumer of {len(chosen):,} partitions", size / took / MB, "MB/s", 20, note)


def restarted(cluster: Cluster, topics: dict[str, int]) -> Iterator[Row]:
    """Measure from the start of all nodes, which were stopped, to the next acknowledgement."""
    cluster.local.down()
    cpu, began = cluster.cpu(), time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        starting = threads.submit(cluster.local.up)
        producer = Producer(
            {
                "bootstrap.servers": cluster.servers,
                "linger.ms": 0,
                "reconnect.backoff.max.ms": 100,
                **QUIET,
            }
        )
        producer.produce(next(iter(topics)), VALUE, partition=0)
        if producer.flush(WITHIN_S):
            raise TimeoutError("nothing was acknowledged after a restart")
        took = time.monotonic() - began
        cluster.wait_led(sum(topics.values()))
        led, used = time.monotonic() - began, cluster.cpu() - cpu
        starting.result()
    yield Row("restart of all, first produce", took, "s", 5, "", is_least=False)
    yield Row("restart of all, all led", led, "s", 5, f"{used:.1f} s", is_least=False)


def killed(cluster: Cluster, topics: dict[str, int]) -> Iterator[Row]:
    """Kill the node that leads a partition, again and again, beside a producer of its topic.

    The producer has connections to all leaders then. One that knows no broker but the one that is
    killed connects again by its bootstrap servers, for which librdkafka takes up to 2 s.
    """
    topic, node_ids = next(iter(topics)), cluster.local.node_ids
    until_produced, until_led = list[float](), list[float]()
    producer = Producer({"bootstrap.servers": cluster.servers, "linger.ms": 0, **QUIET})

    def produce(*partitions: int) -> None:
        for one in partitions:
            producer.produce(topic, VALUE, partition=one)
        if producer.flush(WITHIN_S):
            raise TimeoutError("nothing was acknowledged after a kill")

    for number in range(KILLS):
        partition = number % topics[topic]
        with cluster.connections() as connections:
            addresses, places = known(connections[node_ids[0]].metadata(POLLED, topic))
        leads = next(addresses[one.leader] for one in places if one.partition == partition)
        leader = next(one for one in node_ids if cluster.local.kafka_address(one) == leads)
        produce(*range(topics[topic]))
        began = time.monotonic()
        cluster.local.kill(leader)
        produce(partition)
        until_produced.append(time.monotonic() - began)
        cluster.wait_led(sum(topics.values()))
        until_led.append(time.monotonic() - began)
        cluster.local.start(leader)
        cluster.wait_led(sum(topics.values()))
        time.sleep(SETTLE_S)
    for name, goal, taken in (
        ("leader killed, next produce, p50", 0.5, until_produced),
        ("leader killed, all led, p50", 5, until_led),
    ):
        p50, most = statistics.median(taken), f"at most {max(taken):.2f} s in {KILLS} kills"
        yield Row(name, p50, "s", goal, most, is_least=False)


def _batch(size: int) -> bytes:
    """Return a record batch of this size, whose record nobody reads."""
    tail = HEADER.pack(0, size - 12, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)[21:]
    tail += bytes(size - HEADER.size)
    return struct.pack(">qiibI", 0, size - 12, 0, 2, crc32c(tail)) + tail


def _requests(partitions: Collection[int]) -> dict[str, tuple[ApiKey, int, bytes]]:
    """Return requests that name some partitions of one topic: by name, key, version and body."""
    topic, how_many, size = _string(GROWTH_TOPIC), _INT32.pack(len(partitions)), len(VALUE)
    records = _INT32.pack(size) + _batch(size)
    named = _INT32.pack(1) + topic + how_many
    produced = b"".join(_INT32.pack(one) + records for one in partitions)
    fetched = b"".join(struct.pack(">iiqqi", one, -1, 0, -1, size) for one in partitions)
    offsets = b"".join(struct.pack(">iqih", one, 1, -1, -1) for one in partitions)
    fetch_head = struct.pack(">iiiibii", -1, 0, 1, 1 << 24, 0, 0, -1)
    produce_head = struct.pack(">hhi", -1, -1, 30_000)
    commit_head = _string(GROUP) + struct.pack(">ihh", -1, 0, -1)
    return {
        "produce": (ApiKey.PRODUCE, 7, produce_head + named + produced),
        "fetch": (ApiKey.FETCH, 11, fetch_head + named + fetched + struct.pack(">ih", 0, 0)),
        "metadata": (ApiKey.METADATA, COUNTED, _INT32.pack(1) + topic + b"\0"),
        "offset commit": (ApiKey.OFFSET_COMMIT, 7, commit_head + named + offsets),
    }


def _coordinator(connections: Iterable[Connection]) -> Connection:
    """Return the connection to the node that takes offsets."""
    deadline = time.monotonic() + WITHIN_S
    key, version, body = _requests([0])["offset commit"]
    while time.monotonic() < deadline:
        for one in connections:
            if one.ask(key, version, body)[-2:] == b"\0\0":
                return one
        time.sleep(POLL_S)
    raise TimeoutError("no node takes offsets")


def _costs(cluster: Cluster) -> dict[str, float]:
    """Return the seconds of each request for each partition that it names: the best median."""
    costs: dict[str, float] = {}
    with cluster.connections() as connections:
        node_id, leader = next(iter(connections.items()))
        address = cluster.local.kafka_address(node_id)
        places: list[Place] = []
        while len({one.leader for one in places}) < len(connections):  # until the preferred lead
            time.sleep(POLL_S)
            addresses, places = known(leader.metadata(POLLED, GROWTH_TOPIC))
        mine = [one.partition for one in places if addresses.get(one.leader) == address]
        time.sleep(SETTLE_S)
        coordinator = _coordinator(connections.values())
        for name, request in _requests(mine).items():
            asked = coordinator if name == "offset commit" else leader
            if name == "produce" and asked.ask(*request)[_PRODUCE_ERROR] != b"\0\0":
                raise RuntimeError(f"{node_id} does not take records of {GROWTH_TOPIC}")
            rounds = [
                [_timed(lambda: asked.ask(*request)) for _ in range(GROWTH_REQUESTS)]  # noqa: B023
                for _ in range(GROWTH_ROUNDS)
            ]
            touched = len(places) if name == "metadata" else len(mine)
            costs[name] = min(map(statistics.median, rounds)) / touched
    return costs


def growth(cluster: Cluster) -> Iterator[Row]:
    """Compare the same requests to a topic, in clusters with more and more other partitions."""
    cluster.create({GROWTH_TOPIC: GROWN[0]})
    costs = {GROWN[0]: _costs(cluster)}
    for before, now in pairwise(GROWN):
        missing = now - before
        cluster.create(
            {f"{now}-{first}": min(100, missing - first) for first in range(0, missing, 100)}
        )
        time.sleep(SETTLE_S)
        costs[now] = _costs(cluster)
    for name in costs[GROWN[0]]:
        times = [costs[now][name] for now in GROWN]
        note = "µs each: " + ", ".join(
            f"{taken * 1e6:.0f} of {now:,}" for now, taken in zip(GROWN, times, strict=True)
        )
        ratio = max(times) / times[0]
        yield Row(f"growth of a {name}", ratio, "x", 1.3, note, is_least=False)


def measured(cluster: Cluster, topics: dict[str, int], parts: Collection[str]) -> Iterator[Row]:
    """Yield the figures of all parts but `growth`."""
    began, cpu = time.monotonic(), cluster.cpu()
    cluster.create(topics)
    took, used = time.monotonic() - began, cluster.cpu() - cpu
    name = f"create {sum(topics.values()):,} partitions"
    yield Row(name, took, "s", 60, f"{used:.1f} s", is_least=False)
    if "idle" in parts:
        yield from idle(cluster)
    if "metadata" in parts:
        yield from metadata(cluster)
    if "each" in parts:
        yield from each(cluster, topics)
    if "consume" in parts:
        yield from consumed(cluster, topics)
    if "restart" in parts:
        yield from restarted(cluster, topics)
    if "kill" in parts:
        yield from killed(cluster, topics)


@contextmanager
def running(directory: Path) -> Iterator[Cluster]:
    """Start three nodes that are brokers, and stop them afterwards."""
    local = LocalCluster.create(directory, topics=True, kafka_port=0)
    local.up()
    try:
        yield Cluster(local)
    finally:
        local.down()


def figures(options: argparse.Namespace) -> Iterator[Row]:
    """Yield all figures that were asked for."""
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        sys.exit(f"--parts names {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    topics = {f"topic-{number}": options.partitions for number in range(options.topics)}
    with guarded_directory("quorumlog-kafka-") as guard:
        if set(parts) != {"growth"}:
            with running(Path(guard.directory) / "cluster") as cluster:
                yield from measured(cluster, topics, parts)
        if "growth" in parts:
            with running(Path(guard.directory) / "growth") as cluster:
                yield from growth(cluster)


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description="what many partitions cost")
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=100, help="of each topic")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of %(default)s")
    print_table(figures(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
