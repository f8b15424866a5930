"""A replay of topics without Spark: an archive on disk, brokers in memory."""

import pytest

from quorumlog.spark.jobs.tasks import PipelineError, no_progress
from quorumlog.spark.jobs.topics import replay as module
from quorumlog.spark.jobs.topics.replay import TopicReplay, replay_topics
from quorumlog.spark.topics.part import Part
from quorumlog.spark.topics.planning import OffsetRange
from spark_topics_fakes import FakeBrokers, FakePartition, filled
from topic_archives import (
    DAY_MS,
    FILES,
    NOON_MS,
    TargetInMemory,
    archived,
    rows_at,
    source_of,
)

KEPT = ("key", "value", "timestamp", "headers")


class StoppedError(Exception):
    """A replay that is killed."""


@pytest.fixture(autouse=True)
def small_transactions(monkeypatch):
    monkeypatch.setattr(module, "TRANSACTION_RECORDS", 4)


def two_days(count):
    """Return a partition whose records are of two days in turn, and differ in all that is kept."""
    partition = FakePartition()
    for number in range(count):
        partition.append(
            NOON_MS + number % 2 * DAY_MS + number,
            value=None if number % 5 == 4 else f"v{number}".encode(),
            headers=[("h", None), ("h", str(number).encode())] if number % 3 == 0 else [],
        )
    return partition


@pytest.fixture
def source(tmp_path):
    brokers = FakeBrokers(a=[two_days(19), two_days(6)], b=[filled(3)])
    archived(source_of(brokers), tmp_path)
    return brokers


def replay(directory, target, names, progress=no_progress, **options):
    there = source_of(target.brokers, list(names.values()))
    return TopicReplay(FILES, str(directory), names, target, there, progress, **options).run()


def check_same(source, target, names):
    ours, theirs = rows_at(source_of(source)), rows_at(source_of(target.brokers))
    for part, rows in ours.items():
        if part.topic in names:
            there = theirs[Part(names[part.topic], part.partition)]
            assert [[row[name] for name in KEPT] for row in there] == [
                [row[name] for name in KEPT] for row in rows
            ]


def test_records_keep_partition_order_key_value_time_and_headers(source, tmp_path):
    target, names, seen = TargetInMemory(FakeBrokers()), {"a": "again", "b": "b"}, []
    result = replay(tmp_path, target, names, lambda *done: seen.append(done))
    assert (result.records, result.produced_records, result.partitions) == (28, 28, 3)
    assert seen[-1] == (28, 28)
    check_same(source, target, names)
    result = replay(tmp_path, target, names)
    assert (result.found_records, result.produced_records) == (28, 0)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_replay_that_was_stopped_anywhere_goes_on_and_each_record_is_there_once(
    source, tmp_path, when
):
    names, whole = {"a": "again"}, TargetInMemory(FakeBrokers())
    replay(tmp_path, whole, names)
    transactions = whole.number
    for stop in range(transactions):
        target = TargetInMemory(FakeBrokers())

        def stopping(number, stop=stop):
            if number == stop:
                raise StoppedError

        setattr(target, when, stopping)
        with pytest.raises(StoppedError):
            replay(tmp_path, target, names)
        result = replay(tmp_path, target, names)
        assert result.records == 25
        assert (result.found_records == 0) == (stop == 0 and when == "before")
        assert target.number >= transactions > 6
        check_same(source, target, names)


def test_an_archive_that_has_grown_is_replayed_further(source, tmp_path):
    target, names = TargetInMemory(FakeBrokers()), {"b": "b"}
    replay(tmp_path, target, names)
    source.content[Part("b", 0)].append(5_000, 5_001)
    archived(source_of(source), tmp_path)
    assert replay(tmp_path, target, names).produced_records == 2
    check_same(source, target, names)


def test_a_partition_that_others_wrote_to_is_refused_unless_it_is_appended_to(source, tmp_path):
    target = TargetInMemory(FakeBrokers(b=[filled(5)]))
    with pytest.raises(PipelineError, match="partition b-0 has had 5 offsets that this replay did"):
        replay(tmp_path, target, {"b": "b"})
    assert replay(tmp_path, target, {"b": "b"}, append=True).produced_records == 3
    assert replay(tmp_path, target, {"b": "b"}).found_records == 3
    target.brokers.content[Part("b", 0)].append(1)
    with pytest.raises(PipelineError, match="record 3 since the replay began, it is not in"):
        replay(tmp_path, target, {"b": "b"})


def test_what_is_read_back_must_be_what_the_archive_has(source, tmp_path):
    target = TargetInMemory(FakeBrokers())

    def stranger(number):
        target.brokers.content[Part("b", 0)].append(1, value=b"stranger")

    target.after = stranger
    with pytest.raises(PipelineError, match=r"partition b-0 is not what .*did anybody else write"):
        replay(tmp_path, target, {"b": "b"})


def test_a_topic_that_was_made_again_is_not_gone_on_with(source, tmp_path):
    target = TargetInMemory(FakeBrokers(b=[filled(5)]))
    replay(tmp_path, target, {"b": "b"}, append=True)
    target.brokers.content[Part("b", 0)] = FakePartition()
    with pytest.raises(PipelineError, match="it was made again"):
        replay(tmp_path, target, {"b": "b"})


def test_a_topic_that_another_one_was_replayed_into_is_refused(source, tmp_path):
    target = TargetInMemory(FakeBrokers())
    replay(tmp_path, target, {"b": "again"})
    with pytest.raises(PipelineError, match="partition again-0 has records of topic 'b'"):
        replay(tmp_path, target, {"a": "again"}, append=True)
    target.committed = {part: one._replace(topic="") for part, one in target.committed.items()}
    assert replay(tmp_path, target, {"b": "again"}).found_records == 3, "begun by an older version"


def test_times_are_kept_but_for_0_and_what_no_calendar_has(tmp_path):
    """librdkafka takes 0 for the present, but not what is below."""
    times = [-62_135_596_800_000, 1, -1_000, -1, NOON_MS, 0, 1 << 62]
    archived(source_of(FakeBrokers(a=[FakePartition().append(*times)])), tmp_path)
    target = TargetInMemory(FakeBrokers())
    for _ in range(2):  # also what an earlier run produced counts
        result = replay(tmp_path, target, {"a": "again"})
        assert (result.changed_timestamps, result.first_changed) == (2, ("a", 0, 5))
    produced = target.brokers.content[Part("again", 0)]
    found = source_of(target.brokers).records(OffsetRange(Part("again", 0), 0, produced.end))
    there = [rows.column("timestamp").cast("int64") for batches, _ in found for rows in batches]
    assert [time // 1_000 for one in there for time in one.to_pylist()] == [*times[:5], 1, NOON_MS]


def test_a_time_that_another_wrote_is_a_difference(tmp_path):
    archived(source_of(FakeBrokers(a=[FakePartition().append(-1_000)])), tmp_path)
    target = TargetInMemory(FakeBrokers())
    replay(tmp_path, target, {"a": "again"})
    target.brokers.content[Part("again", 0)].batches.clear()
    target.brokers.content[Part("again", 0)].end = 0
    target.brokers.content[Part("again", 0)].append(NOON_MS)
    with pytest.raises(PipelineError, match="record 0 since the replay began, another timestamp"):
        replay(tmp_path, target, {"a": "again"})


def test_a_record_that_is_too_large_stops_a_replay_that_can_go_on(source, tmp_path):
    source.content[Part("b", 0)].append(9, value=b"x" * 90)
    source.content |= {Part("c", 0): filled(2)}
    archived(source_of(source), tmp_path)
    names = {"a": "a", "b": "again", "c": "c"}
    target = TargetInMemory(FakeBrokers())
    target.bytes_max = 80
    reason = (
        rf"offset 3 of partition b-0 in {tmp_path} cannot be replayed: partition again-0 refuses "
        r"a batch .* has 93 bytes.*goes on from there \(whole, but not compared: a\); without b: "
        "--topic a,c$"
    )
    with pytest.raises(PipelineError, match=reason):
        replay(tmp_path, target, names)
    assert replay(tmp_path, target, {"a": "a", "c": "c"}).records == 27
    with pytest.raises(PipelineError, match=r"there \(no topic is whole\)$"):
        replay(tmp_path, target, {"b": "again"})
    target.bytes_max = 100
    assert replay(tmp_path, target, names).produced_records == 1
    check_same(source, target, names)


def test_what_cannot_be_replayed_is_refused_before_anything_is_asked(source, tmp_path):
    with pytest.raises(PipelineError, match="has nothing of c"):
        replay_topics(tmp_path, "h:1", "c")
    with pytest.raises(PipelineError, match="has nothing of c"):
        replay_topics(tmp_path, "h:1", names={"c": "d"})
    with pytest.raises(PipelineError, match="two topics would be replayed into one"):
        replay_topics(tmp_path, "h:1", names={"a": "b"})
    partition = source.content[Part("b", 0)]
    partition.append(9, 9)
    partition.purge_before(5)
    partition.append(10)
    archived(source_of(source), tmp_path, fail_on_data_loss=False)
    with pytest.raises(PipelineError, match=r"gaps of 2 offsets in all.*--allow-gaps"):
        replay_topics(tmp_path, "h:1", "b")
