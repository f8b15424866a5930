"""How long consumer groups take to rebalance, and how many offsets they commit a second.

    python benchmarks/kafka_groups.py [SECONDS]    # default: 8 for the commits

Three nodes and all clients on this machine. 50 consumers of librdkafka share 100 partitions: all
join an empty group at once, then one leaves, then one joins: from the last call to subscribe (or
close) until each has its two or three. By both protocols, with heartbeats as librdkafka and the
cluster have them (3 s, 5 s) and with quicker ones (0.5 s), which is when members hear of a change.
Then clients of as many groups commit one offset after the other, each over a connection of its own.
Goals: a rebalance within 2 s, 3,000 commits a second.
"""

import asyncio
import statistics
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import uvloop
from confluent_kafka import Consumer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kafka_requests import framed
from kafka_throughput import WITHIN_S, Cluster, Row, print_measured

from quorumlog.kafka.requests import ApiKey

SECONDS = 8.0
MEMBERS, PARTITIONS = 50, 100
COMMITTERS = (1, 16, 64, 256)
TOPIC = "t"
LOOK_S = 0.01
REBALANCE_S, COMMITS = 2.0, 3_000
QUICK_MS = 500
CLASSIC = {"partition.assignment.strategy": "cooperative-sticky"}
CONSUMER = {"group.protocol": "consumer"}
EMPTY_S = 1.0
"""How long connections commit before what counts."""


# -- rebalances -----------------------------------------------------------------------------------


def member(cluster: Cluster, group: str, settings: Mapping[str, object]) -> Consumer:
    """Return a consumer that joins a group."""
    common = {"bootstrap.servers": cluster.servers, "group.id": group, "log_level": 0}
    made = Consumer({**common, "enable.auto.commit": False, **settings})
    made.subscribe([TOPIC])
    return made


def until_shared(members: Sequence[Consumer]) -> float:
    """Return the seconds until all partitions have one owner each, and all members as many."""
    begun = time.monotonic()
    while time.monotonic() - begun < WITHIN_S:
        for one in members:
            one.poll(0)
        owned = [[place.partition for place in one.assignment()] for one in members]
        counts = [len(one) for one in owned]
        has_all = sorted(number for one in owned for number in one) == list(range(PARTITIONS))
        if has_all and max(counts) - min(counts) <= 1:
            return time.monotonic() - begun
        time.sleep(LOOK_S)
    raise TimeoutError(f"partitions are owned as {owned}")


def rebalances(cluster: Cluster, name: str, settings: Mapping[str, object]) -> Iterator[Row]:
    """Yield how long it takes when all join, one leaves, and one joins."""

    def row(what: str, took_s: float, cpu: float) -> Row:
        used = f"{cluster.cpu() - cpu:.2f} s"
        return Row(f"{name}: {what}", took_s, "s", REBALANCE_S, used, is_least=False)

    group, cpu = name, cluster.cpu()
    members = [member(cluster, group, settings) for _ in range(MEMBERS)]
    yield row(f"{MEMBERS} join", until_shared(members), cpu)
    cpu = cluster.cpu()
    members.pop().close()
    yield row("one leaves", until_shared(members), cpu)
    cpu = cluster.cpu()
    members.append(member(cluster, group, settings))
    yield row(f"the {MEMBERS}th joins", until_shared(members), cpu)
    for one in members:
        one.close()


def quicken(cluster: Cluster) -> None:
    """Have members of the consumer protocol send heartbeats more often."""
    names = ("group.consumer.min.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms")
    entries = [
        ConfigEntry(one, str(QUICK_MS), incremental_operation=AlterConfigOpType.SET)
        for one in names
    ]
    resource = ConfigResource(ResourceType.BROKER, "0", incremental_configs=entries)
    cluster.admin.incremental_alter_configs([resource])[resource].result(WITHIN_S)


# -- commits --------------------------------------------------------------------------------------


def commit(group: str, offset: int) -> bytes:
    """Return an OffsetCommit (version 2) of one offset, by who is no member."""
    name, topic = group.encode(), TOPIC.encode()
    head = struct.pack(f">h{len(name)}sihqi", len(name), name, -1, 0, -1, 1)
    place = struct.pack(f">h{len(topic)}siiqh", len(topic), topic, 1, 0, offset, -1)
    return framed(ApiKey.OFFSET_COMMIT, 2, head + place)


async def committer(number: int, place: tuple[str, int], end_s: float) -> list[float]:
    """Commit one offset after the other until it is time; return what each took."""
    reader, writer = await asyncio.open_connection(*place)
    took: list[float] = []
    while time.monotonic() < end_s:
        began = time.perf_counter()
        writer.write(commit(f"committer-{number}", len(took)))
        answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        took.append(time.perf_counter() - began)
        if error := int.from_bytes(answer[-2:], "big"):
            raise RuntimeError(f"committer {number}: error {error}")
    writer.close()
    return took


async def together(count: int, place: tuple[str, int], end_s: float) -> list[float]:
    """Commit over some connections at once."""
    found = await asyncio.gather(*(committer(one, place, end_s) for one in range(count)))
    return [each for took in found for each in took]


def commits(cluster: Cluster, seconds: float) -> Iterator[Row]:
    """Yield the rate of commits, and what one waits, for several numbers of clients."""
    controller = cluster.admin.describe_cluster().result(WITHIN_S).controller
    place = controller.host, controller.port
    for count in COMMITTERS:
        uvloop.run(together(count, place, time.monotonic() + EMPTY_S))
        cpu = cluster.cpu()
        took = uvloop.run(together(count, place, time.monotonic() + seconds))
        used, cuts = cluster.cpu() - cpu, statistics.quantiles(took, n=100)
        name = f"{count} client{'' if count == 1 else 's'}"
        goal = COMMITS if count == max(COMMITTERS) else None
        note = f"{used / len(took) * 1e6:.0f} µs/commit"
        yield Row(f"{name}: commits", len(took) / seconds, "/s", goal, note)
        yield Row(f"{name}, p50", cuts[49] * 1e3, "ms", None, "")
        yield Row(f"{name}, p99", cuts[98] * 1e3, "ms", None, "")


def measured(cluster: Cluster, seconds: float) -> Iterator[Row]:
    """Yield all figures."""
    cluster.make(TOPIC, PARTITIONS)
    yield from commits(cluster, seconds)
    yield from rebalances(cluster, "classic", CLASSIC)
    yield from rebalances(cluster, "consumer", CONSUMER)
    quicken(cluster)
    quick = {**CLASSIC, "heartbeat.interval.ms": QUICK_MS}
    yield from rebalances(cluster, "classic, 0.5 s", quick)
    yield from rebalances(cluster, "consumer, 0.5 s", CONSUMER)


def main() -> int:
    """Measure."""
    print_measured(measured, float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
