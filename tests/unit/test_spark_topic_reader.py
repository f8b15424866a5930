"""Readers of topics against brokers in memory: where they start, what they return, losses."""

import json
import pickle
from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, LessThan
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from quorumlog.model.errors import (
    CorruptionError,
    IndexOutOfRangeError,
    NetworkError,
    QuorumlogError,
    UnexpectedArgumentError,
)
from quorumlog.records.batch import RecordBatchError
from quorumlog.spark.source.offsets import DataLossError
from quorumlog.spark.source.stream import BOUNDS_MS, DISCOVERY_MS
from quorumlog.spark.topics import confirm, planning
from quorumlog.spark.topics.batch import FilteringTopicReader, TopicReader
from quorumlog.spark.topics.errors import OffsetOutOfRangeError, UnknownTopicError
from quorumlog.spark.topics.options import parse_topic_options
from quorumlog.spark.topics.part import Part
from quorumlog.spark.topics.planning import OffsetRange, OffsetRanges
from quorumlog.spark.topics.stream import TopicStreamReader
from spark_topics_fakes import PRODUCER, FakeBrokers, FakePartition, depose, filled, rows_of


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(confirm, "AGAIN_S", 0)


ALL = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


def options_of(**options):
    named = {"subscribe", "subscribePattern", "assign"} & set(options)
    subscription = {} if named else {"subscribe": "t"}
    return parse_topic_options({"kafka.bootstrap.servers": "h:1", **subscription, **options})


def reader_of(brokers, columns=("partition", "offset"), kind=TopicReader, **options):
    return kind(options_of(**options).for_batch(), columns, brokers.connect)


def offsets_of(brokers, **options):
    """Return (partition, offset) of all rows of a batch."""
    reader = reader_of(brokers, **options)
    rows = rows_of(reader, pickle.loads(pickle.dumps(reader.partitions())))
    return [(row["partition"], row["offset"]) for row in rows]


# -- what a row is --------------------------------------------------------------------------------


def test_b13_a_row_has_the_columns_of_sparks_kafka_source():
    partition = FakePartition().append(1_700_000_000_123, headers=[("h", b"x"), ("h", None)])
    reader = reader_of(FakeBrokers(t=[partition.append(5, value=None)]), ALL)
    first, second = rows_of(reader, reader.partitions())
    assert first == {
        "key": b"key",
        "value": b"value",
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"x"}, {"key": "h", "value": None}],
    }
    assert (second["value"], second["headers"]) == (None, None)


def test_a_timestamp_that_spark_cannot_have_is_null():
    partition = FakePartition().append(1 << 62, -1, -(1 << 62))
    reader = reader_of(FakeBrokers(t=[partition]), ("timestamp",))
    found = [row["timestamp"] for row in rows_of(reader, reader.partitions())]
    assert found == [None, datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC), None]


def test_of_transactions_only_what_was_committed_is_read():
    partition = FakePartition().append(1, 2)
    partition.append(3, 4, producer_id=PRODUCER, epoch=0, sequence=0, is_transactional=True)
    partition.append(5)
    partition.mark(commits=False, first=2)
    partition.append(6, 7, producer_id=PRODUCER, epoch=0, sequence=2, is_transactional=True)
    partition.mark(commits=True)
    partition.append(8, producer_id=PRODUCER, epoch=0, sequence=4, is_transactional=True)
    partition.stable = 9
    brokers = FakeBrokers(t=[partition])
    assert [offset for _, offset in offsets_of(brokers)] == [0, 1, 4, 6, 7]
    uncommitted = offsets_of(brokers, isolationLevel="read_uncommitted")
    assert [offset for _, offset in uncommitted] == [0, 1, 2, 3, 4, 6, 7, 9]


def test_a_range_that_begins_within_an_aborted_transaction_leaves_it_out():
    partition = FakePartition()
    partition.append(3, 4, producer_id=PRODUCER, epoch=0, sequence=0, is_transactional=True)
    partition.append(5)
    partition.mark(commits=False, first=0)
    found = offsets_of(FakeBrokers(t=[partition]), startingOffsets='{"t": {"0": 1}}')
    assert found == [(0, 2)]


@pytest.mark.parametrize("checks", ["all", "none"])
def test_c3_a_batch_that_was_damaged_is_refused(checks):
    partition = filled(20)
    first, last, newest, batch = partition.batches[1]
    partition.batches[1] = (first, last, newest, batch.replace(b"value", b"Value"))
    reader = reader_of(FakeBrokers(t=[partition]), ("value",), verifyCrc=checks)
    if checks == "none":
        assert len(rows_of(reader, reader.partitions())) == 20
        return
    with pytest.raises(CorruptionError, match=r"partition t-0: .*batch at offset 10 does not fit"):
        rows_of(reader, reader.partitions())


def test_c3_records_that_are_none_are_an_error_that_names_the_partition():
    partition = filled(10)
    first, last, newest, batch = partition.batches[0]
    partition.batches[0] = (first, last, newest, batch[:-1] + b"\x80")
    reader = reader_of(FakeBrokers(t=[partition]), ("headers",), verifyCrc="none")
    with pytest.raises(RecordBatchError, match="partition t-0: the records of a batch cannot be"):
        rows_of(reader, reader.partitions())


# -- from where to where --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, range(3, 20)),
        ({"startingOffsets": '{"t": {"0": 5}}'}, range(5, 20)),
        (
            {"startingOffsets": '{"t": {"0": -2}}', "endingOffsets": '{"t": {"0": 15}}'},
            range(3, 15),
        ),
        ({"startingOffsets": "latest"}, []),
        ({"startingTimestamp": "1010", "endingTimestamp": "1015"}, range(10, 10)),
        ({"startingTimestamp": "1010", "endingTimestamp": "1900"}, range(10, 20)),
        ({"startingOffsetsByTimestamp": '{"t": {"0": 1010}}'}, range(10, 20)),
        (
            {"startingTimestamp": "1900", "startingOffsetsByTimestampStrategy": "latest"},
            [],
        ),
        ({"endingOffsetsByTimestamp": '{"t": {"0": 1010}}'}, range(3, 10)),
    ],
)
def test_b13_a_batch_reads_what_the_options_say(options, expected):
    partition = filled(20)
    partition.purge_before(3)
    found = offsets_of(FakeBrokers(t=[partition]), **options)
    assert [offset for _, offset in found] == list(expected)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"subscribe": "t,nope"},
            UnknownTopicError,
            "there is no topic 'nope' .'quorumlog topic l",
        ),
        (
            {"subscribe": "flight,landing,t"},
            UnknownTopicError,
            "there is no topic 'flight', 'landing'; did you mean 'flights'?",
        ),
        ({"assign": '{"t": [0, 2]}'}, UnknownTopicError, "no partition t-2: topic 't' has 2"),
        ({"subscribePattern": "x.*"}, UnexpectedArgumentError, "matches none of .*: flights, t"),
        (
            {"startingOffsets": '{"t": {"0": 5}}'},
            UnexpectedArgumentError,
            "startingOffsets says nothing of partition t-1",
        ),
        (
            {"assign": '{"t": [0]}', "endingOffsets": '{"t": {"0": 5, "1": 5}}'},
            UnexpectedArgumentError,
            "endingOffsets names t-1, which is not read",
        ),
        (
            {"startingOffsets": '{"t": {"0": 21, "1": -1}}'},
            IndexOutOfRangeError,
            "startingOffsets 21 is beyond the end: partition t-0 has offsets 3 to 19",
        ),
        (
            {"assign": '{"t": [0]}', "startingTimestamp": "1015", "endingTimestamp": "1000"},
            IndexOutOfRangeError,
            "partition t-0: the start, offset 10, is after the end, 0",
        ),
        (
            {"startingTimestamp": "1900"},
            IndexOutOfRangeError,
            "startingTimestamp: all records of partition t-0 are older",
        ),
        (
            {"startingOffsets": '{"t": {"0": 1, "1": 0}}'},
            DataLossError,
            r"partition t-0: offsets 1 to 2 \(2 of them\) were removed by retention",
        ),
    ],
)
def test_what_is_not_there_is_an_error_before_the_job_starts(options, error, text):
    partition = filled(20)
    first = partition.batches[0]
    partition.purge_before(3)
    partition.batches[0] = first
    brokers = FakeBrokers(t=[partition, filled(20)], flights=[FakePartition()])
    with pytest.raises(error, match=text):
        reader_of(brokers, **options).partitions()
    assert brokers.timeouts == [10_000]


def test_an_empty_partition_has_no_records_that_are_too_old():
    assert offsets_of(FakeBrokers(t=[FakePartition()]), startingTimestamp="5") == []


def test_b13_patterns_and_partitions_choose_what_is_read():
    brokers = FakeBrokers(a1=[filled(1)], a2=[filled(1), filled(2)], b=[filled(3)])
    reader = reader_of(brokers, ("topic", "partition"), subscribePattern="a.")
    rows = [(row["topic"], row["partition"]) for row in rows_of(reader, reader.partitions())]
    assert rows == [("a1", 0), ("a2", 0), ("a2", 1), ("a2", 1)]
    assert offsets_of(brokers, assign='{"a2": [1]}') == [(1, 0), (1, 1)]


def test_small_partitions_are_read_by_one_task_and_large_ones_by_several(monkeypatch):
    monkeypatch.setattr(planning, "FEW_OFFSETS", 30)
    brokers = FakeBrokers(t=[filled(10), filled(10), filled(100), filled(20)])

    def sizes(**options):
        tasks = reader_of(brokers, **options).partitions()
        return [[one.count for one in task.ranges] for task in tasks]

    assert sizes() == [[10, 10], [100], [20]]
    assert sizes(maxRecordsPerPartition="50") == [[10, 10], [50], [50], [20]]
    assert sizes(minPartitions="7") == [[10, 10]] + [[20]] * 6
    assert sizes(endingTimestamp="1000") == [[]]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_records_that_are_removed_while_they_are_read_are_lost_loudly(fails):
    partition = filled(40)
    brokers = FakeBrokers(t=[partition])
    reader = reader_of(brokers, ("partition", "offset"), failOnDataLoss=fails)
    tasks = reader.partitions()
    brokers.before_fetch = lambda _: partition.purge_before(25)
    if fails == "true":
        with pytest.raises(DataLossError, match=r"offsets 0 to 24 \(25 of them\) were removed"):
            rows_of(reader, tasks)
        return
    assert [row["offset"] for row in rows_of(reader, tasks)] == list(range(25, 40))


def test_a_topic_that_was_made_again_meanwhile_is_a_loss():
    brokers = FakeBrokers(t=[filled(40)])
    reader = reader_of(brokers, startingOffsets='{"t": {"0": 30}}')
    tasks = reader.partitions()
    brokers.content[Part("t", 0)] = filled(10)
    with pytest.raises(DataLossError, match="has offsets 0 to 9, but 30 to 39 were there"):
        rows_of(reader, tasks)


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("times", [1, 4])
def test_what_a_deposed_leader_does_not_have_is_asked_of_the_new_one(fails, times):
    brokers = FakeBrokers(t=[filled(40)])
    reader = reader_of(brokers, failOnDataLoss=fails, startingOffsets='{"t": {"0": 20}}')
    tasks = reader.partitions()
    depose(brokers, Part("t", 0), 15, times)
    assert [row["offset"] for row in rows_of(reader, tasks)] == list(range(20, 40))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, range(40)),
        ({"startingTimestamp": "1035"}, range(35, 40)),
        ({"endingTimestamp": "1035"}, range(35)),
    ],
)
def test_a_leader_that_was_does_not_say_what_a_job_reads(options, expected):
    brokers = FakeBrokers(t=[filled(40, batch=1)])
    depose(brokers, Part("t", 0), 15)
    reader = reader_of(brokers, **options)
    assert [row["offset"] for row in rows_of(reader, reader.partitions())] == list(expected)


def test_a_leader_that_was_does_not_say_from_where_on_records_are_new_enough():
    brokers = FakeBrokers(t=[filled(40)])
    reader = reader_of(brokers, kind=FilteringTopicReader, pushDownPredicate="true")
    list(reader.pushFilters([since(1.03)]))
    assert [row["offset"] for row in rows_of(reader, reader.partitions())] == list(range(30, 40))
    assert brokers.calls["offsets"] == 0, "no broker is believed alone"


def test_brokers_that_have_offsets_and_do_not_give_them_are_an_error():
    brokers = FakeBrokers(t=[filled(40)])
    reader = reader_of(brokers, failOnDataLoss="false")
    tasks = reader.partitions()

    def refuse(_):
        raise OffsetOutOfRangeError("t-0 has no offset 0")

    brokers.before_fetch = refuse
    with pytest.raises(NetworkError, match="has offsets 0 to 39, but they cannot be had from 0 on"):
        rows_of(reader, tasks)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_that_is_deleted_while_it_is_read_is_a_loss(fails):
    brokers = FakeBrokers(t=[filled(40), filled(10)])
    reader = reader_of(brokers, failOnDataLoss=fails)
    tasks = reader.partitions()
    del brokers.content[Part("t", 0)]
    if fails == "true":
        with pytest.raises(DataLossError, match="t-0: the cluster does not have it any more, so"):
            rows_of(reader, tasks)
        return
    rows = rows_of(reader, tasks)
    assert [(row["partition"], row["offset"]) for row in rows] == [(1, n) for n in range(10)]


# -- conditions that Spark offers -----------------------------------------------------------------


BOTH = [(partition, offset) for partition in (0, 1) for offset in range(20)]


def since(seconds):
    return GreaterThanOrEqual(("timestamp",), datetime.fromtimestamp(seconds, UTC))


@pytest.mark.parametrize(
    ("filters", "expected", "left"),
    [
        ([EqualTo(("partition",), 1)], BOTH[20:], 0),
        ([GreaterThan(("offset",), 16), LessThan(("offset",), 18)], [(0, 17), (1, 17)], 0),
        ([since(1.015)], BOTH[10:20] + BOTH[30:], 1),  # from the batch on that has the record
        ([since(9)], [], 1),
        ([LessThan(("timestamp",), datetime.fromtimestamp(1, UTC))], BOTH, 1),
        ([EqualTo(("value",), b"x")], BOTH, 1),
    ],
)
def test_conditions_on_partition_offset_and_timestamp_narrow_what_is_read(filters, expected, left):
    brokers = FakeBrokers(t=[filled(20), filled(20)])
    reader = reader_of(brokers, kind=FilteringTopicReader, pushDownPredicate="true")
    assert len(list(reader.pushFilters(filters))) == left
    rows = rows_of(reader, reader.partitions())
    assert [(row["partition"], row["offset"]) for row in rows] == expected


# -- streams --------------------------------------------------------------------------------------


def at(*offsets, topic="t"):
    return {topic: {str(number): offset for number, offset in enumerate(offsets)}}


class Query:
    """What Spark does with a reader: one batch after the other, offsets through JSON."""

    def __init__(self, brokers, checkpoint=None, **options):
        self.brokers = brokers
        self.now = 0.0
        parsed = options_of(**options).for_stream()
        self.reader = TopicStreamReader(
            parsed, ("topic", "partition", "offset"), brokers.connect, lambda: self.now
        )
        self.limit = self.reader.getDefaultReadLimit()
        self.offset = checkpoint

    def start(self):
        """Begin a new query, with its first batch, which is empty."""
        self.offset = json.loads(json.dumps(self.reader.initialOffset()))
        assert self.reader.latestOffset(self.offset, self.limit) == self.offset
        assert rows_of(self.reader, self.reader.partitions(self.offset, self.offset)) == []
        return self

    def latest(self):
        """The end of the next batch, some time after the last one."""
        self.now += max(BOUNDS_MS, DISCOVERY_MS)
        return json.loads(json.dumps(self.reader.latestOffset(self.offset, self.limit)))

    def rows(self, start, end):
        tasks = self.reader.partitions(start, end)
        rows = self.reader.getCache(start, end)
        found = [row for batch in rows for row in batch.to_pylist()]
        found = found or rows_of(self.reader, tasks)
        return [(row["topic"], row["partition"], row["offset"]) for row in found]

    def batch(self):
        """The rows of the next batch; None if Spark would not run one."""
        end = self.latest()
        if end == self.offset:
            return None
        start, self.offset = self.offset, end
        return self.rows(start, end)

    def offsets(self):
        return [offset for _, _, offset in self.batch()]


@pytest.mark.parametrize(
    ("starting", "expected"),
    [
        ({}, at(10, 5)),
        ({"startingOffsets": "earliest"}, at(0, 0)),
        ({"startingOffsets": '{"t": {"0": 4, "1": -1}}'}, at(4, 5)),
        ({"startingTimestamp": "1003"}, at(0, 0)),
    ],
)
def test_b13_a_stream_starts_where_the_options_say(starting, expected):
    assert Query(FakeBrokers(t=[filled(10), filled(5)]), **starting).start().offset == expected


def test_b13_a_stream_reads_what_is_produced_after_it_started_and_goes_on_from_a_checkpoint():
    partition = filled(10)
    brokers = FakeBrokers(t=[partition])
    query = Query(brokers).start()
    assert query.batch() is None
    partition.append(1, 2)
    assert query.batch() == [("t", 0, 10), ("t", 0, 11)]
    partition.append(3)
    assert Query(brokers, checkpoint=query.offset).batch() == [("t", 0, 12)]
    assert query.reader.reportLatestOffset() == at(12)


def test_b13_a_batch_is_bounded_by_the_trigger_options():
    brokers = FakeBrokers(t=[filled(100), filled(4)])
    query = Query(brokers, startingOffsets="earliest", maxOffsetsPerTrigger="10").start()
    assert isinstance(query.limit, ReadMaxRows)
    assert query.latest() == at(6, 4)
    query.batch()
    assert query.latest() == at(16, 4)
    waiting = Query(brokers, startingOffsets="earliest", minOffsetsPerTrigger="105").start()
    assert isinstance(waiting.limit, ReadMinRows)
    assert waiting.batch() is None
    brokers.content[Part("t", 1)].append(1)
    assert len(waiting.batch()) == 105
    late = Query(
        brokers, startingOffsets="earliest", minOffsetsPerTrigger="900", maxTriggerDelay="1h"
    ).start()
    assert late.batch() is None
    late.now += 3_600_000
    assert len(late.batch()) == 105


def test_b13_all_that_is_there_when_it_starts_is_read_by_available_now():
    partition = filled(10)
    query = Query(FakeBrokers(t=[partition]), startingOffsets="earliest").start()
    assert isinstance(query.reader, SupportsTriggerAvailableNow)
    query.reader.prepareForTriggerAvailableNow()
    partition.append(1)
    assert query.offsets() == list(range(10))
    assert query.batch() is None


def test_b13_new_partitions_and_topics_are_read_from_their_beginning():
    brokers = FakeBrokers(a1=[filled(3)])
    query = Query(brokers, subscribePattern="a.").start()
    brokers.content[Part("a1", 1)] = filled(2)
    brokers.content[Part("a2", 0)] = filled(1)
    assert query.batch() == []
    assert sorted(query.batch()) == [("a1", 1, 0), ("a1", 1, 1), ("a2", 0, 0)]
    query = Query(FakeBrokers(t=[filled(3)])).start()
    query.brokers.content[Part("t", 1)] = filled(2)
    assert query.batch() == []
    assert query.batch() == [("t", 1, 0), ("t", 1, 1)]


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize(
    ("change", "text", "left"),
    [
        (lambda content: content.pop(Part("t", 0)), "was read up to offset 9, but the clus", None),
        (
            lambda content: content.update({Part("t", 0): filled(4)}),
            "was read up to offset 9, but has offsets 0 to 3 now",
            at(4),
        ),
        (
            lambda content: content[Part("t", 0)].append(*range(1, 20)).purge_before(15),
            r"offsets 10 to 14 \(5 of them\) were removed by retention",
            at(29),
        ),
    ],
    ids=["deleted", "made-again", "removed"],
)
def test_what_was_lost_since_the_last_batch_is_an_error_or_skipped(change, text, left, fails):
    brokers = FakeBrokers(t=[filled(10)])
    query = Query(brokers, failOnDataLoss=str(fails).lower(), startingOffsets="earliest").start()
    query.batch()
    change(brokers.content)
    if fails:
        with pytest.raises(DataLossError, match=text):
            query.latest()
        return
    query.batch()
    assert query.offset == (left or {})


@pytest.mark.parametrize("fails", ["true", "false"])
def test_what_is_removed_while_the_first_batches_run_is_noticed(fails):
    partition = filled(40)
    brokers = FakeBrokers(t=[partition])
    options = {"startingOffsets": "earliest", "failOnDataLoss": fails}
    killed = Query(brokers, **options).start()
    partition.purge_before(30)
    query = Query(brokers, checkpoint=killed.offset, **options)
    assert query.reader.initialOffset() == at(30), "Spark asks while no batch is committed"
    assert query.rows(query.reader.initialOffset(), killed.offset) == []
    if fails == "true":
        with pytest.raises(DataLossError, match=r"offsets 0 to 29 \(30 of them\) were removed"):
            query.batch()
        return
    assert query.offsets() == list(range(30, 40))


def test_a_first_batch_that_is_planned_again_is_followed_by_one_with_records():
    brokers = FakeBrokers(t=[filled(10)])
    query = Query(brokers, checkpoint=at(0), startingOffsets="earliest")
    assert query.rows(query.reader.initialOffset(), at(0)) == []
    assert query.offsets() == list(range(10))


def test_the_only_batch_of_a_query_has_records():
    reader = Query(FakeBrokers(t=[filled(10)]), startingOffsets="earliest").reader
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == at(10)


@pytest.mark.parametrize("names", [{"subscribe": "t"}, {"subscribePattern": "t.*"}])
@pytest.mark.parametrize("hidden", [{Part("t", 1)}, {Part("t", 0), Part("t", 1)}])
def test_what_one_broker_does_not_know_stays_in_the_checkpoint(names, hidden):
    brokers = FakeBrokers(t=[filled(10), filled(10)])
    query = Query(brokers, at(10, 5), **names)
    brokers.hidden = hidden
    assert query.latest() == at(10, 10)
    brokers.content[Part("t", 1)].append(1)
    assert query.latest() == at(10, 11)


@pytest.mark.parametrize("names", [{"subscribe": "t"}, {"subscribePattern": "t.*"}])
def test_all_partitions_are_read_whatever_one_broker_knows(names):
    brokers = FakeBrokers(t=[filled(10), filled(4)])
    brokers.hidden = {Part("t", 1)}
    assert len(offsets_of(brokers, **names)) == 14
    assert Query(brokers, startingOffsets="earliest", **names).start().offset == at(0, 0)
    reader = Query(brokers, **names).reader
    assert reader.latestOffset(at(2), ReadAllAvailable()) == at(10, 0)
    query = Query(brokers, at(2), **names)
    query.reader.prepareForTriggerAvailableNow()
    assert query.latest() == at(10, 0)
    query.offset = at(10, 0)
    assert len(query.batch()) == 4


def test_only_the_partition_that_is_gone_leaves_the_checkpoint():
    brokers = FakeBrokers(t=[filled(10), filled(10)])
    query = Query(brokers, at(5, 5), assign='{"t": [0, 1]}', failOnDataLoss="false")
    del brokers.content[Part("t", 1)]
    assert query.latest() == at(10)
    assert query.rows(at(5, 5), at(10, 10)) == [("t", 0, offset) for offset in range(5, 10)]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_records_that_were_read_uncommitted_are_not_read_again_when_committed_ones_are(fails):
    partition = filled(10)
    partition.append(3, 4, producer_id=PRODUCER, epoch=0, sequence=0, is_transactional=True)
    brokers = FakeBrokers(t=[partition])
    query = Query(brokers, at(5), isolationLevel="read_uncommitted")
    assert query.offsets() == [5, 6, 7, 8, 9, 10, 11]
    partition.stable = 10
    query = Query(brokers, query.offset, failOnDataLoss=fails)
    assert query.batch() is None
    assert query.reader.reportLatestOffset() == at(12)
    partition.append(5)
    assert query.batch() is None
    assert brokers.calls["confirmed offsets"] == 0, "the others are not asked"
    partition.mark(commits=True)
    partition.stable = None
    assert query.offsets() == [12]
    assert query.rows(at(8), at(12)) == [("t", 0, offset) for offset in range(8, 12)]


def test_a_batch_that_was_planned_uncommitted_is_not_lost():
    partition = filled(10)
    partition.stable = 4
    (task,) = Query(FakeBrokers(t=[partition])).reader.partitions(at(2), at(10))
    assert task.ranges == (OffsetRange(Part("t", 0), 2, 10),)


def test_a_leader_that_was_does_not_say_where_a_new_stream_starts_and_a_last_batch_ends():
    brokers = FakeBrokers(t=[filled(10)])
    depose(brokers, Part("t", 0), 4)
    assert Query(brokers).start().offset == at(10)
    depose(brokers, Part("t", 0), 4)
    assert Query(brokers, at(2)).reader.latestOffset(at(2), ReadAllAvailable()) == at(10)
    depose(brokers, Part("t", 0), 4)
    query = Query(brokers, at(2))
    query.reader.prepareForTriggerAvailableNow()
    assert query.latest() == at(10)


def test_available_now_does_not_end_early_as_a_former_leader_says_so():
    partition = filled(100)
    brokers = FakeBrokers(t=[partition])
    query = Query(brokers, at(50), maxOffsetsPerTrigger="20")
    query.reader.prepareForTriggerAvailableNow()
    found = []
    for _ in range(3):  # Spark ends at the first batch without records
        depose(brokers, Part("t", 0), 60)
        found += query.offsets()
    assert found == list(range(50, 100))
    assert query.batch() is None


def test_one_broker_is_asked_for_what_a_stream_reads_next():
    query = Query(FakeBrokers(t=[filled(10)]), at(4))
    assert query.latest() == at(10)
    query.reader.partitions(at(4), at(10))
    assert query.brokers.calls["confirmed offsets"] == query.brokers.calls["existing"] == 0


def test_an_old_leader_that_does_not_know_the_end_is_asked_again():
    brokers = FakeBrokers(t=[filled(10)])
    query = Query(brokers, at(10))
    depose(brokers, Part("t", 0), 4, 3)
    assert query.latest() == at(10)


def test_a_batch_that_is_planned_again_after_a_loss_says_what_is_missing():
    brokers = FakeBrokers(t=[filled(10)])
    query = Query(brokers, at(0))
    end = query.latest()
    brokers.content[Part("t", 0)] = filled(4)
    with pytest.raises(DataLossError, match="has offsets 0 to 3 now"):
        query.reader.partitions(at(0), end)
    del brokers.content[Part("t", 0)]
    with pytest.raises(DataLossError, match="the cluster does not have it any more"):
        query.reader.partitions(at(0), end)


def test_small_batches_travel_with_their_plan_and_large_ones_are_read_by_tasks():
    brokers = FakeBrokers(t=[filled(10), filled(10)])
    reader = Query(brokers).reader
    tasks = reader.partitions(at(0, 0), at(10, 10))
    assert [len(task.ranges) for task in tasks] == [2]
    assert sum(len(batch) for batch in reader.getCache(None, None)) == 20
    brokers = FakeBrokers(t=[filled(10, batch=1, value=bytes(200_000))])
    reader = Query(brokers).reader
    tasks = reader.partitions(at(0), at(10))
    assert list(reader.getCache(None, None)) == []
    assert len(rows_of(reader, tasks)) == 10


def test_brokers_that_do_not_answer_at_first_are_reported_soon_and_later_waited_for():
    brokers = FakeBrokers(t=[filled(10)])
    query = Query(brokers, at(3))
    brokers.is_down = True
    with pytest.raises(NetworkError):
        query.latest()
    brokers.is_down = False
    query.latest()
    query.latest()
    assert brokers.timeouts == [10_000, 10_000, 120_000]


def test_a_checkpoint_of_another_source_is_refused():
    query = Query(FakeBrokers(t=[filled(10)]), {"t": 5})
    with pytest.raises(QuorumlogError, match="is no offset of topics; was the checkpoint written"):
        query.latest()


def test_what_is_no_task_of_this_source_has_no_rows():
    reader = Query(FakeBrokers(t=[filled(10)])).reader
    assert rows_of(reader, [OffsetRanges(())]) == []
