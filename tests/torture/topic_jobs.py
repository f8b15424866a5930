"""What is done to topics beside producing records that must stay: made and deleted, retained.

Each is the work of a thread (`kafka_load.Job`) that raises what it finds.
"""

import random
import time
from collections import Counter, deque
from functools import partial
from itertools import count

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic, OffsetSpec

from kafka_load import LEADERLESS, PASSING, confluent_producer, read_all, reader_of
from torture.brokers import SETTLE_S, admin_of

KNOWN = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
UNSURE = {
    *LEADERLESS,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._NOENT,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}
"""What may be answered about a topic that is there, by a broker that was just started, say."""
OUTSIDE = {KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET}
VALUE_BYTES = 1_000


def renew_topic(servers, stopping, done):
    """Make, write, read and delete a topic again and again: it never has earlier records."""
    admin = admin_of(servers)
    for generation in count():
        if stopping.is_set() or not insist(admin.create_topics, [NewTopic("renewed", 2)], stopping):
            return
        written = confluent_producer(servers, **{"message.timeout.ms": 20_000})
        failed = Counter()
        for number in range(50):
            written.produce(
                "renewed",
                b"%d %d" % (generation, number),
                partition=number % 2,
                on_delivery=lambda error, _, to=failed: to.update([error and error.name()]),
            )
        written.flush(60)
        if not stopping.is_set():
            check_generation(servers, generation, failed)
            done["topics renewed"] += 1
        if not insist(admin.delete_topics, ["renewed"], stopping):
            return


def check_generation(servers, generation, failed):
    try:
        contents = read_all(servers, "renewed", 2, SETTLE_S)
    except KafkaException as error:
        if error.args[0].code() in KNOWN:  # a broker that was just started may not know it yet
            return
        raise
    found = [value.split()[0] for values in contents.values() for value in values]
    if any(int(one) != generation for one in found):
        raise AssertionError(f"generation {generation} has records of {Counter(found)}")
    if len(found) < failed[None]:
        raise AssertionError(f"{len(found)} records of {failed[None]} that were acknowledged")


def insist(change, topics, stopping):
    """Ask for a change until it is so; False: it is time to stop."""
    done = {change.__name__: KNOWN, "create_topics": {KafkaError.TOPIC_ALREADY_EXISTS}}
    while not stopping.is_set():
        (future,) = change(topics, operation_timeout=10).values()
        try:
            future.result(60)
            return True
        except KafkaException as error:
            if error.args[0].code() in done[change.__name__]:
                return True
    return False


# -- retention -----------------------------------------------------------------------------------


class Retained:
    """A topic of one partition that is written, given up and read by its start, again and again.

    `start` and `end` are the highest ones that were ever seen, which no later answer may go below.
    """

    def __init__(self, servers, name, *, retention_s=None, deletes=False, seed=0):
        self.name = name
        self.servers = servers
        self.start = self.end = 0
        self._admin = admin_of(servers)
        self.done = Counter()
        self._retention_s = retention_s
        self._deletes = deletes
        self._random = random.Random(f"{seed} {name}")
        self._made = deque()
        self._numbers = {}

    def work(self, stopping, each_s=0.5, each=20):
        """Go on until told to stop. Raises `AssertionError` for what is wrong."""
        producer = confluent_producer(self.servers)
        client = reader_of(self.servers)
        consumer = client.consumer
        for number in count():
            if stopping.is_set():
                break
            for one in range(each):
                value = b"%d " % (number * each + one) + bytes(VALUE_BYTES)
                report = partial(self._delivered, time.monotonic())
                producer.produce(self.name, value, partition=0, on_delivery=report)
            deadline = time.monotonic() + each_s
            while time.monotonic() < deadline:
                producer.poll(0.05)
            if self._deletes and self._random.random() < 0.3:
                self._delete_some()
            self.look()
            self._read_from_start(consumer)
            if self._random.random() < 0.2 and self.start:
                self._read_what_is_gone(consumer)
        assert producer.flush(300) == 0, f"{self.name}: not all is delivered"
        if not client.close():
            self.done["deadlocks of librdkafka"] += 1

    def _delivered(self, made_s, error, message):
        assert error is None, f"{self.name}: {error}"
        offset, number = message.offset(), number_of(message)
        if offset is None:  # librdkafka got the answer to a later batch instead
            return
        if offset in self._numbers:
            raise AssertionError(f"{self.name}@{offset}: {self._numbers[offset]} and {number}")
        self._numbers[offset] = number
        self._made.append((made_s, offset))

    def look(self):
        """Ask where the partition begins and ends, as far as somebody answers.

        By two questions: a consumer that asks for both takes one answer for both, if need be.
        """
        try:
            start, end = self._offset(OffsetSpec.earliest()), self._offset(OffsetSpec.latest())
        except KafkaException as error:
            if error.args[0].code() not in UNSURE:
                raise
            self.done["looks in vain"] += 1
            self._admin = admin_of(self.servers)  # librdkafka's keeps to a leader's old epoch
            return False
        if min(start, end) < 0:  # librdkafka has neither an offset nor an error
            self.done["looks in vain"] += 1
            return False
        if start < self.start or end < self.end:
            known = f"{self.start} to {self.end}"
            raise AssertionError(f"{self.name} is {start} to {end}, and was {known}")
        self.done["starts moved"] += start > self.start
        self.start, self.end = start, end
        self._check_ages(time.monotonic())
        return True

    def _offset(self, spec):
        asked = {TopicPartition(self.name, 0): spec}
        (future,) = self._admin.list_offsets(asked, request_timeout=10).values()
        return future.result(60).offset

    def _check_ages(self, now_s):
        """No record is given up before its time."""
        while self._retention_s is not None and self._made and self._made[0][1] < self.start:
            since_s, offset = self._made.popleft()
            age_s = now_s - since_s
            if age_s < self._retention_s:
                raise AssertionError(f"{self.name}@{offset} was given up within {age_s:.1f} s")
            self.done["records given up"] += 1

    def _delete_some(self):
        before = self._random.randint(self.start, self.end)
        asked = [TopicPartition(self.name, 0, before)]
        (future,) = self._admin.delete_records(
            asked, request_timeout=10, operation_timeout=10
        ).values()
        try:
            start = future.result(60).low_watermark
        except KafkaException as error:
            if error.args[0].code() not in UNSURE:
                raise
            return
        if start < before or start < self.start:
            raise AssertionError(f"{self.name} starts at {start} after deletion before {before}")
        self.start = start
        self.done["records deleted"] += 1

    def _read_from_start(self, consumer):
        """What is read next of the partition lies where it was acknowledged."""
        following = self.start
        for message in self._read(consumer, following, 100):
            offset, number = message.offset(), number_of(message)
            known = self._numbers.get(offset, number)
            if offset != following or known != number:
                told = f"{self.name}@{offset} is {number} after {following}"
                raise AssertionError(f"{told}, and was {known}")
            following = offset + 1
            self.done["records read"] += 1

    def _read_what_is_gone(self, consumer):
        for message in self._read(consumer, self._random.randrange(self.start), 1):
            if message.offset() < self.start:
                raise AssertionError(f"{self.name}@{message.offset()} is read below {self.start}")

    def _read(self, consumer, offset, limit):
        """Yield records from an offset on; none if that is outside what is there."""
        consumer.assign([TopicPartition(self.name, 0, offset)])
        for message in consumer.consume(limit, 0.5):
            error = message.error()
            if error is None:
                yield message
            elif error.code() in OUTSIDE:
                self.done["reads outside"] += 1
                return
            elif error.code() not in {*PASSING, *UNSURE}:
                raise AssertionError(f"{self.name}: {error}")


def number_of(message):
    return int(message.value().split(b" ", 1)[0])
