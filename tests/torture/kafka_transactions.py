"""Transactions of Kafka's clients, beside brokers that are killed, cut off, frozen and set wrong.

    python tests/torture/kafka_transactions.py --seconds 300 --seed 1

Chains of librdkafka and aiokafka consume numbered records of one topic, write them to another, and
commit their offsets, all in transactions; some are aborted on purpose, and some programs end in the
middle. Pairs of records go to two topics at once, by librdkafka, kafka-python and kafkajs (`make
test-clients` fetches it). Meanwhile nodes are killed, lose power, are
frozen and cut off, and leaders change. At the end consumers that read committed records must find
each record of a chain once and in order, both records of each pair or none, and all pairs whose
commit was acknowledged; the chains have committed all that they were to read, and nothing is left
ongoing.
"""

import argparse
import asyncio
import contextlib
import logging
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import OffsetSpec
from kafka import KafkaProducer
from kafka.errors import KafkaError as PythonKafkaError

from kafka_load import (
    KAFKAJS,
    KAFKAJS_SCRIPT,
    PASSING,
    Job,
    confluent_producer,
    ends_of,
    has_kafkajs,
    reader_of,
)
from quorumlog.local import ending_in_order, guarded
from torture.broker_runs import watch
from torture.brokers import (
    SETTLE_S,
    Brokers,
    admin_of,
    caught_up,
    check_logs,
    check_stores,
    counted,
    create_topics,
    network_of,
)
from torture.nemesis import Nemesis

PARTITIONS = 4
CHAINS = 2
"""Chains of librdkafka, which share a consumer group."""
WRITERS = 2
"""Programs of each library that write pairs, but kafkajs: of that there is one."""
ABORTED, ENDED = 0.2, 0.05
"""Shares of transactions that are aborted on purpose, and in whose middle a program ends."""
CALL_S = 60
BATCH = 50
FILL_S = 0.05
"""Pause after each few records of the source."""
SOURCE, TARGETS, PAIRS = "source", ("by-librdkafka", "by-aiokafka"), ("left", "right")


class ProgramEnds(Exception):  # noqa: N818  (no error: the plan)
    """A program is to end in the middle of a transaction."""


class Work:
    """What all programs share: `sent` records of the source, pairs by number, and what was done."""

    def __init__(self, servers, seed):
        self.servers, self.seed = servers, seed
        self.filling, self.stopping = threading.Event(), threading.Event()
        self.sent, self.done = 0, Counter()
        self.pairs, self.committed = count(), set()

    def fill(self, each_s, each=20):
        """Write numbered records until told to stop; all of them are delivered then."""
        producer, failed = confluent_producer(self.servers), []
        while not self.filling.is_set():
            for _ in range(each):
                value = b"%d" % self.sent
                producer.produce(
                    SOURCE,
                    value,
                    partition=self.sent % PARTITIONS,
                    on_delivery=lambda error, _: error and failed.append(error),
                )
                self.sent += 1
            producer.poll(0)
            self.filling.wait(each_s)
        assert producer.flush(SETTLE_S) == 0
        assert not failed, failed[0]


def transactional(servers, name):
    settings = {"bootstrap.servers": servers, "transactional.id": name, "client.id": name}
    settings |= {"transaction.timeout.ms": 20_000, "message.timeout.ms": 15_000, "log_level": 0}
    return Producer(settings)


def insist(call, stopping):
    """Call until it succeeds; errors that are no passing ones are raised."""
    while True:
        try:
            return call()
        except KafkaException as error:
            if not error.args[0].retriable() or stopping.is_set():
                raise


def transact(producer, work, act, chance):
    """Do something in a transaction; return whether it was committed.

    Raises `ProgramEnds` to end the program, `KafkaException` if the producer is of no more use.
    """
    producer.begin_transaction()
    try:
        act()
        if chance < ENDED:
            work.done["programs ended"] += 1
            raise ProgramEnds
        if chance < ENDED + ABORTED:
            insist(lambda: producer.abort_transaction(CALL_S), work.stopping)
            work.done["aborted"] += 1
            return False
        insist(lambda: producer.commit_transaction(CALL_S), work.stopping)
        work.done["committed"] += 1
        return True
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
        work.done["aborted by errors"] += 1
        insist(lambda: producer.abort_transaction(CALL_S), work.stopping)
        return False


# -- programs -------------------------------------------------------------------------------------


def write_pairs(work, name):
    """Write the same number to two topics, again and again."""
    choice = random.Random(f"{work.seed} {name}")
    while not work.stopping.is_set():
        producer = transactional(work.servers, name)
        with contextlib.suppress(KafkaException, ProgramEnds):
            insist(lambda made=producer: made.init_transactions(CALL_S), work.stopping)
            while not work.stopping.is_set():
                number, partition = next(work.pairs), choice.randrange(PARTITIONS)

                def act(producer=producer, number=number, partition=partition):
                    for topic in PAIRS:
                        producer.produce(topic, b"%d" % number, partition=partition)

                if transact(producer, work, act, choice.random()):
                    work.committed.add(number)
                work.stopping.wait(0.02)
        work.done["producers"] += 1


def write_pairs_by_kafka_python(work, name):
    """Write the same number to two topics, again and again, by kafka-python."""
    choice = random.Random(f"{work.seed} {name}")
    while not work.stopping.is_set():
        with contextlib.suppress(PythonKafkaError):  # no broker may answer
            _write_pairs_by_kafka_python(work, name, choice)


def _write_pairs_by_kafka_python(work, name, choice):
    producer = KafkaProducer(
        bootstrap_servers=work.servers.split(","),
        transactional_id=name,
        transaction_timeout_ms=20_000,
        delivery_timeout_ms=15_000,
        request_timeout_ms=10_000,
        max_block_ms=CALL_S * 1_000,
        reconnect_backoff_max_ms=500,
    )
    try:
        producer.init_transactions()
        while not work.stopping.is_set():
            _write_pair(work, producer, choice)
            work.stopping.wait(0.02)
    except (PythonKafkaError, ProgramEnds):
        work.done["kafka-python's producers"] += 1
    with contextlib.suppress(PythonKafkaError, AssertionError):
        producer.close(5)


def _write_pair(work, producer, choice):
    number, partition, chance = next(work.pairs), choice.randrange(PARTITIONS), choice.random()
    producer.begin_transaction()
    sent = [producer.send(topic, b"%d" % number, partition=partition) for topic in PAIRS]
    for one in sent:
        one.get(CALL_S)
    if chance < ENDED:
        work.done["programs ended"] += 1
        raise ProgramEnds
    if chance < ENDED + ABORTED:
        producer.abort_transaction()
        work.done["aborted by kafka-python"] += 1
    else:
        committing = Job(producer.commit_transaction)
        committing.join(2 * CALL_S)
        if committing.is_alive():  # kafka-python 3.0 may wait for ever, whatever brokers say
            work.done["commits of kafka-python that did not end"] += 1
            raise ProgramEnds
        committing.result(CALL_S)
        work.committed.add(number)
        work.done["committed by kafka-python"] += 1


def write_pairs_by_kafkajs(work, name):
    """Write the same number to two topics, again and again, by kafkajs.

    node is told each number by a line, and says what became of it; it is ended now and then.
    """
    choice, pipe = random.Random(f"{work.seed} {name}"), subprocess.PIPE
    command = ["node", KAFKAJS_SCRIPT, KAFKAJS, work.servers, "pairs", name, *PAIRS]
    while not work.stopping.is_set():
        with subprocess.Popen([*map(str, command)], stdin=pipe, stdout=pipe, text=True) as process:
            try:
                while not work.stopping.is_set():
                    number, chance = next(work.pairs), choice.random()
                    what = "abort" if chance < ABORTED else "commit"
                    process.stdin.write(f"{number} {choice.randrange(PARTITIONS)} {what}\n")
                    process.stdin.flush()
                    if choice.random() < ENDED:
                        work.done["programs ended"] += 1
                        break
                    said = process.stdout.readline().split()
                    if said[:1] != [str(number)]:
                        break
                    work.done[f"{said[1]} by kafkajs"] += 1
                    if said[1] == "committed":
                        work.committed.add(number)
                    work.stopping.wait(0.02)
            except BrokenPipeError:
                work.done["kafkajs ended"] += 1
            finally:
                process.kill()
        work.done["kafkajs's producers"] += 1


WRITE_PAIRS = {"pairs": write_pairs, "kafka-python": write_pairs_by_kafka_python}
"""What writes pairs, by the beginning of its transactional ids."""


def chain_by_librdkafka(work, name):
    """Take records from the source to a target, each in one transaction with its offset."""
    choice = random.Random(f"{work.seed} {name}")
    while not work.stopping.is_set():
        producer = transactional(work.servers, name)
        consumer = Consumer(
            {
                "bootstrap.servers": work.servers,
                "group.id": TARGETS[0],
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 10_000,
                "log_level": 0,
            }
        )
        with contextlib.suppress(KafkaException, ProgramEnds):
            insist(lambda made=producer: made.init_transactions(CALL_S), work.stopping)
            consumer.subscribe([SOURCE])
            while not work.stopping.is_set():
                _carry(work, producer, consumer, choice.random())
        consumer.close()
        work.done["chains"] += 1


def _carry(work, producer, consumer, chance):
    records = [one for one in consumer.consume(BATCH, 0.5) if one.error() is None]
    if not records:
        return
    ends = {(one.topic(), one.partition()): one.offset() + 1 for one in records}

    def act():
        for one in records:
            producer.produce(TARGETS[0], one.value(), partition=one.partition())
        offsets = [Partition(*place, end) for place, end in ends.items()]
        metadata = consumer.consumer_group_metadata()
        insist(
            lambda: producer.send_offsets_to_transaction(offsets, metadata, CALL_S), work.stopping
        )

    if not transact(producer, work, act, chance):
        places = [Partition(*place) for place in ends]
        for one in insist(lambda: consumer.committed(places, CALL_S), work.stopping):
            first = min(
                record.offset() for record in records if record.partition() == one.partition
            )
            offset = one.offset if one.offset >= 0 else 0
            consumer.seek(Partition(one.topic, one.partition, min(first, offset)))


def chain_by_aiokafka(work, name):
    asyncio.run(_chain_by_aiokafka(work, name))


async def _chain_by_aiokafka(work, name):
    choice = random.Random(f"{work.seed} {name}")
    while not work.stopping.is_set():
        producer = AIOKafkaProducer(
            bootstrap_servers=work.servers, transactional_id=name, transaction_timeout_ms=20_000
        )
        consumer = AIOKafkaConsumer(
            bootstrap_servers=work.servers,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            group_id=TARGETS[1],
            isolation_level="read_committed",
        )
        try:
            await producer.start()
            await consumer.start()
            consumer.assign([TopicPartition(SOURCE, one) for one in range(PARTITIONS)])
            while not work.stopping.is_set():
                await _carry_by_aiokafka(work, producer, consumer, choice.random())
        except (AioKafkaError, ProgramEnds, TimeoutError):
            work.done["aiokafka's chains"] += 1
        finally:
            for one in (producer, consumer):
                with contextlib.suppress(AioKafkaError, TimeoutError):
                    await asyncio.wait_for(one.stop(), CALL_S)


async def _carry_by_aiokafka(work, producer, consumer, chance):
    found = await consumer.getmany(timeout_ms=500, max_records=BATCH)
    if not found:
        return
    async with asyncio.timeout(2 * CALL_S):
        await producer.begin_transaction()
        for place, records in found.items():
            for one in records:
                await producer.send(TARGETS[1], one.value, partition=place.partition)
        ends = {place: records[-1].offset + 1 for place, records in found.items()}
        await producer.send_offsets_to_transaction(ends, TARGETS[1])
        if chance < ENDED:
            work.done["programs ended"] += 1
            raise ProgramEnds
        if chance < ENDED + ABORTED:
            await producer.abort_transaction()
            work.done["aborted by aiokafka"] += 1
            for place, records in found.items():
                consumer.seek(place, records[0].offset)
        else:
            await producer.commit_transaction()
            work.done["committed by aiokafka"] += 1


# -- judgement ------------------------------------------------------------------------------------


def read_committed(servers, topic):
    """Return the values of a topic, of committed transactions only, by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "none",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 2,
        }
    )
    consumer.assign([Partition(topic, one, 0) for one in range(PARTITIONS)])
    deadline, left, found = time.monotonic() + SETTLE_S, set(range(PARTITIONS)), {}
    while left:
        if time.monotonic() > deadline:
            raise AssertionError(f"the partitions {left} of {topic} were not read to their ends")
        for message in consumer.consume(1_000, 0.2):
            error = message.error()
            if error is None:
                found.setdefault(message.partition(), []).append(int(message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
            elif error.code() not in PASSING:
                raise AssertionError(f"{topic}: {error}")
    consumer.close()
    return found


def ends_at(servers, topic):
    """Return the end of each partition."""
    deadline, consumer = time.monotonic() + SETTLE_S, reader_of(servers).consumer
    ends = {one: ends_of(consumer, topic, one, deadline)[1] for one in range(PARTITIONS)}
    consumer.close()
    return ends


async def wait_for_ends(servers):
    """Wait until no transaction is ongoing in any partition: both kinds of readers get as far."""
    deadline = time.monotonic() + SETTLE_S
    admin = admin_of(servers)
    while True:
        places = [
            Partition(topic, one) for topic in (*TARGETS, *PAIRS) for one in range(PARTITIONS)
        ]
        asked = dict.fromkeys(places, OffsetSpec.latest())
        ends = []
        for isolation in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED):
            found = admin.list_offsets(asked, isolation_level=isolation, request_timeout=10)
            with contextlib.suppress(KafkaException):
                ends.append([one.result(20).offset for one in found.values()])
        if len(ends) == 2 and ends[0] == ends[1]:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"transactions are ongoing: {ends}")
        await asyncio.sleep(0.5)


def judge_chains(work):
    for target in TARGETS:
        found = read_committed(work.servers, target)
        for partition in range(PARTITIONS):
            values, there = list(range(partition, work.sent, PARTITIONS)), found.get(partition, [])
            if there != values:
                twice = [value for value, times in Counter(there).items() if times > 1]
                lost = sorted(set(values) - set(there))
                text = f"{target} {partition}: {len(there)} of {len(values)}"
                raise AssertionError(f"{text}; twice {twice[:9]}, lost {lost[:9]}")


def judge_pairs(work):
    left, right = (
        sorted(value for values in read_committed(work.servers, topic).values() for value in values)
        for topic in PAIRS
    )
    if left != right:
        raise AssertionError(f"halves of pairs: {sorted(set(left) ^ set(right))[:9]}")
    twice = [value for value, times in Counter(left).items() if times > 1]
    lost = sorted(work.committed - set(left))
    if twice or lost:
        raise AssertionError(f"pairs: twice {twice[:9]}, lost {lost[:9]}")


def wait_for_chains(work):
    """Wait until the chains have come to the end of the source, and committed that."""
    deadline = time.monotonic() + SETTLE_S
    ends = ends_at(work.servers, SOURCE)
    for target in TARGETS:
        asking = Consumer({"bootstrap.servers": work.servers, "group.id": target, "log_level": 0})
        committed = {}
        while committed != ends:
            if time.monotonic() > deadline:
                raise AssertionError(f"{target}: {committed} of {ends} is committed")
            with contextlib.suppress(KafkaException):
                places = [Partition(SOURCE, one) for one in ends]
                committed = {one.partition: one.offset for one in asking.committed(places, 10)}
            time.sleep(0.2)
        asking.close()


class TransactionLoad:
    """Programs with transactions, and the topics that they read and write."""

    def __init__(self, brokers, seed, chains=CHAINS, writers=WRITERS, fill_s=FILL_S):
        self._fill_s = fill_s
        self.topics = [(name, PARTITIONS, {}) for name in (SOURCE, *TARGETS, *PAIRS)]
        self._brokers, self._seed = brokers, seed
        self._chains, self._writers = chains, writers
        self._work, self._jobs, self._filling = None, [], None

    async def begin(self):
        """Start all programs."""
        self._work = work = Work(self._brokers.bootstrap_servers, self._seed)
        self._filling = Job(work.fill, self._fill_s)
        for name, write in WRITE_PAIRS.items():
            self._jobs += [Job(write, work, f"{name}-{one}") for one in range(self._writers)]
        self._jobs += [
            Job(chain_by_librdkafka, work, f"chain-{one}") for one in range(self._chains)
        ]
        self._jobs.append(Job(chain_by_aiokafka, work, "aiokafka"))
        if has_kafkajs():
            self._jobs.append(Job(write_pairs_by_kafkajs, work, "kafkajs"))

    def check(self):
        """Raise what has failed meanwhile."""
        for job in (self._filling, *self._jobs):
            if job.error is not None:
                raise job.error

    async def calm(self):
        """Write no more, and have all programs end once they have done all."""
        work = self._work
        work.filling.set()
        await asyncio.to_thread(self._filling.result, SETTLE_S)
        await asyncio.to_thread(wait_for_chains, work)
        work.stopping.set()
        for job in self._jobs:
            await asyncio.to_thread(job.result, 2 * SETTLE_S)

    async def judge(self):
        """Raise `AssertionError` unless all is there, once."""
        await wait_for_ends(self._work.servers)
        await asyncio.to_thread(judge_chains, self._work)
        await asyncio.to_thread(judge_pairs, self._work)

    def tell(self):
        """Print what there was."""
        work = self._work
        done = f"{work.sent} records, {len(work.committed)} pairs"
        print(f"transactions: {done}; {counted(work.done)}", flush=True)

    def end(self):
        """The run is over: threads end with the process."""


async def run(directory, network, options):
    brokers = Brokers(directory, options.nodes, network, has_proxies=False)
    load = TransactionLoad(brokers, options.seed)
    try:
        for node_id in brokers.ids:
            brokers.start(node_id)
        await asyncio.to_thread(create_topics, brokers, load.topics)
        await load.begin()
        nemesis = Nemesis(brokers, options.seed)
        hurting = asyncio.ensure_future(nemesis.run())
        for second in range(int(options.seconds)):
            await watch(brokers, [], 1, hurting=hurting)
            load.check()
            if second % 10 == 9:
                print(f"{second + 1} s")
                load.tell()
        nemesis.stopping.set()
        await hurting
        print(f"seed {options.seed}: {counted(nemesis.done)}", flush=True)
        await load.calm()
        await caught_up(brokers)
        await load.judge()
        await asyncio.to_thread(brokers.stop)
        check_stores(brokers)
        check_logs(brokers)
        load.tell()
        print("nothing found", flush=True)
    finally:
        brokers.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args()
    directory = (options.dir or Path(tempfile.mkdtemp(prefix="torture-"))).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    for library in ("aiokafka", "kafka"):
        logging.getLogger(library).setLevel(logging.CRITICAL)
    print(f"seed {options.seed}, in {directory}", flush=True)
    with ending_in_order(), guarded(directory), network_of(options.nodes) as network:
        asyncio.run(run(directory, network, options))
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
