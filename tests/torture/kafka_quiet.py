"""Clients of Kafka that do next to nothing for ten minutes: none may have anything to complain of.

    python tests/torture/kafka_quiet.py --seconds 600

Of librdkafka, aiokafka and kafka-python each, a producer and a consumer (in a group) send and read
one record, are left alone, and send and read one more. Whatever a client logs meanwhile from
WARNING on (errors of the protocol, unknown APIs, lost connections) is a finding, and so is a
connection that librdkafka had to make again. kafka-python closes connections that were idle for
nine minutes by itself, and logs that as INFO.
"""

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer

from kafka_load import Job
from quorumlog.local import LocalCluster, ending_in_order, guarded

TOPIC = "quiet"
STARTED_S = 30
"""How long a record may take that is sent first or last."""
STATISTICS_MS = 10_000


class Said(logging.Handler):
    """Keeps what is logged from WARNING on."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(f"{record.name}: {record.getMessage()}")


class Statistics:
    """How often librdkafka has connected to each broker, and lost a connection."""

    def __init__(self):
        self.lost = {}
        self.reports = 0

    def take(self, text):
        found = json.loads(text)
        self.reports += 1
        for name, one in found["brokers"].items():
            if one.get("disconnects"):
                self.lost[found["name"], name] = one["disconnects"], one["connects"]


def by_librdkafka(servers, until_s, statistics):
    logger = logging.getLogger("librdkafka")
    options = {
        "bootstrap.servers": servers,
        "statistics.interval.ms": STATISTICS_MS,
        "stats_cb": statistics.take,
    }
    producer = Producer(options, logger=logger)
    consumer = Consumer(
        {**options, "group.id": "librdkafka", "auto.offset.reset": "earliest"}, logger=logger
    )
    consumer.subscribe([TOPIC])

    def exchange(value):
        producer.produce(TOPIC, value)
        assert producer.flush(STARTED_S) == 0
        read(lambda: (found := consumer.poll(0.2)) and found.value(), value)

    exchange(b"librdkafka first")
    while time.monotonic() < until_s:
        consumer.poll(0.1)
        producer.poll(0.1)
    exchange(b"librdkafka last")
    consumer.close()


def by_kafka_python(servers, until_s):
    producer = KafkaProducer(bootstrap_servers=servers.split(","))
    consumer = KafkaConsumer(
        TOPIC,
        bootstrap_servers=servers.split(","),
        group_id="kafka-python",
        auto_offset_reset="earliest",
    )
    waiting = []

    def look():
        for records in consumer.poll(200).values():
            waiting.extend(record.value for record in records)
        return waiting.pop(0) if waiting else None

    def exchange(value):
        producer.send(TOPIC, value).get(STARTED_S)
        read(look, value)

    exchange(b"kafka-python first")
    while time.monotonic() < until_s:
        consumer.poll(200)
    exchange(b"kafka-python last")
    consumer.close()
    producer.close()


def by_aiokafka(servers, until_s):
    async def work():
        producer = AIOKafkaProducer(bootstrap_servers=servers)
        consumer = AIOKafkaConsumer(
            TOPIC, bootstrap_servers=servers, group_id="aiokafka", auto_offset_reset="earliest"
        )
        await producer.start()
        await consumer.start()

        async def exchange(value):
            await producer.send_and_wait(TOPIC, value)
            async with asyncio.timeout(STARTED_S):
                while (await consumer.getone()).value != value:
                    pass

        await exchange(b"aiokafka first")
        await asyncio.sleep(until_s - time.monotonic())  # how long it is left alone
        await exchange(b"aiokafka last")
        await consumer.stop()
        await producer.stop()

    asyncio.run(work())


def read(look, value):
    """Look for a record until it is there."""
    deadline = time.monotonic() + STARTED_S
    while look() != value:
        assert time.monotonic() < deadline, f"{value} was not read"


def run(directory, seconds):
    said, statistics = Said(), Statistics()
    logging.getLogger().addHandler(said)
    cluster = LocalCluster.create(directory / "c", topics=True, kafka_port=0)
    try:
        cluster.up()
        servers = cluster.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers}, logger=logging.getLogger("admin"))
        (made,) = admin.create_topics([NewTopic(TOPIC, 3)], operation_timeout=30).values()
        made.result(60)
        until_s = time.monotonic() + seconds
        jobs = [
            Job(by_librdkafka, servers, until_s, statistics),
            Job(by_kafka_python, servers, until_s),
            Job(by_aiokafka, servers, until_s),
        ]
        for job in jobs:
            job.result(seconds + 4 * STARTED_S)
    finally:
        lines = list(said.lines)  # what clients say once the nodes have ended does not count
        cluster.down()
    assert statistics.reports > seconds * 1_000 / STATISTICS_MS / 2, (
        "librdkafka reported too little"
    )
    found = [*lines, *(f"librdkafka lost a connection: {one}" for one in statistics.lost.items())]
    if found:
        raise AssertionError("\n".join(found))
    print(f"{seconds:g} s: nothing found", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="torture-"))
    with ending_in_order(), guarded(place, remove=True):
        run(place, options.seconds)


if __name__ == "__main__":
    main()
