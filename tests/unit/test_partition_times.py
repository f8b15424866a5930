"""Look-up by time: the same records as in a list of everything, whatever the clocks said."""

import random
import zlib

import pytest

from partition_group import PartitionGroup
from quorumlog.model.codes import ResponseCode, WriteLevel
from quorumlog.node.replica import partition_times
from quorumlog.node.replica.partition_times import EARLIEST, LATEST, MAX_TIMESTAMP
from quorumlog.records import timestamps
from quorumlog.records.batch import batch_header, set_log_append_time
from quorumlog.topics.batch_index import SealLimits
from quorumlog.topics.entries import LogStartsMoved
from record_batches import CODECS, batch_of

HOUR_MS = 3_600_000
OK = ResponseCode.SUCCESS


class Topic:
    """A partition, and (offset, timestamp) of all its records as a list."""

    def __init__(self, group, channel, choice):
        self.group, self.channel, self.choice = group, channel, choice
        self.records = []
        self.begin = self.now_ms = 0

    def times(self, count):
        """Return timestamps of a batch: rising, falling, equal, or of clocks an hour apart."""
        choice, now_ms = self.choice, self.now_ms + 10 * HOUR_MS
        self.now_ms += 1_000 * count
        kind = choice.randrange(4)
        if kind == 0:
            return [now_ms + 1_000 * at for at in range(count)]
        if kind == 1:
            return [now_ms - 1_000 * at for at in range(count)]
        if kind == 2:
            return [now_ms] * count
        return [now_ms + choice.choice([-HOUR_MS, 0, HOUR_MS]) for _ in range(count)]

    def produce(self):
        times = self.times(self.choice.choice([1, 2, 10, 100]))
        batch = batch_of(times, codec=self.choice.choice(list(CODECS.values())))
        if self.choice.random() < 0.2:
            times = [max(times)] * len(times)
            set_log_append_time(batch, times[0])
        code, produced = self.group.produce(self.channel, batch)
        assert code is OK
        self.records += list(enumerate(times, produced.base_offset))

    def move_start(self):
        self.begin = self.choice.randint(self.begin, len(self.records) - 1)
        self.group.write(LogStartsMoved(((self.channel, self.begin),)).encode())

    def check(self, count=15):
        kept = self.records[self.begin :]
        all_times = [time for _, time in kept]
        asked = [self.choice.randint(min(all_times), max(all_times)) for _ in range(count)]
        for time in (0, *asked, *self.choice.choices(all_times, k=3), max(all_times) + 1):
            expected = next((one for one in kept if one[1] >= time), (-1, -1))
            found = self.group.find(self.channel, time)
            assert (found.code, found.offset, found.timestamp) == (OK, *expected), time
        newest = self.group.find(self.channel, MAX_TIMESTAMP)
        assert (newest.offset, newest.timestamp) == max(kept, key=lambda one: (one[1], -one[0]))
        ends = [self.group.find(self.channel, which).offset for which in (EARLIEST, LATEST)]
        assert ends == [self.begin, len(self.records)]


@pytest.mark.parametrize("seed", range(3))
def test_197_b6_records_are_found_by_time_as_by_brute_force(seed):
    choice = random.Random(seed)
    group = PartitionGroup(seed, seal_limits=SealLimits(batches=20))
    topics = [Topic(group, channel, choice) for channel in (1, 2, 3)]
    for _ in range(3):
        for _ in range(15):
            choice.choice(topics).produce()
        for topic in topics:
            topic.check()
            topic.move_start()
            topic.check()
    group.cluster.run_until(group.cluster.clock.now_ms + 5_000)
    for node in group.cluster.nodes.values():
        assert node.files.names("/node/g/quorumlog.batches")
        node.stop(power=True)
        for name in node.files.names("/node/g/quorumlog.batches"):
            node.files.remove(f"/node/g/quorumlog.batches/{name}")
        node.start()
    for topic in topics:
        topic.check()


@pytest.fixture
def group():
    return PartitionGroup()


def test_b6_a_partition_without_records_has_ends_and_no_times(group):
    for which, offset in ((EARLIEST, 0), (LATEST, 0), (MAX_TIMESTAMP, -1), (0, -1)):
        found = group.find(1, which)
        assert (found.code, found.offset, found.timestamp, found.leader_epoch) == (
            OK,
            offset,
            -1,
            -1,
        )
    assert group.find(9, LATEST).code is ResponseCode.UNKNOWN_PARTITION
    assert group.find(1, -4).code is ResponseCode.UNEXPECTED_ARGUMENT


def test_b6_only_a_leader_finds_offsets(group):
    leader = group.leader()
    (other, _) = [node for node in group.cluster.nodes.values() if node is not leader]
    found = []
    other.enter(lambda: other.running.partition_times.find(1, LATEST, found.append))
    assert found[0].code is ResponseCode.NOT_LEADER


def test_b6_what_is_not_committed_is_not_found(group):
    group.produce(1, batch_of([1_000, 5_000]))
    leader = group.leader()
    for node in group.cluster.nodes.values():
        if node is not leader:
            node.stop(power=True)
    assert group.produce(1, batch_of([9_000]), level=WriteLevel.PERSISTENCE)[1].base_offset == 2
    found = []
    for time in (MAX_TIMESTAMP, LATEST, 5_001, 5_000):
        leader.enter(lambda time=time: leader.running.partition_times.find(1, time, found.append))
    group.wait(lambda: len(found) == 4)
    offsets = {(one.offset, one.timestamp) for one in found}
    assert offsets == {(1, 5_000), (2, -1), (-1, -1)}


def unreadable(timestamp, records, codec):
    """Return a batch of one record whose bytes are these."""
    batch = bytearray(bytes(batch_of([timestamp]))[:61] + records)
    batch[8:12] = (len(batch) - 12).to_bytes(4)
    batch[22] |= codec
    batch[17:21] = zlib.crc32(b"").to_bytes(4)  # whoever appends has checked the CRC
    return memoryview(batch)


def test_c3_a_batch_that_cannot_be_unpacked_is_answered_as_a_whole(group, monkeypatch):
    monkeypatch.setattr(timestamps, "UNPACKED_MAX", 10_000)
    pack = zlib.compressobj(wbits=31)
    bomb = pack.compress(bytes(20_000)) + pack.flush()
    group.produce(1, batch_of([1_000]))
    for number, (records, codec) in enumerate([(b"garbage", 1), (bomb, 1), (b"\xff" * 90, 0)]):
        group.produce(1, unreadable(5_000 + number, records, codec))
        found = group.find(1, 5_000 + number)
        assert (found.code, found.offset, found.timestamp) == (OK, 1 + number, 5_000 + number)
        newest = group.find(1, MAX_TIMESTAMP)
        assert (newest.offset, newest.timestamp) == (1 + number, 5_000 + number)


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_c3_a_timestamp_beyond_64_bits_is_answered_with_what_its_batch_states(group, first, second):
    batch = batch_of([first, second])
    base, stated = (1 << 63) - 1, (1 << 63) - 1
    if second < first:
        base, stated = -1 << 63, 7_000
    batch[27:35], batch[35:43] = (number.to_bytes(8, signed=True) for number in (base, stated))
    group.produce(1, batch)
    found = group.find(1, MAX_TIMESTAMP)
    assert (found.code, found.offset, found.timestamp) == (OK, 0, stated)


def test_c3_a_look_up_reads_a_bounded_number_of_batches(group, monkeypatch):
    monkeypatch.setattr(partition_times, "BATCHES_SEARCHED_MAX", 3)
    for _ in range(5):
        batch = batch_of([1_000])
        batch[35:43] = (9_000).to_bytes(8)  # a client that states more than its records have
        group.produce(1, batch)
    group.produce(1, batch_of([9_000]))
    found = group.find(1, 9_000)
    assert (found.offset, found.timestamp) == (2, 9_000)


def test_c3_a_look_up_walks_through_a_bounded_number_of_records(group, monkeypatch):
    monkeypatch.setattr(partition_times, "RECORDS_SEARCHED_MAX", 4)
    for _ in range(5):
        batch = batch_of([1_000, 1_000])
        batch[35:43] = (9_000).to_bytes(8)  # a client that states more than its records have
        group.produce(1, batch)
    found = group.find(1, 9_000)
    assert (found.offset, found.timestamp) == (2, 9_000)


# -- leader epochs ------------------------------------------------------------------------------


def test_b7_leader_epochs_end_where_the_next_ones_begin(group):
    ends = {}
    for number in range(4):
        leader = group.leader()
        group.produce(1, count=number + 1)
        ends[leader.core.term] = group.find(1, LATEST)
        leader.stop(power=True)
        group.leader()
        leader.start()
    group.write(LogStartsMoved(((1, 2),)).encode())
    leader = group.leader()
    term, reads = leader.core.term, leader.running.partition_reads
    for epoch in range(term + 2):
        known = [one for one in ends if one <= epoch]
        expected = (known[-1], ends[known[-1]].offset) if known else None
        if epoch >= term:
            expected = (term, 10) if epoch == term else (-1, -1)
        elif not known or expected[1] <= 2:
            expected = (epoch, 2)
        assert reads.epoch_end(1, epoch) == expected, epoch
    assert [one.leader_epoch for one in ends.values()] == list(ends)
    assert reads.epoch_end(9, 1) is None
    assert reads.epoch_end(2, term - 1) == (term - 1, 0)
    first = batch_header(group.read(1, 2).batches[0])
    assert group.find(1, EARLIEST).leader_epoch == first.leader_epoch
