"""Partitions of a log: what every replica derives of offsets, epochs and producers."""

import random
from types import SimpleNamespace

import pytest

from quorumlog.model.block import encode_entry, parse_block
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import CorruptionError, UnexpectedArgumentError
from quorumlog.node.replica.batch_sealer import BatchSealer
from quorumlog.node.replica.tables import Tables
from quorumlog.records.batch import batch_header, set_log_append_time, stamp_batch
from quorumlog.records.markers import encode_marker
from quorumlog.sessions.entries import decode_system_entry, system_entry_of
from quorumlog.sessions.table_set import TableSet
from quorumlog.topics import partition_table, partition_transactions
from quorumlog.topics.batch_index import SealLimits
from quorumlog.topics.entries import (
    STARTS_MAX,
    LogStartsMoved,
    PartitionClosed,
    PartitionOpened,
)
from quorumlog.topics.partition_table import EPOCHS_MAX, PartitionTable
from quorumlog.topics.produced_batch import ProducedBatch
from quorumlog.topics.producers import BATCHES_REMEMBERED, is_later
from record_batches import batch_of
from store_access import Opened

OK, GAP = ResponseCode.SUCCESS, ResponseCode.SEQUENCE_GAP
MISMATCH, UNKNOWN = ResponseCode.SEQUENCE_MISMATCH, ResponseCode.UNKNOWN_PRODUCER
FENCED = ResponseCode.PRODUCER_FENCED
TOPIC_ID = b"t" * 16


def opened(channel, number=0):
    return PartitionOpened(channel, number, TOPIC_ID, "flights")


def block_of(*entries):
    """Return a block of entries that are encoded already."""
    data = memoryview(bytearray(b"".join(entries)))
    return parse_block(data, count=len(entries), entry_bytes_max=1 << 20)


class Leader:
    """Appends to a table what a leader appends to its log: batches get their offsets."""

    def __init__(self, table=None):
        self.table = PartitionTable() if table is None else table
        self.index = 0
        self.term = 1

    def write(self, *entries):
        block = block_of(*entries)
        decoded = [decode_system_entry(bytes(entry[48:])) for entry in entries]
        system = [(i, one) for i, one in enumerate(decoded, self.index) if one is not None]
        for index, what in self.table.found_in(block, self.index, system):
            self.table.apply(index, what)
        self.index += block.count

    def open(self, channel, number=0):
        self.write(opened(channel, number).encode())

    def batch(self, channel, count=1, **fields):
        batch = batch_of(range(count), **fields)
        stamp_batch(batch, 0, self.table.partitions[channel].next_offset, self.term)
        return encode_entry(batch, channel=channel)

    def append(self, channel, count=1, **fields):
        self.write(self.batch(channel, count, **fields))

    def marker(self, channel, producer_id, epoch=0, *, commits):
        marker = bytearray(encode_marker(producer_id, epoch, self.term, 5, commits=commits))
        stamp_batch(memoryview(marker), 0, self.table.partitions[channel].next_offset, self.term)
        return encode_entry(marker, channel=channel)

    def end(self, channel, producer_id, epoch=0, *, commits):
        self.write(self.marker(channel, producer_id, epoch, commits=commits))


@pytest.fixture
def leader():
    made = Leader()
    made.open(3)
    return made


# -- entries ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry",
    [
        opened(0),
        PartitionOpened(9, 7, b"i" * 16, "ü" * 100),
        PartitionClosed(5),
        LogStartsMoved(()),
        LogStartsMoved(((1, 5), (7, 1 << 60))),
    ],
)
def test_entries_of_partitions_are_read_as_they_were_written(entry):
    encoded = entry.encode()
    assert decode_system_entry(encoded[48:]) == entry
    for size in range(len(encoded) - 48):
        assert decode_system_entry(encoded[48 : 48 + size]) != entry


def test_clients_append_no_entries_of_partitions():
    for entry in (opened(1), PartitionClosed(1), LogStartsMoved(((1, 2),))):
        with pytest.raises(UnexpectedArgumentError, match="only leaders append"):
            system_entry_of(block_of(entry.encode()))


def test_an_entry_moves_a_bounded_number_of_log_starts():
    pairs = tuple((channel, 1) for channel in range(STARTS_MAX + 1))
    assert len(LogStartsMoved(pairs[1:]).encode()) > STARTS_MAX
    with pytest.raises(UnexpectedArgumentError, match="at most 10000"):
        LogStartsMoved(pairs).encode()


# -- offsets ------------------------------------------------------------------------------------


def test_offsets_are_dense_in_each_partition(leader):
    leader.open(4, 1)
    leader.append(3, 5)
    leader.append(4, 2)
    leader.append(3, 1)
    found = leader.table.partitions
    assert (found[3].next_offset, found[4].next_offset) == (6, 2)
    assert (found[4].number, found[4].topic, found[4].topic_id) == (1, "flights", TOPIC_ID)
    assert found[3].max_timestamp == 4


def test_a_partition_may_be_opened_in_the_block_of_its_first_batch():
    leader = Leader()
    batch = batch_of([1, 2])
    stamp_batch(batch, 0, 0, 1)
    leader.write(opened(3).encode(), encode_entry(batch, channel=3))
    assert leader.table.partitions[3].next_offset == 2


@pytest.mark.parametrize("channel", [0, 2, 3])
def test_a_channel_is_not_opened_again(leader, channel):
    leader.append(3, 2)
    leader.write(PartitionClosed(3).encode())
    leader.open(channel)
    assert leader.table.partitions == {}
    leader.open(4)
    assert leader.table.partitions[4].next_offset == 0


def test_entries_of_other_channels_are_nothing_to_partitions(leader):
    batch = batch_of([1])
    leader.write(encode_entry(batch, channel=9), encode_entry(b"text", channel=3))
    assert leader.table.partitions[3].next_offset == 0


def test_193_a_batch_that_does_not_go_on_changes_nothing(leader):
    leader.append(3, 2)
    before = leader.table.fields()
    for offset in (0, 1, 3):
        batch = batch_of([1])
        stamp_batch(batch, 0, offset, 1)
        leader.write(encode_entry(batch, channel=3))
    assert leader.table.fields() == before


def test_log_starts_only_rise_up_to_the_end(leader):
    leader.append(3, 10)
    for offset, expected in [(4, 4), (2, 4), (11, 4), (10, 10), (-1, 10)]:
        leader.write(LogStartsMoved(((3, offset), (77, 1))).encode())
        assert leader.table.partitions[3].log_start == expected


def test_b7_the_end_of_each_leader_epoch_is_known(leader):
    for term, count in [(1, 3), (4, 2), (4, 1), (9, 5)]:
        leader.term = term
        leader.append(3, count)
    partition = leader.table.partitions[3]
    ends = {epoch: partition.end_of_epoch(epoch) for epoch in range(11)}
    assert ends[0] == (0, 0)
    assert [ends[1], ends[3], ends[4], ends[8], ends[9], ends[10]] == [
        (1, 3),
        (1, 3),
        (4, 6),
        (4, 6),
        (9, 11),
        (9, 11),
    ]
    leader.write(LogStartsMoved(((3, 4),)).encode())
    assert leader.table.partitions[3].epochs == ((4, 3), (9, 6))


def test_the_oldest_of_many_epochs_are_forgotten(leader):
    for term in range(1, EPOCHS_MAX + 3):
        leader.term = term
        leader.append(3)
    partition = leader.table.partitions[3]
    assert len(partition.epochs) == EPOCHS_MAX
    assert partition.end_of_epoch(2) == (2, 2)
    assert partition.end_of_epoch(3) == (3, 3)


# -- producers ----------------------------------------------------------------------------------


def check(leader, channel=3, count=1, begins_anywhere=False, **fields):
    header = batch_header(batch_of(range(count), **fields))
    return leader.table.check(ProducedBatch(channel, header, begins_anywhere=begins_anywhere))


def of_producer(sequence, epoch=0, producer_id=7):
    return {"producer_id": producer_id, "epoch": epoch, "sequence": sequence}


def test_b2_a_batch_that_comes_again_gets_the_answer_of_the_first_time(leader):
    leader.append(3, 2)
    for number in range(BATCHES_REMEMBERED + 1):
        assert check(leader, count=3, **of_producer(3 * number)).code is OK
        leader.append(3, 3, **of_producer(3 * number))
    for number in range(1, BATCHES_REMEMBERED + 1):
        appended = check(leader, count=3, **of_producer(3 * number)).appended
        assert (appended.base_offset, appended.index) == (2 + 3 * number, 2 + number)
        assert appended.append_time == -1
    assert check(leader, count=3, **of_producer(0)).code is MISMATCH  # so old that nobody knows
    assert check(leader, count=2, **of_producer(3)).code is MISMATCH  # another batch


def test_b2_a_sequence_goes_on_without_gaps(leader):
    leader.append(3, 3, **of_producer(0))
    assert check(leader, **of_producer(3)).code is OK
    for wrong, code in ((1, MISMATCH), (2, MISMATCH), (4, GAP), (1 << 30, GAP)):
        found = check(leader, begins_anywhere=True, **of_producer(wrong))
        assert (found.code, found.appended) == (code, None)
        assert found.text == f"producer 7 must go on at 3, not at {wrong}"


def test_a_producer_that_is_not_known_begins_at_0_unless_it_may_have_been_forgotten(leader):
    assert check(leader, **of_producer(0)).code is OK
    assert check(leader, **of_producer(500)).code is UNKNOWN
    assert check(leader, begins_anywhere=True, **of_producer(500)).code is OK
    leader.append(3, 1, **of_producer(500))
    assert check(leader, **of_producer(501)).code is OK
    assert check(leader, **of_producer(500)).appended.base_offset == 0


def test_a_producer_is_known_in_each_partition_by_itself(leader):
    leader.open(4)
    leader.append(3, 3, **of_producer(0))
    leader.append(4, 1, **of_producer(0))
    assert check(leader, 3, **of_producer(3)).code is OK
    assert check(leader, 4, **of_producer(1)).code is OK
    assert [id_ for id_, _ in leader.table.producers_of(4)] == [7]


def test_a_higher_epoch_begins_at_0_and_ends_the_lower_one(leader):
    leader.append(3, 3, **of_producer(0, epoch=1))
    assert check(leader, **of_producer(3, epoch=2)).code is GAP
    assert check(leader, **of_producer(0, epoch=2)).code is OK
    leader.append(3, 1, **of_producer(0, epoch=2))
    assert check(leader, **of_producer(3, epoch=1)).code is FENCED
    assert check(leader, **of_producer(1, epoch=2)).code is OK


def test_c3_sequences_go_on_at_0_after_the_largest(leader):
    largest = (1 << 31) - 1
    leader.append(3, 4, **of_producer(largest - 1))
    assert check(leader, **of_producer(2)).code is OK
    assert check(leader, count=4, **of_producer(largest - 1)).appended.base_offset == 0
    leader.append(3, 1, **of_producer(2))
    assert check(leader, **of_producer(3)).code is OK


def test_a_repeated_batch_is_answered_with_the_time_of_its_append(leader):
    batch = batch_of([1], **of_producer(0))
    set_log_append_time(batch, 5_000)
    stamp_batch(batch, 0, 0, 1)
    leader.write(encode_entry(batch, channel=3))
    assert check(leader, **of_producer(0)).appended.append_time == 5_000


def test_a_batch_for_a_channel_without_a_partition_is_refused(leader):
    for fields in ({}, of_producer(0)):
        assert check(leader, 4, **fields).code is ResponseCode.UNKNOWN_PARTITION
    leader.write(PartitionClosed(3).encode())
    assert check(leader, 3).code is ResponseCode.UNKNOWN_PARTITION


def test_the_producer_idle_longest_is_forgotten_first(leader, monkeypatch):
    monkeypatch.setattr(partition_table, "PRODUCERS_MAX", 3)
    for producer_id in (1, 2, 3):
        leader.append(3, 1, **of_producer(0, producer_id=producer_id))
    leader.append(3, 1, **of_producer(1, producer_id=1))
    leader.append(3, 1, **of_producer(0, producer_id=4))
    assert [id_ for id_, _ in leader.table.producers_of(3)] == [1, 3, 4]
    decoded = TableSet.decode(TableSet(partitions=leader.table).encode()).partitions
    follower = Leader(decoded)
    for one in (leader, follower):
        one.index = 50
        one.append(3, 1, **of_producer(0, producer_id=5))
    assert leader.table == follower.table


def test_b3_a_producer_with_an_ongoing_transaction_is_not_forgotten(leader, monkeypatch):
    """Its transaction was aborted in this partition as a hanging one, and committed in others."""
    monkeypatch.setattr(partition_table, "PRODUCERS_MAX", 3)
    leader.append(3, 1, **transactional(0, producer_id=1, epoch=4))
    for producer_id in (2, 3, 4, 5):
        leader.append(3, 1, **of_producer(0, producer_id=producer_id))
    assert leader.table.epoch_of(3, 1) == 4
    assert [id_ for id_, _ in leader.table.producers_of(3)] == [1, 4, 5]
    leader.end(3, 1, commits=True, epoch=4)
    for producer_id in (6, 7, 8):
        leader.append(3, 1, **of_producer(0, producer_id=producer_id))
    assert [id_ for id_, _ in leader.table.producers_of(3)] == [6, 7, 8]


def test_what_a_closed_partition_knew_of_producers_goes_with_it(leader):
    leader.open(4)
    leader.append(3, 1, **of_producer(0))
    leader.append(4, 1, **of_producer(0))
    leader.write(PartitionClosed(3).encode())
    assert leader.table.producers_of(3) == []
    assert len(leader.table.producers_of(4)) == 1


# -- transactions -------------------------------------------------------------------------------


def transactional(sequence, producer_id=7, epoch=0):
    return {**of_producer(sequence, epoch, producer_id), "is_transactional": True}


def test_b3_a_transaction_holds_the_last_stable_offset_until_its_marker(leader):
    leader.append(3, 2)
    leader.append(3, 2, **transactional(0))
    leader.append(3, 3, **of_producer(0, producer_id=8))
    assert leader.table.stable_offset(3) == 2
    leader.end(3, 7, commits=True)
    assert leader.table.stable_offset(3) == leader.table.partitions[3].next_offset == 8
    assert leader.table.transactions.aborted_within(3, 0, 8) == []


def test_b3_an_aborted_transaction_is_known_until_the_log_starts_after_it(leader):
    leader.append(3, 2, **transactional(0))
    leader.append(3, 2, **transactional(0, producer_id=8))
    leader.end(3, 8, commits=False)
    leader.end(3, 7, commits=False)
    aborted = leader.table.transactions.aborted_within
    assert aborted(3, 0, 6) == [(7, 0), (8, 2)]
    assert aborted(3, 5, 6) == [(7, 0)]
    assert aborted(3, 0, 2) == [(7, 0)]
    leader.write(LogStartsMoved(((3, 5),)).encode())
    assert aborted(3, 0, 6) == [(7, 0)]
    leader.write(LogStartsMoved(((3, 6),)).encode())
    assert aborted(3, 0, 6) == []
    assert leader.table.transactions.is_empty


def test_b14_a_marker_that_comes_twice_has_no_further_effect(leader):
    leader.append(3, 2, **transactional(0))
    leader.end(3, 7, commits=False)
    leader.end(3, 7, commits=True)
    assert leader.table.transactions.aborted_within(3, 0, 9) == [(7, 0)]
    leader.append(3, 1, **transactional(2))
    assert leader.table.stable_offset(3) == 4


def test_b3_a_marker_of_a_higher_epoch_fences_the_producer(leader):
    leader.append(3, 2, **transactional(0))
    leader.end(3, 7, epoch=1, commits=False)
    late = ProducedBatch(3, batch_header(batch_of([1], **transactional(2))))
    assert leader.table.check(late).code is FENCED
    for epoch in (1, 2):
        following = ProducedBatch(3, batch_header(batch_of([1], **transactional(0, epoch=epoch))))
        assert leader.table.check(following).code is OK
        later = ProducedBatch(3, batch_header(batch_of([1], **transactional(7, epoch=epoch))))
        assert leader.table.check(later).code is GAP


def test_b3_a_fenced_producer_stays_fenced_if_the_log_has_a_late_batch_of_it(leader):
    leader.append(3, 2, **transactional(0))
    leader.end(3, 7, epoch=1, commits=False)
    leader.append(3, 2, **transactional(2))
    assert leader.table.epoch_of(3, 7) == 1
    late = ProducedBatch(3, batch_header(batch_of([1], **transactional(4))))
    assert leader.table.check(late).code is FENCED
    leader.end(3, 7, epoch=1, commits=False)
    assert leader.table.transactions.aborted_within(3, 0, 9) == [(7, 0), (7, 3)]


def test_b3_a_producer_goes_on_in_a_higher_epoch_once_its_transaction_has_ended(leader):
    leader.append(3, 2, **transactional(0))
    higher = ProducedBatch(3, batch_header(batch_of([1], **transactional(0, epoch=1))))
    assert leader.table.check(higher).code is ResponseCode.CHANGE_IN_PROGRESS
    leader.end(3, 7, commits=False)
    assert leader.table.check(higher).code is OK


def test_a_producer_mixes_no_other_records_into_its_transaction(leader):
    leader.append(3, 2, **transactional(0))
    plain = ProducedBatch(3, batch_header(batch_of([1], **of_producer(2))))
    found = leader.table.check(plain)
    assert found.code is ResponseCode.INVALID_TRANSACTION_STATE
    assert "ongoing transaction" in found.text


@pytest.mark.parametrize("name", ["ONGOING_MAX", "ABORTED_MAX"])
def test_a_log_has_a_bounded_number_of_transactions(leader, monkeypatch, name):
    monkeypatch.setattr(partition_transactions, name, 2)
    for producer_id in (1, 2):
        leader.append(3, 1, **transactional(0, producer_id))
    third = ProducedBatch(3, batch_header(batch_of([1], **transactional(0, 3))))
    assert leader.table.check(third).code is ResponseCode.CLUSTER_FULL
    further = ProducedBatch(3, batch_header(batch_of([1], **transactional(1, 2))))
    assert leader.table.check(further).code is OK, "what is ongoing may go on"
    for producer_id in (1, 2):
        leader.end(3, producer_id, commits=False)
    is_free = name == "ONGOING_MAX"
    assert (leader.table.check(third).code is OK) is is_free


def test_transactions_of_a_closed_partition_go_with_it(leader):
    leader.append(3, 2, **transactional(0))
    leader.append(3, 2, **transactional(0, 8))
    leader.end(3, 8, commits=False)
    leader.write(PartitionClosed(3).encode())
    assert leader.table.transactions.is_empty


class BruteForce:
    """What consumers of one partition may see, kept as a list of records."""

    def __init__(self):
        self.records = []

    def append(self, producer_id, count):
        self.records += [producer_id] * count

    def end(self, producer_id, *, commits):
        self.records.append((producer_id, commits))

    def outcomes(self):
        """Yield (offset, producer, outcome) of all transactional records; None: ongoing."""
        for offset, producer_id in enumerate(self.records):
            if not isinstance(producer_id, tuple):
                ends = (
                    one
                    for one in self.records[offset:]
                    if isinstance(one, tuple) and one[0] == producer_id
                )
                yield offset, producer_id, next(ends, (producer_id, None))[1]


@pytest.mark.parametrize("seed", range(20))
def test_b3_aborted_ranges_are_those_of_a_brute_force_model(leader, seed):
    """As a client reads: a record is aborted if a range of its producer began and has not ended."""
    choice, model = random.Random(seed), BruteForce()
    sequences = dict.fromkeys(range(4), 0)
    for _ in range(60):
        producer_id, count = choice.randrange(4), choice.randint(1, 3)
        if choice.random() < 0.4:
            commits = choice.random() < 0.5
            leader.end(3, producer_id, commits=commits)
            model.end(producer_id, commits=commits)
        else:
            leader.append(3, count, **transactional(sequences[producer_id], producer_id))
            sequences[producer_id] += count
            model.append(producer_id, count)
    outcomes = list(model.outcomes())
    stable = min(
        (offset for offset, _, outcome in outcomes if outcome is None), default=len(model.records)
    )
    assert leader.table.stable_offset(3) == stable
    for _ in range(30):
        start = choice.randint(0, stable)
        end = choice.randint(start, stable)
        ranges = leader.table.transactions.aborted_within(3, start, end)
        seen, aborting = [], set()
        for offset in range(start, end):
            ranges_now = [pair for pair in ranges if pair[1] <= offset]
            for pair in ranges_now:
                aborting.add(pair[0])
                ranges.remove(pair)
            record = model.records[offset]
            if isinstance(record, tuple):
                if not record[1]:
                    aborting.discard(record[0])
            elif record not in aborting:
                seen.append(offset)
        expected = [offset for offset, _, outcome in outcomes if outcome and start <= offset < end]
        assert seen == expected


# -- derived by every replica -------------------------------------------------------------------


def random_block(choice, leader, channels):
    """Return a block of what a leader might append next, as entries."""
    table, entries = leader.table.copy(), []
    scratch = Leader(table)
    scratch.index, scratch.term = leader.index, leader.term
    for _ in range(choice.randint(1, 5)):
        open_channels = sorted(table.partitions)
        kind = choice.random()
        if kind < 0.1 or not open_channels:
            entry = opened(next(channels)).encode()
        elif kind < 0.15:
            entry = PartitionClosed(choice.choice(open_channels)).encode()
        elif kind < 0.25:
            channel = choice.choice(open_channels)
            end = table.partitions[channel].next_offset
            entry = LogStartsMoved(((channel, choice.randint(0, end)),)).encode()
        else:
            channel, producer_id = choice.choice(open_channels), choice.randrange(-1, 4)
            count, fields = choice.randint(1, 4), {}
            if producer_id >= 0:
                states = dict(table.producers_of(channel))
                state = states.get(producer_id)
                known = state.batches if state else ()
                sequence = known[-1].last_sequence + 1 if known else 0
                fields = of_producer(sequence, producer_id=producer_id)
                fields["is_transactional"] = producer_id >= 2
            if producer_id >= 2 and choice.random() < 0.3:
                entry = scratch.marker(channel, producer_id, commits=choice.random() < 0.5)
            else:
                entry = scratch.batch(channel, count, **fields)
        scratch.write(entry)
        entries.append(entry)
    return entries


@pytest.mark.parametrize("seed", range(30))
def test_b14_tables_are_equal_however_a_replica_came_by_the_log(seed, tmp_path):
    """Appended as leader, read at the start, truncated and appended again, learned from a peer."""
    choice = random.Random(seed)
    store, channels = Opened(tmp_path), iter(range(1, 1 << 20))
    log, leader, ends = store.log, Leader(), []
    tables, newcomer = Tables(log, -1, None), Tables(log, -1, None)
    for _ in range(40):
        leader.term += choice.random() < 0.2
        leader.table, leader.index = tables.partitions_at_end, log.end_index + 1
        block = block_of(*random_block(choice, leader, channels))
        store.submit(log.append(block, leader.term)[0])
        tables.appended(block, leader.index)
        ends.append(log.end_index)
        if choice.random() < 0.3:
            committed = choice.choice([end for end in ends if end >= tables.as_of])
            log.note_committed(committed)
            tables.committed(committed)
        uncommitted = [end for end in ends if end >= tables.as_of]
        if len(uncommitted) > 1 and choice.random() < 0.2:
            cut = choice.choice(uncommitted[:-1]) + 1
            store.truncate(cut)
            tables.truncated(cut)
            ends = [end for end in ends if end < cut]
        if choice.random() < 0.1:
            newcomer.learned(tables.encode())
        newcomer.scan(tables.as_of)
        started = Tables(log, tables.as_of, tables.encode())
        from_the_start = Tables(log, -1, None)
        from_the_start.committed(tables.as_of)
        for other in (newcomer, started, from_the_start):
            assert other.partitions_at_end == tables.partitions_at_end
            assert other.partitions == tables.partitions
            assert other.digests(-1) == tables.digests(-1)
    assert tables.partitions.highest_channel > 0
    assert any(partition.next_offset for _, partition in tables.partitions.partitions.items())


# -- where batches are, when the tables come from a peer -------------------------------------------


class Written:
    """A log with partitions on channels 1 and 2, and what its leader derives from it."""

    def __init__(self, directory, batches=6):
        self.store, self.leader, self.blocks = Opened(directory), Leader(), []
        self.log = self.store.log
        self.tables = Tables(self.log, -1, None)
        self.append(opened(1).encode())
        self.append(opened(2).encode())
        for number in range(batches):
            self.batch(1 + number % 2)
        self.commit()

    def append(self, entry):
        self.leader.table, self.leader.index = self.tables.partitions_at_end, self.log.end_index + 1
        block = block_of(entry)
        self.store.submit(self.log.append(block, 1)[0])
        self.tables.appended(block, self.leader.index)
        self.blocks.append((self.leader.index, block))

    def batch(self, channel):
        self.leader.table = self.tables.partitions_at_end
        self.append(self.leader.batch(channel, 2))

    def commit(self):
        self.log.note_committed(self.log.end_index)
        self.tables.committed(self.log.end_index)


def batches_of(tables, channel):
    return [batch.index for batch in tables.batches.batches_from(channel, 0)]


def test_192_batches_that_come_after_the_tables_that_count_them_are_found(tmp_path):
    """A follower's log is reset: it gets the leader's tables first, then older entries."""
    written = Written(tmp_path / "leader")
    follower = Tables(Opened(tmp_path / "follower").log, -1, None)
    follower.learned(written.tables.encode())
    for index, block in written.blocks:
        follower.appended(block, index)
    for channel in (1, 2):
        assert batches_of(follower, channel) == batches_of(written.tables, channel) != []


def test_a_truncated_batch_is_not_found_though_the_tables_are_ahead_of_it(tmp_path):
    written = Written(tmp_path / "leader")
    stale = written.blocks[-1]
    follower = Tables(Opened(tmp_path / "follower").log, -1, None)
    for index, block in written.blocks:
        follower.appended(block, index)
    written.batch(1)
    written.commit()
    follower.learned(written.tables.encode())
    follower.truncated(stale[0])
    assert batches_of(follower, 2) == batches_of(written.tables, 2)[:-1]


def test_tables_that_a_peer_gives_say_of_which_partitions_the_kept_batches_are(tmp_path):
    written = Written(tmp_path)
    without_openings = TableSet(1).encode()
    tables = Tables(written.log, 1, without_openings, is_lost=True)
    assert batches_of(tables, 1) == []
    tables.learned(written.tables.encode())
    tables.scan(written.log.end_index)
    assert batches_of(tables, 1) == batches_of(written.tables, 1)
    assert tables.partitions == written.tables.partitions


def test_without_any_tables_partitions_opened_in_the_kept_entries_are_known(tmp_path):
    """No replica has the tables: what else there was is refused, and opened on a new channel."""
    written = Written(tmp_path)
    tables = Tables(written.log, 0, TableSet(0).encode(), is_lost=True)
    tables.give_up()
    tables.scan(written.log.end_index)
    known = written.tables.partitions.partitions
    assert tables.partitions.partitions == {2: known[2]}
    assert batches_of(tables, 2) == batches_of(written.tables, 2)
    assert check_of(tables, 1).code is ResponseCode.UNKNOWN_PARTITION
    written.append(opened(3).encode())
    tables.appended(written.blocks[-1][1], written.log.end_index)
    assert check_of(tables, 3).code is ResponseCode.SUCCESS


def check_of(tables, channel):
    return tables.check(ProducedBatch(channel, batch_header(batch_of([1]))))


class Damaged:
    """A log of which one entry cannot be read."""

    def __init__(self, log, index):
        self._log, self._index = log, index
        self.before_begin_index, self.end_index = log.before_begin_index, log.end_index

    def read(self, first, last, bytes_max):
        if first == self._index:
            raise CorruptionError("damaged", "file", 0, index=first)
        return self._log.read(first, min(last, self._index - 1) if first < self._index else last, 1)


def test_a_batch_that_was_damaged_at_the_start_is_found_once_it_is_repaired(tmp_path):
    written = Written(tmp_path)
    log, saved = written.log, written.tables.encode()
    damaged = batches_of(written.tables, 1)[1]
    tables = Tables(Damaged(log, damaged), log.end_index, saved)
    assert tables.is_incomplete
    assert damaged not in batches_of(tables, 1)
    tables._log = log
    assert tables.scan(log.end_index) is None
    assert batches_of(tables, 1) == batches_of(written.tables, 1)


def test_nothing_is_sealed_while_a_batch_cannot_be_read(tmp_path):
    written = Written(tmp_path)
    log, limits = written.log, SealLimits(batches=1)
    damaged = Damaged(log, batches_of(written.tables, 1)[1])
    tables = Tables(damaged, log.end_index, written.tables.encode(), seal_limits=limits)
    context = SimpleNamespace(
        health_text="",
        is_broken=False,
        log=log,
        core=SimpleNamespace(committed_index=log.end_index, durable_index=log.end_index),
    )
    sealer = BatchSealer(context, tables, None)
    sealer.check()
    assert not tables.batches.sealed
    tables._log = log
    tables.scan(log.end_index)
    sealer.check()
    assert batches_of(tables, 1) == batches_of(written.tables, 1)
    assert tables.batches.sealed


def test_batches_before_the_first_columns_are_found_in_the_log(tmp_path):
    """Columns are removed with their entries, and only the entries are back after a crash."""
    written = Written(tmp_path)
    log, saved, limits = written.log, written.tables.encode(), SealLimits(batches=1)
    everything = [batches_of(written.tables, channel) for channel in (1, 2)]
    tables = Tables(log, log.end_index, saved, seal_limits=limits)
    for last_index in (everything[0][1], log.end_index):
        tables.batches.seal(tables.batches.to_seal(last_index))
    sealed = tables.batches.sealed
    assert len(sealed) == 2
    for kept in (sealed, sealed[1:]):
        again = Tables(log, log.end_index, saved, sealed=kept, seal_limits=limits)
        assert [batches_of(again, channel) for channel in (1, 2)] == everything


@pytest.mark.parametrize(
    ("sequence", "other", "expected"),
    [(1, 0, True), (0, 0, False), (0, 1, False), (0, (1 << 31) - 1, True), (1 << 30, 0, False)],
)
def test_a_sequence_is_later_if_it_is_ahead_by_less_than_half_of_all(sequence, other, expected):
    assert is_later(sequence, other) is expected
