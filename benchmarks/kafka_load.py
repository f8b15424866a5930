"""What Kafka's clients wait while the nodes are busy, and what many connections cost.

    python benchmarks/kafka_load.py [SECONDS]    # default: 5 for each measurement

Three nodes and the clients on this machine, as `kafka_throughput.py` has them. First librdkafka
produces as fast as it can (records of 1 KiB, acks=all, `linger.ms` 5) while a consumer reads along;
then at 10, 50 and 80 % of that rate, where the time from the call that produces a record to the one
that returns it is measured. Then 1 to 500 connections, each with one request under way, produce
batches of 1 KiB. There are no goals; rows say what it costs the nodes.
"""

import asyncio
import json
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

import uvloop
from confluent_kafka import Producer
from kafka_requests import batch, framed
from kafka_throughput import MB, WITHIN_S, Cluster, Row, consumer, print_measured

from quorumlog.kafka.requests import ApiKey

SECONDS = 5.0
PARTITIONS = 6
RECORD_BYTES = 1_024
SHARES = (0.1, 0.5, 0.8)
CONNECTIONS = (1, 10, 100, 500)
TICK_S = 0.002
"""A paced producer sends what is due so often."""
TOPIC = "t"
_STAMP = struct.Struct(">q")
_ERROR = struct.Struct(">iih1siih")
"""The first fields of an answer to a Produce of one batch, up to its error code."""


# -- latency while records come at some rate ------------------------------------------------------


def be_producer(servers: str, rate: float, seconds: float) -> int:
    """Produce records with the time in them at a rate (0: as fast as can be); tell how many."""
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 5})
    filler = bytes(RECORD_BYTES - _STAMP.size)
    begun, sent = time.monotonic(), 0
    while (passed := time.monotonic() - begun) < seconds:
        due = int(passed * rate) - sent if rate else 500
        for _ in range(due):
            value = _STAMP.pack(time.monotonic_ns()) + filler
            while True:
                try:
                    producer.produce(TOPIC, value, partition=sent % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.01)
            sent += 1
        producer.poll(0)
        if rate:
            time.sleep(TICK_S)
    if producer.flush(WITHIN_S):
        raise TimeoutError("not all records were acknowledged")
    print(json.dumps({"sent": sent, "seconds": time.monotonic() - begun}), flush=True)
    return 0


def loaded(cluster: Cluster, rate: float, seconds: float) -> tuple[float, list[float], float]:
    """Return the rate that was reached, each record's time in seconds, and the nodes' seconds."""
    source = consumer(cluster.servers, TOPIC, PARTITIONS)
    source.list_topics(TOPIC, timeout=WITHIN_S)  # it has to know the partitions
    for place in source.assignment():
        place.offset = source.get_watermark_offsets(place, WITHIN_S)[1]
        source.seek(place)
    arguments = [sys.executable, __file__, "--producer", cluster.servers, str(rate), str(seconds)]
    cpu, took, told = cluster.cpu(), list[float](), None
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        while told is None or len(took) < told["sent"]:
            messages = source.consume(100, 0.002)  # it waits for all of them, or that long
            now = time.monotonic_ns()
            took += [
                (now - _STAMP.unpack_from(one.value())[0]) / 1e9
                for one in messages
                if one.error() is None
            ]
            if told is None and process.poll() is not None:
                told = json.loads(process.stdout.readline())
    source.close()
    return told["sent"] / told["seconds"], took, cluster.cpu() - cpu


def latencies(cluster: Cluster, seconds: float) -> Iterator[Row]:
    """Yield the highest rate, and what a record waits at some shares of it."""
    loaded(cluster, 1_000, 1)
    top, _, used = loaded(cluster, 0, seconds)
    size = top * RECORD_BYTES / MB
    yield Row("produced and consumed at once", size, "MB/s", None, f"{used / seconds:.2f} cores")
    for share in SHARES:
        rate, took, used = loaded(cluster, share * top, seconds)
        cuts = statistics.quantiles(took, n=100)
        name = f"at {rate * RECORD_BYTES / MB:.0f} MB/s ({rate / top:.0%})"
        note = f"{used / len(took) * 1e6:.1f} µs/record"
        yield Row(f"{name}, p50", cuts[49] * 1e3, "ms", None, note)
        yield Row(f"{name}, p99", cuts[98] * 1e3, "ms", None, "")


# -- many connections -----------------------------------------------------------------------------


def produce(partition: int) -> bytes:
    """Return a Produce of one batch, with acks=all."""
    records = batch(RECORD_BYTES)
    head = struct.pack(">hhiih", -1, -1, 30_000, 1, len(TOPIC)) + TOPIC.encode()
    place = struct.pack(">iii", 1, partition, len(records))
    return framed(ApiKey.PRODUCE, 7, head + place + records)


async def connected(number: int, places: list[tuple[str, int]], end_s: float) -> list[float]:
    """Produce over one connection until it is time; return what each request took."""
    partition = number % len(places)
    reader, writer = await asyncio.open_connection(*places[partition])
    request, took = produce(partition), []
    while time.monotonic() < end_s:
        began = time.perf_counter()
        writer.write(request)
        answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        took.append(time.perf_counter() - began)
        if error := _ERROR.unpack_from(answer)[-1]:
            raise RuntimeError(f"partition {partition}: error {error}")
    writer.close()
    return took


async def together(count: int, places: list[tuple[str, int]], end_s: float) -> list[float]:
    """Produce over some connections at once."""
    found = await asyncio.gather(*(connected(one, places, end_s) for one in range(count)))
    return [each for took in found for each in took]


def connections(cluster: Cluster, seconds: float) -> Iterator[Row]:
    """Yield the rate of requests, and what one waits, for several numbers of connections."""
    known = cluster.admin.list_topics(TOPIC, timeout=WITHIN_S)
    leaders = [known.topics[TOPIC].partitions[one].leader for one in range(PARTITIONS)]
    places = [(known.brokers[one].host, known.brokers[one].port) for one in leaders]
    for count in CONNECTIONS:
        uvloop.run(together(count, places, time.monotonic() + 1))
        cpu = cluster.cpu()
        took = uvloop.run(together(count, places, time.monotonic() + seconds))
        used, cuts = cluster.cpu() - cpu, statistics.quantiles(took, n=100)
        name = f"{count} connection{'' if count == 1 else 's'}"
        note = f"{used / len(took) * 1e6:.0f} µs/request"
        yield Row(name, len(took) / seconds, "/s", None, note)
        yield Row(f"{name}, p50", cuts[49] * 1e3, "ms", None, "")
        yield Row(f"{name}, p99", cuts[98] * 1e3, "ms", None, "")


def measured(cluster: Cluster, seconds: float) -> Iterator[Row]:
    """Yield all figures."""
    cluster.make(TOPIC, PARTITIONS)
    yield from latencies(cluster, seconds)
    yield from connections(cluster, seconds)


def main() -> int:
    """Measure, or be a producer."""
    if sys.argv[1:2] == ["--producer"]:
        servers, rate, seconds = sys.argv[2:]
        return be_producer(servers, float(rate), float(seconds))
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    print_measured(measured, seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
