"""A group that holds partitions: what is produced is read back by offset, through failures."""

from types import SimpleNamespace

import pytest

from partition_group import PartitionGroup, prepared
from quorumlog.kafka.errors import ErrorCode
from quorumlog.kafka.transactions.gate import TransactionGate
from quorumlog.machine.cluster.transactions import TransactionRecord, TransactionView
from quorumlog.model.block import encode_block, parse_block
from quorumlog.model.codes import ResponseCode, WriteLevel
from quorumlog.model.errors import ConfigError
from quorumlog.node.replica import partition_reads
from quorumlog.node.replica.partition_reads import PartitionRead
from quorumlog.records.batch import batch_header, check_batch
from quorumlog.records.markers import encode_marker
from quorumlog.sim.cluster import HastyGroupConfig
from quorumlog.topics.batch_index import SealLimits
from quorumlog.topics.entries import LogStartsMoved, PartitionClosed, PartitionOpened
from record_batches import batch_of

OK = ResponseCode.SUCCESS
UNKNOWN, OUTSIDE = ResponseCode.UNKNOWN_PARTITION, ResponseCode.INDEX_OUT_OF_RANGE


@pytest.fixture
def group():
    return PartitionGroup()


def of_producer(sequence, count=1, epoch=0):
    return {"count": count, "producer_id": 7, "epoch": epoch, "sequence": sequence}


# -- produce ------------------------------------------------------------------------------------


def test_194_b12_batches_are_stored_as_they_were_sent_and_read_by_offset(group):
    sent = [batch_of(range(count), value=b"%d" % count) for count in (3, 1, 5)]
    found = [group.produce(1, batch) for batch in sent]
    assert [(code, one.base_offset) for code, one in found] == [(OK, 0), (OK, 3), (OK, 4)]
    assert group.produce(2, count=2)[1].base_offset == 0
    answer = group.read(1, 0)
    assert (answer.high_watermark, answer.log_start) == (9, 0)
    for stored, batch in zip(answer.batches, sent, strict=True):
        assert bytes(stored[8:12]) + bytes(stored[16:]) == bytes(batch[8:12]) + bytes(batch[16:])
        assert check_batch(stored, 1 << 20).leader_epoch == group.leader().core.term


def test_a_group_takes_only_what_is_of_its_kind(group):
    data = memoryview(bytearray(encode_block([b"text"])))
    block = parse_block(data, count=1, entry_bytes_max=4_096)
    response, _ = group.call(lambda replica, answer: replica.propose(block, answer))
    assert response.code == ResponseCode.UNEXPECTED_ARGUMENT
    assert "produce to them by the Kafka protocol" in response.text
    with pytest.raises(ConfigError, match="has no stateMachine"):
        HastyGroupConfig(group="g", peers="n0-h:1", kind="partitions", state_machine="kv")


def test_a_batch_for_no_partition_is_refused(group):
    assert group.produce(9)[0] is UNKNOWN
    group.write(PartitionClosed(1).encode())
    assert group.produce(1)[0] is UNKNOWN
    assert group.read(1, 0).code is UNKNOWN
    group.write(PartitionOpened(4, 0, bytes(16), "t").encode())
    assert group.produce(4)[1].base_offset == 0


def test_b9_a_batch_that_comes_in_the_turn_in_which_its_partition_is_closed_is_refused(group):
    closed = [PartitionClosed(channel) for channel in (2, 1)]
    data = memoryview(bytearray(b"".join(one.encode() for one in closed)))
    block = parse_block(data, count=len(closed), entry_bytes_max=4_096)
    produced, batch = prepared(1)

    def close_and_produce(replica, answer):
        replica.propose(block, lambda response, _: None, closed[0])
        replica.propose(batch, answer, produced)

    response, _ = group.call(close_and_produce)
    assert response.code == UNKNOWN


def test_b2_a_batch_that_comes_again_has_the_offset_of_the_first_time(group):
    assert group.produce(1, **of_producer(0, 3))[0] is OK
    code, again = group.produce(1, **of_producer(0, 3))
    assert (code, again.base_offset) == (OK, 0)
    assert group.produce(1, **of_producer(3, 2))[1].base_offset == 3
    assert group.produce(1, **of_producer(9))[0] is ResponseCode.SEQUENCE_GAP
    assert group.values(1) == [(0, 3), (3, 2)]


def test_b2_a_batch_that_comes_again_after_a_change_of_leader_is_stored_once(group):
    assert group.produce(1, **of_producer(0, 3))[0] is OK
    for _ in range(3):
        leader = group.leader()
        leader.stop(power=True)
        code, again = group.produce(1, **of_producer(0, 3))
        assert (code, again.base_offset) == (OK, 0)
        leader.start()
    assert group.values(1) == [(0, 3)]


def test_b2_two_batches_of_a_producer_in_one_turn_are_judged_one_after_the_other(group):
    leader, answers = group.leader(), []
    batches = [prepared(1, **of_producer(sequence)) for sequence in (0, 1, 1, 3)]

    def propose():
        for produced, block in batches:
            leader.running.propose(
                block, lambda response, _, one=produced: answers.append((one, response)), produced
            )

    leader.enter(propose)
    group.wait(lambda: len(answers) == 4)
    codes = {id(one): ResponseCode(response.code) for one, response in answers}
    assert [codes[id(one)] for one, _ in batches] == [OK, OK, OK, ResponseCode.SEQUENCE_GAP]
    assert [one.base_offset for one, _ in batches] == [0, 1, 1, -1]


def after_its_marker(group, epoch, act):
    """Begin a transaction; call `act` in the turn in which the marker that ends it is queued."""
    began = group.produce(1, is_transactional=True, **of_producer(0))
    assert began[0] is OK
    marker, block = prepared(1, encode_marker(7, epoch, 1, 5, commits=False))

    def end_and_act(replica, answer):
        replica.propose(block, lambda response, _: None, marker)
        act(replica, answer)

    return group.call(end_and_act)


def test_b3_a_batch_that_comes_in_the_turn_in_which_its_producer_is_fenced_is_refused(group):
    late, block = prepared(1, is_transactional=True, **of_producer(1))
    response, _ = after_its_marker(
        group, 1, lambda replica, answer: replica.propose(block, answer, late)
    )
    assert response.code == ResponseCode.PRODUCER_FENCED
    assert not group.leader().running.tables.partitions.transactions.has_ongoing


def test_b3_a_batch_that_comes_in_the_turn_in_which_its_transaction_ends_needs_another_one(group):
    gate = TransactionGate(SimpleNamespace(transactions=TransactionView()))
    late, _ = prepared(1, is_transactional=True, **of_producer(1))
    (refusal,) = after_its_marker(
        group,
        0,
        lambda replica, answer: answer(gate.refusal(replica, 1, (bytes(16), 0), late.header)),
    )
    assert refusal is not None
    assert refusal.error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_who_names_a_foreign_producer_is_not_told_whose_it_is(group):
    foreign = TransactionRecord("of somebody else", 7, 3, 60_000, state="Ongoing")
    texts = set()
    for known in (
        TransactionView({"of somebody else": foreign}, {7: "of somebody else"}),
        TransactionView(),
    ):
        gate = TransactionGate(SimpleNamespace(transactions=known))
        batch, _ = prepared(1, is_transactional=True, **of_producer(1))
        found = gate.refusal(group.leader().running, 1, (bytes(16), 0), batch.header, "own")
        assert found.error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        texts.add(found.text)
    assert texts == {"producer 7 does not belong to 'own'"}


@pytest.mark.parametrize("level", [WriteLevel.RECEIVE, WriteLevel.PERSISTENCE, WriteLevel.ALL])
def test_b8_a_batch_is_answered_at_its_level(group, level):
    code, produced = group.produce(1, level=level)
    assert (code, produced.base_offset) == (OK, 0)


def test_b8_what_is_not_committed_is_not_read(group):
    leader = group.leader()
    group.produce(1)
    for node in group.cluster.nodes.values():
        if node is not leader:
            node.stop(power=True)
    answers = []
    produced, block = prepared(1)
    leader.enter(
        lambda: leader.running.propose(
            block, lambda *found: answers.append(found), produced, WriteLevel.PERSISTENCE
        )
    )
    group.wait(lambda: answers)
    assert (answers[0][0].code, produced.base_offset) == (OK, 1)
    reads = [PartitionRead(1, 0, 1_000)]
    found = []
    leader.enter(lambda: leader.running.partition_reads.read(reads, 1_000, found.append, None))
    ((answer,),) = found
    assert (answer.high_watermark, len(answer.batches)) == (1, 1)


def others_of(group, leader):
    return [node for node in group.cluster.nodes.values() if node is not leader]


def test_b8_what_the_leaders_disk_has_is_kept_if_that_leader_comes_back_first(group):
    group.produce(1)
    leader = group.leader()
    others = others_of(group, leader)
    for node in others:
        node.stop(power=True)
    assert group.produce(1, count=2, level=WriteLevel.PERSISTENCE)[0] is OK
    leader.stop(power=True)
    leader.start()
    others[0].start()
    group.wait(lambda: group.read(1, 0).high_watermark == 3)
    assert group.values(1) == [(0, 1), (1, 2)]


def answers_at(group, leader, *levels):
    """Return (code, whether the leader's own disk had it) of a batch at each level."""
    answered = {}

    def propose(level):
        produced, block = prepared(1)

        def answer(response, _):
            is_durable = leader.core.durable_index >= response.last_index
            answered[level] = ResponseCode(response.code), is_durable

        leader.running.propose(block, answer, produced, level)

    for level in levels:
        leader.enter(lambda level=level: propose(level))
    group.wait(lambda: len(answered) == len(levels))
    return [answered[level] for level in levels]


def test_b8_all_and_persistence_wait_for_the_leaders_own_fsync(group):
    leader = group.leader()
    leader.slow = 100
    levels = (WriteLevel.RECEIVE, WriteLevel.REPLICATION, WriteLevel.ALL)
    assert answers_at(group, leader, *levels) == [(OK, False), (OK, False), (OK, True)]
    for node in others_of(group, leader):
        node.stop(power=True)
    levels = (WriteLevel.RECEIVE, WriteLevel.PERSISTENCE)
    assert answers_at(group, leader, *levels) == [(OK, False), (OK, True)]


def test_b8_all_is_answered_once_every_voter_has_a_batch(group):
    leader = group.leader()
    (away, _) = others_of(group, leader)
    away.stop(power=True)
    assert group.produce(1, level=WriteLevel.ALL)[0] is ResponseCode.WAIT_ALL_ACK_TIMEOUT
    assert group.values(1) == [(0, 1)]
    away.start()
    assert group.produce(1, level=WriteLevel.ALL)[0] is OK
    indexes = {node.running.log.end_index for node in group.cluster.nodes.values()}
    assert len(indexes) == 1


# -- fetch --------------------------------------------------------------------------------------


def test_b7_a_read_begins_with_the_batch_that_holds_the_offset(group):
    sizes = [3, 1, 4, 1, 5]
    for count in sizes:
        group.produce(1, count=count)
        group.produce(2)
    for offset in range(sum(sizes)):
        first = batch_header(group.read(1, offset).batches[0])
        assert first.base_offset <= offset <= first.last_offset
    end = group.read(1, sum(sizes))
    assert (end.code, end.batches) == (OK, [])
    for outside in (-1, sum(sizes) + 1):
        assert group.read(1, outside).code is OUTSIDE


def test_b7_a_read_is_bounded_and_gives_at_least_one_batch(group, monkeypatch):
    for _ in range(6):
        group.produce(1, value=bytes(500))
    size = len(group.read(1, 0, 1).batches[0])
    assert [len(group.read(1, 0, room).batches) for room in (1, size, 2 * size, 1 << 20)] == [
        1,
        1,
        2,
        6,
    ]
    monkeypatch.setattr(partition_reads, "BATCHES_PER_READ_MAX", 4)
    assert len(group.read(1, 0).batches) == 4


def test_b7_only_the_first_batch_of_an_answer_may_be_above_the_bound(group):
    for channel in (1, 2):
        group.produce(channel, value=bytes(500))
    reads = [PartitionRead(channel, 0, 10) for channel in (3, 1, 2)]
    (found,) = group.call(
        lambda replica, answer: replica.partition_reads.read(reads, 10, answer, None)
    )
    assert [len(one.batches) for one in found] == [0, 1, 0]
    assert [one.high_watermark for one in found] == [0, 1, 1]


def test_b9_nothing_is_read_below_the_log_start(group):
    for _ in range(4):
        group.produce(1, count=2)
    group.write(LogStartsMoved(((1, 3),)).encode())
    assert [group.read(1, offset).code for offset in (0, 2)] == [OUTSIDE, OUTSIDE]
    assert batch_header(group.read(1, 3).batches[0]).base_offset == 2
    assert group.read(1, 3).log_start == 3


def test_only_a_leader_serves_reads(group):
    leader = group.leader()
    (other, _) = [node for node in group.cluster.nodes.values() if node is not leader]
    found = []
    reads = [PartitionRead(1, 0, 10)]
    other.enter(lambda: other.running.partition_reads.read(reads, 10, found.append, None))
    assert found[0][0].code is ResponseCode.NOT_LEADER


def test_that_an_offset_is_after_the_end_is_said_by_a_leader_that_is_confirmed(group):
    for channel in (1, 2):
        group.produce(channel)
    found = group.read(1, 2)
    assert (found.code, found.high_watermark) == (OUTSIDE, 1)
    leader = group.leader()
    for node in others_of(group, leader):
        node.stop(power=True)  # they may have a leader, and records that this one lacks
    answers = {}
    for offset in (1, 2):
        reads = [PartitionRead(1, offset, 1_000), PartitionRead(2, 0, 1_000)]
        leader.enter(
            lambda reads=reads, offset=offset: leader.running.partition_reads.read(
                reads, 1_000, lambda found: answers.setdefault(offset, found), None
            )
        )
    assert [one.code for one in answers[1]] == [OK, OK]
    assert 2 not in answers
    group.wait(lambda: 2 in answers)
    assert {one.code for one in answers[2]} == {ResponseCode.TERM_CHANGED}


def test_only_those_who_wait_for_a_partition_that_grew_are_told(group):
    told = []
    reads = group.leader().running.partition_reads
    ends = [
        reads.wait(channels, lambda channels=channels: told.append(channels))
        for channels in ((1,), (2, 3), (1, 3))
    ]
    group.produce(1)
    assert told == [(1,), (1, 3)]
    ends[0]()
    group.produce(1)
    group.produce(2)
    assert told[2:] == [(1, 3), (2, 3)]
    group.leader().stop(power=True)
    for end in ends:
        end()
        end()


# -- restarts -----------------------------------------------------------------------------------


def restart(group):
    for node in group.cluster.nodes.values():
        node.stop(power=True)
    for node in group.cluster.nodes.values():
        node.start()


@pytest.mark.parametrize("sealed_at", [5, 65_536])
def test_b7_everything_is_found_again_after_restarts(sealed_at):
    group = PartitionGroup(seal_limits=SealLimits(batches=sealed_at))
    expected = {1: [], 2: []}
    for number in range(60):
        channel = 1 + number % 2
        code, produced = group.produce(channel, count=1 + number % 3)
        assert code is OK
        expected[channel].append((produced.base_offset, 1 + number % 3))
        if number % 15 == 14:
            group.cluster.run_until(group.cluster.clock.now_ms + 3_000)
            restart(group)
    for channel, batches in expected.items():
        assert group.values(channel) == batches
    sealed = [node.running.tables.batches.sealed for node in group.cluster.nodes.values()]
    assert all(sealed) == (sealed_at == 5)


def test_192_damaged_columns_are_made_again():
    group = PartitionGroup(seal_limits=SealLimits(batches=20))
    for _ in range(20):
        group.produce(1)
    group.cluster.run_until(group.cluster.clock.now_ms + 5_000)
    node = group.leader()
    directory = "/node/g/quorumlog.batches"
    (name,) = node.files.names(directory)
    node.stop(power=True)
    node.files.flip(f"{directory}/{name}", 100, 4)
    node.start()
    assert node.files.names(directory) == []
    assert [offset for offset, _ in group.values(1)] == list(range(20))
    while (leader := group.leader()) is not node:
        leader.stop(power=True)
        group.leader()
        leader.start()
    assert [offset for offset, _ in group.values(1)] == list(range(20))
