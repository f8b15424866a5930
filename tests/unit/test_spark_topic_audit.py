"""Audit and statistics of topics without Spark: brokers in memory, tasks run on the spot."""

from dataclasses import replace

import pytest

from pipeline_access import run_here
from quorumlog.spark.jobs.tasks import PipelineError
from quorumlog.spark.jobs.topics.audit import audit_archive
from quorumlog.spark.jobs.topics.count import PERIODS_MAX
from quorumlog.spark.jobs.topics.plot import draw_topics
from quorumlog.spark.jobs.topics.source import TopicSource
from quorumlog.spark.jobs.topics.stats import stats_of_topics, time_text
from quorumlog.spark.topics import confirm
from quorumlog.spark.topics.part import Part
from spark_topics_fakes import PRODUCER, FakeBrokers, FakePartition, depose, filled
from topic_archives import DAY_MS, FILES, NOON_MS, archived, source_of, split_in

A0 = Part("a", 0)


def audit(brokers, directory, source=None):
    return audit_archive(source or source_of(brokers), FILES, str(directory), run_here)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(confirm, "AGAIN_S", 0)


def once(act):
    """Return what acts before the first fetch only."""
    left = [act]
    return lambda _: left.pop()() if left else None


def found(report):
    return [(one.kind, one.replica, one.first, one.last) for one in report.findings]


# -- audit ----------------------------------------------------------------------------------------


def test_an_archive_that_is_right_has_no_findings(tmp_path):
    two_days = FakePartition()
    for number in range(20):
        two_days.append(NOON_MS + number % 2 * DAY_MS, NOON_MS)
    brokers = FakeBrokers(a=[two_days, filled(30)], b=[FakePartition()])
    archived(split_in(source_of(brokers), 7), tmp_path)
    report = audit(brokers, tmp_path)
    assert (report.is_clean, report.records, report.counts) == (True, 70, {})
    assert "70 records compared: no difference" in report.text()
    assert report.to_object()["is_clean"] is True


def test_what_retention_removed_and_what_is_not_archived_is_not_compared(tmp_path):
    brokers = FakeBrokers(a=[filled(30)])
    archived(source_of(brokers), tmp_path)
    brokers.content[A0].append(9_000)
    brokers.content[A0].purge_before(20)
    report = audit(brokers, tmp_path)
    assert (report.is_clean, report.records) == (True, 10)
    (facts,) = report.partitions
    assert (facts.archived_last, facts.begin, facts.end, facts.first, facts.last) == (
        *(29, 20, 31),
        *(20, 29),
    )
    del brokers.content[A0]
    report = audit(brokers, tmp_path)
    assert (report.is_clean, report.records) == (True, 0)
    assert "no such partition" in report.text()


def test_differing_missing_and_extra_records_are_found(tmp_path):
    brokers = FakeBrokers(a=[filled(20), filled(20)], b=[filled(20)])
    archived(source_of(brokers), tmp_path)
    options = {"is_transactional": True, "producer_id": PRODUCER, "epoch": 0, "sequence": 0}
    brokers.content[A0] = filled(10).append(*range(1_010, 1_020), value=b"another")
    brokers.content[Part("a", 1)] = (
        filled(10).append(*range(9), **options).mark(commits=False, first=10)
    )
    brokers.content[Part("b", 0)] = filled(10)
    report = audit(brokers, tmp_path)
    assert found(report) == [
        ("archive-differing", "a-0", 10, 19),
        ("archive-extra", "a-1", 10, 19),
        ("archive-extra", "b-0", 10, 19),
    ]
    assert report.counts == {"archive-differing": 10, "archive-extra": 20}
    assert "a-0, offsets 10 to 19: archive-differing, another value" in report.text()


def test_a_file_that_is_lost_or_damaged_is_named_and_its_records_are_missing(tmp_path):
    brokers = FakeBrokers(a=[filled(20)], b=[filled(5)])
    archived(source_of(brokers), tmp_path)
    for path in tmp_path.rglob("*.parquet"):
        if "topic=a" in str(path):
            path.write_bytes(b"not Parquet")
        else:
            path.unlink()
    report = audit(brokers, tmp_path)
    assert sorted(found(report)) == [
        ("archive-missing", "a-0", 0, 19),
        ("archive-missing", "b-0", 0, 4),
        ("damaged", "a-0", 0, 19),
        ("damaged", "b-0", 0, 4),
    ]


def test_retention_during_an_audit_is_no_finding(tmp_path):
    brokers = FakeBrokers(a=[filled(40)])
    archived(source_of(brokers), tmp_path)
    source = source_of(brokers)

    def retention(number):
        brokers.content[A0].purge_before(30)

    brokers.before_fetch = retention
    report = audit(brokers, tmp_path, source)
    assert (report.is_clean, report.records) == (True, 10)


def test_what_a_deposed_leader_does_not_have_is_compared_with_the_new_one(tmp_path):
    brokers = FakeBrokers(a=[filled(40)])
    archived(source_of(brokers), tmp_path)
    source = split_in(source_of(brokers), 10)
    brokers.before_fetch = once(lambda: depose(brokers, A0, 0, 2))
    report = audit(brokers, tmp_path, source)
    assert (report.is_clean, report.records) == (True, 40)


def test_a_leader_that_was_does_not_say_how_much_is_compared(tmp_path):
    brokers = FakeBrokers(a=[filled(40)])
    archived(source_of(brokers), tmp_path)
    brokers.content[A0].append(1)
    for end in (10, 40):
        depose(brokers, A0, end)
        (found,) = audit(brokers, tmp_path).partitions
        assert (found.end, found.records) == (41, 40)


def test_a_partition_that_one_broker_does_not_know_is_compared(tmp_path):
    brokers = FakeBrokers(a=[filled(40)])
    archived(source_of(brokers), tmp_path)
    brokers.hidden = {A0}
    assert audit(brokers, tmp_path).records == 40


def test_a_topic_that_is_made_again_during_an_audit_is_not_compared(tmp_path):
    brokers = FakeBrokers(a=[filled(40)])
    archived(source_of(brokers), tmp_path)
    brokers.before_fetch = once(lambda: brokers.make_again(a=[filled(3)]))
    with pytest.raises(PipelineError, match="made again while it was compared"):
        audit(brokers, tmp_path)


def test_a_topic_that_ends_sooner_during_an_audit_lacks_what_is_archived(tmp_path):
    brokers = FakeBrokers(a=[filled(40)])
    archived(source_of(brokers), tmp_path)
    brokers.before_fetch = once(lambda: brokers.content.update({A0: FakePartition()}))
    assert found(audit(brokers, tmp_path)) == [("archive-extra", "a-0", 0, 39)]


def test_a_topic_that_was_made_again_is_said_so_instead_of_all_its_records(tmp_path):
    brokers = FakeBrokers(a=[filled(40)], b=[filled(5)])
    archived(source_of(brokers), tmp_path)
    brokers.make_again(a=[filled(40, value=b"of another topic")])
    report = audit(brokers, tmp_path)
    assert found(report) == [("made-again", "a-0", 0, 39)]
    assert (report.counts, report.records) == ({"made-again": 40}, 5)
    assert "of id id-of-a was deleted, and another one of its name made" in report.text()


def test_an_archive_of_another_cluster_is_not_compared(tmp_path):
    archived(source_of(FakeBrokers(a=[filled(5)])), tmp_path)
    brokers = FakeBrokers(a=[filled(5)])
    brokers.cluster_id = lambda: "another"
    with pytest.raises(PipelineError, match="of cluster cluster-of-test, not of another"):
        audit(brokers, tmp_path)


# -- statistics -----------------------------------------------------------------------------------


def stats(brokers, **options):
    source = source_of(brokers)
    return stats_of_topics(
        TopicSource(replace(source.options, **options), source.connect), run_here, 2
    )


def test_records_bytes_nulls_times_and_the_largest_are_counted():
    partition = FakePartition().append(NOON_MS, NOON_MS + 10_000, value=b"12345")
    partition.append(NOON_MS + 4_000, value=None).append(NOON_MS + 5_000, value=b"x" * 90)
    brokers = FakeBrokers(a=[partition, FakePartition()], b=[filled(7)])
    found = stats(brokers, max_records_per_partition=2)
    one, empty, _ = found.partitions
    assert (one.records, one.key_bytes, one.value_bytes, one.null_values) == (4, 12, 100, 1)
    assert (one.largest_bytes, one.largest_offset) == (93, 3)
    assert (one.first_ms, one.last_ms) == (NOON_MS, NOON_MS + 10_000)
    assert one.records_per_second == pytest.approx(0.4)
    assert (empty.records, empty.largest_offset, empty.records_per_second) == (0, None, None)
    assert (found.records, sum(one.records for one in found.periods)) == (11, 11)
    assert "2 topics, 3 partitions, 11 records" in found.text()
    assert " 93 bytes at 3 " in found.text()
    assert found.to_object()["records"] == 11


def test_records_of_a_moment_have_no_rate_and_are_counted_by_the_second():
    partition = FakePartition()
    for number in range(600):
        partition.append(NOON_MS + number % 2)
    found = stats(FakeBrokers(a=[partition]))
    assert found.partitions[0].records_per_second is None
    assert [(one.to_ms - one.from_ms, one.records) for one in found.periods] == [(1_000, 600)]
    assert "a: busiest period (1 s): 600 records, from 2026-03-01 12:00:00" in found.text()


def test_periods_are_few_whatever_the_timestamps_are():
    partition = FakePartition().append(-1, 0, 1 << 50)
    for number in range(5_000):
        partition.append(NOON_MS + number * 997)
    found = stats(FakeBrokers(a=[partition]), max_records_per_partition=700)
    assert PERIODS_MAX // 4 <= len(found.periods) <= PERIODS_MAX
    assert sum(one.records for one in found.periods) == 5_003
    begins = [one.from_ms for one in found.periods]
    assert begins == sorted(set(begins))
    lengths = {one.to_ms - one.from_ms for one in found.periods}
    assert len(lengths) == 1, "the three far ones make no period longer"
    assert lengths.pop() < 100_000
    assert time_text(1 << 50) == "1125899906842624 ms"


def test_retention_while_records_are_counted_is_no_error():
    brokers = FakeBrokers(a=[filled(50)])
    brokers.before_fetch = lambda number: brokers.content[A0].purge_before(40)
    assert stats(brokers).records == 10


def test_a_leader_that_was_does_not_say_how_much_is_counted():
    brokers = FakeBrokers(a=[filled(50)])
    depose(brokers, A0, 20)
    assert stats(brokers).records == 50


def test_what_a_deposed_leader_does_not_have_is_counted_at_the_new_one():
    brokers = FakeBrokers(a=[filled(50)])
    brokers.before_fetch = once(lambda: depose(brokers, A0, 0, 2))
    assert stats(brokers).records == 50


def test_a_picture_is_drawn_unless_there_is_nothing_to_draw(tmp_path):
    brokers = FakeBrokers(a=[filled(50), FakePartition()], b=[filled(9)])
    draw_topics(stats(brokers), tmp_path / "topics.png")
    assert (tmp_path / "topics.png").stat().st_size > 10_000
    with pytest.raises(PipelineError, match="nothing to draw"):
        draw_topics(stats(FakeBrokers(a=[FakePartition()])), tmp_path / "none.png")
