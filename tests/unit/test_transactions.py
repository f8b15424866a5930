"""What every replica makes of the entries about transactions, in the order of the log."""

import random

import msgspec
import pytest

from quorumlog.model.block import encode_block, parse_block
from quorumlog.model.codes import ResponseCode
from quorumlog.model.errors import UnexpectedArgumentError
from quorumlog.sessions.entries import (
    ACCEPTED_MAX,
    AcceptedAttempt,
    EndTransaction,
    InitTransactions,
    SessionEntry,
    TransactionPart,
    continued_crc,
    decode_system_entry,
    encode_session_block,
    system_entries_in,
    system_entry_of,
)
from quorumlog.sessions.table_set import TableSet
from quorumlog.sessions.transaction_table import RANGES_MAX, TransactionTable
from store_access import take

QUERY, OTHER = b"q" * 16, b"o" * 16
RUN, LATER = b"1" * 16, b"2" * 16
OK = ResponseCode.SUCCESS
FENCED, UNKNOWN = ResponseCode.PRODUCER_FENCED, ResponseCode.UNKNOWN_PRODUCER
ENDED, ABORTED = ResponseCode.TRANSACTION_ENDED, ResponseCode.TRANSACTION_ABORTED


class Log:
    """Entries one after the other, as a leader would append them: only what is not refused."""

    def __init__(self, table=None):
        self.table = table or TransactionTable()
        self.index = 0
        self.sequences = {}

    def begin(self, run=RUN, transactional_id=QUERY):
        return self.append(InitTransactions(transactional_id, run, 60_000))

    def write(self, producer_id, batch_id, partition=0, *, count=3, epoch=1, found_id=QUERY):
        part = TransactionPart(found_id, epoch, batch_id, partition)
        sequence = self.sequences.get(producer_id, 0)
        entry = SessionEntry(producer_id, 0, sequence, count, producer_id * 7, part=part)
        code = self.append(entry)
        if code is OK:
            self.sequences[producer_id] = sequence + count
        return code

    def end(self, batch_id, *producer_ids, epoch=1, found_id=QUERY):
        attempts = self.table.producers[found_id].attempts
        accepted = tuple(attempts[one].accepted_as(one) for one in producer_ids)
        return self.append(EndTransaction(found_id, epoch, batch_id, accepted))

    def abort(self, batch_id, epoch=1):
        return self.append(EndTransaction(QUERY, epoch, batch_id, None))

    def append(self, entry):
        result = self.table.check(entry)
        if result.code is OK and result.end_index < 0:
            self.table.apply(self.index, entry)
            self.index += 1 + entry.count
        return result.code

    @property
    def stable(self):
        return self.table.stable_index(self.index - 1)

    def rejected(self):
        return self.table.rejected_within(0, self.index, 1_000)


def test_readers_wait_for_the_end_and_see_what_it_accepts():
    log = Log()
    log.begin()  # 0
    log.write(11, 0)  # 1 … 4
    log.write(12, 0, partition=1)  # 5 … 8
    assert log.stable == 0
    assert log.end(0, 11, 12) is OK  # 9
    assert log.stable == 9
    assert log.rejected() == []


def test_attempts_that_are_not_named_are_left_out():
    log = Log()
    log.begin()  # 0
    log.write(11, 0)  # 1 … 4, a task that died
    log.write(12, 0)  # 5 … 8
    log.write(13, 0, partition=1)  # 9 … 12
    log.write(14, 0, partition=1)  # 13 … 16, a speculative one
    assert log.end(0, 12, 13) is OK
    assert log.rejected() == [(1, 4), (13, 16)]
    assert log.stable == log.index - 1


def test_a_batch_ends_once_however_it_is_divided_again():
    log = Log()
    log.begin()
    log.write(11, 4)
    log.write(12, 4, partition=1)
    log.end(4, 11, 12)
    ended_at = log.index - 1
    before = log.table.copy()
    assert log.begin(LATER) is OK  # the driver was killed behind the end, and starts anew
    assert log.write(21, 4, epoch=2) is ENDED
    again = EndTransaction(QUERY, 2, 4, ())
    assert log.table.check(again).end_index == ended_at
    log.table.apply(log.index, again)  # also if it gets into the log
    assert log.rejected() == []
    assert log.table.producers[QUERY].last_batch == before.producers[QUERY].last_batch == 4


def test_a_driver_that_died_before_the_end_leaves_nothing():
    log = Log()
    log.begin()
    log.write(11, 0)  # 1 … 4
    log.write(12, 0, partition=1)  # 5 … 8
    assert log.begin(LATER) is OK  # 9
    assert log.stable == 9  # nobody waits for a run that was fenced
    log.write(21, 0, epoch=2)  # 10 … 13: three partitions now
    log.write(22, 0, partition=1, epoch=2)
    log.write(23, 0, partition=2, epoch=2)
    assert log.end(0, 21, 22, 23, epoch=2) is OK
    assert log.rejected() == [(1, 8)]


def test_a_run_that_was_succeeded_can_do_nothing_more():
    log = Log()
    log.begin()
    log.write(11, 0)
    attempt = log.table.producers[QUERY].attempts[11].accepted_as(11)
    log.begin(LATER)
    assert log.write(11, 0) is FENCED
    assert log.append(EndTransaction(QUERY, 1, 0, (attempt,))) is FENCED
    assert log.append(EndTransaction(QUERY, 1, 0, None)) is FENCED
    assert log.begin(RUN) is FENCED
    assert log.write(31, 0, epoch=3) is UNKNOWN
    assert log.write(31, 0, found_id=OTHER) is UNKNOWN
    assert log.begin(LATER) is OK  # the present run may say again that it begins
    assert log.table.producers[QUERY].epoch == 2


def test_what_was_given_up_cannot_be_accepted_any_more():
    log = Log()
    log.begin()
    log.write(11, 0)  # 1 … 4
    attempt = log.table.producers[QUERY].attempts[11].accepted_as(11)
    assert log.abort(0) is OK  # 5
    assert log.stable == 5
    assert log.rejected() == [(1, 4)]
    assert log.append(EndTransaction(QUERY, 1, 0, (attempt,))) is ABORTED
    assert log.write(11, 0) is ABORTED  # the rest of it would be missing
    assert log.write(12, 0) is OK
    assert log.end(0, 12) is OK
    assert log.abort(0) is ENDED


@pytest.mark.parametrize(
    "wrong",
    [{"count": 2}, {"crc": 1}, {"first_index": 0}, {"last_index": 9}, {"partition": 5}],
)
def test_an_end_must_name_exactly_what_is_there(wrong):
    log = Log()
    log.begin()
    log.write(11, 0)
    attempt = log.table.producers[QUERY].attempts[11].accepted_as(11)
    fields = {name: getattr(attempt, name) for name in AcceptedAttempt.__dataclass_fields__}
    named = AcceptedAttempt(**(fields | wrong))
    assert log.append(EndTransaction(QUERY, 1, 0, (named,))) is ABORTED


def test_two_attempts_at_one_partition_are_refused():
    log = Log()
    log.begin()
    log.write(11, 0)
    log.write(12, 0)
    assert log.end(0, 11, 12) is ResponseCode.UNEXPECTED_ARGUMENT
    assert log.write(11, 0, partition=1) is ResponseCode.UNEXPECTED_ARGUMENT


def test_several_blocks_of_one_attempt_are_one():
    log = Log()
    log.begin()
    log.write(11, 0)  # 1 … 4
    log.write(11, 0)  # 5 … 8
    log.write(12, 0, partition=1)  # 9 … 12
    log.write(11, 0, count=1)  # 13, 14
    attempt = log.table.producers[QUERY].attempts[11]
    assert attempt.ranges == ((1, 8), (13, 14))
    crc = continued_crc(continued_crc(continued_crc(0, 77), 77), 77)
    assert attempt.accepted_as(11) == AcceptedAttempt(0, 11, 1, 14, 7, crc)


def test_other_ids_go_on_beside_one_that_hangs():
    log = Log()
    log.begin()
    log.begin(transactional_id=OTHER)
    log.write(11, 0)  # 2 …
    log.write(12, 0, found_id=OTHER)
    assert log.end(0, 12, found_id=OTHER) is OK
    assert log.stable == 1
    assert log.end(0, 11) is OK
    assert log.stable == log.index - 1


def test_only_stretches_that_are_asked_about_are_named_and_no_more_than_that():
    log = Log()
    log.begin()
    for batch_id in range(5):
        log.write(100 + batch_id, batch_id)  # rejected
        log.write(200 + batch_id, batch_id)
        log.end(batch_id, 200 + batch_id)
    whole = log.rejected()
    assert whole == [(1 + 9 * n, 4 + 9 * n) for n in range(5)]
    within = log.table.rejected_within
    assert within(5, 9, 10) == []
    assert within(4, 10, 10) == whole[:2]
    assert within(0, 100, 3) == whole[:3]
    log.table.removed(13)
    assert log.rejected() == whole[2:]
    log.table.removed(20)  # in the middle of one
    assert log.rejected() == whole[2:]
    known = TableSet(log.index, transactions=log.table)
    assert TableSet.decode(known.encode()).transactions.complete_from == 21


def test_the_table_has_a_bound():
    log = Log()
    log.begin()
    log.table.range_count = RANGES_MAX
    assert log.write(11, 0) is ResponseCode.LEADER_PENDING_FULL
    part = TransactionPart(QUERY, 1, 0, 0)
    log.table.apply(log.index, SessionEntry(11, 0, 0, 3, 5, part=part))  # taken by another leader
    assert log.table.open_ids == {QUERY}  # the bound is a leader's; all replicas derive the same


def test_a_time_out_must_be_one():
    for timeout_ms in (0, 3_600_000):
        entry = InitTransactions(QUERY, RUN, timeout_ms)
        assert TransactionTable().check(entry).code is ResponseCode.UNEXPECTED_ARGUMENT


def test_entries_are_read_as_they_were_written():
    part = TransactionPart(QUERY, 3, 1 << 40, 7)
    attempts = tuple(AcceptedAttempt(n, 1 << 60, 5 * n, 5 * n + 4, 4, 99) for n in range(3))
    for entry in (
        SessionEntry(7, 1, 2, 3, 4, part=part),
        InitTransactions(QUERY, RUN, 5),
        EndTransaction(QUERY, 3, 9, attempts),
        EndTransaction(QUERY, 3, 9, None),
    ):
        body = entry.encode()[48:]
        assert decode_system_entry(body) == entry
        for size in range(len(body)):
            assert decode_system_entry(body[:size]) in (None, entry)
    with pytest.raises(UnexpectedArgumentError, match="fewer partitions"):
        EndTransaction(QUERY, 1, 1, attempts[:1] * (ACCEPTED_MAX + 1)).encode()


def test_a_block_must_go_with_the_entry_that_leads_it():
    lone = InitTransactions(QUERY, RUN, 5).encode()
    data = lone + encode_block([b"body"])
    block = parse_block(memoryview(bytearray(data)), count=2, entry_bytes_max=1 << 20)
    with pytest.raises(UnexpectedArgumentError, match="goes with 0 more"):
        system_entry_of(block)
    part = TransactionPart(QUERY, 1, 0, 0)
    data = encode_session_block(5, 0, [b"a", b"bc"], part=part)
    block = parse_block(memoryview(bytearray(data)), count=3, entry_bytes_max=1 << 20)
    entry = system_entry_of(block)
    assert entry.part == part
    assert system_entries_in(block, 40) == [(40, entry)]


def random_entry(choice, log):
    """Any entry, sensible or not."""
    batch_id, epoch = choice.randrange(4), choice.randrange(1, 4)
    found_id = choice.choice((QUERY, OTHER))
    kind = choice.randrange(4)
    if kind == 0:
        return InitTransactions(found_id, choice.choice((RUN, LATER, b"3" * 16)), 1_000)
    if kind == 1:
        known = log.producers.get(found_id)
        attempts = {} if known is None else known.attempts
        named = [one.accepted_as(key) for key, one in attempts.items() if choice.random() < 0.7]
        return EndTransaction(found_id, epoch, batch_id, choice.choice((tuple(named), None)))
    part = TransactionPart(found_id, epoch, batch_id, choice.randrange(3))
    sequence = choice.choice((0, 0, 3))
    return SessionEntry(choice.randrange(20), 0, sequence, 3, 5, part=part)


@pytest.mark.parametrize("seed", range(40))
def test_every_replica_derives_the_same_whatever_comes_and_wherever_it_begins(seed):
    """Applied whole, or from a table that was saved and read on the way; refused entries, too."""
    choice = random.Random(seed)
    whole, index, entries = TableSet(), 0, []
    for _ in range(120):
        entry = random_entry(choice, whole.transactions)
        take(whole, index, entry)
        entries.append((index, entry))
        index += 1 + entry.count
    part, saved_at = TableSet(), choice.randrange(120)
    for at, entry in entries[:saved_at]:
        take(part, at, entry)
        part.as_of = at + entry.count
    part = TableSet.decode(part.encode())
    for at, entry in entries:
        take(part, at, entry)
    part.as_of = whole.as_of
    assert part == whole
    covered = {}
    for first, last in whole.transactions.rejected:
        covered.update({at: covered.get(at, 0) + 1 for at in range(first, last + 1)})
    assert set(covered.values()) <= {1}, "nothing is rejected twice"


def test_a_table_of_before_is_read():
    assert TableSet.decode(msgspec.msgpack.encode([7, []])) == TableSet(7)
