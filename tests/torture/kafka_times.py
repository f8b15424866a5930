"""Look-up by time and fetch by offset in real brokers, compared with all records as consumed.

    python tests/torture/kafka_times.py --look-ups 10000 --seed 1

Topics get random batches of 1 to 500 records in every codec, whose timestamps rise, fall, are equal
or come from clocks an hour apart; some topics have their leaders' time. Then ListOffsets is asked
for random times, and Fetch for random offsets: the first record that is not older, and the batch
that holds the offset. The same again after records were deleted, after each leader was stopped in
turn, and after all nodes were started with the indexes of batches deleted.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from confluent_kafka import OFFSET_BEGINNING
from confluent_kafka import TopicPartition as Partition

from kafka_client import Client
from kafka_load import consumer_of, ends_of
from quorumlog.kafka.requests import ApiKey
from quorumlog.local import ending_in_order, guarded
from quorumlog.records.batch import batch_header
from record_batches import CODECS, batch_of
from torture.brokers import (
    SETTLE_S,
    Brokers,
    admin_of,
    caught_up,
    counted,
    create_topics,
)

HOUR_MS = 3_600_000
BATCH_MAX = 500
FETCHES = 20
"""Random offsets of each topic that are fetched after each change."""


class Topic:
    """A topic of one partition: `records` are (offset, timestamp) of all that can be read."""

    def __init__(self, name, choice, *, has_append_time):
        self.name = name
        self.choice = choice
        self.configs = {"message.timestamp.type": "LogAppendTime"} if has_append_time else {}
        self.records = []
        self._now_ms = int(time.time() * 1_000) - 24 * HOUR_MS

    def batch(self):
        """Return the next batch."""
        choice, now_ms = self.choice, self._now_ms
        count = choice.choice([1, 2, 10, 100, BATCH_MAX])
        self._now_ms += 1_000 * count
        times = choice.choice(
            [
                [now_ms + 1_000 * at for at in range(count)],
                [now_ms - 1_000 * at for at in range(count)],
                [now_ms] * count,
                [now_ms + choice.choice([-HOUR_MS, 0, HOUR_MS]) for _ in range(count)],
            ]
        )
        return batch_of(times, codec=choice.choice(list(CODECS.values())))

    def time(self):
        """Return a time to be looked up, and (offset, timestamp) of the record to be found."""
        times = [self.choice.choice(self.records)[1] for _ in range(2)]
        asked = self.choice.choice([times[0], self.choice.randint(min(times), max(times) + 1)])
        return asked, next((one for one in self.records if one[1] >= asked), (-1, -1))


class Leaders:
    """Connections to whoever leads topics; requests are repeated until they have no errors."""

    def __init__(self, brokers):
        self._admin = admin_of(brokers.bootstrap_servers)
        self._leaders, self._clients = {}, {}

    async def ask(self, names, request):
        """Return what the leaders of topics answer, by topic.

        `request(client, names)` asks one leader about its topics, and returns answers in order.
        """
        deadline = time.monotonic() + SETTLE_S
        while True:
            by_leader = defaultdict(list)
            for name in names:
                by_leader[self._leaders.get(name)].append(name)
            found = {}
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                for leader, theirs in by_leader.items():
                    if leader is not None:
                        answers = await request(await self._client(leader), theirs)
                        found.update(zip(theirs, answers, strict=True))
            if len(found) == len(names) and not any(one.error_code for one in found.values()):
                return found
            assert time.monotonic() < deadline, f"not all topics are served: {found}"
            await self._learn()

    async def ask_one(self, name, request):
        """Return what the leader of a topic answers to `request(client)`."""

        async def ask(client, _):
            return [await request(client)]

        return (await self.ask([name], ask))[name]

    async def _learn(self):
        for client in self._clients.values():
            client.writer.close()
        self._clients.clear()
        known = await asyncio.to_thread(self._admin.list_topics, None, 30)
        for name, topic in known.topics.items():
            self._leaders[name] = known.brokers.get(topic.partitions[0].leader)
        await asyncio.sleep(0.1)

    async def _client(self, leader):
        if leader.id not in self._clients:
            streams = await asyncio.open_connection(leader.host, leader.port)
            self._clients[leader.id] = Client(*streams)
        return self._clients[leader.id]


async def produce(leaders, topic, batches):
    for _ in range(batches):
        batch = topic.batch()

        async def send(client, batch=batch):
            (found,) = await client.produce(batch, topic=topic.name)
            return found

        await leaders.ask_one(topic.name, send)


def consume(servers, topics):
    """Read all topics from where they begin, by librdkafka, which unpacks every codec."""
    for topic in topics:
        client = consumer_of(servers, topic.name, {0: OFFSET_BEGINNING})
        consumer = client.consumer
        start, end = ends_of(consumer, topic.name, 0, time.monotonic() + SETTLE_S)
        topic.records, deadline = [], time.monotonic() + SETTLE_S
        while len(topic.records) < end - start:
            assert time.monotonic() < deadline, f"{topic.name}: {len(topic.records)} records"
            for message in consumer.consume(1_000, 0.2):
                if message.error() is None:
                    assert message.offset() == start + len(topic.records), f"{topic.name} has gaps"
                    topic.records.append((message.offset(), message.timestamp()[1]))
        client.close()


async def check(brokers, leaders, topics, look_ups, done):
    """Consume all again, and compare with it what is looked up and what is fetched."""
    await asyncio.to_thread(consume, brokers.bootstrap_servers, topics)
    for _ in range(look_ups // len(topics)):
        asked = {topic.name: topic.time() for topic in topics}
        found = await leaders.ask(list(asked), partial(list_offsets, asked))
        for name, (asked_ms, expected) in asked.items():
            one = found[name].offset, found[name].timestamp
            if one != expected:
                raise AssertionError(f"{name} at {asked_ms}: {one}, not {expected}")
            done["found" if one[0] >= 0 else "not found"] += 1
    for topic in topics:
        for _ in range(FETCHES):
            await fetch_one(leaders, topic)
            done["fetched"] += 1


async def list_offsets(asked, client, names):
    topics = [
        {
            "name": name,
            "partitions": [
                {"partition_index": 0, "current_leader_epoch": -1, "timestamp": asked[name][0]}
            ],
        }
        for name in names
    ]
    found = await client.ask(
        ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics
    )
    answers = {topic.name: topic.partitions[0] for topic in found.topics}
    return [answers[name] for name in names]


async def fetch_one(leaders, topic):
    """However few bytes are asked for, the batch that holds the offset comes, alone."""
    offset, _ = topic.choice.choice(topic.records)

    def fetch(client):
        return client.fetch(offset, topic=topic.name, bytes_max=1, partition_bytes_max=1)

    header = batch_header((await leaders.ask_one(topic.name, fetch)).records)
    if not header.base_offset <= offset <= header.last_offset:
        raise AssertionError(f"{topic.name} from {offset}: {header}")


# -- changes -------------------------------------------------------------------------------------


async def delete_records(brokers, topics):
    starts = [Partition(topic.name, 0, topic.choice.choice(topic.records)[0]) for topic in topics]
    admin = admin_of(brokers.bootstrap_servers)
    for future in (await asyncio.to_thread(admin.delete_records, starts)).values():
        await asyncio.to_thread(future.result, SETTLE_S)


async def start_all(brokers):
    for node_id in brokers.ids:
        brokers.start(node_id)
    deadline = time.monotonic() + SETTLE_S
    while not all(map(brokers.has_started, brokers.ids)):
        assert time.monotonic() < deadline, "not all nodes have started"
        await asyncio.sleep(0.1)
    await caught_up(brokers)


def delete_indexes(brokers):
    """Delete the indexes of batches of stopped nodes; return how many files."""
    found = list(brokers.directory.glob("n*/pg-*/quorumlog.batches/*"))
    for file in found:
        file.unlink()
    return len(found)


async def run(brokers, options):
    choice, done = random.Random(options.seed), Counter()
    topics = [
        Topic(f"times-{number}", choice, has_append_time=number % 5 == 4)
        for number in range(options.topics)
    ]
    await start_all(brokers)
    made = [(topic.name, 1, topic.configs) for topic in topics]
    await asyncio.to_thread(create_topics, brokers, made)
    leaders = Leaders(brokers)
    for topic in topics:
        await produce(leaders, topic, options.batches)
    each = options.look_ups // 4
    await check(brokers, leaders, topics, each, done)
    await delete_records(brokers, topics)
    await check(brokers, leaders, topics, each, done)
    for node_id in brokers.ids:
        await asyncio.to_thread(brokers.stop_one(node_id))
        for topic in topics:
            await produce(leaders, topic, 1)
        await check(brokers, leaders, topics, each // len(brokers.ids), done)
        brokers.start(node_id)
        await caught_up(brokers)
    await asyncio.to_thread(brokers.stop)
    done["index files deleted"] = delete_indexes(brokers)
    await start_all(brokers)
    await check(brokers, leaders, topics, each, done)
    total = sum(len(topic.records) for topic in topics)
    print(f"seed {options.seed}: {counted(done)}, all as in the {total} records that are left")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--look-ups", type=int, default=10_000)
    parser.add_argument("--topics", type=int, default=20)
    parser.add_argument("--batches", type=int, default=30, help="of each topic")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="torture-"))
    with ending_in_order(), guarded(place, remove=True):
        brokers = Brokers(place, 3, None, has_proxies=False)
        try:
            asyncio.run(run(brokers, options))
        finally:
            brokers.end()


if __name__ == "__main__":
    main()
