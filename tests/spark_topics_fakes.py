"""Brokers in memory, as the data source sees them: for readers without Spark and servers."""

import copy
from collections import Counter

from quorumlog.model.errors import NetworkError
from quorumlog.records.batch import stamp_batch
from quorumlog.records.columns import whole_batches
from quorumlog.records.markers import encode_marker
from quorumlog.spark.topics.brokers import FetchedBatches
from quorumlog.spark.topics.errors import OffsetOutOfRangeError, UnknownTopicError
from quorumlog.spark.topics.part import EARLIEST, LATEST, Part
from record_batches import batch_of

PRODUCER = 7


class FakePartition:
    """Batches of one partition; those from `stable` on are of ongoing transactions."""

    def __init__(self):
        self.batches = []
        """(first offset, last offset, newest time, bytes)"""
        self.begin = self.end = 0
        self.stable = None
        self.aborted = []

    def append(self, *timestamps, **options):
        batch = batch_of(timestamps, **options)
        return self._add(batch, len(timestamps), max(timestamps))

    def mark(self, *, commits, first=None, producer=PRODUCER):
        """End a transaction; `first` is where an aborted one began."""
        marker = memoryview(bytearray(encode_marker(producer, 0, 1, 1, commits=commits)))
        if not commits:
            self.aborted.append((producer, first))
        return self._add(marker, 1, 0)

    def _add(self, batch, count, newest):
        stamp_batch(batch, 0, self.end, 1)
        self.batches.append((self.end, self.end + count - 1, newest, bytes(batch)))
        self.end += count
        return self

    def purge_before(self, offset):
        self.begin = offset
        self.batches = [one for one in self.batches if one[1] >= offset]

    def beyond(self, *, reads_committed):
        return self.end if self.stable is None or not reads_committed else self.stable

    def since(self, time):
        return next((first for first, _, newest, _ in self.batches if newest >= time), None)


class FakeBrokers:
    """`connect` it is itself: reader(options, columns, brokers.connect)."""

    def __init__(self, **topics):
        self.content = {
            Part(topic, number): partition
            for topic, partitions in topics.items()
            for number, partition in enumerate(partitions)
        }
        self.ids = {}
        """Ids of topics that have others than by default; empty: the brokers tell none."""
        self.calls = Counter()
        self.timeouts = []
        self.is_down = False
        self.hidden = set()
        """Partitions that a broker does not know if it is asked alone."""
        self.before_fetch = None
        """Called before each fetch, with its number."""
        self.before_confirmed = lambda: None
        """Called before brokers agree who leads partitions."""

    def connect(self, servers, timeout_ms, client_id):
        self.timeouts.append(timeout_ms)
        return self

    def _called(self, name):
        self.calls[name] += 1
        if self.is_down:
            raise NetworkError("no broker answers")

    def _check_is_there(self, part):
        if part not in self.content:
            raise UnknownTopicError(f"there is no partition {part}", part.topic)

    def cluster_id(self):
        return "cluster-of-test"

    def topics(self, *, unconfirmed=False):
        self._called("topics" if unconfirmed else "confirmed topics")
        found = {}
        for part in self.content.keys() - (self.hidden if unconfirmed else set()):
            found.setdefault(part.topic, []).append(part.partition)
        return found

    def partitions(self, topics, *, unconfirmed=False):
        found = self.topics(unconfirmed=unconfirmed)
        return {name: parts for name, parts in found.items() if name in topics}

    def topic_ids(self, topics):
        self._called("topic ids")
        there = {part.topic for part in self.content} & set(topics)
        return {topic: self.ids.get(topic, f"id-of-{topic}") for topic in there}

    def make_again(self, **topics):
        """Delete topics and make them again with these partitions."""
        for topic, partitions in topics.items():
            self.ids[topic] = self.ids.get(topic, "") + "again"
            for part in [part for part in self.content if part.topic == topic]:
                del self.content[part]
            self.content |= {Part(topic, number): one for number, one in enumerate(partitions)}

    def existing(self, parts):
        self._called("existing")
        return {part for part in parts if part in self.content}

    def offsets(self, times, *, reads_committed, unconfirmed=False):
        self._called("offsets" if unconfirmed else "confirmed offsets")
        if not unconfirmed:
            self.before_confirmed()
        for part in times:
            self._check_is_there(part)
        return {
            part: self.content[part].begin
            if time == EARLIEST
            else self.content[part].beyond(reads_committed=reads_committed)
            if time == LATEST
            else self.content[part].since(time)
            for part, time in times.items()
        }

    def batches(self, part, first, beyond, *, reads_committed, bytes_max, local_reads):
        while first < beyond:
            self._called("fetch")
            if self.before_fetch is not None:
                self.before_fetch(self.calls["fetch"])
            self._check_is_there(part)
            partition = self.content[part]
            if not partition.begin <= first < partition.end:
                raise OffsetOutOfRangeError(f"{part} has no offset {first}")
            data, taken = bytearray(), 0
            for _, last, _, batch in partition.batches:
                if last >= first and (not taken or len(data) + len(batch) <= bytes_max):
                    data += batch
                    taken += 1
            found = list(whole_batches(memoryview(data)))
            first = found[-1][1].last_offset + 1
            yield FetchedBatches(memoryview(data), found, partition.aborted, first)


def filled(count, batch=10, **options):
    """Return a partition whose records have the times 1,000, 1,001 …"""
    partition = FakePartition()
    for first in range(0, count, batch):
        last = min(first + batch, count)
        partition.append(*range(1_000 + first, 1_000 + last), **options)
    return partition


def depose(brokers, part, end, times=1):
    """Have a former leader answer, which knows no offsets from `end` on, until brokers agree.

    `times`: how often, until a broker knows the new one.
    """
    whole = brokers.content[part]
    former = copy.copy(whole)
    former.end = end
    former.batches = [batch for batch in whole.batches if batch[0] < end]
    left = [times]

    def before_confirmed():
        left[0] -= 1
        if left[0] <= 0:
            brokers.content[part] = whole

    brokers.content[part], brokers.before_confirmed = former, before_confirmed


def rows_of(reader, tasks):
    """Return the rows of tasks as dictionaries."""
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
