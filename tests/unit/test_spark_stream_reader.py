"""The stream reader against a cluster in memory: offsets, limits, losses, groups that come."""

import json
import pickle

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from quorumlog.model.errors import (
    IndexOutOfRangeError,
    NoLeaderError,
    QuorumlogError,
    UnknownGroupError,
)
from quorumlog.spark.source.clusters import Bounds
from quorumlog.spark.source.offsets import DataLossError
from quorumlog.spark.source.options import parse_options
from quorumlog.spark.source.stream import BOUNDS_MS, DISCOVERY_MS, LogStreamReader
from spark_fakes import FakeCluster, FakeGroup, filled, rows_of


def at(index, term=1, group="g"):
    return {group: {"index": index, "term": term}}


class Query:
    """What Spark does with a reader: one batch after the other, offsets through JSON."""

    def __init__(self, cluster, checkpoint=None, columns=("group", "index"), **options):
        self.cluster = cluster
        self.now = 0.0
        group = {} if "groupPattern" in options else {"group": "g"}
        parsed = parse_options({"servers": "h:1", **group, **options}).for_stream()
        self.reader = LogStreamReader(parsed, columns, cluster.connect, lambda: self.now)
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
        self.now += BOUNDS_MS
        return json.loads(json.dumps(self.reader.latestOffset(self.offset, self.limit)))

    def indexes(self, start, end):
        rows = rows_of(self.reader, self.reader.partitions(start, end))
        return [row["index"] for row in rows]

    def batch(self):
        """The indexes of the next batch; None if Spark would not run one."""
        end = self.latest()
        if end == self.offset:
            return None
        start, self.offset = self.offset, end
        return self.indexes(start, end)

    def batches(self):
        found = []
        while (batch := self.batch()) is not None:
            found.append(batch)
        return found


# -- where it begins ------------------------------------------------------------------------------


def test_a_stream_starts_with_what_is_appended_after_it():
    cluster = FakeCluster(g=filled(10))
    query = Query(cluster).start()
    assert query.offset == at(10)
    assert query.batch() is None
    cluster.content["g"].append(b"new", term=2)
    assert query.batch() == [10]
    assert query.offset == at(11, term=2)


@pytest.mark.parametrize(
    ("starting", "expected"),
    [
        ("earliest", at(3, -1)),
        ("latest", at(10)),
        ("5", at(5)),
        ('{"g": -2}', at(3, -1)),
        ('{"g": 10}', at(10)),
    ],
)
def test_a_stream_starts_at_the_given_position(starting, expected):
    group = filled(10)
    group.purge_before(3)
    assert Query(FakeCluster(g=group), startingOffsets=starting).start().offset == expected


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"startingIndex": "11"}, IndexOutOfRangeError, "startingIndex 11 is beyond the end"),
        ({"startingIndex": "2"}, DataLossError, "entries 2 to 2 .1 of them. were removed"),
        ({"group": "nope"}, UnknownGroupError, "does not host group 'nope'"),
    ],
)
def test_missing_entries_are_an_error_at_once(options, error, message):
    group = filled(10)
    group.purge_before(3)
    cluster = FakeCluster(g=group)
    with pytest.raises(error, match=message):
        Query(cluster, **options).start()
    assert cluster.timeouts == [10_000]


def test_a_restarted_query_too_is_refused_soon_when_nobody_answers_then_rides_out_outages():
    cluster = FakeCluster(g=filled(10))
    unreachable, cluster.bounds = cluster.bounds, unreachable_bounds
    query = Query(cluster, at(3))
    for ask in (query.latest, query.reader.prepareForTriggerAvailableNow, query.batch):
        with pytest.raises(NoLeaderError):
            ask()
    assert set(cluster.timeouts) == {10_000}
    cluster.bounds = unreachable
    cluster.timeouts.clear()
    query.latest()
    query.batch()
    assert cluster.timeouts[0] == 10_000
    assert set(cluster.timeouts[1:]) == {120_000}


def unreachable_bounds(group, isolation, *, unconfirmed=False):
    raise NoLeaderError("nobody answers")


def test_a_leader_that_was_does_not_say_where_a_new_stream_starts_and_a_last_batch_ends():
    cluster = FakeCluster(g=filled(10))
    cluster.former["g"] = Bounds(0, 4)
    assert Query(cluster).start().offset == at(10)
    query = Query(cluster, checkpoint=at(2))
    assert query.reader.latestOffset(at(2), ReadAllAvailable()) == at(10)
    query = Query(cluster, checkpoint=at(2))
    query.reader.prepareForTriggerAvailableNow()
    cluster.former.clear()
    assert query.latest() == at(10)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_leader_that_was_does_not_make_entries_lost(fails):
    cluster = FakeCluster(g=filled(10))
    query = Query(cluster, checkpoint=at(8), failOnDataLoss=fails)
    cluster.former["g"] = Bounds(0, 4)
    assert query.latest() == at(10)
    assert query.indexes(at(8), at(10)) == [8, 9]


def test_the_leader_is_not_confirmed_for_what_a_stream_reads_next():
    cluster = FakeCluster(g=filled(10))
    query = Query(cluster, checkpoint=at(8))
    query.latest()
    query.reader.partitions(at(8), at(10))
    assert cluster.calls["confirmed bounds"] == 0


def test_a_stream_waits_for_an_empty_group():
    cluster = FakeCluster(g=FakeGroup())
    query = Query(cluster, startingIndex="earliest").start()
    assert query.offset == at(0, -1)
    assert query.batch() is None
    cluster.content["g"].append(b"first")
    assert query.batch() == [0]


# -- restarts -------------------------------------------------------------------------------------


def test_a_restarted_query_continues_exactly_where_it_was():
    cluster = FakeCluster(g=filled(10))
    first = Query(cluster, startingIndex="earliest", maxEntriesPerTrigger="4").start()
    seen = [first.batch()]
    planned = (first.offset, first.latest())  # in the checkpoint, but not done when it was killed
    second = Query(cluster, checkpoint=planned[1], maxEntriesPerTrigger="3")
    seen.append(second.indexes(*planned))
    seen += second.batches()
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_checkpoint_of_another_source_is_an_error():
    query = Query(FakeCluster(g=filled(1)), checkpoint={"topic": {"0": 17}})
    with pytest.raises(QuorumlogError, match="was the checkpoint written by another one"):
        query.latest()


# -- limits ---------------------------------------------------------------------------------------


def test_without_limits_a_batch_holds_all_there_is():
    query = Query(FakeCluster(g=filled(1_000)), startingIndex="earliest").start()
    assert query.limit != ReadAllAvailable(), "by which a query of one batch is known"
    assert query.batches() == [list(range(1_000))]


def test_entries_of_a_batch_are_limited():
    query = Query(
        FakeCluster(g=filled(10)), startingIndex="earliest", maxOffsetsPerTrigger="4"
    ).start()
    assert query.limit == ReadMaxRows(4)
    assert query.batches() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_trigger_once_ignores_limits():
    query = Query(
        FakeCluster(g=filled(10)), startingIndex="earliest", maxEntriesPerTrigger="4"
    ).start()
    query.limit = ReadAllAvailable()
    assert query.batches() == [list(range(10))]


def test_bytes_of_a_batch_are_limited_and_one_entry_always_goes():
    group = FakeGroup().append(*[b"x" * 52] * 25, b"y" * 5_000, b"z")
    query = Query(FakeCluster(g=group), startingIndex="earliest", maxBytesPerTrigger="1000").start()
    assert query.limit == ReadMaxBytes(1_000)
    assert [len(batch) for batch in query.batches()] == [10, 10, 5, 1, 1]


def test_a_limit_on_bytes_takes_few_fetches():
    group = filled(20_000)
    cluster = FakeCluster(g=group)
    query = Query(cluster, startingIndex="earliest", maxBytesPerTrigger="100k").start()
    cluster.calls.clear()
    query.latest()
    assert cluster.calls["record"] <= 10
    assert cluster.calls["bounds"] == 1


def test_limits_are_shared_among_groups():
    cluster = FakeCluster(a=filled(100), b=filled(3))
    query = Query(cluster, group="a,b", startingIndex="earliest", maxEntriesPerTrigger="10").start()
    query.batch()
    assert {group: place["index"] for group, place in query.offset.items()} == {"a": 7, "b": 3}
    query = Query(cluster, group="a,b", startingIndex="earliest", maxBytesPerTrigger="580").start()
    query.batch()
    assert {group: place["index"] for group, place in query.offset.items()} == {"a": 7, "b": 3}


def test_both_limits_hold_together():
    query = Query(
        FakeCluster(g=filled(20)),
        startingIndex="earliest",
        maxEntriesPerTrigger="5",
        maxBytesPerTrigger="200",
    ).start()
    assert len(query.batch()) == 3
    query = Query(
        FakeCluster(g=filled(20)),
        startingIndex="earliest",
        maxEntriesPerTrigger="2",
        maxBytesPerTrigger="200",
    ).start()
    assert len(query.batch()) == 2


def test_a_batch_waits_for_enough_entries_but_not_forever():
    cluster = FakeCluster(g=filled(0))
    query = Query(
        cluster, startingIndex="earliest", minEntriesPerTrigger="5", maxTriggerDelay="10s"
    ).start()
    assert query.limit == ReadMinRows(5)
    cluster.content["g"].append(*[b"x"] * 4)
    assert query.batch() is None
    cluster.content["g"].append(b"x")
    assert query.batch() == [0, 1, 2, 3, 4]
    cluster.content["g"].append(b"x")
    query.now += 9_000
    assert query.batch() is None
    query.now += 1_000
    assert query.batch() == [5]


# -- available now --------------------------------------------------------------------------------


def test_available_now_ends_at_what_there_was_with_limits():
    group = filled(10)
    query = Query(FakeCluster(g=group), startingIndex="earliest", maxEntriesPerTrigger="4").start()
    assert isinstance(query.reader, SupportsTriggerAvailableNow)
    query.reader.prepareForTriggerAvailableNow()
    group.append(b"later")
    assert query.batches() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_available_now_does_not_wait_for_more_entries():
    query = Query(
        FakeCluster(g=filled(3)), startingIndex="earliest", minEntriesPerTrigger="5"
    ).start()
    query.reader.prepareForTriggerAvailableNow()
    assert query.batches() == [[0, 1, 2]]


def test_available_now_does_not_end_early_as_a_former_leader_says_so():
    cluster = FakeCluster(g=filled(10))
    query = Query(cluster, at(5), maxEntriesPerTrigger="2")
    query.reader.prepareForTriggerAvailableNow()
    cluster.former["g"] = Bounds(0, 6)
    assert query.batches() == [[5, 6], [7, 8], [9]]


def test_available_now_leaves_groups_that_come_later_to_the_next_run():
    cluster = FakeCluster(a=filled(2))
    query = Query(cluster, groupPattern=".", startingIndex="earliest").start()
    query.reader.prepareForTriggerAvailableNow()
    cluster.content["b"] = filled(2)
    query.now += DISCOVERY_MS
    assert query.batches() == [[0, 1]]
    assert set(query.offset) == {"a"}


# -- what the cluster is asked --------------------------------------------------------------------


def test_an_idle_stream_asks_the_cluster_ten_times_a_second_only():
    cluster = FakeCluster(g=filled(10))
    query = Query(cluster).start()
    cluster.calls.clear()
    for _ in range(89):
        query.now += 1_000 / 89
        assert query.reader.latestOffset(query.offset, query.limit) == query.offset
    assert cluster.calls["bounds"] <= 10
    assert cluster.calls["record"] == cluster.calls["groups"] == 0


def test_progress_says_how_far_behind_the_stream_is():
    query = Query(FakeCluster(g=filled(10)), startingIndex="earliest", maxEntriesPerTrigger="4")
    assert query.reader.reportLatestOffset() is None
    query.start()
    query.batch()
    latest = query.reader.reportLatestOffset()
    assert latest["g"]["index"] - query.offset["g"]["index"] == 6


def test_what_belongs_to_open_transactions_is_not_offered():
    group = filled(10)
    group.unstable_from = 6
    cluster = FakeCluster(g=group)
    query = Query(cluster, startingIndex="earliest").start()
    assert query.batches() == [[0, 1, 2, 3, 4, 5]]
    group.unstable_from, group.rejected = None, [(6, 7)]
    assert query.batches() == [[8, 9]]
    everything = Query(cluster, startingIndex="earliest", isolationLevel="read_uncommitted")
    assert len(everything.start().batches()[0]) == 8  # the fake rejects for all readers


def test_a_checkpoint_beyond_the_last_stable_index_is_no_loss():
    group = filled(10)
    cluster = FakeCluster(g=group)
    group.unstable_from = 6
    query = Query(cluster, checkpoint=at(9))  # it was read with read_uncommitted before
    assert query.batch() is None
    group.unstable_from = None
    assert query.batches() == [[9]]


def test_readers_travel_to_executors():
    options = parse_options({"servers": "h:1", "group": "g"})
    reader = pickle.loads(pickle.dumps(LogStreamReader(options, ("index",))))
    assert reader._columns == ("index",)


# -- losses ---------------------------------------------------------------------------------------


def test_entries_purged_before_they_were_read_are_an_error():
    group = filled(10)
    query = Query(FakeCluster(g=group), checkpoint=at(2))
    group.purge_before(5)
    message = r"group g: entries 2 to 4 \(3 of them\) .* the first kept is 5; .*=false"
    with pytest.raises(DataLossError, match=message):
        query.latest()
    with pytest.raises(DataLossError, match=message):
        query.reader.partitions(at(2), at(8))


def test_entries_purged_while_the_first_batches_run_are_noticed():
    cluster = FakeCluster(g=filled(10))
    killed = Query(cluster, startingIndex="earliest").start()
    cluster.content["g"].purge_before(5)
    query = Query(cluster, killed.offset, startingIndex="earliest")
    assert query.indexes(query.reader.initialOffset(), killed.offset) == []
    with pytest.raises(DataLossError, match=r"entries 0 to 4 \(5 of them\) were removed"):
        query.latest()


def test_entries_purged_before_they_were_read_may_be_skipped_and_are_counted(caplog):
    group = filled(10)
    query = Query(
        FakeCluster(g=group),
        checkpoint=at(2),
        failOnDataLoss="false",
        maxEntriesPerTrigger="2",
    )
    group.purge_before(5)
    assert query.batches() == [[5, 6], [7, 8], [9]]
    assert caplog.text.count("entries 2 to 4 (3 of them) were removed") == 1


def test_a_stream_continues_when_all_unread_entries_are_removed(caplog):
    group = filled(10)
    query = Query(FakeCluster(g=group), checkpoint=at(2), failOnDataLoss="false")
    group.purge_before(10)
    assert query.batches() == [[]]
    assert query.offset == at(10, -1)
    assert "entries 2 to 9 (8 of them) were removed" in caplog.text
    group.append(b"x")
    assert query.batch() == [10]


def test_a_log_that_ends_before_what_was_read_is_an_error():
    for method in ("latestOffset", "partitions"):
        query = Query(FakeCluster(g=filled(5)), checkpoint=at(8))
        argument = query.limit if method == "latestOffset" else at(9)
        with pytest.raises(DataLossError, match="group g ends before entry 5, but was read up to"):
            getattr(query.reader, method)(at(8), argument)


def test_a_log_that_ends_before_what_was_read_may_be_read_on(caplog):
    group = filled(5)
    query = Query(FakeCluster(g=group), checkpoint=at(8), failOnDataLoss="false")
    assert query.batches() == [[]]
    assert query.offset == at(5)
    assert "ends before entry 5" in caplog.text
    group.append(b"x")
    assert query.batch() == [5]


def test_a_rewritten_log_is_recognised_by_its_terms():
    rewritten = FakeGroup().append(*[b"x"] * 5).append(*[b"y"] * 5, term=3)
    query = Query(FakeCluster(g=rewritten), checkpoint=at(7, term=1))
    message = "group g was rewritten: entry 6 was read in term 1 and is of term 3 now"
    with pytest.raises(DataLossError, match=message):
        query.latest()
    with pytest.raises(DataLossError, match=message):
        query.reader.partitions(at(3), at(7))


def test_a_rewritten_log_may_be_read_on(caplog):
    rewritten = FakeGroup().append(*[b"x"] * 5).append(*[b"y"] * 5, term=3)
    query = Query(FakeCluster(g=rewritten), checkpoint=at(7, term=1), failOnDataLoss="false")
    assert query.batches() == [[7, 8, 9]]
    assert "group g was rewritten" in caplog.text
    assert query.offset == at(10, term=3)


# -- groups that come and go ----------------------------------------------------------------------


def test_new_groups_that_match_are_read_from_their_first_entry():
    cluster = FakeCluster(**{"a-1": filled(2), "b": filled(5)})
    query = Query(cluster, groupPattern="a-.*").start()
    assert query.offset == at(2, group="a-1")
    assert query.batch() is None
    late = filled(4)
    late.purge_before(1)
    cluster.content["a-2"] = late
    assert query.batch() is None  # not yet looked for
    query.now += DISCOVERY_MS
    assert query.batches() == [[], [1, 2, 3]]
    assert query.offset == at(2, group="a-1") | at(4, group="a-2")


def test_a_new_group_is_read_again_from_its_first_entry_after_a_restart():
    cluster = FakeCluster(a=filled(2))
    query = Query(cluster, groupPattern=".", startingIndex="earliest").start()
    query.batch()
    cluster.content["b"] = filled(4)
    query.now += DISCOVERY_MS
    query.batch()
    planned = (query.offset, query.latest())
    cluster.content["b"].purge_before(2)
    with pytest.raises(DataLossError, match="group b: entries 0 to 1"):
        Query(cluster, groupPattern=".").reader.partitions(*planned)


def test_a_group_that_vanished_is_an_error_or_skipped(caplog):
    cluster = FakeCluster(a=filled(2), b=filled(2))
    checkpoint = at(1, group="a") | at(2, group="b")
    del cluster.content["b"]
    with pytest.raises(DataLossError, match="group b was read up to entry 1, but"):
        Query(cluster, checkpoint, groupPattern=".").latest()
    query = Query(cluster, checkpoint, groupPattern=".", failOnDataLoss="false")
    assert query.batches() == [[1]]
    assert query.offset == at(2, group="a")
    assert "group b was read up to entry 1" in caplog.text


def test_a_group_is_not_taken_for_gone_because_its_node_does_not_answer():
    cluster = FakeCluster(a=filled(2), b=filled(2))
    checkpoint = at(1, group="a") | at(1, group="b")
    for answering in ({"a"}, set()):
        cluster.groups = lambda found=answering: frozenset(found)
        assert Query(cluster, checkpoint, groupPattern=".").batches() == [[1, 1]]

    def unreachable(group, isolation, *, unconfirmed=False):
        raise NoLeaderError("no leader of b found")

    cluster.bounds = unreachable
    with pytest.raises(NoLeaderError):
        Query(cluster, checkpoint, groupPattern=".").latest()


def test_a_group_added_to_the_options_is_read_from_its_first_entry():
    cluster = FakeCluster(a=filled(2), b=filled(3))
    query = Query(cluster, at(2, group="a"), group="a,b")
    assert query.batches() == [[], [0, 1, 2]]
    with pytest.raises(DataLossError, match="or the options do not name it"):
        Query(cluster, query.offset, group="a").latest()


def test_a_query_reports_how_far_it_has_come():
    cluster = FakeCluster(g=filled(10))
    reader = Query(cluster, readerName="my query").reader
    reader.commit(at(7))
    cluster.report_error = NoLeaderError("nobody answers")
    reader.commit(at(9))  # no reason to end the query
    assert cluster.reports == [("g", "my query", 7)]


def test_a_reader_without_a_name_lets_the_listener_report_and_says_where():
    cluster = FakeCluster(g=filled(10))
    query = Query(cluster, startingIndex="earliest").start()
    query.batch()
    query.reader.commit(at(7))
    assert cluster.reports == []
    known = query.reader.reportLatestOffset()["g"]
    assert (known["index"], known["reader"]) == (10, "")
    assert known["servers"] == query.reader._options.servers
    assert "servers" not in str(query.offset), "a checkpoint outlives addresses"
